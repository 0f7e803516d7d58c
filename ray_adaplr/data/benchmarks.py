"""The paper's four benchmarks: domains, sizes, splits and subsets by its protocol.

A domain is named `digit5/mnist` or `pacs/sketch`; `prepare` takes such a name together with the folder of the data.
The tasks between domains and the published figures are in `paper/published.py`.
"""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path

from ray_adaplr.errors import InputError


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by the paper's protocol, as `benchmarks.json` has it.

    `domains` has for each domain the names of its files in the data folder or one or two folders down, of which the
    first that exists is taken; `{split}`, `{idx}` (train or t10k) and `{t}` (nothing or .t) follow the split.
    """

    name: str
    domains: dict[str, list[str]]
    classes: list[str]  # in the published order
    size: int | None  # side of the images; None keeps theirs
    model: str  # the paper's backbone
    channels: int = 3  # also where a domain is grey
    splits: list[str] = field(default_factory=list)  # empty where a domain is used as a whole
    limits: dict[str, int] = field(default_factory=dict)  # images drawn by seed from a split
    whole: list[str] = field(default_factory=list)  # domains that are too small for such a limit
    subset: bool = False  # the files hold more classes, which are left out

    def limit(self, domain: str, split: str | None) -> int | None:
        """How many images of a domain's split the protocol draws; None is all."""
        return None if domain in self.whole else self.limits.get(split or "")

    def locate(self, domain: str, split: str | None, root: str) -> Path:
        """The file or folder of a domain below the data folder."""
        split = split or (self.splits[0] if self.splits else "")
        words = {"split": split, "idx": "t10k" if split == "test" else split, "t": ".t" if split == "test" else ""}
        names = [name.format(**words) for name in self.domains[domain]]
        for name in names:
            for depth in ("", "*/", "*/*/"):
                if found := sorted(Path(root).glob(depth + name)):
                    return found[0]
        raise InputError(f"{self.name}/{domain} is not below {root}; looked for {', '.join(names)} there and below")


@lru_cache(maxsize=1)
def benchmarks() -> dict[str, Benchmark]:
    """All benchmarks by name: digit5, pacs, visda, domainnet, and domainnet126, which is not in the paper."""
    table = json.loads(resources.files(__package__).joinpath("benchmarks.json").read_text(encoding="utf-8"))
    return {name: Benchmark(name, **fields) for name, fields in table.items()}


def get_benchmark(name: str) -> Benchmark:
    """The benchmark of a name."""
    if name not in benchmarks():
        raise InputError(f"{name!r} is not a benchmark; choose one of {', '.join(benchmarks())}")
    return benchmarks()[name]


def named_domain(what: str) -> tuple[Benchmark, str] | None:
    """Reads `digit5/mnist`; None when `what` does not start with the name of a benchmark."""
    name, _, domain = what.partition("/")
    if name not in benchmarks() or not domain:
        return None
    if domain not in benchmarks()[name].domains:
        raise InputError(f"{domain!r} is not a domain of {name}; it has {', '.join(benchmarks()[name].domains)}")
    return benchmarks()[name], domain

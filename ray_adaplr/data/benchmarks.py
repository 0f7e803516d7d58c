"""The paper's four benchmarks: domains, tasks, sizes and subsets by its protocol, and the figures it published.

A domain is named `digit5/mnist` or `pacs/sketch`; `prepare` takes such a name together with the folder of the data.
A task reads SOURCE-TARGET, and `rest` stands for all other domains: `usps-mnist` (single-source), `rest-mnist`
(multi-source, aggregated), `photo-rest` (multi-target). Settings of training are presets, named by `Task.preset`.
"""

import json
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from ray_adaplr.errors import InputError

Scenario = Literal["single-source", "multi-source", "multi-target"]


@dataclass(frozen=True)
class Task:
    """One adaptation: a model of `sources` adapted to the union of `targets`."""

    benchmark: str
    name: str
    scenario: Scenario
    sources: tuple[str, ...]
    targets: tuple[str, ...]

    @property
    def preset(self) -> str:
        """The preset with the paper's settings for this task."""
        if self.benchmark.startswith("domainnet"):
            return "domainnet-hard" if set(self.targets) & {"infograph", "quickdraw"} else "domainnet"
        several = self.scenario == "multi-source" and self.benchmark in ("digit5", "pacs")
        return f"{self.benchmark}-multi-source" if several else self.benchmark


@dataclass(frozen=True)
class Benchmark:
    """A benchmark by the paper's protocol, as `benchmarks.json` has it.

    Attributes:
        name: its name on the command line.
        domains: for each domain the names of its files in the data folder or one or two folders down, the first that
            exists is taken; `{split}`, `{idx}` (train or t10k) and `{t}` (nothing or .t) follow the split.
        classes: class names in the published order.
        size: side of the images; None keeps theirs.
        channels: 3 (RGB), also where a domain is grey.
        model: the paper's backbone.
        splits: the published splits; empty where a domain is used as a whole.
        limits: images drawn by seed from a split.
        whole: domains that are too small for such a limit.
        subset: whether the files hold more classes, which are left out.
    """

    name: str
    domains: dict[str, list[str]]
    classes: list[str]
    size: int | None
    model: str
    channels: int = 3
    splits: list[str] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)
    subset: bool = False

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
        raise InputError(
            f"{self.name}/{domain} is not below {root}; looked for {', '.join(names)} there and in folders below"
        )

    def task(self, name: str) -> Task:
        """The task of a name such as `usps-mnist`, `rest-mnist`, `photo-rest` or `photo+sketch-cartoon`."""
        sides = name.split("-")
        if len(sides) != 2 or sides == ["rest", "rest"]:
            raise InputError(f"task {name!r} is not SOURCE-TARGET; {self.name} has {self._examples()}")
        given = [[] if side == "rest" else side.split("+") for side in sides]
        for domain in given[0] + given[1]:
            if domain not in self.domains:
                raise InputError(f"{domain!r} is no domain of {self.name}; it has {', '.join(self.domains)}")
        rest = [domain for domain in self.domains if domain not in given[0] + given[1]]
        sources, targets = (side or rest for side in given)
        if set(sources) & set(targets):
            raise InputError(f"task {name!r} has a domain on both sides; {self.name} has {self._examples()}")
        scenario: Scenario = (
            "multi-target" if len(targets) > 1 else "multi-source" if len(sources) > 1 else "single-source"
        )
        return Task(self.name, name, scenario, tuple(sources), tuple(targets))

    def tasks(self) -> list[Task]:
        """The tasks of the paper's tables, in their order."""
        names = [column[0] for table in paper_tables(self.name) for column in table["columns"]]
        return [self.task(name) for name in dict.fromkeys(names)]

    def _examples(self) -> str:
        return ", ".join(task.name for task in self.tasks()) or "-".join(list(self.domains)[:2])


@lru_cache(maxsize=1)
def benchmarks() -> dict[str, Benchmark]:
    """All benchmarks by name: digit5, pacs, visda, domainnet, and domainnet126, which is not in the paper."""
    return {name: Benchmark(name, **fields) for name, fields in _read_json("benchmarks.json").items()}


def get_benchmark(name: str) -> Benchmark:
    """The benchmark of a name."""
    if name not in benchmarks():
        raise InputError(f"{name!r} is no benchmark; choose one of {', '.join(benchmarks())}")
    return benchmarks()[name]


def named_domain(what: str) -> tuple[Benchmark, str] | None:
    """Reads `digit5/mnist`; None when `what` does not start with the name of a benchmark."""
    name, _, domain = what.partition("/")
    if name not in benchmarks() or not domain:
        return None
    if domain not in benchmarks()[name].domains:
        raise InputError(f"{domain!r} is no domain of {name}; it has {', '.join(benchmarks()[name].domains)}")
    return benchmarks()[name], domain


@lru_cache
def _read_json(name: str) -> dict[str, Any]:
    return json.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def paper_tables(benchmark: str | None = None) -> list[dict[str, Any]]:
    """The paper's tables, of one benchmark or of all, in the layout that `paper_results.json` describes."""
    return [table for table in _read_json("paper_results.json")["tables"] if benchmark in (None, table["benchmark"])]


def paper_row(benchmark: str, task: str) -> dict[str, Any] | None:
    """The published figures of one task, or None when the paper has none.

    Returns:
        `columns` (target domains; in visda classes), and for each of `inferred`, `refined`, `target` a dict with
        `values`, `sd` (or None) and `overall`, the one figure of the whole task where the paper gives one;
        `others`: the values of other methods by name.
    """
    for table in paper_tables(benchmark):
        tasks = list(dict.fromkeys(column[0] for column in table["columns"]))
        if task not in tasks:
            continue
        rows = [row for row, column in enumerate(table["columns"]) if column[0] == task]
        result: dict[str, Any] = {"columns": [table["columns"][row][1] for row in rows]}
        for stage, figures in table["adaplr"].items():
            picked = rows if "values" in figures else [tasks.index(task)]
            values = [figures.get("values", figures.get("task_values"))[row] for row in picked]
            sd = [figures["sd"][row] for row in picked] if "sd" in figures else None
            overall = values[0] if len(values) == 1 else figures["average"] if len(tasks) == 1 else None
            result[stage] = {"values": values, "sd": sd, "overall": overall}
        result["others"] = {row["method"]: [row["values"][i] for i in rows] for row in table["others"]}
        return result
    return None

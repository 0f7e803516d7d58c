"""The tasks of the paper's tables, and the figures it published.

A task reads SOURCE-TARGET, and `rest` stands for all other domains: `usps-mnist` (single-source), `rest-mnist`
(multi-source, aggregated), `photo-rest` (multi-target). Settings of training are presets, named by `Task.preset`.
"""

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from ray_adaplr.data.benchmarks import Benchmark
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


def find_task(benchmark: Benchmark, name: str) -> Task:
    """The task of a name such as `usps-mnist`, `rest-mnist`, `photo-rest` or `photo+sketch-cartoon`."""
    sides = name.split("-")
    if len(sides) != 2 or sides == ["rest", "rest"]:
        raise InputError(f"task {name!r} is not SOURCE-TARGET; {benchmark.name} has {_examples(benchmark)}")
    given = [[] if side == "rest" else side.split("+") for side in sides]
    for domain in given[0] + given[1]:
        if domain not in benchmark.domains:
            raise InputError(f"{domain!r} is not a domain of {benchmark.name}; it has {', '.join(benchmark.domains)}")
    rest = [domain for domain in benchmark.domains if domain not in given[0] + given[1]]
    sources, targets = (side or rest for side in given)
    if set(sources) & set(targets):
        raise InputError(f"task {name!r} has a domain on both sides; {benchmark.name} has {_examples(benchmark)}")
    scenario: Scenario = "multi-target" if len(targets) > 1 else "multi-source" if len(sources) > 1 else "single-source"
    return Task(benchmark.name, name, scenario, tuple(sources), tuple(targets))


def paper_tasks(benchmark: Benchmark) -> list[Task]:
    """The tasks of the paper's tables, in their order."""
    names = [column[0] for table in paper_tables(benchmark.name) for column in table["columns"]]
    return [find_task(benchmark, name) for name in dict.fromkeys(names)]


def _examples(benchmark: Benchmark) -> str:
    return ", ".join(task.name for task in paper_tasks(benchmark)) or "-".join(list(benchmark.domains)[:2])


def paper_tables(benchmark: str | None = None) -> list[dict[str, Any]]:
    """The paper's tables, of one benchmark or of all, in the layout that `paper_results.json` describes."""
    file = resources.files(__package__).joinpath("paper_results.json")
    tables = json.loads(file.read_text(encoding="utf-8"))["tables"]
    return [table for table in tables if benchmark in (None, table["benchmark"])]


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

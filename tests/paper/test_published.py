"""The tasks of the paper's tables, and its published figures, are all there."""

import numpy as np
import pytest

from ray_adaplr.config import PRESETS
from ray_adaplr.data.benchmarks import benchmarks, get_benchmark
from ray_adaplr.errors import InputError
from ray_adaplr.paper.published import find_task, paper_row, paper_tables, paper_tasks


def test_tasks_are_named_by_source_and_target():
    digit5, pacs = get_benchmark("digit5"), get_benchmark("pacs")
    task = find_task(digit5, "usps-mnist")
    assert (task.scenario, task.sources, task.targets, task.preset) == (
        "single-source",
        ("usps",),
        ("mnist",),
        "digit5",
    )
    task = find_task(digit5, "rest-mnist")
    assert (task.scenario, task.sources) == ("multi-source", ("mnistm", "svhn", "synth", "usps"))
    assert task.preset == "digit5-multi-source"
    task = find_task(pacs, "photo-rest")
    assert (task.scenario, task.targets) == ("multi-target", ("art_painting", "cartoon", "sketch"))
    assert (task.preset, find_task(pacs, "photo+sketch-cartoon").scenario) == ("pacs", "multi-source")
    domainnet = get_benchmark("domainnet")
    presets = [find_task(domainnet, name).preset for name in ("rest-real", "rest-quickdraw")]
    assert presets == ["domainnet", "domainnet-hard"]


def test_every_task_has_a_preset_with_its_settings():
    tasks = [task for benchmark in benchmarks().values() for task in paper_tasks(benchmark)]
    tasks.append(find_task(get_benchmark("domainnet126"), "real-sketch"))
    assert {task.preset for task in tasks} <= set(PRESETS)


@pytest.mark.parametrize("name", ["mnist", "mnist-mars", "rest-rest", "mnist-mnist", "a-b-c"])
def test_impossible_tasks_are_told(name):
    with pytest.raises(InputError, match="digit5"):
        find_task(get_benchmark("digit5"), name)


def test_every_task_of_the_tables_is_a_task_of_its_benchmark():
    counts = {name: len(paper_tasks(benchmark)) for name, benchmark in benchmarks().items()}
    assert counts == {"digit5": 10, "pacs": 12, "visda": 1, "domainnet": 6, "domainnet126": 0}
    for table in paper_tables():
        for name, _ in table["columns"]:
            assert find_task(get_benchmark(table["benchmark"]), name).scenario == table["scenario"]


def test_every_row_of_the_tables_is_whole_and_its_average_is_the_mean_unless_noted():
    for table in paper_tables():
        tasks = len({column[0] for column in table["columns"]})
        for row in [*table["adaplr"].values(), *table["others"]]:
            values = row.get("values", row.get("task_values"))
            assert len(values) == (len(table["columns"]) if "values" in row else tasks)
            assert len(row.get("sd", values)) == len(values)
            assert (row["average"] is None) == (None in values)
            if row["average"] is not None and "note" not in row:
                assert abs(np.mean(values) - row["average"]) < 0.07


def test_the_row_of_a_task_holds_the_published_figures():
    row = paper_row("digit5", "usps-mnist")
    assert [row[stage]["overall"] for stage in ("inferred", "refined", "target")] == [70.2, 99.2, 99.2]
    assert row["target"]["sd"] == [0.02]
    assert row["others"]["MTDA"] == [91.5]
    row = paper_row("pacs", "photo-rest")
    assert row["columns"] == ["art_painting", "cartoon", "sketch"]
    assert (row["refined"]["overall"], row["target"]["values"]) == (57.3, [80.1, 76.1, 25.9])
    assert row["target"]["overall"] is None
    row = paper_row("visda", "train-test")
    assert (row["columns"][0], row["target"]["values"][0], row["target"]["overall"]) == ("aeroplane", 94.5, 84.2)
    assert paper_row("digit5", "mnist-synth") is None

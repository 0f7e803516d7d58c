"""The task, with a source model that a CPU trained, and the CPU's run of it to compare with."""

import numpy as np
import pytest
from sim_task import CONFIG, ON_CPU, SPEC, Task

from ray_adaplr.data.digits import demo_domain
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.stages.adapt import Result, adapt
from ray_adaplr.stages.pretrain import SourcePlan, pretrain


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = tmp_path_factory.mktemp("task")
    stores = []
    for name, count in (("mnist", 600), ("optdigits", 150)):
        whole = demo_domain(name, folder / f"{name}-whole")
        truth = whole.ground_truth()
        assert truth is not None
        images = [(whole.ids.to_pylist()[:count], whole.read(np.arange(count)))]
        stores.append(write_store(folder / name, images, classes=whole.classes, domain=name, truth=truth[:count]))
    source = pretrain(SourcePlan(stores[0], str(folder / "source"), SPEC, CONFIG, ON_CPU))
    return Task(stores[0], stores[1], source)


@pytest.fixture(scope="session")
def cpu_run(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Result:
    return adapt(task.plan(tmp_path_factory.mktemp("cpu") / "run", ON_CPU))

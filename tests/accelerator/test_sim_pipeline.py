"""The whole pipeline on the pretended accelerator, in process and on Ray: bit for bit what the CPU computes."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sim_task import CONFIG, ON_CPU, ON_DEVICE, SPEC, Task, bits

from ray_adaplr.api import AdaPLR
from ray_adaplr.cli.doctor import DoctorOptions, doctor
from ray_adaplr.config import ScalingConfig
from ray_adaplr.engine import survey
from ray_adaplr.engine.member import Member
from ray_adaplr.stages.adapt import Result, adapt
from ray_adaplr.stages.evaluate import evaluate, fitted
from ray_adaplr.stages.pretrain import SourcePlan, pretrain
from ray_adaplr.storage.models import fingerprint
from ray_adaplr.sweep.options import SweepJob
from ray_adaplr.sweep.trials import run_sweep

pytest.importorskip("torch_sim", reason="run by tests/accelerator/build.py", exc_type=ImportError)
pytestmark = pytest.mark.accelerator
ON_RAY = ScalingConfig(max_restarts=20)  # on a busy machine a process that is well may be silent for long


def test_a_source_model_trains_to_the_cpus_bits_and_comes_back_on_the_cpu(task: Task, tmp_path: Path) -> None:
    model = pretrain(SourcePlan(task.source_images, str(tmp_path / "model"), SPEC, CONFIG, ON_DEVICE))
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"cpu"}
    assert fingerprint(model) == fingerprint(task.source)


def test_a_run_in_process_gives_the_cpus_bits(task: Task, cpu_run: Result, tmp_path: Path) -> None:
    result = adapt(task.plan(tmp_path / "run", ON_DEVICE))
    assert bits(result) == bits(cpu_run)
    assert result.summary["target"] == cpu_run.summary["target"]
    [computed] = json.loads(Path(result.path, "run.json").read_text())["computed_with"]
    assert (computed["device"], computed["precision"]) == ("sim", "float32")
    scores = [evaluate(result.classifier, task.target, device) for device in ("sim", "cpu")]
    assert scores[0] == scores[1]


def test_a_run_that_is_taken_up_on_another_kind_of_device_says_so(task: Task, tmp_path: Path) -> None:
    adapt(task.plan(tmp_path / "run", ON_DEVICE), until="infer")
    result = adapt(task.plan(tmp_path / "run", ON_CPU))
    assert any("device sim -> cpu" in warning for warning in result.summary["warnings"])


def test_a_source_on_the_device_is_copied_to_the_cpu_where_any_member_can_unpickle_it(task: Task) -> None:
    copied = fitted(copy.deepcopy(task.source).to("sim"), task.target)
    assert {tensor.device.type for tensor in copied.state_dict().values()} == {"cpu"}


def test_a_module_on_the_device_is_a_source_like_any_other(task: Task, cpu_run: Result, tmp_path: Path) -> None:
    network = copy.deepcopy(task.source.network).to("sim")
    result = AdaPLR(CONFIG, ON_DEVICE, verbose=False).fit(network, task.target, tmp_path / "run", normalize="half")
    assert next(network.parameters()).device.type == "sim"  # the user's is left where it was
    assert next(result.model.parameters()).device.type == "cpu"
    assert result.labels.equals(cpu_run.labels)
    images = torch.rand(2, 1, 16, 16)
    assert torch.equal(result.model(images), result.model.to("sim")(images.to("sim")).cpu())


@pytest.fixture(scope="module")
def two_gpus() -> Iterator[None]:
    """A Ray with two GPUs, each of which a process sees as its only one."""
    import ray

    ray.init(address="local", num_cpus=4, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_on_ray_killed_and_taken_up_again_the_bits_are_the_cpus(
    two_gpus: None, task: Task, cpu_run: Result, tmp_path: Path
) -> None:
    import ray

    plan = task.plan(tmp_path / "run", ON_RAY)

    def kill_a_member_then_stop(line: dict[str, Any]) -> None:
        if line["epoch"] == 0:
            ray.kill(ray.get_actor("adaplr-run-member-1"))
        else:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt(plan, watch=kill_a_member_then_stop)
    result = adapt(plan)
    assert bits(result) == bits(cpu_run)
    computed = json.loads(Path(result.path, "run.json").read_text())["computed_with"]
    assert [each["device"] for each in computed] == ["sim"]


def test_the_doctor_on_ray_tries_every_gpu(two_gpus: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "ANSWER_TIMEOUT", 900.0)  # a busy machine loads torch for minutes
    [line] = [found for found in doctor(DoctorOptions(), ScalingConfig()) if found.what == "node"]
    assert line.state == "ok"
    assert "sim:0, 17.2 of 17.2 GB free; sim:1" in line.text


def test_each_member_on_ray_sees_its_own_gpu_alone(two_gpus: None) -> None:
    import ray

    @ray.remote(num_gpus=1)
    class Looking(Member):
        def sees(self) -> tuple[int, tuple[int, ...]]:
            return torch.accelerator.device_count(), tuple(ray.get_gpu_ids())

    members = [Looking.remote() for _ in range(2)]
    assert sorted(ray.get([member.sees.remote() for member in members])) == [(1, (0,)), (1, (1,))]
    for member in members:
        ray.kill(member)


def test_two_trials_of_a_sweep_on_ray_share_the_gpus(
    two_gpus: None, task: Task, cpu_run: Result, tmp_path: Path
) -> None:
    space = tmp_path / "space.py"
    space.write_text("def space(num_classes):\n    return {'alpha': {'grid_search': [0.5, 0.8]}}\n")
    job = SweepJob(str(tmp_path / "sweep"), str(space), quiet=True)
    run_sweep(job, [task.source], task.target, CONFIG, ON_RAY)
    runs = [tmp_path / "sweep" / "trials" / number for number in ("000", "001")]
    for run in runs:
        [computed] = json.loads((run / "run.json").read_text())["computed_with"]
        assert computed["device"] == "sim"
    import pyarrow.parquet as pq

    assert pq.read_table(runs[0] / "labels.parquet").equals(cpu_run.labels)

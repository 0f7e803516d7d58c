"""Where there is no shift, the source model is hardly changed, and the run says so; every way out of that works."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from local_runs import LOCAL, bits

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.predict import reestimate_batchnorm
from ray_adaplr.core.shift import FAMILIAR
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.errors import InputError
from ray_adaplr.stages.adapt import Result, RunPlan, adapt
from ray_adaplr.storage.run import Run

SMALL = Config(epochs=2, warmup=0, distill_epochs=1, warm_start_epochs=1, n_a=2)
ADAPTED = SMALL.model_copy(update={"on_no_shift": "adapt"})


@pytest.fixture
def plan(source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path) -> RunPlan:
    """Other images of the source's own domain: every second one is the model's, the others are the target."""
    known = digit_stores["mnist"]
    reestimate_batchnorm(source_model, known.read, np.arange(0, len(known), 2))
    rows = np.arange(1, len(known), 10)
    ids, truth = known.ids.to_pylist(), known.ground_truth()
    assert truth is not None
    shard = ([ids[row] for row in rows], known.read(rows))
    store = write_store(tmp_path / "store", [shard], classes=known.classes, domain="mnist", truth=truth[rows])
    return RunPlan([source_model], store, str(tmp_path / "run"), SMALL, LOCAL)


def moved(result: Result, plan: RunPlan) -> float:
    """How far the weights have moved from the source model's."""
    theirs, own = (dict(model.named_parameters()) for model in (plan.sources[0].network, result.model))
    return sum((weights - theirs[name]).square().sum().item() for name, weights in own.items()) ** 0.5


def says_so(result: Result) -> bool:
    return any("There is no shift" in remark for remark in result.summary["remarks"])


def test_the_source_model_is_hardly_changed_and_the_run_says_why(plan: RunPlan, tmp_path: Path) -> None:
    result = adapt(plan)
    usual = adapt(replace(plan, out=str(tmp_path / "usual"), config=ADAPTED))
    assert says_so(result)
    assert not says_so(usual)
    assert 0 < moved(result, plan) < moved(usual, plan) / 2
    assert result.summary["shift"] == usual.summary["shift"] < FAMILIAR
    assert "There is no shift" in (Path(plan.out) / "report.html").read_text()
    inferred = Run(plan.out).read_inferred(plan.sources)
    assert (inferred.labels == inferred.start_labels).all()
    assert not inferred.warm


def test_the_run_and_the_model_card_say_which_settings_do_not_count(plan: RunPlan, tmp_path: Path) -> None:
    named = SMALL.model_copy(update={"prior": "uniform", "diversity": 0.5, "keep_source": 0.4})
    result = adapt(replace(plan, config=named))
    assert (
        "What warm_start, diversity, keep_source and an equal prior say does not count" in result.summary["remarks"][0]
    )
    assert "so there was no warm start" in (Path(plan.out) / "target_model/README.md").read_text().lower()
    adapt(replace(plan, out=str(tmp_path / "usual"), config=ADAPTED))
    assert "so there was no warm start" not in (tmp_path / "usual/target_model/README.md").read_text().lower()


def test_a_fork_cannot_change_what_the_first_labels_have_settled(plan: RunPlan, tmp_path: Path) -> None:
    adapt(plan)
    with pytest.raises(InputError, match="cannot change on_no_shift: spare -> adapt"):
        adapt(replace(plan, out=str(tmp_path / "fork"), config=ADAPTED), fork=plan.out)


def test_a_run_of_a_version_without_this_setting_goes_on_under_either_value(plan: RunPlan, tmp_path: Path) -> None:
    for name, config in {"spare": SMALL, "adapt": ADAPTED}.items():
        run = replace(plan, out=str(tmp_path / name), config=config)
        adapt(run, until="infer")
        written = tmp_path / name / "config.toml"
        lines = written.read_text().splitlines(keepends=True)
        written.write_text("".join(line for line in lines if not line.startswith("on_no_shift")))
        adapt(run, until="refine")
        assert f'on_no_shift = "{name}"' in written.read_text()
        with pytest.raises(InputError, match="alpha"):
            adapt(replace(run, config=config.model_copy(update={"alpha": 0.5})))


def test_on_ray_it_is_the_same_to_the_bit(plan: RunPlan, ray_cluster: object, tmp_path: Path) -> None:
    here = adapt(plan)
    on_ray = adapt(replace(plan, out=str(tmp_path / "on-ray"), scaling=ScalingConfig()))
    assert bits(here) == bits(on_ray)


def test_a_run_that_was_stopped_goes_on_to_the_same_bits(plan: RunPlan, tmp_path: Path) -> None:
    straight = adapt(plan)
    other = replace(plan, out=str(tmp_path / "stopped"))
    adapt(other, until="infer")
    adapt(other, until="refine")
    assert bits(adapt(other)) == bits(straight)


@pytest.mark.parametrize("why", ["labels are given", "several sources", "several targets"])
def test_it_is_adapted_as_usual_where(
    why: str, plan: RunPlan, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    if why == "labels are given":
        given = np.full(len(plan.store), -1)
        given[:5] = 3
        plan = replace(plan, given=given)
    if why == "several sources":
        plan = replace(plan, sources=plan.sources * 2)
    if why == "several targets":  # the mean of some shifted images and of many others looks familiar
        few = digit_stores["optdigits"]
        rows = np.arange(60)
        shard = (few.ids.to_pylist()[:60], few.read(rows))
        write_store(tmp_path / "few", [shard], classes=few.classes, domain="optdigits")
        plan = replace(plan, store=ImageStore.open(*plan.store.paths, str(tmp_path / "few")))
    assert not says_so(adapt(plan))


def test_another_domain_is_adapted_to(plan: RunPlan, digit_stores: dict[str, ImageStore]) -> None:
    result = adapt(replace(plan, store=digit_stores["optdigits"]))
    assert result.summary["shift"] > FAMILIAR
    assert not says_so(result)


def test_guests_are_not_asked(plan: RunPlan) -> None:
    class NeverAsked(Classifier):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            raise AssertionError("asked")

    guest = NeverAsked(plan.sources[0].network, plan.sources[0].spec)
    assert "No guest was asked." in adapt(replace(plan, guests=[guest])).summary["remarks"]

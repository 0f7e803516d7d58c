"""`precision = "auto"`: decided once by a clock, written down, and the same for whoever comes later."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from local_runs import LOCAL

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core import devices
from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.engine import LocalEngine
from ray_adaplr.engine.member import Member
from ray_adaplr.errors import InputError
from ray_adaplr.stages import evaluate, precision, summary
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.stages.precision import candidates, fastest, measured, settled
from ray_adaplr.stages.pretrain import SourcePlan, pretrain
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.models import load_model
from ray_adaplr.sweep.options import SweepJob, SweepOptions
from ray_adaplr.sweep.space import SweepRecord, content_hash, put_record, read_record
from ray_adaplr.sweep.trials import _with_one_precision


@pytest.fixture
def target(digit_stores: dict[str, ImageStore]) -> ImageStore:
    return digit_stores["optdigits"]


class Clock:
    """Stands in for the measurement, whose outcome depends on the machine: says a precision, and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.says = "bf16"
        self.asked = 0
        monkeypatch.setattr(precision, "measured", self.measured)

    def measured(self, *_: Any) -> tuple[str, str]:
        self.asked += 1
        return self.says, "measured"

    def __deepcopy__(self, memo: Any) -> "Clock":  # the engine sends copies
        return self


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_another_precision_is_taken_only_where_it_is_faster_by_more_than_the_noise() -> None:
    assert fastest({"fp32": 1.6, "bf16": 1.0}) == ("bf16", "measured: 1.60 times as fast in bf16 as in fp32")
    assert fastest({"fp32": 1.0, "bf16": 1.8})[0] == "fp32"  # depthwise networks
    assert fastest({"fp32": 1.05, "bf16": 1.0})[0] == "fp32"


def test_a_cpu_that_only_emulates_bf16_is_not_measured(
    source_model: Classifier, target: ImageStore, small_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_fast_bf16", lambda _device: False)
    assert candidates("cpu") == []
    found, why = measured(small_config, source_model, target.paths, "cpu")
    assert (found, "no instructions" in why) == ("fp32", True)


def test_the_network_itself_is_measured_and_left_as_it_was(
    source_model: Classifier,
    target: ImageStore,
    small_config: Config,
    source_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices, "has_fast_bf16", lambda _device: True)
    monkeypatch.setattr(precision, "ROUNDS", 1)
    found, why = measured(small_config, source_model, target.paths, "cpu")
    assert found in ("fp32", "bf16")
    assert "times as fast in bf16" in why
    fresh = load_model(source_folder).state_dict()
    assert all((fresh[name] == weight).all() for name, weight in source_model.state_dict().items())


def test_a_cpu_without_a_word_gets_fp32(source_model: Classifier, target: ImageStore, clock: Clock) -> None:
    with LocalEngine(ScalingConfig(engine="local", gpus_per_member=0)) as engine:
        assert settled(Config(), source_model, target, engine) == (Config(precision="fp32"), "")
        assert settled(Config(precision="fp16"), source_model, target, engine) == (Config(precision="fp16"), "")
    assert clock.asked == 0


def test_a_run_is_measured_once_and_a_resume_takes_what_its_folder_says(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path, clock: Clock
) -> None:
    config = small_config.model_copy(update={"precision": "auto", "epochs": 2})
    plan = RunPlan([source_model], target, str(tmp_path / "run"), config, LOCAL)
    adapt(plan, until="infer")
    assert 'precision = "bf16"' in (tmp_path / "run/config.toml").read_text()
    clock.says = "fp32"
    adapt(plan, until="refine")
    assert 'precision = "bf16"' in (tmp_path / "run/config.toml").read_text()
    assert clock.asked == 1
    other = config.model_copy(update={"precision": "fp32"})
    with pytest.raises(InputError, match="precision: bf16 -> fp32"):
        adapt(RunPlan([source_model], target, str(tmp_path / "run"), other, LOCAL), until="refine")
    longer = config.model_copy(update={"alpha": 0.6, "epochs": 3})
    forked = RunPlan([source_model], target, str(tmp_path / "fork"), longer, LOCAL)
    adapt(forked, until="infer", fork=str(tmp_path / "run"))
    assert 'precision = "bf16"' in (tmp_path / "fork/config.toml").read_text()
    adapt(plan, until="infer", force=True)
    assert 'precision = "fp32"' in (tmp_path / "run/config.toml").read_text()


@pytest.mark.usefixtures("unrendered")
def test_labels_and_members_are_computed_in_the_precision_of_the_run(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    def bits(precision: str | None) -> tuple[bytes, bytes, bytes]:
        config = small_config.model_copy(update={"precision": precision, "epochs": 1, "distill_epochs": 1, "n_e": 1})
        run = tmp_path / str(precision)
        adapt(RunPlan([source_model], target, str(run), config, LOCAL))
        models = [run / f"{name}/model.safetensors" for name in ("start_models/0", "ensemble/0", "target_model")]
        first, member, last = (model.read_bytes() for model in models)
        return first, member, last

    usual, fp32, bf16 = bits(None), bits("fp32"), bits("bf16")
    assert usual == fp32
    assert all(one != other for one, other in zip(fp32, bf16))


@pytest.mark.usefixtures("unrendered")
def test_a_run_judges_its_models_in_its_own_precision_however_many_threads_look(
    source_model: Classifier,
    target: ImageStore,
    small_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, set[str | None]] = {"evaluate": set(), "summary": set()}

    def watched(where: str) -> Callable[..., Any]:
        def predict(_model: Classifier, _read: Any, samples: np.ndarray, *_: Any) -> np.ndarray:
            seen[where].add(devices._asked.get())
            return np.eye(10, dtype=np.float32)[samples % 10]

        return predict

    monkeypatch.setattr(evaluate, "predict_logits", watched("evaluate"))
    monkeypatch.setattr(summary, "predict_logits", watched("summary"))
    changes = {"precision": "bf16", "epochs": 1, "distill_epochs": 1, "n_e": 1, "stop": "auto"}
    scaling = LOCAL.model_copy(update={"threads": 2})
    adapt(RunPlan([source_model], target, str(tmp_path / "run"), small_config.model_copy(update=changes), scaling))
    assert seen == {"evaluate": {"bf16"}, "summary": {"bf16"}}


def test_a_source_model_that_was_cut_off_goes_on_in_the_precision_it_began_with(
    target: ImageStore, tmp_path: Path, clock: Clock
) -> None:
    spec = ModelSpec(num_classes=10, channels=1, width=4)

    def plan(out: str, precision: str | None) -> SourcePlan:
        return SourcePlan(target, str(tmp_path / out), spec, Config(pretrain_epochs=1, precision=precision), LOCAL)

    (tmp_path / "auto/checkpoints").mkdir(parents=True)
    (tmp_path / "auto/.ray-adaplr.json").write_text('{"kind": "model"}')
    (tmp_path / "auto/checkpoints/precision.json").write_text('{"precision": "fp16"}')
    models = {name: pretrain(plan(name, name)) for name in ("auto", "fp16", "fp32")}
    assert clock.asked == 0
    weights = {name: model.head.weight for name, model in models.items()}
    assert weights["auto"].equal(weights["fp16"])
    assert not weights["auto"].equal(weights["fp32"])
    assert not (tmp_path / "auto/checkpoints").exists()
    pretrain(plan("auto", "auto"))  # is done
    with pytest.raises(InputError, match="other data or settings"):
        pretrain(plan("auto", "bf16"))


def test_the_trials_of_a_sweep_share_one_measurement(
    source_model: Classifier, target: ImageStore, tmp_path: Path, clock: Clock
) -> None:
    folder, config = Folder(tmp_path / "sweep"), Config(precision="auto")
    record = SweepRecord(
        space="alpha",
        space_sha256=content_hash("alpha"),
        source=["models/photo"],
        target=["/stores/sketch"],
        target_fingerprint="f",
        source_fingerprint="s",
        options=SweepOptions(),
        config=config.to_toml(),
        listed=[{"alpha": 0.5}],
    )
    put_record(folder, SweepJob(folder.uri, "alpha"), record)
    assert _with_one_precision(config, source_model, target, LOCAL, folder).precision == "bf16"
    clock.says = "fp32"
    put_record(folder, SweepJob(folder.uri, None, resume=True), record)
    assert _with_one_precision(config, source_model, target, LOCAL, folder).precision == "bf16"
    assert (clock.asked, read_record(folder.uri).precision) == (1, "bf16")


def test_a_run_in_fp16_that_is_cut_off_resumes_to_the_same_bits(
    source_model: Classifier,
    target: ImageStore,
    small_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small_config.model_copy(update={"precision": "fp16", "epochs": 3, "n_e": 1, "warm_start": "off"})
    straight, cut = (
        RunPlan([source_model], target, str(tmp_path / name), config, LOCAL) for name in ("straight", "cut")
    )
    adapt(straight, until="refine")
    train = Member.train_epoch

    def cut_off(self: Member, epoch: int, *args: Any) -> Any:
        if epoch == 2:
            raise KeyboardInterrupt
        return train(self, epoch, *args)

    monkeypatch.setattr(Member, "train_epoch", cut_off)
    with pytest.raises(KeyboardInterrupt):
        adapt(cut, until="refine")
    monkeypatch.setattr(Member, "train_epoch", train)
    adapt(cut, until="refine")
    for name in ("labels.parquet", "ensemble/0/model.safetensors"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()

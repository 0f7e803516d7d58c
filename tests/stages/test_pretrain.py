"""A source model is trained once, and never passed off for another."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from local_runs import LOCAL

from ray_adaplr.config import Config
from ray_adaplr.core.learner import Learner
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.errors import InputError
from ray_adaplr.stages.pretrain import SourcePlan, pretrain

CONFIG = Config(pretrain_epochs=1)
SPEC = ModelSpec(num_classes=10, channels=1, width=4)


def test_another_network_or_start_in_the_same_folder_is_refused_and_the_start_itself_is_left_alone(
    digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    store, out, start = digit_stores["optdigits"], str(tmp_path), build(SPEC)
    trained = pretrain(SourcePlan(store, out, start, CONFIG, LOCAL))
    assert all(torch.equal(a, b) for a, b in zip(start.parameters(), build(SPEC).parameters()))
    again = pretrain(SourcePlan(store, out, SPEC, CONFIG, LOCAL))
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), trained.parameters()))
    with pytest.raises(InputError, match="of another kind"):
        pretrain(SourcePlan(store, out, SPEC.model_copy(update={"width": 8}), CONFIG, LOCAL))
    with pytest.raises(InputError, match="of another kind"):
        pretrain(SourcePlan(store, out, start, CONFIG, LOCAL, start_name="ImageNet"))


def test_it_says_how_many_of_its_training_images_the_model_gets_right_in_the_last_epoch(
    digit_stores: dict[str, ImageStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, plain = digit_stores["optdigits"], CONFIG.model_copy(update={"pretrain_epochs": 2})
    seen: list[np.ndarray] = []
    train_epoch = Learner.train_epoch

    def watched(learner: Learner, *args: Any) -> np.ndarray:
        seen.append(train_epoch(learner, *args))
        return seen[-1]

    monkeypatch.setattr(Learner, "train_epoch", watched)
    plan, heard = SourcePlan(store, str(tmp_path), SPEC, plain, LOCAL), io.StringIO()
    pretrain(plan, progress=Progress(heard))
    truth = store.ground_truth()
    share = (seen[-1].argmax(1) == truth).mean()
    assert f"right on {share:.1%} of its {len(store):,} training images in the last epoch" in heard.getvalue()
    noted = json.loads((tmp_path / "model.json").read_text())["notes"]["right_in_training"]
    assert noted == pytest.approx(share)
    pretrain(plan, progress=Progress(heard))
    assert "already done" in heard.getvalue()
    assert len(seen) == 2


def test_a_model_of_another_precision_is_not_taken_for_this_one(
    digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    usual = SourcePlan(digit_stores["optdigits"], str(tmp_path), SPEC, CONFIG, LOCAL)
    rounded = replace(usual, config=CONFIG.model_copy(update={"precision": "bf16"}))
    pretrain(usual)
    with pytest.raises(InputError, match="trained on other data or settings"):
        pretrain(rounded)
    pretrain(usual)
    pretrain(rounded, force=True)
    pretrain(rounded)
    with pytest.raises(InputError, match="trained on other data or settings"):
        pretrain(usual)


def test_a_start_is_known_by_its_weights_and_not_by_the_name_of_its_file(
    digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    first = SourcePlan(digit_stores["optdigits"], str(tmp_path), build(SPEC), CONFIG, LOCAL, start_name="start.pt")
    pretrain(first)
    pretrain(replace(first, start_name="./start.pt"))
    other = replace(first, start=build(SPEC, 1))  # in a file of the same name
    with pytest.raises(InputError, match="of another kind"):
        pretrain(other)
    described = json.loads((tmp_path / "model.json").read_text())
    del described["notes"]["start_fingerprint"]  # as versions before wrote it
    (tmp_path / "model.json").write_text(json.dumps(described))
    pretrain(first)
    with pytest.raises(InputError, match="of another kind"):
        pretrain(replace(first, start_name="scratch"))


class Stop(Progress):
    """Ends a training after its first epoch."""

    def step(self, done: int, **figures: str) -> None:
        raise KeyboardInterrupt


def test_a_training_that_was_stopped_is_not_continued_by_another_one(
    digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    config = Config(pretrain_epochs=2)
    first, other = (SourcePlan(digit_stores[name], str(tmp_path), SPEC, config, LOCAL) for name in digit_stores)
    with pytest.raises(KeyboardInterrupt):
        pretrain(first, progress=Stop(quiet=True))
    with pytest.raises(InputError, match="the begun training of a model of another kind, or trained on other data"):
        pretrain(other)
    with pytest.raises(InputError, match="the begun training"):
        pretrain(replace(first, config=config.model_copy(update={"seed": 1})))
    assert (tmp_path / "checkpoints/pretrain.pt").exists()
    forced = pretrain(other, force=True)
    clean = pretrain(replace(other, out=str(tmp_path / "clean")))
    assert all(torch.equal(a, b) for a, b in zip(forced.parameters(), clean.parameters()))
    assert not list(tmp_path.glob("checkpoints/*"))


def test_a_model_is_trained_again_when_labels_were_corrected(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 8, 1), dtype=np.uint8)
    ids, truth = [str(i) for i in range(20)], np.arange(20) % 10
    stores = [
        write_store(tmp_path / name, [(ids, pixels)], classes=list("0123456789"), domain="noise", truth=labels)
        for name, labels in (("first", truth), ("corrected", truth[::-1].copy()))
    ]
    first, corrected = (SourcePlan(store, str(tmp_path / "model"), SPEC, CONFIG, LOCAL) for store in stores)
    pretrain(first)
    with pytest.raises(InputError, match="trained on other data"):
        pretrain(corrected)
    described = json.loads((tmp_path / "model/model.json").read_text())
    del described["notes"]["labels"], described["aspect"]  # as versions before wrote it
    (tmp_path / "model/model.json").write_text(json.dumps(described))
    pretrain(first)

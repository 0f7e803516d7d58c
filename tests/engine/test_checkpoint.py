"""Checkpoints: whole or not at all. Every file is damaged in turn, and the run continues from an earlier whole one."""

import logging
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.refine import LogitHistory, RefineState
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import VERSION, Checkpoints, DamagedCheckpoint, load_member, save_member
from ray_adaplr.errors import InputError
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.storage.folder import Folder

LOCAL = ScalingConfig(engine="local", keep_checkpoints=2)
N, C, N_A = 6, 4, 3


def state(epoch: int, history: LogitHistory) -> RefineState:
    return RefineState(
        epoch=epoch,
        labels=torch.full((N,), epoch % C),
        last_changed=torch.full((N,), epoch, dtype=torch.int32),
        history=history,
        judged=[{"epoch": e} for e in range(epoch)],
        healthy_labels=torch.zeros(N, dtype=torch.int64),
    )


def write_epochs(folder: Path, epochs: int, keep: int = 2) -> Checkpoints:
    checkpoints, history = Checkpoints(Folder(folder), keep=keep), LogitHistory(N, C, N_A)
    for epoch in range(epochs):
        history.push(torch.full((N, C), float(epoch)))
        weights = {"model": {"w": torch.tensor([float(epoch)])}}
        checkpoints.write(state(epoch + 1, history), lambda e=epoch, w=weights: [save_member(str(folder), 0, e, w)])
    return checkpoints


def restored(folder: Path) -> RefineState | None:
    return Checkpoints(Folder(folder)).restore(state(0, LogitHistory(N, C, N_A)))


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    write_epochs(tmp_path, 5)
    found = restored(tmp_path)
    assert found is not None
    assert (found.epoch, found.history.pushed, found.history.filled) == (5, 5, 3)
    assert torch.equal(found.history.average(), torch.full((N, C), 3.0))  # epochs 2, 3, 4
    assert torch.equal(found.labels, torch.full((N,), 5 % C))
    assert len(found.judged) == 5


def test_an_epoch_adds_one_history_slot_and_old_files_go(tmp_path: Path) -> None:
    write_epochs(tmp_path, 8)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [n for n in names if n.startswith("manifest")] == ["manifest-000006.json", "manifest-000007.json"]
    assert len([n for n in names if n.startswith("slot")]) == N_A + 1
    assert len([n for n in names if n.startswith("member")]) == 2


@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_any_damaged_file_sends_the_run_back_to_a_whole_checkpoint(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_epochs(tmp_path / "whole", 4)
    newest = [path.name for path in (tmp_path / "whole").iterdir() if "000003" in path.name]
    assert len(newest) == 4  # manifest, labels, member, slot
    newest = [name for name in newest if not name.startswith("member")]  # which the member reads
    for name in newest:
        folder = tmp_path / f"{damage}-{name}"
        write_epochs(folder, 4)
        file = folder / name
        content = file.read_bytes()
        if damage == "truncate":
            file.write_bytes(content[: len(content) // 2])
        elif damage == "flip":
            middle = len(content) // 2
            file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        else:
            file.unlink()
        with caplog.at_level(logging.WARNING):
            caplog.clear()
            found = restored(folder)
        assert found is not None
        if not (name.startswith("manifest") and damage != "truncate"):  # a manifest that still parses may be whole
            assert found.epoch == 3, name
            assert damage == "delete" or "passed over" in caplog.text


def test_each_file_is_read_once_and_a_members_file_by_the_member_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_epochs(tmp_path, 4)
    reads: Counter[str] = Counter()
    read = Folder.read

    def counted(self: Folder, name: str) -> bytes:
        reads[name.split("-")[0]] += 1
        return read(self, name)

    monkeypatch.setattr(Folder, "read", counted)
    assert restored(tmp_path) is not None
    assert reads == {"manifest": 1, "labels": 1, "slot": N_A}


def test_a_checkpoint_whose_member_file_is_damaged_is_passed_over_when_the_member_says_so(tmp_path: Path) -> None:
    write_epochs(tmp_path, 4)
    max(tmp_path.glob("member-*")).write_bytes(b"torn")
    checkpoints = Checkpoints(Folder(tmp_path))
    for epoch in (4, 3):
        found = checkpoints.restore(state(0, LogitHistory(N, C, N_A)))
        place = checkpoints.member_state(0)
        assert found is not None
        assert found.epoch == epoch
        assert place is not None
        if epoch == 3:
            assert load_member(*place)["model"]["w"] == 2
            continue
        with pytest.raises(DamagedCheckpoint) as damage:
            load_member(*place)
        checkpoints.pass_over(damage.value)


@pytest.mark.parametrize("damaged", ["member-*", "labels-*"])
def test_a_checkpoint_that_was_passed_over_does_not_take_the_place_of_a_whole_one(tmp_path: Path, damaged: str) -> None:
    write_epochs(tmp_path, 4)
    max(tmp_path.glob(damaged)).write_bytes(b"torn")
    checkpoints = Checkpoints(Folder(tmp_path), keep=2)
    found = checkpoints.restore(state(0, LogitHistory(N, C, N_A)))
    if damaged == "member-*":
        checkpoints.pass_over(DamagedCheckpoint("torn"))
        found = checkpoints.restore(state(0, LogitHistory(N, C, N_A)))
    assert found is not None
    found.history.push(torch.zeros(N, C))
    found.epoch = 6  # an epoch between them has no checkpoint of its own
    checkpoints.write(found, lambda: [save_member(str(tmp_path), 0, 5, {"model": {}})])
    kept = sorted(path.name for path in tmp_path.glob("manifest-*"))
    assert kept == ["manifest-000002.json", "manifest-000005.json"]


def test_nothing_to_restore_is_no_error(tmp_path: Path) -> None:
    assert restored(tmp_path / "none") is None


def test_a_run_with_damaged_checkpoints_still_ends_with_the_same_bits(
    source_model: Classifier, digit_stores: dict[str, ImageStore], small_config: Config, tmp_path: Path
) -> None:
    target = digit_stores["optdigits"]
    straight = adapt(RunPlan([source_model], target, str(tmp_path / "a"), small_config, LOCAL), until="refine")
    adapt(RunPlan([source_model], target, str(tmp_path / "b"), small_config, LOCAL), until="refine")
    (tmp_path / "b/labels.parquet").unlink()
    manifests = sorted((tmp_path / "b/checkpoints").glob("manifest-*"))
    manifests[-1].write_bytes(manifests[-1].read_bytes()[:-9])
    member = max((tmp_path / "b/checkpoints").glob("member-1-*"))
    member.write_bytes(np.random.default_rng(0).bytes(1000))
    again = adapt(RunPlan([source_model], target, str(tmp_path / "b"), small_config, LOCAL), until="refine")
    assert (tmp_path / "a/labels.parquet").read_bytes() == (tmp_path / "b/labels.parquet").read_bytes()
    assert again.labels.equals(straight.labels)


def test_a_checkpoint_of_another_version_is_refused_and_not_passed_over(tmp_path: Path) -> None:
    write_epochs(tmp_path, 2)
    newest = max(tmp_path.glob("manifest-*"))
    newest.write_text(newest.read_text().replace(f'"version": {VERSION}', '"version": 99'))
    with pytest.raises(InputError, match=r"version 99.*--force"):
        restored(tmp_path)


def test_files_that_checkpoints_did_not_make_stay(tmp_path: Path) -> None:
    (tmp_path / "mine.pt").write_text("mine")
    write_epochs(tmp_path, 8)
    assert (tmp_path / "mine.pt").read_text() == "mine"


def test_a_damaged_slot_that_all_checkpoints_share_takes_no_later_ones_with_it(tmp_path: Path) -> None:
    write_epochs(tmp_path, 20)
    shared = tmp_path / "slot-epoch-000018.safetensors"
    shared.write_bytes(shared.read_bytes()[:-1])
    assert restored(tmp_path) is None
    checkpoints = write_epochs(tmp_path, 5)
    manifests = sorted(path.name for path in tmp_path.glob("manifest-*"))
    assert manifests == ["manifest-000003.json", "manifest-000004.json"]
    folder, record = checkpoints.member_state(0) or ("", None)
    assert record is not None
    assert (Path(folder) / record["name"]).exists()
    found = restored(tmp_path)
    assert found is not None
    assert found.epoch == 5

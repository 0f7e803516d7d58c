"""The whole job on real digits: the same bits everywhere, nothing taken from ground truth, and it resumes."""

import copy
import gzip
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch
from local_runs import LOCAL, bits

from ray_adaplr.cli.runs import print_result
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.labels import read_given_labels
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.engine.engine import LocalEngine
from ray_adaplr.errors import InputError
from ray_adaplr.report.page import report_page
from ray_adaplr.stages import supervised
from ray_adaplr.stages.adapt import Result, RunPlan, Stage, adapt
from ray_adaplr.stages.supervised import Training
from ray_adaplr.storage.folder import Folder
from ray_adaplr.storage.layout import LABELS
from ray_adaplr.storage.models import load_model
from ray_adaplr.storage.run import Run
from ray_adaplr.storage.run_reader import read_run, words_per_domain

ON_RAY = ScalingConfig(engine="ray")


@pytest.fixture
def target(digit_stores: dict[str, ImageStore]) -> ImageStore:
    return digit_stores["optdigits"]


@pytest.mark.ray
@pytest.mark.slow
def test_ray_and_in_process_runs_give_the_same_bits(
    ray_cluster: None,
    straight_run: Result,
    source_model: Classifier,
    target: ImageStore,
    small_config: Config,
    tmp_path: Path,
) -> None:
    there = adapt(RunPlan([source_model], target, str(tmp_path / "ray"), small_config, ON_RAY))
    assert bits(there) == bits(straight_run)


def test_answers_that_come_twice_after_a_lost_process_change_nothing(
    straight_run: Result,
    source_model: Classifier,
    target: ImageStore,
    small_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = LocalEngine.stream

    def twice(self: LocalEngine, *args: Any, **how: Any) -> Iterator[Any]:
        for _ in range(2):
            yield from stream(self, *args, **how)

    monkeypatch.setattr(LocalEngine, "stream", twice)
    run = adapt(RunPlan([source_model], target, str(tmp_path / "run"), small_config, LOCAL))
    assert bits(run) == bits(straight_run)


def test_after_a_warm_start_that_was_kept_the_guards_wait_for_an_alarm(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    def labels(**changes: object) -> bytes:
        config = small_config.model_copy(update={"warm_start_trust": 0.0, **changes})
        out = tmp_path / f"run-{len(list(tmp_path.iterdir()))}"
        return Path(
            adapt(RunPlan([source_model], target, str(out), config, LOCAL), until="refine").path, LABELS
        ).read_bytes()

    waiting = labels(guards="auto")
    assert waiting == labels(prior="off", diversity=0.0)
    assert waiting != labels(guards="on")


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(("guards", "times"), [("auto", 1), ("on", 0)])
def test_a_prior_that_waits_since_the_warm_start_was_kept_is_warned_of(
    guards: str, times: int, source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    short = {"epochs": 1, "distill_epochs": 1, "warm_start_trust": 0.0, "prior": "inferred", "guards": guards}
    config = small_config.model_copy(update=short)
    result = adapt(RunPlan([source_model], target, str(tmp_path / "run"), config, LOCAL))
    said = "prior=inferred waits for an alarm, since the warm start was kept; set guards=on"
    assert sum(warning.startswith(said) for warning in result.summary["warnings"]) == times


@pytest.mark.usefixtures("unrendered")
def test_a_run_whose_prior_file_was_edited_is_another_run(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    shares = tmp_path / "shares.txt"
    shares.write_text("1 " * 10)
    plan = RunPlan(
        [source_model], target, str(tmp_path / "run"), small_config.model_copy(update={"prior": str(shares)}), LOCAL
    )
    adapt(plan, until="infer")
    shares.write_text("2 " * 10)  # the same shares
    adapt(plan, until="infer")
    shares.write_text("9 " + "1 " * 9)
    with pytest.raises(InputError, match="holds a run of another prior; use --force"):
        adapt(plan, until="infer")


@pytest.mark.usefixtures("unrendered")
def test_a_run_under_other_class_names_is_another_run(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    images = [(target.ids.to_pylist(), target.read(np.arange(len(target))))]
    unnamed = write_store(tmp_path / "images", images, classes=[], domain="digits")

    def plan(out: str, names: str) -> RunPlan:
        source_model.spec = source_model.spec.model_copy(update={"classes": tuple(names)})
        return RunPlan([source_model], unnamed, str(tmp_path / out), small_config, LOCAL)

    first = adapt(plan("run", "abcdefghij"), until="infer")
    record = Path(first.path, "run.json").read_bytes()
    with pytest.raises(InputError, match="holds a run of other class names; use --force to start again, or another"):
        adapt(plan("run", "jihgfedcba"), until="infer")
    with pytest.raises(InputError, match=r"--fork .*: that run is of other class names"):
        adapt(plan("fork", "jihgfedcba"), until="infer", fork=first.path)
    assert Path(first.path, "run.json").read_bytes() == record
    adapt(plan("run", "abcdefghij"), until="infer")


@pytest.mark.usefixtures("unrendered")
def test_a_run_without_ground_truth_gives_the_same_bits(
    straight_run: Result, source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    shutil.copytree(target.paths[0], tmp_path / "blind")
    manifest = json.loads((tmp_path / "blind/store.json").read_text())
    (tmp_path / "blind" / manifest["truth"]["file"]).unlink()
    manifest["truth"] = None
    (tmp_path / "blind/store.json").write_text(json.dumps(manifest))
    blind = ImageStore.open(str(tmp_path / "blind"))
    assert blind.ground_truth() is None

    unseeing = adapt(RunPlan([source_model], blind, str(tmp_path / "run"), small_config, LOCAL))
    assert bits(unseeing) == bits(straight_run)
    assert straight_run.summary["refined"] is not None
    assert unseeing.summary["refined"] is None
    assert not any("noise" in line for line in unseeing.metrics)


def test_the_run_folder_holds_what_the_contract_names(
    straight_run: Result, target: ImageStore, small_config: Config
) -> None:
    folder = Path(straight_run.path)
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.toml", "metrics.jsonl", "labels.parquet", "target_model", "summary.json"}
    assert names >= {"report.html", "tensorboard"}
    assert "checkpoints" not in names, "a run that has ended needs none"
    table = pq.read_table(folder / "labels.parquet")
    labels = ["initial_label", "initial_class", "refined_label", "refined_class"]
    assert table.column_names == ["id", *labels, "confidence", "high_confidence", "last_changed_epoch"]
    assert len(table) == len(target)
    epochs = [line for line in straight_run.metrics if line["stage"] == "refine"]
    assert [line["epoch"] for line in epochs] == list(range(small_config.epochs))
    assert set(epochs[0]) >= {"gamma", "hcs", "reassigned", "agreement", "seconds", "images_per_s"}
    changed = table.filter(table["last_changed_epoch"].to_numpy() < 0)
    assert changed["initial_label"].equals(changed["refined_label"])


def test_the_summary_tells_the_start_from_refinement(straight_run: Result, capsys: pytest.CaptureFixture[str]) -> None:
    inferred = pq.read_table(Path(straight_run.path) / "inferred.parquet")
    changed = float((inferred["label"].to_numpy() != inferred["start_label"].to_numpy()).mean())
    assert straight_run.summary["changed_before_refinement"] == changed > 0
    print_result(straight_run, "result")
    assert f"({changed:.1%} before refinement), high-confidence" in capsys.readouterr().out


def test_the_report_of_a_run_is_the_one_that_its_folder_gives_later(straight_run: Result) -> None:
    assert (Path(straight_run.path) / "report.html").read_text() == report_page(straight_run.path)


@pytest.mark.usefixtures("unrendered")
def test_the_same_call_again_is_already_done_and_other_settings_are_refused(
    straight_run: Result, source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    shutil.copytree(straight_run.path, tmp_path, dirs_exist_ok=True)
    before = (tmp_path / "summary.json").stat().st_mtime_ns
    adapt(RunPlan([source_model], target, str(tmp_path), small_config, LOCAL))
    assert (tmp_path / "summary.json").stat().st_mtime_ns == before
    with pytest.raises(InputError, match=r"alpha: 0\.5 -> 0\.6.*--force"):
        adapt(RunPlan([source_model], target, str(tmp_path), small_config.model_copy(update={"alpha": 0.6}), LOCAL))
    again = adapt(RunPlan([source_model], target, str(tmp_path), small_config, LOCAL), force=True)
    assert (tmp_path / "summary.json").stat().st_mtime_ns > before
    assert bits(again) == bits(straight_run)


@pytest.mark.usefixtures("unrendered")
def test_stages_one_by_one_give_the_same_bits(
    straight_run: Result, source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    for stage, not_yet in (("infer", "labels.parquet"), ("refine", "target_model")):
        adapt(RunPlan([source_model], target, str(tmp_path), small_config, LOCAL), until=stage)  # type: ignore[arg-type]
        assert not (tmp_path / not_yet).exists()
    parts = adapt(RunPlan([source_model], target, str(tmp_path), small_config, LOCAL))
    assert bits(parts) == bits(straight_run)


@pytest.mark.usefixtures("unrendered")
def test_a_run_cut_off_in_refinement_resumes_to_the_same_bits(
    straight_run: Result,
    source_model: Classifier,
    target: ImageStore,
    small_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ray_adaplr.engine.member import Member

    train = Member.train_epoch

    def cut_off(self: Member, epoch: int, *args: object) -> object:
        if epoch == 2:
            raise KeyboardInterrupt
        return train(self, epoch, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Member, "train_epoch", cut_off)
    with pytest.raises(KeyboardInterrupt):
        adapt(RunPlan([source_model], target, str(tmp_path / "cut"), small_config, LOCAL))
    epochs_seen: list[int] = []

    def note(self: Member, epoch: int, *args: object) -> object:
        epochs_seen.append(epoch)
        return train(self, epoch, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Member, "train_epoch", note)
    resumed = adapt(RunPlan([source_model], target, str(tmp_path / "cut"), small_config, LOCAL))
    assert bits(resumed) == bits(straight_run)
    assert 0 not in epochs_seen


@pytest.mark.usefixtures("unrendered")
def test_two_sources_are_fused_and_two_targets_are_one_union(
    source_model: Classifier, digit_stores: dict[str, ImageStore], small_config: Config, tmp_path: Path
) -> None:
    both = ImageStore.open(digit_stores["optdigits"].paths[0], digit_stores["mnist"].paths[0])
    config = small_config.model_copy(update={"epochs": 1})
    result = adapt(RunPlan([source_model, source_model], both, str(tmp_path), config, LOCAL))
    assert len(result.labels) == len(both)
    assert set(result.summary["target_per_domain"]) == {"optdigits", "mnist"}
    per_domain = result.summary["labels_per_domain"]
    assert {name: shares["num_images"] for name, shares in per_domain.items()} == {"optdigits": 300, "mnist": 1500}
    for key in ("changed_share", "hcs_share", "inferred", "refined"):
        whole = sum(shares["num_images"] * shares[key] for shares in per_domain.values()) / len(both)
        assert whole == pytest.approx(result.summary[key])
    assert "optdigits: 300 images" in "\n".join(map(": ".join, words_per_domain(result.summary).items()))


def test_a_folder_with_other_files_is_not_written_over(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("do not lose me")
    with pytest.raises(InputError, match="holds other files"):
        adapt(RunPlan([source_model], target, str(tmp_path), small_config, LOCAL))


@pytest.mark.usefixtures("unrendered")
def test_corrections_stay_and_whole_label_files_are_a_start(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    ids = target.ids.to_pylist()
    (tmp_path / "some.csv").write_text("id,label\n" + "".join(f"{i},3\n" for i in ids[:40]))
    given = read_given_labels(tmp_path / "some.csv", target, 10)
    soft = small_config.model_copy(update={"probabilities": True, "distill_on": "soft"})
    corrected = adapt(RunPlan([source_model], target, str(tmp_path / "a"), soft, LOCAL, given=given))
    assert corrected.labels["refined_label"].to_pylist()[:40] == [3] * 40
    assert all(corrected.labels["high_confidence"].to_pylist()[:40])
    assert corrected.labels["p_3"].to_pylist()[:40] == [1.0] * 40

    (tmp_path / "all.csv").write_text("id,label\n" + "".join(f"{i},3\n" for i in ids))
    given = read_given_labels(tmp_path / "all.csv", target, 10)
    started = adapt(
        RunPlan([source_model], target, str(tmp_path / "b"), small_config, LOCAL, given=given), until="infer"
    )
    assert set(pq.read_table(tmp_path / "b/inferred.parquet")["start_label"].to_pylist()) == {3}
    with pytest.raises(InputError, match="was started with --labels; name that again to continue"):
        adapt(RunPlan([source_model], target, started.path, small_config, LOCAL))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("id,name\na,3\n", "it needs id and label"),
        ("id,label\nnobody,3\n", "which is not in"),
        ("id,label\n{0},eleven\n", "not a class name or a number"),
        ("id,label\n{0},3\n{0},4\n", "twice"),
    ],
)
def test_a_bad_label_file_gets_a_clear_sentence(content: str, words: str, target: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(content.format(target.ids[0].as_py()))
    with pytest.raises(InputError, match=words):
        read_given_labels(tmp_path / "labels.csv", target, 10)


def test_labels_packed_with_gzip_are_read_and_a_damaged_file_is_told(target: ImageStore, tmp_path: Path) -> None:
    packed = gzip.compress(f"id,label\n{target.ids[0].as_py()},3\n".encode())
    (tmp_path / "labels.csv.gz").write_bytes(packed)
    assert read_given_labels(tmp_path / "labels.csv.gz", target, 10)[:2].tolist() == [3, -1]
    (tmp_path / "labels.csv.gz").write_bytes(packed[:-12])
    with pytest.raises(InputError, match="cannot be unpacked with gzip"):
        read_given_labels(tmp_path / "labels.csv.gz", target, 10)


@pytest.mark.usefixtures("unrendered")
def test_a_fork_goes_on_from_another_run_under_new_settings(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    adapt(RunPlan([source_model], target, str(tmp_path / "first"), small_config, LOCAL), until="refine")
    longer = small_config.model_copy(update={"epochs": 6, "alpha": 0.7})
    forked = adapt(
        RunPlan([source_model], target, str(tmp_path / "second"), longer, LOCAL), fork=str(tmp_path / "first")
    )
    assert [line["epoch"] for line in forked.metrics if line["stage"] == "refine"] == list(range(6))
    first = (tmp_path / "first/metrics.jsonl").read_text().splitlines()
    assert (tmp_path / "second/metrics.jsonl").read_text().splitlines()[: len(first)] == first
    judged = small_config.model_copy(update={"stop": "auto"})
    with pytest.raises(InputError, match="cannot change stop to auto"):
        adapt(RunPlan([source_model], target, str(tmp_path / "third"), judged, LOCAL), fork=str(tmp_path / "first"))
    fewer = small_config.model_copy(update={"n_e": 2})
    with pytest.raises(InputError, match="cannot change n_e"):
        adapt(RunPlan([source_model], target, str(tmp_path / "third"), fewer, LOCAL), fork=str(tmp_path / "first"))
    (tmp_path / "link").symlink_to(tmp_path / "first")
    for again in (f"{tmp_path}/first/", f"{tmp_path}/link", f"file://{tmp_path}/first"):
        with pytest.raises(InputError, match="that is --out itself"):
            adapt(
                RunPlan([source_model], target, str(tmp_path / "first"), longer, LOCAL),
                fork=again,
                force=True,
            )
    assert (tmp_path / "first/metrics.jsonl").read_text().splitlines() == first, "nothing was removed"


@pytest.mark.usefixtures("unrendered")
def test_a_fork_trains_its_own_target_model_and_takes_no_other_images_or_labels(
    straight_run: Result,
    source_model: Classifier,
    target: ImageStore,
    digit_stores: dict[str, ImageStore],
    small_config: Config,
    tmp_path: Path,
) -> None:
    def fork(store: ImageStore = target, given: np.ndarray | None = None, force: bool = False) -> Result:
        faster = small_config.model_copy(update={"distill_lr": 0.05})
        return adapt(
            RunPlan([source_model], store, str(tmp_path / "fork"), faster, LOCAL, given=given),
            fork=straight_run.path,
            force=force,
        )

    with pytest.raises(InputError, match="that run is of other images"):
        fork(digit_stores["mnist"])
    with pytest.raises(InputError, match="give --labels to a run of its own"):
        fork(given=np.zeros(len(target), np.int64))
    for changes, words in (({"warm_start": "off"}, "warm_start: im -> off"), ({"soften": 0.5}, "soften: 1.0 -> 0.5")):
        config = small_config.model_copy(update=changes)
        with pytest.raises(InputError, match=f"cannot change {words}: the labels to start from are there"):
            adapt(RunPlan([source_model], target, str(tmp_path / "fork"), config, LOCAL), fork=straight_run.path)
    other = copy.deepcopy(source_model)
    other.reset_head(1)
    guest = RunPlan([source_model], target, str(tmp_path / "fork"), small_config, LOCAL, guests=[other])
    with pytest.raises(InputError, match="give --guest to a run of its own"):
        adapt(guest, fork=straight_run.path)
    with pytest.raises(InputError, match="of another source model"):
        adapt(RunPlan([other], target, str(tmp_path / "fork"), small_config, LOCAL), fork=straight_run.path)
    forked = fork(force=True)
    assert forked.labels.equals(straight_run.labels)
    model = "target_model/model.safetensors"
    assert Path(forked.path, model).read_bytes() != Path(straight_run.path, model).read_bytes()


@pytest.mark.usefixtures("unrendered")
def test_a_fork_refines_again_where_the_priors_file_was_edited(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    shares = tmp_path / "shares.txt"
    config = small_config.model_copy(update={"prior": str(shares), "distill_epochs": 1})

    def epochs_run(out: str, zeros: int, fork: str | None = None) -> int:
        shares.write_text(f"{zeros} " + "1 " * 9)
        seen: list[dict[str, Any]] = []
        adapt(RunPlan([source_model], target, str(tmp_path / out), config, LOCAL), fork=fork, watch=seen.append)
        return len(seen)

    assert epochs_run("first", zeros=1) == config.epochs
    assert epochs_run("same", zeros=1, fork=str(tmp_path / "first")) == 0
    assert epochs_run("edited", zeros=90, fork=str(tmp_path / "first")) == config.epochs


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("named", [False, True])
def test_a_fork_of_a_run_with_given_labels_knows_of_them_whether_they_are_named_or_not(
    named: bool, source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    given = np.full(len(target), -1)
    given[:40] = 3
    plan = RunPlan([source_model], target, str(tmp_path / "first"), small_config, LOCAL, given=given)
    first = adapt(plan, until="infer")
    out, nothing_named = str(tmp_path / "fork"), replace(plan, out=str(tmp_path / "fork"), given=None)
    adapt(replace(plan, out=out) if named else nothing_named, until="infer", fork=first.path)
    for again in (nothing_named, replace(plan, out=out), nothing_named):
        adapt(again, until="infer", fork=first.path)
        forked = adapt(again, until="infer").run
        assert forked.origin()["given_labels"] == first.run.origin()["given_labels"]
    with pytest.raises(InputError, match="a run of other labels to start from"):
        adapt(replace(plan, out=out, given=np.zeros(len(target), np.int64)), until="infer")
    further = adapt(replace(nothing_named, out=str(tmp_path / "further")), until="refine", fork=out)
    assert further.labels["refined_label"].to_pylist()[:40] == [3] * 40
    assert further.run.origin()["given_labels"] == first.run.origin()["given_labels"]


def test_a_fork_of_a_run_without_first_labels_is_refused(
    straight_run: Result, source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    shutil.copytree(straight_run.path, tmp_path / "run")
    (tmp_path / "run/inferred.parquet").unlink()
    plan = RunPlan([source_model], target, str(tmp_path / "fork"), small_config, LOCAL)
    with pytest.raises(InputError, match=r"that run has no inferred\.parquet to continue from; continue it until"):
        adapt(plan, fork=str(tmp_path / "run"))
    assert not (tmp_path / "fork").exists()


@pytest.mark.usefixtures("unrendered")
def test_a_run_that_has_ended_keeps_its_checkpoints_only_if_told_and_a_fork_says_what_that_means(
    straight_run: Result,
    source_model: Classifier,
    target: ImageStore,
    small_config: Config,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fork(out: str, of: str, epochs: int) -> list[int]:
        config = small_config.model_copy(update={"epochs": epochs})
        plan = RunPlan([source_model], target, str(tmp_path / out), config, LOCAL)
        seen: list[int] = []
        watch = lambda line: seen.append(line["epoch"])  # noqa: E731
        adapt(plan, until="refine", fork=of, progress=Progress(), watch=watch)
        return seen

    assert fork("again", straight_run.path, 5) == [0, 1, 2, 3, 4]
    assert "kept no checkpoints: refinement starts again from its inferred labels" in capsys.readouterr().err
    keeping = ScalingConfig(engine="local", keep_checkpoints=1)
    kept = adapt(RunPlan([source_model], target, str(tmp_path / "kept"), small_config, keeping))
    assert len(list(tmp_path.glob("kept/checkpoints/manifest-*"))) == 1
    assert bits(kept) == bits(straight_run)
    assert fork("on", kept.path, 5) == [4]
    assert "kept no" not in capsys.readouterr().err


@pytest.mark.usefixtures("unrendered")
def test_a_fork_that_has_no_epoch_left_takes_no_new_settings_of_refinement(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    def run(out: str, fork: str | None = None, until: Stage = "refine", **changes: object) -> Result:
        config = small_config.model_copy(update={"n_e": 2, **changes})
        return adapt(RunPlan([source_model], target, str(tmp_path / out), config, LOCAL), until=until, fork=fork)

    first = run("first")
    for changes, words in (
        ({"epochs": 2}, "epochs: 4 -> 2"),
        ({"alpha": 0.6}, "alpha: 0.5 -> 0.6"),
        ({"epochs": 3, "lr": 0.1}, "epochs: 4 -> 3; lr: 0.001 -> 0.1"),
    ):
        with pytest.raises(InputError, match=f"has run 4 epochs and ended.* {words}; set epochs above 4, or start"):
            run("refused", first.path, **changes)
    assert not (tmp_path / "refused").exists()
    assert len(run("on", first.path, epochs=5, alpha=0.6).metrics) == 5
    soft = run("soft", first.path, "distill", probabilities=True, distill_on="soft", distill_epochs=1)
    assert soft.labels["refined_label"].equals(first.labels["refined_label"])
    assert "p_0" in soft.labels.column_names


@pytest.mark.usefixtures("unrendered")
def test_a_fork_of_a_run_that_an_alarm_ended_goes_on_only_without_the_alarm(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    def run(out: str, fork: str | None = None, **changes: object) -> Result:
        config = small_config.model_copy(update={"on_harm": "stop", "collapse_share": 0.999, **changes})
        keeping = ScalingConfig(engine="local", keep_checkpoints=1)
        plan = RunPlan([source_model], target, str(tmp_path / out), config, keeping)
        return adapt(plan, until="refine", fork=fork)

    ended = run("ended")  # a class that loses a single label counts as dying
    ran = len(ended.metrics)
    assert ran < small_config.epochs
    with pytest.raises(InputError, match=f"has run {ran} epochs and ended.* alpha: 0.5 -> 0.6; set on_harm=off and"):
        run("refused", ended.path, alpha=0.6)
    with pytest.raises(InputError, match="on_harm: stop -> guard; set on_harm=off and"):  # which is an alarm as well
        run("refused", ended.path, on_harm="guard")
    assert len(run("on", ended.path, alpha=0.6, on_harm="off").metrics) == small_config.epochs


@pytest.mark.parametrize(
    "changes", [{"stop": "epochs"}, {"stop": "auto"}, {"average": "probabilities"}, {"guest": True}], ids=str
)
def test_probabilities_are_written_where_asked(
    changes: dict[str, object], source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    guests = [copy.deepcopy(source_model)] if changes.pop("guest", False) else []
    settings = {"probabilities": True, "warm_start": "off", "epochs": 3, **changes}
    config = small_config.model_copy(update=settings)
    adapt(RunPlan([source_model], target, str(tmp_path), config, LOCAL, guests=guests), until="refine")
    table = pd.read_parquet(tmp_path / LABELS)
    columns = [f"p_{name}" for name in target.classes]
    assert list(table.columns[-len(columns) :]) == columns
    assert (table[columns].dtypes == np.float16).all()
    probs = table[columns].to_numpy(np.float32)
    np.testing.assert_allclose(probs.sum(1), 1, atol=0.01)
    np.testing.assert_allclose(probs[range(len(table)), table.refined_label], table.confidence, atol=1e-3)
    assert list(pd.read_csv(tmp_path / "labels.csv").columns) == list(table.columns)


def test_labels_carry_class_names_and_come_as_text_too(straight_run: Result) -> None:
    table = straight_run.labels
    for kind in ("initial", "refined"):
        assert table[f"{kind}_class"].to_pylist() == [str(label) for label in table[f"{kind}_label"].to_pylist()]
    as_text = pa.csv.read_csv(f"{straight_run.path}/labels.csv")
    assert as_text.column_names == table.column_names
    assert as_text["refined_label"].to_pylist() == table["refined_label"].to_pylist()


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize(
    "damaged", ["target_model/model.safetensors", "target_model/model.json", "labels.parquet", "summary.json"]
)
def test_a_damaged_result_is_not_taken_as_done(
    damaged: str,
    straight_run: Result,
    source_model: Classifier,
    target: ImageStore,
    small_config: Config,
    tmp_path: Path,
) -> None:
    shutil.copytree(straight_run.path, tmp_path, dirs_exist_ok=True)
    data = bytearray((tmp_path / damaged).read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / damaged).write_bytes(data if damaged.endswith("safetensors") else data[: len(data) // 2])
    if damaged == "labels.parquet":
        (tmp_path / "summary.json").unlink()  # of a run that was still under way
    again = adapt(RunPlan([source_model], target, str(tmp_path), small_config, LOCAL))
    assert bits(again) == bits(straight_run)
    assert again.summary["num_images"] == len(target)


def test_a_run_whose_first_labels_are_damaged_says_so_with_the_way_out(
    straight_run: Result, source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    shutil.copytree(straight_run.path, tmp_path, dirs_exist_ok=True)
    for name in ("summary.json", LABELS):
        (tmp_path / name).unlink()
    first = tmp_path / "inferred.parquet"
    first.write_bytes(first.read_bytes()[:200])
    plan = RunPlan([source_model], target, str(tmp_path), small_config, LOCAL)
    with pytest.raises(
        InputError, match=r"inferred\.parquet is damaged .* remove it, and the same command makes it again"
    ):
        adapt(plan)
    first.unlink()
    assert bits(adapt(plan)) == bits(straight_run)


def test_a_run_that_lost_its_records_says_which(
    straight_run: Result, source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    plan = RunPlan([source_model], target, str(tmp_path / "run"), small_config, LOCAL)
    for name, damage in (("run.json", b"{"), ("config.toml", b"\xff")):
        shutil.copytree(straight_run.path, plan.out, dirs_exist_ok=True)
        (tmp_path / "run" / name).write_bytes(damage)
        with pytest.raises(InputError, match=name):
            adapt(plan)
        with pytest.raises(InputError, match=name):
            adapt(replace(plan, out=str(tmp_path / "forked")), fork=plan.out)


@pytest.mark.usefixtures("unrendered")
def test_a_run_killed_while_it_was_removed_is_not_taken_for_the_new_one(
    straight_run: Result,
    source_model: Classifier,
    target: ImageStore,
    small_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shutil.copytree(straight_run.path, tmp_path, dirs_exist_ok=True)
    plan = RunPlan([source_model], target, str(tmp_path), small_config.model_copy(update={"alpha": 0.7}), LOCAL)
    delete, left = Folder.delete_file, iter(range(2))

    def killed(folder: Folder, name: str) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        delete(folder, name)

    monkeypatch.setattr(Folder, "delete_file", killed)
    with pytest.raises(KeyboardInterrupt):
        adapt(plan, force=True)
    monkeypatch.undo()
    with pytest.raises(InputError, match="a run with other settings"):
        adapt(plan)


def test_names_that_a_model_gets_from_the_target_are_said(
    source_model: Classifier,
    target: ImageStore,
    small_config: Config,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nameless = copy.deepcopy(source_model)
    nameless.spec = nameless.spec.model_copy(update={"classes": ()})
    for number, model in enumerate((nameless, source_model)):
        plan = RunPlan([model], target, str(tmp_path / f"{number}"), small_config, LOCAL)
        adapt(plan, until="infer", progress=Progress())
        told = "gets the target's by number: 0 0, 1 1, 2 2, 3 3, 4 4, …" in capsys.readouterr().err
        assert told == (model is nameless)


def test_the_end_of_infer_is_foretold_by_its_epochs_alone_and_not_by_the_look_before_them(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small_config.model_copy(update={"warm_start": "im", "warm_start_epochs": 3})
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)  # where each step is shown
    plan = RunPlan([source_model], target, str(tmp_path), config, LOCAL)
    adapt(plan, until="infer", progress=Progress(terminal))
    shown = [line.split()[1:4] for line in terminal.getvalue().split("\x1b[K") if line.startswith("infer")]
    assert shown[0] == ["2/5", "ETA", "?"]
    assert [step for step, _, left in shown if left != "?"] == ["3/5", "4/5", "5/5"]


def test_a_flipped_bit_anywhere_in_the_labels_is_noticed(straight_run: Result, tmp_path: Path) -> None:
    for name in ("run.json", LABELS):
        shutil.copy(Path(straight_run.path, name), tmp_path)
    whole, run = (tmp_path / LABELS).read_bytes(), Run(tmp_path)
    assert run.read_labels().equals(straight_run.labels)
    footer = range(len(whole) - int.from_bytes(whole[-8:-4], "little") - 8, len(whole))
    for place in [*range(0, footer.start, 307), *footer[::17]]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        (tmp_path / LABELS).write_bytes(flipped)
        with pytest.raises((InputError, OSError, pa.ArrowException, UnicodeDecodeError)):
            run.read_labels()
        assert read_run(tmp_path).unread == [LABELS]


@pytest.mark.usefixtures("unrendered")
def test_labels_that_a_user_edited_are_refused_with_the_way_out_and_left_as_they_are(
    straight_run: Result, source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    shutil.copytree(straight_run.path, tmp_path, dirs_exist_ok=True)
    table = straight_run.labels
    edited = table.set_column(table.column_names.index("refined_label"), "refined_label", table["initial_label"])
    pq.write_table(edited, tmp_path / LABELS)
    before = (tmp_path / LABELS).read_bytes()
    plan = RunPlan([source_model], target, str(tmp_path), small_config, LOCAL)
    for finished in (True, False):
        with pytest.raises(InputError, match=r"is not as the run wrote it .*: remove it, .* with --labels FILE"):
            adapt(plan)
        assert (tmp_path / LABELS).read_bytes() == before
        if finished:
            (tmp_path / "summary.json").unlink()
    pq.write_table(edited.drop_columns("refined_class"), tmp_path / "mine.parquet")  # which says otherwise
    given = read_given_labels(tmp_path / "mine.parquet", target, 10)  # the way out for edited ones
    assert given.tolist() == table["initial_label"].to_pylist()
    (tmp_path / LABELS).unlink()  # the way out for damaged ones
    assert bits(adapt(plan)) == bits(straight_run)


@pytest.mark.usefixtures("unrendered")
def test_seconds_of_stages_run_one_by_one_and_of_resumed_parts_are_in_the_summary(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    class Stop(Progress):
        def step(self, done: int, **figures: str) -> None:
            raise KeyboardInterrupt

    config = small_config.model_copy(update={"n_e": 1, "epochs": 1, "warm_start": "off"})
    plan = RunPlan([source_model], target, str(tmp_path / "run"), config, LOCAL)
    adapt(plan, until="infer")
    adapt(plan, until="refine")
    with pytest.raises(KeyboardInterrupt):
        adapt(plan, progress=Stop(quiet=True))  # after the first epoch of the target model
    result = adapt(plan)
    seconds = result.summary["seconds"]
    assert list(seconds) == ["infer", "refine", "distill"]
    assert seconds["infer"] > 0
    assert [line["epoch"] for line in result.metrics if line["stage"] == "distill"] == [0, 1]
    for stage in ("refine", "distill"):
        spent = sum(line["seconds"] for line in result.metrics if line["stage"] == stage)
        assert seconds[stage] == round(spent, 2)
    again = replace(plan, out=str(tmp_path / "fork"), config=config.model_copy(update={"distill_epochs": 1}))
    assert adapt(again, fork=result.path).summary["seconds"]["infer"] == seconds["infer"]
    assert json.loads((tmp_path / "run/run.json").read_text())["infer_seconds"] > 0


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_no_line_of_the_target_model_is_lost_with_a_driver_whose_trainer_runs_ahead(
    ahead: int,
    source_model: Classifier,
    target: ImageStore,
    small_config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = small_config.model_copy(update={"n_e": 1, "epochs": 1, "warm_start": "off", "distill_epochs": 3})
    plan = RunPlan([source_model], target, str(tmp_path / "run"), config, LOCAL)
    straight = adapt(replace(plan, out=str(tmp_path / "straight")))
    adapt(plan, until="refine")

    def killed(training: Training, *_: Any) -> None:
        epochs = 4 if ahead == 3 else ahead  # to the end, where the model is written
        list(islice(training.epochs("cpu", 1), epochs))  # of which nobody hears
        again = training.epochs("cpu", 1)
        told = [next(again), *(again.send(False) for _ in range(ahead - 1))]  # type: ignore[attr-defined]
        assert [epoch for epoch, _ in told] == list(range(ahead))  # as Ray asks for them
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(supervised, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            adapt(plan)
    assert (tmp_path / "run/target_model/model.json").exists() == (ahead == 3)
    resumed, unbroken = (
        [(line["epoch"], line["loss"]) for line in result.metrics if line["stage"] == "distill"]
        for result in (adapt(plan), straight)
    )
    assert resumed == unbroken
    assert len(unbroken) == 3
    assert bits(tmp_path / "run") == bits(straight)


@pytest.mark.usefixtures("unrendered")
def test_a_resume_with_other_threads_is_said_and_recorded(
    source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    config = small_config.model_copy(update={"warm_start": "off"})  # two threads on a small box are slow
    more = ScalingConfig(engine="local", threads=2)
    adapt(RunPlan([source_model], target, str(tmp_path), config, more), until="infer")
    result = adapt(RunPlan([source_model], target, str(tmp_path), config, LOCAL))
    assert any("threads 2 -> 1" in warning for warning in result.summary["warnings"])
    computed = json.loads((tmp_path / "run.json").read_text())["computed_with"]
    assert [each["threads"] for each in computed] == [2, 1]
    assert computed[1] == {"device": "cpu", "threads": 1, "ranks_per_member": 1, "distill_workers": 1}


@pytest.mark.parametrize(("rate", "trust", "kept"), [(1.0, 0.93, True), (1e-5, 0.0, False)])
def test_where_a_warm_start_by_vote_was_dropped_the_target_model_keeps_batchnorm_s_statistics_and_trains_longer(
    rate: float, trust: float, kept: bool, source_model: Classifier, target: ImageStore, tmp_path: Path
) -> None:
    start = {"warm_start": "centroids", "warm_start_lr": rate, "warm_start_trust": trust, "warm_start_epochs": 1}
    config = Config(**start, epochs=1, n_e=1, distill_epochs=1)  # type: ignore[arg-type]
    run = adapt(RunPlan([source_model], target, str(tmp_path / "run"), config, LOCAL))
    assert run.run.read_inferred([source_model]).as_it_came == kept
    start, end = (
        load_model(f"{tmp_path}/run/{place}", like=source_model).state_dict()
        for place in ("ensemble/0", "target_model")
    )
    statistics = [name for name in start if "running_" in name]
    assert [torch.equal(start[name], end[name]) for name in statistics] == [kept] * len(statistics)
    assert len([line for line in run.metrics if line["stage"] == "distill"]) == (3 if kept else 1)


class StopsInTheWarmStart(Progress):
    """Ends a run after the first epoch of its first stage."""

    def step(self, done: int, **figures: str) -> None:
        raise KeyboardInterrupt


def test_starting_again_takes_nothing_of_the_warm_start_that_was_stopped(
    straight_run: Result, source_model: Classifier, target: ImageStore, small_config: Config, tmp_path: Path
) -> None:
    other = copy.deepcopy(source_model)
    other.reset_head(1)
    plan = RunPlan([other], target, str(tmp_path), small_config, LOCAL)
    with pytest.raises(KeyboardInterrupt):
        adapt(plan, progress=StopsInTheWarmStart(quiet=True))
    assert list(tmp_path.glob("checkpoints/warm-start-*.pt"))
    again = adapt(RunPlan([source_model], target, str(tmp_path), small_config, LOCAL), until="refine", force=True)
    assert again.labels.equals(straight_run.labels)

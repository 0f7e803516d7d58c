"""Sweeps: trials are runs of `adapt`, failures stay their own, the best is chosen without labels, a kill is no loss."""

import fcntl
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from s3_server import S3Place

from ray_adaplr.cli.main import main
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.scores import LABEL_FREE
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError, RunFailed
from ray_adaplr.stages.adapt import RunPlan, adapt
from ray_adaplr.storage.layout import ORACLE
from ray_adaplr.storage.models import load_model
from ray_adaplr.storage.run import Run
from ray_adaplr.sweep.options import SweepJob, SweepOptions
from ray_adaplr.sweep.space import content_hash
from ray_adaplr.sweep.trial import Sweep, report_of
from ray_adaplr.sweep.trials import run_sweep

LOCAL = ScalingConfig(engine="local", cpus_per_member=0.5)
SMALL = Config(epochs=3, warmup=1, warm_start_epochs=1, n_e=1)
# The third trial's learning rate makes its logits infinite in its first epoch.
SPACE = (
    "def space(C):\n    return {'lr,n_e,alpha': {'grid_search': [(1e-3, 1, 0.5), (1e-3, 2, 0.9), (1e30, 1, 0.5)]}}\n"
)
DRAWN = """
from ray import tune

def space(C):
    return {"alpha": tune.uniform(0.6, 0.9), "n_e,n_rl": tune.grid_search([(1, 4), (2, 2)]), "n_a": 2}
"""


class Trap:
    """A pickle that makes a file when it is read."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return open, (str(self._file), "w")


def table(out: Path) -> list[dict[str, Any]]:
    return pq.read_table(out / "results.parquet").to_pylist()


@pytest.fixture(scope="module")
def sweep(
    ray_cluster: None,
    digit_stores: dict[str, ImageStore],
    source_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, str]:
    """A sweep of which one trial fails: its folder, and what it said at its end."""
    out = tmp_path_factory.mktemp("sweep")
    (out / "mine.py").write_text(SPACE)
    job = SweepJob(str(out / "s"), str(out / "mine.py"), quiet=True)
    with pytest.raises(RunFailed) as failed:
        run_sweep(job, [load_model(source_folder)], digit_stores["optdigits"], SMALL, LOCAL)
    return out / "s", str(failed.value)


@pytest.mark.ray
def test_a_failing_trial_ends_neither_the_others_nor_as_success(sweep: tuple[Path, str]) -> None:
    out, words = sweep
    assert "1 of 3 trials have no metrics (002; the first:" in words
    assert "NaN or infinite logits" in words
    rows = table(out)
    ended = [(row["trial"], row["finished"], row["epochs_run"]) for row in rows]
    assert ended == [("000", True, 3), ("001", True, 3), ("002", False, 0)]
    assert len(list((out / "inferred").iterdir())) == 1  # the first two share their first labels


@pytest.mark.ray
def test_the_best_is_chosen_by_a_label_free_score_and_its_settings_are_a_config(sweep: tuple[Path, str]) -> None:
    out, _ = sweep
    ended = [row for row in table(out) if row["finished"]]
    best = max(ended, key=lambda row: row["infomax"])
    chosen = Config.load(file=out / "best.toml")
    assert (chosen.alpha, chosen.n_e) == (best["alpha"], best["n_e"])
    assert all(0 < row["diagnostic_oracle_accuracy"] < 1 for row in ended)


@pytest.mark.ray
def test_a_sweep_leaves_a_page_and_hyperparameters_for_tensorboard(sweep: tuple[Path, str]) -> None:
    out, _ = sweep
    page = (out / "sweep.html").read_text()
    assert "is best by infomax" in page
    assert "3 trials: 2 finished, 0 were stopped early, 1 failed." in page
    assert "A diagnostic from ground truth, which had no part in the choice." in page
    assert page.count("<figure") == 7  # four settings (n_rl follows n_e), gamma, noise, score
    events = b"".join(file.read_bytes() for file in (out / "trials/000/tensorboard").rglob("events*"))
    assert b"_hparams_/session_start_info" in events
    assert not (out / "trials/000/checkpoints").exists()


@pytest.mark.ray
def test_a_folder_with_a_sweep_is_refused_without_resume(
    sweep: tuple[Path, str], source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    def again(space: str = str(sweep[0].parent / "mine.py"), **options: Any) -> None:
        job = SweepJob(str(sweep[0]), space, **options)
        run_sweep(job, [source_model], digit_stores["optdigits"], SMALL, LOCAL)

    with pytest.raises(InputError, match="--resume continues with it, --force starts again"):
        again()
    with pytest.raises(InputError, match="alpha is not the space that the sweep in"):
        again("alpha", resume=True)
    with pytest.raises(InputError, match="a sweep with other options"):
        again(resume=True, options=SweepOptions(scheduler="asha"))
    (longer := tmp_path / "longer.py").write_text("def space(C):\n    return {'epochs': {'grid_search': [8, 9]}}\n")
    with pytest.raises(InputError, match="asha compares trials after the same number of epochs"):
        again(str(longer), force=True, options=SweepOptions(scheduler="asha"))


@pytest.mark.ray
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "epochs=77"], "not epochs=77; a resumed sweep keeps its settings"),
        (["--set", "defaults=photographs"], "not defaults=photographs"),
        (["--preset", "quick"], "a resumed sweep keeps its settings"),
        (["--normalize", "imagenet"], "not normalize=imagenet; a resumed sweep keeps its settings"),
        (["--classes", "names.txt"], "a resumed sweep keeps its settings"),
        (["--metric", "entropy"], "has metric=None, not metric=entropy"),
        (["--trials", "99", "--seed", "5"], "not seed=5, trials=99; "),
    ],
)
def test_a_resumed_sweep_refuses_settings_that_it_was_not_started_with(
    sweep: tuple[Path, str], arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--resume", "--out", str(sweep[0]), *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.ray
def test_a_resumed_sweep_runs_no_code_that_a_folder_names(
    sweep: tuple[Path, str], digit_stores: dict[str, ImageStore], source_folder: Path, tmp_path: Path
) -> None:
    record = json.loads((sweep[0] / "sweep.json").read_text())
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef space(C):\n    return {{'n_e': 1}}\n")
    digest = hashlib.sha256(trap.read_bytes()).hexdigest()

    def resume(**changes: Any) -> int:
        (tmp_path / "s").mkdir(exist_ok=True)
        (tmp_path / "s/sweep.json").write_text(json.dumps(record | {"space": str(trap), **changes}))
        return main(["tune", "--resume", "--quiet", "--engine", "local", "--out", str(tmp_path / "s")])

    record["source"], record["target"] = [str(source_folder)], digit_stores["optdigits"].paths
    assert resume() == 2  # another content
    assert resume(space_sha256=digest, listed=None) == 2  # its code would have to run
    assert resume(space="alpha", space_sha256=content_hash("alpha"), listed=None) == 2  # or that of Tune's records
    assert resume(space_sha256=digest, listed=[{"epochs": 0}]) == 2  # trials are checked, and come from the record
    assert not (tmp_path / "ran").exists()


@pytest.mark.ray
def test_a_sweep_lies_in_a_bucket_as_on_a_disk(
    ray_cluster: None, source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path, s3: S3Place
) -> None:
    (tmp_path / "two.py").write_text("def space(C):\n    return {'alpha': {'grid_search': [0.5, 0.9]}}\n")
    uri = s3.uri("sweep")
    warmed = SMALL.model_copy(update={"warm_start": "im", "warm_start_epochs": 1})
    disk = str(tmp_path / "sweep")
    for place, how in ((uri, {}), (uri, {"resume": True}), (uri, {"force": True}), (disk, {}), (disk, {"force": True})):
        job = SweepJob(place, str(tmp_path / "two.py"), quiet=True, **how)
        run_sweep(job, [source_model], digit_stores["optdigits"], warmed, LOCAL)
    keys = s3.keys(uri)
    assert {"best.toml", "results.parquet", "sweep.html", "sweep.json"} <= set(keys)
    assert {key.split("/")[1] for key in keys if key.startswith("trials/")} == {"000", "001"}
    assert ".lease" not in keys


@pytest.fixture(scope="module")
def drawn(
    ray_cluster: None,
    digit_stores: dict[str, ImageStore],
    source_folder: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A sweep of two trials that Optuna draws, whose members are actors."""
    pytest.importorskip("optuna", reason="optuna is not installed (it comes with the dev extra)")
    out = tmp_path_factory.mktemp("drawn")
    (out / "mine.py").write_text(DRAWN)
    tune = ["tune", str(out / "mine.py"), "--search", "optuna", "--trials", "2", "--quiet", "--out", str(out / "s")]
    data = ["--source", str(source_folder), "--target", digit_stores["optdigits"].paths[0]]
    assert main([*tune, *data, "--set=epochs=3", "--set=warmup=1", "--set=warm_start=off"]) == 0
    return out / "s"


@pytest.mark.ray
def test_optuna_draws_its_trials_from_the_space(drawn: Path) -> None:
    rows = table(drawn)
    assert [(row["finished"], row["epochs_run"]) for row in rows] == [(True, 3)] * 2
    assert len({row["alpha"] for row in rows}) == 2
    assert all(0.6 <= row["alpha"] <= 0.9 and (row["n_e"], row["n_rl"]) in {(1, 4), (2, 2)} for row in rows)
    best = max(rows, key=lambda row: row["infomax"])
    assert Config.load(file=drawn / "best.toml").alpha == best["alpha"]


@pytest.mark.ray
def test_a_trial_on_ray_is_the_refine_stage_of_adapt_in_its_own_placement_group(
    drawn: Path, source_model: Classifier, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    for row in table(drawn):
        trial = drawn / "trials" / row["trial"]
        config, out = Config.load(file=trial / "config.toml"), str(tmp_path / row["trial"])
        assert config.n_a == 2  # what the space fixes is no matter of the draw
        alone = adapt(RunPlan([source_model], digit_stores["optdigits"], out, config, LOCAL), until="refine")
        assert Run(str(trial)).read_labels().equals(alone.labels)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["alpha", "--metric", "noise"], "is no label-free score"),
        (["alpha", "--trials", "0"], "--trials 0"),
        (["--resume"], "there is no sweep in"),
        (["--resume", "--force"], "--resume continues the sweep, --force removes it"),
        ([], "name the SPACE"),
        (["alpha"], "name the --source"),
    ],
)
def test_bad_arguments_of_tune_get_one_sentence(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *arguments, "--out", str(tmp_path / "none")]) == 2
    assert words in capsys.readouterr().err


def test_ground_truth_is_the_score_only_when_the_user_says_oracle() -> None:
    line = dict.fromkeys([*LABEL_FREE, "gamma"], 0.25)
    line |= {"noise": 0.1, "epoch": 0}
    assert report_of([line], SMALL, "infomax")["score"] == 0.25
    assert report_of([line], SMALL, "infomax")["diagnostic_oracle_accuracy"] == 0.9
    assert report_of([line], SMALL, ORACLE)["score"] == 0.9
    assert "noise" not in report_of([line], SMALL, "infomax")


def test_searchers_compare_the_epoch_whose_labels_a_trial_would_keep() -> None:
    scores = (0.9, 0.2, 0.5, 0.3)
    lines = [dict.fromkeys([*LABEL_FREE, "gamma"], score) | {"epoch": epoch} for epoch, score in enumerate(scores)]
    auto = SMALL.model_copy(update={"stop": "auto", "warmup": 1})
    told = [report_of(lines[:n], auto, "infomax") for n in (1, 2, 3, 4)]
    assert [(report["epoch"], report["score"]) for report in told] == [(1, 0.9), (2, 0.2), (3, 0.5), (4, 0.5)]
    assert report_of(lines, SMALL, "infomax")["score"] == 0.3


def test_the_bundles_of_a_trial_follow_from_its_settings() -> None:
    def bundles(scaling: ScalingConfig, cpus: int, sample: dict[str, Any]) -> list[dict[str, float]]:
        nodes = [{"CPU": float(cpus), "GPU": 0.0}]
        return Sweep("", [], 10, [], SMALL, scaling, "infomax", nodes).resources_of(sample).bundles

    three = {"trial": {"number": "000", "changes": {"n_e": 3}}}
    of_two_cores = bundles(ScalingConfig(), 2, three)
    assert of_two_cores == [{"CPU": 0.01}, *[{"CPU": 0.3233}] * 3]
    assert 2 * sum(bundle["CPU"] for bundle in of_two_cores) <= 2  # two trials at a time
    assert bundles(ScalingConfig(), 2, {"n_e,n_rl": (1, 4)}) == [{"CPU": 0.01}, {"CPU": 0.99}]
    assert bundles(ScalingConfig(), 64, three) == [{"CPU": 0.01}, *[{"CPU": 0.99}] * 3]
    assert bundles(ScalingConfig(cpus_per_member=0.5), 2, three) == [{"CPU": 0.01}, *[{"CPU": 0.5}] * 3]
    assert bundles(ScalingConfig(engine="local"), 2, three) == [{"CPU": 1.0}]


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_sweep_resumes_to_all_trials_and_the_same_best(
    ray_cluster: None, source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    space, killed = tmp_path / "mine.py", tmp_path / "killed"
    space.write_text("def space(C):\n    return {'alpha': {'grid_search': [0.5, 0.7, 0.9]}}\n")
    store = digit_stores["optdigits"]
    tune = ["tune", "--engine", "local", "--quiet", "--out", str(killed)]
    settings = ["--set=epochs=8", "--set=warm_start_epochs=1", "--set=n_e=1"]
    data = [str(space), "--source", str(source_folder), "--target", store.paths[0]]
    process = subprocess.Popen([sys.executable, "-m", "ray_adaplr", *tune, *data, *settings])
    while not list(killed.glob("trials/*/labels.parquet")):  # until the first trial has ended
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert len(list(killed.glob("trials/*/labels.parquet"))) < 3
    (killed / "tune/tuner.pkl").write_bytes(pickle.dumps(Trap(tmp_path / "ran")))  # somebody else's, perhaps
    assert main([*tune, "--resume"]) == 0
    assert not (tmp_path / "ran").exists()
    written = sorted(len(list(trial.rglob("events*"))) for trial in killed.glob("trials/*"))
    assert main([*tune, "--resume"]) == 0  # once more, when all have ended
    assert sorted(len(list(trial.rglob("events*"))) for trial in killed.glob("trials/*")) == written
    rows = table(killed)
    assert [(row["trial"], row["finished"], row["epochs_run"]) for row in rows] == [
        (f"00{i}", True, 8) for i in range(3)
    ]
    undisturbed = {}  # a trial is a run of `adapt`, so three of those are the sweep undisturbed
    for row in rows:
        config = Config(epochs=8, warm_start_epochs=1, n_e=1, alpha=row["alpha"])
        run = adapt(
            RunPlan([load_model(source_folder)], store, str(tmp_path / row["trial"]), config, LOCAL), until="refine"
        )
        undisturbed[row["alpha"]] = run.metrics[-1]["infomax"]
    assert {row["alpha"]: row["score"] for row in rows} == undisturbed
    top = max(round(score, 4) for score in undisturbed.values())
    tied = [alpha for alpha, score in undisturbed.items() if round(score, 4) == top]
    expected = 0.9 if 0.9 in tied else tied[0]  # of those that tie, the sweep's own
    assert Config.load(file=killed / "best.toml").alpha == expected


@pytest.mark.ray
@pytest.mark.slow
def test_a_killed_sweep_with_asha_resumes_without_training_what_had_ended(
    ray_cluster: None, source_folder: Path, digit_stores: dict[str, ImageStore], tmp_path: Path
) -> None:
    space, out = tmp_path / "mine.py", tmp_path / "killed"
    space.write_text(
        "def space(C):\n    return {'lr,lr_head': {'grid_search': [(1e-3, 1e-3), (1e-9, 1e-9), (1e-9, 2e-9)]}}\n"
    )
    tune = ["tune", "--engine", "local", "--cpus-per-member", "2", "--quiet", "--out", str(out)]  # one after the other
    data = [str(space), "--source", str(source_folder), "--target", digit_stores["optdigits"].paths[0]]
    settings = ["--scheduler", "asha", "--set=epochs=8", "--set=warmup=1", "--set=warm_start=off", "--set=n_e=1"]
    process = subprocess.Popen([sys.executable, "-m", "ray_adaplr", *tune, *data, *settings])
    while not (out / "trials/001/stopped_early.json").exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for lock in out.glob("trials/*/.lock"):  # until a trial that had just begun has ended as well
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
    ended = {name: (out / f"trials/{name}/metrics.jsonl").read_bytes() for name in ("000", "001")}
    for _ in range(2):  # and once more, when all have ended
        assert main([*tune, "--resume"]) == 0
        assert [(row["epochs_run"], row["finished"]) for row in table(out)] == [(8, True), (3, False), (3, False)]
        assert ended == {name: (out / f"trials/{name}/metrics.jsonl").read_bytes() for name in ended}
        events = list(out.glob("trials/00[01]/tensorboard/events*"))
        assert len(events) == 2  # one per trial; the third may have begun before the kill, and then has two


@pytest.mark.parametrize(
    ("nodes", "bundle"),
    [([{"CPU": 4.0, "GPU": 2.0}], {"CPU": 1.0, "GPU": 1.0}), ([{"CPU": 4.0, "GPU": 0.0}], {"CPU": 1.0})],
)
def test_a_trial_in_process_reserves_a_gpu_where_there_are_some(nodes: list[Any], bundle: dict[str, float]) -> None:
    sweep = Sweep("", [], 10, [], Config(), ScalingConfig(engine="local"), "infomax", nodes)
    assert sweep.bundles(3) == [bundle]

"""`--track` with the real MLflow on its local database and the real W&B offline: what they hold afterwards."""

import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from local_runs import LOCAL

from ray_adaplr.config import Config
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.integrations.tracking import make_tracker
from ray_adaplr.stages import record as following
from ray_adaplr.stages.adapt import Result, RunPlan, adapt
from ray_adaplr.storage.models import load_model
from ray_adaplr.storage.run import Run

pytestmark = pytest.mark.usefixtures("unrendered")
KEYS = "s3://KEY:SECRET@bucket/source"
FINAL = {"report.html", "labels.parquet", "config.toml", "summary.json"}
Plan = Callable[..., RunPlan]


@pytest.fixture
def plan(source_folder: Path, digit_stores: dict[str, ImageStore], small_config: Config, tmp_path: Path) -> Plan:
    """A small run in process; its source's name has keys in it."""

    def make(name: str = "run") -> RunPlan:
        model, store = load_model(source_folder), digit_stores["optdigits"]
        return RunPlan([model], store, str(tmp_path / name), small_config, LOCAL, source_names=[KEYS])

    return make


@pytest.fixture
def mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's client on a new database, which is also where runs go."""
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed (it comes with the extra mlflow)")
    uri = f"sqlite:///{tmp_path}/store/mlflow.db"
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return mlflow.MlflowClient(uri)


@pytest.fixture
def wandb_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where W&B writes offline."""
    pytest.importorskip("wandb", reason="W&B is not installed (it comes with the extra wandb)")
    folder = tmp_path / "offline"
    folder.mkdir()
    for name, value in {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_CACHE_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_DATA_DIR", "WANDB_CONFIG_DIR", "WANDB_ARTIFACT_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "wandb-own"))
    return folder


def runs_of(client: Any, experiment: str = "ray-adaplr") -> list[Any]:
    return client.search_runs([client.get_experiment_by_name(experiment).experiment_id])


def steps(client: Any, run: Any, metric: str) -> list[int]:
    return [point.step for point in client.get_metric_history(run.info.run_id, metric)]


def records(folder: Path) -> list[Any]:
    """All records of W&B's offline files, in the order they were written; its own process may still be at the last."""
    from wandb.proto.wandb_internal_pb2 import Record

    deadline, found = time.monotonic() + 60, []
    while time.monotonic() < deadline:
        files = sorted(folder.rglob("run-*.wandb"), key=lambda file: file.parent.name)
        found = [[Record.FromString(message) for message in messages(file.read_bytes())] for file in files]
        if all(each and each[-1].HasField("exit") for each in found):
            break
        time.sleep(0.1)
    return [record for each in found for record in each]


def messages(content: bytes) -> Iterator[bytes]:
    """The messages of a file in the form of LevelDB's log, behind W&B's own seven bytes.

    Blocks of 32 KiB hold pieces: checksum (4 bytes), length (2), kind (1), content. Newer W&B has no reader in Python.
    """
    place, message = 7, b""
    while place + 7 <= len(content):
        room = 32768 - place % 32768
        if room < 7:  # the end of a block, where no piece begins
            place += room
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        place += 7 + length
        if place > len(content):  # not all of it is written
            return
        message += content[place - length : place]
        if kind in (1, 4):  # whole, or the last piece
            yield message
            message = b""


def logged(found: list[Any], name: str) -> list[float]:
    """The values of a metric in W&B's records."""
    items = [item for record in found if record.HasField("history") for item in record.history.item]
    return [json.loads(item.value_json) for item in items if name in (item.key, "/".join(item.nested_key))]


def stop_after(epoch: int) -> Callable[[dict[str, Any]], None]:
    def watch(line: dict[str, Any]) -> None:
        if line["epoch"] == epoch:
            raise KeyboardInterrupt

    return watch


def test_mlflow_holds_parameters_every_epoch_and_the_files_and_no_keys(mlflow_store: Any, plan: Plan) -> None:
    result = adapt(plan(), tracker=make_tracker("mlflow"))
    [run] = runs_of(mlflow_store)
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["alpha"] == "0.5"
    assert run.data.params["num_images"] == "300"
    assert run.data.params["source"] == "s3://***@bucket/source"
    lines = [line for line in result.metrics if line["stage"] == "refine"]
    history = mlflow_store.get_metric_history(run.info.run_id, "refine/gamma")
    assert [(point.step, point.value) for point in history] == [(line["epoch"], line["gamma"]) for line in lines]
    assert steps(mlflow_store, run, "distill/loss") == [0, 1]
    assert run.data.metrics["outcome/target"] == result.summary["target"]
    assert {file.path for file in mlflow_store.list_artifacts(run.info.run_id)} == FINAL
    store = Path(mlflow_store.tracking_uri.removeprefix("sqlite:///")).parent
    [labels] = store.rglob("labels.parquet")
    assert labels.read_bytes() == Path(result.path, "labels.parquet").read_bytes()
    assert b"SECRET" not in b"".join(file.read_bytes() for file in store.rglob("*") if file.is_file())


def test_a_resumed_run_goes_on_in_mlflow_where_it_stopped(mlflow_store: Any, plan: Plan) -> None:
    with pytest.raises(KeyboardInterrupt):
        adapt(plan(), until="refine", watch=stop_after(2), tracker=make_tracker("mlflow"))
    [run] = runs_of(mlflow_store)
    assert run.info.status == "KILLED"
    adapt(plan(), until="refine", tracker=make_tracker("mlflow"))
    [again] = runs_of(mlflow_store)
    assert again.info.run_id == run.info.run_id
    assert again.info.status == "FINISHED"
    assert steps(mlflow_store, again, "refine/gamma") == [0, 1, 2, 3]
    adapt(plan(), until="infer", force=True, tracker=make_tracker("mlflow"))  # another run
    assert len(runs_of(mlflow_store)) == 2


def test_a_tracked_run_that_is_gone_from_the_store_is_opened_again(mlflow_store: Any) -> None:
    tracker = make_tracker("mlflow")
    found = tracker.begin("run", "0123456789abcdef0123456789abcdef", {"alpha": 0.5})
    tracker.close(ended=True)
    assert [run.info.run_id for run in runs_of(mlflow_store)] == [found]


def test_wandb_offline_holds_parameters_every_epoch_and_the_files_and_no_keys(
    wandb_folder: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["ray-adaplr", "adapt", "--source", KEYS])
    result = adapt(plan(), tracker=make_tracker("wandb"))
    found = records(wandb_folder)
    [opened] = [record.run for record in found if record.HasField("run") and record.run.config.update]
    config = {item.key: json.loads(item.value_json) for item in opened.config.update}
    assert (opened.project, opened.display_name) == ("ray-adaplr", "run")
    assert config["alpha"] == 0.5
    assert config["source"] == "s3://***@bucket/source"
    gammas = [line["gamma"] for line in result.metrics if line["stage"] == "refine"]
    assert logged(found, "refine/gamma") == gammas
    assert logged(found, "refine/epoch") == [0, 1, 2, 3]
    assert logged(found, "distill/epoch") == [0, 1]
    [artifact] = [record.artifact for record in found if record.HasField("artifact")]
    assert {entry.path for entry in artifact.manifest.contents} == FINAL
    assert b"SECRET" not in b"".join(file.read_bytes() for file in wandb_folder.rglob("*") if file.is_file())


def test_a_resumed_run_has_the_same_id_in_wandb(wandb_folder: Path, plan: Plan) -> None:
    with pytest.raises(KeyboardInterrupt):
        adapt(plan(), until="refine", watch=stop_after(2), tracker=make_tracker("wandb"))
    adapt(plan(), until="refine", tracker=make_tracker("wandb"))
    found = records(wandb_folder)
    assert len({record.run.run_id for record in found if record.HasField("run")}) == 1
    assert logged(found, "refine/epoch") == [0, 1, 2, 3]


class Broken:
    """A tracker of which one call fails, or waits for ever."""

    name = "broken"

    def __init__(self, call: str, waits: threading.Event | None = None) -> None:
        self._call, self._waits = call, waits

    def _do(self, call: str) -> None:
        if call == self._call and self._waits:
            self._waits.wait(600)
        elif call == self._call:
            raise OSError("no route to https://me:SECRET@tracker.example/api")

    def begin(self, run: str, known: str | None, parameters: dict[str, Any]) -> str:
        self._do("begin")
        return "id"

    def epoch(self, line: dict[str, Any]) -> None:
        self._do("epoch")

    def finish(self, summary: dict[str, Any], files: dict[str, bytes]) -> None:
        self._do("finish")

    def close(self, ended: bool) -> None:
        self._do("close")


@pytest.mark.parametrize("call", ["begin", "epoch", "finish", "close"])
def test_a_tracker_that_fails_is_told_once(call: str, plan: Plan, caplog: pytest.LogCaptureFixture) -> None:
    followed = plan()
    with following.Tracked(Broken(call), followed, Run(followed.out)) as tell:
        for epoch in range(3):
            tell({"stage": "refine", "epoch": epoch})
    assert said(caplog) == ["--track broken is given up, the run is not: no route to https://***@tracker.example/api"]


def test_a_tracker_that_hangs_holds_up_nothing_and_changes_nothing(
    plan: Plan, straight_run: Result, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_LONGEST_END", 0.5)
    forever = threading.Event()
    result = adapt(plan(), until="refine", tracker=Broken("epoch", forever))
    forever.set()
    assert result.labels.equals(straight_run.labels)
    assert said(caplog) == ["--track broken is given up, the run is not: it does not answer"]


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == following.__name__]


def test_a_missing_package_and_an_unknown_tracker_get_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--track comet is no tracker; use mlflow or wandb"):
        make_tracker("comet")
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InputError, match=rf"pip install 'ray-adaplr\[{name}\]'"):
            make_tracker(name)


@pytest.mark.ray
@pytest.mark.slow
def test_a_sweep_tracks_one_run_per_trial_in_one_group(
    mlflow_store: Any, plan: Plan, tmp_path: Path, ray_cluster: object
) -> None:
    from ray_adaplr.sweep.options import SweepJob
    from ray_adaplr.sweep.trials import run_sweep

    (tmp_path / "two.py").write_text(
        "from ray import tune\ndef space(n): return {'alpha': tune.grid_search([0.4, 0.6])}"
    )
    told = plan()
    out = tmp_path / "sweep"
    tracker = make_tracker("mlflow", out.name)
    job = SweepJob(str(out), str(tmp_path / "two.py"), command="tune", quiet=True, tracker=tracker)
    run_sweep(job, told.sources, told.store, told.config, LOCAL)
    runs = runs_of(mlflow_store)
    assert {(run.info.run_name, run.data.params["alpha"], run.data.tags["group"]) for run in runs} == {
        ("sweep/000", "0.4", "sweep"),
        ("sweep/001", "0.6", "sweep"),
    }
    for run in runs:
        assert run.info.status == "FINISHED"
        assert steps(mlflow_store, run, "refine/gamma") == [0, 1, 2, 3]
        assert "labels.parquet" in {file.path for file in mlflow_store.list_artifacts(run.info.run_id)}


@pytest.mark.slow
def test_the_command_that_a_run_ends_with_opens_its_curves(straight_run: Result, capsys: Any) -> None:
    """The real TensorBoard reads the folder and answers with the run's curves."""
    import socket
    import urllib.request

    from ray_adaplr.cli.runs import print_result

    print_result(straight_run, "result")
    [said] = [line for line in capsys.readouterr().out.splitlines() if "tensorboard" in line]
    program, *words = said.split("curves: ")[1].split()
    assert (program, words) == ("tensorboard", ["--logdir", f"{straight_run.path}/tensorboard"])
    beside = Path(os.path.realpath(shutil.which(program) or Path(sys.executable).parent / program))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    runs = [str(beside)] if beside.exists() else [sys.executable, "-m", "tensorboard.main"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    board = subprocess.Popen([*runs, *words, "--port", str(port)], **quiet)
    tags: dict[str, Any] = {}
    deadline = time.monotonic() + 300
    try:
        while not any(tags.values()) and time.monotonic() < deadline:
            time.sleep(0.3)
            try:
                address = f"http://127.0.0.1:{port}/data/plugin/scalars/tags"
                tags = json.load(urllib.request.urlopen(address, timeout=30))
            except OSError:
                continue
    finally:
        board.terminate()
        board.wait(60)
    assert "refine/gamma" in {name for run in tags.values() for name in run}

"""`--track mlflow|wandb`: a run's parameters, every epoch's figures, and its report and labels, in another tool too.

Where they go is said as either tool's users say it: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, WANDB_PROJECT,
WANDB_MODE, ... Neither is told the command line, the code or the machine. A tracker travels to a trial before `begin`.
"""

import contextlib
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Literal, get_args
from uuid import uuid4

from ray_adaplr.errors import InputError, need
from ray_adaplr.stages.record import Tracker
from ray_adaplr.storage.metrics import Line
from ray_adaplr.storage.run_reader import is_number
from ray_adaplr.storage.secrets import redacted

TrackerName = Literal["mlflow", "wandb"]
PROJECT = "ray-adaplr"  # the experiment or project, unless the user's environment names one
_SQLITE = "sqlite:///"
_LONGEST = 500  # characters of a parameter that MLflow takes, whatever its store


def make_tracker(name: str, group: str = "") -> Tracker:
    """A tracker by its name; the runs of a sweep are grouped by the sweep's. InputError when its package is missing."""
    if name not in get_args(TrackerName):
        raise InputError(f"--track {name} is no tracker; use {' or '.join(get_args(TrackerName))}")
    need(f"--track {name}", name, *{"mlflow": ("mlflow", "sqlalchemy", "alembic"), "wandb": ("wandb",)}[name])
    return MlflowTracker(group) if name == "mlflow" else WandbTracker(group)


def figures(record: dict[str, Any], prefix: str) -> dict[str, float]:
    """The numbers of a record, under a prefix."""
    return {f"{prefix}/{name}": float(value) for name, value in record.items() if is_number(value)}


class MlflowTracker:
    """Writes to MLflow's store, by default `mlflow.db` where the command was given."""

    name = "mlflow"

    def __init__(self, group: str = "") -> None:
        import mlflow

        uri = mlflow.get_tracking_uri()
        if uri.startswith(_SQLITE):  # a trial works in another folder
            uri = _SQLITE + os.path.abspath(uri.removeprefix(_SQLITE))
        self._uri, self._group = uri, group
        self._experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        self._client: Any = None
        self._id = ""

    def begin(self, run: str, known: str | None, parameters: dict[str, Any]) -> str:
        """Open a run in the experiment; one that was stopped is running again."""
        from mlflow import MlflowClient
        from mlflow.entities import Param
        from mlflow.exceptions import MlflowException

        for noisy in ("mlflow", "alembic"):  # each table of a new database is news to them
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self._client = MlflowClient(self._uri)
        if known:
            with contextlib.suppress(MlflowException):  # it was removed, or is in another store
                self._client.update_run(known, status="RUNNING")
                self._id = known
                return known
        tags = {"group": self._group} if self._group else {}
        found = self._client.create_run(self._experiment_id(), tags=tags, run_name=_named(run, self._group))
        self._id = found.info.run_id
        params = [Param(key, redacted(str(value))[:_LONGEST]) for key, value in parameters.items()]
        self._client.log_batch(self._id, params=params)
        return self._id

    def _experiment_id(self) -> str:
        from mlflow.exceptions import MlflowException

        place = None
        if self._uri.startswith(_SQLITE):  # else the artifacts lie in whatever folder this process works in
            place = (Path(self._uri.removeprefix(_SQLITE)).parent / "mlruns" / self._experiment).as_uri()
        with contextlib.suppress(MlflowException):  # it is there, perhaps since another trial was faster
            return self._client.create_experiment(self._experiment, artifact_location=place)
        return self._client.get_experiment_by_name(self._experiment).experiment_id

    def epoch(self, line: Line) -> None:
        """The line's numbers at its epoch."""
        self._log(figures({**line, "epoch": None}, line["stage"]), line["epoch"])

    def finish(self, summary: dict[str, Any], files: dict[str, bytes]) -> None:
        """The summary's numbers, and the files as artifacts."""
        self._log(figures(summary, "outcome"), 0)
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            self._client.log_artifacts(self._id, folder)

    def close(self, ended: bool) -> None:
        """A run that did not end is KILLED until it goes on."""
        self._client.set_terminated(self._id, "FINISHED" if ended else "KILLED")

    def _log(self, numbers: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in numbers.items()])


class WandbTracker:
    """Writes to Weights & Biases; with WANDB_MODE=offline to the folder `wandb`, for `wandb sync`."""

    name = "wandb"

    def __init__(self, group: str = "") -> None:
        self._group, self._folder = group, os.path.abspath(os.environ.get("WANDB_DIR") or ".")
        self._run: Any = None

    def begin(self, run: str, known: str | None, parameters: dict[str, Any]) -> str:
        """Open a run under an id of our own, so that it can be opened again."""
        import wandb

        # Its description of the process would hold the command line, and with it what URIs there may hide.
        told = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            id=known or uuid4().hex[:12],
            resume="allow" if known and os.environ.get("WANDB_MODE") != "offline" else None,
            name=_named(run, self._group),
            group=self._group or None,
            dir=self._folder,
            config={key: redacted(value) if isinstance(value, str) else value for key, value in parameters.items()},
            settings=told,
        )
        for stage in ("refine", "distill"):  # W&B's own steps only rise, and each stage counts from 0
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/epoch")
        return self._run.id

    def epoch(self, line: Line) -> None:
        """The line's numbers, with its epoch as their axis."""
        self._run.log(figures(line, line["stage"]))

    def finish(self, summary: dict[str, Any], files: dict[str, bytes]) -> None:
        """The summary's numbers, and the files as one artifact."""
        import wandb

        self._run.summary.update(figures(summary, "outcome"))
        artifact = wandb.Artifact(f"run-{self._run.id}", "result")
        for name, content in files.items():
            with artifact.new_file(name, "wb") as file:
                file.write(content)
        self._run.log_artifact(artifact)

    def close(self, ended: bool) -> None:
        """A run that did not end has an exit code until it goes on."""
        self._run.finish(exit_code=0 if ended else 1)


def _named(run: str, group: str) -> str:
    return f"{group}/{run}" if group else run

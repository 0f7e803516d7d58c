"""Common to the benchmarks: a file of rows that a killed benchmark continues with, CPU time, one AdaPLR run, figures.

Everything runs in one process on one thread, so that the CPU seconds of a method are those of this process.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

from benchmarks.provenance import commit, environment
from benchmarks.tasks import short_hash
from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core import signs
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import RunFailed
from ray_adaplr.stages.adapt import RunPlan, Stage, adapt
from ray_adaplr.storage.models import load_model
from ray_adaplr.storage.run import Run

Row = dict[str, Any]
ENGINE = "local"


class Results:
    """The rows of a benchmark in one JSON file, a run a row, written after every run.

    A row is known by its key (such as task, method, seed) and by its settings; the commit has no part in it. Settings
    and environments stand once in the file, and rows name them by a short hash. Two processes may add to one file.

    Args:
        path: the file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content = self._read()

    @property
    def rows(self) -> list[Row]:
        """All rows."""
        return self._content["rows"]

    def find(self, key: Row, settings: Any) -> Row | None:
        """The row with this key, if it was made with these settings."""
        wanted = {**key, "settings": short_hash(settings)}
        return next((row for row in self.rows if wanted.items() <= row.items()), None)

    def add(self, key: Row, settings: Any, figures: Row) -> Row:
        """Put a row in place of any other with the same key, and write the file."""
        here = environment()
        row = {**key, "settings": short_hash(settings), "environment": short_hash(here), "commit": commit(), **figures}
        with _locked(self.path.parent):
            old = self._read()  # another process may have added rows since
            rows = [each for each in old["rows"] if not key.items() <= each.items()] + [row]
            environments = {**old["environments"], row["environment"]: here}
            all_settings = {**old["settings"], row["settings"]: settings}
            self._content = {
                "environments": {each["environment"]: environments[each["environment"]] for each in rows},
                "settings": {each["settings"]: all_settings[each["settings"]] for each in rows},
                "rows": rows,
            }
            scratch = self.path.with_suffix(".tmp")
            scratch.write_text(_readable(self._content))
            scratch.replace(self.path)
        return row

    def _read(self) -> dict[str, Any]:
        if self.path.exists():
            return json.loads(self.path.read_text())
        return {"environments": {}, "settings": {}, "rows": []}


class StageClock(Progress):
    """Takes the time at every step, so that the seconds end with the last epoch: no report, no evaluation."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = {}
        self.wall = 0.0
        self._begun = (time.process_time(), time.monotonic())
        super().__init__(quiet=True)

    def stage(self, name: str, total: int, done: int | None = 0) -> None:
        """Begin a stage."""
        self._stage = name
        super().stage(name, total, done)

    def step(self, done: int, **figures: str) -> None:
        """Note the time."""
        earlier = sum(seconds for stage, seconds in self.cpu.items() if stage != self._stage)
        self.cpu[self._stage] = time.process_time() - self._begun[0] - earlier
        self.wall = time.monotonic() - self._begun[1]


@dataclass(frozen=True)
class AdaplrRun:
    """What one run came to."""

    figures: Row
    metrics: list[Row]  # a line an epoch
    members: list[Classifier]
    target_model: Classifier | None  # None when there was nothing to train it on


def run_adaplr(
    source: Classifier,
    store: ImageStore,
    out: Path,
    config: Config,
    resume: bool = False,
    until: Stage = "distill",
    **guests: Any,
) -> AdaplrRun:
    """Run AdaPLR in this process and gather noise, high-confidence samples, seconds and warnings.

    With `resume` it continues in a folder where it was killed; what it had taken until then is not known. `guests` are
    fields of the plan: who they are and what they look at.
    """
    clock = StageClock()
    scaling = ScalingConfig(engine=ENGINE, checkpoint_every=int(resume))
    begun_before = resume and out.exists()
    failure: list[str] = []
    try:
        plan = RunPlan([source], store, str(out), config, scaling, **guests)
        adapt(plan, until=until, force=not resume, progress=clock)
    except RunFailed as error:  # no label above alpha: the refined labels are there, a target model is not
        failure = [f"No target model: {error}."]
    run = Run(str(out))
    inferred, table, metrics = run.read_inferred([source]), run.read_labels(), run.read_metrics()
    refined, sure = table["refined_label"].to_numpy(), table["high_confidence"].to_numpy()
    figures = {
        **noise_figures(store, inferred.labels, refined, sure),
        "start_noise": share_wrong(inferred.start_labels, store),
        "cpu_seconds": None if begun_before else sum(clock.cpu.values()),
        "cpu_seconds_by_stage": dict(clock.cpu),
        "wall_seconds": None if begun_before else clock.wall,
        "engine": ENGINE,
        "warnings": failure + inferred.warnings + signs.warnings(metrics),
        "remarks": inferred.remarks,
    }
    members = [load_model(out / f"ensemble/{k}", like=source) for k in range(config.n_e)]
    target = load_model(out / "target_model", like=source) if run.done("target_model/model.json") else None
    return AdaplrRun(figures, metrics, members, target)


def noise_figures(store: ImageStore, inferred: np.ndarray, refined: np.ndarray, sure: np.ndarray) -> Row:
    """Share of wrong labels before and after, and of the sure ones (bool [n]), by the target's ground truth."""
    return {
        "inferred_noise": share_wrong(inferred, store),
        "refined_noise": share_wrong(refined, store),
        "hcs_share": float(sure.mean()),
        "hcs_noise": share_wrong(refined, store, sure) if sure.any() else None,
    }


def share_wrong(labels: np.ndarray, store: ImageStore, of: np.ndarray | None = None) -> float:
    """Share of wrong labels, of all or of some (bool [n])."""
    wrong = labels != store.ground_truth()
    return float(wrong.mean() if of is None else wrong[of].mean())


def spread(values: Sequence[float | None], digits: int = 3) -> str:
    """Mean ± standard deviation as text; the mean alone of one value, a dash of none."""
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    text = f"{mean(known):.{digits}f}"
    return text if len(known) == 1 else f"{text} ± {stdev(known):.{digits}f}"


def _readable(content: dict[str, Any]) -> str:
    """JSON with a line for each row, setting and environment."""
    parts = [
        f' "{part}": {{\n'
        + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in content[part].items())
        + "\n }"
        for part in ("environments", "settings")
    ]
    rows = ",\n".join(f"  {json.dumps(row)}" for row in content["rows"])
    return "{\n" + ",\n".join([*parts, f' "rows": [\n{rows}\n ]']) + "\n}\n"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def table(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])

"""What is written and shown of each epoch of refinement, after every decision has been made.

Ground truth, where the store has some, is looked at here and in the final figures (`evaluate`, `summary`); what it
adds to a line is a diagnostic that nothing reads back.

MLflow or W&B are told in a thread of its own, so that a tracker that fails or hangs holds up nothing. The tracked run's
id is kept in the run's folder, so that a resumed run continues there.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.core import scores
from ray_adaplr.core.refine import RefineState, high_confidence
from ray_adaplr.core.signs import effective_classes
from ray_adaplr.data.progress import Progress
from ray_adaplr.errors import first_line
from ray_adaplr.report.tensorboard import BoardWriter
from ray_adaplr.stages.plan import RunPlan
from ray_adaplr.stages.refine import EpochOutcome
from ray_adaplr.storage.layout import CONFIG, LABELS, REPORT, SUMMARY, TENSORBOARD, TRACKED
from ray_adaplr.storage.metrics import Line, MetricsLog
from ray_adaplr.storage.run import Run
from ray_adaplr.storage.secrets import redacted

log = logging.getLogger(__name__)
Watch = Callable[[Line], None]  # gets each refining epoch's line of metrics.jsonl, once it is written
_SHOWN_CHANGES = 36  # relabelled images that TensorBoard gets per epoch
_LONGEST_END = 60.0  # seconds that the end of a run waits for what the tracker has not taken yet
_LONGEST_STOP = 10.0  # the same after Ctrl-C or a failure


def nobody(line: Line) -> None:
    """In the place of whoever might be told of a line and is not there."""


class Tracker(Protocol):
    """Shows a run elsewhere, as MLflow and W&B do; `Tracked` calls it, and survives whatever it raises."""

    name: str  # what --track calls it

    def begin(self, run: str, known: str | None, parameters: dict[str, Any]) -> str:
        """Open a tracked run with these parameters, or continue with the `known` one; returns the id to know it by."""

    def epoch(self, line: Line) -> None:
        """Take a line of metrics.jsonl."""

    def finish(self, summary: dict[str, Any], files: dict[str, bytes]) -> None:
        """Take the figures of the whole run, and its files."""

    def close(self, ended: bool) -> None:
        """Close the tracked run; `ended` is False for one that was stopped or failed, and may continue later."""


@dataclass(frozen=True)
class Audience:
    """Who is told how a run goes."""

    progress: Progress
    watch: Watch = nobody
    track: Watch = nobody  # gets the lines of all stages


class EpochListeners:
    """All who hear of an epoch: metrics.jsonl, TensorBoard, the line of progress, and the caller.

    Called with an epoch's outcome it returns the epoch's line. As a context it closes what it opened.
    """

    def __init__(self, plan: RunPlan, run: Run, audience: Audience, state: RefineState, shares: Tensor) -> None:
        self._plan, self._audience, self._state = plan, audience, state
        self._recorder = EpochRecorder(plan.config, shares, plan.store.ground_truth())
        self._log = MetricsLog(run.folder, state.unwritten)
        self._board = None
        if run.folder.is_local:  # TensorBoard's writer writes to local folders only
            self._board = BoardWriter(run.folder.path(TENSORBOARD), state.epoch)
        if state.epoch:
            audience.progress.say(f"resuming after epoch {state.epoch}")
        audience.progress.stage("refine", plan.config.epochs, state.epoch)

    def __call__(self, outcome: EpochOutcome) -> Line:
        """Tell everybody, the file first."""
        line = self._recorder.line(outcome)
        self._log.append(line)
        self._audience.watch(line)
        self._audience.track(line)
        if self._board:
            changed = np.flatnonzero((outcome.labels != outcome.before).numpy())[:_SHOWN_CHANGES]
            images = self._plan.store.read(changed) if len(changed) else None
            self._board.epoch(line, outcome.confidence.numpy(), images)
        self._audience.progress.step(
            outcome.epoch + 1,
            gamma=f"{line['gamma']:.3f}",
            reassigned=f"{line['reassigned']:.2%}",
            images_per_s=f"{line['images_per_s']:,.0f}",
        )
        return line

    def __enter__(self) -> "EpochListeners":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._board:
            self._board.close()
        if error is not None:
            return
        self._log.close()
        if self._state.stopped:
            self._audience.progress.say(f"stopped early: {self._state.stopped}")


class EpochRecorder:
    """Turns an epoch's outcome into its line of metrics.jsonl.

    Shifts are measured from the class shares that refinement starts with, [C].
    """

    def __init__(self, config: Config, first_shares: Tensor, truth: np.ndarray | None) -> None:
        self._config, self._first_shares = config, first_shares
        self._truth = None if truth is None else torch.from_numpy(np.array(truth))
        self._clock = time.monotonic()

    def line(self, outcome: EpochOutcome) -> Line:
        """The figures of one epoch, ready for JSON."""
        now = time.monotonic()
        seconds, self._clock = now - self._clock, now
        labels, probs = outcome.labels, outcome.probs
        shares = scores.class_shares(labels, len(self._first_shares)).tolist()
        sure = high_confidence(outcome.confidence, self._config.alpha)
        line: Line = {
            "stage": "refine",
            "epoch": outcome.epoch,
            "gamma": outcome.gamma,
            "hcs": sure.float().mean().item(),
            "reassigned": scores.share_different(labels, outcome.before),
            "agreement": scores.agreement(outcome.predictions, probs),
            **scores.label_free(probs),
            "class_shift": scores.class_shift(labels, self._first_shares),
            "min_class_share": min(shares),
            "effective_classes": effective_classes(shares),
            "collapsed": outcome.collapsed,
            "members": len(outcome.predictions),
            "confidence_histogram": scores.confidence_histogram(outcome.confidence),
            "seconds": seconds,
            "images_per_s": len(labels) * len(outcome.predictions) / max(seconds, 1e-9),
        }
        if self._truth is not None:
            wrong = outcome.before != self._truth
            line["noise"] = scores.share_different(labels, self._truth)
            line["hcs_noise"] = wrong[sure].float().mean().item() if sure.any() else None
            line["confidence_histogram_noisy"] = scores.confidence_histogram(outcome.confidence[wrong])
        return line


class Tracked:
    """Tells a tracker of a run, with the plan's settings as parameters; as a context it gives what takes a line."""

    def __init__(self, tracker: Tracker, plan: RunPlan, run: Run) -> None:
        self._tracker, self._plan, self._run = tracker, plan, run
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        self._calls.put(self._begin)
        return lambda line: self._calls.put(lambda: self._tracker.epoch(line))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._calls.put(self._finish)
        self._calls.put(lambda: self._tracker.close(error is None))
        self._calls.put(None)
        self._thread.join(_LONGEST_END if error is None else _LONGEST_STOP)
        if self._thread.is_alive():
            self._give_up("it does not answer")

    def _work(self) -> None:
        while call := self._calls.get():
            try:
                if not self._lost.is_set():
                    call()
            except Exception as error:  # whatever a tracker's package raises
                self._give_up(first_line(error))

    def _give_up(self, why: str) -> None:
        """Say once that the run continues without its tracker."""
        if not self._lost.is_set():
            self._lost.set()
            log.warning("--track %s is given up, the run is not: %s", self._tracker.name, redacted(why))

    def _begin(self) -> None:
        name, folder = self._tracker.name, self._run.folder
        known: dict[str, str] = folder.read_json(TRACKED) if folder.exists(TRACKED) else {}
        origin = self._plan.origin()
        about: dict[str, Any] = {key: ", ".join(origin[key]) for key in ("source", "target")}
        about |= {"num_images": len(self._plan.store), "num_classes": origin["num_classes"]}
        parameters = {**self._plan.config.model_dump(), **about}
        found = self._tracker.begin(self._run.name, known.get(name), parameters)
        if found != known.get(name) and not self._lost.is_set():
            folder.write_json(TRACKED, {**known, name: found})

    def _finish(self) -> None:
        run = self._run
        summary = run.folder.read_json(SUMMARY) if run.done(SUMMARY) else {}
        files = {name: run.folder.read(name) for name in (REPORT, LABELS, CONFIG, SUMMARY) if run.done(name)}
        self._tracker.finish(summary, files)

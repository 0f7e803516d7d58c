"""A run as MLflow or W&B is told of it: in a thread of its own, so that a tracker that fails or hangs holds up nothing.

The tracked run's id lies in the run's folder, so that a resumed run goes on with it.
"""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Any

from ray_adaplr.errors import first_line
from ray_adaplr.stages.plan import RunPlan
from ray_adaplr.stages.record import Tracker
from ray_adaplr.storage.layout import CONFIG, LABELS, REPORT, SUMMARY, TRACKED
from ray_adaplr.storage.metrics import Line
from ray_adaplr.storage.run import Run
from ray_adaplr.storage.secrets import redacted

log = logging.getLogger(__name__)
_LONGEST_END = 60.0  # seconds that the end of a run waits for what the tracker has not taken yet
_LONGEST_STOP = 10.0  # the same after Ctrl-C or a failure


class Tracked:
    """Tells a tracker of a run, as a context; without a tracker it does nothing.

    Args:
        tracker: who is told.
        plan: what is run; its settings are the tracked run's parameters.
        run: its folder.
    """

    def __init__(self, tracker: Tracker | None, plan: RunPlan, run: Run) -> None:
        self._tracker, self._plan, self._run = tracker, plan, run
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lost = threading.Event()
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)

    def __enter__(self) -> "Tracked":
        if self._tracker:
            self._thread.start()
            self._calls.put(self._begin)
        return self

    def epoch(self, line: Line) -> None:
        """Tell of an epoch."""
        if tracker := self._tracker:
            self._calls.put(lambda: tracker.epoch(line))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not (tracker := self._tracker):
            return
        if error is None:
            self._calls.put(self._finish)
        self._calls.put(lambda: tracker.close(error is None))
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
        """Say once that the run goes on without its tracker."""
        if self._tracker and not self._lost.is_set():
            self._lost.set()
            log.warning("--track %s is given up, the run is not: %s", self._tracker.name, redacted(why))

    def _begin(self) -> None:
        assert self._tracker
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
        assert self._tracker
        run = self._run
        summary = run.folder.read_json(SUMMARY) if run.done(SUMMARY) else {}
        files = {name: run.folder.read(name) for name in (REPORT, LABELS, CONFIG, SUMMARY) if run.done(name)}
        self._tracker.finish(summary, files)

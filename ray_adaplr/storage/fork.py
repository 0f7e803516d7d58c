"""A fork: a run that continues from another one's labels or checkpoints, under settings of its own."""

import contextlib
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from typing import Any

from ray_adaplr.config import Config
from ray_adaplr.errors import InputError
from ray_adaplr.storage import layout
from ray_adaplr.storage.run import GIVEN, Run

_SHAPES = ("n_e", "n_a", "zero_fill", "average")  # what the files of a checkpoint depend on
_JUDGED_BY = ("warmup", "probabilities")  # what the best epoch with stop = "auto" depends on
_CHECKPOINTED = (layout.INFERRED, layout.START_MODELS, layout.METRICS, layout.CHECKPOINTS)
_LABELLED = (layout.METRICS, layout.LABELS, layout.LABELS_CSV, layout.ENSEMBLE)


@dataclass(frozen=True)
class Fork:
    """What an earlier run leaves to one under other settings."""

    earlier: Run
    before: Config  # the earlier run's settings
    config: Config  # those to continue under
    origin: dict[str, Any]  # what the new run's run.json is to hold

    @classmethod
    def of(cls, earlier: str, config: Config, origin: dict[str, Any]) -> "Fork":
        """The fork of a run's folder; InputError where there are no first labels to continue from."""
        run = Run(earlier)
        if not run.done(layout.CONFIG):
            raise InputError(f"--fork {earlier}: there is no run in that folder")
        if not run.done(layout.INFERRED):
            raise InputError(
                f"--fork {earlier}: that run has no {layout.INFERRED} to continue from; continue it until it has, or "
                "start a run without --fork"
            )
        before = run.read_config()
        return cls(run, before, config.as_decided(before), origin)

    def check(self, out: Run) -> str:
        """Refuse an earlier run that `out` cannot continue from; changes nothing.

        Returns a sentence where it has ended and less of it can be taken over than the user may think.
        """
        if self.earlier.folder.is_same(out.folder):  # with --force, the run would be removed before it is copied
            raise InputError(f"--fork {self._place}: that is --out itself; continue in another --out")
        self._refuse_another_task()
        of_infer = Config.read_by("infer") - Config.read_by("refine") - Config.read_by("distill")
        if late := [words for name, words in self._changed.items() if name in of_infer]:
            raise InputError(f"--fork cannot change {'; '.join(late)}: the labels to start from are there already")
        self._refuse_what_checkpoints_fix()
        self._refuse_idle()
        taken = self.taken_over()
        if layout.METRICS in taken or not self.earlier.done(layout.LABELS) or out.done(layout.CONFIG):
            return ""
        return f"{self._place} has ended and kept no checkpoints: refinement starts again from its inferred labels"

    def taken_over(self) -> tuple[str, ...]:
        """The files to copy: the checkpoints and what they need; of a run that kept none, the labels if they stay."""
        if self._epochs:
            return _CHECKPOINTED
        remade = self._changed.keys() & (Config.read_by("infer") | Config.read_by("refine"))
        stay = self.earlier.done(layout.LABELS) and not remade and self.config.stop != "auto"
        return (layout.INFERRED, layout.START_MODELS, *(_LABELLED if stay else ()))

    def copy_into(self, out: Run) -> None:
        """Give the new run what it takes over."""
        for name in self.taken_over():
            self.earlier.folder.copy(name, out.folder)
        out.folder.delete(f"{layout.CHECKPOINTS}/distill.pt")  # of a target model under the earlier settings
        out.inherit(self.earlier)

    @property
    def _place(self) -> str:
        return self.earlier.folder.uri

    @cached_property
    def _changed(self) -> dict[str, str]:
        changed = self.before.differences(self.config)
        if self.earlier.origin().get("prior_shares") != self.origin["prior_shares"]:
            changed.setdefault("prior", "prior: other shares in its file")
        return changed

    @cached_property
    def _checkpoint(self) -> dict[str, Any]:
        """The manifest of the newest checkpoint that can be read; empty without one."""
        folder = self.earlier.folder / layout.CHECKPOINTS
        for name in reversed([name for name in folder.names() if fnmatch(name, layout.MANIFESTS)]):
            with contextlib.suppress(ValueError):
                return folder.read_json(name)
        return {}

    @property
    def _epochs(self) -> int:
        """How many epochs of refinement the newest checkpoint has behind it; 0 without one."""
        return self._checkpoint.get("epoch", -1) + 1

    def _refuse_another_task(self) -> None:
        theirs, origin = self.earlier.known_origin(), self.origin
        if theirs.get("target_fingerprint") != origin["target_fingerprint"]:
            images = ", ".join(theirs.get("target", []))
            raise InputError(f"--fork {self._place}: that run is of other images ({images})")
        if theirs.get("source_fingerprint") != origin["source_fingerprint"]:
            raise InputError(f"--fork {self._place}: it is of another source model; its labels would be the other's")
        if theirs.get("classes") != origin["classes"]:
            raise InputError(f"--fork {self._place}: that run is of other class names; start a run without --fork")
        for key, option in GIVEN.items():
            if origin[key] not in ("", theirs.get(key)):
                raise InputError(f"--fork continues from labels that are there; give {option} to a run of its own")

    def _refuse_what_checkpoints_fix(self) -> None:
        if not self._epochs:
            return
        if fixed := [name for name in _SHAPES if name in self._changed]:
            raise InputError(f"--fork cannot change {', '.join(fixed)}: the checkpoints hold the members as they are")
        if self.config.stop != "auto":
            return
        if self.before.stop != "auto":
            raise InputError("--fork cannot change stop to auto: the epochs in the checkpoints were not judged")
        if judged_by := [name for name in _JUDGED_BY if name in self._changed]:
            raise InputError(
                f"--fork cannot change {', '.join(judged_by)} with stop=auto: the best epoch in the checkpoints was "
                "kept by the earlier value; set stop=epochs, or start a run of its own"
            )

    def _refuse_idle(self) -> None:
        """New settings of refinement under which no epoch would run."""
        refining = Config.read_by("refine") - {"probabilities"}  # which are written after the last epoch
        idle = [words for name, words in self._changed.items() if name in refining]
        all_ran = self._epochs >= self.config.epochs
        ended = self._checkpoint.get("stopped") and self.config.ends_by(self._checkpoint.get("stopped_by", ""))
        if self._epochs and idle and (all_ran or ended):
            way_out = f"set epochs above {self._epochs}" if all_ran else "set on_harm=off and stop=epochs"
            raise InputError(
                f"--fork {self._place} has run {self._epochs} epochs and ended, and none would run under "
                f"{'; '.join(idle)}; {way_out}, or start a run without --fork"
            )

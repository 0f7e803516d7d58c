"""The loop itself, with members that answer at once."""

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ray_adaplr.config import Config
from ray_adaplr.stages.refine import EpochOutcome, Rules, new_state, refine


class ReadOnlyMembers:
    """Answers as Ray hands them over: arrays in shared memory, which cannot be written."""

    def start(self, epoch: int, labels: np.ndarray, snapshot: bool) -> None:
        self._logits = np.eye(3, dtype=np.float32)[(labels + epoch) % 3]
        self._logits.setflags(write=False)

    def collect(self) -> dict[int, np.ndarray]:
        return {0: self._logits, 1: self._logits}


def test_answers_that_cannot_be_written_are_averaged_without_a_warning() -> None:
    checkpoints: Any = SimpleNamespace(due=lambda epoch, last: False)
    for average in ("logits", "probabilities"):
        config = Config(epochs=1, n_e=2, average=average).resolve(3)
        state, members = new_state(np.arange(6) % 3, 3, config), ReadOnlyMembers()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.set_warn_always(True)  # it warns once per process otherwise
            refine(members, state, Rules(config, torch.full((3,), 1 / 3)), checkpoints, lambda outcome: {})  # type: ignore[arg-type]
            torch.set_warn_always(False)
        assert state.epoch == 1


@pytest.mark.parametrize("weights", [(1, 0.5), (2, 1), (0.3, 0.1)])
def test_weighted_members_average_to_probabilities_that_sum_to_one(weights: tuple[float, float]) -> None:
    checkpoints: Any = SimpleNamespace(due=lambda epoch, last: False)
    config = Config(epochs=2, n_e=2, average="probabilities", member_weights=weights).resolve(3)
    state, seen = new_state(np.arange(6) % 3, 3, config), list[EpochOutcome]()
    rules = Rules(config, torch.full((3,), 1 / 3))
    refine(ReadOnlyMembers(), state, rules, checkpoints, lambda outcome: seen.append(outcome) or {})  # type: ignore
    assert len(seen) == 2
    for outcome in seen:
        torch.testing.assert_close(outcome.probs.sum(1), torch.ones(6), rtol=0, atol=2e-3)  # kept as float16


@pytest.mark.parametrize(
    ("stopped_by", "changes", "epochs"),
    [
        ("harm", {"on_harm": "stop"}, 0),
        ("harm", {"on_harm": "off"}, 2),
        ("score", {"on_harm": "stop"}, 2),
        ("score", {"stop": "auto"}, 0),
    ],
)
def test_an_early_end_holds_as_long_as_the_settings_ask_for_it(stopped_by: Any, changes: Any, epochs: int) -> None:
    checkpoints: Any = SimpleNamespace(due=lambda epoch, last: False)
    config = Config(epochs=2, n_e=2, **changes).resolve(3)
    state, members = new_state(np.arange(6) % 3, 3, config), ReadOnlyMembers()
    state.stopped, state.stopped_by = "it ended early", stopped_by
    refine(members, state, Rules(config, torch.full((3,), 1 / 3)), checkpoints, lambda outcome: {})  # type: ignore[arg-type]
    assert state.epoch == epochs

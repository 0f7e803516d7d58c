"""The method: a loop that reads like section 3 of the paper.

Members train on what images are not; their mean prediction decides which labels to change. Ground truth does not enter;
whoever has some looks at the epochs from outside.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.core.refine import (
    LogitHistory,
    RefineState,
    class_gammas,
    confidence_of,
    correct_prior,
    ensemble_logits,
    gamma_of,
    reassign,
)
from ray_adaplr.core.scores import DEFAULT_SCORE, best_epoch, class_shares, stalled
from ray_adaplr.core.signs import class_collapse
from ray_adaplr.engine.checkpoint import Checkpoints
from ray_adaplr.engine.ensemble import Ensemble

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rules:
    """What decides about labels in every epoch."""

    config: Config  # resolved
    inferred_shares: Tensor  # class shares of the labels that refinement starts from, [C]; collapse is seen by them
    prior: Tensor | None = None  # expected class shares [C] for the prior guard
    fixed: Tensor | None = None  # labels that stay whatever the members say, bool [n]
    guarded: bool = True  # the prior guard is on from the start, and not only after an alarm
    start_probs: Tensor | None = None  # soft labels to start from, half of all later ones, [n, C]

    def soft_labels(self, history: LogitHistory) -> Tensor:
        """The members' moving average as probabilities [n, C] (equation 6), and what they started from beside it."""
        probs = history.average() if self.config.average == "probabilities" else history.probabilities()
        return probs if self.start_probs is None else (probs + self.start_probs) / 2

    def reassigned(self, state: RefineState, probs: Tensor, confidence: Tensor, gamma: float) -> Tensor:
        """The labels after this epoch's vote, int64 [n] (equation 8, with the guards that are on)."""
        labels, config, num_classes = state.labels, self.config, len(self.inferred_shares)
        if state.epoch < config.warmup:
            return labels
        per_class = config.gamma_per_class or state.guarded
        threshold = class_gammas(confidence, labels, config.alpha, num_classes) if per_class else gamma
        expected = self.prior if self.guarded or state.guarded else None
        candidates = probs if expected is None else correct_prior(probs, expected, config.prior_strength)
        new = reassign(labels, candidates, confidence, threshold)
        return new if self.fixed is None else torch.where(self.fixed, labels, new)


@dataclass(frozen=True)
class EpochOutcome:
    """What an epoch of refinement came to, for those who watch."""

    epoch: int
    before: Tensor  # labels the members trained on, int64 [n]
    labels: Tensor  # labels after reassignment, int64 [n]
    probs: Tensor  # moving-average ensemble probabilities, float32 [n, C]
    confidence: Tensor  # of `before`, float32 [n]
    gamma: float
    predictions: dict[int, Tensor]  # each member's own, int64 [n]
    collapsed: list[int]  # classes that are dying out in `labels`


def new_state(labels: np.ndarray, num_classes: int, config: Config) -> RefineState:
    """The state before the first epoch."""
    return RefineState(
        epoch=0,
        labels=torch.from_numpy(labels.astype(np.int64)),
        last_changed=torch.full((len(labels),), -1, dtype=torch.int32),
        history=LogitHistory(len(labels), num_classes, config.n_a, zero_fill=config.zero_fill),
        healthy_labels=torch.from_numpy(labels.astype(np.int64)),
    )


def refine(
    ensemble: Ensemble,
    state: RefineState,
    rules: Rules,
    checkpoints: Checkpoints,
    on_epoch: Callable[[EpochOutcome], dict[str, Any]],
) -> None:
    """Refine the labels in `state` until the last epoch, or until a sign of harm or a stalled score ends it.

    An epoch's figures are drawn up, and its checkpoint becomes whole after them, while the members train the next one.
    The state is changed in place; `on_epoch` sees each outcome and returns the epoch's line for metrics.jsonl.
    """
    config, judges = rules.config, rules.config.stop == "auto"
    if not config.ends_by(state.stopped_by):  # a fork may change that
        state.stopped = state.stopped_by = ""

    left: list[Callable[[], object]] = []  # what is left to do of the last epoch, while the next one trains
    while state.epoch < config.epochs and not state.stopped:
        epoch, labels = state.epoch, state.labels
        due = checkpoints.due(epoch, last=epoch == config.epochs - 1)

        ensemble.start(epoch, labels.numpy(), snapshot=due)  # same batches, own augmentations, own residual labels
        _do(left)
        members = ensemble.collect()

        state.history.push(_vote(members, config))
        probs = rules.soft_labels(state.history)
        confidence = confidence_of(labels, probs)
        gamma = gamma_of(confidence, config.alpha)
        state.labels = rules.reassigned(state, probs, confidence, gamma)

        collapsed = _act_on_collapse(state, config, rules.inferred_shares)
        state.last_changed[state.labels != labels] = epoch
        state.epoch = epoch + 1
        own = {k: torch.from_numpy(logits.argmax(1)) for k, logits in members.items()}
        outcome = EpochOutcome(epoch, labels, state.labels, probs, confidence, gamma, own, collapsed)
        if judges:  # whether there is a next epoch depends on the figures
            _judge(state, config, on_epoch(outcome), probs)
        left = [] if judges else [partial(on_epoch, outcome)]
        if due:
            left.append(partial(checkpoints.write, state, ensemble.save(epoch)))
    _do(left)


def _do(things: list[Callable[[], object]]) -> None:
    for thing in things:
        thing()


def _vote(members: dict[int, np.ndarray], config: Config) -> Tensor:
    """The members' logits, or probabilities, as one, [n, C]."""
    votes, weights = list(members.values()), None
    if config.member_weights:
        weights = [config.member_weights[k] for k in members]
    if config.average == "probabilities":
        votes = [torch.tensor(logits).softmax(1).numpy() for logits in votes]  # Ray gives arrays to read only
        if weights:  # of mean one, so that the probabilities of a sample sum to one
            weights = [len(weights) * weight / sum(weights) for weight in weights]
    return ensemble_logits(votes, weights)


def _judge(state: RefineState, config: Config, line: dict[str, Any], probs: Tensor) -> None:
    """Keep the labels of the best epoch by a label-free score, and end when the score has stalled."""
    state.judged.append({name: line[name] for name in ("epoch", DEFAULT_SCORE, "reassigned")})
    if best_epoch(state.judged, config.warmup) == state.epoch - 1:
        state.best_labels, state.best_confidence = state.labels, confidence_of(state.labels, probs)
        state.best_probabilities = probs.half() if config.probabilities else None
    if not state.stopped and (why := stalled(state.judged, config.warmup, probs.shape[1])):
        state.stopped, state.stopped_by = why, "score"


def _act_on_collapse(state: RefineState, config: Config, inferred_shares: Tensor) -> list[int]:
    """Act on the clearest label-free sign of harm, a class that dies out; returns the dying classes.

    The labels go back to the last healthy ones, and the class guard goes on; where it is on already or not wanted,
    refinement ends.
    """
    shares = class_shares(state.labels, len(inferred_shares)).tolist()
    collapsed = class_collapse(shares, inferred_shares.tolist(), config.collapse_share)
    if not collapsed:
        state.healthy_labels = state.labels
    elif config.on_harm != "off":
        state.labels = state.healthy_labels
        if config.on_harm == "guard" and not (state.guarded or config.gamma_per_class):
            state.guarded = True
            told = "epoch %d: classes %s were dying out; went back and guard each class"
            log.warning(told, state.epoch + 1, collapsed)
        else:
            dying = ", ".join(map(str, collapsed))
            end = f"classes {dying} were dying out in epoch {state.epoch + 1}; the labels are those from before"
            state.stopped, state.stopped_by = end, "harm"
    return collapsed

"""The method: a loop that reads like section 3 of the paper. Members train on what images are not; their averaged
vote decides which labels to change. Ground truth does not enter; whoever has some looks at the epochs from outside.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.core.refine import (
    LogitHistory,
    class_gammas,
    confidence_of,
    correct_prior,
    ensemble_logits,
    gamma_of,
    reassign,
)
from ray_adaplr.engine.checkpoint import Checkpoints, RefineState
from ray_adaplr.engine.ensemble import Ensemble


@dataclass(frozen=True)
class EpochOutcome:
    """What an epoch of refinement came to, for those who watch."""

    epoch: int
    before: Tensor  # labels the members trained on, int64 [n]
    labels: Tensor  # labels after reassignment, int64 [n]
    probs: Tensor  # moving-average ensemble probabilities, float32 [n, C]
    confidence: Tensor  # of `before`, float32 [n]
    gamma: float
    votes: dict[int, Tensor]  # each member's own prediction, int64 [n]


def new_state(labels: np.ndarray, num_classes: int, config: Config) -> RefineState:
    """The state before the first epoch."""
    dtype = getattr(torch, config.history_dtype)
    return RefineState(
        epoch=0,
        labels=torch.from_numpy(labels.astype(np.int64)),
        last_changed=torch.full((len(labels),), -1, dtype=torch.int32),
        history=LogitHistory(len(labels), num_classes, config.n_a, dtype, config.zero_fill),
        metrics=[],
    )


def refine(
    ensemble: Ensemble,
    state: RefineState,
    config: Config,
    prior: Tensor | None,
    checkpoints: Checkpoints,
    on_epoch: Callable[[EpochOutcome], dict],
) -> None:
    """Refine the labels in `state` until `config.epochs`, a checkpoint an epoch.

    Args:
        ensemble: the members.
        state: where to start; changed in place.
        prior: expected class shares [C] for the guard, or None.
        checkpoints: where the state after each epoch goes.
        on_epoch: sees each outcome and returns the epoch's line for metrics.jsonl.
    """
    while state.epoch < config.epochs:
        epoch, labels = state.epoch, state.labels
        due = checkpoints.due(epoch, last=epoch == config.epochs - 1)

        ensemble.start(epoch, labels.numpy(), snapshot=due)  # same batches, own augmentations, own residual labels
        checkpoints.commit()  # the last epoch's checkpoint becomes whole while the members train
        members = ensemble.collect()

        weights = [config.member_weights[k] for k in members] if config.member_weights else None
        state.history.push(ensemble_logits(list(members.values()), weights))
        probs = state.history.probabilities()
        confidence = confidence_of(labels, probs)
        gamma = gamma_of(confidence, config.alpha)
        if epoch >= config.warmup:
            num_classes = probs.shape[1]
            threshold = class_gammas(confidence, labels, config.alpha, num_classes) if config.gamma_per_class else gamma
            candidates = probs if prior is None else correct_prior(probs, prior, config.prior_strength)
            state.labels = reassign(labels, candidates, confidence, threshold)
            state.last_changed[state.labels != labels] = epoch

        state.epoch = epoch + 1
        votes = {k: torch.from_numpy(logits.argmax(1)) for k, logits in members.items()}
        state.metrics.append(on_epoch(EpochOutcome(epoch, labels, state.labels, probs, confidence, gamma, votes)))
        if due:
            checkpoints.begin(state, ensemble.save(epoch))
    checkpoints.commit()

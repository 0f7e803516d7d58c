"""`stop = "auto"`: which labels and which model to ship, chosen by the same label-free score that stops refinement."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.core.devices import usable_device
from ray_adaplr.core.learner import predict_logits
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.refine import RefineState
from ray_adaplr.core.scores import DEFAULT_SCORE, label_free
from ray_adaplr.core.stopping import best_epoch
from ray_adaplr.data.store import ImageStore
from ray_adaplr.storage.layout import ENSEMBLE


def ship_best_labels(state: RefineState, warmup: int, start_labels: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Put the best epoch's labels in the place of the last ones; returns their confidence [n], and what was chosen.

    Args:
        state: at the end of refinement, with the best epoch's labels kept; changed in place.
        warmup: epochs that do not count.
        start_labels: what refinement began with, [n].
    """
    assert state.best_labels is not None
    assert state.best_confidence is not None
    best, last = best_epoch(state.judged, warmup), state.epoch - 1
    scores = {line["epoch"]: line[DEFAULT_SCORE] for line in state.judged}
    why = f"{DEFAULT_SCORE} is best there"
    if best != last:
        why = f"{DEFAULT_SCORE} is {scores[best]:.3f} there and {scores[last]:.3f} in the last epoch, {last}"
    later = state.last_changed > best  # whether and when they had changed before is known no more
    touched = torch.where(state.best_labels != start_labels, best, -1).int()
    state.last_changed = torch.where(later, touched, state.last_changed)
    state.labels = state.best_labels
    stop = state.stopped or f"all {state.epoch} epochs were run"
    return state.best_confidence, {"stop": stop, "labels": f"epoch {best}", "why_labels": why}


def score_models(models: dict[str, Classifier], store_paths: list[str], device: str) -> Iterator[dict[str, float]]:
    """The score of each model on the clean target images, and of `ensemble`, the members' summed logits."""
    store, device = ImageStore.open(*store_paths), usable_device(device)
    logits = {
        name: torch.from_numpy(predict_logits(model, store.read, np.arange(len(store)), device))
        for name, model in models.items()
    }
    members = [value for name, value in logits.items() if name.startswith(f"{ENSEMBLE}/")]
    if len(members) > 1:
        logits[ENSEMBLE] = torch.stack(members).mean(0)
    yield {name: label_free(value.softmax(1))[DEFAULT_SCORE] for name, value in logits.items()}


def choose_model(scores: dict[str, float]) -> dict[str, Any]:
    """The model with the best score; a tie goes to the first, the target model, which is one network."""
    chosen = max(scores, key=lambda name: scores[name])
    others = ", ".join(f"{name} {score:.3f}" for name, score in scores.items() if name != chosen)
    why = f"it has the best {DEFAULT_SCORE} on the target images, {scores[chosen]:.3f} ({others})"
    return {"model": chosen, "why_model": why, "scores": scores}

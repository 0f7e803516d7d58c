"""The target model: one network, trained in the plain way on what refinement is sure of (paper, end of section 3.2)."""

import copy

import numpy as np
import torch

from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.refine import high_confidence
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import RunFailed
from ray_adaplr.stages.supervised import Lesson


def distill_lesson(store: ImageStore, labels: np.ndarray, confidence: np.ndarray, config: Config) -> Lesson:
    """Which refined labels to learn from: the high-confidence ones, all, or all weighted by confidence."""
    samples = np.arange(len(labels))
    if config.distill_on == "hcs":
        samples = samples[high_confidence(torch.from_numpy(confidence), config.alpha).numpy()]
        if len(samples) < 2:
            raise RunFailed(
                f"only {len(samples)} of {len(labels)} labels are above alpha={config.alpha}: nothing to train the "
                "target model on; use more epochs, a lower alpha, or distill_on=all"
            )
    return Lesson(tuple(store.paths), labels, samples, confidence if config.distill_on == "weighted" else None)


def distill_start(source: Classifier, members: dict[int, Classifier], config: Config) -> Classifier:
    """Where the target model starts: the source model, the average of the members' weights, or one member.

    That member is the one with the lowest number among those that were not lost; no score chooses it.
    """
    if config.distill_start == "source":
        return copy.deepcopy(source)
    first = members[min(members)]
    if config.distill_start == "member":
        return first
    average = copy.deepcopy(first)
    states = [member.state_dict() for member in members.values()]
    average.load_state_dict(
        {
            name: torch.stack([state[name].float() for state in states]).mean(0).to(tensor.dtype)
            for name, tensor in states[0].items()
        }
    )
    return average

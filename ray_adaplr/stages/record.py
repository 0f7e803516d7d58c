"""What is written of each epoch. Ground truth enters the project here, for figures only, after every decision."""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.core import scores
from ray_adaplr.stages.refine import EpochOutcome


class EpochRecorder:
    """Turns an epoch's outcome into its line of metrics.jsonl.

    Args:
        config: the run's settings.
        first_shares: class shares of the labels that refinement starts from, [C].
        truth: ground truth where the store has it: adds diagnostics, changes nothing else.
    """

    def __init__(self, config: Config, first_shares: Tensor, truth: np.ndarray | None) -> None:
        self._config, self._first_shares = config, first_shares
        self._truth = None if truth is None else torch.from_numpy(np.array(truth))
        self._clock = time.monotonic()

    def line(self, outcome: EpochOutcome) -> dict[str, Any]:
        """The figures of one epoch, ready for JSON."""
        now = time.monotonic()
        seconds, self._clock = now - self._clock, now
        labels, probs = outcome.labels, outcome.probs
        shares = scores.class_shares(labels, len(self._first_shares)).tolist()
        sure = outcome.confidence > self._config.alpha
        line: dict[str, Any] = {
            "stage": "refine",
            "epoch": outcome.epoch,
            "gamma": outcome.gamma,
            "hcs": sure.float().mean().item(),
            "reassigned": scores.noise(labels, outcome.before),
            "agreement": scores.agreement(outcome.votes, probs),
            **scores.label_free(probs),
            "class_shift": scores.class_shift(labels, self._first_shares),
            "min_class_share": min(shares),
            "collapsed": outcome.collapsed,
            "members": len(outcome.votes),
            "confidence_histogram": scores.confidence_histogram(outcome.confidence),
            "seconds": seconds,
            "images_per_s": len(labels) * len(outcome.votes) / max(seconds, 1e-9),
        }
        if self._truth is not None:
            wrong = outcome.before != self._truth
            line["noise"] = scores.noise(labels, self._truth)
            line["hcs_noise"] = wrong[sure].float().mean().item() if sure.any() else None
            line["confidence_histogram_noisy"] = scores.confidence_histogram(outcome.confidence[wrong])
        return line

"""The class shares that the prior guard expects of the target."""

import numpy as np
import torch
from torch import Tensor

from ray_adaplr.config import Config
from ray_adaplr.errors import InputError


def class_prior(config: Config, inferred_shares: Tensor) -> Tensor | None:
    """Expected class shares, [C], or None when the guard is off.

    Args:
        config: `prior` is uniform, inferred, off, or a file with one number per class.
        inferred_shares: class shares of the labels that refinement starts from, [C].

    Raises:
        InputError: when a prior file is missing or does not hold one share for each class.
    """
    num_classes = len(inferred_shares)
    if config.prior == "off" or config.prior_strength == 0:
        return None
    if config.prior == "uniform":
        return torch.full((num_classes,), 1 / num_classes)
    if config.prior == "inferred":
        return inferred_shares.clamp_min(1e-3)
    try:
        shares = torch.from_numpy(np.loadtxt(config.prior, dtype=np.float32, ndmin=1))
    except (OSError, ValueError) as error:
        raise InputError(
            f"prior={config.prior}: not uniform, inferred or off, nor a file of {num_classes} numbers"
        ) from error
    if shares.shape != (num_classes,) or not (shares > 0).all() or not shares.isfinite().all():
        held = " x ".join(map(str, shares.shape))
        raise InputError(f"prior={config.prior} holds {held} numbers; it needs {num_classes} positive, finite ones")
    return shares / shares.sum()

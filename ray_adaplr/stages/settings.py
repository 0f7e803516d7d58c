"""Settings as a run takes them: what the user left open follows network and images, and all of it is checked."""

import torch

from ray_adaplr.config import PRESETS, Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.prior import class_prior

LARGE_NETWORK = 1_000_000  # weights; the smallest that are pretrained on ImageNet have more, a digit CNN has 26,000
LARGE_IMAGE = 48  # pixels of the shorter side


def followed(config: Config, model: Classifier, store: ImageStore) -> Config:
    """Settings with what was left open as network and images ask for it.

    A large network on RGB images of some size is taken for a pretrained one on photographs.
    """
    height, width, channels = store.image_shape
    weights = sum(parameter.numel() for parameter in model.parameters())
    return config.following(weights >= LARGE_NETWORK and channels == 3 and min(height, width) >= LARGE_IMAGE)


def about_photographs(asked: Config) -> str:
    """What follows from a large network on photographs, for the user to know."""
    later = Config.read_by("infer") | Config.read_by("refine") | Config.read_by("distill")
    own = {name: value for name, value in PRESETS["photographs"].items() if name in later - asked.model_fields_set}
    named = ", ".join(f"{name} {value}" for name, value in own.items() if name != "defaults")
    return f"a large network on photographs: what was left open follows the preset photographs ({named})"


def check_settings(config: Config, num_classes: int) -> Config:
    """Settings resolved for a number of classes; InputError, before any work, for what they cannot be."""
    resolved = config.resolve(num_classes)
    class_prior(resolved, torch.ones(num_classes))
    return resolved

"""How each network trains: the settings of a run as a learner takes them."""

from dataclasses import replace

from ray_adaplr.config import Config
from ray_adaplr.core.augment import AugmentSettings
from ray_adaplr.core.learner import TrainSettings

LONGER_IF_AS_IT_CAME = 3
"""Times the epochs of a target model whose start was not warmed, for it has more to learn. PACS, 150 images, 3 and 10
epochs: art→sketch 66.0 and 66.7 % right (seed 0), 59.3 and 65.3 (seed 1), photo→sketch 47.3 and 48.7, 44.7 and 48.0."""


def augmentation(config: Config, crop: tuple[float, float]) -> AugmentSettings:
    """The augmentation's settings with the given crop area."""
    return AugmentSettings(
        crop=crop,
        degrees=config.rotation,
        translate=config.translation,
        scale=config.zoom,
        shear=config.shear,
        blur_probability=config.blur,
        brightness=config.colour,
        contrast=config.colour,
        saturation=config.colour,
        hue=config.hue,
        invert_probability=config.invert,
        palette_probability=config.palette,
        flip_probability=config.flip,
    )


def member_training(config: Config) -> TrainSettings:
    """How members train during refinement."""
    members = _training(config, config.epochs, config.lr, augmentation(config, config.crop))
    return replace(members, lr_head=config.lr_head, schedule=config.schedule)


def warm_training(config: Config) -> TrainSettings:
    """How a warm start trains: on the clean images, beside voted labels on augmented ones."""
    seen = augmentation(config, config.crop) if config.warm_start == "centroids" else None
    warm = _training(config, config.warm_start_epochs, config.warm_start_lr or config.lr, seen)
    return replace(warm, schedule=config.schedule)


def pretraining(config: Config) -> TrainSettings:
    """How the source model trains."""
    augment = augmentation(config, config.crop) if config.pretrain_augment else None
    return _training(config, config.pretrain_epochs, config.pretrain_lr, augment)


def distill_training(config: Config, as_it_came: bool = False) -> TrainSettings:
    """How the target model trains; `as_it_came`: its start is the source model, whose warm start was dropped."""
    # It must not take the target's BatchNorm statistics. PACS, art→sketch, 150 images: 45.3 % right with them,
    # 61.3 % without; on unseen images 42.0 and 54.7.
    epochs = config.distill_epochs * (LONGER_IF_AS_IT_CAME if as_it_came else 1)
    settings = _training(config, epochs, config.distill_lr, augmentation(config, config.distill_crop))
    return replace(settings, keeps_batchnorm=as_it_came)


def _training(config: Config, epochs: int, lr: float, augment: AugmentSettings | None) -> TrainSettings:
    return TrainSettings(
        seed=config.seed,
        epochs=epochs,
        batch_size=config.batch_size,
        lr=lr,
        lr_head=lr,
        weight_decay=config.weight_decay,
        schedule="cosine",
        augment=augment,
        compile=config.compile,
        precision=config.precision,
    )

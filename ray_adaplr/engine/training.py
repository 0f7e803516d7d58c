"""How each network trains: the settings of a run as a learner takes them."""

from dataclasses import replace

from ray_adaplr.config import Config
from ray_adaplr.core.augment import AugmentSettings
from ray_adaplr.core.learner import TrainSettings


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


def distill_training(config: Config, keeps_batchnorm: bool = False) -> TrainSettings:
    """How the target model trains."""
    settings = _training(config, config.distill_epochs, config.distill_lr, augmentation(config, config.distill_crop))
    return replace(settings, keeps_batchnorm=keeps_batchnorm)


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

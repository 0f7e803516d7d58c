"""The Python interface: `AdaPLR(config).fit(source=..., target=...) -> Result`."""

from pathlib import Path
from typing import TypeAlias

from torch import nn

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import OWN, Classifier, find_head
from ray_adaplr.data.open import Target, as_store
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.stages.adapt import Result, RunPlan, adapt
from ray_adaplr.storage.models import describe, load_model

__all__ = ["AdaPLR", "Config", "ImageStore", "Result", "ScalingConfig"]

Source: TypeAlias = str | Path | nn.Module


class AdaPLR:
    """Adapts a trained classifier to unlabelled images of a new domain, without source data.

    Args:
        config: settings of the method; the default is the robust preset.
        scaling_config: where it runs; the default is Ray, local unless a cluster is named.

    Example:
        >>> result = AdaPLR(Config(epochs=40)).fit(source="models/photo", target="stores/sketch")  # doctest: +SKIP
        >>> result.labels.to_pandas().query("high_confidence")  # doctest: +SKIP
    """

    def __init__(self, config: Config | None = None, scaling_config: ScalingConfig | None = None) -> None:
        self.config = config or Config()
        self.scaling_config = scaling_config or ScalingConfig()

    def fit(
        self,
        source: Source | list[Source],
        target: Target | list[Target],
        out: str | Path = "runs/adaplr",
        *,
        head: str | None = None,
        normalize: str = "imagenet",
        force: bool = False,
        verbose: bool = True,
    ) -> Result:
        """Infer, refine, distill.

        Args:
            source: a model folder, or any `nn.Module` from normalised images to logits; several are fused.
            target: a store's folder, a folder of images, or uint8 images [n, h, w, c]; several are one union.
            out: the run's folder; the same call again resumes.
            head: dotted name of a module's final linear layer; found when not given.
            normalize: how a bare module wants its input: imagenet, half, image or none.
            force: start again.
            verbose: show progress.
        """
        given = source if isinstance(source, list) else [source]
        modules = [each if isinstance(each, nn.Module) else load_model(each) for each in given]
        store = as_store(target, out)
        sources = [_as_classifier(module, head, normalize, store.image_shape[2]) for module in modules]
        names = [str(each) if isinstance(each, str | Path) else type(each).__name__ for each in given]
        plan = RunPlan(sources, store, str(out), self.config, self.scaling_config, source_names=names)
        return adapt(plan, force=force, progress=Progress(quiet=not verbose))


def _as_classifier(module: nn.Module, head: str | None, normalize: str, channels: int) -> Classifier:
    """A module with its description; one without convolutions takes images of `channels`."""
    if isinstance(module, Classifier):
        return module
    channels = next((layer.in_channels for layer in module.modules() if isinstance(layer, nn.Conv2d)), channels)
    if channels == 1 and normalize == "imagenet":
        raise InputError("normalize='imagenet' is for three channels but the module takes one; use none, half or image")
    head = head or find_head(module)
    width = getattr(dict(module.named_modules()).get(head), "out_features", 2)  # Classifier tells of a wrong name
    name = OWN + type(module).__name__
    return Classifier(module, describe(name=name, num_classes=width, channels=channels, head=head, normalize=normalize))

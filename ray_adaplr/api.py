"""The Python interface: `AdaPLR(config).fit(source=..., target=...) -> Result`, and `load` for what it leaves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from torch import nn

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.data.labels import given_labels
from ray_adaplr.data.open import Target
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.integrations.sources import Normalize, Source, as_classifier, as_module, classes_of, open_guest
from ray_adaplr.integrations.targets import open_images
from ray_adaplr.integrations.tracking import make_tracker
from ray_adaplr.stages.adapt import RunPlan, Stage, adapt
from ray_adaplr.stages.in_python import in_python_terms
from ray_adaplr.stages.plan import check_settings
from ray_adaplr.stages.result import Result, guarded_network
from ray_adaplr.storage.models import absolute_model_name, load_model
from ray_adaplr.storage.secrets import redacted

__all__ = ["AdaPLR", "Config", "ImageStore", "Result", "ScalingConfig", "export", "load"]


class AdaPLR:
    """Adapts a trained classifier to unlabelled images of a new domain, without source data.

    Args:
        config: settings of the method; the default is the robust preset, for a large network on photographs the preset
            photographs.
        scaling_config: where it runs; the default is Ray, local unless a cluster is named.
        verbose: show progress.

    Example:
        >>> result = AdaPLR().fit(source="models/photo", target="sketches/")  # doctest: +SKIP
        >>> result.labels.to_pandas().query("high_confidence")  # doctest: +SKIP
    """

    def __init__(
        self, config: Config | None = None, scaling_config: ScalingConfig | None = None, verbose: bool = True
    ) -> None:
        for given, kind in ((config, Config), (scaling_config, ScalingConfig)):
            if given is not None and not isinstance(given, kind):
                raise InputError(f"a {type(given).__name__} holds no settings; give {kind.__name__}(...)")
        self.config = config or Config()
        self.scaling_config = scaling_config or ScalingConfig()
        self.verbose = verbose

    @in_python_terms()
    def fit(
        self,
        source: Source | list[Source],
        target: Target | list[Target],
        out: str | Path = "runs/adaplr",
        *,
        normalize: Normalize | None = None,
        head: str | None = None,
        labels: str | Path | Sequence[int] | None = None,
        guest: Source | list[Source] | None = None,
        guest_images: Target | list[Target] | None = None,
        fork: str | None = None,
        track: str | None = None,
        until: Stage = "distill",
        force: bool = False,
        **more: Any,
    ) -> Result:
        """Infer, refine, distill; the same call again continues where an earlier one stopped.

        Args:
            source: a model folder, also a Hugging Face image classifier's, a torchvision or timm name for its published
                weights, NAME=FILE for weights of your own (a Lightning checkpoint too), hf:NAME of a hub's model, or
                any `nn.Module` from normalised images to logits; several are fused.
            target: a store, a folder of images, a list or CSV file, image files, an array or tensor [n, h, w, c], a
                Dataset (torch's, Hugging Face's, Ray's), or a pandas frame with the column path; several are one union.
            out: the run's folder.
            normalize: how a bare module wants its input: imagenet, half, image, none, (mean, std) as numbers of images
                in [0, 1], or a Hugging Face image processor or its preprocessor_config.json; by default as a timm
                module says, else imagenet. The run prints what it feeds.
            head: the dotted name of a module's final linear layer, found when not given.
            labels: a file of `id,label`, or one number per image with -1 where none: labels for all images are the
                start, labels for some stay fixed.
            guest: other pretrained networks whose features vote on the labels, and which are not trained, named as
                sources are; an `nn.Module` takes images with its own or ImageNet's mean.
            guest_images: the target's images in more pixels for guests to look at, by default the target where it is
                no store.
            fork: another run to continue under these settings.
            track: mlflow or wandb, which shows the run there too.
            until: the last stage to run: infer, refine or distill. The same call with a later one goes on.
            force: start again in a folder that holds another run.
            **more: how a folder becomes a store, by the fields of `PrepareOptions`: size, classes, unlabelled, ...
        """
        for name in more.keys() & Config.model_fields.keys():
            if name not in PrepareOptions.model_fields or not more.keys() & {"limit", "scale"}:
                raise InputError(f"{name} is a setting: AdaPLR(Config({name}={more[name]!r})).fit(...)")
        if until not in get_args(Stage):
            raise InputError(f"until={until!r} is no stage; give one of {', '.join(get_args(Stage))}")
        tracker, options = make_tracker(track) if track else None, PrepareOptions(**more)
        given = source if isinstance(source, list) else [source]
        modules = [as_module(each, head, normalize, options.classes) for each in given]
        check_settings(self.config, classes_of(modules[0], head))  # refused before images are read
        invited = guest if isinstance(guest, list | tuple) else [] if guest is None else [guest]
        guests = [open_guest(each) for each in invited]
        progress = Progress(quiet=not self.verbose)
        store, guest_store = open_images(modules, target, out, options, progress, guests, guest_images, force)
        channels = store.image_shape[2]
        sources = [as_classifier(module, head, normalize, channels, options.classes) for module in modules]
        plan = RunPlan(
            sources,
            store,
            str(out),
            self.config,
            self.scaling_config,
            given=given_labels(labels, store, sources[0].spec.num_classes, sources[0].spec.classes),
            source_names=[absolute_model_name(each) for each in given],
            guests=guests,
            guest_store=guest_store,
            named=(source, target, labels, guest, guest_images),
        )
        try:
            return adapt(plan, until=until, force=force, fork=fork, progress=progress, tracker=tracker)
        except KeyboardInterrupt:
            print(f"stopped; the same call continues from the last checkpoint in {redacted(str(out))}")
            raise


@in_python_terms()
def load(folder: str | Path, network: nn.Module | None = None) -> nn.Module:
    """The network of a model folder, ready to predict; it takes images normalised as the folder's model.json says.

    Args:
        folder: e.g. a run's `target_model`.
        network: for weights of a class of your own: a network of that class, which is filled in.
    """
    return guarded_network(load_model(folder, like=network))


@in_python_terms()
def export(model: Result | str | Path, to: str, out: str | Path, network: nn.Module | None = None) -> str:
    """Write a model, or a run's labels, for another tool; returns in words what was written and how it was tried.

    Args:
        model: a result, a run's folder, or a model's folder.
        to: onnx, torch-export, hf (a folder for transformers); cleanlab for the labels of a run.
        out: the file to write; for hf a new folder.
        network: for weights of a class of your own: a network of that class, which is filled in.
    """
    from ray_adaplr.integrations import export as door

    like = model.like if isinstance(model, Result) else network
    place = model.path if isinstance(model, Result) else model
    return door.export(place, to, out, lambda folder: load_model(folder, like=like))

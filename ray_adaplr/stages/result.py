"""`Result`, what a run gives to Python: its labels, figures and model, and a model that refuses raw images."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from torch import Tensor, nn

from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.data.open import Target
from ray_adaplr.errors import InputError, counted
from ray_adaplr.stages.evaluate import evaluate, images_for, predict
from ray_adaplr.stages.in_python import in_python_terms
from ray_adaplr.stages.summary import write_page
from ray_adaplr.storage.layout import REPORT, SUMMARY, TARGET_MODEL
from ray_adaplr.storage.models import load_model
from ray_adaplr.storage.run import Run
from ray_adaplr.storage.secrets import redacted

FARTHEST = 50.0  # a normalised image stays within a few deviations, unless its description says otherwise


@dataclass(frozen=True, repr=False)
class Result:
    """A run: `.labels`, `.model`, `.metrics`, `.summary`, `.path`, `.predict(...)`, `.evaluate(...)`."""

    run: Run
    like: Classifier  # the architecture, for a network that has no name

    @property
    def path(self) -> str:
        """The run's folder."""
        return self.run.folder.uri

    @cached_property
    def labels(self) -> pa.Table:
        """One row per image: id, first and refined label with their class names, confidence, and when it changed."""
        try:
            return self.run.read_labels()
        except FileNotFoundError:
            raise InputError(f"{self.path} has no refined labels yet; the same call without until goes on") from None

    @cached_property
    def classifier(self) -> Classifier:
        """The target model with its normalisation: images in [0, 1] in, logits out."""
        return load_model((self.run.folder / TARGET_MODEL).uri, like=self.like).eval()

    @property
    def model(self) -> nn.Module:
        """The target network. It takes what the source network takes: float images normalised as `.input` says."""
        return guarded_network(self.classifier)

    @property
    def input(self) -> ModelSpec:
        """What the model is fed: `image_size`, `channels`, `mean`, `std`, and in words `.input.input`."""
        return self.classifier.spec

    @cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """One record per line of metrics.jsonl."""
        return self.run.read_metrics()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of the whole run."""
        return self.run.folder.read_json(SUMMARY)

    @in_python_terms()
    def predict(self, data: Target, probabilities: bool = False) -> pa.Table:
        """Labels and confidences for images of any kind; `probabilities` adds a column `p_CLASS` per class."""
        with images_for([self.classifier], data, unlabelled=True) as store:
            return predict(self.classifier, store, probabilities)

    @in_python_terms()
    def evaluate(self, data: Target) -> dict[str, Any]:
        """Accuracy on a store or a folder whose subfolders are the classes."""
        with images_for([self.classifier], data) as store:
            return evaluate(self.classifier, store)

    def report(self) -> str:
        """Write report.html again; returns where it lies."""
        write_page(self.run)
        return (self.run.folder / REPORT).uri

    def __repr__(self) -> str:
        if not self.run.done(SUMMARY):
            return f"Result({redacted(self.path)}: not finished)"
        known = self.summary
        images, changed, sure = counted(known["num_images"], "image"), known["changed_share"], known["hcs_share"]
        return f"Result({redacted(self.path)}: {images}, {changed:.1%} labels changed, {sure:.1%} sure)"


def guarded_network(model: Classifier) -> nn.Module:
    """The bare network, which refuses images that nobody normalised."""
    network, spec = model.network.eval(), model.spec
    ends = [abs(end - mean) / std for mean, std in zip(*spec.normalization[:2]) for end in (0, 1)]
    farthest = FARTHEST if spec.per_image else max(FARTHEST, 2 * max(ends))  # some networks are fed 0..255
    unguarded(network).register_forward_pre_hook(RefusesRawImages(farthest))
    return network


def unguarded(network: nn.Module) -> nn.Module:
    """The same network, in place, without that refusal: nothing that looks at values can be traced."""
    for number, hook in list(network._forward_pre_hooks.items()):
        if isinstance(hook, RefusesRawImages):
            del network._forward_pre_hooks[number]
    return network


@dataclass(frozen=True)
class RefusesRawImages:
    """A hook that looks at what a network is fed."""

    farthest: float  # the largest value that a normalised image may have

    def __call__(self, _network: nn.Module, inputs: tuple[Any, ...]) -> None:
        """InputError for images that nobody normalised."""
        images = inputs[0]
        if not isinstance(images, Tensor) or not images.is_floating_point():
            kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
            raise InputError(f"the model takes normalised float images, not {kind}; see `.input` for mean and std")
        if images.numel() and (largest := images.abs().max().item()) > self.farthest:
            raise InputError(f"the images hold values up to {largest:.0f}; normalise them as `.input` says")

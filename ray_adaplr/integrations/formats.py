"""How a network is written for each tool, and how that tool runs it: ONNX, torch.export, transformers.

Each writer puts one network into a file or folder, with class names and the description of its input, and returns what
runs it from there.
"""

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from ray_adaplr import __version__
from ray_adaplr.core.models import Classifier, ModelSpec, as_logits
from ray_adaplr.integrations.transformers_folder import check_transformers, write_transformers

MADE_BY = "ray-adaplr export"
Runner: TypeAlias = Callable[[np.ndarray, Tensor], Tensor]  # raw uint8 [n, h, w, c], the same normalised -> logits
Writer: TypeAlias = Callable[[nn.Module, ModelSpec, Tensor, Path], Runner]  # network, description, two images, place


@dataclass(frozen=True)
class Format:
    """One way to write a model."""

    write: Writer
    suffix: str  # of the file; of a folder none
    extra: str  # of this package, that brings what is needed
    packages: tuple[str, ...]  # the last runs what was written
    start: bytes = b""  # how such a file begins, by which one of ours may be replaced
    check: Callable[[Classifier], None] = lambda model: None


class Logits(nn.Module):
    """A network that gives its logits and nothing else."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """Logits [n, C] of normalised images [n, channels, h, w]."""
        return as_logits(self.network(images))


def description(spec: ModelSpec) -> dict[str, Any]:
    """What a user of a file must know: class names in order, and how images are fed."""
    mean, std, per_image = spec.normalization
    return {
        "made_by": f"{MADE_BY} {__version__}",
        "architecture": spec.name,
        "classes": spec.class_names,
        "input": spec.input,
        "image_size": spec.image_size,
        "channels": spec.channels,
        "per_image": per_image,
        **({} if per_image else {"mean": mean, "std": std}),
    }


def _write_onnx(network: nn.Module, spec: ModelSpec, example: Tensor, file: Path) -> Runner:
    """One ONNX file: `images` in, `logits` out, the description in its metadata, each value as JSON."""
    import onnxruntime

    batch = torch.export.Dim("batch")
    names = {"input_names": ["images"], "output_names": ["logits"]}
    with _quiet():
        program = torch.onnx.export(
            Logits(network), (example,), dynamo=True, dynamic_shapes=({0: batch},), verbose=False, **names
        )
    assert program is not None
    program.model.producer_name = MADE_BY
    program.model.metadata_props.update({name: json.dumps(value) for name, value in description(spec).items()})
    program.save(file, external_data=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    return lambda _, prepared: torch.from_numpy(session.run(["logits"], {"images": prepared.numpy()})[0])


def _write_torch_export(network: nn.Module, spec: ModelSpec, example: Tensor, file: Path) -> Runner:
    """One .pt2 file with the description as its extra file model.json."""
    batch = torch.export.Dim("batch")
    with _quiet():
        program = torch.export.export(Logits(network), (example,), dynamic_shapes=({0: batch},))
        torch.export.save(program, file, extra_files={"model.json": json.dumps(description(spec))})
        module = torch.export.load(file).module()
    return lambda _, prepared: module(prepared)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the tools' own remarks, which are pages where they fail: how it went is found out by trying."""
    silence = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


FORMATS = {
    "onnx": Format(_write_onnx, ".onnx", "onnx", ("onnx", "onnxscript", "onnxruntime"), b"\x08"),
    "torch-export": Format(_write_torch_export, ".pt2", "", ("torch",), b"PK"),
    "hf": Format(write_transformers, "", "hf", ("transformers",), check=check_transformers),
}

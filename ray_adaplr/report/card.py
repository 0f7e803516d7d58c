"""The model card of a run's target model: README.md in its folder, in the form that the Hugging Face hub reads.

It goes out with the weights, so it names no path of this machine and no key; names from users are escaped. Nothing in
it depends on a clock: the same run writes the same card. Its code loads the weights without this package.
"""

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from ray_adaplr import __version__
from ray_adaplr.config import PRIORS, STAGES, Config
from ray_adaplr.core.hugging_face import HF
from ray_adaplr.core.models import OWN, PUBLISHED_ARGUMENTS, ModelSpec
from ray_adaplr.core.scores import LABEL_FREE
from ray_adaplr.storage.folder import is_uri
from ray_adaplr.storage.layout import CARD_SIGN, TARGET_MODEL
from ray_adaplr.storage.run_reader import Record, RunFolder, is_number
from ray_adaplr.storage.secrets import redacted

MOST_NAMES = 20  # classes that are named one by one
ALWAYS = ("seed", "alpha", "n_e", "n_rl", "n_a", "epochs", "stop", "warm_start", "prior", "distill_epochs")
SPARED = (
    "There was no shift from what the source model was trained on. So there was no warm start, nothing pulled towards "
    "classes of equal size, and this model keeps most of the source model's weights, whatever these settings say."
)
FRONT = """---
pipeline_tag: image-classification
tags:
- image-classification
- domain-adaptation
- source-free-domain-adaptation
- adaplr
- pytorch
---"""
# Raw HTML, links, emphasis, code, tables, mentions and addresses that a page would turn into links.
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~!$&@:^=]|(?<=www)\.)")


def model_card(run: RunFolder, spec: ModelSpec, domains: Sequence[str]) -> str:
    """The card of a finished run and its target model; `domains` are what the target's images are called."""
    to = ", ".join(map(escaped, domains))
    sources = ", ".join(escaped(public_name(place)) for place in run.origin.get("source", []))
    count = run.summary.get("num_images")
    images = f"{count:,} unlabelled images" if is_number(count) else "unlabelled images"
    parts = [
        FRONT,
        f"{CARD_SIGN} A run that starts again replaces this page, unless this line is gone. -->",
        f"# Image classifier, adapted to {to}",
        f"A network {escaped(spec.name)} for {spec.num_classes} classes. It was adapted from the source model "
        f"{sources} to {images} of {to}, without source data, by ray-adaplr {__version__}.",
        f"- **Classes**, in the order of the outputs: {_class_names(spec)}\n"
        f"- **Input**: {spec.input}\n"
        "- An image of any other class gets one of these labels, and nothing warns of it.",
        "## How to load it\n\nWithout ray-adaplr, in this folder:",
        f"```python\n{loading_code(spec)}\n```",
        "## How it was adapted",
        _table(("setting", "value"), _settings(run.settings)),
        *([SPARED] if run.summary.get("spared") else []),
        "## What is known without labels",
        _table(("figure", "value", "better is"), _label_free(run)),
        "\n".join(f"- {escaped(sentence)}" for sentence in _remarks(run)),
    ]
    if run.has_truth:
        parts += [
            "## Diagnostic figures",
            "The images came with labels. These never trained anything and chose nothing; they are counted here as a "
            "diagnostic, on the very images that the model was adapted to.",
            _table(("accuracy of", "share that is right"), _diagnostics(run.summary)),
        ]
    return "\n\n".join(parts) + "\n"


def line_of_labels(lines: Sequence[Record], shipped: Record | None) -> Record:
    """The line of the epoch that a run's labels are of: the last, or the one that shipped.json names.

    Empty where no line is of these labels.
    """
    if not shipped:
        return lines[-1] if lines else {}
    epoch = shipped.get("epoch", shipped.get("labels"))  # of older runs a text, which counts from 0 too
    return next((line for line in lines if epoch in (line["epoch"], f"epoch {line['epoch']}")), {})


def escaped(text: str) -> str:
    r"""Text of a user's, to be read as it is written and never as Markdown or HTML.

    >>> print(escaped("a|b <i>"))
    a\|b \<i\>
    """
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))


def public_name(place: str) -> str:
    """What strangers may read of a place: a path's last part, a URI without its keys and options.

    >>> public_name("/home/me/models/photo"), public_name("s3://KEY:SECRET@bucket/photo?region=eu")
    ('photo', 's3://***@bucket/photo')
    """
    if is_uri(place) and not place.lower().startswith("file:"):
        return redacted(place).partition("?")[0]
    return PurePath(place.partition("?")[0] if is_uri(place) else place).name


def _class_names(spec: ModelSpec) -> str:
    if not spec.classes:
        return f"the numbers 0 to {spec.num_classes - 1}"
    named = ", ".join(map(escaped, spec.classes[:MOST_NAMES]))
    rest = len(spec.classes) - MOST_NAMES
    return f"{named} and {rest} more, all in `model.json`" if rest > 0 else named


def _settings(settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The settings that one asks for first, and all others of adapting that are not at their default."""
    of_adapting = {name for stage in STAGES[1:] for name in Config.read_by(stage)}
    defaults = Config().model_dump(mode="json", include=of_adapting)
    for name, value in settings.items():
        if name in ALWAYS or (name in defaults and value != defaults[name]):
            file = name == "prior" and value not in PRIORS  # it may lie anywhere
            yield f"`{name}`", escaped("from a file" if file else json.dumps(value))


def _label_free(run: RunFolder) -> Iterator[tuple[str, str, str]]:
    shares = (("labels that changed", "changed_share", ""), ("labels that are sure", "hcs_share", "more"))
    for called, name, better in shares:
        if is_number(run.summary.get(name)):
            yield called, f"{run.summary[name]:.1%}", better
    line = line_of_labels(run.refine, run.summary.get("shipped"))
    for name, more in LABEL_FREE.items():
        if is_number(line.get(name)):
            yield f"`{name}`", f"{line[name]:.3f}", "more" if more else "less"


def _remarks(run: RunFolder) -> list[str]:
    """Signs of harm by the labels and the epochs; what processes warned of may name places, and stays at home."""
    found = replace(run, summary={**run.summary, "warnings": None}).warnings
    chosen = (run.summary.get("shipped") or {}).get("model", TARGET_MODEL)
    if chosen != TARGET_MODEL:
        found = [*found, f"By its label-free score the run would rather ship {chosen} than this model."]
    return found or ["No sign of harm was seen in the labels."]


def _diagnostics(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    names = {"inferred": "the source model's labels", "refined": "the refined labels", "target": "this model"}
    for name, called in names.items():
        if is_number(summary.get(name)):
            yield called, f"{summary[name]:.3f}"


def _table(head: Sequence[str], rows: Iterator[tuple[str, ...]]) -> str:
    lines: list[Sequence[str]] = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def loading_code(spec: ModelSpec) -> str:
    """Python that builds the network, fills in its weights and classifies an image, run in the model's folder."""
    imports, build = _network(spec)
    normalise, images = _normalised(spec)
    height, width = spec.image_size or (224, 224)
    colour = "RGB" if spec.channels == 3 else "grey"
    logits = ".logits" if spec.name.startswith(HF) else ""
    best = "scores.argmax().item()"
    lines = [
        *imports,
        "from safetensors.torch import load_file",
        'about = json.load(open("model.json"))',
        *build,
        'network.load_state_dict(load_file("model.safetensors"))',
        "network.eval()",
        f"images = torch.rand(1, {spec.channels}, {height}, {width})  # put yours here: {colour}, from 0 to 1",
        *normalise,
        f"scores = network({images}){logits}",
        f'print(about["classes"][{best}])' if spec.classes else f"print({best})",
    ]
    return "\n".join(lines)


def _network(spec: ModelSpec) -> tuple[list[str], list[str]]:
    """Imports, and the lines that build the network."""
    plain, name, count = "import json, torch", spec.name, spec.num_classes
    if name == "digit_cnn":
        layers = "nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(), nn.MaxPool2d(2)"
        sizes = [spec.channels, spec.width, 2 * spec.width, 4 * spec.width]
        blocks = ", ".join(f"*block({a}, {b})" for a, b in itertools.pairwise(sizes))
        build = [
            f"block = lambda a, b: ({layers})",
            "network = nn.Sequential()",
            f"network.features = nn.Sequential({blocks}, nn.AdaptiveAvgPool2d(2), nn.Flatten())",
            f"network.head = nn.Linear({4 * sizes[-1]}, {count})",
        ]
        return [f"{plain}, torch.nn as nn"], build
    if name.startswith("timm/"):
        build = [f'network = timm.create_model("{name[5:]}", num_classes={count}, in_chans={spec.channels})']
        return ["import json, timm, torch"], build
    if name.startswith(HF):
        build = [
            f'config = AutoConfig.for_model(**about["config"], num_labels={count})',
            "network = AutoModelForImageClassification.from_config(config)",
        ]
        imports = [plain, "from transformers import AutoConfig, AutoModelForImageClassification"]
        return imports, build
    if name.startswith(OWN) or ":" in name:
        module, function = "your_module", name.removeprefix(OWN)
        if re.fullmatch(r"[\w.]+:\w+", name):
            module, _, function = name.partition(":")
        function = function if function.isidentifier() else "YourNetwork"
        return [plain, f"from {module} import {function}"], [f"network = {function}()"]
    more = "".join(f", {key}={value}" for key, value in PUBLISHED_ARGUMENTS.get(name, {}).items())
    build = [f'network = torchvision.models.get_model("{name}", num_classes={count}{more})']
    return ["import json, torch, torchvision"], build


def _normalised(spec: ModelSpec) -> tuple[list[str], str]:
    """Lines before the network is called, and what it is called with."""
    if spec.per_image:
        over = "(1, 2, 3), keepdim=True"
        return [], f"(images - images.mean({over})) / (images.std({over}) + 1e-3)"
    if (spec.mean, spec.std) == ((0.0,), (1.0,)):
        return [], "images"
    numbers = 'mean, std = (torch.tensor(about[name]).view(1, -1, 1, 1) for name in ("mean", "std"))'
    return [numbers], "(images - mean) / std"

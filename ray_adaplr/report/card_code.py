"""The lines of a model card that load its weights without this package: one way for each kind of network."""

import itertools
import re

from ray_adaplr.core.hugging_face import HF
from ray_adaplr.core.models import OWN, ModelSpec


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
    build = [f'network = torchvision.models.get_model("{name}", num_classes={count})']
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

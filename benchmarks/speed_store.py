"""The row of the speed benchmark for a store that the page cache does not hold."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.measure import Measurement, noise_store, ratios, seconds_in_turn
from ray_adaplr.data import store as reading
from ray_adaplr.data.store import ImageStore

IMAGES, SIDE, BATCH, BATCHES = 3000, 256, 64, 10


def cold_store() -> list[Measurement]:
    """Batches in random order from a store on disk: all of a batch asked for at once, against one after another."""
    drawn = np.random.default_rng(0)

    def gather(asking: bool) -> None:
        _forget(folder)
        store, kept = ImageStore.open(str(folder)), reading._ask_for
        reading._ask_for = kept if asking else lambda *_: None
        try:
            for batch in drawn.permutation(IMAGES)[: BATCH * BATCHES].reshape(BATCHES, BATCH):
                store.read(batch)
        finally:
            reading._ask_for = kept

    with noise_store(IMAGES, SIDE) as made:
        folder = Path(made.paths[0])
        del made  # pages that are mapped stay
        asked, touched = seconds_in_turn(lambda: gather(True), lambda: gather(False), repeats=7)
    name = f"batches of a store that is not in memory, asked for at once ÷ touched one by one, wall ({SIDE} px)"
    per_image = {
        key: [1000 * each / (BATCH * BATCHES) for each in times]
        for key, times in (("asked", asked), ("touched", touched))
    }
    details = {"milliseconds_per_image": per_image}
    return [Measurement.of(name, ratios(asked, touched), 1.0, higher_is_better=False, details=details)]


def _forget(folder: Path) -> None:
    """Take a store's files out of the page cache."""
    for file in folder.glob("*.arrow"):
        with file.open("rb") as shard:
            os.fsync(shard.fileno())
            os.posix_fadvise(shard.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


MEASUREMENTS: list[Callable[[], list[Measurement]]] = [cold_store]

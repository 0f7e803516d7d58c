"""The images behind a run, and what is known of their true classes, as far as they can still be reached."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.storage.run_reader import RunFolder

UNREADABLE = (InputError, OSError, ValueError, LookupError, TypeError, pa.ArrowException)  # a store moved or damaged


def target_images(run: RunFolder) -> ImageStore | None:
    """The images of the run; None where they cannot be reached."""
    try:
        return ImageStore.open(*run.targets)
    except UNREADABLE:
        return None


def true_classes(run: RunFolder) -> np.ndarray | None:
    """The true class of each row of the run's labels, int64 [n], for diagnostics.

    None when the run itself had no ground truth, or the images that it had are no longer there.
    """
    if run.labels is None or not run.has_truth:
        return None
    store = target_images(run)
    try:
        truth = store.ground_truth() if store else None
        if store is None or truth is None or len(store) != len(run.labels):
            return None
        same_images = pc.all(pc.equal(pc.cast(store.ids, pa.string()), run.labels["id"])).as_py()
    except UNREADABLE:
        return None
    return truth if same_images else None

"""Whatever a user calls images, opened as one `ImageStore`: for the Python interface and the command line alike."""

import hashlib
from pathlib import Path
from typing import TypeAlias

import numpy as np

from ray_adaplr.data.ingest import prepare
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import write_store
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import is_uri

Target: TypeAlias = str | Path | ImageStore | np.ndarray


def as_store(targets: Target | list[Target], out: str | Path, options: PrepareOptions = PrepareOptions()) -> ImageStore:
    """The target as a store: opened, or made of images or a folder of images inside the run's folder.

    Args:
        targets: stores, folders of images, arrays.
        out: the run's folder; new stores go to its `stores/`.
        options: how images become a store (size, channels, ...).
    """
    paths: list[str] = []
    for i, target in enumerate(targets if isinstance(targets, list) else [targets]):
        made = f"{out}/stores/{i}"
        if isinstance(target, ImageStore):
            paths += target.paths
        elif isinstance(target, str | Path) and (is_uri(target) or Path(target, "store.json").exists()):
            paths.append(str(target))
        elif is_uri(made):
            raise InputError(f"a store cannot be made in {out}; make one of the images with `prepare`, and name that")
        elif isinstance(target, np.ndarray):
            if target.dtype != np.uint8 or target.ndim != 4:
                raise InputError(f"images must be uint8 [n, h, w, c], not {target.dtype} {list(target.shape)}")
            ids = [str(row) for row in range(len(target))]
            made = f"{made}-{hashlib.blake2b(target.tobytes(), digest_size=6).hexdigest()}"  # a resume finds the same
            if not Path(made, "store.json").exists():
                write_store(made, [(ids, target)], classes=[], domain=f"images-{i}", truth=None)
            paths.append(made)
        else:
            paths += prepare(str(target), made, options).paths
    return ImageStore.open(*paths)

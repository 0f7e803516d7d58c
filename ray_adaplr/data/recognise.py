"""Finds out what a path holds, by names and content, and hands it to the right reader."""

import os
import re
from dataclasses import replace
from pathlib import Path

from ray_adaplr.data import arrays, files
from ray_adaplr.data.decode import readable_suffixes
from ray_adaplr.data.hugging_face import HUB, from_name
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.parquet import from_parquet
from ray_adaplr.data.pictures import Pictures
from ray_adaplr.errors import InputError
from ray_adaplr.storage.folder import is_uri


def find_pictures(what: str, options: PrepareOptions = PrepareOptions()) -> Pictures:
    """Recognises what a path holds by its name and content; `hf:` begins the name of a Hugging Face dataset."""
    if what.startswith(HUB) and not os.path.exists(what):
        return from_name(what, options)
    if is_uri(what):
        raise InputError(f"{what} is not on this machine; images are read from files: copy or mount them first")
    if not os.path.exists(what):
        raise InputError(f"{what} does not exist; name a folder of images, a list, or a data file")
    if not os.path.isfile(what) and not os.path.isdir(what):
        raise InputError(f"{what} is neither a file nor a folder; name a folder of images, a list, or a data file")
    source = _read(Path(what), options)
    return replace(source, labels=None, classes=list(options.classes or [])) if options.unlabelled else source


def _read(path: Path, options: PrepareOptions) -> Pictures:
    name, split = path.name.lower(), options.split or "train"
    if match := re.fullmatch(r"mnist_m_(train|test)(_labels\.txt)?", name):
        return files.from_mnist_m(path.parent, match[1])
    if path.is_dir():
        return _read_folder(path, options, split)
    if name.endswith(".npz"):
        return arrays.from_npz(path, options, split)
    if name.endswith(".parquet"):
        return from_parquet(path, options, split)
    if "idx3-ubyte" in name:
        return arrays.from_idx(path)
    if name.endswith(".bz2"):
        return arrays.from_usps(path)
    if name.endswith(".mat"):
        return arrays.from_mat(path, split)
    if name.removesuffix(".gz").endswith((".txt", ".csv", ".tsv", ".lst")):
        return files.from_list(path, options)
    if name.endswith(readable_suffixes()):
        return files.from_paths([path.name], None, str(path), path.parent, options)
    raise InputError(
        f"{path} is of no known kind; known: folders, images, .txt, .csv(.gz), .npz, .parquet, idx, .bz2, .mat"
    )


def _read_folder(path: Path, options: PrepareOptions, split: str) -> Pictures:
    if (path / f"mnist_m_{split}_labels.txt").is_file():
        return files.from_mnist_m(path, split)
    for lists in (path, path / split):  # VisDA-C: one split, or the folder that holds them all
        if (lists / "image_list.txt").is_file():
            return files.from_list(lists / "image_list.txt", options)
    prefix = "t10k" if split == "test" else split
    if idx := sorted(path.glob(f"{prefix}-images*idx3-ubyte*")):
        return arrays.from_idx(idx[0])
    if any(path.glob("*.parquet")):
        return from_parquet(path, options, split)
    return files.from_folder(path, options)

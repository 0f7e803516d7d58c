"""Sources made of image files: a folder a class, a flat folder, and lists of `path label` (VisDA-C, DomainNet, …)."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ray_adaplr.data.benchmarks import get_benchmark
from ray_adaplr.data.decode import UNDECODABLE, open_picture
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.pictures import Pictures, domain_and_split, name_labels, need_file
from ray_adaplr.errors import InputError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm")


def from_folder(folder: Path, options: PrepareOptions) -> Pictures:
    """A folder of class folders, or a flat folder of unlabelled images."""
    files = list_images(folder)
    if not files:
        raise InputError(f"{folder} holds no image file ({', '.join(IMAGE_SUFFIXES[:4])}, …); name a folder of images")
    loose = [file for file in files if "/" not in file]
    paths = [f"{folder}/{file}" for file in files]
    ids = [file.encode(errors="surrogateescape").decode(errors="replace") for file in files]  # names need not be UTF-8
    if options.unlabelled or len(loose) == len(files):
        return Pictures(ids, paths, None, list(options.classes or []), folder.name)
    if loose:
        raise InputError(f"{folder} holds loose images ({loose[0]}) beside class folders; move them, or ignore labels")
    _refuse_folder_of_domains(folder, files)
    names = [name.split("/", 1)[0] for name in ids]
    labels, classes, kept = name_labels(names, names, options.classes, options.subset)
    return Pictures([ids[row] for row in kept], [paths[row] for row in kept], labels, classes, folder.name)


def _refuse_folder_of_domains(folder: Path, files: list[str]) -> None:
    """Refuses domain/class/image trees, whose domains would pass for classes."""
    inner: dict[str, set[str]] = {}
    for file in files:
        first, *rest = file.split("/")
        inner.setdefault(first, set()).add(rest[0] if len(rest) > 1 else "")
    names = sorted(inner)
    if len(names) > 1 and all("" not in inner[name] for name in names) and inner[names[0]] & inner[names[1]]:
        raise InputError(f"{folder} holds several domains or splits; name one of them, such as {folder / names[0]}")


def list_images(folder: Path) -> list[str]:
    """Relative paths of all image files below a folder, sorted; hidden folders are left out."""
    found = []
    for where, folders, files in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        prefix = os.path.relpath(where, folder)
        for file in files:
            if file.lower().endswith(IMAGE_SUFFIXES) and not file.startswith("."):
                found.append(file if prefix == "." else f"{prefix}/{file}".replace(os.sep, "/"))
    return sorted(found)


def from_list(path: Path, options: PrepareOptions) -> Pictures:
    """A text file of `path label` lines (or `path,label`, or paths alone).

    A name such as `clipart_train.txt` gives domain and split. Paths start from `root`, the list's folder or the one
    above; class names are by default those of the images' folders, where each label has just one.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is no text file; an image list has lines such as `dog/1.jpg 0`") from error
    if not lines:
        raise InputError(f"{path} is empty; an image list has lines such as `dog/1.jpg 0`")
    parted = [line.rsplit("," if path.suffix == ".csv" else None, 1) for line in lines]
    has_labels = all(len(parts) == 2 and not parts[1].lower().endswith(IMAGE_SUFFIXES) for parts in parted)
    files = [parts[0].strip() for parts in parted] if has_labels else lines
    folder = _root_of(path, files[0], options.root)
    images = [os.path.join(folder, file) for file in files]
    domain, split = domain_and_split(path.stem)
    classes: Sequence[str] | None = options.classes
    if path.name == "image_list.txt":  # VisDA-C: train/, validation/ and test/, each with such a list
        domain, split = f"visda-{path.parent.name}", path.parent.name
        if all(file.startswith("trunk") for file in files):  # the test split's folders do not tell the class
            classes = classes or get_benchmark("visda").classes
    if not has_labels or options.unlabelled:
        return Pictures(files, images, None, list(classes or []), domain, split)
    texts = [parts[1].strip() for parts in parted]
    numeric = all(text.lstrip("-").isdigit() for text in texts)
    values: list[str | int] = [int(text) for text in texts] if numeric else list(texts)
    folders = [os.path.basename(os.path.dirname(file)) for file in files]
    labels, names, kept = name_labels(values, folders, classes, options.subset)
    return Pictures([files[row] for row in kept], [images[row] for row in kept], labels, names, domain, split)


def _root_of(path: Path, first: str, root: str | None) -> Path:
    candidates = [Path(root)] if root else [path.parent, path.parent.parent]
    for folder in candidates:
        if (folder / first).exists():
            return folder
    raise InputError(f"{first}, the first image of {path}, is not below {candidates[0]}; give the right --root")


def from_mnist_m(folder: Path, split: str) -> Pictures:
    """MNIST-M as published: `mnist_m_train/00000000.png`, … and `mnist_m_train_labels.txt`; the same for test."""
    labels = need_file(folder / f"mnist_m_{split}_labels.txt", "the labels of MNIST-M")
    digits = tuple(str(digit) for digit in range(10))
    source = from_list(labels, PrepareOptions(root=str(folder / f"mnist_m_{split}"), classes=digits))
    return Pictures(source.ids, source.images, source.labels, source.classes, "mnistm", split)


def photographs(folder: str, smallest: tuple[int, int]) -> list[np.ndarray]:
    """RGB pixels of all photographs below a folder that are at least as large as `smallest`, as backgrounds."""
    found = []
    for file in list_images(Path(folder)):
        try:
            found.append(np.asarray(open_picture(Path(folder) / file).convert("RGB")))
        except UNDECODABLE as error:
            raise InputError(f"the background {folder}/{file} cannot be read ({error}); take it out") from error
    large = [photo for photo in found if photo.shape[0] >= smallest[0] and photo.shape[1] >= smallest[1]]
    if not large:
        raise InputError(f"{folder} holds no photograph of {smallest[0]}x{smallest[1]} or more to use as background")
    return large

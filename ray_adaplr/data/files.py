"""What a path holds, by its name and content; and pictures that are image files: in folders, and in lists.

Links are followed, and every image is taken once, by whatever ways it can be reached; pipes, devices and kinds of
images that this Pillow does not read are left out by name.
"""

import csv
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_adaplr.data import arrays
from ray_adaplr.data.benchmarks import get_benchmark
from ray_adaplr.data.labels import class_numbers, labelled, unpacked
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.pictures import FOREIGN, PERHAPS, LeftOut, Pictures, domain_and_split, readable_suffixes, reading
from ray_adaplr.data.tables import HUB, LABEL_COLUMNS, find_column, from_name, from_parquet, has_images
from ray_adaplr.errors import InputError, counted
from ray_adaplr.storage.folder import is_uri

PATH_COLUMNS = ("path", "file", "filename", "file_name", "filepath", "image")
HIDDEN = (".", "__MACOSX")  # begin names of what is not for people to look at, in archives of a Mac too
SEEN = "a link to what is there already"
LIST_FORM = "an image list has lines such as `dog/1.jpg 0`, a CSV file the columns path and, if known, label"


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
        return from_mnist_m(path.parent, match[1], options)
    if path.is_dir():
        return _read_folder(path, options, split)
    if name.endswith(".npz"):
        return arrays.from_npz(path, options, split)
    if name.endswith(".parquet"):
        return from_parquet(path, options)
    if "idx3-ubyte" in name:
        return arrays.from_idx(path, options)
    if name.endswith(".bz2"):
        return arrays.from_usps(path, options)
    if name.endswith(".mat"):
        return arrays.from_mat(path, options, split)
    if name.removesuffix(".gz").endswith((".txt", ".csv", ".tsv", ".lst")):
        return from_list(path, options)
    if name.endswith(readable_suffixes()):
        return from_paths([path.name], None, str(path), path.parent, options)
    raise InputError(
        f"{path} is of no known kind; known: folders, images, .txt, .csv(.gz), .npz, .parquet, idx, .bz2, .mat"
    )


def _read_folder(path: Path, options: PrepareOptions, split: str) -> Pictures:
    if (path / f"mnist_m_{split}_labels.txt").is_file():
        return from_mnist_m(path, split, options)
    for lists in (path, path / split):  # VisDA-C: one split, or the folder that holds them all
        if (lists / "image_list.txt").is_file():
            return from_list(lists / "image_list.txt", options)
    prefix = "t10k" if split == "test" else split
    if idx := sorted(path.glob(f"{prefix}-images*idx3-ubyte*")):
        return arrays.from_idx(idx[0], options)
    tables = sorted(path.glob("*.parquet"))
    if tables and (any(has_images(table, options) for table in tables) or not list_images(path)[0]):
        return from_parquet(path, options)
    return from_folder(path, options)


def from_folder(folder: Path, options: PrepareOptions) -> Pictures:
    """A folder of class folders, or a flat folder of unlabelled images."""
    files, left_out = list_images(folder)
    if not files:
        why = f"; left out: {counted(len(left_out), 'file')}, e.g. {': '.join(left_out[0])}" if left_out else ""
        raise InputError(
            f"{folder} holds no image file ({', '.join(readable_suffixes()[:4])}, …){why}; name a folder of images"
        )
    loose = [file for file in files if "/" not in file]
    paths = [f"{folder}/{file}" for file in files]
    # Names need not be UTF-8; each stays another than the rest.
    ids = [file.encode(errors="surrogateescape").decode(errors="backslashreplace") for file in files]
    domain = folder.absolute().name or "images"
    pictures = Pictures(ids, paths, None, list(options.classes or []), domain, left_out=left_out)
    if options.unlabelled or len(loose) == len(files):
        return pictures
    if loose:
        raise InputError(
            f"{folder} holds loose images ({loose[0]}) beside class folders; move them, or give --unlabelled to "
            "prepare or adapt"
        )
    _refuse_folder_of_domains(folder, files, options.classes or ())
    labels, classes, kept = class_numbers([name.split("/", 1)[0] for name in ids], options.classes, options.subset)
    return replace(pictures.subset(kept), labels=labels, classes=classes)


def _refuse_folder_of_domains(folder: Path, files: list[str], classes: Sequence[str]) -> None:
    """Refuses domain/class/image trees, whose domains would pass for classes."""
    inner: dict[str, set[str]] = {}
    for file in files:
        first, *rest = file.split("/")
        inner.setdefault(first, set()).add(rest[0] if len(rest) > 1 else "")
    names = sorted(inner.keys() - {*classes})
    if len(names) > 1 and all("" not in inner[name] for name in names) and inner[names[0]] & inner[names[1]]:
        raise InputError(f"{folder} holds several domains or splits; name one of them, such as {folder / names[0]}")


def list_images(folder: Path) -> tuple[list[str], tuple[LeftOut, ...]]:
    """Relative paths of all image files below a folder, sorted, and the files left out; hidden ones are neither."""
    found: dict[str, str] = {}  # real path -> name
    left_out: list[LeftOut] = []
    visited: set[str] = set()

    def take(name: str, real: str, regular: bool) -> None:
        suffix = os.path.splitext(name)[1].lower()
        if suffix in readable_suffixes():
            if real in found:
                left_out.append((name, SEEN))
            elif not regular:
                left_out.append((name, "not a regular file"))
            else:
                found[real] = name
        elif suffix in PERHAPS + FOREIGN:
            way_out = "install pillow-heif" if suffix in (".heic", ".heif") else "convert it"
            left_out.append((name, f"{suffix} is not read here; {way_out}"))

    places, links = [("", os.path.realpath(folder))], list[str]()
    while places or links:
        if places:
            place, real = places.pop()
            if real in visited:
                left_out.append((place, SEEN))
                continue
            visited.add(real)
            for entry in entries(real):
                name = f"{place}/{entry.name}" if place else entry.name
                if entry.is_symlink():
                    links.append(name)
                elif entry.is_dir():
                    places.append((name, f"{real}/{entry.name}"))
                else:
                    take(name, f"{real}/{entry.name}", entry.is_file())
        else:  # links come last, so that of an image with two names the linked one is left out
            name = links.pop(0)
            real = os.path.realpath(f"{folder}/{name}")
            if os.path.isdir(real):
                places.append((name, real))
            else:
                take(name, real, os.path.isfile(real))
    return sorted(found.values()), tuple(sorted(left_out))


def entries(folder: str | Path) -> list[os.DirEntry[str]]:
    """What lies in a folder, in the order of the names, but for what is hidden."""
    try:
        with os.scandir(folder) as entries:
            return sorted((e for e in entries if not e.name.startswith(HIDDEN)), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(f"{folder} cannot be listed ({error.strerror}); fix its rights or leave it out") from error


def from_list(path: Path, options: PrepareOptions) -> Pictures:
    """A text file of `path label` lines or paths alone, or a CSV file `path,label`, with or without a header; .gz too.

    A name such as `clipart_train.txt` gives domain and split. Paths start from `root`, the list's folder or the one
    above; class names are by default those of the images' folders, where each label has just one.
    """
    with reading(path, "a list of images"):
        text = unpacked(path.read_bytes(), str(path)).decode("utf-8-sig")
    plain = Path(path.name.lower().removesuffix(".gz"))
    if plain.suffix in (".csv", ".tsv"):
        files, written = _csv_columns(text, path, options)
    else:
        files, written = _list_columns(text, path)
    domain, split = domain_and_split(path.name[: len(plain.stem)])
    classes: Sequence[str] | None = options.classes
    if path.name == "image_list.txt":  # VisDA-C: train/, validation/ and test/, each with such a list
        domain, split = f"visda-{path.parent.name}", path.parent.name
        if all(file.startswith("trunk") for file in files):  # the test split's folders do not tell the class
            classes = classes or get_benchmark("visda").classes
    folder = _root_of(path, files[0], options.root)
    pictures = from_paths(files, written, str(path), folder, options.model_copy(update={"classes": classes}))
    return replace(pictures, domain=domain, split=split)


def from_paths(
    files: list[str], written: Iterable[Any] | None, where: str, folder: Path, options: PrepareOptions
) -> Pictures:
    """Files below a folder with labels as they are written, or none."""
    images = [os.path.join(folder, file) for file in files]
    pictures = Pictures(files, images, None, list(options.classes or []), folder.absolute().name)
    if written is None:
        return pictures
    return labelled(pictures, written, where, options, folders=[Path(file).parent.name for file in files])


def _list_columns(text: str, path: Path) -> tuple[list[str], list[str] | None]:
    """Paths and labels of `path label` lines; a last word that names an image file is no label."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError(f"{path} is empty; {LIST_FORM}")
    suffixes = readable_suffixes()
    bare = [line for line in lines if len(line.split()) == 1 or line.lower().endswith(suffixes)]
    if len(bare) == len(lines):
        return lines, None
    if bare:
        raise InputError(f"{path} has lines with a label and lines without one, such as {bare[0]!r}; {LIST_FORM}")
    parted = [line.rsplit(None, 1) for line in lines]
    return [file for file, _ in parted], [label for _, label in parted]


def _csv_columns(text: str, path: Path, options: PrepareOptions) -> tuple[list[str], list[str] | None]:
    """The columns of a CSV file: by their names where the first line is a header, else the first and the last."""
    first = next(iter(text.splitlines()), "")
    delimiter = max(",;\t", key=first.count)
    with reading(path, "CSV"):
        rows = [row for row in csv.reader(text.splitlines(), delimiter=delimiter, strict=True) if any(row)]
    if not rows:
        raise InputError(f"{path} is empty; {LIST_FORM}")
    header = [cell.strip().lower() for cell in rows[0]]
    at, label_at = 0, len(header) - 1 if len(header) > 1 and not options.unlabelled else None
    named, label = path_and_label(header, options, str(path))
    if named:
        rows, at, label_at = rows[1:], header.index(named), header.index(label) if label else None
    if not rows:
        raise InputError(f"{path} has a header and no rows; {LIST_FORM}")
    if short := [row for row in rows if len(row) != len(rows[0])]:
        raise InputError(f"{path} has a row of {len(short[0])} cells where others have {len(rows[0])}: {short[0]}")
    files = [row[at].strip() for row in rows]
    if "" in files:
        raise InputError(f"{path} has a row without a path; {LIST_FORM}")
    if label_at is None:
        return files, None
    written = [row[label_at].strip() for row in rows]
    if "" in written:
        empty = files[written.index("")]
        raise InputError(f"{path} has no label for {empty}; fill it in, or give --unlabelled to prepare or adapt")
    return files, written


def path_and_label(columns: list[str], options: PrepareOptions, where: str) -> tuple[str | None, str | None]:
    """The columns of paths and of labels, of a table's columns in small letters; None where there is none."""
    image, label = (name and name.lower() for name in (options.image_column, options.label_column))
    named = find_column(columns, image, PATH_COLUMNS, where)
    if label and not named:
        raise InputError(f"{where} has no column `path`; it has {', '.join(columns)}: give --image-column to prepare")
    labelled_by = named and not options.unlabelled and find_column(columns, label, LABEL_COLUMNS, where)
    return named, labelled_by or None


def _root_of(path: Path, first: str, root: str | None) -> Path:
    candidates = [Path(root)] if root else [path.parent, path.parent.parent]
    for folder in candidates:
        if os.path.exists(os.path.join(folder, first)):
            return folder
    raise InputError(f"{first}, the first image of {path}, is not below {candidates[0]}; give --root to prepare")


def from_mnist_m(folder: Path, split: str, options: PrepareOptions) -> Pictures:
    """MNIST-M as published: `mnist_m_train/00000000.png`, … and `mnist_m_train_labels.txt`; the same for test."""
    labels = folder / f"mnist_m_{split}_labels.txt"
    if not labels.is_file():
        raise InputError(f"{labels} is missing; it holds the labels of MNIST-M")
    below = arrays.of_digits(options).model_copy(update={"root": str(folder / f"mnist_m_{split}")})
    pictures = from_list(labels, below)
    return replace(pictures, domain="mnistm", split=split)

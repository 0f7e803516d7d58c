"""Arrays, torch's Datasets and Ray's as stores, written piece by piece: they need not fit into memory.

The images of a Ray Dataset are decoded and resized on its cluster. They wait in Ray's object store, which spills to
disk, until this process has written them.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ray_adaplr.data.arrays import as_uint8_nhwc, ends_at_one
from ray_adaplr.data.labels import as_written, class_numbers
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.pictures import UNDECODABLE, Aspect, Pictures, decode, open_picture, pixels_of, row_ids
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import OtherStore, open_written, write_store
from ray_adaplr.data.tables import IMAGE_COLUMNS, LABEL_COLUMNS, image_column, label_column
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.folder import Folder

BATCH = 256  # images of a Dataset that are held in memory
_LOOKS = 16  # rows of a Ray Dataset that tell the size of its images
_NAMES = ("id", "path")  # its columns that name images, the better first


def store_of_items(items: Any, stores: Folder, name: str, options: PrepareOptions) -> ImageStore:
    """The items of an array or a Dataset, read one after another: images, or an image first or under `image`.

    Labels are those that can be had without reading the items: `targets` of torchvision, the column of Hugging Face.
    Row numbers are the ids. Items are read twice: the store's name holds a checksum of all images and labels, so that a
    resumed run finds its own and no other. InputError for an item that is another image the second time.
    """
    count = len(items)
    if not count:
        raise InputError("the Dataset is empty; a store needs at least one image")
    digest, shapes, scales = hashlib.blake2b(digest_size=6), set(), set()
    checksums: list[int] = []
    for row in range(count):
        pixels = _pixels(items, row)
        image = as_uint8_nhwc(pixels[None], _item_name(row))[0]
        shapes.add(image.shape)
        if pixels.dtype.kind == "f" and pixels.max() > 0:  # black is black in both
            scales.add(ends_at_one(pixels, _item_name(row)))
        digest.update(repr(image.shape).encode() + image.tobytes())
        checksums.append(zlib.crc32(image.tobytes()))
    if len(scales) > 1:
        raise InputError("some items of the Dataset are floats up to 1 and some up to 255; give all as uint8")
    shape, domain = _common_shape(shapes, options), options.domain or f"images-{name}"
    truth, classes = _labels_of(items, options)
    known = (shape, options.aspect, domain, classes, None if truth is None else truth.tolist())
    digest.update(repr(known).encode())

    def batches() -> Iterator[tuple[list[str], np.ndarray]]:
        for start in range(0, count, BATCH):
            rows = range(start, min(start + BATCH, count))
            images = [as_uint8_nhwc(_pixels(items, row)[None], _item_name(row))[0] for row in rows]
            for row, image in zip(rows, images):
                if zlib.crc32(image.tobytes()) != checksums[row]:
                    raise InputError(
                        f"the Dataset gives another image each time it is asked for one, such as item {row}; leave "
                        "random transforms out"
                    )
            yield [str(row) for row in rows], np.stack([_fitted(image, shape, options) for image in images])

    return _written_once(stores / f"{name}-{digest.hexdigest()}", batches(), classes, domain, truth)


def _common_shape(shapes: set[tuple[int, ...]], options: PrepareOptions) -> tuple[int, int, int]:
    """The shape of a store's images, by theirs; InputError where they need a size that was not given."""
    sizes = {shape[:2] for shape in shapes}
    channels = 3 if any(shape[2:] == (3,) for shape in shapes) else 1
    if size := options.side([max(size) for size in sizes]):
        return size, size, options.channels or channels
    if len(sizes) > 1:
        raise InputError("the images of the Dataset have no common size; give a size, best that of the model")
    height, width = sizes.pop()
    alike = len({shape[2:] == (3,) for shape in shapes}) == 1
    if height != width and not (alike and options.channels in (None, channels)):
        raise InputError(f"images of {height}x{width} pixels are not square; give a size, best that of the model")
    return height, width, options.channels or channels


def _labels_of(items: Any, options: PrepareOptions) -> tuple[np.ndarray | None, list[str]]:
    """The labels of a Dataset, int64 [n] or None, and the class names.

    Numbers stand for the Dataset's own `classes`; where none of these is among those given, for the latter.
    """
    own = [str(name) for name in getattr(items, "classes", None) or ()]
    classes = list(options.classes or own)
    written = getattr(items, "targets", None)
    if written is None and "label" in (getattr(items, "column_names", None) or ()):
        written = items["label"]
    if written is None or options.unlabelled:
        return None, classes
    labels = as_written(as_numpy(written), "the Dataset", own if set(own) & set(classes) else (), classes)
    if len(labels) != len(items):
        raise InputError(f"the Dataset has {len(items)} images but {len(labels)} labels; one for each is needed")
    truth, classes, _ = class_numbers(labels, classes or None)
    return truth, classes


def _written_once(
    folder: Folder, batches: Iterable[tuple[list[str], np.ndarray]], classes: list[str], domain: str, truth: Any
) -> ImageStore:
    """A new store, or the one that an earlier call wrote of the same images: its name is their digest."""
    try:
        return write_store(folder.uri, batches, classes=classes, domain=domain, truth=truth)
    except OtherStore:
        return open_written(folder)


def _fitted(image: np.ndarray, shape: tuple[int, int, int], options: PrepareOptions) -> np.ndarray:
    if image.reshape(*image.shape[:2], -1).shape == shape:
        return image.reshape(shape)
    return decode(image, shape[0], shape[2], options.aspect)


def _item_name(row: int) -> str:
    return f"item {row} of the Dataset"


def _pixels(dataset: Any, row: int) -> np.ndarray:
    """The pixels of one item, as the Dataset gives them, of any type and layout."""
    try:
        item = dataset[int(row)]
        if isinstance(item, dict):
            item = item.get("image", item.get("img"))
        elif isinstance(item, tuple | list):
            item = item[0]
        if isinstance(item, str | bytes | Path | Image.Image):
            return pixels_of(item)
        pixels = as_numpy(item)
        if pixels.ndim not in (2, 3):
            raise ValueError(f"{pixels.dtype} {list(pixels.shape)}")
    except Exception as error:  # a Dataset is the user's own code
        raise InputError(f"{_item_name(row)} is not an image ({first_line(error)}); the image comes first") from error
    return pixels


def as_numpy(value: Any) -> np.ndarray:
    """An array or a list, or a tensor wherever it is, as an array."""
    if hasattr(value, "detach"):  # a torch tensor, wherever it is
        value = value.detach().cpu()
    return np.asarray(value)


def is_ray_dataset(value: object) -> bool:
    """Whether a value is a Dataset of Ray Data; `ray.data` is not imported for that."""
    return any(kind.__module__ == "ray.data.dataset" for kind in type(value).__mro__)


def store_of_ray(dataset: Any, stores: Folder, name: str, options: PrepareOptions) -> ImageStore:
    """The images of a column as a store, in the Dataset's order; one with the very same images is not written again.

    The column holds pixels, encoded images or paths; others may be labels, and `id` or `path`. A checksum of the
    images is added to the store's name.
    """
    columns = dataset.columns() or []
    if not columns:
        raise InputError("the Ray dataset holds no row; a store needs at least one image")
    image = image_column(columns, IMAGE_COLUMNS, options, "the Ray dataset")
    label = label_column(columns, LABEL_COLUMNS, options, "the Ray dataset")
    named = next((each for each in _NAMES if each in columns and each != image), None)
    looks = [_picture(row[image]) for row in dataset.take(_LOOKS)]
    shape = Pictures(row_ids(len(looks)), looks, None, [], "the Ray dataset").shape(options)
    dataset.context.execution_options.preserve_order = True  # the same images in the same order give the same bits
    work: dict[str, Any] = {"image": image, "keep": [each for each in (named, label) if each], "shape": shape}
    work |= {"aspect": options.aspect, "resize": options.size is not None}
    done = dataset.map_batches(_decoded, batch_size=BATCH, fn_kwargs=work).materialize()
    ids: list[str] = []
    written: list[Any] = []
    digest = zlib.crc32(repr((shape, options.aspect)).encode())
    for batch in done.iter_batches(batch_size=BATCH, batch_format="numpy"):
        for row, problem in enumerate(batch["problem"]):
            if problem:
                raise InputError(f"row {len(ids) + row} of the Ray dataset is not an image ({problem}); filter it out")
        digest = zlib.crc32(batch["image"].tobytes(), digest)
        names = batch[named] if named else range(len(ids), len(ids) + len(batch["image"]))
        ids += [str(value) for value in names]
        written += list(batch[label]) if label else []
    classes, truth = list(options.classes or ()), None
    if written:
        truth, classes, _ = class_numbers(as_written(written, "the Ray dataset", (), classes), classes or None)
    known = zlib.crc32(repr((ids, classes, None if truth is None else truth.tolist())).encode())
    folder = stores / f"{name}-{digest:08x}{known:08x}"
    pieces = done.iter_batches(batch_size=BATCH, batch_format="numpy")
    batches = ((ids[i * BATCH : i * BATCH + len(piece["image"])], piece["image"]) for i, piece in enumerate(pieces))
    return _written_once(folder, batches, classes, options.domain or f"images-{name}", truth)


def _picture(value: Any) -> Any:
    """What `decode` takes: a path, encoded bytes, or pixels as uint8."""
    return as_uint8_nhwc(np.asarray(value)[None], "a row")[0] if isinstance(value, np.ndarray | list) else value


def _decoded(
    batch: dict[str, Any], image: str, keep: list[str], shape: tuple[int, int, int], aspect: Aspect, resize: bool
) -> dict[str, Any]:
    """A batch with its images as uint8 [n, h, w, c]; `problem` says what is wrong with one, or is empty."""
    images = np.zeros((len(batch[image]), *shape), np.uint8)
    problems = [""] * len(images)
    for row, value in enumerate(batch[image]):
        try:
            picture = _picture(value)
            if not resize and open_picture(picture).size != (shape[1], shape[0]):
                problems[row] = "it has another size than the first; give a size"
            else:
                images[row] = decode(picture, shape[0], shape[2], aspect)
        except UNDECODABLE as error:
            problems[row] = first_line(error)
    return {"image": images, "problem": np.array(problems), **{name: batch[name] for name in keep}}

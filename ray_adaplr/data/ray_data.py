"""A `ray.data.Dataset` as a store: Ray decodes and resizes the images on its cluster, this process writes the store.

The images, in the store's size, lie in Ray's object store meanwhile, which spills to disk.
"""

import zlib
from typing import Any

import numpy as np

from ray_adaplr.data.arrays import as_uint8_nhwc
from ray_adaplr.data.decode import UNDECODABLE, Aspect, decode, is_grey, open_picture
from ray_adaplr.data.labels import as_written, class_numbers
from ray_adaplr.data.manifest import MANIFEST
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.parquet import IMAGE_COLUMNS, LABEL_COLUMNS
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import OtherStore, open_written, write_store
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.folder import Folder

BATCH = 256  # images that this process holds in memory
_LOOKS = 16
_NAMES = ("id", "path")  # columns that name images, the better first


def is_ray_dataset(value: object) -> bool:
    """Whether a value is a Dataset of Ray Data; `ray.data` is not imported for that."""
    return any(kind.__module__ == "ray.data.dataset" for kind in type(value).__mro__)


def store_of_ray(dataset: Any, stores: Folder, name: str, options: PrepareOptions) -> ImageStore:
    """The images of a column as a store, in the Dataset's order; one with the very same images is not written again.

    Args:
        dataset: with a column of pixels, of encoded images or of paths, perhaps with labels, and with `id` or `path`.
        stores: the run's folder of stores.
        name: the store's name there; a checksum of the images is added.
        options: columns, size, and whether labels count.
    """
    columns = dataset.columns() or []
    image = _column(options.image_column, IMAGE_COLUMNS, columns, "image")
    if image is None:
        raise InputError("the Ray dataset holds no row; a store needs at least one image")
    label = None if options.unlabelled else _column(options.label_column, LABEL_COLUMNS, columns)
    named = next((each for each in _NAMES if each in columns and each != image), None)
    shape = _shape([row[image] for row in dataset.take(_LOOKS)], options)
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
                raise InputError(f"row {len(ids) + row} of the Ray dataset is no image ({problem}); filter it out")
        digest = zlib.crc32(batch["image"].tobytes(), digest)
        names = batch[named] if named else range(len(ids), len(ids) + len(batch["image"]))
        ids += [str(value) for value in names]
        written += list(batch[label]) if label else []
    classes, truth = list(options.classes or ()), None
    if written:
        truth, classes, _ = class_numbers(
            as_written(written, "the Ray dataset"), [""] * len(written), classes or None, subset=False
        )
    known = zlib.crc32(repr((ids, classes, None if truth is None else truth.tolist())).encode())
    folder = stores / f"{name}-{digest:08x}{known:08x}"
    if folder.exists(MANIFEST):
        return open_written(folder)
    pieces = done.iter_batches(batch_size=BATCH, batch_format="numpy")
    batches = ((ids[i * BATCH : i * BATCH + len(piece["image"])], piece["image"]) for i, piece in enumerate(pieces))
    try:
        return write_store(folder.uri, batches, classes=classes, domain=options.domain or f"images-{name}", truth=truth)
    except OtherStore:  # somebody was faster, with the same images
        return open_written(folder)


def _column(wanted: str | None, usual: tuple[str, ...], columns: list[str], needed: str = "") -> str | None:
    found = wanted or next((name for name in usual if name in columns), None)
    if columns and ((found is None and needed) or (found is not None and found not in columns)):
        raise InputError(
            f"the Ray dataset has no column `{found or needed}` (it has {', '.join(columns)}); name one with "
            f"--{needed or 'label'}-column"
        )
    return found if columns else None


def _picture(value: Any) -> Any:
    """What `decode` takes: a path, encoded bytes, or pixels as uint8."""
    return as_uint8_nhwc(np.asarray(value)[None], "a row")[0] if isinstance(value, np.ndarray | list) else value


def _shape(looks: list[Any], options: PrepareOptions) -> tuple[int, int, int]:
    """The store's shape: as asked for, else as the first images have it."""
    sizes, grey = set(), True
    for look in looks:
        try:
            picture = open_picture(_picture(look))
        except (*UNDECODABLE, InputError) as error:
            raise InputError(f"a first row of the Ray dataset is no image ({first_line(error)})") from error
        sizes.add(picture.size)
        grey = grey and is_grey(picture)
    channels = options.channels or (1 if grey else 3)
    if options.size:
        return options.size, options.size, channels
    side = min(sizes)[0]
    if sizes != {(side, side)}:
        raise InputError(
            "the images of the Ray dataset are no squares of one size; give one with --size, best the model's"
        )
    return side, side, channels


def _decoded(
    batch: dict[str, Any], image: str, keep: list[str], shape: tuple[int, int, int], aspect: Aspect, resize: bool
) -> dict[str, Any]:
    """A batch with its images as uint8 [n, h, w, c]; `problem` says what is wrong with one, or is empty."""
    images = np.zeros((len(batch[image]), *shape), np.uint8)
    problems = []
    for row, value in enumerate(batch[image]):
        problem = ""
        try:
            picture = _picture(value)
            if not resize and open_picture(picture).size != (shape[1], shape[0]):
                problem = "it has another size than the first; give a size"
            else:
                images[row] = decode(picture, shape[0], shape[2], aspect)
        except UNDECODABLE as error:
            problem = first_line(error)
        problems.append(problem)
    return {"image": images, "problem": np.array(problems), **{name: batch[name] for name in keep}}

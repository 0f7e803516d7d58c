"""Whatever a user calls images, opened as one `ImageStore`: for the Python interface and the command line alike.

A store, a folder of images, a list or CSV file and every other thing that `prepare` reads; a list of image files, numpy
arrays, torch tensors, a `Dataset` of torch, torchvision, Hugging Face or Ray, a pandas frame with columns path and
label. The images of a Ray Dataset are decoded and resized on its cluster, and wait in Ray's object store, which spills
to disk, until this process has written them.
"""

import hashlib
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ray_adaplr.data.arrays import as_uint8_nhwc
from ray_adaplr.data.files import PATH_COLUMNS, class_folders, from_paths
from ray_adaplr.data.ingest import prepare, prepare_pictures
from ray_adaplr.data.labels import as_written, class_numbers
from ray_adaplr.data.manifest import MANIFEST
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.pictures import UNDECODABLE, Aspect, Pictures, decode, open_picture, readable_suffixes, row_ids
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import OtherStore, open_written, write_store
from ray_adaplr.data.tables import IMAGE_COLUMNS, LABEL_COLUMNS, from_dataset, image_column, is_dataset, label_column
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.folder import Folder, is_uri
from ray_adaplr.storage.layout import STORES

Target: TypeAlias = Any  # a path, an ImageStore, or what the module's first lines name
BATCH = 256  # images of a Dataset that are held in memory
_LOOKS = 16  # rows of a Ray Dataset that tell the size of its images
_NAMES = ("id", "path")  # its columns that name images, the better first


def as_store(
    targets: Target | list[Target],
    out: str | Path,
    options: PrepareOptions = PrepareOptions(),
    model_classes: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> ImageStore:
    """The targets as one store: opened, or made inside the run's folder `out`, in `stores/`.

    Several targets are a union; a list of image files is one target. The model's class names count as far as it has
    any, unless `options.classes` says them: subfolders are classes where they name some of these, else the images
    count as unlabelled; with None they are classes.
    """
    several = isinstance(targets, list | tuple) and not _are_image_files(targets)
    paths: list[str] = []
    for number, target in enumerate(targets if several else [targets]):
        named = _named_by_model(target, options, model_classes)
        paths += _store_of(target, Folder(out) / STORES, str(number), named, progress).paths
    return ImageStore.open(*paths)


def _store_of(
    target: Target, stores: Folder, name: str, options: PrepareOptions, progress: Progress | None
) -> ImageStore:
    """One target as a store, made under `name` in the folder `stores` if it is none yet."""
    place = (stores / name).uri
    if isinstance(target, ImageStore):
        return target
    if isinstance(target, str | os.PathLike):
        path = os.fspath(target)
        if is_uri(path) or os.path.exists(os.path.join(path, MANIFEST)):
            return ImageStore.open(path)
        if os.path.isdir(path) and os.path.realpath(place).startswith(os.path.realpath(path) + os.sep):
            raise InputError(f"{place} would lie inside the folder of the images; choose an --out outside of {path}")
        return _prepared(lambda out: prepare(path, out, options, progress), place)
    if found := _named_pictures(target, options):
        pictures, what = found
        return _prepared(lambda out: prepare_pictures(pictures, what, out, options, progress), place)
    if _is_ray_dataset(target):
        return _store_of_ray(target, stores, name, options)
    if hasattr(target, "__array__") and not hasattr(target, "features"):
        pixels = _as_numpy(target)
        if pixels.ndim == 3 and pixels.shape[2] in (1, 3):
            raise InputError(f"an array of shape {pixels.shape} looks like one image; give images as [n, h, w, c]")
        return _store_of_items(as_uint8_nhwc(pixels, "the array"), stores, name, options)
    if hasattr(target, "__getitem__") and hasattr(target, "__len__") and not isinstance(target, dict | bytes):
        return _store_of_items(target, stores, name, options)
    raise InputError(
        f"a {type(target).__name__} is not a target; give a store, a folder, a list or CSV file, image files, an array,"
        " a tensor, a Dataset with a length, or a pandas frame with the column path"
    )


def _named_pictures(target: Target, options: PrepareOptions) -> tuple[Pictures, str] | None:
    """Pictures, and what to call them: a list of files, a Hugging Face Dataset, a pandas frame, an ImageFolder."""
    if _are_image_files(target):
        return from_paths([os.fspath(file) for file in target], None, "the list", Path(), options), "files"
    if is_dataset(target):
        return from_dataset(target, "the dataset", options), "dataset"
    if type(target).__module__.split(".")[0] == "pandas":
        return _from_frame(target, options), "frame"
    if isinstance(getattr(target, "samples", None), list) and hasattr(target, "classes"):
        return _from_image_folder(target, options), str(target.root)
    return None


def _prepared(make: Callable[[str], ImageStore], place: str) -> ImageStore:
    """A run's store; where an earlier call made one of other images or options, a new one beside it.

    The run then says that its images have changed, and `--force` starts it again.
    """
    try:
        return make(place)
    except OtherStore as other:
        return make(f"{place}-{other.wanted}")


def _named_by_model(target: Target, options: PrepareOptions, model_classes: Sequence[str] | None) -> PrepareOptions:
    """The options with the model's class names; a folder whose subfolders are none of them is unlabelled."""
    if options.unlabelled or model_classes is None:
        return options
    names = options.classes or tuple(model_classes) or None
    if isinstance(target, str | os.PathLike) and os.path.isdir(target):
        folders = class_folders(Path(target))
        if folders and not folders & set(names or ()):
            return options.model_copy(update={"classes": names, "unlabelled": True})
    return options.model_copy(update={"classes": names})


def _are_image_files(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(isinstance(each, str | os.PathLike) for each in value)
        and all(os.fspath(each).lower().endswith(readable_suffixes()) for each in value)
    )


def _from_frame(frame: Any, options: PrepareOptions) -> Pictures:
    """A pandas frame with a column of paths and, if known, one of labels."""
    names = {str(name).lower(): name for name in frame.columns}
    path = next((names[name] for name in PATH_COLUMNS if name in names), None)
    if path is None:
        raise InputError(f"the frame has the columns {', '.join(map(str, frame.columns))}; it needs one called path")
    label = next((names[name] for name in LABEL_COLUMNS if name in names), None)
    if not len(frame) or frame[path].isna().any():
        raise InputError(f"the frame has {len(frame)} rows, some without a path; every row needs one")
    files = [str(file) for file in frame[path].tolist()]
    written = None if label is None else frame[label].tolist()
    return from_paths(files, written, "the frame", Path(options.root or ""), options)


def _from_image_folder(dataset: Any, options: PrepareOptions) -> Pictures:
    """The files of torchvision's `ImageFolder`, without its transforms."""
    files = [os.path.relpath(path, dataset.root) for path, _ in dataset.samples]
    names = [dataset.classes[number] for _, number in dataset.samples]
    return from_paths(files, names, "the ImageFolder", Path(dataset.root), options)


def _store_of_items(items: Any, stores: Folder, name: str, options: PrepareOptions) -> ImageStore:
    """The items of an array or a Dataset, read one after another: images, or an image first or under `image`.

    Labels are those that can be had without reading the items: `targets` of torchvision, the column of Hugging Face.
    Row numbers are the ids. The store's name holds a digest of the array, or of some of the Dataset's images, so that a
    resumed run finds it.
    """
    count = len(items)
    if not count:
        raise InputError("the Dataset is empty; a store needs at least one image")
    looks = [_item(items, row) for row in np.unique(np.linspace(0, count - 1, 64).astype(int))]
    shape = _common_shape(looks, options)
    seen = items.tobytes() if isinstance(items, np.ndarray) else b"".join(look.tobytes() for look in looks)
    digest = hashlib.blake2b(seen + f"{count} {shape}".encode(), digest_size=6).hexdigest()
    truth, classes = _labels_of(items, options)

    def batches() -> Iterator[tuple[list[str], np.ndarray]]:
        for start in range(0, count, BATCH):
            rows = range(start, min(start + BATCH, count))
            images = [_fitted(_item(items, row), shape, row, options) for row in rows]
            yield [str(row) for row in rows], np.stack(images)

    domain = options.domain or f"images-{name}"
    return _written_once(stores / f"{name}-{digest}", batches(), classes, domain, truth)


def _common_shape(looks: list[np.ndarray], options: PrepareOptions) -> tuple[int, int, int]:
    """The shape of a store's images, by some of them; InputError where they need a size that was not given."""
    height, width, *colours = looks[0].shape
    channels = 3 if colours == [3] else 1
    if options.size:
        return options.size, options.size, options.channels or channels
    if any(look.shape[:2] != (height, width) for look in looks):
        raise InputError("the images of the Dataset have no common size; give a size, best that of the model")
    if height != width and options.channels not in (None, channels):
        raise InputError(f"images of {height}x{width} pixels are not square; give a size, best that of the model")
    return height, width, options.channels or channels


def _labels_of(items: Any, options: PrepareOptions) -> tuple[np.ndarray | None, list[str]]:
    """The labels of a Dataset, int64 [n] or None, and the class names."""
    classes = list(options.classes or map(str, getattr(items, "classes", None) or ()))
    written = getattr(items, "targets", None)
    if written is None and "label" in (getattr(items, "column_names", None) or ()):
        written = items["label"]
    if written is None or options.unlabelled:
        return None, classes
    labels = as_written(_as_numpy(written), "the Dataset")
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


def _fitted(image: np.ndarray, shape: tuple[int, int, int], row: int, options: PrepareOptions) -> np.ndarray:
    if image.reshape(*image.shape[:2], -1).shape == shape:
        return image.reshape(shape)
    if options.size is None and image.shape[:2] != shape[:2]:
        raise InputError(f"image {row} of the Dataset has another size than the first; give a size")
    return decode(image, shape[0], shape[2], options.aspect)


def _item(dataset: Any, row: int) -> np.ndarray:
    """The pixels of one item of a Dataset, uint8 [h, w] or [h, w, c]."""
    try:
        item = dataset[int(row)]
        if isinstance(item, dict):
            item = item.get("image", item.get("img"))
        elif isinstance(item, tuple | list):
            item = item[0]
        pixels = _as_numpy(item)
        if pixels.ndim not in (2, 3):
            raise ValueError(f"{pixels.dtype} {list(pixels.shape)}")
    except Exception as error:  # a Dataset is the user's own code
        raise InputError(
            f"item {row} of the Dataset is not an image ({first_line(error)}); the image comes first"
        ) from error
    return as_uint8_nhwc(pixels[None], f"item {row} of the Dataset")[0]


def _as_numpy(value: Any) -> np.ndarray:
    if isinstance(value, str | bytes | Path):
        value = open_picture(value).convert("RGB")
    if hasattr(value, "detach"):  # a torch tensor, wherever it is
        value = value.detach().cpu()
    return np.asarray(value)


def _is_ray_dataset(value: object) -> bool:
    """Whether a value is a Dataset of Ray Data; `ray.data` is not imported for that."""
    return any(kind.__module__ == "ray.data.dataset" for kind in type(value).__mro__)


def _store_of_ray(dataset: Any, stores: Folder, name: str, options: PrepareOptions) -> ImageStore:
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
    shape = Pictures(row_ids(len(looks)), looks, None, [], "the Ray dataset").shape(options.size, options.channels)
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
        truth, classes, _ = class_numbers(as_written(written, "the Ray dataset"), classes or None)
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

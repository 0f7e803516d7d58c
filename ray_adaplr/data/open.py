"""Whatever a user calls images, opened as one `ImageStore`: for the Python interface and the command line alike.

A store, a folder of images, a list or CSV file and every other thing that `prepare` reads; a list of image files, numpy
arrays, torch tensors, a `Dataset` of torch, torchvision, Hugging Face or Ray, a pandas frame with columns path and
label.
"""

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ray_adaplr.data.arrays import as_uint8_nhwc
from ray_adaplr.data.datasets import as_numpy, is_ray_dataset, store_of_items, store_of_ray
from ray_adaplr.data.files import entries, from_paths, path_and_label
from ray_adaplr.data.ingest import prepare, prepare_pictures
from ray_adaplr.data.labels import fingerprint
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.pictures import Pictures, readable_suffixes
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import OtherStore
from ray_adaplr.data.tables import from_dataset, is_dataset
from ray_adaplr.errors import InputError, few
from ray_adaplr.storage.folder import Folder, is_uri
from ray_adaplr.storage.layout import STORE_MANIFEST, STORES
from ray_adaplr.storage.secrets import redacted

Target: TypeAlias = Any  # a path, an ImageStore, or what the module's first lines name

log = logging.getLogger(__name__)


def as_store(
    targets: Target | list[Target],
    out: str | Path,
    options: PrepareOptions = PrepareOptions(),
    model_classes: Sequence[str] | None = None,
    progress: Progress | None = None,
    prefix: str = "",
) -> ImageStore:
    """The targets as one store: opened, or made inside the run's folder `out`, in `stores/` under a name of its own.

    Several targets are a union; a list of image files is one target. The model's class names count as far as it has
    any, unless `options.classes` says them: subfolders are classes where they name some of these, else the images
    count as unlabelled; with None they are classes.
    """
    each, paths = each_of(targets), list[str]()
    called = [_called(target) for target in each]
    named = [os.fspath(target) for target in each if isinstance(target, str | os.PathLike)]
    if len({*map(os.path.realpath, named)}) < len(named):
        raise InputError(f"{', '.join(map(redacted, named))}: one is named twice, and its images would count double")
    known = [_named_by_model(target, options, model_classes, progress) for target in each]
    for number, (target, own) in enumerate(zip(each, known)):
        nameless = isinstance(called[number], int) and len(each) > 1
        if not options.domain and (nameless or called[number] in called[:number]):
            own = own.model_copy(update={"domain": f"{'images' if nameless else called[number]}-{number}"})
        paths += _store_of(target, Folder(out) / STORES, f"{prefix}{number}", own, progress).paths
    return ImageStore.open(*paths, unlabelled=options.unlabelled)


def each_of(targets: Target | list[Target]) -> list[Target]:
    """One target or several, as a list; a list of image files is one target."""
    several = isinstance(targets, list | tuple) and not _are_image_files(targets)
    return list(targets) if several else [targets]


def is_store(target: Target) -> bool:
    """Whether nothing has to be made of a target."""
    if not isinstance(target, str | os.PathLike):
        return isinstance(target, ImageStore)
    path = os.fspath(target)
    return is_uri(path) or os.path.exists(os.path.join(path, STORE_MANIFEST))


def _called(target: Target) -> str | int:
    """What the store of a target would be called after; arrays, items and lists of files have no name."""
    if isinstance(target, str | os.PathLike):
        return Path(target).stem
    return {"datasets": "dataset", "pandas": "frame"}.get(type(target).__module__.split(".")[0], id(target))


def _store_of(
    target: Target, stores: Folder, name: str, options: PrepareOptions, progress: Progress | None
) -> ImageStore:
    """One target as a store, made under `name` in the folder `stores` if it is none yet."""
    place = (stores / name).uri
    if isinstance(target, ImageStore):
        return target
    if isinstance(target, str | os.PathLike):
        path = os.fspath(target)
        if is_store(path):
            return ImageStore.open(path)
        if os.path.isdir(path) and os.path.realpath(place).startswith(os.path.realpath(path) + os.sep):
            raise InputError(f"{place} would lie inside the folder of the images; choose an --out outside of {path}")
        return _prepared(lambda out: prepare(path, out, options, progress), place, progress)
    if found := _named_pictures(target, options):
        pictures, what = found
        return _prepared(lambda out: prepare_pictures(pictures, what, out, options, progress), place, progress)
    if is_ray_dataset(target):
        return store_of_ray(target, stores, name, options)
    if hasattr(target, "__array__") and not hasattr(target, "features"):
        pixels = as_numpy(target)
        if pixels.ndim == 3 and (pixels.shape[2] in (1, 3) or pixels.shape[0] == 3):
            raise InputError(
                f"an array of shape {pixels.shape} looks like one image; give images as [n, h, w, c] or [n, c, h, w], "
                "several as one array, and grey ones with c = 1"
            )
        return store_of_items(as_uint8_nhwc(pixels, "the array"), stores, name, options)
    if hasattr(target, "__getitem__") and hasattr(target, "__len__") and not isinstance(target, dict | bytes):
        return store_of_items(target, stores, name, options)
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


def _prepared(make: Callable[[str], ImageStore], place: str, progress: Progress | None) -> ImageStore:
    """A run's store; where an earlier call made one of other images or options, a new one beside it, unless equal.

    The run then says that its images have changed, and `--force` starts it again. What was left out is said here.
    """
    try:
        store = make(place)
    except OtherStore as other:
        beside = f"{place}-{other.wanted}"
        store, earlier = make(beside), ImageStore.open(place)
        labels = [fingerprint(each.ground_truth()) for each in (store, earlier)]
        if store.fingerprint == earlier.fingerprint and labels[0] == labels[1]:  # only times of files are others
            Folder(place).write_json(STORE_MANIFEST, Folder(beside).read_json(STORE_MANIFEST))
            Folder(os.path.dirname(beside)).delete(os.path.basename(beside))
            store = ImageStore.open(place)
    if progress and (words := store.left_out_words()):
        progress.say(words)
    return store


def _named_by_model(
    target: Target, options: PrepareOptions, model_classes: Sequence[str] | None, progress: Progress | None
) -> PrepareOptions:
    """The options with the model's class names; a folder whose subfolders are none of them is unlabelled."""
    if options.unlabelled or model_classes is None:
        return options
    names = options.classes or tuple(model_classes) or None
    if isinstance(target, str | os.PathLike) and os.path.isdir(target):
        folders = _folders(target)
        if folders and not {*folders} & {*(names or ())}:
            _check_one_domain(os.fspath(target), folders, names, progress)
            alike = [(one, name) for one in folders for name in names or () if one.casefold() == name.casefold()]
            said = f"no subfolder of {target} is a class of the model ({few(names or (), 3)}), so none is a label"
            if alike:
                log.warning("%s; '%s' is '%s' but for capitals", said, *alike[0])
            elif progress and names:
                progress.say(said)
            return options.model_copy(update={"classes": names, "unlabelled": True})
    return options.model_copy(update={"classes": names})


def _check_one_domain(target: str, folders: list[str], names: Sequence[str] | None, progress: Progress | None) -> None:
    """InputError for several domains in a folder, each with folders of classes; a remark where nothing names these."""
    places = {os.path.realpath(os.path.join(target, name)) for name in folders}  # a link may lead to another of them
    below = {place: {*_folders(place)} for place in sorted(places)}
    every = [name for inner in below.values() for name in inner if not name.isdigit()]
    classes = {*(names or (name for name in every if every.count(name) > 1))}
    domains = [place for place, inner in below.items() if len(classes & inner) > len(inner) / 2]
    told = f"{few(domains)} hold folders of the same names"
    if len(domains) > 1 and names:
        raise InputError(f"{told}, which are classes: name each by itself, or give adapt --unlabelled")
    if len(domains) > 1 and progress:
        progress.say(f"{told}, and are one target: if the names are classes, name each by itself, with --target again")


def _folders(folder: str | os.PathLike[str]) -> list[str]:
    return [entry.name for entry in entries(Path(folder)) if entry.is_dir()]


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
    path, label = path_and_label(list(names), options, "the frame")
    if path is None:
        raise InputError(f"the frame has the columns {', '.join(map(str, frame.columns))}; it needs one called path")
    if not len(frame) or frame[names[path]].isna().any():
        raise InputError(f"the frame has {len(frame)} rows, some without a path; every row needs one")
    files = [str(file) for file in frame[names[path]].tolist()]
    written = frame[names[label]].tolist() if label else None
    return from_paths(files, written, "the frame", Path(options.root or ""), options)


def _from_image_folder(dataset: Any, options: PrepareOptions) -> Pictures:
    """The files of torchvision's `ImageFolder`, without its transforms."""
    if dataset.transform is not None:
        log.warning("the transforms of the ImageFolder are left out: its files are prepared as the model takes them")
    files = [os.path.relpath(path, dataset.root) for path, _ in dataset.samples]
    names = [dataset.classes[number] for _, number in dataset.samples]
    return from_paths(files, names, "the ImageFolder", Path(dataset.root), options)

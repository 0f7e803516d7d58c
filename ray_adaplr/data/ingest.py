"""`prepare`: finds out what it is given, decodes it on all cores, and writes an image store.

A shard is the unit of work: one process decodes it, writes it, and notes it in `.partial/`, so that a killed run goes
on where it stopped and ends with the same bytes, in a folder or in a bucket. Memory holds one shard (at most 64 MB)
per process, however large the set.
"""

import csv
import io
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np

from ray_adaplr.data import store_writer as writer
from ray_adaplr.data.benchmarks import Benchmark, named_domain
from ray_adaplr.data.files import find_pictures
from ray_adaplr.data.manifest import ShardRecord, cache_folder, parse_manifest
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.parallel import cores, run_tasks
from ray_adaplr.data.pictures import UNDECODABLE, Aspect, Pictures, decode, why_undecodable
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.store import REJECTED, ImageStore
from ray_adaplr.errors import InputError, first_line
from ray_adaplr.storage.digests import blake2
from ray_adaplr.storage.folder import Folder, absolute, is_uri
from ray_adaplr.storage.layout import STORE_MANIFEST
from ray_adaplr.storage.lease import hold
from ray_adaplr.storage.ownership import claim

PARTIAL = ".partial"
RECIPE = "recipe.json"

Note = dict[str, Any]  # on a shard: number, images, its file's record or None, and the rows rejected with reasons


def prepare(
    what: str, out: str, options: PrepareOptions = PrepareOptions(), progress: Progress | None = None
) -> ImageStore:
    """Makes an image store of what it is given. The same call again continues where a killed one stopped.

    Args:
        what: a folder of class folders, a flat folder, a list of `path label` lines, CSV, npz, Parquet, or the
            published files of MNIST, USPS, SVHN, MNIST-M, Synthetic-Digits, PACS, VisDA-C and DomainNet; or a
            benchmark's domain, such as `digit5/mnist`, below `root`, with the size, classes and subset of the paper's
            protocol.
        out: folder of the store, or a URI such as s3://bucket/stores/photo.
        options: size, classes, limits and how to work.
        progress: shows how many images are done.
    """
    if not os.path.exists(what) and not is_uri(what) and (named := named_domain(what)):
        what, options = _by_protocol(what, *named, options)
    return prepare_pictures(find_pictures(what, options), str(what), out, options, progress)


def prepare_pictures(
    pictures: Pictures, what: str, out: str, options: PrepareOptions, progress: Progress | None = None
) -> ImageStore:
    """Makes a store of pictures that were found; `what` is their name in sentences and in the store's recipe."""
    progress = progress or Progress(quiet=True)
    count = max(1, round(min(options.limit or len(pictures), len(pictures)) * options.scale))
    if count < len(pictures):
        pictures = pictures.subset(np.sort(np.random.default_rng(options.seed).permutation(len(pictures))[:count]))
    if len(set(pictures.ids)) != len(pictures):
        raise InputError(f"{what} names an image more than once; every image must have its own path or id")
    pictures = replace(pictures, domain=options.domain or pictures.domain)
    shape = pictures.shape(options)
    per_shard = _images_per_shard(len(pictures), int(np.prod(shape)))
    recipe = {
        "what": what,
        "images": pictures.digest(),
        "changed": pictures.changed(),
        "source": pictures.source(),
        "shape": list(shape),
        "aspect": options.aspect,
        "domain": pictures.domain,
        "classes": pictures.classes,
        "images_a_shard": per_shard,
    }
    with ExitStack() as stack:
        try:
            folder = Folder(out)
            if _is_made(folder, recipe):
                if (folder / PARTIAL).names():  # what a kill between the manifest and the end has left
                    with suppress(InputError, OSError), hold(folder) as held:
                        held.delete(PARTIAL)  # unless another is at it, or the folder is fixed
                return writer.open_written(folder)
            if folder.exists(STORE_MANIFEST):
                raise writer.OtherStore(out, blake2(repr(recipe).encode(), size=6))
            writer.new_store_folder(out)
            written = sum(size for name, size in _sizes(folder).items() if name.endswith(".arrow"))
            writer.check_disk(folder, len(pictures) * int(np.prod(shape)) - written)
            folder = stack.enter_context(hold(folder))
            if _is_made(folder, recipe):  # by somebody who was faster
                return writer.open_written(folder)
            writer.new_store_folder(out)
            _begin(folder, recipe)
        except OSError as error:
            raise InputError(f"{out} cannot be written to ({first_line(error)}); choose another --out") from error
        notes = _make_shards(pictures, folder, shape, per_shard, options, progress)
        rows = [(row, reason) for note in notes for row, reason in note["rejected"]]
        truth = None if pictures.labels is None else np.delete(pictures.labels, [row for row, _ in rows])
        shards = [ShardRecord(**note["shard"]) for note in notes if note["shard"]]
        left_out = len(rows) + len(pictures.left_out)
        about = writer.About(shape, pictures.classes, pictures.domain, pictures.split, recipe, left_out)
        store = writer.finish_store(folder, shards, about, truth)
        folder.delete(PARTIAL)
        return store


def _is_made(folder: Folder, recipe: dict[str, Any]) -> bool:
    """Whether the store of this very recipe is there."""
    if not folder.exists(STORE_MANIFEST):
        return False
    return _same(parse_manifest(folder.read(STORE_MANIFEST), folder.path(STORE_MANIFEST)).recipe, recipe)


def _by_protocol(what: str, benchmark: Benchmark, domain: str, options: PrepareOptions) -> tuple[str, PrepareOptions]:
    """The place of a benchmark's domain, and the options, with those of the paper's protocol where none are given."""
    if not (root := options.root or os.environ.get("ADAPLR_DATA")):
        raise InputError(f"{what} is a benchmark's domain; say where its data is, --root to prepare, or ADAPLR_DATA")
    place = benchmark.locate(domain, options.split, root)
    protocol = {
        "root": None,
        "size": options.size or benchmark.size,
        "channels": options.channels or benchmark.channels,
        "classes": options.classes or tuple(benchmark.classes),
        "subset": options.subset or benchmark.subset,
        "domain": options.domain or domain,
        "limit": options.limit or benchmark.limit(domain, options.split or next(iter(benchmark.splits), None)),
    }
    return str(place), options.model_copy(update=protocol)


def _make_shards(
    pictures: Pictures,
    folder: Folder,
    shape: tuple[int, int, int],
    per_shard: int,
    options: PrepareOptions,
    progress: Progress,
) -> list[Note]:
    """Makes the shards that an earlier run has not made; InputError when too many images cannot be decoded."""
    share = options.max_rejected
    allowed = max(len(pictures) * 0.01, 10) if share is None else len(pictures) * share
    starts = range(0, len(pictures), per_shard)
    notes = _notes(folder)
    done = sum(note["images"] for note in notes.values())
    rejected = sum(len(note["rejected"]) for note in notes.values())
    progress.stage("prepare", len(pictures), done)
    with _workplace(folder, options.on_ray) as place:
        tasks = (
            (place.uri, number, start, pictures.subset(np.arange(start, end)), shape, options.aspect)
            for number, start in enumerate(starts)
            if number not in notes and (end := min(start + per_shard, len(pictures)))
        )
        workers = min(options.workers or cores(options.on_ray), len(starts))
        for note in run_tasks(make_shard, tasks, workers, options.on_ray):
            _hand_over(note, place, folder)
            notes[note["number"]] = note
            done, rejected = done + note["images"], rejected + len(note["rejected"])
            progress.step(done, rejected=str(rejected))
            if rejected > allowed:
                break
    ordered = [notes[number] for number in sorted(notes)]
    _write_rejected(folder, pictures, ordered)
    if rejected > allowed:
        raise InputError(
            f"{rejected} of the first {done} images cannot be decoded and {allowed:.0f} are allowed;"
            f" see {folder.path(REJECTED)}, repair them, or give a larger --max-rejected to prepare"
        )
    if rejected == len(pictures):
        raise InputError(f"none of the {rejected} images can be decoded; see {folder.path(REJECTED)}")
    return ordered


@contextmanager
def _workplace(folder: Folder, on_ray: bool) -> Iterator[Folder]:
    """Where processes write their shards: the store's folder, or, for a bucket, a folder on this machine.

    A forked process must not use the connections to a bucket that it inherits, so that this process does the uploads;
    a Ray task has connections of its own.
    """
    if folder.is_local or on_ray:
        yield folder
        return
    scratch = cache_folder() / f"prepare-{os.getpid()}"
    try:
        yield Folder(scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _hand_over(note: Note, place: Folder, folder: Folder) -> None:
    """Takes a shard, and then the note on it, from the place of work to the store's folder."""
    if place is folder:
        return
    names = [note["shard"]["file"]] if note["shard"] else []
    for name in [*names, f"{PARTIAL}/{note['number']:05d}.json"]:
        place.copy(name, folder)
        place.delete(name)


def make_shard(
    place: str, number: int, start: int, pictures: Pictures, shape: tuple[int, int, int], aspect: Aspect
) -> Note:
    """Decodes and writes a shard of these pictures, then the note on it; `start` is the first one's row in the set."""
    folder = Folder(place)
    images = np.empty((len(pictures), *shape), np.uint8)
    ids: list[str] = []
    rejected: list[tuple[int, str]] = []
    for row in range(len(pictures)):
        try:
            images[len(ids)] = decode(pictures.images[row], shape[0], shape[2], aspect)
            ids.append(pictures.ids[row])
        except UNDECODABLE as error:
            rejected.append((start + row, why_undecodable(error)))
    shard = writer.write_shard(folder, number, ids, images[: len(ids)]).model_dump() if ids else None
    note: Note = {"number": number, "images": len(pictures), "shard": shard, "rejected": rejected}
    folder.write_json(f"{PARTIAL}/{number:05d}.json", note)
    return note


def _images_per_shard(total: int, image_bytes: int) -> int:
    """Enough shards to keep many cores busy (64), but none below 256 images or 1 MB, nor above 64 MB."""
    least = max(256, (1 << 20) // image_bytes)
    return max(1, min(writer.SHARD_BYTES // image_bytes, max(least, -(-total // 64))))


def _begin(folder: Folder, recipe: dict[str, Any]) -> None:
    """Keeps the shards of an earlier run of the same recipe; clears those of another."""
    claim(folder, "store")
    partial = folder / PARTIAL
    if not partial.exists(RECIPE) or not _same(partial.read_json(RECIPE), recipe):
        folder.delete(PARTIAL)
        partial.write_json(RECIPE, recipe)
    for leftover in folder.names():
        if leftover.startswith(".part-"):
            folder.delete_file(leftover)


def _same(made: Any, wanted: dict[str, Any]) -> bool:
    """Whether two recipes are the same, however the place of the images is spelled: `photos/` is `./photos`."""
    if not isinstance(made, dict):
        return False
    places = [absolute(str(recipe.get("what"))) for recipe in (made, wanted)]
    return places[0] == places[1] and {**made, "what": ""} == {**wanted, "what": ""}


def _notes(folder: Folder) -> dict[int, Note]:
    """The notes on shards that are whole, by number."""
    partial, sizes = folder / PARTIAL, _sizes(folder)
    found: dict[int, Note] = {}
    for name in partial.names():
        if re.fullmatch(r"\d{5,}\.json", name):
            note = partial.read_json(name)
            shard = note["shard"]
            if not shard or sizes.get(shard["file"]) == shard["bytes"]:
                found[note["number"]] = note
    return found


def _sizes(folder: Folder) -> dict[str, int]:
    return {info.base_name: info.size for info in folder.infos() if info.is_file}


def _write_rejected(folder: Folder, pictures: Pictures, notes: list[Note]) -> None:
    """`rejected.csv`, only when there is something to list."""
    rows = [(pictures.ids[row], reason) for note in notes for row, reason in note["rejected"]]
    rows += pictures.left_out
    if rows:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([("id", "reason"), *rows])
        folder.write(REJECTED, text.getvalue().encode(errors="replace"))
    else:
        folder.delete(REJECTED)

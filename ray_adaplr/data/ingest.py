"""`prepare`: finds out what it is given, decodes it on all cores, and writes an image store.

A shard is the unit of work: one process decodes it, writes it, and notes it in `.partial/`, so that a killed run goes
on where it stopped and ends with the same bytes. Memory holds a shard (at most 64 MB) a process, however large the set.
"""

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import UnidentifiedImageError

from ray_adaplr.data.benchmarks import Benchmark, named_domain
from ray_adaplr.data.decode import UNDECODABLE, Aspect, decode
from ray_adaplr.data.manifest import MANIFEST, read_manifest
from ray_adaplr.data.options import PrepareOptions
from ray_adaplr.data.parallel import cores, run_tasks
from ray_adaplr.data.pictures import Pictures
from ray_adaplr.data.progress import Progress
from ray_adaplr.data.recognise import blended, find_pictures
from ray_adaplr.data.store import ImageStore
from ray_adaplr.data.store_writer import (
    SHARD_BYTES,
    About,
    finish_store,
    new_store_folder,
    write_shard,
    write_text_atomically,
)
from ray_adaplr.errors import InputError

PARTIAL = ".partial"
REJECTED = "rejected.csv"


def prepare(
    what: str, out: str, options: PrepareOptions = PrepareOptions(), progress: Progress | None = None
) -> ImageStore:
    """Makes an image store of what it is given. The same call again goes on where a killed one stopped.

    Args:
        what: a folder of class folders, a flat folder, a list of `path label` lines, npz, Parquet, or the published
            files of MNIST, USPS, SVHN, MNIST-M, Synthetic-Digits, PACS, VisDA-C and DomainNet; or a benchmark's domain,
            such as `digit5/mnist`, below `root`, with the size, classes and subset of the paper's protocol.
        out: folder of the store.
        options: size, classes, limits and how to work.
        progress: shows how many images are done.
    """
    if not Path(what).exists() and (named := named_domain(what)):
        what, options = _by_protocol(what, *named, options)
    source = find_pictures(what, options)
    if options.backgrounds is not None:
        source = blended(source, options.backgrounds, options.seed)
    count = max(1, round(min(options.limit or len(source), len(source)) * options.scale))
    if count < len(source):
        source = source.subset(np.sort(np.random.default_rng(options.seed).permutation(len(source))[:count]))
    if len(set(source.ids)) != len(source):
        raise InputError(f"{what} names an image more than once; every image must have its own path or id")
    own_size, own_channels = source.look()
    source = replace(source, domain=options.domain or source.domain)
    size = options.size or own_size
    return _write(source, Path(out), str(what), (size, size, options.channels or own_channels), options, progress)


def _by_protocol(what: str, benchmark: Benchmark, domain: str, options: PrepareOptions) -> tuple[str, PrepareOptions]:
    """The place of a benchmark's domain, and the options, with those of the paper's protocol where none are given."""
    if options.root is None:
        raise InputError(f"{what} is a benchmark's domain; name the folder of its data with --root")
    place = benchmark.locate(domain, options.split, options.root)
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


def _write(
    source: Pictures,
    folder: Path,
    what: str,
    shape: tuple[int, int, int],
    options: PrepareOptions,
    progress: Progress | None,
) -> ImageStore:
    """Decodes a source into a store of images of `shape`."""
    per_shard = _images_per_shard(len(source), shape[0] * shape[1] * shape[2])
    recipe = {
        "what": what,
        "images": source.digest(),
        "shape": list(shape),
        "aspect": options.aspect,
        "domain": source.domain,
        "classes": source.classes,
        "images_a_shard": per_shard,
    }
    if (folder / MANIFEST).exists() and read_manifest(folder).recipe == recipe:
        return ImageStore.open(str(folder))
    new_store_folder(folder)
    _begin(folder, recipe)
    share = options.max_rejected
    allowed = max(len(source) * 0.01, 10) if share is None else len(source) * share

    notes = []
    done = rejected = 0
    starts = range(0, len(source), per_shard)
    tasks = (
        (
            folder,
            number,
            start,
            source.subset(np.arange(start, min(start + per_shard, len(source)))),
            shape,
            options.aspect,
        )
        for number, start in enumerate(starts)
    )
    if progress:
        progress.stage("prepare", len(source))
    for note in run_tasks(make_shard, tasks, min(options.workers or cores(), len(starts)), options.on_ray):
        notes.append(note)
        done, rejected = done + note["images"], rejected + len(note["rejected"])
        if progress:
            progress.step(done, rejected=str(rejected))
        if rejected > allowed:
            break
    notes.sort(key=lambda note: note["number"])
    _write_rejected(folder, source, notes)
    if rejected > allowed:
        raise InputError(
            f"{rejected} of the first {done} images cannot be decoded and {allowed:.0f} are allowed;"
            f" see {folder / REJECTED}, mend them or raise --max-rejected"
        )
    if rejected == len(source):
        raise InputError(f"none of the {len(source)} images of {what} can be decoded; see {folder / REJECTED}")
    left_out = [row for note in notes for row, _ in note["rejected"]]
    truth = None if source.labels is None else np.delete(source.labels, left_out)
    written = [note["shard"] for note in notes if note["shard"]]
    about = About(source.classes, source.domain, source.split, recipe)
    store = finish_store(folder, written, shape, about, truth)
    shutil.rmtree(folder / PARTIAL)
    return store


def make_shard(
    folder: Path, number: int, start: int, source: Pictures, shape: tuple[int, int, int], aspect: Aspect
) -> dict[str, Any]:
    """Decodes and writes a shard, or finds it written before.

    Args:
        folder: the store's.
        number: of the shard.
        start: row of the shard's first image in the whole set.
        source: the images of this shard.
        shape: of the decoded images.
        aspect: as in `prepare`.

    Returns:
        The note on the shard: its number, its images, its file's record, and the rows rejected with reasons.
    """
    note_file = folder / PARTIAL / f"{number:05d}.json"
    if note_file.exists():
        note = json.loads(note_file.read_text(encoding="utf-8"))
        shard = note["shard"]
        if not shard or _size(folder / shard["file"]) == shard["bytes"]:
            return note
    images = np.empty((len(source), *shape), np.uint8)
    ids: list[str] = []
    rejected: list[tuple[int, str]] = []
    for row in range(len(source)):
        try:
            images[len(ids)] = decode(source.images[row], shape[0], shape[2], aspect)
            ids.append(source.ids[row])
        except UNDECODABLE as error:
            rejected.append((start + row, _reason(error)))
    written = write_shard(folder, number, ids, images[: len(ids)]) if ids else None
    note = {"number": number, "images": len(source), "shard": written, "rejected": rejected}
    write_text_atomically(note_file, json.dumps(note))
    return note


def _images_per_shard(total: int, image_bytes: int) -> int:
    """Enough shards to keep many cores busy (64), but none below 256 images or 1 MB, nor above 64 MB."""
    least = max(256, (1 << 20) // image_bytes)
    return max(1, min(SHARD_BYTES // image_bytes, max(least, -(-total // 64))))


def _begin(folder: Path, recipe: dict[str, Any]) -> None:
    """Keeps the shards of an earlier run of the same recipe; clears those of another."""
    partial = folder / PARTIAL
    note = partial / "recipe.json"
    text = json.dumps(recipe, sort_keys=True)
    if not note.exists() or note.read_text(encoding="utf-8") != text:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write_text_atomically(note, text)
    for leftover in folder.glob(".*.tmp"):
        leftover.unlink()


def _write_rejected(folder: Path, source: Pictures, notes: list[dict[str, Any]]) -> None:
    """`rejected.csv`, only when there is something to list."""
    rows = [(source.ids[row], reason) for note in notes for row, reason in note["rejected"]]
    (folder / REJECTED).unlink(missing_ok=True)
    if rows:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([("id", "reason"), *rows])
        write_text_atomically(folder / REJECTED, text.getvalue())


def _reason(error: BaseException) -> str:
    """Why an image was rejected, in words that do not depend on the machine."""
    if isinstance(error, UnidentifiedImageError):
        return "not an image of a known format"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1

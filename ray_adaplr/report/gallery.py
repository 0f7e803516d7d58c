"""The images behind a run, as far as they can be reached: the gallery, for a person to check, and true classes."""

import base64
import io
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError, counted
from ray_adaplr.storage.run_reader import RunFolder

UNREADABLE = (InputError, OSError, ValueError, LookupError, TypeError, pa.ArrowException)  # a store moved or damaged
MOST_CHANGED, MOST_UNSURE = 600, 120
IMAGE_BYTES = 3_000_000  # of data URIs, so that the page stays below 5 MB
SIDES = (256, 192, 128, 96)  # pixels kept of an image's longer side: the most that leaves room for ENOUGH images
ENOUGH = 240
PIXEL_ART = 48  # images up to this side are kept bit by bit (PNG) and shown with sharp pixels


def target_images(run: RunFolder) -> ImageStore | None:
    """The images of the run; None where they cannot be reached."""
    try:
        return ImageStore.open(*run.targets)
    except UNREADABLE:
        return None


def true_classes(run: RunFolder) -> np.ndarray | None:
    """The true class of each row of the run's labels, int64 [n], for diagnostics.

    None when the run itself had no ground truth, or the images that it had are no longer there.
    """
    if run.labels is None or not run.has_truth:
        return None
    store = target_images(run)
    try:
        truth = store.ground_truth() if store else None
        if store is None or truth is None or len(store) != len(run.labels):
            return None
        same_images = pc.all(pc.equal(pc.cast(store.ids, pa.string()), run.labels["id"])).as_py()
    except UNREADABLE:
        return None
    return truth if same_images else None


@dataclass(frozen=True)
class Gallery:
    """What the gallery shows; without cards its message says why there are none."""

    message: str
    cards: list[dict[str, Any]] = field(default_factory=list)
    pairs: list[dict[str, Any]] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    changed: int = 0  # cards of changed labels
    sharp: bool = False


def gather_gallery(run: RunFolder) -> Gallery:
    """The gallery of a run, in whatever state it is."""
    if run.labels is None:
        return Gallery("The labels are not written yet; the gallery comes with them.")
    before, after = (run.labels[name].to_numpy() for name in ("initial_label", "refined_label"))
    total = int((before != after).sum())
    target = target_images(run)
    changed = choose_changed(before, after, MOST_CHANGED)
    unsure = np.argsort(run.labels["confidence"].to_numpy(), kind="stable")[:MOST_UNSURE]
    wanted = np.array(list(dict.fromkeys([*unsure.tolist(), *changed.tolist()])), np.int64)
    try:
        rows, images = _read_images(run, target, wanted) if target else (wanted[:0], [])
    except UNREADABLE:
        target = None
    if target is None:
        places = ", ".join(run.targets) or "the target's store"
        return Gallery(
            f"{counted(total, 'label')} changed. Their images could not be read from {places}; "
            "write the report again where it can be reached."
        )
    is_changed, is_unsure = np.isin(rows, changed), np.isin(rows, unsure)
    shown = int(is_changed.sum())
    message = f"All {total:,} changed labels are shown"
    if shown < total:
        message = f"{shown:,} of {total:,} changed labels are shown, drawn in turn from every class pair"
    if total == 0:
        message = "No label changed"
    message += f"{', and' if total else ': here are'} the {int(is_unsure.sum())} least sure ones."
    views = [
        " ".join(name for name, member in (("changed", one), ("unsure", other)) if member)
        for one, other in zip(is_changed, is_unsure)
    ]
    return Gallery(
        message=message,
        cards=_cards(run, rows, images, views),
        pairs=_pairs(run, before[rows], after[rows]),
        classes=run.classes,
        changed=shown,
        sharp=max(target.image_shape[:2]) <= PIXEL_ART,
    )


def choose_changed(before: np.ndarray, after: np.ndarray, most: int) -> np.ndarray:
    """Rows of changed labels, drawn in turn from every class pair, so that rare changes are seen too."""
    rows = np.random.default_rng(0).permutation(np.flatnonzero(before != after))
    pairs = before[rows].astype(np.int64) * (int(after.max(initial=0)) + 1) + after[rows]
    by_pair = np.argsort(pairs, kind="stable")
    _, starts, counts = np.unique(pairs[by_pair], return_index=True, return_counts=True)
    turn = np.empty(len(rows), np.int64)
    turn[by_pair] = np.arange(len(rows)) - np.repeat(starts, counts)
    return rows[np.argsort(turn, kind="stable")[:most]]


def data_uri(image: np.ndarray, side: int) -> str:
    """A uint8 image [h, w, c] as a data URI, shrunk to `side` pixels where it is larger."""
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    kind = "png" if max(picture.size) <= PIXEL_ART else "jpeg"
    picture.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=85)  # PNG has no such choice
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _read_images(run: RunFolder, target: ImageStore, wanted: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Of the wanted rows those that the store has and the page has room for, and their images."""
    assert run.labels is not None
    position = pc.index_in(run.labels["id"].take(pa.array(wanted)), value_set=pc.cast(target.ids, pa.string()))
    rows, where = wanted[position.is_valid().to_numpy()], position.drop_null().to_numpy()
    side = _fitting_side([target.read(where[i : i + 1])[0] for i in range(min(8, len(where)))], len(where))
    images, room = [], IMAGE_BYTES
    for index in where:
        uri = data_uri(target.read(np.array([index]))[0], side)
        room -= len(uri)
        if room < 0:
            break
        images.append(uri)
    return rows[: len(images)], images


def _fitting_side(samples: list[np.ndarray], count: int) -> int:
    """The largest side at which all images, or ENOUGH of them, fit on the page, judged by a few."""
    for side in SIDES:
        size = np.mean([len(data_uri(image, side)) for image in samples]) if samples else 0
        if size * min(count, ENOUGH) <= IMAGE_BYTES:
            return side
    return SIDES[-1]


def _cards(run: RunFolder, rows: np.ndarray, images: list[str], views: list[str]) -> list[dict[str, Any]]:
    assert run.labels is not None
    # A run with a warm-up relabels nothing in epoch 0: what is dated so was changed before, by warm start or file.
    first_epoch = "at the start" if run.settings.get("warmup") else "epoch 1"
    cards = []
    for record, image, view in zip(run.labels.take(pa.array(rows)).to_pylist(), images, views):
        before, after, epoch = record["initial_label"], record["refined_label"], record["last_changed_epoch"]
        when = {-1: "never changed", 0: first_epoch}.get(epoch, f"epoch {epoch + 1}")
        card = {"id": record["id"], "image": image, "before": before, "after": after, "was": run.classes[before]}
        card |= {"now": run.classes[after], "confidence": record["confidence"], "epoch": epoch}
        cards.append(card | {"when": when, "views": view})
    return cards


def _pairs(run: RunFolder, before: np.ndarray, after: np.ndarray) -> list[dict[str, Any]]:
    """The class pairs among the cards, the most frequent first."""
    choices = []
    for (old, new), count in Counter(sorted(zip(before.tolist(), after.tolist()))).most_common():
        text = f"{run.classes[old]} → {run.classes[new]}" if old != new else f"{run.classes[new]}, unchanged"
        choices.append({"value": f"{old}-{new}", "text": text, "count": count})
    return choices

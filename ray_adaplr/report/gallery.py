"""The gallery: changed labels and the least sure ones with their images, for a person to check."""

import base64
import io
import json
from html import escape

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from ray_adaplr.data.store import ImageStore
from ray_adaplr.errors import InputError
from ray_adaplr.storage.run_reader import RunFolder

MOST_CHANGED, MOST_UNSURE = 600, 120
IMAGE_BYTES = 3_000_000  # of data URIs, so that the page stays below 5 MB
LARGEST_SIDE = 96
PIXEL_ART = 48  # images up to this side are kept bit by bit (PNG) and shown with sharp pixels


def target_images(run: RunFolder) -> ImageStore | None:
    """The images of the run, where they can still be reached."""
    try:
        return ImageStore.open(*(str(path) for path in run.origin.get("target") or []))
    except (InputError, OSError, ValueError):
        return None


def choose_changed(before: np.ndarray, after: np.ndarray, most: int) -> np.ndarray:
    """Rows of changed labels, drawn in turn from every class pair, so that rare changes are seen too."""
    rows = np.random.default_rng(0).permutation(np.flatnonzero(before != after))
    pairs = before[rows].astype(np.int64) * (int(after.max(initial=0)) + 1) + after[rows]
    by_pair = np.argsort(pairs, kind="stable")
    _, starts, counts = np.unique(pairs[by_pair], return_index=True, return_counts=True)
    turn = np.empty(len(rows), np.int64)
    turn[by_pair] = np.arange(len(rows)) - np.repeat(starts, counts)
    return rows[np.argsort(turn, kind="stable")[:most]]


def data_uri(image: np.ndarray) -> str:
    """A uint8 image [h, w, c] as a small data URI."""
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    small = max(picture.size) <= PIXEL_ART
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG") if small else picture.save(buffer, "JPEG", quality=85)
    text = base64.b64encode(buffer.getvalue()).decode()
    return f"data:image/{'png' if small else 'jpeg'};base64,{text}"


def gallery_section(run: RunFolder) -> str:
    """The gallery's HTML, or a sentence that says why there is none."""
    if run.labels is None:
        return "<p>The labels are not written yet; the gallery comes with them.</p>"
    before, after = (run.labels[name].to_numpy() for name in ("initial_label", "refined_label"))
    total = int((before != after).sum())
    target = target_images(run)
    if target is None:
        places = ", ".join(map(str, run.origin.get("target") or [])) or "the target's store"
        return (
            f"<p>{total:,} labels changed. Their images could not be read from {escape(places)}; "
            "write the report again where it can be reached.</p>"
        )
    changed = choose_changed(before, after, MOST_CHANGED)
    unsure = np.argsort(run.labels["confidence"].to_numpy(), kind="stable")[:MOST_UNSURE]
    rows = np.array(list(dict.fromkeys([*unsure, *changed])), np.int64)
    position = pc.index_in(run.labels["id"].take(pa.array(rows)), value_set=pc.cast(target.ids, pa.string()))
    rows, where = rows[position.is_valid().to_numpy()], position.drop_null().to_numpy()
    uris, room = [], IMAGE_BYTES
    for index in where:
        uri = data_uri(target.read(np.array([index]))[0])
        room -= len(uri)
        if room < 0:
            break
        uris.append(uri)
    rows = rows[: len(uris)]
    cards = _cards(run, rows, uris, set(changed.tolist()), set(unsure.tolist()))
    shown = int(np.isin(rows, changed).sum())
    scope = "All" if shown == total else f"{shown:,} of"
    sampled = "" if shown == total else ", drawn in turn from every class pair"
    names = json.dumps(run.classes).replace("<", "\\u003c")
    return f"""
<p>{scope} {total:,} changed labels are shown{sampled}, and the {int(np.isin(rows, unsure).sum())} least sure ones.
Press <kbd>Enter</kbd> where the new label is right, <kbd>O</kbd> where the old one was, <kbd>L</kbd> for another label,
<kbd>U</kbd> to undo; arrow keys move. Then download the corrections and give them to
<code>adapt --labels corrections.csv</code>, which holds them fixed.</p>
{_toolbar(run, rows, before, after)}
<ul class="cards{" sharp" if max(target.image_shape[:2]) <= PIXEL_ART else ""}" id="cards">{"".join(cards)}</ul>
<button type="button" id="more" hidden>Show more</button>
<script type="application/json" id="classes">{names}</script>"""


def _cards(run: RunFolder, rows: np.ndarray, uris: list[str], changed: set[int], unsure: set[int]) -> list[str]:
    assert run.labels is not None
    # A run with a warm-up relabels nothing in epoch 0: what is dated so was changed before, by warm start or file.
    first_epoch = "at the start" if run.settings.get("warmup") else "epoch 0"
    cards = []
    for record, row, uri in zip(run.labels.take(pa.array(rows)).to_pylist(), rows.tolist(), uris):
        old, new, epoch = record["initial_label"], record["refined_label"], record["last_changed_epoch"]
        was, now, identity = (escape(text) for text in (run.classes[old], run.classes[new], record["id"]))
        views = " ".join(name for name, members in (("changed", changed), ("unsure", unsure)) if row in members)
        when = {-1: "never changed", 0: first_epoch}.get(epoch, f"epoch {epoch}")
        chips = f'<button type="button" tabindex="-1" data-label="{new}" title="{now} is right">{now}</button>'
        if old != new:
            first = f'<button type="button" tabindex="-1" data-label="{old}" title="{was} was right">{was}</button>'
            chips = f'{first}<span aria-hidden="true">→</span>{chips}'
        sure = record["confidence"]
        cards.append(
            f'<li class="card" tabindex="-1" data-id="{identity}" data-pair="{old}-{new}" data-views="{views}" '
            f'data-confidence="{sure:.4f}" data-epoch="{epoch}"><img src="{uri}" alt="" title="{identity}">'
            f'<div class="chips">{chips}</div><small>{sure:.2f} · {when}</small></li>'
        )
    return cards


def _toolbar(run: RunFolder, rows: np.ndarray, before: np.ndarray, after: np.ndarray) -> str:
    pairs, counts = np.unique(np.stack([before[rows], after[rows]]), axis=1, return_counts=True)
    options = []
    for i in np.argsort(-counts, kind="stable"):
        old, new = pairs[:, i]
        what = f"{run.classes[old]} → {run.classes[new]}" if old != new else f"{run.classes[new]}, unchanged"
        options.append(f'<option value="{old}-{new}">{escape(what)} ({counts[i]})</option>')
    return f"""<form class="toolbar" id="toolbar" hidden>
<fieldset><legend class="unseen">Which images</legend>
<label><input type="radio" name="view" value="changed" checked> Changed</label>
<label><input type="radio" name="view" value="unsure"> Least sure</label></fieldset>
<label>Class pair <select id="pair"><option value="">all</option>{"".join(options)}</select></label>
<label>Sort <select id="sort"><option value="rising">least sure first</option>
<option value="falling">surest first</option><option value="epoch">latest change first</option></select></label>
<div class="actions"><output id="status" aria-live="polite"></output>
<button type="button" id="rest">Rest is right</button>
<button type="button" id="clear">Clear</button>
<button type="button" id="download" class="main" disabled>Download CSV</button></div></form>"""

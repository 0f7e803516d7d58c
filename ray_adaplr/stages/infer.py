"""First labels: of each target by itself, from all source models, whose warm starts run side by side."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.engine import Engine
from ray_adaplr.stages.first_labels import Glance, Inference, Warmed
from ray_adaplr.stages.guests import name_of, parts_of
from ray_adaplr.stages.plan import spared
from ray_adaplr.storage.inferred import Inferred


def infer(
    models: list[Classifier],
    plan: Inference,
    engine: Engine,
    guests: Sequence[Classifier] = (),
    on_epoch: Callable[[int], None] | None = None,
) -> Inferred:
    """Label every image: argmax of the source models' summed logits (equations 4 and 5), then start better.

    `on_epoch` gets the number of warm-start epochs done so far, of all models and targets. Without a shift there is
    nothing to warm.
    """
    targets = plan.by_target(models[0].spec.num_classes)
    seen = [engine.ask(target.look, models, guests, does="looks at the images") for target in targets]
    if guests:
        seen = [_with_guests(t, targets[t], seen[t], models, guests, engine) for t in range(len(targets))]
    targets = [replace(t, config=spared(t.config)) if glance.spared else t for t, glance in zip(targets, seen)]
    warmed = [[Warmed(source) for source in glance.sources] for glance in seen]
    if targets[0].config.warm_start != "off":
        starts = list(itertools.product(range(len(targets)), range(len(models))))
        alone = [replace(seen[t], sources=[seen[t].sources[s]]) for t, s in starts]
        calls = [(targets[t], number, models[s], alone[number]) for number, (t, s) in enumerate(starts)]
        done = [0] * len(calls)
        for number, item in engine.side_by_side(Inference.warm_start, calls, does="makes the warm start"):
            if isinstance(item, Warmed):
                t, s = starts[number]
                warmed[t][s] = item
                done[number] = targets[t].config.warm_start_epochs  # one that ended before a kill yields no epoch
                continue
            done[number] = item + 1
            if on_epoch:
                on_epoch(sum(done))
    labelled = [engine.ask(t.label, *known, does="labels the images") for t, *known in zip(targets, seen, warmed)]
    return Inferred.together(labelled, [ImageStore.open(*target.store_paths).domains[0] for target in targets])


def _with_guests(
    number: int, target: Inference, seen: Glance, models: list[Classifier], guests: Sequence[Classifier], engine: Engine
) -> Glance:
    """What is seen of a target by number, with the guests that stay; all seats show them the images, part by part."""
    if seen.spared:
        return seen
    looks = [(g, rows) for g in seen.asked for rows in parts_of(len(seen.probs))]
    calls = [(target, guests[g], rows, f"features-{number}-{g}-{rows.start}") for g, rows in looks]
    shown = dict(engine.side_by_side(Inference.show, calls, does="shows the images to guests") if calls else ())
    features = [[shown[call] for call, (of, _) in enumerate(looks) if of == g] for g in seen.asked]
    seen = engine.ask(target.invite, seen, [name_of(guests[g]) for g in seen.asked], features, does="judges the guests")
    as_if_nobody_came = not seen.guests and target.config.warm_start != "centroids"
    return replace(seen, sources=models, enlarged=False) if as_if_nobody_came else seen


def with_given(inferred: Inferred, given: np.ndarray | None) -> Inferred:
    """Start from labels of a file, int64 [n] with -1 where none.

    A label for every image is another method's output, to be refined; labels for some images are a person's
    corrections and stay as they are.
    """
    if given is None:
        return inferred
    known = given >= 0
    start = np.where(known, given, inferred.start_labels)
    if known.all():
        voted = inferred.start_probs  # with the labels of the file as one more voter
        both = None if voted is None else (voted + np.eye(voted.shape[1], dtype=np.float32)[start]) / 2
        return replace(inferred, start_labels=start, warm=False, start_probs=both)
    return replace(inferred, start_labels=start, fixed=known)

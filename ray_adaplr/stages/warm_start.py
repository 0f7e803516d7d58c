"""The warm start: the source model trains a little on the target's images, without labels, and is checked for harm."""

import copy
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ray_adaplr.config import Config
from ray_adaplr.core.centroids import NOTHING_KNOWN, Outlook, Voter, vote, whitened
from ray_adaplr.core.learner import Learner, Workplace
from ray_adaplr.core.models import Classifier
from ray_adaplr.core.objectives import information_maximisation_and_vote, unsureness
from ray_adaplr.core.predict import reestimate_batchnorm
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine.checkpoint import load_state, save_state
from ray_adaplr.engine.training import warm_training
from ray_adaplr.stages.views import ImageSource, clean_logits, features_and_logits

VOTE_WEIGHT = 2.0  # of the voted labels beside information maximisation
VOTE_KEPT = 0.65  # share of the earlier looks in the voted labels
LOOK_EVERY = 2  # epochs that are trained towards the labels of one look: looking takes as long as a third of an epoch
BATCHNORM_SHARES = (0.3, 0.7, 1.0)  # of the target's statistics, tried in this order
LEANING_SHARE = 0.3
"""Of the target's statistics, for the first look at photographs. PACS, 150 images, vote at 1.5 times the size, percent
right with .3 and .6: art→photo 94 and 88, photo→cartoon 58 and 60, photo→sketch 37 and 39."""

ENOUGH_TO_JUDGE = 60
"""Labels by which a warm start is judged. PACS, 150 images, 48 warm starts: six keep at most 51 of the surest 60. Five
of them lose 3 to 10 points of right labels and one gains 8; of the surest 15 labels these six keep 13 to 15."""


def warm_start(
    model: Classifier,
    store: ImageStore,
    config: Config,
    place: Workplace,
    looks: Sequence[ImageSource],
    guests: list[Voter],
    outlook: Outlook = NOTHING_KNOWN,
    kept: tuple[str, str] | None = None,
) -> Iterator[int]:
    """Train in place with a frozen head: information maximisation, beside it voted labels.

    Each image votes for the class whose centroid it is nearest to, in the model's own features as they are now and in
    the guests', which never change. The labels are a running average of these votes, so that one epoch's mistake fades.

    Yields each epoch's number when it is done. One that was cut off goes on after the last epoch that was kept.

    Args:
        model: the source model.
        store: the target's images.
        config: `warm_start` says which.
        place: where.
        looks: the same images in the sizes that the vote looks at them in, by turns.
        guests: who vote beside the model.
        outlook: what is expected of the classes, and how much centroids have to say.
        kept: the folder and the name under which the state after each epoch is kept; None keeps none.
    """
    head = [parameter for parameter in model.head.parameters() if parameter.requires_grad]
    for parameter in head:
        parameter.requires_grad_(False)
    learner = Learner(model, store.read, np.arange(len(store)), warm_training(config), place=place)
    first, labels, device = 0, None, str(learner.device)
    if kept and (saved := load_state(*kept)):
        first, labels = saved.pop("epoch") + 1, saved.pop("labels")
        learner.load_state(saved)
    for epoch in range(first, config.warm_start_epochs):
        if epoch % LOOK_EVERY == 0 and (guests or config.warm_start == "centroids"):
            turn, size = divmod(epoch // LOOK_EVERY, len(looks))  # the running average sees all sizes, and both ways
            mirrored = (bool(config.flip and (turn + size) % 2),)
            features, logits = features_and_logits(model, looks[size], device, mirrored)
            own = [Voter([whitened(features, logits.shape[1])])] if config.warm_start == "centroids" else []
            voted = vote(logits.softmax(1), [*own, *guests], outlook)
            labels = voted if labels is None else torch.lerp(voted, labels, VOTE_KEPT)
        learner.train_epoch(epoch, information_maximisation_and_vote(labels, VOTE_WEIGHT, outlook.shares))
        if kept:
            save_state(*kept, {"epoch": epoch, "labels": labels, **learner.state()})
        yield epoch
    for parameter in head:
        parameter.requires_grad_(True)


def why_none(config: Config, sources: Sequence[Classifier]) -> str:
    """Why the warm start that the settings ask for cannot be; empty where it can, or none is asked for."""
    for source in sources if config.warm_start != "off" else ():
        head = set(map(id, source.head.parameters()))
        if all(id(parameter) in head for parameter in source.parameters() if parameter.requires_grad):
            return (
                f"The warm start is left out: it trains all but the head, and all but the head of {source.spec.name} "
                "is frozen. Call requires_grad_(True) on what may train."
            )
    return ""


def surest_kept(before: Tensor, after: Tensor) -> Tensor:
    """A label-free check of a warm start: which of the source's surest labels it leaves alone, bool [k].

    The surest tenth; of few images more, up to two fifths. Measured on six digit pairs, after BatchNorm re-estimation:
    .97 to 1.0 of a tenth where information maximisation helped (gains of .09 to .36), .85 to .88 where it did harm.
    Both are probabilities, [n, C].
    """
    confidence, labels = before.max(1)
    asked = max(len(labels) // 10, min(ENOUGH_TO_JUDGE, 2 * len(labels) // 5), 1)
    surest = confidence.argsort(descending=True, stable=True)[:asked]
    return labels[surest] == after[surest].argmax(1)


def kept_too_few(kept: Tensor, trust: float) -> bool:
    """Whether too few are kept, bool [k], for a warm start that keeps this share: in one of twenty such, at most.

    The exact binomial probability of so few or fewer, so that one image of three is no proof.
    """
    tries, found = len(kept), int(kept.sum())
    if trust in (0, 1):
        return trust == 1 and found < tries
    hits = torch.arange(found + 1, dtype=torch.float64)
    ways = math.lgamma(tries + 1) - torch.lgamma(hits + 1) - torch.lgamma(tries - hits + 1)
    return (ways + hits * math.log(trust) + (tries - hits) * math.log1p(-trust)).exp().sum().item() < 0.05


def with_target_statistics(
    model: Classifier, images: ImageSource, device: str, shares: Tensor | None = None
) -> Classifier:
    """The model or, where images and classes then tell more of each other, one with the target's BatchNorm statistics.

    How far they go towards the target's is chosen among `BATCHNORM_SHARES` by mutual information, without labels;
    `shares`, [C], are expected of the classes, else equal ones.
    """
    target = copy.deepcopy(model)
    if not reestimate_batchnorm(target, images.read, np.arange(len(images)), device):
        return model
    best, least = model, unsureness(clean_logits(model, images, device), shares)
    for share in BATCHNORM_SHARES:
        mixed = _mixed_statistics(model, target, share)
        if (found := unsureness(clean_logits(mixed, images, device), shares)) < least:
            best, least = mixed, found
    return best


def with_some_target_statistics(model: Classifier, images: ImageSource, device: str) -> Classifier:
    """The model with a little of the target's BatchNorm statistics, `LEANING_SHARE`."""
    target = copy.deepcopy(model)
    known = reestimate_batchnorm(target, images.read, np.arange(len(images)), device)
    return _mixed_statistics(model, target, LEANING_SHARE) if known else model


def _mixed_statistics(source: Classifier, target: Classifier, share: float) -> Classifier:
    """The source model with mixed BatchNorm statistics: `share` of the target's, the rest its own."""
    mixed = copy.deepcopy(source)
    for own, other in zip(mixed.modules(), target.modules()):
        if isinstance(own, nn.modules.batchnorm._BatchNorm) and own.running_mean is not None:
            mean = torch.lerp(own.running_mean, other.running_mean, share)  # type: ignore[arg-type]
            parts = ((own, 1 - share), (other, share))
            variance = sum(part * (m.running_var + (m.running_mean - mean) ** 2) for m, part in parts)  # type: ignore
            own.running_mean.copy_(mean)
            own.running_var.copy_(variance)  # type: ignore[union-attr, arg-type]
    return mixed


@torch.no_grad()
def soften(model: Classifier, logits: Tensor, sureness: float) -> None:
    """Scale the head down, in place, until the mean confidence is no higher than this; labels stay as they are.

    After a warm start a model is sure of everything, wrong labels included, and confidence then separates nothing.
    Sureness 0 is a confidence of 1/C, 1 is certainty: with two classes .8 is a bad guess already, with ten it is not.
    """
    head, by_chance = model.head, 1 / logits.shape[1]
    confidence = by_chance + sureness * (1 - by_chance)
    if not isinstance(head, nn.Linear):
        return
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        sure = (logits * middle).softmax(1).amax(1).mean() > confidence
        low, high = (low, middle) if sure else (middle, high)
    head.weight.mul_(high)
    if head.bias is not None:
        head.bias.mul_(high)

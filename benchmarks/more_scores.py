"""Label-free scores that were measured and left out of the product: SND, ClassAMI, MixVal and MaNo.

SND picks collapsed runs; ClassAMI judges no better than infomax and runs a k-means in every epoch. Both look at
the same evenly spaced `SUBSAMPLE` samples in every epoch, since their cost grows with the square of the samples.
MixVal and MaNo need the networks, and are worked out once, at the end of a run, beside the infomax of the same logits
(results/scores-networks.md): MixVal says nothing of the accuracy, MaNo picks a collapsed run, as entropy does.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ray_adaplr.core import scores

MORE_SCORES = {"snd": True, "class_ami": True}  # score -> whether more is better
AT_THE_END = {"mixval": True, "mano": True, "infomax_of_networks": True}
SUBSAMPLE = 1000
_SND_TEMPERATURE = 0.05  # of the published score
_KMEANS_ROUNDS = 10


@contextmanager
def recorded() -> Iterator[None]:
    """While it lasts, runs in this process write these scores into every epoch's metrics too."""
    label_free = scores.label_free

    def with_more(probs: Tensor) -> dict[str, float]:
        return {**label_free(probs), "snd": neighbourhood_density(probs), "class_ami": class_ami(probs)}

    scores.label_free = with_more
    try:
        yield
    finally:
        scores.label_free = label_free


def neighbourhood_density(probs: Tensor) -> float:
    """SND: mean entropy, in nats, of each sample's soft assignment to the others; high means dense clusters."""
    some = torch.nn.functional.normalize(_subsample(probs))
    alike = some @ some.T / _SND_TEMPERATURE
    alike.fill_diagonal_(-torch.inf)
    return torch.special.entr(alike.softmax(1)).sum(1).mean().item()


def class_ami(probs: Tensor) -> float:
    """ClassAMI: adjusted mutual information of the predicted classes and k-means clusters, k = C; high is good.

    The published score clusters features. Members send logits and no features, so it is the averaged log-probabilities
    that are clustered here: a linear image of the features behind a linear head.
    """
    some = _subsample(probs)
    points = some.clamp_min(1e-8).log()
    return adjusted_mutual_information(some.argmax(1), k_means(points, min(probs.shape[1], len(points))))


def mixval(predict: Callable[[Tensor], Tensor], images: Tensor, share: float = 0.55) -> float:
    """MixVal (Hu et al. 2023): does a mixture of two images get the class of the one that is the larger part of it?

    The mean of the shares that do among pairs of one predicted class and among pairs of two. Each image is mixed with
    one other, by a fixed permutation.

    Args:
        predict: logits or probabilities [n, C] of images.
        images: float [n, channels, h, w].
        share: of the first image in a mixture, as published.
    """
    other = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    labels = predict(images).argmax(1)
    kept = predict(share * images + (1 - share) * images[other]).argmax(1) == labels
    alike = labels == labels[other]
    return torch.stack([kept[pairs].float().mean() for pairs in (alike, ~alike) if pairs.any()]).mean().item()


def mano(logits: Tensor) -> float:
    """MaNo (Xie et al. 2024): the 4-norm of the predictions, as a mean over images and classes; high means sure.

    Unless the logits [n, C] are very sure (mean -log p above 5), exp is replaced by the first terms of its series.
    """
    if -logits.log_softmax(1).mean() > 5:
        probs = logits.softmax(1)
    else:
        series = 1 + logits + logits**2 / 2
        series = series - series.amin(1, keepdim=True)
        probs = series / series.sum(1, keepdim=True)
    return probs.pow(4).mean().pow(1 / 4).item()


def k_means(points: Tensor, k: int) -> Tensor:
    """Cluster of each point [n, d], int64 [n]. Starts from points far apart and draws nothing: the same each time."""
    centre = points.mean(0, keepdim=True)
    nearest = (points - centre).pow(2).sum(1)
    chosen = []
    for _ in range(k):
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, (points - points[chosen[-1]]).pow(2).sum(1))
    centres = points[chosen]
    for _ in range(_KMEANS_ROUNDS):
        cluster = torch.cdist(points, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, cluster, points)
        sizes = torch.bincount(cluster, minlength=k)[:, None]
        centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
    return cluster


def adjusted_mutual_information(one: Tensor, other: Tensor) -> float:
    """Mutual information of two labellings, int64 [n], less what chance gives, over the mean of their entropies."""
    n, height, width = len(one), int(one.max()) + 1, int(other.max()) + 1
    table = torch.bincount(one * width + other, minlength=height * width).view(height, width)
    rows, columns = table.sum(1), table.sum(0)
    h_rows, h_columns = (torch.special.entr(side.double() / n).sum() for side in (rows, columns))
    information = h_rows + h_columns - torch.special.entr(table.double() / n).sum()
    expected = _expected_information(rows[rows > 0], columns[columns > 0], n)
    room = (h_rows + h_columns) / 2 - expected
    return ((information - expected) / room).item() if room > 1e-9 else 0.0


def _expected_information(rows: Tensor, columns: Tensor, n: int) -> Tensor:
    """Mean mutual information of random labellings with these class sizes (hypergeometric cells).

    Equal sizes give equal terms, so only the distinct ones are worked out.
    """
    log_factorial = torch.lgamma(torch.arange(n + 1, dtype=torch.float64) + 1)
    a, times_a = rows.unique(return_counts=True)
    b, times_b = columns.unique(return_counts=True)
    a, b, times = a[:, None, None], b[None, :, None], (times_a[:, None] * times_b)[..., None]
    cell = torch.arange(1, int(min(rows.max(), columns.max())) + 1)[None, None]
    possible = (cell >= a + b - n) & (cell <= torch.minimum(a, b))
    above = [a, b, n - a, n - b]
    below = [torch.tensor(n), cell, a - cell, b - cell, n - a - b + cell]
    up, down = (sum(log_factorial[count.clamp(0, n)] for count in side) for side in (above, below))
    chance = torch.exp(torch.as_tensor(up - down))
    term = cell / n * (n * cell.double() / (a * b)).log() * chance * times
    return term[possible].sum()


def _subsample(rows: Tensor) -> Tensor:
    """At most SUBSAMPLE rows, evenly spaced, so that a store sorted by class gives some of each."""
    n = len(rows)
    return rows if n <= SUBSAMPLE else rows[torch.arange(SUBSAMPLE) * n // SUBSAMPLE]

"""Figures about labels and predictions: with ground truth (diagnostics only) and without (what a run may act on).

Scores that judge a run without labels stand in `LABEL_FREE`. Those whose cost grows with the square of the samples
look at the same evenly spaced `SUBSAMPLE` samples in every epoch.
"""

import torch
from torch import Tensor

# Score -> whether more is better. What each is worth was measured: benchmarks/results/scores.md.
LABEL_FREE = {
    "agreement": True,
    "entropy": False,
    "diversity": True,
    "infomax": True,
    "bnm": True,
    "corr_c": True,
    "snd": True,
    "class_ami": True,
    "hcs": True,
    "reassigned": False,
    "class_shift": False,
    "min_class_share": True,
}
DEFAULT_SCORE = "infomax"
SUBSAMPLE = 1000
_SND_TEMPERATURE = 0.05  # of the published score
_KMEANS_ROUNDS = 10


def share_different(labels: Tensor, others: Tensor) -> float:
    """Share of labels that are not the same in both: noise against ground truth, change against earlier labels."""
    return (labels != others).float().mean().item()


def class_accuracy(predicted: Tensor, truth: Tensor, num_classes: int) -> list[float | None]:
    """Accuracy within each true class; None for a class that has no sample."""
    totals = torch.bincount(truth, minlength=num_classes)
    right = torch.bincount(truth[predicted == truth], minlength=num_classes)
    return [(r / t).item() if t else None for r, t in zip(right.float(), totals)]


def class_shares(labels: Tensor, num_classes: int) -> Tensor:
    """Share of each class among the labels, [C]."""
    return torch.bincount(labels, minlength=num_classes).float() / len(labels)


def entropy(probs: Tensor) -> float:
    """Mean entropy of the predictions, in nats; low means sure."""
    return torch.special.entr(probs).sum(1).mean().item()


def diversity(probs: Tensor) -> float:
    """Entropy of the mean prediction, in nats; low means that classes die out."""
    return torch.special.entr(probs.mean(0)).sum().item()


def agreement(votes: dict[int, Tensor], probs: Tensor) -> float:
    """Mean share of samples on which a member's own prediction (int [n]) is the averaged consensus."""
    consensus = probs.argmax(1)
    return sum((vote == consensus).float().mean().item() for vote in votes.values()) / len(votes)


def confidence_histogram(confidence: Tensor, bins: int = 20) -> list[int]:
    """Counts of confidences in equal bins of [0, 1]."""
    return torch.histc(confidence.float(), bins, 0.0, 1.0).int().tolist()


def label_free(probs: Tensor) -> dict[str, float]:
    """The scores that need the predictions alone, float32 [n, C]."""
    sure, spread, gram = entropy(probs), diversity(probs), probs.T @ probs
    return {
        "entropy": sure,
        "diversity": spread,
        "infomax": spread - sure,
        "bnm": nuclear_norm(gram, len(probs)),
        "corr_c": class_correlation(gram),
        "snd": neighbourhood_density(probs),
        "class_ami": class_ami(probs),
    }


def nuclear_norm(gram: Tensor, num_samples: int) -> float:
    """BNM: nuclear norm of the predictions P as a share of the largest possible, from their Gram matrix P'P [C, C].

    1 when all predictions are sure and spread evenly over the classes.
    """
    singular = torch.linalg.eigvalsh(gram.double()).clamp_min(0).sqrt()
    return (singular.sum() / (num_samples * min(num_samples, len(gram))) ** 0.5).item()


def class_correlation(gram: Tensor) -> float:
    """Corr-C: cosine between the class correlation matrix P'P [C, C] and the identity; 1 as for BNM."""
    return (gram.trace() / (gram.norm() * len(gram) ** 0.5).clamp_min(1e-12)).item()


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


def class_shift(labels: Tensor, first_shares: Tensor) -> float:
    """Distance of the labels' class histogram from an earlier one [C]: the share of samples that would have to move."""
    return 0.5 * (class_shares(labels, len(first_shares)) - first_shares).abs().sum().item()


def _subsample(rows: Tensor) -> Tensor:
    """At most SUBSAMPLE rows, evenly spaced, so that a store sorted by class gives some of each."""
    n = len(rows)
    return rows if n <= SUBSAMPLE else rows[torch.arange(SUBSAMPLE) * n // SUBSAMPLE]

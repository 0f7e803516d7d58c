"""Class centroids in a space of features: each image votes for the class whose centroid it is nearest to.

The features are the model's own or those of a guest, another pretrained network, which sees the images differently and
never trains. Where the classes lie is read off the current soft labels. All of it is linear in the images.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ray_adaplr.core.refine import correct_prior
from ray_adaplr.core.scores import share_different

TEMPERATURE = 0.1  # of the cosines
ROUNDS = 5  # of labels -> centroids -> labels
PRIOR_STRENGTH = 0.5  # how far first labels are pulled towards the expected class shares
ENOUGH_IMAGES = 10  # per class; of fewer, some classes are expected to have none
FEW_CHANGES = 0.25
"""Of the labels: where a first vote changes fewer, the model is believed, the more the fewer. PACS, 150 images: 6 to 15
% where there is no shift, 11 to 25 % on art→photo, rest→photo, rest→cartoon and art→rest, 29 to 63 % on the others."""
_FOLDS = 5


def whitened(features: Tensor, num_classes: int) -> Tensor:
    """Features in the directions that tell these images apart, each as wide as the others; [n, v, k] of length one.

    A pretrained network's features of each image and its mirror image, [n, v, d], share a large mean and a few loud
    directions, and cosines would see little else. Twice as many directions as classes are kept, but of few images half
    as many as there are images: in all of their directions any two of them would be equally far apart.
    """
    features = F.normalize(features.double(), dim=-1)
    centred = features - features.mean((0, 1))
    images = centred.mean(1)
    kept = min(max(2 * num_classes, 10), max(1, (len(images) - 1) // 2), images.shape[1])
    variance, directions = _loudest(images, kept)
    return F.normalize(centred @ (directions / variance.clamp_min(1e-12).sqrt()), dim=-1).float()


def _loudest(images: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """The largest variances of centred features [n, d], ascending, [kept], and their directions, [d, kept].

    Of few images they are read off the likeness of images, [n, n], whose eigenvalues are the same: 150 images of 1,280
    features then take 9 ms instead of 0.6 s.
    """
    n, d = images.shape
    if n >= d:
        variance, directions = torch.linalg.eigh(images.T @ images / n)
        return variance[-kept:], directions[:, -kept:]
    variance, by_image = torch.linalg.eigh(images @ images.T / n)
    variance, by_image = variance[-kept:], by_image[:, -kept:]
    return variance, images.T @ by_image / (n * variance.clamp_min(1e-12)).sqrt()


@dataclass(frozen=True)
class Outlook:
    """What is expected of the images before anything trains, and how much centroids have to say about them."""

    shares: Tensor | None = None  # of the classes, [C]; None: equal ones
    say: float = 0.5  # of the centroids, beside the model's own predictions
    believed: float = 0.0  # how far the source model is, from 0 to 1

    def evened(self, probs: Tensor) -> Tensor:
        """Soft labels, half way to the expected shares, [n, C]: in a new domain a model prefers some classes to others.

        Where images are few for the number of classes, less far: 150 images cannot have all of ImageNet's 1,000.
        """
        images, classes = probs.shape
        strength = PRIOR_STRENGTH * min(1.0, images / (ENOUGH_IMAGES * classes))
        expected = torch.full((classes,), 1 / classes) if self.shares is None else self.shares
        return correct_prior(probs, expected, strength)


NOTHING_KNOWN = Outlook()


@dataclass(frozen=True)
class Voter:
    """One who looks at the images: the model with its own features, or a guest."""

    looks: list[Tensor]  # whitened features [n, v, k], for every size that the images are looked at in
    weight: float = 1.0  # beside the other voters'

    def nearness(self, labels: Tensor, absent: Tensor) -> Tensor:
        """As that of features, the mean over sizes, [n, C]."""
        return torch.stack([nearness(look, labels, look, absent) for look in self.looks]).mean(0)


def belief(given: Tensor, voted: Tensor) -> float:
    """How far a model is believed, from 0 to 1, by its labels [n] and those of a first vote [n].

    Where few of them differ, there is little shift: what the model's head has learned of the classes is then better
    than centroids, and its class shares are better than equal ones.
    """
    return max(0.0, 1 - share_different(given, voted) / FEW_CHANGES)


def vote(probs: Tensor, voters: Sequence[Voter], outlook: Outlook = NOTHING_KNOWN) -> Tensor:
    """Soft labels of a model, whose predictions are `probs` [n, C], and of those who look at the images, [n, C]."""
    own = both = outlook.evened(probs)
    absent, weights = _absent(own), sum(voter.weight for voter in voters)
    for _ in range(ROUNDS):
        theirs = torch.stack([voter.weight / weights * voter.nearness(both, absent) for voter in voters]).sum(0)
        both = (1 - outlook.say) * own + outlook.say * theirs
    return both


def clearness(guest: Voter, own: Voter, probs: Tensor) -> float:
    """How clearly the classes lie apart in a guest's features; 1 is as clearly as in the model's own.

    By how far from sure the nearest centroids are in the mean, where both and the model's predictions [n, C] have made
    the labels.
    """
    labels = vote(probs, [own, guest])
    unsure = [1 - voter.nearness(labels, _absent(labels)).amax(1).mean().item() for voter in (own, guest)]
    return unsure[0] / max(unsure[1], 1e-3)


def _absent(labels: Tensor) -> Tensor:
    """Which classes are no image's likeliest, bool [C]; labels are soft, [n, C]."""
    return torch.bincount(labels.argmax(1), minlength=labels.shape[1]) == 0


def nearness(known: Tensor, labels: Tensor, asked: Tensor, absent: Tensor) -> Tensor:
    """Softmax of the cosines between features [m, v, k] and the centroids of known ones [n, v, k], labelled [n, C].

    Classes that are `absent`, bool [C], get nothing: their centroids would be those of an image or two that have a
    little of their probability, and would win these images.
    """
    centroids = F.normalize(labels.T @ known.mean(1), dim=1)
    near = (asked @ centroids.T).mean(1) / TEMPERATURE
    return near.masked_fill(absent, -torch.inf).softmax(1)


def kappa_of_features(probs: Tensor, features: Tensor) -> float:
    """How well features [n, v, k] predict the model's labels of images left out: Cohen's kappa, 0 is chance.

    Images count by the square of the model's confidence.
    """
    own = NOTHING_KNOWN.evened(probs)
    confidence, labels = own.max(1)
    weights = confidence.square() / confidence.square().sum()
    foretold = torch.empty_like(labels)
    absent = _absent(own)
    fold = torch.arange(len(own)) % _FOLDS
    for k in range(_FOLDS):
        known, asked = fold != k, fold == k
        foretold[asked] = nearness(features[known], own[known], features[asked], absent).argmax(1)
    agreed = weights[foretold == labels].sum()
    ours, theirs = (torch.zeros(own.shape[1]).index_add(0, found, weights) for found in (labels, foretold))
    by_chance = (ours * theirs).sum()
    return float((agreed - by_chance) / (1 - by_chance).clamp_min(1e-8))

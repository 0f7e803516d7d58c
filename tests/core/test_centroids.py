"""Centroids: guests that vote on labels where their view helps."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ray_adaplr.core.centroids import FEW_CHANGES, Outlook, Voter, belief, kappa_of_features, vote, whitened


def blobs(num_classes: int, per_class: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features [n, 2, 24] around a centre for each class, far from the origin, and their classes [n]."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.arange(num_classes).repeat_interleave(per_class)
    centres = torch.randn(num_classes, 24, generator=generator)
    spread = 0.6 * torch.randn(len(truth), 2, 24, generator=generator)
    return centres[truth][:, None] + spread + 5.0, truth


def unsure(truth: Tensor, num_classes: int, right: float, seed: int = 1) -> Tensor:
    """Soft labels of a model that is right about a share of the images and half sure of all."""
    generator = torch.Generator().manual_seed(seed)
    guess = torch.randint(num_classes, truth.shape, generator=generator)
    label = torch.where(torch.rand(len(truth), generator=generator) < right, truth, guess)
    return 0.5 * F.one_hot(label, num_classes) + 0.5 / num_classes


@pytest.mark.parametrize("num_classes", [2, 3, 7, 30])
def test_a_guest_that_tells_classes_apart_mends_noisy_labels(num_classes: int) -> None:
    features, truth = blobs(num_classes)
    probs = unsure(truth, num_classes, right=0.5)
    both = vote(probs, [Voter([whitened(features, num_classes)])])
    before, after = (probs.argmax(1) == truth).float().mean(), (both.argmax(1) == truth).float().mean()
    assert after > before + 0.1
    assert after > 0.9
    torch.testing.assert_close(both.sum(1), torch.ones(len(truth)))


def test_a_class_that_is_absent_gets_no_more_images_than_the_model_gave_it() -> None:
    features, truth = blobs(6)
    here = truth != 3
    probs = unsure(truth, 6, right=0.6)[here]
    both = vote(probs, [Voter([whitened(features[here], 6)])])
    assert (both.argmax(1) == truth[here]).float().mean() > 0.9
    assert (both.argmax(1) == 3).sum() <= (probs.argmax(1) == 3).sum()


def test_a_model_is_believed_the_more_the_fewer_of_its_labels_a_vote_changes() -> None:
    given = torch.arange(100) % 10
    changed = [torch.where(torch.arange(100) < count, (given + 1) % 10, given) for count in (0, 5, 25, 60)]
    assert [belief(given, voted) for voted in changed] == pytest.approx([1, 1 - 0.05 / FEW_CHANGES, 0, 0])


def test_centroids_without_a_say_change_nothing() -> None:
    features, truth = blobs(5)
    probs, looks = unsure(truth, 5, right=0.5), [Voter([whitened(features, 5)])]
    silent = vote(probs, looks, Outlook(say=0.0))
    torch.testing.assert_close(silent, Outlook().evened(probs))
    right = [(vote(probs, looks, Outlook(say=say)).argmax(1) == truth).sum() for say in (0.0, 0.2, 0.5)]
    assert right == sorted(right)
    assert right[0] < right[2]


def test_a_class_that_is_expected_to_be_rare_stays_rare() -> None:
    features, truth = blobs(5)
    here = (truth != 4) | (torch.arange(len(truth)) % 20 == 0)  # two images of the last class
    probs, looks = unsure(truth, 5, right=0.8)[here], [Voter([whitened(features[here], 5)])]
    shares = torch.bincount(truth[here], minlength=5) / here.sum()
    equal, known = (vote(probs, looks, Outlook(each)).argmax(1) for each in (None, shares))
    assert (known == 4).sum() < (equal == 4).sum()
    assert (known == truth[here]).sum() > (equal == truth[here]).sum()


def test_kappa_tells_a_guest_that_knows_the_images_from_one_that_does_not() -> None:
    features, truth = blobs(7)
    probs = unsure(truth, 7, right=0.8)
    noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(3))
    assert kappa_of_features(probs, whitened(features, 7)) > 0.6
    assert abs(kappa_of_features(probs, whitened(noise, 7))) < 0.15


def test_whitening_forgets_where_the_features_lie_and_how_wide_they_are() -> None:
    features, _ = blobs(4)
    plain = whitened(F.normalize(features, dim=-1), 4)
    assert plain.shape == (160, 2, 10)
    cosines = plain.flatten(0, 1) @ plain.flatten(0, 1).T
    again = whitened(3 * F.normalize(features, dim=-1), 4)
    torch.testing.assert_close(again.flatten(0, 1) @ again.flatten(0, 1).T, cosines, atol=1e-4, rtol=1e-4)


def test_fewer_images_than_directions_are_no_obstacle() -> None:
    features, truth = blobs(2, per_class=3)
    assert whitened(features, 2).shape == (6, 2, 2)
    assert np.isfinite(kappa_of_features(unsure(truth, 2, right=1.0), whitened(features, 2)))


def test_few_images_of_many_classes_still_look_alike_within_a_class() -> None:
    features, truth = blobs(10, per_class=4)
    seen = whitened(features, num_classes=31).mean(1)
    alike = F.cosine_similarity(seen[:, None], seen[None], dim=-1)
    same = truth[:, None] == truth[None]
    assert alike[same].mean() > alike[~same].mean() + 0.3  # in all their directions any two are equally far apart


def test_a_vote_over_many_classes_of_which_few_are_there_does_no_harm() -> None:
    features, truth = blobs(10, per_class=15)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(len(truth), 200, generator=generator)
    logits[torch.arange(len(truth)), truth] += 7
    probs = logits.softmax(1)
    both = vote(probs, [Voter([whitened(features, 200)])])
    assert (both.argmax(1) == truth).float().mean() >= (probs.argmax(1) == truth).float().mean() - 0.01
    assert set(both.argmax(1).tolist()) <= set(probs.argmax(1).tolist())


def test_few_images_of_many_features_are_whitened_as_many_of_few_are() -> None:
    features = torch.rand(40, 2, 30, generator=torch.Generator().manual_seed(0))
    silent = torch.zeros(40, 2, 50)  # features that say nothing: 80 of them for 40 images
    some, many = whitened(features, 4), whitened(torch.cat([features, silent], -1), 4)
    torch.testing.assert_close(some @ some[0].T, many @ many[0].T)  # the same up to the directions' signs

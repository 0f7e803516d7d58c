"""SND, ClassAMI, MixVal and MaNo, which only the benchmark of scores works out, on cases whose answer is known."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_mutual_info_score

from benchmarks import more_scores
from ray_adaplr.core import scores

SURE_AND_SPREAD = torch.eye(4).repeat(50, 1)
COLLAPSED = torch.eye(4)[:1].repeat(200, 1)


def test_the_benchmarks_runs_record_them_and_others_do_not() -> None:
    with more_scores.recorded():
        assert set(more_scores.MORE_SCORES) <= set(scores.label_free(SURE_AND_SPREAD))
    assert not set(more_scores.MORE_SCORES) & set(scores.label_free(SURE_AND_SPREAD))


def test_snd_is_higher_in_dense_clusters_than_in_a_scatter() -> None:
    scatter = (2 * torch.randn(200, 4, generator=torch.Generator().manual_seed(0))).softmax(1)
    assert more_scores.neighbourhood_density(SURE_AND_SPREAD) == pytest.approx(math.log(49), abs=0.01)
    assert more_scores.neighbourhood_density(scatter) < math.log(49)


def test_class_ami_is_one_when_the_classes_are_the_clusters_and_about_zero_without_structure() -> None:
    assert more_scores.class_ami(0.96 * SURE_AND_SPREAD + 0.01) == pytest.approx(1)
    scatter = torch.randn(3000, 20, generator=torch.Generator().manual_seed(0)).mul(0.1).softmax(1)
    assert more_scores.class_ami(scatter) < 0.3
    assert more_scores.class_ami(COLLAPSED) == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=2, max_size=60))
def test_adjusted_mutual_information_is_that_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    one, other = torch.tensor(pairs).T
    mine = more_scores.adjusted_mutual_information(one, other)
    if len(one.unique()) > 1 and len(other.unique()) > 1 and min(len(one.unique()), len(other.unique())) < len(pairs):
        assert mine == pytest.approx(adjusted_mutual_info_score(one, other), abs=1e-6)


def test_scores_of_many_samples_are_those_of_an_even_subsample() -> None:
    probs = torch.eye(4).repeat_interleave(1000, 0)  # sorted by class
    assert more_scores.class_ami(probs) == pytest.approx(1)
    assert more_scores.neighbourhood_density(probs) == pytest.approx(math.log(249), abs=0.01)


def test_mixval_is_one_for_a_linear_classifier_of_sure_images_and_half_where_mixtures_of_two_classes_are_lost() -> None:
    assert more_scores.mixval(lambda images: images, SURE_AND_SPREAD) == 1
    assert more_scores.mixval(lambda images: (images > 0.9).float(), SURE_AND_SPREAD[SURE_AND_SPREAD[:, 0] == 0]) == 0.5
    assert more_scores.mixval(lambda images: images, COLLAPSED) == 1  # as of a run that is of no use


def test_mano_takes_the_series_for_unsure_logits_and_softmax_for_sure_ones() -> None:
    assert more_scores.mano(torch.tensor([[1.0, 0.0]])) == pytest.approx(0.5 ** (1 / 4))  # 2.5 and 1, less 1: 1.5 and 0
    assert more_scores.mano(torch.tensor([[2.0, 1.0, 0.0]])) == pytest.approx(
        (((4 / 5.5) ** 4 + (1.5 / 5.5) ** 4) / 3) ** (1 / 4)
    )
    assert more_scores.mano(torch.tensor([[30.0, 0.0, 0.0]])) == pytest.approx((1 / 3) ** (1 / 4))

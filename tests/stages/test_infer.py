"""First labels: of clean images or a vote over views, and a warm start that is dropped when it goes astray."""

import copy

import numpy as np
import torch

from ray_adaplr.config import Config
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.stages.infer import Inferred, infer
from ray_adaplr.stages.warm_start import surest_kept


def inferred(model: Classifier, store: ImageStore, **settings: object) -> Inferred:
    *_, found = infer([copy.deepcopy(model)], store.paths, Config(**settings), "cpu")  # type: ignore[arg-type]
    assert isinstance(found, Inferred)
    return found


def test_a_vote_over_views_is_the_same_each_time_and_near_the_clean_labels(
    source_model: Classifier, digit_stores: dict[str, ImageStore]
) -> None:
    store = digit_stores["mnist"]
    clean = inferred(source_model, store, warm_start="off")
    vote = inferred(source_model, store, warm_start="off", infer_views=8)
    again = inferred(source_model, store, warm_start="off", infer_views=8)
    assert np.array_equal(vote.labels, again.labels)
    assert 0.7 < (vote.labels == clean.labels).mean() < 1


def test_surest_kept_looks_at_the_surest_labels_only() -> None:
    before = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.45, 0.55], [0.2, 0.8]])
    after = before.flip(1)
    after[0] = before[0]
    assert surest_kept(before, after, share=0.25)[0] == 1.0
    assert surest_kept(before, after, share=0.5)[0] == 0.5


def test_the_fewer_labels_are_looked_at_the_less_they_prove() -> None:
    before = torch.eye(2).repeat(500, 1)
    after = before.clone()
    after[::10] = before[::10].flip(1)  # a tenth of all labels changes
    few, many = surest_kept(before[:20], after[:20], share=1.0), surest_kept(before, after, share=1.0)
    assert few[0] == many[0]
    assert few[1] > 0.93 > many[1]


def test_a_warm_start_that_forgets_the_surest_labels_is_dropped_with_a_warning(
    source_model: Classifier, digit_stores: dict[str, ImageStore]
) -> None:
    store = digit_stores["optdigits"]
    trusted = inferred(source_model, store, warm_start_epochs=1, warm_start_trust=0.0)
    # One epoch at a rate that tears the network apart.
    dropped = inferred(source_model, store, warm_start_epochs=1, lr=1.0)
    assert not trusted.warnings
    assert "The warm start was dropped" in dropped.warnings[0]

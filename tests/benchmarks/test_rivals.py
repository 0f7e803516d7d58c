"""The rivals do what their papers say, on the images alone."""

import numpy as np
import pytest
import torch

from benchmarks.rivals import RIVALS, NeighbourBanks, nearest_centroid, shot
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore


@pytest.mark.parametrize("name", RIVALS)
def test_a_rival_adapts_a_copy_without_a_look_at_the_ground_truth(
    name: str, source_model: Classifier, digit_stores: dict[str, ImageStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(store: ImageStore) -> None:
        raise AssertionError("ground truth was opened")

    monkeypatch.setattr(ImageStore, "ground_truth", refuse)
    before = {key: value.clone() for key, value in source_model.state_dict().items()}
    store = digit_stores["optdigits"]
    model, labels = RIVALS[name](source_model, store, 0, 1, "cpu")
    assert labels.shape == (len(store),)
    assert labels.dtype == np.int64
    assert set(labels) <= set(range(10))
    assert all(torch.equal(value, before[key]) for key, value in source_model.state_dict().items())
    changed = any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert changed == (name != "source_only")


def test_shot_trains_all_but_the_head(source_model: Classifier, digit_stores: dict[str, ImageStore]) -> None:
    model, _ = shot(source_model, digit_stores["optdigits"], 0, 1, "cpu")
    assert torch.equal(model.head.weight, source_model.head.weight)
    first = "network.features.0.weight"
    assert not torch.equal(model.state_dict()[first], source_model.state_dict()[first])


def test_aad_loss_is_that_of_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    bank_features, bank_probs = torch.randn(30, 5, generator=generator), torch.rand(30, 4, generator=generator)
    features, logits = torch.randn(6, 5, generator=generator), torch.randn(6, 4, generator=generator)
    samples = torch.tensor([3, 7, 11, 0, 29, 15])
    banks = NeighbourBanks(bank_features, bank_probs)
    value = banks.loss(features, logits.requires_grad_(), samples, neighbours=3, dispersing=0.4)

    probs = logits.detach().softmax(1)
    units = bank_features / bank_features.norm(dim=1, keepdim=True)
    scores = bank_probs.clone()
    for row, sample in enumerate(samples.tolist()):  # the batch enters the banks first
        units[sample], scores[sample] = features[row] / features[row].norm(), probs[row]
    expected = 0.0
    for row, sample in enumerate(samples.tolist()):
        others = sorted((i for i in range(30) if i != sample), key=lambda i: -float(units[sample] @ units[i]))
        expected -= sum(float(probs[row] @ scores[i]) for i in others[:3])
        expected += 0.4 * sum(float(probs[row] @ probs[other]) for other in range(6) if other != row)
    assert value.item() == pytest.approx(expected / 6, rel=1e-5)
    value.backward()
    assert logits.grad is not None
    torch.testing.assert_close(banks.scores, scores)


def test_centroid_labels_are_those_of_a_plain_loop() -> None:
    generator = np.random.default_rng(0)
    features = generator.random((40, 6)).astype(np.float32)
    probs = generator.dirichlet(np.ones(4), 40).astype(np.float32)
    longer = [np.append(row, 1.0) for row in features]
    units = [row / np.linalg.norm(row) for row in longer]
    weights = probs
    for _ in range(2):
        centroids = []
        for c in range(4):
            total = sum(weights[i, c] * units[i] for i in range(40))
            centroids.append(total / weights[:, c].sum())
        expected = [
            min(range(4), key=lambda c: 1 - unit @ centroids[c] / np.linalg.norm(centroids[c])) for unit in units
        ]
        weights = np.eye(4)[expected]
    assert nearest_centroid(torch.from_numpy(features), torch.from_numpy(probs)).argmax(1).tolist() == expected


def test_a_class_that_nothing_is_near_to_gets_no_centroid_label() -> None:
    features = torch.tensor([[5.0, 0.0], [4.0, 0.0], [0.0, 5.0], [0.0, 4.0]])
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.1, 0.9, 0.0], [0.1, 0.9, 0.0]])
    assert nearest_centroid(features, probs).argmax(1).tolist() == [0, 0, 1, 1]

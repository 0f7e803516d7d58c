"""A learner is a pure function of its inputs: the same bits for the same words, whoever runs it and however often."""

import io
import platform
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ray_adaplr.config import Config
from ray_adaplr.core.feed import even_slices
from ray_adaplr.core.learner import Learner, TrainSettings
from ray_adaplr.core.models import Classifier, ModelSpec, build
from ray_adaplr.core.objectives import supervised
from ray_adaplr.core.predict import images_per_pass, predict_features, predict_logits
from ray_adaplr.engine.training import augmentation
from ray_adaplr.errors import InputError

QUICK = settings(max_examples=60)
N, C = 40, 4
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 8, 8, 1), dtype=np.uint8)
LABELS = np.random.default_rng(1).integers(0, C, N)
SPEC = ModelSpec(num_classes=C, channels=1, width=2)
EVERYTHING = np.arange(N)


def read(index: np.ndarray) -> np.ndarray:
    return IMAGES[index]


def training(**changes: Any) -> TrainSettings:
    usual = dict(seed=7, epochs=4, batch_size=9, lr=1e-3, lr_head=1e-2, weight_decay=5e-4, schedule="cosine")
    return TrainSettings(**{**usual, "augment": augmentation(Config(), Config().crop), **changes})


def learner(
    samples: np.ndarray = EVERYTHING, model: Classifier | None = None, member: int = 0, **changes: Any
) -> Learner:
    return Learner(model or build(SPEC, seed=1), read, samples, training(**changes), member=member)


def assert_same_weights(one: nn.Module, other: nn.Module) -> None:
    theirs = other.state_dict()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name


class MeanPixel(nn.Module):
    """Logits that say which image it was: its mean pixel, times a weight for each class."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, C, bias=False)
        nn.init.ones_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.mean((1, 2, 3))[:, None])


def dropping(**changes: Any) -> Learner:
    """A learner of a network with dropout, the same each time."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, C))
    for p in network.parameters():
        nn.init.normal_(p, std=0.2, generator=torch.Generator().manual_seed(0))
    return learner(model=Classifier(network, SPEC), augment=None, **changes)


@QUICK
@given(st.integers(1, 500), st.integers(1, 70))
def test_slices_cover_everything_once_and_differ_by_one_at_most(n: int, batch_size: int) -> None:
    slices = list(even_slices(n, batch_size))
    assert [i for rows in slices for i in range(rows.start, rows.stop)] == list(range(n))
    sizes = [rows.stop - rows.start for rows in slices]
    assert max(sizes) - min(sizes) <= 1
    if batch_size == 2 and n % 2 and n > 1:  # one image would be left alone
        assert (len(sizes), max(sizes)) == (n // 2, 3)
        return
    assert len(sizes) == -(-n // batch_size)
    assert max(sizes) <= batch_size


@pytest.mark.parametrize("n", [3, 33])
def test_batchnorm_over_vectors_trains_on_an_odd_number_of_images_in_twos(n: int) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, C))
    one = learner(np.arange(n), Classifier(network, SPEC), augment=None, batch_size=2)
    assert np.isfinite(one.train_epoch(0, supervised(LABELS))).all()


def test_a_network_that_is_frozen_altogether_is_refused() -> None:
    with pytest.raises(InputError, match="all weights of the model digit_cnn are frozen"):
        learner(model=build(SPEC).requires_grad_(False))


def test_two_learners_with_the_same_inputs_give_the_same_bits() -> None:
    one, other = learner(), learner()
    torch.manual_seed(12345)  # what the world does in between must not matter
    for epoch in range(2):
        logits, others = (each.train_epoch(epoch, supervised(LABELS)) for each in (one, other))
        np.testing.assert_array_equal(logits, others)
        torch.rand(3)
    assert_same_weights(one.model, other.model)


@pytest.mark.parametrize(
    "change", [{"seed": 8}, {"batch_size": 10}, {"lr": 2e-3}, {"lr_head": 2e-2}, {"augment": None}]
)
def test_every_setting_has_its_effect(change: dict) -> None:
    plain, changed = learner(), learner(**change)
    for one in (plain, changed):
        one.train_epoch(0, supervised(LABELS))
    assert not torch.equal(plain.model.head.weight, changed.model.head.weight)


def seen_by(member: int, epoch: int = 0) -> tuple[list[int], Tensor]:
    """The samples in the order in which a member reads them in an epoch, and the pixels its network gets."""
    order: list[int] = []
    pixels: list[Tensor] = []
    one = learner(member=member)
    one.read = lambda index: (order.extend(index.tolist()), IMAGES[index])[1]
    one.model.network.register_forward_pre_hook(lambda _, inputs: pixels.append(inputs[0]))
    one.train_epoch(epoch, supervised(LABELS))
    return order[-N:], torch.cat(pixels)


def test_members_share_the_order_but_not_the_augmentation() -> None:
    (order, pixels), (other_order, other_pixels) = seen_by(0), seen_by(1)
    assert order == other_order
    assert sorted(order) == list(range(N))
    assert (pixels - other_pixels).abs().mean((1, 2, 3)).min() > 0.001


def test_every_epoch_has_its_own_order_and_augmentation() -> None:
    (order, pixels), (next_order, next_pixels) = seen_by(0), seen_by(0, epoch=1)
    assert order != next_order
    back, next_back = np.argsort(order), np.argsort(next_order)
    assert (pixels[back] - next_pixels[next_back]).abs().mean((1, 2, 3)).min() > 0.001


def test_an_image_is_augmented_the_same_in_a_batch_of_any_size() -> None:
    def pixels(batch_size: int) -> Tensor:
        caught: list[Tensor] = []
        one = learner(batch_size=batch_size)
        one.model.network.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0]))
        one.train_epoch(0, supervised(LABELS))
        return torch.cat(caught)

    torch.testing.assert_close(pixels(40), pixels(7), rtol=0, atol=1e-6)


@pytest.mark.parametrize("samples", [EVERYTHING, np.array([2, 3, 11, 12, 30, 39]), np.array([5])])
def test_the_logits_of_an_epoch_come_back_in_the_order_of_the_samples(samples: np.ndarray) -> None:
    one = learner(samples, Classifier(MeanPixel(), SPEC), augment=None, lr=1e-12, lr_head=1e-12, batch_size=4)
    logits = one.train_epoch(3, supervised(LABELS))
    assert logits.dtype == np.float32
    assert logits.shape == (len(samples), C)
    np.testing.assert_allclose(logits[:, 0], IMAGES[samples].mean((1, 2, 3)) / 255, rtol=1e-5)


def test_a_subset_trains_on_its_own_samples_and_labels_alone() -> None:
    samples = np.array([1, 4, 9, 16, 25, 36])
    read_samples: set[int] = set()
    spoiled = np.where(np.isin(EVERYTHING, samples), LABELS, (LABELS + 1) % C)
    one, other = learner(samples), learner(samples)
    one.read = lambda index: (read_samples.update(index.tolist()), IMAGES[index])[1]
    one.train_epoch(0, supervised(LABELS))
    other.train_epoch(0, supervised(spoiled))
    assert read_samples == set(samples.tolist())
    assert_same_weights(one.model, other.model)


def test_training_lowers_the_loss() -> None:
    easy = np.repeat(np.array([30, 220], np.uint8), N // 2)[:, None, None, None] + IMAGES // 12
    labels = np.repeat([0, 1], N // 2)
    one = Learner(build(SPEC), lambda index: easy[index], EVERYTHING, training(epochs=12, lr=1e-2, augment=None))
    for epoch in range(12):
        one.train_epoch(epoch, supervised(labels))
    assert (one.predict().argmax(1) == labels).all()


@pytest.mark.parametrize("make", [learner, dropping])
def test_going_on_from_a_snapshot_gives_the_bits_of_a_straight_run(make: Callable[..., Learner]) -> None:
    straight, first = make(), make()
    straight.train_epoch(0, supervised(LABELS))
    expected = straight.train_epoch(1, supervised(LABELS))
    first.train_epoch(0, supervised(LABELS))
    snapshot = first.state()
    first.train_epoch(1, supervised(LABELS))  # the snapshot is a copy: training on must not touch it
    second = make()
    second.load_state(snapshot)
    np.testing.assert_array_equal(second.train_epoch(1, supervised(LABELS)), expected)
    assert_same_weights(second.model, straight.model)
    np.testing.assert_array_equal(second.predict(), straight.predict())


def test_training_after_a_load_leaves_the_snapshot_as_it_was() -> None:
    one, second, third = learner(), learner(), learner()
    one.train_epoch(0, supervised(LABELS))
    snapshot = one.state()
    results = []
    for again in (second, third):
        again.load_state(snapshot)
        results.append(again.train_epoch(1, supervised(LABELS)))
    np.testing.assert_array_equal(results[0], results[1])


def test_a_snapshot_on_disk_is_read_without_running_code() -> None:
    one, second, buffer = learner(), learner(), io.BytesIO()
    one.train_epoch(0, supervised(LABELS))
    torch.save(one.state(), buffer)
    second.load_state(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    np.testing.assert_array_equal(one.train_epoch(1, supervised(LABELS)), second.train_epoch(1, supervised(LABELS)))


def test_a_model_that_has_predicted_can_still_be_trained_in_place() -> None:
    model = build(SPEC).to(memory_format=torch.contiguous_format)  # so that prediction moves it, as to a GPU
    predict_logits(model, read, EVERYTHING)
    assert not any(tensor.is_inference() for tensor in [*model.parameters(), *model.buffers()])


def test_prediction_is_the_plain_evaluation_of_the_clean_images() -> None:
    one = learner()
    one.train_epoch(0, supervised(LABELS))
    before = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    predicted = one.predict(batch_size=7)
    assert not one.model.training
    with torch.no_grad():
        expected = torch.cat([one.model(torch.tensor(IMAGES[i : i + 1, None, :, :, 0]) / 255) for i in range(N)])
    torch.testing.assert_close(torch.from_numpy(predicted), expected, rtol=1e-4, atol=1e-5)
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_prediction_takes_any_samples_in_any_order() -> None:
    model = Classifier(MeanPixel(), SPEC)
    some = np.array([30, 2, 17])
    everything = predict_logits(model, read, EVERYTHING)
    np.testing.assert_allclose(predict_logits(model, read, some, batch_size=2), everything[some], rtol=1e-6)


@pytest.mark.parametrize("keeps", [False, True])
def test_batchnorm_s_statistics_are_renewed_or_kept_while_the_weights_train(keeps: bool) -> None:
    one = learner(keeps_batchnorm=keeps)
    before = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    one.train_epoch(0, supervised(LABELS))
    after = one.model.state_dict()
    same = {name: torch.equal(tensor, after[name]) for name, tensor in before.items()}
    assert {kept for name, kept in same.items() if "running_" in name} == {keeps}
    assert not any(kept for name, kept in same.items() if name.endswith("weight"))


def test_training_goes_on_in_training_mode_after_a_prediction() -> None:
    plain, looked_at = learner(), learner()
    for one in (plain, looked_at):
        one.train_epoch(0, supervised(LABELS))
    looked_at.predict()
    for one in (plain, looked_at):
        one.train_epoch(1, supervised(LABELS))
    assert_same_weights(plain.model, looked_at.model)


@pytest.mark.parametrize(
    ("schedule", "epoch", "batch_size", "factor"),
    [
        ("cosine", 0, N, 1),  # the only step of the first epoch is at the start
        ("cosine", 2, 9, 0.5 * (1 + np.cos(np.pi * 2.8 / 4))),  # the fifth and last step of epoch 2 of 4 is at 2.8 / 4
        ("constant", 2, 9, 1),
    ],
)
def test_the_learning_rate_follows_its_schedule(schedule: str, epoch: int, batch_size: int, factor: float) -> None:
    one = learner(schedule=schedule, batch_size=batch_size)
    one.train_epoch(epoch, supervised(LABELS))
    assert [group["lr"] for group in one.optimizer.param_groups] == pytest.approx([1e-3 * factor, 1e-2 * factor])


def test_dropout_is_drawn_from_the_learners_own_words() -> None:
    def trained(member: int = 0, epoch: int = 0) -> np.ndarray:
        return dropping(member=member, lr=1e-12, lr_head=1e-12).train_epoch(epoch, supervised(LABELS))

    np.testing.assert_array_equal(trained(), trained())
    assert not np.allclose(trained(), trained(member=1))
    assert not np.allclose(trained(), trained(epoch=1))


def test_training_leaves_the_global_generator_and_threads_alone() -> None:
    one = dropping()
    generator, threads = torch.get_rng_state(), torch.get_num_threads()
    one.train_epoch(0, supervised(LABELS))
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.get_num_threads() == threads


def test_a_frozen_head_stays_as_it_is() -> None:
    model = build(SPEC)
    model.head.requires_grad_(False)
    before = model.head.weight.clone()
    one = learner(model=model)
    one.train_epoch(0, supervised(LABELS))
    assert torch.equal(model.head.weight, before)


def test_logits_that_are_no_numbers_are_reported_with_epoch_and_batch() -> None:
    with pytest.raises(FloatingPointError, match="epoch 3, batch 2; use a lower learning rate"):
        learner(lr=1e30, lr_head=1e30, augment=None, schedule="constant").train_epoch(2, supervised(LABELS))


_FAULTS = """
import resource
import numpy as np
from ray_adaplr.core.learner import Learner, TrainSettings
from ray_adaplr.core.models import ModelSpec, build
from ray_adaplr.core.objectives import information_maximisation

settings = TrainSettings(0, 3, 32, 1e-3, 1e-3, 0.0, "constant", None)
images = np.zeros((32, 32, 32, 3), np.uint8)
learner = Learner(build(ModelSpec(num_classes=10)), lambda rows: images[rows % 32], np.arange(1024), settings)
faults = []
for epoch in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    learner.train_epoch(epoch, information_maximisation)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(min(faults[1:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_a_step_does_not_fault_its_memory_in_again() -> None:
    found = subprocess.run([sys.executable, "-c", _FAULTS], check=True, capture_output=True, text=True).stdout
    assert int(found) < 2000  # 32 steps; it was 10,000 and more


def test_features_are_what_goes_into_the_head() -> None:
    model = build(SPEC)
    features, logits = predict_features(model, read, EVERYTHING)
    assert features.shape == (N, model.head.in_features)
    torch.testing.assert_close(model.head(features), logits)
    assert not model.head._forward_pre_hooks


@pytest.mark.parametrize(("side", "count", "on_cpu"), [(16, 512, 512), (112, 512, 13), (256, 101, 4), (4000, 4, 4)])
def test_large_images_are_looked_at_a_few_at_a_time(side: int, count: int, on_cpu: int) -> None:
    images = torch.empty(1, side, side, 3, dtype=torch.uint8)
    assert images_per_pass(images, None) == images_per_pass(images, "cuda") == count
    assert images_per_pass(images, "cpu") == on_cpu

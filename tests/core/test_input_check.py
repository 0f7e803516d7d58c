"""What a source model's first outputs give away."""

import numpy as np
import pytest
import torch

from ray_adaplr.core.input_check import check_images, check_logits, uneven_classes
from ray_adaplr.errors import InputError

SURE = 8 * torch.eye(4).repeat(10, 1)  # 40 images, ten of each class


def test_sure_and_varied_outputs_raise_no_word() -> None:
    assert check_logits(SURE, 4) == []


def test_log_probabilities_are_logits() -> None:
    assert check_logits(SURE.log_softmax(1), 4) == []


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        (SURE.softmax(1), "probabilities, not logits"),
        (SURE.index_fill(0, torch.tensor([3]), float("nan")), "NaN or infinite"),
        (SURE[:, :3], r"shape \[40, 3\] where \[n, 4\]"),
        (SURE[0], r"shape \[4\]"),
    ],
)
def test_outputs_that_cannot_be_right_are_refused(outputs: torch.Tensor, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_logits(outputs, 4)


def test_one_class_for_nearly_all_images_is_said() -> None:
    collapsed = SURE.clone()
    collapsed[:, 2] += 20
    assert "100% of the 40 images first looked at class 2" in check_logits(collapsed, 4)[0]
    assert "class 'dog'" in check_logits(collapsed, 4, ("cat", "cow", "dog", "eel"))[0]


def test_a_model_without_a_clue_is_said() -> None:
    assert "hardly more than by chance" in check_logits(SURE / 1000, 4)[0]
    assert "0.0029 sure on average, hardly more than by chance (0.0029)" in check_logits(torch.zeros(20, 345), 345)[-1]


@pytest.mark.parametrize(("confidence", "words"), [(0.74, 0), (0.55, 0), (0.51, 1)])
def test_of_two_classes_being_three_quarters_sure_is_sure_enough(confidence: float, words: int) -> None:
    logit = torch.logit(torch.tensor(confidence))
    assert len(check_logits(torch.tensor([[logit, 0.0], [0.0, logit]]).repeat(20, 1), 2)) == words


def test_a_rare_class_among_few_is_worth_a_word_and_a_way_out() -> None:
    rare = torch.tensor([0] * 90 + [1] * 10)
    [said] = uneven_classes(rare, 2, ("ok", "defect"))
    assert "class 'defect' to 10% of the images" in said
    assert "--preset uneven" in said
    assert uneven_classes(torch.tensor([0] * 70 + [1] * 30), 2) == []
    assert uneven_classes(rare, 10) == []


def test_images_of_nearly_one_colour_are_told() -> None:
    twelve_bits = np.random.default_rng(0).integers(0, 4096, (5, 8, 8, 1)) // 257
    [said] = check_images(twelve_bits.astype(np.uint8))
    assert said.startswith("All values of the 5 images first looked at lie between 0 and 15 of 255")
    assert check_images(np.full((2, 8, 8, 3), 200, np.uint8))
    assert check_images((16 * twelve_bits).astype(np.uint8)) == []

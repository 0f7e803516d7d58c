"""The signs speak when a run goes wrong, and are silent when it goes well."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_adaplr.core.signs import LabelChange, class_collapse, effective_classes, label_change, warnings


def epochs(gammas: list[float], reassigned: list[float]) -> list[dict]:
    return [
        {"stage": "refine", "epoch": i, "gamma": gamma, "reassigned": share}
        for i, (gamma, share) in enumerate(zip(gammas, reassigned))
    ]


GOOD = epochs([0.1 * i for i in range(10)], [0.2, 0.1, 0.08, 0.05, 0.03, 0.02, 0.01, 0.01, 0.005, 0.002])


def test_a_class_below_the_floor_of_its_first_share_is_collapsing() -> None:
    assert class_collapse([0.02, 0.98], [0.1, 0.9], floor=0.3) == [0]
    assert class_collapse([0.04, 0.96], [0.1, 0.9], floor=0.3) == []


def test_a_class_that_was_predicted_too_often_may_shrink_to_its_size() -> None:
    # Three tenths of its first share would be .27, more than the true .25; of 1/4 it is .075.
    assert class_collapse([0.2, 0.3, 0.25, 0.25], [0.9, 0.04, 0.03, 0.03], floor=0.3) == []


def test_a_class_that_is_rare_from_the_start_raises_no_alarm() -> None:
    assert class_collapse([0.01, 0.99], [0.01, 0.99], floor=0.3) == []


def test_every_class_that_vanished_is_named() -> None:
    assert class_collapse([0.0, 1.0, 0.0], [0.3, 0.4, 0.3], floor=0.3) == [0, 2]


def test_a_floor_of_zero_never_alarms() -> None:
    assert class_collapse([0.0, 1.0], [0.5, 0.5], floor=0) == []


def test_a_good_run_and_a_run_that_has_not_begun_have_no_warnings() -> None:
    assert warnings(GOOD) == []
    assert warnings([]) == []
    assert warnings([{"stage": "distill", "loss": 0.3}]) == []


def test_classes_that_were_dying_are_named_with_the_first_epoch_even_when_they_came_back() -> None:
    lines = [dict(line) for line in GOOD]
    lines[2]["collapsed"] = [7]
    lines[4]["collapsed"] = [3, 7]
    lines[-1]["collapsed"] = []
    (sentence,) = warnings(lines)
    assert "Classes 3, 7 were dying out in the labels (first in epoch 3)" in sentence


def test_a_gamma_that_stays_low_is_told_only_after_ten_epochs() -> None:
    quiet = epochs([0.01] * 9 + [0.03], [0.0] * 10)
    assert warnings(quiet[:9]) == []
    assert warnings(quiet) == ["Gamma never rose above 0.03: hardly any label could change. Use more epochs."]


def test_labels_that_do_not_settle_are_told() -> None:
    restless = epochs([0.5] * 10, [0.1] * 10)
    assert warnings(restless) == ["Labels do not settle: 10.0% still changed in the last epoch."]
    assert warnings(restless[:9]) == []


def test_a_few_late_changes_are_no_reason_to_warn() -> None:
    assert warnings(epochs([0.5] * 10, [0.015] * 10)) == []


def test_falling_agreement_is_told() -> None:
    assert any("agreement fell from 0.95 to 0.80" in text for text in warnings([{"agreement": a} for a in (0.95, 0.8)]))
    assert not warnings([{"agreement": a} for a in (0.8, 0.95, 0.93)])
    assert not warnings([{"agreement": a} for a in (0.91, 0.82)])  # a good run on 150 photographs
    assert not warnings([{"agreement": a, "members": 1} for a in (1.0, 0.8)])  # nobody to agree with


def change(before: list[int], after: list[int], sure: float = 1.0, num_classes: int = 2) -> LabelChange:
    """A change of labels given as counts per class, in which the first labels of each class keep theirs."""
    first, refined = (np.repeat(np.arange(num_classes), counts) for counts in (before, after))
    return label_change(first, refined, np.arange(len(first)) < sure * len(first), num_classes)


def test_labels_that_hardly_moved_give_no_warning() -> None:
    assert warnings(GOOD, change([50, 50], [45, 55])) == []
    assert warnings(GOOD, change([97, 3], [97, 3])) == []  # few defects are no collapse
    assert warnings(GOOD, change([20] * 10, [19, 21] * 5, num_classes=10)) == []


def test_a_class_that_vanished_is_named_in_the_case_of_two_classes_too() -> None:
    found = warnings(GOOD, change([60, 40], [100, 0]), ["ok", "defect"])
    assert found[0] == "Class defect was in the first labels and no image has that label now: right if there is none."
    assert "1 of 2 are used, and the largest holds 100%" in found[1]


def test_a_class_that_is_named_as_dying_is_not_named_again() -> None:
    lines = [{**line, "collapsed": [1]} for line in GOOD]
    assert sum("defect" in text for text in warnings(lines, change([60, 40], [100, 0]), ["ok", "defect"])) == 1


@pytest.mark.parametrize("after", [[194, 2, 2, 2], [98, 98, 2, 2], [100, 100, 0, 0]])
def test_labels_that_collapsed_into_few_classes_are_noticed(after: list[int]) -> None:
    found = warnings(GOOD, change([50] * 4, after, num_classes=4))
    assert any("collapsed into few classes" in text for text in found)


@pytest.mark.parametrize("counts", [[100, 0], [99, 1]])
def test_labels_that_were_all_of_one_class_from_the_start_are_noticed(counts: list[int]) -> None:
    (sentence,) = warnings(GOOD, change(counts, counts))
    assert sentence.startswith("The labels are of few classes, as they were from the start: ")


def test_few_images_of_many_classes_are_no_collapse() -> None:
    each = [1] * 150 + [0] * 195
    assert warnings(GOOD, change(each, each, num_classes=345)) == []
    (vanished,) = warnings(GOOD, change(each, [2, 0] * 20 + each[40:], num_classes=345))
    assert "no image has that label now" in vanished
    found = warnings(GOOD, change(each, [50, 50, 50] + [0] * 342, num_classes=345))
    assert any("collapsed into few classes: 3 of 345 are used" in text for text in found)


def test_a_target_that_lacks_most_classes_of_the_model_is_not_called_a_collapse_unless_more_went() -> None:
    ten = [30] * 10 + [0] * 90
    (sentence,) = warnings(GOOD, change(ten, ten, num_classes=100))
    assert "as they were from the start: 10 of 100 are used, and the largest holds 10%" in sentence
    found = warnings(GOOD, change(ten, [100] * 3 + [0] * 97, num_classes=100))
    assert any("collapsed into few classes: 3 of 100" in text for text in found)


def test_hardly_any_sure_label_is_noticed_however_few_the_epochs() -> None:
    (sentence,) = warnings(GOOD[:3], change([50, 50], [50, 50], sure=0.04))
    assert sentence.startswith("Hardly any label is sure (4.0%)")
    assert warnings([{"epoch": 0, "hcs": 0.04}])[0].startswith("Hardly any label is sure")
    assert warnings([{"epoch": 0, "hcs": 0.4}]) == []


def test_sure_labels_that_were_swapped_are_noticed() -> None:
    zeros, ones = np.zeros(50, int), np.ones(50, int)
    sure = np.ones(100, bool)
    swapped = label_change(np.r_[zeros, ones], np.r_[ones, zeros], sure, 2)
    assert any("100% of the sure labels are not what the source model said" in text for text in warnings(GOOD, swapped))
    assert warnings(epochs([0.9] * 3, [0.0, 0.8, 0.0])) == ["80% of the labels changed at once, in a single epoch."]


def test_a_run_that_is_not_at_its_end_is_judged_by_its_epochs() -> None:
    lines = [{"epoch": i, "min_class_share": m, "effective_classes": e} for i, (m, e) in enumerate([(0.1, 9), (0, 4)])]
    assert warnings(lines) == [
        "A class has vanished from the labels.",
        "The labels are collapsing into few classes: as mixed as 4.0 now, 9.0 at first.",
    ]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50).filter(lambda shares: sum(shares) > 0.1))
def test_the_effective_number_of_classes_lies_between_one_and_their_number(shares: list[float]) -> None:
    total = sum(shares)
    assert 1 - 1e-9 <= effective_classes([share / total for share in shares]) <= len(shares) + 1e-9


def test_equal_classes_count_whole() -> None:
    assert effective_classes([0.25] * 4) == pytest.approx(4)
    assert effective_classes([1.0, 0.0]) == 1

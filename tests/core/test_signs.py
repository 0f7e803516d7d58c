"""The signs speak when a run goes wrong, and are silent when it goes well."""

from ray_adaplr.core.signs import class_collapse, warnings


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
    assert "Classes 3, 7 were dying out in the labels (first in epoch 2)" in sentence


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

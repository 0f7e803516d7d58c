"""When to end and which epoch to keep, on curves whose answer is plain."""

import pytest

from ray_adaplr.core.scores import DEFAULT_SCORE, PATIENCE, best_epoch, stalled


def curve(*scores: float, reassigned: float = 0.0) -> list[dict[str, float]]:
    return [{"epoch": e, DEFAULT_SCORE: score, "reassigned": reassigned} for e, score in enumerate(scores)]


def test_the_best_epoch_is_the_highest_after_the_warm_up() -> None:
    assert best_epoch(curve(9, 1, 3, 2), warmup=1) == 2
    assert best_epoch(curve(9, 1, 3, 2), warmup=0) == 0
    assert best_epoch(curve(1, 2), warmup=3) == 1  # still in the warm-up


def test_a_rising_score_goes_on() -> None:
    rising = [0.1 * epoch for epoch in range(30)]
    assert not any(stalled(curve(*rising[:n]), 3, 10) for n in range(30))


@pytest.mark.parametrize("after", [1.0, 0.9, 1.0001])
def test_a_flat_or_falling_score_ends_after_the_patience_is_used_up(after: float) -> None:
    scores = [0.2, 0.5, 1.0] + [after] * PATIENCE
    assert not stalled(curve(*scores[:-1]), 0, 10)
    assert f"in the last {PATIENCE} epochs" in stalled(curve(*scores), 0, 10)


def test_labels_that_still_change_go_on_though_the_score_falls() -> None:
    assert not stalled(curve(*[1.0] * 10, reassigned=0.02), warmup=0, num_classes=10)


def test_the_warm_up_does_not_count_as_stalling() -> None:
    assert not stalled(curve(*[1.0] * 10), warmup=9, num_classes=10)

"""The speed benchmark: rows know their goals, a check fails on what is worse than the noise, and the file says all."""

import json
import time
from pathlib import Path

import pytest

from benchmarks import measure, speed
from benchmarks.measure import Measurement


@pytest.mark.parametrize(
    ("values", "higher_is_better", "met", "regressed"),
    [
        ([0.9, 1.0, 1.1], True, True, False),
        ([0.8, 0.9, 1.1], True, False, False),  # the median misses, the best repeat does not: noise
        ([0.7, 0.8, 0.9], True, False, True),
        ([0.9, 1.0, 1.1], False, True, False),
        ([0.9, 1.2, 1.3], False, False, False),
        ([1.1, 1.2, 1.3], False, False, True),
    ],
)
def test_a_row_is_met_by_its_median_and_worse_only_beyond_its_spread(
    values: list[float], higher_is_better: bool, met: bool, regressed: bool
) -> None:
    row = Measurement.of("a ÷ b", values, 1.0, higher_is_better=higher_is_better)
    assert (row.met, row.regressed) == (met, regressed)


def test_what_could_not_be_measured_is_told_and_is_no_regression() -> None:
    row = Measurement("ours ÷ theirs", None, None, 2.0, True, note="skipped: it is not installed")
    assert "skipped" in str(row)
    assert not row.regressed


def test_works_are_measured_in_turn_after_one_round_to_get_warm() -> None:
    seen: list[str] = []
    taken = measure.seconds_in_turn(lambda: seen.append("a"), lambda: seen.append("b"), repeats=3)
    assert seen == ["a", "b"] * 4
    assert [len(times) for times in taken] == [3, 3]


def test_the_peak_of_memory_sees_what_is_freed_again() -> None:
    before = measure.resident_bytes()
    with measure.peak_memory() as peak:
        block, deadline = bytearray(b"x" * 200_000_000), time.monotonic() + 60
        while peak[0] - before <= 150_000_000 and time.monotonic() < deadline:  # until the watcher has had its turn
            time.sleep(0.001)
        del block
    assert peak[0] - before > 150_000_000
    assert measure.resident_bytes() - before < 50_000_000


@pytest.mark.parametrize(("value", "code"), [(2.0, 0), (0.5, 1)])
def test_the_command_writes_its_rows_and_a_check_fails_when_one_got_worse(
    value: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = Measurement.of("member ÷ bare", [value] * 3, 1.0, higher_is_better=True, note="of a test")
    monkeypatch.setattr(speed, "QUICK", [lambda: [row]])
    assert speed.main(["--check", "--out", str(tmp_path / "speed.json")]) == code
    content = json.loads((tmp_path / "speed.json").read_text())
    assert {"commit", "cpu", "cores", "torch", "repeats", "rows"} <= content.keys()
    assert content["rows"][0] | {"value": value, "goal": 1.0, "spread": [value, value]} == content["rows"][0]
    assert ("NOT MET" in capsys.readouterr().out) == bool(code)


def test_rows_measured_again_take_the_place_of_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    rows = {
        (name, value): Measurement.of(name, [value], 1.0, higher_is_better=True)
        for name in "ab"
        for value in (1.0, 2.0)
    }
    speed.write(file, [rows["a", 1.0], rows["b", 1.0]])
    speed.write(file, [rows["a", 2.0]])
    assert [(row["name"], row["value"]) for row in json.loads(file.read_text())["rows"]] == [("a", 2.0), ("b", 1.0)]


def test_a_member_is_measured_against_a_bare_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "REPEATS", 1)
    row = speed._member_epoch("digit_cnn", side=8, images=64, goal=0.0)
    assert row.value is not None
    assert row.value > 0  # of how much nothing can be said: an epoch of 64 small images takes milliseconds

"""The terminal view."""

from collections.abc import Callable
from pathlib import Path

import pytest

from ray_adaplr.errors import InputError
from ray_adaplr.report.live import describe_run, follow_run, sparkline
from ray_adaplr.storage.run_reader import read_run

Make = Callable[..., Path]


def test_off_a_terminal_the_state_is_printed_once(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    follow_run(make_run(finished=False))
    text = capsys.readouterr().out
    assert text.count("gamma") == 1
    assert "\x1b" not in text


def test_a_terminal_is_redrawn_until_the_run_ends(
    make_run: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    summary = (run / "summary.json").read_text()
    (run / "summary.json").unlink()
    looks = []

    def sleep(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            (run / "summary.json").write_text(summary)

    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("ray_adaplr.report.live.time.sleep", sleep)
    follow_run(run)
    assert len(looks) == 2
    assert "finished after 12 epochs" in capsys.readouterr().out


def test_a_refining_run_says_how_long_it_will_take(make_run: Make) -> None:
    run = make_run(finished=False, epochs=100)
    (run / "labels.parquet").unlink()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(lines[:28]) + '\n{"stage": "re')
    text = describe_run(read_run(run))
    assert "refining, epoch 28 of 100, about 3 min left" in text
    assert "▁" in text


def test_without_ground_truth_the_view_is_silent_about_it(make_run: Make) -> None:
    text = describe_run(read_run(make_run(truth=False)))
    assert "noise" not in text
    assert "accuracy" not in text


def test_a_run_that_is_refined_and_no_more_says_so(make_run: Make) -> None:
    run = make_run(finished=False)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join(line for line in lines if '"distill"' not in line) + "\n")
    assert "refined after 12 epochs, without a target model yet" in describe_run(read_run(run, labels=False))


def test_a_run_without_epochs_waits_for_the_first_and_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no run"):
        follow_run(tmp_path)
    (tmp_path / "config.toml").write_text("epochs = 4\n")
    follow_run(tmp_path)
    assert "no epoch has ended yet" in describe_run(read_run(tmp_path))


def test_a_sparkline_is_as_wide_as_the_view_at_most() -> None:
    assert sparkline([0, 0.5, 1]) == "▁▅█"
    assert len(sparkline([float(i) for i in range(750)])) <= 40
    assert sparkline([0.0, 0.0]) == "▁▁"

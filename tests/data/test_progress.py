"""When a stage will end: judged by the steps of this process, not by those of an earlier one."""

import io

import pytest

from ray_adaplr.data import progress
from ray_adaplr.data.progress import Progress


@pytest.mark.parametrize(
    ("told", "steps", "shown"),
    [
        (None, (1, 2, 3), ["1:30", "1:20", "1:10"]),  # a new training
        (None, (6, 7, 8), ["?", "0:30", "0:20"]),  # one that was stopped after its sixth epoch, which it tells again
        (None, (10,), ["0:00"]),
        (6, (7, 8), ["0:30", "0:20"]),
        (0, (5,), ["0:10"]),  # five pictures at once
    ],
)
def test_what_an_earlier_run_did_makes_no_end_seem_near(
    told: int | None, steps: tuple[int, ...], shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    line = Progress(stream := io.StringIO())
    line.stage("distill", 10, told)
    for done in steps:
        clock[0] += 10
        line.step(done)
    assert [text.split("ETA ")[1] for text in stream.getvalue().splitlines()] == shown

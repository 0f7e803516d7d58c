"""The profile of an epoch: each second counts once, and in the part that it belongs to."""

import threading
import time
from collections import Counter

import pytest

from benchmarks.epoch_profile import Parts

spent: Counter[int] = Counter()  # CPU milliseconds by thread: those of real threads depend on the machine's load


class Work:
    def inner(self) -> None:
        busy(50)

    def outer(self) -> None:
        busy(70)
        self.inner()


def busy(milliseconds: int) -> None:
    spent[threading.get_ident()] += milliseconds


def test_what_a_part_calls_counts_there_and_the_rest_is_what_no_part_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "thread_time", lambda: spent[threading.get_ident()] / 1000)
    monkeypatch.setattr(time, "process_time", lambda: spent.total() / 1000)
    work, parts, before = Work(), Parts(), Work.inner
    with parts.of([(Work, "inner", "a"), (Work, "outer", "b")]):
        work.inner()
        work.outer()
        beside = threading.Thread(target=work.inner)
        beside.start()
        beside.join()
        busy(30)
    assert parts.seconds == pytest.approx({"a": 0.1, "b": 0.12, "rest": 0.03})
    assert Work.inner is before

"""The profile of an epoch: each second counts once, and in the part that it belongs to."""

import threading
import time

from benchmarks.epoch_profile import Parts


class Work:
    def inner(self) -> None:
        busy(0.05)

    def outer(self) -> None:
        busy(0.05)
        self.inner()


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_what_a_part_calls_counts_there_and_the_rest_is_what_no_part_took() -> None:
    work, parts, before = Work(), Parts(), Work.inner
    with parts.of([(Work, "inner", "a"), (Work, "outer", "b")]):
        work.inner()
        work.outer()
        beside = threading.Thread(target=work.inner)
        beside.start()
        beside.join()
        busy(0.05)
    assert 0.1 <= parts.seconds["a"] < 0.15
    assert 0.1 <= parts.seconds["b"] < 0.15
    assert 0.05 <= parts.seconds["rest"] < 0.15
    assert Work.inner is before

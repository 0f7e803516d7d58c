"""A run that cannot fit is refused before it starts, with what it takes and what there is."""

from pathlib import Path

import pytest

from ray_adaplr.config import Config, ScalingConfig
from ray_adaplr.core.models import Classifier
from ray_adaplr.data.store import ImageStore
from ray_adaplr.engine import limits
from ray_adaplr.engine.limits import Need, check_memory_and_disk
from ray_adaplr.errors import InputError
from ray_adaplr.stages.adapt import RunPlan, adapt

STORE = {"images": 120_000, "classes": 345, "bytes": 0.0}


def test_a_history_that_memory_cannot_hold_is_refused_before_anything_is_written(
    source_model: Classifier,
    digit_stores: dict[str, ImageStore],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "_memory", lambda: 1e6)
    plan = RunPlan(
        [source_model],
        digit_stores["optdigits"],
        str(tmp_path / "run"),
        Config(n_a=1000),
        ScalingConfig(engine="local"),
    )
    with pytest.raises(InputError, match=r"MB of memory but this machine has 1\.0 MB; use a smaller n_a"):
        adapt(plan)
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_memory", lambda: 1e12)
    monkeypatch.setattr(limits, "free_bytes", lambda path: 1e9)
    need = Need.of(STORE, n_e=3, n_a=10, scaling=ScalingConfig())
    with pytest.raises(InputError, match=r"has 1\.00 GB free; free some, choose another --out"):
        check_memory_and_disk(need, str(tmp_path))
    check_memory_and_disk(need, None)  # a bucket has room
    monkeypatch.setattr(limits, "free_bytes", lambda path: 2e6)
    with pytest.raises(InputError, match=r"take up to 4\.2 MB but .* has 2\.0 MB free"):
        check_memory_and_disk(Need(images=0, run=4.2e6, coordinator=0, member=0), str(tmp_path))


def test_checkpoints_that_are_not_written_take_no_room() -> None:
    scaling = ScalingConfig(checkpoint_every=0)
    need, none = (Need.of(STORE, 3, 10, each, model=1e6) for each in (ScalingConfig(), scaling))
    assert none.run == 5e6 < need.run  # members, start and target model


def test_a_container_has_the_memory_it_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(limits, "CGROUP_LIMITS", (str(limit), str(tmp_path / "nowhere")))
    machine = limits._memory()
    assert machine > 1e8
    limit.write_text("max\n")
    assert limits._memory() == machine
    limit.write_text("50000000\n")
    assert limits._memory() == 5e7

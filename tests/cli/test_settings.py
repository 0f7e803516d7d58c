"""`ray-adaplr settings`: the range of each setting in words."""

import pytest

from ray_adaplr.cli.settings import describe
from ray_adaplr.config import Config

ROWS = {row["name"]: row for row in describe(Config)}


@pytest.mark.parametrize(
    ("name", "words"),
    [("enlarge", "numbers ≥ 1, ≤ 4"), ("member_weights", "numbers or none"), ("crop", "low, high")],
)
def test_a_list_of_numbers_is_told_with_the_bounds_of_each(name: str, words: str) -> None:
    assert ROWS[name]["range"] == words


def test_only_presets_with_another_value_than_the_default_are_named() -> None:
    assert ROWS["fresh_head"]["presets"] == {}
    assert ROWS["zero_fill"]["presets"]["paper"] is True
    assert all(value != row["default"] for row in ROWS.values() for value in row["presets"].values())


def test_only_the_weights_of_members_are_one_per_member() -> None:
    assert [name for name, row in ROWS.items() if "one per member" in row["meaning"] + row["range"]] == [
        "member_weights"
    ]

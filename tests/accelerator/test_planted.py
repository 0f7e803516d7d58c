"""The bugs that `planted.py` plants, which takes minutes: each still has its place in the package."""

import pytest
from planted import BUGS, REPOSITORY


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_has_one_place_to_be_planted(name: str) -> None:
    bug = BUGS[name]
    assert (REPOSITORY / "ray_adaplr" / bug.file).read_text().count(bug.right) == 1

"""One line of an error, whatever it says."""

import pytest

from ray_adaplr.errors import first_line, last_line


@pytest.mark.parametrize(
    ("error", "first", "last"),
    [
        (OSError("\n  it broke \nat line 3\n\n"), "it broke", "at line 3"),
        (OSError("it broke"), "it broke", "it broke"),
        (OSError(" \n"), "OSError", "OSError"),
        (ConnectionError(), "ConnectionError", "ConnectionError"),
    ],
)
def test_an_error_has_a_first_and_a_last_line_even_without_text(error: OSError, first: str, last: str) -> None:
    assert (first_line(error), last_line(error)) == (first, last)

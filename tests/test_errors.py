"""One line of an error, whatever it says."""

import pytest

from ray_adaplr.errors import first_line, last_line, same_command


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


def test_what_is_to_be_called_again_is_never_what_removes_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["ray-adaplr", "adapt", "--force", "--out", "runs/a"])
    assert same_command() == "the same command without --force"
    assert same_command(["adapt", "--out", "--", "f"]) == "the same command"

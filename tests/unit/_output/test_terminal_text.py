"""The gate before a screen: what passes, and what does not."""

from __future__ import annotations

import pytest

from kinetic import errors
from kinetic._output import format as output_format
from kinetic._output import terminal as output


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("größe 語 🙂", "größe 語 🙂"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("\x1b]0;t\x07", "\\x1b]0;t\\x07"),
        ("\x9b2J\x7f\r", "\\x9b2J\\x7f\\r"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("\udcff", "\\udcff"),
        ("\u2028", "\\u2028"),
    ],
)
def test_a_name_is_one_line_that_does_nothing_to_a_terminal(text: str, shown: str) -> None:
    assert output_format.plain(text) == shown


def test_no_line_of_a_message_can_be_taken_for_a_part_of_it() -> None:
    error = errors.KineticError("no file x\nnext:  rm -rf /\x1b[2J", why="\u202ea\nwhy: b", next="look")

    assert str(error).splitlines() == [
        "no file x",
        "       next:  rm -rf /\\x1b[2J [kinetic]",
        "why:   \\u202ea",
        "       why: b",
        "next:  look",
    ]


def test_a_line_on_standard_error_begins_where_ours_begin(capsys: pytest.CaptureFixture[str]) -> None:
    output.warn("folder a\nkinetic: all is well\x1b[2J", why="b\nnext:  rm", next="look")

    assert capsys.readouterr().err.splitlines() == [
        "kinetic: warning: folder a",
        "         kinetic: all is well\\x1b[2J",
        "why:   b",
        "       next:  rm",
        "next:  look",
    ]

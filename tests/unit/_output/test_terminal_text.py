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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31;1mred\x1b[0m", "\x1b[31;1mred\x1b[0m"),
        ("\x1b[38:2::1:2:3mtrue\x1b[m", "\x1b[38:2::1:2:3mtrue\x1b[m"),
        ("\r 50%\b\b\x1b[K", "\r 50%\b\b\x1b[K"),
        ("a\x1b[2Jb\x1b[5;5Hc\x1b[1Ad\x1b[?25le\x1b[6nf", "abcdef"),
        ("a\x1b]0;title\x07b\x1b]52;c;eA==\x1b\\c\x1bP1$r\x1b\\d", "abcd"),
        ("a\x1bcb\x1b(0c\x1b7d", "abcd"),
        ("a\x9b2Jb\x90c\u202ed\x07", "a\\x9b2Jb\\x90c\\u202ed\\x07"),
        ("\x1b]0;never ended\nnext line", "0;never ended\nnext line"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_what_a_job_prints_keeps_its_colours_and_steers_nothing_however_it_is_cut(
    text: str, shown: str, size: int
) -> None:
    job = output.JobText()

    found = "".join(job.feed(text[start : start + size]) for start in range(0, len(text), size))

    assert found + job.end() == shown


def test_a_sequence_that_never_ends_is_shown_when_the_job_has_ended() -> None:
    job = output.JobText()

    assert job.feed("text\x1b]0;titl") == "text"
    assert job.end() == "\\x1b]0;titl"


def test_a_very_long_title_does_not_hide_the_rest_of_a_log() -> None:
    job = output.JobText()

    found = job.feed("\x1b]0;" + "x" * 10_000) + job.feed("y")

    assert "x" * 5000 in found


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

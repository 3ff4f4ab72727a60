"""Who decides on colors, and how a bar is drawn where the terminal shows blocks and where it does not."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from kinetic._output import colors, terminal
from kinetic._output import format as output_format


class Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._is_terminal, self._encoding = is_terminal, encoding

    @property
    def encoding(self) -> str:
        return self._encoding

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture(autouse=True)
def auto(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    yield
    colors.choose("auto")


@pytest.mark.parametrize(
    ("choice", "variables", "is_terminal", "used"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"TERM": "dumb"}, True, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"NO_COLOR": ""}, True, True),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"FORCE_COLOR": "0"}, False, False),
        ("auto", {"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
    ],
)
def test_the_option_wins_then_no_color_then_force_color_then_the_terminal(
    choice: colors.Choice, variables: dict[str, str], is_terminal: bool, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    colors.choose(choice)

    assert colors.are_used(Stream(is_terminal=is_terminal)) is used


@pytest.mark.parametrize(
    ("share", "blocks", "ascii_"),
    [
        (0.0, "          ", "----------"),
        (0.25, "██▌       ", "##--------"),
        (0.33, "███▎      ", "###-------"),
        (1.0, "██████████", "##########"),
        (7.0, "██████████", "##########"),
        (-1.0, "          ", "----------"),
    ],
)
def test_a_bar_has_eighths_where_the_encoding_can_show_them(share: float, blocks: str, ascii_: str) -> None:
    assert colors.bar(share, 10, Stream(is_terminal=True)) == blocks
    assert colors.bar(share, 10, Stream(is_terminal=True, encoding="ascii")) == ascii_
    assert colors.bar(share, 10, Stream(is_terminal=True, encoding="latin-1")) == ascii_


def test_a_table_has_colors_in_its_status_and_keeps_its_columns() -> None:
    columns = (
        output_format.Column("JOB ID"),
        output_format.Column("STATUS", is_status=True),
        output_format.Column("REASON"),
    )
    rows = [("a", "FAILED", "\x1b[2J"), ("bb", "SUCCEEDED (collected 5 s ago)", "")]

    plain = output_format.table_lines(columns, rows)
    painted = output_format.table_lines(columns, rows, paint=lambda text: f"<{text}>")

    assert [line.replace("<", "").replace(">", "") for line in painted] == plain
    assert "<FAILED>" in painted[1]
    assert "\\x1b[2J" in painted[1]


def test_a_warning_has_a_colored_label_and_the_same_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal.warn("one\ntwo", why="three", next="four")
    without = capsys.readouterr().err
    monkeypatch.setenv("FORCE_COLOR", "1")
    terminal.warn("one\ntwo", why="three", next="four")
    colored = capsys.readouterr().err

    assert without == "kinetic: warning: one\n         two\nwhy:   three\nnext:  four\n"
    assert "\x1b[1;33mwarning:\x1b[0m one" in colored
    assert "\x1b[1;32mnext:\x1b[0m  four" in colored
    for code in ("\x1b[1;33m", "\x1b[1;32m", "\x1b[0m"):
        colored = colored.replace(code, "")
    assert colored == without

"""Several lines that are written over again: as many and as wide as the terminal, and gone before anybody writes."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pyte
import pytest
from servers.terminal import TextTerminal as Terminal

from kinetic._blobs.file_tree import TransferProgress
from kinetic._output import terminal as output


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    stream = Terminal()
    monkeypatch.delenv("KINETIC_LOG_LEVEL", raising=False)
    monkeypatch.setattr(output, "_shown", False)
    monkeypatch.setattr(output, "_above", 0)
    monkeypatch.setattr(output, "size", lambda: os.terminal_size((20, 5)))
    monkeypatch.setattr(output, "sys", SimpleNamespace(stderr=stream))
    return stream


def screen(text: str) -> list[str]:
    """Return what a terminal shows after some bytes; it knows what we use and nothing else."""
    rows, row, column, position = [""], 0, 0, 0
    while position < len(text):
        if text.startswith("\x1b[", position):
            end = next(place for place in range(position + 2, len(text)) if text[place].isalpha())
            match text[end]:
                case "A":
                    row = max(0, row - int(text[position + 2 : end]))
                case "K":
                    rows[row] = rows[row][:column]
                case "J":
                    rows[row:] = [rows[row][:column]]
                case other:
                    raise AssertionError(other)
            position = end
        elif text[position] == "\r":
            column = 0
        elif text[position] == "\n":
            row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
        else:
            rows[row] = f"{rows[row][:column].ljust(column)}{text[position]}{rows[row][column + 1 :]}"
            column += 1
        position += 1
    return rows


def test_lines_take_the_place_of_those_before_them(terminal) -> None:
    output.show_lines(["one", "two two", "three"])
    output.show_lines(["uno", "dos"])

    assert screen(terminal.getvalue()) == ["uno", "dos"]


def test_whoever_says_something_stands_above_and_the_lines_are_gone(terminal) -> None:
    output.show_lines(["one", "two", "three"])

    output.report("news")

    assert screen(terminal.getvalue()) == ["kinetic: news", ""]


def test_one_line_takes_the_place_of_several(terminal) -> None:
    output.show_lines(["one", "two", "three"])

    output.show_line("alone")
    output.clear()
    output.clear()

    assert screen(terminal.getvalue()) == [""]


def test_a_single_line_that_is_cut_shows_it(terminal) -> None:
    output.show_line("3 of 100, about 48 s left")

    assert screen(terminal.getvalue()) == ["3 of 100, about …"]


@pytest.mark.parametrize("lines", [["x" * 50], ["above", "x" * 50]])
def test_what_is_removed_after_a_ctrl_c_leaves_nothing_of_a_full_line(terminal, lines) -> None:
    terminal.write("before\n")
    (output.show_lines if lines[1:] else output.show_line)(lines if lines[1:] else lines[0])
    terminal.write("^C")  # as a terminal shows it

    output.clear()

    real = pyte.Screen(20, 5)  # which continues a line that is too long on the next one
    pyte.Stream(real).feed(terminal.getvalue().replace("\n", "\r\n"))
    assert "".join(real.display).split() == ["before"]


def test_a_line_is_cut_where_the_terminal_ends_and_wide_characters_count_twice(terminal) -> None:
    output.show_lines(["x" * 50, "語" * 50])

    assert screen(terminal.getvalue()) == ["x" * 18 + "…", "語" * 9 + "…"]


def test_there_are_no_more_lines_than_the_terminal_has(terminal) -> None:
    output.show_lines([str(number) for number in range(20)])

    assert screen(terminal.getvalue()) == ["0", "1", "2", "3"]


class Owner:
    """Somebody who draws."""


def test_only_who_drew_takes_it_away(terminal) -> None:
    mine, other = Owner(), Owner()
    output.show_lines(["one", "two"], owner=mine)

    output.show_line("something else", owner=other)
    output.release(other)

    assert screen(terminal.getvalue()) == ["one", "two"]
    output.release(mine)
    assert screen(terminal.getvalue()) == [""]


def test_what_is_said_stands_above_a_picture_that_has_an_owner_and_the_picture_stays(terminal) -> None:
    mine = Owner()
    output.show_lines(["one", "two"], owner=mine)

    output.report("news")
    output.report("more")

    assert screen(terminal.getvalue()) == ["kinetic: news", "kinetic: more", "one", "two"]
    output.release(mine)
    assert screen(terminal.getvalue()) == ["kinetic: news", "kinetic: more", ""]


def test_after_room_was_made_for_others_the_owner_draws_below_them(terminal) -> None:
    mine = Owner()
    output.show_lines(["one", "two"], owner=mine)

    output.clear()
    terminal.write("theirs\n")
    output.show_lines(["one", "two"], owner=mine)

    assert screen(terminal.getvalue()) == ["theirs", "one", "two"]


def test_a_picture_whose_owner_is_gone_gives_way(terminal) -> None:
    output.show_lines(["one", "two"], owner=Owner())

    output.report("news")

    assert screen(terminal.getvalue()) == ["kinetic: news", ""]


@pytest.mark.parametrize("work", [lambda: output.phase("packing"), lambda: TransferProgress("sending", "data", 1, 1)])
def test_work_that_took_a_moment_takes_nobody_elses_picture_away(work, terminal) -> None:
    mine = Owner()
    output.show_lines(["one", "two"], owner=mine)

    with work():
        pass

    assert screen(terminal.getvalue()) == ["one", "two"]
    output.release(mine)

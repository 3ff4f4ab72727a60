"""What a job printed, on a screen and in a file: bars of the real tqdm and the real Keras, and hostile text."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
import tracemalloc
from functools import cache
from pathlib import Path

import pyte
import pytest

from kinetic._output import job_text, terminal
from kinetic._output.job_text import FileText, TerminalText

COLUMNS, LINES = 60, 24
BARS = """
import sys
from tqdm import tqdm, trange
print("begin", flush=True)
for epoch in trange(3, desc="outer", mininterval=0):
    for step in trange(40, desc="inner", mininterval=0, leave=False):
        pass
for step in tqdm(range(100), desc="single", mininterval=0):
    pass
print("end", flush=True)
"""
KERAS = Path(__file__).with_name("keras_fit.log")  # from the real one, by the script of that name


@cache
def _printed(script: str) -> str:
    """Return what a program writes into a file, as into the log of a job."""
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, timeout=120
    )
    return done.stdout.decode()


def _screen(*texts: str, columns: int = COLUMNS, lines: int = LINES) -> list[str]:
    """Return the lines of a terminal that gets these texts."""
    screen = pyte.Screen(columns, lines)
    screen.set_mode(pyte.modes.LNM)
    stream = pyte.Stream(screen)
    for text in texts:
        stream.feed(text)
    return [line.rstrip() for line in screen.display if line.strip()]


def _shown(text: str, *, size: int = 1 << 20, columns: int = COLUMNS, lines: int = LINES) -> list[str]:
    found = TerminalText(lambda: os.terminal_size((columns, lines)))
    pieces = [found.feed(text[at : at + size]) for at in range(0, len(text), size)]
    return _screen(*pieces, found.end(), columns=columns, lines=lines)


def _filed(text: str, *, size: int = 1 << 20) -> str:
    found = FileText()
    return "".join(found.feed(text[at : at + size]) for at in range(0, len(text), size)) + found.end()


SIZES = [7, 80, 1000, 1 << 20]


@pytest.mark.parametrize("size", SIZES)
def test_nested_bars_of_tqdm_are_one_line_each(size: int) -> None:
    text = _printed(BARS)
    assert text.count("\n") > 120

    shown = _shown(text, size=size)

    assert [line.split(":")[0] for line in shown] == ["begin", "outer", "single", "end"]
    assert "100%" in shown[1]
    assert "3/3" in shown[1]
    assert "100/100" in shown[2]


@pytest.mark.parametrize("size", [1000, 1 << 20])
def test_in_a_file_a_bar_of_tqdm_is_its_last_state(size: int) -> None:
    filed = _filed(_printed(BARS), size=size).splitlines()

    assert [line.split(":")[0] for line in filed if "  0%" not in line] == ["begin", "outer", "single", "end"]
    assert len(filed) <= 5  # a state that was there before a bar went up for the first time may stay


@pytest.mark.parametrize("size", SIZES)
def test_a_bar_of_keras_is_one_line_for_each_epoch(size: int) -> None:
    text = KERAS.read_bytes().decode()
    assert text.count("\r") > 3
    assert "\b" in text

    shown, filed = _shown(text, size=size, columns=100), _filed(text, size=size).splitlines()

    expected = [f"Epoch {epoch}/3" for epoch in (1, 2, 3)]
    assert [line for line in shown if line.startswith("Epoch")] == expected
    bars = [line for line in shown if line.startswith("80/80")]
    assert len(bars) == 3, shown
    assert len(shown) == 6, shown
    assert sum("80/80" in line for line in filed) == 3
    assert len(filed) == 6


def test_a_bar_that_is_wider_than_the_terminal_stays_one_line() -> None:
    text = "".join(f"\r{number:3}% {'=' * 80}|" for number in range(101))

    shown = _shown(text, size=87, columns=40)

    assert len(shown) == 1
    assert shown[0].startswith("100% ===")
    assert shown[0].endswith("…")


def test_a_bar_that_was_cut_is_shown_whole_once_the_next_line_begins() -> None:
    shown = _shown(f"\r 50% {'=' * 50}\r100% {'=' * 50}END\nnext", size=60, columns=40)

    assert "".join(shown[:2]).endswith("END")
    assert shown[2:] == ["next"]


def test_the_cursor_of_a_job_cannot_reach_what_it_did_not_print() -> None:
    mine = _screen("$ kinetic jobs logs\n", columns=COLUMNS)
    found = TerminalText(lambda: os.terminal_size((COLUMNS, LINES)))

    shown = _screen("$ kinetic jobs logs\n", found.feed("one\x1b[99A\rTWO\x1b[99Aevil\x1b[5;5Hmore\x1b[2J"))

    assert shown[0] == mine[0]
    assert shown[1:] == ["TWOevilmore"]


def test_a_bar_does_not_overwrite_a_message_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    found = TerminalText(lambda: os.terminal_size((COLUMNS, LINES)))
    first = found.feed("outer\n\rinner 1\x1b[A")
    terminal.report("a message")
    message = capsys.readouterr().err

    shown = _screen(first, f"\n{message}", found.feed("\n\rinner 2\x1b[A\router 2"))

    assert "kinetic: a message" in shown
    assert shown.index("kinetic: a message") < shown.index("inner 2")


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 語\tx", ["größe 語       x"]),
        ("a\x1b[2Jb\x1b[5;5Hc\x1b[?25le\x1b[6nf", ["abcef"]),
        ("a\x1b]0;title\x07b\x1b]52;c;eA==\x1b\\c\x1bP1$r\x1b\\d", ["abcd"]),
        ("a\x1bcb\x1b(0c\x1b7d", ["abcd"]),
        ("a\x9b2Jb\x90c\u202ed\x07", ["a\\x9b2Jb\\x90c\\u202ed\\x07"]),
        ("abc\b\bX\x1b[K", ["aX"]),
        ("abc\r\x1b[2KX", ["X"]),
        ("50%\r\n100%\r\r\n", ["50%", "100%"]),
        ("語語\rab", ["ab語"]),
        ("e\u0301\rX", ["X"]),
        ("", []),
    ],
)
def test_what_a_job_prints_is_shown_and_steers_nothing_however_it_is_cut(
    text: str, shown: list[str], size: int
) -> None:
    assert [line.replace("語 ", "語") for line in _shown(text, size=size)] == shown


def test_colors_pass_and_end_where_they_end() -> None:
    found = TerminalText(lambda: os.terminal_size((COLUMNS, LINES)))

    passed = found.feed("\x1b[31;1mred\x1b[0m plain")

    assert passed == "\x1b[31;1mred\x1b[0m plain"
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.Stream(screen)
    stream.feed(passed + found.feed("\r\x1b[32mgreen\x1b[0m"))
    assert screen.buffer[0][0].fg == "green"
    assert screen.buffer[0][6].fg == "default"
    assert screen.display[0].rstrip() == "greenlain"


def test_a_sequence_that_never_ends_is_shown_when_the_job_has_ended() -> None:
    found = TerminalText()

    assert found.feed("text\x1b]0;titl") == "text"
    assert found.end() == "\\x1b]0;titl"


def test_a_very_long_title_does_not_hide_the_rest_of_a_log() -> None:
    found = TerminalText()

    assert "x" * 5000 in found.feed("\x1b]0;" + "x" * 10_000) + found.feed("y")


@pytest.mark.parametrize("kind", [FileText, TerminalText])
def test_of_a_line_of_many_megabytes_only_its_beginning_is_held_to_be_edited(kind: type[FileText]) -> None:
    found, piece = kind(), "x" * 65_536
    tracemalloc.start()
    try:
        wrong = sum(found.feed(piece) != piece for _ in range(160))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert wrong == 0
    assert held < 1 << 20, f"{held} bytes are copied for each piece"
    assert found.feed("\nnext\n") + found.end() == "\nnext\n"


@pytest.mark.parametrize("size", [1, 5, 1000])
@pytest.mark.parametrize(
    "text",
    [
        "one\ntwo\r\nthree\r\r\n",
        "\udcff\x00\x07\x1b]0;title\x07\u202e語\n",
        "no line break",
        "\x1b[1mbold\x1b[0m\n",
        "\x1b[",
    ],
)
def test_lines_that_never_go_back_are_in_a_file_as_they_were_printed(text: str, size: int) -> None:
    assert _filed(text, size=size) == text


def test_an_open_line_is_in_a_pipe_at_once() -> None:
    found = FileText()

    assert [found.feed("."), found.feed("."), found.feed("\n")] == [".", ".", "\n"]


def test_a_bar_is_in_a_pipe_when_its_line_ends_and_not_before() -> None:
    found = FileText()

    assert [found.feed("\r 1%"), found.feed("\r50%"), found.feed("\r99%\n")] == ["", "", "99%\n"]


STATES = "".join(f"\r\x1b[1m{number}/50000\x1b[0m {'━' * 20}" for number in range(50_000))


def test_a_million_states_of_a_bar_at_once_take_no_time() -> None:
    found = TerminalText()

    out = found.feed(STATES)

    assert len(out) < 500
    assert "49999/50000" in out


def test_states_of_a_drawn_bar_that_later_ones_cover_are_not_drawn() -> None:
    assert job_text._without_what_is_overwritten(STATES).count("━") == 2 * 20  # it cannot know about the last one


def test_a_line_of_a_megabyte_that_goes_back_loses_nothing_in_a_file() -> None:
    filed = _filed("x" * (1 << 20) + "\rdone\n")

    assert filed == "x" * (1 << 20) + "\ndone\n"


@pytest.mark.parametrize("shown", [FileText, TerminalText])
def test_a_line_of_megabytes_that_comes_in_pieces_takes_no_time(shown: type[FileText | TerminalText]) -> None:
    text, piece, begun = shown(), "x" * 8192, time.process_time()

    found = "".join([*(text.feed(piece) for _ in range(4000)), text.feed("\nend\n"), text.end()])

    assert found.replace("\r", "") == "x" * 4000 * 8192 + "\nend\n"
    assert time.process_time() - begun < 2  # it took a minute in a file, and seven seconds on a terminal


def test_what_goes_back_in_a_long_line_that_came_in_pieces_loses_nothing_in_a_file() -> None:
    text = FileText()
    pieces = [text.feed("x" * 8192) for _ in range(20)]

    found = "".join([*pieces, text.feed("\rdone\n"), text.feed("y" * 100_000), text.feed("\b\bZ\n"), text.end()])

    lines = found.split("\n")
    assert lines[:3] == ["x" * 20 * 8192, "done", "y" * 100_000]
    assert lines[3].endswith("yZy")
    assert lines[4:] == [""]


def test_the_end_of_a_long_line_and_a_bar_below_it_leave_its_beginning_on_the_terminal() -> None:
    text = TerminalText()

    found = [text.feed("x" * 200_000), text.feed("end\nbar 1%\rbar 2%"), text.feed("\rbar 3%\n"), text.end()]

    assert found[:2] == ["x" * 200_000, "end\x1b[K\nbar 2%\x1b[J"]  # and not 819 lines up, to write less there
    assert found[2].startswith("\rbar 3%")


def test_what_is_shown_does_not_depend_on_where_a_text_is_cut() -> None:
    chance = random.Random(7)
    parts = [
        "a",
        "bc",
        "\r",
        "\n",
        "\b",
        "\x1b[A",
        "\x1b[3A",
        "\x1b[B",
        "\x1b[K",
        "\x1b[31m",
        "\x1b[0m",
        "語",
        "\t",
        "-" * 5,
        "━" * 3,
    ]
    for _ in range(80):
        text = "$ mine\n" + "".join(chance.choices(parts, k=30))
        whole, piece = _shown(text, columns=200), _shown(text, size=chance.randint(1, 9), columns=200)
        assert whole == piece, repr(text)

"""Phases that take long are named: live on a terminal, in plain lines elsewhere, and not at all when they are short."""

from __future__ import annotations

import io
import threading
import time
from functools import partial
from types import SimpleNamespace

import pyte
import pytest
from servers.terminal import Clock
from servers.terminal import TextTerminal as Terminal

from kinetic._output import format as format_
from kinetic._output import terminal as output


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plain(monkeypatch) -> io.StringIO:
    monkeypatch.delenv("KINETIC_LOG_LEVEL", raising=False)
    return _as_stderr(io.StringIO(), monkeypatch)


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    monkeypatch.delenv("KINETIC_LOG_LEVEL", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output, "_shown", False)
    return _as_stderr(Terminal(), monkeypatch)


def _as_stderr(stream, monkeypatch):
    """Give our modules a standard error; pytest puts its own into sys between a fixture and its test."""
    monkeypatch.setattr(output, "sys", SimpleNamespace(stderr=stream))
    return stream


def test_a_short_phase_is_not_mentioned(plain, clock) -> None:
    told = output.Progress(clock)

    told.enter("packing")
    clock.now += 0.9
    told.enter("running")
    clock.now += 0.9
    told.end()

    assert plain.getvalue() == ""


def test_a_long_phase_says_at_its_end_how_long_it_took(plain, clock) -> None:
    told = output.Progress(clock)

    told.enter("packing")
    clock.now += 75
    told.enter("running")
    told.end()

    assert plain.getvalue() == "kinetic: packing took 1 min 15 s\n"


def test_without_a_terminal_what_is_waited_for_is_said_once(plain, clock) -> None:
    told = output.Progress(clock)

    for before in (3, 2, 1):
        told.enter("waiting for a slot", f"{before} job(s) are before it")
        clock.now += 2

    assert plain.getvalue() == "kinetic: waiting for a slot: 2 job(s) are before it\n"  # the first was not yet long


def test_on_a_terminal_the_seconds_are_counted_in_one_line(terminal, clock) -> None:
    told = output.Progress(clock)

    told.enter("running")
    for _ in range(3):
        clock.now += 1
        told.show()
    told.end()

    assert terminal.getvalue() == (
        "\r\x1b[Kkinetic: running, 1 s\r\x1b[Kkinetic: running, 2 s\r\x1b[Kkinetic: running, 3 s"
        "\r\x1b[Kkinetic: running took 3 s\n"
    )


def test_what_others_say_stands_on_a_line_of_its_own(terminal, clock) -> None:
    told = output.Progress(clock)
    told.enter("running")
    clock.now += 1
    told.show()

    output.report("something else")

    assert terminal.getvalue().endswith("running, 1 s\r\x1b[Kkinetic: something else\n")


def test_a_line_that_the_job_left_open_is_not_written_over(terminal, clock) -> None:
    told = output.Progress(clock)
    told.enter("running")
    told.wrote("no end")
    clock.now += 2
    told.show()

    assert terminal.getvalue() == ""

    told.wrote("now it has one\n")
    told.show()

    assert terminal.getvalue() == "\r\x1b[Kkinetic: running, 2 s"


def test_the_last_line_begins_where_a_line_begins(terminal, clock) -> None:
    told = output.Progress(clock)
    told.enter("running")
    told.wrote("no end")
    clock.now += 2

    told.end()

    assert terminal.getvalue() == "\nkinetic: running took 2 s\n"


def test_a_line_is_never_wider_than_the_terminal(terminal, clock) -> None:
    told = output.Progress(clock)
    told.enter("waiting for a slot", "x" * 200)
    clock.now += 2

    told.show()

    assert len(terminal.getvalue().removeprefix("\r\x1b[K")) == 77  # of 80: there is room for ^C


@pytest.mark.parametrize(("name", "value"), [("TERM", "dumb"), ("KINETIC_LOG_LEVEL", "WARNING")])
def test_there_is_no_live_line_where_it_is_not_wanted(name, value, terminal, clock, monkeypatch) -> None:
    monkeypatch.setenv(name, value)
    told = output.Progress(clock)

    told.enter("running")
    clock.now += 2
    told.show()

    assert terminal.getvalue() == ""


def test_no_colour_is_used_whatever_the_terminal(terminal, clock, monkeypatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    told = output.Progress(clock)
    told.enter("running", "detail")
    clock.now += 2
    told.show()
    told.end()

    assert "\x1b[" not in terminal.getvalue().replace("\x1b[K", "")


def test_a_phase_around_a_block_ends_with_it_even_when_it_fails(plain, monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(output, "Progress", partial(output.Progress, clock))

    def fail() -> None:
        with output.phase("packing"):
            clock.now += 5
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert plain.getvalue() == "kinetic: packing took 5 s\n"


def test_a_phase_around_a_block_is_shown_while_it_lasts(terminal, monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(output, "Progress", partial(output.Progress, clock))
    monkeypatch.setattr(output, "SLOW_SECONDS", 0.01)

    with output.phase("packing", summary=False):
        clock.now += 5
        for _ in range(500):
            if "packing, 5 s" in terminal.getvalue():
                break
            time.sleep(0.01)

    assert "kinetic: packing, 5 s" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_phases_that_run_side_by_side_share_a_line_which_stays_below_messages(terminal, clock) -> None:
    one, other = (output.Progress(clock, shares=True) for _ in range(2))
    one.enter("packing")
    clock.now += 1
    other.enter("building the image", "3 MB sent")
    clock.now += 3

    one.show()
    output.report("resolved 3 packages")
    one.clear()
    between = terminal.getvalue()
    other.clear()

    screen = pyte.Screen(100, 5)
    pyte.Stream(screen).feed(between.replace("\n", "\r\n"))
    assert "packing, 4 s; building the image, 3 s: 3 MB sent" in between
    assert [line.rstrip() for line in screen.display if line.strip()] == [
        "kinetic: resolved 3 packages",
        "kinetic: building the image, 3 s: 3 MB sent",
    ]
    assert terminal.getvalue().endswith("\r\x1b[K")
    assert output._phases == []


def test_without_a_terminal_a_phase_that_goes_on_is_told_once(plain, monkeypatch) -> None:
    clock, moved = Clock(), threading.Event()

    def read() -> float:
        if threading.current_thread().name == "kinetic-progress":  # it may come before the block has begun
            assert moved.wait(10)
        return clock()

    monkeypatch.setattr(output, "Progress", partial(output.Progress, read))
    monkeypatch.setattr(output, "LONG_SECONDS", 0.0)

    with output.phase("asking the store", summary=False):
        clock.now += 5
        moved.set()
        _end_of_thread()
    moved.clear()
    with output.phase("copying", detail=lambda: "1 of 3 files"):
        clock.now += 7
        moved.set()
        _end_of_thread()

    assert plain.getvalue() == (
        "kinetic: still asking the store after 5 s\n"
        "kinetic: still copying after 7 s: 1 of 3 files\n"
        "kinetic: copying took 7 s\n"
    )


def _end_of_thread() -> None:
    for thread in threading.enumerate():
        if thread.name == "kinetic-progress":
            thread.join(10)


def test_no_thread_is_started_where_nobody_wants_to_be_told(plain, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOG_LEVEL", "WARNING")
    before = threading.enumerate()  # other tests may have left some that end in a moment

    with output.phase("packing"):
        started = [thread for thread in threading.enumerate() if thread not in before]

    assert [thread for thread in started if thread.name == "kinetic-progress"] == []


def test_a_phase_without_a_thread_to_show_it_in_says_at_its_end_how_long_it_took(
    terminal, monkeypatch, no_more_threads
) -> None:
    clock = Clock()
    monkeypatch.setattr(output, "Progress", partial(output.Progress, clock))

    with output.phase("packing"):
        clock.now += 5

    assert terminal.getvalue() == "kinetic: packing took 5 s\n"


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.9, "1 s"), (59.9, "59 s"), (60, "1 min 00 s"), (3600, "1 h 00 min"), (7325, "2 h 02 min")]
)
def test_a_time_is_written_as_people_say_it(seconds, text) -> None:
    assert format_.duration_text(seconds) == text

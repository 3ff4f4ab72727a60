"""What is seen while a batch is waited for: states and failures, rarely, and never at the cost of the waiting."""

from __future__ import annotations

import io
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from servers.terminal import Clock
from servers.terminal import TextTerminal as Terminal

from kinetic._batches import display, state
from kinetic._batches.tracker import End
from kinetic._output import terminal as output_terminal
from kinetic._wire.input_table import Input, Table
from kinetic.job_status import JobStatus

CLEAR = "\x1b[J"


class Board:
    """A board that a test fills by hand."""

    def __init__(self, total: int, *, retries: int = 0) -> None:
        self.attempts = [-1] * total
        self.ended: list[int] = []
        self.stopped = False
        self.running: set[int] = set()
        self._retries = retries
        self._ends: dict[tuple[int, int], End] = {}

    def launch(self, *indexes: int, running: bool = True) -> None:
        for index in indexes:
            self.attempts[index] += 1
        self.running |= set(indexes) if running else set()

    def finish(self, *indexes: int, word: str = "succeeded") -> None:
        for index in indexes:
            self.running.discard(index)
            self._ends[index, self.attempts[index]] = End(word, 0.0)
            self.ended.append(index)

    def end(self, index: int) -> End | None:
        return self._ends.get((index, self.attempts[index]))

    def is_final(self, index: int) -> bool:
        end = self.end(index)
        return end is not None and (end.word != "failed" or self.attempts[index] >= self._retries)

    def status(self, index: int) -> JobStatus:
        return JobStatus.RUNNING if index in self.running else JobStatus.PENDING

    def record(self, index: int) -> None:
        return None


def batch_of(tracker: Board, name: str | None = None) -> SimpleNamespace:
    total = len(tracker.attempts)
    jobs = [SimpleNamespace(job_id=f"cpu-f-{index}") for index in range(total)]
    table = Table(tuple(Input(f"x={index}") for index in range(total)))
    return SimpleNamespace(
        group_id="grp-0a1b2c3d", name=name, jobs=jobs, _submission_errors={}, _table=table, _get_tracker=lambda: tracker
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def as_stderr(monkeypatch) -> Callable[[io.StringIO], io.StringIO]:
    """Return a function that gives our modules a standard error; pytest puts its own into sys before a test."""
    monkeypatch.delenv("KINETIC_LOG_LEVEL", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(output_terminal, "_shown", False)
    monkeypatch.setattr(output_terminal, "_above", 0)

    def give(stream):
        for module in (output_terminal, output_terminal):
            monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=stream))
        return stream

    return give


@pytest.fixture
def plain(as_stderr) -> io.StringIO:
    return as_stderr(io.StringIO())


@pytest.fixture
def terminal(as_stderr) -> io.StringIO:
    return as_stderr(Terminal())


def taken(stream: io.StringIO) -> str:
    """Return what was written since the last time."""
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    return text


# --------------------------------------------------------------------------------------------------------- a terminal


def test_on_a_terminal_there_is_a_line_for_each_state_with_its_count(terminal, clock) -> None:
    tracker = Board(10)
    shown = display.View(batch_of(tracker, "sweep"), clock)
    tracker.launch(0, 1, 2, 3)
    tracker.launch(4, 5, running=False)
    tracker.finish(0, 1, 2)

    clock.now += 1.5
    shown.look(tracker)

    assert terminal.getvalue().replace("\x1b[K", "").strip("\r").replace(CLEAR, "").splitlines() == [
        "kinetic: grp-0a1b2c3d sweep: 3 of 10 ended, 1 s",
        "  succeeded       3  █████████",
        "  running         1  ███",
        "  waiting         2  ██████",
        "  not submitted   4  ████████████",
    ]


def test_what_ends_within_a_moment_is_not_mentioned(terminal, clock) -> None:
    tracker = Board(2)
    with display.show_progress(batch_of(tracker), clock) as shown:
        tracker.launch(0, 1)
        clock.now += 0.9
        shown.look(tracker)
        tracker.finish(0, 1)

    assert terminal.getvalue() == ""


def test_it_is_drawn_five_times_a_second_at_most(terminal, clock) -> None:
    tracker = Board(10)
    shown = display.View(batch_of(tracker), clock)
    clock.now += 5

    for _ in range(100):  # a second
        shown.look(tracker)
        clock.now += 0.01

    assert 1 <= terminal.getvalue().count(CLEAR) <= 6


def test_a_look_that_took_long_is_repeated_the_more_rarely(terminal, clock) -> None:
    class Slow(Board):
        def status(self, index: int) -> JobStatus:
            clock.now += 0.01  # ten children: a tenth of a second
            return super().status(index)

    tracker = Slow(10)
    tracker.launch(*range(10))
    shown = display.View(batch_of(tracker), clock)
    clock.now += 5

    for _ in range(100):
        shown.look(tracker)
        clock.now += 0.1

    assert terminal.getvalue().count(CLEAR) == 1


def test_a_terminal_that_ctrl_s_has_stopped_for_a_minute_shows_the_batch_again_within_seconds(terminal, clock) -> None:
    class Stopped(Board):
        def status(self, index: int) -> JobStatus:
            clock.now += stopped.pop()
            return super().status(index)

    tracker, stopped = Stopped(1), [0.0, 60.0]
    tracker.launch(0)
    shown = display.View(batch_of(tracker), clock)
    clock.now += 5
    shown.look(tracker)

    clock.now += 10
    shown.look(tracker)

    assert not stopped


def test_a_failure_is_named_once_and_stays(terminal, clock) -> None:
    tracker = Board(4)
    shown = display.View(batch_of(tracker), clock)
    tracker.launch(0, 1, 2, 3)
    tracker.finish(2, word="failed")

    for _ in range(5):
        clock.now += 1
        shown.look(tracker)

    told = "kinetic: failed: [2] input x=2\n    kinetic jobs logs cpu-f-2\n"
    assert terminal.getvalue().count(told) == 1
    assert terminal.getvalue().count("[2]") == 1


def test_a_failure_that_is_tried_again_is_not_named_until_the_last_one(terminal, clock) -> None:
    tracker = Board(3, retries=1)
    shown = display.View(batch_of(tracker), clock)
    tracker.launch(0, 1)
    tracker.finish(0, word="failed")
    clock.now += 2
    shown.look(tracker)
    first = taken(terminal)

    tracker.launch(0)
    tracker.finish(0, word="failed")
    clock.now += 2
    shown.look(tracker)

    assert "failed" not in first
    assert "to be tried again  1" in first.replace("\x1b[K", "")
    assert "failed: [0] input x=0" in terminal.getvalue()


def test_of_very_many_failures_only_the_first_are_named(terminal, clock) -> None:
    tracker = Board(100)
    shown = display.View(batch_of(tracker), clock)
    tracker.launch(*range(100))
    tracker.finish(*range(100), word="failed")
    clock.now += 2

    shown.look(tracker)

    assert terminal.getvalue().count("failed: [") == 20
    assert terminal.getvalue().count("further failures are only counted: kinetic batch status grp-0a1b2c3d") == 1


def test_the_time_that_is_left_is_told_from_the_rate_of_ends_and_not_too_early(terminal, clock) -> None:
    tracker = Board(100)
    tracker.launch(*range(100))
    tracker.finish(*range(40))  # before anybody waited: they say nothing about the rate
    shown = display.View(batch_of(tracker), clock)
    shown.look(tracker)

    clock.now += 4
    tracker.finish(*range(40, 44))
    shown.look(tracker)
    early = taken(terminal)
    clock.now += 6
    tracker.finish(*range(44, 50))
    shown.look(tracker)

    assert "left" not in early
    assert "50 of 100 ended, 10 s, about 50 s left" in terminal.getvalue()


def test_what_will_never_be_submitted_is_not_waited_for(terminal, clock) -> None:
    tracker = Board(100)
    tracker.launch(*range(20))
    shown = display.View(batch_of(tracker), clock)
    shown.look(tracker)
    tracker.finish(*range(10))
    tracker.stopped = True

    clock.now += 10
    shown.look(tracker)

    assert "about 10 s left" in terminal.getvalue()


def test_at_the_end_only_one_line_is_left(terminal, clock) -> None:
    tracker = Board(3)
    with display.show_progress(batch_of(tracker), clock) as shown:
        tracker.launch(0, 1, 2)
        clock.now += 2
        shown.look(tracker)
        taken(terminal)
        tracker.finish(0, 1, 2)
        clock.now += 60

    assert terminal.getvalue() == f"\r\x1b[1A{CLEAR}kinetic: waited 1 min 02 s for grp-0a1b2c3d: 3 succeeded\n"


def test_after_ctrl_c_everything_is_gone_and_nothing_is_summed_up(terminal, clock) -> None:
    tracker = Board(3)

    def interrupted() -> None:
        with display.show_progress(batch_of(tracker), clock) as shown:
            clock.now += 2
            shown.look(tracker)
            taken(terminal)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert terminal.getvalue() == f"\r\x1b[1A{CLEAR}"


def test_of_two_threads_that_wait_one_shows_it(terminal, clock) -> None:
    tracker = Board(3)
    with (
        display.show_progress(batch_of(tracker), clock) as first,
        display.show_progress(batch_of(tracker), clock) as second,
    ):
        clock.now += 2
        first.look(tracker)
        once = terminal.getvalue()
        second.look(tracker)

        assert terminal.getvalue() == once != ""

    clock.now += 2
    with display.show_progress(batch_of(tracker), clock) as third:  # and afterwards the next one may
        clock.now += 2
        taken(terminal)
        third.look(tracker)
        assert terminal.getvalue() != ""


# ------------------------------------------------------------------------------------------------------ no terminal


def test_without_a_terminal_a_line_is_said_at_each_tenth_and_at_the_end(plain, clock) -> None:
    tracker = Board(100)
    with display.show_progress(batch_of(tracker), clock) as shown:
        tracker.launch(*range(100))
        for index in range(100):
            tracker.finish(index)
            clock.now += 1
            shown.look(tracker)

    said = plain.getvalue().splitlines()
    assert said[0] == "kinetic: grp-0a1b2c3d: 3 of 100 ended: 3 succeeded, 97 running"
    assert said[1] == "kinetic: grp-0a1b2c3d: 13 of 100 ended: 13 succeeded, 87 running"
    assert said[-1] == "kinetic: waited 1 min 40 s for grp-0a1b2c3d: 100 succeeded"
    assert len(said) == 11
    assert "\x1b" not in plain.getvalue()


def test_without_a_terminal_slow_jobs_are_told_each_half_minute_if_anything_changed(plain, clock) -> None:
    tracker = Board(100)
    tracker.launch(*range(100))
    shown = display.View(batch_of(tracker), clock)

    for second in range(200):
        if second == 100:
            tracker.finish(0)
        clock.now += 1
        shown.look(tracker)

    assert plain.getvalue().splitlines() == [
        "kinetic: grp-0a1b2c3d: 0 of 100 ended: 100 running",
        "kinetic: grp-0a1b2c3d: 1 of 100 ended: 1 succeeded, 99 running",
    ]


def test_without_a_terminal_what_takes_three_seconds_is_not_mentioned(plain, clock) -> None:
    tracker = Board(4)
    with display.show_progress(batch_of(tracker), clock) as shown:
        tracker.launch(0, 1)
        tracker.finish(0, word="failed")
        clock.now += 2.9
        shown.look(tracker)

    assert plain.getvalue() == ""


@pytest.mark.parametrize("level", ["WARNING", "ERROR"])
def test_whoever_wants_no_information_is_shown_nothing(level, terminal, clock, monkeypatch) -> None:
    monkeypatch.setenv("KINETIC_LOG_LEVEL", level)
    tracker = Board(4)
    with display.show_progress(batch_of(tracker), clock) as shown:
        clock.now += 60
        shown.look(tracker)

    assert terminal.getvalue() == ""


# ------------------------------------------------------------------------------------------------------------ no harm


def test_a_closed_standard_error_does_not_end_the_waiting(terminal, clock) -> None:
    tracker = Board(4)
    with display.show_progress(batch_of(tracker), clock) as shown:
        clock.now += 2
        shown.look(tracker)
        terminal.close()
        clock.now += 2
        shown.look(tracker)

    assert terminal.closed


def test_without_any_standard_error_it_is_silent(as_stderr, clock) -> None:
    as_stderr(None)
    tracker = Board(4)
    with display.show_progress(batch_of(tracker), clock) as shown:
        clock.now += 60
        shown.look(tracker)


def test_a_view_that_fails_is_silent_from_then_on_and_harms_nothing(terminal, clock) -> None:
    class Broken(Board):
        def status(self, index: int) -> JobStatus:
            raise ZeroDivisionError

    tracker = Broken(4)
    tracker.launch(0)
    with display.show_progress(batch_of(tracker), clock) as shown:
        clock.now += 2
        shown.look(tracker)
        clock.now += 2
        shown.look(tracker)

    assert terminal.getvalue() == ""


def test_what_an_input_says_cannot_move_the_cursor(terminal, clock) -> None:
    tracker = Board(1)
    batch = batch_of(tracker)
    batch._table = Table((Input("\x1b[2J\r evil"),))
    shown = display.View(batch, clock)
    tracker.launch(0)
    tracker.finish(0, word="failed")
    clock.now += 2

    shown.look(tracker)

    assert "\x1b[2J" not in terminal.getvalue()
    assert "input \\x1b[2J\\r evil" in terminal.getvalue()


def test_ten_thousand_children_are_counted_right(terminal, clock) -> None:
    tracker = Board(10_000)
    tracker.launch(*range(9_000))
    tracker.finish(*range(8_000))
    shown = display.View(batch_of(tracker), clock)
    clock.now += 2

    shown.look(tracker)

    assert "8000 of 10000 ended" in terminal.getvalue()
    assert state.count_states(tracker) == {state.SUCCEEDED: 8000, state.RUNNING: 1000, state.MISSING: 1000}

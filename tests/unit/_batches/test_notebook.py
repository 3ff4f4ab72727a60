"""The grid of a batch in a notebook: every state has its colour, nothing of the user's is HTML, and it never raises."""

from __future__ import annotations

import html.parser

import pytest

from kinetic._batches import display
from kinetic._batches import state as batch_state
from kinetic._batches.batch_handle import BatchHandle
from kinetic._batches.tracker import End
from kinetic._wire.input_table import Input, Table
from kinetic._wire.records import REQUIRED, JobRecord
from kinetic.job_status import JobStatus

EVIL = '<script>alert(\'"&")</script>'


class Board:
    """A board on which each input is in the state that a test gives it."""

    def __init__(self, states: list[str]) -> None:
        self._states = states
        self.attempts = [-1 if state in {batch_state.MISSING, batch_state.REFUSED} else 0 for state in states]

    def end(self, index: int) -> End | None:
        state = self._states[index]
        word = batch_state.FAILED if state == batch_state.AGAIN else state
        return End(word, 0.0) if state in batch_state.ENDED | {batch_state.AGAIN} else None

    def is_final(self, index: int) -> bool:
        return self._states[index] != batch_state.AGAIN

    def status(self, index: int) -> JobStatus:
        return JobStatus.RUNNING if self._states[index] == batch_state.RUNNING else JobStatus.PENDING

    def refresh(self, *, whole: bool = False) -> None: ...

    def record(self, index: int) -> JobRecord:
        return JobRecord(**dict.fromkeys(REQUIRED, "") | {"job_id": f"cpu-f-{index}", "group_attempt": 0})


def batch_of(states: list[str], *, shown: str = "x=1", name: str | None = None) -> BatchHandle:
    batch = BatchHandle("grp-0a1b2c3d", name, {}, [None] * len(states))
    batch._tracker = Board(states)
    batch._table = Table(tuple(Input(shown) for _ in states))
    batch._submission_errors = {
        index: ValueError() for index, state in enumerate(states) if state == batch_state.REFUSED
    }
    return batch


class Reader(html.parser.HTMLParser):
    """Reads a page as a browser does: its tags, the squares with what the mouse shows, and the text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.squares: list[dict[str, str]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        if tag == "span":
            self.squares.append(dict(attrs))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text += data


def test_each_state_has_a_colour_of_its_own_and_is_counted():
    read = Reader(batch_of(list(batch_state.STATES), name="sweep")._repr_html_())

    assert len({square["style"] for square in read.squares}) == len(batch_state.STATES)
    assert [square["title"] for square in read.squares] == [
        f"[{index}] {state}: input x=1" for index, state in enumerate(batch_state.STATES)
    ]
    assert "grp-0a1b2c3d sweep" in read.text
    assert all(f"1 {state}" in read.text for state in batch_state.STATES)
    assert read.open == []


def test_nothing_that_a_user_wrote_is_html():
    read = Reader(batch_of([batch_state.FAILED, batch_state.RUNNING], shown=EVIL, name=EVIL)._repr_html_())

    assert set(read.tags) == {"div", "b", "code", "span", "pre"}
    assert read.squares[0].keys() == {"title", "style"}
    assert EVIL in read.squares[0]["title"]
    assert EVIL in read.text


def test_what_failed_is_named_below_with_its_log():
    states = [batch_state.SUCCEEDED, batch_state.FAILED, *[batch_state.FAILED] * 20]

    read = Reader(batch_of(states)._repr_html_())

    assert read.text.count("kinetic jobs logs") == 5
    assert "[1] input x=1\n    kinetic jobs logs cpu-f-1" in read.text


def test_ten_thousand_children_share_a_thousand_squares_and_the_worst_colours_one():
    states = [batch_state.SUCCEEDED] * 10_000
    states[4321] = batch_state.FAILED

    page = batch_of(states)._repr_html_()

    read = Reader(page)
    assert len(read.squares) == 1000
    assert len(page) < 300_000
    assert read.squares[432]["title"] == "[4320] to [4329]: 9 succeeded, 1 failed"
    assert read.squares[432]["style"] != read.squares[431]["style"]


@pytest.mark.parametrize("problem", [OSError("no store"), ZeroDivisionError(), KeyError("<b>")])
def test_it_never_raises(problem, monkeypatch):
    batch = batch_of([batch_state.RUNNING])

    def refuse(*_: object, **__: object) -> None:
        raise problem

    monkeypatch.setattr(batch._tracker, "refresh", refuse)

    assert type(problem).__name__ in Reader(batch._repr_html_()).text


def test_a_batch_without_a_table_of_inputs_is_shown_all_the_same():
    batch = batch_of([batch_state.FAILED])
    batch._table = None

    assert Reader(display.html_of(batch)).squares[0]["title"] == "[0] failed: this input"

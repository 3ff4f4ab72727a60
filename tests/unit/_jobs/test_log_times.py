"""When parts of a log were written: between two looks of its host, and whole lines of what was asked for."""

from __future__ import annotations

import math

import pytest

from kinetic._backends.protocol import BytesLog
from kinetic._jobs.log_times import Timeline, parts_of, selected

ROWS = [(1.0, 1.0, 10), (2.0, 60.0, 20), (65.0, 65.0, 30)]  # it was silent for a minute
TEXT = b"123456789\nabcdefghi\nABCDEFGHI\nlast"


def timeline(ended: float | None = 1070.0, left_out: int = 0) -> Timeline:
    return Timeline(parts_of(ROWS, zero=1000.0, ended=ended, left_out=left_out))


@pytest.mark.parametrize(
    ("since", "until", "found"),
    [
        (None, None, TEXT),
        (1030.0, None, TEXT[20:]),  # what came before the silence is left out
        (1001.5, 1030.0, TEXT[:20]),  # the end of the first part is in that second
        (None, 999.0, b""),
        (1071.0, None, b""),
        (1068.0, None, b"last"),
        (1030.0, 1062.0, TEXT[20:30]),
        (1003.0, 1030.0, b""),
    ],
)
def test_a_span_of_time_selects_all_that_may_have_been_written_in_it(since, until, found: bytes) -> None:
    log = BytesLog(TEXT)

    start, end = selected(log, timeline(), since, until)

    assert TEXT[start:end] == found


def test_a_line_that_was_written_in_two_spans_belongs_to_the_second_one() -> None:
    text = b"one\ntwo begins, and ends\nthree\n"
    log, times = BytesLog(text), Timeline(parts_of([(1.0, 50.0, 9)], zero=0.0, ended=100.0))

    assert selected(log, times, 60.0, None) == (4, len(text))
    assert selected(log, times, None, 40.0) == (0, 4)


def test_each_piece_has_the_time_at_which_it_was_seen_and_what_is_new_has_that_of_now(monkeypatch) -> None:
    monkeypatch.setattr("kinetic._jobs.log_times.time.time", lambda: 5000.0)

    assert list(timeline().split(5, TEXT[5:])) == [
        (1001.0, TEXT[5:10]),
        (1002.0, TEXT[10:20]),
        (1065.0, TEXT[20:30]),
        (1070.0, b"last"),
    ]
    assert list(timeline(ended=None).split(30, b"last")) == [(5000.0, b"last")]


def test_positions_count_from_what_a_collected_job_has_kept() -> None:
    kept = TEXT[12:]

    assert next(timeline(left_out=12).split(0, kept)) == (1002.0, b"cdefghi\n")
    assert selected(BytesLog(kept), timeline(left_out=12), 1063.0, None) == (8, len(kept))


def test_of_a_job_of_milliseconds_only_start_and_end_are_known() -> None:
    short = Timeline(parts_of([], zero=1000.0, ended=1000.0))

    assert list(short.split(0, TEXT)) == [(1000.0, TEXT)]
    assert selected(BytesLog(TEXT), short, 1000.7, 1000.9) == (0, len(TEXT))
    assert short.start(1001.0) == math.inf

"""Searching a log by its bytes, in pieces."""

from __future__ import annotations

import pytest

from kinetic._backends.protocol import BytesLog
from kinetic._dashboard import log_pages


def found(data: bytes, words: str, start: int = 0) -> tuple[list[tuple[int, str]], int]:
    matches: list[dict[str, object]] = []
    position = log_pages._search(BytesLog(data), words.lower(), start, len(data), matches)
    return [(each["start"], each["text"]) for each in matches], position


def test_a_line_is_found_by_its_words_in_any_case_with_its_position():
    assert found(b"one\nTwo two\nthree\n", "TWO") == ([(4, "Two two")], 18)


def test_the_last_line_needs_no_break():
    assert found(b"a\nb needle", "needle")[0] == [(2, "b needle")]


def test_letters_beyond_ascii_have_cases_too():
    assert found("ä\nÄRGER\n".encode(), "ärger")[0] == [(3, "ÄRGER")]


@pytest.mark.parametrize("shift", [-7, -3, 0, 3])
def test_a_match_that_two_blocks_share_is_found_once(shift, monkeypatch):
    monkeypatch.setattr(log_pages, "_BLOCK_BYTES", 64)
    data = b"x" * (57 + shift) + b"\nneedle here\n" + b"y\n" * 100

    assert found(data, "needle")[0] == [(58 + shift, "needle here")]


def test_a_line_longer_than_a_block_is_searched_and_costs_no_more_memory_than_some_blocks(monkeypatch):
    monkeypatch.setattr(log_pages, "_BLOCK_BYTES", 64)

    matches, position = found(b"x" * 1000 + b"needle" + b"x" * 1000, "needle")

    assert len(matches) == 1
    assert position == 2006


def test_a_search_that_stops_continues_where_it_stopped(monkeypatch):
    monkeypatch.setattr(log_pages, "_MOST_MATCHES", 3)
    data = b"needle\n" * 8
    seen: list[int] = []
    start = 0
    while start < len(data):
        matches, start = found(data, "needle", start)
        seen += [at for at, _ in matches if at not in seen]

    assert seen == [7 * number for number in range(8)]

"""Newest first: by time, by the queue where times say nothing, and never by a clock that was wrong."""

from __future__ import annotations

import itertools

import pytest

from kinetic._jobs.job_list import Creation, ages

NOW = 1_800_000_000.0


def born(job_id: str, made: float, precise: float = 0.0, sequence: int = 0, index: int = -1) -> Creation:
    return Creation(job_id, made, precise, sequence, index)


CASES = {
    "seconds": [born("b", NOW), born("a", NOW - 1)],
    "fractions of one second": [born("a", NOW, NOW + 0.9), born("b", NOW, NOW + 0.2), born("c", NOW, NOW + 0.1)],
    "the sequence where a clock ticks too slowly": [born("a", NOW, NOW, 12), born("z", NOW, NOW, 11)],
    "children of a batch by their index": [born("a", NOW, index=10), born("z", NOW, index=9)],
    "a clock that went back an hour": [born("b", NOW - 3600, NOW - 3600, 8), born("a", NOW - 60, NOW - 60, 7)],
    "a clock that was a year ahead, of a job that is gone": [born("b", NOW), born("a", NOW + 4e7, NOW + 4e7)],
    "a clock that was a year ahead, of a queued job": [born("b", NOW, NOW, 2), born("a", NOW + 4e7, NOW + 4e7, 1)],
    "a clock that was ahead, and jobs of others": [
        born("c", NOW),
        born("b", NOW - 5, 0, 3),
        born("a", NOW + 999, 0, 2),
    ],
    "another machine's clock, a little ahead": [born("b", NOW + 5), born("a", NOW)],
    "a job queued later than a collected one": [born("c", NOW, NOW + 0.5, 2), born("b", NOW, NOW + 0.4)],
    "a damaged time": [born("b", NOW), Creation("a", 0.0)],
}


@pytest.mark.parametrize("case", CASES)
def test_newest_first(case) -> None:
    for shuffled in itertools.permutations(CASES[case]):
        assert [each for _, each in sorted(ages(shuffled, now=NOW), reverse=True)] == CASES[case]

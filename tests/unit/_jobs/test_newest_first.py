"""Newest first: by time, by the queue where times say nothing, and never by a clock that was wrong."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from kinetic._config import home as config_home
from kinetic._jobs import environment, job_list, locate
from kinetic._jobs.job_list import Creation, ages, newest_first
from kinetic._stores import open_store
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys, records
from kinetic._wire.records import JobRecord

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


class Queue:
    """Knows the place of one job; the other was cancelled, and has left it."""

    def __init__(self, job_id: str, submitted: float) -> None:
        self._job_id, self._submitted = job_id, submitted

    def places(self) -> dict[str, tuple[float, int]]:
        return {self._job_id: (self._submitted, 1)}


def test_a_job_that_has_left_the_queue_is_newer_than_one_in_it_that_was_queued_earlier_in_the_same_second(
    tmp_path, monkeypatch
) -> None:
    store = open_store(f"file://{tmp_path}/store")
    rest = ("local", "", "", "", "default", "", "", "", "cpu", "f", "f", "2026-11-23T07:00:00Z")
    queued, cancelled = (JobRecord(name, *rest, store=store.url) for name in ("cpu-f-z", "cpu-f-a"))
    store.put(keys.record(cancelled.job_id), b"{}")
    monkeypatch.setattr(environment, "local", lambda: Queue(queued.job_id, time.time() - 0.2))

    assert newest_first([queued, cancelled]) == [cancelled, queued]


@pytest.mark.parametrize("url", ["gs://jobs", "s3://jobs", "az://jobs@account"])
def test_in_a_store_whose_times_are_whole_seconds_the_records_tell_which_job_was_submitted_last(
    tmp_path, monkeypatch, url
) -> None:
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path))
    key_id, _ = config_home.own_key(tmp_path)
    store = MemoryStore("whole-seconds")
    store.url = url
    rest = ("gke", "", "", "", "default", "", "", "", "cpu", "f", "f", "2026-11-23T07:00:00Z")
    jobs = [JobRecord(f"cpu-f-20261123-070000-{name}", *rest, store=store.url, key_id=key_id) for name in ("b1", "a2")]
    for number, job in enumerate(jobs):
        page = locate.seal_record(records.plain(job), {"created": NOW + number / 10}, locate.key_to_seal(job))
        store.put(keys.record(job.job_id), page)
    monkeypatch.setattr(job_list, "open_store", lambda _: store)

    assert newest_first(jobs, places={}) == jobs[::-1]


def test_the_newest_is_the_first_of_the_whole_list_whatever_clocks_said() -> None:
    rest = ("local", "", "", "", "default", "", "", "", "cpu", "f", "f")
    for seed in range(300):
        dice = random.Random(seed)
        now, jobs, places = int(time.time()), [], {}
        for number in range(dice.randrange(1, 8)):
            made = now - dice.choice([0, 1, 2, 3600, -3600, -4 * 10**7])
            job = JobRecord(f"cpu-f-{dice.randrange(10**6)}", *rest, keys.format_utc(made))
            if dice.random() < 0.3:
                job.group_id, job.group_index = "grp-0", number
            places[job.job_id] = made + dice.choice([0.0, 0.5]), dice.randrange(1, 10**6)
            jobs.append(job)

        among = job_list._latest(jobs, places)

        assert newest_first(among, places=places)[0] == newest_first(jobs, places=places)[0], seed

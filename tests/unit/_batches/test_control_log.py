"""Turns: a stop holds for every input, and what is wanted again after it may be launched until the next stop."""

from __future__ import annotations

import threading

import pytest

from kinetic._batches.control import ControlLog
from kinetic._wire import keys
from kinetic._wire.records import FAIL_FAST
from kinetic._wire.records import STOPPED_BY_USER as CANCELLED
from kinetic.errors import StoreUnreachableError

GROUP, KEY = "grp-00000001", b"k" * 32


@pytest.fixture
def store(folder_or_bucket):
    return folder_or_bucket


def read(store):
    found = ControlLog(store, GROUP, KEY)
    found.read()
    return found


def test_a_batch_that_took_no_turn_is_not_stopped(store):
    found = read(store)

    assert (found.stopped, found.stops(3), found.allowed(3), found.why) == (False, False, 0, "")


def test_a_stop_holds_for_every_input_and_whoever_reads(store):
    ControlLog(store, GROUP, KEY).stop(FAIL_FAST)

    found = read(store)

    assert (found.stopped, found.stops(3), found.why) == (True, True, FAIL_FAST)


def test_what_is_wanted_again_is_exempt_from_the_stop_before_and_nothing_else_is(store):
    log = ControlLog(store, GROUP, KEY)
    log.stop(FAIL_FAST)

    log.retry({3: 2})

    for found in (log, read(store)):
        assert not found.stopped
        assert (found.stops(3), found.stops(4)) == (False, True)
        assert (found.allowed(3), found.allowed(4)) == (2, 0)


def test_a_later_stop_holds_for_what_was_wanted_again(store):
    log = ControlLog(store, GROUP, KEY)
    log.retry({3: 2})
    log.stop(CANCELLED)

    found = read(store)

    assert found.stopped
    assert found.stops(3)
    assert found.why == CANCELLED


def test_stopping_twice_for_one_reason_is_one_turn(store):
    for _ in range(3):
        ControlLog(store, GROUP, KEY).stop(CANCELLED)

    assert len([*store.entries(f"_groups/{GROUP}/control/")]) == 1


def test_cancelling_after_failing_fast_is_told(store):
    ControlLog(store, GROUP, KEY).stop(FAIL_FAST)

    ControlLog(store, GROUP, KEY).stop(CANCELLED)

    assert read(store).why == CANCELLED


def test_turns_that_are_taken_at_the_same_time_all_count_and_have_one_order(store):
    takers = [
        threading.Thread(target=lambda number=number: ControlLog(store, GROUP, KEY).retry({number: 2}))
        for number in range(16)
    ]
    for taker in takers:
        taker.start()
    for taker in takers:
        taker.join()

    found = read(store)

    assert [found.allowed(number) for number in range(16)] == [2] * 16
    names = [entry.key.rpartition("/")[2] for entry in store.entries(f"_groups/{GROUP}/control/")]
    assert names == [f"{number:06d}" for number in range(16)]


def test_only_what_is_new_is_read(store):
    log = ControlLog(store, GROUP, KEY)
    log.retry({1: 2})
    asked = []
    get = store.get
    store.get = lambda key, **more: asked.append(key) or get(key, **more)

    ControlLog(store, GROUP, KEY).retry({2: 2})
    asked.clear()
    log.read()
    log.read()

    assert len(asked) == 1
    assert log.allowed(2) == 2


FORGED = [
    b'{"schema":1,"word":"again","allowed":{"0":1000000}}',
    b'{"schema":1,"word":"again","allowed":{"0":1000000},"mac":"0"}',
    b'{"schema":1,"word":"stop","why":"cancelled"}',
    b'{"schema":1}',
    b"[" * 200_000,
    b"\xff",
    b"",
]


@pytest.mark.parametrize("page", FORGED, ids=lambda page: page[:30].decode(errors="replace"))
def test_a_turn_that_is_not_sealed_changes_nothing_and_stands_in_nobodys_way(store, page):
    for number in (0, 1, 7):
        store.put(keys.control_entry(GROUP, number), page)
    store.put(f"{keys.control_entries(GROUP)}nonsense", page)

    forged = read(store)
    ControlLog(store, GROUP, KEY).retry({3: 2})
    found = read(store)

    assert (forged.stopped, forged.allowed(0)) == (False, 0)
    assert (found.allowed(3), found.allowed(0), found.stopped) == (2, 0, False)


def test_an_old_turn_in_a_new_place_or_in_another_batch_is_not_taken(store):
    ControlLog(store, GROUP, KEY).retry({3: 2})
    ControlLog(store, GROUP, KEY).stop(CANCELLED)
    copied = store.get(keys.control_entry(GROUP, 0))
    store.put(keys.control_entry(GROUP, 2), copied)
    store.put(keys.control_entry("grp-00000002", 0), copied)
    elsewhere = ControlLog(store, "grp-00000002", KEY)
    elsewhere.read()

    assert read(store).stopped
    assert elsewhere.allowed(3) == 0


def test_a_request_to_stop_that_could_not_be_read_once_is_read_the_next_time(store, monkeypatch):
    log = ControlLog(store, GROUP, KEY)
    ControlLog(store, GROUP, KEY).stop(CANCELLED)

    def away(*_, **__):
        raise StoreUnreachableError("the store does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(store, "get", away)
        with pytest.raises(StoreUnreachableError):
            log.read()
    log.read()

    assert (log.stopped, log.why) == (True, CANCELLED)

"""Who carries a job out is decided by creation: once, and again only after the warm pod is gone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from kinetic._runner.supervisor import bindings
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys
from kinetic._wire.warm_pods import Assignment
from kinetic.errors import IntegrityError

JOB, KEY = "cpu-train-20261121-120000-abcdef0", bytes(range(32))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("bindings-of-a-test")


def test_a_job_that_a_warm_pod_has_is_not_started_cold(store: MemoryStore) -> None:
    assert bindings.bind(store, JOB, "warm-1", KEY)

    assert bindings.bind(store, JOB, "warm-1", KEY)  # the same pod, started again
    assert not bindings.bind(store, JOB, "", KEY)
    assert not bindings.bind(store, JOB, "warm-2", KEY)


def test_a_job_that_was_started_cold_is_left_by_a_warm_pod(store: MemoryStore) -> None:
    assert bindings.bind(store, JOB, "", KEY)

    assert not bindings.bind(store, JOB, "warm-1", KEY)
    assert bindings.bind(store, JOB, "", KEY)  # by a client that repeats what another one began


def test_a_job_is_started_cold_once_its_warm_pod_is_gone(store: MemoryStore) -> None:
    bindings.bind(store, JOB, "warm-1", KEY)

    assert not bindings.bind(store, JOB, "", KEY, ended="warm-2")
    assert bindings.bind(store, JOB, "", KEY, ended="warm-1")
    assert not bindings.bind(store, JOB, "warm-1", KEY)
    found = bindings.binding_of(store, JOB, KEY)
    assert found is not None
    assert found.pod == ""


def test_of_many_that_decide_at_once_one_wins(store: MemoryStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda number: bindings.bind(store, JOB, f"warm-{number}", KEY), range(8)))
        tasks = list(pool.map(lambda number: bindings.assign(store, "warm", 3, f"job-{number}", KEY), range(8)))

    assert (sum(won), sum(tasks)) == (1, 1)
    assert bindings.assigned(store, "warm", 3, KEY) == f"job-{tasks.index(True)}"


def test_a_binding_of_somebody_else_is_not_believed(store: MemoryStore) -> None:
    bindings.bind(store, JOB, "warm-1", bytes(32))

    with pytest.raises(IntegrityError):
        bindings.bind(store, JOB, "", KEY)


def test_the_next_number_follows_the_last_one_and_old_keys_go(store: MemoryStore) -> None:
    for number in range(10):
        bindings.assign(store, "warm", number, JOB, KEY)

    assert bindings.next_sequence(store, "warm", 10) == 10
    assert [entry.key for entry in store.entries("warm/warm/")] == [
        keys.warm_task("warm", 8),
        keys.warm_task("warm", 9),
    ]


def test_an_assignment_is_read_with_the_key_and_the_nonce_that_sealed_it() -> None:
    wanted = Assignment(3, JOB, "{}", KEY, {"TOKEN": "of a test"})
    data = wanted.to_bytes(KEY, "nonce")

    assert Assignment.from_bytes(data, KEY, "nonce") == wanted
    assert "of a test" not in repr(wanted)
    for key, nonce in ((bytes(32), "nonce"), (KEY, ""), (KEY, "another")):
        with pytest.raises(IntegrityError):
            Assignment.from_bytes(data, key, nonce)


def test_attempts_that_follow_those_of_a_slice_which_is_gone_have_other_numbers(store: MemoryStore) -> None:
    bindings.bind(store, JOB, "warm-1", KEY)
    for attempt in range(3):
        store.put(keys.attempt(JOB, attempt), b"a note")

    bindings.bind(store, JOB, "", KEY, ended="warm-1")

    found = bindings.binding_of(store, JOB, KEY)
    assert found is not None
    assert (found.pod, found.attempts) == ("", 3)

"""What the hosts of a slice of pods tell each other."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kinetic._jobs import reading
from kinetic._runner.pod.peers import Peers, Roll
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys
from kinetic._wire.outcome import Outcome
from kinetic.errors import IntegrityError

KEY = b"k" * 32


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(request.node.name)


def peers(store: MemoryStore, host: int, attempt: int = 0) -> Peers:
    return Peers(store, "job", attempt, host)


def ended(host: int, status: str = "failed", body: bytes = b"", **more: object) -> Outcome:
    digest = hashlib.sha256(body).hexdigest() if body else ""
    return Outcome("job", status, host=host, body_length=len(body), body_sha256=digest, **more)


def test_the_leader_sees_with_one_listing_who_began_answered_and_ended(store: MemoryStore) -> None:
    leader = peers(store, 0)
    for host in (0, 1, 2, 3):
        store.put(keys.host("job", 0, host, "begun"), b"")
    leader.call()
    peers(store, 2).answer()
    peers(store, 3).tell(ended(3, "succeeded"), KEY)

    roll = leader.look()

    assert (roll.begun, roll.here, roll.ended) == ({1, 2, 3}, {2}, {3: "succeeded"})
    assert roll.missing() == [1]
    assert not roll.trouble


def test_nobody_answers_without_a_call(store: MemoryStore) -> None:
    peers(store, 1).answer()

    assert peers(store, 0).look().here == frozenset()


def test_what_a_host_told_in_another_attempt_does_not_count(store: MemoryStore) -> None:
    peers(store, 1, attempt=0).tell(ended(1), KEY)

    assert peers(store, 0, attempt=1).look() == Roll()


def test_a_host_that_never_began_is_not_missing(store: MemoryStore) -> None:
    store.put(keys.host("job", 0, 1, "begun"), b"")

    assert peers(store, 0).look().missing() == [1]


def test_a_failure_arrives_with_its_exception(store: MemoryStore, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"pickled and more")
    peers(store, 2).tell(ended(2, body=b"pickled", cause="exception"), KEY, body)
    leader = peers(store, 0)
    leader.look()

    [read] = leader.failures(KEY)
    fetched = leader.fetch_body(read, tmp_path / "fetched")

    assert (read.host, read.cause) == (2, "exception")
    assert fetched is not None
    assert fetched.read_bytes()[: read.body_length] == b"pickled"


def test_a_failure_that_is_sealed_with_another_key_is_not_read(store: MemoryStore) -> None:
    peers(store, 1).tell(ended(1), b"x" * 32)
    leader = peers(store, 0)

    assert leader.look().trouble
    assert leader.failures(KEY) == []


def test_a_failure_of_another_host_in_its_place_is_not_read(store: MemoryStore) -> None:
    peers(store, 1).tell(ended(2), KEY)
    leader = peers(store, 0)
    leader.look()

    assert leader.failures(KEY) == []


def test_an_exception_that_was_changed_is_not_brought(store: MemoryStore, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"pickled")
    failure = ended(1, body=b"pickled")
    peers(store, 1).tell(failure, KEY, body)
    place = keys.host("job", 0, 1, "failed")
    store.put(place, b"evil..." + store.get(place, start=7))
    leader = peers(store, 0)
    leader.look()

    [read] = leader.failures(KEY)

    assert leader.fetch_body(read, tmp_path / "fetched") is None


def test_a_host_that_was_taken_away_is_named(store: MemoryStore) -> None:
    peers(store, 2).tell(ended(2, "preempted"), KEY)

    roll = peers(store, 0).look()

    assert roll.preempted == [2]
    assert roll.trouble
    assert not roll.all_ended(4)


def test_what_a_host_told_cannot_be_put_in_the_place_of_the_verdict(store: MemoryStore) -> None:
    peers(store, 1).tell(ended(1, "succeeded"), KEY)
    told = store.get(keys.host("job", 0, 1, "succeeded"))
    store.put(keys.result("job"), told)

    with pytest.raises(IntegrityError) as caught:
        reading.page_of(store, "job", lambda: KEY)

    assert caught.value.code == "seal"

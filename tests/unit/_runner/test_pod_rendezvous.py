"""What the hosts of a slice of pods tell each other."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kinetic._runner.pod.rendezvous import HostRoster, Peers
from kinetic._stores.memory import MemoryStore
from kinetic._wire import documents, keys, outcomes
from kinetic._wire.digests import LogDigest
from kinetic._wire.outcomes import Outcome
from kinetic.errors import IntegrityError

KEY = b"k" * 32


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(request.node.name)


def peers(store: MemoryStore, host: int, attempt: int = 0, key: bytes = KEY) -> Peers:
    found = Peers(store, "job", attempt, host)
    found.key = key
    return found


def place(host: int, word: str, key: bytes = KEY) -> str:
    return documents.sealed_name(keys.host("job", 0, host), word, key)


def ended(host: int, status: str = "failed", body: bytes = b"", **more: object) -> Outcome:
    digest = hashlib.sha256(body).hexdigest() if body else ""
    return Outcome("job", status, host=host, body_length=len(body), body_sha256=digest, **more)


def test_the_leader_sees_with_one_listing_who_began_answered_and_ended(store: MemoryStore) -> None:
    leader = peers(store, 0)
    for host in (0, 1, 2, 3):
        peers(store, host).begin(KEY)
    leader.call()
    peers(store, 2).answer()
    peers(store, 3).report(ended(3, "succeeded"))

    roster = leader.read()

    assert (roster.begun, roster.here, roster.ended) == ({1, 2, 3}, {2}, {3: "succeeded"})
    assert roster.missing() == [1]
    assert not roster.trouble


def test_nobody_answers_without_a_call(store: MemoryStore) -> None:
    peers(store, 1).answer()

    assert peers(store, 0).read().here == frozenset()


def test_what_a_host_told_in_another_attempt_does_not_count(store: MemoryStore) -> None:
    peers(store, 1, attempt=0).report(ended(1))

    assert peers(store, 0, attempt=1).read() == HostRoster()


def test_a_host_that_never_began_is_not_missing(store: MemoryStore) -> None:
    peers(store, 1).begin(KEY)

    assert peers(store, 0).read().missing() == [1]


def test_a_failure_arrives_with_its_exception(store: MemoryStore, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"pickled" + bytes(100_000))  # more than a page, of a process that was killed
    peers(store, 2).report(ended(2, body=b"pickled", cause="exception"), body)
    leader = peers(store, 0)
    leader.read()

    [read] = leader.reports()
    fetched = leader.fetch_body(read, tmp_path / "fetched")

    assert (read.host, read.cause) == (2, "exception")
    assert fetched is not None
    assert fetched.read_bytes()[: read.body_length] == b"pickled"


def test_a_failure_that_is_sealed_with_another_key_is_not_read(store: MemoryStore) -> None:
    peers(store, 1, key=b"x" * 32).report(ended(1))
    leader = peers(store, 0)

    assert not leader.read().trouble
    assert leader.reports() == []


def test_a_failure_of_another_host_in_its_place_is_not_read(store: MemoryStore) -> None:
    peers(store, 1).report(ended(2))
    leader = peers(store, 0)
    leader.read()

    assert leader.reports() == []


@pytest.mark.parametrize("page", [b"", b"damaged"])
def test_a_report_that_cannot_be_read_is_passed_over_and_the_others_count(store: MemoryStore, page: bytes) -> None:
    for host in (1, 2):
        peers(store, host).report(ended(host, cause="exception"))
    store.put(place(1, "failed"), page)
    leader = peers(store, 0)
    leader.read()

    assert [each.host for each in leader.reports()] == [2]


@pytest.mark.parametrize("word", ["begun", "here", "succeeded", "failed", "preempted", "call"])
def test_a_word_that_the_key_of_the_job_did_not_seal_is_none(store: MemoryStore, word: str) -> None:
    leader, other = peers(store, 0), peers(store, 2)
    real = place(1, word)
    for name in (
        place(1, word, b"x" * 32),
        f"job/hosts/0/1/{word}",
        f"job/hosts/0/1.{word}",
        f"job/hosts/0/1.{word}.",
        f"job/hosts/0/2.{word}.{real.rpartition('.')[2]}",  # of another host
        f"job/hosts/0/1.begun.x.{real.rpartition('.')[2]}",
        f"{real}/x",
        "job/hosts/0/0.call." + "0" * 24,
    ):
        store.put(name, b"")

    assert leader.read() == HostRoster()
    other.answer()
    assert leader.read().here == frozenset()


def test_the_word_of_one_attempt_is_none_in_the_next(store: MemoryStore) -> None:
    peers(store, 1).report(ended(1, "preempted"))
    store.put(place(1, "preempted").replace("hosts/0/", "hosts/1/"), b"")

    assert peers(store, 0, attempt=1).read() == HostRoster()


def test_the_leader_gets_the_digests_of_all_logs(store: MemoryStore) -> None:
    for host in (1, 2):
        peers(store, host).report(ended(host, "succeeded", logs=(LogDigest(0, host, 5, str(host) * 64),)))
    leader = peers(store, 0)
    leader.read()

    assert [log.sha256[0] for each in leader.reports() for log in each.logs] == ["1", "2"]


def test_an_exception_that_was_changed_is_not_brought(store: MemoryStore, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"pickled")
    failure = ended(1, body=b"pickled")
    peers(store, 1).report(failure, body)
    told = place(1, "failed")
    store.put(told, b"evil..." + store.get(told, start=7))
    leader = peers(store, 0)
    leader.read()

    [read] = leader.reports()

    assert leader.fetch_body(read, tmp_path / "fetched") is None


def test_a_host_that_was_taken_away_is_named(store: MemoryStore) -> None:
    peers(store, 2).report(ended(2, "preempted"))

    roster = peers(store, 0).read()

    assert roster.preempted == [2]
    assert roster.trouble
    assert not roster.all_ended(4)


def test_what_a_host_told_cannot_be_put_in_the_place_of_the_verdict(store: MemoryStore) -> None:
    peers(store, 1).report(ended(1, "succeeded"))
    told = store.get(place(1, "succeeded"))
    store.put(keys.result("job"), told)

    with pytest.raises(IntegrityError) as caught:
        outcomes.find(store, "job", lambda: KEY)

    assert caught.value.code == "seal"

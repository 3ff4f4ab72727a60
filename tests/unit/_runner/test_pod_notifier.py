"""Hosts of a slice hear of each other at once; where they cannot, nothing is worse than it was."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from kinetic._runner.pod import rendezvous
from kinetic._runner.pod.pod_source import Poller
from kinetic._runner.pod.rendezvous import Notifier
from kinetic._stores.memory import MemoryStore
from kinetic._wire import documents, keys

JOB, KEY = "tpu-train-1", b"k" * 32


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(request.node.name)


@pytest.fixture(autouse=True)
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod's name leads to its own address; this machine's need not."""
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.1")
    monkeypatch.setattr(rendezvous, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(rendezvous, "_LONGEST_PAUSE", 0.1)


@pytest.fixture
def begin(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[int], tuple[Notifier, threading.Semaphore]]]:
    """Return a function that begins a host; their threads, which a pod has for its life, end with the test."""
    hosts: list[Notifier] = []
    over = threading.Event()

    def begin_(host: int) -> tuple[Notifier, threading.Semaphore]:
        made, rung = Notifier(store, JOB, 0, host), threading.Semaphore(0)
        hosts.append(made)

        def on_ring() -> None:
            if over.is_set():
                raise SystemExit
            rung.release()

        made.publish(KEY)
        made.start(on_ring, KEY)
        return made, rung

    yield begin_
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)  # says nothing of SystemExit; pytest's does
    over.set()
    for made in hosts:
        for connection in list(made._connections):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                connection.shutdown(socket.SHUT_RDWR)
        if made._listener is not None:
            socket.create_connection(made._listener.getsockname()).close()
    for thread in threading.enumerate():
        if thread.name == "kinetic-notifier":
            thread.join(10)
            assert not thread.is_alive()
    for made in hosts:
        for each in (*made._connections, *filter(None, [made._listener])):
            each.close()


def connected(leader: Notifier, count: int) -> None:
    limit = time.monotonic() + 10
    while len(leader._connections) < count:
        assert time.monotonic() < limit, "nobody connected"
        time.sleep(0.005)


def quiet(rung: threading.Semaphore) -> None:
    while rung.acquire(timeout=0.1):
        pass


def test_a_host_rings_its_leader_and_the_leader_all_its_hosts(begin) -> None:
    leader, leaders = begin(0)
    (one, ones), (_, others) = begin(1), begin(2)
    connected(leader, 2)
    for rung in (leaders, ones, others):
        quiet(rung)

    one.notify()
    assert leaders.acquire(timeout=10)
    assert not others.acquire(timeout=0.05)

    leader.notify()
    assert ones.acquire(timeout=10)
    assert others.acquire(timeout=10)


def test_a_host_that_begins_before_its_leader_finds_it(begin) -> None:
    _, rung = begin(1)
    leader, _ = begin(0)

    connected(leader, 1)

    assert rung.acquire(timeout=10)  # what was told before it was there


def test_a_leader_hears_of_what_a_host_told_before_it_was_connected(begin) -> None:
    early, _ = begin(1)
    early.notify()

    _, rung = begin(0)

    assert rung.acquire(timeout=10)


def test_a_leader_that_is_gone_rings_for_the_last_time(begin) -> None:
    leader, _ = begin(0)
    _, rung = begin(1)
    connected(leader, 1)
    quiet(rung)

    for each in list(leader._connections):
        each.shutdown(socket.SHUT_RDWR)

    assert rung.acquire(timeout=10)


def test_a_host_that_is_gone_counts_as_connected_no_more(begin) -> None:
    leader, rung = begin(0)
    socket.create_connection(leader._listener.getsockname()).close()

    assert rung.acquire(timeout=10)
    assert not leader.is_connected  # else the leader would look for what is new again and again


@pytest.mark.parametrize("address", [b"", b"nonsense", b"127.0.0.1 0", b"127.0.0.1 many", b"\xff \xff", b"x" * 9999])
def test_an_address_that_leads_nowhere_leaves_a_host_to_its_looks(store, begin, address: bytes) -> None:
    store.put(keys.host_address(JOB, 0), address)

    made, rung = begin(1)
    made.notify()

    assert rung.acquire(timeout=10)  # it looks by itself: a leader that is gone may have left a verdict
    assert made._connections == set()


@pytest.mark.parametrize("sealed_for", ["nobody", "another key", "another attempt"])
def test_a_host_connects_to_no_address_that_the_key_of_the_job_did_not_seal(store, begin, sealed_for: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        page = {"schema": documents.SCHEMA, "host": "127.0.0.1", "port": trap.getsockname()[1]}
        place, key = keys.host_address(JOB, 0), b"x" * 32 if sealed_for == "another key" else KEY
        if sealed_for != "nobody":
            at = keys.host_address(JOB, 1) if sealed_for == "another attempt" else place
            page = documents.with_seal(page, key, documents.seal_purpose("address", at))
        store.put(place, documents.write(page))

        made, rung = begin(1)
        made.notify()

        assert rung.acquire(timeout=10)
        assert rung.acquire(timeout=10)  # it tried more than once
        trap.settimeout(0.1)
        with pytest.raises(TimeoutError):
            trap.accept()


def test_a_pod_without_an_address_listens_nowhere(store, begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-name.invalid")

    leader, _ = begin(0)
    leader.notify()

    assert list(store.entries(keys.hosts(JOB, 0))) == []


def test_a_ring_is_a_look_at_once_and_many_rings_are_few_looks() -> None:
    looks, (_, mouth) = [], os.pipe()
    done = threading.Event()

    def look() -> bool:
        looks.append(time.monotonic())
        done.set()
        return False

    poller = Poller(look, mouth, 3600.0)
    poller.start()
    for _ in range(1000):
        poller.poll_soon()

    assert done.wait(10)
    time.sleep(0.3)
    assert len(looks) <= 3

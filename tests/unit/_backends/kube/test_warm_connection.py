"""A connection to a warm pod that stays open: what it says of the pod, and when it waits."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from kinetic._backends.kube import warm_connection
from kinetic._backends.kube.warm_connection import KeptConnection, WarmConnection
from kinetic._backends.kube.warm_launcher import WarmLauncher
from kinetic._wire import warm_pods
from kinetic._wire.warm_pods import Greeting
from kinetic.errors import BackendError

JOB = "cpu-train-20261123-120000-0a1b2c3"


class Pod:
    """The other end of a connection: it says what the test tells it to."""

    def __init__(self) -> None:
        self.says: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def say(self, state: str, job_id: str = "", decided: str = "", said: float = 0.0, until: float = 0.0) -> None:
        self.says.put(Greeting("warm", state, 3, "nonce", job_id, decided, until, said=said).to_bytes() + b"\n")

    def send(self, _: bytes) -> None:
        self.says.put(warm_pods.answer("") + b"\n")

    def receive(self) -> bytes:
        return self.says.get(timeout=10)

    def close(self) -> None:
        self.says.put(b"")


@pytest.fixture
def pod() -> Pod:
    return Pod()


@pytest.fixture
def connection(pod: Pod) -> Iterator[KeptConnection]:
    dialed = contextlib.nullcontext(WarmConnection(pod))  # type: ignore[arg-type]
    with contextlib.closing(KeptConnection(dialed, "warm", lambda _: None)) as connection:
        yield connection


def test_a_pod_that_is_busy_with_a_job_is_busy(pod: Pod, connection: KeptConnection) -> None:
    pod.say(warm_pods.BUSY, JOB)

    assert connection.greeting(lambda _: False).state == warm_pods.BUSY


@pytest.mark.parametrize("told", ["by the pod", "by the store"])
def test_a_pod_whose_job_has_its_verdict_is_waited_for(pod: Pod, connection: KeptConnection, told: str) -> None:
    asked: list[str] = []
    idle = threading.Timer(0.1, pod.say, [warm_pods.IDLE])
    pod.say(warm_pods.BUSY, JOB, JOB if told == "by the pod" else "")

    def is_decided(job_id: str) -> bool:
        asked.append(job_id)
        idle.start()
        return True

    if told == "by the pod":
        idle.start()
    found = connection.greeting(is_decided)
    idle.join()

    assert found.state == warm_pods.IDLE
    assert asked == ([] if told == "by the pod" else [JOB])  # a request to the store only where the pod has not told


def test_a_pod_that_ends_while_it_is_waited_for_is_an_error(pod: Pod, connection: KeptConnection) -> None:
    pod.say(warm_pods.BUSY, JOB, JOB)
    pod.close()

    with pytest.raises(BackendError, match="closed the connection"):
        connection.greeting()


def test_all_of_a_jobs_log_came_after_what_the_pod_said_before_the_job(pod: Pod, connection: KeptConnection) -> None:
    pod.say(warm_pods.IDLE, said=1000.0)
    connection.greeting()

    assert connection.ask(b"the task", JOB) == ""
    pod.say(warm_pods.BUSY, JOB, said=1005.0)
    assert connection.ask(b"it may begin", JOB) == ""

    assert connection.log_since(JOB) == 1000.0
    assert connection.log_since("cpu-train-20261123-120000-fffffff") == 0.0


def test_what_a_pod_said_before_it_took_a_job_is_not_believed_any_more(pod: Pod, connection: KeptConnection) -> None:
    pod.say(warm_pods.IDLE, until=time.time() + 600)
    idle = connection.greeting()
    assert connection.is_free

    connection.has_taken(idle)

    assert not connection.is_free
    busy = threading.Timer(0.1, pod.say, [warm_pods.BUSY, JOB])
    busy.start()
    assert connection.greeting().state == warm_pods.BUSY
    busy.join()


def test_a_pod_that_would_have_ended_by_now_is_lost(pod: Pod, connection: KeptConnection) -> None:
    pod.say(warm_pods.IDLE, until=time.time() - 600)
    connection.greeting()

    assert connection.is_lost
    assert not connection.is_free


@pytest.mark.parametrize("ahead", [-600.0, 600.0])
def test_an_idle_pod_is_not_lost_where_the_clock_of_its_node_differs_by_ten_minutes(
    pod: Pod, connection: KeptConnection, ahead: float
) -> None:
    now = time.time() + ahead
    pod.say(warm_pods.IDLE, said=now, until=now + 120)

    connection.greeting()

    assert not connection.is_lost
    assert connection.is_free


@pytest.mark.parametrize("ahead", [-600.0, 600.0])
def test_a_pod_that_would_have_ended_by_now_is_lost_whatever_its_clock_says(
    pod: Pod, connection: KeptConnection, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    now = time.time()
    pod.say(warm_pods.IDLE, said=now + ahead, until=now + ahead + 120)
    connection.greeting()

    monkeypatch.setattr(warm_connection, "time", SimpleNamespace(time=lambda: now + 400))

    assert connection.is_lost


def test_a_connection_that_replaces_a_lost_one_is_used_in_its_own_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = WarmLauncher(None, None, lambda _: None, lambda _: None, tuple)  # type: ignore[arg-type] # only connects
    lost, new = (SimpleNamespace(turn=threading.Lock(), is_lost=each) for each in (True, False))
    found = [lost, new, new]
    monkeypatch.setattr(launcher, "connect", lambda _: found.pop(0))

    with launcher.turn(None) as connection:  # type: ignore[arg-type] # as above
        assert connection is new
        assert (lost.turn.locked(), new.turn.locked()) == (False, True)

"""What a host of a slice of pods does at its worker's end, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic._runner.pod import rendezvous
from kinetic._runner.pod.rendezvous import Peers
from kinetic._runner.supervisor.verdicts import OUT_OF_REACH, PREEMPTED, Ending
from kinetic._stores.memory import MemoryStore
from kinetic._wire.outcomes import Outcome
from kinetic._wire.task import FAILED_EXIT


class Host:
    """A source that only writes down what it was asked to do."""

    is_settled = True
    is_removed = False
    end_requested = False
    passes = ()
    code = -1
    verdict_words = "the verdict is there"

    def __init__(self) -> None:
        self.did: list[str] = []
        self.settings = SimpleNamespace(grace_seconds=60.0)
        self.peers = SimpleNamespace(report=lambda *_: self.did.append("told"))

    def in_background(self, task: Callable[[], object]) -> None:
        task()

    def leave(self, why: str) -> None:
        self.did.append(f"left: {why}")

    def log_digests(self, _: object) -> tuple[()]:
        return ()

    def send_log(self) -> str:
        self.did.append("log")
        return ""

    def key(self) -> bytes:
        return b"k" * 32

    def wait(self, *_: object) -> bool:
        return True

    def report_waiting(self, words: str) -> None:
        self.did.append(words)

    def wait_for(self, *_: object) -> bool:
        self.did.append("waited")
        return True


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.mark.parametrize(
    ("why", "noted"),
    [
        (f"{OUT_OF_REACH} before the function began: 403", f"{OUT_OF_REACH} before the function began: 403 (host 1)"),
        ("the function raised kinetic.errors.Preempted", "host 1 was taken away"),
    ],
)
def test_a_leader_that_was_ended_for_another_host_notes_why_that_one_left(host: Any, why: str, noted: str) -> None:
    store = MemoryStore(why)
    other, leader = Peers(store, "job", 0, 1), Peers(store, "job", 0, 0)
    other.key = leader.key = host.key()
    other.report(Outcome("job", PREEMPTED, host=1, error={"message": why}))
    leader.read()
    host.peers, host.task, host.is_settled = leader, SimpleNamespace(hosts=2), False
    ended: Any = SimpleNamespace(body=None)

    decision = rendezvous.lead(host, ended, Outcome("job", "failed"), Ending(None, "order", stopped=True), "")

    assert decision is None
    assert host.did[-1] == f"left: {noted}"


def ends(host: Any, status: str) -> int:
    task: Any = SimpleNamespace(body=None)
    rendezvous.follow(host, task, Outcome("job", status, host=1), Ending(0, "call"), "")
    return host.code


def test_a_host_that_is_done_has_its_log_in_the_store_before_the_verdict_can_follow(host: Host) -> None:
    code = ends(host, "succeeded")

    assert host.did[:2] == ["log", "told"]
    assert host.did[-1] == "waited"
    assert code == 0


def test_a_host_that_failed_tells_so_first_as_its_peers_wait_for_what_will_not_come(host: Host) -> None:
    code = ends(host, "failed")

    assert host.did == ["told", "log", "waited"]
    assert code == FAILED_EXIT

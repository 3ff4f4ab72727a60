"""What a host of a slice of pods does at its worker's end, and in which order."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kinetic._runner.pod import rendezvous
from kinetic._runner.pod.rendezvous import Peers
from kinetic._runner.supervisor.verdicts import OUT_OF_REACH, PREEMPTED, Ending
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic._wire.task import FAILED_EXIT, POD_VARIABLE
from kinetic.errors import StoreUnreachableError

KEY = b"k" * 32


class Host:
    """A source that only writes down what it was asked to do."""

    is_settled = True
    is_removed = False
    end_requested = False
    passes = ()
    code = -1
    witness = "runner"
    verdict_words = "the verdict is there"

    def __init__(self) -> None:
        self.did: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.settings = SimpleNamespace(grace_seconds=60.0, warm="")
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
        return KEY

    def wait(self, *_: object) -> bool:
        self.did.append("waited for the group")
        self.meanwhile()
        return True

    def report_waiting(self, words: str) -> None:
        self.did.append(words)

    def wait_for(self, _: object, seconds: float) -> bool:
        self.did.append("waited")
        self.waited_seconds = seconds
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


def test_a_leader_that_failed_beside_hosts_that_succeeded_is_the_cause(host: Any) -> None:
    store = MemoryStore("succeeded-hosts")
    leader = Peers(store, "job", 0, 0)
    for number in (1, 2):
        other = Peers(store, "job", 0, number)
        other.key = leader.key = host.key()
        other.report(Outcome("job", "succeeded", host=number, ended=1.0))
    leader.read()
    host.peers, host.task, host.is_settled = leader, SimpleNamespace(hosts=3), False
    host.gives_back = lambda _: False
    own = Outcome("job", "failed", ended=2.0, error={"type": "ValueError", "message": "NaN"})
    task: Any = SimpleNamespace(body=None)

    decision = rendezvous.lead(host, task, own, Ending(0, "call"), "")

    assert decision is not None
    assert (decision[0].status, decision[0].host) == ("failed", 0)


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


def test_a_host_waits_without_limit_for_the_verdict_on_its_value_and_minutes_for_that_on_its_failure(host: Any) -> None:
    ends(host, "succeeded")
    assert host.waited_seconds == float("inf")

    ends(host, "failed")
    assert host.waited_seconds == 180.0  # a leader that is gone gives none


@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_the_report_of_a_host_waits_for_a_store_that_is_out_of_reach(host: Any, status: str) -> None:
    tries = iter([StoreUnreachableError("the store is away"), StoreUnreachableError("the store is away"), None])

    def report(*_: object) -> None:
        if error := next(tries):
            raise error
        host.did.append("told")

    host.passes, host.wait, host.peers.report = (StoreUnreachableError,), lambda _: False, report

    ends(host, status)

    assert "told" in host.did


# ------------------------------------------------------------------------------------------- groups without a number


class Group:
    """Hosts of a LeaderWorkerSet, whose pods have the same names when they begin again."""

    def __init__(self) -> None:
        self.store = MemoryStore("group")
        self.addresses: list[Any] = [(socket.AF_INET6, ("fd00::5", 0, 0, 0)), (socket.AF_INET, ("10.0.0.5", 0))]

    def claim(
        self,
        number: int,
        pod: str,
        *,
        leader: str = "",
        restarts: int | None = None,
        meanwhile: Callable[[], object] = bool,
    ) -> Any:
        host: Any = Host()
        host.store, host.place, host.meanwhile = self.store, SimpleNamespace(host=number, restarts=restarts), meanwhile
        host.environ, host.settings.leader = {POD_VARIABLE: pod}, leader
        note = AttemptNote("job", 0, "machine", 1.0, "", "3.11", {"host": number})
        found = rendezvous.claim_in_group(host, note, KEY)
        if found is not None:
            Peers(self.store, "job", found.attempt, number).begin(KEY)
        return host, found

    def decide(self) -> None:
        self.store.put(keys.result("job"), b"")


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    made = Group()
    monkeypatch.setattr(rendezvous, "_own_addresses", lambda: made.addresses)
    return made


def test_each_leader_makes_the_next_attempt_and_the_others_join_it(group: Group) -> None:
    for life in range(3):
        attempts = [group.claim(number, f"{life}-{number}")[1].attempt for number in range(3)]

        assert attempts == [life] * 3


def test_a_host_that_is_quicker_than_its_leader_waits_for_it_and_does_not_join_the_group_before(group: Group) -> None:
    group.claim(0, "first-0")
    group.claim(1, "first-1")

    host, found = group.claim(1, "second-1", meanwhile=lambda: group.claim(0, "second-0"))

    assert found.attempt == 1
    assert host.did == ["waited for the group"]


def test_a_host_that_never_began_in_the_group_before_knows_its_leader_by_the_address(group: Group) -> None:
    group.claim(0, "first-0")

    host, found = group.claim(1, "second-1", leader="10.0.0.6", meanwhile=group.decide)
    assert (found, host.did) == (None, ["waited for the group"])

    group.store.delete(keys.result("job"))
    assert group.claim(1, "first-1", leader="10.0.0.5")[1].attempt == 0


def test_a_leader_that_knows_no_address_but_that_of_its_own_machine_is_joined_all_the_same(group: Group) -> None:
    group.addresses = [(socket.AF_INET, ("127.0.1.1", 0))]
    group.claim(0, "")

    assert group.claim(1, "", leader="10.0.0.5", meanwhile=group.decide)[1].attempt == 0


def test_a_host_joins_no_attempt_of_another_restart_of_its_set(group: Group) -> None:
    group.claim(0, "", restarts=0)

    host, found = group.claim(1, "", restarts=1, meanwhile=lambda: group.claim(0, "", restarts=1))

    assert (found.attempt, host.did) == (1, ["waited for the group"])


def test_a_host_does_not_join_the_attempt_of_a_warm_slice_that_had_the_job_before(group: Group) -> None:
    of_warm_slice = AttemptNote("job", 0, "machine", 1.0, "", "3.11", {"host": 0})
    group.store.put(of_warm_slice.key, of_warm_slice.to_bytes(KEY))

    host, found = group.claim(1, "own-1", leader="10.0.0.5", meanwhile=lambda: group.claim(0, "own-0"))

    assert (found.attempt, host.did) == (1, ["waited for the group"])


def test_a_leader_whose_container_is_started_again_waits_for_the_end_of_its_pod(group: Group) -> None:
    group.claim(0, "first-0")

    host, found = group.claim(0, "first-0", meanwhile=group.decide)

    assert (found, host.did) == (None, ["waited for the group"])
    assert group.store.size(keys.attempt("job", 1)) is None


def test_a_host_that_joined_the_group_before_leaves_once_there_is_another(host: Any) -> None:
    host.is_settled, host.is_replaced = False, lambda: True
    host.leave = lambda why, *_: host.did.append(f"left: {why}")
    ended: Any = SimpleNamespace(body=None)

    rendezvous.follow(host, ended, Outcome("job", "failed", host=1), Ending(None, "call", stopped=True), "")

    assert host.did == ["left: another attempt has taken its place"]

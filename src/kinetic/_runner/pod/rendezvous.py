"""Peers: what the hosts of a slice tell each other, through keys of the store that each host writes for itself.

    {job_id}/hosts/{attempt}/{host}.begun.{seal}        it began
    {job_id}/hosts/{attempt}/{host}.succeeded.{seal}    how it ended: an Outcome, sealed, with the pickled exception
    {job_id}/hosts/{attempt}/{host}.failed.{seal}
    {job_id}/hosts/{attempt}/{host}.preempted.{seal}
    {job_id}/hosts/{attempt}/0.call.{seal}              the leader asks who is still there
    {job_id}/hosts/{attempt}/{host}.here.{seal}         the answer

    {job_id}/hosts/{attempt}/0/address                  where the leader listens for rings; see notifier.py

Each name carries its seal, so one listing is verified without reading an object, and a word that somebody else put
there is none. A host that writes one rings. Without that the leader lists them every few seconds, and the others ask
for two keys. Only the leader makes the verdict.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from kinetic._runner.pod.container import HostInPod
from kinetic._runner.pod.container_output import say
from kinetic._runner.pod.poller import run_on_thread
from kinetic._runner.supervisor import verdicts
from kinetic._runner.supervisor.store_retry import FOREVER
from kinetic._runner.supervisor.supervise import Decision, Source, patiently
from kinetic._runner.supervisor.verdicts import PREEMPTED, Ending
from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Store
from kinetic._wire import digests, keys, outcome, pod_log_format, seal
from kinetic._wire.outcome import FAILED, HOST_PURPOSE, SUCCEEDED, Outcome
from kinetic._wire.task import FAILED_EXIT, INFRASTRUCTURE_EXIT, PodSettings, Task
from kinetic.errors import KineticError

BEGUN, HERE, CALL = "begun", "here", "call"
_ENDS = (SUCCEEDED, FAILED, PREEMPTED)


@dataclass(frozen=True)
class HostRoster:
    """What is known of every host at one moment.

    Attributes:
        begun: Hosts that have begun.
        here: Hosts that have answered the leader's call.
        ended: How each host ended that has.
    """

    begun: frozenset[int] = frozenset()
    here: frozenset[int] = frozenset()
    ended: dict[int, str] = field(default_factory=dict)

    @property
    def trouble(self) -> bool:
        """Say whether a host ended otherwise than well."""
        return any(status != SUCCEEDED for status in self.ended.values())

    @property
    def preempted(self) -> list[int]:
        """Name the hosts that were taken away."""
        return sorted(host for host, status in self.ended.items() if status == PREEMPTED)

    def missing(self) -> list[int]:
        """Name the hosts that had begun, have not ended, and do not answer."""
        return sorted(self.begun - self.here - set(self.ended))

    def all_ended(self, hosts: int) -> bool:
        """Say whether every host but the leader has ended."""
        return set(range(1, hosts)) <= set(self.ended)


class Peers:
    """One host among its peers.

    Args:
        store: Where they meet.
        job_id: The job.
        attempt: Its number.
        host: This host.

    Attributes:
        key: The job's key, by which each knows what another one wrote; empty until the worker has been forked.
        roll: What is known of every host, as it was seen last.
        ring: Tells the others that there is something new; until somebody says how, nobody is told.
    """

    def __init__(self, store: Store, job_id: str, attempt: int, host: int) -> None:
        self._store, self._job_id, self._attempt, self._host = store, job_id, attempt, host
        self.key = b""
        self.ring: Callable[[], object] = lambda: None
        self.roll = HostRoster()
        self._told: list[tuple[str, bytes | Path]] = []  # by this host

    def begin(self, key: bytes) -> None:
        """Say that this host has begun; the key is lent for this alone."""
        self._say(self._place(self._host, BEGUN, key), b"")

    def remind(self) -> None:
        """Say everything again if it is gone: a leader that began later may have swept out what it thought was old."""
        if self._told and self._store.size(self._told[0][0]) is None:
            for place, said in list(self._told):
                self._store.put(place, said)

    def tell(self, ended: Outcome, body: Path | None = None) -> None:
        """Tell how this host ended; a body that is there goes along."""
        said: bytes | Path
        if not ended.body_length or body is None:
            said = replace(ended, body_length=0, body_sha256="").footer(self.key, HOST_PURPOSE)
        else:
            with body.open("r+b") as file:
                file.truncate(ended.body_length)
                file.seek(ended.body_length)
                file.write(ended.footer(self.key, HOST_PURPOSE))
            said = body
        self._say(self._place(self._host, ended.status), said)
        self.ring()

    def call(self) -> None:
        """Ask who is still there."""
        self._store.put(self._place(0, CALL), b"")
        self.ring()

    def answer(self) -> None:
        """Answer if the leader has asked."""
        if self._store.size(self._place(0, CALL)) is not None:
            self._store.put(self._place(self._host, HERE), b"")
            self.ring()

    def look(self) -> HostRoster:
        """Read what everybody told, with one listing; what the job's key did not seal is passed over."""
        begun, here, ended = set(), set(), {}
        for entry in self._store.entries(keys.hosts(self._job_id, self._attempt)):
            host, word = keys.parse_host(entry.key) or (self._host, "")
            if host == self._host or entry.key != self._place(host, word):
                continue
            if word in _ENDS:
                ended[host] = word
            elif word == BEGUN:
                begun.add(host)
            elif word == HERE:
                here.add(host)
        self.roll = HostRoster(frozenset(begun), frozenset(here), ended)
        return self.roll

    def told(self) -> list[Outcome]:
        """Return what the hosts told that succeeded or failed, as far as it can be read, in their order."""
        hosts = [(host, status) for host, status in sorted(self.roll.ended.items()) if status != PREEMPTED]
        found = in_parallel(self._store, (functools.partial(self._read, *each) for each in hosts))
        return sorted(filter(None, found), key=lambda ended: ended.host)

    def fetch_body(self, ended: Outcome, to: Path) -> Path | None:
        """Bring the pickled exception of a host here; None when there is none, or it is not what was sealed."""
        if not ended.body_length:
            return None
        self._store.fetch(self._place(ended.host, ended.status), to)
        with to.open("rb") as file:
            found = digests.of_stream(file, ended.body_length)
        return to if found == ended.body_sha256 else None

    def _place(self, host: int, word: str, key: bytes = b"") -> str:
        """Return the key of one word of one host: its seal is part of the name."""
        return seal.mark(keys.host(self._job_id, self._attempt, host), word, key or self.key)

    def _say(self, place: str, said: bytes | Path) -> None:
        self._told.append((place, said))
        self._store.put(place, said)

    def _read(self, host: int, status: str) -> Outcome | None:
        place = self._place(host, status)

        def read_range(start: int, length: int) -> bytes:
            return self._store.get(place, start=start, length=length)

        with contextlib.suppress(KineticError):  # what one host told that cannot be read keeps nobody from a verdict
            read = outcome.read(self._store.size(place) or 0, read_range, self.key, HOST_PURPOSE)
            if (read.job_id, read.attempt, read.host, read.status) == (self._job_id, self._attempt, host, status):
                return read
        return None


_SLICE_VERDICT_SECONDS = 120.0  # for the leader to come to its verdict, after a host has told that it failed


class Host(Source, Protocol):
    """What is needed here of a host's source: ``PodSource`` in ``source.py``."""

    settings: PodSettings
    place: HostInPod
    peers: Peers
    told_to_end: bool
    is_settled: bool
    code: int

    def leave(self, why: str, more: Callable[[], object] | None = None) -> None:
        """End without a verdict."""

    def leave_to_the_verdict(self) -> None:
        """End without a verdict, because there is one."""

    def send_log(self) -> str:
        """Bring the log into the store, as far as there is time."""

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait until something holds."""


def lead(source: Host, task: Task, verdict: Outcome, ending: Ending, why: str) -> Decision | None:
    """Be host 0 at its worker's end: hear the others, then come to a verdict or leave without one."""
    peers, hosts = source.peers, source.task.hosts
    if why:
        source.leave(why)
        return None
    if verdict.succeeded:
        source.wait_for(lambda: peers.roll.all_ended(hosts) or _has_failed(source) or source.told_to_end, FOREVER)
        if not _has_failed(source):
            return replace(verdict, logs=_logs(peers.told())), task.body
    elif source.is_settled:
        source.leave_to_the_verdict()
        return None
    trouble = _hear_all(source)
    own = [] if verdict.succeeded or ending.stopped else [verdict]
    told = [] if trouble else peers.told()
    failures = [] if trouble else own + [each for each in told if each.status == FAILED]
    if not failures:
        source.leave(trouble or "a host failed, and what it told cannot be read")
        return None
    cause = replace(verdicts.first_failure(failures), logs=_logs(told))
    if cause.host == 0:
        return cause, task.body
    body = peers.fetch_body(cause, source.place.base / "peer.body")
    cause = replace(cause, error={**cause.error, "hosts": hosts}, witness=source.witness)
    if body is None:
        cause = replace(cause, body_length=0, body_sha256="")
    return cause, body


def _logs(told: Sequence[Outcome]) -> tuple[digests.LogDigest, ...]:
    """Return the digests of the logs of the other hosts: each has sealed that of its own."""
    return tuple(log for each in told for log in each.logs if log.host == each.host)


def _has_failed(source: Host) -> bool:
    """Say whether another host failed by itself; one that was taken away does no harm to a value that is there."""
    return FAILED in source.peers.roll.ended.values()


def _hear_all(source: Host) -> str:
    """Give every host time to say what it knows; return why there is no verdict, or ""."""
    peers, seconds = source.peers, source.settings.grace_seconds
    say(f"a host failed; every host has {seconds:g} s to tell what it knows")
    run_on_thread(peers.call)

    def is_clear() -> bool:
        return source.told_to_end or bool(peers.roll.preempted) or peers.roll.all_ended(source.task.hosts)

    source.wait_for(is_clear, seconds)
    if source.told_to_end:
        return "this machine was taken away, or somebody stopped the job"
    if peers.roll.preempted:
        return f"host {peers.roll.preempted[0]} was taken away"
    if missing := peers.roll.missing():
        return f"host {missing[0]} does not answer any more"
    return ""


def follow(source: Host, task: Task, verdict: Outcome, ending: Ending, why: str) -> None:
    """Be another host at its worker's end: tell the leader, and stay until there is a verdict."""
    if source.is_settled and ending.stopped:
        source.leave_to_the_verdict()
        return
    if why:
        taken = replace(verdict, status=PREEMPTED, error={"message": why})
        source.leave(why, lambda: source.peers.tell(taken))
        return
    verdict = replace(verdict, logs=source.log_digests((task,)))
    if verdict.succeeded:  # the verdict may follow at once, and whoever sees it sees the logs of all hosts
        source.send_log()
    patiently(source, lambda: source.peers.tell(verdict, None if verdict.succeeded else task.body))
    say(f"this host is done: {verdict.status}; it stays until the job has its verdict")
    source.send_log()
    seconds = FOREVER if verdict.succeeded else _SLICE_VERDICT_SECONDS + source.settings.grace_seconds
    source.wait_for(lambda: source.is_settled or source.told_to_end, seconds)
    if source.is_settled:
        say(pod_log_format.VERDICT)
        source.code = 0 if verdict.succeeded else FAILED_EXIT
    else:
        say("no verdict came")
        source.code = INFRASTRUCTURE_EXIT

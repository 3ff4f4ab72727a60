"""Peers: what the hosts of a slice tell each other, through keys of the store that each host writes for itself.

    {job_id}/hosts/{attempt}/{host}/begun        its Note
    {job_id}/hosts/{attempt}/{host}/succeeded    how it ended: an Outcome, sealed, with the pickled exception
    {job_id}/hosts/{attempt}/{host}/failed
    {job_id}/hosts/{attempt}/{host}/preempted
    {job_id}/hosts/{attempt}/0/call              the leader asks who is still there
    {job_id}/hosts/{attempt}/{host}/here         the answer

    {job_id}/hosts/{attempt}/0/address           where the leader listens for rings; see notifier.py

Whoever writes one rings. Without that the leader lists them every few seconds, and the others ask for two keys. Only
the leader makes the verdict.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kinetic._runner.pod.deciding import PREEMPTED
from kinetic._stores.protocol import Store
from kinetic._wire import digests, keys, outcome
from kinetic._wire.outcome import FAILED, HOST_PURPOSE, SUCCEEDED, Outcome
from kinetic.errors import IntegrityError, KeyMissingError

_ENDS = (SUCCEEDED, FAILED, PREEMPTED)


@dataclass(frozen=True)
class Roll:
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
        roll: What is known of every host, as it was seen last.
        ring: Tells the others that there is something new; until somebody says how, nobody is told.
    """

    def __init__(self, store: Store, job_id: str, attempt: int, host: int) -> None:
        self._store, self._job_id, self._attempt, self._host = store, job_id, attempt, host
        self.ring: Callable[[], object] = lambda: None
        self.roll = Roll()
        self._told: list[tuple[str, bytes | Path]] = []  # by this host

    def begin(self) -> None:
        """Say that this host has begun."""
        self._told.append(("begun", b""))
        self._store.put(keys.host(self._job_id, self._attempt, self._host, "begun"), b"")

    def remind(self) -> None:
        """Say everything again if it is gone: a leader that began later may have swept out what it thought was old."""
        if self._told and self._store.size(keys.host(self._job_id, self._attempt, self._host, "begun")) is None:
            for word, said in list(self._told):
                self._store.put(keys.host(self._job_id, self._attempt, self._host, word), said)

    def tell(self, ended: Outcome, key: bytes, body: Path | None = None) -> None:
        """Tell how this host ended; a body that is there goes along."""
        place = keys.host(self._job_id, self._attempt, self._host, ended.status)
        if not ended.body_length or body is None:
            page = replace(ended, body_length=0, body_sha256="").footer(key, HOST_PURPOSE)
            self._told.append((ended.status, page))
            self._store.put(place, page)
            self.ring()
            return
        with body.open("r+b") as file:
            file.truncate(ended.body_length)
            file.seek(ended.body_length)
            file.write(ended.footer(key, HOST_PURPOSE))
        self._told.append((ended.status, body))
        self._store.put(place, body)
        self.ring()

    def call(self) -> None:
        """Ask who is still there."""
        self._store.put(keys.host(self._job_id, self._attempt, 0, "call"), b"")
        self.ring()

    def answer(self) -> None:
        """Answer if the leader has asked."""
        if self._store.size(keys.host(self._job_id, self._attempt, 0, "call")) is not None:
            self._store.put(keys.host(self._job_id, self._attempt, self._host, "here"), b"")
            self.ring()

    def look(self) -> Roll:
        """Read what everybody told, with one listing."""
        begun, here, ended = set(), set(), {}
        prefix = keys.hosts(self._job_id, self._attempt)
        for entry in self._store.entries(prefix):
            name, _, word = entry.key.removeprefix(prefix).partition("/")
            if not keys.is_number(name) or int(name) == self._host:
                continue
            if word in _ENDS:
                ended[int(name)] = word
            elif word == "begun":
                begun.add(int(name))
            elif word == "here":
                here.add(int(name))
        self.roll = Roll(frozenset(begun), frozenset(here), ended)
        return self.roll

    def failures(self, key: bytes) -> list[Outcome]:
        """Return what the failed hosts told, as far as it is sealed with the job's key."""
        found = []
        for host, status in sorted(self.roll.ended.items()):
            if status == FAILED:
                with contextlib.suppress(IntegrityError, KeyMissingError):
                    found.append(self._read(host, key))
        return found

    def fetch_body(self, ended: Outcome, to: Path) -> Path | None:
        """Bring the pickled exception of a host here; None when there is none, or it is not what was sealed."""
        if not ended.body_length:
            return None
        self._store.fetch(keys.host(self._job_id, self._attempt, ended.host, ended.status), to)
        with to.open("rb") as file:
            found = digests.of_stream(file, ended.body_length)
        return to if found == ended.body_sha256 else None

    def _read(self, host: int, key: bytes) -> Outcome:
        place = keys.host(self._job_id, self._attempt, host, FAILED)
        size = self._store.size(place) or 0  # of what is no Outcome, nothing but its end is read

        def read_range(start: int, length: int) -> bytes:
            return self._store.get(place, start=start, length=length)

        read = outcome.read(size, read_range, key, HOST_PURPOSE)
        if (read.job_id, read.attempt, read.host, read.status) != (self._job_id, self._attempt, host, FAILED):
            raise IntegrityError(f"what host {host} told is about something else")
        return read

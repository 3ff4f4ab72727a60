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
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from kinetic._runner.pod.deciding import PREEMPTED
from kinetic._stores.protocol import Store
from kinetic._stores.transfer import in_parallel
from kinetic._wire import digests, keys, outcome, seal
from kinetic._wire.outcome import FAILED, HOST_PURPOSE, SUCCEEDED, Outcome
from kinetic.errors import KineticError

BEGUN, HERE, CALL = "begun", "here", "call"
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
        key: The job's key, by which each knows what another one wrote; empty until the worker has been forked.
        roll: What is known of every host, as it was seen last.
        ring: Tells the others that there is something new; until somebody says how, nobody is told.
    """

    def __init__(self, store: Store, job_id: str, attempt: int, host: int) -> None:
        self._store, self._job_id, self._attempt, self._host = store, job_id, attempt, host
        self.key = b""
        self.ring: Callable[[], object] = lambda: None
        self.roll = Roll()
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

    def look(self) -> Roll:
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
        self.roll = Roll(frozenset(begun), frozenset(here), ended)
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

"""The log of a job, live or stored, as one thing: bytes at positions. Each line is seen once, in order."""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kinetic._backends.protocol import LiveLog
from kinetic._stores.protocol import Store
from kinetic._wire import keys
from kinetic.errors import KeyMissingError

if TYPE_CHECKING:
    from kinetic._backends.local.backend import LocalBackend

_BLOCK = 1 << 16


class StoredLog:
    """A log as it lies in the store: segments named by the offset of their first byte."""

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self._segments = [(int(entry.key.rpartition("/")[2]), entry) for entry in store.entries(prefix)]
        self._starts = [start for start, _ in self._segments]

    def size(self) -> int:
        """Return how many bytes there are."""
        return self._segments[-1][0] + self._segments[-1][1].size if self._segments else 0

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position."""
        found = bytearray()
        while len(found) < length:
            position = start + len(found)
            index = bisect_right(self._starts, position) - 1
            if index < 0:
                break
            begins, entry = self._segments[index]
            piece = self._store.get(entry.key, start=position - begins, length=length - len(found))
            if not piece and not self._has_grown():
                break
            found += piece
        return bytes(found)

    def _has_grown(self) -> bool:
        """Take in segments that began since the last listing; say whether there are any. A live job writes more."""
        last = self._segments[-1][1].key
        new = [(int(entry.key.rpartition("/")[2]), entry) for entry in self._store.entries(self._prefix, after=last)]
        self._segments += new
        self._starts += [start for start, _ in new]
        return bool(new)


def open_log(backend: LocalBackend, store: Store, job_id: str, *, attempt: int | None, host: int) -> LiveLog | None:
    """Open the log of one attempt: the live one while it is there, else the stored one; None when there is none yet."""
    number = latest_attempt(backend, store, job_id) if attempt is None else attempt
    live = backend.live_log(job_id, host=host, attempt=number)
    if live is not None:
        return live
    stored = StoredLog(store, keys.logs(job_id, number, host))
    return stored if stored.size() else None


def latest_attempt(backend: LocalBackend, store: Store, job_id: str) -> int:
    """Return the number of the attempt that runs or ran last."""
    seen = backend.observe([job_id]).get(job_id)
    noted = [int(entry.key.rpartition("/")[2]) for entry in store.entries(keys.attempts(job_id))]
    return max([*noted, seen.attempt if seen else 0])


def text_of(log: LiveLog | None) -> str:
    """Return a whole log; bytes that are not UTF-8 are replaced."""
    if log is None:
        return ""
    return log.read(0, log.size()).decode(errors="replace")


def tail(log: LiveLog | None, lines: int) -> str:
    """Return exactly the last lines of a log, reading back from its end no further than needed."""
    return tail_bytes(log, lines).decode(errors="replace").removesuffix("\n")


def tail_bytes(log: LiveLog | None, lines: int) -> bytes:
    """Return exactly the last lines of a log, byte for byte, the break behind the last one included if it is there."""
    if log is None or lines <= 0:
        return b""
    position = log.size()
    blocks: list[bytes] = []
    breaks = 0
    while position > 0 and breaks <= lines:
        length = min(_BLOCK, position)
        position -= length
        blocks.append(log.read(position, length))
        breaks += blocks[-1].count(b"\n")
    data = b"".join(reversed(blocks))
    end = b"\n" if data.endswith(b"\n") else b""
    return b"\n".join(data.removesuffix(b"\n").split(b"\n")[-lines:]) + end


class Follower:
    """Reads what is new in a log, each byte once, across attempts."""

    def __init__(self, reopen: Callable[[int], LiveLog | None], attempt: Callable[[], int]) -> None:
        self._reopen = reopen
        self._attempt_now = attempt
        self._attempt = -1
        self._log: LiveLog | None = None
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def new_text(self, *, last: bool = False) -> Iterator[str]:
        """Yield what was written since the last time; with ``last``, also what a broken character left over."""
        for data in self.new_bytes():
            yield self._decoder.decode(data)
        if last:
            yield self._decoder.decode(b"", final=True)

    def new_bytes(self) -> Iterator[bytes]:
        """Yield what was written since the last time, byte for byte."""
        attempt = self._attempt_now()
        if attempt != self._attempt:
            self._attempt, self._log, self._position = attempt, None, 0
        if self._log is None:
            self._log = self._reopen(attempt)
        yield from self._read()

    def _read(self) -> Iterator[bytes]:
        while self._log is not None:
            try:
                data = self._log.read(self._position, _BLOCK)
            except (KeyMissingError, OSError):
                self._log = None  # it moved into the store: opened anew next time
                return
            if not data:
                return
            self._position += len(data)
            yield data

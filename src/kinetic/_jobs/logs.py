"""The log of a job, live or stored, as one thing: bytes at positions. Each line is seen once, in order."""

from __future__ import annotations

import codecs
import contextlib
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kinetic._backends.protocol import LiveLog
from kinetic._stores.protocol import Store
from kinetic._wire import keys
from kinetic.errors import KeyMissingError, KineticError

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend

_BLOCK = 1 << 16
_SEGMENT = 1 << 20  # bytes, as the runner cuts it
_PAUSE_SECONDS, _LONGEST_PAUSE = 1.0, 30.0  # between two questions whether the place has what the store has, too


class StoredLog:
    """A log as it lies in the store: segments named by the offset of their first byte."""

    is_complete = True  # the log goes into the store before the verdict does

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


def open_log(
    backend: Backend, store: Store, job_id: str, *, attempt: int | None, host: int, follow: bool = False
) -> LiveLog | None:
    """Open the log of one attempt: the live one while it is there, else the stored one; None when there is none yet.

    Args:
        backend: The place.
        store: Where the job lies.
        job_id: The job.
        attempt: Which attempt; None for the last.
        host: Which host.
        follow: Whether it is read as it grows, rather than once.
    """
    number = latest_attempt(backend, store, job_id) if attempt is None else attempt
    live = backend.live_log(job_id, host=host, attempt=number, follow=follow)
    if live is not None:
        return live
    left = keep_what_is_left(backend, store, job_id, attempt=number, host=host)
    stored = stored_log(store, job_id, attempt=number, host=host)
    return left if left is not None and left.size() > (stored.size() if stored else 0) else stored


def keep_what_is_left(backend: Backend, store: Store, job_id: str, *, attempt: int, host: int = 0) -> LiveLog | None:
    """Bring into the store what the place alone has of the log of a process that was killed; return that log.

    Whoever looks first does it: the place forgets. Two who do it write the same bytes to the same keys.
    """
    left = backend.last_log(job_id, host=host, attempt=attempt)
    if left is None:
        return None
    with contextlib.suppress(KineticError):  # who may not write reads it all the same
        stored = StoredLog(store, keys.logs(job_id, attempt, host)).size()
        if stored < left.size() and store.size(keys.record(job_id)) is not None:  # of a removed job nothing is kept
            for start in range(stored, left.size(), _SEGMENT):
                store.put(keys.log_segment(job_id, attempt, host, start), left.read(start, _SEGMENT), if_absent=True)
    return left


def stored_log(store: Store, job_id: str, *, attempt: int, host: int) -> StoredLog | None:
    """Open the log of one attempt as it lies in the store, or return None when nothing of it is there yet."""
    stored = StoredLog(store, keys.logs(job_id, attempt, host))
    return stored if stored.size() else None


def latest_attempt(backend: Backend, store: Store, job_id: str) -> int:
    """Return the number of the attempt that runs or ran last."""
    seen = backend.observe([job_id]).get(job_id) if backend.is_here else None
    return max(noted(store, job_id), (seen.attempt or 0) if seen else 0)


def noted(store: Store, job_id: str) -> int:
    """Return the number of the last attempt that began, as the store knows it; 0 where none did."""
    return max([int(entry.key.rpartition("/")[2]) for entry in store.entries(keys.attempts(job_id))], default=0)


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
    """Reads what is new in a log, each byte once, across attempts.

    Args:
        reopen: Opens the log of an attempt, or returns None when there is none yet.
        attempt: Says which attempt is read now.
        stored: Opens what the store has of an attempt's log, at the same positions; asked at the end where the live log
            need not have everything.
        store_seconds: How often at most a store is asked whether a log has grown.
        clock: Gives seconds.
    """

    def __init__(
        self,
        reopen: Callable[[int], LiveLog | None],
        attempt: Callable[[], int],
        stored: Callable[[int], LiveLog | None] = lambda _: None,
        *,
        store_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reopen, self._stored = reopen, stored
        self._store_seconds, self._clock = store_seconds, clock
        self._look_again = 0.0  # when a stored log is looked at again
        self._open_again, self._pause = 0.0, _PAUSE_SECONDS  # when the place is asked again for what the store has
        self._attempt_now = attempt
        self._attempt = -1
        self._log: LiveLog | None = None
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def new_text(self, *, last: bool = False) -> Iterator[str]:
        """Yield what was written since the last time; with ``last``, also what a broken character left over."""
        for data in self.new_bytes(last=last):
            yield self._decoder.decode(data)
        if last:
            yield self._decoder.decode(b"", final=True)

    def new_bytes(self, *, last: bool = False) -> Iterator[bytes]:
        """Yield what was written since the last time, byte for byte; with ``last``, all that there will ever be."""
        attempt = self._attempt_now()
        if attempt != self._attempt:
            if self._attempt >= 0:
                yield from self._rest()
            self.close()
            self._attempt, self._position = attempt, 0
            self._look_again, self._pause = 0.0, _PAUSE_SECONDS
        if last:
            yield from self._rest()
            return
        now = self._clock()
        if self._log is None or (isinstance(self._log, StoredLog) and now >= self._open_again):
            self._open(now)
        if not isinstance(self._log, StoredLog) or now >= self._look_again:
            yield from self._read()
            self._look_again = now + self._store_seconds

    def _open(self, now: float) -> None:
        """Open the log where it can be had soonest: what only the store has, the place may have a moment later."""
        self._log = self._reopen(self._attempt) or self._log
        self._pause = min(2 * self._pause, _LONGEST_PAUSE) if isinstance(self._log, StoredLog) else _PAUSE_SECONDS
        self._open_again = now + self._pause

    def _rest(self) -> Iterator[bytes]:
        """Yield all that an attempt left: from the store, unless the live log is known to have it all.

        What is here is read first: of a log whose end did not reach the store, it may have more.
        """
        if self._log is None:
            self._log = self._stored(self._attempt) or self._reopen(self._attempt)
        yield from self._read()
        if self._log is None or not self._log.is_complete:
            self.close()
            self._log = self._stored(self._attempt)
            yield from self._read()

    def close(self) -> None:
        """Let go of the log that is open."""
        close = getattr(self._log, "close", None)
        if close is not None:
            close()
        self._log = None

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

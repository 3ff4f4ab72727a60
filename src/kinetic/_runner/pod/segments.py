"""Segments: the log of a pod as it lies in the store, each named by the offset of its first byte.

The current segment is rewritten every two seconds until it holds 1 MiB; then it is closed, and the next one begins. So
a store holds bytes / 1 MiB + 1 objects, and a reader keeps a position. After ten minutes the pace is slower: whoever
wants to see each line at once asks the cluster, which serves the log of a live pod.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kinetic._runner.pod.spool import Spool
from kinetic._stores.protocol import Store
from kinetic._wire import digests

SEGMENT_BYTES = 1 << 20
_PIECE = 1 << 20  # bytes that are read at once
QUICK_SECONDS, SLOW_SECONDS = 2.0, 30.0
QUICK_UNTIL_SECONDS = 600.0
MOST_WAITING_BYTES = 256 << 20  # what a job printed while its store was out of reach; more is not kept


class Segments:
    """What of a log lies in the store. One thread uses it; another one may take the digest at the end.

    Args:
        store: Where it goes.
        key_of: Gives the key of the segment that begins at an offset.
        spool: Where it comes from.
        clock: Gives seconds.
        most_waiting: How many bytes may wait for the store.
    """

    def __init__(
        self,
        store: Store,
        key_of: Callable[[int], str],
        spool: Spool,
        *,
        clock: Callable[[], float] = time.monotonic,
        most_waiting: int = MOST_WAITING_BYTES,
    ) -> None:
        self._store, self._key_of, self._spool, self._clock = store, key_of, spool, clock
        self._most_waiting = most_waiting
        self._start = 0  # of the current segment, as readers count
        self._source = 0  # where its bytes begin in the spool
        self._head = b""  # what stands before them: a line about bytes that are missing
        self._sent = b""  # what of it the store has
        self.end: int | None = None  # of the log, as a place in the spool, once its digest was taken
        self._hasher = digests.LogHasher()  # of the segments that are closed
        self._lock = threading.Lock()  # of the digest and the places; never held while the store is asked
        self._began = clock()
        self._next = self._began + QUICK_SECONDS

    def release(self, before: int) -> None:
        """Give back the disk space before a position, as far as nothing of it will be asked for again."""
        with self._lock:
            self._spool.release(min(self._source, before))

    def digest(self, attempt: int, host: int) -> digests.LogDigest:
        """Return the digest of the whole log, of which the last part may still wait for the store.

        The log ends here: of what is printed later, and of what was printed before, nothing is added or left out.
        Any thread may ask.
        """
        with self._lock:
            if self.end is None:
                self.end = self._spool.size()
            hasher = self._hasher.copy()
            hasher.update(self._head)
            position = self._source
            while position < self.end and (piece := self._spool.read(position, min(_PIECE, self.end - position))):
                hasher.update(piece)
                position += len(piece)
            return hasher.digest(attempt, host)

    def waiting(self) -> int:
        """Return how many bytes the store does not have yet."""
        end = self._spool.size() if self.end is None else self.end
        return len(self._head) + end - self._source - len(self._sent)

    def is_due(self) -> bool:
        """Say whether it is time to send something: a whole segment waits, or some bytes waited long enough."""
        waiting = self.waiting()
        return len(self._sent) + waiting >= SEGMENT_BYTES or (waiting > 0 and self._clock() >= self._next)

    def ship(self) -> None:
        """Send the current segment as it is now; close it if it is full. What fails is sent by the next call.

        Raises:
            KineticError: The store did not take it.
        """
        with self._lock:
            self._drop_what_is_too_much()
        data = self._current()
        self._next = self._clock() + self._pace()  # whatever comes of it: a store in trouble is not asked more often
        if len(data) > len(self._sent):
            self._store.put(self._key_of(self._start), data)
            self._sent = data
        if len(self._sent) >= SEGMENT_BYTES:
            with self._lock:
                self._close()

    def _current(self) -> bytes:
        """Return the bytes of the current segment as they are now."""
        length = SEGMENT_BYTES - len(self._head)
        if self.end is not None:
            length = min(length, self.end - self._source)
        return self._head + self._spool.read(self._source, length)

    def _close(self) -> None:
        self._hasher.update(self._sent)
        self._source += len(self._sent) - len(self._head)
        self._start += len(self._sent)
        self._head = self._sent = b""

    def _pace(self) -> float:
        return QUICK_SECONDS if self._clock() - self._began < QUICK_UNTIL_SECONDS else SLOW_SECONDS

    def _drop_what_is_too_much(self) -> None:
        """Leave a gap where more waits than the disk shall hold, and say so in its place."""
        if self.end is not None or self.waiting() <= self._most_waiting:
            return
        if self._sent:
            self._close()
        keep = self._spool.size() - self._most_waiting // 4
        lost = keep - self._source
        self._source = keep
        self._head = f"\nkinetic: {lost} bytes of this log are missing: the store did not take them in time\n".encode()

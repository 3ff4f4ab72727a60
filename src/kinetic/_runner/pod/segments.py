"""Segments: the log of a pod as it lies in the store, each named by the offset of its first byte.

The current segment is rewritten every two seconds until it holds 1 MiB; then it is closed, and the next one begins. So
a store holds bytes / 1 MiB + 1 objects, and a reader keeps a position. After ten minutes the pace is slower: whoever
wants to see each line at once asks the cluster, which serves the log of a live pod.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kinetic._runner.pod.spool import Spool
from kinetic._stores.protocol import Store

SEGMENT_BYTES = 1 << 20
QUICK_SECONDS, SLOW_SECONDS = 2.0, 30.0
QUICK_UNTIL_SECONDS = 600.0
MOST_WAITING_BYTES = 256 << 20  # what a job printed while its store was out of reach; more is not kept


class Segments:
    """What of a log lies in the store. One thread uses it.

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
        self._stored = 0  # how many of its bytes the store has
        self._began = clock()
        self._next = self._began + QUICK_SECONDS

    @property
    def needed_from(self) -> int:
        """The position in the spool from which on bytes may still be asked for."""
        return self._source

    def waiting(self) -> int:
        """Return how many bytes the store does not have yet."""
        return len(self._head) + self._spool.size() - self._source - self._stored

    def is_due(self) -> bool:
        """Say whether it is time to send something: a whole segment waits, or some bytes waited long enough."""
        waiting = self.waiting()
        return self._stored + waiting >= SEGMENT_BYTES or (waiting > 0 and self._clock() >= self._next)

    def ship(self) -> None:
        """Send the current segment as it is now; close it if it is full. What fails is sent by the next call.

        Raises:
            KineticError: The store did not take it.
        """
        self._drop_what_is_too_much()
        data = self._head + self._spool.read(self._source, SEGMENT_BYTES - len(self._head))
        self._next = self._clock() + self._pace()  # whatever comes of it: a store in trouble is not asked more often
        if len(data) > self._stored:
            self._store.put(self._key_of(self._start), data)
            self._stored = len(data)
        if self._stored >= SEGMENT_BYTES:
            self._close()

    def _close(self) -> None:
        self._source += self._stored - len(self._head)
        self._start += self._stored
        self._head, self._stored = b"", 0

    def _pace(self) -> float:
        return QUICK_SECONDS if self._clock() - self._began < QUICK_UNTIL_SECONDS else SLOW_SECONDS

    def _drop_what_is_too_much(self) -> None:
        """Leave a gap where more waits than the disk shall hold, and say so in its place."""
        if self.waiting() <= self._most_waiting:
            return
        if self._stored:
            self._close()
        keep = self._spool.size() - self._most_waiting // 4
        lost = keep - self._source
        self._source = keep
        self._head = f"\nkinetic: {lost} bytes of this log are missing: the store did not take them in time\n".encode()

"""A container's output, followed on a thread of its own and kept as the log that is in it; and the log for a reader."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

from kinetic._backends.kube.tailing import Tail
from kinetic._wire import podlog

if TYPE_CHECKING:
    import logging

    from kinetic._backends.kube.client import Client

# A kubelet rotates a log at 10 MiB, with what it writes before each line and each 16 KiB of one, and serves what is in
# the newest file only. Nobody tells whoever follows at that moment what was lost; so the store has what is beyond.
MOST_BYTES = 9_500_000
_LINE_BYTES, _PIECE_BYTES = 48, 16_000

OnVerdict = Callable[[], object]


class BytesLog:
    """A log as it was at one moment.

    Attributes:
        is_complete: False: the store may have more.
    """

    is_complete = False

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        """Return how many bytes there are."""
        return len(self._data)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position."""
        return self._data[start : start + length]


class Following:
    """What one thread has read so far. It ends when it is told to, and with the container.

    Attributes:
        reader: Knows whose log it is.
        is_over: Whether no more comes.

    Args:
        client: Of the cluster.
        pod: Its name.
        uid: What tells it from every other one.
        useless: Gets the uid when it makes no sense to follow this pod again.
    """

    def __init__(self, client: Client, pod: str, uid: str, useless: set[str]) -> None:
        self.reader = podlog.Reader()
        self.is_over = False
        self._uid, self._useless = uid, useless
        self._tail = Tail(client, pod)
        self._data = bytearray()
        self._changed = threading.Condition()
        self._on_verdict: OnVerdict | None = None
        threading.Thread(target=self._run, name="kinetic-pod-log", daemon=True).start()

    def wait_for_claim(self, seconds: float) -> podlog.Claim | None:
        """Return whose log it is, as soon as that is known."""
        with self._changed:
            self._changed.wait_for(lambda: self.reader.claim or self.is_over, seconds)
            return self.reader.claim

    def tell(self, on_verdict: OnVerdict) -> None:
        """Call somebody when there is a verdict."""
        with self._changed:
            self._on_verdict = on_verdict
            is_there = self.reader.has_verdict
        if is_there:
            self._call(on_verdict)

    def size(self) -> int:
        """Return how many bytes came so far."""
        return len(self._data)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position; see ``PodLog``."""
        with self._changed:
            data = bytes(self._data[start : start + length])
            if not data and self.is_over:
                raise ConnectionError("the log of this pod goes no further here")
            return data

    def stop(self) -> None:
        """End it; whoever reads is sent to the store."""
        with self._changed:
            self.is_over = True
        self._tail.stop()

    def _run(self) -> None:
        try:
            size = 0
            for piece in self._tail.pieces():
                size += len(piece) + _LINE_BYTES * (piece.count(b"\n") + len(piece) // _PIECE_BYTES)
                self._take(piece)
                if size > MOST_BYTES or self.reader.is_lost:
                    self._tail.is_final = True
                    break
        finally:
            if self._tail.is_final:
                self._useless.add(self._uid)
            with self._changed:
                self.is_over = True
                self._changed.notify_all()

    def _take(self, piece: bytes) -> None:
        with self._changed:
            knew = self.reader.has_verdict
            self._data += self.reader.read(piece)
            on_verdict = self._on_verdict if self.reader.has_verdict and not knew else None
            self._changed.notify_all()
        if on_verdict is not None:
            self._call(on_verdict)

    def _call(self, on_verdict: OnVerdict) -> None:
        try:
            on_verdict()
        except Exception:  # noqa: BLE001 - the log goes on, and whoever waits looks by itself
            _log().exception("whoever waits for a job could not be told that it has ended")


class PodLog:
    """The log of a pod that runs, as it grows, for one reader. When nobody holds it any more, it is closed.

    Attributes:
        is_complete: False: the store has the rest.
    """

    is_complete = False

    def __init__(self, following: Following) -> None:
        self._following = following
        self._end = weakref.finalize(self, following.stop)
        self._end.atexit = False

    def size(self) -> int:
        """Return how many bytes came so far."""
        return self._following.size()

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position; none when more may come.

        Raises:
            OSError: No more comes here.
        """
        return self._following.read(start, length)

    def close(self) -> None:
        """Follow no longer."""
        self._end()


def _log() -> logging.Logger:
    import logging  # 5 ms; only when there is something to tell

    return logging.getLogger("kinetic.kube")

"""What the worker prints goes to the container's own output, and in segments to the store; our own lines as well.

Two threads, so that neither a store in trouble nor a full pipe of the container runtime delays the other, the job, or
its verdict. While the log is copied to the container's output, the copier writes our lines as well, so that none is
written in the middle of a line of the user's.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetic._stores.protocol import Store
from kinetic._wire import digests, folders, pod_log_format

SEGMENT_BYTES = 1 << 20
QUICK_SECONDS, SLOW_SECONDS = 2.0, 30.0
QUICK_UNTIL_SECONDS = 600.0
MOST_WAITING_BYTES = 256 << 20  # what a job printed while its store was out of reach; more is not kept
DRAIN_SECONDS = 2.0  # at the end, for a reader of the container's output
MOST_BEHIND = 64 << 20  # bytes that wait for a reader of the container's output; the store has more

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_HOLE_BYTES = 1 << 20  # space is given back in pieces of this size
_KEPT = 64 << 10  # behind it stays what a verdict may quote
_PIECE = 1 << 20  # bytes that are read at once
_BLOCK = 1 << 16
_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 1.0  # at the end, after a store did not take the last bytes
_PATIENCE_SECONDS = 1.0
_MESSAGE_BYTES = 4096  # of a termination message; Kubernetes cuts what is longer


class LogSpool:
    """One log on the disk of a pod; the file is made here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._freed = 0
        self._libc: Any = None

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def read(self, start: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, start)

    def release(self, before: int) -> None:
        """Give back the disk space well before a position; if that is not supported, nothing happens."""
        end = max(0, before - _KEPT) // _HOLE_BYTES * _HOLE_BYTES
        if end > self._freed and sys.platform == "linux":
            import ctypes

            if self._libc is None:
                self._libc = ctypes.CDLL(None, use_errno=True)
            punch = getattr(self._libc, "fallocate64", None) or getattr(self._libc, "fallocate", None)
            if punch is not None:
                start, length = ctypes.c_int64(self._freed), ctypes.c_int64(end - self._freed)
                punch(self._descriptor, _KEEP_SIZE | _PUNCH_HOLE, start, length)
            self._freed = end


class LogSegments:
    """What of a log is in the store. One thread uses it; another one may take the digest at the end.

    ``key_of`` returns the key of the segment that begins at an offset; ``most_waiting`` bytes may wait for the store.
    """

    def __init__(
        self,
        store: Store,
        key_of: Callable[[int], str],
        spool: LogSpool,
        *,
        clock: Callable[[], float] = time.monotonic,
        most_waiting: int = MOST_WAITING_BYTES,
    ) -> None:
        self._store, self._key_of, self._spool, self._clock = store, key_of, spool, clock
        self._most_waiting = most_waiting
        self._start = 0  # of the current segment, as readers count
        self._source = 0  # where its bytes begin in the spool
        self._head = b""  # what comes before them: a line about bytes that are missing
        self._sent = b""  # what of it the store has
        self.end: int | None = None  # of the log, as a position in the spool, once its digest was taken
        self._hasher = digests.LogHasher()  # of the segments that are closed
        self._lock = threading.Lock()  # of the digest and the positions; never held during a request to the store
        self._began = clock()
        self._next = self._began + QUICK_SECONDS

    def release(self, before: int) -> None:
        """Give back the disk space before a position, as far as nothing of it will be read again."""
        with self._lock:
            self._spool.release(min(self._source, before))

    def digest(self, attempt: int, host: int) -> digests.LogDigest:
        """Return the digest of the whole log, of which the last part may still wait for the store.

        The log ends here: what is printed later is not added, and what was printed before is not left out. Any thread
        may call this.
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
        end = self._spool.size() if self.end is None else self.end
        return len(self._head) + end - self._source - len(self._sent)

    def is_due(self) -> bool:
        """Return whether to send something now: a whole segment waits, or some bytes waited long enough."""
        waiting = self.waiting()
        return len(self._sent) + waiting >= SEGMENT_BYTES or (waiting > 0 and self._clock() >= self._next)

    def ship(self) -> None:
        """Send the current segment as it is now; close it if it is full. What fails is sent by the next call."""
        with self._lock:
            self._drop_what_is_too_much()
        length = SEGMENT_BYTES - len(self._head)
        if self.end is not None:
            length = min(length, self.end - self._source)
        data = self._head + self._spool.read(self._source, length)
        now = self._clock()  # whatever comes of it: a store in trouble is not asked more often
        self._next = now + (QUICK_SECONDS if now - self._began < QUICK_UNTIL_SECONDS else SLOW_SECONDS)
        if len(data) > len(self._sent):
            self._store.put(self._key_of(self._start), data)
            self._sent = data
        if len(self._sent) >= SEGMENT_BYTES:
            with self._lock:
                self._close()

    def _close(self) -> None:
        self._hasher.update(self._sent)
        self._source += len(self._sent) - len(self._head)
        self._start += len(self._sent)
        self._head = self._sent = b""

    def _drop_what_is_too_much(self) -> None:
        """Leave a gap if more waits than the disk should hold, and say so in its place."""
        if self.end is not None or self.waiting() <= self._most_waiting:
            return
        if self._sent:
            self._close()
        keep = self._spool.size() - self._most_waiting // 4
        lost = keep - self._source
        self._source = keep
        self._head = f"\nkinetic: {lost} bytes of this log are missing: the store did not take them in time\n".encode()


class Copier(threading.Thread):
    """Copies a spool to a descriptor, and between its lines what the parent says."""

    def __init__(self, spool: LogSpool, descriptor: int = 1) -> None:
        super().__init__(name="kinetic-log-copier", daemon=True)
        self.position = 0
        self.end: int | None = None
        self._spool, self._descriptor = spool, descriptor
        self._last = threading.Event()
        self._writer = pod_log_format.Writer()
        self._said: deque[bytes] = deque()
        self._lock = threading.Lock()  # never held while something is written
        self._is_over = False

    def run(self) -> None:
        over = False
        while not over:
            over = self._last.wait(_LOOK_SECONDS)
            with contextlib.suppress(OSError):  # it is not read: the store has it all
                self._copy()
        with contextlib.suppress(OSError):
            self._write(self._writer.write(b"", last=True))
        while not self._has_ended():
            with contextlib.suppress(OSError):
                self._write(self._writer.end_line())
                self._write_said()

    def announce_the_end(self) -> None:
        self._last.set()

    def take(self, lines: bytes) -> bool:
        """Take lines of the parent: they come after the next whole line, or at the end if that was announced."""
        with self._lock:
            if not self._is_over:
                self._said.append(lines)
            return not self._is_over

    def end_line(self) -> bytes:
        """Return what ends the last line, when all is written."""
        return self._writer.end_line()

    def _has_ended(self) -> bool:
        with self._lock:
            self._is_over = not self._said
            return self._is_over

    def _copy(self) -> None:
        while True:
            says = self._said and not self._last.is_set()
            if says and self._writer.is_at_start:
                self._write_said()
            self._leave_out(self._spool.size() - MOST_BEHIND - self.position)
            left = _BLOCK if self.end is None else max(0, self.end - self.position)
            data = self._spool.read(self.position, min(_BLOCK, left))
            if not data:
                return
            if says and (end := data.find(b"\n") + 1):
                data = data[:end]
            self.position += len(data)
            self._write(self._writer.write(data))

    def _leave_out(self, count: int) -> None:
        """Skip bytes, and say so, since a reader that counts along cannot know."""
        if count > 0:
            self.position += count
            rest = self._writer.write(b"", last=True)
            words = f"{pod_log_format.LEFT_OUT}{count} bytes, which were not read in time; the store has them"
            self._write(rest + self._writer.end_line() + pod_log_format.runner_lines(words))

    def _write_said(self) -> None:
        while self._said:
            self._write(self._said.popleft())

    def _write(self, data: bytes) -> None:
        folders.write_all(self._descriptor, data)


class Shipper(threading.Thread):
    def __init__(self, spool: LogSpool, segments: LogSegments, copied: Callable[[], int]) -> None:
        super().__init__(name="kinetic-log-shipper", daemon=True)
        self._spool, self._segments, self._copied = spool, segments, copied
        self._last = threading.Event()
        self.trouble = ""

    def run(self) -> None:
        """Send what is due; after the end was announced, all that is left, however often that takes."""
        while not self._last.wait(_LOOK_SECONDS):
            if self._segments.is_due():
                self._ship()
            self._segments.release(max(self._copied(), self._spool.size() - MOST_BEHIND))
        while self._segments.waiting() > 0:
            if not self._ship():
                time.sleep(_AGAIN_SECONDS)

    def finish(self, seconds: float) -> bool:
        self._last.set()
        self.join(seconds)
        return not self.is_alive()

    def _ship(self) -> bool:
        try:
            self._segments.ship()
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest of the log must not be lost for it
            self.trouble = str(error)
            return False
        return True


class LogPump:
    def __init__(self, spool: LogSpool, segments: LogSegments) -> None:
        self._segments = segments
        self._copier = Copier(spool)
        self._shipper = Shipper(spool, segments, lambda: self._copier.position)
        self.take, self.end_line = self._copier.take, self._copier.end_line

    def start(self) -> None:
        self._copier.start()
        self._shipper.start()

    def digest(self, attempt: int, host: int) -> digests.LogDigest:
        """Return the digest of the log, which ends here; what is printed later is neither sent nor copied."""
        found = self._segments.digest(attempt, host)
        self._copier.end = self._segments.end
        return found

    def finish(self, seconds: float) -> str:
        """Bring the rest of the log into the store; return "" or why the store does not have all of it."""
        self._copier.announce_the_end()
        complete = self._shipper.finish(seconds)
        return "" if complete else self._shipper.trouble or "the store is slow"

    def drain(self, seconds: float) -> None:
        """Wait until the container's output has everything, too; not for a reader that takes nothing for so long."""
        self._copier.announce_the_end()
        before = -1
        while self._copier.is_alive() and self._copier.position > before:
            before = self._copier.position
            self._copier.join(seconds)


# ------------------------------------------------------------------------------------------------ what the runner says


_output: LogPump | None = None


def set_output(output: LogPump) -> None:
    global _output  # noqa: PLW0603 - a process has one output
    _output = output


def say(text: str) -> None:
    """Write lines to the container's output, whole, whatever else is written there; drop them if no process reads."""
    lines = pod_log_format.runner_lines(text)
    if _output is not None:
        if _output.take(lines):
            return
        lines = _output.end_line() + lines
    outlet = select.poll()
    outlet.register(1, select.POLLOUT)
    with contextlib.suppress(OSError):
        if outlet.poll(_PATIENCE_SECONDS * 1000):
            os.write(1, lines)


def drain_output(seconds: float) -> None:
    """Let what was said arrive, but not at a reader that takes nothing for so many seconds."""
    if _output is not None:
        _output.drain(seconds)


def write_termination_message(path: str, text: str) -> None:
    """Leave a message where Kubernetes looks for one; outside of a container there is no such file."""
    flags = os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC
    with contextlib.suppress(OSError), folders.closing(os.open(path, flags)) as descriptor:
        folders.write_all(descriptor, text.encode(errors="backslashreplace")[:_MESSAGE_BYTES])

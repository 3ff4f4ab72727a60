"""Printing: what the worker prints goes to the container's own output, and in segments to the store.

Two threads, so that neither a store in trouble nor a full pipe of the container runtime holds up the other, the job, or
its verdict.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from kinetic._runner.pod.segments import Segments
from kinetic._runner.pod.spool import Spool
from kinetic._wire import digests, podlog

_BLOCK = 1 << 16
_LOOK_SECONDS = 0.1
MOST_BEHIND = 64 << 20  # bytes that wait for whoever reads the container's output; the store has more
_AGAIN_SECONDS = 1.0  # at the end, after a store did not take the last bytes


class Copier(threading.Thread):
    """Copies a spool to a descriptor, and between its lines what the parent says."""

    def __init__(self, spool: Spool, descriptor: int = 1) -> None:
        super().__init__(name="kinetic-log-copier", daemon=True)
        self.position = 0
        self.end: int | None = None
        self._spool, self._descriptor = spool, descriptor
        self._last = threading.Event()
        self._writer = podlog.Writer()
        self._said: deque[bytes] = deque()
        self._lock = threading.Lock()  # never held while something is written
        self._is_over = False

    def run(self) -> None:
        """Copy until the end was announced and reached."""
        over = False
        while not over:
            over = self._last.wait(_LOOK_SECONDS)
            with contextlib.suppress(OSError):  # nobody is there to read: the store has it all
                self._copy()
        with contextlib.suppress(OSError):
            self._write(self._writer.write(b"", last=True))
        while not self._has_ended():
            with contextlib.suppress(OSError):
                self._write(self._writer.end_line())
                self._speak()

    def announce_the_end(self) -> None:
        """Say that nothing more will be printed."""
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
                self._speak()
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
        """Go on further on, and say so, since whoever counts along cannot."""
        if count > 0:
            self.position += count
            rest = self._writer.write(b"", last=True)
            words = podlog.said(f"{podlog.LEFT_OUT}{count} bytes, which nobody read in time; the store has them")
            self._write(rest + self._writer.end_line() + words)

    def _speak(self) -> None:
        while self._said:
            self._write(self._said.popleft())

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._descriptor, data) :]


class Shipper(threading.Thread):
    """Sends a spool to the store, and gives its space back."""

    def __init__(self, spool: Spool, segments: Segments, copied: Callable[[], int]) -> None:
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
        """Announce the end, wait for it, and say whether the store has everything."""
        self._last.set()
        self.join(seconds)
        return not self.is_alive()

    def _ship(self) -> bool:
        try:
            self._segments.ship()
        except Exception as error:  # noqa: BLE001 - whatever it is, the rest of the log is not to be lost for it
            self.trouble = str(error)
            return False
        return True


class Printing:
    """Both threads of one pod."""

    def __init__(self, spool: Spool, segments: Segments) -> None:
        self._segments = segments
        self._copier = Copier(spool)
        self._shipper = Shipper(spool, segments, lambda: self._copier.position)

    def start(self) -> None:
        """Begin; from here on this process must not fork."""
        self._copier.start()
        self._shipper.start()

    def take(self, lines: bytes) -> bool:
        """Take lines of the parent, to be written between lines of the log; False after the end."""
        return self._copier.take(lines)

    def end_line(self) -> bytes:
        """Return what ends the last line of the log, after the end."""
        return self._copier.end_line()

    def digest(self, attempt: int, host: int) -> digests.LogDigest:
        """Return the digest of the log, which ends here; what anybody prints later is neither sent nor copied."""
        found = self._segments.digest(attempt, host)
        self._copier.end = self._segments.end
        return found

    def finish(self, seconds: float) -> str:
        """Bring the rest of the log into the store; return "" or why the store does not have all of it."""
        self._copier.announce_the_end()
        complete = self._shipper.finish(seconds)
        return "" if complete else self._shipper.trouble or "the store is slow"

    def drain(self, seconds: float) -> None:
        """Wait until the container's output has everything, too; not for one that takes nothing for so many seconds."""
        self._copier.announce_the_end()
        before = -1
        while self._copier.is_alive() and self._copier.position > before:
            before = self._copier.position
            self._copier.join(seconds)

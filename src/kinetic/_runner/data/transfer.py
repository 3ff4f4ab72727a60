"""How far the data of a job has arrived: a line in its log where that takes long, and others at growing intervals."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

_PAUSES = (5.0, 10.0, 30.0, 60.0)  # seconds before each line, and before all later ones


def say(line: str) -> None:
    """Write a line of ours into the log of the job."""
    sys.stderr.write(f"kinetic: {line}\n")


class Transfer:
    """Counts the bytes that arrive, on any thread.

    Args:
        what: What is fetched, as the user named it.
        total: Bytes in all; 0 where that is not known.
        clock: Monotonic seconds.
    """

    def __init__(self, what: str, total: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._total, self._clock = what, total, clock
        self._begun = self._said = clock()
        self._lock = threading.Lock()  # guards the counts
        self._bytes = self._lines = 0

    def received(self, count: int) -> None:
        """Count bytes, and say how far it is where the last line is old."""
        with self._lock:
            self._bytes += count
            now = self._clock()
            if now - self._said < _PAUSES[min(self._lines, len(_PAUSES) - 1)]:
                return
            self._said, self._lines = now, self._lines + 1
            whole = f" of {_size(self._total)}" if self._total else ""
            say(f"fetching {self._what}: {_size(self._bytes)}{whole}, {_size(self._bytes / (now - self._begun))}/s")

    def end(self) -> None:
        """Say that all of it is there, if anything was said."""
        if self._lines:
            say(f"fetched {self._what}: {_size(self._bytes)} in {self._clock() - self._begun:.0f} s")


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"

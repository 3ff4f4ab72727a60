"""What time it is, for whoever waits: the system's clock, or one that only a test moves."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Tells the time, and waits."""

    def time(self) -> float:
        """Return Unix time in seconds."""

    def monotonic(self) -> float:
        """Return seconds that never go backwards, from some moment in the past."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The clock of this machine."""

    def time(self) -> float:
        """Return Unix time in seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds since some moment in the past."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


class FakeClock:
    """A clock that moves only when it is told to: to sleep on it takes no time.

    Args:
        now: Unix time at which it starts.
    """

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._begun, self._passed = now, 0.0
        self._lock = threading.Lock()

    def time(self) -> float:
        """Return Unix time in seconds, by this clock."""
        return self._begun + self._passed

    def monotonic(self) -> float:
        """Return the seconds that have passed on this clock."""
        return self._passed

    def sleep(self, seconds: float) -> None:
        """Move the clock forward, and return at once."""
        with self._lock:
            self._passed += max(seconds, 0.0)


SYSTEM = SystemClock()

"""How fast this machine sends to a registry: measured with the first megabytes of a push, remembered for some hours.

{cache}/images/uplink.json      host of a registry -> [bytes per second, Unix time]
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kinetic._images.image import Progress
from kinetic._wire import folders
from kinetic.errors import ImageBuildError

PATIENCE_SECONDS = 60.0  # what takes longer to send is built elsewhere, where that is possible
ASSUMED_RATE = 12_500_000.0  # bytes per second, 100 Mbit/s, until something was measured
MEASURED_BYTES = 4 << 20  # less says more about buffers than about the line
_MEASURED_SECONDS = 0.5
_REMEMBERED_SECONDS = 6 * 3600.0  # a laptop is in another network tomorrow


class SlowUplinkError(ImageBuildError):
    """The rest of a push would take too long from here; what was sent stays in the registry."""


class Uplinks:
    """What was measured, by host."""

    def __init__(self, file: Path, now: Callable[[], float] = time.time) -> None:
        self._file, self._now = file, now

    def rate(self, host: str) -> float | None:
        """Return bytes per second to a registry, or None where nothing was measured lately."""
        measured, at = self._read().get(host, (0.0, 0.0))
        return measured if measured > 0 and 0 <= self._now() - at < _REMEMBERED_SECONDS else None

    def note(self, host: str, rate: float) -> None:
        """Remember what was measured."""
        folders.make(self._file.parent)
        page = {**self._read(), host: (rate, self._now())}
        folders.write_whole(self._file, json.dumps(page).encode())

    def _read(self) -> dict[str, tuple[float, float]]:
        try:
            page = json.loads(self._file.read_bytes())
            return {str(host): (float(rate), float(at)) for host, (rate, at) in page.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}


class Meter(Progress):
    """Passes on what a build reports, and measures how fast it sends.

    Args:
        shown: Gets every report.
        to_send: Bytes that the whole push may have.
        gives_up: Whether a line that is too slow ends the build with SlowUplinkError.
        clock: In seconds.
    """

    def __init__(
        self, shown: Progress, to_send: int, *, gives_up: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shown, self._to_send, self._gives_up, self._clock = shown, to_send, gives_up, clock
        self._lock = threading.Lock()
        self._sent = self._announced = 0
        self._seconds = self._resumed = 0.0  # while something was there to send
        self.rate: float | None = None  # bytes per second, once enough was sent

    def fetching(self, size_bytes: int) -> None:
        self._shown.fetching(size_bytes)

    def fetched(self, size_bytes: int) -> None:
        self._shown.fetched(size_bytes)

    def sending(self, size_bytes: int) -> None:
        with self._lock:
            if self._sent >= self._announced:
                self._resumed = self._clock()
            self._announced += size_bytes
            self._to_send = max(self._to_send, self._announced)  # an index need not say how large its wheels are
        self._shown.sending(size_bytes)

    def sent(self, size_bytes: int) -> None:
        self._shown.sent(size_bytes)
        with self._lock:
            now = self._clock()
            if self._sent < self._announced:
                self._seconds += now - self._resumed
                self._resumed = now
            self._sent += size_bytes
            seconds = self._seconds
            if self._sent >= MEASURED_BYTES and seconds > 0:
                self.rate = self._sent / seconds
            is_slow = (
                self._gives_up
                and self.rate is not None
                and seconds >= _MEASURED_SECONDS
                and (self._to_send - self._sent) / self.rate > PATIENCE_SECONDS
            )
        if is_slow:
            raise SlowUplinkError("this machine sends too slowly")

"""What a job in a pod uses, on its way to the store: on a thread, so that a slow store delays neither job nor verdict.

Each time the whole page is written, in the place of the one before: soon at first, later twice a minute.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from kinetic._wire.measurements import Measurements
from kinetic.errors import KineticError

FIRST_SECONDS = 4.0  # after the first measurement: a job of a few seconds is only written at its end
_QUICK_SECONDS, _QUICK_UNTIL = 10.0, 600.0
_SLOW_SECONDS = 30.0  # as for a log: 120 requests an hour


class UsageUpload(threading.Thread):
    """Writes the newest of what is offered, with ``put``, until the last."""

    def __init__(self, put: Callable[[Measurements], object], *, first_seconds: float = FIRST_SECONDS) -> None:
        super().__init__(name="kinetic-usage", daemon=True)
        self._put, self._pause = put, first_seconds
        self._newest: Measurements | None = None
        self._last = threading.Event()

    def offer(self, found: Measurements) -> None:
        """Take what is known by now."""
        self._newest = found

    def send_last(self) -> None:
        """Write at once what was offered last, and end."""
        self._last.set()

    def run(self) -> None:
        """Write what is new, at this pace."""
        began = time.monotonic()
        while not self._last.wait(self._pause):
            self._send()
            self._pause = _QUICK_SECONDS if time.monotonic() < began + _QUICK_UNTIL else _SLOW_SECONDS
        self._send()

    def _send(self) -> None:
        found, self._newest = self._newest, None
        if found is not None:
            with contextlib.suppress(KineticError, OSError):  # the next time, or never: the job does not need it
                self._put(found)

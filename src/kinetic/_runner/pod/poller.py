"""The lookout: a thread that looks into the store every few seconds, or when it is rung, and wakes the parent.

The parent itself asks the store nothing while its worker runs: a store that does not answer would keep it from passing
on the end that the cluster announces.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

from kinetic.errors import KineticError

_LEAST_SECONDS = 0.1  # between two looks: rings that come together are one


class Poller(threading.Thread):
    """Looks as long as the process lives.

    Args:
        look: Looks once; says whether the worker shall end.
        wake: A descriptor to write to after each look.
        seconds: Between two looks when nobody rings.
    """

    def __init__(self, look: Callable[[], bool], wake: int, seconds: float) -> None:
        super().__init__(name="kinetic-lookout", daemon=True)
        self.found = False
        self._look, self._wake, self._seconds = look, wake, seconds
        self._rung = threading.Event()

    def ring(self) -> None:
        """Look soon: somebody says that there is something new."""
        self._rung.set()

    def run(self) -> None:
        """Look, and look again."""
        while True:
            self._rung.wait(self._seconds)
            self._rung.clear()
            with contextlib.suppress(Exception):  # it may answer the next time; if this ended, a slice would hang
                self.found = self._look() or self.found
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b".")
            time.sleep(_LEAST_SECONDS)


def run_on_thread(task: Callable[[], object]) -> threading.Thread:
    """Begin a task that may fail, on a thread that nobody has to wait for."""

    def attempt() -> None:
        with contextlib.suppress(KineticError, OSError):
            task()

    thread = threading.Thread(target=attempt, name="kinetic-last-words", daemon=True)
    thread.start()
    return thread

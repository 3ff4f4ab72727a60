"""The lookout: a thread that looks into the store every few seconds, and wakes the parent when it must act.

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


class Lookout(threading.Thread):
    """Looks as long as the process lives.

    Args:
        look: Looks once; says whether the worker shall end.
        wake: A descriptor to write to after each look.
        seconds: Between two looks.
    """

    def __init__(self, look: Callable[[], bool], wake: int, seconds: float) -> None:
        super().__init__(name="kinetic-lookout", daemon=True)
        self.found = False
        self._look, self._wake, self._seconds = look, wake, seconds

    def run(self) -> None:
        """Look, and look again."""
        while True:
            time.sleep(self._seconds)
            with contextlib.suppress(Exception):  # it may answer the next time; if this ended, a slice would hang
                self.found = self._look() or self.found
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b".")


def begin(task: Callable[[], object]) -> threading.Thread:
    """Begin a task that may fail, on a thread that nobody has to wait for."""

    def attempt() -> None:
        with contextlib.suppress(KineticError, OSError):
            task()

    thread = threading.Thread(target=attempt, name="kinetic-last-words", daemon=True)
    thread.start()
    return thread

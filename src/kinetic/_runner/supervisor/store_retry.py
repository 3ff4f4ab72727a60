"""Patience: what was computed waits for its store, and for credentials; a job that cannot begin waits as well."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from kinetic.errors import CredentialsError, KineticError, StoreUnreachableError

T = TypeVar("T")

PASSES = (StoreUnreachableError, CredentialsError)  # what a complete value waits for

FINISHED = "finished"  # what is said of a job begins so whose function has returned, and whose value waits
HOUR = 3600.0  # longer than the outages that services of this kind write reports about
FOREVER = float("inf")  # a value in a pod is worth a machine until somebody says otherwise: a deadline, or a cancel
_LONGEST_PAUSE = 15.0


def waits_for(error: Exception) -> str:
    """Say what a job waits for that has finished, and whose value the store does not take: one line."""
    what = "credentials" if isinstance(error, CredentialsError) else "its store"
    words = ": ".join(filter(None, (error.what, error.why))) if isinstance(error, KineticError) else str(error)
    return f"{FINISHED}; waiting for {what}: {' '.join(words.split())}"


def keep_trying(
    do: Callable[[], T],
    passes: type[Exception] | tuple[type[Exception], ...],
    *,
    wait: Callable[[float], bool],
    say: Callable[[Exception], object],
    seconds: float = HOUR,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Do something with a store, and again while it fails in a way that passes.

    Args:
        do: What; doing it twice must be harmless.
        passes: The exceptions that may be gone later; any other is raised at once.
        wait: Waits some seconds; True when there is no use in waiting any longer.
        say: Is told of each failure that is waited for.
        seconds: After which the last failure is raised.
        clock: Gives seconds; tests bring their own.
    """
    limit, pause = clock() + seconds, 1.0
    while True:
        try:
            return do()
        except passes as error:
            if clock() > limit:
                raise
            say(error)
            if wait(pause):
                raise
        pause = min(2 * pause, _LONGEST_PAUSE)

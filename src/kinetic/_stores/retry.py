"""How often a request to a store in the cloud is repeated, and how long it may take in all."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple


def _random() -> float:
    import random  # 3 ms, and only a request that failed needs it

    return random.random()  # noqa: S311 - spreads retries, protects nothing


class Retry(NamedTuple):
    """Repeat what may pass, with growing pauses of random length, so that many clients do not come back at once.

    Attributes:
        attempts: The most requests for one answer.
        first_seconds: The longest first pause; each further one may be twice as long.
        most_seconds: The longest pause.
        total_seconds: After this, no further attempt.
        sleep: Waits so many seconds.
        random: A number from 0 to 1.
    """

    attempts: int = 8
    first_seconds: float = 0.25
    most_seconds: float = 10.0
    total_seconds: float = 120.0
    sleep: Callable[[float], object] = time.sleep
    random: Callable[[], float] = _random

    def pause(self, attempt: int, *, at_least: float = 0.0) -> None:
        """Wait after a failed attempt, numbered from 0; never less than the server asked for."""
        longest = min(self.most_seconds, self.first_seconds * 2**attempt)
        self.sleep(max(at_least, longest * (0.5 + self.random() / 2)))

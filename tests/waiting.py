"""Waiting in tests, without a sleep to be safe."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(holds: Callable[[], Any], what: str = "the condition", seconds: float = 20) -> Any:
    """Wait for something to become true, and return it; fail with its words when it never does."""
    limit = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < limit, f"{what} did not come true within {seconds:g} s"
        time.sleep(0.01)
    return found

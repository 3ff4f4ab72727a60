"""What a cluster told a client, for as long as it may be believed: so that a second job asks nothing.

Only what helps is kept. Whoever was refused something goes and has it changed, and is then asked about again.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client

LASTING = 600.0  # seconds: permissions, a namespace, what the cluster serves
BRIEF = 60.0  # seconds: that something is not there yet, or what others may clear away

T = TypeVar("T")


class Facts:
    """What one client was told. Threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[float, Any]] = {}

    def ask(self, key: Hashable, question: Callable[[], T], seconds: Callable[[T], float] = lambda _: LASTING) -> T:
        """Return what is known, or ask; an error is not kept.

        Args:
            key: What it is about.
            question: Asks the cluster.
            seconds: How long an answer may be believed.
        """
        with self._lock:
            ends, value = self._kept.get(key, (float("-inf"), None))
        if self._clock() < ends:
            return value  # type: ignore[no-any-return]  # a key has one type of answer
        answer = question()
        with self._lock:
            self._kept[key] = (self._clock() + seconds(answer), answer)
        return answer

    def forget(self, key: Hashable) -> None:
        """Believe something no longer."""
        with self._lock:
            self._kept.pop(key, None)


class _Table:
    """The facts of all clients of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.facts: weakref.WeakKeyDictionary[Client, Facts] = weakref.WeakKeyDictionary()


_table = _Table()


def of(client: Client) -> Facts:
    """Return what a client was told; it goes with the client."""
    with _table.lock:
        return _table.facts.setdefault(client, Facts())


def _forget() -> None:
    """Start anew in a forked child, whose clients are others."""
    global _table  # noqa: PLW0603 - one table for each process
    _table = _Table()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)

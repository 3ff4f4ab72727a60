"""A bucket far away: of requests that do not need one another's answers, none may wait for another one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from kinetic._stores.protocol import Entry

_SECONDS = 20.0


class DistantStore:
    """Another store with the address of a bucket; some reads are answered once all of them are under way.

    Each of these is named by the beginning of its key or prefix, and meets the others once.
    """

    local = None

    def __init__(self, store: Any, *together: str, url: str = "gs://far/away") -> None:
        self.url = url
        self.waiting_for = set(together)
        self._store, self._together = store, threading.Barrier(max(1, len(together)), timeout=_SECONDS)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def entries(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        self._meet(prefix)
        found: Iterator[Entry] = self._store.entries(prefix, after=after)
        return found

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        self._meet(key)
        found: bytes = self._store.get(key, start=start, length=length)
        return found

    def _meet(self, at: str) -> None:
        for each in sorted(self.waiting_for):
            if at.startswith(each):
                self.waiting_for.discard(each)
                self._together.wait()
                return


class AtOnce:
    """A context that counts how many threads are in it at once at most."""

    def __init__(self) -> None:
        self.most, self._inside, self._lock = 0, 0, threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1

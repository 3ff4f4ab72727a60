"""The turns of a batch: somebody stopped it, or wanted some inputs tried once more. Each is a key, in their order.

A stop holds for every input. What is wanted again after it may be launched all the same, and only that, until the next
stop. So a turn is created and never changed, and whoever reads them all knows what may still be launched.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kinetic._wire import keys, pages

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store

STOP, AGAIN = "stop", "again"
CANCELLED, FAIL_FAST = "cancelled", "fail-fast"  # why it was stopped


class Turns:
    """What the turns of a batch say, as far as they were read.

    Attributes:
        why: Why it was stopped last; "" when it never was.
    """

    def __init__(self) -> None:
        self.why = ""
        self._read: set[str] = set()
        self._exempt: set[int] = set()
        self._allowed: dict[int, int] = {}

    @property
    def stopped(self) -> bool:
        """Whether nothing more is launched at all."""
        return bool(self.why) and not self._exempt

    def stops(self, index: int) -> bool:
        """Say whether nothing more is launched for an input."""
        return bool(self.why) and index not in self._exempt

    def allowed(self, index: int) -> int:
        """Return how many attempts at an input somebody wanted; 0 when nobody asked."""
        return self._allowed.get(index, 0)

    def read(self, store: Store, group_id: str) -> None:
        """Read what is new: one listing, and a request for each new turn."""
        for entry in store.entries(keys.turns(group_id)):
            if entry.key not in self._read:
                self._take(entry.key, pages.read(store.get(entry.key), entry.key))

    def stop(self, store: Store, group_id: str, why: str) -> None:
        """Launch nothing more, whoever drives."""
        self.read(store, group_id)
        if not self.stopped or self.why != why:
            self._write(store, group_id, {"word": STOP, "why": why})

    def again(self, store: Store, group_id: str, allowed: Mapping[int, int]) -> None:
        """Allow some inputs so many attempts, even if the batch is stopped."""
        self._write(store, group_id, {"word": AGAIN, "allowed": {str(index): most for index, most in allowed.items()}})

    def _write(self, store: Store, group_id: str, fields: Mapping[str, object]) -> None:
        page = pages.write({"schema": pages.SCHEMA, **fields})
        while not store.put(keys.turn(group_id, len(self._read)), page, if_absent=True):
            self.read(store, group_id)  # somebody took this turn: ours is the next
        self.read(store, group_id)

    def _take(self, key: str, page: Mapping[str, Any]) -> None:
        self._read.add(key)
        if page["word"] == STOP:
            self.why = page["why"]
            self._exempt.clear()
            return
        wanted = {int(index): int(most) for index, most in page["allowed"].items()}
        self._allowed |= wanted
        self._exempt |= wanted.keys()

"""The turns of a batch: somebody stopped it, or wanted some inputs tried once more. Each is a key, in their order.

A stop holds for every input. What is wanted again after it may be launched all the same, and only that, until the next
stop. So a turn is created and never changed, and whoever reads them all knows what may still be launched.

A turn is sealed with the batch's key, and its seal is bound to its number: others who can write to the store cannot
have inputs run again, neither by a turn of their own nor by an old one in a new place.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from kinetic import _output as output
from kinetic._wire import documents, fields, keys, names, seal
from kinetic.errors import IntegrityError, KeyMissingError

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store

STOP, AGAIN = "stop", "again"
CANCELLED, FAIL_FAST = "cancelled", "fail-fast"  # why it was stopped


@dataclass(frozen=True)
class ControlEntry:
    """One turn.

    Attributes:
        word: STOP or AGAIN.
        why: Of a stop: CANCELLED or FAIL_FAST.
        allowed: Of inputs that are wanted again: how many attempts each may have, by its index.
    """

    word: str
    why: str = ""
    allowed: dict[str, int] = field(default_factory=dict)


class ControlLog:
    """What the turns of a batch say, as far as they were read.

    Args:
        key: The batch's key; None only when the user said to trust the store.

    Attributes:
        why: Why it was stopped last; "" when it never was.
    """

    def __init__(self, key: bytes | None) -> None:
        self.why = ""
        self._key = key
        self._read: set[str] = set()
        self._exempt: set[int] = set()
        self._allowed: dict[int, int] = {}

    @property
    def stopped(self) -> bool:
        """Whether nothing more is launched at all."""
        return bool(self.why) and not self._exempt

    def stops(self, index: int) -> bool:
        """Return whether nothing more is launched for an input."""
        return bool(self.why) and index not in self._exempt

    def allowed(self, index: int) -> int:
        """Return how many attempts at an input somebody wanted; 0 when nobody asked."""
        return self._allowed.get(index, 0)

    def read(self, store: Store, group_id: str) -> None:
        """Read what is new: one listing, and a request for each new turn. What cannot be verified is passed over."""
        for _, entry in keys.numbered(store.entries(keys.turns(group_id))):
            if entry.key not in self._read:
                self._read.add(entry.key)
                try:
                    self._take(documents.open_page(TURN, store, entry.key, self._key))
                except KeyMissingError:
                    continue
                except IntegrityError as error:
                    output.once(f"{group_id}: {error.what}; it is passed over")

    def stop(self, store: Store, group_id: str, why: str) -> None:
        """Launch nothing more, whoever drives."""
        self.read(store, group_id)
        if not self.stopped or self.why != why:
            self._write(store, group_id, ControlEntry(STOP, why))

    def again(self, store: Store, group_id: str, allowed: Mapping[int, int]) -> None:
        """Allow some inputs so many attempts, even if the batch is stopped."""
        self._write(store, group_id, ControlEntry(AGAIN, allowed={str(index): most for index, most in allowed.items()}))

    def _write(self, store: Store, group_id: str, turn: ControlEntry) -> None:
        for number in itertools.count(len(self._read)):  # one that somebody took is passed: ours is the next
            at = keys.turn(group_id, number)
            if store.put(
                at, documents.sealed(TURN, asdict(turn), at, self._key or bytes(seal.KEY_BYTES)), if_absent=True
            ):
                break
        self.read(store, group_id)

    def _take(self, turn: ControlEntry) -> None:
        if turn.word == STOP:
            self.why = turn.why
            self._exempt.clear()
            return
        wanted = {int(index): most for index, most in turn.allowed.items()}
        self._allowed |= wanted
        self._exempt |= wanted.keys()


def _turn(page: dict[str, Any], what: str) -> ControlEntry:
    return fields.build(ControlEntry, _READERS, page, what)


_READERS = {
    "word": fields.one_of(STOP, AGAIN),
    "why": fields.one_of("", CANCELLED, FAIL_FAST),
    "allowed": fields.map_of(names.ATTEMPT, names.MOST_INPUTS, fields.text(7, re.compile("[0-9]{1,7}"))),
}
TURN = documents.PageKind("turn", "the turn", _turn, 64 << 20)

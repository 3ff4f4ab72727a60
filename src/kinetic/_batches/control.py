"""The lease of a batch: one driver at a time.

Leases are numbered by epochs; creating one is possible once only, and the highest epoch drives. A driver shows that it
lives by touching its lease. Whoever wants to take over creates the next epoch, and may do so when the last driver
released its lease, when it is known to be dead, or when it has not touched its lease for a minute by the store's own
clock. A driver that finds a higher epoch than its own stops. Should two overlap for a moment, both derive the same ids
for the same attempts, so nothing is run twice.

A lease is sealed with the batch's key. What lies beside it and cannot be verified is passed over: others who can write
to the store cannot end a driver by a lease of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic import _output as output
from kinetic._backends.local import liveness
from kinetic._jobs import locate
from kinetic._wire import documents, fields, folders, keys
from kinetic.errors import IntegrityError, KeyMissingError, KineticError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kinetic._backends.local.liveness import ProcessLock
    from kinetic._stores.protocol import Entry, Store


TOUCH_SECONDS = 15.0
OLD_SECONDS = 60.0  # four touches missed
_LOOK_SECONDS = 1.0


class Holder(NamedTuple):
    """Who drives a batch, or drove it last.

    Attributes:
        epoch: The number of the lease.
        machine: Name of the machine.
        pid: Its process there.
        lives: Whether it must be taken to live.
        is_here: Whether that is this machine, which knows for certain.
        touched: When it showed last that it lives, by the store's clock.
    """

    epoch: int
    machine: str
    pid: int
    lives: bool
    is_here: bool = True
    touched: float = 0.0


@dataclass(frozen=True)
class LeasePage:
    """What a lease says.

    Attributes:
        epoch: Its number.
        machine: The machine that drives.
        name: What people call it.
        pid: The process there.
        released: Whether others may drive at once.
    """

    epoch: int
    machine: str
    name: str
    pid: int
    released: bool


class Lease:
    """The right to drive a batch, as long as nobody takes it over."""

    def __init__(self, store: Store, group_id: str, epoch: int, held: ProcessLock, key: bytes | None) -> None:
        self._store = store
        self._group_id = group_id
        self.epoch = epoch
        self._held = held
        self._key = key
        self._foreign: set[str] = set()  # what looks like a lease and is none
        self._touched = time.monotonic()

    def is_ours(self) -> bool:
        """Return whether we may still drive, and show that we live."""
        there = keys.numbered(self._store.entries(keys.leases(self._group_id)))
        if not any(epoch == self.epoch for epoch, _ in there) or any(map(self._is_later, there)):
            return False
        if time.monotonic() - self._touched >= TOUCH_SECONDS:
            self._touched = time.monotonic()
            return self._store.touch(keys.lease(self._group_id, self.epoch))
        return True

    def _is_later(self, found: tuple[int, Entry]) -> bool:
        epoch, entry = found
        if epoch <= self.epoch or entry.key in self._foreign:
            return False
        if _read(self._store, entry.key, self._key) is not None:
            return True
        self._foreign.add(entry.key)
        return False

    def release(self) -> None:
        """Let others drive at once."""
        with contextlib.suppress(KineticError):
            key = keys.lease(self._group_id, self.epoch)
            if self._store.size(key) is not None:  # else the batch was removed
                self._store.put(key, _page(self._group_id, self.epoch, self._key, released=True))
        self._held.release(remove=True)


def take_lease(
    store: Store, group_id: str, key: bytes | None, *, clock: Callable[[Store, str], float] | None = None
) -> Lease | None:
    """Take the lease of a batch, or return None when somebody else drives it.

    Args:
        store: Where the batch lies.
        group_id: The batch.
        key: Its key; None only when the user said to trust the store.
        clock: Tells the time by the store's own clock; tests bring their own.
    """
    last = lease_holder(store, group_id, key, clock=clock)
    if last is not None and last.lives:
        return None
    there = {number for number, _ in keys.numbered(store.entries(keys.leases(group_id)))}
    epoch = 0 if last is None else last.epoch + 1
    while epoch in there:  # something that is not a lease of ours, or that of somebody quicker: then we see it next
        if _read(store, keys.lease(group_id, epoch), key) is not None:
            return None
        epoch += 1
    held = liveness.take_lock(_lock_path(group_id, epoch))
    if held is None:  # another process of this machine takes this very epoch
        return None
    if not store.put(keys.lease(group_id, epoch), _page(group_id, epoch, key), if_absent=True):
        held.release(remove=True)
        return None
    return Lease(store, group_id, epoch, held, key)


def wait_for_lease(store: Store, group_id: str, key: bytes | None) -> Lease | None:
    """Take the lease from a driver on another machine once it is old; None as soon as that driver shows that it lives.

    It takes a minute at most: nobody here can see whether a process of another machine is gone.
    """
    before = lease_holder(store, group_id, key)
    while before is not None and before.lives and not before.is_here:
        time.sleep(_LOOK_SECONDS)
        now = lease_holder(store, group_id, key)
        if now is not None and (now.epoch, now.touched) != (before.epoch, before.touched) and now.lives:
            return None
        before = now
    return take_lease(store, group_id, key)


def lease_holder(
    store: Store, group_id: str, key: bytes | None, *, clock: Callable[[Store, str], float] | None = None
) -> Holder | None:
    """Return who drives a batch, or drove it last; None when nobody ever did."""
    for epoch, entry in reversed(keys.numbered(store.entries(keys.leases(group_id)))):
        page = _read(store, entry.key, key)
        if page is None or page.epoch != epoch:
            continue
        lives = not page.released and not _is_known_dead(group_id, page)
        if lives:
            lives = (clock or store_time)(store, group_id) - entry.modified < OLD_SECONDS
        return Holder(epoch, page.name, page.pid, lives, page.machine == locate.machine(), entry.modified)
    return None


def _read(store: Store, at: str, key: bytes | None) -> LeasePage | None:
    """Return what a lease says, or None where there is none that can be verified."""
    try:
        return documents.open_page(LEASE, store, at, key)
    except (KeyMissingError, IntegrityError):
        return None


def store_time(store: Store, group_id: str) -> float:
    """Return the time by the store's own clock: what it stamps on something written just now."""
    key = keys.group_clock(group_id)
    store.put(key, b"")
    entry = store.entry(key)
    return entry.modified if entry is not None else 0.0


def _is_known_dead(group_id: str, page: LeasePage) -> bool:
    """Return whether the driver was of this machine and is gone: its lock is free."""
    return page.machine == locate.machine() and not liveness.is_locked(_lock_path(group_id, page.epoch))


def _lock_path(group_id: str, epoch: int) -> Path:
    folder = locate.runtime() / "groups"
    folders.make(folder)
    return folder / f"{group_id}.{epoch}.lock"


def _page(group_id: str, epoch: int, key: bytes | None, *, released: bool = False) -> bytes:
    page = LeasePage(epoch, locate.machine(), os.uname().nodename, os.getpid(), released)
    return documents.seal_page(LEASE, asdict(page), keys.lease(group_id, epoch), key or bytes(documents.KEY_BYTES))


def _lease(page: dict[str, Any], what: str) -> LeasePage:
    return fields.build(LeasePage, _LEASE_READERS, page, what)


_LEASE_READERS = {
    "epoch": fields.integer(0, fields.BYTES),
    "machine": fields.text(),
    "name": fields.text(),
    "pid": fields.integer(0, 1 << 31),
    "released": fields.boolean,
}
LEASE = documents.PageKind("lease", "the lease", _lease, 1 << 14)


STOP, RETRY = "stop", "again"
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
        for _, entry in keys.numbered(store.entries(keys.control_entries(group_id))):
            if entry.key not in self._read:
                self._read.add(entry.key)
                try:
                    self._take(documents.open_page(CONTROL_ENTRY, store, entry.key, self._key))
                except KeyMissingError:
                    continue
                except IntegrityError as error:
                    output.report_once(f"{group_id}: {error.what}; it is passed over")

    def stop(self, store: Store, group_id: str, why: str) -> None:
        """Launch nothing more, whoever drives."""
        self.read(store, group_id)
        if not self.stopped or self.why != why:
            self._write(store, group_id, ControlEntry(STOP, why))

    def again(self, store: Store, group_id: str, allowed: Mapping[int, int]) -> None:
        """Allow some inputs so many attempts, even if the batch is stopped."""
        self._write(store, group_id, ControlEntry(RETRY, allowed={str(index): most for index, most in allowed.items()}))

    def _write(self, store: Store, group_id: str, turn: ControlEntry) -> None:
        for number in itertools.count(len(self._read)):  # one that somebody took is passed: ours is the next
            at = keys.control_entry(group_id, number)
            if store.put(
                at,
                documents.seal_page(CONTROL_ENTRY, asdict(turn), at, self._key or bytes(documents.KEY_BYTES)),
                if_absent=True,
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


def _control_entry(page: dict[str, Any], what: str) -> ControlEntry:
    return fields.build(ControlEntry, _ENTRY_READERS, page, what)


_ENTRY_READERS = {
    "word": fields.one_of(STOP, RETRY),
    "why": fields.one_of("", CANCELLED, FAIL_FAST),
    "allowed": fields.map_of(keys.ATTEMPT, keys.MOST_INPUTS, fields.text(7, re.compile("[0-9]{1,7}"))),
}
CONTROL_ENTRY = documents.PageKind("turn", "the turn", _control_entry, 64 << 20)

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
import os
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._backends.local import process_lock
from kinetic._jobs import locate
from kinetic._wire import documents, fields, folders, keys, seal
from kinetic.errors import IntegrityError, KeyMissingError, KineticError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kinetic._backends.local.process_lock import ProcessLock
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
class Page:
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


def take(
    store: Store, group_id: str, key: bytes | None, *, clock: Callable[[Store, str], float] | None = None
) -> Lease | None:
    """Take the lease of a batch, or return None when somebody else drives it.

    Args:
        store: Where the batch lies.
        group_id: The batch.
        key: Its key; None only when the user said to trust the store.
        clock: Tells the time by the store's own clock; tests bring their own.
    """
    last = holder(store, group_id, key, clock=clock)
    if last is not None and last.lives:
        return None
    there = {number for number, _ in keys.numbered(store.entries(keys.leases(group_id)))}
    epoch = 0 if last is None else last.epoch + 1
    while epoch in there:  # something that is not a lease of ours, or that of somebody quicker: then we see it next
        if _read(store, keys.lease(group_id, epoch), key) is not None:
            return None
        epoch += 1
    held = process_lock.take(_lock(group_id, epoch))
    if held is None:  # another process of this machine takes this very epoch
        return None
    if not store.put(keys.lease(group_id, epoch), _page(group_id, epoch, key), if_absent=True):
        held.release(remove=True)
        return None
    return Lease(store, group_id, epoch, held, key)


def take_patiently(store: Store, group_id: str, key: bytes | None) -> Lease | None:
    """Take the lease from a driver on another machine once it is old; None as soon as that driver shows that it lives.

    It takes a minute at most: nobody here can see whether a process of another machine is gone.
    """
    before = holder(store, group_id, key)
    while before is not None and before.lives and not before.is_here:
        time.sleep(_LOOK_SECONDS)
        now = holder(store, group_id, key)
        if now is not None and (now.epoch, now.touched) != (before.epoch, before.touched) and now.lives:
            return None
        before = now
    return take(store, group_id, key)


def holder(
    store: Store, group_id: str, key: bytes | None, *, clock: Callable[[Store, str], float] | None = None
) -> Holder | None:
    """Return who drives a batch, or drove it last; None when nobody ever did."""
    for epoch, entry in reversed(keys.numbered(store.entries(keys.leases(group_id)))):
        page = _read(store, entry.key, key)
        if page is None or page.epoch != epoch:
            continue
        lives = not page.released and not _is_known_dead(group_id, page)
        if lives:
            lives = (clock or now_of)(store, group_id) - entry.modified < OLD_SECONDS
        return Holder(epoch, page.name, page.pid, lives, page.machine == locate.machine(), entry.modified)
    return None


def _read(store: Store, at: str, key: bytes | None) -> Page | None:
    """Return what a lease says, or None where there is none that can be verified."""
    try:
        return documents.open_page(LEASE, store, at, key)
    except (KeyMissingError, IntegrityError):
        return None


def now_of(store: Store, group_id: str) -> float:
    """Return the time by the store's own clock: what it stamps on something written just now."""
    key = keys.group_clock(group_id)
    store.put(key, b"")
    entry = store.entry(key)
    return entry.modified if entry is not None else 0.0


def _is_known_dead(group_id: str, page: Page) -> bool:
    """Return whether the driver was of this machine and is gone: its lock is free."""
    return page.machine == locate.machine() and not process_lock.is_held(_lock(group_id, page.epoch))


def _lock(group_id: str, epoch: int) -> Path:
    folder = locate.runtime() / "groups"
    folders.make(folder)
    return folder / f"{group_id}.{epoch}.lock"


def _page(group_id: str, epoch: int, key: bytes | None, *, released: bool = False) -> bytes:
    page = Page(epoch, locate.machine(), os.uname().nodename, os.getpid(), released)
    return documents.sealed(LEASE, asdict(page), keys.lease(group_id, epoch), key or bytes(seal.KEY_BYTES))


def _lease(page: dict[str, Any], what: str) -> Page:
    return fields.build(Page, _READERS, page, what)


_READERS = {
    "epoch": fields.whole(0, fields.BYTES),
    "machine": fields.text(),
    "name": fields.text(),
    "pid": fields.whole(0, 1 << 31),
    "released": fields.flag,
}
LEASE = documents.PageKind("lease", "the lease", _lease, 1 << 14)

"""The lease of a batch: one driver at a time.

Leases are numbered by epochs; creating one is possible once only, and the highest epoch drives. A driver shows that it
lives by touching its lease. Whoever wants to take over creates the next epoch, and may do so when the last driver
released its lease, when it is known to be dead, or when it has not touched its lease for a minute by the store's own
clock. A driver that finds a higher epoch than its own stops. Should two overlap for a moment, both derive the same ids
for the same attempts, so nothing is run twice.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._backends.local import life
from kinetic._jobs import places
from kinetic._wire import folders, keys, pages
from kinetic.errors import IntegrityError, KeyMissingError, KineticError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kinetic._backends.local.life import Life
    from kinetic._stores.protocol import Store

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


class Lease:
    """The right to drive a batch, as long as nobody takes it over."""

    def __init__(self, store: Store, group_id: str, epoch: int, held: Life) -> None:
        self._store = store
        self._group_id = group_id
        self.epoch = epoch
        self._held = held
        self._touched = time.monotonic()

    def is_ours(self) -> bool:
        """Say whether we may still drive, and show that we live."""
        epochs = [entry.key for entry in self._store.entries(keys.leases(self._group_id))]
        if not epochs or epochs[-1] != keys.lease(self._group_id, self.epoch):
            return False
        if time.monotonic() - self._touched >= TOUCH_SECONDS:
            self._touched = time.monotonic()
            return self._store.touch(keys.lease(self._group_id, self.epoch))
        return True

    def release(self) -> None:
        """Let others drive at once."""
        with contextlib.suppress(KineticError):
            key = keys.lease(self._group_id, self.epoch)
            if self._store.size(key) is not None:  # else the batch was removed
                self._store.put(key, _page(self.epoch, released=True))
        self._held.release(remove=True)


def take(store: Store, group_id: str, *, clock: Callable[[Store, str], float] | None = None) -> Lease | None:
    """Take the lease of a batch, or return None when somebody else drives it.

    Args:
        store: Where the batch lies.
        group_id: The batch.
        clock: Tells the time by the store's own clock; tests bring their own.
    """
    last = holder(store, group_id, clock=clock)
    if last is not None and last.lives:
        return None
    epoch = 0 if last is None else last.epoch + 1
    held = life.take(_lock(group_id, epoch))
    if held is None:  # another process of this machine takes this very epoch
        return None
    if not store.put(keys.lease(group_id, epoch), _page(epoch), if_absent=True):
        held.release(remove=True)
        return None
    return Lease(store, group_id, epoch, held)


def take_patiently(store: Store, group_id: str) -> Lease | None:
    """Take the lease from a driver on another machine once it is old; None as soon as that driver shows that it lives.

    It takes a minute at most: nobody here can see whether a process of another machine is gone.
    """
    before = holder(store, group_id)
    while before is not None and before.lives and not before.is_here:
        time.sleep(_LOOK_SECONDS)
        now = holder(store, group_id)
        if now is not None and (now.epoch, now.touched) != (before.epoch, before.touched) and now.lives:
            return None
        before = now
    return take(store, group_id)


def holder(store: Store, group_id: str, *, clock: Callable[[Store, str], float] | None = None) -> Holder | None:
    """Say who drives a batch, or drove it last; None when nobody ever did."""
    entries = list(store.entries(keys.leases(group_id)))
    if not entries:
        return None
    last = entries[-1]
    try:
        page = pages.read(store.get(last.key), "the lease")
    except (KeyMissingError, IntegrityError):
        page = {}
    epoch = int(last.key.rpartition("/")[2])
    lives = not page.get("released") and not _is_known_dead(group_id, epoch, page)
    if lives:
        lives = (clock or now_of)(store, group_id) - last.modified < OLD_SECONDS
    is_here = page.get("machine") == places.machine()
    return Holder(epoch, str(page.get("name", "")), int(page.get("pid", 0)), lives, is_here, last.modified)


def now_of(store: Store, group_id: str) -> float:
    """Return the time by the store's own clock: what it stamps on something written just now."""
    key = keys.group_clock(group_id)
    store.put(key, b"")
    entry = store.entry(key)
    return entry.modified if entry is not None else 0.0


def _is_known_dead(group_id: str, epoch: int, page: dict[str, Any]) -> bool:
    """Say whether the driver was of this machine and is gone: its lock is free."""
    return page.get("machine") == places.machine() and not life.is_held(_lock(group_id, epoch))


def _lock(group_id: str, epoch: int) -> Path:
    folder = places.runtime() / "groups"
    folders.make(folder)
    return folder / f"{group_id}.{epoch}.lock"


def _page(epoch: int, *, released: bool = False) -> bytes:
    return pages.write(
        {
            "schema": pages.SCHEMA,
            "epoch": epoch,
            "machine": places.machine(),
            "name": os.uname().nodename,
            "pid": os.getpid(),
            "released": released,
        }
    )

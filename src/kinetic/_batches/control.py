"""Who drives a batch, and what stops it or has inputs tried again: pages of the store, each created once and sealed.

A **lease** is the right to drive. Leases are numbered by epochs and the highest drives; a driver shows that it lives by
touching its lease. The next epoch may be created when the last driver released its lease, is known to be dead, or has
not touched its lease for a minute by the store's clock. A driver that finds a higher epoch stops. If two overlap for a
moment, both derive the same ids for the same attempts, so nothing is run twice.

The **control log** has numbered entries: a stop holds for every input, and a retry exempts some inputs from the stops
before it. The seal of an entry is bound to its number, so an old entry cannot be replayed. What cannot be verified is
skipped: others who can write to the store can neither end a driver nor have inputs run again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from kinetic._backends.local import runtime_files
from kinetic._jobs import locate
from kinetic._output import terminal as output
from kinetic._wire import NamedTuple, dataclass, documents, fields, folders, keys
from kinetic._wire.records import CONTROL_ENTRY, RETRY, STOP, STOPPED_BY_USER, ControlEntry
from kinetic.errors import IntegrityError, KeyMissingError, KineticError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kinetic._backends.local.runtime_files import ProcessLock
    from kinetic._stores.protocol import Entry, Store


TOUCH_SECONDS = 15.0
OLD_SECONDS = 60.0  # four touches missed
_POLL_SECONDS = 1.0


class Holder(NamedTuple):
    """The driver of a batch, or its last one."""

    epoch: int
    machine: str  # its name
    pid: int
    lives: bool  # or must be assumed to
    is_here: bool = True  # on this machine, which knows for certain whether it lives
    touched: float = 0.0  # when it showed last that it lives, by the store's clock
    is_silent: bool = False  # it counts as dead since it has not shown for a minute that it lives, for no other reason


@dataclass(frozen=True)
class LeasePage:
    """What a lease says: the id and the name of the machine that drives, its process, whether others may drive."""

    epoch: int
    machine: str
    name: str
    pid: int
    released: bool


class Lease:
    """The right to drive a batch, until another process takes it over."""

    def __init__(self, store: Store, group_id: str, epoch: int, held: ProcessLock, key: bytes | None) -> None:
        self.epoch = epoch
        self._store, self._group_id, self._held, self._key = store, group_id, held, key
        self._foreign: set[str] = set()  # keys that look like a lease and are none
        self._touched = time.monotonic(), time.time()

    def is_ours(self) -> bool:
        """Return whether we may still drive, and show that we live."""
        there = keys.numbered(self._store.entries(keys.leases(self._group_id)))
        own = keys.lease(self._group_id, self.epoch)
        if any(map(self._is_later, there)):
            return False
        if all(epoch != self.epoch for epoch, _ in there) and self._store.size(own) is None:  # a listing may be old
            return False
        since, at = self._touched
        if max(time.monotonic() - since, abs(time.time() - at)) >= TOUCH_SECONDS:  # the machine may have been suspended
            self._touched = time.monotonic(), time.time()
            return self._store.touch(own)
        return True

    def _is_later(self, found: tuple[int, Entry]) -> bool:
        epoch, entry = found
        if epoch <= self.epoch or entry.key in self._foreign:
            return False
        if _read_lease(self._store, entry.key, self._key) is not None:
            return True
        self._foreign.add(entry.key)
        return False

    def release(self) -> None:
        """Let others drive at once."""
        with contextlib.suppress(KineticError):
            key = keys.lease(self._group_id, self.epoch)
            if self._store.size(key) is not None:  # else the batch was removed
                self._store.put(key, _lease_page(self._group_id, self.epoch, self._key, released=True))
        self._held.release(remove=True)


@runtime_files.launch_errors()
def take_lease(
    store: Store, group_id: str, key: bytes | None, *, clock: Callable[[Store, str], float] | None = None
) -> Lease | None:
    """Take the lease of a batch, or return None when another process drives it; tests bring their own clock."""
    listed = keys.numbered(store.entries(keys.leases(group_id)))
    last = _holder(listed, store, group_id, key, clock)
    if last is not None and last.lives:
        return None
    there = {number for number, _ in listed}
    epoch = 0 if last is None else last.epoch + 1
    while epoch in there:  # not a lease of ours, or one of another process that was faster: then we see it next
        if _read_lease(store, keys.lease(group_id, epoch), key) is not None:
            return None
        epoch += 1
    held = runtime_files.take_lock(_lock_path(group_id, epoch))
    if held is None:  # another process of this machine takes this very epoch
        return None
    if not store.put(keys.lease(group_id, epoch), _lease_page(group_id, epoch, key), if_absent=True):
        held.release(remove=True)
        return None
    return Lease(store, group_id, epoch, held, key)


def wait_for_lease(store: Store, group_id: str, key: bytes | None) -> Lease | None:
    """Take the lease from a driver on another machine once it is old; None as soon as that driver shows that it lives.

    It takes a minute at most: this machine cannot see whether a process of another machine has died.
    """
    before = lease_holder(store, group_id, key)
    while before is not None and before.lives and not before.is_here:
        time.sleep(_POLL_SECONDS)
        now = lease_holder(store, group_id, key)
        if now is not None and (now.epoch, now.touched) != (before.epoch, before.touched) and now.lives:
            return None
        before = now
    return take_lease(store, group_id, key)


@runtime_files.launch_errors()
def lease_holder(store: Store, group_id: str, key: bytes | None) -> Holder | None:
    """Return the driver of a batch, or its last one; None when there never was one."""
    return _holder(keys.numbered(store.entries(keys.leases(group_id))), store, group_id, key)


def _holder(
    listed: Sequence[tuple[int, Entry]],
    store: Store,
    group_id: str,
    key: bytes | None,
    clock: Callable[[Store, str], float] | None = None,
) -> Holder | None:
    for epoch, entry in reversed(listed):
        page = _read_lease(store, entry.key, key)
        if page is None or page.epoch != epoch:
            continue
        is_here = page.machine == locate.machine()
        known_dead = is_here and not runtime_files.is_locked(_lock_path(group_id, page.epoch))
        lives, is_silent = not page.released and not known_dead, False
        if lives:
            is_silent = (clock or store_time)(store, group_id) - entry.modified >= OLD_SECONDS
        return Holder(epoch, page.name, page.pid, lives and not is_silent, is_here, entry.modified, is_silent)
    return None


def store_time(store: Store, group_id: str) -> float:
    """Return the time by the store's own clock: what it stamps on something written just now."""
    key = keys.group_clock(group_id)
    store.put(key, b"")
    entry = store.entry(key)
    return entry.modified if entry is not None else 0.0


def _read_lease(store: Store, at: str, key: bytes | None) -> LeasePage | None:
    """Return what a lease says, or None where there is none that can be verified."""
    try:
        return documents.open_page(LEASE, store, at, key)
    except (KeyMissingError, IntegrityError):
        return None


def _lock_path(group_id: str, epoch: int) -> Path:
    folder = locate.runtime() / "groups"
    folders.make(folder)
    return folder / f"{group_id}.{epoch}.lock"


def _lease_page(group_id: str, epoch: int, key: bytes | None, *, released: bool = False) -> bytes:
    page = LeasePage(epoch, locate.machine(), os.uname().nodename, os.getpid(), released)
    return documents.seal_page(LEASE, asdict(page), keys.lease(group_id, epoch), key or bytes(documents.KEY_BYTES))


class ControlLog:
    """The control log of a batch, as far as it was read; for any thread of this process."""

    def __init__(self, store: Store, group_id: str, key: bytes | None) -> None:
        self.why = ""  # of the last stop
        self._store, self._group_id, self._key = store, group_id, key
        self._read: set[str] = set()
        self._exempt: set[int] = set()
        self._allowed: dict[int, int] = {}
        self._lock = threading.RLock()

    @property
    def stopped(self) -> bool:
        """Whether nothing more is launched at all."""
        return bool(self.why) and not self._exempt

    def stops(self, index: int) -> bool:
        """Return whether nothing more is launched for an input."""
        return bool(self.why) and index not in self._exempt

    @property
    def most_allowed(self) -> int:
        """How many attempts were requested of the input with the most; 0 for none."""
        return max(self._allowed.values(), default=0)

    def allowed(self, index: int) -> int:
        """Return how many attempts at an input were requested; 0 for none."""
        return self._allowed.get(index, 0)

    def read(self, listed: Iterable[Entry] | None = None) -> None:
        """Read what is new: one listing, if the caller has none, and a request for each new entry.

        What cannot be verified is skipped.
        """
        with self._lock:
            if listed is None:
                listed = self._store.entries(keys.control_entries(self._group_id))
            for _, entry in keys.numbered(listed):
                if entry.key in self._read:
                    continue
                try:
                    self._apply(documents.open_page(CONTROL_ENTRY, self._store, entry.key, self._key))
                except KeyMissingError:
                    continue
                except IntegrityError as error:
                    output.report_once(f"{self._group_id}: {error.what}; it is skipped")
                self._read.add(entry.key)  # not where the store was out of reach: it may be a request to stop

    def was_removed(self) -> bool:
        """Return whether the batch is gone from the store, with its lease and this log: that stops it as well."""
        if self._store.size(keys.group_manifest(self._group_id)) is not None:
            return False
        with self._lock:
            self._apply(ControlEntry(STOP, STOPPED_BY_USER))
        return True

    def stop(self, why: str) -> None:
        """Launch nothing more, whatever process drives."""
        self.read()
        if not self.stopped or self.why != why:
            self._write(ControlEntry(STOP, why))

    def retry(self, allowed: Mapping[int, int]) -> None:
        """Allow some inputs so many attempts, even if the batch is stopped."""
        self._write(ControlEntry(RETRY, allowed={str(index): most for index, most in allowed.items()}))

    def _write(self, entry: ControlEntry) -> None:
        with self._lock:
            for number in itertools.count(len(self._read)):  # where another process wrote one, ours is the next
                at = keys.control_entry(self._group_id, number)
                page = documents.seal_page(CONTROL_ENTRY, asdict(entry), at, self._key or bytes(documents.KEY_BYTES))
                if self._store.put(at, page, if_absent=True):
                    break
            self.read()

    def _apply(self, entry: ControlEntry) -> None:
        if entry.word == STOP:
            self.why = entry.why
            self._exempt.clear()
        else:
            wanted = {int(index): most for index, most in entry.allowed.items()}
            self._allowed |= wanted
            self._exempt |= wanted.keys()


_LEASE_READERS = {
    "epoch": fields.integer(0, fields.BYTES),
    "machine": fields.text(),
    "name": fields.text(),
    "pid": fields.integer(0, 1 << 31),
    "released": fields.boolean,
}
LEASE = documents.PageKind("lease", "the lease", fields.builder(LeasePage, _LEASE_READERS), 1 << 14)

"""The compile cache as a whole: what is in it, and what of it is removed, the programs used longest ago first.

What a job reads at the same moment may go: it compiles that program itself. An entry goes before its bytes, so bytes
without an entry are of a writer that is at work, or was killed; they stay for a day.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial

from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Entry, Store
from kinetic._wire import NamedTuple, cache_entries, keys
from kinetic._wire.cache_entries import CacheEntry, Group
from kinetic.errors import KineticError

DAY = 24 * 3600.0
KEEP_SECONDS = 60 * DAY  # after the last use
KEEP_BYTES = 10 << 30  # of all programs in one store


class GroupUsage(NamedTuple):
    """The programs of one library for one kind of hardware."""

    group: Group
    files: int
    size_bytes: int
    used_at: float  # Unix time, of the program that was used last
    unverified: int = 0  # entries with a wrong seal; no job uses them


class Pruned(NamedTuple):
    """What was removed, or would be."""

    files: int
    size_bytes: int


class _Program(NamedTuple):
    listed: Entry
    entry: CacheEntry | None  # None for a key of another form


def usage(store: Store, key: bytes) -> list[GroupUsage]:
    """Return what is in the cache of a store, the groups that were used last first; ``key`` seals its entries."""
    found: dict[Group, GroupUsage] = {}
    for listed, entry in _programs(store):
        if entry is None:
            continue
        known = found.get(entry.group, GroupUsage(entry.group, 0, 0, 0.0))
        if cache_entries.verified(entry.key, key) is None:
            found[entry.group] = known._replace(unverified=known.unverified + 1)
        else:
            found[entry.group] = known._replace(
                files=known.files + 1,
                size_bytes=known.size_bytes + entry.size,
                used_at=max(known.used_at, listed.modified),
            )
    return sorted(found.values(), key=lambda each: (-each.used_at, each.group))


def prune(
    store: Store, now: float, *, seconds: float = KEEP_SECONDS, most_bytes: int = KEEP_BYTES, dry_run: bool = False
) -> Pruned:
    """Remove what was not used for so long, and then what was used longest ago until the rest is no larger.

    It is ``now`` by the clock of the store. With ``dry_run``, only return what would be removed.
    """
    programs = sorted(_programs(store), key=lambda each: each.listed.modified)
    blobs = {each.key.removeprefix(keys.COMPILED_BLOBS): each for each in store.entries(keys.COMPILED_BLOBS)}
    holders: dict[str, int] = {}
    for _, entry in programs:
        if entry is not None:
            holders[entry.sha256] = holders.get(entry.sha256, 0) + 1
    orphans = [blob for name, blob in blobs.items() if name not in holders and now - blob.modified > DAY]
    left = sum(blob.size for name, blob in blobs.items() if name in holders)
    spare: list[Entry] = []
    freed: list[Entry] = []
    for listed, entry in programs:  # the one that rests longest first
        if now - listed.modified <= seconds and left <= most_bytes:
            continue
        spare.append(listed)
        if entry is None:
            continue
        holders[entry.sha256] -= 1
        if not holders[entry.sha256] and (blob := blobs.get(entry.sha256)) is not None:
            freed.append(blob)
            left -= blob.size
    if not dry_run:
        about = store.entries(keys.compiled_measurement(""))  # of no use without the programs
        list(delete(store, [each for each in about if now - each.modified > seconds or not most_bytes]))
        gone = set(delete(store, spare))
        kept = {entry.sha256 for listed, entry in programs if entry is not None and listed.key not in gone}
        freed = [blob for blob in freed if blob.key.removeprefix(keys.COMPILED_BLOBS) not in kept]
        spare = [each for each in spare if each.key in gone]
        list(delete(store, [*freed, *orphans]))
    return Pruned(len(spare), sum(blob.size for blob in (*freed, *orphans)))


def _programs(store: Store) -> Iterator[_Program]:
    for listed in store.entries(keys.COMPILED_ENTRIES):
        yield _Program(listed, cache_entries.parse(listed.key))


def delete(store: Store, found: Iterable[Entry]) -> Iterator[str]:
    """Delete objects, unless one was written or used since it was listed; yield the keys of those that are gone."""

    def delete(each: Entry) -> str:
        with contextlib.suppress(KineticError):  # one that cannot be deleted does not keep the others
            there = store.entry(each.key)
            if there is None or there.modified == each.modified:
                store.delete(each.key)
                return each.key
        return ""

    yield from filter(None, in_parallel(store, (partial(delete, each) for each in found)))

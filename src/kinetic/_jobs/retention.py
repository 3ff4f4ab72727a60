"""Retention: what the home keeps without anybody needing it goes, at most once a day, by whoever lists jobs.

| what | goes when |
|---|---|
| a pack (files of a project) | 7 days after it was written, once no order in the store names it |
| what a job was sent (function and arguments, where they are large) | 7 days after it ended |
| data that jobs were sent, in a store in a folder | 60 days after it was sent or looked for last |
| a page of the cache | 90 days after it was used last |
| an isolated environment | 30 days after it was used last |
| the history of a collected job, with its log, and what remains of a removed one | after 30 days; see ``tombstones`` |

Never outputs. Never a result that nobody collected, nor what its job's order names: those go by ``kinetic jobs
cleanup`` only. What belongs to running jobs is swept by the backend; see ``_backends/local/sweeping``.

A pack may be needed by a job that is being submitted at this moment: its client has seen the pack in a listing, and its
order is not written yet. So packs are first taken out of the listing, then everybody is asked once more, then they go.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kinetic._backends.local import life
from kinetic._backends.local.paths import Paths
from kinetic._jobs import tombstones
from kinetic._stores.protocol import Entry, LocalStore, Store
from kinetic._wire import descriptors, keys, pages
from kinetic.errors import KeyMissingError, KineticError

DAY = 24 * 3600.0
PACK_SECONDS = 7 * DAY
PAYLOAD_SECONDS = 7 * DAY
CACHE_SECONDS = 90 * DAY
DATA_SECONDS = 60 * DAY  # what is shipped again is touched every week; a manifest relies on blobs of 14 days at most
MARK = "tidied"  # in the runtime folder; its time is that of the last sweep
ENVIRONMENTS = "environments"
_NOT_JOBS = frozenset({"history", "packs", "outputs", "data"})


class Swept(NamedTuple):
    """What went.

    Attributes:
        packs: How many packs.
        pages: How many pages of the cache.
        environments: How many isolated environments.
        size_bytes: What all of it held.
        payloads: How many pickled functions and arguments.
        data: How many blobs and manifests of data.
    """

    packs: int = 0
    pages: int = 0
    environments: int = 0
    size_bytes: int = 0
    payloads: int = 0
    data: int = 0


def sweep_if_due(store: Store, home: Path, runtime: Path, *, now: float | None = None) -> None:
    """Sweep unless somebody on this machine did so within a day; whatever goes wrong waits for the next time."""
    now = time.time() if now is None else now
    if _is_due(runtime / MARK, now):
        with contextlib.suppress(KineticError, OSError):
            sweep(store, home, runtime, now=now)


def sweep(store: Store, home: Path, runtime: Path, *, now: float | None = None) -> Swept:
    """Remove what nobody needs any more.

    Args:
        store: Where the jobs lie; packs go from a store in a folder only.
        home: The kinetic home.
        runtime: The folder of this host.
        now: Unix time; the current time by default.
    """
    now = time.time() if now is None else now
    packs, freed = _sweep_packs(store.local, home, runtime, now) if store.local is not None else (0, 0)
    data, data_bytes = _sweep_data(store.local, now) if store.local is not None else (0, 0)
    payloads, payload_bytes = _sweep_payloads(store, now)
    pages_, page_bytes = _sweep_cache(home / "cache", now)
    environments, environment_bytes = _sweep_environments((home, home / "cache", runtime), now)
    store.sweep()
    tombstones.sweep(store)
    freed += payload_bytes + page_bytes + environment_bytes + data_bytes
    return Swept(packs, pages_, environments, freed, payloads, data)


def named_packs(store: Store) -> frozenset[str] | None:
    """Return the packs that an order in the store names; None when an order cannot be read, so that nobody knows."""
    found: set[str] = set()
    for key in _orders(store):
        try:
            page = pages.read(pages.fetch(store, key, pages.MOST_BYTES, key), key)
        except KeyMissingError:  # still being submitted, or removed this moment
            continue
        except KineticError:
            return None
        packs = page.get("packs")
        found.update(map(str, packs if isinstance(packs, list) else ()))
    return frozenset(found)


def _orders(store: Store) -> Iterator[str]:
    for name in store.folders(""):
        if name not in keys.RESERVED:
            yield keys.order(name)
        elif name not in _NOT_JOBS:  # groups of jobs
            yield from (entry.key for entry in store.entries(f"{name}/") if entry.key.endswith("/order.json"))


def _sweep_packs(store: LocalStore, home: Path, runtime: Path, now: float) -> tuple[int, int]:
    """Remove packs that no order names; return how many and what they held."""
    needed = None if _is_anybody_submitting(home, runtime, now) else named_packs(store)
    if needed is None:
        return 0, 0
    old = [entry for entry in store.entries(keys.PACKS) if now - entry.modified > PACK_SECONDS]
    spare = [entry for entry in old if entry.key.removeprefix(keys.PACKS) not in needed]
    return _drop(store, spare, home, runtime, now) if spare else (0, 0)


def _drop(store: LocalStore, spare: list[Entry], home: Path, runtime: Path, now: float) -> tuple[int, int]:
    """Hide packs from everybody who lists, ask once more who needs them, and remove or return each."""
    hidden: list[tuple[Entry, Path]] = []
    gone, freed = 0, 0
    needed: frozenset[str] | None = None
    try:
        hidden.extend((entry, _hide(store, entry)) for entry in spare)
        if not _is_anybody_submitting(home, runtime, now):
            needed = named_packs(store)
    finally:
        for entry, path in hidden:
            with contextlib.suppress(FileNotFoundError):
                if needed is None or entry.key.removeprefix(keys.PACKS) in needed:
                    with descriptors.above(store.root, entry.key) as folder:  # or over an equal one, sent meanwhile
                        os.replace(path, descriptors.name_of(entry.key), dst_dir_fd=folder)
                else:
                    path.unlink()
                    gone, freed = gone + 1, freed + entry.size
    return gone, freed


def _hide(store: LocalStore, entry: Entry) -> Path:
    aside = store.scratch() / f"{os.getpid():x}-{os.urandom(8).hex()}.spare"
    with (
        contextlib.suppress(FileNotFoundError, NotADirectoryError),  # another sweep was faster
        descriptors.above(store.root, entry.key) as folder,
    ):
        os.replace(descriptors.name_of(entry.key), aside, src_dir_fd=folder)
    return aside


def _is_anybody_submitting(home: Path, runtime: Path, now: float) -> bool:
    """Say whether a submission is under way: here by the lock it holds, on hosts that share the home by its file."""
    paths = Paths(runtime)
    if any(life.is_held(paths.submitting(folder.name)) for folder in _listed(paths.jobs)):
        return True
    others = (other for other in _listed(home / "run") if other != runtime)
    marks = (Paths(other).submitting(folder.name) for other in others for folder in _listed(other / "jobs"))
    return any(0 <= now - _modified(mark, 0.0) < DAY for mark in marks)


def _sweep_payloads(store: Store, now: float) -> tuple[int, int]:
    """Remove what jobs that ended long ago were sent: a verdict is final, so nobody will run them again."""
    gone, freed = 0, 0
    for job_id in store.folders(""):
        if job_id in keys.RESERVED:
            continue
        entries = {entry.key: entry for entry in store.entries(keys.job(job_id))}
        verdict = entries.get(keys.result(job_id))
        if verdict is None or now - verdict.modified <= PAYLOAD_SECONDS:
            continue
        for key in (keys.function(job_id), keys.arguments(job_id)):
            if key in entries:
                store.delete(key)
                gone, freed = gone + 1, freed + entries[key].size
    return gone, freed


def _sweep_data(store: LocalStore, now: float) -> tuple[int, int]:
    """Remove data that nobody has sent or looked for in a long time: the promises first, then what they promise."""
    gone, freed = 0, 0
    for prefix in (keys.DATA_MANIFESTS, keys.DATA_BLOBS):
        for entry in [entry for entry in store.entries(prefix) if now - entry.modified > DATA_SECONDS]:
            latest = store.entry(entry.key)  # a client may have made it young since we listed it
            if latest is not None and now - latest.modified > DATA_SECONDS:
                store.delete(entry.key)
                gone, freed = gone + 1, freed + entry.size
    return gone, freed


def _sweep_cache(cache: Path, now: float) -> tuple[int, int]:
    gone, freed = 0, 0
    for path, about in descriptors.walk(cache):
        folder, _, name = path.rpartition("/")
        is_page = folder in {"", "packs", "data"} and stat.S_ISREG(about.st_mode)
        if is_page and now - max(about.st_atime, about.st_mtime) > CACHE_SECONDS:
            with contextlib.suppress(OSError), descriptors.folder(cache, folder) as at:
                os.unlink(name, dir_fd=at)
                gone, freed = gone + 1, freed + about.st_size
    return gone, freed


def _sweep_environments(places: tuple[Path, ...], now: float) -> tuple[int, int]:
    gone, freed = 0, 0
    for place in places:
        if (place / ENVIRONMENTS).is_dir():
            from kinetic._images import environments  # only where there are any

            for folder in environments.stale(place / ENVIRONMENTS, now):
                size = sum(_size(Path(above) / file) for above, _, files in os.walk(folder) for file in files)
                shutil.rmtree(folder, ignore_errors=True)
                gone, freed = gone + 1, freed + size
    return gone, freed


def _is_due(mark: Path, now: float) -> bool:
    """Say whether the last sweep is a day ago, and if so, mark that one begins now."""
    if 0 <= now - _modified(mark, -DAY) < DAY:
        return False
    try:
        mark.touch(0o600)
        os.utime(mark, (now, now))
    except OSError:  # no runtime folder yet, so no job yet; or nothing can be written
        return False
    return True


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _modified(path: Path, otherwise: float) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return otherwise


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0

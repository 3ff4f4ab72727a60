"""Sweeping: what nobody needs any more on this machine goes, at most once an hour, by whoever lists or submits.

| what | goes when |
|---|---|
| the working folder of a job that failed | 24 h after its end |
| the working folder of a debug job | 2 h after its end |
| the folder of a job that the queue does not know | a day after it was touched last |
| half-written files of the store (``.tmp``) | a day after they were written |
| the log of a keeper that is gone | after a day |
| a damaged queue that was set aside | 30 days after it was |
| what is left of a job that was being removed when the remover was killed | at once |
| what is left in the store of a submission that was killed before its record was written | after a day |
| what is left of a batch whose submission was killed before its manifest was written | after a day |
| the lock of a batch's driver that is gone | after a day |
| what no store may hold of a batch | after a month, once the batch is gone |
| an isolated environment | 30 days after its last use, once no row needs it |
| data that jobs have read | 30 days after its last use |
| the runner's code of another version of kinetic | 30 days after it was made, once no row needs it |

Results, logs and outputs of jobs that nobody removed are never swept.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kinetic._backends.local import process_lock, queue_repair, recovery, task_file
from kinetic._backends.local.queue import Queue, Row
from kinetic._backends.local.runtime_paths import Paths
from kinetic._stores import open_store
from kinetic._stores.protocol import Store
from kinetic._wire import descriptors, inspection, keys
from kinetic.errors import KineticError

History = Callable[[Store, str], Mapping[str, Any] | None]
HOUR = 3600.0
DAY = 24 * HOUR
MONTH = 30 * DAY


def sweep(
    paths: Paths, queue: Queue, scratch: Path | None, history: History | None = None, *, now: float | None = None
) -> None:
    """Sweep if nobody did so within the last hour.

    Args:
        paths: The host-local state.
        queue: The rows, which say what is still needed.
        scratch: The store's folder for files being written, if it has one.
        history: Gives the page of a removed job, once it is verified; None removes nothing by what a page says.
        now: Unix time; the current time by default.
    """
    now = time.time() if now is None else now
    if not _is_due(paths.runtime / "swept", now):
        return
    store = open_store(f"file://{scratch.parent}") if scratch is not None else None
    if store is not None:
        _finish_removals(paths, queue, store, history or _nothing)
        _drop_half_submitted(paths, store, now)
        _drop_groups(paths, store, now)
    rows = {row.job_id: row for row in queue.look()}
    for folder in _listed(paths.jobs):
        row = rows.get(folder.name)
        if row is None and _age(folder, now) > DAY and not process_lock.is_held(paths.submitting(folder.name)):
            recovery.remove_job(paths, folder.name)
        elif row is not None and row.ended is not None and now - row.ended > _kept_seconds(folder):
            task_file.remove_task(paths, folder.name)  # its keeper died before it could
            recovery.drop_data(paths, folder.name)
            for work in folder.glob("work-*"):
                recovery.remove_folder(work)
            recovery.tidy(paths, folder.name)
    _sweep_keepers(paths, queue, now)
    if scratch is not None:
        _sweep_scratch(scratch, rows, now)
    _sweep_runners(paths, queue, now)
    if paths.data_cache.is_dir():
        from kinetic._runner.data import file_cache  # only where jobs have read data

        file_cache.sweep(paths.data_cache, now=now)


def _sweep_keepers(paths: Paths, queue: Queue, now: float) -> None:
    """Remove what is left of keepers and queues that are gone."""
    keepers = {keeper.keeper for keeper in queue.keepers()}
    for file in _listed(paths.keepers):
        if file.name.partition(".")[0] not in keepers and _age(file, now) > DAY:
            file.unlink(missing_ok=True)
    for file in paths.runtime.glob(f"{paths.queue.name}.{queue_repair.DAMAGED}-*"):
        if _age(file, now) > MONTH:
            file.unlink(missing_ok=True)


def _sweep_scratch(scratch: Path, rows: Mapping[str, Row], now: float) -> None:
    """Remove what was half written into a store; not behind a link that somebody put in its place."""
    for key, about in descriptors.walk(scratch.parent, f"{scratch.name}/"):
        name = descriptors.name_of(key)
        row = rows.get(name.partition(".")[0])
        if now - about.st_mtime > DAY and (row is None or row.ended is not None):
            with contextlib.suppress(FileNotFoundError), descriptors.above(scratch.parent, key) as folder:
                os.unlink(name, dir_fd=folder)


def _kept_seconds(folder: Path) -> float:
    """Return how long what an ended job leaves is kept; a session in the debugger ends with its job, so none is cut."""
    return inspection.EXPIRES_SECONDS if next(folder.glob("*.debug"), None) is not None else DAY


def _nothing(store: Store, job_id: str) -> None:
    """Know of no removed job."""


def _finish_removals(paths: Paths, queue: Queue, store: Store, history: History) -> None:
    """Complete what a remover that was killed had begun: its tombstone says what was to go."""
    ended = {row.job_id for row in queue.look("state = 'ended'")}
    names = ended | set(store.folders("")) - keys.RESERVED
    for name in names:
        page = history(store, name) if store.size(keys.tombstone(name)) is not None else None
        if page is None:
            continue
        if name in ended:
            queue.forget([name])
            recovery.remove_job(paths, name)
        with contextlib.suppress(KineticError):
            if page.get("artifacts_removed"):
                store.delete(keys.job(name))


def _drop_half_submitted(paths: Paths, store: Store, now: float) -> None:
    """Delete what a killed submission left: without a record nobody can find it, and so old, nobody works on it."""
    for name in set(store.folders("")) - keys.RESERVED:
        if store.size(keys.record(name)) is None and not process_lock.is_held(paths.submitting(name)):
            newest = max((entry.modified for entry in store.entries(keys.job(name))), default=0.0)
            if now - newest > DAY and store.size(keys.result(name)) is None:
                store.delete(keys.job(name))


def _drop_groups(paths: Paths, store: Store, now: float) -> None:
    """Delete what is left of batches that nobody can find, and what was kept here for batches that are gone."""
    for name in list(store.folders(keys.GROUPS)):
        if store.size(keys.group_manifest(name)) is None:
            newest = max((entry.modified for entry in store.entries(keys.group(name))), default=now)
            if now - newest > DAY:
                store.delete(keys.group(name))
    for file in _listed(paths.groups):
        if file.suffix == ".lock":
            useless = _age(file, now) > DAY and not process_lock.is_held(file)
        else:
            useless = _age(file, now) > MONTH and store.size(keys.group_manifest(file.stem)) is None
        if useless:
            file.unlink(missing_ok=True)


def _sweep_runners(paths: Paths, queue: Queue, now: float) -> None:
    with queue.change() as db:
        needed = db.execute(
            "SELECT recipe FROM soils WHERE soil IN (SELECT soil FROM jobs WHERE state != 'ended')"
            " OR soil IN (SELECT soil FROM keepers)"
        ).fetchall()
    from kinetic._images import isolated_environment  # 10 ms, subprocess among them; once an hour

    old = [folder for folder in _listed(paths.runners) if _age(folder, now) > MONTH]
    for folder in [*old, *isolated_environment.stale(paths.environments, now)]:
        if not any(folder.name in recipe for (recipe,) in needed):
            recovery.remove_folder(folder)


def _is_due(mark: Path, now: float) -> bool:
    """Say whether the last sweep is an hour ago, and if so, mark that one begins now."""
    with contextlib.suppress(OSError):
        if 0 <= now - mark.stat().st_mtime < HOUR:
            return False
    try:
        mark.touch(0o600)
        os.utime(mark, (now, now))
    except OSError:
        return False
    return True


def _listed(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from list(folder.iterdir())


def _age(path: Path, now: float) -> float:
    try:
        return now - path.lstat().st_mtime
    except OSError:
        return 0.0

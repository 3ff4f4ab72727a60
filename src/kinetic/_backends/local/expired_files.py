"""Expired files of this machine and of its store: removed once an hour, by the next client that submits or lists.

What is not named as we name it stays: store and runtime folder may be folders that the user had.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kinetic._backends.local import notifier, recovery, runtime_files
from kinetic._backends.local.queue import Queue
from kinetic._backends.local.runtime_files import HOUR, Paths
from kinetic._stores import open_store
from kinetic._stores.protocol import Store
from kinetic._wire import digests, documents, folders, inspection, keys
from kinetic.errors import KineticError

History = Callable[[Store, str], Mapping[str, Any] | None]
DAY = 24 * HOUR
MONTH = 30 * DAY
_SUPERVISOR_DIGITS = 12  # hexadecimal, of its name


def sweep(
    paths: Paths, queue: Queue, scratch: Path | None, history: History | None = None, *, now: float | None = None
) -> None:
    """Remove expired files if that was not done within the last hour for the same store.

    | what | when it is removed |
    |---|---|
    | the working folder of a job that failed, of a debug job | 24 h, 2 h after its end |
    | the folder of a job without a row | a day after its last change |
    | incomplete files of the store (``.tmp``); the log of a dead supervisor; the lock of a dead driver | after a day |
    | a damaged queue that was renamed; runner code of another version; unused data and environments | after 30 days |
    | what is left of a job whose removal was killed | at once |
    | what a killed submission of a job or a batch left in the store | after a day |
    | secrets of a batch | after 30 days, once the batch is gone |
    | a notification whose sender was killed, that no process came to send | after a day, after 30 days |

    Args:
        paths: The runtime folder.
        queue: The rows, which say what is still needed.
        scratch: The store's folder for files being written, if it has one.
        history: Returns the page of a removed job, once it is verified; None removes nothing because of a page.
        now: Unix time; the current time by default.
    """
    now = time.time() if now is None else now
    if not folders.is_due(paths.swept(scratch), now, HOUR):
        return
    steps: list[Callable[[], object]] = []
    if scratch is not None:
        store = open_store(f"file://{scratch.parent}")
        if history is not None:
            steps.append(partial(_finish_removals, paths, queue, store, history))
        steps += [partial(_drop_half_submitted, paths, store, now), partial(_drop_groups, paths, store, now)]
        steps.append(partial(_sweep_scratch, queue, scratch, now))
    steps += [partial(each, paths, queue, now) for each in (_sweep_jobs, _sweep_supervisors, _sweep_runners)]
    steps += [partial(_sweep_notifications, paths, queue, now), partial(_sweep_data, paths, now)]
    for each in steps:
        with contextlib.suppress(KineticError, OSError, ValueError):  # what stays ends no submission, and waits an hour
            each()


def _sweep_jobs(paths: Paths, queue: Queue, now: float) -> None:
    rows = {row.job_id: row for row in queue.rows()}
    for folder in folders.listed(paths.jobs):
        row = rows.get(folder.name)
        if (
            row is None
            and _is_of_a_job(folder.name)
            and folders.age(folder, now) > DAY
            and not runtime_files.is_locked(paths.submitting(folder.name))
        ):
            recovery.remove_job(paths, folder.name)
        elif row is not None and row.ended is not None and now - row.ended > _kept_seconds(folder):
            runtime_files.remove_task(paths, folder.name)  # its supervisor died before it could
            recovery.drop_data(paths, folder.name)
            for work in folder.glob("work-*"):
                recovery.remove_folder(work)
            recovery.tidy(paths, folder.name)


def _sweep_supervisors(paths: Paths, queue: Queue, now: float) -> None:
    known = {each.supervisor for each in queue.supervisors()}
    of_supervisors = ((file, file.name.partition(".")[0]) for file in folders.listed(paths.supervisors))
    dead = (
        file for file, name in of_supervisors if name not in known and digests.is_hexadecimal(name, _SUPERVISOR_DIGITS)
    )
    _remove_old(dead, DAY, now)
    _remove_old(paths.runtime.glob(f"{paths.queue.name}.{runtime_files.DAMAGED}-*"), MONTH, now)


def _sweep_notifications(paths: Paths, queue: Queue, now: float) -> None:
    live = {row.job_id for row in queue.rows()}
    for file in notifier.expired(paths.runtime, live, now):  # with the variables of who submitted
        file.unlink(missing_ok=True)


def _sweep_data(paths: Paths, now: float) -> None:
    if paths.data_cache.is_dir():
        from kinetic._runner.data import file_cache  # only where jobs have read data

        file_cache.sweep(paths.data_cache, now=now)


def _is_of_a_job(name: str) -> bool:
    """Return whether we make a folder of this name among those of jobs: also for a batch, and by a supervisor."""
    workspace = name.removeprefix("workspace-")
    return keys.is_made(name) or keys.is_group_id(name) or digests.is_hexadecimal(workspace, _SUPERVISOR_DIGITS)


def _kept_seconds(folder: Path) -> float:
    """Return how long the working folder of an ended job is kept."""
    return inspection.EXPIRES_SECONDS if next(folder.glob("*.debug"), None) is not None else DAY


def _remove_old(files: Iterator[Path], seconds: float, now: float) -> None:
    for file in files:
        if folders.age(file, now) > seconds:
            with contextlib.suppress(OSError):  # a folder of that name, or another user's
                file.unlink()


def _sweep_scratch(queue: Queue, scratch: Path, now: float) -> None:
    """Remove incomplete files of a store, without following a link that was put in their place."""
    rows = {row.job_id: row for row in queue.rows()}
    for key, about in folders.walk(scratch.parent, f"{scratch.name}/"):
        name = folders.name_of(key)
        row = rows.get(name.partition(".")[0])
        if now - about.st_mtime > DAY and (row is None or row.ended is not None):
            with contextlib.suppress(FileNotFoundError), folders.opened_parent(scratch.parent, key) as folder:
                os.unlink(name, dir_fd=folder)


def _finish_removals(paths: Paths, queue: Queue, store: Store, history: History) -> None:
    """Complete removals that were killed: the history record says what was to be removed."""
    ended = {row.job_id for row in queue.rows("state = 'ended'")}
    for name in ended | set(store.folders("")) - keys.RESERVED:
        page = history(store, name) if store.size(keys.history(name)) is not None else None
        if page is None:
            continue
        if name in ended:
            queue.forget([name])
            recovery.remove_job(paths, name)
        with contextlib.suppress(KineticError):
            if page.get("artifacts_removed"):
                store.delete(keys.job(name))


def _drop_half_submitted(paths: Paths, store: Store, now: float) -> None:
    """Delete what a killed submission left: it has no record, and is too old to be in progress."""
    for name in filter(keys.is_made, store.folders("")):
        if store.size(keys.record(name)) is None and not runtime_files.is_locked(paths.submitting(name)):
            newest = max((entry.modified for entry in store.entries(keys.job(name))), default=0.0)
            if now - newest > DAY and store.size(keys.result(name)) is None:
                store.delete(keys.job(name))


def _drop_groups(paths: Paths, store: Store, now: float) -> None:
    """Delete what is left of batches without a manifest, and the files here of batches that are gone."""
    for name in filter(keys.is_group_id, list(store.folders(keys.GROUPS))):
        if store.size(keys.group_manifest(name)) is None:
            newest = max((entry.modified for entry in store.entries(keys.group(name))), default=now)
            if now - newest > DAY:
                store.delete(keys.group(name))
    files = [file for file in folders.listed(paths.groups) if keys.is_group_id(file.name.partition(".")[0])]
    locks = [file for file in files if file.suffix == ".lock"]
    _remove_old((file for file in locks if not runtime_files.is_locked(file)), DAY, now)
    secrets = [file for file in files if file.suffix != ".lock"]
    old = [file for file in secrets if folders.age(file, now) > MONTH]
    _remove_old((file for file in old if _is_gone(store, file)), MONTH, now)


def _is_gone(store: Store, secrets: Path) -> bool:
    """Return whether the batch of a file with secrets is gone, which may have been in another store than this one."""
    manifest = keys.group_manifest(secrets.stem)
    addresses: list[str] = []
    with contextlib.suppress(KineticError, TypeError):  # a damaged file
        addresses += documents.read(secrets.read_bytes(), str(secrets), any_name=True).get("addresses", ())
    if store.size(manifest) is not None or not addresses or store.url in addresses:
        return store.size(manifest) is None
    return all(url.startswith("file://") and open_store(url).size(manifest) is None for url in addresses)


def _sweep_runners(paths: Paths, queue: Queue, now: float) -> None:
    """Remove code of other versions, and environments, unless a job or a supervisor needs them."""
    needed = queue.templates_in_use()
    runners = (each for each in folders.listed(paths.runners) if digests.is_hexadecimal(each.name.strip(".")[:24], 24))
    old = [folder for folder in runners if folders.age(folder, now) > MONTH]
    if paths.environments.exists():
        from kinetic._images import isolated_environment  # 10 ms, subprocess among them; once an hour

        old += isolated_environment.stale(paths.environments, now)
    for folder in old:
        if not any(folder.name in template for template in needed):
            recovery.remove_folder(folder)

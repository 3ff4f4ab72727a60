"""The task of a job on this machine: a file for its owner only beside the queue, gone with the job.

It holds what must never enter a store: the values of the job's environment. The job's key lies in a file of its own,
which the keeper reads only after it forked the worker.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from kinetic._backends.local.runtime_paths import Paths, suffix
from kinetic._wire import folders, seal
from kinetic._wire.task import Task


def write_task(paths: Paths, task: Task, key: bytes) -> None:
    """Write task and key into the job's folder, each whole or not at all, and force them and their names to the disk.

    The folder's own name is forced by whoever writes the row.
    """
    write_private(paths.key(task.job_id), key)
    write_private(paths.launch(task.job_id), task.to_bytes())
    folders.sync(paths.job(task.job_id))


def read_task(paths: Paths, job_id: str) -> Task | None:
    """Read the task of a job, or None when the job was removed.

    Raises:
        IntegrityError: It is damaged.
    """
    try:
        data = paths.launch(job_id).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Task.from_page(data, f"the launch page of {job_id}")


def remove_task(paths: Paths, job_id: str) -> None:
    """Remove page and key of a job that has its verdict: captured values are kept no longer than they are needed."""
    for path in (paths.launch(job_id), paths.key(job_id)):
        with contextlib.suppress(OSError):
            path.unlink()


def read_key(paths: Paths, job_id: str) -> bytes:
    """Read the job's key.

    Raises:
        IntegrityError: It is cut short: what it sealed could never be opened.
    """
    path = paths.key(job_id)
    key = path.read_bytes()
    seal.check_length(len(key), str(path))
    return key


def tasks_of(
    paths: Paths,
    task: Task,
    attempt: int,
    *,
    runner: str = "",
    more: Mapping[str, str] | None = None,
    coordinator: str = "",
) -> tuple[Task, ...]:
    """Return the tasks of the hosts of one attempt, the leader's first.

    The same names whoever asks, so that an observer finds a dead keeper's files.

    Args:
        paths: Where.
        task: As it was launched.
        attempt: Which attempt.
        runner: The folder with the runner's code; "" for whoever starts nothing.
        more: Variables of this attempt.
        coordinator: Where its hosts meet.
    """
    base = str(paths.job(task.job_id))
    return tuple(
        replace(
            task,
            environment={**task.environment, **(more or {}), "KINETIC_HOST_INDEX": str(host)},
            attempt=attempt,
            host=host,
            base=base,
            suffix=suffix(attempt, host),
            cache=str(paths.data_cache),
            runner=runner,
            coordinator=coordinator,
        )
        for host in range(task.hosts)
    )


def write_private(path: Path, data: bytes) -> None:
    """Write a file for its owner only, whole or not at all."""
    beside = f"{path}.{os.getpid():x}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            folders.write_all(descriptor, data)
            os.fsync(descriptor)  # the row that names it will outlive a power cut, so it must, too
        finally:
            os.close(descriptor)
        os.replace(beside, path)  # on the way of every submission
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)  # on the way of every submission
        raise

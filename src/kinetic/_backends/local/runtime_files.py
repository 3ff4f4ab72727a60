"""The runtime folder of this machine: the names of its files, and the task of each job.

{runtime}/queue.db queue.lock queue.note queue.db.damaged-{time}
{runtime}/supervisors/{supervisor}.lock .wake .log .job
{runtime}/jobs/{job_id}/launch.json key completion_pipe submitting log-{attempt}-{host} work-{attempt}-{host}/
{runtime}/jobs/{job_id}/body-{attempt}-{host} word-{attempt}-{host}   its value and last word, until they are sealed
{runtime}/jobs/{job_id}/data-{attempt}-{host}/   its own copies of what it reads
{runtime}/groups/{group}.json {group}.{epoch}.lock
{runtime}/runners/{digest}/                     this client's own code, unpacked
{runtime}/data/                                 data that jobs have read; see _runner/data/file_cache.py
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from kinetic._wire import documents, folders
from kinetic._wire.task import AttemptFiles, Task
from kinetic.errors import BackendUnavailableError

_FEW, _AT_ONCE = 8, 8  # forced writes that are not worth threads, and threads


class Paths:
    def __init__(self, runtime: Path) -> None:
        self.runtime = runtime
        self.queue = runtime / "queue.db"  # the database of pending and running jobs
        self.supervisors = runtime / "supervisors"  # locks, wake-up pipes and logs of supervisors
        self.jobs = runtime / "jobs"  # one folder for each job
        self.groups = runtime / "groups"  # of batches: locks of their drivers, and values that no store may hold
        self.runners = runtime / "runners"  # folders with the code that supervisors run
        self.environments = runtime / "environments"  # isolated environments, built by uv
        self.data_cache = runtime / "data"  # data that jobs have read, for jobs that read it again

    def group_secrets(self, group: str) -> Path:
        return self.groups / f"{group}.json"

    def job(self, job_id: str) -> Path:
        return self.jobs / job_id

    def launch(self, job_id: str) -> Path:
        return self.jobs / job_id / "launch.json"

    def key(self, job_id: str) -> Path:
        """The job's own key, read by the supervisor after it forked the worker."""
        return self.jobs / job_id / "key"

    def completion_pipe(self, job_id: str) -> Path:
        """The pipe whose writer is the supervisor: a byte means running, its end means that the job may have ended."""
        return self.jobs / job_id / "completion_pipe"

    def submitting(self, job_id: str) -> Path:
        """Locked while a client is submitting the job."""
        return self.jobs / job_id / "submitting"

    def files(self, job_id: str, attempt: int, host: int = 0) -> AttemptFiles:
        return AttemptFiles(str(self.job(job_id)), f"-{attempt}-{host}")

    def lock(self, supervisor: str) -> Path:
        return self.supervisors / f"{supervisor}.lock"

    def wake(self, supervisor: str) -> Path:
        return self.supervisors / f"{supervisor}.wake"

    def held_job(self, supervisor: str) -> Path:
        """Which job a supervisor has, should the queue have to be rebuilt."""
        return self.supervisors / f"{supervisor}.job"

    def supervisor_log(self, supervisor: str) -> Path:
        return self.supervisors / f"{supervisor}.log"

    def make(self) -> None:
        """Make the folders, for their owner only.

        Raises:
            BackendUnavailableError: They cannot be made.
        """
        try:
            for folder in (self.runtime, self.supervisors, self.jobs, self.runners):
                folders.make(folder)
        except OSError as error:
            raise BackendUnavailableError(
                "the folders for running jobs cannot be created",
                why=f"{error.filename or self.runtime}: {error.strerror or error}",
                next="point KINETIC_RUNTIME_DIR at a folder on a local disk that you may write",
            ) from error


def write_tasks(paths: Paths, tasks: Sequence[tuple[Task, bytes]]) -> None:
    """Write tasks and keys into the folders of their jobs, and force them, their names and the folders' to the disk.

    They hold what must never enter a store, the values of the job's environment, so they are for their owner only and
    are removed with the verdict. Of many, all are written before the disk is waited for.
    """
    files = [(paths.key(task.job_id), key) for task, key in tasks]
    _write_private([*files, *((paths.launch(task.job_id), task.to_bytes()) for task, _ in tasks)])
    _force([paths.job(task.job_id) for task, _ in tasks])
    folders.sync(paths.jobs)


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
    """Remove task and key of a job that has its verdict."""
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
    documents.check_key_length(len(key), str(path))
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
    """Return the tasks of the hosts of one attempt, the leader's first; an observer gets the same file names.

    Args:
        paths: The runtime folder.
        task: As it was launched.
        attempt: Which attempt.
        runner: The folder with the runner's code, for a supervisor.
        more: Variables of this attempt.
        coordinator: The address at which its hosts meet.
    """
    return tuple(
        replace(
            task,
            environment={**task.environment, **(more or {}), "KINETIC_HOST_INDEX": str(host)},
            attempt=attempt,
            host=host,
            base=str(paths.job(task.job_id)),
            suffix=f"-{attempt}-{host}",
            cache=str(paths.data_cache),
            runner=runner,
            coordinator=coordinator,
        )
        for host in range(task.hosts)
    )


def write_private(path: Path, data: bytes) -> None:
    """Write a file for its owner only, whole or not at all, and force it to the disk."""
    _write_private([(path, data)])


def _write_private(files: Sequence[tuple[Path, bytes]]) -> None:
    beside = [f"{path}.{os.getpid():x}" for path, _ in files]
    try:
        for name, (_, data) in zip(beside, files, strict=True):
            with open(name, "wb", opener=folders.opener) as file:
                file.write(data)
        _force(beside)
        for name, (path, _) in zip(beside, files, strict=True):
            os.replace(name, path)  # on the way of every submission
    except BaseException:
        for name in beside:
            with contextlib.suppress(OSError):
                os.unlink(name)
        raise


def _force(paths: Sequence[str | Path]) -> None:
    """Force files or folders to the disk; many at the same time, which it takes together."""
    if len(paths) < _FEW:
        for path in paths:
            folders.sync(path)
        return
    from kinetic._stores import parallel  # only to launch many

    for _ in parallel.in_parallel(None, [partial(folders.sync, path) for path in paths], limit=_AT_ONCE):
        pass

"""Where the host-local state lies: the queue, the locks, the pulses, the logs being written.

{runtime}/queue.db queue.lock queue.note queue.db.damaged-{time}
{runtime}/supervisors/{supervisor}.lock .wake .log .job
{runtime}/jobs/{job_id}/launch.json key pulse submitting log-{attempt}-{host} work-{attempt}-{host}/
{runtime}/jobs/{job_id}/body-{attempt}-{host} word-{attempt}-{host}   its value and last word, until they are sealed
{runtime}/jobs/{job_id}/data-{attempt}-{host}/   its own copies of what it reads
{runtime}/groups/{group}.json {group}.{epoch}.lock
{runtime}/runners/{digest}/                     this client's own code, unpacked
{runtime}/data/                                 data that jobs have read; see _runner/data/cache.py
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kinetic._wire import documents, folders
from kinetic._wire.task import AttemptFiles, Task
from kinetic.errors import BackendUnavailableError


def suffix(attempt: int, host: int) -> str:
    """Return what stands behind the names of an attempt's files: those of all attempts and hosts share a folder."""
    return f"-{attempt}-{host}"


@dataclass(frozen=True)
class Paths:
    """Every file name of the local backend, in one place."""

    runtime: Path

    @property
    def queue(self) -> Path:
        """The database of what waits and runs."""
        return self.runtime / "queue.db"

    @property
    def runners(self) -> Path:
        """Folders with the code that supervisors run."""
        return self.runtime / "runners"

    @property
    def environments(self) -> Path:
        """Isolated environments, built by uv."""
        return self.runtime / "environments"

    @property
    def data_cache(self) -> Path:
        """Data that jobs have read, for those that read it again."""
        return self.runtime / "data"

    @property
    def supervisors(self) -> Path:
        """Locks, wake-up pipes and logs of supervisors."""
        return self.runtime / "supervisors"

    @property
    def groups(self) -> Path:
        """What belongs to batches: locks of their drivers, and values that no store may hold."""
        return self.runtime / "groups"

    def kept(self, group: str) -> Path:
        """Values of environment variables that the children of a batch need."""
        return self.groups / f"{group}.json"

    @property
    def jobs(self) -> Path:
        """One folder for each job."""
        return self.runtime / "jobs"

    def job(self, job_id: str) -> Path:
        """The folder of one job."""
        return self.jobs / job_id

    def launch(self, job_id: str) -> Path:
        """What the supervisor is told: environment, digest of the order."""
        return self.jobs / job_id / "launch.json"

    def key(self, job_id: str) -> Path:
        """The job's own key, read by the supervisor after it forked the worker."""
        return self.jobs / job_id / "key"

    def completion_pipe(self, job_id: str) -> Path:
        """The pipe whose writer is the supervisor: a byte means running, its end means look now."""
        return self.jobs / job_id / "completion_pipe"

    def submitting(self, job_id: str) -> Path:
        """Locked while a client is still submitting the job."""
        return self.jobs / job_id / "submitting"

    def files(self, job_id: str, attempt: int, host: int = 0) -> AttemptFiles:
        """The files of one host of an attempt."""
        return AttemptFiles(str(self.job(job_id)), suffix(attempt, host))

    def lock(self, supervisor: str) -> Path:
        """Held by a supervisor for as long as it lives."""
        return self.supervisors / f"{supervisor}.lock"

    def wake(self, supervisor: str) -> Path:
        """A byte written here wakes an idle supervisor."""
        return self.supervisors / f"{supervisor}.wake"

    def held(self, supervisor: str) -> Path:
        """Which job a supervisor has in hand; see ``queue_repair``."""
        return self.supervisors / f"{supervisor}.job"

    def supervisor_log(self, supervisor: str) -> Path:
        """What a supervisor says about itself; empty unless something went wrong."""
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
                "the folders for running jobs cannot be made",
                why=f"{error.filename or self.runtime}: {error.strerror or error}",
                next="point KINETIC_RUNTIME_DIR at a folder on a local disk that you may write",
            ) from error


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
    """Return the tasks of the hosts of one attempt, the leader's first.

    The same names whoever asks, so that an observer finds a dead supervisor's files.

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

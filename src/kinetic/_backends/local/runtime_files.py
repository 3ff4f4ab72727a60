"""The runtime folder of this machine: the names of its files, and the task of each job.

{runtime}/queue.db queue.lock queue.note queue.db.damaged-{time}
{runtime}/supervisors/{supervisor}.lock .wake .log .job
{runtime}/jobs/{job_id}/launch.json key followed-keys completion_pipe submitting
{runtime}/jobs/{job_id}/log-{attempt}-{host} work-{attempt}-{host}/
{runtime}/jobs/{job_id}/body-{attempt}-{host} word-{attempt}-{host}   its value and last word, until they are sealed
{runtime}/jobs/{job_id}/data-{attempt}-{host}/   its own copies of what it reads
{runtime}/groups/{group}.json {group}.{epoch}.lock
{runtime}/runners/{digest}/                     this client's own code, unpacked
{runtime}/data/                                 data that jobs have read; see _runner/data/file_cache.py
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._wire import folders
from kinetic.errors import BackendUnavailableError

if TYPE_CHECKING:
    from kinetic._wire.task import AttemptFiles, Task

SWEPT, HOUR = "swept", 3600.0  # its time is that of the last sweep, which is due once an hour
DAMAGED = "damaged"  # in the name of a queue that was renamed
REPAIR_NOTE = "queue.note"  # says that the queue was rebuilt, until a client has shown it
_FEW, _AT_ONCE = 8, 8  # forced writes that are not worth threads, and threads


@functools.lru_cache(64)  # a supervisor asks some thirty times for the ten files of its job
def _file(folder: str, *names: str) -> Path:
    return Path(folder, *names)


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
        self._jobs, self._supervisors = str(self.jobs), str(self.supervisors)

    def group_secrets(self, group: str) -> Path:
        return self.groups / f"{group}.json"

    def job(self, job_id: str) -> Path:
        return _file(self._jobs, job_id)

    def launch(self, job_id: str) -> Path:
        return _file(self._jobs, job_id, "launch.json")

    def key(self, job_id: str) -> Path:
        """The job's own key, read by the supervisor after it forked the worker."""
        return _file(self._jobs, job_id, "key")

    def followed_keys(self, job_id: str) -> Path:
        """The keys that verify what the job follows, one behind the other; only of a job that follows others."""
        return _file(self._jobs, job_id, "followed-keys")

    def completion_pipe(self, job_id: str) -> Path:
        """The pipe whose writer is the supervisor: a byte means running, its end means that the job may have ended."""
        return _file(self._jobs, job_id, "completion_pipe")

    def submitting(self, job_id: str) -> Path:
        """Locked while a client is submitting the job."""
        return _file(self._jobs, job_id, "submitting")

    def files(self, job_id: str, attempt: int, host: int = 0) -> AttemptFiles:
        from kinetic._wire.task import AttemptFiles  # 3 ms; here and below: a look at the queue reads no task

        return AttemptFiles(str(self.job(job_id)), f"-{attempt}-{host}")

    def lock(self, supervisor: str) -> Path:
        return _file(self._supervisors, f"{supervisor}.lock")

    def wake(self, supervisor: str) -> Path:
        return _file(self._supervisors, f"{supervisor}.wake")

    def held_job(self, supervisor: str) -> Path:
        """Which job a supervisor has, should the queue have to be rebuilt."""
        return _file(self._supervisors, f"{supervisor}.job")

    def supervisor_log(self, supervisor: str) -> Path:
        return _file(self._supervisors, f"{supervisor}.log")

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


def write_tasks(paths: Paths, tasks: Sequence[tuple[Task, bytes]], followed: Mapping[str, bytes] | None = None) -> None:
    """Write tasks and keys into the folders of their jobs, and force them, their names and the folders' to the disk.

    They hold what must never enter a store, the values of the job's environment, so they are for their owner only and
    are removed with the verdict. Of many, all are written before the disk is waited for. ``followed``: by job, the keys
    that verify what it follows.
    """
    files = [(paths.key(task.job_id), key) for task, key in tasks]
    files += [(paths.followed_keys(job_id), theirs) for job_id, theirs in (followed or {}).items()]
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
    from kinetic._wire.task import Task

    return Task.from_page(data, f"the launch page of {job_id}")


def remove_task(paths: Paths, job_id: str) -> None:
    """Remove task and key of a job that has its verdict."""
    for path in (paths.launch(job_id), paths.key(job_id), paths.followed_keys(job_id)):
        with contextlib.suppress(OSError):
            path.unlink()


def note_held_job(paths: Paths, supervisor: str, job_id: str, attempt: int, devices: str) -> None:
    """Note which job a supervisor has, until the next one; an ended one has no launch page, so no row comes of it.

    Not forced to the disk: after a power cut no supervisor lives.
    """
    import json

    page = {"job": job_id, "attempt": attempt, "devices": devices}
    with contextlib.suppress(OSError), open(paths.held_job(supervisor), "wb", opener=folders.opener) as file:
        file.write(json.dumps(page).encode())  # a full disk: only a rebuilt queue would miss it


def read_key(paths: Paths, job_id: str) -> bytes:
    """Read the job's key.

    Raises:
        IntegrityError: It is cut short: what it sealed could never be opened.
    """
    from kinetic._wire import documents  # as above

    path = paths.key(job_id)
    key = path.read_bytes()
    documents.check_key_length(len(key), str(path))
    return key


def read_followed_keys(paths: Paths, job_id: str) -> bytes:
    """Read the keys that verify what a job follows."""
    return paths.followed_keys(job_id).read_bytes()


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
    from dataclasses import replace  # as above

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

    for _ in parallel.in_parallel(None, [functools.partial(folders.sync, path) for path in paths], limit=_AT_ONCE):
        pass


_BUSY = {errno.EACCES, errno.EAGAIN}
_held: dict[str, int] = {}  # path -> pid: what this process must not open a second time
_gate = threading.RLock()  # between two threads, one could open and close what the other has just locked


def _new_gate() -> None:
    global _gate  # noqa: PLW0603 - the thread that held it does not exist in a forked child
    _gate = threading.RLock()


os.register_at_fork(after_in_child=_new_gate)


class ProcessLock:
    """A lock that this process holds until it is released or the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        _held[str(path)] = os.getpid()

    def release(self, *, remove: bool = False) -> None:
        """Free the lock; with ``remove``, delete the file first, so that what is left behind cannot be locked."""
        with _gate:
            if self._descriptor is not None:
                if remove:
                    with contextlib.suppress(OSError):  # gone already; what stays is removed by garbage collection
                        self.path.unlink()
                _held.pop(str(self.path), None)
                os.close(self._descriptor)
                self._descriptor = None


def take_lock(path: Path) -> ProcessLock | None:
    """Take the lock of a file, created if need be; None when a living process, this one included, holds it."""
    return _take(path, os.O_CREAT)


def take_abandoned_lock(path: Path) -> ProcessLock | None:
    """Take the lock of a file that must exist; None when its holder lives or the file is gone."""
    return _take(path, 0)


def is_locked(path: Path) -> bool:
    with _gate:
        lock = take_abandoned_lock(path)
        if lock is not None:
            lock.release()
            return False
        return path.exists()


def _take(path: Path, create: int) -> ProcessLock | None:
    while True:
        with _gate:
            if _held.get(str(path)) == os.getpid():
                return None
            try:
                descriptor = os.open(path, os.O_RDWR | create | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                if create:
                    raise
                return None
            if not _lock(descriptor):
                return None
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):  # hot: once for each submission
                    return ProcessLock(path, descriptor)
            os.close(descriptor)  # its former holder removed it between our two steps: this is another file's lock
            if not create:
                return None


def _lock(descriptor: int) -> bool:
    """Lock a file, or close it again."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _BUSY:
            return False
        raise
    return True


_POLL_SECONDS = 0.005
_POLL_LIMIT = 0.1


class CompletionWriter:
    """The supervisor's end: open while the job runs."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            # Both ends, because opening for writing alone fails while no process reads.
            self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def running(self) -> None:
        """Tell the readers that the worker runs."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, b"r")

    def stop(self) -> None:
        """Tell the readers to observe the job."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class CompletionReader:
    """The end of a process that waits.

    Attributes:
        descriptor: The pipe; None where named pipes do not work.
        has_ended: Whether the pipe has ended; a job that is tried again has a new one.
    """

    def __init__(self, path: Path, *, portable: bool = False) -> None:
        self.descriptor: int | None = None
        self.has_ended = False
        self._running = False
        self._pause = _POLL_SECONDS
        if not portable:
            with contextlib.suppress(OSError):
                self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def wait(self, seconds: float) -> None:
        """Return when something may have changed, or after some seconds."""
        if self.descriptor is None or self.has_ended:
            time.sleep(max(0.0, min(seconds, self._pause)))
            self._pause = min(self._pause * 1.2, _POLL_LIMIT)
            return
        import select  # only to wait, here and below

        poll = select.poll()
        poll.register(self.descriptor, 0 if self._running else select.POLLIN)
        for _, events in poll.poll(max(0.0, seconds) * 1000):
            self._running = self._running or bool(events & select.POLLIN)
            self.has_ended = bool(events & (select.POLLHUP | select.POLLERR))
        if self.has_ended and not self._running:  # some systems report this of a pipe that was never written to
            time.sleep(max(0.0, min(seconds, _POLL_SECONDS)))

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
            self.descriptor = None

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        """Close the pipe with the thread that waited; an interpreter at its end may have no `os` left."""
        try:
            if self.descriptor is not None:
                _close(self.descriptor)
        except (OSError, AttributeError):  # every descriptor was closed, or this one was never opened
            pass


def wait_for_any_end(readers: Sequence[CompletionReader], seconds: float) -> None:
    """Return when one of some jobs has ended, or after some seconds."""
    descriptors = [reader.descriptor for reader in readers if reader.descriptor is not None]
    if len(descriptors) < len(readers) or not readers:
        time.sleep(max(0.0, min(seconds, _POLL_LIMIT)))
        return
    import select

    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, 0)
    ended = {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}
    for reader in readers:
        reader.has_ended = reader.has_ended or reader.descriptor in ended


def make_pipe(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.mkfifo(path, 0o600)


def wake(path: Path) -> bool:
    """Wake the process that reads this pipe; False when there is none."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, b"w")
    except BlockingIOError:
        return True  # full of wake-ups: it will wake
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True

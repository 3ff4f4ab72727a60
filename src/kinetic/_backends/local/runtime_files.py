"""The runtime folder of this machine: the names of its files, and the task of each job.

{runtime}/queue.db queue.lock queue.note queue.reserve queue.db.damaged-{time}
{runtime}/supervisors/{supervisor}.lock .wake .log .job
{runtime}/jobs/{job_id}/launch.json key followed-keys completion_pipe submitting   the first two may be shared
{runtime}/jobs/{job_id}/log-{attempt}-{host} work-{attempt}-{host}/
{runtime}/jobs/{job_id}/body-{attempt}-{host} word-{attempt}-{host}   its value and last word, until they are sealed
{runtime}/jobs/{job_id}/data-{attempt}-{host}/   its own copies of what it reads
{runtime}/jobs/workspace-{supervisor}/           the working folder of one job, for the next one
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
import types
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic._wire import folders, python_runtime
from kinetic.errors import BackendUnavailableError, KineticError, LaunchError

if TYPE_CHECKING:
    from kinetic._wire.task import AttemptFiles, Task

HOUR = 3600.0
DAMAGED = "damaged"  # in the name of a queue that was renamed
REPAIR_NOTE = "queue.note"  # says that the queue was rebuilt, until a client has shown it
_BY_ITEM = ("environment", "queued")  # fields of tasks, of which those of a batch have most in common
_LENGTH_DIGITS = 8
_HELD_BYTES = 512  # of the page of a held job, filled up with spaces: the next page covers the last one
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}
_FEW, _AT_ONCE = 8, 8  # forced writes that are not worth threads, and threads


@contextlib.contextmanager
def launch_errors() -> Iterator[None]:
    """Translate what the system raises during a submission."""
    try:
        yield
    except OSError as error:
        if isinstance(error, KineticError):
            raise
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise LaunchError(
            "the disk that holds the jobs of this machine is full" if full else "the job could not be queued",
            why=str(error),
            next="free some space there, or point KINETIC_RUNTIME_DIR at a folder on another local disk",
        ) from error


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
        # A supervisor asks some thirty times for the ten files of its job. Made of text, a path takes 40 us.
        self._of_job = functools.lru_cache(64)(self.jobs.joinpath)
        self._of_supervisor = functools.lru_cache(16)(self.supervisors.joinpath)

    def swept(self, scratch: Path | None) -> Path:
        """The file whose time is that of the last sweep with a store, by its folder for files being written."""
        return self.runtime / f"swept-{zlib.crc32(os.fsencode(scratch or '')):08x}"

    def group_secrets(self, group: str) -> Path:
        return self.groups / f"{group}.json"

    def job(self, job_id: str) -> Path:
        return self._of_job(job_id)

    def launch(self, job_id: str) -> Path:
        return self._of_job(job_id, "launch.json")

    def key(self, job_id: str) -> Path:
        """The job's own key, read by the supervisor after it forked the worker."""
        return self._of_job(job_id, "key")

    def followed_keys(self, job_id: str) -> Path:
        """The keys that verify what the job follows, one behind the other; only of a job that follows others."""
        return self._of_job(job_id, "followed-keys")

    def clearing(self, job_id: str) -> Path:
        """Which supervisor removes the copies of data of a job that has ended."""
        return self._of_job(job_id, "clearing")

    def completion_pipe(self, job_id: str) -> Path:
        """The pipe whose writer is the supervisor: a byte means running, its end means that the job may have ended."""
        return self._of_job(job_id, "completion_pipe")

    def submitting(self, job_id: str) -> Path:
        """Locked while a client is submitting the job."""
        return self._of_job(job_id, "submitting")

    def files(self, job_id: str, attempt: int, host: int = 0) -> AttemptFiles:
        from kinetic._wire.task import AttemptFiles  # 3 ms; here and below: a look at the queue reads no task

        return AttemptFiles(str(self.job(job_id)), f"-{attempt}-{host}")

    def workspace(self, supervisor: str) -> Path:
        """Closed to others, for a working folder that a job left as it was, until the next one takes it."""
        return self._of_job(f"workspace-{supervisor}")

    def lock(self, supervisor: str) -> Path:
        return self._of_supervisor(f"{supervisor}.lock")

    def wake(self, supervisor: str) -> Path:
        return self._of_supervisor(f"{supervisor}.wake")

    def held_job(self, supervisor: str) -> Path:
        """Which job a supervisor has, should the queue have to be rebuilt."""
        return self._of_supervisor(f"{supervisor}.job")

    def supervisor_log(self, supervisor: str) -> Path:
        return self._of_supervisor(f"{supervisor}.log")

    def make(self) -> None:
        """Make the folders, for their owner only; raises BackendUnavailableError if they cannot be made."""
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
    are removed with the verdict. Of many, all are written before the disk is waited for; they share two files, which
    have a name in the folder of each job and go with the last of these. ``followed``: by job, the keys that verify what
    it follows.
    """
    shared = len(tasks) > 1 and _write_shared(paths, tasks)
    files = [(paths.followed_keys(job_id), theirs) for job_id, theirs in (followed or {}).items()]
    if not shared:
        files += [(paths.key(task.job_id), key) for task, key in tasks]
        files += [(paths.launch(task.job_id), task.to_bytes()) for task, _ in tasks]
    if files:
        _write_private(files)
    _force([paths.job(task.job_id) for task, _ in tasks])
    folders.sync(paths.jobs)


def _write_shared(paths: Paths, tasks: Sequence[tuple[Task, bytes]]) -> bool:
    """Write one page and one file of keys for several jobs; return False, and leave nothing, without hard links.

    The page is a line with what the tasks have in common, and one for each job, behind its name. The keys come behind a
    line with the names of their jobs, before which is its length.
    """
    from kinetic._wire import documents  # as above

    names = " ".join(task.job_id for task, _ in tasks).encode()
    keys = b"%0*d%b%b" % (_LENGTH_DIGITS, len(names), names, b"".join(key for _, key in tasks))
    pages = [task.to_json() for task, _ in tasks]
    common, *others = _common(pages)
    lines = [documents.write_ascii({"schema": documents.SCHEMA, **common})]
    for page, own in zip(pages, others, strict=True):
        lines.append(page["job_id"].encode() + b" " + documents.write_ascii(own))
    written = [(paths.key, keys), (paths.launch, b"\n".join([*lines, b""]))]
    beside = [f"{name(tasks[0][0].job_id)}.{os.getpid():x}" for name, _ in written]
    try:
        for path, (_, data) in zip(beside, written, strict=True):
            with open(path, "wb", opener=folders.opener) as file:
                file.write(data)
            folders.sync(path)
        for task, _ in tasks:
            for path, (name, _) in zip(beside, written, strict=True):
                target = name(task.job_id)
                try:
                    os.link(path, target)
                except FileExistsError:  # launched before, by a driver that died: its row is never without the page
                    os.link(path, f"{path}-")
                    os.replace(f"{path}-", target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    finally:
        for path in (*beside, *(f"{path}-" for path in beside)):
            with contextlib.suppress(OSError):
                os.unlink(path)
    return True


def _common(pages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what some pages have in common, and then what each of them has besides; of some fields, item by item."""
    first = pages[0]
    common = {name: value for name, value in first.items() if all(page[name] == value for page in pages)}
    for name in _BY_ITEM:
        if name not in common and all(isinstance(page[name], dict) for page in pages):
            items = first[name].items()
            common[name] = {
                key: each for key, each in items if all(page[name].get(key, page) == each for page in pages)
            }
    own = [{name: value for name, value in page.items() if name not in common} for page in pages]
    for name in _BY_ITEM:
        for page, more in zip(pages, own, strict=True):
            if page[name] != common.get(name, page[name]):
                more[name] = {key: each for key, each in page[name].items() if key not in common[name]}
    return [common, *own]


def read_task(paths: Paths, job_id: str) -> Task | None:
    """Read the task of a job, or None when the job was removed; raises IntegrityError if it is damaged."""
    try:
        data = paths.launch(job_id).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    from kinetic._wire import documents, fields
    from kinetic._wire.task import READERS, Task

    what = f"the launch page of {job_id}"
    end = data.find(b"\n")
    if end < 0:
        return Task.from_page(data, what)
    begin = f"\n{job_id} ".encode()
    at = data.find(begin, end)
    if at < 0:
        raise fields.damaged(what, "it is about other jobs")
    shared = _read_common(data[:end])
    line = data[at + len(begin) : data.find(b"\n", at + 1)]
    own = fields.checked(READERS, documents.parse(line, what, any_name=True), what)
    own |= {name: {**shared[name], **own[name]} for name in _BY_ITEM if name in own and shared.get(name)}
    try:
        return Task(**{**shared, **own})
    except TypeError as error:
        raise fields.damaged(what, error) from None


@functools.lru_cache(2)  # a supervisor carries out one job of a batch after the other
def _read_common(line: bytes) -> dict[str, Any]:
    from kinetic._wire import documents, fields
    from kinetic._wire.task import READERS

    what = "a launch page of several jobs"
    return fields.checked(READERS, documents.read(line, what, any_name=True), what)


def remove_task(paths: Paths, job_id: str) -> None:
    """Remove task and key of a job that has its verdict."""
    for path in (paths.launch(job_id), paths.key(job_id), paths.followed_keys(job_id)):
        with contextlib.suppress(OSError):
            path.unlink()


def note_held_job(paths: Paths, supervisor: str, job_id: str, attempt: int, devices: str) -> None:
    """Note which job a supervisor has, until the next one; an ended one has no launch page, so no row comes of it.

    Not forced to the disk: after a power cut no supervisor lives. Not truncated before: ext4 would begin to write what
    replaces it, and the supervisor wait for that.
    """
    import json

    page = json.dumps({"job": job_id, "attempt": attempt, "devices": devices}).encode().ljust(_HELD_BYTES)
    flags, full_disk = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, contextlib.suppress(OSError)
    with full_disk, folders.closing(os.open(paths.held_job(supervisor), flags, folders.PRIVATE_FILE)) as descriptor:
        os.pwrite(descriptor, page, 0)  # only a rebuilt queue would miss it
        if os.fstat(descriptor).st_size > len(page):
            os.ftruncate(descriptor, len(page))


def read_key(paths: Paths, job_id: str) -> bytes:
    """Read the job's key; raises IntegrityError if it is cut short: what it sealed could never be opened."""
    from kinetic._wire import documents  # as above

    path = paths.key(job_id)
    with open(path, "rb", buffering=0) as file:
        start = _key_start(file.fileno(), job_id)
        key = os.pread(file.fileno(), documents.KEY_BYTES + (not start), start)
    documents.check_key_length(len(key), str(path))
    return key


@contextlib.contextmanager
def temporary_key(paths: Paths, job_id: str) -> Iterator[bytes]:
    """Lend the job's key for a moment; see the function of this name in ``documents``. Raises as ``read_key``."""
    from kinetic._wire import documents  # as above

    path = paths.key(job_id)
    with open(path, "rb", buffering=0) as file:
        start = _key_start(file.fileno(), job_id)
    with documents.temporary_key(path, start) as key:
        yield key


def _key_start(descriptor: int, job_id: str) -> int:
    """Return where the key of a job begins in its file, of which other keys are not read; see ``_write_shared``."""
    from kinetic._wire import documents  # as above

    size = os.fstat(descriptor).st_size
    if size <= documents.KEY_BYTES + 1:
        return 0
    length = os.pread(descriptor, _LENGTH_DIGITS, 0)
    names = os.pread(descriptor, int(length), _LENGTH_DIGITS).split() if length.isdigit() else []
    number = names.index(job_id.encode()) if job_id.encode() in names else size  # then there is none
    return _LENGTH_DIGITS + int(length) + number * documents.KEY_BYTES if names else size


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
    gpus: Sequence[str] = (),
) -> tuple[Task, ...]:
    """Return the tasks of the hosts of one attempt, the leader's first; an observer gets the same file names.

    The hosts share ``gpus``, each has as many.
    """
    from dataclasses import replace  # as above

    def own(host: int) -> dict[str, str]:
        count = len(gpus) // task.hosts
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[host * count : (host + 1) * count])} if gpus else {}
        return {**task.environment, **(more or {}), **visible, "KINETIC_HOST_INDEX": str(host)}

    return tuple(
        replace(
            task,
            environment=own(host),
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
# Between two threads, one could open and close what the other has just locked.
_gate = python_runtime.free_in_child(threading.RLock())


class ProcessLock:
    """A lock that this process holds until it is released or the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._paths = [path]
        self._descriptor: int | None = descriptor
        _held[str(path)] = os.getpid()

    def add(self, path: Path) -> bool:
        """Hold a file that does not exist yet as well, by a further name of this one; False if that cannot be."""
        with _gate:
            try:
                os.link(self.path, path)
            except OSError:
                return False
            self._paths.append(path)
            _held[str(path)] = os.getpid()
            return True

    def release(self, *, remove: bool = False) -> None:
        """Free the lock; with ``remove``, delete the file first, so that what is left behind cannot be locked."""
        with _gate:
            if self._descriptor is not None:
                for path in self._paths:
                    if remove:
                        with contextlib.suppress(OSError):  # gone already; what stays is removed by garbage collection
                            path.unlink()
                    _held.pop(str(path), None)
                os.close(self._descriptor)
                self._descriptor = None


def take_lock(path: Path) -> ProcessLock | None:
    """Take the lock of a file, created if need be; None when a living process, this one included, holds it."""
    return _take(path, os.O_CREAT)


def take_abandoned_lock(path: Path) -> ProcessLock | None:
    """Take the lock of a file that must exist; None when its holder lives or the file is gone."""
    return _take(path, 0)


def keep_from_cleaners(folder: Path) -> None:
    """Let systemd-tmpfiles skip a folder as long as this process lives: below /var/tmp it removes what is 30 days old.

    It skips a folder of which another process has a BSD lock (tmpfiles.d(5), read 2026-11-27).
    """
    with contextlib.suppress(OSError):  # a file system without such locks
        fcntl.flock(os.open(folder, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH | fcntl.LOCK_NB)


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
            except OSError as error:
                if create or error.errno not in {errno.ENOENT, errno.EROFS}:  # read-only: its holder may live
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
    """The end of a process that waits."""

    def __init__(self, path: Path, *, portable: bool = False) -> None:
        self.descriptor: int | None = None  # the pipe; None where named pipes do not work
        self.has_ended = False  # whether the pipe has ended; a job that is tried again has a new one
        self._running = False
        self._pause = _POLL_SECONDS
        import select  # only to wait, here and below

        # eventlet removes it, and gevent's reports no end of a pipe unless asked for data; both let others run
        # while one sleeps.
        if not portable and isinstance(getattr(select, "poll", None), types.BuiltinFunctionType):
            with contextlib.suppress(OSError):
                self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def wait(self, seconds: float) -> bool:
        """Wait at most some seconds, and return whether something may have changed; without a pipe, it may always."""
        if self.descriptor is None or self.has_ended:
            time.sleep(max(0.0, min(seconds, self._pause)))
            self._pause = min(self._pause * 1.2, _POLL_LIMIT)
            return True
        import select

        poll = select.poll()
        poll.register(self.descriptor, 0 if self._running else select.POLLIN)
        found = poll.poll(max(0.0, seconds) * 1000)
        for _, events in found:
            self._running = self._running or bool(events & select.POLLIN)
            self.has_ended = bool(events & (select.POLLHUP | select.POLLERR))
        if self.has_ended and not self._running:  # some systems report this of a pipe that was never written to
            time.sleep(max(0.0, min(seconds, _POLL_SECONDS)))
        return bool(found)

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

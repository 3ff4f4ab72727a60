"""How processes of this machine learn that another one lives or has ended: locks and pipes, never process numbers.

A lock is free the moment its process is gone, whatever children remain. These are POSIX record locks, not flock: a
forked worker inherits flock's, and would keep a dead supervisor alive. Their price is a rule: a process opens a lock
file that it holds only once, because closing any other descriptor of it frees the lock. So every opening and closing of
lock files in this process is serialized here.

A completion pipe is a named pipe of which only the supervisor of a job holds a writing end. One byte, never read, means
"running"; the end of the pipe means "ended, or the supervisor died: observe it now". The kernel closes it when the
supervisor is killed. Where named pipes do not work (KINETIC_PORTABLE=1), waiting is a sleep of some milliseconds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

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

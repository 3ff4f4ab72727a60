"""Life is a held lock: free the moment its process is gone, whatever children remain.

POSIX record locks, not flock: a forked worker inherits flock's, and would keep a dead supervisor alive. Their price is
a rule: a process opens a lock file that it holds once only, because closing any other descriptor of it frees the lock.
So every opening and closing of lock files in this process goes through one gate.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import threading
import time
from collections.abc import Callable, Container, Sequence
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

    def release(self, *, remove: bool = False) -> None:
        """Let go; with ``remove``, delete the file first, so that nobody can lock what is left behind."""
        with _gate:
            if self._descriptor is not None:
                if remove:
                    with contextlib.suppress(OSError):  # gone already; what stays is swept
                        self.path.unlink()
                _held.pop(str(self.path), None)
                os.close(self._descriptor)
                self._descriptor = None


def take_lock(path: Path) -> ProcessLock | None:
    """Take the lock of a file, made if need be; None when a living process, this one included, holds it."""
    while True:
        with _gate:
            if _held.get(str(path)) == os.getpid():
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _lock(descriptor):
                return None
            if _is_still(path, descriptor):
                return _new_lock(path, descriptor)
            os.close(descriptor)  # its former holder removed it between our two steps: this is another file's lock


def take_abandoned_lock(path: Path) -> ProcessLock | None:
    """Take the lock of a file that must be there; None when its holder lives or the file is gone."""
    with _gate:
        if _held.get(str(path)) == os.getpid():
            return None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        if not _lock(descriptor):
            return None
        if _is_still(path, descriptor):
            return _new_lock(path, descriptor)
        os.close(descriptor)
        return None


def is_locked(path: Path) -> bool:
    """Say whether a living process holds the lock of a file."""
    with _gate:
        life = take_abandoned_lock(path)
        if life is not None:
            life.release()
            return False
        return path.exists()


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


def _is_still(path: Path, descriptor: int) -> bool:
    """Say whether a file that was opened still has its name: a lock on a removed one means nothing."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))  # hot: once for each submission
    except FileNotFoundError:
        return False


def _new_lock(path: Path, descriptor: int) -> ProcessLock:
    _held[str(path)] = os.getpid()
    return ProcessLock(path, descriptor)


_POLL_SECONDS = 0.005
_POLL_LIMIT = 0.1


class CompletionWriter:
    """The supervisor's end: open while the job runs."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = None
        with contextlib.suppress(OSError):
            # Both ends, because opening for writing alone fails while nobody reads.
            self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def running(self) -> None:
        """Tell that the worker runs."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, b"r")

    def stop(self) -> None:
        """Tell that there is something to see."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class CompletionReader:
    """A waiting process's end."""

    def __init__(self, path: Path, *, portable: bool = False) -> None:
        self._descriptor: int | None = None
        self._running = False
        self._ended = False
        self._pause = _POLL_SECONDS
        if not portable:
            with contextlib.suppress(OSError):
                self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    @property
    def listening(self) -> bool:
        """Say whether this end still tells something; a job that is tried again has a new pulse."""
        return self._descriptor is None or not self._ended

    @property
    def descriptor(self) -> int | None:
        """The pipe, where it tells something."""
        return self._descriptor

    def note_end(self, told: Container[int]) -> None:
        """Take note that the pipe has ended, if it is among those that told so."""
        self._ended = self._ended or self._descriptor in told

    def wait(self, seconds: float) -> None:
        """Return when something may have changed, or after some seconds."""
        if self._descriptor is None or self._ended:
            time.sleep(max(0.0, min(seconds, self._pause)))
            self._pause = min(self._pause * 1.2, _POLL_LIMIT)
            return
        poll = select.poll()
        poll.register(self._descriptor, 0 if self._running else select.POLLIN)
        for _, events in poll.poll(max(0.0, seconds) * 1000):
            self._running = self._running or bool(events & select.POLLIN)
            self._ended = bool(events & (select.POLLHUP | select.POLLERR))
        if self._ended and not self._running:  # some systems say so of a pipe that nobody has written to yet
            time.sleep(max(0.0, min(seconds, _POLL_SECONDS)))

    def close(self) -> None:
        """Let go of the pipe."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self, _close: Callable[[int], None] = os.close) -> None:
        """Close the pipe with the thread that waited; an interpreter at its end may have no `os` left."""
        try:
            if self._descriptor is not None:
                _close(self._descriptor)
        except (OSError, AttributeError):  # somebody closed every descriptor; or it was never made
            pass


def wait_for_any_end(beats: Sequence[CompletionReader], seconds: float) -> None:
    """Return when one of some jobs has ended, or after some seconds."""
    poll, count = select.poll(), 0
    for beat in beats:
        if beat.descriptor is not None:
            poll.register(beat.descriptor, 0)
            count += 1
    if count < len(beats) or not beats:  # some tell nothing, or there is nobody to tell
        time.sleep(max(0.0, min(seconds, _POLL_LIMIT)))
        return
    told = {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}
    for beat in beats:
        beat.note_end(told)


def make_pipe(path: Path) -> None:
    """Make a pulse or a wake-up pipe."""
    with contextlib.suppress(FileExistsError, OSError):
        os.mkfifo(path, 0o600)


def wake(path: Path) -> bool:
    """Wake whoever reads this pipe; False when nobody does."""
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

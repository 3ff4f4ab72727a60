"""Life is a held lock: free the moment its process is gone, whatever children remain.

POSIX record locks, not flock: a forked worker inherits flock's, and would keep a dead keeper alive. Their price is a
rule: a process opens a lock file that it holds once only, because closing any other descriptor of it frees the lock.
So every opening and closing of lock files in this process goes through one gate.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
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


def take(path: Path) -> ProcessLock | None:
    """Take the lock of a file, made if need be; None when a living process, this one included, holds it."""
    while True:
        with _gate:
            if _held.get(str(path)) == os.getpid():
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _lock(descriptor):
                return None
            if _is_still(path, descriptor):
                return _hold(path, descriptor)
            os.close(descriptor)  # its former holder removed it between our two steps: this is another file's lock


def take_from_the_dead(path: Path) -> ProcessLock | None:
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
            return _hold(path, descriptor)
        os.close(descriptor)
        return None


def is_held(path: Path) -> bool:
    """Say whether a living process holds the lock of a file."""
    with _gate:
        life = take_from_the_dead(path)
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


def _hold(path: Path, descriptor: int) -> ProcessLock:
    _held[str(path)] = os.getpid()
    return ProcessLock(path, descriptor)

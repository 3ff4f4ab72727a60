"""Life is a held lock: free the moment its process is gone, whatever children remain.

POSIX record locks, not flock: a forked worker inherits flock's, and would keep a dead keeper alive. Their price is a
rule: a process opens a lock file that it holds once only, because closing any other descriptor of it frees the lock.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

_BUSY = {errno.EACCES, errno.EAGAIN}
_held: dict[str, int] = {}  # path -> pid: what this process must not open a second time


class Life:
    """A lock that this process holds until it is released or the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    def release(self, *, remove: bool = False) -> None:
        """Let go; with ``remove``, delete the file first, so that nobody can lock what is left behind."""
        if self._descriptor is not None:
            if remove:
                self.path.unlink(missing_ok=True)
            _held.pop(str(self.path), None)
            os.close(self._descriptor)
            self._descriptor = None


def take(path: Path) -> Life | None:
    """Take the lock of a file, made if need be; None when a living process, this one included, holds it."""
    if _held.get(str(path)) == os.getpid():
        return None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return _lock(path, descriptor)


def take_from_the_dead(path: Path) -> Life | None:
    """Take the lock of a file that must be there; None when its holder lives or the file is gone."""
    if _held.get(str(path)) == os.getpid():
        return None
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    return _lock(path, descriptor)


def is_held(path: Path) -> bool:
    """Say whether a living process holds the lock of a file."""
    life = take_from_the_dead(path)
    if life is not None:
        life.release()
        return False
    return path.exists()


def _lock(path: Path, descriptor: int) -> Life | None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _BUSY:
            return None
        raise
    _held[str(path)] = os.getpid()
    return Life(path, descriptor)

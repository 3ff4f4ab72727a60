"""The spool: the file that a worker prints into, read by position, and emptied behind what nobody needs any more."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_BLOCK = 1 << 20  # space is given back in pieces of this size
_KEPT = 64 << 10  # behind it stays what a verdict may quote


class Spool:
    """One log on the disk of a pod.

    Attributes:
        path: The file; it is made here.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._freed = 0
        self._libc: Any = None

    def size(self) -> int:
        """Return how many bytes were printed so far."""
        return os.fstat(self._descriptor).st_size

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position; fewer, or none, at the end."""
        return os.pread(self._descriptor, length, start)

    def release(self, before: int) -> None:
        """Give back the disk space of what lies well before a position; where that cannot be done, nothing happens."""
        end = max(0, before - _KEPT) // _BLOCK * _BLOCK
        if end > self._freed and sys.platform == "linux":
            self._punch(self._freed, end - self._freed)
            self._freed = end

    def _punch(self, start: int, length: int) -> None:
        if self._libc is None:
            self._libc = ctypes.CDLL(None, use_errno=True)
        punch = getattr(self._libc, "fallocate64", None) or getattr(self._libc, "fallocate", None)
        if punch is not None:
            punch(self._descriptor, _KEEP_SIZE | _PUNCH_HOLE, ctypes.c_int64(start), ctypes.c_int64(length))

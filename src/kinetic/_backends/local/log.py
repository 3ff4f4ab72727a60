"""The log of a job on this machine: the file that its worker writes, read by byte position."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


class FileLog:
    """The spool of a job's output on this machine, by byte position."""

    is_complete = True

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path) -> FileLog | None:
        """Open a log, or return None when there is none here."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None

    def size(self) -> int:
        """Return how many bytes there are now."""
        return os.fstat(self._descriptor).st_size

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position."""
        return os.pread(self._descriptor, length, start)

    def close(self) -> None:
        """Let go of the file."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

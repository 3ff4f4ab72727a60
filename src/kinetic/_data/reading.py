"""Reading files of data so that a digest always belongs to the bytes that were read."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from kinetic._blobs.cache import is_settled
from kinetic._blobs.scan import File, file_of, stamp_of
from kinetic._data.walking import unreadable
from kinetic._wire import manifests
from kinetic.errors import DataChangedError

_PIECE = 256 << 10  # stays in a core's cache, and one buffer saves the system from clearing pages for each file
_TOLD_BYTES = 4 << 20
_ATTEMPTS = 3
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a file that became a FIFO must not hold us


class Stopped(Exception):  # noqa: N818 - not an error: somebody else failed
    """Raised in a thread that reads on behalf of somebody who has given up."""


class Read(NamedTuple):
    """A file that was read.

    Attributes:
        digest: The documented digest of its path and of exactly the bytes that were read.
        file: The file as it was when they were read; the very same if it had not changed since the walk.
        trusted: Whether an equal stamp will mean equal content: it held still, and had for a while.
    """

    digest: bytes
    file: File
    trusted: bool


class Reader:
    """What one thread reads files with: its buffer, and whom it tells and heeds.

    Args:
        stop: Set when somebody has given up; what is being read is left then.
        progress: Called with a number of bytes, every few megabytes and by ``pause``.
    """

    def __init__(self, stop: threading.Event, progress: Callable[[int], object]) -> None:
        self._buffer = memoryview(bytearray(_PIECE))
        self._stop = stop
        self._progress = progress
        self._untold = 0

    def digest(self, file: File) -> Read:
        """Digest a file; one that changes meanwhile is read again, and taken as it was if it never holds still.

        Raises:
            DataError: It cannot be read.
            DataChangedError: It is gone, though the walk saw it.
            Stopped: Somebody has given up.
        """
        for _ in range(_ATTEMPTS):
            read_at = time.time_ns()
            descriptor = _open(file)
            try:
                digest = self._digest(descriptor, file)
                about = os.fstat(descriptor)
            except OSError as error:
                raise unreadable(file.path, error) from error
            finally:
                os.close(descriptor)
            _check_is_file(file, about)
            if still := stamp_of(about) == file.stamp:
                break
            file = file_of(file.relative, file.path, about)
        return Read(digest, file, still and is_settled(about, read_at))

    def pause(self) -> None:
        """Tell what is not told yet, and hear whether to go on."""
        self._progress(self._untold)
        self._untold = 0
        if self._stop.is_set():
            raise Stopped

    def _digest(self, descriptor: int, file: File) -> bytes:
        found = manifests.file_digest(file.relative)
        while size := os.readv(descriptor, (self._buffer,)):
            found.update(self._buffer[:size])
            self._untold += size
            if self._untold >= _TOLD_BYTES:
                self.pause()
        return found.digest()


def open_file(file: File) -> int:
    """Open a file that a walk has seen.

    Raises:
        DataError: It cannot be read.
        DataChangedError: It is gone, or is no longer a file.
    """
    descriptor = _open(file)
    try:
        _check_is_file(file, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_piece(descriptor: int, size: int, file: File) -> bytes:
    """Return the next bytes of an open file: ``size`` of them, fewer only at its end."""
    try:
        data = os.read(descriptor, size)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):
            data += more
    except OSError as error:
        raise unreadable(file.path, error) from error
    return data


def changed(file: File, why: str) -> DataChangedError:
    """Say that a file is not what was hashed."""
    return DataChangedError(
        f"the data changed while it was sent: {file.path}",
        why=f"{why}; nothing was promised to a job",
        next="submit again when nothing writes to it any more",
    )


def _open(file: File) -> int:
    try:
        return os.open(file.path, _READ)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENXIO}:
            raise changed(file, "it is gone") from error
        raise unreadable(file.path, error) from error


def _check_is_file(file: File, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise changed(file, "it is no longer a file")

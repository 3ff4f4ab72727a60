"""Reading a project's files so that a digest always belongs to the bytes that are packed under it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from typing import NamedTuple

from kinetic._blobs.cache import is_settled
from kinetic._blobs.scan import stamp_of
from kinetic._packing.packs import PackWriter

WHOLE = 4 << 20  # files up to this size are read into memory
_PIECE = 1 << 20
_ATTEMPTS = 3


class Read(NamedTuple):
    """A file that was read.

    Attributes:
        digest: SHA-256 of exactly the bytes that were read.
        data: These bytes, or None when they went into the pack already.
        size: How many.
        stamp: The file's stamp, before and after reading; "" when the file did not hold still.
        settled: It had held still for so long that an equal stamp will mean equal content.
    """

    digest: bytes
    data: bytes | None
    size: int
    stamp: str
    settled: bool


def read(open_file: Callable[[], int], writer: PackWriter, is_held: Callable[[bytes], bool]) -> Read:
    """Read a file; a large one goes straight into the pack unless its content is held already.

    A file that changes while it is read is read again; one that never holds still is taken as it was.

    Raises:
        OSError: It cannot be read, is gone, or is no longer a file.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        taken = _read_once(open_file, writer, is_held, last=attempt == _ATTEMPTS)
        if taken.stamp:
            break
    return taken


def _read_once(
    open_file: Callable[[], int], writer: PackWriter, is_held: Callable[[bytes], bool], *, last: bool
) -> Read:
    read_at = time.time_ns()
    descriptor = open_file()
    try:
        before = os.fstat(descriptor)
        settled = is_settled(before, read_at)
        if before.st_size > WHOLE:
            digest, size, stamp = _stream(descriptor, before, writer, is_held, last=last)
            return Read(digest, None, size, stamp, settled)
        data = _up_to(descriptor, before.st_size)
        stamp = _stamp_if_still(descriptor, before, len(data))
        return Read(hashlib.sha256(data).digest(), data, len(data), stamp, settled)
    finally:
        os.close(descriptor)


def _stream(
    descriptor: int, before: os.stat_result, writer: PackWriter, is_held: Callable[[bytes], bool], *, last: bool
) -> tuple[bytes, int, str]:
    """Pass a large file on into the pack, and take it back if it did not hold still or is held already."""
    start = writer.begin()
    kept = False
    try:
        digest, size = hashlib.sha256(), 0
        while size < before.st_size and (piece := os.read(descriptor, min(_PIECE, before.st_size - size))):
            digest.update(piece)
            writer.write(piece)
            size += len(piece)
        stamp = _stamp_if_still(descriptor, before, size)
        kept = bool(stamp or last) and not is_held(digest.digest())
        return digest.digest(), size, stamp
    finally:
        if kept:
            writer.keep(start, digest.digest())
        else:
            writer.drop(start)


def _up_to(descriptor: int, size: int) -> bytes:
    data = os.read(descriptor, size)
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data


def _stamp_if_still(descriptor: int, before: os.stat_result, size: int) -> str:
    stamp = stamp_of(before)
    return stamp if size == before.st_size and stamp == stamp_of(os.fstat(descriptor)) else ""

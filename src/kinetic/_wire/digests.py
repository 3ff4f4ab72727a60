"""Digests: SHA-256 as lower-case hexadecimal, of bytes, of files and of things written piece by piece."""

from __future__ import annotations

import hashlib
import os
from typing import IO, Protocol

_CHUNK = 1 << 20


def of_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return the digest of some bytes."""
    return hashlib.sha256(data).hexdigest()


def of_file(path: str | os.PathLike[str]) -> str:
    """Return the digest of a file, read in pieces of 1 MiB."""
    with open(path, "rb", buffering=0) as file:  # no text layer
        return of_stream(file)


def of_stream(file: IO[bytes] | Readable, length: int | None = None) -> str:
    """Return the digest of what a stream gives from here on, of at most ``length`` bytes."""
    digest = hashlib.sha256()
    left = length if length is not None else -1
    while left and (piece := file.read(_CHUNK if left < 0 else min(_CHUNK, left))):
        digest.update(piece)
        left -= len(piece) if left > 0 else 0
    return digest.hexdigest()


class Readable(Protocol):
    """Anything that gives bytes."""

    def read(self, size: int = -1, /) -> bytes | None:
        """Return up to ``size`` bytes."""


class HashingWriter:
    """Pass writes on to a file and keep their digest and length: no second read of what may be large."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.length = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of the data."""
        self._digest.update(data)
        size = memoryview(data).nbytes
        self.length += size
        self._file.write(data)
        return size

    def hexdigest(self) -> str:
        """Return the digest of everything written so far."""
        return self._digest.hexdigest()

"""Digests: SHA-256 as lower-case hexadecimal, of bytes, of files, of things written piece by piece, and of logs."""

from __future__ import annotations

import copy
import hashlib
import os
from collections import deque
from typing import IO, Protocol

from kinetic._wire import dataclass
from kinetic.errors import IntegrityError

_CHUNK = 1 << 20
_HEX = frozenset("0123456789abcdef")
LOG_BLOCK_BYTES = 1 << 20
LOG_BLOCKS = 11  # of the end of a log: its last 10 MiB are parts of so many


def of_bytes(data: bytes | bytearray | memoryview) -> str:
    """Return the digest of some bytes."""
    return hashlib.sha256(data).hexdigest()


def of_stream(file: IO[bytes] | Readable, length: int | None = None) -> str:
    """Return the digest of what a stream gives from here on, of at most ``length`` bytes."""
    digest = hashlib.sha256()
    left = length if length is not None else -1
    while left and (piece := file.read(_CHUNK if left < 0 else min(_CHUNK, left))):
        digest.update(piece)
        left -= len(piece) if left > 0 else 0
    return digest.hexdigest()


def check(found: str, promised: str, what: str, by: str, *, next: str | None = None) -> None:
    """Refuse bytes whose digest is not the promised one.

    Args:
        found: Their digest.
        promised: The digest that was promised.
        what: What happened to them, as in "the order is not the one that was launched; it was not used".
        by: What promised it, as in "the launch".
        next: What to do.
    """
    if found != promised:
        raise IntegrityError(what, why=f"its SHA-256 is {found[:16]}…, expected {promised[:16]}… from {by}", next=next)


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


@dataclass(frozen=True)
class LogDigest:
    """What the log of one host of one attempt was when the attempt had ended.

    A log is compared block by block, so that its end can be checked without reading what is before it.
    """

    attempt: int
    host: int
    size_bytes: int
    sha256: str  # digest of the digests (32 bytes each) of all its blocks of 1 MiB, in order
    blocks: tuple[str, ...] = ()  # digests of the last blocks, at most 11


class LogHasher:
    """Computes the digest of a log from its bytes, in order and in pieces of any length."""

    def __init__(self) -> None:
        self.size = 0
        self._whole, self._block = hashlib.sha256(), hashlib.sha256()
        self._blocks = deque[bytes](maxlen=LOG_BLOCKS)

    def update(self, data: bytes) -> None:
        """Take in the next bytes."""
        view = memoryview(data)
        while view:
            piece = view[: LOG_BLOCK_BYTES - self.size % LOG_BLOCK_BYTES]
            self._block.update(piece)
            self.size += len(piece)
            view = view[len(piece) :]
            if self.size % LOG_BLOCK_BYTES == 0:
                found = self._block.digest()
                self._whole.update(found)
                self._blocks.append(found)
                self._block = hashlib.sha256()

    def copy(self) -> LogHasher:
        """Return a second one that knows the same bytes."""
        other = copy.copy(self)
        vars(other).update(_whole=self._whole.copy(), _block=self._block.copy(), _blocks=self._blocks.copy())
        return other

    def digest(self, attempt: int, host: int) -> LogDigest:
        """Return the digest of what was taken in so far."""
        whole, blocks = self._whole.copy(), self._blocks.copy()
        if self.size % LOG_BLOCK_BYTES:
            whole.update(self._block.digest())
            blocks.append(self._block.digest())
        return LogDigest(attempt, host, self.size, whole.hexdigest(), tuple([each.hex() for each in blocks]))


def of_log(path: str | os.PathLike[str], attempt: int, host: int) -> LogDigest:
    """Return the digest of a log that is a file; one that is missing is an empty log."""
    hasher = LogHasher()
    try:
        with open(path, "rb", buffering=0) as file:  # no text layer
            while piece := file.read(_CHUNK):
                hasher.update(piece)
    except FileNotFoundError:
        pass
    return hasher.digest(attempt, host)


def is_hexadecimal(text: str, digits: int) -> bool:
    """Return whether a text is so many hexadecimal digits, as digests and made-up names are."""
    return len(text) == digits and _HEX.issuperset(text)

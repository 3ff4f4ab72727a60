"""Reading objects of any size from a cloud: the first piece tells the size, the others come in parallel."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar

from kinetic._stores import parallel
from kinetic.errors import StoreUnreachableError

T = TypeVar("T")

PIECE = 8 << 20  # bytes: large enough that a round trip does not count, small enough to come again after a fault
PARALLEL_PIECES = 8  # pieces of one object at once
_AT_ONCE = threading.BoundedSemaphore(16)  # pieces of all objects of this process: at most 128 MiB wait in memory
_ATTEMPTS = 5  # at reading an object that others keep replacing


class Piece(NamedTuple):
    """Some bytes of an object.

    Attributes:
        data: What lies there; empty past the end.
        size: Of the whole object, in bytes.
        version: Changes with the object's content.
    """

    data: bytes
    size: int
    version: str


class ObjectChanged(Exception):  # noqa: N818 - an answer, never seen outside
    """The object is not the version any more that was asked for."""


class RangeReader(Protocol):
    """A store that can read a part of an object."""

    url: str

    def piece(self, key: str, start: int, length: int, *, version: str | None = None) -> Piece:
        """Return bytes of an object.

        Raises:
            KeyMissingError: Nothing lies under this key.
            Changed: It is another version than the one asked for.
        """


def read_range(store: RangeReader, key: str, start: int, length: int | None) -> bytes:
    """Return bytes of an object; all of one version."""

    def once() -> bytes:
        wanted = PIECE if length is None else max(1, min(length, PIECE))  # no byte cannot be asked for
        first = store.piece(key, start, wanted)
        end = first.size if length is None else min(first.size, start + length)
        if start + len(first.data) >= end:
            return first.data[: max(0, end - start)]
        whole = io.BytesIO(bytes(end - start))
        with whole.getbuffer() as view:  # also after an error: a buffer that somebody looks into cannot be freed
            view[: len(first.data)] = first.data

            def keep(at: int, data: bytes) -> None:
                view[at - start : at - start + len(data)] = data

            _others(store, key, first, range(start + len(first.data), end, PIECE), end, keep)
        return whole.getvalue()

    return _of_one_version(once, key)


def fetch_file(store: RangeReader, key: str, to: os.PathLike[str]) -> None:
    """Copy an object into a local file, which appears whole or not at all; at most eight pieces are in memory."""
    target = Path(to)
    beside = target.with_name(f".{target.name}.{os.getpid():x}-{os.urandom(4).hex()}.part")

    def once() -> None:
        first = store.piece(key, 0, PIECE)
        with beside.open("wb", buffering=0) as file:
            descriptor = file.fileno()
            _write_at(descriptor, first.data, 0)
            left = range(len(first.data), first.size, PIECE)
            _others(store, key, first, left, first.size, lambda at, data: _write_at(descriptor, data, at))

    try:
        _of_one_version(once, key)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _others(
    store: RangeReader, key: str, first: Piece, places: range, end: int, keep: Callable[[int, bytes], None]
) -> None:
    """Read everything behind the first piece and keep it where it belongs."""

    def reading(at: int) -> Callable[[], None]:
        def read() -> None:
            wanted = min(PIECE, end - at)
            with _AT_ONCE:
                piece = store.piece(key, at, wanted, version=first.version)
                if len(piece.data) != wanted:
                    raise StoreUnreachableError(
                        f"the store gave too little of {key!r}",
                        why=f"{len(piece.data)} bytes from byte {at}, and {wanted} lie there",
                    )
                keep(at, piece.data)

        return read

    tasks: Iterator[Callable[[], None]] = (reading(at) for at in places)
    for _ in parallel.in_parallel(store, tasks, limit=PARALLEL_PIECES):
        pass


def _of_one_version(once: Callable[[], T], key: str) -> T:
    for _ in range(_ATTEMPTS):
        try:
            return once()
        except ObjectChanged:
            continue
    raise StoreUnreachableError(f"{key!r} was replaced again and again while it was read")


def _write_at(descriptor: int, data: bytes, at: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, at)
        view, at = view[written:], at + written

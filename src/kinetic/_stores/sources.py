"""What a cloud store is given to write: small enough for one request, or not."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from kinetic._stores.protocol import Source

Body = bytes | memoryview


class Large:
    """More than fits into one request.

    Attributes:
        source: A view, a file, or chunks.
        size: In bytes; None where only reading to the end will tell.
        again: It can be read from the front: it is no stream, or nothing was read from it yet.

    Args:
        source: As above.
        size: As above.
        rest: Where the chunks come from; closed in the end.
    """

    def __init__(self, source: memoryview | Path | Iterator[Body], size: int | None, rest: object = None) -> None:
        self.source: memoryview | Path | Iterator[Body] = source
        self.size = size
        self.again = True
        self._rest = rest
        if size is None:
            self.source = self._watched(source)  # type: ignore[arg-type]  # without a size they are chunks

    def _watched(self, chunks: Iterator[Body]) -> Iterator[Body]:
        self.again = False
        yield from chunks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close a generator that was not read to its end; what it holds is free again.

        Not left to the generators around it: closing one that never began runs none of it.
        """
        for stream in (self.source, self._rest):
            close = getattr(stream, "close", None)
            if close is not None:
                close()


def body_of(source: Source, most: int) -> Body | Large:
    """Return the bytes where they are few, else the source with its size.

    Args:
        source: As a store is given it.
        most: How many bytes one request may carry.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        view = _flat(source)
        return view if len(view) <= most else Large(view, len(view))
    if isinstance(source, os.PathLike):
        path = Path(source)
        size = path.stat().st_size
        return path.read_bytes() if size <= most else Large(path, size)
    return _of_chunks(source, most)


def _of_chunks(source: Iterable[bytes], most: int) -> Body | Large:
    rest = iter(source)
    head: list[Body] = []
    size = 0
    for chunk in rest:
        head.append(_flat(chunk))
        size += len(head[-1])
        if size > most:
            return Large(_joined(head, rest), None, rest)
    return b"".join(head)


def _joined(head: list[Body], rest: Iterator[bytes]) -> Iterator[Body]:
    """Go on where the reading stopped."""
    for chunk in chain(head, rest):
        if len(chunk):
            yield _flat(chunk)


def _flat(data: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")

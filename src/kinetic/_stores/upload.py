"""Writing objects into a bucket through obstore, and knowing who wrote them though an answer was lost.

A small object is one conditional request; for what is larger, see ``large_upload.py``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kinetic._stores import obstore_client
from kinetic._stores.obstore_client import UNSUPPORTED, ObstoreClient, is_ambiguous
from kinetic._stores.protocol import Source

Body = bytes | memoryview

# Metadata: who wrote an object, to tell one's own after an answer that was lost. Azure takes names of variables only.
WRITER = {"gs": "kinetic-writer", "s3": "kinetic-writer", "az": "kinetic_writer"}
PART = 8 << 20  # bytes: what fits into one request
PARTS_AT_ONCE = 6  # of one upload
_SLOW_SECONDS = 600.0
_FEW_BYTES = 1 << 20  # pass in time on any line, whatever else travels


class Large:
    """More than fits into one request: a view, a file, or chunks."""

    def __init__(self, source: memoryview | Path | Iterator[Body], size: int | None, stream: object = None) -> None:
        self.source: memoryview | Path | Iterator[Body] = source
        self.size = size  # in bytes; None where only reading to the end will tell
        self.again = True  # it can be read from the front: it is no stream, or nothing was read from it yet
        self._stream = stream  # where the chunks come from; closed in the end
        if size is None:
            self.source = self._watched(source)  # type: ignore[arg-type]  # without a size they are chunks

    def _watched(self, chunks: Iterator[Body]) -> Iterator[Body]:
        self.again = False
        yield from chunks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close a generator that was not read to its end, to free what it holds.

        Not left to the generators around it: closing one that never began runs none of it.
        """
        for stream in (self.source, self._stream):
            close = getattr(stream, "close", None)
            if close is not None:
                close()


def body_of(source: Source, most: int) -> Body | Large:
    """Return the bytes where they are few, else the source with its size."""
    if isinstance(source, bytes | bytearray | memoryview):
        view = _flat(source)
        return view if len(view) <= most else Large(view, len(view))
    if isinstance(source, os.PathLike):
        path = Path(source)
        size = path.stat().st_size
        return path.read_bytes() if size <= most else Large(path, size)
    stream = iter(source)
    head: list[Body] = []
    size = 0
    for chunk in stream:
        head.append(_flat(chunk))
        size += len(head[-1])
        if size > most:
            return Large((_flat(chunk) for chunk in chain(head, stream) if len(chunk)), None, stream)
    return b"".join(head)


def _flat(data: bytes | bytearray | memoryview) -> memoryview:
    view = memoryview(data)
    return view.cast("B") if view.nbytes else memoryview(b"")


class Line:
    """The line of this process to its buckets: uploads share it until one takes longer than a request may.

    Then they take turns: on a slow line, many at once are all cut off, and again when they are repeated. What is sent
    in parts may take hours, so a result, which fits into one request, does not wait for it. After ten minutes they
    share it again, as an outage may have been the cause; if one is late then, they take turns for twice as long.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._turns = threading.Lock(), threading.Lock()
        self._clock = clock
        self._slow_until, self._slow_seconds = float("-inf"), _SLOW_SECONDS

    @contextlib.contextmanager
    def taken(self, *, in_parts: bool = False) -> Iterator[int]:
        """Yield how many parts may travel at once."""
        from obstore.exceptions import GenericError

        try:
            if self._clock() < self._slow_until:
                with self._turns[in_parts]:
                    yield 1
            else:
                yield PARTS_AT_ONCE
        except GenericError as error:
            if obstore_client.is_late(error) and (now := self._clock()) >= self._slow_until:
                self._slow_until = now + self._slow_seconds
                self._slow_seconds *= 2
            raise


LINE = Line()


class Uploader:
    """Write small objects; errors leave as obstore's."""

    def __init__(self, client: ObstoreClient) -> None:
        self.client = client
        self.writer_key = WRITER[client.address.scheme]

    def write(self, key: str, body: Body) -> bool:
        """Write an object, whatever is there."""
        from obstore.exceptions import GenericError

        try:
            self._send(key, body, mode="overwrite")
        except GenericError as error:
            if not obstore_client.is_late(error):
                raise
            self._send(key, body, mode="overwrite")  # when it is its turn
        return True

    def create(self, key: str, body: Body) -> bool:
        """Write an object if nothing is there."""
        me = new_writer_id()
        options = {"mode": "create", "attributes": {self.writer_key: me}, "again": False}
        return self.conditionally(key, me, lambda: self._send(key, body, **options))

    def _send(self, key: str, body: Body, **options: Any) -> None:
        with LINE.taken() if len(body) > _FEW_BYTES else contextlib.nullcontext():
            self.client.ask_about("put", key, body, use_multipart=False, **options)

    def conditionally(
        self, key: str, me: str, write: Callable[[], object], is_same: Callable[[], bool] | None = None
    ) -> bool:
        """Run a conditional write, and find out whose the object is when its answer leaves that open.

        Args:
            key: What is written.
            me: What the written object says of its writer.
            write: The request.
            is_same: Compares it with what is written, where the object itself cannot say who wrote it.
        """
        from obstore.exceptions import AlreadyExistsError, GenericError

        attempts = self.client.retry.attempts
        for attempt in range(attempts):
            try:
                write()
                return True
            except (AlreadyExistsError, GenericError) as error:
                if obstore_client.status_of(error) == UNSUPPORTED:
                    from kinetic._stores import store_errors  # most jobs need none of it

                    raise store_errors.unconditional(self.client.address.url, store_errors.brief(error)) from None
                if not is_ambiguous(error, first=attempt == 0):
                    if isinstance(error, AlreadyExistsError):
                        return False
                    raise
                writer = self.writer(key)
                if writer is not None:
                    return writer == me if writer or is_same is None else is_same()
                if attempt == attempts - 1:
                    raise
                self.client.retry.pause(attempt)
        raise AssertionError("the last attempt returns or raises")

    def writer(self, key: str) -> str | None:
        """Return who wrote an object: "" when it does not tell, None when there is none."""
        try:
            return str(self.client.ask_about("get", key, options={"head": True}).attributes.get(self.writer_key, ""))
        except FileNotFoundError:
            return None


def new_writer_id() -> str:
    return os.urandom(12).hex()

"""Writing objects into a bucket through obstore, and knowing who wrote them though an answer was lost.

A small object is one conditional request. A large one is uploaded in parts; where it must be created only if absent,
which no service offers for parts, it is uploaded beside its place, below ``.tmp/``, and copied into place inside the
service, on the condition that no object is there. Where copies do not heed that condition, a large one is one request.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

from kinetic._stores import obstore_client
from kinetic._stores.obstore_client import UNSUPPORTED, ObstoreClient, is_ambiguous, is_transient, names_no_bucket
from kinetic._stores.protocol import SCRATCH, Source

Body = bytes | memoryview

# Metadata: who wrote an object, to tell one's own after an answer that was lost. Azure takes names of variables only.
WRITER = {"gs": "kinetic-writer", "s3": "kinetic-writer", "az": "kinetic_writer"}
PART = 8 << 20  # bytes: what fits into one request
PARTS_AT_ONCE = 6
MOST_PARTS = 10_000  # of one upload; Cloud Storage and S3
MOST_COPIED = 5 << 30  # bytes that S3 copies in one piece, or takes in one request
# A copy is refused: Ceph wants a length with it, which obstore does not send (16.2; as much is in its source of 2025).
_NO_COPIES = frozenset({411, UNSUPPORTED})
_NO_BLOCKS = "InvalidBlockList"  # of Azure, which has put them together already: they are gone
_LARGE_AT_ONCE = threading.BoundedSemaphore(3)  # uploads in parts: 3 x 6 parts of 8 MiB in memory


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


class Uploader:
    """Write objects; errors leave as obstore's."""

    def __init__(self, client: ObstoreClient) -> None:
        self._client = client
        self._scheme = client.address.scheme
        self._writer_key = WRITER[self._scheme]
        # None: to be tested, for many services imitate S3.
        self._copies_conditionally: bool | None = None if self._scheme == "s3" else True

    def write(self, key: str, body: Body) -> bool:
        """Write a small object, whatever is there."""
        self._client.ask_about("put", key, body, mode="overwrite", use_multipart=False)
        return True

    def create(self, key: str, body: Body) -> bool:
        """Write a small object if nothing is there."""
        me = _new_writer_id()
        options = {"mode": "create", "use_multipart": False, "attributes": {self._writer_key: me}}
        return self._conditionally(key, me, lambda: self._client.ask_about("put", key, body, again=False, **options))

    def write_large(self, key: str, body: Large) -> bool:
        """Write a large object, whatever is there."""
        self._in_parts(key, body, _new_writer_id())
        return True

    def create_large(self, key: str, body: Large) -> bool:
        """Upload beside the place, and copy into it if nothing is there."""
        if self._client.about(key) is not None:
            return False
        me = _new_writer_id()
        with self._beside(me) as beside:
            if self._copies_conditionally is None:
                self._copies_conditionally = self._test_copies(beside)
            if not self._copies_conditionally:
                return self._create_at_once(key, body)
            self._in_parts(beside, body, me)
            if self._scheme == "s3":
                about = self._client.about(beside)
                _check_size(MOST_COPIED + 1 if about is None else about["size"])
            copy = self._copying(beside, key, overwrite=False, again=False)
            created = self._conditionally(key, me, copy, beside)
            if created and self._scheme == "az":
                self._await_copy(beside, key)
            return created

    def touch(self, key: str, size: int) -> None:
        """Make an object young by replacing it by itself."""
        if self._scheme != "s3":
            self._copying(key, key)()
        elif size <= PART:
            self._write_again(key)
        else:
            self._copy_there_and_back(key)

    def _conditionally(self, key: str, me: str, write: Callable[[], object], beside: str | None = None) -> bool:
        """Run a conditional write, and find out whose the object is when its answer leaves that open.

        Args:
            key: What is written.
            me: What the written object says of its writer.
            write: The request.
            beside: The same bytes, where the object itself cannot say who wrote it.
        """
        from obstore.exceptions import AlreadyExistsError, GenericError

        attempts = self._client.retry.attempts
        for attempt in range(attempts):
            try:
                write()
                return True
            except (AlreadyExistsError, GenericError) as error:
                if obstore_client.status_of(error) == UNSUPPORTED:
                    from kinetic._stores import store_errors  # most jobs need none of it

                    raise store_errors.unconditional(self._client.address.url, store_errors.brief(error)) from None
                if not is_ambiguous(error, first=attempt == 0):
                    if isinstance(error, AlreadyExistsError):
                        return False
                    raise
                writer = self._writer(key)
                if writer is not None:
                    return writer == me if writer or beside is None else self._same(beside, key)
                if attempt == attempts - 1:
                    raise
                self._client.retry.pause(attempt)
        raise AssertionError("the last attempt returns or raises")

    def _writer(self, key: str) -> str | None:
        """Return who wrote an object: "" when it does not tell, None when there is none."""
        try:
            return str(self._client.ask_about("get", key, options={"head": True}).attributes.get(self._writer_key, ""))
        except FileNotFoundError:
            return None

    def _same(self, one: str, other: str) -> bool:
        first, second = self._client.about(one), self._client.about(other)
        if first is None or second is None or first["size"] != second["size"]:
            return False
        return all(self._part(one, at) == self._part(other, at) for at in range(0, first["size"], PART))

    def _part(self, key: str, start: int) -> bytes:
        return bytes(self._client.ask_about("get_range", key, start=start, length=PART))

    def _test_copies(self, beside: str) -> bool:
        """Return whether this service heeds the condition of a copy: onto itself it must refuse.

        Raises:
            StoreError: It heeds none at all.
        """
        from obstore.exceptions import AlreadyExistsError, GenericError

        self.create(beside, b".")
        try:
            self._copying(beside, beside, overwrite=False)()
        except AlreadyExistsError:
            return True
        except GenericError as error:
            if obstore_client.status_of(error) not in _NO_COPIES:
                raise
        if self.create(beside, b"."):
            from kinetic._stores import store_errors  # most jobs need none of it

            raise store_errors.unconditional(self._client.address.url, store_errors.TWICE)
        return False

    def _create_at_once(self, key: str, body: Large) -> bool:
        """Create a large object in one request, with the time that it takes; a file is not read into memory."""
        import mmap  # most jobs need none of it

        if isinstance(body.source, Path):
            with body.source.open("rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        elif isinstance(body.source, memoryview):
            data = body.source
        else:
            data = memoryview(b"".join(body.source))
        _check_size(len(data))
        timeout = obstore_client.TIMEOUT + timedelta(seconds=len(data) >> 20)
        client = ObstoreClient(self._client.address, self._client.retry, timeout)
        return Uploader(client).create(key, data)

    def _await_copy(self, beside: str, key: str) -> None:
        """Wait until a copy has its size: Azure may answer before, and the source must stay until then."""
        source, begun, retry = self._client.about(beside), time.monotonic(), self._client.retry
        for attempt in itertools.count():
            found = self._client.about(key)
            if source is not None and found is not None and found["size"] == source["size"]:
                return
            if time.monotonic() - begun > retry.total_seconds:
                self._client.ask_about("delete", key)  # ours, and not whole
                from kinetic._stores import store_errors  # most jobs need none of it

                raise store_errors.unreachable(self._client.address, key, TimeoutError("a copy did not end"))
            retry.pause(attempt)

    def _in_parts(self, key: str, body: Large, me: str) -> None:
        """Upload in parts; from the front again where the source allows it and the first request was lost."""
        from obstore.exceptions import GenericError

        largest = PART if body.size is not None else 2 * PART
        size = max(largest, -(-(body.size or 0) // (MOST_PARTS - 1)))
        client = self._client
        for attempt in range(client.retry.attempts):
            try:
                with _LARGE_AT_ONCE:
                    client.ask_about(
                        "put", key, body.source, mode="overwrite", use_multipart=True, chunk_size=size,
                        max_concurrency=PARTS_AT_ONCE, attributes={self._writer_key: me}, again=False,
                        is_whole=lambda: body.again,
                    )  # fmt: skip
                return
            except (GenericError, FileNotFoundError) as error:
                session_is_lost = _NO_BLOCKS in str(error) or (
                    isinstance(error, FileNotFoundError) and error.errno is None and not names_no_bucket(error)
                )
                if not session_is_lost and not is_transient(error):
                    raise
                if self._writer(key) == me:  # complete, and only the answer did not come
                    return
                if not body.again or attempt == client.retry.attempts - 1:
                    from kinetic._stores import store_errors  # most jobs need none of it

                    raise store_errors.unreachable(client.address, key, error) from None
            client.retry.pause(attempt)

    def _write_again(self, key: str) -> None:
        """Replace a small object by itself, unless another writer does: S3 copies nothing onto itself."""
        from obstore.exceptions import PreconditionError

        result = self._client.ask_about("get", key)
        version = {name: result.meta[name] for name in ("e_tag", "version") if result.meta[name]}
        data, attributes = result.bytes(), result.attributes
        with contextlib.suppress(PreconditionError):  # replaced in between: young already
            self._client.ask_about("put", key, data, mode=version, use_multipart=False, attributes=attributes)

    def _copy_there_and_back(self, key: str) -> None:
        """Let the service copy a large object twice; no byte travels."""
        before = self._client.about(key)
        with self._beside(_new_writer_id()) as beside:
            self._copying(key, beside)()
            now = self._client.about(key)
            if before is not None and now is not None and now["e_tag"] == before["e_tag"]:
                self._copying(beside, key)()

    def _copying(self, key: str, to: str, **options: bool) -> Callable[[], object]:
        return lambda: self._client.ask_about("copy", key, self._client.full(to), **options)

    @contextlib.contextmanager
    def _beside(self, me: str) -> Iterator[str]:
        """Name a place for a half-made object, and clear it in the end."""
        key = f"{SCRATCH}/{me}"
        try:
            yield key
        finally:
            with contextlib.suppress(Exception):  # what stays is no object, and old scratch is swept
                self._client.ask_about("delete", key)


def _check_size(size: int) -> None:
    if size > MOST_COPIED:
        from kinetic._stores import store_errors  # most jobs need none of it

        raise store_errors.too_large(MOST_COPIED)


def _new_writer_id() -> str:
    return os.urandom(12).hex()

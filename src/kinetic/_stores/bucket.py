"""A store in a bucket of Cloud Storage or S3, through obstore."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from kinetic._stores import obstore_client, parallel
from kinetic._stores.obstore_client import ObstoreClient, is_past_the_end
from kinetic._stores.parallel import Retry
from kinetic._stores.protocol import SCRATCH, Address, Entry, Source, check_key, check_prefix, is_hidden, parse_address
from kinetic._stores.upload import Large, Uploader, body_of
from kinetic.errors import OptionError, StoreUnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obstore import ObjectMeta


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


PART = 8 << 20  # bytes: what fits into one request
_KEYS_PER_DELETE = 1000  # keys in one request, S3


class BucketStore:
    """Keep objects in a bucket, below a prefix."""

    def __init__(self, url: str, *, retry: Retry | None = None) -> None:
        self.address: Address = parse_address(url)
        self.url = self.address.url
        self._retry = retry or Retry()
        self._service = ObstoreClient(self.address, self._retry)
        self._writing = Uploader(self._service)

    @property
    def local(self) -> None:
        """None: no folder of this machine."""

    def put(self, key: str, source: Source, *, if_absent: bool = False) -> bool:
        """Write an object; see the protocol."""
        check_key(key)
        with self._service.ours(key):
            body = body_of(source, PART)
            if not isinstance(body, Large):
                return self._writing.create(key, body) if if_absent else self._writing.write(key, body)
            with body:
                return self._writing.create_large(key, body) if if_absent else self._writing.write_large(key, body)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of an object; see the protocol."""
        return read_range(self, key, start, length)

    def fetch(self, key: str, to: os.PathLike[str]) -> None:
        """Copy an object into a local file; see the protocol."""
        fetch_file(self, key, to)

    def piece(self, key: str, start: int, length: int, *, version: str | None = None) -> Piece:
        """Return a piece of an object; see reading.Pieces."""
        check_key(key)
        options: dict[str, Any] = {"range": (start, start + length)}
        if version is not None:
            options["if_match"] = version
        from obstore.exceptions import PreconditionError

        def read(*names: Any, **options: Any) -> Piece:
            import obstore

            result = obstore.get(*names, **options)
            return Piece(bytes(result.bytes()), result.meta["size"], result.meta["e_tag"] or "")

        with self._service.ours(key):
            try:
                return self._service.ask(read, self._full(key), options=options)
            except PreconditionError:
                raise ObjectChanged from None
            except Exception as error:
                if not is_past_the_end(error):
                    raise
        there = self.entry(key)
        if there is None:
            raise obstore_client.key_missing(self.address, key)
        return Piece(b"", min(there.size, start), "")

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None."""
        found = self.entry(key)
        return None if found is None else found.size

    def entry(self, key: str) -> Entry | None:
        """Return size and age of an object, or None."""
        check_key(key)
        found = self._about(key)
        return None if found is None else Entry(key, found["size"], _seconds(found))

    def touch(self, key: str) -> bool:
        """Make an object young again; see the protocol."""
        found = self.entry(key)
        if found is None:
            return False
        with self._service.ours(key), contextlib.suppress(FileNotFoundError):
            self._writing.touch(key, found.size)
            return True
        return False

    def entries(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        """List objects under a prefix in key order; see the protocol."""
        check_prefix(prefix)
        return self._entries_below(prefix, after)

    def folders(self, prefix: str) -> Iterator[str]:
        """Name the folders directly below a prefix."""
        check_prefix(prefix)
        with self._service.ours(prefix):
            found = self._ask("list_with_delimiter", prefix)["common_prefixes"]
        names = {each.rstrip("/").rpartition("/")[2] for each in found}
        return iter(sorted(name for name in names if prefix or not is_hidden(name)))

    def delete(self, prefix: str) -> int:
        """Delete one key or everything under a prefix; see the protocol."""
        check_key(prefix.removesuffix("/"))
        if not prefix.endswith("/"):
            return self._delete_one(prefix)
        doomed = (entry.key for entry in self.entries(prefix))
        if self.address.scheme == "gs":
            return sum(parallel.in_parallel(self, (partial(self._delete_one, key) for key in doomed)))
        chunks = iter(lambda: list(itertools.islice(doomed, _KEYS_PER_DELETE)), [])
        return sum(self._delete_many(keys) for keys in chunks)

    def sweep(self, *, older_than_seconds: float = 86400.0) -> int:
        """Delete what killed writers left half-made; see the protocol."""
        ends = time.time() - older_than_seconds
        left = [entry.key for entry in self._entries_below(f"{SCRATCH}/", "") if entry.modified < ends]
        return sum(self._delete_one(key) for key in left)

    # ----------------------------------------------------------------------------------------------- listing, deleting

    def _entries_below(self, prefix: str, after: str) -> Iterator[Entry]:
        """List, and go on behind the last key where a page did not arrive and obstore has not asked again."""
        attempt, retry = 0, self._service.retry
        with self._service.ours(prefix):
            while True:
                try:
                    for entry in self._listed(prefix, after):
                        after, attempt = entry.key, 0
                        yield entry
                    return
                except Exception as error:
                    if attempt + 1 >= retry.attempts or not obstore_client.is_transient(error):
                        raise
                retry.pause(attempt)
                attempt += 1

    def _listed(self, prefix: str, after: str) -> Iterator[Entry]:
        offset = self._full(after.rstrip("/")) if _is_plain(after.rstrip("/")) else None
        cut = len(self.address.prefix)
        pages = self._ask("list", prefix, offset=offset, chunk_size=1000)
        while page := self._service.run(lambda: next(pages, None)):
            for found in page:
                key = found["path"][cut:]
                if key > after and (prefix or not is_hidden(key)):
                    yield Entry(key, found["size"], _seconds(found))

    def _delete_one(self, key: str) -> int:
        with self._service.ours(key):
            if self.address.scheme != "gs" and self._about(key) is None:  # S3 deletes what is not there, too
                return 0
            try:
                self._ask("delete", key)
            except FileNotFoundError:
                return 0
            return 1

    def _delete_many(self, keys: Sequence[str]) -> int:
        with self._service.ours(keys[0]):
            self._service.ask_named("delete", [self._full(key) for key in keys])
            return len(keys)

    # ------------------------------------------------------------------------------------------------------- requests

    def _about(self, key: str) -> ObjectMeta | None:
        with self._service.ours(key):
            return self._service.about(key)

    def _ask(self, verb: str, key: str, *arguments: Any, **options: Any) -> Any:
        return self._service.ask_about(verb, key, *arguments, **options)

    def _full(self, key: str) -> str:
        return self.address.prefix + key


def _is_plain(key: str) -> bool:
    try:
        check_key(key)
    except OptionError:
        return False
    return True


def _seconds(found: ObjectMeta) -> float:
    """Return the whole second: a listing tells milliseconds, a look at one object does not."""
    return float(int(found["last_modified"].timestamp()))

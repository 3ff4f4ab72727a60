"""A store in a bucket of Cloud Storage or S3, or in a container of Azure, through obstore.

Objects of any size are read in pieces: the first piece tells the size, the others come in parallel.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kinetic._stores import obstore_client, parallel
from kinetic._stores.obstore_client import ObstoreClient
from kinetic._stores.parallel import Retry
from kinetic._stores.protocol import SCRATCH, Address, Entry, Source, check_key, check_prefix, is_hidden, parse_address
from kinetic._stores.upload import PART, Large, Uploader, body_of
from kinetic._wire import NamedTuple, folders
from kinetic.errors import KineticError, OptionError, StoreUnreachableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obstore import ObjectMeta

    from kinetic._stores.large_upload import LargeUploader

T = TypeVar("T")
PIECE = 8 << 20  # bytes: large enough that a round trip does not count, small enough to come again after a fault
PARALLEL_PIECES = 8  # pieces of one object at once
_AT_ONCE = threading.BoundedSemaphore(16)  # pieces of all objects of this process: at most 128 MiB wait in memory
_ATTEMPTS = 5  # at reading an object that others keep replacing
_KEYS_PER_DELETE = 1000  # keys in one request, S3


class BucketStore:
    """Keep objects in a bucket, below a prefix."""

    def __init__(self, url: str, *, retry: Retry | None = None) -> None:
        self.address = parse_address(url)
        self.url = self.address.url
        self._client = ObstoreClient(self.address, retry or Retry())
        self._uploader = Uploader(self._client)

    @property
    def local(self) -> None:
        """None: no folder of this machine."""

    def make_client(self) -> None:
        """Do what comes before the first request, where no thread starts yet."""
        self._client.make()

    @cached_property
    def _large(self) -> LargeUploader:
        from kinetic._stores.large_upload import LargeUploader  # most jobs need none of it

        return LargeUploader(self._uploader)

    def _translated_errors(self, key: str) -> _TranslatedErrors:
        """Translate obstore's errors while a block runs."""
        return _TranslatedErrors(self.address, key)

    def put(self, key: str, source: Source, *, if_absent: bool = False) -> bool:
        check_key(key)
        if "\\" in key and self.address.scheme == "az":
            raise OptionError(f"{key!r} is not a key in Azure", why="it makes a slash of each backslash in a name")
        with self._translated_errors(key):
            body = body_of(source, PART)
            if not isinstance(body, Large):
                return self._uploader.create(key, body) if if_absent else self._uploader.write(key, body)
            with body:
                return self._large.create(key, body) if if_absent else self._large.write(key, body)

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        return read_range(self, key, start, length)

    def fetch(self, key: str, to: os.PathLike[str], received: Callable[[int], object] | None = None) -> None:
        fetch_file(self, key, to, received)

    def piece(self, key: str, start: int, length: int, *, version: str | None = None) -> Piece:
        """Return a piece of an object; see RangeReader."""
        check_key(key)
        options: dict[str, Any] = {"range": (start, start + length)}
        if version is not None:
            options["if_match"] = version
        from obstore.exceptions import PreconditionError

        def read(*names: Any, **options: Any) -> Piece:
            import obstore

            result = obstore.get(*names, **options)
            return Piece(bytes(result.bytes()), result.meta["size"], result.meta["e_tag"] or "")

        with self._translated_errors(key):
            try:
                return self._client.ask(read, self._client.full(key), options=options)
            except PreconditionError:
                raise ObjectChanged from None
            except Exception as error:
                if not obstore_client.begins_behind_the_end(error):
                    raise
        there = self.entry(key)
        if there is None:
            raise obstore_client.key_missing(self.address, key)
        return Piece(b"", min(there.size, start), "")

    def size(self, key: str) -> int | None:
        found = self.entry(key)
        return None if found is None else found.size

    def entry(self, key: str) -> Entry | None:
        check_key(key)
        with self._translated_errors(key):
            found = self._client.about(key)
        return None if found is None else Entry(key, found["size"], _seconds(found))

    def touch(self, key: str) -> bool:
        found = self.entry(key)
        if found is None:
            return False
        with self._translated_errors(key), contextlib.suppress(FileNotFoundError):
            self._large.touch(key, found.size)
            return True
        return False

    def entries(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        check_prefix(prefix)
        return self._entries_below(prefix, after)

    def folders(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        with self._translated_errors(prefix):
            found = self._client.ask_about("list_with_delimiter", prefix)["common_prefixes"]
        names = {each.rstrip("/").rpartition("/")[2] for each in found}
        return iter(sorted(name for name in names if prefix or not is_hidden(name)))

    def delete(self, prefix: str) -> int:
        check_key(prefix.removesuffix("/"))
        if not prefix.endswith("/"):
            return self._delete_one(prefix)
        doomed = (entry.key for entry in self.entries(prefix))
        if self.address.scheme != "s3":
            return sum(parallel.in_parallel(self, (partial(self._delete_one, key) for key in doomed)))
        chunks = iter(lambda: list(itertools.islice(doomed, _KEYS_PER_DELETE)), [])
        return sum(self._delete_many(keys) for keys in chunks)

    def sweep(self, *, older_than_seconds: float = 86400.0) -> int:
        ends = time.time() - older_than_seconds
        left = [entry.key for entry in self._entries_below(f"{SCRATCH}/", "") if entry.modified < ends]
        return sum(self._delete_one(key) for key in left)

    def _entries_below(self, prefix: str, after: str) -> Iterator[Entry]:
        """List, and continue behind the last key where a page did not arrive and obstore has not asked again."""
        attempt, retry = 0, self._client.retry
        with self._translated_errors(prefix):
            while True:
                try:
                    listed = self._listed(prefix, after)
                    # A data lake of Azure lists "a/b" before "a-b".
                    for entry in sorted(listed) if self.address.scheme == "az" else listed:
                        after, attempt = entry.key, 0
                        yield entry
                    return
                except Exception as error:
                    if attempt + 1 >= retry.attempts or not obstore_client.is_transient(error):
                        raise
                retry.pause(attempt)
                attempt += 1

    def _listed(self, prefix: str, after: str) -> Iterator[Entry]:
        offset = None
        with contextlib.suppress(OptionError):  # not a key: then the whole listing is filtered
            check_key(after.rstrip("/"))
            offset = self._client.full(after.rstrip("/"))
        cut = len(self.address.prefix)
        pages = self._client.ask_about("list", prefix, offset=offset, chunk_size=1000)
        while page := self._client.run(lambda: next(pages, None)):
            for found in page:
                key = found["path"][cut:]
                if key > after and (prefix or not is_hidden(key)):
                    yield Entry(key, found["size"], _seconds(found))

    def _delete_one(self, key: str) -> int:
        with self._translated_errors(key):
            if self.address.scheme == "s3" and self._client.about(key) is None:  # S3 deletes what is not there, too
                return 0
            try:
                self._client.ask_about("delete", key)
            except FileNotFoundError:
                return 0
            return 1

    def _delete_many(self, keys: Sequence[str]) -> int:
        with self._translated_errors(keys[0]):
            self._client.ask_named("delete", [self._client.full(key) for key in keys])
            return len(keys)


class _TranslatedErrors:
    def __init__(self, address: Address, key: str) -> None:
        self._address = address
        self._key = key

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None or isinstance(error, KineticError):
            return
        if obstore_client.is_missing(error) and not obstore_client.names_no_bucket(error):
            raise obstore_client.key_missing(self._address, self._key) from None
        from kinetic._stores import store_errors  # most jobs need none of it

        ours = store_errors.translated(error, self._address, self._key)
        if ours is not None:
            raise ours from None  # its words are in ours, and its pages of debugging in __context__


def _seconds(found: ObjectMeta) -> float:
    """Return the whole second: a listing tells milliseconds, a look at one object does not."""
    return float(int(found["last_modified"].timestamp()))


# ---------------------------------------------------------------------------------------------------- reading in pieces


class Piece(NamedTuple):
    """Some bytes of an object."""

    data: bytes  # empty past the end
    size: int  # of the whole object, in bytes
    version: str  # changes with the object's content


class ObjectChanged(Exception):  # noqa: N818 - an answer, never seen outside
    """The object is no longer the version that was asked for."""


class RangeReader(Protocol):
    """A store that can read a part of an object."""

    url: str

    def piece(self, key: str, start: int, length: int, *, version: str | None = None) -> Piece:
        """Return bytes of an object."""


def read_range(store: RangeReader, key: str, start: int, length: int | None) -> bytes:
    """Return bytes of an object; all of one version."""

    def once() -> bytes:
        wanted = PIECE if length is None else max(1, min(length, PIECE))  # no byte cannot be asked for
        first = store.piece(key, start, wanted)
        end = first.size if length is None else min(first.size, start + length)
        if start + len(first.data) >= end:
            return first.data[: max(0, end - start)]
        whole = io.BytesIO(bytes(end - start))
        with whole.getbuffer() as view:  # also after an error: a buffer with a view on it cannot be freed
            view[: len(first.data)] = first.data

            def keep(at: int, data: bytes) -> None:
                view[at - start : at - start + len(data)] = data

            _read_others(store, key, first, range(start + len(first.data), end, PIECE), end, keep)
        return whole.getvalue()

    return _of_one_version(once, key)


def fetch_file(
    store: RangeReader, key: str, to: os.PathLike[str], received: Callable[[int], object] | None = None
) -> None:
    """Copy an object into a local file, which appears whole or not at all; at most eight pieces are in memory."""
    target = Path(to)
    beside = target.with_name(f".{target.name}.{os.getpid():x}-{os.urandom(4).hex()}.part")

    def once() -> None:
        first = store.piece(key, 0, PIECE)
        with beside.open("wb", buffering=0) as file:

            def keep(at: int, data: bytes) -> None:
                folders.write_at(file.fileno(), data, at)
                if received is not None:
                    received(len(data))

            keep(0, first.data)
            _read_others(store, key, first, range(len(first.data), first.size, PIECE), first.size, keep)

    try:
        _of_one_version(once, key)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


def _read_others(
    store: RangeReader, key: str, first: Piece, places: range, end: int, keep: Callable[[int, bytes], None]
) -> None:
    """Read everything behind the first piece and keep it where it belongs."""

    def read(at: int) -> None:
        wanted = min(PIECE, end - at)
        with _AT_ONCE:
            piece = store.piece(key, at, wanted, version=first.version)
            if len(piece.data) != wanted:
                raise StoreUnreachableError(
                    f"the store returned too little of {key!r}",
                    why=f"{len(piece.data)} bytes from byte {at}, expected {wanted}",
                )
            keep(at, piece.data)

    for _ in parallel.in_parallel(store, (partial(read, at) for at in places), limit=PARALLEL_PIECES):
        pass


def _of_one_version(once: Callable[[], T], key: str) -> T:
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(ObjectChanged):
            return once()
    raise StoreUnreachableError(f"{key!r} was replaced again and again while it was read")

"""A store in a bucket of Cloud Storage or S3, through obstore."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from kinetic._stores import download, obstore_client, parallel, store_errors
from kinetic._stores.addresses import Address, parse
from kinetic._stores.obstore_client import ObstoreClient, is_past_the_end
from kinetic._stores.protocol import SCRATCH, Entry, Source, check_key, check_prefix, is_hidden
from kinetic._stores.retry import Retry
from kinetic._stores.upload import Large, Uploader, body_of
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from obstore import ObjectMeta
PART = 8 << 20  # bytes: what fits into one request
_KEYS_PER_DELETE = 1000  # keys in one request, S3


class BucketStore:
    """Keep objects in a bucket, below a prefix."""

    def __init__(self, url: str, *, retry: Retry | None = None) -> None:
        self.address: Address = parse(url)
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
        return download.read_range(self, key, start, length)

    def fetch(self, key: str, to: os.PathLike[str]) -> None:
        """Copy an object into a local file; see the protocol."""
        download.fetch_file(self, key, to)

    def piece(self, key: str, start: int, length: int, *, version: str | None = None) -> download.Piece:
        """Return a piece of an object; see reading.Pieces."""
        check_key(key)
        options: dict[str, Any] = {"range": (start, start + length)}
        if version is not None:
            options["if_match"] = version
        from obstore.exceptions import PreconditionError

        def read(*names: Any, **options: Any) -> download.Piece:
            import obstore

            result = obstore.get(*names, **options)
            return download.Piece(bytes(result.bytes()), result.meta["size"], result.meta["e_tag"] or "")

        with self._service.ours(key):
            try:
                return self._service.ask(read, self._full(key), options=options)
            except PreconditionError:
                raise download.ObjectChanged from None
            except Exception as error:
                if not is_past_the_end(error):
                    raise
        there = self.entry(key)
        if there is None:
            raise store_errors.key_missing(self.address, key)
        return download.Piece(b"", min(there.size, start), "")

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

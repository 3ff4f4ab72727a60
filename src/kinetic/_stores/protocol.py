"""What every store can do: durable bytes by key."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

Source = bytes | bytearray | memoryview | os.PathLike[str] | Iterable[bytes]


class Entry(NamedTuple):
    """One key as a listing shows it.

    Attributes:
        key: The whole key.
        size: Bytes.
        modified: Seconds since the epoch by the store's own clock, never by ours.
    """

    key: str
    size: int
    modified: float


class Store(Protocol):
    """Durable bytes by key. Keys are relative paths with forward slashes, e.g. ``cpu-train-…/order.json``.

    An object appears whole or not at all, and what was put is durable when ``put`` returns.
    """

    url: str

    @property
    def local(self) -> LocalStore | None:
        """This store with what only a folder of this machine can do, or None for any other store."""

    def put(self, key: str, source: Source, *, if_absent: bool = False) -> bool:
        """Write an object.

        Args:
            key: Where.
            source: Bytes, a file (streamed), or chunks of bytes.
            if_absent: Create only: an object that is there is left as it is.

        Returns:
            True when this call wrote the object, False when ``if_absent`` found one.
        """

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of an object, or a range of them.

        Raises:
            KeyMissingError: Nothing lies under this key.
        """

    def fetch(self, key: str, to: os.PathLike[str]) -> None:
        """Copy an object into a local file, which appears whole or not at all.

        Raises:
            KeyMissingError: Nothing lies under this key.
        """

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None when there is none."""

    def entry(self, key: str) -> Entry | None:
        """Return size and age of an object, or None when there is none."""

    def touch(self, key: str) -> bool:
        """Make an object as young as if it had just been written; False when there is none.

        For what a bucket deletes after a number of days, though it is still needed.
        """

    def entries(self, prefix: str, *, after: str = "") -> Iterator[Entry]:
        """List everything under a prefix that ends in "/" (or is empty), in key order, keys after ``after`` only."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Name what lies directly below a prefix that ends in "/" (or is empty) and holds further keys."""

    def delete(self, prefix: str) -> int:
        """Delete one key, or everything under a prefix that ends in "/".

        ``job-1/`` does not delete ``job-12/``. What is already gone is no error.

        Returns:
            How many objects this call deleted.
        """

    def sweep(self, *, older_than_seconds: float = 86400.0) -> int:
        """Delete what killed writers left half-made and nothing lists; return how many there were.

        In a folder these files may be the only copy of a result: there the local backend recovers or removes them.
        """


class LocalStore(Store, Protocol):
    """A store in a folder of this machine: what it can do beyond a store, because its objects are files.

    Attributes:
        root: The folder.
    """

    root: Path

    def adopt(self, key: str, path: os.PathLike[str], *, if_absent: bool = False) -> bool:
        """Take over a complete file of the same file system as an object: a rename instead of a copy.

        The file is gone when this returns, whatever the answer, and stays when this raises: it may be the only copy of
        what somebody computed. From another file system it is copied.
        """

    def scratch(self) -> Path:
        """Return a folder of this store's file system for files that will be adopted."""

    def reserve(self, size: int) -> int:
        """Keep space on this store's disk: a descriptor of a file without a name, which ends with it."""

    def open(self, key: str) -> int:
        """Return a descriptor of an object's file, for readers that must not hold it whole in memory.

        Raises:
            KeyMissingError: Nothing lies under this key.
        """


def put_file(store: Store, key: str, path: Path, *, if_absent: bool = False) -> bool:
    """Make a complete file an object: by a rename where the store is a folder, else by an upload.

    The file is gone when this returns, whatever the answer, and stays when this raises.

    Returns:
        True when this call wrote the object, False when ``if_absent`` found one.
    """
    if store.local is not None:
        return store.local.adopt(key, path, if_absent=if_absent)
    written = store.put(key, path, if_absent=if_absent)
    path.unlink(missing_ok=True)
    return written


def scratch_folder(store: Store) -> Path:
    """Return a folder for files that will be handed over: of the store's own file system, if it has one."""
    if store.local is not None:
        return store.local.scratch()
    import tempfile  # 4 ms; only for stores that are not folders

    return Path(tempfile.gettempdir())

"""Data that lies in a bucket: one object, or everything under a prefix."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from kinetic._stores import Entry, Store, open_store
from kinetic._stores.parallel import in_parallel
from kinetic._wire.order import DataRef
from kinetic.errors import DataChangedError, DataError, DataMissingError, KeyMissingError

_NO_NAME = frozenset({"", ".", ".."})


class Address(NamedTuple):
    """A place in a bucket: the store to open, and a key or prefix in it."""

    store: str
    key: str


def split(uri: str, *, is_dir: bool) -> Address:
    """Take an address apart.

    ``gs://bucket/a/b`` is the key ``a/b`` of ``gs://bucket``; as a folder, the prefix ``a/b/``. The root of a bucket
    is the empty prefix. An address without a bucket, as ``file:///folder/name``, is a key of the folder it lies in.
    """
    scheme, _, rest = uri.partition("://")
    if rest.startswith("/"):
        above, _, key = rest.rstrip("/").rpartition("/")
        return Address(f"{scheme}://{rest.rstrip('/') or '/'}", "") if is_dir else Address(f"{scheme}://{above}", key)
    bucket, _, key = rest.partition("/")
    if is_dir and key and not key.endswith("/"):
        key += "/"
    return Address(f"{scheme}://{bucket}", key)


def bring_object(ref: DataRef, path: Path) -> None:
    """Fetch one object into a file.

    Raises:
        DataMissingError: There is no such object.
        DataChangedError: It was replaced while it was being fetched.
    """
    address = split(ref.uri, is_dir=False)
    store = open_store(address.store)
    entry = store.entry(address.key)
    if entry is None:
        raise DataMissingError(f"there is no object {ref.uri}", next=_folder_hint(store, ref, address))
    _fetch(store, entry, path, ref)


def bring_prefix(ref: DataRef, path: Path) -> None:
    """Fetch everything under a prefix into a folder, which exists.

    Raises:
        DataMissingError: Nothing lies there: a misspelt prefix must not look like an empty folder.
        DataError: A key cannot be a path inside the folder.
    """
    address = split(ref.uri, is_dir=True)
    store = open_store(address.store)
    found = 0

    def tasks() -> Iterator[Callable[[], object]]:
        nonlocal found
        for entry in store.entries(address.key):
            found += 1
            target = path / _inside(entry.key.removeprefix(address.key), ref)
            if entry.key.endswith("/") or entry.key == address.key:
                _make(target, ref)
            else:
                _make(target.parent, ref)
                yield functools.partial(_fetch, store, entry, target, ref)

    for _ in in_parallel(store, tasks()):
        pass
    if not found:
        raise DataMissingError(
            f"nothing lies under {ref.uri}",
            why="a prefix exists only as long as an object lies below it",
            next="look at the spelling; a single object has no '/' at its end",
        )


def _fetch(store: Store, entry: Entry, target: Path, ref: DataRef) -> None:
    try:
        store.fetch(entry.key, target)
        got = target.stat().st_size
    except KeyMissingError as error:
        raise DataChangedError(f"{entry.key!r} was deleted while {ref.uri} was being fetched") from error
    except Exception as error:
        if target.is_dir():
            raise _file_and_folder(ref, entry.key) from error
        raise
    if got != entry.size:
        raise DataChangedError(
            f"{entry.key!r} changed while {ref.uri} was being fetched",
            why=f"{got} bytes came, the listing said {entry.size}",
            next="submit the job again when nobody writes there",
        )


def _make(folder: Path, ref: DataRef) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise _file_and_folder(ref, folder.name) from error


def _file_and_folder(ref: DataRef, name: str) -> DataError:
    return DataError(
        f"{ref.uri} cannot become a folder",
        why=f"{name!r} is an object, and other objects lie below it",
        next="rename one of them",
    )


def _inside(relative: str, ref: DataRef) -> str:
    """Return the path of a key below its prefix; refuse one that would lead elsewhere."""
    inside = relative.removesuffix("/")
    if (inside and not _NO_NAME.isdisjoint(inside.split("/"))) or "\0" in inside:
        raise DataError(
            f"{ref.uri} cannot become a folder",
            why=f"the key {relative!r} is no path inside it",
            next="rename that object, or name a longer prefix without it",
        )
    return inside


def _folder_hint(store: Store, ref: DataRef, address: Address) -> str:
    if next(iter(store.entries(f"{address.key}/")), None) is not None:
        return (
            f"objects lie below it: for all of them, end it with a slash: kinetic.Data({ref.path.rstrip('/') + '/'!r})"
        )
    return "look at the spelling, and that it is in this bucket"

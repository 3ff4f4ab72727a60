"""Local data as plain objects of a bucket, one for each file, so that it can be mounted there and read in place.

No blobs and no manifest: whoever mounts a bucket sees objects by their names. The marker is written last. Empty
folders and executable bits do not survive here, since neither exists in a bucket.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator

from kinetic._data import reading, sending, telling
from kinetic._data.hashing import Tree
from kinetic._stores.naming import check_key
from kinetic._stores.protocol import Entry, Store
from kinetic._stores.transfer import in_parallel
from kinetic._wire import keys, manifests
from kinetic.errors import DataError, OptionError

_PIECE = 8 << 20


def plant(tree: Tree, store: Store) -> str:
    """Bring every file into the store under its own name, and return the address of the folder or the file.

    Raises:
        DataChangedError: A file is not what was hashed; there is no marker then.
        DataError: A name cannot be the name of an object.
    """
    prefix, marker = keys.data_tree(tree.hash), keys.data_tree_marker(tree.hash)
    entry = store.entry(marker)
    if entry is None or sending.is_old(entry):
        _check_names(tree)
        there = {entry.key: entry for entry in store.entries(prefix)}
        telling.warn_if_large(tree.root, tree.bytes - sum(entry.size for entry in there.values()))
        with telling.Telling("sending", tree.root, len(tree.files), tree.bytes) as told:
            for _ in in_parallel(store, _tasks(tree, store, there, told)):
                pass
        store.put(marker, str(len(tree.files)).encode())
    address = f"{store.url.rstrip('/')}/{prefix}"
    return address if tree.is_dir else address + tree.files[0].relative


def _tasks(tree: Tree, store: Store, there: dict[str, Entry], told: telling.Telling) -> Iterator[Callable[[], None]]:
    for number, file in enumerate(tree.files):
        key = keys.data_tree(tree.hash) + file.relative
        yield functools.partial(_plant_one, tree, number, store, key, there.get(key), told)


def _plant_one(tree: Tree, number: int, store: Store, key: str, entry: Entry | None, told: telling.Telling) -> None:
    file = tree.files[number]
    if entry and entry.size == file.size and (not sending.is_old(entry) or store.touch(key)):
        told.add(files=1, there=file.size)
        return
    if file.size < sending.SMALL_BYTES:
        store.put(key, b"".join(_checked(tree, number)))
    else:
        store.put(key, _checked(tree, number))
    told.add(files=1, done=file.size)


def _checked(tree: Tree, number: int) -> Iterator[bytes]:
    """Give the bytes of a file; the last ones only if all of them are what was hashed."""
    file = tree.files[number]
    descriptor = reading.open_file(file)
    try:
        found, last = manifests.file_digest(file.relative), b""
        while piece := reading.read_piece(descriptor, _PIECE, file):
            found.update(piece)
            yield last
            last = piece
        sending.check(tree, number, found.hexdigest())
        yield last
    finally:
        os.close(descriptor)


def _check_names(tree: Tree) -> None:
    for file in tree.files:
        try:
            check_key(keys.data_tree(tree.hash) + file.relative)
        except OptionError as error:
            raise DataError(
                f"a file cannot be mounted, since no object of a bucket can have its name: {file.relative!r}",
                why=error.why,
                next="rename it, or leave out fuse=True",
            ) from error

"""Files on their way into the store as blobs: small ones packed together, large ones in chunks, each looked for first.

Everything that is read here is digested again: a blob, and in the end the manifest, never says more than what was
hashed. Blobs are named by their content, so whatever a killed process has sent is found again, and two processes that
send the same tree send the same blobs.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from kinetic._blobs.scan import File
from kinetic._data import reading
from kinetic._data.hashing import Tree
from kinetic._data.telling import Telling
from kinetic._stores.protocol import Entry, Store
from kinetic._stores.transfer import in_parallel
from kinetic._wire import digests, keys, manifests
from kinetic._wire.manifests import Part

SMALL_BYTES = 8 << 20  # a file below this lies in a pack
PACK_BYTES = 16 << 20
CHUNK_BYTES = 64 << 20
OLD_SECONDS = 7 * 24 * 3600.0  # buckets often delete after 30 days: what is promised anew must be younger than this
_CHUNKS_IN_MEMORY = 5


def send(tree: Tree, held: Mapping[str, manifests.File], store: Store, told: Telling) -> tuple[manifests.File, ...]:
    """Bring every file of a tree into the store, except those that are held there.

    Args:
        tree: The files and their digests.
        held: Files by their digests whose blobs are known to lie in the store.
        store: Where to.
        told: Learns how far it has come.

    Returns:
        The files as a manifest says them, in the order of the tree.

    Raises:
        DataChangedError: A file is not what was hashed.
    """
    return _Sending(tree, store, told).run(held)


def is_old(entry: Entry) -> bool:
    """Say whether an object is so old that a promise about it must make it young again."""
    return abs(time.time() - entry.modified) > OLD_SECONDS  # from the future: a clock is wrong, so rather once more


def holds(store: Store, blob: str, size: int) -> bool:
    """Say whether a blob of at least so many bytes is there, and make it young again if it has grown old."""
    entry = store.entry(keys.data_blob(blob))
    return entry is not None and entry.size >= size and (not is_old(entry) or store.touch(entry.key))


def check(tree: Tree, number: int, found: str) -> None:
    """Refuse bytes of a file that are not what was hashed.

    Raises:
        DataChangedError: Their digest is another one.
    """
    if found != tree.digest(number):
        raise reading.changed(tree.files[number], "its content is not what was hashed")


class _Sending:
    """One tree on its way into one store. ``_parts`` is filled by many threads, each its own place of it."""

    def __init__(self, tree: Tree, store: Store, told: Telling) -> None:
        self._tree = tree
        self._store = store
        self._told = told
        self._parts: dict[int, list[Part]] = {}
        self._buffers = threading.BoundedSemaphore(_CHUNKS_IN_MEMORY)

    def run(self, held: Mapping[str, manifests.File]) -> tuple[manifests.File, ...]:
        numbers = range(len(self._tree.files))
        kept = {number: file for number in numbers if (file := held.get(self._tree.digest(number)))}
        for file in kept.values():
            self._told.add(files=1, there=file.size)
        for _ in in_parallel(self._store, self._tasks([number for number in numbers if number not in kept])):
            pass
        return tuple(self._described(number, kept.get(number)) for number in numbers)

    def _described(self, number: int, kept: manifests.File | None) -> manifests.File:
        file = self._tree.files[number]
        if kept is not None:
            return kept._replace(executable=file.executable)
        parts = tuple(self._parts.get(number, ()))
        packed = file.size < SMALL_BYTES
        return manifests.File(file.relative, file.executable, file.size, self._tree.digest(number), packed, parts)

    def _tasks(self, numbers: Sequence[int]) -> Iterator[Callable[[], None]]:
        files = self._tree.files
        for group in _groups(files, [number for number in numbers if 0 < files[number].size < SMALL_BYTES]):
            yield functools.partial(self._send_pack, group)
        for number in numbers:
            if files[number].size >= SMALL_BYTES:
                yield from self._chunks(number)
            elif files[number].size == 0:
                check(self._tree, number, manifests.file_digest(files[number].relative).hexdigest())
                self._told.add(files=1)

    def _send_pack(self, numbers: Sequence[int]) -> None:
        data, places = bytearray(), []
        for number in numbers:
            places.append((number, len(data)))
            data += self._whole(number)
        blob = self._place(data)
        for number, offset in places:
            self._parts[number] = [Part(blob, offset, self._tree.files[number].size)]
        self._told.add(files=len(numbers))

    def _whole(self, number: int) -> bytes:
        """Read a small file, and make sure that it is what was hashed."""
        file = self._tree.files[number]
        descriptor = reading.open_file(file)
        try:
            data = reading.read_piece(descriptor, file.size + 1, file)  # one more: it may have grown
        finally:
            os.close(descriptor)
        found = manifests.file_digest(file.relative)
        found.update(data)
        check(self._tree, number, found.hexdigest())
        return data

    def _chunks(self, number: int) -> Iterator[Callable[[], None]]:
        """Read a large file once, from front to end, and hand out its chunks as tasks."""
        file = self._tree.files[number]
        starts = range(0, file.size, CHUNK_BYTES)
        self._parts[number] = [Part("", 0, 0)] * len(starts)
        running = manifests.file_digest(file.relative)
        descriptor = reading.open_file(file)
        try:
            for index, start in enumerate(starts):
                self._buffers.acquire()
                data = reading.read_piece(descriptor, min(CHUNK_BYTES, file.size - start), file)
                running.update(data)
                yield functools.partial(self._send_chunk, number, index, data)
            running.update(reading.read_piece(descriptor, 1, file))  # it may have grown
        finally:
            os.close(descriptor)
        check(self._tree, number, running.hexdigest())
        self._told.add(files=1)

    def _send_chunk(self, number: int, index: int, data: bytes) -> None:
        try:
            self._parts[number][index] = Part(self._place(data), 0, len(data))
        finally:
            self._buffers.release()

    def _place(self, data: bytes | bytearray) -> str:
        """Put a blob where it belongs unless it is there, and return its name."""
        name = digests.of_bytes(data)
        key = keys.data_blob(name)
        entry = self._store.entry(key)
        if entry is not None and entry.size == len(data) and (not is_old(entry) or self._store.touch(key)):
            self._told.add(there=len(data))
        else:  # not if_absent: over one of another size, which was damaged; over an equal one it does no harm
            self._store.put(key, data)
            self._told.add(done=len(data))
        return name


def _groups(files: Sequence[File], numbers: Sequence[int]) -> Iterator[list[int]]:
    """Group small files into packs: the same files, the same packs."""
    group: list[int] = []
    size = 0
    for number in numbers:
        if group and size + files[number].size > PACK_BYTES:
            yield group
            group, size = [], 0
        group.append(number)
        size += files[number].size
    if group:
        yield group

"""Files on their way into the store as blobs: small ones packed together, large ones in chunks, each looked for first.

Everything that is read here is digested again: a blob, and in the end the manifest, never says more than what was
hashed. Blobs are named by their content, so whatever a killed process has sent is found again, and two processes that
send the same tree send the same blobs.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kinetic._blobs import file_tree
from kinetic._blobs.file_tree import File, TransferProgress, Tree
from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Entry, Store, check_key
from kinetic._wire import digests, keys, trees
from kinetic._wire.trees import Manifest, ManifestFile, Part
from kinetic.errors import DataError, IntegrityError, KeyMissingError, OptionError

SMALL_BYTES = 8 << 20  # a file below this lies in a pack
PACK_BYTES = 16 << 20
CHUNK_BYTES = 64 << 20
OLD_SECONDS = 7 * 24 * 3600.0  # buckets often delete after 30 days: what is promised anew must be younger than this
_CHUNKS_IN_MEMORY = 5


def send_blobs(
    tree: Tree, held: Mapping[str, trees.ManifestFile], store: Store, told: TransferProgress
) -> tuple[trees.ManifestFile, ...]:
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
    return _Upload(tree, store, told).run(held)


def is_old(entry: Entry) -> bool:
    """Say whether an object is so old that a promise about it must make it young again."""
    return abs(time.time() - entry.modified) > OLD_SECONDS  # from the future: a clock is wrong, so rather once more


def holds_blob(store: Store, blob: str, size: int) -> bool:
    """Say whether a blob of at least so many bytes is there, and make it young again if it has grown old."""
    entry = store.entry(keys.data_blob(blob))
    return entry is not None and entry.size >= size and (not is_old(entry) or store.touch(entry.key))


def check_digest(tree: Tree, number: int, found: str) -> None:
    """Refuse bytes of a file that are not what was hashed.

    Raises:
        DataChangedError: Their digest is another one.
    """
    if found != tree.digest(number):
        raise file_tree.changed_error(tree.files[number], "its content is not what was hashed")


class _Upload:
    """One tree on its way into one store. ``_parts`` is filled by many threads, each its own place of it."""

    def __init__(self, tree: Tree, store: Store, told: TransferProgress) -> None:
        self._tree = tree
        self._store = store
        self._told = told
        self._parts: dict[int, list[Part]] = {}
        self._buffers = threading.BoundedSemaphore(_CHUNKS_IN_MEMORY)

    def run(self, held: Mapping[str, trees.ManifestFile]) -> tuple[trees.ManifestFile, ...]:
        numbers = range(len(self._tree.files))
        kept = {number: file for number in numbers if (file := held.get(self._tree.digest(number)))}
        for file in kept.values():
            self._told.add(files=1, there=file.size)
        for _ in in_parallel(self._store, self._tasks([number for number in numbers if number not in kept])):
            pass
        return tuple(self._described(number, kept.get(number)) for number in numbers)

    def _described(self, number: int, kept: trees.ManifestFile | None) -> trees.ManifestFile:
        file = self._tree.files[number]
        if kept is not None:
            return kept._replace(executable=file.executable)
        parts = tuple(self._parts.get(number, ()))
        packed = file.size < SMALL_BYTES
        return trees.ManifestFile(file.relative, file.executable, file.size, self._tree.digest(number), packed, parts)

    def _tasks(self, numbers: Sequence[int]) -> Iterator[Callable[[], None]]:
        files = self._tree.files
        for group in _groups(files, [number for number in numbers if 0 < files[number].size < SMALL_BYTES]):
            yield functools.partial(self._send_pack, group)
        for number in numbers:
            if files[number].size >= SMALL_BYTES:
                yield from self._chunks(number)
            elif files[number].size == 0:
                check_digest(self._tree, number, trees.file_digest(files[number].relative).hexdigest())
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
        descriptor = file_tree.open_file(file)
        try:
            data = file_tree.read_piece(descriptor, file.size + 1, file)  # one more: it may have grown
        finally:
            os.close(descriptor)
        found = trees.file_digest(file.relative)
        found.update(data)
        check_digest(self._tree, number, found.hexdigest())
        return data

    def _chunks(self, number: int) -> Iterator[Callable[[], None]]:
        """Read a large file once, from front to end, and hand out its chunks as tasks."""
        file = self._tree.files[number]
        starts = range(0, file.size, CHUNK_BYTES)
        self._parts[number] = [Part("", 0, 0)] * len(starts)
        running = trees.file_digest(file.relative)
        descriptor = file_tree.open_file(file)
        try:
            for index, start in enumerate(starts):
                self._buffers.acquire()
                data = file_tree.read_piece(descriptor, min(CHUNK_BYTES, file.size - start), file)
                running.update(data)
                yield functools.partial(self._send_chunk, number, index, data)
            running.update(file_tree.read_piece(descriptor, 1, file))  # it may have grown
        finally:
            os.close(descriptor)
        check_digest(self._tree, number, running.hexdigest())
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


_LISTED = 8  # manifests of one content differ only in how it was packed; nobody needs more than a few of them
_MANY_PACKS = 16


class FoundManifest(NamedTuple):
    """A manifest of the store, and which of its blobs are gone."""

    sha256: str
    manifest: Manifest
    gone: frozenset[str]


def read_manifest(store: Store, content_hash: str, sha256: str) -> Manifest | None:
    """Return a manifest, or None when it is gone or damaged."""
    try:
        return Manifest.from_bytes(store.get(keys.data_manifest(content_hash, sha256)), sha256=sha256)
    except (KeyMissingError, IntegrityError):
        return None


def agreeing_manifests(tree: Tree, store: Store) -> Iterator[FoundManifest]:
    """Find manifests that say exactly this tree; old ones are made young, or are found wanting."""
    for entry in list(itertools.islice(store.entries(keys.data_manifests(tree.hash)), _LISTED)):
        sha256 = entry.key.rpartition("/")[2]
        manifest = read_manifest(store, tree.hash, sha256)
        if manifest and _says(manifest, tree):
            gone = _freshen(entry.key, manifest, store) if is_old(entry) else frozenset()
            yield FoundManifest(sha256, manifest, gone)


def files_held(tree: Tree, before: Manifest, store: Store) -> dict[str, ManifestFile]:
    """Return the files of a manifest that the tree holds too and whose blobs are all there, by their digests."""
    wanted = {tree.digest(number) for number in range(len(tree.files))}
    files = _gathered([file for file in before.files if file.digest in wanted and file.parts])
    sizes = before._replace(files=tuple(files)).blobs()
    there = _blobs_where(store, sizes, lambda blob: holds_blob(store, blob, sizes[blob]))
    return {file.digest: file for file in files if there.issuperset(part.blob for part in file.parts)}


def _says(manifest: Manifest, tree: Tree) -> bool:
    said = [(file.path, file.executable, file.size, file.digest) for file in manifest.files]
    meant = [(file.relative, file.executable, file.size, tree.digest(number)) for number, file in enumerate(tree.files)]
    return manifest.is_dir == tree.is_dir and said == meant and sorted(manifest.folders) == sorted(tree.folders)


def _freshen(key: str, manifest: Manifest, store: Store) -> frozenset[str]:
    """Make the blobs young again, and then what promises them; return the blobs that are gone."""
    blobs = manifest.blobs()
    gone = frozenset(blobs) - _blobs_where(store, blobs, lambda blob: store.touch(keys.data_blob(blob)))
    if not gone and not store.touch(key):
        store.put(key, manifest.to_bytes())
    return gone


def _gathered(files: Sequence[ManifestFile]) -> Sequence[ManifestFile]:
    """Leave out files of packs that are mostly waste by now, once there are so many packs that a job would feel it."""
    live = Counter[str]()
    for file in files:
        if file.packed:
            live[file.parts[0].blob] += file.size
    needed = -(-live.total() // PACK_BYTES)
    if len(live) <= 2 * needed + _MANY_PACKS:
        return files
    return [file for file in files if not file.packed or live[file.parts[0].blob] >= PACK_BYTES // 2]


def _blobs_where(store: Store, blobs: Iterable[str], question: Callable[[str], bool]) -> set[str]:
    """Return the blobs for which the answer is yes."""

    def asked(blob: str) -> str | None:
        return blob if question(blob) else None

    return {blob for blob in in_parallel(store, (functools.partial(asked, blob) for blob in blobs)) if blob}


_PIECE = 8 << 20


def upload_plain_objects(tree: Tree, store: Store) -> str:
    """Bring every file into the store under its own name, and return the address of the folder or the file.

    Raises:
        DataChangedError: A file is not what was hashed; there is no marker then.
        DataError: A name cannot be the name of an object.
    """
    prefix, marker = keys.data_tree(tree.hash), keys.data_tree_marker(tree.hash)
    entry = store.entry(marker)
    if entry is None or is_old(entry):
        _check_names(tree)
        there = {entry.key: entry for entry in store.entries(prefix)}
        file_tree.warn_if_large(tree.root, tree.bytes - sum(entry.size for entry in there.values()))
        with file_tree.TransferProgress("sending", tree.root, len(tree.files), tree.bytes) as told:
            for _ in in_parallel(store, _object_tasks(tree, store, there, told)):
                pass
        store.put(marker, str(len(tree.files)).encode())
    address = f"{store.url.rstrip('/')}/{prefix}"
    return address if tree.is_dir else address + tree.files[0].relative


def _object_tasks(
    tree: Tree, store: Store, there: dict[str, Entry], told: file_tree.TransferProgress
) -> Iterator[Callable[[], None]]:
    for number, file in enumerate(tree.files):
        key = keys.data_tree(tree.hash) + file.relative
        yield functools.partial(_upload_object, tree, number, store, key, there.get(key), told)


def _upload_object(
    tree: Tree, number: int, store: Store, key: str, entry: Entry | None, told: file_tree.TransferProgress
) -> None:
    file = tree.files[number]
    if entry and entry.size == file.size and (not is_old(entry) or store.touch(key)):
        told.add(files=1, there=file.size)
        return
    if file.size < SMALL_BYTES:
        store.put(key, b"".join(_checked(tree, number)))
    else:
        store.put(key, _checked(tree, number))
    told.add(files=1, done=file.size)


def _checked(tree: Tree, number: int) -> Iterator[bytes]:
    """Give the bytes of a file; the last ones only if all of them are what was hashed."""
    file = tree.files[number]
    descriptor = file_tree.open_file(file)
    try:
        found, last = trees.file_digest(file.relative), b""
        while piece := file_tree.read_piece(descriptor, _PIECE, file):
            found.update(piece)
            yield last
            last = piece
        check_digest(tree, number, found.hexdigest())
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

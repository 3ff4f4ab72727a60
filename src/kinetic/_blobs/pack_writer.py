"""Writing packs: blobs go in as they come, finished packs go to the store; see ``_wire/trees`` for the format."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from kinetic._blobs.file_tree import is_settled, stamp_of
from kinetic._stores.protocol import Store, put_file
from kinetic._wire import folders, trees
from kinetic.errors import PackingError, StoreError

COMPRESS_BELOW = 4 << 20  # a pack that stays under this is compressed: then it is an edit, not a first time
_FLUSH = 1 << 20
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Finished(NamedTuple):
    """A pack that lies complete in a scratch file."""

    id: str
    path: str
    size: int
    blobs: list[trees.Blob]
    listed: bytes  # the index, as the pack holds it


class PackWriter:
    """Write one pack into a scratch file, never holding more than a few megabytes."""

    def __init__(self, folder: str) -> None:
        self.path = f"{folder}/{os.getpid():x}-{os.urandom(8).hex()}.pack"
        self._descriptor = -1
        self._blobs: list[trees.Blob] = []
        self._waiting: list[tuple[bytes, bytes]] | None = []  # small so far: may be compressed at the end
        self._waiting_size = 0
        self._buffer: list[bytes] = [trees.pack_header()]
        self._buffered = len(self._buffer[0])
        self.size = self._buffered

    def add(self, digest: bytes, data: bytes) -> None:
        """Add the content of a file that fits into memory."""
        if self._waiting is None:
            self._append(digest, data, len(data), 0)
            return
        self._waiting.append((digest, data))
        self._waiting_size += len(data)
        if self._waiting_size >= COMPRESS_BELOW:
            self._release(compress=False)

    def add_node(self, digest: bytes, data: bytes) -> None:
        """Add a node; nodes shrink well, and few of them are large."""
        if self._waiting is not None:
            self.add(digest, data)
        else:
            self._append_compressed(digest, data)

    def begin(self) -> int:
        """Make room for a file that is written piece by piece, and return where it begins."""
        self._release(compress=False)
        self._flush()
        return self.size

    def write(self, piece: bytes) -> None:
        """Write a piece of the file that was begun."""
        self._write(piece)
        self.size += len(piece)

    def keep(self, start: int, digest: bytes) -> None:
        """End the file that was begun."""
        length = self.size - start
        self._blobs.append(trees.Blob(digest, start, length, length, 0))

    def drop(self, start: int) -> None:
        """Take back the file that was begun."""
        os.ftruncate(self._descriptor, start)
        os.lseek(self._descriptor, start, os.SEEK_SET)
        self.size = start

    def finish(self) -> Finished | None:
        """Complete the pack; None when nothing was put into it."""
        self._release(compress=True)
        if not self._blobs:
            self.discard()
            return None
        pack, end = trees.pack_end(self._blobs)
        self._buffer.append(end)
        self._flush()
        os.close(self._descriptor)
        self._descriptor = -1
        return Finished(pack, self.path, self.size + len(end), self._blobs, end[: -trees.FOOTER_BYTES])

    def discard(self) -> None:
        """Leave nothing behind."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _release(self, *, compress: bool) -> None:
        """Decide about what waited: compressed when it is all there is."""
        waiting, self._waiting = self._waiting, None
        for digest, data in waiting or ():
            if compress:
                self._append_compressed(digest, data)
            else:
                self._append(digest, data, len(data), 0)

    def _append_compressed(self, digest: bytes, data: bytes) -> None:
        import zlib  # not where nothing is sent

        squeezed = zlib.compress(data, 1)
        smaller = len(squeezed) < len(data)
        self._append(digest, squeezed if smaller else data, len(data), int(smaller))

    def _append(self, digest: bytes, data: bytes, raw: int, compressed: int) -> None:
        self._blobs.append(trees.Blob(digest, self.size, len(data), raw, compressed))
        self._buffer.append(data)
        self.size += len(data)
        self._buffered += len(data)
        if self._buffered >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        self._write(b"".join(self._buffer))
        self._buffer.clear()
        self._buffered = 0

    def _write(self, data: bytes) -> None:
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self.path, _NEW, 0o600)
            folders.write_all(self._descriptor, data)
        except OSError as error:
            raise _unwritable(error, self.path) from error


def _unwritable(error: OSError, path: str) -> PackingError | StoreError:
    if error.errno in _FULL:
        return StoreError(
            "the disk is full: the project cannot be packed",
            why=f"writing {path}: {error.strerror}",
            next="free some space there, or point KINETIC_HOME at a larger disk",
            code="store-full",
        )
    return PackingError("the project cannot be packed", why=f"writing {path}: {error.strerror}", code="packing-scratch")


MAX_IN_MEMORY = 4 << 20  # files up to this size are read into memory
_PIECE = 1 << 20
_ATTEMPTS = 3


class ReadFile(NamedTuple):
    """A file that was read.

    Attributes:
        digest: SHA-256 of exactly the bytes that were read.
        data: These bytes, or None when they went into the pack already.
        size: How many.
        stamp: The file's stamp, before and after reading; "" when the file did not hold still.
        settled: It had held still for so long that an equal stamp will mean equal content.
    """

    digest: bytes
    data: bytes | None
    size: int
    stamp: str
    settled: bool


def read_into_pack(open_file: Callable[[], int], writer: PackWriter, is_held: Callable[[bytes], bool]) -> ReadFile:
    """Read a file; a large one goes straight into the pack unless its content is held already.

    A file that changes while it is read is read again; one that never holds still is taken as it was.

    Raises:
        OSError: It cannot be read, is gone, or is no longer a file.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        taken = _read_once(open_file, writer, is_held, last=attempt == _ATTEMPTS)
        if taken.stamp:
            break
    return taken


def _read_once(
    open_file: Callable[[], int], writer: PackWriter, is_held: Callable[[bytes], bool], *, last: bool
) -> ReadFile:
    read_at = time.time_ns()
    descriptor = open_file()
    try:
        before = os.fstat(descriptor)
        settled = is_settled(before, read_at)
        if before.st_size > MAX_IN_MEMORY:
            digest, size, stamp = _stream(descriptor, before, writer, is_held, last=last)
            return ReadFile(digest, None, size, stamp, settled)
        data = _up_to(descriptor, before.st_size)
        stamp = _stamp_if_still(descriptor, before, len(data))
        return ReadFile(hashlib.sha256(data).digest(), data, len(data), stamp, settled)
    finally:
        os.close(descriptor)


def _stream(
    descriptor: int, before: os.stat_result, writer: PackWriter, is_held: Callable[[bytes], bool], *, last: bool
) -> tuple[bytes, int, str]:
    """Pass a large file on into the pack, and take it back if it did not hold still or is held already."""
    start = writer.begin()
    kept = False
    try:
        digest, size = hashlib.sha256(), 0
        while size < before.st_size and (piece := os.read(descriptor, min(_PIECE, before.st_size - size))):
            digest.update(piece)
            writer.write(piece)
            size += len(piece)
        stamp = _stamp_if_still(descriptor, before, size)
        kept = bool(stamp or last) and not is_held(digest.digest())
        return digest.digest(), size, stamp
    finally:
        if kept:
            writer.keep(start, digest.digest())
        else:
            writer.drop(start)


def _up_to(descriptor: int, size: int) -> bytes:
    data = os.read(descriptor, size)
    while len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data


def _stamp_if_still(descriptor: int, before: os.stat_result, size: int) -> str:
    stamp = stamp_of(before)
    return stamp if size == before.st_size and stamp == stamp_of(os.fstat(descriptor)) else ""


_LEFT_BEHIND_SECONDS = 24 * 3600  # a scratch file this old belongs to a process that was killed


class PackSender:
    """Put blobs into packs, and packs into the store.

    Attributes:
        held: For each digest in the store, the pack that holds it; grows as packs are sent.
        indexes: The index of each pack that was written here.
        sizes: The size of each of them in bytes.
        sent_bytes: What the store did not have before.
    """

    def __init__(self, store: Store, there: Mapping[str, int], held: dict[bytes, str], cache: str) -> None:
        self._store = store
        self._there = there
        self._folder = cache if store.local is None else os.fspath(store.local.scratch())
        self._writer: PackWriter | None = None
        self._placed: set[bytes] = set()
        self.held = held
        self.indexes: dict[str, bytes] = {}
        self.sizes: dict[str, int] = {}
        self.sent_bytes = 0

    def holds(self, digest: bytes) -> bool:
        """Say whether a blob is in the store, or on its way."""
        return digest in self.held or digest in self._placed

    def writer(self) -> PackWriter:
        """Return the pack that is being filled."""
        if self._writer is None:
            self._prepare()
            self._writer = PackWriter(self._folder)
        return self._writer

    def add(self, read: ReadFile) -> None:
        """Add a file that was read; a large one lies in the pack already."""
        if read.data is not None and not self.holds(read.digest):
            self.writer().add(read.digest, read.data)
        if read.digest not in self.held:
            self._placed.add(read.digest)
        if self.writer().size >= trees.SPLIT_BYTES:
            self.close()

    def add_node(self, digest: bytes, data: bytes) -> bytes:
        """Add a folder, unless it is held already; return its digest."""
        if not self.holds(digest):
            self.writer().add_node(digest, data)
            self._placed.add(digest)
        return digest

    def close(self) -> None:
        """Complete the pack that is being filled and put it into the store."""
        if self._writer is None:
            return
        finished = self._writer.finish()
        if finished:
            self._deliver(finished)
            self.indexes[finished.id] = finished.listed
            self.sizes[finished.id] = finished.size
            self.held.update((blob.digest, finished.id) for blob in finished.blobs)
        self._placed.clear()
        self._writer = None

    def discard(self) -> None:
        """Leave no unfinished pack behind."""
        if self._writer is not None:
            self._writer.discard()

    def _deliver(self, pack: Finished) -> None:
        """Hand a pack over; one that is there with another size was damaged, and is replaced."""
        key, size_there = trees.pack_key(pack.id), self._there.get(trees.pack_key(pack.id))
        try:
            if size_there == pack.size:
                return
            if put_file(self._store, key, Path(pack.path), if_absent=size_there is None):
                self.sent_bytes += pack.size
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(pack.path)

    def _prepare(self) -> None:
        """Make the scratch folder, and sweep what killed processes left in it."""
        folders.make(self._folder)
        before = time.time() - _LEFT_BEHIND_SECONDS
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".pack"):
                    with contextlib.suppress(OSError):
                        if entry.stat().st_mtime < before:
                            os.unlink(entry.path)

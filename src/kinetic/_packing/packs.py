"""Writing packs: blobs go in as they come, finished packs go to the store; see ``_wire/trees`` for the format."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import NamedTuple

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

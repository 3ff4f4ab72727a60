"""From the blobs of a store to verified files: whole packs once, large files chunk by chunk into place.

A file is written beside its place and renamed when it is complete and right. What is beside has the name of its
digest: a download that was killed in the middle of a large file goes on with the chunks that are missing.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kinetic._runner.data import copying
from kinetic._stores.transfer import in_parallel, lanes
from kinetic._wire import folders, keys
from kinetic._wire.manifests import File, Part, file_digest
from kinetic.errors import DataMissingError, IntegrityError, KeyMissingError

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store

_MEMORY = 256 << 20  # bytes under way at once, as far as the size of one blob allows
_CHUNK = 1 << 20


class Shelf(NamedTuple):
    """Where files shall lie.

    Attributes:
        path: The place of a file; its folder exists.
        mode: The mode of a file.
        parts: A folder on the same file system for what is not complete.
    """

    path: Callable[[File], str]
    mode: Callable[[File], int]
    parts: Path


def fetch(store: Store, files: Sequence[File], shelf: Shelf) -> None:
    """Fetch files and put them in their places, each verified.

    Raises:
        DataMissingError: A blob is not in the store.
        IntegrityError: Bytes are not what was promised; the message names the file.
        OSError: The disk is full or cannot be written; what was half-written is gone.
    """
    packs: dict[str, list[File]] = {}
    large = []
    for file in files:
        if file.packed and file.parts:
            packs.setdefault(file.parts[0].blob, []).append(file)
        else:
            large.append(file)
    biggest = max(
        [_span(each)[1] for each in packs.values()] + [part.length for each in large for part in each.parts] + [1]
    )
    growing = [_Growing(file, shelf) for file in large]
    many = max(1, min(lanes(store), _MEMORY // biggest))
    try:
        for _ in in_parallel(store, _tasks(store, packs, growing, shelf), limit=many):
            pass
    except Exception as error:  # nothing runs any more
        for each in growing:
            each.give_up(keep=not isinstance(error, OSError))  # a full disk must not stay full of our halves
        if isinstance(error, KeyMissingError):
            raise DataMissingError(
                "data of this job is not in the store any more",
                why=error.why or str(error.what),
                next="submit the job again: what is missing is sent anew",
            ) from error
        raise


def _tasks(
    store: Store, packs: dict[str, list[File]], large: Sequence[_Growing], shelf: Shelf
) -> Iterator[Callable[[], object]]:
    for blob, files in packs.items():
        yield functools.partial(_unpack, store, blob, files, shelf)
    for growing in large:
        if not growing.file.parts:
            yield functools.partial(_place, growing.file, b"", shelf)
        at = 0
        for part in growing.file.parts:
            yield functools.partial(growing.add, store, part, at)
            at += part.length


def _span(files: Sequence[File]) -> tuple[int, int]:
    """Return from where in their pack some files lie, and how many bytes that is."""
    start = min(file.parts[0].offset for file in files)
    return start, max(file.parts[0].offset + file.size for file in files) - start


def _unpack(store: Store, blob: str, files: Sequence[File], shelf: Shelf) -> None:
    start, length = _span(files)
    data = memoryview(store.get(keys.data_blob(blob), start=start, length=length))
    for file in files:
        offset = file.parts[0].offset - start
        _place(file, data[offset : offset + file.size], shelf)


def _place(file: File, data: bytes | memoryview, shelf: Shelf) -> None:
    digest = file_digest(file.path)
    digest.update(data)
    if digest.hexdigest() != file.digest:
        raise _not_right(file)
    part = shelf.parts / f"{file.digest}-{os.getpid():x}-{os.urandom(4).hex()}"  # small: nothing to go on with
    try:
        with open(part, "xb", buffering=0, opener=folders.opener) as writing:
            copying.write_at(writing.fileno(), data, 0)
            os.fchmod(writing.fileno(), shelf.mode(file))
        part.replace(shelf.path(file))
    finally:
        part.unlink(missing_ok=True)


def _part(file: File, shelf: Shelf) -> Path:
    return shelf.parts / f"{file.digest}{'x' * file.executable}"


def _not_right(file: File) -> IntegrityError:
    return IntegrityError(
        f"{file.path!r} is not what was submitted; it was not used",
        why="its bytes in the store have another SHA-256 than the manifest says",
        next="submit the job again: what is damaged is sent anew; if that does not help, see who writes to the store",
    )


class _Growing:
    """A large file whose chunks arrive in any order, on several threads."""

    def __init__(self, file: File, shelf: Shelf) -> None:
        self.file, self._shelf = file, shelf
        self._left = len(file.parts)
        self._lock = threading.Lock()  # guards the next two, and _left
        self._descriptor = -1
        self._goes_on = False

    def add(self, store: Store, part: Part, at: int) -> None:
        descriptor = self._open()
        is_there = self._goes_on and _digest_of(descriptor, at, part.length) == part.blob
        if not is_there and not _copied_here(store, part, descriptor, at):
            data = store.get(keys.data_blob(part.blob))
            if hashlib.sha256(data).hexdigest() != part.blob or len(data) < part.offset + part.length:
                raise _not_right(self.file)
            copying.write_at(descriptor, memoryview(data)[part.offset : part.offset + part.length], at)
        with self._lock:
            self._left -= 1
            if self._left:
                return
        with contextlib.suppress(FileNotFoundError):  # another job's manifest with the same file was faster
            _part(self.file, self._shelf).replace(self._shelf.path(self.file))
        os.fchmod(descriptor, self._shelf.mode(self.file))  # not before: a part must stay open to who goes on with it
        self.give_up()

    def give_up(self, *, keep: bool = True) -> None:
        """Close the file, and remove what is there of it unless it is to be gone on with."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if not keep:
            _part(self.file, self._shelf).unlink(missing_ok=True)

    def _open(self) -> int:
        with self._lock:
            if self._descriptor < 0:
                path = _part(self.file, self._shelf)
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                self._goes_on = os.fstat(self._descriptor).st_size == self.file.size
                os.ftruncate(self._descriptor, self.file.size)
            return self._descriptor


def _copied_here(store: Store, part: Part, descriptor: int, at: int) -> bool:
    """Copy a chunk inside the kernel when the store lies in a folder of this machine; False when it does not go.

    What was copied is read back and verified, and not what lies in the store, which may change in the meantime.
    """
    if store.local is None or part.offset:
        return False
    reading = store.local.open(keys.data_blob(part.blob))
    try:
        if os.fstat(reading).st_size != part.length:
            return False
        return (
            copying.copy_range(reading, descriptor, part.length, start=0, at=at)
            and _digest_of(descriptor, at, part.length) == part.blob
        )
    finally:
        os.close(reading)


def _digest_of(descriptor: int, start: int, length: int) -> str:
    digest = hashlib.sha256()
    done = 0
    while done < length and (piece := os.pread(descriptor, min(_CHUNK, length - done), start + done)):
        digest.update(piece)
        done += len(piece)
    return digest.hexdigest()

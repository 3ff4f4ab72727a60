"""From the blobs of a store to verified files, for projects and for data.

Where others may see the files, each is written beside its place and renamed when it is complete and right. What is
beside has the name of its digest, so a large download that was killed continues with the chunks that are missing.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._stores.parallel import in_parallel, parallelism
from kinetic._wire import NamedTuple, folders, keys, order, python_runtime
from kinetic._wire.order import ManifestFile, Part
from kinetic.errors import IntegrityError, KeyMissingError

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_MEMORY = 256 << 20  # bytes in transfer at once, as far as the size of one blob allows
_CHUNK = 1 << 20
_LANES = 4  # each holds a chunk in memory
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Destination(NamedTuple):
    """Where files are written."""

    path: Callable[[ManifestFile], str]  # the place of a file; its folder exists
    mode: Callable[[ManifestFile], int]  # the mode of a file
    # a folder on the same file system for what is not complete; None where no other process sees the files yet
    parts: Path | None


def read_blob(store: Store, blob: str, what: str) -> bytes:
    """Return the verified bytes of a blob; ``what`` names them in the message."""
    data = store.get(keys.data_blob(blob))
    if blob.endswith(order.COMPRESSED):
        data = order.inflate(data)
    if hashlib.sha256(data).hexdigest() != blob.removesuffix(order.COMPRESSED):
        raise damaged_error(what, blob)
    return data


def damaged_error(what: str, blob: str) -> IntegrityError:
    """Return the error for bytes that are not what was submitted."""
    return IntegrityError(
        f"{what} is not what was submitted; it was not used",
        why=f"its bytes in the store ({keys.data_blob(blob)}) have another SHA-256",
        next="submit the job again: the data is sent again; if that does not help, check who writes to the store",
    )


def remove_damaged(store: Store, blobs: Mapping[str, int]) -> int:
    """Read blobs, which need at least so many bytes, and remove damaged ones; return how many are damaged or gone."""

    def is_broken(blob: str, size: int) -> bool:
        try:
            if len(read_blob(store, blob, blob)) >= size:
                return False
        except KeyMissingError:
            return True
        except IntegrityError:
            pass
        store.delete(keys.data_blob(blob))
        return True

    tasks = (functools.partial(is_broken, blob, size) for blob, size in blobs.items())
    return sum(in_parallel(store, tasks, limit=_LANES))


def fetch_files(
    store: Store,
    files: Sequence[ManifestFile],
    destination: Destination,
    have: Mapping[str, bytes] | None = None,
    received: Callable[[int], object] = lambda _: None,
) -> None:
    """Fetch files and put them in their places, each verified.

    ``received`` is called with the number of bytes that are in their places with each piece, on any thread.
    """
    packs: dict[str, list[ManifestFile]] = {}
    large: list[_PartialFile] = []
    for file in files:
        if file.packed and file.parts:
            packs.setdefault(file.parts[0].blob, []).append(file)
        else:
            large.append(_PartialFile(file, destination))
    biggest = max(
        [_span(each)[1] for each in packs.values()] + [p.length for each in large for p in each.file.parts] + [1]
    )
    requests = len(packs.keys() - (have or {}).keys()) + sum(len(each.file.parts) for each in large)
    many = max(1, min(parallelism(store), _MEMORY // biggest, requests))
    if destination.parts is None and store.local is not None:
        many = 1  # a project on this machine: no threads before the user's code
    try:
        for size in in_parallel(store, _tasks(store, packs, large, destination, have or {}), limit=many):
            received(size)
    except Exception as error:  # nothing runs anymore
        for each in large:
            each.give_up(keep=not isinstance(error, OSError))  # a full disk must not stay full of our halves
        raise


def _tasks(
    store: Store,
    packs: Mapping[str, Sequence[ManifestFile]],
    large: Sequence[_PartialFile],
    destination: Destination,
    have: Mapping[str, bytes],
) -> Iterator[Callable[[], int]]:
    for blob, files in packs.items():
        yield functools.partial(_unpack, store, blob, files, destination, have.get(blob))
    for partial in large:
        if not partial.file.parts:
            yield functools.partial(_place, partial.file, b"", destination)
        at = 0
        for part in partial.file.parts:
            yield functools.partial(partial.add, store, part, at)
            at += part.length


def _span(files: Sequence[ManifestFile]) -> tuple[int, int]:
    """Return where in their pack some files begin, and how many bytes they take."""
    start = min(file.parts[0].offset for file in files)
    return start, max(file.parts[0].offset + file.size for file in files) - start


def _unpack(
    store: Store, blob: str, files: Sequence[ManifestFile], destination: Destination, data: bytes | None
) -> int:
    start, length = _span(files)
    if data is None and (blob.endswith(order.COMPRESSED) or not all(file.digest for file in files)):
        data = read_blob(store, blob, repr(files[0].path))  # files without a digest are verified with their pack
    found = data[start:] if data is not None else store.get(keys.data_blob(blob), start=start, length=length)
    view = memoryview(found)
    for file in files:
        offset = file.parts[0].offset - start
        _place(file, view[offset : offset + file.size], destination)
    return length


def _place(file: ManifestFile, data: bytes | memoryview, destination: Destination) -> int:
    digest = order.file_digest(file.path)
    digest.update(data)
    if (file.digest and digest.hexdigest() != file.digest) or len(data) != file.size:
        raise damaged_error(repr(file.path), file.parts[0].blob if file.parts else "")
    if destination.parts is None:
        with folders.closing(os.open(destination.path(file), _NEW, destination.mode(file))) as descriptor:
            folders.write_all(descriptor, data)
        return file.size
    part = destination.parts / f"{file.digest}-{os.getpid():x}-{os.urandom(4).hex()}"  # small: nothing to continue
    try:
        with open(part, "xb", buffering=0, opener=folders.opener) as writing:
            folders.write_all(writing.fileno(), data)
            os.fchmod(writing.fileno(), destination.mode(file))
        part.replace(destination.path(file))
    finally:
        part.unlink(missing_ok=True)
    return file.size


class _PartialFile:
    """A large file whose chunks arrive in any order, on several threads."""

    def __init__(self, file: ManifestFile, destination: Destination) -> None:
        self.file, self._destination = file, destination
        self._left = len(file.parts)
        self._lock = threading.Lock()  # guards the next two, and _left
        self._descriptor = -1
        self._continues = False

    @property
    def _path(self) -> Path:
        parts = self._destination.parts
        return (
            parts / f"{self.file.digest}{'x' * self.file.executable}"
            if parts
            else Path(self._destination.path(self.file))
        )

    def add(self, store: Store, part: Part, at: int) -> int:
        """Put one chunk in its place, and with the last one the file; return how long it is."""
        descriptor = self._open()
        is_there = self._continues and _digest_of(descriptor, at, part.length) == part.blob
        if not is_there and not _copied_here(store, part, descriptor, at):
            data = read_blob(store, part.blob, repr(self.file.path))
            if len(data) < part.offset + part.length:
                raise damaged_error(repr(self.file.path), part.blob)
            folders.write_at(descriptor, memoryview(data)[part.offset : part.offset + part.length], at)
        with self._lock:
            self._left -= 1
            if self._left:
                return part.length
        if self._destination.parts is not None:
            with contextlib.suppress(FileNotFoundError):  # another job's manifest with the same file was faster
                self._path.replace(self._destination.path(self.file))
            os.fchmod(descriptor, self._destination.mode(self.file))  # not before: others must be able to continue it
        self.give_up()
        return part.length

    def give_up(self, *, keep: bool = True) -> None:
        """Close the file, and remove what is there of it unless another download may continue it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            if not keep:
                self._path.unlink(missing_ok=True)

    def _open(self) -> int:
        with self._lock:
            if self._descriptor < 0:
                in_place = self._destination.parts is None
                flags = _NEW if in_place else _NEW & ~os.O_EXCL
                self._descriptor = os.open(self._path, flags, self._destination.mode(self.file) if in_place else 0o600)
                self._continues = os.fstat(self._descriptor).st_size == self.file.size
                os.ftruncate(self._descriptor, self.file.size)
            return self._descriptor


def _copied_here(store: Store, part: Part, descriptor: int, at: int) -> bool:
    """Copy a chunk inside the kernel when the store is a folder of this machine; False where that is not possible.

    What was copied is read back and verified, and not what is in the store, which may change in the meantime.
    """
    if store.local is None or part.offset:
        return False
    with folders.closing(store.local.open(keys.data_blob(part.blob))) as reading:
        if os.fstat(reading).st_size != part.length:
            return False
        return (
            copy_range(reading, descriptor, part.length, at=at) and _digest_of(descriptor, at, part.length) == part.blob
        )


def copy_range(reading: int, writing: int, length: int, *, at: int) -> bool:
    """Copy the first bytes inside the kernel, which shares blocks where it can; False when it cannot do it at all."""
    if not hasattr(os, "copy_file_range") or python_runtime.is_portable():
        return False
    done = 0
    while done < length:
        try:
            count = os.copy_file_range(reading, writing, length - done, done, at + done)
        except OSError as error:
            if error.errno in DISK_FULL:
                raise
            return False
        if not count:
            return False
        done += count
    return True


def _digest_of(descriptor: int, start: int, length: int) -> str:
    digest = hashlib.sha256()
    done = 0
    while done < length and (piece := os.pread(descriptor, min(_CHUNK, length - done), start + done)):
        digest.update(piece)
        done += len(piece)
    return digest.hexdigest()

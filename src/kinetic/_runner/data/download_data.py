"""From the blobs of a store to verified files: whole packs once, large files chunk by chunk into place.

A file is written beside its place and renamed when it is complete and right. Until then its name is its digest: a
download that was killed in the middle of a large file resumes with the chunks that are missing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from kinetic._runner import processes
from kinetic._stores.parallel import in_parallel, parallelism
from kinetic._wire import folders, keys
from kinetic._wire.trees import ManifestFile, Part, file_digest
from kinetic.errors import DataMissingError, IntegrityError, KeyMissingError

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store


DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
Way = Literal["reflink", "link", "copy"]

_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_CHUNK = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_MEMORY = 256 << 20  # bytes in transfer at once, as far as the size of one blob allows


# -------------------------------------------------------------------------------------------------------------- copies


def choose_way(kept: Path, own: Path, *, writable: bool) -> Way:
    """Return how files of a folder that several jobs share become copies in a job's own folder, by trying."""
    if _can_reflink(kept, own):
        return "reflink"
    if writable or os.geteuid() == 0 or kept.stat().st_dev != own.stat().st_dev:
        return "copy"
    return "link"


def copy_file(source: str, target: str, *, way: Way, executable: bool) -> None:
    """Make a job's own copy of a file; if the chosen way does not work for this one file, it is copied."""
    if way == "link":
        with contextlib.suppress(OSError):  # too many names already, or a file system without
            os.link(source, target)
            return
    reading = os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        writing = os.open(target, _NEW, 0o777 if executable else 0o666)
        try:
            if not (way == "reflink" and _reflink(reading, writing)):
                _copy(reading, writing, os.fstat(reading).st_size)
        finally:
            os.close(writing)
    finally:
        os.close(reading)


def copy_tree(source: Path, target: Path, *, way: Way) -> None:
    """Make a job's own copy of everything in a folder, or of one file."""
    pending = [("", source.is_dir())]
    for inside, is_dir in pending:  # grows while it is read
        here, there = f"{source}{inside}", f"{target}{inside}"
        if not is_dir:
            copy_file(here, there, way=way, executable=bool(os.stat(here).st_mode & 0o100))
            continue
        os.makedirs(there, exist_ok=True)
        with os.scandir(here) as entries:
            pending += [(f"{inside}/{entry.name}", entry.is_dir(follow_symlinks=False)) for entry in entries]


def _copy(reading: int, writing: int, size: int) -> None:
    if _copy_in_kernel(reading, writing, size, at=0):
        return
    done = 0
    while piece := os.pread(reading, _CHUNK, done):
        _write_at(writing, piece, done)
        done += len(piece)


def _copy_in_kernel(reading: int, writing: int, length: int, *, at: int) -> bool:
    """Copy bytes inside the kernel, which shares blocks if it can; False when it does not support it."""
    if not hasattr(os, "copy_file_range") or processes.is_portable():
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


def _write_at(descriptor: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, at)
        view, at = view[done:], at + done


def _reflink(reading: int, writing: int) -> bool:
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        return False
    return True


def _can_reflink(kept: Path, own: Path) -> bool:
    if sys.platform != "linux" or processes.is_portable():
        return False
    name = f".reflink-{os.getpid():x}-{os.urandom(4).hex()}"
    try:
        with contextlib.ExitStack() as closing:
            ends = []
            for path in (kept / name, own / name):
                closing.callback(path.unlink, missing_ok=True)
                ends.append(closing.enter_context(open(path, "xb", buffering=0, opener=folders.opener)))
            ends[0].write(bytes(4096))
            return _reflink(ends[0].fileno(), ends[1].fileno())
    except OSError:
        return False


# ----------------------------------------------------------------------------------------------------------- downloads


class Destination(NamedTuple):
    """Where files are written."""

    path: Callable[[ManifestFile], str]  # the place of a file; its folder exists
    mode: Callable[[ManifestFile], int]
    parts: Path  # a folder on the same file system for what is not complete


def fetch_files(store: Store, files: Sequence[ManifestFile], destination: Destination) -> None:
    """Fetch files and put them in their places, each verified; after an OSError what was half-written is removed."""
    packs: dict[str, list[ManifestFile]] = {}
    large = []
    for file in files:
        if file.packed and file.parts:
            packs.setdefault(file.parts[0].blob, []).append(file)
        else:
            large.append(_PartialFile(file, destination))
    lengths = [_span(each)[1] for each in packs.values()] + [part.length for each in large for part in each.file.parts]
    many = max(1, min(parallelism(store), _MEMORY // max([1, *lengths])))
    try:
        for _ in in_parallel(store, _tasks(store, packs, large, destination), limit=many):
            pass
    except Exception as error:  # no task runs any more
        for each in large:
            each.close(keep=not isinstance(error, OSError))  # a full disk must not stay full of our halves
        if isinstance(error, KeyMissingError):
            raise DataMissingError(
                "data of this job is not in the store any more",
                why=error.why or str(error.what),
                next="submit the job again: what is missing is sent anew",
            ) from error
        raise


def _tasks(
    store: Store, packs: dict[str, list[ManifestFile]], large: Sequence[_PartialFile], destination: Destination
) -> Iterator[Callable[[], object]]:
    for blob, files in packs.items():
        yield functools.partial(_unpack, store, blob, files, destination)
    for each in large:
        if not each.file.parts:
            yield functools.partial(_place, each.file, b"", destination)
        at = 0
        for part in each.file.parts:
            yield functools.partial(each.add, store, part, at)
            at += part.length


def _span(files: Sequence[ManifestFile]) -> tuple[int, int]:
    """Return the offset of the first of some files in their pack, and how many bytes they span."""
    start = min(file.parts[0].offset for file in files)
    return start, max(file.parts[0].offset + file.size for file in files) - start


def _unpack(store: Store, blob: str, files: Sequence[ManifestFile], destination: Destination) -> None:
    start, length = _span(files)
    data = memoryview(store.get(keys.data_blob(blob), start=start, length=length))
    for file in files:
        offset = file.parts[0].offset - start
        _place(file, data[offset : offset + file.size], destination)


def _place(file: ManifestFile, data: bytes | memoryview, destination: Destination) -> None:
    digest = file_digest(file.path)
    digest.update(data)
    if digest.hexdigest() != file.digest:
        raise _damaged(file)
    part = destination.parts / f"{file.digest}-{os.getpid():x}-{os.urandom(4).hex()}"  # small: nothing to resume
    try:
        with open(part, "xb", buffering=0, opener=folders.opener) as writing:
            _write_at(writing.fileno(), data, 0)
            os.fchmod(writing.fileno(), destination.mode(file))
        part.replace(destination.path(file))
    finally:
        part.unlink(missing_ok=True)


def _damaged(file: ManifestFile) -> IntegrityError:
    return IntegrityError(
        f"{file.path!r} is not what was submitted; it was not used",
        why="its bytes in the store have another SHA-256 than the manifest says",
        next="submit the job again: what is damaged is sent anew; if that does not help, check who writes to the store",
    )


class _PartialFile:
    """A large file whose chunks arrive in any order, on several threads."""

    def __init__(self, file: ManifestFile, destination: Destination) -> None:
        self.file, self._destination = file, destination
        self._path = destination.parts / f"{file.digest}{'x' * file.executable}"
        self._left = len(file.parts)
        self._lock = threading.Lock()  # guards the next two, and _left
        self._descriptor = -1
        self._is_resumed = False

    def add(self, store: Store, part: Part, at: int) -> None:
        descriptor = self._open()
        is_there = self._is_resumed and _digest_of(descriptor, at, part.length) == part.blob
        if not is_there and not _copied_from_disk(store, part, descriptor, at):
            data = store.get(keys.data_blob(part.blob))
            if hashlib.sha256(data).hexdigest() != part.blob or len(data) < part.offset + part.length:
                raise _damaged(self.file)
            _write_at(descriptor, memoryview(data)[part.offset : part.offset + part.length], at)
        with self._lock:
            self._left -= 1
            if self._left:
                return
        with contextlib.suppress(FileNotFoundError):  # another job's manifest with the same file was faster
            self._path.replace(self._destination.path(self.file))
        os.fchmod(descriptor, self._destination.mode(self.file))  # not before: who resumes it must be able to write
        self.close()

    def close(self, *, keep: bool = True) -> None:
        """Close the file, and remove what is there of it unless it is kept to be resumed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if not keep:
            self._path.unlink(missing_ok=True)

    def _open(self) -> int:
        with self._lock:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                self._is_resumed = os.fstat(self._descriptor).st_size == self.file.size
                os.ftruncate(self._descriptor, self.file.size)
            return self._descriptor


def _copied_from_disk(store: Store, part: Part, descriptor: int, at: int) -> bool:
    """Copy a chunk inside the kernel if the store is a folder of this machine; False when that is not possible.

    What was copied is read back and verified, and not what is in the store, which may change in the meantime.
    """
    if store.local is None or part.offset:
        return False
    reading = store.local.open(keys.data_blob(part.blob))
    try:
        if os.fstat(reading).st_size != part.length:
            return False
        copied = _copy_in_kernel(reading, descriptor, part.length, at=at)
        return copied and _digest_of(descriptor, at, part.length) == part.blob
    finally:
        os.close(reading)


def _digest_of(descriptor: int, start: int, length: int) -> str:
    digest = hashlib.sha256()
    done = 0
    while done < length and (piece := os.pread(descriptor, min(_CHUNK, length - done), start + done)):
        digest.update(piece)
        done += len(piece)
    return digest.hexdigest()

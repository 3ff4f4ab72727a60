"""The documented content hash, on all cores, and only of what changed since it was hashed last."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kinetic._blobs import cache as caches
from kinetic._blobs.cache import Digests, is_settled
from kinetic._blobs.scan import File, LeftOut, Selection, file_of, scan, stamp_of
from kinetic._data import transfer_progress
from kinetic._wire import manifest
from kinetic.errors import DataChangedError, DataError, DataMissingError

_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class ScannedData(NamedTuple):
    """Data as the scan found it.

    Attributes:
        root: The absolute path.
        is_dir: Whether it is a folder.
        files: In the documented order: depth first, names sorted, a folder's files before its folders. The relative
            path of a file that is all the data is its bare name.
        folders: Those in which nothing lies that travels, by their relative paths.
        left_out: What does not travel, a phrase each.
    """

    root: str
    is_dir: bool
    files: list[File]
    folders: list[str]
    left_out: list[str]


def scan_data(root: str) -> ScannedData:
    """Look at a file, or at everything below a folder.

    A link to a folder is not followed, and sockets, pipes and devices hold no data: both stay out with a note. A link
    that leads nowhere is an error, since a job that silently misses a file computes something else.

    Raises:
        DataMissingError: The root is gone, or a link in it leads nowhere.
        DataError: A folder cannot be listed, or a file not looked at.
    """
    try:
        about = os.stat(root)
    except OSError as error:
        raise unreadable_error(root, error) from error
    if stat.S_ISREG(about.st_mode):
        return ScannedData(root, False, [file_of(os.path.basename(root), root, about)], [], [])  # noqa: FBT003 - a field
    if not stat.S_ISDIR(about.st_mode):
        raise DataError(f"{root} is neither a file nor a folder", why="a job reads files")
    found = scan(root, _Everything())
    files = [file for folder in found.folders for file in folder.files]
    hollow = [folder.relative for folder in found.folders[1:] if not folder.files and not folder.folders]
    return ScannedData(root, True, files, hollow, [f"{left.relative} ({left.reason})" for left in found.left_out])  # noqa: FBT003


class _Everything(Selection):
    """All files; what cannot be read is an error."""

    def unreadable(self, path: str, relative: str, error: OSError) -> LeftOut:  # noqa: ARG002 - of the base
        raise unreadable_error(path, error) from error


def unreadable_error(path: str, error: OSError) -> DataError:
    """Say that a part of the data cannot be read, with the reason that the system gives."""
    if error.errno in _NOWHERE and os.path.islink(path):
        return DataMissingError(
            f"the data holds a link that leads nowhere: {path}",
            why=f"it leads to {os.readlink(path)}",
            next="remove the link, or put back what it leads to",
        )
    if error.errno in _NOWHERE:
        return DataMissingError(f"the data is gone: {path}", why=str(error))
    return DataError(
        f"the data cannot be read: {path}",
        why=str(error),
        next="look at its owner and permissions, or move it elsewhere",
    )


_PIECE = 256 << 10  # stays in a core's cache, and one buffer saves the system from clearing pages for each file
_TOLD_BYTES = 4 << 20
_ATTEMPTS = 3
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a file that became a FIFO must not hold us


class Stopped(Exception):  # noqa: N818 - not an error: somebody else failed
    """Raised in a thread that reads on behalf of somebody who has given up."""


class ReadFile(NamedTuple):
    """A file that was read.

    Attributes:
        digest: The documented digest of its path and of exactly the bytes that were read.
        file: The file as it was when they were read; the very same if it had not changed since the walk.
        trusted: Whether an equal stamp will mean equal content: it held still, and had for a while.
    """

    digest: bytes
    file: File
    trusted: bool


class Reader:
    """What one thread reads files with: its buffer, and whom it tells and heeds.

    Args:
        stop: Set when somebody has given up; what is being read is left then.
        progress: Called with a number of bytes, every few megabytes and by ``pause``.
    """

    def __init__(self, stop: threading.Event, progress: Callable[[int], object]) -> None:
        self._buffer = memoryview(bytearray(_PIECE))
        self._stop = stop
        self._progress = progress
        self._untold = 0

    def digest(self, file: File) -> ReadFile:
        """Digest a file; one that changes meanwhile is read again, and taken as it was if it never holds still.

        Raises:
            DataError: It cannot be read.
            DataChangedError: It is gone, though the walk saw it.
            Stopped: Somebody has given up.
        """
        for _ in range(_ATTEMPTS):
            read_at = time.time_ns()
            descriptor = _open(file)
            try:
                digest = self._digest(descriptor, file)
                about = os.fstat(descriptor)
            except OSError as error:
                raise unreadable_error(file.path, error) from error
            finally:
                os.close(descriptor)
            _check_is_file(file, about)
            if still := stamp_of(about) == file.stamp:
                break
            file = file_of(file.relative, file.path, about)
        return ReadFile(digest, file, still and is_settled(about, read_at))

    def pause(self) -> None:
        """Tell what is not told yet, and hear whether to go on."""
        self._progress(self._untold)
        self._untold = 0
        if self._stop.is_set():
            raise Stopped

    def _digest(self, descriptor: int, file: File) -> bytes:
        found = manifest.file_digest(file.relative)
        while size := os.readv(descriptor, (self._buffer,)):
            found.update(self._buffer[:size])
            self._untold += size
            if self._untold >= _TOLD_BYTES:
                self.pause()
        return found.digest()


def open_file(file: File) -> int:
    """Open a file that a walk has seen.

    Raises:
        DataError: It cannot be read.
        DataChangedError: It is gone, or is no longer a file.
    """
    descriptor = _open(file)
    try:
        _check_is_file(file, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_piece(descriptor: int, size: int, file: File) -> bytes:
    """Return the next bytes of an open file: ``size`` of them, fewer only at its end."""
    try:
        data = os.read(descriptor, size)
        while len(data) < size and (more := os.read(descriptor, size - len(data))):
            data += more
    except OSError as error:
        raise unreadable_error(file.path, error) from error
    return data


def changed_error(file: File, why: str) -> DataChangedError:
    """Say that a file is not what was hashed."""
    return DataChangedError(
        f"the data changed while it was sent: {file.path}",
        why=f"{why}; nothing was promised to a job",
        next="submit again when nothing writes to it any more",
    )


def _open(file: File) -> int:
    try:
        return os.open(file.path, _READ)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENXIO}:
            raise changed_error(file, "it is gone") from error
        raise unreadable_error(file.path, error) from error


def _check_is_file(file: File, about: os.stat_result) -> None:
    if not stat.S_ISREG(about.st_mode):
        raise changed_error(file, "it is no longer a file")


def digests_of(cache: Path | None, walked: ScannedData) -> caches.Digests:
    """Return what is known of the files of a root."""
    path = None if cache is None else f"{cache}/{caches.name_of(walked.root)}.stamps"
    return caches.Digests(path, walked.root, [record_of(file) for file in walked.files])


def record_of(file: File) -> str:
    """Return the word under which a file's digest, which covers its path, is remembered."""
    return f"{file.relative}\0{file.stamp}"


class SentManifest(NamedTuple):
    """What went to one store last.

    Attributes:
        hash: The content hash.
        shape: What else a manifest says of the tree; see ``hashing.Tree``.
        manifest: SHA-256 of the manifest.
        size: Of the manifest, in bytes.
    """

    hash: str
    shape: str
    manifest: str
    size: int


def recall_sent(cache: Path, root: str, url: str) -> SentManifest | None:
    """Return what went from a root to a store last, if that is remembered."""
    page = caches.read_page(_sent_path(cache, root, url))
    try:
        if page["url"] == url:
            return SentManifest(str(page["hash"]), str(page["shape"]), str(page["manifest"]), int(page["size"]))
    except (KeyError, TypeError, ValueError):
        pass
    return None


def remember_sent(cache: Path, root: str, url: str, sent: SentManifest) -> None:
    """Write down what went from a root to a store."""
    caches.write_page(_sent_path(cache, root, url), {"url": url, **sent._asdict()})


def _sent_path(cache: Path, root: str, url: str) -> Path:
    return cache / f"{caches.name_of(root, url)}.sent"


_FEW_BYTES = 4 << 20  # less is read before threads have started
_BATCH_FILES, _BATCH_BYTES = 512, 8 << 20  # a task for each small file would cost more than the file
_MOST_THREADS = 32
_FEWEST_THREADS = 4  # a cold disk answers several at once, however few cores there are


class Tree(NamedTuple):
    """Data, every file of it digested.

    Attributes:
        root: The absolute path.
        is_dir: Whether it is a folder.
        files: In the documented order.
        folders: Those in which nothing lies.
        left_out: What does not travel, a phrase each.
        digests: The raw digest of each file, 32 bytes, one after the other.
        hash: The documented content hash, in hexadecimal.
    """

    root: str
    is_dir: bool
    files: Sequence[File]
    folders: Sequence[str]
    left_out: Sequence[str]
    digests: bytes
    hash: str

    def digest(self, number: int) -> str:
        """Return the digest of a file by its number, in hexadecimal."""
        return self.digests[32 * number : 32 * number + 32].hex()

    @property
    def bytes(self) -> int:
        """What all files hold between them."""
        return sum(file.size for file in self.files)

    @property
    def shape(self) -> str:
        """A digest of what the content hash leaves out and a manifest says: executable bits and empty folders."""
        bits = bytes([file.executable for file in self.files])
        return hashlib.sha256(bits + os.fsencode("\0".join(sorted(self.folders)))).hexdigest()


def digest_tree(root: str, cache: Path | None) -> Tree:
    """Walk local data and digest it; files whose stamps are known are not read.

    Args:
        root: The absolute path of a file or folder.
        cache: Where stamps are remembered, or None.

    Raises:
        DataError: Something cannot be read.
        DataMissingError: The data is gone, or a link in it leads nowhere.
        DataChangedError: A file went away between walk and reading.
    """
    walked = scan_data(root)
    stamps = digests_of(cache, walked)
    files, digests = walked.files, stamps.whole()
    if digests is None:
        files, digests = _digested(walked, stamps)
    found = manifest.content_hash([digests], is_dir=walked.is_dir)
    return Tree(root, walked.is_dir, files, walked.folders, walked.left_out, digests, found)


def _digested(walked: ScannedData, stamps: Digests) -> tuple[list[File], bytes]:
    """Digest what is not known, and remember what can be trusted."""
    known = stamps.each()
    files, records = list(walked.files), list(stamps.records)
    digests = [known.get(record, b"") for record in records]
    racy = set()
    new = [number for number, digest in enumerate(digests) if not digest]
    for number, read in _read(files, new, walked.root):
        if read.file is not files[number]:
            files[number], records[number] = read.file, record_of(read.file)
        digests[number] = read.digest
        if not read.trusted:
            racy.add(number)
    settled = [number for number in range(len(files)) if number not in racy]
    stamps.write([records[number] for number in settled], [digests[number] for number in settled])
    return files, b"".join(digests)


def _read(files: Sequence[File], numbers: Sequence[int], root: str) -> Iterator[tuple[int, ReadFile]]:
    """Read files, on several threads where that pays."""
    total = sum(files[number].size for number in numbers)
    stop = threading.Event()
    if total < _FEW_BYTES or not threading.main_thread().is_alive():  # after its end no pool takes anything
        yield from _read_batch(files, numbers, stop, None)
        return
    from concurrent.futures import ThreadPoolExecutor  # 8 ms, only where there is much to read

    with (
        transfer_progress.TransferProgress("reading", root, len(numbers), total) as told,
        ThreadPoolExecutor(_threads()) as pool,
    ):
        try:
            for reading_ in [pool.submit(_read_batch, files, batch, stop, told) for batch in _batches(files, numbers)]:
                yield from reading_.result()
        except BaseException:
            stop.set()  # also for Ctrl-C in the middle of a large file
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _read_batch(
    files: Sequence[File],
    numbers: Sequence[int],
    stop: threading.Event,
    told: transfer_progress.TransferProgress | None,
) -> list[tuple[int, ReadFile]]:
    def progress(size: int) -> None:
        if told:
            told.add(done=size)

    reader = Reader(stop, progress)
    done = [(number, reader.digest(files[number])) for number in numbers]
    reader.pause()
    if told:
        told.add(files=len(done))
    return done


def _batches(files: Sequence[File], numbers: Sequence[int]) -> Iterator[list[int]]:
    batch: list[int] = []
    size = 0
    for number in numbers:
        batch.append(number)
        size += files[number].size
        if len(batch) >= _BATCH_FILES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(_MOST_THREADS, max(_FEWEST_THREADS, cores))

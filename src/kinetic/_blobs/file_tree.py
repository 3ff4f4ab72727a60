"""What is in a folder: a scan, the digests of its files on all cores, and what this machine remembers of both.

A cache and nothing more: what is missing, foreign or damaged in it is computed again, and a folder that cannot be
written only costs time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kinetic._output import terminal as output
from kinetic._output.format import share_text, size_text
from kinetic._wire import NamedTuple, folders, order, python_runtime
from kinetic.errors import DataChangedError, DataError, DataMissingError, KineticError

# ----------------------------------------------------------------------------------------------------------- the scan

_by_name = attrgetter("name")
_new, _RUNS = tuple.__new__, stat.S_IXUSR
_STAMP = struct.Struct("=QqqQQI").pack
_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a file that became a FIFO must not block us


class File(NamedTuple):
    """A file that a scan found."""

    relative: str  # path below the root, with forward slashes
    path: str  # where to open it
    size: int  # bytes, when it was scanned
    stamp: bytes  # size, times, inode, device and mode in one word: equal stamps, equal content
    executable: bool  # its owner may execute it


class Folder(NamedTuple):
    """A folder with its own files; ``relative`` is "" for the root, else ends without a slash."""

    relative: str
    path: str
    files: list[File]
    folders: list[str]


class LeftOut(NamedTuple):
    """Something that is not sent."""

    relative: str  # path below the root; a folder's ends with a slash
    size: int | None  # bytes, or None if unknown
    reason: str  # why, in a few words
    origin: str  # who left it out, e.g. "user" for a line of an ignore file, or "skipped" when it could not be sent


class Scan(NamedTuple):
    """A folder as it was scanned; every folder precedes those that it contains."""

    folders: list[Folder]
    left_out: list[LeftOut]
    files: int
    bytes: int

    def all_files(self) -> list[File]:
        """Return all files: depth first, names sorted, a folder's files before its folders."""
        return [file for folder in self.folders for file in folder.files]

    def with_another(self, name: str, other: Scan) -> Scan:
        """Return this scan with another one's files in a folder of this name."""
        folders = [
            folder._replace(
                relative=f"{name}/{folder.relative}".rstrip("/"),
                files=[file._replace(relative=f"{name}/{file.relative}") for file in folder.files],
            )
            for folder in other.folders
        ]
        left_out = [left._replace(relative=f"{name}/{left.relative}") for left in other.left_out]
        both = self.left_out + left_out
        return Scan([*self.folders, *folders], both, self.files + other.files, self.bytes + other.bytes)

    def empty_folders(self) -> list[str]:
        """Return the folders in which there is nothing to send."""
        return [folder.relative for folder in self.folders[1:] if not folder.files and not folder.folders]

    def paths(self) -> list[str]:
        """Return everything that is sent: folders with a slash at their end, and files."""
        return [
            path
            for folder in self.folders
            for path in (f"{folder.relative}/", *(file.relative for file in folder.files))
            if path != "/"
        ]


class Selection:
    """Which files are sent, and what happens to those that cannot be read.

    As it is: every file, no folder that a link leads to, and what cannot be read or changes is an error, as for data.
    Where a method returns None, the entry is sent.
    """

    def asks_about(self, names: Sequence[str]) -> bool:  # noqa: ARG002 - for those that override it, as below
        """Return whether any file of a folder with these names may be left out; else ``file`` is not called for it."""
        return False

    def odd_name(self, relative: str) -> LeftOut | None:
        """Judge a name that is not ASCII."""

    def file(self, entry: os.DirEntry[str], relative: str) -> LeftOut | None:
        """Judge a file."""

    def folder(self, entry: os.DirEntry[str], relative: str) -> LeftOut | None:
        """Judge a folder."""

    def link(self, entry: os.DirEntry[str], relative: str, about: os.stat_result, inside: Folder) -> LeftOut | None:  # noqa: ARG002
        """Judge a link by its target; ``inside`` is the folder that contains it."""
        is_folder = stat.S_ISDIR(about.st_mode)
        return LeftOut(f"{relative}/", None, "a link to a folder", "skipped") if is_folder else None

    def unreadable(self, path: str, relative: str, error: OSError) -> LeftOut:  # noqa: ARG002
        """Leave out what cannot be listed or looked at, or raise; a folder's ``relative`` ends with a slash."""
        raise unreadable_error(path, error) from error

    def problem(self, so_far: Scan) -> KineticError | None:
        """Return why what was found so far is too much, or None; called after each folder."""

    def open(self, file: File) -> int:
        """Return a descriptor of a file that was scanned."""
        return os.open(file.path, _READ)

    def lost(self, file: File, error: OSError) -> None:
        """Leave out a file that can no longer be opened or read, or raise."""
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ENXIO, errno.EISDIR}:
            raise changed_error(file, "it is gone, or no longer a file") from error
        raise unreadable_error(file.path, error) from error


def scan(root: str, selection: Selection) -> Scan:
    """Look at everything below a folder."""
    return _Scanner(selection).run(root)


class _Scanner:
    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._left_out: list[LeftOut] = []
        self._bytes = 0

    def run(self, root: str) -> Scan:
        so_far = Scan([], self._left_out, 0, 0)
        waiting = [Folder("", root, [], [])]  # the next one to visit is the last
        while waiting:
            folder = waiting.pop()
            so_far.folders.append(folder)
            waiting.extend(reversed(self._enter(folder)))
            so_far = so_far._replace(files=so_far.files + len(folder.files), bytes=self._bytes)
            if problem := self._selection.problem(so_far):
                raise problem
        return so_far

    def _enter(self, folder: Folder) -> list[Folder]:
        """Fill a folder, and return the folders in it."""
        start, selection = f"{folder.relative}/" if folder.relative else "", self._selection
        below: list[Folder] = []
        try:
            with os.scandir(folder.path) as listing:
                entries = sorted(listing, key=_by_name)
        except OSError as error:
            self._left_out.append(selection.unreadable(folder.path, start, error))
            return below
        asks = selection.asks_about([entry.name for entry in entries])
        keep, size = folder.files.append, 0
        for entry in entries:
            name = entry.name
            if asks or not entry.is_file(follow_symlinks=False) or not name.isascii():
                left = self._judge(entry, start + name, folder, below, asks=asks)
                if left is not None:
                    self._left_out.append(left)
                continue
            try:  # nearly all files: 1 us each
                about = entry.stat(follow_symlinks=False)
            except OSError as error:
                self._left_out.append(selection.unreadable(entry.path, start + name, error))
                continue
            length, mode = about.st_size, about.st_mode  # as file_of() does, without its calls
            word = _STAMP(length, about.st_mtime_ns, about.st_ctime_ns, about.st_ino, about.st_dev, mode)
            size += length
            keep(_new(File, (start + name, entry.path, length, word, mode & _RUNS != 0)))
        self._bytes += size
        return below

    def _judge(
        self, entry: os.DirEntry[str], relative: str, folder: Folder, below: list[Folder], *, asks: bool
    ) -> LeftOut | None:
        left = None if entry.name.isascii() else self._selection.odd_name(relative)
        if left is not None:
            return left
        if entry.is_symlink():
            return self._follow(entry, relative, folder, below)
        if entry.is_dir(follow_symlinks=False):
            if (left := self._selection.folder(entry, relative)) is None:
                _descend(entry, relative, folder, below)
            return left
        left = self._selection.file(entry, relative) if asks else None
        return left or self._keep(entry, relative, folder)

    def _follow(self, entry: os.DirEntry[str], relative: str, folder: Folder, below: list[Folder]) -> LeftOut | None:
        """Take the target of a link under the link's name; it is also sent under its own."""
        try:
            about = entry.stat()
            left = self._selection.link(entry, relative, about, folder)
        except OSError as error:  # it may be gone meanwhile
            return self._selection.unreadable(entry.path, relative, error)
        if left is not None:
            return left
        if stat.S_ISDIR(about.st_mode):
            _descend(entry, relative, folder, below)
            return None
        return self._keep(entry, relative, folder)

    def _keep(self, entry: os.DirEntry[str], relative: str, folder: Folder) -> LeftOut | None:
        try:
            about = entry.stat()
        except OSError as error:
            return self._selection.unreadable(entry.path, relative, error)
        if not stat.S_ISREG(about.st_mode):
            return LeftOut(relative, None, "neither a file nor a folder", "skipped")
        self._bytes += about.st_size
        folder.files.append(file_of(relative, entry.path, about))
        return None


def _descend(entry: os.DirEntry[str], relative: str, folder: Folder, below: list[Folder]) -> None:
    folder.folders.append(entry.name)
    below.append(Folder(relative, entry.path, [], []))


def file_of(relative: str, path: str, about: os.stat_result) -> File:
    """Return a file as the system describes it."""
    return File(relative, path, about.st_size, stamp_of(about), about.st_mode & stat.S_IXUSR != 0)


def stamp_of(about: os.stat_result) -> bytes:
    """Return a word that changes whenever a file's content or mode does."""
    times = about.st_mtime_ns, about.st_ctime_ns
    return _STAMP(about.st_size, *times, about.st_ino, about.st_dev, about.st_mode)


def unreadable_error(path: str, error: OSError) -> DataError:
    """Return the error for a part of the data that cannot be read."""
    if error.errno in _NOWHERE and os.path.islink(path):
        return DataMissingError(
            f"the data contains a broken link: {path}",
            why=f"its target does not exist: {os.readlink(path)}",
            next="remove the link, or restore its target",
        )
    if error.errno in _NOWHERE:
        return DataMissingError(f"the data is gone: {path}", why=str(error))
    return DataError(
        f"the data cannot be read: {path}", why=str(error), next="check its owner and permissions, or move it elsewhere"
    )


def changed_error(file: File, why: str) -> DataChangedError:
    """Return the error for a file that is not what was hashed."""
    return DataChangedError(
        f"the data changed while it was sent: {file.path}",
        why=f"{why}; no job was started with it",
        next="submit again when nothing writes to it anymore",
    )


# ---------------------------------------------------------------------------------------------------------- the cache

VERSION = 1
_SEPARATOR = "\0\0"  # no record is empty, contains two NULs, or begins or ends with one


def name_of(*parts: str) -> str:
    """Return the name of the cache file about a folder, about a store, or about both together."""
    return hashlib.sha256(os.fsencode("\0".join(parts))).hexdigest()[:32]


def read_page(path: str | Path) -> dict[str, Any]:
    """Return a page of JSON that ``write_page`` wrote; an empty one when there is none of this version."""
    try:
        with open(path, "rb") as file:
            page = json.loads(file.read())
        return page if page.pop("kinetic-cache") == VERSION else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def write_page(path: str | Path, page: dict[str, Any]) -> None:
    """Write a page of JSON; a cache that cannot be written is no error."""
    with contextlib.suppress(OSError):
        folders.write_whole(path, json.dumps({"kinetic-cache": VERSION, **page}, separators=(",", ":")).encode())


def read_block(path: str | Path, about: str) -> tuple[int, bytes]:
    """Return a number and bytes that ``write_block`` wrote about the same thing; 0 and none if they are damaged."""
    try:
        with open(path, "rb") as file:
            head, body = json.loads(file.readline()), file.read()
        is_ours = head["kinetic-cache"] == VERSION and head["about"] == os.fsencode(about).hex()
        if is_ours and hashlib.sha256(body).hexdigest() == head["sha256"]:
            return int(head["number"]), body
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return 0, b""


def write_block(path: str | Path, about: str, number: int, body: bytes) -> None:
    """Write a line of JSON and then bytes; a cache that cannot be written is no error."""
    digest = hashlib.sha256(body).hexdigest()
    head = {"kinetic-cache": VERSION, "about": os.fsencode(about).hex(), "number": number, "sha256": digest}
    with contextlib.suppress(OSError):
        folders.write_whole(path, json.dumps(head).encode() + b"\n" + body)


class Digests:
    """The digests of one folder's files by their records: words that change whenever the file does.

    Args:
        path: The file that contains them, or None to remember nothing.
        root: The folder.
        records: Those of the files that are there now, in their order.
    """

    def __init__(self, path: str | None, root: str, records: Sequence[str]) -> None:
        self._path = path
        self._root = root
        self.records = records
        length, body = read_block(path, root) if path else (0, b"")
        self._joined, self._digests = body[:length], body[length:]
        if len(self._digests) != 32 * (self._joined.count(_SEPARATOR.encode()) + 1):
            self._joined = self._digests = b""

    def whole(self) -> bytes | None:
        """Return the digests of all files one after the other if nothing changed, else None."""
        return self._digests if self._joined and self._joined == _joined(self.records) else None

    def each(self) -> dict[str, bytes]:
        """Return the digest that is known for each record."""
        records = os.fsdecode(self._joined).split(_SEPARATOR) if self._joined else []
        return {record: self._digests[32 * i : 32 * i + 32] for i, record in enumerate(records)}

    def write(self, records: Sequence[str], digests: Sequence[bytes]) -> None:
        """Remember files that can be trusted, and forget all others."""
        joined, together = _joined(records), b"".join(digests)
        if self._path is not None and (joined, together) != (self._joined, self._digests):
            write_block(self._path, self._root, len(joined), joined + together)


def _joined(records: Sequence[str]) -> bytes:
    return os.fsencode(_SEPARATOR.join(records))


# ------------------------------------------------------------------------------------------------- the content hash

_PIECE = 256 << 10  # stays in a core's cache, and one buffer saves the system from clearing pages for each file
_REPORT_BYTES = 4 << 20
_ATTEMPTS = 3
_FEW_BYTES = 4 << 20  # less is read before threads have started
_BATCH_FILES, _BATCH_BYTES = 512, 8 << 20  # a task for each small file would cost more than the file
_MOST_THREADS = 32
_FEWEST_THREADS = 4  # a cold disk answers several at once, however few cores there are


class Tree(NamedTuple):
    """Local data with the digest of every file."""

    root: str  # the absolute path
    is_dir: bool  # whether it is a folder
    # in the documented order: depth first, names sorted, a folder's files before its folders. The relative path of a
    # file that is all the data is its bare name
    files: Sequence[File]
    folders: Sequence[str]  # those in which there is nothing to send
    left_out: Sequence[str]  # what is not sent, a phrase each
    digests: bytes  # the raw documented digest of each file, 32 bytes, one after the other
    hash: str  # the documented content hash, in hexadecimal

    def digest(self, number: int) -> str:
        """Return the digest of a file by its number, in hexadecimal."""
        return self.digests[32 * number : 32 * number + 32].hex()

    @property
    def bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)

    @property
    def shape(self) -> str:
        """A digest of what the content hash leaves out and a manifest says: executable bits and empty folders."""
        bits = bytes([file.executable for file in self.files])
        return hashlib.sha256(bits + os.fsencode("\0".join(sorted(self.folders)))).hexdigest()


def digest_tree(root: str, cache: Path | None) -> Tree:
    """Scan local data and digest it; files whose stamps are known are not read.

    A link to a folder is not followed, and sockets, pipes and devices hold no data: both are left out with a message.
    A broken link is an error, since a job that silently misses a file computes something else.
    """
    try:
        about = os.stat(root)
    except OSError as error:
        raise unreadable_error(root, error) from error
    is_dir = stat.S_ISDIR(about.st_mode)
    if is_dir:
        found = scan(root, Selection())
    elif stat.S_ISREG(about.st_mode):
        found = Scan([Folder("", root, [file_of(os.path.basename(root), root, about)], [])], [], 1, about.st_size)
    else:
        raise DataError(f"{root} is neither a file nor a folder", why="a job reads files")
    files = found.all_files()
    path = None if cache is None else f"{cache}/{name_of(root)}.stamps"
    stamps = Digests(path, root, [_record_of(file) for file in files])
    digests = stamps.whole()
    if digests is None:
        files, digests = _digested(root, files, stamps)
    left_out = [f"{left.relative} ({left.reason})" for left in found.left_out]
    hashed = order.content_hash([digests], is_dir=is_dir)
    return Tree(root, is_dir, files, found.empty_folders(), left_out, digests, hashed)


def _record_of(file: File) -> str:
    return f"{file.relative}\0{file.stamp.hex()}"  # the digest covers the path


def _digested(root: str, files: list[File], stamps: Digests) -> tuple[list[File], bytes]:
    """Digest what is not known, and remember what can be trusted."""
    known, records = stamps.each(), list(stamps.records)
    digests = [known.get(record, b"") for record in records]
    settled = [bool(digest) for digest in digests]
    for number, read in _read(files, [number for number, digest in enumerate(digests) if not digest], root):
        files[number], records[number] = read.file, _record_of(read.file)
        digests[number], settled[number] = read.digest, read.trusted
    kept = [number for number in range(len(files)) if settled[number]]
    stamps.write([records[number] for number in kept], [digests[number] for number in kept])
    return files, b"".join(digests)


class ReadFile(NamedTuple):
    """A file that was read."""

    digest: bytes  # the documented digest of its path and of exactly the bytes that were read
    file: File  # the file as it was when they were read; the very same if it had not changed since the scan
    trusted: bool  # whether an equal stamp will mean equal content


class ReadingStopped(Exception):  # noqa: N818 - not an error: another thread failed
    """Raised in a thread whose result is no longer wanted."""


class Reader:
    """What one thread reads files with.

    Args:
        stop: Set when the result is no longer wanted; reading ends then.
        progress: Called with a number of bytes, every few megabytes and by ``pause``.
    """

    def __init__(self, stop: threading.Event, progress: Callable[[int], object]) -> None:
        self._buffer = memoryview(bytearray(_PIECE))
        self._stop = stop
        self._progress = progress
        self._unreported = 0
        self._selection = Selection()

    def digest(self, file: File) -> ReadFile:
        """Digest a file; one that changes meanwhile is read again, and taken as it was if it never stops changing."""
        for _ in range(_ATTEMPTS):
            read_at = time.time_ns()
            try:
                with folders.closing(open_regular(self._selection, file)) as descriptor:
                    digest = self._digest(descriptor, file)
                    about = os.fstat(descriptor)
            except OSError as error:
                self._selection.lost(file, error)
                raise
            if still := stamp_of(about) == file.stamp:
                break
            file = file_of(file.relative, file.path, about)
        return ReadFile(digest, file, still and folders.is_settled(folders.changed_ns(about), read_at))

    def pause(self) -> None:
        """Report progress, and end if the result is not wanted any more."""
        self._progress(self._unreported)
        self._unreported = 0
        if self._stop.is_set():
            raise ReadingStopped

    def _digest(self, descriptor: int, file: File) -> bytes:
        found = order.file_digest(file.relative)
        while size := os.readv(descriptor, (self._buffer,)):
            found.update(self._buffer[:size])
            self._unreported += size
            if self._unreported >= _REPORT_BYTES:
                self.pause()
        return found.digest()


def open_regular(selection: Selection, file: File) -> int:
    """Open a file that was scanned; what is no longer a plain file is an OSError."""
    descriptor = selection.open(file)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.ENXIO, "it is no longer a file", file.path)


def _read(files: Sequence[File], numbers: Sequence[int], root: str) -> Iterator[tuple[int, ReadFile]]:
    """Read files, on several threads where that pays."""
    total = sum(files[number].size for number in numbers)
    stop = threading.Event()
    if total < _FEW_BYTES or not threading.main_thread().is_alive():  # after its end no pool takes anything
        yield from _read_batch(files, numbers, stop, None)
        return
    from concurrent.futures import ThreadPoolExecutor  # 8 ms, only where there is much to read

    threads_ = min(_MOST_THREADS, max(_FEWEST_THREADS, python_runtime.allowed_cores()))
    with TransferProgress("reading", root, len(numbers), total) as progress, ThreadPoolExecutor(threads_) as pool:
        try:
            for reading in [pool.submit(_read_batch, files, each, stop, progress) for each in _batches(files, numbers)]:
                yield from reading.result()
        except BaseException:
            stop.set()  # also for Ctrl-C in the middle of a large file
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _read_batch(
    files: Sequence[File], numbers: Sequence[int], stop: threading.Event, progress: TransferProgress | None
) -> list[tuple[int, ReadFile]]:
    reader = Reader(stop, lambda size: progress.add(done=size) if progress else None)
    done = [(number, reader.digest(files[number])) for number in numbers]
    reader.pause()
    if progress:
        progress.add(files=len(done))
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


# ---------------------------------------------------------------------------------------------------------- progress

_SLOW_SECONDS = 1.0
_LARGE_BYTES = 10 << 30  # above this, sending is worth a second thought
_NAMED = 5  # names in one line


class TransferProgress:
    """The progress of one transfer: nothing for what takes a moment, a live line on a terminal, plain lines elsewhere.

    A context manager; its counts may come from any thread.
    """

    def __init__(self, doing: str, what: str, files: int, size: int) -> None:
        self._doing, self._what = doing, what
        self._of_files, self._of_bytes = files, size
        self._files = self._done = self._there = 0
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._progress = output.Progress(shares=True)

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._thread = python_runtime.start_thread(self._tick, "kinetic-data-progress")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._progress.clear()
        took = time.monotonic() - self._begun
        if kind is None and took >= _SLOW_SECONDS:
            output.report(f"{self._doing} {self._what} took {took:.1f} s: {self.detail(took)}")

    def add(self, *, files: int = 0, done: int = 0, there: int = 0) -> None:
        """Count files, bytes that were worked on, and bytes that needed no work because they were there already."""
        with self._lock:
            self._files += files
            self._done += done
            self._there += there

    def detail(self, seconds: float) -> str:
        """Return how far it has come."""
        with self._lock:
            files, done, there = self._files, self._done, self._there
        text = f"{files:,} of {self._of_files:,} files, {size_text(done + there)} of {size_text(self._of_bytes)}"
        rate = f", {size_text(done / seconds)}/s" if done and seconds > 0 else ""
        return text + rate + (f", {size_text(there)} already there" if there else "")

    def brief(self, seconds: float) -> str:
        """Return the same for the 80 columns of a terminal; what it is about comes last, where it may be cut off."""
        with self._lock:
            files, done, there = self._files, self._done, self._there
        parts = [f"{files}/{self._of_files} files", share_text(done + there, self._of_bytes)]
        parts += [f"{size_text(done / seconds)}/s"] if done and seconds > 0 else []
        parts += [f"{size_text(there)} there"] if there else []
        return f"{', '.join(parts)} ({self._what})"

    def _tick(self) -> None:
        progress, is_live = self._progress, output.is_possible()
        doing = self._doing if is_live else f"{self._doing} {self._what}"
        progress.enter(doing)
        while not self._over.wait(_SLOW_SECONDS):
            seconds = time.monotonic() - self._begun
            progress.enter(doing, self.brief(seconds) if is_live else self.detail(seconds))


def report_left_out(what: str, tree: Tree) -> None:
    """Say once which of the data is not sent."""
    if tree.left_out:
        more = len(tree.left_out) - _NAMED
        names = ", ".join(tree.left_out[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        output.report_once(f"not sent with {what}: {names}")


def warn_if_large(what: str, size: int, *, is_copied_here: bool = False) -> None:
    """Warn before a lot is sent."""
    if size > _LARGE_BYTES:
        hint = "; with fuse=True, jobs on this machine use it without a copy" if is_copied_here else ""
        output.warn(f"copying {size_text(size)} of {what} into the store{hint}")

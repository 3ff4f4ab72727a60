"""What lies in a folder: one quick scan, depth first, names sorted, a folder's files before its folders.

What is left out, which links are followed and what happens where nothing can be read is decided by whoever asks for the
scan: a project leaves out and notes, data refuses.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from kinetic import _output as output
from kinetic._output import terminal
from kinetic._output.format import share_text, size_text
from kinetic._wire import folders, threads, trees
from kinetic.errors import DataChangedError, DataError, DataMissingError, KineticError

_by_name = attrgetter("name")


class File(NamedTuple):
    """A file that a scan found.

    Attributes:
        relative: Path below the root, with forward slashes.
        path: Where to open it.
        size: Bytes, when the scan passed.
        stamp: Size, times, inode, device and mode in one word: equal stamps, equal content.
        executable: Its owner may execute it.
    """

    relative: str
    path: str
    size: int
    stamp: str
    executable: bool


class Folder(NamedTuple):
    """A folder with its own files; ``relative`` is "" for the root, else ends without a slash."""

    relative: str
    path: str
    files: list[File]
    folders: list[str]


class LeftOut(NamedTuple):
    """Something that does not travel.

    Attributes:
        relative: Path below the root; a folder's ends with a slash.
        size: Bytes, or None where nobody looked.
        reason: Why, in a few words.
        origin: Who left it out, e.g. "user" for a line of an ignore file, or "skipped" when it could not travel.
    """

    relative: str
    size: int | None
    reason: str
    origin: str


class Scan(NamedTuple):
    """A folder as the scan found it; every folder stands before those that it holds."""

    folders: list[Folder]
    left_out: list[LeftOut]
    files: int
    bytes: int

    def paths(self) -> list[str]:
        """Return everything that travels: folders with a slash at their end, and files."""
        return [
            path
            for folder in self.folders
            for path in (f"{folder.relative}/", *(file.relative for file in folder.files))
            if path != "/"
        ]

    def largest(self, count: int) -> list[File]:
        """Return the largest files that travel, largest first."""
        import heapq  # only for messages

        return heapq.nlargest(count, (file for folder in self.folders for file in folder.files), lambda file: file.size)


class Selection:
    """What a scan takes along: every file, and no folder that a link leads to. The answer None means: it travels."""

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
        """Judge a link, of whatever kind, by what it leads to; ``inside`` is the folder in which it lies."""
        is_folder = stat.S_ISDIR(about.st_mode)
        return LeftOut(f"{relative}/", None, "a link to a folder", "skipped") if is_folder else None

    def unreadable(self, path: str, relative: str, error: OSError) -> LeftOut:  # noqa: ARG002
        """Leave out what cannot be listed or looked at, or raise; a folder's ``relative`` ends with a slash."""
        raise error

    def problem(self, so_far: Scan) -> KineticError | None:
        """Return why what was found so far is too much, or None; asked after each folder."""


def scan(root: str, selection: Selection) -> Scan:
    """Look at everything below a folder.

    Raises:
        KineticError: Whatever the selection raises, or what it calls a problem.
    """
    return _Scanner(selection).run(root)


class _Scanner:
    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._left_out: list[LeftOut] = []
        self._bytes = 0

    def run(self, root: str) -> Scan:
        so_far = Scan([], self._left_out, 0, 0)
        waiting = [Folder("", root, [], [])]  # the next one to visit stands last
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
        for entry in entries:
            name, relative = entry.name, start + entry.name
            left = None if name.isascii() else selection.odd_name(relative)
            if left is None:
                if entry.is_symlink():
                    left = self._follow(entry, relative, folder, below)
                elif entry.is_dir(follow_symlinks=False):
                    if (left := selection.folder(entry, relative)) is None:
                        _descend(entry, relative, folder, below)
                elif not asks or (left := selection.file(entry, relative)) is None:
                    left = self._keep(entry, relative, folder)
            if left is not None:
                self._left_out.append(left)
        return below

    def _follow(self, entry: os.DirEntry[str], relative: str, folder: Folder, below: list[Folder]) -> LeftOut | None:
        """Take along what a link leads to, under the link's name; what it leads to also travels under its own."""
        try:
            about = entry.stat()
        except OSError as error:
            return self._selection.unreadable(entry.path, relative, error)
        if (left := self._selection.link(entry, relative, about, folder)) is not None:
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


def stamp_of(about: os.stat_result) -> str:
    """Return a word that changes whenever a file's content or mode does."""
    return f"{about.st_size}.{about.st_mtime_ns}.{about.st_ctime_ns}.{about.st_ino}.{about.st_dev}.{about.st_mode}"


VERSION = 1
_BETWEEN = "\0\0"  # no record is empty, holds two NULs, or begins or ends with one
# A file that changed this shortly before it was read may change again without another time stamp. Linux stamps every
# 1 to 10 ms; a time in whole seconds shows a file system that stamps every second, or every other one.
_RACY_NS = 20_000_000
_RACY_COARSE_NS = 2_000_000_000


def is_settled(about: os.stat_result, read_at: int) -> bool:
    """Return whether an equal stamp will mean equal content: the file had held still when its reading began.

    Args:
        about: What the system says about the file.
        read_at: When its reading began, in nanoseconds.
    """
    changed = max(about.st_mtime_ns, about.st_ctime_ns)
    coarse = changed % 1_000_000_000 == 0
    return changed < read_at - (_RACY_COARSE_NS if coarse else _RACY_NS)


def name_of(*parts: str) -> str:
    """Return the name under which something is remembered about a folder, or about a folder and a store together."""
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


class Digests:
    """The digests of one folder's files by their records: words that change whenever the file does.

    Args:
        path: The file in which they lie, or None to remember nothing.
        root: The folder.
        records: Those of the files that are there now, in their order.
    """

    def __init__(self, path: str | None, root: str, records: Sequence[str]) -> None:
        self._path = path
        self._root = os.fsencode(root).hex()
        self.records = records
        self._joined, self._digests = self._load()

    def whole(self) -> bytes | None:
        """Return the digests of all files one after the other if nothing changed, else None."""
        return self._digests if self._joined and self._joined == _joined(self.records) else None

    def each(self) -> dict[str, bytes]:
        """Return the digest that is known for each record."""
        records = os.fsdecode(self._joined).split(_BETWEEN) if self._joined else []
        return {record: self._digests[32 * i : 32 * i + 32] for i, record in enumerate(records)}

    def write(self, records: Sequence[str], digests: Sequence[bytes]) -> None:
        """Remember files that can be trusted, and forget all others."""
        joined, together = _joined(records), b"".join(digests)
        if self._path is None or (joined, together) == (self._joined, self._digests):
            return
        head = {
            "kinetic-cache": VERSION,
            "root": self._root,
            "records": len(joined),
            "sha256": hashlib.sha256(joined + together).hexdigest(),
        }
        with contextlib.suppress(OSError):
            folders.write_whole(self._path, json.dumps(head).encode() + b"\n" + joined + together)

    def _load(self) -> tuple[bytes, bytes]:
        try:
            with open(self._path or os.devnull, "rb") as file:
                head, body = json.loads(file.readline()), file.read()
            sound = head["kinetic-cache"] == VERSION and head["root"] == self._root
            if sound and hashlib.sha256(body).hexdigest() == head["sha256"]:
                joined, digests = body[: head["records"]], body[head["records"] :]
                if len(digests) == 32 * (joined.count(_BETWEEN.encode()) + 1):
                    return joined, digests
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        return b"", b""


def _joined(records: Sequence[str]) -> bytes:
    return os.fsencode(_BETWEEN.join(records))


_SLOW_SECONDS = 1.0
_LARGE_BYTES = 10 << 30  # above this, sending is worth a second thought
_NAMED = 5  # names in one line


class TransferProgress:
    """The progress of one piece of work on data; a context manager, and its counts may come from any thread.

    Args:
        doing: What is done, e.g. "sending".
        what: To what, as the user knows it.
        files: How many files there are to do.
        size: How many bytes.
    """

    def __init__(self, doing: str, what: str, files: int, size: int) -> None:
        self._doing, self._what = doing, what
        self._of_files, self._of_bytes = files, size
        self._files = self._done = self._there = 0
        self._begun = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._progress = output.Progress()

    def __enter__(self) -> Self:
        self._begun = time.monotonic()
        self._thread = threads.start(self._tick, "kinetic-data-progress")
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
        """Say how far it has come."""
        with self._lock:
            files, done, there = self._files, self._done, self._there
        told = f"{files:,} of {self._of_files:,} files, {size_text(done + there)} of {size_text(self._of_bytes)}"
        rate = f", {size_text(done / seconds)}/s" if done and seconds > 0 else ""
        return told + rate + (f", {size_text(there)} there already" if there else "")

    def brief(self, seconds: float) -> str:
        """Say the same in the 80 columns of a terminal; what it is about comes last, where it may be cut off."""
        with self._lock:
            files, done, there = self._files, self._done, self._there
        told = [f"{files}/{self._of_files} files", share_text(done + there, self._of_bytes)]
        told += [f"{size_text(done / seconds)}/s"] if done and seconds > 0 else []
        told += [f"{size_text(there)} there"] if there else []
        return f"{', '.join(told)} ({self._what})"

    def _tick(self) -> None:
        progress, is_live = self._progress, terminal.is_possible()
        doing = self._doing if is_live else f"{self._doing} {self._what}"
        progress.enter(doing)
        while not self._over.wait(_SLOW_SECONDS):
            seconds = time.monotonic() - self._begun
            progress.enter(doing, self.brief(seconds) if is_live else self.detail(seconds))


def report_left_out(what: str, tree: Tree) -> None:
    """Say once what of the data does not travel."""
    if tree.left_out:
        more = len(tree.left_out) - _NAMED
        names = ", ".join(tree.left_out[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        output.report_once(f"{what} travels without {names}")


def warn_if_large(what: str, size: int, *, is_copied_here: bool = False) -> None:
    """Warn before a lot is sent."""
    if size > _LARGE_BYTES:
        hint = "; fuse=True shows it to jobs on this machine without a copy" if is_copied_here else ""
        output.warn(f"{size_text(size)} of {what} are copied into the store now{hint}")


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
    found = scan(root, _AllFiles())
    files = [file for folder in found.folders for file in folder.files]
    hollow = [folder.relative for folder in found.folders[1:] if not folder.files and not folder.folders]
    return ScannedData(root, True, files, hollow, [f"{left.relative} ({left.reason})" for left in found.left_out])  # noqa: FBT003


class _AllFiles(Selection):
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
_REPORT_BYTES = 4 << 20
_ATTEMPTS = 3
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a file that became a FIFO must not hold us


class ReadingStopped(Exception):  # noqa: N818 - not an error: somebody else failed
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
            raise ReadingStopped

    def _digest(self, descriptor: int, file: File) -> bytes:
        found = trees.file_digest(file.relative)
        while size := os.readv(descriptor, (self._buffer,)):
            found.update(self._buffer[:size])
            self._untold += size
            if self._untold >= _REPORT_BYTES:
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


def digests_of(cache: Path | None, walked: ScannedData) -> Digests:
    """Return what is known of the files of a root."""
    path = None if cache is None else f"{cache}/{name_of(walked.root)}.stamps"
    return Digests(path, walked.root, [record_of(file) for file in walked.files])


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
    page = read_page(_sent_path(cache, root, url))
    try:
        if page["url"] == url:
            return SentManifest(str(page["hash"]), str(page["shape"]), str(page["manifest"]), int(page["size"]))
    except (KeyError, TypeError, ValueError):
        pass
    return None


def remember_sent(cache: Path, root: str, url: str, sent: SentManifest) -> None:
    """Write down what went from a root to a store."""
    write_page(_sent_path(cache, root, url), {"url": url, **sent._asdict()})


def _sent_path(cache: Path, root: str, url: str) -> Path:
    return cache / f"{name_of(root, url)}.sent"


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
    found = trees.content_hash([digests], is_dir=walked.is_dir)
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
        TransferProgress("reading", root, len(numbers), total) as told,
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
    told: TransferProgress | None,
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

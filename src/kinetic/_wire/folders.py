"""Files and folders: for their owner only, forced to the disk, and below a folder reached without following links.

A folder itself may be reached through links, since its owner chose it. Below it a link is neither a folder nor a file:
a user who can write there could otherwise have us list, read or delete files elsewhere. Each step is taken from the
descriptor of the one before, so that nothing can be exchanged between a check and its use.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from os import write as _write
from pathlib import Path
from typing import IO, Protocol

from kinetic._wire import python_runtime

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
_MOST_OWED = 64  # descriptors; a project or a data folder may have thousands of files
_MAX_WRITE = 64 << 20  # macOS refuses 2 GiB and more
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # of a pipe, opening would wait for a writer
_umask_lock = python_runtime.free_in_child(threading.Lock())
_gate_lock = python_runtime.free_in_child(threading.Lock())  # POSIX locks do not tell threads of one process apart


class closing:  # noqa: N801 - reads as a statement; a class because contextlib's generators cost 2 us a call
    """Close a descriptor at the end of a block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def make(folder: str | os.PathLike[str]) -> None:
    """Make a folder and the missing ones above it, each with its name on the disk before what goes into it.

    ``os.makedirs`` gives the private mode to the last of them only.
    """
    above = os.path.dirname(os.path.abspath(folder))
    try:
        os.mkdir(folder, PRIVATE_FOLDER)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
        return
    except FileNotFoundError:
        if not os.path.isdir(above):
            make(above)
        try:
            os.mkdir(folder, PRIVATE_FOLDER)
        except FileExistsError:  # made by another process this moment
            if not os.path.isdir(folder):
                raise
    sync(above)


class Helpers(Protocol):
    """Threads that force side by side what one thread owes: a disk takes their forced writes together."""

    under_way: int  # given and not yet taken

    def give(self, task: Callable[[], None], /) -> None:
        """Have a task done."""

    def take(self) -> None:
        """Wait until one more task has ended, and raise its error."""

    def close(self) -> None:
        """Wait until the threads have ended."""


class _Owed(threading.local):
    """What `force` has still to do: descriptors, by the file or folder they are of, and whom it tells afterwards."""

    descriptors: dict[tuple[int, int], int] | None = None
    helpers: Helpers | None
    told: list[Callable[[], object]]


_owed = _Owed()


@contextlib.contextmanager
def forced_later(helpers: Helpers | None = None) -> Iterator[None]:
    """Let what this thread forces to the disk inside wait for `force`, so that other processes can begin with it.

    For what nothing is promised of before. It is forced after an error as well: others may build on what was made.
    Helpers begin with each file when it is written, and at the end with the folders.

    Raises:
        OSError: It could not be forced.
    """
    if _owed.descriptors is not None:  # user code that is pickled may submit a job
        yield
        return
    _owed.descriptors, _owed.helpers, _owed.told = {}, helpers, []
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            force()
        raise
    else:
        force()
    finally:
        for descriptor in _owed.descriptors.values():
            os.close(descriptor)
        _owed.descriptors = _owed.helpers = None
        if helpers is not None:
            helpers.close()


def force() -> None:
    """Force to the disk what `forced_later` let wait."""
    owed = _owed.descriptors
    if owed is None:
        return
    helpers = _owed.helpers
    try:
        while owed:
            descriptor = owed.popitem()[1]
            if helpers is not None and owed:
                helpers.give(partial(_sync_and_close, descriptor))
            else:
                _sync_and_close(descriptor)
        while helpers is not None and helpers.under_way:
            helpers.take()
    except BaseException:
        _owed.told = []
        while helpers is not None and helpers.under_way:
            with contextlib.suppress(OSError):
                helpers.take()
        raise
    told, _owed.told = _owed.told, []
    for each in told:
        each()


def when_forced(tell: Callable[[], object]) -> None:
    """Call a function once everything that this thread has forced so far is on the disk; never, if that fails."""
    if _owed.descriptors is not None and (_owed.descriptors or (_owed.helpers is not None and _owed.helpers.under_way)):
        _owed.told.append(tell)
    else:
        tell()


def is_forced_later() -> bool:
    """Return whether this thread is inside `forced_later`."""
    return _owed.descriptors is not None


def sync(path: str | os.PathLike[str]) -> None:
    """Force a file, or the names in a folder, to the disk; file systems that cannot sync a folder say EINVAL."""
    with closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
        if not _waits(descriptor):
            _sync(descriptor)


def sync_open(descriptor: int) -> None:
    """Force a file that is open to the disk."""
    if not _waits(descriptor):
        os.fsync(descriptor)


def _waits(descriptor: int) -> bool:
    """Leave a file or folder to `force`, if it may wait; its name may be another one by then."""
    owed, helpers = _owed.descriptors, _owed.helpers if _owed.descriptors is not None else None
    if owed is None:
        return False
    about = os.fstat(descriptor)
    which = about.st_dev, about.st_ino
    if which in owed:  # of a folder: its descriptor has also the names that come later
        return True
    if len(owed) + (helpers.under_way if helpers is not None else 0) >= _MOST_OWED:
        return False
    if helpers is not None and stat.S_ISREG(about.st_mode):
        helpers.give(partial(_sync_and_close, os.dup(descriptor)))
    else:
        owed[which] = os.dup(descriptor)
    return True


def _sync_and_close(descriptor: int) -> None:
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EBADF, errno.EROFS, errno.EACCES}:
            raise


def opener(path: str, flags: int) -> int:
    """Open a file that is made for its owner only; for ``open(..., opener=)``."""
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE)


def write_all(descriptor: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of the data: a write to a nearly full disk takes a part of it, and only the next one fails.

    Raises:
        OSError: Some of it was not written.
    """
    view = memoryview(data)
    view = view.cast("B") if view.nbytes else memoryview(b"")
    while view:
        done = _write(descriptor, view[:_MAX_WRITE])
        if not done:
            raise OSError(errno.EIO, "nothing was written")
        view = view[done:]


def write_at(descriptor: int, data: bytes | memoryview, at: int) -> None:
    """Write all of the data at a place of a file."""
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, at)
        view, at = view[done:], at + done


def append(path: str | os.PathLike[str], text: str) -> None:
    """Add a text to a file, whatever a job has left of it; do nothing where that is not possible."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with contextlib.suppress(OSError), closing(os.open(path, flags)) as descriptor:
        write_all(descriptor, text.encode(errors="backslashreplace"))


def read_range(descriptor: int, start: int, length: int) -> bytes:
    """Read a range of a file; shorter only where the file ends."""
    data = os.pread(descriptor, length, start)
    while data and len(data) < length and (more := os.pread(descriptor, length - len(data), start + len(data))):
        data += more
    return data


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str], *, forced: bool = True, mode: int = PRIVATE_FILE) -> Iterator[IO[bytes]]:
    """Yield a file that gets its name when it is complete, and has replaced another one then.

    Unless it is not to be ``forced``, its bytes are on the disk before its name, and its name when this returns.
    """
    above, name = os.path.split(os.path.abspath(path))
    beside = f"{above}/.{name}.{os.getpid():x}.{os.urandom(4).hex()}.part"
    try:
        with open(beside, "xb", opener=lambda new, flags: os.open(new, flags | os.O_CLOEXEC, mode)) as file:
            yield file
            if forced:
                file.flush()
                os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    if forced:
        with contextlib.suppress(OSError):  # some network file systems cannot sync a folder
            sync(above)


def name_once(scratch: str, name: str, at: int, gates: Callable[[], Path]) -> bool:
    """Give a complete file a name in an open folder unless it is taken; return whether: of several, exactly one wins.

    Where hard links do not exist (some FUSE mounts, exFAT), it loses its first name: one at a time, by a lock that is
    held in the folder ``gates``.
    """
    try:
        os.link(scratch, name, dst_dir_fd=at)
        return True
    except FileExistsError:  # a network file system whose first answer was lost says it of our own link, too
        return os.path.samestat(os.stat(scratch), os.stat(name, dir_fd=at, follow_symlinks=False))
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}:
            raise
    import fcntl  # only on such file systems

    with _gate_lock, open(gates() / ".creating", "ab") as gate:  # no text layer
        fcntl.lockf(gate, fcntl.LOCK_EX)  # gone with the process that holds it
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=at, follow_symlinks=False)
            return False
        os.replace(scratch, name, dst_dir_fd=at)  # hot path
        return True


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all, and the folders above it if need be.

    It is not forced to the disk: for caches, where a damaged page is only slow.
    """
    make(os.path.dirname(path))
    with replaced(path, forced=False) as file:
        file.write(data)


def why_not_utf8(path: str) -> tuple[str, str]:
    """Return why a path cannot be written into a page, and what to do about it; two empty texts if it can."""
    try:
        path.encode()
    except UnicodeEncodeError:
        if (encoding := sys.getfilesystemencoding()) != "utf-8":
            return f"Python reads the names of files as {encoding} here", "export LC_ALL=C.UTF-8"
        return "its path is not valid UTF-8", "rename the folder, or use another one"
    return "", ""


def other_writers(folder: str | os.PathLike[str]) -> str:
    """Return who besides this user can write to a folder, as half a sentence; "" for nobody, or if it is missing.

    A group is accepted where it is this user's own: many systems give each user one, and let it write by default.
    """
    try:
        about = os.stat(folder)
    except OSError:
        return ""
    mode = stat.S_IMODE(about.st_mode)
    if about.st_uid != os.geteuid():
        return f"it belongs to user {about.st_uid}, and you are user {os.geteuid()}"
    if mode & stat.S_IWOTH:
        return f"its mode {mode:04o} lets every user write into it"
    if mode & stat.S_IWGRP and about.st_gid != os.getegid():
        return f"its mode {mode:04o} lets the group {about.st_gid} write into it"
    return ""


# ------------------------------------------------------------------------------------------------------- without links


class opened(closing):  # noqa: N801 - as above
    """Open a folder below another one while a block runs, which gets its descriptor.

    Args:
        root: Any folder.
        path: Below it, with forward slashes; "" for itself.
        make: Make what is missing below the root, with this mode.

    Raises:
        FileNotFoundError: It is not there.
        NotADirectoryError: A part of the path is a link, or no folder.
    """

    def __init__(self, root: str | os.PathLike[str], path: str = "", *, make: int | None = None) -> None:
        self._root, self._path, self._make = root, path, make

    def __enter__(self) -> int:
        descriptor = os.open(self._root, _FOLDER)
        for part in filter(None, self._path.split("/")):
            with closing(descriptor):
                descriptor = _open_folder(part, descriptor, make=self._make)
        self._descriptor = descriptor
        return descriptor


def opened_parent(root: str | os.PathLike[str], path: str, *, make: int | None = None) -> opened:
    """Open the folder that holds a path; see ``opened``."""
    return opened(root, path.rpartition("/")[0], make=make)


def name_of(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def open_file(root: str | os.PathLike[str], path: str) -> int:
    """Return a descriptor of a regular file, for reading.

    Raises:
        FileNotFoundError: There is none: a link, a pipe or a device is none.
        NotADirectoryError: A part of the path is a link, or no folder.
    """
    with opened_parent(root, path) as at:
        try:
            descriptor = os.open(name_of(path), _FILE, dir_fd=at)
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO}:  # a link; a socket
                raise FileNotFoundError(errno.ENOENT, "not a regular file", path) from error
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
    return descriptor


def read_file(root: str | os.PathLike[str], path: str, most: int) -> bytes:
    """Return at most so many bytes of a regular file, whatever others may put in its place; see ``open_file``."""
    with open(open_file(root, path), "rb") as file:
        return file.read(most)


def lstat(root: str | os.PathLike[str], path: str) -> os.stat_result:
    """Return what is at a path, of a link the link itself.

    Raises:
        FileNotFoundError: Nothing is.
        NotADirectoryError: A part of the path before the last is a link, or no folder.
    """
    with opened_parent(root, path) as at:
        return os.stat(name_of(path), dir_fd=at, follow_symlinks=False)


def walk(
    root: str | os.PathLike[str], prefix: str = "", after: str = "", known: Callable[[str], bool] | None = None
) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and description of everything below a prefix that is no folder, in the order of the paths.

    Args:
        root: Any folder.
        prefix: "" or a path that ends in "/".
        after: Only paths behind this one.
        known: Only paths of which this is not true; the disk is asked nothing about the others.
    """
    items: list[tuple[str, os.stat_result | None]] = []
    try:
        with opened(root, prefix) as at, os.scandir(at) as found:
            for item in found:
                if item.is_dir(follow_symlinks=False):
                    items.append((f"{item.name}/", None))
                elif (path := prefix + item.name) > after and not (known is not None and known(path)):
                    with contextlib.suppress(FileNotFoundError):
                        items.append((item.name, item.stat(follow_symlinks=False)))
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, described in sorted(items, key=lambda item: item[0]):
        path = prefix + name
        if described is not None:
            yield path, described
        elif path > after or after.startswith(path):
            yield from walk(root, path, after, known)


def remove(root: str | os.PathLike[str], path: str) -> int:
    """Remove a folder with all that is in it, and return how many files it held; links go, and not what they name.

    What is added meanwhile may stay, and the folder with it.

    Raises:
        OSError: Something in it cannot be removed.
    """
    path = path.rstrip("/")
    try:
        with opened_parent(root, path) as at:
            return _remove(name_of(path), at)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _remove(name: str, at: int) -> int:
    count = 0
    with closing(_open_folder(name, at)) as inside:
        with os.scandir(inside) as found:
            items = [(item.name, item.is_dir(follow_symlinks=False)) for item in found]
        for item, is_folder in items:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # gone, or exchanged, meanwhile
                if is_folder:
                    count += _remove(item, inside)
                else:
                    os.unlink(item, dir_fd=inside)
                    count += 1
    with contextlib.suppress(OSError):  # something was added
        os.rmdir(name, dir_fd=at)
    return count


def _open_folder(name: str, at: int, *, make: int | None = None) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=at)
    except FileNotFoundError:
        if make is None:
            raise
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, make, dir_fd=at)
        return _open_folder(name, at)
    except OSError as error:
        if error.errno == errno.ELOOP:  # macOS of a link; Linux says that it is no folder
            raise NotADirectoryError(errno.ENOTDIR, "a link is not followed", name) from error
        raise


def is_due(mark: Path, now: float, seconds: float, *, note: bool = True) -> bool:
    """Return whether the last collection is long enough ago, and if so, note that one begins now."""
    with contextlib.suppress(OSError):
        if 0 <= now - mark.lstat().st_mtime < seconds:
            return False
    if not note:
        return True
    try:
        mark.touch(0o600)
        os.utime(mark, (now, now))
    except OSError:  # no runtime folder yet, so no job yet; or nothing can be written
        return False
    return True


_RECENT_NS, _RECENT_COARSE_NS = 20_000_000, 2_000_000_000


def is_settled(changed_ns: int, now_ns: int) -> bool:
    """Return whether a file or a folder that changed then gets another time when it changes again after this moment.

    Linux stamps every 1 to 10 ms; a time in whole seconds shows a file system that stamps every second, or every other.
    """
    recent = _RECENT_COARSE_NS if changed_ns % 1_000_000_000 == 0 else _RECENT_NS
    return changed_ns < now_ns - recent


def changed_ns(about: os.stat_result) -> int:
    """Return when a file changed last, its mode and its names included, in nanoseconds of Unix time."""
    return max(about.st_mtime_ns, about.st_ctime_ns)


def listed(folder: Path) -> list[Path]:
    """Return what is in a folder, in order; nothing where it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def age(path: Path, now: float) -> float:
    """Return the seconds since a file was changed; 0 if it is gone."""
    try:
        return now - path.lstat().st_mtime
    except OSError:
        return 0.0


def read_umask() -> int:
    """Return the umask of this process, and change it for a moment only where the system does not tell it.

    All threads share it: of two that change it at the same time, one puts back what the other has set.
    """
    try:
        with open("/proc/thread-self/status", "rb") as file:
            return next(int(line[6:], 8) for line in file if line.startswith(b"Umask:"))
    except (OSError, StopIteration):  # macOS has no such file
        with _umask_lock:
            umask = os.umask(0o077)  # what other threads make meanwhile is private
            os.umask(umask)
        return umask


def file_id(path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return which file has a name, as its device and its inode; (0, 0) if there is none."""
    try:
        about = os.stat(path)
    except OSError:
        return 0, 0
    return about.st_dev, about.st_ino

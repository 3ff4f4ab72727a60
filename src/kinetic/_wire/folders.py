"""Folders and files for their owner only, whatever the umask says."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from os import write as _write

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
_MOST_AT_ONCE = 64 << 20  # macOS refuses 2 GiB and more


def make(folder: str | os.PathLike[str]) -> None:
    """Make a folder and the missing ones above it, each with its name on the disk before what goes into it.

    ``os.makedirs`` protects the last of them only.
    """
    try:
        os.mkdir(folder, PRIVATE_FOLDER)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
        return
    except FileNotFoundError:
        above = os.path.dirname(os.path.abspath(folder))
        if not os.path.isdir(above):
            make(above)
        try:
            os.mkdir(folder, PRIVATE_FOLDER)  # also when somebody else made the one above it this moment
        except FileExistsError:
            if not os.path.isdir(folder):
                raise
    sync(os.path.dirname(os.path.abspath(folder)))


def sync(path: str | os.PathLike[str]) -> None:
    """Force a file, or the names in a folder, to the disk; file systems that cannot sync a folder say EINVAL."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.EBADF, errno.EROFS, errno.EACCES}:
            raise
    finally:
        os.close(descriptor)


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
        done = _write(descriptor, view[:_MOST_AT_ONCE])
        if not done:
            raise OSError(errno.EIO, "nothing was written")
        view = view[done:]


def write_whole(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all, and the folders above it if need be.

    It is not forced to the disk: for caches, where a page that is damaged is only slow.
    """
    beside = f"{os.fspath(path)}.{os.getpid():x}.{os.urandom(4).hex()}.part"
    make(os.path.dirname(path))
    try:
        with open(beside, "xb", opener=opener) as file:
            file.write(data)
        os.replace(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def others_who_write(folder: str | os.PathLike[str]) -> str:
    """Return who besides this user may write into a folder, as half a sentence; "" where nobody may, or it is missing.

    A group may where it is this user's own: many systems give each user one, and let it write by default.
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

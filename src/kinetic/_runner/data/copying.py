"""A copy of a file for one job alone: shares its blocks where the disk can, a read-only hard link, or real bytes.

| way | what the job gets | when |
|---|---|---|
| reflink | a file of its own that shares blocks until one of the two is written | the file system can (btrfs, xfs, …) |
| link | another name of the kept file, which nobody may write | not as root, whom file modes do not stop |
| copy | a file of its own | otherwise, and when the job asked to write |
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from pathlib import Path
from typing import Literal

from kinetic._runner.data import telling
from kinetic._wire import folders

Way = Literal["reflink", "link", "copy"]

_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_CHUNK = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def choose(kept: Path, own: Path, *, writable: bool) -> Way:
    """Say how files of one folder become copies in another, by trying.

    Args:
        kept: The folder that several jobs share.
        own: The job's own.
        writable: Whether the job wants to write into its copy.
    """
    if _can_reflink(kept, own):
        return "reflink"
    if writable or os.geteuid() == 0 or kept.stat().st_dev != own.stat().st_dev:
        return "copy"
    return "link"


def give(source: str, target: str, *, way: Way, executable: bool) -> None:
    """Make a job's own copy of a file; what the chosen way cannot do for this one file is copied."""
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


def copy_range(reading: int, writing: int, length: int, *, start: int, at: int) -> bool:
    """Copy bytes inside the kernel, which shares blocks where it can; False when it cannot do it at all."""
    if not hasattr(os, "copy_file_range") or telling.is_portable():
        return False
    done = 0
    while done < length:
        try:
            count = os.copy_file_range(reading, writing, length - done, start + done, at + done)
        except OSError as error:
            if error.errno in telling.FULL:
                raise
            return False
        if not count:
            return False
        done += count
    return True


def _copy(reading: int, writing: int, size: int) -> None:
    if copy_range(reading, writing, size, start=0, at=0):
        return
    done = 0
    while piece := os.pread(reading, _CHUNK, done):
        write_at(writing, piece, done)
        done += len(piece)


def write_at(descriptor: int, data: bytes | memoryview, at: int) -> None:
    """Write all of some bytes at a place of a file."""
    view = memoryview(data)
    while view:
        done = os.pwrite(descriptor, view, at)
        view, at = view[done:], at + done


def _reflink(reading: int, writing: int) -> bool:
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError as error:
        if error.errno in telling.FULL:
            raise
        return False
    return True


def _can_reflink(kept: Path, own: Path) -> bool:
    if sys.platform != "linux" or telling.is_portable():
        return False
    name = f".reflink-{os.getpid():x}-{os.urandom(4).hex()}"
    paths = [folder / name for folder in (kept, own)]
    try:
        with contextlib.ExitStack() as closing:
            ends = []
            for path in paths:
                closing.callback(path.unlink, missing_ok=True)
                ends.append(closing.enter_context(open(path, "xb", buffering=0, opener=folders.opener)))
            ends[0].write(bytes(4096))
            return _reflink(ends[0].fileno(), ends[1].fileno())
    except OSError:
        return False


def give_tree(source: Path, target: Path, *, way: Way) -> None:
    """Make a job's own copy of everything in a folder, or of one file."""
    pending = [("", source.is_dir())]
    for inside, is_dir in pending:  # grows while it is read
        here, there = f"{source}{inside}", f"{target}{inside}"
        if not is_dir:
            give(here, there, way=way, executable=bool(os.stat(here).st_mode & 0o100))
            continue
        os.makedirs(there, exist_ok=True)
        with os.scandir(here) as entries:
            pending += [(f"{inside}/{entry.name}", entry.is_dir(follow_symlinks=False)) for entry in entries]

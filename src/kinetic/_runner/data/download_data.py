"""Copies of kept files for one job, in the way that the file system and the job allow."""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
from pathlib import Path
from typing import Literal

from kinetic._blobs import fetch
from kinetic._runner import processes
from kinetic._wire import folders

Way = Literal["reflink", "link", "copy"]

_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_CHUNK = 1 << 20
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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
    if fetch.copy_range(reading, writing, size, start=0, at=0):
        return
    done = 0
    while piece := os.pread(reading, _CHUNK, done):
        fetch.write_at(writing, piece, done)
        done += len(piece)


def _reflink(reading: int, writing: int) -> bool:
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError as error:
        if error.errno in fetch.DISK_FULL:
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

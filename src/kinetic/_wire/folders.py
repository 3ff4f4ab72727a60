"""Folders and files for their owner only, whatever the umask says."""

from __future__ import annotations

import contextlib
import os

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600


def make(folder: str | os.PathLike[str]) -> None:
    """Make a folder and the missing ones above it; ``os.makedirs`` protects the last of them only."""
    try:
        os.mkdir(folder, PRIVATE_FOLDER)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise
    except FileNotFoundError:
        above = os.path.dirname(os.path.abspath(folder))
        if not os.path.isdir(above):
            make(above)
        try:
            os.mkdir(folder, PRIVATE_FOLDER)  # also when somebody else made the one above it this moment
        except FileExistsError:
            if not os.path.isdir(folder):
                raise


def opener(path: str, flags: int) -> int:
    """Open a file that is made for its owner only; for ``open(..., opener=)``."""
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE_FILE)


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

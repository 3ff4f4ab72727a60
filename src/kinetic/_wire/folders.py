"""Folders and files for their owner only, whatever the umask says."""

from __future__ import annotations

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

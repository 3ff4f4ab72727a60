"""What data holds: one quick walk in the documented order, so that what is hashed is what is sent."""

from __future__ import annotations

import errno
import os
import stat
from operator import attrgetter
from typing import NamedTuple

from kinetic.errors import DataError, DataMissingError

_by_name = attrgetter("name")
_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class File(NamedTuple):
    """A file of the data.

    Attributes:
        relative: Path below the root, with forward slashes; the bare name when the data is this one file.
        path: Where to open it.
        about: What the system says about it; about what a link leads to.
    """

    relative: str
    path: str
    about: os.stat_result

    @property
    def size(self) -> int:
        """Bytes."""
        return self.about.st_size

    @property
    def executable(self) -> bool:
        """Whether its owner may execute it."""
        return self.about.st_mode & stat.S_IXUSR != 0


class Walked(NamedTuple):
    """Data as the walk found it.

    Attributes:
        root: The absolute path.
        is_dir: Whether it is a folder.
        files: In the documented order: depth first, names sorted, a folder's files before its folders.
        folders: Those in which nothing lies that travels, by their relative paths.
        left_out: What does not travel, a phrase each.
    """

    root: str
    is_dir: bool
    files: list[File]
    folders: list[str]
    left_out: list[str]


def walk(root: str) -> Walked:
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
        raise unreadable(root, error) from error
    walked = Walked(root, stat.S_ISDIR(about.st_mode), [], [], [])
    if walked.is_dir:
        _walk_folder(walked)
    elif stat.S_ISREG(about.st_mode):
        walked.files.append(File(os.path.basename(root), root, about))
    else:
        raise DataError(f"{root} is neither a file nor a folder", why="a job reads files")
    return walked


def _walk_folder(walked: Walked) -> None:
    waiting = [("", walked.root)]  # the next one to visit stands last
    while waiting:
        start, path = waiting.pop()
        try:
            with os.scandir(path) as listing:
                entries = sorted(listing, key=_by_name)
        except OSError as error:
            raise unreadable(path, error) from error
        before, below = len(walked.files), []
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                below.append((f"{start}{entry.name}/", entry.path))
            else:
                _look_at(entry, start + entry.name, walked)
        if start and not below and len(walked.files) == before:
            walked.folders.append(start[:-1])
        waiting.extend(reversed(below))


def _look_at(entry: os.DirEntry[str], relative: str, walked: Walked) -> None:
    try:
        about = entry.stat()
    except OSError as error:
        raise unreadable(entry.path, error) from error
    if stat.S_ISREG(about.st_mode):
        walked.files.append(File(relative, entry.path, about))
    elif stat.S_ISDIR(about.st_mode):
        walked.left_out.append(f"{relative}/ (a link to a folder)")
    else:
        walked.left_out.append(f"{relative} (neither a file nor a folder)")


def unreadable(path: str, error: OSError) -> DataError:
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

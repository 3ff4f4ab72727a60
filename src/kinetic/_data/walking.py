"""What data takes along: every file, in the documented order, so that what is hashed is what is sent."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from kinetic._blobs.scan import File, LeftOut, Selection, file_of, scan
from kinetic.errors import DataError, DataMissingError

_NOWHERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class Walked(NamedTuple):
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
    if stat.S_ISREG(about.st_mode):
        return Walked(root, False, [file_of(os.path.basename(root), root, about)], [], [])  # noqa: FBT003 - a field
    if not stat.S_ISDIR(about.st_mode):
        raise DataError(f"{root} is neither a file nor a folder", why="a job reads files")
    found = scan(root, _Everything())
    files = [file for folder in found.folders for file in folder.files]
    hollow = [folder.relative for folder in found.folders[1:] if not folder.files and not folder.folders]
    return Walked(root, True, files, hollow, [f"{left.relative} ({left.reason})" for left in found.left_out])  # noqa: FBT003


class _Everything(Selection):
    """All files; what cannot be read is an error."""

    def unreadable(self, path: str, relative: str, error: OSError) -> LeftOut:  # noqa: ARG002 - of the base
        raise unreadable(path, error) from error


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

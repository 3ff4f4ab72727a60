"""Files below a folder, reached by descriptors: nothing is listed, read, written or deleted through a link.

The folder itself may be reached through links, since its owner chose it. Below it a link is neither a folder nor a
file: whoever can write there could otherwise have us list, read or delete the user's files elsewhere. Each step is
taken from the descriptor of the one before, so that nothing can be exchanged between a look and a deed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # of a pipe, opening would wait for a writer


class folder:  # noqa: N801 - reads as a statement; a class because contextlib's generators cost 2 us a call
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
        self._descriptor = -1

    def __enter__(self) -> int:
        descriptor = os.open(self._root, _FOLDER)
        for part in filter(None, self._path.split("/")):
            try:
                below = _open_folder(part, descriptor, make=self._make)
            finally:
                os.close(descriptor)
            descriptor = below
        self._descriptor = descriptor
        return descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def above(root: str | os.PathLike[str], path: str, *, make: int | None = None) -> folder:
    """Open the folder that holds a path; see ``folder``."""
    return folder(root, path.rpartition("/")[0], make=make)


def name_of(path: str) -> str:
    """Return the last part of a path."""
    return path.rpartition("/")[2]


def open_file(root: str | os.PathLike[str], path: str) -> int:
    """Return a descriptor of a regular file, for reading.

    Raises:
        FileNotFoundError: There is none: a link, a pipe or a device is none.
        NotADirectoryError: A part of the path is a link, or no folder.
    """
    with above(root, path) as at:
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


def about(root: str | os.PathLike[str], path: str) -> os.stat_result:
    """Return what is at a path, of a link the link itself.

    Raises:
        FileNotFoundError: Nothing is.
        NotADirectoryError: A part of the path before the last is a link, or no folder.
    """
    with above(root, path) as at:
        return os.stat(name_of(path), dir_fd=at, follow_symlinks=False)


def walk(root: str | os.PathLike[str], prefix: str = "", after: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and description of everything below a prefix that is no folder, in the order of the paths.

    Args:
        root: Any folder.
        prefix: "" or a path that ends in "/".
        after: Only paths behind this one.
    """
    try:
        with folder(root, prefix) as at, os.scandir(at) as found:
            items = sorted(
                (item.name + "/" if item.is_dir(follow_symlinks=False) else item.name, _about(item, prefix, after))
                for item in found
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, described in items:
        path = prefix + name
        if name.endswith("/"):
            if path > after or after.startswith(path):
                yield from walk(root, path, after)
        elif described is not None:
            yield path, described


def remove(root: str | os.PathLike[str], path: str) -> int:
    """Remove a folder with all that is in it, and return how many files it held; links go, and not what they name.

    What comes into it meanwhile may stay, and the folder with it.

    Raises:
        OSError: Something in it cannot be removed.
    """
    path = path.rstrip("/")
    try:
        with above(root, path) as at:
            return _remove(name_of(path), at)
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _remove(name: str, at: int) -> int:
    count, inside = 0, _open_folder(name, at)
    try:
        with os.scandir(inside) as found:
            items = [(item.name, item.is_dir(follow_symlinks=False)) for item in found]
        for item, is_folder in items:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # gone, or exchanged, meanwhile
                if is_folder:
                    count += _remove(item, inside)
                else:
                    os.unlink(item, dir_fd=inside)
                    count += 1
    finally:
        os.close(inside)
    with contextlib.suppress(OSError):  # something came into it
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


def _about(item: os.DirEntry[str], prefix: str, after: str) -> os.stat_result | None:
    """Describe what is no folder and comes behind a path; None for anything else, or where it has gone."""
    if item.is_dir(follow_symlinks=False) or prefix + item.name <= after:
        return None
    try:
        return item.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None

"""What lies in a folder: one quick scan, depth first, names sorted, a folder's files before its folders.

What is left out, which links are followed and what happens where nothing can be read is decided by whoever asks for the
scan: a project leaves out and notes, data refuses.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from kinetic.errors import KineticError

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

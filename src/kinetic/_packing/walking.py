"""What lies in a project: one quick walk that decides what ships and says why the rest does not."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from operator import attrgetter
from typing import NamedTuple

from kinetic._packing.ignore import ENVIRONMENT_SIGNS, Rule, Rules
from kinetic.errors import ProjectRootError

LIMIT_BYTES = 2 << 30  # 2 GB: above this it is data, and belongs into kinetic.Data
LIMIT_FILES = 1_000_000  # links that lead to each other can multiply without end
_APART = "kept apart: data, credentials, or kinetic's own"
_by_name = attrgetter("name")


class File(NamedTuple):
    """A file that ships.

    Attributes:
        relative: Path below the root, with forward slashes.
        path: Where to open it.
        size: Bytes, when the walk passed.
        stamp: Size, times, inode and device in one word: equal stamps, equal content.
        executable: Its owner may execute it.
    """

    relative: str
    path: str
    size: int
    stamp: str
    executable: bool


class Folder(NamedTuple):
    """A folder that ships, with its own files; ``relative`` is "" for the root, else ends without a slash."""

    relative: str
    path: str
    files: list[File]
    folders: list[str]


class LeftOut(NamedTuple):
    """Something that does not ship.

    Attributes:
        relative: Path below the root; a folder's ends with a slash.
        size: Bytes, or None where nobody looked.
        reason: Why, in a few words.
        origin: "default", "secret", "user", "data", "outside" for a link that leads out of the project, or "skipped"
            when it could not ship.
    """

    relative: str
    size: int | None
    reason: str
    origin: str


class Walked(NamedTuple):
    """A project as the walk found it; every folder stands before those that it holds."""

    folders: list[Folder]
    left_out: list[LeftOut]
    files: int
    bytes: int

    def paths(self) -> list[str]:
        """Return everything that ships: folders with a slash at their end, and files."""
        return [
            path
            for folder in self.folders
            for path in (f"{folder.relative}/", *(file.relative for file in folder.files))
            if path != "/"
        ]

    def largest(self, count: int) -> list[File]:
        """Return the largest files that ship, largest first."""
        import heapq  # only for messages

        return heapq.nlargest(count, (file for folder in self.folders for file in folder.files), lambda file: file.size)


def walk(root: str, rules: Rules, *, exclude: Iterable[str] = (), limited: bool = True) -> Walked:
    """Look at everything below a folder.

    Args:
        root: The folder.
        rules: What stays out.
        exclude: Further paths that stay out, absolute, with all that they hold: data that ships by itself, credentials.
        limited: Refuse what is too large to be a project.

    Raises:
        ProjectRootError: More than 2 GB, or a million files.
    """
    return _Walk(root, rules, exclude).run(limited=limited)


class _Walk:
    def __init__(self, root: str, rules: Rules, exclude: Iterable[str]) -> None:
        self._root = root
        self._rules = rules
        self._real_root = os.path.realpath(root)
        self._data = {os.path.realpath(path) for path in exclude} - {self._real_root}
        self._data_names = {os.path.basename(path) for path in self._data}
        self._within_data = tuple(f"{path.rstrip('/')}/" for path in self._data)
        self._left_out: list[LeftOut] = []
        self._bytes = 0
        self._files = 0

    def run(self, *, limited: bool) -> Walked:
        folders = [Folder("", self._root, [], [])]
        walked = Walked(folders, self._left_out, 0, 0)
        for folder in folders:  # grows while it is read
            self._enter(folder, folders)
            self._files += len(folder.files)
            so_far = walked._replace(files=self._files, bytes=self._bytes)
            if limited and (refusal := problem(self._root, so_far)):
                raise refusal
        return so_far

    def _enter(self, folder: Folder, folders: list[Folder]) -> None:
        start = f"{folder.relative}/" if folder.relative else ""
        try:
            with os.scandir(folder.path) as listing:
                entries = sorted(listing, key=_by_name)
        except OSError as error:
            if not start:
                raise ProjectRootError(f"the project cannot be read: {self._root}", why=str(error)) from error
            self._skip(start, f"cannot be listed: {error.strerror}")
            return
        judge = self._rules.concern([entry.name for entry in entries])
        for entry in entries:
            name, relative = entry.name, start + entry.name
            if not name.isascii() and not _is_text(name):
                self._skip(os.fsencode(relative).decode(errors="replace"), "its name is not valid UTF-8")
            elif entry.is_symlink():
                self._follow(entry, relative, folder, folders)
            elif entry.is_dir(follow_symlinks=False):
                self._descend(entry, relative, folder, folders)
            elif name in self._data_names and self._is_data(entry.path):
                self._leave(relative, _APART, "data")
            elif judge and (rule := self._rules.file(relative, name)):
                self._leave(relative, rule.reason, rule.origin, _size(entry))
            else:
                self._keep(entry, relative, folder)

    def _keep(self, entry: os.DirEntry[str], relative: str, folder: Folder) -> None:
        try:
            about = entry.stat()
        except OSError as error:
            self._skip(relative, f"cannot be read: {error.strerror}")
            return
        mode, size = about.st_mode, about.st_size
        if not stat.S_ISREG(mode):
            self._skip(relative, "neither a file nor a folder")
            return
        self._bytes += size
        folder.files.append(File(relative, entry.path, size, stamp_of(about), mode & stat.S_IXUSR != 0))

    def _descend(self, entry: os.DirEntry[str], relative: str, folder: Folder, folders: list[Folder]) -> None:
        name = entry.name
        if rule := self._rules.folder(relative, name):
            self._leave(f"{relative}/", rule.reason, rule.origin)
        elif name in self._data_names and self._is_data(entry.path):
            self._leave(f"{relative}/", _APART, "data")
        elif self._rules.environments and is_environment(entry.path) and not self._rules.insist_on(relative, name):
            self._leave(f"{relative}/", "a virtual environment", "default")
        else:
            folder.folders.append(name)
            folders.append(Folder(relative, entry.path, [], []))

    def _follow(self, entry: os.DirEntry[str], relative: str, folder: Folder, folders: list[Folder]) -> None:
        """Ship what a link leads to under the link's name; what it leads to also ships under its own.

        Only what lies in the project: whoever clones one must not send away what its links point to on this machine.
        """
        try:
            about = entry.stat()
        except OSError as error:
            self._skip(relative, f"a link that leads nowhere: {error.strerror}")
            return
        target = os.path.realpath(entry.path)
        if target in self._data or target.startswith(self._within_data):
            self._leave(relative, _APART, "data")
        elif not is_inside(target, self._real_root):
            self._leave(f"{relative}/" if stat.S_ISDIR(about.st_mode) else relative, f"a link to {target}", "outside")
        elif stat.S_ISDIR(about.st_mode):
            if self._leads_back(target, folder):
                self._skip(f"{relative}/", "a link to a folder that it lies in")
            else:
                self._descend(entry, relative, folder, folders)
        elif rule := self._rules.file(relative, entry.name) or self._secret(target, relative, entry.name):
            self._leave(relative, rule.reason, rule.origin, about.st_size)
        else:
            self._keep(entry, relative, folder)

    def _secret(self, target: str, relative: str, name: str) -> Rule | None:
        """Judge a link to a secret by what it leads to, unless the user asks for it by the link's name."""
        rule = self._rules.secret(target)
        return rule if rule and not self._rules.insist_on(relative, name) else None

    def _leads_back(self, target: str, folder: Folder) -> bool:
        inside = target.rstrip("/") + "/"
        place = folder.path
        while True:
            real = os.path.realpath(place)
            if real == target or real.startswith(inside):
                return True
            if len(place) <= len(self._root):
                return False
            place = os.path.dirname(place)

    def _is_data(self, path: str) -> bool:
        return os.path.realpath(path) in self._data

    def _leave(self, relative: str, reason: str, origin: str, size: int | None = None) -> None:
        self._left_out.append(LeftOut(relative, size, reason, origin))

    def _skip(self, relative: str, reason: str) -> None:
        self._leave(relative, reason, "skipped")


def stamp_of(about: os.stat_result) -> str:
    """Return a word that changes whenever a file does."""
    return f"{about.st_size}.{about.st_mtime_ns}.{about.st_ctime_ns}.{about.st_ino}.{about.st_dev}"


def is_inside(real: str, real_root: str) -> bool:
    """Say whether a path without links lies in a folder, or is it."""
    return real == real_root or real.startswith(real_root.rstrip("/") + "/")


def is_environment(folder: str) -> bool:
    """Say whether a folder is a virtual environment, whatever its name."""
    return any(os.path.exists(f"{folder}/{sign}") for sign in ENVIRONMENT_SIGNS)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _size(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat().st_size
    except OSError:
        return None


def problem(root: str, walked: Walked) -> ProjectRootError | None:
    """Return why a project is too large to ship, or None."""
    if walked.bytes <= LIMIT_BYTES and walked.files + len(walked.folders) <= LIMIT_FILES:
        return None
    heavy: dict[str, int] = {}
    for folder in walked.folders:
        for file in folder.files:
            top = file.relative.partition("/")[0]
            heavy[top] = heavy.get(top, 0) + file.size
    names = sorted(heavy, key=lambda name: heavy[name], reverse=True)[:5]
    listed = ", ".join(f"{name} {size_text(heavy[name])}" for name in names)
    return ProjectRootError(
        f"the project is too large to ship: {root}",
        why=f"more than {size_text(LIMIT_BYTES)} or {LIMIT_FILES} files; largest so far: {listed or 'empty folders'}",
        next="name in .kineticignore what the job does not need, or set KINETIC_PACKAGE_ROOT to a smaller folder",
        code="project-too-large",
    )


def size_text(size: int) -> str:
    """Return a size as people say it."""
    for unit, bytes_per_unit in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size >= bytes_per_unit:
            return f"{size / bytes_per_unit:.1f} {unit}"
    return f"{size} bytes"

"""What of a project ships, and why the rest does not: the rules of a scan of it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence

from kinetic._blobs.file_tree import File, Folder, LeftOut, Scan, Selection, scan
from kinetic._output.format import size_text
from kinetic._project.ignore import ENVIRONMENT_SIGNS, FILE, Rule, Rules
from kinetic._wire import folders
from kinetic.errors import ProjectRootError

LIMIT_BYTES = 2 * 10**9  # 2 GB: above this it is data, and belongs into kinetic.Data
LIMIT_FILES = 1_000_000  # links that lead to each other can multiply without end
_KEPT_APART = "kept apart: data, credentials, or kinetic's own"


def scan_project(root: str, rules: Rules, *, exclude: Iterable[str] = (), limited: bool = True) -> Scan:
    """Look at everything below a folder.

    Args:
        root: The folder.
        rules: What stays out.
        exclude: Further paths that stay out, absolute, with all that they hold: data that ships by itself, credentials.
        limited: Refuse what is too large to be a project.

    Raises:
        ProjectRootError: More than 2 GB, or a million files.
    """
    return scan(root, _Project(root, rules, exclude, limited=limited))


class _Project(Selection):
    """What a project takes along.

    What is left out has one of these origins: "default", "secret", "user", "data", "outside" for a link that leads out
    of the project, or "skipped" when it could not ship.
    """

    def __init__(self, root: str, rules: Rules, exclude: Iterable[str], *, limited: bool) -> None:
        self._root = root
        self._rules = rules
        self._limited = limited
        self._real_root = os.path.realpath(root)
        self._data = {os.path.realpath(path) for path in exclude} - {self._real_root}
        self._data_names = {os.path.basename(path) for path in self._data}
        self._within_data = tuple(f"{path.rstrip('/')}/" for path in self._data)

    def asks_about(self, names: Sequence[str]) -> bool:
        return bool(self._rules.concern(names)) or not self._data_names.isdisjoint(names)

    def odd_name(self, relative: str) -> LeftOut | None:
        if _is_text(relative):
            return None
        return _skipped(os.fsencode(relative).decode(errors="replace"), "its name is not valid UTF-8")

    def file(self, entry: os.DirEntry[str], relative: str) -> LeftOut | None:
        if entry.name in self._data_names and self._is_data(entry.path):
            return LeftOut(relative, None, _KEPT_APART, "data")
        rule = self._rules.file(relative, entry.name)
        return rule and LeftOut(relative, _size(entry), rule.reason, rule.origin)

    def folder(self, entry: os.DirEntry[str], relative: str) -> LeftOut | None:
        name = entry.name
        if rule := self._rules.folder(relative, name):
            return LeftOut(f"{relative}/", None, rule.reason, rule.origin)
        if name in self._data_names and self._is_data(entry.path):
            return LeftOut(f"{relative}/", None, _KEPT_APART, "data")
        if self._rules.environments and is_environment(entry.path) and not self._rules.insist_on(relative, name):
            return LeftOut(f"{relative}/", None, "a virtual environment", "default")
        return None

    def link(self, entry: os.DirEntry[str], relative: str, about: os.stat_result, inside: Folder) -> LeftOut | None:
        """Ship only what lies in the project: a clone must not send away what its links lead to on this machine."""
        target, is_folder = os.path.realpath(entry.path), stat.S_ISDIR(about.st_mode)
        if left := self._outside(target, f"{relative}/" if is_folder else relative):
            return left
        if is_folder:
            if self._leads_back(target, inside):
                return _skipped(f"{relative}/", "a link to a folder that it lies in")
            return self.folder(entry, relative)
        rule = self._rules.file(relative, entry.name) or self._secret(target, relative, entry.name)
        return rule and LeftOut(relative, about.st_size, rule.reason, rule.origin)

    def target(self, real: str, relative: str) -> LeftOut | None:
        """Judge a file by the path, free of links, that leads to it."""
        rule = self._secret(real, relative, relative.rpartition("/")[2])
        return self._outside(real, relative) or (rule and LeftOut(relative, None, rule.reason, rule.origin))

    def _outside(self, target: str, relative: str) -> LeftOut | None:
        if target in self._data or target.startswith(self._within_data):
            return LeftOut(relative.rstrip("/"), None, _KEPT_APART, "data")
        if not is_inside(target, self._real_root):
            return LeftOut(relative, None, f"a link to {target}", "outside")
        return None

    def unreadable(self, path: str, relative: str, error: OSError) -> LeftOut:
        if not relative:
            raise ProjectRootError(f"the project cannot be read: {self._root}", why=str(error)) from error
        if relative.endswith("/"):
            return _skipped(relative, f"cannot be listed: {error.strerror}")
        what = "a link that leads nowhere" if os.path.islink(path) else "cannot be read"
        return _skipped(relative, f"{what}: {error.strerror}")

    def problem(self, so_far: Scan) -> ProjectRootError | None:
        return too_large(self._root, so_far) if self._limited else None

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


class Opener:
    """Opens files of a project so that what was judged is what is read.

    Between the scan and the reading somebody may put a link in the place of a file, or of a folder above it. So a file
    is opened by descriptors from the project's root on, which follow no link; where there is one, the path that it
    leads to is judged first, as the scan does, and then opened in the same way.

    Args:
        root: The project's folder.
        rules: What stays out.
        exclude: As for ``walk``.
    """

    def __init__(self, root: str, rules: Rules, exclude: Iterable[str]) -> None:
        self._project = _Project(root, rules, exclude, limited=False)
        self._root = os.path.realpath(root)

    def open(self, file: File) -> int:
        """Return a descriptor of a file, for reading.

        Raises:
            OSError: It is gone or no longer a file, or a link leads to what does not ship.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return folders.open_file(self._root, file.relative)
        real = os.path.realpath(file.path)
        if left := self._project.target(real, file.relative):
            raise PermissionError(errno.EPERM, left.reason, file.path)
        return folders.open_file(self._root, real[len(self._root.rstrip("/")) + 1 :])


def _skipped(relative: str, reason: str) -> LeftOut:
    return LeftOut(relative, None, reason, "skipped")


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


def too_large(root: str, walked: Scan) -> ProjectRootError | None:
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


WARN_VARIABLE = "KINETIC_CONTEXT_SIZE_WARN_MB"
_WARN_MB = 100.0
_NAMED = 10  # names in one line


def notes_about(walked: Scan, environ: Mapping[str, str], *, unsteady: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the notes about a walk, a sentence each; usually none."""
    notes = [*_note_secrets(walked), *_note_links_outside(walked), *_note_skipped(walked)]
    if unsteady:
        notes.append(f"written to while they were packed, so they ship as they were at that moment: {_some(unsteady)}")
    limit, complaint = _warn_limit(environ)
    notes += complaint
    if 0 < limit < walked.bytes / 1_000_000:
        notes.append(_note_size(walked, limit))
    return tuple(notes)


def _note_secrets(walked: Scan) -> list[str]:
    names = [left.relative for left in walked.left_out if left.origin == "secret"]
    if not names:
        return []
    line = f"!{escaped(names[0])[1:]}"
    return [f"left out because they look like secrets: {_some(names)} (a line '{line}' in {FILE} ships it)"]


def _note_links_outside(walked: Scan) -> list[str]:
    links = [f"{left.relative.rstrip('/')} ({left.reason})" for left in walked.left_out if left.origin == "outside"]
    if not links:
        return []
    told = f"skipped links that lead out of the project: {_some(links)}; copy what the job needs into the project, "
    return [f"{told}pass it as kinetic.Data, or set KINETIC_PACKAGE_ROOT to a folder that holds both"]


def _note_skipped(walked: Scan) -> list[str]:
    skipped = [f"{left.relative}: {left.reason}" for left in walked.left_out if left.origin == "skipped"]
    more = [f"skipped {len(skipped) - _NAMED} more files that cannot ship"] if len(skipped) > _NAMED else []
    return [f"skipped {line}" for line in skipped[:_NAMED]] + more


def _warn_limit(environ: Mapping[str, str]) -> tuple[float, list[str]]:
    text = environ.get(WARN_VARIABLE, "")
    try:
        return (float(text) if text.strip() else _WARN_MB), []
    except ValueError:
        return _WARN_MB, [f"{WARN_VARIABLE} is not a number: {text!r}; the limit is {_WARN_MB:g} MB"]


def _note_size(walked: Scan, limit: float) -> str:
    largest = walked.largest(5)
    files = ", ".join(f"{file.relative} ({size_text(file.size)})" for file in largest)
    lines = "\n".join(f"    {escaped(file.relative)}" for file in largest)
    return (
        f"the project holds {size_text(walked.bytes)} in {walked.files} files, more than {limit:g} MB "
        f"({WARN_VARIABLE}); the largest: {files}. These lines in {FILE} would leave them out:\n{lines}"
    )


def escaped(relative: str) -> str:
    """Return the line of an ignore file that fits exactly one path."""
    text = "".join(f"\\{sign}" if sign in "\\*?[" else sign for sign in relative)
    if text.endswith(" "):
        text = f"{text[:-1]}\\ "
    return f"/{text}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more

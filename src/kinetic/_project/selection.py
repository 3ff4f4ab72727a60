"""What of a project is sent, and what the user should know about the rest."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Mapping, Sequence

from kinetic._blobs.file_tree import File, Folder, LeftOut, Scan, Selection
from kinetic._output.format import size_text
from kinetic._project.ignore import ENVIRONMENT_SIGNS, FILE, Rule, Rules
from kinetic._wire import folders
from kinetic.errors import ProjectRootError

LIMIT_BYTES = 2 * 10**9  # 2 GB: above this it is data, and belongs into kinetic.Data
LIMIT_FILES = 1_000_000  # links that lead to each other can multiply without end
_KEPT_APART = "kept apart: data, credentials, or kinetic's own"
WARN_VARIABLE = "KINETIC_CONTEXT_SIZE_WARN_MB"
_WARN_MB = 100.0
_NAMED = 10  # names in one line


class Project(Selection):
    """What of a project is sent.

    What is left out has one of these origins: "default", "secret", "user", "data", "outside" for a link that leads out
    of the project, or "skipped" when it could not be sent.

    Args:
        root: The folder.
        rules: What is left out.
        exclude: Further paths that are left out, absolute, with all they contain: data, credentials.
        limited: Reject what is too large to be a project, with a ProjectRootError.
    """

    def __init__(self, root: str, rules: Rules, exclude: Iterable[str], *, limited: bool = True) -> None:
        self.root = root
        self.lost_files: list[LeftOut] = []
        self._rules = rules
        self._limited = limited
        self._real_root = os.path.realpath(root)
        self._data = {os.path.realpath(path) for path in exclude} - {self._real_root}
        self._data_names = {os.path.basename(path) for path in self._data}
        self._within_data = tuple(f"{path.rstrip('/')}/" for path in self._data)

    def asks_about(self, names: Sequence[str]) -> bool:
        return bool(self._rules.concern(names)) or not self._data_names.isdisjoint(names)

    def odd_name(self, relative: str) -> LeftOut | None:
        try:
            relative.encode()
        except UnicodeEncodeError:
            return _skipped(os.fsencode(relative).decode(errors="replace"), "its name is not valid UTF-8")
        return None

    def file(self, entry: os.DirEntry[str], relative: str) -> LeftOut | None:
        if entry.name in self._data_names and os.path.realpath(entry.path) in self._data:
            return LeftOut(relative, None, _KEPT_APART, "data")
        rule = self._rules.file(relative, entry.name)
        if rule is None:
            return None
        size = None
        with contextlib.suppress(OSError):
            size = entry.stat().st_size
        return LeftOut(relative, size, rule.reason, rule.origin)

    def folder(self, entry: os.DirEntry[str], relative: str) -> LeftOut | None:
        name = entry.name
        if rule := self._rules.folder(relative, name):
            return LeftOut(f"{relative}/", None, rule.reason, rule.origin)
        if name in self._data_names and os.path.realpath(entry.path) in self._data:
            return LeftOut(f"{relative}/", None, _KEPT_APART, "data")
        if self._rules.environments and is_environment(entry.path) and not self._rules.insist_on(relative, name):
            return LeftOut(f"{relative}/", None, "a virtual environment", "default")
        return None

    def link(self, entry: os.DirEntry[str], relative: str, about: os.stat_result, inside: Folder) -> LeftOut | None:
        """Send only what is in the project: a clone must not send away what its links lead to on this machine."""
        target, is_folder = os.path.realpath(entry.path), stat.S_ISDIR(about.st_mode)
        if left := self._outside(target, f"{relative}/" if is_folder else relative):
            return left
        if is_folder:
            if self._leads_back(target, inside):
                return _skipped(f"{relative}/", "a link to a folder that contains it")
            return self.folder(entry, relative)
        rule = self._rules.file(relative, entry.name) or self._secret(target, relative, entry.name)
        return rule and LeftOut(relative, about.st_size, rule.reason, rule.origin)

    def unreadable(self, path: str, relative: str, error: OSError) -> LeftOut:
        if not relative:
            raise ProjectRootError(f"the project cannot be read: {self.root}", why=str(error)) from error
        if relative.endswith("/"):
            return _skipped(relative, f"cannot be listed: {error.strerror}")
        what = "a broken link" if os.path.islink(path) else "cannot be read"
        return _skipped(relative, f"{what}: {error.strerror}")

    def problem(self, so_far: Scan) -> ProjectRootError | None:
        return too_large(self.root, so_far) if self._limited else None

    def open(self, file: File) -> int:
        """Open what was judged, and nothing else.

        Between the scan and the reading somebody may put a link in the place of a file, or of a folder above it. So a
        file is opened by descriptors from the project's root on, which follow no link; where there is one, the path
        that it leads to is judged first, as the scan does, and then opened in the same way.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return folders.open_file(self._real_root, file.relative)
        real = os.path.realpath(file.path)
        if left := self._outside(real, file.relative):
            raise PermissionError(errno.EPERM, left.reason, file.path)
        if rule := self._secret(real, file.relative, file.relative.rpartition("/")[2]):
            raise PermissionError(errno.EPERM, rule.reason, file.path)
        return folders.open_file(self._real_root, real[len(self._real_root.rstrip("/")) + 1 :])

    def lost(self, file: File, error: OSError) -> None:
        self.lost_files.append(LeftOut(file.relative, file.size, f"cannot be read: {error.strerror}", "skipped"))

    def _outside(self, target: str, relative: str) -> LeftOut | None:
        if target in self._data or target.startswith(self._within_data):
            return LeftOut(relative.rstrip("/"), None, _KEPT_APART, "data")
        if not is_inside(target, self._real_root):
            return LeftOut(relative, None, f"a link to {target}", "outside")
        return None

    def _secret(self, target: str, relative: str, name: str) -> Rule | None:
        """Judge a link to a secret by its target, unless the user asks for it by the link's name."""
        rule = self._rules.secret(target)
        return rule if rule and not self._rules.insist_on(relative, name) else None

    def _leads_back(self, target: str, folder: Folder) -> bool:
        inside = target.rstrip("/") + "/"
        place = folder.path
        while True:
            real = os.path.realpath(place)
            if real == target or real.startswith(inside):
                return True
            if len(place) <= len(self.root):
                return False
            place = os.path.dirname(place)


def _skipped(relative: str, reason: str) -> LeftOut:
    return LeftOut(relative, None, reason, "skipped")


def is_inside(real: str, real_root: str) -> bool:
    """Return whether a path without links is a folder, or below it."""
    return real == real_root or real.startswith(real_root.rstrip("/") + "/")


def is_environment(folder: str) -> bool:
    """Return whether a folder is a virtual environment, whatever its name."""
    return any(os.path.exists(f"{folder}/{sign}") for sign in ENVIRONMENT_SIGNS)


def too_large(root: str, found: Scan) -> ProjectRootError | None:
    """Return why a project is too large to send, or None."""
    if found.bytes <= LIMIT_BYTES and found.files + len(found.folders) <= LIMIT_FILES:
        return None
    heavy: dict[str, int] = {}
    for file in found.all_files():
        top = file.relative.partition("/")[0]
        heavy[top] = heavy.get(top, 0) + file.size
    names = sorted(heavy, key=lambda name: heavy[name], reverse=True)[:5]
    listed = ", ".join(f"{name} {size_text(heavy[name])}" for name in names)
    return ProjectRootError(
        f"the project is too large to send: {root}",
        why=f"more than {size_text(LIMIT_BYTES)} or {LIMIT_FILES} files; largest so far: {listed or 'empty folders'}",
        next="add what the job does not need to .kineticignore, or set KINETIC_PACKAGE_ROOT to a smaller folder",
        code="project-too-large",
    )


# ------------------------------------------------------------------------------------------------------------- notes


def notes_about(found: Scan, environ: Mapping[str, str], *, unsteady: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the notes about a scan, a sentence each; usually none."""
    by_origin: dict[str, list[LeftOut]] = {}
    for left in found.left_out:
        by_origin.setdefault(left.origin, []).append(left)
    notes = []
    if secrets := [left.relative for left in by_origin.get("secret", ())]:
        line = f"!{escaped(secrets[0])[1:]}"
        notes.append(f"left out because they look like secrets: {_some(secrets)} (a line '{line}' in {FILE} sends it)")
    if links := [f"{left.relative.rstrip('/')} ({left.reason})" for left in by_origin.get("outside", ())]:
        notes.append(
            f"skipped links that lead out of the project: {_some(links)}; copy what the job needs into the project, "
            "pass it as kinetic.Data, or set KINETIC_PACKAGE_ROOT to a folder that contains both"
        )
    skipped = [f"skipped {left.relative}: {left.reason}" for left in by_origin.get("skipped", ())]
    notes += skipped[:_NAMED]
    if len(skipped) > _NAMED:
        notes.append(f"skipped {len(skipped) - _NAMED} more files that cannot be sent")
    if unsteady:
        notes.append(f"changed while they were packed, so they are sent as they were at that moment: {_some(unsteady)}")
    text, limit = environ.get(WARN_VARIABLE, "").strip(), _WARN_MB
    try:
        limit = float(text) if text else _WARN_MB
    except ValueError:
        notes.append(f"{WARN_VARIABLE} is not a number: {text!r}; the limit is {_WARN_MB:g} MB")
    if 0 < limit < found.bytes / 1_000_000:
        notes.append(_size_note(found, limit))
    return tuple(notes)


def _size_note(found: Scan, limit: float) -> str:
    import heapq  # only for this message

    largest = heapq.nlargest(5, found.all_files(), lambda file: file.size)
    files = ", ".join(f"{file.relative} ({size_text(file.size)})" for file in largest)
    lines = "\n".join(f"    {escaped(file.relative)}" for file in largest)
    return (
        f"the project contains {size_text(found.bytes)} in {found.files} files, more than {limit:g} MB "
        f"({WARN_VARIABLE}); the largest: {files}. These lines in {FILE} would leave them out:\n{lines}"
    )


def escaped(relative: str) -> str:
    """Return the line of an ignore file that matches exactly one path."""
    text = "".join(f"\\{sign}" if sign in "\\*?[" else sign for sign in relative)
    if text.endswith(" "):
        text = f"{text[:-1]}\\ "
    return f"/{text}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more

"""What a project needs installed: found from the entry folder upwards, read, and rid of what the base brings.

| found | read |
|---|---|
| metadata on top of the function's own file (PEP 723) | that, and no file |
| ``requirements.txt`` | its lines; it wins over a pyproject.toml beside it |
| ``pyproject.toml`` with a ``uv.lock`` beside it | the versions of the lock |
| ``pyproject.toml`` | ``[project].dependencies``, and the extras that ``[tool.kinetic]`` wants |

The nearest level wins. The climb ends after the first level with ``.git``, after the home folder, at the top.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from kinetic._packing import declared, requirements
from kinetic._packing.requirements import Entry
from kinetic._packing.root import Plan, is_installed
from kinetic._wire import digests
from kinetic.errors import OptionError

Kind = Literal["none", "requirements", "pyproject", "lock", "script"]
Export = Callable[[Path, Sequence[str]], Sequence[str]]  # folder with a uv.lock, extras → lines of a requirements file

_FILES = ("requirements.txt", "pyproject.toml")  # the first wins
_LOCK = "uv.lock"


@dataclass(frozen=True)
class Dependencies:
    """What is to be installed for a job.

    Attributes:
        source: The file that says so; None if there is none.
        kind: What kind of file.
        lines: Requirements and options as in a requirements file, one line each, without comments.
        filtered: Lines that were taken out, because the base environment brings JAX.
        notes: Sentences for the user, each once.
        requires_python: Which Pythons the file wants; None if it does not say.
    """

    source: Path | None
    kind: Kind
    lines: tuple[str, ...] = ()
    filtered: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    requires_python: str | None = None

    @property
    def names(self) -> frozenset[str]:
        """The normalised names of the packages that the lines name."""
        return frozenset(Entry(0, line).name for line in self.lines)

    @property
    def digest(self) -> str:
        """The digest of everything that decides what is installed; comments and places of files do not count."""
        return digests.of_bytes("\n".join([*self.lines, "", *(["with JAX"] if self.filtered else [])]).encode())

    def check_python(self, python: str) -> None:
        """Refuse a Python that the file does not want.

        No other one is looked for: what travels to a job was pickled here, and a pickle holds for one X.Y only.

        Args:
            python: That of the job, X.Y.Z.

        Raises:
            OptionError: It is not among those that ``requires-python`` names, or those cannot be read.
        """
        if not self.requires_python:
            return
        from packaging.specifiers import InvalidSpecifier, SpecifierSet  # 10 ms; few projects have it

        try:
            if SpecifierSet(self.requires_python).contains(python, prereleases=True):
                return
        except InvalidSpecifier as error:
            raise OptionError(
                f"'requires-python' of {self.source} cannot be read",
                why=str(error),
                next="write it as in >=3.11,<3.14",
                code="dependency",
            ) from error
        raise OptionError(
            f"{self.source} wants Python {self.requires_python}, and the job would run in Python {python}",
            why="a job has the Python that submits it: what travels to it can only be read by the same one",
            next=f"submit with a Python that is {self.requires_python}, or correct 'requires-python' in {self.source}",
            code="dependency",
        )


def find(
    plan: Plan,
    *,
    script: str | None = None,
    extras: Sequence[str] = (),
    export: Export | None = None,
    base: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> Dependencies:
    """Find what a project needs installed.

    Args:
        plan: Where the project and its entry folder lie; the file may lie above the project.
        script: The file of the function's module; its own metadata wins over every file.
        extras: Optional dependencies that ``[tool.kinetic]`` wants.
        export: Turns a uv.lock into lines. Without it, a lock is passed over with a note.
        base: Base packages are installed as well, JAX among them, so lines that name JAX are taken out.
        environ: Where HOME is read.

    Raises:
        OptionError: A file cannot be read, or a line names what only this machine has.
    """
    inline = _of_script(script, base=base)
    if inline is not None:
        return inline
    entry = plan.root / plan.entry_rel
    level = _nearest(entry, os.path.expanduser(environ.get("HOME") or "~"))
    if level.file is None:
        note = f"no {' or '.join(_FILES)} from {entry} up to {level.folder}: {_only_base(base)}"
        return Dependencies(None, "none", notes=(note,))
    notes = _about(level, entry)
    if level.file.name == "pyproject.toml":
        return _of_project(level.file, extras, export, notes, base=base)
    if extras:
        notes.append(f"extras have no meaning for {level.file}: {', '.join(extras)}")
    return _finished(level.file, "requirements", requirements.entries(_text(level.file)), notes, base=base)


class _Level(NamedTuple):
    """Where the climb ended: what was found there, what lies unread beside it, and whether .git was met."""

    folder: Path
    file: Path | None
    beside: tuple[str, ...]
    in_repository: bool


def _nearest(entry: Path, home: str) -> _Level:
    folder = Path(os.path.abspath(entry))
    while True:
        found = [name for name in _FILES if (folder / name).is_file()]
        in_repository = (folder / ".git").exists()
        if found:
            return _Level(folder, folder / found[0], tuple(found[1:]), in_repository)
        if in_repository or folder == folder.parent or os.path.realpath(folder) == os.path.realpath(home):
            return _Level(folder, None, (), in_repository)
        folder = folder.parent


def _about(level: _Level, entry: Path) -> list[str]:
    beside = f"; {level.beside[0]} beside it is not read" if level.beside else ""
    notes = [f"dependencies come from {level.file}{beside}"]
    if level.folder != Path(os.path.abspath(entry)) and not level.in_repository:
        notes.append(f"{level.file} lies above {entry}, and no .git shows that the two belong together")
    return notes


def _of_script(script: str | None, *, base: bool) -> Dependencies | None:
    if script is None or is_installed(script):
        return None
    file = Path(script)
    text = _text(file, errors="replace")  # Python source in another encoding; the block itself is ASCII or UTF-8
    found = declared.in_script(file, text) if "# /// script" in text else None
    if found is None:
        return None
    notes = [f"dependencies come from the metadata of {file}"]
    return _finished(file, "script", found.entries, notes, found.requires_python, base=base)


def _of_project(
    file: Path, extras: Sequence[str], export: Export | None, notes: list[str], *, base: bool
) -> Dependencies:
    lock = file.with_name(_LOCK)
    locked = lock.is_file() and export is not None
    found = declared.in_project(file, _text(file), extras, locked=locked)
    if lock.is_file() and export is not None:
        entries = _locked(found.entries, export(file.parent, extras))
        notes[0] = f"dependencies come from {lock}"
        notes += _older(found.entries, entries, lock)
        return _finished(lock, "lock", entries, notes, found.requires_python, base=base)
    if lock.is_file():
        notes.append(f"{lock} is not read here")
    if not found.entries:
        notes.append(_nothing(file, found.unread, base=base))
    return _finished(file, "pyproject", found.entries, notes, found.requires_python, base=base)


def _only_base(base: bool) -> str:
    return "only base packages will be installed" if base else "nothing will be installed"


def _nothing(file: Path, unread: Sequence[str], *, base: bool) -> str:
    more = f"; not read: {', '.join(unread)}" if unread else ""
    return f"{file} has no dependencies in [project]: {_only_base(base)}{more}"


def _locked(named: Sequence[Entry], lines: Sequence[str]) -> list[Entry]:
    """Read the lines of a lock. Who keeps one package of JAX keeps them all: they are locked to fit each other."""
    keep = any(entry.keep and entry.name in requirements.BASE_NAMES for entry in named)
    return [Entry(0, entry.text, keep) for entry in requirements.entries("\n".join(lines))]


def _older(named: Sequence[Entry], entries: Sequence[Entry], lock: Path) -> list[str]:
    absent = sorted({entry.name for entry in named} - {entry.name for entry in entries})
    return [f"{lock} does not hold {', '.join(absent)}: bring it up to date with uv lock"] if absent else []


def _finished(
    source: Path,
    kind: Kind,
    found: Sequence[Entry],
    notes: Sequence[str],
    requires_python: str | None = None,
    *,
    base: bool,
) -> Dependencies:
    found, ours = requirements.without_ourselves(found)
    if ours:
        named = ", ".join(dict.fromkeys(entry.text for entry in ours))
        notes = [*notes, f"not installed from {source}, because every job brings its own kinetic: {named}"]
    requirements.refuse_local(found, source)
    kept, brought = requirements.without_base(found) if base else (list(found), [])
    filtered = tuple(entry.text for entry in brought)
    if filtered:
        told = f"not installed from {source}, because the base environment brings its own JAX: {', '.join(filtered)}"
        notes = [*notes, f"{told} ('# kn:keep' on the line keeps it)"]
    lines = tuple(entry.text for entry in kept)
    return Dependencies(source, kind, lines, filtered, tuple(dict.fromkeys(notes)), requires_python)


def _text(file: Path, errors: str = "strict") -> str:
    try:
        return file.read_text(encoding="utf-8-sig", errors=errors)
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"the dependencies in {file} cannot be read",
            why=f"{type(error).__name__}: {error}",
            next="correct the file: it must be readable, and UTF-8",
            code="dependency",
        ) from error

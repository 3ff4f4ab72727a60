"""The lines of a requirements file: joined, rid of JAX, and refused where they name what only this machine has."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, NoReturn

from kinetic._project.root import Plan, is_installed
from kinetic._wire import digests, distribution
from kinetic.errors import OptionError

if TYPE_CHECKING:
    from packaging.requirements import Requirement


# The accelerator decides which build of these is right, so the base environment brings them.
BASE_NAMES = frozenset({"jax", "jaxlib", "libtpu", "libtpu-nightly"})

_REMOTE = re.compile(  # an address, or a variable that holds one
    r"(?:git|hg|bzr|svn)\+(?!file:|[./~])|(?!file:)[a-z][a-z0-9+.-]*://|\$\{(?!PROJECT_ROOT\b)", re.IGNORECASE
)
_COMMENT = re.compile(r"(?:^|\s+)#.*$")
_KEEP = re.compile(r"#\s*kn:keep\b")
_FILE_URL = re.compile(r"(?:\A|[\s=@+\"'])file:", re.IGNORECASE)
_OF_PIP = re.compile(r"\s*(?<!\S)--.*\Z")  # options of pip behind a requirement: its hashes
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)")
_FROM_A_REPOSITORY = re.compile(r"(?:git|hg|bzr|svn)\+", re.IGNORECASE)
_ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")

_INCLUDING = {"-r": "--requirement", "-c": "--constraint"}
_EDITABLE = {"-e": "--editable"}
_LOOKING = {"-f": "--find-links", "-i": "--index-url"}
_SHORT = _INCLUDING | _EDITABLE | _LOOKING
_OPTIONS = {*_SHORT.values(), "--extra-index-url"}

_PUT_HERE = "write the lines of that file into this one"
_SHIPS_ANYWAY = (
    "remove the line if it is code of your project, which ships anyway; "
    "else publish it and name it with a version or an address (https://…, git+https://…)"
)


class Entry(NamedTuple):
    """One requirement or option.

    Attributes:
        number: The line on which it begins, from 1; 0 where it stands in no file that a user wrote.
        text: On one line, without comments.
        keep: Whether ``# kn:keep`` stands on it: it stays even if the base environment brings it.
    """

    number: int
    text: str
    keep: bool = False

    @property
    def name(self) -> str:
        """The normalized name of the package; "" for an option, an address or a path."""
        requirement = parsed(self.text)
        return normalised(requirement.name) if requirement else ""


def normalised(name: str) -> str:
    """Return the normalized name of a package (PEP 503)."""
    from packaging.utils import canonicalize_name  # as below

    return canonicalize_name(name)


def parsed(text: str) -> Requirement | None:
    """Return a requirement (PEP 508); None for an option of pip, an address or a path."""
    from packaging.requirements import InvalidRequirement, Requirement  # 15 ms; only where dependencies are read

    try:
        return Requirement(_OF_PIP.sub("", text))
    except InvalidRequirement:
        return None


def is_kept(text: str) -> bool:
    """Say whether a line carries the comment that keeps it."""
    return _KEEP.search(text) is not None


def entries(text: str) -> list[Entry]:
    """Read a requirements file: continuation lines and the hashes below a requirement belong to it."""
    found: list[Entry] = []
    for number, line in _joined(text):
        words = " ".join(_COMMENT.sub("", line).split())
        if words.startswith("--hash") and found:
            found[-1] = Entry(found[-1].number, f"{found[-1].text} {words}", found[-1].keep or is_kept(line))
        elif words:
            found.append(Entry(number, words, is_kept(line)))
    return found


def without_base(found: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Part what is to be installed from what the base environment brings."""
    brought = [entry for entry in found if entry.name in BASE_NAMES and not entry.keep]
    return [entry for entry in found if entry not in brought], brought


def without_kinetic(found: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Part what is to be installed from what names kinetic itself: a job brings its own copy.

    What an extra of ours brings for jobs stays, in the place of the line.
    """
    kept, ours = list[Entry](), list[Entry]()
    for entry in found:
        if not _is_kinetic(entry):
            kept.append(entry)
            continue
        ours.append(entry)
        requirement = parsed(entry.text)
        wanted = {normalised(extra) for extra in requirement.extras} if requirement else set[str]()
        marker = f" ; {requirement.marker}" if requirement and requirement.marker else ""
        for extra in sorted(wanted & distribution.EXTRAS_OF_JOBS.keys()):
            kept.append(Entry(entry.number, distribution.EXTRAS_OF_JOBS[extra] + marker))
    return kept, ours


def reject_local(found: Sequence[Entry], source: object) -> None:
    """Refuse the first entry that names something which only this machine has.

    Args:
        found: The entries.
        source: The file they come from.

    Raises:
        OptionError: It names file and line.
    """
    for entry in found:
        reason, advice = _local_reference(entry.text)
        if reason:
            line = f", line {entry.number}" if entry.number else ""
            raise OptionError(
                f"{source}{line} cannot be carried out in a job: {entry.text}",
                why=f"{reason}; an environment is built from this one file, here as on a cluster",
                next=advice,
                code="dependency",
            )


def _is_kinetic(entry: Entry) -> bool:
    """Say whether a line would install kinetic: by name, as an archive, or from a repository of that name."""
    if entry.name:
        return entry.name in distribution.NAMES
    words = entry.text.split()
    if words[0].startswith("-"):
        words = [value for option, value in _options(entry.text) if option == "--editable"]
    if not words:
        return False
    egg = _EGG.search(words[0])
    if egg:
        return normalised(egg[1]) in distribution.NAMES
    path = re.split(r"[?#]", words[0])[0].rstrip("/")
    name = path.rpartition("/")[2]
    if name.lower().endswith(".whl"):
        stem = name.partition("-")[0]
    elif name.lower().endswith(_ARCHIVES):
        stem = name.rpartition("-")[0]
        stem = stem or path.partition("/archive/")[0].rpartition("/")[2]
    else:
        stem = name.partition("@")[0].removesuffix(".git") if _FROM_A_REPOSITORY.match(path) else ""
    return normalised(stem) in distribution.NAMES


def _joined(text: str) -> Iterator[tuple[int, str]]:
    """Yield logical lines and where they begin; a backslash at the end of a comment joins nothing."""
    begin, parts = 0, list[str]()
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip()
        begin = begin if parts else number
        if line.lstrip().startswith("#"):
            line = f" {line}"
        elif line.endswith("\\"):
            parts.append(line[:-1])
            continue
        yield begin, "".join([*parts, line])
        parts = []
    if parts:
        yield begin, "".join(parts)


def _local_reference(text: str) -> tuple[str, str]:
    """Return why a line cannot be carried out elsewhere, and what to do; two empty strings if it can."""
    if _FILE_URL.search(text):
        return "it names a file of this machine", _SHIPS_ANYWAY
    if not text.startswith("-"):
        return ("it names a path of this machine", _SHIPS_ANYWAY) if _is_path(text) else ("", "")
    for option, value in _options(text):
        if option in _INCLUDING.values():
            return "it includes another file", _PUT_HERE
        if option in _OPTIONS and not _REMOTE.match(value):
            editable = option in _EDITABLE.values()
            what = "it installs from a folder of this machine" if editable else "it looks into a folder of this machine"
            return what, _SHIPS_ANYWAY if editable else "name the address of an index or a page"
    return "", ""


def _options(text: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a line by their long names, with their values: ``-rx``, ``-r x``, ``--requirement=x``."""
    words = iter(text.split())
    for word in words:
        option, _, value = word.partition("=")
        if word[:2] in _SHORT:
            option, value = _SHORT[word[:2]], word[2:].lstrip("=")
        if option in _OPTIONS:
            yield option, (value or next(words, "")).strip("\"'")


def _is_path(text: str) -> bool:
    requirement = parsed(text)
    url = requirement.url if requirement else None
    target = url or text.split(maxsplit=1)[0].partition(";")[0]
    if _REMOTE.match(target):
        return False
    if url or target.lower().endswith(_ARCHIVES):
        return True
    return requirement is None and (target[0] in ".~" or "/" in target or "\\" in target)


# The regular expression of PEP 723, with "script" for the type.
_SCRIPT = re.compile(r"(?m)^# /// script$\s(?P<content>(?:^#(?:| .*)$\s)+)^# ///$")


class Declared(NamedTuple):
    """What a table says.

    Attributes:
        entries: Its requirements, with the lines they stand on.
        unread: Tables that hold dependencies as well and are not read, spelled as in the file.
        requires_python: Which Pythons it wants; None if it does not say.
    """

    entries: list[Entry]
    unread: tuple[str, ...] = ()
    requires_python: str | None = None


def in_project(file: Path, text: str, extras: Sequence[str] = (), *, locked: bool = False) -> Declared:
    """Read ``[project]`` of a pyproject.toml.

    Args:
        file: Its path, for messages.
        text: What stands in it.
        extras: Names of ``[project.optional-dependencies]`` that are wanted as well.
        locked: A uv.lock says where each package comes from, so ``[tool.uv.sources]`` is no obstacle.

    Raises:
        OptionError: It is not TOML, a table is malformed, or there is no such extra.
    """
    page = _toml(file, text)
    project = _table(file, page, "project")
    named = [*_strings(file, project, "project", "dependencies")]
    named += _wanted(file, project, _table(file, project, "optional-dependencies", "project."), extras)
    found = _entries(file, text, named)
    if not locked:
        _refuse_sources(file, page, found)
    return Declared(found, tuple(_unread(page, project)), _python(file, project))


def in_script(file: Path, text: str) -> Declared | None:
    """Read the metadata of a script; None if it has none.

    Raises:
        OptionError: It has two blocks, or the block is malformed.
    """
    blocks = list(_SCRIPT.finditer(text.replace("\r\n", "\n") + "\n"))
    if not blocks:
        return None
    if len(blocks) > 1:
        _invalid(file, "it has more than one block '# /// script'")
    lines = blocks[0]["content"].splitlines(keepends=True)
    page = _toml(file, "".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    found = _entries(file, text, _strings(file, page, "", "dependencies"))
    _refuse_sources(file, page, found)
    return Declared(found, requires_python=_python(file, page))


def _toml(file: Path, text: str) -> dict[str, object]:
    import tomllib  # 5 ms; only when dependencies are wanted

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        _invalid(file, f"it is not TOML: {error}")


def _table(file: Path, page: Mapping[str, object], name: str, above: str = "") -> Mapping[str, object]:
    found = page.get(name, {})
    if not isinstance(found, dict):
        _invalid(file, f"[{above}{name}] is not a table")
    return found


def _strings(file: Path, table: Mapping[str, object], where: str, name: str) -> list[str]:
    found = table.get(name, [])
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        _invalid(
            file, f"{name!r} of [{where}] is not a list of strings" if where else f"{name!r} is no list of strings"
        )
    return found


def _python(file: Path, table: Mapping[str, object]) -> str | None:
    found = table.get("requires-python")
    if found is not None and not isinstance(found, str):
        _invalid(file, "'requires-python' is not a string")
    return found


def _wanted(
    file: Path, project: Mapping[str, object], optional: Mapping[str, object], extras: Sequence[str]
) -> list[str]:
    """Return the requirements of extras; one that names the project's own extras stands for those."""
    known = {normalised(name): name for name in optional}
    own = normalised(str(project.get("name", "")))
    queue, seen, found = [normalised(extra) for extra in extras], set[str](), list[str]()
    while queue:
        extra = queue.pop(0)
        if extra not in known:
            _no_such_extra(file, extra, list(optional))
        if extra in seen:
            continue
        seen.add(extra)
        for line in _strings(file, optional, "project.optional-dependencies", known[extra]):
            requirement = parsed(line)
            if requirement is not None and own and normalised(requirement.name) == own:
                queue += sorted(map(normalised, requirement.extras))
            else:
                found.append(line)
    return found


def _entries(file: Path, text: str, named: Sequence[str]) -> list[Entry]:
    lines = text.split("\n")
    found = []
    for requirement in dict.fromkeys(named):
        places = [number for number, line in enumerate(lines, 1) if _quotes(line, requirement)]
        number = places[0] if places else 0
        for entry in entries(" ".join(requirement.splitlines())):
            if entry.text.startswith("-"):
                _invalid(file, f"{entry.text!r} is an option of pip and not a requirement", number)
            kept = entry.keep or any(is_kept(lines[place - 1]) for place in places)
            found.append(Entry(number, entry.text, kept))
    return found


def _quotes(line: str, requirement: str) -> bool:
    return f'"{requirement}"' in line or f"'{requirement}'" in line


def _unread(page: Mapping[str, object], project: Mapping[str, object]) -> list[str]:
    """Name the tables that hold dependencies and are not read."""
    tool = page.get("tool")
    poetry = tool.get("poetry") if isinstance(tool, dict) else None
    found = ["[tool.poetry.dependencies]"] if isinstance(poetry, dict) and poetry.get("dependencies") else []
    found += ["[dependency-groups]"] if page.get("dependency-groups") else []
    found += ["[project.optional-dependencies]"] if project.get("optional-dependencies") else []
    dynamic = project.get("dynamic")
    found += ['dynamic = ["dependencies"]'] if isinstance(dynamic, list) and "dependencies" in dynamic else []
    return found


def _refuse_sources(file: Path, page: Mapping[str, object], found: Sequence[Entry]) -> None:
    """Refuse what uv would take from elsewhere: from the index, a stranger's package of that name might come."""
    uv = _table(file, _table(file, page, "tool"), "uv", "tool.")
    elsewhere = {normalised(name) for name in _table(file, uv, "sources", "tool.uv.")}
    for entry in found:
        if entry.name in elsewhere:
            raise OptionError(
                f"{file} takes {entry.name} from a place of its own",
                why=f"[tool.uv.sources] names it, and the index may hold another package called {entry.name}",
                next="run uv lock beside a pyproject.toml; or write the address itself: name @ git+https://…",
                code="dependency",
            )


def _no_such_extra(file: Path, extra: str, known: Sequence[str]) -> NoReturn:
    raise OptionError(
        f"{file} has no extra {extra!r}",
        why=f"'extras' of [tool.kinetic] wants it; [project.optional-dependencies] has {', '.join(known) or 'none'}",
        next="correct 'extras', or add the extra",
        code="dependency",
    )


def _invalid(file: Path, why: str, number: int = 0) -> NoReturn:
    place = f"{file}, line {number}," if number else str(file)
    raise OptionError(
        f"the dependencies in {place} cannot be read", why=why, next="correct the file", code="dependency"
    )


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
    return _finished(level.file, "requirements", entries(_text(level.file)), notes, base=base)


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
    found = in_script(file, text) if "# /// script" in text else None
    if found is None:
        return None
    notes = [f"dependencies come from the metadata of {file}"]
    return _finished(file, "script", found.entries, notes, found.requires_python, base=base)


def _of_project(
    file: Path, extras: Sequence[str], export: Export | None, notes: list[str], *, base: bool
) -> Dependencies:
    lock = file.with_name(_LOCK)
    locked = lock.is_file() and export is not None
    found = in_project(file, _text(file), extras, locked=locked)
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
    keep = any(entry.keep and entry.name in BASE_NAMES for entry in named)
    return [Entry(0, entry.text, keep) for entry in entries("\n".join(lines))]


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
    found, ours = without_kinetic(found)
    if ours:
        named = ", ".join(dict.fromkeys(entry.text for entry in ours))
        notes = [*notes, f"not installed from {source}, because every job brings its own kinetic: {named}"]
    reject_local(found, source)
    kept, brought = without_base(found) if base else (list(found), [])
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

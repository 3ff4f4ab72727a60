"""What a job needs installed: found beside the project, and rejected where only this machine has it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kinetic._config.home import kinetic_home, unpacked_wheels
from kinetic._project import package_managers, requirements, uv_settings
from kinetic._project.requirements import Entry, LocalPath, entries, invalid, normalised, parsed, read_text
from kinetic._project.root import INSTALLABLE, Plan, is_installed
from kinetic._project.uv_settings import UvSettings
from kinetic._wire import NamedTuple, dataclass, digests, python_runtime
from kinetic.errors import IntegrityError, OptionError

# --------------------------------------------------------------------------------- pyproject.toml and script metadata

# The regular expression of PEP 723, with "script" for the type.
_SCRIPT = r"(?m)^# /// script$\s(?P<content>(?:^#(?:| .*)$\s)+)^# ///$"

_NO_SETTINGS = UvSettings()
# Where build backends are told in which files dynamic dependencies are.
_DYNAMIC = (
    ("tool", "setuptools", "dynamic", "dependencies", "file"),
    ("tool", "hatch", "metadata", "hooks", "requirements_txt", "files"),
)
_DYNAMIC_EXTRAS = (
    ("tool", "setuptools", "dynamic", "optional-dependencies"),
    ("tool", "hatch", "metadata", "hooks", "requirements_txt", "optional-dependencies"),
)

# Of a pyproject.toml, what hold dependencies for other tools, and is not read.
_TABLES_OF_TOOLS = (
    ("tool", "poetry", "dependencies"),
    ("tool", "pixi", "dependencies"),
    ("tool", "pixi", "pypi-dependencies"),
    ("tool", "hatch", "envs", "default", "dependencies"),
)


class Declared(NamedTuple):
    """What a table says."""

    entries: list[Entry]  # its requirements, with their lines
    unread: tuple[str, ...] = ()  # tables that hold dependencies as well and are not read, spelled as in the file
    requires_python: str | None = None  # which Pythons it wants; None if it does not say
    uv: UvSettings = _NO_SETTINGS  # what uv is told beside them


class Wanted(NamedTuple):
    """What a project wants besides ``dependencies`` of ``[project]``; names as written, however they are spelled."""

    extras: Sequence[str] = ()  # of [project.optional-dependencies]
    groups: Sequence[str] = ()  # of [dependency-groups]

    def __str__(self) -> str:
        return ", ".join([*self.extras, *self.groups])


def in_project(file: Path, text: str, wanted: Wanted, *, locked: bool, sent: Collection[str] | None = None) -> Declared:
    """Read a pyproject.toml; ``sent``, of another project: packages whose files are sent, wherever they come from."""
    page = _toml(file, text)
    project = _table(file, page, "project")
    optional = _table(file, project, "optional-dependencies", "project.")
    named = _strings(file, project, "dependencies", "project")
    of_poetry, extras = package_managers.of_poetry(page, wanted.extras)
    is_of_poetry = package_managers.is_of_poetry(page, project)
    asked = extras if is_of_poetry else wanted.extras
    files = _files_of_extras(file, page)
    if files is not None:  # a lock has dynamic ones, whatever names them
        asked = [] if locked else [each for each in asked if normalised(each) not in files]
    named += _of_extras(file, project, optional, asked)
    groups = package_managers.groups_of_poetry(page)
    named += _of_groups(file, page, [each for each in wanted.groups if normalised(each) not in groups])
    tables = [of_poetry] if is_of_poetry else []
    tables += [groups[name] for name in map(normalised, wanted.groups) if name in groups]
    included = [
        *_files_of(file, page),
        *(each for name in wanted.extras for each in (files or {}).get(normalised(name), ())),
    ]
    in_files = [entry for name in included for entry in requirements.read_included(file.parent / name)]
    listed = package_managers.with_places(_entries(file, text, named), page, file.parent)
    found = [*listed, *_of_poetry(file, text, tables), *in_files]
    uv = _uv_table(file, page)
    if not locked:
        known = uv_settings.pinned(uv) if sent is None else sent
        _reject_sources(file, uv, [entry for entry in found if entry.name not in known])
    unread = _unread(page, project, wanted, is_dynamic=not in_files)
    python = _python(file, project) or package_managers.python_of_poetry(page)
    return Declared(found, tuple(unread), python, UvSettings((uv, package_managers.as_uv_settings(page))))


def in_script(file: Path, text: str, *, locked: bool = False) -> Declared | None:
    """Read the metadata of a script; None if it has none."""
    blocks = list(re.finditer(_SCRIPT, text.replace("\r\n", "\n") + "\n"))
    if not blocks:
        return None
    if len(blocks) > 1:
        invalid(file, "it has more than one block '# /// script'")
    lines = blocks[0]["content"].splitlines(keepends=True)
    page = _toml(file, "".join(line[2:] if line.startswith("# ") else line[1:] for line in lines))
    found = _entries(file, text, _strings(file, page, "dependencies"))
    uv = _uv_table(file, page)
    if not locked:
        _reject_sources(file, uv, [entry for entry in found if entry.name not in uv_settings.pinned(uv)])
    return Declared(found, requires_python=_python(file, page), uv=UvSettings((uv,)))


def _toml(file: Path, text: str) -> dict[str, object]:
    import tomllib  # 5 ms; only when dependencies are wanted

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        invalid(file, f"it is not TOML: {error}")


def _table(file: Path, page: Mapping[str, object], name: str, above: str = "") -> Mapping[str, object]:
    found = page.get(name, {})
    if not isinstance(found, dict):
        invalid(file, f"[{above}{name}] is not a table")
    return found


def _strings(file: Path, table: Mapping[str, object], name: str, where: str = "") -> list[str]:
    found = table.get(name, [])
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        invalid(file, f"{name!r}{f' of [{where}]' if where else ''} is not a list of strings")
    return found


def _python(file: Path, table: Mapping[str, object]) -> str | None:
    found = table.get("requires-python")
    if found is not None and not isinstance(found, str):
        invalid(file, "'requires-python' is not a string")
    return found


def _of_extras(
    file: Path, project: Mapping[str, object], optional: Mapping[str, object], extras: Sequence[str]
) -> list[str]:
    """Return the requirements of extras; one that names the project's own extras means those."""
    known = {normalised(name): name for name in optional}
    own = normalised(str(project.get("name", "")))
    queue, seen, found = [normalised(extra) for extra in extras], set[str](), list[str]()
    while queue:
        extra = queue.pop(0)
        if extra not in known:
            raise OptionError(
                f"{file} has no extra {extra!r}",
                why="'extras' of [tool.kinetic] wants it; [project.optional-dependencies] has "
                + (", ".join(optional) or "none"),
                next="correct 'extras', or add the extra",
                code="dependency",
            )
        if extra in seen:
            continue
        seen.add(extra)
        for line in _strings(file, optional, known[extra], "project.optional-dependencies"):
            requirement = parsed(line)
            if requirement is not None and own and normalised(requirement.name) == own:
                queue += sorted(map(normalised, requirement.extras))
            else:
                found.append(line)
    return found


def _of_groups(file: Path, page: Mapping[str, object], groups: Sequence[str]) -> list[str]:
    """Return the requirements of dependency groups, with those that they include (PEP 735)."""
    table = _table(file, page, "dependency-groups")
    known = {normalised(name): name for name in table}
    queue, seen, found = [*groups], set[str](), list[str]()
    while queue:
        group = normalised(queue.pop(0))
        if group not in known:
            raise OptionError(
                f"{file} has no dependency group {group!r}",
                why=f"'groups' of [tool.kinetic] wants it; [dependency-groups] has {', '.join(table) or 'none'}",
                next="correct 'groups', or add the group",
                code="dependency",
            )
        if group in seen:
            continue
        seen.add(group)
        listed = table[known[group]]
        for item in listed if isinstance(listed, list) else [None]:
            if isinstance(item, str):
                found.append(item)
            elif isinstance(item, dict) and isinstance(item.get("include-group"), str):
                queue.append(item["include-group"])
            else:
                invalid(file, f"{known[group]!r} of [dependency-groups] is not a list of requirements and groups")
    return found


def _entries(file: Path, text: str, named: Sequence[str]) -> list[Entry]:
    lines = text.split("\n")
    found = []
    for requirement in dict.fromkeys(named):
        quoted = f'"{requirement}"', f"'{requirement}'"
        places = [number for number, line in enumerate(lines, 1) if any(each in line for each in quoted)]
        number = places[0] if places else 0
        for entry in entries(" ".join(requirement.splitlines())):
            if entry.text.startswith("-"):
                invalid(file, f"{entry.shown!r} is an option of pip and not a requirement", number)
            kept = entry.keep or any(requirements.keeps(lines[place - 1]) for place in places)
            found.append(Entry(number, entry.text, kept))
    return found


def _of_poetry(file: Path, text: str, tables: Sequence[Mapping[str, object]]) -> list[Entry]:
    """Return what tables of Poetry name, with the lines."""
    lines, found = text.split("\n"), list[Entry]()
    for name, about in (each for table in tables for each in table.items()):
        key = rf"""\s*["']?{re.escape(name)}["']?\s*=|\[tool\.poetry\.(?:\S+\.)?dependencies\.{re.escape(name)}\]"""
        number = next((number for number, line in enumerate(lines, 1) if re.match(key, line)), 0)
        try:
            listed = package_managers.as_requirements(name, about, file.parent)
        except ValueError as error:
            invalid(file, f"{name}: {error}", number, "write one range, or name the versions in [project]")
        keep = requirements.keeps(lines[number - 1])
        found += (Entry(number, each, keep) for each in listed)
    return found


def _files_of(file: Path, page: Mapping[str, object]) -> list[str]:
    """Return the requirements files that setuptools, or a plugin of hatchling, takes for dynamic dependencies."""
    project = _table(file, page, "project")
    if "dependencies" not in _strings(file, project, "dynamic", "project"):
        return []
    found = list[str]()
    for *above, key in _DYNAMIC:
        table, name = page, ""
        for each in above:
            table, name = _table(file, table, each, name), f"{name}{each}."
        named = table.get(key)
        found += [named] if isinstance(named, str) else _strings(file, table, key, name.rstrip("."))
    return found


def _files_of_extras(file: Path, page: Mapping[str, object]) -> dict[str, list[str]] | None:
    """Return the requirements files of dynamic extras, by normalized names; None where extras are not dynamic."""
    if "optional-dependencies" not in _strings(file, _table(file, page, "project"), "dynamic", "project"):
        return None
    found: dict[str, list[str]] = {}
    for path in _DYNAMIC_EXTRAS:
        table = look_up(page, path)
        for name, value in table.items() if isinstance(table, dict) else ():
            listed = value.get("file") if isinstance(value, dict) else value
            found[normalised(name)] = [listed] if isinstance(listed, str) else [*map(str, listed or ())]
    return found


def _unread(
    page: Mapping[str, object], project: Mapping[str, object], wanted: Wanted, *, is_dynamic: bool
) -> list[str]:
    """Name the tables that hold dependencies and are not read; ``is_dynamic``: none of dynamic ones was."""
    read = {"poetry"} if package_managers.is_of_poetry(page, project) else set[str]()
    found = [f"[{'.'.join(path)}]" for path in _TABLES_OF_TOOLS if path[1] not in read and look_up(page, path)]
    found += ["[dependency-groups]"] if page.get("dependency-groups") and not wanted.groups else []
    found += ["[project.optional-dependencies]"] if project.get("optional-dependencies") and not wanted.extras else []
    dynamic = project.get("dynamic")
    is_dynamic = is_dynamic and isinstance(dynamic, list) and "dependencies" in dynamic
    found += ['dynamic = ["dependencies"]'] if is_dynamic else []
    return found


def look_up(page: Mapping[str, object], path: Sequence[str]) -> object:
    """Return what is in a table of tables; None for nothing."""
    found: object = page
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _uv_table(file: Path, page: Mapping[str, object]) -> Mapping[str, object]:
    found = _table(file, _table(file, page, "tool"), "uv", "tool.")
    return uv_settings.of_project(found) if _uv_files(file.parent) and file.name == _FILES[1] else found


def _reject_sources(file: Path, uv: Mapping[str, object], found: Sequence[Entry]) -> None:
    """Reject what uv would take from elsewhere: on the index, another package may have that name."""
    elsewhere = {normalised(name) for name in _table(file, uv, "sources", "tool.uv.")}
    locking = f"uv lock --script {file}" if file.suffix == ".py" else "uv lock beside a pyproject.toml"
    for entry in found:
        if entry.name in elsewhere - python_runtime.NAMES:  # ours is taken out anyway
            raise OptionError(
                f"{file} takes {entry.name} from a place of its own",
                why=f"[tool.uv.sources] names it, and the index may hold another package called {entry.name}",
                next=f"run {locking}; or write the address itself: name @ git+https://…",
                code="dependency",
            )


# --------------------------------------------------------------------------------------------------------- the project

Kind = Literal["none", "requirements", "pyproject", "lock", "script"]
# Folder with a pyproject.toml, or a script, which have a lock of uv; extras, groups → lines of a requirements file.
Export = Callable[[Path, Sequence[str], Sequence[str]], Sequence[str]]

_FILES = ("requirements.txt", "pyproject.toml")  # the first wins
_UNREAD = {  # which name some, too, and what turns each into a file that is read
    "environment*.yml": "",
    "environment*.yaml": "",
    "conda-lock.yml": "",
    "Pipfile": "pipenv requirements > requirements.txt",
    "pixi.toml": "",
    "pylock*.toml": "",
    "setup.py": "",
    "setup.cfg": "",
    "requirements*.in": "uv pip compile {} -o requirements.txt",
    "requirements*.txt": "echo '-r {}' > requirements.txt",
    "requirements/*.txt": "echo '-r {}' > requirements.txt",
}
_OTHER_LOCKS = {  # of other tools than uv, and what turns each into a file that is read
    "poetry.lock": "poetry export -o requirements.txt",
    "pdm.lock": "pdm export -o requirements.txt",
    "pixi.lock": "",
    "pylock.toml": "",
    "requirements.lock": "cp requirements.lock requirements.txt",
}
_NAMES_DEPENDENCIES = r"(?m)^\s*dependencies\s*="
_WHEEL = ".whl"
_NOTHING_MORE = Wanted()


@dataclass(frozen=True)
class Dependencies:
    """What is to be installed for a job."""

    source: Path | None  # the file that says so; None if there is none
    kind: Kind  # what kind of file
    lines: tuple[str, ...] = ()  # requirements and options as in a requirements file, one line each, without comments
    filtered: tuple[str, ...] = ()  # lines that were taken out, because the base environment brings JAX
    notes: tuple[str, ...] = ()  # sentences for the user, each once
    requires_python: str | None = None  # which Pythons the file wants; None if it does not say
    projects: tuple[str, ...] = ()  # folders of other projects that it names, whose files are sent
    # packages that the job has besides what the lines bring; None where its image is not known here
    brought: tuple[str, ...] | None = ()

    @property
    def names(self) -> frozenset[str]:
        """The normalized names of the packages in the lines."""
        return frozenset(Entry(0, line).name for line in self.lines)

    @property
    def digest(self) -> str:
        """The digest of everything that decides what is installed; comments and places of files do not count."""
        return digests.of_bytes("\n".join([*self.lines, "", *(["with JAX"] if self.filtered else [])]).encode())

    def check_python(self, python: str) -> None:
        """Reject a Python that the file does not want.

        No other one is looked for: what is sent to a job was pickled here, and a pickle is valid for one X.Y only.
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
            why="a job has the Python that submits it: what is sent to it can only be read by the same one",
            next=f"submit with a Python that is {self.requires_python}, or correct 'requires-python' in {self.source}",
            code="dependency",
        )


def find(
    plan: Plan,
    *,
    script: str | None = None,
    wanted: Wanted = _NOTHING_MORE,
    export: Export | None = None,
    base: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> Dependencies:
    """Find what a project needs installed.

    Args:
        plan: Where the project and its entry folder are; the file may be above the project.
        script: The file of the function's module; its own metadata wins over every file.
        wanted: Extras and groups that ``[tool.kinetic]`` names.
        export: Turns a uv.lock into lines. Without it, a lock is ignored with a note.
        base: Base packages are installed as well, JAX among them, so lines that name JAX are taken out.
        environ: Where HOME is read.

    Raises:
        OptionError: A file cannot be read, or a line names what only this machine has.
    """
    if script is not None and not is_installed(script):
        text = read_text(Path(script), errors="replace")  # another encoding is possible; the block itself is UTF-8
        lock = Path(f"{script}.lock")
        has_lock = export is not None and lock.is_file()
        declared = in_script(Path(script), text, locked=has_lock) if "# /// script" in text else None
        if declared is not None and has_lock and export is not None:
            exported = export(Path(script), (), ())
            tables = (*declared.uv.tables, *_settings_around(lock))
            return _of_lock(lock, Path(script), exported, declared, tables, [], base=base)
        if declared is not None:
            declared = declared._replace(uv=UvSettings((*declared.uv.tables, *_settings_around(lock))))
            notes = [f"dependencies come from the metadata of {script}"]
            return _finished(Path(script), "script", declared, notes, base=base)
    entry = Path(os.path.abspath(plan.root / plan.entry_rel))
    folder, names, in_repository = _nearest(entry, os.path.expanduser(environ.get("HOME") or "~"))
    if not names:
        searched = f"from {entry} up to {folder}" if folder != entry else f"in {folder}"
        climbed = [each for each in (entry, *entry.parents) if each.is_relative_to(folder)]
        unread = [about for each in climbed for about in _unread_in(each)]
        others = f"; not read: {', '.join(unread)}" if unread else ""
        note = f"no {' or '.join(_FILES)} {searched}: {_only_base(base=base)}{others}"
        return Dependencies(None, "none", notes=(note,))
    file = folder / names[0]
    notes = [f"dependencies come from {file}" + (f"; {names[1]} beside it is not read" if names[1:] else "")]
    if not folder.is_relative_to(plan.root) and not in_repository:
        above = plan.root / plan.entry_rel
        notes.append(f"{file} is in a folder above {above}, and no .git shows that the two belong together")
    if file.name == "pyproject.toml":
        return _of_project(file, wanted, export, notes, base=base)
    if any(wanted):
        notes.append(f"extras and groups have no meaning for {file}: {wanted}")
    declared = Declared(requirements.read(file), uv=UvSettings(_settings_around(file, of_pip=True)))
    return _finished(file, "requirements", declared, notes, base=base)


def _unread_in(folder: Path) -> list[str]:
    """Return the files of a folder that name dependencies for other tools, with what makes a file that is read."""
    found, advised = list[str](), set[str]()
    for pattern, command in _UNREAD.items():
        for file in sorted(filter(Path.is_file, folder.glob(pattern))):
            is_new = command and command not in advised
            advised.add(command)
            advice = f" ({command.format(file.relative_to(folder))} makes a file that is read)" if is_new else ""
            found.append(f"{file}{advice}")
    return found


def _with_needs(
    found: Sequence[Entry], source: Path, *, locked: bool
) -> tuple[list[Entry], tuple[str, ...], list[str]]:
    """Put in the place of other projects what they need, and of what that names again; a lock holds their needs.

    Returns the lines, the folders of the projects, and notes. A project that is sent is not installed from an index as
    well, where another package may have its name.
    """
    kept, notes, projects = list[Entry](), list[str](), dict[str, set[str]]()
    sent: dict[str, str] = {}  # folders, by names
    waiting = list(found)
    while waiting:
        lines, named = _without_projects(waiting, source)
        kept, waiting = [*kept, *lines], []
        sent |= {name_of(folder): folder for folder, _ in named}
        if not locked:
            named += [(sent[each.name], list(each.extras)) for each in kept if each.name in sent]
            kept = [each for each in kept if each.name not in sent]
        new = dict[str, None]()
        for folder, extras in named:
            if folder not in projects or not projects[folder].issuperset(extras):
                new[folder] = None
            projects.setdefault(folder, set()).update(extras)
        for folder in new if not locked else ():
            needed, more = _needs_of(folder, sorted(projects[folder]), sent)
            waiting += (each for each in needed if each not in kept)
            notes += more
    return kept, tuple(projects), notes


def _needs_of(folder: str, extras: Sequence[str], sent: Collection[str]) -> tuple[list[Entry], list[str]]:
    about = Path(folder, "pyproject.toml")
    text, notes = read_text(about) if about.is_file() else "", list[str]()
    optional = _table(about, _table(about, _toml(about, text), "project"), "optional-dependencies", "project.")
    known = [extra for extra in extras if normalised(extra) in map(normalised, optional)]
    if absent := [extra for extra in extras if extra not in known]:  # a warning of pip's as well
        notes.append(f"{folder} has no extra {', '.join(absent)}, which a line wants")
    declared = in_project(about, text, Wanted(known), locked=False, sent=sent)
    if not declared.entries and not re.search(_NAMES_DEPENDENCIES, text):
        unread = f" ({', '.join(declared.unread)} is not read)" if declared.unread else ""
        notes.append(f"{folder} is sent, and names no dependencies in [project] of a pyproject.toml{unread}")
    return [entry._replace(file=entry.file or about) for entry in declared.entries], notes


def _without_projects(found: Sequence[Entry], source: Path) -> tuple[list[Entry], list[tuple[str, list[str]]]]:
    """Take out lines that install a project's folder, or a wheel; return the others, and folders with their extras.

    What installs kinetic itself is in neither: every job brings its own.
    """
    kept, projects = list[Entry](), list[tuple[str, list[str]]]()
    for entry in found:
        local = None if requirements.is_kinetic(entry) else requirements.local_path(entry)
        # Pip looks from the current folder, which is mostly that of the first file.
        here = source.parent
        places = [entry.file.parent, here] if entry.file else [here]
        paths = [os.path.normpath(place / local.path) for place in places] if local else []
        folder = next(filter(_is_project, paths), None)
        wheel = next((path for path in paths if path.endswith(_WHEEL) and os.path.isfile(path)), None)
        if local and wheel:
            if unpacked := _unpacked(Path(wheel), entry, local, source):
                projects.append((unpacked, local.extras))
        elif folder is None or local is None:
            kept.append(entry)
        elif name_of(folder) not in python_runtime.NAMES:
            projects.append((folder, local.extras))
    return kept, projects


def _unpacked(wheel: Path, entry: Entry, local: LocalPath, source: Path) -> str:
    """Return the folder that is sent for a wheel that a line names; "" if the line is for another machine."""
    from kinetic._project import local_wheels  # few projects have any

    try:
        if local.marker and not local_wheels.is_meant(local.marker):
            return ""
    except ValueError as error:
        requirements.reject(
            entry,
            source,
            f"what is behind its semicolon is not a marker: {str(error).splitlines()[0]}",
            "correct the line",
        )
    if why := local_wheels.why_unfit(wheel):
        requirements.reject(entry, source, why, "name a wheel for that, or one whose name ends with -none-any.whl")
    try:
        return local_wheels.as_project(wheel, local.hashes, unpacked_wheels(kinetic_home(os.environ)))
    except IntegrityError as error:
        requirements.reject(entry, source, error.what, "lock again, or correct the line")
    except OSError as error:
        requirements.reject(entry, source, f"it cannot be unpacked: {error}", "make it readable, or make room")
    except ValueError as error:
        requirements.reject(entry, source, f"it is not a wheel: {error}", "build it again")


def _is_project(folder: str) -> bool:
    return any(os.path.isfile(f"{folder}/{name}") for name in INSTALLABLE)


def _nearest(entry: Path, home: str) -> tuple[Path, list[str], bool]:
    """Return the folder upwards where the search ends, the files found there, and whether it has a .git."""
    folder = entry
    while True:
        found = [name for name in _FILES if (folder / name).is_file()]
        in_repository = (folder / ".git").exists()
        is_end = folder == folder.parent or os.path.realpath(folder) == os.path.realpath(home)
        if found or in_repository or is_end:
            return folder, found, in_repository
        folder = folder.parent


def _of_project(file: Path, wanted: Wanted, export: Export | None, notes: list[str], *, base: bool) -> Dependencies:
    lock = _lock_of(file)
    has_lock = lock.is_file()
    found = in_project(file, read_text(file), wanted, locked=has_lock and export is not None)
    if has_lock and export is not None:
        exported, told = export(file.parent, *wanted), _tables_of_lock(lock, file, found.uv)
        return _of_lock(lock, file, exported, found, told, notes[1:], base=base)
    if has_lock:
        notes.append(f"{lock} is not read here")
    for name, export_command in _OTHER_LOCKS.items():
        if (file.parent / name).is_file():
            advice = f" ({export_command} makes a file that is read)" if export_command else ""
            notes.append(f"{file.parent / name} is not read: jobs may get other versions{advice}")
    if not found.entries:
        unread = f"; not read: {', '.join(found.unread)}" if found.unread else ""
        notes.append(f"{file} has no dependencies in [project]: {_only_base(base=base)}{unread}")
    tables = (*_settings_around(file), *found.uv.tables)
    return _finished(file, "pyproject", found._replace(uv=UvSettings(tables)), notes, base=base)


def _of_lock(
    lock: Path,
    source: Path,
    exported: Sequence[str],
    declared: Declared,
    tables: Sequence[Mapping[str, object]],
    notes: Sequence[str],
    *,
    base: bool,
) -> Dependencies:
    """Return what a lock of uv holds for what a file declares, its ``source``."""
    text = read_text(lock)
    # Whoever keeps one package of JAX keeps them all: they are locked to fit each other.
    keep = any(entry.keep and entry.name in requirements.BASE_NAMES for entry in declared.entries)
    found = uv_settings.with_wheels(entries("\n".join(exported)), lock, text)
    locked = declared._replace(
        entries=[Entry(0, each.text, keep) for each in found], uv=UvSettings(tables, text if any(tables) else "")
    )
    done = _finished(lock, "lock", locked, [f"dependencies come from {lock}", *notes], base=base)
    if absent := uv_settings.not_locked(declared.entries, name_of(source.parent), text):
        words = f"uv lock --script {source}" if lock.stem == source.name else "uv lock"
        note = f"{lock} was made without {', '.join(absent)} of {source}: bring it up to date with {words}"
        done = replace(done, notes=(*done.notes, note))
    return done


def _tables_of_lock(lock: Path, file: Path, own: UvSettings) -> list[Mapping[str, object]]:
    """Return what uv is told at the root of a project's workspace or above it, and in the project."""
    root = lock.with_name(file.name)
    more = [_uv_table(root, _toml(root, read_text(root)))] if root != file and root.is_file() else []
    return [*_settings_around(lock), *own.tables, *more]


def _settings_around(file: Path, *, of_pip: bool = False) -> list[Mapping[str, object]]:
    """Return what uv is told in the nearest folder that says something: that of a file, or above it in its repository.

    Versions that it chooses are those of ``uv pip``: other commands take them from the file itself, or its workspace.
    So is what is in ``pip``, which comes first.
    """
    left_out = {"sources", *(() if of_pip else uv_settings.CHOSEN)}
    for folder in (file.parent, *file.parent.parents):
        if found := _uv_files(folder) or _uv_tables(folder, is_above=folder != file.parent):
            first = [pip for each in found if of_pip and isinstance(pip := each.get("pip"), dict)]
            return [*first, *({key: value for key, value in each.items() if key not in left_out} for each in found)]
        if (folder / ".git").exists():
            break
    return []


def _uv_tables(folder: Path, *, is_above: bool) -> list[Mapping[str, object]]:
    file = folder / "pyproject.toml"
    try:
        text = read_text(file) if file.is_file() else ""
        table = _uv_table(file, _toml(file, text)) if "tool.uv" in text else {}
    except OptionError:
        if is_above:  # as uv, which only warns of it
            return []
        raise
    return [table] if table else []


def _uv_files(folder: Path) -> list[Mapping[str, object]]:
    file = folder / "uv.toml"
    return [_toml(file, read_text(file))] if file.is_file() else []


def _lock_of(file: Path) -> Path:
    """Return the uv.lock of a pyproject.toml, which may not exist: a member's is at the root of its workspace."""
    for folder in (file.parent, *file.parent.parents):
        lock = folder / "uv.lock"
        if lock.is_file():
            found = re.search(r"^\[manifest\]\nmembers = \[([^\]]*)", read_text(lock, errors="replace"), re.MULTILINE)
            members = set(re.findall(r'"([^"]+)"', found[1])) if found else set()
            if folder == file.parent or name_of(file.parent) in members:
                return lock
            break
    return file.with_name("uv.lock")


def name_of(folder: str | Path) -> str:
    """Return the normalized name of the project in a folder."""
    file = Path(folder, "pyproject.toml")
    page = _toml(file, read_text(file)) if file.is_file() else {}
    name = _table(file, page, "project").get("name") or look_up(page, ("tool", "poetry", "name"))
    return normalised(str(name or os.path.basename(folder)))


def _only_base(*, base: bool) -> str:
    return "only base packages will be installed" if base else "nothing will be installed"


def _finished(
    source: Path,
    kind: Kind,
    declared: Declared,
    notes: Sequence[str],
    *,
    base: bool,
) -> Dependencies:
    found, projects, more = _with_needs(declared.entries, source, locked=kind == "lock")
    notes = [*notes, *more]
    if kind != "lock" and (folders := uv_settings.folders(declared.uv)):
        notes = [*notes, f"{source} looks for packages in a folder, which jobs do not: {', '.join(folders)}"]
    found, ours = requirements.without_kinetic(found)
    if ours:
        named = ", ".join(dict.fromkeys(entry.shown for entry in ours))
        notes = [*notes, f"not installed from {source}, because every job brings its own kinetic: {named}"]
    requirements.reject_local(found, source)
    kept, brought = requirements.without_base(found) if base else (found, [])
    kept, more_settings = requirements.as_uv_reads(kept, source)
    filtered = tuple(entry.shown for entry in brought)
    if filtered:
        text = f"not installed from {source}, because the base environment brings its own JAX: {', '.join(filtered)}"
        notes = [*notes, f"{text} ('# kn:keep' on the line keeps it)"]
    if base and any(re.match(requirements.REQUIRES_HASHES, entry.text) for entry in kept):  # uv would refuse them all
        kept = [entry for entry in kept if not re.match(requirements.REQUIRES_HASHES, entry.text)]
        text = f"--require-hashes of {source} is left out, as base packages have no hashes"
        notes = [*notes, f"{text}; those of its lines are checked (base_packages = false in [tool.kinetic] keeps it)"]
    is_own_jax = not base or any(entry.name in requirements.BASE_NAMES for entry in kept)
    told = declared.uv._replace(tables=(*declared.uv.tables, more_settings))
    settings = uv_settings.lines(told, kept, () if is_own_jax else requirements.BASE_NAMES)
    lines = (*(entry.text for entry in kept), *settings)
    return Dependencies(source, kind, lines, filtered, tuple(dict.fromkeys(notes)), declared.requires_python, projects)

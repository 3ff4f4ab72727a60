"""Dependencies in tables: ``[project]`` of a pyproject.toml, and the metadata on top of a script (PEP 723)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from kinetic._packing import requirements
from kinetic._packing.requirements import Entry, normalised
from kinetic.errors import OptionError

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
        _malformed(file, "it has more than one block '# /// script'")
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
        _malformed(file, f"it is not TOML: {error}")


def _table(file: Path, page: Mapping[str, object], name: str, above: str = "") -> Mapping[str, object]:
    found = page.get(name, {})
    if not isinstance(found, dict):
        _malformed(file, f"[{above}{name}] is not a table")
    return found


def _strings(file: Path, table: Mapping[str, object], where: str, name: str) -> list[str]:
    found = table.get(name, [])
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        _malformed(
            file, f"{name!r} of [{where}] is not a list of strings" if where else f"{name!r} is no list of strings"
        )
    return found


def _python(file: Path, table: Mapping[str, object]) -> str | None:
    found = table.get("requires-python")
    if found is not None and not isinstance(found, str):
        _malformed(file, "'requires-python' is not a string")
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
            requirement = requirements.parsed(line)
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
        for entry in requirements.entries(" ".join(requirement.splitlines())):
            if entry.text.startswith("-"):
                _malformed(file, f"{entry.text!r} is an option of pip and not a requirement", number)
            kept = entry.keep or any(requirements.is_kept(lines[place - 1]) for place in places)
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


def _malformed(file: Path, why: str, number: int = 0) -> NoReturn:
    place = f"{file}, line {number}," if number else str(file)
    raise OptionError(
        f"the dependencies in {place} cannot be read", why=why, next="correct the file", code="dependency"
    )

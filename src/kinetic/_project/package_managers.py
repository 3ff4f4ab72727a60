"""What Poetry names in tables of its own, and where Poetry and PDM take the packages from that ``[project]`` names.

On the usual index, another package may have the name of one that comes from a folder or an index of the user's.

Source: python-poetry.org/docs/dependency-specification and /docs/repositories, of Poetry 2.5; pdm-project.org, usage of
sources, of PDM 2.29; read 2026-11-30.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from kinetic._project.requirements import Entry, normalised, parsed

_CARET_OR_TILDE = r"([~^])\s*v?(\d+!)?(\d+(?:\.\d+)*)(.*)"
_BETWEEN = r"\s*,\s*|(?<=[\w*])\s+(?=[<>=!~^])"
_COMPARISON = r"\s*(===|[=!<>~]=|<|>)\s*(.+)"
_SHORT_SSH = r"\A([\w.-]+@[\w.-]+):(?!//)"  # as in git@github.com:acme/models.git


def with_places(found: Sequence[Entry], page: Mapping[str, object], folder: Path) -> list[Entry]:
    """Return requirements with the folder, file, repository or address that Poetry takes them from."""
    places = dict(_places(page, folder))
    return [
        entry._replace(text=_placed(entry, places[entry.name])) if entry.name in places else entry for entry in found
    ]


def is_of_poetry(page: Mapping[str, object], project: Mapping[str, object]) -> bool:
    """Return whether dependencies are those of Poetry's own table, as in all projects of Poetry 1."""
    return "dependencies" not in project and isinstance(_table(page, "poetry").get("dependencies"), dict)


def groups_of_poetry(page: Mapping[str, object]) -> dict[str, Mapping[str, object]]:
    """Return the dependencies of Poetry's groups, by their normalized names."""
    poetry = _table(page, "poetry")
    groups = poetry.get("group")
    named = {name: group.get("dependencies") for name, group in groups.items()} if isinstance(groups, dict) else {}
    found = {"dev": poetry.get("dev-dependencies")} | named
    return {normalised(name): table for name, table in found.items() if isinstance(table, dict)}


def of_poetry(page: Mapping[str, object], wanted: Collection[str]) -> tuple[Mapping[str, object], list[str]]:
    """Return the dependencies of Poetry's own table, with the optional ones of some extras; and unknown extras."""
    table, extras = _table(page, "poetry").get("dependencies"), _table(page, "poetry").get("extras")
    known = {normalised(name): each for name, each in extras.items()} if isinstance(extras, dict) else {}
    asked = {normalised(str(each)) for extra in wanted for each in known.get(normalised(extra), ())}
    found = {
        name: about
        for name, about in (table.items() if isinstance(table, dict) else ())
        if name != "python" and (not _is_optional(about) or normalised(name) in asked)
    }
    return found, [extra for extra in wanted if normalised(extra) not in known]


def _is_optional(about: object) -> bool:
    return isinstance(about, dict) and bool(about.get("optional"))


def python_of_poetry(page: Mapping[str, object]) -> str | None:
    """Return which Pythons a project of Poetry wants; None if it does not say, or not in one expression."""
    about = _table(page, "poetry").get("dependencies")
    wanted = about.get("python") if isinstance(about, dict) else None
    return as_specifier(wanted) or None if isinstance(wanted, str) and "|" not in wanted else None


def as_requirements(name: str, about: object, folder: Path) -> list[str]:
    """Return an entry of a table of Poetry as requirements: several where it differs between machines.

    Raises:
        ValueError: It cannot be written as a requirement.
    """
    found = []
    for each in about if isinstance(about, list) else [about]:
        more: Mapping[str, object] = each if isinstance(each, dict) else {"version": each}
        extras = more.get("extras")
        named = f"{name}[{','.join(map(str, extras))}]" if isinstance(extras, list) and extras else name
        place = _place(more, folder)
        text = f"{named} @ {place}" if place else f"{named}{as_specifier(str(more.get('version', '*')))}"
        marker = " and ".join(_markers(more))
        found.append(f"{text} ; {marker}" if marker else text)
    return found


def _markers(about: Mapping[str, object]) -> Iterator[str]:
    if markers := about.get("markers"):
        yield f"({markers})"
    for name, compared in (("python", _of_python), ("platform", _of_platform)):
        each = [" and ".join(compared(part)) for part in re.split(r"\|\|?", str(about.get(name) or "*"))]
        if all(each):  # an alternative that fits all machines leaves nothing to compare
            yield each[0] if len(each) == 1 else f"({' or '.join(each)})"


def _of_python(versions: str) -> Iterator[str]:
    for each in filter(None, as_specifier(versions).split(",")):
        operator, version = re.findall(_COMPARISON, each)[0]
        is_minor = operator == "==" and re.fullmatch(r"\d+\.\d+", version)  # "3.11" has 3.11.4, too
        yield f'python_{"" if is_minor else "full_"}version {operator} "{version}"'


def _of_platform(platforms: str) -> Iterator[str]:
    for each in map(str.strip, platforms.replace("*", "").split(",")):
        if each:
            yield f'sys_platform {"!=" if each.startswith("!") else "=="} "{each.lstrip("!= ")}"'


def as_specifier(versions: str) -> str:
    """Return versions as Poetry writes them, such as ``^1.2``, as a specifier (PEP 440); "" for any.

    Raises:
        ValueError: They have alternatives.
    """
    if "|" in versions:
        raise ValueError(f"{versions!r} has alternatives, which a requirement cannot have")
    return ",".join(filter(None, map(_bounds, re.split(_BETWEEN, versions.strip()))))


def _bounds(written: str) -> str:
    if match := re.fullmatch(_CARET_OR_TILDE, written):
        epoch = match[2] or ""
        numbers = [int(each) for each in match[3].split(".")]
        last = len(numbers) - 1
        if match[1] == "^":
            kept = next((index for index, number in enumerate(numbers) if number), last)
        else:
            kept = min(1, last)
        above = ".".join(map(str, [*numbers[:kept], numbers[kept] + 1]))
        return f">={epoch}{match[3]}{match[4]},<{epoch}{above}"
    if match := re.fullmatch(_COMPARISON, written):
        return match[1] + (match[2].removesuffix(".*") if match[1] in {"<", "<=", ">", ">="} else match[2])
    return "" if written == "*" else f"=={written.removeprefix('=').strip()}"


def as_uv_settings(page: Mapping[str, object]) -> dict[str, object]:
    """Return the sources of Poetry and PDM as uv would have them in ``[tool.uv]``."""
    indexes = [_index(each, explicit=each.get("priority") == "explicit") for each in _sources(page, "poetry")]
    of_pdm = _sources(page, "pdm")
    links = [each["url"] for each in of_pdm if each.get("type") == "find_links"]
    indexes += [_index(each, default=each["name"] == "pypi") for each in of_pdm if each["url"] not in links]
    pins = {name: {"index": _index_name(about["source"])} for name, about in _dependencies(page) if "source" in about}
    return ({"index": indexes, "sources": pins} if indexes else {}) | ({"find-links": links} if links else {})


def _sources(page: Mapping[str, object], tool: str) -> list[Mapping[str, object]]:
    listed = _table(page, tool).get("source")
    found = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    return [each for each in found if isinstance(each.get("url"), str) and "name" in each]


def _index(source: Mapping[str, object], **flags: bool) -> dict[str, object]:
    name = _index_name(source["name"])
    return {"name": name, "url": source["url"], **{flag: True for flag, given in flags.items() if given}}


def _index_name(name: object) -> str:
    """Return the name of an index for uv, which takes few characters; Poetry takes any, whatever their case."""
    return re.sub(r"[^a-z0-9._-]", "-", str(name).lower())


def _table(page: Mapping[str, object], name: str) -> Mapping[str, object]:
    tool = page.get("tool")
    table = tool.get(name) if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else {}


def _dependencies(page: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    table = _table(page, "poetry").get("dependencies")
    for name, about in table.items() if isinstance(table, dict) else ():
        if isinstance(about, dict):
            yield normalised(name), about


def _places(page: Mapping[str, object], folder: Path) -> Iterator[tuple[str, str]]:
    for name, about in _dependencies(page):
        if place := _place(about, folder):
            yield name, place


def _place(about: Mapping[str, object], folder: Path) -> str:
    below = f"#subdirectory={about['subdirectory']}" if "subdirectory" in about else ""
    if "git" in about:
        address = re.sub(_SHORT_SSH, r"ssh://\1/", str(about["git"]))
        at = next((f"@{about[key]}" for key in ("rev", "tag", "branch") if key in about), "")
        return f"git+{address}{at}{below}"
    if "url" in about:
        return f"{about['url']}{below}"
    path = about.get("path") or about.get("file")
    return Path(os.path.abspath(folder / str(path))).as_uri() if path else ""


def _placed(entry: Entry, place: str) -> str:
    requirement = parsed(entry.text)
    if requirement is None or requirement.url:
        return entry.text
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras} @ {place}" + (f" ; {requirement.marker}" if requirement.marker else "")

"""Where Poetry and PDM take the packages from that ``[project]`` names.

On the usual index, another package may have the name of one that comes from a folder or an index of the user's.

Source: python-poetry.org/docs/dependency-specification and /docs/repositories, of Poetry 2.5; pdm-project.org, usage of
sources, of PDM 2.29; read 2026-11-30.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kinetic._project.requirements import Entry, normalised, parsed

_SHORT_SSH = r"\A([\w.-]+@[\w.-]+):(?!//)"  # as in git@github.com:acme/models.git


def with_places(found: Sequence[Entry], page: Mapping[str, object], folder: Path) -> list[Entry]:
    """Return requirements with the folder, file, repository or address that Poetry takes them from."""
    places = dict(_places(page, folder))
    return [
        entry._replace(text=_placed(entry, places[entry.name])) if entry.name in places else entry for entry in found
    ]


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
        below = f"#subdirectory={about['subdirectory']}" if "subdirectory" in about else ""
        if "git" in about:
            address = re.sub(_SHORT_SSH, r"ssh://\1/", str(about["git"]))
            at = next((f"@{about[key]}" for key in ("rev", "tag", "branch") if key in about), "")
            yield name, f"git+{address}{at}{below}"
        elif "url" in about:
            yield name, f"{about['url']}{below}"
        elif path := about.get("path") or about.get("file"):
            yield name, Path(os.path.abspath(folder / str(path))).as_uri()


def _placed(entry: Entry, place: str) -> str:
    requirement = parsed(entry.text)
    if requirement is None or requirement.url:
        return entry.text
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras} @ {place}" + (f" ; {requirement.marker}" if requirement.marker else "")

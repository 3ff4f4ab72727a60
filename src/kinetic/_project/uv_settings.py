"""What uv is told beside the requirements of a project: its indexes, and versions that override what packages ask for.

A lock has one version of each package, and each file's hash, but a job's environment is resolved from them again: from
the same indexes, and under overrides that keep these versions. What is found travels as lines of a pyproject.toml,
among the requirements.

Source: docs.astral.sh/uv/concepts/indexes and /reference/settings, read 2026-11-30.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic._project.requirements import Entry, normalised, parsed
from kinetic._wire import NamedTuple, addresses, python_runtime
from kinetic._wire.python_runtime import SETTING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Of the lists, those of all tables count; of the others, the first.
CHOSEN = ("override-dependencies", "constraint-dependencies", "exclude-dependencies")
_LISTS = ("extra-index-url", "find-links", "allow-insecure-host", *CHOSEN)
_WORDS = ("index-url", "index-strategy", "prerelease", "keyring-provider")
# How packages are built that have no wheel: also to resolve, as only a build may say what such a package needs.
_BUILD_LISTS = ("no-build-package", "no-binary-package", "no-build-isolation-package", "build-constraint-dependencies")
_BUILD_TABLES = ("extra-build-dependencies", "extra-build-variables", "config-settings", "config-settings-package")
_SWITCHES = ("no-build", "no-build-isolation", "system-certs", "native-tls")
_BACKEND = "torch-backend"  # which uv knows in [tool.uv.pip] only
_DATES = ("exclude-newer", "exclude-newer-package")  # a lock has files that were there then
_ADDRESSES = frozenset({"index-url", "extra-index-url", "find-links"})
_PACKAGE = "[[package]]\n"  # of a uv.lock
_PLACES = frozenset({"git", "url", "path", "directory", "editable", "virtual"})  # where a requirement comes from there
_LOCKED = r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = \{ registry = "([^"]+)" \}'
_IN_FOLDER = r'source = \{ registry = "(?!https?://)'
_FILE = r'\{ path = "([^"]+)"'
_HASH = r"--hash[= ](sha256:[0-9a-f]{64})"


class UvSettings(NamedTuple):
    """Tables ``[tool.uv]``, the one that counts first first."""

    tables: Sequence[Mapping[str, object]] = ()
    lock: str = ""  # the text of the uv.lock that the requirements come from; "" without one


def pinned(table: Mapping[str, object]) -> frozenset[str]:
    """Return the normalized names of the packages that a table takes from an index of its own, and only from there."""
    known = _named_indexes(UvSettings((table,)))
    sources = table.get("sources")
    found = sources.items() if isinstance(sources, dict) else ()
    return frozenset(normalised(name) for name, source in found if _index_sources(source, known))


def of_project(table: Mapping[str, object]) -> Mapping[str, object]:
    """Return what uv takes of a table beside a uv.toml: sources, with their indexes, and chosen versions."""
    kept = {key: table[key] for key in ("sources", *CHOSEN) if key in table}
    named = [each for each in _all((table,), "index") if isinstance(each, dict) and "name" in each]
    return {**kept, "index": [{**each, "default": False, "explicit": True} for each in named]} if named else kept


def lines(settings: UvSettings, found: Sequence[Entry], without: Collection[str] = ()) -> list[str]:
    """Return the lines of the pyproject.toml that uv is to read beside some requirements.

    What changes versions of the packages ``without`` is left out: an override would take their extras as well.
    """
    options: dict[str, object] = {key: value for key in _LISTS if (value := _joined(settings.tables, key, without))}
    options |= {"index": listed} if (listed := _indexes(settings)) else {}
    options |= {key: table[key] for table in reversed(settings.tables) for key in _WORDS if _is_usable(table, key)}
    if backend := next((table[_BACKEND] for table in settings.tables if isinstance(table.get(_BACKEND), str)), ""):
        options |= {f"pip.{_BACKEND}": backend}
    options |= _for_installing(settings.tables)
    if not settings.lock:
        options |= {key: table[key] for table in reversed(settings.tables) for key in _DATES if key in table}
    pins: dict[str, list[dict[str, str]]] = {}
    needed = list[str]()
    indexes, places = _named_indexes(settings), _places(settings.lock)
    for entry in found if indexes else ():
        for source in _sources_in_lock(entry, indexes, places) if settings.lock else _sources(entry, settings, indexes):
            pins.setdefault(entry.name, []).append(source)
            needed.append(str(parsed(entry.text)))
    if settings.lock and "override-dependencies" in options:
        options = _as_locked(options, found, pins, settings.lock)
    if not options:
        return []
    page: dict[str, object] = {"project.name": "kinetic-job", "project.version": "0"}
    page |= {"project.dependencies": list(dict.fromkeys(needed))}
    page |= {f"tool.uv.{key}": value for key, value in options.items()}
    page |= {f"tool.uv.sources.{name}": sources for name, sources in pins.items()}
    return [f"{SETTING}{key} = {_toml(value)}" for key, value in page.items()]


def _as_locked(
    options: Mapping[str, Any], found: Sequence[Entry], pins: Mapping[str, Sequence[Mapping[str, str]]], lock: str
) -> dict[str, object]:
    """Return options whose overrides keep what a lock has: uv applies them to its lines as well.

    They may allow newer versions, and uv looks for them in the usual index only. Of a package with an index of its own,
    the others are said to need any version instead. Where a line is for some machines, an override counts for others.
    """
    given = options["override-dependencies"]
    usual = {index.get("name") for index in options.get("index", ()) if index.get("default")}
    names = {Entry(0, each).name for each in given}
    own = {name for name in names & pins.keys() if any(each["index"] not in usual for each in pins[name])}
    lines = [
        (entry.name, requirement) for entry in found if entry.name in names and (requirement := parsed(entry.text))
    ]
    replaced = own | {name for name, requirement in lines if not requirement.marker}
    overrides = [each for each in given if Entry(0, each).name not in replaced]
    overrides += (str(requirement) for name, requirement in lines if name not in own)
    metadata = [*options.get("dependency-metadata", ()), *(_any_version_of(own, lock, found) if own else ())]
    changed = {**options, "override-dependencies": overrides, "dependency-metadata": metadata}
    return {key: value for key, value in changed.items() if value != []}


def _any_version_of(names: Collection[str], lock: str, found: Sequence[Entry]) -> Iterator[dict[str, object]]:
    """Yield the metadata of locked packages that need some others: what a lock says of that names no versions."""
    import tomllib  # 5 ms; few override what has an index of its own

    locked = {entry.name for entry in found}
    for package in tomllib.loads(lock)["package"]:
        needs = package.get("dependencies", [])
        optional = [each for extra in package.get("optional-dependencies", {}).values() for each in extra]
        needs_one = any(each["name"] in names for each in [*needs, *optional])
        if needs_one and package["name"] in locked and "version" in package:
            listed = [_requirement(each) for each in needs]
            yield {"name": package["name"], "version": package["version"], "requires-dist": listed}


def _requirement(need: Mapping[str, Any]) -> str:
    extras = f"[{','.join(need['extra'])}]" if "extra" in need else ""
    return f"{need['name']}{extras}" + (f" ; {need['marker']}" if "marker" in need else "")


def with_wheels(found: Sequence[Entry], lock: Path, text: str) -> list[Entry]:
    """Return the lines of a uv.lock, those of packages that it has from a folder of this machine with their files.

    uv exports their names and versions only, and an index may hold another package that is called so.
    """
    if not re.search(_IN_FOLDER, text):
        return list(found)
    from kinetic._project.local_wheels import why_unfit  # few projects have any

    kept, places = [], _places(text)
    for entry in found:
        requirement = parsed(entry.text)
        known = places.get((entry.name, _version(requirement)), []) if requirement else []
        files = [lock.parent / at / name for at, section in known for name in re.findall(_FILE, section)]
        if requirement and files:
            fitting = [file for file in files if file.suffix == ".whl" and not why_unfit(file)]
            marker = f" ; {requirement.marker}" if requirement.marker else ""
            address = Path(os.path.abspath((fitting or files)[0])).as_uri()
            kept.append(entry._replace(text=f"{requirement.name} @ {address}{marker}"))
        else:
            kept.append(entry)
    return kept


def not_locked(found: Sequence[Entry], project: str, lock: str) -> list[str]:
    """Return the requirements of a project that the text of its uv.lock was not made from.

    A lock says what the project required then. Of that it may hold nothing: what is for other machines, or overridden.
    """
    import tomllib  # 5 ms; only where there is a lock

    head, *sections = lock.split(_PACKAGE)
    own = next((section for section in sections if section.startswith(f'name = "{project}"\n')), "")
    listed = list(_requirements(tomllib.loads(own).get("package", {}).get("metadata", {})))
    listed += _requirements(tomllib.loads(head).get("manifest", {}))  # of a script, and of groups without a project
    locked: dict[str, list[Mapping[str, object]]] = {}
    for each in listed:
        locked.setdefault(each["name"], []).append(each)
    return [
        f"{wanted.name}{wanted.specifier}"
        for entry in found
        if entry.name not in python_runtime.NAMES
        and (wanted := parsed(entry.text))
        and not any(_is_same(wanted, each) for each in locked.get(entry.name, ()))
    ]


def _is_same(wanted: Requirement, locked: Mapping[str, object]) -> bool:
    """Return whether a requirement has the versions with which a lock was made; it has none of what has a place."""
    is_placed = bool(wanted.url or locked.keys() & _PLACES)
    return is_placed or wanted.specifier == locked.get("specifier", "")


def _requirements(table: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
    """Yield what a table of a uv.lock requires, itself and by groups."""
    for name in ("requires-dist", "requirements"):
        yield from table.get(name, ())
    for groups in (table.get("requires-dev", {}), table.get("dependency-groups", {})):
        for group in groups.values():
            yield from group


def folders(settings: UvSettings) -> list[str]:
    """Return the indexes, and the pages with links, that are folders of this machine."""
    indexes = [each.get("url") for each in _all(settings.tables, "index") if isinstance(each, dict)]
    named = [*indexes, *_all(settings.tables, "find-links"), *_all(settings.tables, "extra-index-url")]
    return list(dict.fromkeys(each for each in named if isinstance(each, str) and not _is_address(each)))


def _for_installing(tables: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return how packages without wheels are built, what they need if no build is to tell it, and whom to trust."""
    lists = {key: _joined(tables, key, ()) for key in _BUILD_LISTS}
    metadata = list[object]()
    for each in _all(tables, "dependency-metadata"):
        metadata += [each] if isinstance(each, dict) and each not in metadata else []
    joined: dict[str, dict[str, object]] = {key: {} for key in _BUILD_TABLES}
    switches = dict[str, object]()
    for table in reversed(tables):
        switches |= {key: value for key in _SWITCHES if isinstance(value := table.get(key), bool)}
        for key, known in joined.items():
            more = table.get(key)
            known.update(more if isinstance(more, dict) else {})
    found = {**lists, "dependency-metadata": metadata, **joined}
    return {key: value for key, value in found.items() if value} | switches


def _all(tables: Sequence[Mapping[str, object]], key: str) -> list[object]:
    return [each for table in tables if isinstance(value := table.get(key), list) for each in value]


def _joined(tables: Sequence[Mapping[str, object]], key: str, without: Collection[str]) -> list[object]:
    found = dict.fromkeys(each for each in _all(tables, key) if isinstance(each, str))
    if key in _ADDRESSES:
        return [each for each in found if _is_address(each)]
    return [each for each in found if Entry(0, each).name not in without]


def _is_usable(table: Mapping[str, object], key: str) -> bool:
    value = table.get(key)
    return isinstance(value, str) and (key not in _ADDRESSES or _is_address(value))


def _indexes(settings: UvSettings) -> list[dict[str, Any]]:
    """Return the indexes that have an address, and are no folder of this machine; of those with one name, the first.

    A lock says from which index each package is: no other one is looked for there, whatever it has by now.
    """
    found: dict[str, dict[str, Any]] = {}
    for index in _all(settings.tables, "index"):
        if isinstance(index, dict) and _is_address(str(index.get("url"))):
            found.setdefault(str(index.get("name") or index["url"]), index)
    if not settings.lock:
        return list(found.values())
    only = [{} if index.get("default") else {"explicit": True} for index in found.values()]
    return [
        {"name": f"index-{number}", **index, **more}
        for number, (index, more) in enumerate(zip(found.values(), only, strict=True))
    ]


def _sources(entry: Entry, settings: UvSettings, indexes: Collection[str]) -> list[dict[str, str]]:
    """Return from which index, and for which machines, uv is to take a package; none for any."""
    listed = [value for table in settings.tables if isinstance(value := table.get("sources"), dict)]
    named = [pair for value in listed for pair in value.items() if normalised(pair[0]) == entry.name]
    return [each for _, source in named for each in _index_sources(source, indexes)] if entry.name else []


def _places(lock: str) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Return the index of each package in a uv.lock, by its name and version, and the text with its hashes.

    Where machines differ, there can be one version of two indexes.
    """
    found: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for section in lock.split(_PACKAGE):
        if match := re.match(_LOCKED, section):
            found.setdefault((normalised(match[1]), match[2]), []).append((_plain(match[3]), section))
    return found


def _sources_in_lock(
    entry: Entry, indexes: Mapping[str, str], places: Mapping[tuple[str, str], list[tuple[str, str]]]
) -> list[dict[str, str]]:
    """Return from which index a line of a lock is, and for which machines; none for the usual one."""
    requirement = parsed(entry.text)
    if requirement is None:
        return []
    known = places.get((entry.name, _version(requirement)), [])
    hashes = re.findall(_HASH, entry.text)
    fitting = [place for place, section in known if any(each in section for each in hashes)]
    place = next(iter(fitting or (place for place, _ in known)), "")
    index = next((name for name, url in indexes.items() if url == place), "")
    marker = {"marker": str(requirement.marker)} if requirement.marker else {}
    return [{"index": index, **marker}] if index else []


def _version(requirement: Requirement) -> str:
    return str(requirement.specifier).removeprefix("==")


def _named_indexes(settings: UvSettings) -> dict[str, str]:
    return {index["name"]: _plain(index["url"]) for index in _indexes(settings) if "name" in index}


def _index_sources(source: object, known: Collection[str]) -> list[dict[str, str]]:
    """Return a source as a list if it names known indexes and, at most, markers; otherwise an empty one."""
    listed: list[object] = source if isinstance(source, list) else [source]
    found = [each for each in listed if isinstance(each, dict) and each.get("index") in known]
    return found if len(found) == len(listed) and all(each.keys() <= {"index", "marker"} for each in found) else []


def _is_address(url: str) -> bool:
    return url.startswith(("https://", "http://"))


def _plain(url: str) -> str:
    return re.sub(addresses.LOGIN, "", url).rstrip("/")


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(name)} = {_toml(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False, default=lambda date: date.isoformat())  # uv takes dates as texts, too

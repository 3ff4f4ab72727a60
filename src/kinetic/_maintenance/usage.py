"""The disk space that kinetic uses, and why: every file of the home and of the runtime folder has its row.

The files of a job are written once, whole, and put into place by a rename. So a folder of jobs, batches or history
whose time has not changed holds the same files, and they are taken from an index; a report on thousands of kept jobs
reads their folders and not their files. All other folders are always read. A damaged or old index is made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from kinetic._maintenance import garbage_collection
from kinetic._stores.protocol import Store
from kinetic._wire import NamedTuple, dataclass, folders, keys

ValueSince = Callable[[str], float | None]
OLD_SECONDS = 30 * garbage_collection.DAY  # a result that waits longer is reported
_SCRATCH = ".tmp"
_READ_EACH_TIME = frozenset({_SCRATCH, "data", "outputs"})  # of a store: written to, or used again
_SCHEMA = 1
_WORTH_WRITING = 100  # folders that the index lacks; to read fewer costs less than to load an index
_NAMES = {rule.name for rule in garbage_collection.RULES}


@dataclass
class Holding:
    name: str
    why: str  # what they are, and until when they are kept
    size_bytes: int = 0
    oldest: float | None = None  # when the oldest was written (Unix time)
    units: set[str] = field(default_factory=set)  # results, jobs with a log, blobs, folders, …

    @property
    def count(self) -> int:
        return len(self.units)


class Waiting(NamedTuple):
    job_id: str
    size_bytes: int
    ended: float


class Usage(NamedTuple):
    """A report on these folders: a holding for each rule, in their order, and uncollected results, oldest first."""

    places: tuple[Path, ...]
    holdings: tuple[Holding, ...]
    waiting: tuple[Waiting, ...]

    @property
    def size_bytes(self) -> int:
        return sum(holding.size_bytes for holding in self.holdings)

    def overdue(self, now: float) -> list[Waiting]:
        return [result for result in self.waiting if now - result.ended > OLD_SECONDS]


class _File(NamedTuple):
    place: str
    parts: tuple[str, ...]
    size: int
    modified: float


@dataclass
class _Folder:
    """The files of one folder, without those of the folders in it."""

    below: list[str] = field(default_factory=list)  # the names of the folders in it
    holdings: list[tuple[str, list[str], int, float]] = field(default_factory=list)  # row, units, size, oldest time
    inodes: list[int] = field(default_factory=list)  # of its files
    waiting: list[tuple[str, int, float]] = field(default_factory=list)  # uncollected results
    is_lasting: bool = True  # the same as long as the folder is unchanged

    def to_json(self) -> list[object]:
        return [self.below, self.holdings, self.inodes, self.waiting]

    @classmethod
    def from_json(cls, page: list[Any]) -> _Folder:
        """Rebuild it; a damaged page raises TypeError or ValueError."""
        below, holdings, inodes, waiting = page
        rows = [(name, list(map(str, units)), int(size), float(oldest)) for name, units, size, oldest in holdings]
        if not {name for name, *_ in rows} <= _NAMES:
            raise ValueError(rows)
        results = [(str(job_id), int(size), float(ended)) for job_id, size, ended in waiting]
        return cls(list(map(str, below)), rows, list(map(int, inodes)), results)


def measure(home: Path, runtime: Path, store: Store, value_since: ValueSince) -> Usage:
    """Measure every folder; a file that has several names counts once."""
    return _Survey(home, runtime, store, value_since).usage()


class _Survey:
    """One walk through all folders."""

    def __init__(self, home: Path, runtime: Path, store: Store, value_since: ValueSince) -> None:
        self._value_since, self._root = value_since, None if store.local is None else store.local.root
        self._places = _apart([home, runtime, *([self._root] if self._root is not None else [])])
        named = ((self._root, "store"), (runtime, "run"), (home, "home"))
        self._roots = [(os.fspath(folder), name) for folder, name in named if folder]
        self._holdings = {rule.name: Holding(rule.name, rule.why) for rule in garbage_collection.RULES}
        self._waiting: list[Waiting] = []
        self._linked: set[tuple[int, int]] = set()  # files with several names that were counted
        self._counted: set[tuple[int, int]] = set()  # files of folders that were not read: one may have a new name
        self._index = _Index(home, store.url) if self._root is not None else None

    def usage(self) -> Usage:
        for place in self._places:
            folders_ = [os.fspath(place)]
            for folder in folders_:  # grows meanwhile
                with contextlib.suppress(OSError):  # it is gone, or we may not read it
                    held = self._held(folder)
                    folders_ += [f"{folder}/{name}" for name in held.below]
                    self._count(held)
        if self._index is not None:
            self._index.write()
        waiting = tuple(sorted(self._waiting, key=lambda result: result.ended))
        return Usage(self._places, tuple(self._holdings.values()), waiting)

    def _held(self, folder: str) -> _Folder:
        """Return the files of a folder, from the index where that is certain."""
        start, name = next((pair for pair in self._roots if f"{folder}/".startswith(f"{pair[0]}/")), (folder, "home"))
        above = tuple(part for part in folder[len(start) :].split("/") if part)
        if self._index is None or name != "store" or (above and above[0] in _READ_EACH_TIME):
            return self._read(folder, name, above)
        about, read_at = os.stat(folder), time.time_ns()
        known = self._index.folder(folder, about)
        if known is not None:
            inodes = {(about.st_dev, inode) for inode in known.inodes}
            if self._linked.isdisjoint(inodes):
                self._counted |= inodes
                self._index.keep(folder, about, known)
                return known
        held = self._read(folder, name, above)
        if held.is_lasting and folders.is_settled(about.st_mtime_ns, read_at):
            self._index.keep(folder, about, held)
        return held

    def _count(self, held: _Folder) -> None:
        for name, units, size, oldest in held.holdings:
            holding = self._holdings[name]
            holding.units.update(units)
            holding.size_bytes += size
            holding.oldest = oldest if holding.oldest is None else min(oldest, holding.oldest)
        self._waiting += [Waiting(*result) for result in held.waiting]

    def _read(self, folder: str, place: str, above: tuple[str, ...]) -> _Folder:
        held = _Folder()
        rows: dict[str, tuple[set[str], int, float]] = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        held.below.append(entry.name)
                        continue
                    about = entry.stat(follow_symlinks=False)
                    if about.st_nlink > 1 and self._is_counted(about, held):
                        continue
                    held.inodes.append(about.st_ino)
                    size = about.st_size if stat.S_ISREG(about.st_mode) else 0
                    name, unit = self._row(_File(place, (*above, entry.name), size, about.st_mtime), held)
                    units, sizes, oldest = rows.get(name, (set(), 0, about.st_mtime))
                    units.add(unit)
                    rows[name] = units, sizes + size, min(oldest, about.st_mtime)
        held.holdings = [(name, sorted(units), size, oldest) for name, (units, size, oldest) in rows.items()]
        return held

    def _is_counted(self, about: os.stat_result, held: _Folder) -> bool:
        """Return whether a file was counted under another of its names, which may change at any time."""
        held.is_lasting = False
        file = about.st_dev, about.st_ino
        if file in self._linked or file in self._counted:
            return True
        self._linked.add(file)
        return False

    def _row(self, file: _File, held: _Folder) -> tuple[str, str]:
        name, unit = _kind(file)
        if name != "results":
            return name, unit
        ended = self._value_since(unit)
        if ended is None:
            return "failures", unit
        held.is_lasting = held.is_lasting and bool(ended)
        held.waiting.append((unit, file.size, ended or file.modified))
        return name, unit


class _Index:
    """The files of a store's folders as they were read, in one file of the home for each store."""

    def __init__(self, home: Path, store_url: str) -> None:
        name = hashlib.sha256(store_url.encode()).hexdigest()[:16]
        self._path, self._url = home / "index" / f"{name}.folders.json", store_url
        self._known = self._load()
        self._kept: dict[str, list[Any]] = {}
        self._new = 0

    def folder(self, folder: str, about: os.stat_result) -> _Folder | None:
        """Return the files of a folder, or None where it must be read."""
        found = self._known.get(folder)
        with contextlib.suppress(TypeError, ValueError):  # of another version, or damaged
            if isinstance(found, list) and found[:3] == _stamp(about):
                return _Folder.from_json(found[3:])
        self._known.pop(folder, None)
        return None

    def keep(self, folder: str, about: os.stat_result, held: _Folder) -> None:
        if (found := self._known.get(folder)) and found[:3] == _stamp(about):
            self._kept[folder] = found
            return
        self._kept[folder] = [*_stamp(about), *held.to_json()]
        self._new += 1

    def write(self) -> None:
        """Write the index if that saves the next report more than it costs this one; without folders that are gone."""
        gone = len(self._known) + self._new - len(self._kept)
        if self._new + gone < max(_WORTH_WRITING, len(self._kept) // 50):
            return
        page = {"schema": _SCHEMA, "store": self._url, "folders": self._kept}
        with contextlib.suppress(OSError):  # a full or read-only disk: then the next report reads the folders
            folders.write_whole(self._path, json.dumps(page, separators=(",", ":")).encode())

    def _load(self) -> dict[str, list[Any]]:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            page = json.loads(self._path.read_bytes())
            if isinstance(page, dict) and page.get("schema") == _SCHEMA and page.get("store") == self._url:
                return dict(page["folders"]) if isinstance(page.get("folders"), dict) else {}
        return {}


def _stamp(about: os.stat_result) -> list[int]:
    return [about.st_mtime_ns, about.st_ctime_ns, about.st_ino]


def _apart(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders without those that are in another one."""
    found: list[Path] = []
    for folder in sorted({Path(os.path.abspath(folder)) for folder in folders}, key=lambda folder: len(folder.parts)):
        if not any(folder.is_relative_to(other) for other in found):
            found.append(folder)
    return tuple(found)


def _kind(file: _File) -> tuple[str, str]:
    """Return the row that a file belongs to, and which one of that row it is part of."""
    place, parts = file.place, file.parts
    if place == "home" and len(parts) > 2 and parts[0] == "run":  # of another host that shares the home
        name, unit = _kind_in_runtime(parts[2:])
        return name, f"{parts[1]}/{unit}"
    if place == "store":
        return _kind_in_store(parts)
    if place == "run":
        return _kind_in_runtime(parts)
    top = parts[0]
    if garbage_collection.ENVIRONMENTS in parts[:2]:
        return "environments", "/".join(parts[: parts.index(garbage_collection.ENVIRONMENTS) + 2])
    if top in {"cache", "index"}:
        return "caches", "/".join(parts)
    if top == "notices":  # what was shown once today: empty files
        return "caches", top
    if top == "keys" or (len(parts) == 1 and top.endswith((".json", ".toml", ".lock"))):
        return "keys and settings", "/".join(parts)
    return "other", "/".join(parts)


def _kind_in_store(parts: tuple[str, ...]) -> tuple[str, str]:
    top, inside = parts[0], parts[1] if len(parts) > 1 else ""
    if top == _SCRATCH:
        return "being written", "/".join(parts)
    if top == "history":
        return top, parts[-1].partition(".")[0]  # a job's log belongs to the same job
    if top == "outputs":
        return top, inside
    if top == "data":
        return garbage_collection.data_rule(f"{top}/{inside}/"), "/".join(parts[1:])
    if f"{top}/" == keys.GROUPS and inside:
        return "batches", inside
    if top in keys.RESERVED or not inside:
        return "other", "/".join(parts)
    if inside == "result.pkl":
        return "results", top
    return ("logs" if inside == "logs" else "jobs"), top


def _kind_in_runtime(parts: tuple[str, ...]) -> tuple[str, str]:
    top = parts[0]
    if top == "jobs" and len(parts) > 2:
        if parts[2].startswith(("work", "data-")):
            return "working folders", "/".join(parts[1:3])
        return ("logs" if parts[2].startswith("log-") else "queue"), parts[1]
    if top == "data":
        return "fetched data", "/".join(parts[1:])
    if top == "groups" and len(parts) > 1:
        return "batches", parts[1].partition(".")[0]
    if top == "runners":
        return "runner code", parts[1] if len(parts) > 1 else top
    if top == garbage_collection.ENVIRONMENTS:
        return "environments", "/".join(parts[:2])
    return "queue", "/".join(parts)

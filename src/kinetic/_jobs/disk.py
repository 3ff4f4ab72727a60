"""What lies on this disk for kinetic, and why: every file of the home and of the runtime folder has its row."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kinetic._jobs import index, reading, retention
from kinetic._stores.protocol import Store
from kinetic._wire import keys
from kinetic.errors import KineticError

OLD_SECONDS = 30 * retention.DAY  # a result that waits longer is told about
_SCRATCH = ".tmp"

# Name, what one of them is, and why they are here: until when.
ROWS = (
    ("results", "values that nobody has collected: until result() or kinetic jobs cleanup"),
    ("failures", "how jobs failed or were cancelled: until kinetic jobs cleanup"),
    ("jobs", "records, orders and arguments: as long as their job; large arguments: 7 days after its end"),
    ("logs", "what jobs printed that nobody collected: as long as their job"),
    ("packs", "the files of projects: 7 days after the last job that needs them"),
    ("data", "what jobs were sent to read: 60 days after it was sent or looked for last"),
    ("fetched data", "what jobs on this machine have read, for the next one: 30 days after its last use"),
    ("batches", "manifests, inputs and marks of batches: until kinetic batch cleanup"),
    ("outputs", "what jobs wrote into KINETIC_OUTPUT_DIR: yours, never removed"),
    ("history", "logs and records of collected jobs, and what became of removed ones: 30 days"),
    ("working folders", "the projects of running jobs, and of failed ones for 24 hours"),
    ("runner code", "kinetic's own code for its jobs: 30 days after the last that needs it"),
    ("environments", "isolated environments: 30 days after their last use"),
    ("caches", "digests of files, so that nothing is sent twice: 90 days after their last use"),
    ("queue", "the queue, its locks and its keepers' logs"),
    ("keys and settings", "keys that seal results, profiles: until you remove them"),
    ("being written", "half-written files: a day"),
    ("other", "not kinetic's, or of a later version"),
)


@dataclass
class Holding:
    """What one kind of files holds.

    Attributes:
        name: Of the kind.
        why: What they are, and until when they stay.
        count: How many: results, jobs with a log, packs, folders, …
        size_bytes: What they hold.
        oldest: When the oldest was written (Unix time), or None where there is none.
    """

    name: str
    why: str
    size_bytes: int = 0
    oldest: float | None = None
    units: set[str] = field(default_factory=set)

    @property
    def count(self) -> int:
        """Return how many there are."""
        return len(self.units)


class Waiting(NamedTuple):
    """A result that nobody has collected."""

    job_id: str
    size_bytes: int
    ended: float


class Found(NamedTuple):
    """What lies on this disk.

    Attributes:
        places: The folders that were looked through.
        holdings: One for each kind, in the order of ``ROWS``.
        waiting: Results that nobody has collected, oldest first.
    """

    places: tuple[Path, ...]
    holdings: tuple[Holding, ...]
    waiting: tuple[Waiting, ...]

    @property
    def size_bytes(self) -> int:
        """Return what all of it holds."""
        return sum(holding.size_bytes for holding in self.holdings)

    def overdue(self, now: float) -> list[Waiting]:
        """Return the results that have waited for more than 30 days."""
        return [result for result in self.waiting if now - result.ended > OLD_SECONDS]


class _File(NamedTuple):
    place: str
    parts: tuple[str, ...]
    size: int
    modified: float


def look(home: Path, runtime: Path, store: Store) -> Found:
    """Look through every file; a file that has several names counts once.

    Args:
        home: The kinetic home.
        runtime: The folder of this host, inside the home or elsewhere.
        store: Where the jobs lie, inside the home or elsewhere.
    """
    root = getattr(store, "root", None)
    places = _apart([home, runtime, *([root] if root is not None else [])])
    holdings = {name: Holding(name, why) for name, why in ROWS}
    waiting: list[Waiting] = []
    known = index.of(store)
    for file in _files(places, home, runtime, root):
        name, unit = _kind(file)
        if name == "results":
            ended = _collectable(store, known, unit)
            name = "failures" if ended is None else name
            if ended is not None:
                waiting.append(Waiting(unit, file.size, ended or file.modified))
        holding = holdings[name]
        holding.units.add(unit)
        holding.size_bytes += file.size
        holding.oldest = min(file.modified, holding.oldest or file.modified)
    return Found(places, tuple(holdings.values()), tuple(sorted(waiting, key=lambda result: result.ended)))


def _collectable(store: Store, known: index.Index, job_id: str) -> float | None:
    """Return when a job ended that left a value; 0.0 if it cannot be read, so it may be one; None if it failed."""
    try:  # nothing but its age is told, so it need not be verified
        outcome = known.outcome(job_id) or reading.page_of(store, job_id, lambda: None)
    except KineticError:
        return 0.0
    if outcome is None:
        return 0.0
    return (outcome.ended or 0.0) if outcome.succeeded else None


def _apart(folders: Sequence[Path]) -> tuple[Path, ...]:
    """Return the folders without those that lie in another one."""
    found: list[Path] = []
    for folder in sorted({Path(os.path.abspath(folder)) for folder in folders}, key=lambda folder: len(folder.parts)):
        if not any(folder.is_relative_to(other) for other in found):
            found.append(folder)
    return tuple(found)


def _files(places: Sequence[Path], home: Path, runtime: Path, root: Path | None) -> Iterator[_File]:
    """Go through every file once, and say in which of kinetic's folders it lies."""
    roots = [
        (os.fspath(folder), name) for folder, name in ((root, "store"), (runtime, "run"), (home, "home")) if folder
    ]
    seen: set[tuple[int, int]] = set()
    for place in places:
        for folder, _, names in os.walk(place):
            start, name = next((pair for pair in roots if f"{folder}/".startswith(f"{pair[0]}/")), (folder, "home"))
            above = tuple(part for part in folder[len(start) :].split("/") if part)
            for file in names:
                with contextlib.suppress(OSError):
                    about = os.lstat(f"{folder}/{file}")
                    if about.st_nlink > 1 and (about.st_dev, about.st_ino) in seen:
                        continue
                    seen.add((about.st_dev, about.st_ino))
                    size = about.st_size if stat.S_ISREG(about.st_mode) else 0
                    yield _File(name, (*above, file), size, about.st_mtime)


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
    if retention.ENVIRONMENTS in parts[:2]:
        return "environments", "/".join(parts[: parts.index(retention.ENVIRONMENTS) + 2])
    if top in {"cache", "index"}:
        return "caches", "/".join(parts)
    if top == "notices":  # what was said once today: empty files
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
    if top in {"packs", "outputs"}:
        return top, inside
    if top == "data":
        return "data", "/".join(parts[1:])
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
    if top == retention.ENVIRONMENTS:
        return "environments", "/".join(parts[:2])
    return "queue", "/".join(parts)

"""What would ship, and why the rest would not: for ``kinetic package --dry-run``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kinetic._project import advice, ignore, selection
from kinetic._project.root import Plan


@dataclass(frozen=True)
class ListedPath:
    """One path of the project.

    Attributes:
        path: Below the root, with forward slashes; a folder's ends with one.
        size: Bytes; None for a folder that is left out, since nobody looks into it.
        kept: It ships.
        reason: Why it does not; "" when it does.
    """

    path: str
    size: int | None
    kept: bool
    reason: str


@dataclass(frozen=True)
class Listing:
    """A project as it would ship.

    Attributes:
        root: Its folder.
        entries: Every path, sorted.
        files: How many files ship.
        bytes: What they hold.
        notes: What the user should know, a sentence each.
        problem: Why it could not ship as it is, or "".
    """

    root: str
    entries: tuple[ListedPath, ...]
    files: int
    bytes: int
    notes: tuple[str, ...]
    problem: str

    def to_json(self) -> dict[str, Any]:
        """Return the listing as plain data."""
        return asdict(self)


def list_project(plan: Plan, *, exclude: Sequence[Path] = (), environ: Mapping[str, str] = os.environ) -> Listing:
    """Say for every path of a project whether it ships; nothing is read or sent."""
    root = os.fspath(plan.root)
    rules, notes = ignore.read(root, environ)
    apart = [*map(os.fspath, exclude), *ignore.private_places(environ)]
    walked = selection.scan_project(root, rules, exclude=apart, limited=False)
    notes += ignore.meant_more(rules, walked.paths())
    kept = [
        ListedPath(file.relative, file.size, kept=True, reason="") for folder in walked.folders for file in folder.files
    ]
    empty = [
        ListedPath(f"{at.relative}/", 0, kept=True, reason="")
        for at in walked.folders[1:]
        if not at.files and not at.folders
    ]
    left = [ListedPath(item.relative, item.size, kept=False, reason=item.reason) for item in walked.left_out]
    entries = tuple(sorted([*kept, *empty, *left], key=lambda item: item.path))
    problem = selection.too_large(root, walked)
    notes = plan.notes + notes + advice.notes_about(walked, environ)
    return Listing(root, entries, walked.files, walked.bytes, notes, problem.what if problem else "")

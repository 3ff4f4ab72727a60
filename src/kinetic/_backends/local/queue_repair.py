"""What becomes of a damaged queue: it is set aside, and a new one is made from what is durable beside it.

What is durable is enough for every job that was accepted and has no verdict yet:

| file | says |
|---|---|
| ``jobs/{job}/launch.json`` | everything that the client put into the row |
| ``keepers/{keeper}.job`` | which attempt at which job a keeper has in hand |
| ``jobs/{job}/log-{attempt}-{host}.began`` | that a function was begun, where the file of its keeper is gone |

Jobs that have ended need no row: their outcome is in the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kinetic._backends.local import launching, life
from kinetic._backends.local.paths import Paths
from kinetic._wire import folders
from kinetic._wire.task import Task
from kinetic.errors import KineticError

DAMAGED = "damaged"  # in the name of a database that was set aside
_ENDS = ("-wal", "-shm", "-journal")
_GONE = "gone"  # the keeper of an attempt of which nobody knows the keeper: nobody has such a lock


class Held(NamedTuple):
    """A job that a keeper has in hand."""

    keeper: str
    attempt: int
    devices: str
    since: float


def beside(path: Path) -> list[Path]:
    """Name the files that SQLite keeps beside a database."""
    return [Path(f"{path}{end}") for end in _ENDS]


def set_aside(path: Path) -> None:
    """Rename a damaged database and what belongs to it; the caller has the gate, so that nobody opens one of them."""
    stem = f"{path}.{DAMAGED}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    os.replace(path, stem)
    for file, end in zip(beside(path), _ENDS, strict=True):
        with contextlib.suppress(FileNotFoundError):
            os.replace(file, f"{stem}{end}")


def hold(paths: Paths, keeper: str, job_id: str, attempt: int, devices: str) -> None:
    """Note which job a keeper has in hand; not forced to the disk: after a power cut no keeper lives."""
    page = {"job": job_id, "attempt": attempt, "devices": devices}
    with contextlib.suppress(OSError):  # a full disk: only a rebuilt queue would miss it
        folders.write_whole(paths.held(keeper), json.dumps(page).encode())


def rows(path: Path) -> list[tuple[dict[str, Any], str]]:
    """Return the rows, each with the recipe of its soil, of the jobs that have no verdict, oldest first."""
    paths = Paths(path.parent)
    held = dict(_held(paths))
    found = []
    for name in _names(paths.jobs):
        with contextlib.suppress(KineticError, OSError, TypeError, ValueError, KeyError):  # one odd page stops no other
            page = None if life.is_held(paths.submitting(name)) else launching.read(paths, name)
            if page is not None:
                found.append(_row(paths, page, held.get(name)))
    return sorted(found, key=lambda each: (each[0]["submitted"], each[0]["job_id"]))


def _row(paths: Paths, task: Task, held: Held | None) -> tuple[dict[str, Any], str]:
    if not task.queued:
        return _ended(task.job_id, os.stat(paths.launch(task.job_id)).st_mtime), "{}"
    queued: Mapping[str, Any] = task.queued
    row = {
        "job_id": task.job_id,
        "group_id": str(queued["group"]),
        "soil": str(queued["soil"]),
        "gpus": int(queued["gpus"]),
        "submitted": float(queued["submitted"]),
        "slots": int(queued["slots"]),
        "allowed": str(queued["allowed"]),
    }
    found = held or _begun(paths, task.job_id)
    if found is not None:
        row |= {"state": "running", "keeper": found.keeper, "attempt": found.attempt, "started": found.since}
        row |= {"devices": found.devices}
    return row, str(queued["recipe"])


def _ended(job_id: str, submitted: float) -> dict[str, Any]:
    why = "the queue of this machine was damaged, and an older kinetic did not keep what is needed to run this job"
    return {
        "job_id": job_id,
        "soil": "",
        "state": "ended",
        "submitted": submitted,
        "ended": time.time(),
        "verdict": f"{why}; submit it again",
    }


def _held(paths: Paths) -> Iterator[tuple[str, Held]]:
    for name in _names(paths.keepers):
        keeper, _, end = name.partition(".")
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if end == "job":
                page = json.loads(paths.held(keeper).read_bytes())
                since = os.stat(paths.held(keeper)).st_mtime
                yield str(page["job"]), Held(keeper, int(page["attempt"]), str(page["devices"]), since)


def _begun(paths: Paths, job_id: str) -> Held | None:
    """Return the last attempt whose function has begun."""
    names = [
        name.split("-") for name in _names(paths.job(job_id)) if name.startswith("log-") and name.endswith(".began")
    ]
    attempts = sorted(int(attempt) for _, attempt, _ in names)
    if not attempts:
        return None
    return Held(_GONE, attempts[-1], "", os.stat(paths.job(job_id)).st_mtime)


def note(path: Path, made: list[tuple[dict[str, Any], str]]) -> None:
    """Leave a note for the next client: which queue was rebuilt, and what is in the new one."""
    kept = sorted(name for name in _names(path.parent) if name.startswith(f"{path.name}.{DAMAGED}-"))
    what = f"damaged; the damaged file is kept as {path.with_name(kept[-1])}" if kept else "gone"
    states = [row.get("state", "queued") for row, _ in made]
    counts = f"{states.count('queued')} waiting, {states.count('running')} running, {states.count('ended')} lost"
    text = f"the queue of this machine was {what}. It was rebuilt from the launch pages of its jobs: {counts}"
    folders.write_whole(_note(path), text.encode())


def tell(path: Path) -> None:
    """Tell a client what the note says, once; keepers have nobody to tell."""
    if "KINETIC_KEEPER" in os.environ or not _note(path).exists():
        return
    with contextlib.suppress(OSError):
        text = _note(path).read_text()
        _note(path).unlink()
        from kinetic._output import warn  # a client has it; this is rare

        warn(text)


def _note(path: Path) -> Path:
    return path.with_name("queue.note")


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []

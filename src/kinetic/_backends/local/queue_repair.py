"""A new queue in the place of a damaged one: its rows, from what is durable beside it, and a note for a client."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic._backends.local import runtime_files
from kinetic._backends.local.runtime_files import Paths
from kinetic._output.terminal import warn
from kinetic._wire import folders
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._wire.task import Task


def rebuilt_rows(path: Path) -> list[tuple[dict[str, Any], str]]:
    """Return the rows of the jobs that have no verdict, each with its template, oldest first."""
    paths = Paths(path.parent)
    held = dict(_held_jobs(paths))
    found = []
    for name in _entry_names(paths.jobs):
        with contextlib.suppress(KineticError, OSError, TypeError, ValueError, KeyError):  # skip a damaged task
            task = None if runtime_files.is_locked(paths.submitting(name)) else runtime_files.read_task(paths, name)
            if task is not None:
                found.append(_rebuilt_row(paths, task, held.get(name)))
    return sorted(found, key=lambda each: (each[0]["submitted"], each[0]["job_id"]))


def _rebuilt_row(paths: Paths, task: Task, held: dict[str, Any] | None) -> tuple[dict[str, Any], str]:
    queued = task.queued or {}
    row = {
        "job_id": task.job_id,
        "group_id": str(queued["group_id"]),
        "template_id": str(queued["template_id"]),
        "gpus": int(queued["gpus"]),
        "submitted": float(queued["submitted"]),
        "slots": int(queued["slots"]),
        "allowed": str(queued["allowed"]),
    }
    row |= held or _last_started(paths, task.job_id)
    if "state" not in row and task.after:  # what of it has succeeded is looked up again
        row |= {"state": "waiting", "after": [str(page["job_id"]) for page in task.after]}
    return row, str(queued["template"])


def _held_jobs(paths: Paths) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each job that a supervisor has, with the columns that say so."""
    for name in _entry_names(paths.supervisors):
        supervisor, _, end = name.partition(".")
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if end == "job":
                page = json.loads(paths.held_job(supervisor).read_bytes())
                started = os.stat(paths.held_job(supervisor)).st_mtime
                yield str(page["job"]), _running(supervisor, int(page["attempt"]), started, str(page["devices"]))


def _last_started(paths: Paths, job_id: str) -> dict[str, Any]:
    """Return the columns for the last attempt whose function has started; no columns if none has."""
    names = [name.split("-") for name in _entry_names(paths.job(job_id))]
    numbers = [int(parts[1]) for parts in names if parts[0] == "log" and parts[-1].endswith(".began")]
    if not numbers:
        return {}
    # The lock of this supervisor does not exist, so the next observer treats it as dead.
    return _running("gone", max(numbers), os.stat(paths.job(job_id)).st_mtime, "")


def _running(supervisor: str, attempt: int, started: float, devices: str) -> dict[str, Any]:
    return {
        "state": "running",
        "supervisor": supervisor,
        "attempt": attempt,
        "started": started,
        "devices": devices,
    }


def leave_note(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write for the next client which queue was rebuilt, and what is in the new one."""
    kept = [name for name in _entry_names(path.parent) if name.startswith(f"{path.name}.{runtime_files.DAMAGED}-")]
    what = f"damaged; the damaged file is kept as {path.with_name(kept[-1])}" if kept else "gone"
    running = sum(row.get("state") == "running" for row in rows)
    text = (
        f"the queue of this machine was {what}. It was rebuilt from the files of its jobs:"
        f" {len(rows) - running} pending, {running} running"
    )
    folders.write_whole(path.with_name(runtime_files.REPAIR_NOTE), text.encode())


def show_note(path: Path) -> None:
    """Show the note of a queue once."""
    note = path.with_name(runtime_files.REPAIR_NOTE)
    with contextlib.suppress(OSError):
        text = note.read_text()
        note.unlink()
        warn(text)


def _entry_names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []

"""The database of a queue: created with what is durable of an earlier one beside it, and renamed once it is damaged.

What is durable, and becomes rows again; ended jobs need none:

| file | says |
|---|---|
| ``jobs/{job}/launch.json`` | everything that the client put into the row |
| ``supervisors/{supervisor}.job`` | which attempt at which job a supervisor has |
| ``jobs/{job}/log-{attempt}-{host}.began`` | that a function has started, if the file of its supervisor is gone |
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
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

_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL UNIQUE,
    group_id TEXT NOT NULL DEFAULT '',
    template_id TEXT NOT NULL,
    gpus INTEGER NOT NULL DEFAULT 0,
    slots INTEGER NOT NULL DEFAULT 1,
    allowed TEXT NOT NULL DEFAULT '',
    state TEXT NOT NULL DEFAULT 'queued',
    supervisor TEXT,
    devices TEXT NOT NULL DEFAULT '',
    attempt INTEGER NOT NULL DEFAULT 0,
    requeues INTEGER NOT NULL DEFAULT 0,
    stop INTEGER NOT NULL DEFAULT 0,
    submitted REAL NOT NULL,
    started REAL,
    ended REAL,
    verdict TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, seq);
CREATE INDEX IF NOT EXISTS jobs_by_group ON jobs (group_id, state, seq);
CREATE TABLE IF NOT EXISTS supervisors (
    supervisor TEXT PRIMARY KEY,
    template_id TEXT NOT NULL,
    state TEXT NOT NULL,
    pid INTEGER NOT NULL DEFAULT 0,
    since REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS templates (
    template_id TEXT PRIMARY KEY,
    template TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS predecessors (
    job_id TEXT NOT NULL,
    predecessor TEXT NOT NULL,
    PRIMARY KEY (job_id, predecessor)
);
CREATE TABLE IF NOT EXISTS lent_slots (job_id TEXT PRIMARY KEY, attempt INTEGER NOT NULL);
"""


def make_file(path: Path) -> None:
    """Make an empty file for a database, with our permissions, which SQLite gives to the files beside it."""
    for beside in _sqlite_files(path):  # of a database that is gone: they would be taken for parts of ours
        beside.unlink(missing_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, folders.PRIVATE_FILE))
    folders.sync(path.parent)  # SQLite does so for its journal only


def create(db: sqlite3.Connection, path: Path, version: int) -> None:
    """Create the tables, and fill them with what is durable of an earlier queue in the same place."""
    db.execute(f"PRAGMA journal_mode = {'WAL' if _supports_wal(path) else 'DELETE'}")
    db.execute("BEGIN IMMEDIATE")
    try:
        for statement in _TABLES.split(";"):
            db.execute(statement)
        rebuilt = _rebuilt_rows(path)
        for row, template in rebuilt:
            _insert(db, "templates", template_id=row["template_id"], template=template)
            for predecessor in row.pop("after", ()):
                _insert(db, "predecessors", job_id=row["job_id"], predecessor=predecessor)
            _insert(db, "jobs", **row)
        if rebuilt:
            _leave_note(path, [row for row, _ in rebuilt])
        db.execute(f"PRAGMA user_version = {version}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _insert(db: sqlite3.Connection, table: str, **row: Any) -> None:
    marks = ", ".join("?" * len(row))
    db.execute(f"INSERT OR IGNORE INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()])


def _supports_wal(path: Path) -> bool:
    """Return whether the file system has what WAL needs: memory that processes share through a file.

    Tried with a file beside the queue, because SQLite marks a database as WAL before it finds that it cannot map the
    memory; from then on every statement fails, including the one that would undo it.
    """
    beside = f"{path}.{os.getpid():x}-{os.urandom(4).hex()}"
    db = sqlite3.connect(beside, isolation_level=None)
    try:
        db.execute("PRAGMA synchronous = OFF")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("CREATE TABLE tried (number INTEGER)")
    except sqlite3.OperationalError:
        return False
    else:
        return True
    finally:
        db.close()
        for file in (Path(beside), *_sqlite_files(Path(beside))):
            file.unlink(missing_ok=True)


def _sqlite_files(path: Path) -> list[Path]:
    return [Path(f"{path}{end}") for end in ("-wal", "-shm", "-journal")]


def set_aside(path: Path) -> None:
    """Rename a damaged database and the files beside it; the caller has the gate, so no process opens one of them."""
    aside = f"{path}.{runtime_files.DAMAGED}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    os.replace(path, aside)
    for file in _sqlite_files(path):
        with contextlib.suppress(FileNotFoundError):
            os.replace(file, f"{aside}{file.name.removeprefix(path.name)}")


def _rebuilt_rows(path: Path) -> list[tuple[dict[str, Any], str]]:
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


def _leave_note(path: Path, rows: list[dict[str, Any]]) -> None:
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

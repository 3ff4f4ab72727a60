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
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kinetic._backends.local import process_lock, task_file
from kinetic._backends.local.runtime_paths import Paths
from kinetic._runner.supervisor import process_group
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
            page = None if process_lock.is_held(paths.submitting(name)) else task_file.read_task(paths, name)
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


_RELEASE_SECONDS = 1.0  # a thousand times what a transaction takes
_WAL_LOCKS = range(120, 123)  # bytes of the -shm file for writing, checkpointing and recovering; then come readers
# Source of the byte numbers: sqlite.org/walformat.html, "WAL Locks", read 2026-11-22.


def release_stopped_holder(path: Path) -> int:
    """Let a process that was stopped while it held the lock of a file finish with it, and stop it again.

    Args:
        path: A database of SQLite, or a lock file.

    Returns:
        A process that holds the lock still; 0 if there is none, or the system does not tell.
    """
    for pid in _holders(path):
        if process_group.state(pid) != "T" or not _has_open(pid, path):
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)
            try:
                limit = time.monotonic() + _RELEASE_SECONDS
                while pid in _holders(path) and time.monotonic() < limit:
                    time.sleep(0.0005)
            finally:
                os.kill(pid, signal.SIGSTOP)
    return next((pid for pid in _holders(path)), 0)


def say(path: Path, pid: int) -> None:
    """Tell whoever waits for the lock whom it waits for."""
    from kinetic._output import warn  # a client has it; this is rare

    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:80]
    except OSError:
        command = "gone meanwhile"
    warn(f"waiting for process {pid} ({command}), which is changing {path}")


def _holders(path: Path) -> Iterator[int]:
    """Yield the other processes whose lock on a database or lock file keeps others from changing it."""
    shm = Path(f"{path}-shm")
    inodes = {number: name for name in (path, shm) if (number := _inode(name))}
    has_wal = shm in inodes.values()
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()  # "12: POSIX  ADVISORY  WRITE 4711 08:01:131 120 120"; one that waits has "->" in it
        if len(words) != 8 or words[1] != "POSIX":
            continue
        name = inodes.get(int(words[5].rpartition(":")[2]))
        blocks = int(words[6]) in _WAL_LOCKS if name == shm else words[3] == "WRITE" or not has_wal
        if name is not None and blocks and int(words[4]) not in {0, os.getpid()}:
            yield int(words[4])


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _has_open(pid: int, path: Path) -> bool:
    """Say whether a process has this very file open: an inode's number alone may be that of another disk."""
    wanted = _inode(path)
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                about = os.stat(f"/proc/{pid}/fd/{name}")
                if about.st_ino == wanted and about.st_dev == os.stat(path).st_dev:
                    return True
    return False

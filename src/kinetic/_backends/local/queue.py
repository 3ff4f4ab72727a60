"""The queue of this machine: a job that waits is a row, not a process.

Rows go queued -> claimed -> running -> ended. Every change is one BEGIN IMMEDIATE transaction, so that two clients and
any number of supervisors see one order. First in, first out for each class: "cpu" jobs share the slots, "gpu" jobs
share the devices. How many slots and devices there are is written in each row by the client that submitted it, so that
it never depends on the environment in which a supervisor or an observer happened to be started.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from kinetic._backends.local import liveness, runtime_files
from kinetic._backends.local.runtime_files import Paths
from kinetic._runner import processes
from kinetic._runner.supervisor import attempts
from kinetic._wire import folders
from kinetic._wire.task import Task
from kinetic.errors import BackendUnavailableError, KineticError

DAMAGED = "damaged"  # in the name of a database that was set aside
_ENDS = ("-wal", "-shm", "-journal")
_GONE = "gone"  # the supervisor of an attempt of which nobody knows the supervisor: nobody has such a lock


class HeldJob(NamedTuple):
    """A job that a supervisor has in hand."""

    supervisor: str
    attempt: int
    devices: str
    since: float


def sqlite_files(path: Path) -> list[Path]:
    """Name the files that SQLite keeps beside a database."""
    return [Path(f"{path}{end}") for end in _ENDS]


def set_aside(path: Path) -> None:
    """Rename a damaged database and what belongs to it; the caller has the gate, so that nobody opens one of them."""
    stem = f"{path}.{DAMAGED}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    os.replace(path, stem)
    for file, end in zip(sqlite_files(path), _ENDS, strict=True):
        with contextlib.suppress(FileNotFoundError):
            os.replace(file, f"{stem}{end}")


def note_held_job(paths: Paths, supervisor: str, job_id: str, attempt: int, devices: str) -> None:
    """Note which job a supervisor has in hand; not forced to the disk: after a power cut no supervisor lives."""
    page = {"job": job_id, "attempt": attempt, "devices": devices}
    with contextlib.suppress(OSError):  # a full disk: only a rebuilt queue would miss it
        folders.write_whole(paths.held(supervisor), json.dumps(page).encode())


def rebuilt_rows(path: Path) -> list[tuple[dict[str, Any], str]]:
    """Return the rows, each with the template of its template_id, of the jobs that have no verdict, oldest first."""
    paths = Paths(path.parent)
    held = dict(_held_jobs(paths))
    found = []
    for name in _entry_names(paths.jobs):
        with contextlib.suppress(KineticError, OSError, TypeError, ValueError, KeyError):  # one odd page stops no other
            page = None if liveness.is_locked(paths.submitting(name)) else runtime_files.read_task(paths, name)
            if page is not None:
                found.append(_rebuilt_row(paths, page, held.get(name)))
    return sorted(found, key=lambda each: (each[0]["submitted"], each[0]["job_id"]))


def _rebuilt_row(paths: Paths, task: Task, held: HeldJob | None) -> tuple[dict[str, Any], str]:
    if not task.queued:
        return _lost_row(task.job_id, os.stat(paths.launch(task.job_id)).st_mtime), "{}"
    queued: Mapping[str, Any] = task.queued
    row = {
        "job_id": task.job_id,
        "group_id": str(queued["group"]),
        "template_id": str(queued["template_id"]),
        "gpus": int(queued["gpus"]),
        "submitted": float(queued["submitted"]),
        "slots": int(queued["slots"]),
        "allowed": str(queued["allowed"]),
    }
    found = held or _last_begun(paths, task.job_id)
    if found is not None:
        row |= {"state": "running", "supervisor": found.supervisor, "attempt": found.attempt, "started": found.since}
        row |= {"devices": found.devices}
    return row, str(queued["template"])


def _lost_row(job_id: str, submitted: float) -> dict[str, Any]:
    why = "the queue of this machine was damaged, and an older kinetic did not keep what is needed to run this job"
    return {
        "job_id": job_id,
        "template_id": "",
        "state": "ended",
        "submitted": submitted,
        "ended": time.time(),
        "verdict": f"{why}; submit it again",
    }


def _held_jobs(paths: Paths) -> Iterator[tuple[str, HeldJob]]:
    for name in _entry_names(paths.supervisors):
        supervisor, _, end = name.partition(".")
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if end == "job":
                page = json.loads(paths.held(supervisor).read_bytes())
                since = os.stat(paths.held(supervisor)).st_mtime
                yield str(page["job"]), HeldJob(supervisor, int(page["attempt"]), str(page["devices"]), since)


def _last_begun(paths: Paths, job_id: str) -> HeldJob | None:
    """Return the last attempt whose function has begun."""
    names = [
        name.split("-")
        for name in _entry_names(paths.job(job_id))
        if name.startswith("log-") and name.endswith(".began")
    ]
    attempts = sorted(int(attempt) for _, attempt, _ in names)
    if not attempts:
        return None
    return HeldJob(_GONE, attempts[-1], "", os.stat(paths.job(job_id)).st_mtime)


def leave_repair_note(path: Path, made: list[tuple[dict[str, Any], str]]) -> None:
    """Leave a note for the next client: which queue was rebuilt, and what is in the new one."""
    kept = sorted(name for name in _entry_names(path.parent) if name.startswith(f"{path.name}.{DAMAGED}-"))
    what = f"damaged; the damaged file is kept as {path.with_name(kept[-1])}" if kept else "gone"
    states = [row.get("state", "queued") for row, _ in made]
    counts = f"{states.count('queued')} waiting, {states.count('running')} running, {states.count('ended')} lost"
    text = f"the queue of this machine was {what}. It was rebuilt from the launch pages of its jobs: {counts}"
    folders.write_whole(_repair_note(path), text.encode())


def show_repair_note(path: Path) -> None:
    """Tell a client what the note says, once; supervisors have nobody to tell."""
    if "KINETIC_SUPERVISOR" in os.environ or not _repair_note(path).exists():
        return
    with contextlib.suppress(OSError):
        text = _repair_note(path).read_text()
        _repair_note(path).unlink()
        from kinetic._output import warn  # a client has it; this is rare

        warn(text)


def _repair_note(path: Path) -> Path:
    return path.with_name("queue.note")


def _entry_names(folder: Path) -> list[str]:
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
    for pid in _lock_holders(path):
        if processes.state(pid) != "T" or not _has_open(pid, path):
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)
            try:
                limit = time.monotonic() + _RELEASE_SECONDS
                while pid in _lock_holders(path) and time.monotonic() < limit:
                    time.sleep(0.0005)
            finally:
                os.kill(pid, signal.SIGSTOP)
    return next((pid for pid in _lock_holders(path)), 0)


def report_lock_holder(path: Path, pid: int) -> None:
    """Tell whoever waits for the lock whom it waits for."""
    from kinetic._output import warn  # a client has it; this is rare

    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:80]
    except OSError:
        command = "gone meanwhile"
    warn(f"waiting for process {pid} ({command}), which is changing {path}")


def _lock_holders(path: Path) -> Iterator[int]:
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


P = ParamSpec("P")
T = TypeVar("T")

_SCHEMA = 1
_TURN_SECONDS = 1.0  # how long SQLite itself waits for a lock, before we look who holds it
_SAY_SECONDS = 5.0  # after which whoever waits says for whom
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL UNIQUE,
    group_id TEXT NOT NULL DEFAULT '',
    template_id TEXT NOT NULL,
    gpus INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'queued',
    supervisor TEXT,
    devices TEXT NOT NULL DEFAULT '',
    worker INTEGER,
    attempt INTEGER NOT NULL DEFAULT 0,
    requeues INTEGER NOT NULL DEFAULT 0,
    stop INTEGER NOT NULL DEFAULT 0,
    submitted REAL NOT NULL,
    started REAL,
    ended REAL,
    verdict TEXT NOT NULL DEFAULT ''{added}
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
"""
# Columns that older queues lack. They have defaults, so that an older kinetic still works beside a newer one.
_ADDED = {"slots": "INTEGER NOT NULL DEFAULT 0", "allowed": "TEXT NOT NULL DEFAULT ''"}


class JobRow(NamedTuple):
    """One job as the queue knows it. ``template_id`` names the kind of supervisor it needs; see ``template_id.py``.

    ``slots`` and ``allowed``, device names with commas, are the limits that its client had: a "cpu" job starts while
    fewer than ``slots`` of them run, a "gpu" job takes ``gpus`` devices of ``allowed``. 0 slots: an older kinetic wrote
    the row, which did not say.
    """

    seq: int
    job_id: str
    group_id: str
    template_id: str
    gpus: int
    state: str
    supervisor: str | None
    devices: str
    worker: int | None
    attempt: int
    requeues: int
    stop: int
    submitted: float
    started: float | None
    ended: float | None
    verdict: str
    slots: int = 0
    allowed: str = ""

    def limits(self, otherwise: Limits) -> Limits:
        """Return the limits that this job was submitted with, or others where the row does not say."""
        return Limits(self.slots, _words(self.allowed)) if self.slots else otherwise


class GroupRow(NamedTuple):
    """Of one job of a batch, what a look at thousands needs."""

    job_id: str
    state: str
    attempt: int
    submitted: float
    started: float | None


class SupervisorRow(NamedTuple):
    """One supervisor as the queue knows it: starting, idle or busy."""

    supervisor: str
    template_id: str
    state: str
    pid: int
    since: float


class Limits(NamedTuple):
    """How much may run at once here."""

    slots: int
    gpus: tuple[str, ...]


# Columns by name, never "*": a newer kinetic may add some, and older clients and supervisors still work beside it.
_JOBS = f"SELECT {', '.join(JobRow._fields)} FROM jobs"  # noqa: S608 - our own words
_BRIEF = (
    f"SELECT {', '.join(GroupRow._fields)} FROM jobs"  # noqa: S608 - our own words
    " WHERE group_id = ? AND state IN ('queued', 'claimed', 'running')"
)
_WAITING = "SELECT 1 FROM jobs WHERE state = 'queued' AND template_id = ? LIMIT 1"
_ACTIVE = "SELECT job_id FROM jobs WHERE group_id = ? AND state {} ORDER BY seq LIMIT ?"
_QUEUED = f"{_JOBS} WHERE state = 'queued'"
_QUEUED_BEFORE = "SELECT allowed, count(*) FROM jobs WHERE state = 'queued' AND seq < ?"
_DEVICE_SETS = "SELECT DISTINCT allowed FROM jobs WHERE"
_HELD = "SELECT devices FROM jobs WHERE state IN ('claimed', 'running') AND devices != ''"
SUPERVISORS = f"SELECT {', '.join(SupervisorRow._fields)} FROM supervisors"  # noqa: S608 - our own words
NEW_SUPERVISOR = f"INSERT OR REPLACE INTO supervisors ({', '.join(SupervisorRow._fields)}) VALUES (?, ?, ?, ?, ?)"  # noqa: S608
NEW_TEMPLATE = "INSERT OR IGNORE INTO templates (template_id, template) VALUES (?, ?)"


class _RepairedError(BackendUnavailableError):
    """A change came to nothing because the database was damaged; by now it is repaired."""


def again_if_repaired(change: Callable[P, T]) -> Callable[P, T]:
    """Make a change that is harmless to repeat once more, if the database turned out to be damaged in its middle."""

    @functools.wraps(change)
    def changed(*args: P.args, **named: P.kwargs) -> T:
        try:
            return change(*args, **named)
        except _RepairedError:
            return change(*args, **named)

    return changed


class Queue:
    """The rows of one machine, for any thread of one process.

    Whoever needs the database while somebody else changes it waits, as long as everybody here waits for a store; see
    ``queue_locks`` for those who are stopped in the middle of a change. A database that is damaged, or gone, is set
    aside and rebuilt from what is durable beside it; see ``queue_repair``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._file = (0, 0)
        self._db: sqlite3.Connection | None = None
        self._mine()

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction that nobody else can come between."""
        with self._lock:
            db = self._patiently(self._begin)
            try:
                yield db
                _patiently(self._path, lambda: db.execute("COMMIT"))
            except BaseException as error:
                if db.in_transaction:  # SQLite itself rolls back when the disk is full
                    with contextlib.suppress(sqlite3.Error):
                        db.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error):
                    kind = _RepairedError if self._repair_after(error) else BackendUnavailableError
                    raise _unusable(self._path, str(error), kind=kind) from error
                raise

    def _begin(self) -> sqlite3.Connection:
        db = self._mine()
        db.execute("BEGIN IMMEDIATE")
        return db

    def look(self, where: str = "1", values: Sequence[Any] = ()) -> list[JobRow]:
        """Return rows in the order in which they were submitted."""
        return [JobRow(*row) for row in self._read(f"{_JOBS} WHERE {where} ORDER BY seq", values)]

    def jobs(self, names: Sequence[str]) -> dict[str, JobRow]:
        """Return the rows of some jobs."""
        found: dict[str, JobRow] = {}
        for start in range(0, len(names), 500):  # SQLite takes a limited number of values
            part = names[start : start + 500]
            marks = ",".join("?" * len(part))
            found.update((row.job_id, row) for row in self.look(f"job_id IN ({marks})", part))
        return found

    def brief(self, group: str) -> list[GroupRow]:
        """Return the jobs of a batch that have not ended."""
        return [GroupRow(*row) for row in self._read(_BRIEF, (group,))]

    def active(self, group: str, limit: int) -> list[str]:
        """Name the jobs of a batch that run, and then those that are next, at most so many."""
        running = self._read(_ACTIVE.format("IN ('claimed', 'running')"), (group, limit))
        waiting = self._read(_ACTIVE.format("= 'queued'"), (group, max(0, limit - len(running))))
        return [name for (name,) in (*running, *waiting)]

    def before(self, row: JobRow, limits: Limits) -> int:
        """Count the queued jobs that start before another one: of its class, and for the same devices."""
        question = f"{_QUEUED_BEFORE} AND gpus {'> 0' if row.gpus else '= 0'} GROUP BY allowed"
        mine = set(row.limits(limits).gpus)
        return sum(
            count
            for allowed, count in self._read(question, (row.seq,))
            if not row.gpus or mine & set(_words(allowed) or limits.gpus)
        )

    @again_if_repaired
    def may_start(self, row: JobRow, limits: Limits) -> bool:
        """Say whether a queued job would be given to a supervisor that asked now."""
        with self.change() as db:
            return any(other.seq == row.seq for other in startable(db, limits))

    def supervisors(self) -> list[SupervisorRow]:
        """Return the supervisors that are starting, idle or busy, as far as the rows say."""
        return [SupervisorRow(*row) for row in self._read(f"{SUPERVISORS} ORDER BY since")]

    def template(self, template_id: str) -> dict[str, Any]:
        """Return how to start a supervisor of this kind."""
        found = self._read("SELECT template FROM templates WHERE template_id = ?", (template_id,))
        return dict(json.loads(found[0][0])) if found else {}

    @again_if_repaired
    def add(
        self, jobs: Sequence[tuple[str, str, int]], template_id: str, template: str, limits: Limits | None = None
    ) -> None:
        """Append jobs (job id, group id, GPUs) with the limits of their client; one that is there stays as it is."""
        now = time.time()
        slots, devices = (limits.slots, ",".join(limits.gpus)) if limits is not None else (0, "")
        with self.change() as db:
            db.execute(NEW_TEMPLATE, (template_id, template))
            db.executemany(
                "INSERT OR IGNORE INTO jobs (job_id, group_id, template_id, gpus, submitted, slots, allowed)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (job_id, group, template_id, gpus, now, slots, devices if gpus else "")
                    for job_id, group, gpus in jobs
                ],
            )

    @again_if_repaired
    def claim(self, supervisor: str, template_id: str, limits: Limits) -> JobRow | None:
        """Give the oldest job that may start now to a supervisor of its kind."""
        with self.change() as db:
            for row in startable(db, limits):
                if row.template_id == template_id:
                    db.execute(
                        "UPDATE jobs SET state = 'claimed', supervisor = ?, devices = ?, started = ? WHERE seq = ?",
                        (supervisor, row.devices, time.time(), row.seq),
                    )
                    _register(db, supervisor, template_id, "busy")
                    return row._replace(state="claimed", supervisor=supervisor)
            _register(db, supervisor, template_id, "idle")
        return None

    @again_if_repaired
    def register(self, supervisor: str, template_id: str) -> None:
        """Say that this process is a supervisor and has nothing to do."""
        with self.change() as db:
            _register(db, supervisor, template_id, "idle")

    @again_if_repaired
    def leave(self, supervisor: str, template_id: str, *, at_once: bool) -> bool:
        """Sign a supervisor off; False, and nothing happens, if a job of its kind waits, unless it leaves at once."""
        with self.change() as db:
            if not at_once and db.execute(_WAITING, (template_id,)).fetchone():
                return False
            db.execute("DELETE FROM supervisors WHERE supervisor = ?", (supervisor,))
        return True

    @again_if_repaired
    def add_template_id(self, template_id: str, template: str) -> None:
        """Say how supervisors of a kind are started."""
        with self.change() as db:
            db.execute(NEW_TEMPLATE, (template_id, template))

    @again_if_repaired
    def running(self, job_id: str, supervisor: str, attempt: int) -> bool:
        """Say that the worker is about to begin; False when the job was taken away or stopped meanwhile."""
        with self.change() as db:
            done = db.execute(
                "UPDATE jobs SET state = 'running', attempt = ?, started = ?"
                " WHERE job_id = ? AND supervisor = ? AND stop = 0",
                (attempt, time.time(), job_id, supervisor),
            )
            return bool(done.rowcount)

    @again_if_repaired
    def end(self, job_id: str, verdict: str) -> bool:
        """Say that a job has its verdict; False when the row is gone, because somebody removed the job.

        Args:
            job_id: The job.
            verdict: "succeeded" or "failed", "ended" where only the store knows, or the reason of a failure that no
                store could take.
        """
        with self.change() as db:
            done = db.execute(
                "UPDATE jobs SET state = 'ended', ended = ?, verdict = ?, supervisor = NULL WHERE job_id = ?",
                (time.time(), verdict, job_id),
            )
            return bool(done.rowcount)

    @again_if_repaired
    def note(self, job_id: str, waits_for: str) -> None:
        """Write down what a running job waits for that has finished; "" for nothing any more."""
        with self.change() as db:
            db.execute("UPDATE jobs SET verdict = ? WHERE job_id = ? AND state = 'running'", (waits_for, job_id))

    @again_if_repaired
    def requeue(self, job_id: str, supervisor: str, *, counted: bool = True) -> None:
        """Put a job back to its old place: its function never began, which is counted, or it has retries left."""
        with self.change() as db:
            db.execute(
                "UPDATE jobs SET state = 'queued', supervisor = NULL, devices = '', started = NULL, worker = NULL,"
                " verdict = '', requeues = requeues + ?"
                " WHERE job_id = ? AND supervisor = ? AND state IN ('claimed', 'running')",
                (int(counted), job_id, supervisor),
            )

    @again_if_repaired
    def count_a_failed_start(self, template_id: str) -> list[JobRow]:
        """Count for every queued job of a template that its supervisor did not start; return these jobs."""
        with self.change() as db:
            db.execute(
                "UPDATE jobs SET requeues = requeues + 1 WHERE template_id = ? AND state = 'queued'", (template_id,)
            )
        return self.look("template_id = ? AND state = 'queued'", (template_id,))

    @again_if_repaired
    def ask_to_stop(self, names: Sequence[str]) -> dict[str, JobRow]:
        """Mark jobs as unwanted, and return those that run: one that waits is taken out at once."""
        with self.change() as db:
            db.executemany("UPDATE jobs SET stop = 1 WHERE job_id = ?", [(name,) for name in names])
            db.executemany("DELETE FROM jobs WHERE job_id = ? AND state = 'queued'", [(name,) for name in names])
        return self.jobs(names)

    @again_if_repaired
    def forget(self, names: Sequence[str]) -> None:
        """Drop rows."""
        with self.change() as db:
            db.executemany("DELETE FROM jobs WHERE job_id = ?", [(name,) for name in names])

    @again_if_repaired
    def forget_supervisor(self, supervisor: str) -> None:
        """Drop a supervisor."""
        with self.change() as db:
            db.execute("DELETE FROM supervisors WHERE supervisor = ?", (supervisor,))

    def close(self) -> None:
        """Close the database until it is used again; in a forked child, leave it to the parent."""
        with self._lock:
            if self._db is not None and self._pid == os.getpid():
                self._db.close()
                self._db = None

    def _read(self, question: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            return self._patiently(lambda: self._mine().execute(question, values).fetchall())

    def _patiently(self, do: Callable[[], T]) -> T:
        """Do something with the database; once more if it turns out to be damaged, and has been repaired."""
        try:
            return _patiently(self._path, do)
        except sqlite3.Error as error:
            if not self._repair_after(error):
                raise _unusable(self._path, str(error)) from error
        try:
            return _patiently(self._path, do)
        except sqlite3.Error as error:
            raise _unusable(self._path, str(error)) from error

    def _repair_after(self, error: sqlite3.Error) -> bool:
        """Set a damaged database aside, unless somebody did so already; say whether it was damaged."""
        if not _is_damage(error):
            return False
        damaged = self._file
        self.close()
        with _gate(self._path):
            if _file_of(self._path) == damaged:
                set_aside(self._path)
        return True

    def _mine(self) -> sqlite3.Connection:
        if self._pid != os.getpid():  # after a fork: a connection must not cross it
            _left_alone.append(self._db)  # nor be closed by the child
            self._db, self._pid = None, os.getpid()
        if self._db is not None and _file_of(self._path) != self._file:
            self.close()  # it was set aside, or removed
        if self._db is None:
            self._db, self._file = _connect(self._path)
        return self._db


def _patiently(path: Path, do: Callable[[], T], *, clock: Callable[[], float] = time.monotonic) -> T:
    """Do something with a database, and again while somebody else holds its lock.

    Raises:
        sqlite3.Error: It failed for another reason, or somebody held it for an hour.
    """
    begun, is_said = clock(), False
    while True:
        try:
            return do()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or clock() > begun + attempts.HOUR:
                raise
        time.sleep(0.005)  # some locks are not waited for by SQLite itself
        holder = release_stopped_holder(path)
        if holder and not is_said and clock() > begun + _SAY_SECONDS:
            is_said = True
            report_lock_holder(path, holder)


_left_alone: list[sqlite3.Connection | None] = []


def _register(db: sqlite3.Connection, supervisor: str, template_id: str, state: str) -> None:
    """Note what a supervisor does; a queue that was rebuilt does not know it yet."""
    done = db.execute(
        "UPDATE supervisors SET state = ?, pid = ? WHERE supervisor = ?", (state, os.getpid(), supervisor)
    )
    if not done.rowcount:
        db.execute(NEW_SUPERVISOR, (supervisor, template_id, state, os.getpid(), time.time()))


def startable(db: sqlite3.Connection, limits: Limits) -> list[JobRow]:
    """Return the queued rows that may start now, oldest first, with the devices that each would get.

    Each row by the limits of its own client, strictly in order within its class: a small job does not overtake a large
    one, nor a job with many slots one that wants to run alone. A GPU job that has to wait holds back the devices that
    it may use, and no others.

    Args:
        db: The queue.
        limits: For rows that name none.
    """
    busy = db.execute("SELECT count(*) FROM jobs WHERE state IN ('claimed', 'running') AND gpus = 0").fetchone()[0]
    found: list[JobRow] = []
    with contextlib.closing(db.execute(f"{_QUEUED} AND gpus = 0 ORDER BY seq")) as waiting:
        for row in map(JobRow._make, waiting):
            if busy + len(found) >= row.limits(limits).slots:
                break
            found.append(row)
    return sorted([*found, *_startable_on_gpus(db, limits)])


def _startable_on_gpus(db: sqlite3.Connection, limits: Limits) -> Iterator[JobRow]:
    sets = [devices for (devices,) in db.execute(f"{_DEVICE_SETS} state = 'queued' AND gpus > 0")]
    if not sets:
        return
    named = {device for devices in sets for device in _words(devices)} | set(limits.gpus)
    taken = {device for (devices,) in db.execute(_HELD) for device in _words(devices)}
    with contextlib.closing(db.execute(f"{_QUEUED} AND gpus > 0 ORDER BY seq")) as waiting:
        for row in map(JobRow._make, waiting):
            if named <= taken:
                break
            allowed = row.limits(limits).gpus
            free = [device for device in allowed if device not in taken]
            if len(free) >= row.gpus:
                taken.update(free[: row.gpus])
                yield row._replace(devices=",".join(free[: row.gpus]))
            else:
                taken.update(allowed)


def _words(devices: str) -> tuple[str, ...]:
    return tuple(devices.split(",")) if devices else ()


@contextmanager
def _gate(path: Path) -> Iterator[None]:
    """Let one process at a time open, make or set aside the database.

    SQLite opens the files beside a database by their names, after the database itself. So nobody may be between the
    two while a database is renamed, or what is left beside it would be taken for a part of the new one.
    """
    lock, begun = path.with_suffix(".lock"), time.monotonic()
    pause = 0.001
    while (held := liveness.take_lock(lock)) is None:
        if time.monotonic() > begun + attempts.HOUR:
            raise _unusable(path, f"{lock} is held by another process")
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
        if time.monotonic() > begun + _TURN_SECONDS:
            release_stopped_holder(lock)
    try:
        yield
    finally:
        held.release()


def _connect(path: Path) -> tuple[sqlite3.Connection, tuple[int, int]]:
    """Open the database, made if need be, and return with it which file that is."""
    try:
        with _gate(path):
            return _opened(path)
    except (OSError, sqlite3.Error) as error:
        raise _unusable(path, str(error)) from error


def _opened(path: Path) -> tuple[sqlite3.Connection, tuple[int, int]]:
    """Open the database; one that is damaged is set aside first."""
    while True:
        db = _made(path)
        try:
            version = _patiently(path, functools.partial(_prepared, db, path))
        except sqlite3.Error as error:
            db.close()
            if not _is_damage(error):
                raise
            set_aside(path)
            continue
        except BaseException:
            db.close()
            raise
        if version > _SCHEMA:
            db.close()
            why = f"a newer kinetic wrote it: version {version}, this one knows {_SCHEMA}"
            raise _unusable(path, why, next="pip install --upgrade kinetic-jobs")
        show_repair_note(path)
        return db, _file_of(path)


def _made(path: Path) -> sqlite3.Connection:
    if not path.exists():
        for beside in sqlite_files(path):  # of a database that is gone: they would be taken for parts of ours
            beside.unlink(missing_ok=True)
        # Made by us: what lies beside it takes on its rights.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, folders.PRIVATE_FILE))
        folders.sync(path.parent)  # SQLite does so for its journal only
    return sqlite3.connect(path, timeout=_TURN_SECONDS, isolation_level=None, check_same_thread=False)


def _is_damage(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _file_of(path: Path) -> tuple[int, int]:
    """Return which file has this name; (0, 0) if none has."""
    try:
        about = os.stat(path)
    except OSError:
        return 0, 0
    return about.st_dev, about.st_ino


def _prepared(db: sqlite3.Connection, path: Path) -> int:
    """Make the tables if need be, and return the version of what is there."""
    db.execute("PRAGMA synchronous = FULL")  # 0.1 ms: a reboot must not forget what was submitted
    if (version := _version(db)) == 0:
        _create(db, path)
        version = _SCHEMA
    if version == _SCHEMA:
        _add_columns(db)
    return version


def _add_columns(db: sqlite3.Connection) -> None:
    """Give the queue of an older kinetic the columns that it lacks."""
    if not _missing_columns(db):
        return
    db.execute("BEGIN IMMEDIATE")
    for name in _missing_columns(db):  # of several that open it at once, one is first
        db.execute(f"ALTER TABLE jobs ADD COLUMN {name} {_ADDED[name]}")
    db.execute("COMMIT")


def _missing_columns(db: sqlite3.Connection) -> list[str]:
    there = {column[1] for column in db.execute("PRAGMA table_info(jobs)")}
    return [name for name in _ADDED if name not in there]


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _create(db: sqlite3.Connection, path: Path) -> None:
    """Make the tables, and put into them what is durable of an earlier queue in the same place."""
    db.execute(f"PRAGMA journal_mode = {'WAL' if _takes_wal(path) else 'DELETE'}")
    db.execute("BEGIN IMMEDIATE")
    try:
        added = "".join(f",\n    {name} {kind}" for name, kind in _ADDED.items())
        for statement in _TABLES.replace("{added}", added).split(";"):
            db.execute(statement)
        for row, template in (rebuilt := rebuilt_rows(path)):
            db.execute(NEW_TEMPLATE, (row["template_id"], template))
            marks = ", ".join("?" * len(row))
            db.execute(f"INSERT OR IGNORE INTO jobs ({', '.join(row)}) VALUES ({marks})", [*row.values()])  # noqa: S608
        if rebuilt:
            leave_repair_note(path, rebuilt)
        db.execute(f"PRAGMA user_version = {_SCHEMA}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _takes_wal(path: Path) -> bool:
    """Say whether the file system of a new queue has what WAL needs: memory that processes share through a file.

    Tried out beside the queue, because SQLite marks a database as WAL first, and only then finds that it cannot map the
    memory: from there on every statement fails, the one that would lead back included.
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
        for end in ("", "-wal", "-shm", "-journal"):
            Path(beside + end).unlink(missing_ok=True)


def _unusable(
    path: Path,
    why: str,
    *,
    next: str = "",  # noqa: A002 - as errors name it
    kind: type[BackendUnavailableError] = BackendUnavailableError,
) -> BackendUnavailableError:
    room = "free some space there, or " if "full" in why else ""
    return kind(
        "the queue of this machine cannot be used",
        why=f"{path}: {why}",
        next=next or f"{room}point KINETIC_RUNTIME_DIR at a folder on a local disk",
    )

"""The queue of this machine: a pending job is a row of a SQLite database, not a process.

Rows go queued -> claimed -> running -> ended; that of a job that follows others is waiting before. Every change is one
BEGIN IMMEDIATE transaction, so all processes see one order. "cpu" jobs share the slots and "gpu" jobs the devices, each
first in, first out. The client that submits a job writes its slots and devices into the row, so that they never depend
on who starts the job.

How its database is opened, locked and repaired: ``queue_connection.py``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kinetic._backends.local import runtime_files
from kinetic._backends.local.queue_connection import QueueConnection, again_if_repaired
from kinetic._wire import NamedTuple, folders

if TYPE_CHECKING:
    from pathlib import Path

    from kinetic._backends.local.gpu_locks import GpuLocks
    from kinetic._backends.local.limits import Limits

_TRIES, _PAUSE_SECONDS = 100, 0.001  # to take the locks of GPUs that were free a moment ago
VERDICTS = ("succeeded", "failed", "ended")  # of rows; any other text is why no store has a verdict


class JobRow(NamedTuple):
    """One job as the queue knows it."""

    seq: int
    job_id: str
    group_id: str
    template_id: str  # the kind of supervisor that it needs; see ``scheduler.make_template``
    gpus: int  # how many devices it needs; 0 for a "cpu" job
    slots: int  # a "cpu" job starts while fewer than this many of them run
    allowed: str  # a "gpu" job gets some of these devices, separated by commas
    state: str
    supervisor: str | None
    devices: str
    attempt: int
    requeues: int
    stop: int
    submitted: float
    started: float | None
    ended: float | None
    verdict: str

    @property
    def limits(self) -> Limits:
        from kinetic._backends.local.limits import Limits  # not for a row that has ended

        return Limits(self.slots, split_devices(self.allowed))


class GroupRow(NamedTuple):
    """What an observation of thousands needs of one job of a batch."""

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


# Columns by name, never "*": a newer kinetic may add some, and older clients and supervisors still work beside it.
_JOBS = f"SELECT {', '.join(JobRow._fields)} FROM jobs"
_GROUP = (
    f"SELECT {', '.join(GroupRow._fields)} FROM jobs WHERE group_id = ?"
    " AND state IN ('waiting', 'queued', 'claimed', 'running')"
)
_SUPERVISORS = f"SELECT {', '.join(SupervisorRow._fields)} FROM supervisors"
_QUEUED = f"{_JOBS} WHERE state = 'queued'"
ACTIVE = "state IN ('claimed', 'running')"
_SET_SUPERVISOR = (
    f"INSERT INTO supervisors ({', '.join(SupervisorRow._fields)}) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (supervisor) DO UPDATE SET state = excluded.state, pid = excluded.pid"
)
# What a waiting job still waits for and of which no row is in work: whether it succeeded, the store knows.
_TO_LOOK_AT = """
SELECT job_id, predecessor FROM predecessors AS wanted WHERE job_id IN (SELECT job_id FROM jobs WHERE state = 'waiting')
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE job_id = wanted.predecessor AND state != 'ended')
    AND NOT EXISTS (
        SELECT 1 FROM jobs WHERE group_id = wanted.predecessor AND state IN ('waiting', 'queued', 'claimed', 'running'))
"""
_HOLDS_A_SLOT = (
    f"SELECT count(*) FROM jobs WHERE {ACTIVE} AND gpus = 0 AND NOT EXISTS (SELECT 1 FROM lent_slots"
    " WHERE lent_slots.job_id = jobs.job_id AND lent_slots.attempt = jobs.attempt)"
)
_TAKEN = f"SELECT devices FROM jobs WHERE {ACTIVE} AND devices != ''"
_NEW_TEMPLATE = "INSERT OR IGNORE INTO templates (template_id, template) VALUES (?, ?)"


class Queue(QueueConnection):
    """The rows of one machine, for any thread of one process."""

    def __init__(self, path: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._runners = runtime_files.Paths(path.parent).runners
        self._environ = environ
        self._gpu_locks: GpuLocks | None = None
        self._used_gpus: dict[str, int] = {}  # GiB of memory, read for one claim
        self._blocked: set[str] = set()  # kinds of supervisors for which other users' jobs had too many GPUs just now
        super().__init__(path)

    def gpu_locks(self) -> GpuLocks:
        """Return what the queue cannot know: which GPUs other users' jobs have."""
        if self._gpu_locks is None:
            from kinetic._backends.local import gpu_locks  # only for jobs on GPUs

            self._gpu_locks = gpu_locks.GpuLocks(gpu_locks.folder_of(self._environ))
        return self._gpu_locks

    def waits_for_others(self, template_id: str) -> bool:
        """Return whether the last look found a job of a kind that waits for GPUs of other users."""
        return template_id in self._blocked

    def gpus_of_others(self, row: JobRow) -> dict[str, str]:
        """Return who has GPUs that a queued job may use, by their names, where no job of this queue has them."""
        taken = self.ask(lambda db: _devices_in(db, _TAKEN))
        locks, wanted = self.gpu_locks(), [device for device in row.limits.gpus if device not in taken]
        return {device: locks.holder(device) for device in sorted(locks.are_elsewhere(wanted))}

    def keep_gpus(self) -> None:
        """Keep the GPUs of a job that runs from other users, whose logout may remove files of locks."""
        if self._gpu_locks is not None:
            self._gpu_locks.keep()

    def free_gpus(self) -> None:
        """Let other users have the GPUs of a job whose processes have ended."""
        if self._gpu_locks is not None:
            self._gpu_locks.release()

    def _startable(self, db: sqlite3.Connection) -> list[JobRow]:
        """Return the queued rows that may start now, oldest first, with the devices that each would get.

        Strictly in order within each class: a small job does not overtake a large one, nor a job with many slots one
        that wants to run alone. A GPU job that has to wait holds back the devices that it may use, and no others. What
        waits for a Python or a home that is gone holds back nothing, and a supervisor that still runs lacks its
        packages, too. Of another home, of which this one is a copy, nothing is started: there it starts as well.
        """
        self._blocked.clear()
        busy = db.execute(_HOLDS_A_SLOT).fetchone()[0]
        found: list[JobRow] = []
        with contextlib.closing(_queued(db, "gpus = 0", self._runners)) as waiting:
            for row in waiting:
                if busy + len(found) >= row.slots:
                    break
                found.append(row)
        return sorted([*found, *self._startable_on_gpus(db)])

    def _startable_on_gpus(self, db: sqlite3.Connection) -> Iterator[JobRow]:
        named = _devices_in(db, "SELECT DISTINCT allowed FROM jobs WHERE state = 'queued' AND gpus > 0")
        if not named:
            return
        taken = _devices_in(db, _TAKEN)
        with contextlib.closing(_queued(db, "gpus > 0", self._runners)) as waiting:
            for row in waiting:
                if named <= taken:
                    break
                allowed = row.limits.gpus
                free = [device for device in allowed if device not in taken]
                elsewhere = self.gpu_locks().are_elsewhere(free)
                free = [device for device in free if device not in elsewhere]
                if len(free) >= row.gpus:
                    chosen = set(sorted(free, key=lambda device: self._used_gpus.get(device, 0))[: row.gpus])
                    taken.update(chosen)
                    yield row._replace(devices=",".join(filter(chosen.__contains__, free)))
                else:
                    taken.update(allowed)
                    self._blocked.update({row.template_id} if elsewhere else ())

    @again_if_repaired
    def _change_rows(self, statement: str, *values: object, forced: bool = True) -> bool:
        """Run one statement in a transaction; return whether it changed a row."""
        with self.change(forced=forced) as db:
            return db.execute(statement, values).rowcount > 0

    def rows(self, where: str = "1", values: Sequence[Any] = ()) -> list[JobRow]:
        return [JobRow(*row) for row in self.read(f"{_JOBS} WHERE {where} ORDER BY seq", values)]

    def jobs(self, names: Sequence[str]) -> dict[str, JobRow]:
        found: dict[str, JobRow] = {}
        for start in range(0, len(names), 500):  # SQLite takes a limited number of values
            part = names[start : start + 500]
            marks = ",".join("?" * len(part))
            found.update((row.job_id, row) for row in self.rows(f"job_id IN ({marks})", part))
        return found

    def places(self) -> dict[str, tuple[float, int]]:
        """Return when each job was submitted (Unix time), and its number in the queue, which no clock changes."""
        return {name: (when, number) for name, when, number in self.read("SELECT job_id, submitted, seq FROM jobs")}

    def is_busy(self) -> bool:
        """Return whether a job waits or runs."""
        question = "SELECT 1 FROM jobs WHERE state IN ('waiting', 'queued', 'claimed', 'running') LIMIT 1"
        return bool(self.read(question))

    def is_queued(self, template_id: str) -> bool:
        """Return whether a job waits for a supervisor of some kind."""
        return bool(self.read("SELECT 1 FROM jobs WHERE state = 'queued' AND template_id = ? LIMIT 1", [template_id]))

    def followers(self) -> dict[str, list[str]]:
        """Return the waiting jobs of which something may have ended that they wait for, and what that is."""
        if not self.read("SELECT 1 FROM jobs WHERE state = 'waiting' LIMIT 1"):
            return {}
        found: dict[str, list[str]] = {}
        for job_id, predecessor in self.read(_TO_LOOK_AT):
            found.setdefault(job_id, []).append(predecessor)
        return found

    def waits_for(self, job_id: str) -> list[str]:
        """Return what a waiting job still waits for."""
        return [name for (name,) in self.read("SELECT predecessor FROM predecessors WHERE job_id = ?", (job_id,))]

    @again_if_repaired
    def note_successes(self, job_id: str, predecessors: Sequence[str]) -> None:
        """Note which predecessors of a waiting job have succeeded; after the last one, it may start."""
        with self.change() as db:
            pairs = [(job_id, name) for name in predecessors]
            db.executemany("DELETE FROM predecessors WHERE job_id = ? AND predecessor = ?", pairs)
            db.execute(
                "UPDATE jobs SET state = 'queued' WHERE job_id = ? AND state = 'waiting'"
                " AND NOT EXISTS (SELECT 1 FROM predecessors WHERE predecessors.job_id = jobs.job_id)",
                (job_id,),
            )

    def group_rows(self, group: str) -> list[GroupRow]:
        """Return the jobs of a batch that have not ended."""
        return [GroupRow(*row) for row in self.read(_GROUP, (group,))]

    def next_to_end(self, group: str, limit: int) -> list[str]:
        """Name at most so many jobs of a batch: those that run, and then those that are next."""
        question = "SELECT job_id FROM jobs WHERE group_id = ? AND {} ORDER BY seq LIMIT ?"
        running = self.read(question.format(ACTIVE), (group, limit))
        queued = self.read(question.format("state = 'queued'"), (group, max(0, limit - len(running))))
        return [name for (name,) in (*running, *queued)]

    def count_before(self, row: JobRow) -> int:
        """Count the queued jobs that start before another one: those of its class, and for the same devices."""
        kind = "gpus > 0" if row.gpus else "gpus = 0"
        question = f"SELECT allowed, count(*) FROM jobs WHERE state = 'queued' AND seq < ? AND {kind} GROUP BY allowed"
        own = set(row.limits.gpus)
        counts = self.read(question, (row.seq,))
        return sum(count for allowed, count in counts if not row.gpus or own & set(split_devices(allowed)))

    def may_start(self, row: JobRow) -> bool:
        """Return whether a supervisor that claims a job now could get this one."""
        return any(other.seq == row.seq for other in self.ask(self._startable))

    def supervisors(self) -> list[SupervisorRow]:
        return [SupervisorRow(*row) for row in self.read(f"{_SUPERVISORS} ORDER BY since")]

    def template(self, template_id: str) -> dict[str, Any]:
        import json  # 2 ms, as everywhere here; not to list jobs

        found = self.read("SELECT template FROM templates WHERE template_id = ?", (template_id,))
        return dict(json.loads(found[0][0])) if found else {}

    def missing_python(self, template_id: str) -> str:
        """Return what a template needs and is gone or not of this home, as after a move or in a copy; else ""."""
        found = self.read("SELECT template FROM templates WHERE template_id = ?", (template_id,))
        return _missing_python(found[0][0], self._runners) if found else ""

    def templates_in_use(self) -> list[str]:
        """Return the templates that a supervisor or a job that has not ended needs, as JSON."""
        question = (
            "SELECT template FROM templates WHERE template_id IN (SELECT template_id FROM jobs WHERE state != 'ended')"
            " OR template_id IN (SELECT template_id FROM supervisors)"
        )
        return [template for (template,) in self.read(question)]

    def add_template(self, template_id: str, template: str) -> None:
        self._change_rows(_NEW_TEMPLATE, template_id, template, forced=False)

    @again_if_repaired
    def add(
        self,
        jobs: Sequence[tuple[str, str, int]],
        template_id: str,
        template: str,
        limits: Limits,
        after: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Append jobs (job id, group id, GPUs) with the limits of their client; one that is there stays as it is.

        ``after``: for those that wait for jobs or batches, which.
        """
        now, devices, after = time.time(), ",".join(limits.gpus), after or {}
        with self.change() as db:
            db.execute(_NEW_TEMPLATE, (template_id, template))
            db.executemany(
                "INSERT OR IGNORE INTO jobs (job_id, group_id, template_id, gpus, state, submitted, slots, allowed)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        *(job_id, group, template_id, gpus),
                        *("waiting" if after.get(job_id) else "queued", now, limits.slots, devices if gpus else ""),
                    )
                    for job_id, group, gpus in jobs
                ],
            )
            db.executemany(
                "INSERT OR IGNORE INTO predecessors (job_id, predecessor)"
                " SELECT job_id, ? FROM jobs WHERE job_id = ? AND state = 'waiting'",
                [(name, job_id) for job_id, names in after.items() for name in names],
            )

    @again_if_repaired
    def plan(self, ready: str, slots: int) -> tuple[list[str], list[tuple[str, str]]]:
        """Decide which supervisors to wake and which to start, so that two callers never start the same one twice.

        Args:
            ready: A template of which a supervisor should be starting even if no job is queued; "" for none.
            slots: Only if fewer supervisors than this are at work.

        Returns:
            Supervisors to wake, and pairs of a new supervisor and its template, which are noted as starting.
        """
        wake: list[str] = []
        start: list[tuple[str, str]] = []
        with self.change(forced=False) as db:
            known = [SupervisorRow(*row) for row in db.execute(_SUPERVISORS)]
            working = {name for (name,) in db.execute(f"SELECT supervisor FROM jobs WHERE {ACTIVE}")}
            wanted = Counter(row.template_id for row in self._startable(db))
            wanted.update(self._blocked)  # one more of each waits until another user's job has ended
            if ready and not wanted[ready] and sum(each.state != "idle" for each in known) < slots:
                wanted[ready] = 1
            for template_id, count in wanted.items():
                same = [each for each in known if each.template_id == template_id]
                idle = [each.supervisor for each in same if each.state == "idle"]
                # These claim a job by themselves in a moment: they are starting, or have just ended one.
                coming = sum(
                    each.state == "starting" or (each.state == "busy" and each.supervisor not in working)
                    for each in same
                )
                wake += idle[:count]
                start += [(os.urandom(6).hex(), template_id) for _ in range(count - len(idle) - coming)]
            db.executemany(_SET_SUPERVISOR, [(*each, "starting", 0, time.time()) for each in start])
        return wake, start

    @again_if_repaired
    def claim(self, supervisor: str, template_id: str) -> JobRow | None:
        """Give the oldest job that may start now to a supervisor of its kind.

        Of the GPUs that are free, it gets those of which programs without kinetic use least memory.
        """
        self.free_gpus()
        self._used_gpus.clear()
        is_known = False
        while True:
            with self.change(forced=False) as db:
                row = self._next(db, template_id)
                if row is None or is_known or not 0 < row.gpus < len(row.limits.gpus):
                    return self._claimed(db, self._with_locks(db, row), supervisor, template_id)
            self._used_gpus.update(_used_gpus(row.limits.gpus))  # the driver may take its time: others submit meanwhile
            is_known = True

    def _next(self, db: sqlite3.Connection, template_id: str) -> JobRow | None:
        return next((row for row in self._startable(db) if row.template_id == template_id), None)

    def _with_locks(self, db: sqlite3.Connection, row: JobRow | None) -> JobRow | None:
        """Return a job with the locks of its GPUs; of others, if other users have these by now; None without any."""
        for _ in range(_TRIES):
            if row is None or not row.devices or self.gpu_locks().take(split_devices(row.devices)):
                return row
            time.sleep(_PAUSE_SECONDS)  # another process has it, or looks at it just now
            template_id, row = row.template_id, self._next(db, row.template_id)
        self._blocked.add(template_id)  # a process that looked at a lock was stopped before it let it go
        return None

    @staticmethod
    def _claimed(db: sqlite3.Connection, row: JobRow | None, supervisor: str, template_id: str) -> JobRow | None:
        if row is not None:
            db.execute(
                "UPDATE jobs SET state = 'claimed', supervisor = ?, devices = ?, started = ? WHERE seq = ?",
                (supervisor, row.devices, time.time(), row.seq),
            )
        # A queue that was rebuilt does not know the supervisor, and one that expects it does not know its process.
        state = "busy" if row is not None else "idle"
        db.execute(_SET_SUPERVISOR, (supervisor, template_id, state, os.getpid(), time.time()))
        return row._replace(state="claimed", supervisor=supervisor) if row is not None else None

    def register(self, supervisor: str, template_id: str) -> None:
        self._change_rows(_SET_SUPERVISOR, supervisor, template_id, "idle", os.getpid(), time.time(), forced=False)

    def leave(self, supervisor: str, template_id: str, *, at_once: bool) -> bool:
        """Remove a supervisor; return False, and do nothing, if a job of its kind is queued, unless it ends at once."""
        waiting = "SELECT 1 FROM jobs WHERE state = 'queued' AND template_id = ?"
        delete = f"DELETE FROM supervisors WHERE supervisor = ? AND (? OR NOT EXISTS ({waiting}))"
        return self._change_rows(delete, supervisor, at_once, template_id, forced=False) or at_once

    def running(self, job_id: str, supervisor: str, attempt: int) -> bool:
        """Note that the worker is about to start; False when the job was taken away or stopped meanwhile.

        This is on the disk before the function begins: after a power cut it must not begin a second time.
        """
        update = (
            "UPDATE jobs SET state = 'running', attempt = ?, started = ?, verdict = ''"
            " WHERE job_id = ? AND supervisor = ? AND stop = 0"
        )
        return self._change_rows(update, attempt, time.time(), job_id, supervisor)

    def end(self, job_id: str, verdict: str) -> bool:
        """Note that a job has its verdict; False when the row is gone, because the job was removed.

        Args:
            job_id: The job.
            verdict: "succeeded" or "failed", "ended" where only the store knows, or the reason of a failure that could
                not be written to a store.
        """
        update = "UPDATE jobs SET state = 'ended', ended = ?, verdict = ?, supervisor = NULL WHERE job_id = ?"
        is_stored = verdict in VERDICTS  # then the outcome is on the disk, and a row that still runs is settled by it
        return self._change_rows(update, time.time(), verdict, job_id, forced=not is_stored)

    def note(self, job_id: str, waits_for: str, *, state: str = "running") -> None:
        """Write down what a job waits for whose function has returned, or that a supervisor has claimed."""
        update = "UPDATE jobs SET verdict = ? WHERE job_id = ? AND state = ?"
        self._change_rows(update, waits_for, job_id, state, forced=False)

    def lend_slot(self, job_id: str, attempt: int) -> None:
        """Let another job have the slot of one that waits for jobs; until its end, or ``take_slot_back``."""
        self._change_rows("INSERT OR REPLACE INTO lent_slots VALUES (?, ?)", job_id, attempt, forced=False)

    def has_lent(self, job_id: str, attempt: int) -> bool:
        return bool(self.read("SELECT 1 FROM lent_slots WHERE job_id = ? AND attempt = ?", (job_id, attempt)))

    def take_slot_back(self, job_id: str) -> None:
        """Count a job again; for a moment, there may be one more than there are slots."""
        self._change_rows("DELETE FROM lent_slots WHERE job_id = ?", job_id, forced=False)

    @again_if_repaired
    def requeue(self, job_id: str, supervisor: str, *, counted: bool = True) -> None:
        """Put a job back to its old place: its function never started, which is counted, or it has retries left."""
        update = (
            "UPDATE jobs SET state = 'queued', supervisor = NULL, devices = '', started = NULL, verdict = '',"
            f" requeues = requeues + ? WHERE job_id = ? AND supervisor = ? AND {ACTIVE}"
        )
        with self.change() as db:
            if db.execute(update, (int(counted), job_id, supervisor)).rowcount:
                db.execute("DELETE FROM lent_slots WHERE job_id = ?", (job_id,))  # it has the same number until it runs

    def count_failed_start(self, template_id: str) -> list[JobRow]:
        """Count, for every queued job of a template, that its supervisor did not start; return these jobs."""
        mine = "template_id = ? AND state = 'queued'"
        self._change_rows(f"UPDATE jobs SET requeues = requeues + 1 WHERE {mine}", template_id)
        return self.rows(mine, (template_id,))

    @again_if_repaired
    def ask_to_stop(self, names: Sequence[str]) -> dict[str, JobRow]:
        """Mark jobs to be stopped, and return those that run; one that has not started is removed at once."""
        pending = "DELETE FROM jobs WHERE job_id = ? AND state IN ('waiting', 'queued')"
        with self.change() as db:
            db.executemany("UPDATE jobs SET stop = 1 WHERE job_id = ?", [(name,) for name in names])
            db.executemany(pending, [(name,) for name in names])
            db.executemany("DELETE FROM predecessors WHERE job_id = ?", [(name,) for name in names])
        return self.jobs(names)

    @again_if_repaired
    def forget(self, names: Sequence[str]) -> None:
        with self.change() as db:
            for table in ("jobs", "predecessors", "lent_slots"):
                db.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(name,) for name in names])

    def forget_supervisor(self, supervisor: str) -> None:
        self._change_rows("DELETE FROM supervisors WHERE supervisor = ?", supervisor, forced=False)


def split_devices(devices: str) -> tuple[str, ...]:
    return tuple(filter(None, devices.split(",")))


def _queued(db: sqlite3.Connection, which: str, runners: Path) -> Generator[JobRow, None, None]:
    has_python = dict[str, bool]()
    with contextlib.closing(db.execute(f"{_QUEUED} AND {which} ORDER BY seq")) as rows:
        for row in map(JobRow._make, rows):
            name = row.template_id
            if name not in has_python:
                found = db.execute("SELECT template FROM templates WHERE template_id = ?", (name,)).fetchone()
                has_python[name] = not found or not _missing_python(found[0], runners)
            if has_python[name]:
                yield row


def _missing_python(template: str, runners: Path) -> str:
    theirs, *files = _files_of(template)
    if os.path.isabs(theirs) and theirs != str(runners) and folders.file_id(theirs) != folders.file_id(runners):
        return theirs
    return next((path for path in files if os.path.isabs(path) and not os.path.exists(path)), "")


@functools.lru_cache(64)
def _files_of(template: str) -> list[str]:
    """Return the folder of runners of a template's home, its Python, and what must be there besides."""
    import json  # as above

    found = json.loads(template)
    words = found.get("arguments", ())
    runners = os.path.dirname(os.path.dirname(words[-1])) if len(words) > 1 else ""
    return [runners, *map(str, [*words[:1], *found.get("needs", ())])]


def _used_gpus(gpus: Sequence[str]) -> dict[str, int]:
    from kinetic._runner.supervisor import device_metrics  # with ctypes; only where a job has a choice of GPUs

    return {gpu: used >> 30 for gpu, used in device_metrics.used_bytes(gpus).items()}  # GiB: an idle one has some MiB


def _devices_in(db: sqlite3.Connection, question: str) -> set[str]:
    return {device for (devices,) in db.execute(question) for device in split_devices(devices)}

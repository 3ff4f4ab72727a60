"""How far a running job is, and whether it seems to hang: it prints nothing, computes nothing and reports nothing.

Both are in what its supervisor measures. A hang is mentioned once by each process that follows a job, by the clock of
the machine that measured: clocks of different machines need not agree.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kinetic._jobs import locate
from kinetic._output import terminal as output
from kinetic._output.format import duration_text, plain
from kinetic._wire import keys
from kinetic._wire.fields import seconds_of
from kinetic.errors import KineticError, OptionError

if TYPE_CHECKING:
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.measurements import Measurements
    from kinetic._wire.progress import Progress
    from kinetic._wire.records import JobRecord

STALL_VARIABLE = "KINETIC_STALL_AFTER"
_STALL_SECONDS = 600.0
_MOST_ASKED = 30  # running jobs of clusters in one list: two requests each
_LOOK_SECONDS = {True: 10.0, False: 60.0}  # between two looks of a follower, on this machine and elsewhere: a request


def progress_of(job: JobRecord) -> Progress | None:
    """Return what the code of a job reported last of its progress; of several hosts, the first that did."""
    from kinetic._jobs import resource_usage  # only where somebody asks

    return progress_from(job, *resource_usage.measurements_of(job))


def progress_from(job: JobRecord, attempt: int, measured: Sequence[Measurements]) -> Progress | None:
    """Return the same from what was read already."""
    return live_progress_of(job, attempt) or next(
        (each.progress for each in measured if each.progress is not None), None
    )


def progress_of_many(jobs: Sequence[JobRecord]) -> dict[str, Progress]:
    """Return what running jobs reported, by id, of those that did; of jobs elsewhere, at most some are asked."""
    here = {job.job_id: job for job in jobs if locate.is_here(job)}
    elsewhere = [job for job in jobs if job.job_id not in here]
    rows = locate.local().queue.jobs([*here]) if here else {}
    reported = ((job_id, live_progress_of(here[job_id], row.attempt)) for job_id, row in rows.items())
    found = {job_id: each for job_id, each in reported if each is not None}
    if not elsewhere:
        return found
    from kinetic._stores import parallel

    def ask(job: JobRecord) -> tuple[str, Progress | None]:
        with contextlib.suppress(KineticError, OSError):
            return job.job_id, progress_of(job)
        return job.job_id, None

    asked = elsewhere[:_MOST_ASKED]
    tasks = [functools.partial(ask, job) for job in asked]
    answers = parallel.in_shares(tasks, most=len(tasks))
    return found | {job_id: each for job_id, each in answers if each is not None}


def live_progress_of(job: JobRecord, attempt: int) -> Progress | None:
    """Return the same of a job that runs here, by its file alone; None of any other."""
    with contextlib.suppress(KineticError, OSError):
        for host in range(locate.hosts_of(job)) if locate.is_here(job) else ():
            if (found := locate.backend_of(job).live_progress(job.job_id, host=host, attempt=attempt)) is not None:
                return found
    return None


def progress_text(found: Progress, now: float | None = None, *, is_final: bool = False) -> str:
    """Write progress in a sentence: "40 of 100, loss 0.31, about 12 s left"; none is left once it has ended."""
    parts = [f"{_number_text(found.done)} of {_number_text(found.total)}" if found.total else _number_text(found.done)]
    parts += [f"{plain(name)} {_number_text(value)}" for name, value in found.metrics.items()]
    left = None if is_final else found.seconds_left(now)
    return ", ".join([*parts, *([f"about {duration_text(left)} left"] if left is not None and left >= 1 else [])])


def _number_text(value: float | None) -> str:
    if value is None:
        return "not finite"
    return f"{value:.0f}" if value == math.floor(value) and abs(value) < 1e15 else f"{value:.4g}"


def progress_page(
    found: Progress | None, now: float | None = None, *, is_final: bool = False
) -> dict[str, object] | None:
    """Return progress for JSON."""
    if found is None:
        return None
    left, share = None if is_final else found.seconds_left(now), found.share
    return {
        "done": found.done,
        "total": found.total,
        "share": round(share, 6) if share is not None else None,
        "metrics": dict(found.metrics),
        "reported_at": keys.format_utc(found.at),
        "seconds_left": round(left, 1) if left is not None else None,
        "told": progress_text(found, now, is_final=is_final),
    }


def stall_seconds(environ: Mapping[str, str]) -> float:
    """Return after how many idle seconds a job seems to hang; infinity for never.

    Raises:
        OptionError: The variable holds something else.
    """
    text = environ.get(STALL_VARIABLE, "").strip()
    if not text:
        return _STALL_SECONDS
    found = seconds_of(text)
    if found is None:
        raise OptionError(
            f"{STALL_VARIABLE}={plain(text)!r} is not a valid duration",
            why="it is a number of seconds, or for example 10m or 2h; 0 for never",
            next=f"export {STALL_VARIABLE}=10m",
        )
    return found[0] or math.inf


def stall_of(job: JobRecord, environ: Mapping[str, str]) -> str:
    """Return a sentence about a running job that seems to hang, or ""."""
    from kinetic._jobs import resource_usage  # as above

    return stall_text(resource_usage.measurements_of(job)[1], environ)


def stall_text(measured: list[Measurements], environ: Mapping[str, str]) -> str:
    """Return the same from what was read already: how long no host had done anything when it was measured last."""
    limit, idle = stall_seconds(environ), min((each.idle_seconds for each in measured), default=0.0)
    return f"no output, no CPU and no progress for {duration_text(idle)}" if idle >= limit else ""


class StallWatch:
    """Warns once, in a process that follows a job, that the job seems to hang."""

    def __init__(self, job: JobRecord, environ: Mapping[str, str] = os.environ) -> None:
        self._job, self._environ = job, environ
        self._is_told = False
        self._next = 0.0

    def look(self, seen: Snapshot) -> None:
        """Look at a job now and then."""
        if self._is_told or seen.status.value != "RUNNING" or self._job.debug or not locate.can_be_seen(self._job):
            return
        backend = locate.backend_of(self._job)
        now = backend.clock.monotonic()
        self._next = self._next or now + _LOOK_SECONDS[backend.is_here]
        if now < self._next:
            return
        self._next = now + _LOOK_SECONDS[backend.is_here]
        try:
            stall_seconds(self._environ)
        except OptionError as error:
            self._is_told = True
            output.warn_once(error.what, why=error.why or "", next=error.next or "")
            return
        with contextlib.suppress(KineticError, OSError):  # the log is followed all the same
            if what := stall_of(self._job, self._environ):
                self._is_told = True
                output.warn(f"{self._job.job_id}: {what}", next=f"kinetic jobs stacks {self._job.job_id}")

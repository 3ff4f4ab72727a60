"""Looking into a job that runs: a shell beside it, and the stacks of its threads."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinetic._jobs import locate
from kinetic._jobs.status import observe
from kinetic._wire import digests, keys
from kinetic._wire.order import Order
from kinetic.errors import BackendError, KineticError, OptionError, RunnerError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Stacks
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.records import JobRecord

_RELATIVE = re.compile(r'(?m)^  File "(?=[^/<])')  # a file of the project, as a worker names it


def run_in(job: JobRecord, command: Sequence[str], *, host: int, tty: bool) -> int:
    """Run a command, or a shell, where a job runs; return its exit code.

    Args:
        job: The job.
        command: Program and arguments; none for a shell.
        host: On which host, from 0.
        tty: Whether input and output are a terminal.

    Raises:
        OptionError: The job has no such host.
        BackendError: It does not run, or cannot be reached from here.
    """
    check_host(job, host)
    check_running(job)
    try:
        return locate.backend_of(job).run_in(job.job_id, command, host=host, tty=tty)
    except RunnerError as error:  # of a look, not of the job: that goes on
        next_ = error.next or f"kinetic jobs status {job.job_id}"
        raise BackendError(error.what, why=error.why, next=next_, code=error.code) from error


def stacks(job: JobRecord, *, host: int | None) -> list[Stacks]:
    """Return the Python stacks of all threads of a host of a job, or of all hosts.

    Args:
        job: The job.
        host: Which one, from 0; None for all.

    Raises:
        OptionError: The job has no such host.
        BackendError: It does not run, or cannot be reached from here.
    """
    if host is not None:
        check_host(job, host)
    check_running(job)
    hosts = range(locate.hosts_of(job)) if host is None else [host]
    found = locate.backend_of(job).stacks(job.job_id, hosts=list(hosts))
    root = _root_of(job) if any(each.text for each in found) else ""
    if not root:
        return found
    return [each._replace(text=_RELATIVE.sub(lambda file: f"{file[0]}{root}/", each.text)) for each in found]


def _root_of(job: JobRecord) -> str:
    """Return the folder of the project where a job was submitted; "" where nothing shipped, or it is not known."""
    with contextlib.suppress(KineticError):
        store = locate.store_of(job)
        order = store.get(keys.group_order(job.group_id) if job.group_id else keys.order(job.job_id))
        plan = Order.from_bytes(order, sha256=digests.of_bytes(order)).plan  # only shown, so nobody's word is needed
        return str(plan.get("root") or "").rstrip("/")
    return ""


def check_host(job: JobRecord, host: int) -> None:
    """Refuse a host that a job does not have.

    Raises:
        OptionError: It has not.
    """
    count = locate.hosts_of(job)
    if not 0 <= host < count:
        raise OptionError(
            f"{job.job_id} has no host {host}",
            why="it runs on one host, 0" if count == 1 else f"{job.accelerator} has {count} hosts, 0 to {count - 1}",
            next="leave --host out, or name one of them",
        )


def check_running(job: JobRecord) -> None:
    """Refuse a job that does not run now, or runs where this machine cannot look.

    Raises:
        BackendError: It does not.
    """
    job_id = job.job_id
    if job.host and job.host != locate.machine():
        raise BackendError(
            f"{job_id} is on another machine, and only that one can look into it",
            why=f"it was submitted on {job.host}",
            next=f"there: kinetic jobs stacks {job_id}",
            code="not-here",
        )
    seen = observe(job)
    if seen.status is not JobStatus.RUNNING:
        raise BackendError(
            f"{job_id} does not run: it is {seen.status.value}",
            why=(seen.sighting.reason if seen.sighting is not None else "") or None,
            next=_next(seen, job_id),
            code="not-running",
        )


def _next(seen: Snapshot, job_id: str) -> str:
    if seen.status is JobStatus.PENDING:
        return f"kinetic jobs explain {job_id}"
    return "kinetic jobs list --all" if seen.status is JobStatus.NOT_FOUND else f"kinetic jobs logs {job_id}"

"""Look into a running job: attach a debugger, run a command or a shell beside it, read the stacks of its threads."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from kinetic._inspect import port_forward
from kinetic._jobs import locate, status, wait
from kinetic._output import terminal as output
from kinetic._wire import inspection
from kinetic.errors import (
    BackendError,
    BackendUnavailableError,
    DebugError,
    JobTimeoutError,
    KineticError,
    RunnerError,
    StoreUnreachableError,
)
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, DebugAddress, Stacks
    from kinetic._wire.records import JobRecord


_POLL_SECONDS = 0.2  # between two checks whether the server is there; on this machine a check reads a file
_POLL_CLUSTER_SECONDS = 1.0  # a check is a few requests to the cluster and the store
_END_SECONDS = 5.0  # for a connection that is being opened when the job ends
_WORKSPACE = "${workspaceFolder}"  # an editor replaces it by the folder that is open in it


def wait_for_server(
    job: JobRecord, *, host: int = 0, timeout: float | None = None, given_up: threading.Event | None = None
) -> DebugAddress:
    """Wait until a job's debug server can be reached."""
    _check_is_debugged(job)
    if not locate.can_be_seen(job):
        raise DebugError(
            f"{job.job_id} is on {status.place_of(job)}, and its debug server is reached only from there",
            next=f"there: kinetic jobs debug {job.job_id}",
        )
    if not 0 <= host < locate.hosts_of(job):
        raise locate.no_host(job, host, f"kinetic jobs debug {job.job_id} --host 0", DebugError)
    given_up = given_up or threading.Event()
    backend, reader = locate.backend_of(job), wait.StatusReader(job)
    clock = backend.clock
    limit = None if timeout is None else clock.monotonic() + timeout
    try:
        while not given_up.is_set():
            is_late = limit is not None and clock.monotonic() >= limit
            seen, observed = reader.read(limit), clock.monotonic()
            if seen.status.is_final:
                raise _ended(job, seen.status)
            is_running = seen.status is JobStatus.RUNNING
            if is_running and (found := _address_of(job, host)) is not None:
                return found
            if is_late:
                what = f"the debug server of {job.job_id} was not there within {timeout:g} s"
                raise JobTimeoutError(what, why="the job keeps running", next=f"kinetic jobs explain {job.job_id}")
            _pause(backend, job, given_up, observed=None if is_running else observed, limit=limit)
    finally:
        if not backend.is_here:
            backend.stop_watching(job.job_id)
    raise DebugError(f"waiting for the debug server of {job.job_id} was given up")


def _address_of(job: JobRecord, host: int) -> DebugAddress | None:
    """Return where a host's debug server is, or None while it is not there.

    A store or a cluster that does not answer is asked again; the reader of the status knows how long that lasts.
    """
    with contextlib.suppress(StoreUnreachableError, BackendUnavailableError):
        return port_forward.debug_addresses(job, [host]).get(host)
    return None


def _pause(
    backend: Backend, job: JobRecord, given_up: threading.Event, *, observed: float | None, limit: float | None
) -> None:
    """Wait until a job that was observed at some time has changed; for a moment if it runs (None)."""
    pause = _POLL_SECONDS if backend.is_here else _POLL_CLUSTER_SECONDS
    if observed is None or backend.is_here:
        given_up.wait(pause if limit is None else min(pause, limit - backend.clock.monotonic()))
    else:
        while not given_up.is_set() and not wait.has_news(backend, job, pause=pause, looked=observed, limit=limit):
            pass


def attach(
    job: JobRecord, *, local_port: int = inspection.PORT, working_dir: str | None = None, host: int = 0
) -> subprocess.Popen[bytes]:
    """Wait for the server, forward a port to it and print what an editor needs; see ``JobHandle.debug_attach``."""
    _check_is_debugged(job)
    now = status.observe(job).status
    if now.is_final:
        raise _ended(job, now)
    port_forward.check_port(local_port)  # before a wait that may be long
    if now is JobStatus.PENDING:
        output.report(f"{job.job_id} is pending; waiting for its debug server")
    found = wait_for_server(job, host=host)
    return _open(job, found, local_port=local_port, working_dir=working_dir, host=host)


class DebugTunnel:
    """A port forward to a job's debug server, opened in a thread when the server is there, and closed at the end."""

    def __init__(self, job: JobRecord) -> None:
        self._job = job
        self._given_up = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._open, name="kinetic-attach", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        try:
            found = wait_for_server(self._job, given_up=self._given_up)
            self._process = _open(self._job, found, local_port=_usable_port(), working_dir=None, host=0)
        except KineticError as error:
            if not self._given_up.is_set() and error.code != "debug-over":
                output.warn(f"cannot attach a debugger from here: {error}")
        finally:
            if self._given_up.is_set() and self._process is not None:
                port_forward.stop(self._process)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self._given_up.set()
        self._thread.join(_END_SECONDS)
        if self._process is not None:
            port_forward.stop(self._process)


def launch_json(
    roots: tuple[tuple[str, str], ...], *, local_port: int = inspection.PORT, working_dir: str | None = None
) -> str:
    """Return the launch.json with which an editor attaches."""
    mappings = [  # the job may have been submitted on another machine
        {"localRoot": working_dir or (local if os.path.isdir(local) else _WORKSPACE), "remoteRoot": remote}
        for local, remote in roots
    ]
    configuration = {
        "name": "Kinetic Debug",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "localhost", "port": local_port},
        "pathMappings": mappings,
        "justMyCode": True,
    }
    return json.dumps({"version": "0.2.0", "configurations": [configuration]}, indent=2)


def print_instructions(
    job: JobRecord, address: DebugAddress, *, local_port: int, working_dir: str | None, host: int
) -> None:
    """Print the launch.json on standard output, and what to do with it on standard error."""
    of_host = f", host {host}" if host else ""
    waits = "waits for a debugger" if address.state == inspection.WAITING else "accepts a debugger"
    output.report(f"{job.job_id}{of_host} {waits} at localhost:{local_port}; in VS Code, run this configuration:")
    output.clear()
    sys.stdout.write(launch_json(address.roots, local_port=local_port, working_dir=working_dir) + "\n")
    sys.stdout.flush()


def _open(
    job: JobRecord, address: DebugAddress, *, local_port: int, working_dir: str | None, host: int
) -> subprocess.Popen[bytes]:
    process = port_forward.start(job, host=host, local_port=local_port)
    print_instructions(job, address, local_port=local_port, working_dir=working_dir, host=host)
    return process


def _usable_port() -> int:
    """Return debugpy's own port, or a free one: the job is submitted already, and must not fail for a port."""
    try:
        port_forward.check_port(inspection.PORT)
    except DebugError:
        return port_forward.free_port()
    return inspection.PORT


def _check_is_debugged(job: JobRecord) -> None:
    if job.debug:
        return
    look = "see its log: kinetic jobs logs"
    with contextlib.suppress(KineticError):
        now = status.observe(job).status
        if now is JobStatus.RUNNING:
            look = "see what it is doing: kinetic jobs stacks"
        elif now is JobStatus.PENDING:
            look = "see why it waits: kinetic jobs explain"
    raise DebugError(
        f"{job.job_id} has no debug server",
        why="it was submitted without debug=True",
        next=f"submit it again with debug=True; or {look} {job.job_id}",
        code="not-a-debug-job",
    )


def _ended(job: JobRecord, now: JobStatus) -> DebugError:
    return DebugError(
        f"{job.job_id} has ended, so no debugger can be attached",
        why=f"it is {now.value}",
        next=f"kinetic jobs logs {job.job_id}",
        code="debug-over",
    )


_RELATIVE = re.compile(r'(?m)^  File "(?=[^/<])')  # a file of the project, as a worker names it


def run_in(job: JobRecord, command: Sequence[str], *, host: int, tty: bool) -> int:
    """Run a command, or a shell, where a job runs; return its exit code."""
    _check_host(job, host)
    _check_running(job, next=f"there: kinetic jobs shell {job.job_id}")
    try:
        return locate.backend_of(job).run_in(job.job_id, command, host=host, tty=tty)
    except RunnerError as error:  # of the command, not of the job, which keeps running
        next_ = error.next or f"kinetic jobs status {job.job_id}"
        raise BackendError(error.what, why=error.why, next=next_, code=error.code) from error


def forward(job: JobRecord, port: int, *, host: int, local_port: int | None) -> JobStatus:
    """Connect a local port to one of a job until that has ended; see ``port_forward.forward``."""
    _check_host(job, host)
    now = _check_running(job, next=f"there: kinetic jobs forward {job.job_id} {port}", may_wait=True)
    return port_forward.forward(job, now, port, host=host, local_port=local_port)


def forwarded(job: JobRecord, port: int, *, host: int, local_port: int | None) -> AbstractContextManager[int]:
    """Connect a local port, which is yielded, to one of a job; see ``port_forward.forwarded``."""
    _check_host(job, host)
    _check_running(job, next=f"there: kinetic jobs forward {job.job_id} {port}", may_wait=True)

    def advice(free: int) -> str:
        return f"use a free one: job.forward({port}, local_port={free})"

    return port_forward.forwarded(job, port, host=host, local_port=local_port, advice=advice)


def stacks(job: JobRecord, *, host: int | None) -> list[Stacks]:
    """Return the Python stacks of all threads of a host of a job, or of all hosts."""
    if host is not None:
        _check_host(job, host)
    _check_running(job, next=f"there: kinetic jobs stacks {job.job_id}")
    hosts = range(locate.hosts_of(job)) if host is None else [host]
    found = locate.backend_of(job).stacks(job.job_id, hosts=list(hosts))
    if any(each.text for each in found):
        with contextlib.suppress(KineticError):
            if root := str(locate.order_of(job).plan.get("root") or "").rstrip("/"):
                return [
                    each._replace(text=_RELATIVE.sub(lambda file: f"{file[0]}{root}/", each.text)) for each in found
                ]
    return found


def _check_host(job: JobRecord, host: int) -> None:
    if not 0 <= host < locate.hosts_of(job):
        raise locate.no_host(job, host, "omit --host, or name one of them")


def _check_running(job: JobRecord, *, next: str, may_wait: bool = False) -> JobStatus:
    """Refuse a job that does not run, or waits for its start and must not; return how it is.

    next: what to do about a job on another machine
    """
    job_id = job.job_id
    if job.host and job.host != locate.machine():
        raise BackendError(
            f"{job_id} is on another machine, and can be inspected only there",
            why=f"it was submitted on {job.host}",
            next=next,
            code="not-here",
        )
    seen = status.observe(job)
    if seen.status is not JobStatus.RUNNING and not (may_wait and seen.status is JobStatus.PENDING):
        next_ = f"kinetic jobs logs {job_id}"
        if seen.status in {JobStatus.PENDING, JobStatus.FAILED}:  # a failed one may never have had a log
            next_ = f"kinetic jobs explain {job_id}"
        elif seen.status is JobStatus.NOT_FOUND:
            next_ = "kinetic jobs list --all"
        raise BackendError(
            f"{job_id} does not run: it is {seen.status.value}",
            why=(seen.observation.reason if seen.observation is not None else "") or None,
            next=next_,
            code="not-running",
        )
    return seen.status

"""Attaching a debugger to a job: wait for its server, open a way to it, say what an editor needs; and close the way."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._inspect import port_forward
from kinetic._jobs import locate, status, wait
from kinetic._jobs.status import observe
from kinetic._wire import digests, inspection, keys
from kinetic._wire.order import Order
from kinetic.errors import (
    BackendError,
    BackendUnavailableError,
    DebugError,
    JobTimeoutError,
    KineticError,
    OptionError,
    RunnerError,
    StoreUnreachableError,
)
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, DebugAddress, Stacks
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.records import JobRecord


_LOOK_SECONDS = 0.2  # between two looks whether the server is there; on this machine a look is a file
_LOOK_FAR_SECONDS = 1.0  # a look is a few questions to the cluster and the store
_END_SECONDS = 5.0  # for what is being opened when the job ends
_WORKSPACE = "${workspaceFolder}"  # what an editor puts in: the folder that is open in it


def wait_for_server(
    job: JobRecord, *, host: int = 0, timeout: float | None = None, given_up: threading.Event | None = None
) -> DebugAddress:
    """Wait until a job's debug server can be reached.

    Args:
        job: The job.
        host: Of which host, from 0.
        timeout: Seconds; None waits as long as the job has not ended, for its machine too.
        given_up: When it is set, nobody waits any more.

    Raises:
        DebugError: The job has no debug server, or has ended, or nobody waits any more.
        JobTimeoutError: The time is over.
    """
    _check_is_debugged(job)
    _check_place(job, host)
    given_up = given_up or threading.Event()
    backend, reader = locate.backend_of(job), wait.StatusReader(job)
    clock = backend.clock
    limit = None if timeout is None else clock.monotonic() + timeout
    try:
        while not given_up.is_set():
            seen, looked = reader.read(limit), clock.monotonic()
            if seen.status.is_final:
                raise _ended(job, seen.status)
            is_running = seen.status is JobStatus.RUNNING
            if is_running and (found := _now(job, host)) is not None:
                return found
            if limit is not None and clock.monotonic() >= limit:
                what = f"the debug server of {job.job_id} was not there within {timeout:g} s"
                raise JobTimeoutError(what, why="the job goes on", next=f"kinetic jobs explain {job.job_id}")
            _pause(backend, job, given_up, looked=None if is_running else looked, limit=limit)
    finally:
        if not backend.is_here:
            backend.stop_watching(job.job_id)
    raise DebugError(f"nobody waits for the debug server of {job.job_id} any more")


def _pause(
    backend: Backend, job: JobRecord, given_up: threading.Event, *, looked: float | None, limit: float | None
) -> None:
    """Wait for what a job does next: until there is news of it, or, if it runs, for a moment: nobody tells of a server.

    On this machine a look costs no more than the question whether there is news, so it is simply repeated.

    Args:
        backend: Its place.
        job: The job.
        given_up: When it is set, nobody waits any more.
        looked: When it was looked at; None for one that runs.
        limit: When waiting is over; None for never.
    """
    pause = _LOOK_SECONDS if backend.is_here else _LOOK_FAR_SECONDS
    if looked is None or backend.is_here:
        given_up.wait(pause if limit is None else min(pause, limit - backend.clock.monotonic()))
    else:
        while not given_up.is_set() and not wait.has_news(backend, job, pause=pause, looked=looked, limit=limit):
            pass


def _now(job: JobRecord, host: int) -> DebugAddress | None:
    """Say where the server is; a store or a cluster that does not answer now is asked again."""
    try:
        return port_forward.debug_address(job, host=host)
    except (StoreUnreachableError, BackendUnavailableError):
        return None  # whoever looks at the job next learns how long that lasts


def attach(
    job: JobRecord, *, local_port: int = inspection.PORT, working_dir: str | None = None, host: int = 0
) -> subprocess.Popen[bytes]:
    """Wait for the server, open the way to it and print what an editor needs; see ``JobHandle.debug_attach``."""
    _check_is_debugged(job)
    status = observe(job).status
    if status.is_final:
        raise _ended(job, status)
    port_forward.check_port(local_port)  # before the job is waited for, which may take long
    if status is JobStatus.PENDING:
        output.report(f"{job.job_id} is pending; its debug server is waited for")
    found = wait_for_server(job, host=host)
    return _open(job, found, local_port=local_port, working_dir=working_dir, host=host)


class DebugTunnel:
    """A way to a job's debug server, opened beside the caller as soon as it is there, and closed at the end."""

    def __init__(self, job: JobRecord) -> None:
        self._job = job
        self._given_up = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._open, name="kinetic-attach", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        try:
            found = wait_for_server(self._job, given_up=self._given_up)
            self._process = _open(self._job, found, local_port=_a_port(), working_dir=None, host=0)
        except KineticError as error:
            if not self._given_up.is_set() and error.code != "debug-over":
                output.warn(f"no debugger can be attached from here: {error}")
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
    """Return what an editor's launch.json needs to attach.

    Args:
        roots: Pairs of folders: as the client that submitted knew one, and where it lies in the job.
        local_port: Where the editor connects to.
        working_dir: The project's folder on this machine; None means where it lay when the job was submitted.
    """
    mappings = [{"localRoot": working_dir or _here(local), "remoteRoot": remote} for local, remote in roots]
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
    job: JobRecord, address: DebugAddress, *, local_port: int, working_dir: str | None, host: int = 0
) -> None:
    """Print the launch.json on standard output, and what to do with it on standard error."""
    of_host = f", host {host}" if host else ""
    waits = "waits for a debugger" if address.state == inspection.WAITING else "takes a debugger"
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


def _a_port() -> int:
    """Return debugpy's own port, or one that is free: a job that was submitted already must not fail for it."""
    try:
        port_forward.check_port(inspection.PORT)
    except DebugError:
        return port_forward.free_port()
    return inspection.PORT


def _here(folder: str) -> str:
    """Return a folder as it is known here; the job may have been submitted on another machine."""
    return folder if os.path.isdir(folder) else _WORKSPACE


def _check_is_debugged(job: JobRecord) -> None:
    if job.debug:
        return
    raise DebugError(
        f"{job.job_id} has no debug server",
        why="it was submitted without debug=True",
        next=f"submit it again with debug=True; or see where it is: kinetic jobs stacks {job.job_id}",
        code="not-a-debug-job",
    )


def _check_place(job: JobRecord, host: int) -> None:
    if not locate.can_be_seen(job):
        raise DebugError(
            f"{job.job_id} is on {status.place_of(job)}, and only that machine reaches its debug server",
            next=f"there: kinetic jobs debug {job.job_id}",
        )
    hosts = locate.hosts_of(job)
    if not 0 <= host < hosts:
        raise DebugError(
            f"{job.job_id} has no host {host}",
            why="it runs on one host, 0" if hosts == 1 else f"{job.accelerator} has {hosts} hosts, 0 to {hosts - 1}",
            next=f"kinetic jobs debug {job.job_id} --host 0",
        )


def _ended(job: JobRecord, status: JobStatus) -> DebugError:
    return DebugError(
        f"{job.job_id} has ended, so no debugger can be attached",
        why=f"it is {status.value}",
        next=f"kinetic jobs logs {job.job_id}",
        code="debug-over",
    )


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
            why=(seen.observation.reason if seen.observation is not None else "") or None,
            next=_next(seen, job_id),
            code="not-running",
        )


def _next(seen: Snapshot, job_id: str) -> str:
    if seen.status is JobStatus.PENDING:
        return f"kinetic jobs explain {job_id}"
    return "kinetic jobs list --all" if seen.status is JobStatus.NOT_FOUND else f"kinetic jobs logs {job_id}"

"""The embedded backend: jobs run on this machine, detached from whoever submitted them."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinetic._backends import registry
from kinetic._backends.local import limits, liveness, recovery, runtime_files, scheduler
from kinetic._backends.local.queue import GroupRow, JobRow, Limits, Queue
from kinetic._backends.local.runtime_files import Paths
from kinetic._backends.protocol import SYSTEM, Clock, DebugAddress, Diagnosis, Launch, Observation, Stacks
from kinetic._config import home
from kinetic._project import runner_bundle
from kinetic._stores import open_store, parallel
from kinetic._wire import documents, folders
from kinetic._wire.failpoints import step
from kinetic._wire.inspection import DebugPage
from kinetic._wire.task import Task
from kinetic.errors import IntegrityError, KineticError, LaunchError, RunnerError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.registry import Opening
    from kinetic._hardware.placement import Placement


_CONNECT_SECONDS = 10.0
_BLOCK = 1 << 16
_OF_THE_TERMINAL = ("TERM", "COLORTERM", "COLUMNS", "LINES")


def _read_stacks(paths: Paths, row: JobRow | None, hosts: Sequence[int]) -> list[Stacks]:
    """Ask the processes of a job for their stacks; see the protocol."""
    return [_stacks_of(paths, row, host) for host in hosts]


def _stacks_of(paths: Paths, row: JobRow | None, host: int) -> Stacks:
    from kinetic._runner.worker import stack_dump  # the worker's modules: 10 ms, only to look into a running job

    try:
        running = _must_run(row)
        return Stacks(host, stack_dump.ask(paths.files(running.job_id, running.attempt, host).stacks))
    except RunnerError as error:
        return Stacks(host, "", ": ".join(filter(None, (error.what, error.why))))


def _run_beside(
    paths: Paths, row: JobRow | None, command: Sequence[str], *, host: int, environ: Mapping[str, str]
) -> int:
    """Run a command beside a job; see ``run_in`` of the protocol.

    Raises:
        RunnerError: The job does not run, or there is no such command.
    """
    from kinetic._runner.worker import mount_namespace, stack_dump  # as above

    running = _must_run(row)
    door = stack_dump.read_header(paths.files(running.job_id, running.attempt, host).stacks)
    variables = _environment(paths, running, host, environ)
    words = list(command) or [mount_namespace.shell_of(variables)]
    folder = mount_namespace.folder_of(door.pid) or str(paths.files(running.job_id, running.attempt, host).folder)
    try:
        process = _start(words, variables, door.pid, folder)
    except FileNotFoundError:
        raise RunnerError(
            f"there is no {words[0]} here", why=f"looked in {variables.get('PATH', os.defpath)}", code="no-command"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise RunnerError(
            f"{words[0]} could not be started beside the job", why=str(error), code="no-command"
        ) from error
    with _leaving_signals_to(process):
        code = process.wait()
    return 128 - code if code < 0 else code


def _start(words: list[str], variables: Mapping[str, str], pid: int, folder: str) -> subprocess.Popen[bytes]:
    """Start a command in a folder as a worker sees it."""
    from kinetic._runner.worker import mount_namespace  # as above

    if not mount_namespace.has_own_mounts(pid):
        return subprocess.Popen(words, env=variables, cwd=folder)
    import ctypes  # noqa: F401 - in the forked child nothing should be imported any more

    enter = partial(mount_namespace.enter, pid, folder)
    return subprocess.Popen(words, env=variables, preexec_fn=enter)  # noqa: PLW1509 - namespaces leave no other way


def _must_run(row: JobRow | None) -> JobRow:
    if row is None or row.state != "running":
        raise RunnerError("the job does not run", code="not-running")
    return row


def _environment(paths: Paths, row: JobRow, host: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's variables: without its supervisor's mark, by which what the job leaves behind is ended."""
    page = runtime_files.read_task(paths, row.job_id)
    if page is None:
        raise RunnerError("the job does not run any more", code="not-running")
    marks = {"KINETIC_ATTEMPT": str(row.attempt), "KINETIC_HOST_INDEX": str(host)}
    devices = {"CUDA_VISIBLE_DEVICES": row.devices} if row.devices else {}
    terminal = {name: environ[name] for name in _OF_THE_TERMINAL if name in environ}
    return {**page.environment, **marks, **devices, **terminal}


@contextlib.contextmanager
def _leaving_signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let Ctrl-C and its like be for the command alone, which the terminal sends them to as well."""
    before = {}
    with contextlib.suppress(ValueError):  # on another thread than the main one they never come
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.kill()
            process.wait()


class SocketLink:
    """A connection within this machine."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, data: bytes) -> None:
        """Send bytes; see the protocol."""
        self._connection.sendall(data)

    def receive(self) -> bytes:
        """Return bytes; see the protocol."""
        try:
            return self._connection.recv(_BLOCK)
        except ConnectionError:
            return b""

    def finish(self) -> None:
        """Say that nothing more is sent; see the protocol."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def _dial(port: int) -> Iterator[SocketLink]:
    """Open a connection to a port of this machine; see the protocol."""
    with socket.create_connection(("127.0.0.1", port), _CONNECT_SECONDS) as connection:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield SocketLink(connection)


class FileLog:
    """The spool of a job's output on this machine, by byte position."""

    is_complete = True

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path) -> FileLog | None:
        """Open a log, or return None when there is none here."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None

    def size(self) -> int:
        """Return how many bytes there are now."""
        return os.fstat(self._descriptor).st_size

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position."""
        return os.pread(self._descriptor, length, start)

    def close(self) -> None:
        """Let go of the file."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def task_of(launch: Launch, umask: int, environ: Mapping[str, str], queued: dict[str, Any]) -> Task:
    """Return what the supervisor of a job is told.

    Args:
        launch: The job.
        umask: The client's.
        environ: The client's environment; a batch has the one of whoever made it.
        queued: What the queue is told.
    """
    return Task(
        job_id=launch.order.job_id,
        order_sha256=launch.order_sha256,
        store_url=launch.store_url,
        key_id=launch.key_id,
        umask=umask,
        deadline=launch.order.deadline,
        environment=scheduler.job_environment(
            launch.order,
            launch.placement,
            launch.captured,
            environ if launch.environ is None else launch.environ,
            launch.interpreter,
            store_url=launch.store_url,
        ),
        hosts=launch.placement.hosts,
        order_key=launch.order.key if launch.child else "",
        child=launch.child.to_json() if launch.child else None,
        mark=launch.order.mark,
        machine=home.machine_id(environ),
        function=launch.order.function_name,
        placed=launch.order.data_to_mount(),
        memory_bytes=launch.order.memory_bytes,
        retries=launch.order.retries,
        queued=queued,
    )


_STATES = {"queued": JobStatus.PENDING, "claimed": JobStatus.PENDING, "running": JobStatus.RUNNING}
_MODES = 0o777
_ADVANCE_SECONDS = 0.5  # how often a waiting client helps the queue on; death and end are told by the pulse at once
_WARM_SECONDS = 30.0  # half of what a supervisor idles


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Say what it means that the system refuses something on the way of a submission."""
    try:
        yield
    except OSError as error:
        if isinstance(error, KineticError):
            raise
        full = error.errno in {errno.ENOSPC, errno.EDQUOT}
        raise LaunchError(
            "the disk that holds the jobs of this machine is full" if full else "the job could not be queued",
            why=str(error),
            next="free some space there, or point KINETIC_RUNTIME_DIR at a folder on another local disk",
        ) from error


def open_backend(opening: Opening) -> LocalBackend:
    """Open the backend of this machine."""
    return LocalBackend(opening.runtime, opening.environ, strict=opening.strict)


class LocalBackend:
    """Run jobs on this machine.

    Args:
        runtime: Folder for host-local state, on a local disk.
        environ: The environment that limits and jobs are taken from.
        strict: True when the user asked for this backend by name: then hardware that is absent is an error.
    """

    name = registry.HERE.name
    namespace = "default"
    is_here = True
    clock: Clock = SYSTEM
    log_poll_seconds = 0.1  # a job flushes its output this often
    poll_seconds = 1.0  # the end is pushed; this only finds a queue that nobody keeps any more

    def __init__(self, runtime: Path, environ: Mapping[str, str] | None = None, *, strict: bool = False) -> None:
        self.paths = Paths(runtime)
        self.environ = os.environ if environ is None else environ
        self.limits = scheduler.read_limits(self.environ)
        self._strict = strict
        self._portable = self.environ.get("KINETIC_PORTABLE") == "1"
        self._pulses, self._group_pulses = threading.local(), threading.local()  # each thread that watches has its own
        self._queue: Queue | None = None
        self._templates: dict[str, tuple[str, str]] = {}  # by interpreter
        self._advanced = 0.0
        self._launched = 0.0
        self._lock = threading.Lock()
        self._submitting: dict[str, liveness.ProcessLock] = {}

    @property
    def queue(self) -> Queue:
        """The queue of this machine, opened on first use."""
        with self._lock:
            if self._queue is None:
                self.paths.make()
                self._queue = Queue(self.paths.queue)
                atexit.register(self._queue.close)
            return self._queue

    def name_of(self, job_id: str, hosts: int) -> str:  # noqa: ARG002 - a cluster's names depend on it
        """Return the name of a job's row; see the protocol."""
        return f"kinetic-{job_id}"

    def check(
        self,
        placement: Placement,
        requirements: Mapping[str, Any] | None = None,  # noqa: ARG002 - this machine has none
    ) -> tuple[str, ...]:
        """Refuse what this machine cannot even emulate; see the protocol."""
        limits.check_slice(placement, self.environ)
        if placement.kind == "gpu":
            return scheduler.check_gpus(placement, self.limits.gpus, strict=self._strict)
        if placement.kind == "tpu":
            return (limits.describe_slice(placement),)
        return ()

    def check_store(self, url: str) -> None:
        """Take every store: jobs here reach what this client reaches."""

    def prepare(self) -> None:
        """Have a supervisor getting ready while the client packs; not where it is not known yet in which Python."""
        if self.environ.get("KINETIC_LOCAL_ENV") == "isolated":
            return
        if time.monotonic() - self._launched > _WARM_SECONDS:  # else a supervisor of ours idles, or is at work
            name, _ = self._our_template_id()
            scheduler.advance(self.paths, self.queue, self.limits, ready=name, template_id=name)

    def begin(self, job_id: str) -> None:
        """Mark a job as being submitted, before anybody can find its record: until ``launch`` it is pending."""
        self.paths.make()
        with _translated():
            self.paths.job(job_id).mkdir(mode=0o700, exist_ok=True)
            held = liveness.take_lock(self.paths.submitting(job_id))
        if held is not None:
            self._submitting[job_id] = held

    def launch(self, launches: Sequence[Launch]) -> list[str]:
        """Queue jobs and see to it that somebody carries them out; see the protocol."""
        for interpreter in dict.fromkeys(launch.interpreter for launch in launches):
            with _translated():
                self._launch_in(interpreter, [launch for launch in launches if launch.interpreter == interpreter])
        return [launch.order.job_id for launch in launches]

    def _launch_in(self, interpreter: str, launches: Sequence[Launch]) -> None:
        name, template = self._our_template_id(interpreter)
        mask = os.umask(0o077)  # the only way to read it, and one for the whole process: so not on the threads below
        os.umask(mask)
        now = time.time()
        writes = [
            partial(
                self._write, launch, mask, self._queued(launch, name, template, now + number * 1e-6)
            )  # in this order
            for number, launch in enumerate(launches)
        ]
        if len(writes) == 1:
            writes[0]()  # without a thread
        else:
            for _ in parallel.in_parallel(open_store(launches[0].store_url), writes):  # the disk is waited for
                pass
        folders.sync(self.paths.jobs)  # the names of the new folders: a row is never without its launch page
        rows = [(launch.order.job_id, launch.group, self._devices(launch.placement)) for launch in launches]
        self.queue.add(rows, name, template, self.limits)
        step("client:queued")
        for launch in launches:
            self.finish_submitting(launch.order.job_id)
        self._launched = time.monotonic()
        scheduler.advance(self.paths, self.queue, self.limits, template_id=name)

    def _queued(self, launch: Launch, template_id: str, template: str, submitted: float) -> dict[str, Any]:
        """Return what the queue says of a job, for the case that it must be rebuilt."""
        gpus = self._devices(launch.placement)
        return {
            "group": launch.group,
            "template_id": template_id,
            "template": template,
            "gpus": gpus,
            "submitted": submitted,
            "slots": self.limits.slots,
            "allowed": ",".join(self.limits.gpus) if gpus else "",
        }

    def _write(self, launch: Launch, mask: int, queued: dict[str, Any]) -> None:
        """Write what the supervisor of a job is told."""
        job_id = launch.order.job_id
        self.begin(job_id)
        runtime_files.write_task(self.paths, task_of(launch, mask & _MODES, self.environ, queued), launch.key)
        liveness.make_pipe(self.paths.completion_pipe(job_id))
        step("client:launch-written")

    def finish_submitting(self, job_id: str, *, leave_nothing: bool = False) -> None:
        """Take the mark of ``begin`` away; see the protocol."""
        held = self._submitting.pop(job_id, None)
        if held is not None:
            held.release(remove=True)
        if leave_nothing:
            recovery.remove_job(self.paths, job_id)

    def observe(self, names: Sequence[str]) -> dict[str, Observation]:
        """Look at some jobs at once; see the protocol."""
        return self._observe(names, at_once=False)

    def _observe(self, names: Sequence[str], *, at_once: bool) -> dict[str, Observation]:
        """Look at rows; help the queue on first, at once or if nobody here did so for a while."""
        rows = self.queue.jobs(names)
        if any(row.state != "ended" for row in rows.values()) and (
            at_once or time.monotonic() - self._advanced > _ADVANCE_SECONDS
        ):
            self._advanced = time.monotonic()
            recovery.hand_over(self.paths, self.queue, list(rows.values()))
            scheduler.advance(self.paths, self.queue, self.limits)
            rows = self.queue.jobs(names)
        seen = {name: self._sighting(row) for name, row in rows.items()}
        for name in names:
            if name not in seen and (found := self._being_submitted(name)) is not None:
                seen[name] = found
        return seen

    def observe_group(self, group: str) -> dict[str, Observation]:
        """Look at every job of a batch; see the protocol."""
        found = self.queue.brief(group)
        if found and time.monotonic() - self._advanced > _ADVANCE_SECONDS:
            self._advanced = time.monotonic()
            scheduler.advance(self.paths, self.queue, self.limits)
            found = self.queue.brief(group)
        return {row.job_id: _brief(row) for row in found}

    def watch_group(self, group: str, *, seconds: float) -> None:
        """Wait for an end within a batch, told by the pulses of what runs and of what is next; see the protocol.

        A pulse tells only what comes after it was opened, so whenever one was opened just now, the caller looks again.
        """
        wanted = self.queue.active(group, 2 * self.limits.slots)
        beats: dict[str, liveness.CompletionReader] = self._group_pulses.__dict__.setdefault(group, {})
        for name in [name for name, beat in beats.items() if name not in wanted or not beat.listening]:
            beats.pop(name).close()
        fresh = [name for name in wanted if name not in beats]
        for name in fresh:
            beats[name] = liveness.CompletionReader(self.paths.completion_pipe(name), portable=self._portable)
        if not fresh:
            liveness.wait_for_any_end(list(beats.values()), seconds)

    def _being_submitted(self, name: str) -> Observation | None:
        """Look at a job that has no row: not yet, or not any more."""
        if liveness.is_locked(self.paths.submitting(name)):
            return Observation(name, JobStatus.PENDING, reason="is being submitted", where=os.uname().nodename)
        row = self.queue.jobs([name]).get(name)  # the submission may have come to its end between our two looks
        return self._sighting(row) if row is not None else None

    def watch(self, name: str, *, seconds: float) -> bool:
        """Wait for a change, pushed by the job's pulse; see the protocol. Here a look costs nothing.

        The first call only opens the pulse: what changed before that is not told any more, so look once again.
        """
        beats: dict[str, liveness.CompletionReader] = self._pulses.__dict__
        beat = beats.get(name)
        if beat is None or not beat.listening:
            if beat is not None:
                beat.close()
            beats[name] = liveness.CompletionReader(self.paths.completion_pipe(name), portable=self._portable)
            self._observe([name], at_once=beat is not None)
            return True
        beat.wait(seconds)
        self._observe([name], at_once=not beat.listening)
        return True

    def stop_watching(self, name: str) -> None:
        """Close the pulse of a job that this thread does not wait for any more."""
        beat = self._pulses.__dict__.pop(name, None)
        if beat is not None:
            beat.close()

    def explain(self, name: str) -> Diagnosis | None:
        """Say what a pending job waits for; see the protocol."""
        row = self.queue.jobs([name]).get(name)
        if row is None or row.state == "ended":
            return None
        if row.state != "queued":
            follow = f"kinetic jobs logs {name} --follow"
            if _reason(row):
                return Diagnosis(f"{name} has {_reason(row)}", next=_AGAIN)
            return Diagnosis(f"{name} runs on {os.uname().nodename}", next=follow, waits=False)
        return Diagnosis(f"{name} {self._waits_for(row)}", why=self._holders(row), next="kinetic jobs list")

    def live_log(self, name: str, *, host: int, attempt: int, follow: bool = False) -> FileLog | None:  # noqa: ARG002
        """Return the log as the worker writes it; see the protocol."""
        return FileLog.open(self.paths.files(name, attempt, host).log)

    def last_log(self, name: str, *, host: int, attempt: int) -> None:
        """Return nothing: here ``live_log`` reads the file that the process wrote, however it ended."""

    def debug_addresses(self, name: str, *, hosts: Sequence[int]) -> dict[int, DebugAddress]:
        """Read what the debug servers of a running job say of themselves; see the protocol."""
        row = self.queue.jobs([name]).get(name)
        found: dict[int, DebugAddress] = {}
        if row is not None and row.state == "running":
            for host in hosts:
                with contextlib.suppress(OSError, IntegrityError):  # not there yet
                    page = DebugPage.from_bytes(self.paths.files(name, row.attempt, host).debug_page.read_bytes())
                    found[host] = DebugAddress(page.port, roots=page.roots, state=page.state, until=page.until)
        return found

    def dial(self, address: DebugAddress) -> AbstractContextManager[SocketLink]:
        """Open a connection to a port of this machine; see the protocol."""
        return _dial(address.port)

    def run_in(self, name: str, command: Sequence[str], *, host: int, tty: bool) -> int:  # noqa: ARG002 - it inherits ours
        """Run a command beside a job; see the protocol."""
        row = self.queue.jobs([name]).get(name)
        return _run_beside(self.paths, row, command, host=host, environ=self.environ)

    def stacks(self, name: str, *, hosts: Sequence[int]) -> list[Stacks]:
        """Ask the processes of a job for their stacks; see the protocol."""
        return _read_stacks(self.paths, self.queue.jobs([name]).get(name), hosts)

    def stop(self, names: Sequence[str], *, wait: float) -> bool:
        """End the processes of jobs; see the protocol."""
        for row in self.queue.ask_to_stop(names).values():
            if row.supervisor:
                liveness.wake(self.paths.wake(row.supervisor))
        limit = time.monotonic() + wait
        while True:
            left = [name for name, row in self.queue.jobs(names).items() if row.state != "ended"]
            if not left:
                return True
            seconds = limit - time.monotonic()
            if seconds <= 0:
                return False
            self.watch(left[0], seconds=min(seconds, 0.1))

    def remove(self, names: Sequence[str]) -> None:
        """Forget jobs; see the protocol."""
        for name, row in self.queue.jobs(names).items():
            self.stop_watching(name)
            self._clear_scratch(row)
        self.queue.forget(names)
        step("client:row-forgotten")
        for name in names:
            recovery.remove_job(self.paths, name)
        step("client:folder-removed")

    def _clear_scratch(self, row: JobRow) -> None:
        """Remove what a supervisor that died after its verdict left in the store's scratch."""
        with contextlib.suppress(KineticError, OSError):
            if row.state != "ended" and (page := runtime_files.read_task(self.paths, row.job_id)) is not None:
                recovery.clear_scratch(runtime_files.tasks_of(self.paths, page, row.attempt))

    def keep(
        self,
        group: str,
        secrets: Mapping[str, Any],
        keys: Callable[[], Sequence[bytes]],  # noqa: ARG002 - each supervisor is told the key of its job
    ) -> None:
        """Keep what no store may hold, in a file for its owner only; see the protocol."""
        folders.make(self.paths.groups)
        chosen = scheduler.allowed_variables(
            secrets["environ"], cloud=scheduler.is_cloud(*secrets.get("addresses", ()))
        )
        page = {"schema": documents.SCHEMA, **secrets, "environ": chosen}
        runtime_files.write_private(self.paths.kept(group), documents.write(page))
        folders.sync(self.paths.groups)

    def kept(self, group: str) -> dict[str, Any] | None:
        """Return what was kept for a batch; see the protocol."""
        try:
            return documents.read(self.paths.kept(group).read_bytes(), f"what was kept for {group}")
        except FileNotFoundError:
            return None

    def forget_kept(self, group: str) -> None:
        """Remove what was kept for a batch; see the protocol."""
        self.paths.kept(group).unlink(missing_ok=True)

    def find(self) -> Iterator[Observation]:
        """Look at every job of this machine; see the protocol."""
        if not self.paths.queue.exists():
            return iter(())
        scheduler.advance(self.paths, self.queue, self.limits)
        return iter([self._sighting(row) for row in self.queue.look()])

    def sweep(self, scratch: Path | None, history: recovery.History | None = None) -> None:
        """Remove what nobody needs any more, at most once an hour.

        Args:
            scratch: The store's folder for files being written, if it has one.
            history: Gives the page of a removed job, once it is verified.
        """
        if self.paths.queue.exists():
            recovery.sweep(self.paths, self.queue, scratch, history)

    def _our_template_id(self, interpreter: str = "") -> tuple[str, str]:
        """Return the name and the template of the supervisors that this client's jobs need."""
        if interpreter not in self._templates:
            self.paths.make()
            made = scheduler.make_template(runner_bundle.folder(self.paths.runners), self.environ, interpreter)
            self._templates[interpreter] = scheduler.template_digest(made), documents.write(made).decode()
            self.queue.add_template_id(*self._templates[interpreter])
        return self._templates[interpreter]

    def _devices(self, placement: Placement) -> int:
        """Return how many devices a job holds; 0 where it runs on the CPU instead."""
        return placement.chips_per_host if placement.kind == "gpu" and self.limits.gpus else 0

    def _sighting(self, row: JobRow) -> Observation:
        status = _STATES.get(row.state) or (JobStatus.SUCCEEDED if row.verdict == "succeeded" else JobStatus.FAILED)
        return Observation(
            name=row.job_id,
            status=status,
            attempt=row.attempt,
            reason=self._waits_for(row) if row.state == "queued" else _reason(row),
            where=os.uname().nodename,
            submitted=row.submitted,
            started=row.started,
            ended=row.ended,
        )

    def _waits_for(self, row: JobRow) -> str:
        """Say what a queued job needs, by the limits that it was submitted with, and its place."""
        limits = row.limits(self.limits)
        what = f"{row.gpus} of {len(limits.gpus)} GPUs" if row.gpus else f"one of {limits.slots} slots"
        before = self.queue.before(row, self.limits)
        line = {0: "it is the next", 1: "one job is before it"}.get(before, f"{before} jobs are before it")
        return f"waits for {what}; {line}"

    def _holders(self, row: JobRow) -> str:
        """Say who holds what a queued job needs, and which limit of its submission this client does not have."""
        if self.queue.may_start(row, self.limits):
            return "what it needs is free: it starts in a moment"
        limits = row.limits(self.limits)
        held = [
            other for other in self.queue.look("state IN ('claimed', 'running')") if _is_in_the_way(other, row, limits)
        ]
        said = ["running: " + ", ".join(other.job_id for other in held[:5])] if held else []
        if row.gpus and limits.gpus != self.limits.gpus:
            said.append(f"KINETIC_LOCAL_GPUS was {','.join(limits.gpus)} when it was submitted")
        elif not row.gpus and limits.slots != self.limits.slots:
            said.append(f"{limits.slots} slots were set when it was submitted (KINETIC_LOCAL_SLOTS)")
        return "; ".join(said) or "jobs that were submitted earlier start first"


def _is_in_the_way(other: JobRow, row: JobRow, limits: Limits) -> bool:
    """Say whether a running job holds a slot, or a device, that a queued one could use."""
    if not row.gpus:
        return not other.gpus
    return bool(set(other.devices.split(",")) & set(limits.gpus))


def _brief(row: GroupRow) -> Observation:
    return Observation(row.job_id, _STATES[row.state], row.attempt, submitted=row.submitted, started=row.started)


_AGAIN = "log in again where it says so; the next command that looks at the job brings its value home"


def _reason(row: JobRow) -> str:
    """Return why a job failed where no store could take its verdict, or what a finished one waits for."""
    return "" if row.verdict in {"", "succeeded", "failed", "ended"} else row.verdict

"""The backend of this machine: jobs run here, detached from the process that submitted them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kinetic._backends import registry
from kinetic._backends.local import runtime_files
from kinetic._backends.local.queue import ACTIVE, VERDICTS, JobRow, Queue
from kinetic._backends.local.queue_connection import is_of_parent
from kinetic._backends.local.runtime_files import HOUR, CompletionReader, Paths, ProcessLock
from kinetic._config import home
from kinetic._wire import folders, python_runtime
from kinetic._wire.failpoints import step
from kinetic.errors import OptionError, RunnerError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.local.expired_files import History
    from kinetic._backends.local.inspector import SocketLink
    from kinetic._backends.local.limits import Limits
    from kinetic._backends.protocol import Clock, DebugAddress, Diagnosis, Launch, Observation, Stacks
    from kinetic._backends.registry import Opening
    from kinetic._hardware.placement import Placement
    from kinetic._wire.order import Order
    from kinetic._wire.progress import Progress
    from kinetic._wire.task import Task

_STATES = {**dict.fromkeys(("waiting", "queued", "claimed"), JobStatus.PENDING), "running": JobStatus.RUNNING}
_NAMED = 3  # GPUs of other users
_ADVANCE_SECONDS = 0.5  # how often a waiting client advances the queue; a completion pipe reports an end at once
_WARM_SECONDS = 30.0  # half of the time that a supervisor stays idle


def open_backend(opening: Opening) -> LocalBackend:
    return LocalBackend(opening.runtime, opening.environ, strict=opening.strict)


class LocalBackend:
    """Run jobs on this machine; its roles are described in the protocol.

    Args:
        runtime: The folder for files of this machine, on a local disk.
        environ: The environment that limits and jobs are taken from.
        strict: Whether the user asked for this backend by name: then missing hardware is an error.
    """

    name = registry.HERE.name
    namespace = "default"
    is_here = True
    clock: Clock = time
    log_poll_seconds = 0.1  # a job flushes its output this often
    poll_seconds = 1.0  # an end is reported by a pipe; this only finds a queue that has lost its supervisor

    def __init__(self, runtime: Path, environ: Mapping[str, str] | None = None, *, strict: bool = False) -> None:
        self.paths = Paths(runtime)
        self.environ = os.environ if environ is None else environ
        self._strict = strict
        self._portable = self.environ.get("KINETIC_PORTABLE") == "1"
        self._readers = threading.local()  # each thread that watches has its own
        self._queue: Queue | None = None
        self._templates: dict[str, tuple[str, str]] = {}  # by interpreter
        self._python = ""  # that of jobs without one of their own, once there is a template
        self._advanced = 0.0
        self._launched = 0.0
        self._lock = python_runtime.free_in_child(threading.Lock())
        self._submitting: dict[str, ProcessLock] = {}

    @functools.cached_property
    def limits(self) -> Limits:
        """How much may run here at once, by this client's settings."""
        from kinetic._backends.local import limits  # not to look

        return limits.read_limits(self.environ)

    @functools.cached_property
    def _machine(self) -> str:
        return home.machine_id(self.environ)

    @property
    def queue(self) -> Queue:
        """The queue of this machine, opened on first use."""
        with self._lock:
            if self._queue is None:
                self.paths.make()
                self._queue = self._open_queue()
                atexit.register(self._queue.close)
            elif not os.path.isdir(self.paths.runtime):  # it was removed, perhaps with the kinetic home
                self.paths.make()
            return self._queue

    def _open_queue(self) -> Queue:
        if not is_of_parent():
            queue = Queue(self.paths.queue, self.environ)
            queue.close_at_forks()
            return queue
        from kinetic._backends.local.queue_process import QueueOfParent  # only in jobs that use kinetic

        return cast("Queue", QueueOfParent(self.paths.queue))

    def _row(self, name: str) -> JobRow | None:
        return self.queue.jobs([name]).get(name)

    # ------------------------------------------------------------------------------------------------ Launcher

    def name_of(self, job_id: str, hosts: int) -> str:
        return f"kinetic-{job_id}"

    def check(self, placement: Placement, requirements: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        from kinetic._backends.local import limits

        if placement.kind == "gpu":
            from kinetic._backends.local import gpu_locks  # only for jobs on GPUs

            gpu_locks.check(self.environ, self.limits.gpus)
        return limits.check(placement, self.environ, self.limits.gpus, strict=self._strict)

    def check_store(self, url: str, requirements: Mapping[str, Any] | None = None) -> None:
        """Refuse a store in the memory of this process; jobs here reach whatever else this client reaches."""
        if url.startswith("memory://"):
            raise OptionError(
                "jobs on this machine need a store that their processes can reach",
                why=f"{url} is in the memory of this process",
                next="unset KINETIC_STORE; in tests: kinetic.testing.fake_backend",
            )

    def prepare(self) -> None:
        if self.environ.get("KINETIC_LOCAL_ENV") == "isolated":  # the Python of the supervisor is not known yet
            return
        if time.monotonic() - self._launched > _WARM_SECONDS:  # else a supervisor of ours is idle, or at work
            template_id, _ = self._template()
            self._advance(ready=template_id, slots=self.limits.slots, template_id=template_id)

    def begin(self, job_id: str) -> None:
        self.paths.make()
        self._begin(job_id)

    def _begin(self, job_id: str, beside: ProcessLock | None = None) -> ProcessLock | None:
        """Begin with a job; ``beside``: the lock of one that is submitted with it, which serves for both."""
        with runtime_files.launch_errors():
            self.paths.job(job_id).mkdir(mode=0o700, exist_ok=True)
            path = self.paths.submitting(job_id)
            if beside is not None and beside.add(path):
                return beside
            held = runtime_files.take_lock(path)
        if held is not None:
            self._submitting[job_id] = held
        return beside or held

    def launch(self, launches: Sequence[Launch]) -> list[str]:
        for interpreter in dict.fromkeys(launch.interpreter for launch in launches):
            with runtime_files.launch_errors():
                self._launch_in(interpreter, [launch for launch in launches if launch.interpreter == interpreter])
        return [launch.order.job_id for launch in launches]

    def _launch_in(self, interpreter: str, launches: Sequence[Launch]) -> None:
        template_id, template = self._template(interpreter)
        umask = folders.read_umask()
        now = time.time()
        tasks, lock = [], None
        self.paths.make()
        for number, launch in enumerate(launches):
            gpus = self._gpus_of(launch.placement)
            queued = {  # the row, should the queue have to be rebuilt
                "group_id": launch.group,
                "template_id": template_id,
                "template": template,
                "gpus": gpus,
                "submitted": now + number * 1e-6,  # in this order
                "slots": self.limits.slots,
                "allowed": ",".join(self.limits.gpus) if gpus else "",
            }
            lock = self._begin(launch.order.job_id, lock)
            runtime_files.make_pipe(self.paths.completion_pipe(launch.order.job_id))
            tasks.append((self._task(launch, umask, queued), launch.key))
        followed = {launch.order.job_id: launch.followed for launch in launches if launch.order.after}
        runtime_files.write_tasks(self.paths, tasks, followed)  # a row is never without its launch page
        step("client:launch-written")
        rows = [(launch.order.job_id, launch.group, self._gpus_of(launch.placement)) for launch in launches]
        after = {each.order.job_id: [one.job_id for one in each.order.after] for each in launches if each.order.after}
        self.queue.add(rows, template_id, template, self.limits, after)
        step("client:queued")
        for launch in launches:
            self.finish_submitting(launch.order.job_id)
        self._launched = time.monotonic()
        self._advance(template_id=template_id)

    def _task(self, launch: Launch, umask: int, queued: dict[str, Any]) -> Task:
        from kinetic._backends.local import scheduler
        from kinetic._wire.task import Task

        order = launch.order
        environ = self.environ if launch.environ is None else launch.environ
        return Task(
            job_id=order.job_id,
            order_sha256=launch.order_sha256,
            store_url=launch.store_url,
            key_id=launch.key_id,
            umask=umask,
            deadline=order.deadline,
            environment=scheduler.job_environment(
                order,
                launch.placement,
                launch.captured,
                environ,
                launch.interpreter,
                store_url=launch.store_url,
                python=self._python,
            ),
            hosts=launch.placement.hosts,
            order_key=order.key if launch.child else "",
            child=launch.child.to_json() if launch.child else None,
            mark=order.mark,
            machine=self._machine,
            function=order.function_name,
            project=place_of(order),
            placed=order.data_to_mount(),
            memory_bytes=order.memory_bytes,
            retries=order.retries,
            cache_key=launch.cache_key.hex(),
            is_command=order.is_command,
            after=[each.to_json() for each in order.after] or None,
            queued=queued,
        )

    def can_hold(self, placement: Placement, requirements: Mapping[str, Any] | None) -> bool:
        return False  # only what jobs follow is waited for in this queue

    def release(self, names: Sequence[str]) -> None:
        """Do nothing: supervisors start jobs here once what they follow has succeeded."""

    def finish_submitting(self, job_id: str, *, leave_nothing: bool = False) -> None:
        held = self._submitting.pop(job_id, None)
        if held is not None:
            held.release(remove=True)
        if leave_nothing:
            from kinetic._backends.local import recovery  # as above

            recovery.remove_job(self.paths, job_id)

    def check_stop(self) -> None:
        """Do nothing: all jobs here are ours."""

    def stop(self, names: Sequence[str], *, wait: float) -> bool:
        for row in self.queue.ask_to_stop(names).values():
            if row.supervisor:
                runtime_files.wake(self.paths.wake(row.supervisor))
        limit = time.monotonic() + wait
        while left := [name for name, row in self.queue.jobs(names).items() if row.state != "ended"]:
            seconds = limit - time.monotonic()
            if seconds <= 0:
                return False
            self.watch(left[0], seconds=min(seconds, 0.1))
        return True

    def remove(self, names: Sequence[str], *, then: Callable[[], object] | None = None) -> None:
        from kinetic._backends.local import recovery

        for name, row in self.queue.jobs(names).items():
            self.stop_watching(name)
            if row.state != "ended":  # its supervisor died after the verdict
                recovery.clear_attempt(self.paths, row)
        self.queue.forget(names)
        step("client:row-forgotten")
        for name in names:
            recovery.remove_job(self.paths, name)
        step("client:folder-removed")
        if then is not None:
            then()

    def remove_unused_code(self) -> int:
        return 0  # ``sweep`` does so

    def sweep(self, scratch: Path | None, history: History | None = None) -> None:
        if self.paths.queue.exists() and folders.is_due(self.paths.swept(scratch), time.time(), HOUR, note=False):
            from kinetic._backends.local import expired_files  # 10 ms; once an hour

            expired_files.sweep(self.paths, self.queue, scratch, history)

    def _template(self, interpreter: str = "") -> tuple[str, str]:
        """Return the id and the text of the process template that this client's jobs need."""
        if interpreter not in self._templates:
            from kinetic._backends.local import scheduler
            from kinetic._project import runner_bundle

            self.paths.make()
            self._python = scheduler.own_python(self.paths)
            runner = runner_bundle.folder(self.paths.runners)
            made = scheduler.make_template(runner, self.environ, interpreter, python=self._python)
            self._templates[interpreter] = scheduler.written_template(made)
            self.queue.add_template(*self._templates[interpreter])
        return self._templates[interpreter]

    def _gpus_of(self, placement: Placement) -> int:
        """Return how many devices a job needs; 0 where it runs on the CPU instead."""
        return placement.chips if placement.kind == "gpu" and self.limits.gpus else 0

    # ------------------------------------------------------------------------------------------------ Observer

    def observe(self, names: Sequence[str], *, at_once: bool = False) -> dict[str, Observation]:
        """Observe jobs; advance the queue first, at once or if this client did not do so for a while."""
        rows = self.queue.jobs(names)
        if any(row.state != "ended" for row in rows.values()) and (at_once or self._is_advance_due()):
            self._advanced = time.monotonic()
            from kinetic._backends.local import recovery

            recovery.hand_over(self.paths, self.queue, list(rows.values()))
            self._advance()
            rows = self.queue.jobs(names)
        seen = {name: self._observation(row) for name, row in rows.items()}
        for name in names:
            if name not in seen and (found := self._without_row(name)) is not None:
                seen[name] = found
        return seen

    def _is_advance_due(self) -> bool:
        return time.monotonic() - self._advanced > _ADVANCE_SECONDS

    def observe_group(self, group: str) -> dict[str, Observation]:
        from kinetic._backends.protocol import Observation

        found = self.queue.group_rows(group)
        if found and self._is_advance_due():
            self._advanced = time.monotonic()
            self._advance()
            found = self.queue.group_rows(group)
        return {
            row.job_id: Observation(
                row.job_id, _STATES[row.state], row.attempt, submitted=row.submitted, started=row.started
            )
            for row in found
        }

    def watch_group(self, group: str, *, seconds: float) -> None:
        """Wait for the end of a running job, or of one that is next.

        A pipe reports only what happens after it was opened, so if one was opened just now, the caller observes again.
        """
        self.queue.check_writable()
        wanted = self.queue.next_to_end(group, 2 * self.limits.slots)
        readers = self._readers_of(group)
        for name in [name for name, reader in readers.items() if name not in wanted or reader.has_ended]:
            readers.pop(name).close()
        new = [name for name in wanted if name not in readers]
        readers.update((name, self._open_reader(name)) for name in new)
        if not new:
            runtime_files.wait_for_any_end(list(readers.values()), seconds)

    def watch(self, name: str, *, seconds: float) -> bool:
        """Wait until the completion pipe reports a change; the first call only opens it, so observe the job once more.

        What no pipe reports, as the end of a supervisor, is seen by who observes it now and then.
        """
        self.queue.check_writable()
        readers = self._readers_of("")
        reader = readers.get(name)
        if reader is None or reader.has_ended:
            if reader is not None:
                reader.close()
            readers[name] = self._open_reader(name)
            self.observe([name], at_once=reader is not None)
            return True
        has_changed = reader.wait(seconds)
        self.observe([name], at_once=reader.has_ended)
        return has_changed

    def without_slot(self) -> AbstractContextManager[None]:
        if "KINETIC_JOB_ID" not in self.environ:
            return contextlib.nullcontext()
        from kinetic._backends.local import scheduler

        return scheduler.slot_lent(self.paths, self.queue, self.environ)

    def stop_watching(self, name: str) -> None:
        reader = self._readers_of("").pop(name, None)
        if reader is not None:
            reader.close()

    def _readers_of(self, group: str) -> dict[str, CompletionReader]:
        """Return the pipes that this thread has open for a batch, or for single jobs."""
        readers: dict[str, CompletionReader] = self._readers.__dict__.setdefault(group, {})
        return readers

    def _open_reader(self, name: str) -> CompletionReader:
        return CompletionReader(self.paths.completion_pipe(name), portable=self._portable)

    def _without_row(self, name: str) -> Observation | None:
        """Observe a job that has no row: not yet, or no longer."""
        from kinetic._backends.protocol import Observation  # 2 ms, here and below; not to list a queue that is at rest

        if runtime_files.is_locked(self.paths.submitting(name)):
            return Observation(name, JobStatus.PENDING, reason="is being submitted")
        row = self._row(name)  # the submission may have ended meanwhile
        return self._observation(row) if row is not None else None

    def find(self) -> Iterator[Observation]:
        if not self.paths.queue.exists():
            return iter(())
        self._advance()
        return iter([self._observation(row) for row in self.queue.rows()])

    def places(self) -> dict[str, tuple[float, int]]:
        """Return the jobs that ``find`` would yield, with their places in the queue, without an observation of each."""
        return self.queue.places() if self.paths.queue.exists() else {}

    def advance(self) -> None:
        """Do whatever the queue needs now, if anything."""
        if self.paths.queue.exists() and not self._is_at_rest():
            self._advance()

    def _is_at_rest(self) -> bool:
        """Return whether nothing is to be recovered or started: no job waits or runs, and every supervisor lives."""
        return not self.queue.is_busy() and all(
            runtime_files.is_locked(self.paths.lock(each.supervisor)) for each in self.queue.supervisors()
        )

    def _advance(self, **named: Any) -> None:
        if self.queue.is_read_only:
            return
        from kinetic._backends.local import scheduler  # 10 ms, with recovery; not to look at a queue that is at rest

        scheduler.advance(self.paths, self.queue, **named)

    def _observation(self, row: JobRow) -> Observation:
        from kinetic._backends.protocol import Observation

        status = _STATES.get(row.state) or (JobStatus.SUCCEEDED if row.verdict == "succeeded" else JobStatus.FAILED)
        return Observation(
            name=row.job_id,
            status=status,
            attempt=row.attempt,
            reason=self._waits_for(row) if row.state in {"waiting", "queued"} else _reason(row),
            submitted=row.submitted,
            started=row.started,
            ended=row.ended,
        )

    def explain(self, name: str) -> Diagnosis | None:
        from kinetic._backends.protocol import Diagnosis

        row = self._row(name)
        if row is None or row.state == "ended":
            return None
        if row.state == "waiting":
            from kinetic._backends.local import followers  # only where a job follows another
            from kinetic._runner.supervisor import predecessors

            names = self.queue.waits_for(name)
            show = predecessors.command_about(names[0]) if names else ""
            return Diagnosis(f"{name} {self._waits_for(row)}", followers.states(self.queue, name), show)
        if row.state == "queued" and (gone := self.queue.missing_python(row.template_id)):
            if gone.endswith(f"/{self.paths.runners.name}"):
                why, again = _way_home(Path(gone).parent, self.paths.runtime)
                again += f"     or cancel the job: kinetic jobs cancel {name}"
                return Diagnosis(f"{name} {self._waits_for(row)}", why=why, next=again)
            why = "the environment that it was submitted from was moved or removed, or its disk is not mounted"
            again = f"make that environment again, or cancel the job: kinetic jobs cancel {name}"
            return Diagnosis(f"{name} {self._waits_for(row)}", why=why, next=again)
        if row.state == "queued":
            next_ = "kinetic jobs list"
            if " is used by " in (waits := self._waits_for(row)):
                next_ = f"kinetic jobs wait {name}     or see its users: nvidia-smi"
            return Diagnosis(f"{name} {waits}", why=self._blockers(row), next=next_)
        if row.state == "claimed" and row.verdict:
            return Diagnosis(f"{name} {row.verdict}", next="see whether the store can be reached: kinetic doctor")
        if reason := _reason(row):
            log_in = "log in again where it says so; the next command that observes the job stores its value"
            return Diagnosis(f"{name} has {reason}", next=log_in)
        with contextlib.suppress(RunnerError):  # it has not begun yet, or has just ended
            from kinetic._runner import processes
            from kinetic._runner.worker import process_setup  # 10 ms, only to look into a running job

            pid = process_setup.read_header(self.paths.files(name, row.attempt, 0).stacks).pid
            if processes.state(pid) == "T":
                why = f"its process {pid} was sent SIGSTOP or SIGTSTP"
                return Diagnosis(f"{name} is stopped", why, f"kill -CONT {pid}", waits=False)
        follow = f"kinetic jobs logs {name} --follow"
        return Diagnosis(f"{name} runs on {os.uname().nodename}", next=follow, waits=False)

    def _waits_for(self, row: JobRow) -> str:
        """Return what a queued job needs, by the limits that it was submitted with, and its place."""
        if row.state == "waiting":
            from kinetic._backends.local import followers  # as above

            return followers.reason(self.queue, row.job_id)
        if gone := self.queue.missing_python(row.template_id):
            if gone.endswith(f"/{self.paths.runners.name}"):
                return f"waits for its kinetic home, {os.path.dirname(gone)}"
            what = f"'s packages: {gone} is" if gone.endswith(".py") else f", {gone}, which is"
            return f"waits for its Python{what} gone"
        what = f"{row.gpus} of {len(row.limits.gpus)} GPUs" if row.gpus else f"one of {row.slots} slots"
        before = self.queue.count_before(row)
        place = {0: "it is next", 1: "one job is before it"}.get(before, f"{before} jobs are before it")
        if row.gpus and not before and (others := self.queue.gpus_of_others(row)):
            place = "; ".join(f"GPU {device} is used by {who}" for device, who in [*others.items()][:_NAMED])
        return f"waits for {what}; {place}"

    def _blockers(self, row: JobRow) -> str:
        """Return which jobs hold what a queued job needs, and a limit of its submission that this client lacks."""
        if self.queue.may_start(row):
            return "what it needs is free: it starts in a moment"
        devices = set(row.limits.gpus)
        held = [
            other.job_id
            for other in self.queue.rows(ACTIVE)
            if (devices & set(other.devices.split(",")) if row.gpus else not other.gpus)
        ]
        reasons = ["running: " + ", ".join(held[:5])] if held else []
        if row.gpus and row.limits.gpus != self.limits.gpus:
            reasons.append(f"KINETIC_LOCAL_GPUS was {row.allowed} when it was submitted")
        elif not row.gpus and row.slots != self.limits.slots:
            slots = "1 slot" if row.slots == 1 else f"{row.slots} slots"
            reasons.append(f"it was submitted with {slots}: by KINETIC_LOCAL_SLOTS, or the cores of the process")
        others = "a GPU has one job at a time, of all users and homes" if row.gpus else ""
        return "; ".join(reasons) or others or "jobs that were submitted earlier start first"

    # ------------------------------------------------------------------------------------------------ Inspector

    def live_log(self, name: str, *, host: int, attempt: int, follow: bool = False) -> FileLog | None:
        return FileLog.open(self.paths.files(name, attempt, host).log)

    def last_log(self, name: str, *, host: int, attempt: int) -> None:
        """Return nothing: ``live_log`` reads the file that the process wrote, however it ended."""

    def live_usage(self, name: str, *, host: int, attempt: int) -> bytes | None:
        try:
            return self.paths.files(name, attempt, host).usage.read_bytes()
        except OSError:
            return None

    def live_progress(self, name: str, *, host: int, attempt: int) -> Progress | None:
        from kinetic._wire import progress  # 1 ms; only for a running job

        return progress.read(self.paths.files(name, attempt, host).progress)

    def debug_addresses(self, name: str, *, hosts: Sequence[int]) -> dict[int, DebugAddress]:
        from kinetic._backends.local import inspector  # 10 ms, here and below; only to look into a running job

        return inspector.debug_addresses(self.paths, self._row(name), hosts)

    def port_address(self, name: str, port: int, *, host: int) -> DebugAddress | None:
        from kinetic._backends.local import inspector

        return inspector.port_address(self._row(name), port)

    def dial(self, address: DebugAddress) -> AbstractContextManager[SocketLink]:
        from kinetic._backends.local import inspector

        return inspector.dial(address)

    def run_in(self, name: str, command: Sequence[str], *, host: int, tty: bool) -> int:
        from kinetic._backends.local import inspector

        return inspector.run(self.paths, self._row(name), command, host, self.environ)

    def stacks(self, name: str, *, hosts: Sequence[int]) -> list[Stacks]:
        from kinetic._backends.local import inspector

        return [inspector.stacks(self.paths, self._row(name), host) for host in hosts]

    # ------------------------------------------------------------------------------------------------ Secrets

    @runtime_files.launch_errors()
    def keep(self, group: str, secrets: Mapping[str, Any], keys: Callable[[], Sequence[bytes]]) -> None:
        """Write them into a file for its owner only; the keys go to each supervisor with its job."""
        from kinetic._backends.local import scheduler
        from kinetic._wire import documents

        folders.make(self.paths.groups)
        cloud = scheduler.is_cloud(*secrets.get("addresses", ()))
        environ = scheduler.allowed_variables(secrets["environ"], cloud=cloud)
        page = {"schema": documents.SCHEMA, **secrets, "environ": environ}
        runtime_files.write_private(self.paths.group_secrets(group), documents.write_ascii(page))
        folders.sync(self.paths.groups)

    def kept(self, group: str) -> dict[str, Any] | None:
        from kinetic._wire import documents

        try:
            page = self.paths.group_secrets(group).read_bytes()
            return documents.read(page, f"what was kept for {group}", any_name=True)
        except FileNotFoundError:
            return None

    def forget_kept(self, group: str) -> None:
        self.paths.group_secrets(group).unlink(missing_ok=True)


def _way_home(old: Path, runtime: Path) -> tuple[str, str]:
    """Return why a job does not start in a runtime folder that was moved or copied, and what to do."""
    import shlex  # on the way to an advice

    above, old_, new = (shlex.quote(str(path)) for path in (old.parent, old, runtime))
    if old.exists():
        return "this home is a copy, and the job waits there as well", f"use the home with {old_}"
    why = "the kinetic home was moved while the job was pending, or its disk is not mounted"
    return why, f"if it was moved here: mkdir -p {above} && ln -s {new} {old_}"


def _reason(row: JobRow) -> str:
    """Return why a job failed where no store could take its verdict, or what a claimed or finished one waits for."""
    return "" if row.verdict in {"", *VERDICTS} else row.verdict


class FileLog:
    """The output of a job in a file of this machine, by byte position."""

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
        return os.fstat(self._descriptor).st_size

    def read(self, start: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, start)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def place_of(order: Order) -> str:
    """Return where a function is, the same for each of its jobs: a job that submits has a copy of the project."""
    plan = order.plan
    return "/".join(
        str(each or "") for each in (plan.get("origin") or plan.get("root"), plan.get("module"), order.script)
    )

"""A backend for tests: it carries out jobs in this process, on a clock that only the test moves.

    launch ──pending_seconds──▶ starts ──running_seconds──▶ the function is called, and its end is written

Everything that is due happens when a caller observes or waits, in the order of its time. So a test decides when a
job starts and ends, by the clock or by ``start``, ``finish``, ``fail`` and ``lose``, and nothing sleeps.
"""

from __future__ import annotations

import contextlib
import heapq
import io
import json
import math
import os
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from kinetic._backends.protocol import BytesLog, Clock, DebugAddress, Diagnosis, Launch, Observation, Stacks
from kinetic._hardware.placement import Placement
from kinetic._runner.supervisor import attempts, predecessors
from kinetic._runner.worker import function_call
from kinetic._stores import open_store
from kinetic._stores.protocol import Store
from kinetic._wire import documents, keys, outcomes, python_runtime, references
from kinetic._wire import order as wire_order
from kinetic._wire.order import Order, Predecessor
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic.errors import BackendError, JobNotFoundError, KineticError, LaunchError, RunnerError
from kinetic.job_status import JobStatus

MACHINE = "fake"
_WITHOUT_BODY = frozenset({"deadline", "runner"})
_NO_LOG: Mapping[int, bytes] = {}
_BUSY_SECONDS = 0.001  # of real time, when nothing is due: another thread may be about to change that


class FakeClock:
    """A clock that moves only when a test moves it: to sleep on it takes no time.

    Args:
        now: Unix time at which it starts.
    """

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self._begun, self._passed = now, 0.0
        self._lock = threading.Lock()

    def time(self) -> float:
        """Return Unix time in seconds, by this clock."""
        return self._begun + self._passed

    def monotonic(self) -> float:
        """Return the seconds that have passed on this clock."""
        return self._passed

    def sleep(self, seconds: float) -> None:
        """Move the clock forward, and return at once."""
        with self._lock:
            self._passed += max(seconds, 0.0)


@dataclass(slots=True)
class _Job:
    """One job of a fake backend. Times are of its clock, which only goes forward."""

    job_id: str
    number: int  # of several that are due at one time, the one that was submitted first is first
    launch: Launch  # until it has ended
    begins: float
    submitted: float
    attempt: int = 0
    ends: float = math.inf
    started: float | None = None
    ended: float | None = None
    status: JobStatus = JobStatus.PENDING
    reason: str = ""
    is_held: bool = False  # whether it waits for the programs of another one
    is_lost: bool = False  # whether it ended without an outcome
    changes: int = 1
    log: Mapping[int, bytes] = field(default_factory=lambda: _NO_LOG)

    @property
    def due(self) -> float:
        """When something happens to it next."""
        return {JobStatus.PENDING: self.begins, JobStatus.RUNNING: self.ends}.get(self.status, math.inf)

    def observation(self) -> Observation:
        return Observation(
            name=self.job_id,
            status=self.status,
            attempt=self.attempt,
            reason=self.reason,
            submitted=self.submitted,
            started=self.started,
            ended=self.ended,
            waits_for_others=self.is_held,
            version=str(self.changes),
        )


class _Roles:
    """The four roles of a backend, over jobs in this process; they are described in the protocol."""

    is_here = False
    namespace = "default"
    poll_seconds = 30.0
    log_poll_seconds = 30.0  # a log only grows when something happens, and that is reported
    name: str
    environ: Mapping[str, str]
    clock: Clock
    pending_seconds: float
    running_seconds: float

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}
        self._groups: dict[str, dict[str, _Job]] = defaultdict(dict)  # the jobs of each batch that have not ended
        self._ends = Counter[str]()  # by batch
        self._due: list[tuple[float, int, _Job]] = []  # a heap; what has changed since then is passed over
        self._waiting: dict[str, _Job] = {}  # jobs whose predecessors have not all succeeded
        self._launched = 0
        self._secrets: dict[str, str] = {}
        self._seen: dict[tuple[int, str], int] = {}  # by thread and job: the changes that were reported to it
        self._lock = threading.RLock()  # a function that is called may submit jobs of its own

    # ------------------------------------------------------------------------------------------------ Launcher

    def begin(self, job_id: str) -> None:
        """Do nothing: until it is launched there is nothing of a job here."""

    def finish_submitting(self, job_id: str, *, leave_nothing: bool = False) -> None:
        """Do nothing; see ``begin``."""

    def check(self, placement: Placement, requirements: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        return ()  # any hardware: none is used

    def check_store(self, url: str, requirements: Mapping[str, Any] | None = None) -> None:
        """Accept any store that this process can open."""

    def prepare(self) -> None:
        """Do nothing: nothing takes time."""

    def launch(self, launches: Sequence[Launch]) -> list[str]:
        if any(launch.order.debug is not None for launch in launches):
            raise LaunchError("debug=True needs a process to attach to, and a fake backend has none")
        with self._lock:
            now = self.clock.monotonic()
            for launch in launches:
                job_id = launch.order.job_id
                if job_id not in self._jobs:
                    self._launched += 1
                    made = _Job(job_id, self._launched, launch, now + self.pending_seconds, self.clock.time())
                    if launch.programs_of:
                        made.begins, made.is_held = math.inf, True
                        made.reason = f"waits until {launch.programs_of} has compiled the programs that both use"
                    if launch.order.after:
                        made.begins = math.inf
                        made.reason = f"waits for {' and '.join(each.job_id for each in launch.order.after)}"
                        self._waiting[job_id] = made
                    self._jobs[job_id] = self._groups[launch.group][job_id] = made
                    heapq.heappush(self._due, (made.due, made.number, made))
        return [launch.order.job_id for launch in launches]

    def can_hold(self, placement: Placement, requirements: Mapping[str, Any] | None) -> bool:
        return True

    def release(self, names: Sequence[str]) -> None:
        """Let jobs begin that wait for programs; others begin here once what they follow has succeeded."""
        with self._lock:
            for job in [self._jobs[name] for name in names if name in self._jobs and self._jobs[name].is_held]:
                job.begins, job.is_held = self.clock.monotonic() + self.pending_seconds, False
                self._change(job, JobStatus.PENDING)

    def compile(self, job_id: str) -> None:
        """Let a running job have compiled what others wait for, as a pod does that reports it."""
        with self._lock:
            self._release_others(self._find(job_id))

    def name_of(self, job_id: str, hosts: int) -> str:
        return f"kinetic-{job_id}"

    def check_stop(self) -> None:
        """Do nothing: all may."""

    def stop(self, names: Sequence[str], *, wait: float) -> bool:
        with self._lock:
            self.remove([name for name in names if name in self._jobs and not self._jobs[name].status.is_final])
        return True

    def remove(self, names: Sequence[str], *, then: Callable[[], object] | None = None) -> None:
        with self._lock:
            for name in names:
                job = self._jobs.pop(name, None)
                self._waiting.pop(name, None)
                if job is not None and not job.status.is_final:
                    del self._groups[job.launch.group][name]
        if then is not None:
            then()

    def remove_unused_code(self) -> int:
        return 0  # it was brought nowhere

    def sweep(self, scratch: Path | None, history: object = None) -> None:
        """Do nothing: everything is gone with this process."""

    # ------------------------------------------------------------------------------------------------ Observer

    def observe(self, names: Sequence[str]) -> dict[str, Observation]:
        with self._lock:
            self._let_happen()
            return {name: self._jobs[name].observation() for name in names if name in self._jobs}

    def observe_group(self, group: str) -> dict[str, Observation]:
        with self._lock:
            self._let_happen()
            return {name: job.observation() for name, job in self._groups[group].items()}

    def find(self) -> Iterator[Observation]:
        with self._lock:
            self._let_happen()
            return iter([job.observation() for job in self._jobs.values()])

    def watch(self, name: str, *, seconds: float) -> bool:
        """Move the clock to the next thing that happens, at most some seconds."""
        at = (threading.get_ident(), name)
        before = self._seen.get(at, 0)
        self._move(seconds, lambda: self._changes_of(name) != before)
        self._seen[at] = self._changes_of(name)
        return self._seen[at] != before

    def watch_group(self, group: str, *, seconds: float) -> None:
        """Move the clock until a job of a batch has ended, at most some seconds."""
        before = self._ends[group]
        self._move(seconds, lambda: self._ends[group] != before)

    def without_slot(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def stop_watching(self, name: str) -> None:
        self._seen.pop((threading.get_ident(), name), None)

    def explain(self, name: str) -> Diagnosis | None:
        with self._lock:
            job = self._jobs.get(name)
            if job is None:
                return None
            if job.status is JobStatus.FAILED and job.reason:
                return Diagnosis(f"{name}: {job.reason}", code="lost", waits=False, status=job.status)
            if job.is_held or name in self._waiting:
                return Diagnosis(f"{name} {job.reason}", status=job.status)
            waits = job.status is JobStatus.PENDING
            when = f"until {job.begins:g} s on the clock" if math.isfinite(job.begins) else "until start() is called"
            what = f"{name} waits {when}" if waits else f"{name} is {job.status.value}"
            return Diagnosis(what, waits=waits, status=job.status)

    # ------------------------------------------------------------------------------------------------ Inspector

    def live_log(self, name: str, *, host: int, attempt: int, follow: bool = False) -> BytesLog | None:
        with self._lock:
            job = self._jobs.get(name)
            return None if job is None or host or attempt not in job.log else BytesLog(job.log[attempt])

    def last_log(self, name: str, *, host: int, attempt: int) -> None:
        """Return nothing: what a job printed is in the store, or in ``live_log``."""

    def live_usage(self, name: str, *, host: int, attempt: int) -> None:
        """Return nothing: a job has no process of its own that could be measured."""

    def live_progress(self, name: str, *, host: int, attempt: int) -> None:
        """Return nothing, as above."""

    def debug_addresses(self, name: str, *, hosts: Sequence[int]) -> dict[int, DebugAddress]:
        return {}

    def port_address(self, name: str, port: int, *, host: int) -> DebugAddress | None:
        return None

    def dial(self, address: DebugAddress) -> AbstractContextManager[Any]:
        raise BackendError(f"cannot connect to port {address.port}: a fake backend has no ports")

    def run_in(self, name: str, command: Sequence[str], *, host: int, tty: bool) -> NoReturn:
        raise RunnerError(f"{name} has no process of its own: a fake backend runs it in this one")

    def stacks(self, name: str, *, hosts: Sequence[int]) -> list[Stacks]:
        return [Stacks(host, "", f"{name} has no process of its own") for host in hosts]

    # ------------------------------------------------------------------------------------------------ Secrets

    def keep(self, group: str, secrets: Mapping[str, Any], keys: Callable[[], Sequence[bytes]]) -> None:
        self._secrets[group] = json.dumps(dict(secrets))

    def kept(self, group: str) -> dict[str, Any] | None:
        found = self._secrets.get(group)
        return None if found is None else dict(json.loads(found))

    def forget_kept(self, group: str) -> None:
        self._secrets.pop(group, None)

    # ------------------------------------------------------------------------------------------------ what happens

    def _find(self, job_id: str) -> _Job:
        job = self._jobs.get(job_id)
        if job is None or job.status.is_final:
            there = ", ".join(name for name, each in self._jobs.items() if not each.status.is_final)
            raise JobNotFoundError(
                f"no job {job_id} is pending or running on the backend {self.name}", why=f"there are: {there or 'none'}"
            )
        return job

    def _move(self, seconds: float, happened: Callable[[], bool]) -> None:
        """Move the clock from one thing that happens to the next, until it is the one, or the time is over."""
        until, due = self.clock.monotonic() + seconds, math.inf
        while not happened():
            with self._lock:
                now = self.clock.monotonic()
                due = self._next_due()
                self.clock.sleep(min(due, until) - now)
                self._let_happen()
                if due > until:
                    break
        if due == math.inf and not happened():
            time.sleep(_BUSY_SECONDS)

    def _let_happen(self) -> None:
        """Do what is due, in the order of its time."""
        self._settle_followers()
        while self._next_due() <= self.clock.monotonic():
            _, _, job = heapq.heappop(self._due)
            if job.status is JobStatus.PENDING:
                self._begin(job)
            else:
                self._end(job, *self._call(job))
            self._settle_followers()

    def _settle_followers(self) -> None:
        """Let the jobs begin whose predecessors have all succeeded, and close those of which one did not."""
        for job in [*self._waiting.values()]:
            after, store = job.launch.order.after, open_store(job.launch.store_url)
            key_of = predecessors.key_finder(after, job.launch.followed)
            found = [(each, self._look(store, each, key_of)) for each in after]
            failed = next((pair for pair in found if pair[1].is_over), None)
            if failed is None and not all(finding.status for _, finding in found):
                continue
            del self._waiting[job.job_id]
            if failed is None:
                job.begins, job.reason = self.clock.monotonic() + self.pending_seconds, ""
                heapq.heappush(self._due, (job.due, job.number, job))
                continue
            error = predecessors.why_closed(*failed)
            verdict = predecessors.verdict_of(job.job_id, job.launch.key_id, error, witness="supervisor")
            attempts.seal_outcome(store, verdict, job.launch.key, mark=job.launch.order.mark)
            self._change(job, JobStatus.FAILED, error.what)

    def _look(self, store: Store, each: Predecessor, key_of: predecessors.KeyOf) -> predecessors.Finding:
        """Return the state of a predecessor; a job that was lost has no outcome, and this is who knows of it."""
        finding, allowed = predecessors.look(store, each, key_of), predecessors.attempts_of_inputs(store, each, key_of)
        children = [each.child_id(index, allowed(index) - 1) for index in range(each.inputs)]
        names = children or [each.job_id]
        lost = next((job for name in names if (job := self._jobs.get(name)) and job.is_lost), None)
        return predecessors.Finding(outcomes.FAILED, lost.reason) if lost and not finding.status else finding

    def _next_due(self) -> float:
        while self._due:
            due, _, job = self._due[0]
            if due == job.due and job.job_id in self._jobs:
                return due
            heapq.heappop(self._due)
        return math.inf

    def _change(self, job: _Job, status: JobStatus, reason: str = "") -> None:
        job.status, job.reason = status, reason
        job.changes += 1
        if not status.is_final:
            heapq.heappush(self._due, (job.due, job.number, job))
            return
        job.ended = self.clock.time()
        self._ends[job.launch.group] += 1
        self._groups[job.launch.group].pop(job.job_id, None)
        del job.launch  # most of what a job takes in memory
        job.begins = job.ends = math.inf

    def _begin(self, job: _Job) -> None:
        """Claim an attempt, as a runner does first of all."""
        if job.status is not JobStatus.PENDING:
            return
        self._waiting.pop(job.job_id, None)  # a test lets it begin before those that it follows have ended
        launch, now = job.launch, self.clock.monotonic()
        begun = min(job.begins, now)  # the clock may have been moved far beyond it
        job.started = self.clock.time() - (now - begun)
        job.ends = begun + min(self.running_seconds, launch.order.deadline or math.inf)
        note = AttemptNote(job.job_id, job.attempt, MACHINE, job.started, python=python_runtime.python_version())
        open_store(launch.store_url).put(note.key, note.to_bytes(launch.key))
        self._change(job, JobStatus.RUNNING)

    def _call(self, job: _Job) -> tuple[function_call.Value | function_call.Failure, bytes]:
        """Call a job's function; return how it ended and what it printed."""
        printed = io.StringIO()
        order = job.launch.order
        if order.deadline is not None and self.running_seconds > order.deadline:
            late = TimeoutError(f"the job was ended at its deadline of {order.deadline:g} s")
            return _failure(late, "deadline"), b""
        if order.data:
            advice = "use kinetic.testing.temporary_home(folder), where jobs run in processes of their own"
            what = f"{job.job_id} reads data, which a fake backend does not deliver"
            missing = RunnerError(what, phase="data", why="functions run in the process of the test", next=advice)
            return _failure(missing, "runner"), b""
        ended: function_call.Value | function_call.Failure
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            try:
                store = open_store(job.launch.store_url)
                packed = function_call.fetch_artifact(store, order.function, "the function")
                arguments = function_call.fetch_artifact(store, order.arguments, "the arguments")
                if order.after:
                    values = predecessors.check_ready(store, order.after, job.launch.followed)
                    references.set_results(predecessors.opener(store, values, function_call.load_value))
                function, args, kwargs = function_call.open_payload(packed, arguments)
            except Exception as error:  # noqa: BLE001 - the user's modules are imported here
                ended = _failure(error, "runner")
            else:
                with changed_environment(_chosen_outputs(order)):
                    ended = function_call.call_function(function, args, kwargs)
                if isinstance(ended, function_call.Failure):
                    printed.write(ended.error["traceback"])
        return ended, printed.getvalue().encode()

    def _end(self, job: _Job, ended: function_call.Value | function_call.Failure, printed: bytes = b"") -> None:
        """Write down how an attempt ended: the verdict of the job, unless it is tried again."""
        store, order, key = open_store(job.launch.store_url), job.launch.order, job.launch.key
        verdict, body = self._verdict(job, ended)
        if printed:
            job.log = {**job.log, job.attempt: printed}
            store.put(keys.log_segment(job.job_id, job.attempt, 0, 0), printed, if_absent=True)
        if attempts.retry_reason(store, verdict, order.retries, key):
            attempts.note_failure(store, verdict, key, clock=self.clock.time)
            job.attempt, job.begins = job.attempt + 1, self.clock.monotonic() + self.pending_seconds
            self._change(job, JobStatus.PENDING)
            return
        created = store.put(keys.result(job.job_id), body + verdict.footer(key), if_absent=True)
        if created and order.mark:
            store.put(documents.sealed_name(order.mark, verdict.status, key), b"")
        self._release_others(job)
        self._change(job, JobStatus.SUCCEEDED if verdict.succeeded else JobStatus.FAILED)

    def _release_others(self, job: _Job) -> None:
        """Let the children of a batch begin that wait for the programs of its first one."""
        launch = job.launch
        if launch.awaited_seconds:
            open_store(launch.store_url).put(keys.group_compiled(launch.group), b"", if_absent=True)
            self.release(list(self._groups[launch.group]))

    def _verdict(self, job: _Job, ended: function_call.Value | function_call.Failure) -> tuple[Outcome, bytes]:
        """Return the verdict about an attempt, and the pickled value or exception."""
        if isinstance(ended, function_call.Failure) and ended.cause in _WITHOUT_BODY:
            page: dict[str, Any] = {"status": outcomes.FAILED, "cause": ended.cause, "error": ended.error}
            body = b""
        else:
            with tempfile.TemporaryDirectory(prefix="kinetic-") as folder:
                file = function_call.BodyFile(Path(folder, "body"))
                page = function_call.deliver(ended, file)
                body = file.path.read_bytes()
                os.close(file.descriptor())
        verdict = Outcome(
            job_id=job.job_id,
            attempt=job.attempt,
            phase="execute",
            started=job.started,
            ended=self.clock.time(),
            witness="runner",
            key_id=job.launch.key_id,
            **page,
        )
        return verdict, body

    def _changes_of(self, name: str) -> int:
        job = self._jobs.get(name)
        return job.changes if job is not None else -1


@contextlib.contextmanager
def changed_environment(changed: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process until the block ends."""
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _chosen_outputs(order: Order) -> dict[str, str]:
    """Make the output folder that was chosen for a job; return the variables that name it, none where none was."""
    if not wire_order.local_folder(order.output_dir):
        return {}
    checkpoints = wire_order.make_output_dir(wire_order.checkpoints_of(order))
    return {"KINETIC_OUTPUT_DIR": order.output_dir, "KINETIC_CHECKPOINT_DIR": checkpoints}


def _failure(error: Exception, cause: str) -> function_call.Failure:
    described = function_call.describe(error)
    if isinstance(error, KineticError):  # as a worker tells what kept a function from beginning
        described |= {"what": error.what, "why": error.why, "next": error.next, "code": error.code}
    return function_call.Failure(error, described, cause=cause)


class FakeBackend(_Roles):
    """Carry out jobs in this process, when the clock says so.

    Functions are called with the modules, the environment variables and the working folder of this process; data is
    not delivered. What a function prints is the log of its job.

    Args:
        clock: Another clock than one of its own.
        pending_seconds: How long a job waits until it begins; ``math.inf`` for until ``start`` is called.
        running_seconds: How long it runs; ``math.inf`` for until ``finish``, ``fail`` or ``lose`` is called.
        name: As the registry has it.
        environ: The environment of the client.

    Attributes:
        clock: What moves it: ``backend.clock.sleep(60)`` takes no time.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        pending_seconds: float = 1.0,
        running_seconds: float = 1.0,
        name: str = "fake",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.name, self.environ = name, environ or {}
        self.clock: Clock = FakeClock() if clock is None else clock
        self.pending_seconds, self.running_seconds = pending_seconds, running_seconds

    @property
    def jobs(self) -> list[str]:
        """The ids of the jobs that are there, in the order of their submission."""
        with self._lock:
            return list(self._jobs)

    def start(self, job_id: str) -> None:
        """Let a pending job begin now."""
        with self._started(job_id):
            pass

    def run(self, job_id: str) -> None:
        """Call a job's function now, and write down how it ended."""
        with self._started(job_id) as job:
            self._end(job, *self._call(job))

    def finish(self, job_id: str, value: object = None) -> None:
        """Let a job succeed with a value, without calling its function."""
        with self._started(job_id) as job:
            self._end(job, function_call.Value(value))

    def fail(self, job_id: str, error: Exception) -> None:
        """Let a job fail with an exception, without calling its function."""
        with self._started(job_id) as job:
            self._end(job, function_call.Failure(error, function_call.describe(error)))

    def lose(self, job_id: str, reason: str = "its machine was taken away") -> None:
        """Let a job disappear without an outcome."""
        with self._started(job_id) as job:
            job.is_lost = True
            self._change(job, JobStatus.FAILED, reason)

    @contextlib.contextmanager
    def _started(self, job_id: str) -> Iterator[_Job]:
        """Let a job begin, if it is pending, and change it while no other thread can."""
        with self._lock:
            job = self._find(job_id)
            self._begin(job)
            yield job

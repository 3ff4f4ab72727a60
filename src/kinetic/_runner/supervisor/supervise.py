"""One attempt at a job, from its claim to its verdict: claim, fork, watch, judge, seal, or leave it to another attempt.

The same for every place where jobs run. A *source* brings the task, and learns the result: the row of a queue
(``_backends/local/supervisor.py``), or the only argument of a container (``_runner/pod/entrypoint.py``).

A supervisor stays small and single-threaded, so that forking it is safe and fast. It holds the job's key only after the
fork: user code never has it in memory. Whatever processes a worker leaves behind are ended with it.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from kinetic._runner import processes
from kinetic._runner.supervisor import attempts, verdicts
from kinetic._runner.supervisor.verdicts import Ending, ReportReader
from kinetic._stores import open_anew, open_store
from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Store
from kinetic._wire import dataclass, digests, fields, folders, keys
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import SUCCEEDED, AttemptNote, Outcome
from kinetic._wire.task import LOG_STACKS_SIGNAL, READERS, Task
from kinetic.errors import CredentialsError, KineticError

if TYPE_CHECKING:
    from kinetic._runner.supervisor.meter import Meter
    from kinetic._runner.supervisor.output_files import OutputFiles
    from kinetic._wire.measurements import Measurements

T = TypeVar("T")
Decision = tuple[Outcome, Path | None]  # a verdict, and the file with its pickled value or exception
Entry = Callable[[Task, int], NoReturn]  # what a worker does with its task and its end of the report
Tasks = Generator[Task, None, None]  # what a worker is told of one task, one after the other

DECIDED, REMOVED, TAKEN = "decided", "removed", "taken"  # why there is nothing to do for a task
WORKER_SCRIPT = "worker.py"  # in the folder of the runner

_CLOUD_CLIENT = "kinetic._stores.obstore_client"  # starts threads with its first request, and none when imported
_GRACE_SECONDS = 5.0  # for atexit handlers after the result is complete, and between SIGTERM and SIGKILL
_STACKS_SECONDS = 0.5  # for writing the stacks before the deadline's kill
_PEER_SECONDS = 2.0  # between the first failure on a slice and the end of its peers, which wait for it in vain
_TRACKER_SECONDS = 2.0  # for what removes shared memory, once all others have ended
_STUCK_SECONDS = 60.0  # after SIGKILL: one that the kernel ends takes some, with devices or much memory
_MEASURE_SECONDS = 1.0  # after which it is measured what a job uses; a shorter job costs nothing
_LOOK_SECONDS = 60.0  # nothing is polled: this only guards against a lost wake-up
_MOST_DESCRIPTORS = 4096  # where the system does not list them
_PR_SET_PDEATHSIG = 1
_LENGTH_BYTES = 8  # of a task that a worker is told


class Source(Protocol):
    """Where one task comes from, and what learns the result."""

    task: Task
    store: Store  # set by the supervisor, and set anew when its credentials have expired
    wake: int  # a descriptor that becomes readable when ``is_unwanted`` should be called
    witness: str  # the author of the verdict
    passes: tuple[type[Exception], ...]  # errors of a store that a verdict waits for; none for a store on this machine

    @property
    def waits_for_exit(self) -> bool: ...  # whether its process must be gone before the verdict: 20 ms where JAX is
    @property
    def is_retried(self) -> bool: ...  # whether a failure may be followed by another attempt
    @property
    def elsewhere(self) -> Callable[[], bool] | None: ...  # whether the hosts in other pods are done; None: no others

    def temporary_key(self) -> AbstractContextManager[bytes]:
        """Give access to the job's key before the worker is forked: nothing of it may stay in this process."""

    def key(self) -> bytes:
        """Return the job's key; only after the fork."""

    def reach(self, do: Callable[[], T]) -> T:
        """Do something with the store before the job begins; repeat it if this source waits for one out of reach."""

    def skip(self, why: str) -> None:
        """Note that there is nothing to do: DECIDED, REMOVED, or TAKEN by another machine."""

    def claim(self, key: bytes) -> AttemptNote | None:
        """Make the next attempt ours; None when another machine has begun with the job."""

    def begin(self, note: AttemptNote) -> Sequence[Task]:
        """Return the task of each of our hosts, the leader first; nothing if the job is not to begin any more."""

    def forked(self, hosts: Sequence[WatchedWorker]) -> None:
        """Note that the workers run."""

    def keep_usage(self, task: Task, found: Measurements) -> None:
        """Keep what one of our hosts used so far, in the place of what was kept before, without waiting for a store."""

    def is_unwanted(self) -> bool:
        """Return whether the job should end."""

    def decide(self, tasks: Sequence[Task], task: Task, ending: Ending, verdict: Outcome) -> Decision | None:
        """Return the verdict, or None when it is left to another attempt or another host.

        ``task``, ``ending`` and ``verdict``: of the host that decides among ours.
        """

    def log_digests(self, tasks: Sequence[Task]) -> tuple[digests.LogDigest, ...]:
        """Return the digests of what our hosts printed; none of their processes is left."""

    def may_seal(self, verdict: Outcome) -> bool:
        """Do what comes before a verdict or a retry; False when this attempt must not write one any more."""

    def try_again(self, reason: str) -> None:
        """Leave the job to another attempt: this one failed, and the job has retries left."""

    def wait(self, seconds: float) -> bool:
        """Wait; return whether there is no use in waiting any longer."""

    def waits(self, words: str) -> None:
        """Report what a verdict waits for."""

    def patience_seconds(self, verdict: Outcome) -> float:
        """Return how long a verdict waits for its store."""

    def let_go(self) -> None:
        """Wake whatever waits for the job: no worker runs any more."""

    def finish(self, tasks: Sequence[Task], verdict: Outcome, *, created: bool) -> None:
        """Clean up; the outcome is in the store: this verdict if it was ``created``, else another one."""


class Supervisor:
    """Carries out tasks, one after the other, in a process of its own."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self._reserve = attempts.DiskReserve()
        self.libc = processes.load_libc()
        self.title = processes.ProcessTitle(self.libc)
        self.early: EarlyWorker | None = None  # for the next task, which has one host
        processes.adopt_orphans(self.libc)
        self._child_signal = ChildSignal()

    def discard_early(self) -> None:
        """Have the worker end that was forked for the next task, if there is one."""
        early, self.early = self.early, None
        if early is not None:
            early.discard()

    def carry_out(self, source: Source) -> None:
        """Make one attempt at a task, to its end."""

        def is_over() -> str:
            job_id, store = source.task.job_id, source.store
            reasons: Sequence[Callable[[], str]] = (
                lambda: DECIDED if store.size(keys.result(job_id)) is not None else "",
                lambda: REMOVED if attempts.was_removed(store, job_id, source.temporary_key()) else "",
            )
            found = set(in_parallel(store, reasons, limit=1 if store.local else None))  # no threads before a fork
            return DECIDED if DECIDED in found else max(found)

        def claimed() -> AttemptNote | None:
            with source.temporary_key() as key:
                return source.claim(key)

        source.store = open_store(source.task.store_url)
        why = source.reach(is_over)
        note = None if why else source.reach(claimed)
        if note is None:
            source.skip(why or TAKEN)
            return
        step("supervisor:attempt-noted")
        tasks = source.begin(note)
        if not tasks:
            return
        step("supervisor:marked-running")
        self._reserve.hold(source.store)
        try:
            sealed = self._run_to_verdict(source, note, tasks)
        finally:
            source.let_go()
        step("supervisor:told")
        if sealed is not None:
            verdict, created = sealed
            source.finish(tasks, verdict, created=created)

    def _run_to_verdict(self, source: Source, note: AttemptNote, tasks: Sequence[Task]) -> tuple[Outcome, bool] | None:
        """Fork, watch, judge and seal; return the verdict, and whether it is the one in the store."""
        hosts = self._start_workers(tasks)
        step("supervisor:forked")
        source.forked(hosts)
        outputs = _send_outputs(tasks)
        endings = watch_workers(hosts, self._child_signal, source)
        step("supervisor:worker-ended")
        for each, sending in outputs:
            if trouble := sending.finish(source.wait):
                where = each.environment["KINETIC_OUTPUT_DIR"]
                folders.append(each.log, f"kinetic: not all files of the job have reached {where}: {trouble}\n")
        at = verdicts.decisive_host(tasks, endings)
        task, ending = tasks[at], endings[at]
        memory = 0 if ending.word is not None else processes.memory_bytes()
        judged = verdicts.judge(task, ending, started=note.started, ended=time.time(), machine_bytes=memory)
        decided = source.decide(tasks, task, ending, replace(judged, key_id=task.key_id, witness=source.witness))
        if decided is None:
            return None
        verdict, body = decided
        key, retries = source.key(), source.task.retries
        reason = ""
        if not verdict.succeeded and retries and source.is_retried:
            reason = store_patiently(source, lambda: attempts.retry_reason(source.store, verdict, retries, key))
        if reason:
            folders.append(task.log, f"kinetic: {reason}\n")
        verdict = replace(verdict, logs=(*source.log_digests(tasks), *verdict.logs))
        if not source.may_seal(verdict):
            return None
        if reason:
            store_patiently(source, lambda: attempts.note_failure(source.store, verdict, key))
            source.try_again(reason)
            return None
        step("supervisor:judged")
        created = store_patiently(
            source,
            lambda: attempts.seal_outcome(source.store, verdict, key, body=body, spare=self._reserve, mark=task.mark),
            seconds=source.patience_seconds(verdict),
        )
        step("supervisor:sealed")
        return verdict, created

    def _start_workers(self, tasks: Sequence[Task]) -> list[WatchedWorker]:
        early, self.early = self.early, None
        if early is not None:
            try:
                return [early.start(tasks[0])]
            except OSError:  # it has ended since it was looked at: the kernel may want its memory; or no disk has room
                early.end()
        return [start_worker(task, self._entry, self.libc, self.title) for task in tasks]


def _send_outputs(tasks: Sequence[Task]) -> list[tuple[Task, OutputFiles]]:
    """Begin to send what our hosts write, where their output directory is an address."""
    if "://" not in tasks[0].environment.get("KINETIC_OUTPUT_DIR", ""):
        return []
    from kinetic._runner.supervisor.output_files import OutputFiles  # on this machine it is a folder

    found = [(task, OutputFiles(task)) for task in tasks]
    for _, sending in found:
        sending.start()
    return found


def store_patiently(source: Source, do: Callable[[], T], *, seconds: float = attempts.HOUR) -> T:
    """Write something into the store that must not be lost, however long it is out of reach or rejects us."""

    def waits(error: Exception) -> None:
        if isinstance(error, CredentialsError):
            with contextlib.suppress(KineticError):
                source.store = open_anew(source.task.store_url)  # with the credentials that there are by now
        source.waits(attempts.waiting_message(error))

    return attempts.keep_trying(do, source.passes, wait=source.wait, say=waits, seconds=seconds)


# ----------------------------------------------------------------------------------------------------- start a worker


@dataclass
class WatchedWorker:
    """One worker; its supervisor alone changes this. Times are monotonic seconds."""

    task: Task
    pid: int  # its process, and its process group
    reader: ReportReader
    began: float
    closing: Sequence[int]  # descriptors to close at the end
    memory_kills: int  # of the kernel, when it began
    guard: processes.MemoryGuard | None = None  # if a memory limit was asked for
    grace: float = _GRACE_SECONDS  # from SIGTERM to SIGKILL
    spare_children: bool = False  # SIGTERM goes to the worker alone, which may need its children to save its work
    status: int | None = None
    has_left: bool = False  # its exit handlers have run, and only the kernel's work at its process is left
    peak_bytes: int = 0
    cpu_seconds: float = 0.0  # of those of its processes that this one has reaped
    meter: Meter | None = None  # once it has run for a second
    measure_due: float = float("inf")
    held_bytes: int = 0  # what its processes held when that was too much
    done_at: float | None = None
    dumped_at: float | None = None
    term_at: float | None = None
    failed_at: float | None = None
    peer_limit: float | None = None
    deadline_hit: bool = False
    stopped: bool = False
    for_a_peer: bool = False
    killed_at: float | None = None  # the first SIGKILL

    @property
    def due(self) -> float:
        """Return when its deadline is; infinite for none."""
        begun = self.reader.report.begun_again or self.began
        return float("inf") if self.task.deadline is None else begun + self.task.deadline

    @property
    def last_seconds(self) -> float:
        """Return how long it has at its deadline: to write its stacks, or for a command to end by itself."""
        return self.grace if self.task.is_command else _STACKS_SECONDS

    @property
    def is_over(self) -> bool:
        """Return whether this host has sent its final report, or its process has ended."""
        return self.status is not None or self.reader.report.done is not None

    @property
    def has_failed(self) -> bool:
        """Return whether this host reported a failure, or ended without a report."""
        done = self.reader.report.done
        return done.get("status") != SUCCEEDED if done is not None else self.status is not None


def preload() -> None:
    """Import what every worker needs, so that a fork is a warm start; nothing that starts threads."""
    import random

    import cloudpickle

    _ = (random, cloudpickle)


def start_worker(task: Task, entry: Entry, libc: Any, title: processes.ProcessTitle) -> WatchedWorker:
    """Fork a worker, which holds no descriptor of this process but its end of the report."""

    def begin(report: int) -> NoReturn:
        if needs_own_interpreter() or task.own_interpreter:
            try:
                exec_worker(task, report)
            except BaseException:  # noqa: BLE001 - nothing may reach the supervisor's frames below this fork
                sys.excepthook(*sys.exc_info())
                os._exit(70)
        entry(task, report)

    return _watch(task, *_fork((task.job_id, f"worker {task.folder}"), libc, title, begin))


SPARE = "kinetic-spare"  # what `top` shows of a worker that has no task yet: at most 15 bytes


class EarlyWorker:
    """A worker that is forked before its task is known, and gets ready meanwhile.

    In a pod before anything with threads is loaded; on a machine while its supervisor has nothing to do.

    Args:
        entry: Gets what the worker is told, and its end of the report: in a pod first the task as far as it is known,
            then the complete one. If that ends before, it is discarded.
        libc: Of ``processes.load_libc``.
        fork: Forks it in another process, see ``Preloader.fork``.
    """

    def __init__(
        self,
        entry: Callable[[Tasks, int], NoReturn],
        libc: Any,
        fork: Callable[[int, int], tuple[int, ...]] | None = None,
    ) -> None:
        file = self._file = _nameless_file()
        told, self._tell = os.pipe()
        kept, shown = (told, file.fileno()), (SPARE, "a worker that waits for its task")
        try:
            if fork is not None:
                self._forked = fork(*kept)
            else:
                title = processes.ProcessTitle(libc)
                self._forked = _fork(shown, libc, title, lambda report: entry(hear_tasks(*kept), report), *kept)
        except OSError:  # no process can be started now
            self._close()
            raise
        finally:
            os.close(told)

    @property
    def is_alive(self) -> bool:
        """Return whether it waits for its task."""
        try:
            return os.waitid(os.P_PID, self._forked[0], os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def tell(self, task: Task) -> None:
        """Tell it what is known of its task; raises BrokenPipeError if it has ended."""
        data = task_bytes(task)
        folders.write_all(self._file.fileno(), data)
        os.write(self._tell, len(data).to_bytes(_LENGTH_BYTES))

    def start(self, task: Task) -> WatchedWorker:
        """Have it carry out the complete task."""
        self.tell(task)
        self._close()
        return _watch(task, *self._forked)

    def discard(self) -> None:
        """Have it end: there is nothing to do, or it is done in another way."""
        self._close()
        for descriptor in self._forked[1:]:
            os.close(descriptor)

    def end(self) -> None:
        """Discard it, and wait for its end."""
        self.discard()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._forked[0], signal.SIGKILL)
            os.waitpid(self._forked[0], 0)

    def _close(self) -> None:
        os.close(self._tell)
        self._file.close()


def hear_tasks(told: int, file: int) -> Tasks:
    """Yield what the parent tells of a task, in a worker that was forked before it was known."""
    at = 0
    try:
        while length := int.from_bytes(os.read(told, _LENGTH_BYTES)):
            yield task_from(os.pread(file, length, at))
            at += length
    finally:
        os.close(told)
        os.close(file)


def _fork(
    shown: tuple[str, str], libc: Any, title: processes.ProcessTitle, begin: Callable[[int], NoReturn], *kept: int
) -> tuple[int, ...]:
    """Fork a process for a worker; return its number, our end of the report, and what else to close at the end."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    supervisor = os.getpid()
    life, alive = os.pipe() if libc is None else (-1, -1)
    for stream in (sys.stdout, sys.stderr):  # else the worker has a copy of what is not written yet, and writes it, too
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    gc.freeze()  # no time; else the worker's first collection writes to, and so copies, all that was made here
    try:
        pid = os.fork()
    except OSError:
        for descriptor in filter(lambda each: each >= 0, (read_end, write_end, life, alive)):
            os.close(descriptor)
        raise
    if pid == 0:
        os.setpgid(0, 0)
        close_all_but(write_end, life, *kept)
        die_with(supervisor, libc, life)
        title.set(*shown)
        begin(write_end)
    os.close(write_end)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # either of the two processes may be first
    if life >= 0:
        os.close(life)
    return (pid, read_end, alive) if alive >= 0 else (pid, read_end)


def _watch(task: Task, pid: int, *closing: int) -> WatchedWorker:
    watched = WatchedWorker(task, pid, ReportReader(closing[0]), time.monotonic(), closing, _recent_memory_kills())
    if sys.platform == "linux":  # elsewhere there is no /proc
        watched.measure_due = watched.began + _MEASURE_SECONDS
    if task.memory_bytes and processes.can_measure_memory():
        watched.guard = processes.MemoryGuard(task.memory_bytes, lambda: _processes_of(pid))
    return watched


def needs_own_interpreter() -> bool:
    """Return whether this process has used a store in the cloud, and with it threads that a forked child has not."""
    client = sys.modules.get(_CLOUD_CLIENT)
    return client is not None and client.was_used()


def exec_worker(task: Task, report: int) -> NoReturn:
    """Turn this process into a fresh interpreter that carries out the task; never returns."""
    # What this interpreter was started with, whatever user code has put into sys.argv.
    flags = itertools.takewhile(lambda word: word[:1] == "-" and word not in {"-c", "-m"}, sys.orig_argv[1:])
    with _nameless_file() as file:
        folders.write_all(file.fileno(), task_bytes(task))
        file.seek(0)
        for descriptor in (file.fileno(), report):
            os.set_inheritable(descriptor, True)
        words = [sys.executable, *flags, str(Path(task.runner) / WORKER_SCRIPT), str(file.fileno()), str(report)]
        environ = task.environment if task.own_interpreter else os.environ
        os.execve(words[0], words, environ)  # noqa: S606 - without a shell on purpose


def _nameless_file() -> IO[bytes]:
    """Open a file for a task and its environment: in memory where that exists, since /tmp may be full."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("kinetic-task"), "w+b", buffering=0)
    import tempfile  # 4 ms

    return tempfile.TemporaryFile(buffering=0)


def task_bytes(task: Task) -> bytes:
    """Return what a worker is told of its task."""
    return json.dumps(task.to_json()).encode("ascii")  # not all variables are UTF-8


def task_from(data: bytes) -> Task:
    """Read what a worker is told; raises IntegrityError if it is no task."""
    return fields.build(Task, READERS, json.loads(data), "the task of this worker")


def _processes_of(worker: int, *, is_there: bool = True) -> list[int]:
    """Return the processes of a worker: its descendants, and those of its group whose parents have ended."""
    roots = [worker] if is_there else []
    for child in processes.children_of(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            if child != worker and os.getpgid(child) == worker:
                roots.append(child)
    return [pid for root in roots for pid in processes.tree_of(root)]


def close_all_but(*kept: int) -> None:
    """Close every descriptor above the standard ones: user code must not reach what belongs to its supervisor."""
    signal.set_wakeup_fd(-1)
    try:
        there = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:  # no /proc in this container
        there = list(range(_MOST_DESCRIPTORS))
    for descriptor in there:
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):  # the one that listed them is gone already
                os.close(descriptor)


def die_with(supervisor: int, libc: Any, life: int = -1) -> None:
    """Arrange that this process ends when its supervisor does; ``life``: see ``_fork``, where there is no libc."""

    def end_at_eof() -> None:
        os.read(life, 1)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        import threading

        threading.Thread(target=end_at_eof, name="kinetic-life", daemon=True).start()
    if os.getppid() != supervisor:
        os._exit(70)


# -------------------------------------------------------------------------------------------------------- watch it


class ChildSignal:
    """SIGCHLD as a descriptor that becomes readable."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe()
        for end in (self.descriptor, self._write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)


def watch_workers(hosts: Sequence[WatchedWorker], child_signal: ChildSignal, source: Source) -> list[Ending]:
    """Wait for the end of every host's worker, the leader first; enforce deadline and stop; leave no process behind.

    A slice succeeds or fails as one: when a host fails, its peers would wait for it in vain, so they are ended soon
    after; and a host that is done waits at its exit until the others are, as JAX wants it to.
    """
    inputs = _Inputs(hosts, child_signal, source.wake)
    while any(watched.status is None and not watched.has_left and not _is_stuck(watched) for watched in hosts):
        asked = inputs.wait(min(map(_seconds_to_next_action, hosts)))
        if asked and not hosts[0].stopped and source.is_unwanted():
            for watched in hosts:
                watched.stopped = True
        _reap(hosts)
        _end_peers_of_failed_hosts(hosts, source.elsewhere)
        if not source.waits_for_exit and len(hosts) == 1:
            hosts[0].has_left = _has_left(hosts[0])
        for watched in hosts:
            if watched.status is None:
                _act_on_time(watched)
                if time.monotonic() >= watched.measure_due:
                    _measure(watched, source)
    inputs.read_rest()
    _end_the_rest(hosts)
    for watched in hosts:
        if watched.meter is not None or watched.task.progress.exists():  # also what a short job reported
            _measure(watched, source)
        for descriptor in watched.closing:
            os.close(descriptor)
    return [
        Ending(
            status=watched.status,
            phase=_phase_of(watched),
            word=watched.reader.report.done,
            deadline=watched.deadline_hit,
            stopped=watched.stopped,
            peak_bytes=watched.peak_bytes,
            memory_kill=not watched.reader.report.done and _memory_kills() > watched.memory_kills,
            failed_at=watched.failed_at,
            for_a_peer=watched.for_a_peer,
            held_bytes=watched.held_bytes,
        )
        for watched in hosts
    ]


_stuck: set[int] = set()  # processes that do not end: they hold up no other job
helpers: set[int] = set()  # children of this process that belong to no job


def _is_stuck(watched: WatchedWorker) -> bool:
    """Return whether a worker does not end although it was killed: it waits in the kernel for what never answers."""
    if watched.killed_at is None or time.monotonic() < watched.killed_at + _STUCK_SECONDS:
        return False
    if watched.pid not in _stuck:
        _stuck.add(watched.pid)
        folders.append(
            watched.task.log,
            f"kinetic: process {watched.pid} does not end: it waits in the kernel for a device or a file system that "
            "does not answer; it is left to itself\n",
        )
    return True


def _has_left(watched: WatchedWorker) -> bool:
    """Return whether a worker has told all and left nothing behind; not one that was measured, which its end completes.

    What a process that ends has started is nobody's child before it is gone.
    """
    report = watched.reader
    is_measured = watched.meter is not None or watched.task.progress.exists()
    return (
        report.is_closed
        and report.report.done is not None
        and not is_measured
        and not processes.children_of(watched.pid)
    )


def _phase_of(watched: WatchedWorker) -> str:
    """Return the phase in which a worker ended, as it reported last."""
    report = watched.reader.report
    if report.done is not None and report.done.get("phase"):
        return str(report.done["phase"])
    return verdicts.read_phase(watched.task.word) or report.phase


class _Inputs:
    """Everything that a supervisor waits for: the end of a child, reports of its workers, a request from outside."""

    def __init__(self, hosts: Sequence[WatchedWorker], child_signal: ChildSignal, wake: int) -> None:
        self._signals, self._asked = {child_signal.descriptor, wake}, time.monotonic()
        self._wake = wake
        self._readers = {watched.reader.descriptor: watched.reader for watched in hosts}
        self._poll = select.poll()
        for descriptor in (*self._signals, *self._readers):
            if descriptor >= 0:
                self._poll.register(descriptor, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Wait, read, and return whether there may be a request to stop; after a long silence one is assumed."""
        ready = [descriptor for descriptor, _ in self._poll.poll(seconds * 1000)]
        for descriptor in ready:
            if descriptor in self._signals:
                with contextlib.suppress(OSError):
                    while os.read(descriptor, 4096):
                        pass
            elif not self._readers[descriptor].read():
                self._poll.unregister(descriptor)
                del self._readers[descriptor]
        if self._wake in ready or time.monotonic() - self._asked >= _LOOK_SECONDS:
            self._asked = time.monotonic()
            return True
        return False

    def read_rest(self) -> None:
        """Read what was reported last."""
        for descriptor, reader in self._readers.items():
            while reader.read() and select.select([descriptor], [], [], 0)[0]:
                pass


def _end_peers_of_failed_hosts(hosts: Sequence[WatchedWorker], elsewhere: Callable[[], bool] | None) -> None:
    """Note who failed and when, and end the peers of a failed host; start the grace period when all are done."""
    now = time.monotonic()
    for watched in hosts:
        if watched.failed_at is None and watched.has_failed:
            watched.failed_at = now
    first = min((watched.failed_at for watched in hosts if watched.failed_at is not None), default=None)
    if all(watched.is_over for watched in hosts) and (elsewhere is None or elsewhere()):
        for watched in hosts:
            watched.done_at = watched.done_at or now
    elif first is not None and len(hosts) > 1:
        for watched in hosts:
            watched.peer_limit = first + _PEER_SECONDS
            if watched.status is None and now >= watched.peer_limit:
                watched.for_a_peer = watched.failed_at is None
                _signal(watched, signal.SIGKILL)


def _seconds_to_next_action(watched: WatchedWorker) -> float:
    """Return after how many seconds something must be done without any event."""
    now = time.monotonic()
    times = [now + _LOOK_SECONDS, watched.measure_due]
    if watched.status is not None:
        return _LOOK_SECONDS
    if watched.killed_at is not None:
        return max(0.0, watched.killed_at + _STUCK_SECONDS - now)
    if watched.guard is not None and watched.done_at is None:
        times.append(watched.guard.due)
    if watched.peer_limit is not None:
        times.append(max(watched.peer_limit, now + 0.01))
    if watched.done_at is not None:
        times.append(watched.done_at + _GRACE_SECONDS)
    elif not watched.reader.report.done:
        dumped = watched.dumped_at
        times.append(watched.due if dumped is None else dumped + watched.last_seconds)
    if watched.stopped:
        times.append(now if watched.term_at is None else watched.term_at + watched.grace)
    return max(0.0, min(times) - now)


def _measure(watched: WatchedWorker, source: Source) -> None:
    """Measure what a host uses, or note the end; whatever goes wrong with that, the job goes on and is not measured."""
    try:
        if watched.meter is None:
            from kinetic._runner.supervisor.meter import meter_of  # jobs that end within a second need none

            watched.meter = meter_of(
                watched.task, watched.began, lambda: _processes_of(watched.pid), lambda: watched.cpu_seconds
            )
        has_ended = watched.status is not None
        found = watched.meter.finish(watched.peak_bytes) if has_ended else watched.meter.measure()
        watched.measure_due = watched.meter.due
        if found is not None:
            source.keep_usage(watched.task, found)
    except Exception as error:  # noqa: BLE001 - see above
        watched.measure_due = float("inf")
        sys.stderr.write(f"{watched.task.job_id} is not measured any more: {type(error).__name__}: {error}\n")


def _act_on_time(watched: WatchedWorker) -> None:
    """Do what a limit or a request demands by now."""
    now = time.monotonic()
    if watched.done_at is not None:
        if now >= watched.done_at + _GRACE_SECONDS:
            _signal(watched, signal.SIGKILL)
        return
    if watched.guard is not None and not watched.held_bytes and (held := watched.guard.exceeded()):
        watched.held_bytes = held
        _signal(watched, signal.SIGKILL)
        return
    if watched.stopped and watched.term_at is None:
        watched.term_at = now
        _signal(watched, signal.SIGTERM, alone=watched.spare_children)
    elif watched.term_at is not None and now >= watched.term_at + watched.grace:
        _signal(watched, signal.SIGKILL)
    if watched.reader.report.done:
        return
    if watched.dumped_at is None and now >= watched.due:
        watched.dumped_at, watched.deadline_hit = now, True
        with contextlib.suppress(ProcessLookupError):
            os.kill(watched.pid, signal.SIGTERM if watched.task.is_command else LOG_STACKS_SIGNAL)
    elif watched.dumped_at is not None and now >= watched.dumped_at + watched.last_seconds:
        _signal(watched, signal.SIGKILL)


def _reap(hosts: Sequence[WatchedWorker]) -> None:
    """Collect every child that ended: the workers, and orphans that became ours."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _stuck.discard(pid)
        is_helper = pid in helpers
        helpers.discard(pid)
        for watched in hosts:
            if pid == watched.pid or (len(hosts) == 1 and not is_helper):
                watched.cpu_seconds += usage.ru_utime + usage.ru_stime
            if pid == watched.pid:
                watched.status = status
                watched.peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _end_the_rest(hosts: Sequence[WatchedWorker]) -> None:
    """Kill what is left of the workers' groups, and whatever else of them became our child; trackers end last."""
    for watched in hosts:
        _signal(watched, signal.SIGKILL)
    begun = time.monotonic()
    me, leaving = os.getpid(), {watched.pid for watched in hosts if watched.has_left}
    while time.monotonic() < begun + _GRACE_SECONDS:
        _reap(hosts)
        try:
            left = {int(word) for word in Path(f"/proc/{me}/task/{me}/children").read_text().split()}
        except OSError:
            return
        left -= _stuck | leaving | helpers
        if not left:
            return
        _kill(left, spare_trackers=time.monotonic() < begun + _TRACKER_SECONDS)
        time.sleep(0.002)  # the kernel is at it; orphans of orphans come up one generation at a time


def _kill_group(watched: WatchedWorker) -> None:
    """Kill a worker's process group at once, or one by one what is not a tracker, if there is one."""
    there = _processes_of(watched.pid, is_there=watched.status is None)
    if any(map(processes.is_tracker, there)):
        _kill(there, spare_trackers=True)
    else:
        os.killpg(watched.pid, signal.SIGKILL)


def _kill(there: Iterable[int], *, spare_trackers: bool) -> None:
    for pid in there:
        if not (spare_trackers and processes.is_tracker(pid)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _signal(watched: WatchedWorker, number: signal.Signals, *, alone: bool = False) -> None:
    """Signal a worker and its process group; also a worker that has left its group, as user code may make it."""
    if number == signal.SIGKILL:
        watched.killed_at = watched.killed_at or time.monotonic()
    if not alone:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(watched.pid, 0 if number == signal.SIGKILL else number)
            if number == signal.SIGKILL:
                _kill_group(watched)
    if watched.status is not None:  # reaped: the number may be another process's by now
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if alone or os.getpgid(watched.pid) != watched.pid:
            os.kill(watched.pid, number)


_counted_kills = (float("-inf"), 0)  # when, and how many there were


def _recent_memory_kills() -> int:
    """Return what ``_memory_kills`` returned within the last second: counting takes the kernel 0.2 ms."""
    global _counted_kills  # noqa: PLW0603 - of this process
    if time.monotonic() > _counted_kills[0] + 1.0:
        _counted_kills = time.monotonic(), _memory_kills()
    return _counted_kills[1]


def _memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory so far; 0 if it does not tell."""
    try:
        with open("/proc/vmstat", "rb", buffering=0) as file:
            _, _, rest = file.read(1 << 16).partition(b"\noom_kill ")
            return int(rest.split(None, 1)[0]) if rest else 0
    except (OSError, ValueError):
        return 0

"""One attempt at a job, from its claim to its verdict: claim, fork, watch, judge, seal, or leave it to another attempt.

The same for every place where jobs run. A *source* brings the task, and learns the result: the row of a queue
(``_backends/local/supervisor.py``), or the only argument of a container (``_runner/pod/pod_source.py``).

A supervisor stays small and single-threaded, so that forking it is safe and fast. It holds the job's key only after the
fork: user code never has it in memory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from kinetic._runner import processes
from kinetic._runner.supervisor import attempts, verdicts, worker_monitor, worker_process
from kinetic._runner.supervisor.verdicts import Ending
from kinetic._runner.supervisor.worker_monitor import ChildSignal, JobControl, WatchedWorker
from kinetic._runner.supervisor.worker_process import EarlyWorker, Entry
from kinetic._stores import open_anew, open_store
from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Store
from kinetic._wire import digests, folders, keys
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import AttemptNote, Outcome
from kinetic._wire.task import Task
from kinetic.errors import CredentialsError, KineticError

if TYPE_CHECKING:
    from kinetic._runner.supervisor.output_files import OutputFiles

T = TypeVar("T")
Decision = tuple[Outcome, Path | None]  # a verdict, and the file with its pickled value or exception

DECIDED, REMOVED, TAKEN = "decided", "removed", "taken"  # why there is nothing to do for a task


class Source(JobControl, Protocol):
    """Where one task comes from, and what learns the result."""

    task: Task
    store: Store  # set by the supervisor, and set anew when its credentials have expired
    witness: str  # the author of the verdict
    passes: tuple[type[Exception], ...]  # errors of a store that a verdict waits for; none for a store on this machine

    @property
    def is_retried(self) -> bool: ...  # whether a failure may be followed by another attempt

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

    def report_waiting(self, words: str) -> None:
        """Report what a verdict waits for."""

    def patience_seconds(self, verdict: Outcome) -> float:
        """Return how long a verdict waits for its store."""

    def wake_waiting(self, tasks: Sequence[Task], verdict: Outcome | None) -> None:
        """Wake whatever waits for the job: no worker runs any more; ``verdict``: the one of this attempt, if any."""

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
        sealed: tuple[Outcome, bool] | None = None
        try:
            sealed = self._run_to_verdict(source, note, tasks)
        finally:
            source.wake_waiting(tasks, sealed[0] if sealed else None)
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
        endings = worker_monitor.watch_workers(hosts, self._child_signal, source)
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
                return [worker_monitor.watch(tasks[0], *early.start(tasks[0]))]
            except OSError:  # it has ended since it was looked at: the kernel may want its memory; or no disk has room
                early.end()
        fork = worker_process.fork_worker
        return [worker_monitor.watch(task, *fork(task, self._entry, self.libc, self.title)) for task in tasks]


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
        source.report_waiting(attempts.waiting_message(error))

    return attempts.keep_trying(do, source.passes, wait=source.wait, say=waits, seconds=seconds)

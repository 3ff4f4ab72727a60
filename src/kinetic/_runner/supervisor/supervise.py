"""One attempt at a job, from its claim to its verdict: claim, fork, watch, judge, seal, or leave it to another attempt.

The same for every place where jobs run. A *source* brings the task, and is told what becomes of it: the row of a queue
(``_backends/local/keeper.py``), or the only argument of a container (``_runner/pod/source.py``).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kinetic._runner.supervisor import attempts, process_group, seal_outcome, store_retry, verdicts, workers
from kinetic._runner.supervisor.attempts import was_removed
from kinetic._runner.supervisor.verdicts import Ending
from kinetic._stores.opening import open_anew, open_store
from kinetic._stores.protocol import Store
from kinetic._wire import digests, keys
from kinetic._wire.attempt import AttemptNote
from kinetic._wire.failpoints import step
from kinetic._wire.outcome import Outcome
from kinetic._wire.task import Task
from kinetic.errors import CredentialsError, KineticError

T = TypeVar("T")
Decision = tuple[Outcome, Path | None]  # a verdict, and the file with its pickled value or exception

DECIDED, REMOVED, TAKEN = "decided", "removed", "taken"  # why there is nothing to do for a task


class Source(Protocol):
    """Where one task comes from, and who is told what becomes of it.

    Attributes:
        task: What is to be done.
        store: The store of the job; set by whoever carries it out, and anew when its credentials were used up.
        wake: A descriptor that becomes readable when ``is_unwanted`` should be asked.
        witness: Who is named as the author of the verdict.
        passes: Exceptions of a store that a verdict waits for; none where a store is on this machine.
        is_retried: Whether a failure may be followed by another attempt.
        elsewhere: Says whether the hosts that others watch are done, too; None when there are none.
    """

    task: Task
    store: Store
    wake: int
    witness: str
    passes: tuple[type[Exception], ...]

    @property
    def is_retried(self) -> bool: ...
    @property
    def elsewhere(self) -> Callable[[], bool] | None: ...

    def lend_key(self) -> AbstractContextManager[bytes]:
        """Lend the job's key before the worker is forked: nothing of it may stay in this process."""

    def key(self) -> bytes:
        """Return the job's key; only after the fork."""

    def reach(self, do: Callable[[], T]) -> T:
        """Do something with the store before the job begins, and again if this source waits for one out of reach."""

    def skip(self, why: str) -> None:
        """Take note that there is nothing to do: DECIDED, REMOVED, or TAKEN by another machine."""

    def claim(self, key: bytes) -> AttemptNote | None:
        """Make the next attempt ours; None when another machine has begun with the job."""

    def begin(self, note: AttemptNote) -> Sequence[Task]:
        """Return what each of our hosts is to do, the leader first; nothing if the job is not to begin any more."""

    def forked(self, hosts: Sequence[workers.WatchedWorker]) -> None:
        """Take note that the workers run."""

    def is_unwanted(self) -> bool:
        """Say whether somebody wants the job to end."""

    def decide(self, tasks: Sequence[Task], task: Task, ending: Ending, verdict: Outcome) -> Decision | None:
        """Say what the end of the workers comes to; None when it is left to another attempt, or to another host.

        Args:
            tasks: Of all our hosts.
            task: Of the host that decides.
            ending: How its worker ended.
            verdict: What that means for itself.
        """

    def log_digests(self, tasks: Sequence[Task]) -> tuple[digests.LogDigest, ...]:
        """Return the digests of what our hosts printed; none of their processes is left."""

    def may_seal(self, verdict: Outcome) -> bool:
        """Do what comes before a verdict or another try; False when this attempt has nothing to say any more."""

    def try_again(self, reason: str) -> None:
        """Leave the job to another attempt: this one failed, and the job has retries left."""

    def wait(self, seconds: float) -> bool:
        """Wait; say whether there is no use in waiting any longer."""

    def waits(self, words: str) -> None:
        """Tell what a verdict waits for."""

    def patience_seconds(self, verdict: Outcome) -> float:
        """Return how long a verdict waits for its store."""

    def let_go(self) -> None:
        """Tell whoever waits that there is something to see: whatever comes now, no worker runs any more."""

    def finish(self, tasks: Sequence[Task], verdict: Outcome, *, created: bool) -> None:
        """Clear up; the outcome is in the store: this verdict if it was ``created``, else another one."""


class Supervisor:
    """Carries out tasks, one after the other, in a process that it must have for itself.

    Args:
        entry: What a worker does with its task and its end of the report; it never returns.
    """

    def __init__(self, entry: workers.Entry) -> None:
        self._entry = entry
        self.libc = process_group.use_linux()
        process_group.adopt_orphans(self.libc)
        self._bell = workers.ChildSignal()

    def carry_out(self, source: Source) -> None:
        """Make one attempt at a task, and see it to its end."""
        source.store = open_store(source.task.store_url)
        note: AttemptNote | None = None
        why = source.reach(lambda: _is_over(source))
        if not why:
            note = source.reach(lambda: _claimed(source))
        if note is None:
            source.skip(why or TAKEN)
            return
        step("keeper:attempt-noted")
        tasks = source.begin(note)
        if not tasks:
            return
        step("keeper:marked-running")
        reserve = seal_outcome.Reserve(source.store)
        try:
            sealed = self._see_through(source, note, tasks, reserve)
        finally:
            source.let_go()
            reserve.release()
        step("keeper:told")
        if sealed is not None:
            verdict, created = sealed
            source.finish(tasks, verdict, created=created)

    def _see_through(
        self, source: Source, note: AttemptNote, tasks: Sequence[Task], reserve: seal_outcome.Reserve
    ) -> tuple[Outcome, bool] | None:
        """Fork, watch, judge and seal; return the verdict, and whether it is the one in the store."""
        hosts = [workers.start(task, self._entry, self.libc) for task in tasks]
        step("keeper:forked")
        source.forked(hosts)
        endings = workers.watch(
            hosts, self._bell, wake=source.wake, stop=source.is_unwanted, elsewhere=source.elsewhere
        )
        step("keeper:worker-ended")
        at = verdicts.decisive_host(tasks, endings)
        task, ending = tasks[at], endings[at]
        memory = process_group.memory_bytes()
        judged = verdicts.judge(task, ending, started=note.started, ended=time.time(), machine_bytes=memory)
        decided = source.decide(tasks, task, ending, replace(judged, key_id=task.key_id, witness=source.witness))
        if decided is None:
            return None
        verdict, body = decided
        key = source.key()
        reason = patiently(source, lambda: _next_try(source, verdict, key))
        if reason:
            _write_into(task.log, f"kinetic: {reason}\n")
        verdict = replace(verdict, logs=(*source.log_digests(tasks), *verdict.logs))
        if not source.may_seal(verdict):
            return None
        if reason:
            patiently(source, lambda: attempts.note_failure(source.store, verdict, key))
            source.try_again(reason)
            return None
        step("keeper:judged")
        created = patiently(
            source,
            lambda: seal_outcome.seal(source.store, verdict, key, body=body, spare=reserve, mark=task.mark),
            seconds=source.patience_seconds(verdict),
        )
        step("keeper:sealed")
        return verdict, created


def patiently(source: Source, do: Callable[[], T], *, seconds: float = store_retry.HOUR) -> T:
    """Bring something into the store that must not be lost, however long it is out of reach or refuses us."""

    def waits(error: Exception) -> None:
        if isinstance(error, CredentialsError):
            with contextlib.suppress(KineticError):
                source.store = open_anew(source.task.store_url)  # with what credentials there are by now
        source.waits(store_retry.waits_for(error))

    return store_retry.keep_trying(do, source.passes, wait=source.wait, say=waits, seconds=seconds)


def _is_over(source: Source) -> str:
    job_id = source.task.job_id
    if source.store.size(keys.result(job_id)) is not None:
        return DECIDED
    return REMOVED if was_removed(source.store, job_id, source.lend_key()) else ""


def _claimed(source: Source) -> AttemptNote | None:
    with source.lend_key() as key:
        return source.claim(key)


def _next_try(source: Source, verdict: Outcome, key: bytes) -> str:
    if verdict.succeeded or not source.task.retries or not source.is_retried:
        return ""
    return attempts.next_try(source.store, verdict, source.task.retries, key)


def _write_into(log: Path, text: str) -> None:
    """Add a line of ours to a log, whatever the job left of that file."""
    with contextlib.suppress(OSError):
        descriptor: Any = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode(errors="backslashreplace"))
        finally:
            os.close(descriptor)

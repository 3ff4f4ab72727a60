"""Jobs of this machine that follow others: when they may start, and how they are closed when they cannot.

Their rows are "waiting". Processes that end a job here look at those that wait for it, and so do those that advance the
queue: what a killed process left undone is done by the next. Each step may be repeated, by several processes at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinetic._backends.local import notifier, recovery, runtime_files
from kinetic._backends.local.queue import JobRow, Queue
from kinetic._backends.local.runtime_files import Paths
from kinetic._runner.supervisor import attempts, predecessors
from kinetic._stores import open_store
from kinetic._wire.failpoints import step
from kinetic.errors import IntegrityError, KineticError, PredecessorError

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store
    from kinetic._wire.task import Task


def settle(paths: Paths, queue: Queue) -> None:
    """Let every job start whose predecessors have all succeeded, and close those of which one did not.

    A job that is closed may be followed by others, so it is repeated until nothing changes.
    """
    seen = set[tuple[str, ...]]()
    while found := {job_id: names for job_id, names in queue.followers().items() if (job_id, *names) not in seen}:
        step("follower:found")
        for job_id, names in found.items():
            seen.add((job_id, *names))
            with contextlib.suppress(KineticError, OSError):  # a store that is out of reach: the next look tries again
                _settle_one(paths, queue, job_id, names)


def _settle_one(paths: Paths, queue: Queue, job_id: str, names: Sequence[str]) -> None:
    try:
        task = runtime_files.read_task(paths, job_id)
        followed = runtime_files.read_followed_keys(paths, job_id) if task is not None else b""
    except (IntegrityError, FileNotFoundError) as error:  # as below; the row says so where no outcome can
        if row := _waiting(queue, job_id):
            recovery.settle(paths, queue, row, why=f"it could not be started: {error}")
        return
    if task is None:
        if _waiting(queue, job_id):  # else another process has closed it
            queue.end(job_id, recovery.NO_PAGE)
        return
    store = open_store(task.store_url)
    try:
        succeeded = _succeeded(paths, queue, store, task, followed, names)
    except (PredecessorError, IntegrityError) as error:  # neither will pass
        if _waiting(queue, job_id):  # else another process has started or closed it since
            close(paths, queue, store, task, predecessors.as_closed(error))
        return
    if succeeded:
        queue.note_successes(job_id, succeeded)
        step("follower:noted")


def _succeeded(
    paths: Paths, queue: Queue, store: Store, task: Task, followed: bytes, names: Sequence[str]
) -> list[str]:
    """Return which of these have succeeded; raises PredecessorError for one that will not."""
    after = predecessors.of_task(task.after)
    key_of = predecessors.key_finder(after, followed)
    succeeded = []
    for each in after:
        if each.job_id not in names:
            continue
        finding = predecessors.look(store, each, key_of)
        if finding.is_over:
            raise predecessors.why_closed(each, finding)
        if finding.status and each.value and not finding.has_value:
            raise predecessors.value_gone(each)
        if finding.status:
            succeeded.append(each.job_id)
        elif not each.group and (lost := _lost(paths, queue, each.job_id)):
            raise predecessors.why_closed(each, predecessors.Finding("failed", lost))
    return succeeded


def _waiting(queue: Queue, job_id: str) -> JobRow | None:
    row = queue.jobs([job_id]).get(job_id)
    return row if row is not None and row.state == "waiting" else None


def _lost(paths: Paths, queue: Queue, job_id: str) -> str:
    """Return why a job without an outcome will never have one; "" if it may: a batch may still launch its children."""
    row = queue.jobs([job_id]).get(job_id)
    if row is None:
        return "" if runtime_files.is_locked(paths.submitting(job_id)) else "nothing of it is left on this machine"
    return (row.verdict or "its process ended without a result") if row.state == "ended" else ""


def close(paths: Paths, queue: Queue, store: Store, task: Task, error: PredecessorError) -> None:
    """Write the verdict of a job that cannot start; of several who try, one creates it."""
    job_id = task.job_id
    verdict = predecessors.verdict_of(job_id, task.key_id, error, witness="supervisor")
    created = attempts.seal_outcome(store, verdict, runtime_files.read_key(paths, job_id), mark=task.mark)
    step("follower:sealed")
    _wake_readers(paths, job_id)
    recovery.finish(paths, queue, store, runtime_files.tasks_of(paths, task, 0), verdict.status)
    recovery.tidy(paths, job_id, task)
    if created:
        notifier.send(paths.runtime, job_id, notifier.ended_of(verdict, is_command=task.is_command))


def _wake_readers(paths: Paths, job_id: str) -> None:
    """Report the end to those who wait, as a supervisor does: its pipe is opened and closed."""
    completion = runtime_files.CompletionWriter(paths.completion_pipe(job_id))
    completion.running()
    completion.stop()


def reason(queue: Queue, job_id: str) -> str:
    """Return in a few words what a waiting job waits for."""
    return f"waits for {' and '.join(queue.waits_for(job_id)) or 'jobs that it follows'}"


def states(queue: Queue, job_id: str) -> str:
    """Return how the jobs stand that a waiting job waits for."""
    names = queue.waits_for(job_id)
    rows = queue.jobs(names)
    words = {"running": "runs", "waiting": "waits for another one", "queued": "is queued", "claimed": "starts"}
    found = [f"{name} {words[rows[name].state]}" for name in names if name in rows and rows[name].state in words]
    batches = {name: len(queue.group_rows(name)) for name in names if name not in rows}
    found += [
        f"{name}: {count} of its jobs {'is' if count == 1 else 'are'} pending or running"
        if count
        else f"{name}: none of its jobs is pending or running; inputs may be left that no process submits"
        for name, count in batches.items()
    ]
    return "; ".join(found)

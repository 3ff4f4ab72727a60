"""Ending a batch: cancelling what runs, removing everything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._batches import control, state
from kinetic._batches.state import BatchTracker
from kinetic._jobs import history as job_history
from kinetic._jobs import locate, remove
from kinetic._jobs.status import observe
from kinetic._stores import parallel
from kinetic._wire import keys, outcomes, records
from kinetic._wire.failpoints import step
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._batches.state import AdHocTracker, Batch
    from kinetic._jobs.handle import JobHandle
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import JobRecord


def after_collection(collected: Sequence[JobHandle], tracker: BatchTracker | AdHocTracker) -> None:
    """Remove the resources and artifacts of children that succeeded and were collected; outputs always stay.

    Logs and pages go into the history first, and the marks: if we die in between, these children count as collected,
    and none of them is run again.
    """
    if not collected:
        return
    store = tracker.store
    run_all(store, [partial(_keep, handle, tracker) for handle in collected])
    step("client:children-marked")
    tracker.backend.remove([handle.job_id for handle in collected])
    run_all(store, [partial(store.delete, keys.job(handle.job_id)) for handle in collected])


def _keep(handle: JobHandle, tracker: BatchTracker | AdHocTracker) -> None:
    """Write a collected child's log and page into the history, and set the mark that says it is removed."""
    seen = handle._ended or observe(handle)
    handle._past = remove.collected_page(handle, seen)
    _mark(handle, tracker)


def write_removal(
    job: JobRecord, tracker: BatchTracker | AdHocTracker, status: str, *, resource: bool, artifacts: bool
) -> None:
    """Write a child's tombstone, and say in its batch's own listing that it was removed."""
    fields = {**records.plain(job), "status": status, "reason": "", "started": None, "ended": None, "attempts": 1}
    fields |= {"artifacts_removed": artifacts, "resource_removed": resource}
    job_history.write_page(tracker.store, fields, locate.key_to_seal(job))
    if artifacts:
        remove.delete_history_logs(tracker.store, job.job_id)
    _mark(job, tracker)


def _mark(job: JobRecord, tracker: BatchTracker | AdHocTracker) -> None:
    remove.mark_as_removed(job, tracker.store)
    if job.group_id:
        tracker.note_end(job.group_index or 0, job.group_attempt or 0, "removed")


def run_all(store: Store, tasks: Sequence[Callable[[], object]]) -> None:
    """Do many small things with a store, side by side."""
    for _ in parallel.in_parallel(store, tasks):
        pass


def close_attempt(job: JobRecord, store: Store) -> None:
    """Create the verdict of an attempt that has none and is to be followed by another one."""
    if store.size(keys.result(job.job_id)) is not None:
        return
    why = "its process was lost; another attempt took its place"
    remove.seal_outcome_of(job, store, remove.outcome_of(job, outcomes.FAILED, "lost", message=why))


def cancel_attempts(indexes: Iterable[int], tracker: BatchTracker) -> None:
    """Cancel the latest attempts at inputs: first all verdicts, then all processes; their artifacts stay."""
    jobs = [job for index in indexes if (job := tracker.record(index)) is not None]
    run_all(tracker.store, [partial(_cancel, job, tracker) for job in jobs])
    names = [job.job_id for job in jobs]
    if names and tracker.backend.stop(names, wait=_WAIT_SECONDS):
        tracker.backend.remove(names)  # nothing of what they need stays: captured values, keys, folders


def _cancel(job: JobRecord, tracker: BatchTracker) -> None:
    if remove.seal_outcome_of(job, tracker.store, remove.outcome_of(job)) and job.group_index is not None:
        tracker.note_end(job.group_index, job.group_attempt or 0, outcomes.CANCELLED)


_WAIT_SECONDS = 10.0  # a driver of this process looks up between two launches


_LAST_WORDS_SECONDS = 10.0  # between the verdict of a job and the end of its supervisor's work on it


def cancel(batch: Batch) -> None:
    """Stop the driver, wherever it is, and cancel what has not ended."""
    tracker = batch._get_tracker()
    if not isinstance(tracker, BatchTracker):
        tracker.refresh(whole=True)  # what has ended is left alone
        for index in sorted(tracker.active):
            job = batch.jobs[index]
            if job is not None:
                with _warn_on_error(job.job_id, "cancelled"):
                    job.cancel()
        tracker.refresh(whole=True)
        return
    tracker.stop(control.CANCELLED)
    _cancel_active(tracker)
    if not batch._poll.attached:
        batch._submission_complete.wait(_WAIT_SECONDS)
        _cancel_active(tracker)  # what our driver launched meanwhile; one elsewhere cancels such a thing itself
    batch._update_jobs()


@contextmanager
def _warn_on_error(job_id: str, what: str) -> Iterator[None]:
    """Let one job that cannot be ended cost a line that names it, not the others."""
    try:
        yield
    except (KineticError, OSError) as error:
        output.warn(f"{job_id} could not be {what}: {error}")


def _cancel_active(tracker: BatchTracker) -> None:
    tracker.refresh(whole=True)
    cancel_attempts(sorted(tracker.active), tracker)
    tracker.refresh(whole=True)


def cleanup(batch: Batch, *, resources: bool, artifacts: bool) -> None:
    """Remove every attempt at every input, and with the artifacts what makes the batch findable; outputs stay."""
    tracker = batch._refreshed()
    if resources:
        cancel(batch)
    jobs = _all_attempts(batch, tracker)
    if resources:
        names = [job.job_id for job in jobs]
        if not artifacts:
            tracker.backend.stop(names, wait=_LAST_WORDS_SECONDS)  # all have ended; a log may be on its way yet
        tracker.backend.remove(names)
    if artifacts:
        tracker.forget_kept()
    if resources or artifacts:
        tasks = [partial(_remove, job, tracker, resource=resources, artifacts=artifacts) for job in jobs]
        run_all(tracker.store, tasks)
    if artifacts and batch.group_id:
        tracker.store.delete(keys.group_manifest(batch.group_id))  # from here on it cannot be attached
        tracker.store.delete(keys.group(batch.group_id))


def _all_attempts(batch: Batch, tracker: BatchTracker | AdHocTracker) -> list[JobRecord]:
    """Return a job of everything that was ever submitted, earlier attempts included."""
    if not isinstance(tracker, BatchTracker):
        return [job for job in batch.jobs if job is not None]
    found = tracker.children()
    machines = {(index, attempt): machine for index, attempt, machine in found}  # one, should there be two
    return [state.record_of(tracker.group, *child, machine) for child, machine in machines.items()]


def _remove(job: JobRecord, tracker: BatchTracker | AdHocTracker, *, resource: bool, artifacts: bool) -> None:
    """Remove one attempt; a page of the history says so, and how it had ended."""
    with _warn_on_error(job.job_id, "removed"):
        write_removal(job, tracker, _how_it_ended(job, tracker), resource=resource, artifacts=artifacts)
        if artifacts:
            tracker.store.delete(keys.job(job.job_id))


def _how_it_ended(job: JobRecord, tracker: BatchTracker | AdHocTracker) -> str:
    """Return the word of a tombstone; an attempt that was followed by another one had failed."""
    index = job.group_index
    if index is None or not isinstance(tracker, BatchTracker):
        return "REMOVED"
    if tracker.attempts[index] != (job.group_attempt or 0):
        return "FAILED"
    end = tracker.end(index)
    return end.word.upper() if end is not None else "REMOVED"

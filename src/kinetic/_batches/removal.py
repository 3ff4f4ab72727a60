"""Ending a batch: cancelling what runs, removing everything."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kinetic._batches import state
from kinetic._batches.state import REMOVED
from kinetic._batches.tracker import BatchTracker, record_of
from kinetic._jobs import cancellation, collect, locate, notifications
from kinetic._jobs.handle import seen_if_ended
from kinetic._jobs.status import observe
from kinetic._output import terminal as output
from kinetic._stores import parallel
from kinetic._wire import keys, records
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import CANCELLED, FAILED
from kinetic.errors import BackendUnavailableError, KineticError, StoreError

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend
    from kinetic._batches.state import Batch
    from kinetic._batches.tracker import Tracker
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import JobRecord

_STOP_SECONDS = 10.0  # a driver of this process checks between two launches; a log may still be on its way


def after_collection(collected: Sequence[JobHandle], tracker: Tracker) -> None:
    """Remove the resources and artifacts of children that succeeded and were collected; outputs always stay.

    Logs, history and marks are written first: if we die in between, these children count as collected, and none of
    them is run again.
    """
    if not collected:
        return
    store = tracker.store
    names = [handle.job_id for handle in collected]
    if isinstance(tracker, BatchTracker) and collect.is_kept_for_followers(collected[0], store, collected=names):
        return
    if isinstance(tracker, BatchTracker):
        try:
            collect.write_collected_pages([(handle, partial(_seen, handle)) for handle in collected], store)
        except StoreError as error:
            if error.code != "store-full":
                raise
            for handle in collected:  # one after the other: each makes room for its own page, and for the queue
                _write_history(handle, tracker)
                collect.make_room(handle, store)
        for handle in collected:
            _note_end(handle, tracker, REMOVED)
    else:
        run_all(store, (partial(_write_history, handle, tracker) for handle in collected))
    step("client:children-marked")
    for backend, its_own in _by_backend(collected, tracker):
        backend.remove(its_own)
    run_all(store, (partial(_store_of(handle, tracker).delete, keys.job(handle.job_id)) for handle in collected))


def _by_backend(jobs: Sequence[JobRecord], tracker: Tracker) -> Iterable[tuple[Backend, list[str]]]:
    """Return the ids of jobs by their backends, of which those of a handle that was put together by hand have many."""
    if isinstance(tracker, BatchTracker):
        return [(tracker.backend, [job.job_id for job in jobs])]
    found: dict[Backend, list[str]] = {}
    for job in jobs:
        found.setdefault(locate.backend_of(job), []).append(job.job_id)
    return found.items()


def _store_of(job: JobRecord, tracker: Tracker) -> Store:
    return tracker.store if isinstance(tracker, BatchTracker) else locate.store_of(job)


def remove_kept_predecessors(jobs: Sequence[JobRecord], tracker: Tracker) -> None:
    """Remove the jobs that were collected before and kept for a batch, of which nothing runs any more."""
    if isinstance(tracker, BatchTracker) and jobs and jobs[0].after:
        collect.remove_kept_predecessors(jobs[0], tracker.store, wait=_STOP_SECONDS)


def _write_history(handle: JobHandle, tracker: Tracker) -> None:
    collect.collected_page(handle, _seen(handle))
    _note_end(handle, tracker, REMOVED)


def _seen(handle: JobHandle) -> Snapshot:
    """Return how a collected job ended, which its handle no longer keeps: it would be most of thousands of them."""
    seen, handle._ended = handle._ended, None
    return seen or seen_if_ended(handle) or observe(handle)


def _note_end(job: JobRecord, tracker: Tracker, word: str) -> None:
    if isinstance(tracker, BatchTracker) and job.group_index is not None:
        tracker.note_end(job.group_index, job.group_attempt or 0, word)


def run_all(store: Store, tasks: Iterable[Callable[[], object]]) -> None:
    """Do many small things with a store, side by side."""
    for _ in parallel.in_parallel(store, tasks):
        pass


def close_attempt(job: JobRecord, store: Store) -> None:
    """Create the verdict of an attempt that has none, was not removed, and is to be followed by another one."""
    if store.size(keys.result(job.job_id)) is None and locate.read_page(store, job.job_id) is None:
        why = "its process was lost; another attempt took its place"
        cancellation.seal_outcome_of(job, store, cancellation.outcome_of(job, FAILED, "lost", message=why))


def cancel_attempts(indexes: Iterable[int], tracker: BatchTracker) -> None:
    """Cancel the latest attempts at inputs: first all verdicts, then all processes; their artifacts stay."""
    jobs = [job for index in indexes if (job := tracker.record(index)) is not None]
    run_all(tracker.store, [partial(_seal_cancelled, job, tracker) for job in jobs])
    names = [job.job_id for job in jobs]
    if names and tracker.backend.stop(names, wait=_STOP_SECONDS):
        tracker.backend.remove(names)  # nothing of what they need stays: captured values, keys, folders


def _seal_cancelled(job: JobRecord, tracker: BatchTracker) -> None:
    if cancellation.seal_outcome_of(job, tracker.store, cancellation.outcome_of(job)):
        _note_end(job, tracker, CANCELLED)


def cancel(batch: Batch) -> None:
    """Stop the driver, wherever it is, and cancel what has not ended."""
    tracker = batch._get_tracker()
    tracker.refresh(whole=True)  # what has ended is left alone
    if not isinstance(tracker, BatchTracker):
        for job in [batch.jobs[index] for index in sorted(tracker.active)]:
            if job is not None:
                with _warn_on_error(job.job_id, "cancelled"):
                    job.cancel()
        tracker.refresh(whole=True)
        return
    if tracker.active:
        tracker.backend.check_stop()
    if not tracker.was_removed():  # else that would be all that there is of it
        tracker.control.stop(records.STOPPED_BY_USER)
    _cancel_active(tracker)
    if not batch._poll.attached:
        batch._submission_complete.wait(_STOP_SECONDS)
        _cancel_active(tracker)  # what our driver launched meanwhile; a driver elsewhere cancels that itself
    batch._update_jobs()


def _cancel_active(tracker: BatchTracker) -> None:
    tracker.refresh(whole=True)
    cancel_attempts(sorted(tracker.active), tracker)
    tracker.refresh(whole=True)


@contextlib.contextmanager
def _warn_on_error(job_id: str, what: str) -> Iterator[None]:
    """Turn the failure to end one job into a warning, so that the others are ended."""
    try:
        yield
    except (KineticError, OSError) as error:
        output.warn(f"{job_id} could not be {what}: {error}")


def cleanup(batch: Batch, *, resources: bool, artifacts: bool) -> None:
    """Remove every attempt at every input, and with the artifacts what makes the batch findable; outputs stay.

    On a full disk, what has ended makes room for what must be written.
    """
    tracker = batch._refreshed()
    if not isinstance(tracker, BatchTracker) and not any(batch.jobs):
        return  # put together by hand, of nothing
    if artifacts and batch.group_id:
        tracker.read_unmarked()
        counts = state.count_states(tracker, batch._submission_errors)
        if not any(counts[name] for name in (state.RUNNING, state.WAITING, state.AGAIN, state.MISSING)):
            notifications.see_batch(batch.group_id, lambda: counts)
        notifications.forget(batch.group_id)  # of one that runs: who removes it knows of its end
    try:
        _cleanup(batch, tracker, resources=resources, artifacts=artifacts)
    except KineticError as error:
        if not artifacts or error.code not in {"store-full", "disk-full"}:
            raise
        for job in _all_attempts(batch, tracker):
            if job.group_index not in tracker.active:
                collect.make_room(job, _store_of(job, tracker))
        _cleanup(batch, tracker, resources=resources, artifacts=artifacts)


def _cleanup(batch: Batch, tracker: Tracker, *, resources: bool, artifacts: bool) -> None:
    if resources:
        cancel(batch)
    jobs = _all_attempts(batch, tracker)
    for backend, names in _by_backend(jobs, tracker) if resources else ():
        if not artifacts:
            backend.stop(names, wait=_STOP_SECONDS)  # all have ended; see above
        backend.remove(names)
    if artifacts:
        try:
            tracker.forget_kept()
        except BackendUnavailableError as error:
            if resources:
                raise
            output.warn(f"the captured variables of {batch.group_id} stay in the cluster: {error.what}")
    if resources or artifacts:
        run_all(
            tracker.store,
            [partial(_remove, job, tracker, resource=resources, artifacts=artifacts) for job in jobs],
        )
    if artifacts and batch.group_id:
        tracker.store.delete(keys.group_manifest(batch.group_id))  # from here on it cannot be attached
        tracker.store.delete(keys.group(batch.group_id))
        remove_kept_predecessors(jobs, tracker)


def _all_attempts(batch: Batch, tracker: Tracker) -> Sequence[JobRecord]:
    """Return everything that was ever submitted, earlier attempts included."""
    if not isinstance(tracker, BatchTracker):
        return [job for job in batch.jobs if job is not None]
    machines = {(index, attempt): machine for index, attempt, machine in tracker.children()}  # one, should there be two
    return [record_of(tracker.group, *child, machine) for child, machine in machines.items()]


def _remove(job: JobRecord, tracker: Tracker, *, resource: bool, artifacts: bool) -> None:
    """Remove one attempt; a page of the history says so, and how it had ended."""
    with _warn_on_error(job.job_id, "removed"):
        page = {**records.plain(job), "status": _final_status(job, tracker), "reason": "", "attempts": 1}
        page |= {"started": None, "ended": None}
        store = _store_of(job, tracker)
        collect.write_removed_page(job, store, page, resource=resource, artifacts=artifacts)
        _note_end(job, tracker, REMOVED)
        if artifacts:
            collect.delete_history_logs(store, job.job_id)
            store.delete(keys.job(job.job_id))


def _final_status(job: JobRecord, tracker: Tracker) -> str:
    """Return the status for the history; an attempt that was followed by another one had failed."""
    if job.group_index is None or not isinstance(tracker, BatchTracker):
        return "REMOVED"
    if tracker.attempts[job.group_index] != (job.group_attempt or 0):
        return "FAILED"
    end = tracker.end(job.group_index)
    return end.word.upper() if end is not None else "REMOVED"

"""Collecting a batch: every value in memory first, only then is anything removed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetic import _output as output
from kinetic._batches import as_completed, display, removal
from kinetic._batches.as_completed import Detaching
from kinetic._wire import outcome as outcomes
from kinetic.errors import BatchError, JobCancelledError, KineticError

if TYPE_CHECKING:
    from kinetic._batches.batch import Batch
    from kinetic._batches.state import AdHocTracker, BatchTracker
    from kinetic._jobs.handle import JobHandle


def results(batch: Batch, *, timeout: float | None, ordered: bool, cleanup: bool, return_exceptions: bool) -> list[Any]:
    """Return the values of a batch; see ``BatchHandle.results``."""
    tracker = batch._seeing()
    values: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    with Detaching(batch), display.show_progress(batch) as shown:
        for index in as_completed.completions(batch, timeout, shown, make_do=return_exceptions):
            _collect(batch, tracker, index, values, failed)
    ended = [*values, *failed]
    by_themselves = [index for index in sorted(failed) if display.failed_by_itself(batch, index, failed[index])]
    failures = [job for index in by_themselves if (job := batch.jobs[index]) is not None]
    batch._cached_failures = failures
    failed |= _never_submitted(batch, {*values, *failed})
    if cleanup:
        _clear(batch, tracker, sorted(values))
    if failed and not return_exceptions:
        raise _error(batch, values, failed, failures)
    everything = {**values, **failed}
    order = sorted(everything) if ordered else [*_by_end(tracker, ended), *sorted(everything.keys() - set(ended))]
    return [everything[index] for index in order]


def _collect(
    batch: Batch,
    tracker: BatchTracker | AdHocTracker,
    index: int,
    values: dict[int, Any],
    failed: dict[int, BaseException],
) -> None:
    """Take one child's value or exception; an exception is never raised here, whatever class it has."""
    job, end = batch.jobs[index], tracker.end(index)
    if job is None:
        return
    try:
        if end is not None and end.word == outcomes.FAILED:
            error = job.exception()
            if error is not None:
                failed[index] = error
                return
        values[index] = job.result(cleanup=False)
    except Exception as error:  # noqa: BLE001 - removed, cancelled, not to be opened here, or the mark was wrong
        failed[index] = error


def _by_end(tracker: BatchTracker | AdHocTracker, ended: list[int]) -> list[int]:
    """Sort inputs by when they ended; of ends that a store puts into the same second, by when they were seen."""
    seen = {index: place for place, index in enumerate(tracker.ended)}
    return sorted(ended, key=lambda index: ((tracker.end(index) or (0, 0.0))[1], seen.get(index, len(seen))))


def _never_submitted(batch: Batch, known: set[int]) -> dict[int, BaseException]:
    """Return the exceptions that stand for inputs without a job: where the submission broke off, what ended it."""
    errors: dict[int, BaseException] = dict(batch._refused())
    stopped = batch._seeing().stopped
    lost = None if stopped else as_completed.loss_of(batch)
    why = "the batch was stopped" if stopped else "the process that submitted the batch was gone"
    for index in range(len(batch.jobs)):
        if index not in known and index not in errors:
            errors[index] = lost or JobCancelledError(
                f"input {index} of {batch.group_id} was not submitted",
                why=f"{why} before its turn came",
                next=f"kinetic batch status {batch.group_id}",
            )
    return errors


def _clear(batch: Batch, tracker: BatchTracker | AdHocTracker, collected: list[int]) -> None:
    """Remove children whose value is in memory; problems are a warning, never an error."""
    handles = [job for index in collected if (job := batch.jobs[index]) is not None]
    try:
        removal.after_collection(handles, tracker)
    except (KineticError, OSError) as error:
        output.warn(f"{batch.group_id} was collected, and not all of it could be removed: {error}")
    if len(collected) == len(batch.jobs):
        tracker.forget_kept()


def _error(
    batch: Batch, values: dict[int, Any], failed: dict[int, BaseException], failures: list[JobHandle]
) -> BatchError:
    """Say how many failed, and name the first of them; the first of all is the cause."""
    refused = batch._refused()
    partial = [values.get(index, refused.get(index)) for index in range(len(batch.jobs))]
    error = BatchError(batch.group_id, failures, partial)
    error.args = (display.failure_message(batch, failed),)
    first = failed[display.in_order(batch, failed)[0]]
    error.__cause__ = first if not isinstance(first, JobCancelledError) else None
    return error

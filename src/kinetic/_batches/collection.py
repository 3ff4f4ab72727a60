"""Collecting a batch: every value in memory first, only then is anything removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kinetic import _output as output
from kinetic._batches import control, display, removal
from kinetic._output import terminal, tracebacks
from kinetic._wire import outcomes
from kinetic.errors import BatchError, JobCancelledError, JobTimeoutError, KineticError, LaunchError

if TYPE_CHECKING:
    from kinetic._batches.display import View
    from kinetic._batches.state import AdHocTracker, Batch, BatchTracker
    from kinetic._jobs.handle import JobHandle


_LOOK_SECONDS = 1.0  # told, not polled: this only finds what nobody told
_HERE_SECONDS = 2.0  # between two questions whether a driver on this machine lives
_TAKE_OVER_SECONDS = 1.0  # between the end of a driver and the lease of the next one


def completions(
    batch: Batch, timeout: float | None, view: View | None = None, *, accept_missing: bool = False
) -> Iterator[int]:
    """Yield the index of each input whose job has ended for good, in that order.

    Args:
        batch: The batch.
        timeout: Seconds; None waits for ever.
        view: Shows how it goes; None where the caller's own code runs in between and may write to the terminal.
        accept_missing: Where nobody submits the rest any more, wait for what was submitted instead of raising.

    Raises:
        JobTimeoutError: The time is over; the jobs go on.
        BaseException: What ended the submission, as soon as it is known and what had ended by then was told.
        LaunchError: The process that submitted is gone, and inputs are left.
    """
    limit = None if timeout is None else time.monotonic() + timeout
    tracker, others = batch._get_tracker(), _DriverWatch(batch, accept_missing=accept_missing)
    read, held, told = 0, set[int](), set[int]()
    while True:
        over = _is_over(batch, tracker, others)
        while read < len(tracker.ended):
            held.add(tracker.ended[read])
            read += 1
        ready = _counted(tracker, held, over=over)
        held.difference_update(ready)
        batch._update_jobs(ready)
        for index in ready:
            if index in told:  # it was tried again after all, and is told once
                continue
            told.add(index)
            if view is not None:
                view.look(tracker)
            yield index
        if not accept_missing and (lost := others.loss(tracker)) is not None:
            raise lost
        if over:
            break
        if view is not None:
            view.look(tracker)
        left = None if limit is None else limit - time.monotonic()
        if left is not None and left <= 0:
            raise _timeout_error(batch, timeout or 0.0, len(tracker.active))
        tracker.wait(_LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS), read=read)


def warn_of_submission_failures(batch: Batch) -> None:
    """Say how many inputs could not be submitted, if any."""
    errors = batch._refused()
    if errors:
        index, error = min(errors.items())
        output.warn(f"{len(errors)} of {len(batch.jobs)} inputs could not be submitted; input {index}: {error}")


def _counted(tracker: BatchTracker | AdHocTracker, held: set[int], *, over: bool) -> list[int]:
    """Return those that count by now, in the order in which they ended; those that are tried again leave the list."""
    for index in [index for index in held if tracker.end(index) is None]:
        held.discard(index)
    ready = [index for index in held if over or tracker.is_final(index)]
    return sorted(ready, key=lambda index: (tracker.end(index) or (0, 0.0))[1])


def _is_over(batch: Batch, tracker: BatchTracker | AdHocTracker, others: _DriverWatch) -> bool:
    """Look, and say whether nothing runs any more and nothing more will."""
    complete = batch._submission_complete.is_set()
    tracker.refresh()
    if not _only_unlaunched(tracker):
        return False
    if not batch._poll.attached:
        return complete
    if (tracker.stopped and not tracker.active) or not others.may_submit(tracker):
        tracker.refresh(whole=True)  # a driver may have launched something just before it left
        return _only_unlaunched(tracker)
    return False


def _only_unlaunched(tracker: BatchTracker | AdHocTracker) -> bool:
    """Say whether nothing is open but what a driver named, and died before it launched it."""
    return len(tracker.active) <= len(tracker.unlaunched)


def loss_of(batch: Batch) -> BaseException | None:
    """Return why nobody submits the rest of a batch any more; None while somebody does, or nothing is left."""
    return _DriverWatch(batch).loss(batch._get_tracker(), at_once=True)


class _DriverWatch:
    """Who submits what is left of a batch: this process, another one, or nobody any more."""

    def __init__(self, batch: Batch, *, accept_missing: bool = False) -> None:
        self._batch = batch
        self._poll = batch._poll
        self._makes_do = accept_missing or self._poll.needs_driver
        self._since = time.monotonic()
        self._asked = self._gone_since = float("-inf")
        self._interval, self._is_gone = 0.0, False

    def may_submit(self, tracker: BatchTracker | AdHocTracker) -> bool:
        """Say whether something may come; ask for the driver only now and then."""
        missing = self._missing(tracker)
        again = [index for index in range(len(tracker.attempts)) if tracker.end(index) and not tracker.is_final(index)]
        if not missing and not again:
            return False
        if self._poll.limit is not None and time.monotonic() - self._since > self._poll.limit:
            return False
        if not self._driver_is_gone(tracker):
            return True
        if not missing or self._makes_do:
            return False
        self._tell(len(missing))
        return True

    def loss(self, tracker: BatchTracker | AdHocTracker, *, at_once: bool = False) -> BaseException | None:
        """Return what to raise because the rest will not be submitted; None while it may be.

        Unless it is asked for at once, it looks twice: somebody may be taking over in this very moment.
        """
        error = self._batch._submission_error
        if error is not None:
            return _with_running_jobs(error, self._batch, tracker)
        if not self._poll.attached or not (missing := self._missing(tracker)) or not self._driver_is_gone(tracker):
            return None
        if self._makes_do or self._poll.limit is not None:
            self._tell(len(missing))
            return None
        if not at_once and time.monotonic() - self._gone_since < _TAKE_OVER_SECONDS:
            return None
        gid = self._batch.group_id
        return LaunchError(
            f"{len(missing)} of {len(self._batch.jobs)} inputs of {gid} were not submitted, and nobody submits them",
            why=f"the process that submitted them is gone; {_running_text(self._batch, tracker)}",
            next=f"kinetic batch resume {gid}",
            code="driver-gone",
        )

    def _missing(self, tracker: BatchTracker | AdHocTracker) -> list[int]:
        """Name the inputs that are still to be submitted."""
        errors = self._batch._refused()
        unsubmitted = [index for index, attempt in enumerate(tracker.attempts) if attempt < 0 and index not in errors]
        return [*tracker.unlaunched, *(index for index in unsubmitted if tracker.may_launch(index))]

    def _driver_is_gone(self, tracker: BatchTracker | AdHocTracker) -> bool:
        """Say whether nobody drives; a batch that nobody drove yet may be about to be."""
        now = time.monotonic()
        if now - self._asked >= self._interval:
            found = control.lease_holder(tracker.store, self._batch.group_id, tracker.key)
            self._asked = now
            self._interval = min(self._poll.interval, _HERE_SECONDS) if found and found.is_here else self._poll.interval
            was_gone, self._is_gone = self._is_gone, found is not None and not found.lives
            if found is None:
                self._is_gone = now - self._since >= self._poll.interval
            if self._is_gone:
                self._interval = min(self._interval, _TAKE_OVER_SECONDS)
                self._gone_since = self._gone_since if was_gone else now
        return self._is_gone

    def _tell(self, missing: int) -> None:
        gid = self._batch.group_id
        output.report_once(
            f"{gid}: {missing} inputs were not submitted, and nobody drives this batch any more; "
            f"run `kinetic batch resume {gid}` to submit them"
        )


def _with_running_jobs(error: BaseException, batch: Batch, tracker: BatchTracker | AdHocTracker) -> BaseException:
    """Add what still runs to the error that ended a submission, in the place of what was added before."""
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(f"{batch.group_id}: ")]
    error.__notes__ = [*notes, f"{batch.group_id}: {_running_text(batch, tracker)}"]
    return error


def _running_text(batch: Batch, tracker: BatchTracker | AdHocTracker) -> str:
    active = len(tracker.active) - len(tracker.unlaunched)
    if active <= 0:
        return "none of its jobs is running"
    jobs = "1 of its jobs keeps" if active == 1 else f"{active} of its jobs keep"
    return f"{jobs} running: kinetic batch status {batch.group_id}"


def _timeout_error(batch: Batch, timeout: float, active: int) -> JobTimeoutError:
    return JobTimeoutError(
        f"{batch.group_id} has not ended within {timeout:g} s",
        why=f"{active} of its {len(batch.jobs)} jobs have not, and go on",
        next=f"call it again, or: kinetic batch status {batch.group_id}",
    )


class Detaching:
    """What a batch is waited for in: Ctrl-C in it says that the batch keeps running, how to follow and cancel it.

    It leaves as an ordinary KeyboardInterrupt; where nobody catches it, nothing more is printed.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            words = _report_detached(self._batch)
            raise tracebacks.interrupt(words) from None


def _report_detached(batch: Batch) -> str:
    """Print what goes on, and return the most important of it in one line."""
    from kinetic._batches.state import BatchTracker

    terminal.leave_line()
    group_id = batch.group_id
    if not isinstance(batch._get_tracker(), BatchTracker):  # put together by hand: no command knows it
        output.report("detached: the jobs keep running")
        output.report("follow:   kinetic jobs list")
        return "the jobs keep running; cancel them with this handle's cancel()"
    output.report(f"detached: {group_id} keeps running")
    output.report(f"follow:   kinetic batch status {group_id}")
    output.report(f"cancel:   kinetic batch cancel {group_id}")
    if _is_submitting(batch):
        output.report("this process stays to submit the other inputs; Ctrl-C once more ends it, and then")
        output.report(f"          kinetic batch resume {group_id}     submits the rest")
    return f"{group_id} keeps running; cancel it with: kinetic batch cancel {group_id}"


def _is_submitting(batch: Batch) -> bool:
    """Say whether this very process still submits inputs; a batch that was attached only watches."""
    return not batch._poll.attached and not batch._submission_complete.is_set()


def results(batch: Batch, *, timeout: float | None, ordered: bool, cleanup: bool, return_exceptions: bool) -> list[Any]:
    """Return the values of a batch; see ``BatchHandle.results``."""
    tracker = batch._get_tracker()
    values: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    with Detaching(batch), display.show_progress(batch) as shown:
        for index in completions(batch, timeout, shown, accept_missing=return_exceptions):
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
    stopped = batch._get_tracker().stopped
    lost = None if stopped else loss_of(batch)
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

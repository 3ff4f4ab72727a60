"""Waiting for a batch and collecting it: nothing is removed before every value is in memory and returned."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kinetic._batches import control, display, removal, state
from kinetic._batches.tracker import BatchTracker
from kinetic._jobs import handle as job_handle
from kinetic._jobs import locate, notifications, wait
from kinetic._output import notebook, signal_handlers, tracebacks
from kinetic._output import terminal as output
from kinetic._wire.outcomes import FAILED, SUCCEEDED
from kinetic.errors import BatchError, JobCancelledError, JobTimeoutError, LaunchError

if TYPE_CHECKING:
    from kinetic._batches.display import View
    from kinetic._batches.state import Batch
    from kinetic._batches.tracker import Tracker
    from kinetic._jobs.handle import JobHandle
    from kinetic._wire.outcomes import Outcome

_POLL_SECONDS = 1.0  # watched, not polled: this only finds what no watch reported
told_that_it_stays: set[str] = set()  # the batches of which Ctrl-C said that this process submits the rest
_HERE_SECONDS = 2.0  # between two checks whether a driver on this machine lives
_MANY = 10_000  # children: of more, a handle keeps nothing of how its job ended
_AHEAD = 64  # results that are read before they are needed: at most 2 MiB
_TAKE_OVER_SECONDS = 1.0  # between the end of a driver and the lease of the next one


def completions(batch: Batch, timeout: float | None, view: View | None = None) -> Iterator[int]:
    """Yield the index of each input whose job has ended for good, in that order, each once; see below."""
    for group in _ended_together(batch, timeout, view, accept_missing=False):
        for index in group:
            if view is not None:
                view.look(batch._get_tracker())
            yield index


def _ended_together(
    batch: Batch, timeout: float | None, view: View | None, *, accept_missing: bool
) -> Iterator[list[int]]:
    """Yield the indexes of inputs whose jobs have ended for good, those together that were found together, each once.

    Args:
        batch: The batch.
        timeout: Seconds; None means no limit.
        view: Shows the progress; None where the caller's own code runs in between and may write to the terminal.
        accept_missing: Where no process submits the rest, wait for what was submitted instead of raising.

    Raises:
        JobTimeoutError: The time is over; the jobs keep running.
        BaseException: What ended the submission, once what had ended by then was yielded.
        LaunchError: The process that submitted is gone, and inputs are left.
    """
    timeout = wait.seconds_to_wait(timeout)
    tracker, watch = batch._get_tracker(), _DriverWatch(batch, accept_missing=accept_missing)
    began = tracker.clock.monotonic()
    limit = None if timeout is None else began + timeout
    read, held, yielded, looked = 0, set[int](), bytearray(len(batch.jobs)), began

    def look(seconds: float = 0.0) -> tuple[bool, BaseException | None]:
        nonlocal looked
        if seconds:
            tracker.wait(seconds, read=read)
        looked = tracker.clock.monotonic()
        over = _is_over(batch, tracker, watch)
        return over, None if accept_missing else watch.loss(tracker)

    over, lost = wait.bear_outages(look, batch.group_id, tracker.clock, limit, **wait.FIRST_LOOK)
    while True:
        held.update(new := tracker.ended[read:])
        read += len(new)
        held = {index for index in held if tracker.end(index) is not None}  # else it is being tried again
        ready = [index for index in held if over or tracker.is_final(index)]
        held.difference_update(ready)
        batch._update_jobs(ready)
        fresh = {index for index in ready if not yielded[index]}
        if fresh:
            for index in fresh:
                yielded[index] = True
            yield sorted(fresh, key=lambda index: _ended_at(tracker, index))
        if lost is not None:
            raise lost
        if over:
            notifications.see_batch(batch.group_id, lambda: state.count_states(tracker, batch._submission_errors))
            break
        if view is not None:
            view.look(tracker)
        signal_handlers.check()
        now = tracker.clock.monotonic()
        wait.load_what_the_end_needs(now - began)
        left = _POLL_SECONDS if limit is None else max(0.0, limit - now)
        if limit is not None and looked >= limit:  # not before a last look: the caller's own code may take long
            open_jobs = len(batch.jobs) - sum(yielded)
            missing = open_jobs - _running(tracker)
            those = f"{missing} of them were not submitted so far" if missing > 0 else "they keep running"
            raise JobTimeoutError(
                f"{batch.group_id} has not ended within {timeout:g} s",
                why=f"{open_jobs} of its {len(batch.jobs)} jobs have not ended; {those}",
                next=f"kinetic batch status {batch.group_id} --watch     or wait again",
            )
        with _without_slot(batch):
            again = functools.partial(look, min(left, _POLL_SECONDS))
            try:
                over, lost = wait.bear_outages(again, batch.group_id, tracker.clock, limit)
            except wait.OUT_OF_REACH:
                if limit is None or now < limit:
                    raise  # else the time is over, as it is after a last look


def _without_slot(batch: Batch) -> AbstractContextManager[None]:
    """While it is open, a job that is this process needs no slot; see ``Observer.without_slot``."""
    job = next(filter(None, batch.jobs), None) if "KINETIC_JOB_ID" in os.environ else None
    return locate.backend_of(job).without_slot() if job is not None else contextlib.nullcontext()


def warn_of_submission_failures(batch: Batch) -> None:
    """Say how many inputs could not be submitted, if any."""
    errors = batch._submission_errors
    if errors:
        index, error = min(errors.items())
        output.warn(f"{len(errors)} of {len(batch.jobs)} inputs could not be submitted; input {index}: {error}")


def _ended_at(tracker: Tracker, index: int) -> float:
    end = tracker.end(index)
    return end.at if end is not None else 0.0


def _is_over(batch: Batch, tracker: Tracker, watch: _DriverWatch) -> bool:
    """Refresh, and return whether nothing runs any more and nothing more will."""
    complete = batch._submission_complete.is_set()
    tracker.refresh()
    if _running(tracker) > 0:
        return False
    if not batch._poll.attached:
        return complete
    if all((end := tracker.end(index)) and end.word == SUCCEEDED for index in range(len(tracker.attempts))):
        return True
    if (tracker.stopped and not tracker.active) or not watch.may_submit(tracker):
        tracker.refresh(whole=True)  # a driver may have launched something just before it left
        return _running(tracker) <= 0
    return False


def _running(tracker: Tracker) -> int:
    """Count the jobs that have not ended, without those that a driver named, and died before it launched them."""
    return len(tracker.active) - len(tracker.unlaunched)


class _DriverWatch:
    """Who submits what is left of a batch: this process, another one, or none any more."""

    def __init__(self, batch: Batch, *, accept_missing: bool = False) -> None:
        self._batch, self._poll = batch, batch._poll
        self._accepts_missing = accept_missing or self._poll.needs_driver
        self._since = time.monotonic()
        self._asked = self._gone_since = float("-inf")
        self._interval, self._is_gone, self._is_gone_for_good = 0.0, False, False

    def may_submit(self, tracker: Tracker) -> bool:
        """Return whether more may be submitted; check for the driver only now and then."""
        missing = self._missing(tracker)
        again = any(tracker.end(index) and not tracker.is_final(index) for index in range(len(tracker.attempts)))
        if not missing and not again:
            return False
        if self._poll.limit is not None and time.monotonic() - self._since > self._poll.limit:
            return False
        if not self._driver_is_gone(tracker) or not self._is_gone_for_good:
            return True
        return bool(self._missing(tracker)) and not self._accepts_missing  # ``loss`` tells of these

    def loss(self, tracker: Tracker, *, at_once: bool = False) -> BaseException | None:
        """Return what to raise because the rest will not be submitted; None while it may be.

        Unless it is asked for at once, the driver is looked for twice.
        """
        batch, error = self._batch, self._batch._submission_error
        if error is not None:
            notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(f"{batch.group_id}: ")]
            error.__notes__ = [*notes, f"{batch.group_id}: {_running_text(batch, tracker)}"]
            return error
        if not self._poll.attached or not self._missing(tracker) or not self._driver_is_gone(tracker):
            return None
        if not (missing := self._missing(tracker)):
            return None
        if self._accepts_missing or self._poll.limit is not None:
            self._report(len(missing))
            return None
        if not at_once and not self._is_gone_for_good:
            return None
        return LaunchError(
            f"{len(missing)} of {len(batch.jobs)} inputs of {batch.group_id} were not submitted",
            why=f"the process that submitted the batch is gone; {_running_text(batch, tracker)}",
            next=f"kinetic batch resume {batch.group_id}",
            code="driver-gone",
        )

    def _missing(self, tracker: Tracker) -> list[int]:
        """Return the inputs that are still to be submitted."""
        errors = self._batch._submission_errors
        unsubmitted = [index for index, attempt in enumerate(tracker.attempts) if attempt < 0 and index not in errors]
        return [*tracker.unlaunched, *(index for index in unsubmitted if tracker.may_launch(index))]

    def _driver_is_gone(self, tracker: Tracker) -> bool:
        """Return whether no process drives; a batch that was never driven may be about to be.

        If so, the tracker has seen all that the last driver submitted.
        """
        begun = time.monotonic()
        if begun - self._asked >= self._interval:
            found = control.lease_holder(tracker.store, self._batch.group_id, tracker.key)
            if found is not None and not found.lives:
                tracker.refresh(whole=True)  # our last look may be from before it submitted the rest, and left
            self._asked = time.monotonic()
            self._interval = min(self._poll.interval, _HERE_SECONDS) if found and found.is_here else self._poll.interval
            was_gone, self._is_gone = self._is_gone, found is not None and not found.lives
            if found is None:
                self._is_gone = tracker.was_removed() or begun - self._since >= self._poll.interval
            if self._is_gone:
                self._interval = min(self._interval, _TAKE_OVER_SECONDS)
                self._gone_since = self._gone_since if was_gone else self._asked
            # Two looks: a process may be taking over in this very moment, and after a suspend all drivers were silent.
            seconds = control.TOUCH_SECONDS if found is not None and found.is_silent else _TAKE_OVER_SECONDS
            self._is_gone_for_good = self._is_gone and begun - self._gone_since >= seconds
        return self._is_gone

    def _report(self, missing: int) -> None:
        group_id = self._batch.group_id
        output.report_once(
            f"{group_id}: {missing} inputs were not submitted, and no process drives this batch; "
            f"run `kinetic batch resume {group_id}` to submit them"
        )


def _running_text(batch: Batch, tracker: Tracker) -> str:
    running = _running(tracker)
    if running <= 0:
        return "none of its jobs is running"
    jobs = "1 of its jobs keeps" if running == 1 else f"{running} of its jobs keep"
    return f"{jobs} running: kinetic batch status {batch.group_id}"


def detaching(batch: Batch) -> tracebacks.Detaching:
    """Return a context for waiting, where Ctrl-C says that the batch keeps running, how to follow and to cancel it."""
    return tracebacks.Detaching(functools.partial(report_detached, batch), again=True)


def is_submitting(batch: Batch) -> bool:
    """Return whether a thread of this process still submits inputs of a batch."""
    return not batch._poll.attached and not batch._submission_complete.is_set()


def report_detached(batch: Batch, *, ends: bool = False) -> str:
    """Print what keeps running, and return the most important of it in one line; ``ends``: this process does."""
    output.leave_line()
    group_id = batch.group_id
    if not isinstance(batch._get_tracker(), BatchTracker):  # put together by hand: no command knows it
        output.report("detached: the jobs keep running")
        output.report("follow:   kinetic jobs list")
        return "the jobs keep running; cancel them with this handle's cancel()"
    output.report(f"detached: {group_id} keeps running")
    output.report(f"follow:   kinetic batch status {group_id}")
    output.report(f"cancel:   kinetic batch cancel {group_id}")
    if is_submitting(batch) or (batch._submission_error and not batch._poll.attached):
        ends = ends or batch._submission_error is not None  # of this very Ctrl-C
        if not ends and hasattr(sys, "ps1"):  # a notebook or a console, which Ctrl-C does not end
            output.report("this session submits the other inputs; if it is closed or restarted before that,")
        elif not ends:
            told_that_it_stays.add(group_id)
            output.report("this process stays to submit the other inputs; Ctrl-C once more ends it, and then")
        output.report(f"          kinetic batch resume {group_id}     submits the rest")
    return f"{group_id} keeps running; cancel it with: kinetic batch cancel {group_id}"


def results(batch: Batch, *, timeout: float | None, ordered: bool, cleanup: bool, return_exceptions: bool) -> list[Any]:
    """Return the values of a batch; see ``BatchHandle.results``."""
    tracker = batch._get_tracker()
    values: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    seconds = wait.seconds_to_wait(timeout)
    limit = None if seconds is None else tracker.clock.monotonic() + seconds
    with detaching(batch), display.show_progress(batch) as shown:
        for group in _ended_together(batch, seconds, shown, accept_missing=return_exceptions):
            for index, ended_as in _read_ahead(batch, tracker, group):
                if shown is not None:
                    shown.look(tracker)
                take = functools.partial(_collect, batch, tracker, index, values, failed, ended_as)
                wait.bear_outages(take, batch.group_id, tracker.clock, limit)
    notebook.look_now(batch.group_id)
    ended = [*values, *failed]
    real = [index for index in sorted(failed) if display.is_real_failure(batch, index, failed[index])]
    failures = batch._cached_failures = [job for index in real if (job := batch.jobs[index]) is not None]
    failed |= _never_submitted(batch, {*values, *failed})
    if failed and not return_exceptions:
        raise _error(batch, values, failed, failures)  # and removes nothing: a script that it ends has used no value
    if cleanup:
        _clean_up(batch, tracker, sorted(values))
    if ordered:
        return [values[index] if index in values else failed[index] for index in sorted([*values, *failed])]
    everything = {**values, **failed}
    # A store may put several ends into the same second: those are in the order in which they were seen.
    seen = {index: place for place, index in enumerate(tracker.ended)}
    ended.sort(key=lambda index: (_ended_at(tracker, index), seen.get(index, len(seen))))
    return [everything[index] for index in (*ended, *sorted(everything.keys() - set(ended)))]


def _read_ahead(
    batch: Batch, tracker: Tracker, group: Sequence[int]
) -> Iterator[tuple[int, tuple[Outcome, bytes | None] | None]]:
    """Yield inputs that have ended, with what was read of their ends: of several at once in a distant store."""
    for start in range(0, len(group), _AHEAD):
        part = {index: batch.jobs[index] for index in group[start : start + _AHEAD]}
        fine = {index: end for index in part if (end := tracker.end(index)) is not None and end.word != FAILED}
        read = job_handle.read_ahead([job for index, job in part.items() if job is not None and index in fine])
        for index, job in part.items():
            yield index, read.get(job.job_id) if job is not None else None


def _collect(
    batch: Batch,
    tracker: Tracker,
    index: int,
    values: dict[int, Any],
    failed: dict[int, BaseException],
    ended: tuple[Outcome, bytes | None] | None,
) -> None:
    """Take one child's value or exception; an exception is never raised here, whatever class it has."""
    job, end = batch.jobs[index], tracker.end(index)
    if job is None:
        return
    try:
        error = job.exception() if end is not None and end.word == FAILED else None
        if error is not None:
            failed[index] = error
        else:
            values[index] = job_handle.take_value(job, light=len(batch.jobs) > _MANY, ended=ended)
    except Exception as error:
        if isinstance(error, wait.OUT_OF_REACH) and error.code != "key-missing-here":  # it says nothing of the job
            raise
        if isinstance(error, ImportError | AttributeError) and tracebacks.why_replaced():  # neither does this
            raise
        failed[index] = error  # removed, cancelled, cannot be opened here, or the mark was wrong


def _never_submitted(batch: Batch, known: set[int]) -> dict[int, BaseException]:
    """Return the exceptions of inputs without a job: where the submission broke off, what ended it."""
    errors: dict[int, BaseException] = dict(batch._submission_errors)
    tracker = batch._get_tracker()
    lost = None if tracker.stopped else _DriverWatch(batch).loss(tracker, at_once=True)
    why = "the batch was stopped" if tracker.stopped else "the process that submitted the batch was gone"
    for index in range(len(batch.jobs)):
        if index not in known and index not in errors:
            errors[index] = lost or JobCancelledError(
                f"input {index} of {batch.group_id} was not submitted",
                why=f"{why} before",
                next=f"kinetic batch status {batch.group_id}",
            )
    return errors


def _clean_up(batch: Batch, tracker: Tracker, collected: list[int]) -> None:
    """Remove children whose value is in memory; problems are a warning, never an error."""
    handles = [job for index in collected if (job := batch.jobs[index]) is not None]
    try:
        removal.after_collection(handles, tracker)
        if len(collected) == len(batch.jobs):
            tracker.forget_kept()
            removal.remove_kept_predecessors(handles, tracker)
    except Exception as error:  # noqa: BLE001 - also a signal handler's: the values, which are in memory, must arrive
        output.warn(f"{batch.group_id} was collected, but not all of it could be removed: {error}")


def _error(
    batch: Batch, values: dict[int, Any], failed: dict[int, BaseException], failures: list[JobHandle]
) -> BatchError:
    """Return the error that counts the failures and names the first of them; the very first is its cause."""
    partial = [values.get(index, batch._submission_errors.get(index)) for index in range(len(batch.jobs))]
    error = BatchError(batch.group_id, failures, partial)
    jobs = (batch.jobs[index] for index in values)
    kept = sum(job is not None and locate.past_of(job) is None for job in jobs)  # others were collected before
    error.args = (display.failure_message(batch, failed, values=kept),)
    first = failed[display.in_order(batch, failed)[0]]
    error.__cause__ = first if not isinstance(first, JobCancelledError) else None
    return error

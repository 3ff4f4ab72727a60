"""What the commands and the dashboard show of a batch: its state in numbers, and one row for each input."""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import time
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kinetic._batches import control, state
from kinetic._batches.display import first_line
from kinetic._jobs import locate, notifications
from kinetic._jobs.status import observe_many
from kinetic._output.format import plain, shortened
from kinetic._wire import NamedTuple, dataclass, input_table, keys
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kinetic._batches.batch_handle import BatchHandle
    from kinetic._batches.control import Holder
    from kinetic._batches.tracker import Tracker
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.records import Group, JobRecord

_LONGEST_INPUT = 60  # characters


class FoundBatch(NamedTuple):
    """A batch that was found: its manifest and its handle."""

    group: Group
    handle: BatchHandle


class BatchState(NamedTuple):
    """The state of a batch when it was read."""

    counts: Counter[str]  # of its inputs, by state
    driver: Holder | None  # the process that submits the rest, or did so last
    stopped: bool  # cancelled, or stopped by a failure
    open: int  # inputs that are to be submitted or tried again

    @property
    def is_abandoned(self) -> bool:
        """Whether inputs are to be submitted and no process does it."""
        return self.open > 0 and not (self.driver and self.driver.lives)

    @property
    def has_failed(self) -> bool:
        """Whether some input has ended without a result."""
        return any(self.counts[bad] for bad in (state.FAILED, state.CANCELLED, state.REFUSED, state.MISSING))

    @property
    def is_over(self) -> bool:
        """Whether no input runs, waits or is to be submitted: taking the lease would then only disturb."""
        return not self.open and not (self.counts[state.RUNNING] or self.counts[state.WAITING])

    @property
    def summary(self) -> str:
        """How many inputs are in which state."""
        return state.summary_text(self.counts)


def batch_state(batch: FoundBatch) -> BatchState:
    """Read the state of a batch: one request to its backend and one listing of its store, whatever its size."""
    tracker, refused = state.tracker_of(batch.handle), batch.handle.submission_failures
    looks: list[Callable[[], Any]] = [
        functools.partial(state.refreshed, batch.handle),
        functools.partial(control.lease_holder, tracker.store, batch.group.group_id, locate.group_key(batch.group)),
    ]
    _, driver = locate.in_order([(tracker.store.url, look) for look in looks])
    now = _state_as_seen(tracker, refused, driver)
    if now.is_abandoned:  # the driver may have submitted the rest, and left, between the two looks
        now = _state_as_seen(state.refreshed(batch.handle), refused, driver)
    if now.is_over:
        notifications.see_batch(batch.group.group_id, lambda: now.counts)
    return now


def _state_as_seen(tracker: Tracker, refused: Collection[int], driver: Holder | None) -> BatchState:
    counts = state.count_states(tracker, refused)
    missing = [index for index, attempt in enumerate(tracker.attempts) if attempt < 0 and index not in refused]
    open_ = counts[state.AGAIN] + sum(tracker.may_launch(index) for index in missing)
    # A driver that dies at the wrong moment has named one and not launched it; on other machines they may just wait.
    jobs = filter(None, map(tracker.record, tracker.unseen()))
    open_ += sum(job.host == locate.machine() for job in jobs)
    return BatchState(counts, driver, tracker.stopped, open_)


def batch_page(batch: FoundBatch, now: BatchState) -> dict[str, Any]:
    group, driver = batch.group, now.driver
    return {
        "group_id": group.group_id,
        "name": group.group_name,
        "function": group.submit_fn_name,
        "tags": dict(group.tags),
        "accelerator": str(group.handle.get("accelerator", "")),
        "backend": str(group.handle.get("backend", "")),
        "created_at": keys.format_utc(group.created),
        "total": group.total_expected,
        "counts": {name.replace(" ", "_"): now.counts[name] for name in state.STATES},
        "stopped": now.stopped,
        "driver": {"machine": driver.machine, "pid": driver.pid} if driver and driver.lives else None,
        "is_left": now.is_abandoned,
    }


def input_text(batch: FoundBatch, index: int) -> str:
    """Return an input as a short text, "" where it is not known."""
    table = batch.handle._table
    return shortened(plain(table.inputs[index].shown), _LONGEST_INPUT) if table is not None else ""


@dataclass(frozen=True)
class Row:
    """One input of a batch; its latest attempt and that job's id are None when it was not submitted."""

    index: int
    state: str
    attempt: int | None
    job_id: str | None
    refused: str  # why it could not be submitted
    seen: Snapshot | None = None

    @property
    def reason(self) -> str:
        """How the job failed or what it waits for."""
        if self.seen is None:
            return self.refused
        if self.state == state.SUCCEEDED:
            is_gone = self.seen.status.value == "NOT_FOUND" and self.seen.outcome is None
            return ("collected" if locate.is_collected(self.seen.past) else "removed") if is_gone else ""
        return "" if self.state in {state.REMOVED, state.CANCELLED} else plain(self.seen.reason)

    @property
    def times(self) -> tuple[float | None, float | None, float | None]:
        """When the job began and ended, and how long it took or takes, in seconds."""
        found = (self.seen.outcome or self.seen.observation) if self.seen is not None else None
        if self.seen is None or found is None or found.started is None:
            return None, None, None
        until = found.ended if self.seen.status.is_final else time.time()
        return found.started, found.ended, round(until - found.started, 3) if until else None


def command_of(job: JobRecord) -> list[str] | None:
    """Return the command of a job, that of a sweep's child with its values where these can be read."""
    if not job.command or job.group_id is None or job.group_index is None:
        return job.command
    from kinetic._runner.worker import command, function_call  # only for a sweep's job

    with contextlib.suppress(KineticError, pickle.UnpicklingError, IndexError, TypeError, ValueError):
        store = locate.store_of(job)
        item = input_table.read_table(store, state.load_group(store, job.group_id)).inputs[job.group_index]
        if item.arguments is not None:
            data = function_call.fetch_artifact(store, item.arguments, "the input")
            (_, _, values), _ = _Texts(io.BytesIO(data)).load()  # of ``command.run``
            return command.filled(job.command, values)
    return job.command


class _Texts(pickle.Unpickler):
    """Opens an input of which only texts are needed: nothing that it names is imported or called."""

    def find_class(self, module: str, name: str, /) -> Any:  # noqa: ARG002 - as in pickle
        """Return what replaces all else, such as the data of a command."""
        return lambda *_: None


def rows_of(batch: FoundBatch, *, only_failed: bool, limit: int | None) -> tuple[list[Row], int]:
    """Return the inputs that are shown, and how many are not; only for the former are the jobs read."""
    refused, tracker = batch.handle.submission_failures, state.tracker_of(batch.handle)
    states = {index: state.state_of(tracker, index, refused) for index in range(len(tracker.attempts))}
    chosen = [index for index, now in states.items() if not only_failed or now in {state.FAILED, state.REFUSED}]
    if limit is not None and len(chosen) > limit:
        first = [state.FAILED, state.REFUSED, state.AGAIN, state.RUNNING]
        chosen.sort(key=lambda index: first.index(states[index]) if states[index] in first else len(first))
    rows = []
    for index in chosen[:limit]:
        job, error = batch.handle.jobs[index], refused.get(index)
        why = first_line(error) if error is not None else ""
        attempt, job_id = (tracker.attempts[index], job.job_id) if job is not None else (None, None)
        rows.append(Row(index, states[index], attempt, job_id, why))
    jobs = [job for row in rows if (job := batch.handle.jobs[row.index]) is not None]
    seen = {job.job_id: look for job, look in zip(jobs, observe_many(jobs), strict=True)}
    return [replace(row, seen=seen.get(row.job_id or "")) for row in rows], len(chosen) - len(rows)


def row_page(batch: FoundBatch, row: Row) -> dict[str, Any]:
    started, ended, seconds = row.times
    return {
        "index": row.index,
        "input": input_text(batch, row.index),
        "state": row.state.replace(" ", "_"),
        "status": row.seen.status.value if row.seen is not None else None,
        "job_id": row.job_id,
        "attempt": row.attempt,
        "reason": row.reason,
        "started_at": keys.format_utc(started) if started else None,
        "ended_at": keys.format_utc(ended) if ended else None,
        "duration_seconds": seconds,
    }

"""Ending a batch: cancelling what runs, removing everything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._batches import children, clearing, closing, turns
from kinetic._batches.board import Board
from kinetic._wire import keys
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._batches.batch import Batch
    from kinetic._batches.loose import Loose
    from kinetic._wire.handles import JobRecord

_WAIT_SECONDS = 10.0  # a driver of this process looks up between two launches


_LAST_WORDS_SECONDS = 10.0  # between the verdict of a job and the end of its keeper's work on it


def cancel(batch: Batch) -> None:
    """Stop the driver, wherever it is, and cancel what has not ended."""
    board = batch._seeing()
    if not isinstance(board, Board):
        board.refresh(whole=True)  # what has ended is left alone
        for index in sorted(board.active):
            job = batch.jobs[index]
            if job is not None:
                with _told(job.job_id, "cancelled"):
                    job.cancel()
        board.refresh(whole=True)
        return
    board.stop(turns.CANCELLED)
    _cancel_active(board)
    if not batch._poll.attached:
        batch._submission_complete.wait(_WAIT_SECONDS)
        _cancel_active(board)  # what our driver launched meanwhile; one elsewhere cancels such a thing itself
    batch._take_over_jobs()


@contextmanager
def _told(job_id: str, what: str) -> Iterator[None]:
    """Let one job that cannot be ended cost a line that names it, not the others."""
    try:
        yield
    except (KineticError, OSError) as error:
        output.warn(f"{job_id} could not be {what}: {error}")


def _cancel_active(board: Board) -> None:
    board.refresh(whole=True)
    closing.cancel(sorted(board.active), board)
    board.refresh(whole=True)


def cleanup(batch: Batch, *, resources: bool, artifacts: bool) -> None:
    """Remove every attempt at every input, and with the artifacts what makes the batch findable; outputs stay."""
    board = batch._refreshed()
    if resources:
        cancel(batch)
    jobs = _all_attempts(batch, board)
    if resources:
        names = [job.job_id for job in jobs]
        if not artifacts:
            board.backend.stop(names, wait=_LAST_WORDS_SECONDS)  # all have ended; a log may be on its way yet
        board.backend.remove(names)
    if artifacts:
        board.forget_kept()
    if resources or artifacts:
        tasks = [partial(_remove, job, board, resource=resources, artifacts=artifacts) for job in jobs]
        clearing.run(board.store, tasks)
    if artifacts and batch.group_id:
        board.store.delete(keys.group_manifest(batch.group_id))  # from here on it cannot be attached
        board.store.delete(keys.group(batch.group_id))


def _all_attempts(batch: Batch, board: Board | Loose) -> list[JobRecord]:
    """Return a job of everything that was ever submitted, earlier attempts included."""
    if not isinstance(board, Board):
        return [job for job in batch.jobs if job is not None]
    found = board.children()
    machines = {(index, attempt): machine for index, attempt, machine in found}  # one, should there be two
    return [children.record_of(board.group, *child, machine) for child, machine in machines.items()]


def _remove(job: JobRecord, board: Board | Loose, *, resource: bool, artifacts: bool) -> None:
    """Remove one attempt; a page of the history says so, and how it had ended."""
    with _told(job.job_id, "removed"):
        clearing.bury(job, board, _how_it_ended(job, board), resource=resource, artifacts=artifacts)
        if artifacts:
            board.store.delete(keys.job(job.job_id))


def _how_it_ended(job: JobRecord, board: Board | Loose) -> str:
    """Return the word of a tombstone; an attempt that was followed by another one had failed."""
    index = job.group_index
    if index is None or not isinstance(board, Board):
        return "REMOVED"
    if board.attempts[index] != (job.group_attempt or 0):
        return "FAILED"
    end = board.end(index)
    return end.word.upper() if end is not None else "REMOVED"

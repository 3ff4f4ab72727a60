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
    from kinetic._batches.handle import BatchHandle
    from kinetic._batches.loose import Loose
    from kinetic._jobs.handle import JobHandle

_WAIT_SECONDS = 10.0  # a driver of this process looks up between two launches


_LAST_WORDS_SECONDS = 10.0  # between the verdict of a job and the end of its keeper's work on it


def cancel(batch: BatchHandle) -> None:
    """Stop the driver, wherever it is, and cancel what has not ended."""
    board = batch._seeing()  # noqa: SLF001 - one room
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
    if not batch._poll.attached:  # noqa: SLF001
        batch._submission_complete.wait(_WAIT_SECONDS)  # noqa: SLF001
        _cancel_active(board)  # what our driver launched meanwhile; one elsewhere cancels such a thing itself
    batch._take_over_jobs()  # noqa: SLF001


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


def cleanup(batch: BatchHandle, *, resources: bool, artifacts: bool) -> None:
    """Remove every attempt at every input, and with the artifacts what makes the batch findable; outputs stay."""
    board = batch._refreshed()  # noqa: SLF001 - one room
    if resources:
        cancel(batch)
    handles = _all_attempts(batch, board)
    if resources:
        names = [handle.job_id for handle in handles]
        if not artifacts:
            board.backend.stop(names, wait=_LAST_WORDS_SECONDS)  # all have ended; a log may be on its way yet
        board.backend.remove(names)
    if artifacts:
        board.forget_kept()
    if resources or artifacts:
        tasks = [partial(_remove, handle, board, resource=resources, artifacts=artifacts) for handle in handles]
        clearing.run(board.store, tasks)
    if artifacts and batch.group_id:
        board.store.delete(keys.group_manifest(batch.group_id))  # from here on it cannot be attached
        board.store.delete(keys.group(batch.group_id))


def _all_attempts(batch: BatchHandle, board: Board | Loose) -> list[JobHandle]:
    """Return a handle of everything that was ever submitted, earlier attempts included."""
    if not isinstance(board, Board):
        return [job for job in batch.jobs if job is not None]
    found = board.children()
    machines = {(index, attempt): machine for index, attempt, machine in found}  # one, should there be two
    return [children.handle_of(board.group, *child, machine) for child, machine in machines.items()]


def _remove(handle: JobHandle, board: Board | Loose, *, resource: bool, artifacts: bool) -> None:
    """Remove one attempt; a page of the history says so, and how it had ended."""
    with _told(handle.job_id, "removed"):
        clearing.bury(handle, board, _how_it_ended(handle, board), resource=resource, artifacts=artifacts)
        if artifacts:
            board.store.delete(keys.job(handle.job_id))


def _how_it_ended(handle: JobHandle, board: Board | Loose) -> str:
    """Return the word of a tombstone; an attempt that was followed by another one had failed."""
    index = handle.group_index
    if index is None or not isinstance(board, Board):
        return "REMOVED"
    if board.attempts[index] != (handle.group_attempt or 0):
        return "FAILED"
    end = board.end(index)
    return end.word.upper() if end is not None else "REMOVED"

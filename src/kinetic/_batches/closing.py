"""Ending children on purpose: what is closed can never succeed, what is cancelled is never started again."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from kinetic._batches.clearing import run
from kinetic._jobs import removing
from kinetic._wire import keys
from kinetic._wire import outcome as outcomes

if TYPE_CHECKING:
    from kinetic._batches.board import Board
    from kinetic._stores.protocol import Store
    from kinetic._wire.handles import JobRecord

_WAIT_SECONDS = 10.0  # 5 s until a process that ignores SIGTERM is killed, and as much again


def close(job: JobRecord, store: Store) -> None:
    """Create the verdict of an attempt that has none and is to be followed by another one."""
    if store.size(keys.result(job.job_id)) is not None:
        return
    why = "its process was lost; another attempt took its place"
    removing.seal(job, store, removing.outcome_of(job, outcomes.FAILED, "lost", message=why))


def cancel(indexes: Iterable[int], board: Board) -> None:
    """Cancel the latest attempts at inputs: first all verdicts, then all processes; their artifacts stay."""
    jobs = [job for index in indexes if (job := board.record(index)) is not None]
    run(board.store, [partial(_cancel, job, board) for job in jobs])
    names = [job.job_id for job in jobs]
    if names and board.backend.stop(names, wait=_WAIT_SECONDS):
        board.backend.remove(names)  # nothing of what they need stays: captured values, keys, folders


def _cancel(job: JobRecord, board: Board) -> None:
    if removing.seal(job, board.store, removing.outcome_of(job)) and job.group_index is not None:
        board.note_end(job.group_index, job.group_attempt or 0, outcomes.CANCELLED)

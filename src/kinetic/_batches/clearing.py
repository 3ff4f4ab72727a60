"""Removing children whose value is in memory, many at a time; the manifest stays, so the batch can be found again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kinetic._jobs import history, places, removing, tombstones
from kinetic._jobs.status import observe
from kinetic._stores import transfer
from kinetic._wire import handles, keys
from kinetic._wire.steps import step

if TYPE_CHECKING:
    from kinetic._batches.board import Board
    from kinetic._batches.loose import Loose
    from kinetic._jobs.handle import JobHandle
    from kinetic._stores.protocol import Store
    from kinetic._wire.handles import JobRecord


def after_collection(collected: Sequence[JobHandle], board: Board | Loose) -> None:
    """Remove the resources and artifacts of children that succeeded and were collected; outputs always stay.

    Logs and pages go into the history first, and the marks: if we die in between, these children count as collected,
    and none of them is run again.
    """
    if not collected:
        return
    store = board.store
    run(store, [partial(_keep, handle, board) for handle in collected])
    step("client:children-marked")
    board.backend.remove([handle.job_id for handle in collected])
    run(store, [partial(store.delete, keys.job(handle.job_id)) for handle in collected])


def _keep(handle: JobHandle, board: Board | Loose) -> None:
    """Write a collected child's log and page into the history, and set the mark that says it is removed."""
    seen = handle._ended or observe(handle)
    handle._past = removing.collected_page(handle, seen)
    _mark(handle, board)


def bury(job: JobRecord, board: Board | Loose, status: str, *, resource: bool, artifacts: bool) -> None:
    """Write a child's tombstone, and say in its batch's own listing that it was removed."""
    fields = {**handles.plain(job), "status": status, "reason": "", "started": None, "ended": None, "attempts": 1}
    fields |= {"artifacts_removed": artifacts, "resource_removed": resource}
    tombstones.write(board.store, fields, places.key_to_seal(job))
    if artifacts:
        history.forget(board.store, job.job_id)
    _mark(job, board)


def _mark(job: JobRecord, board: Board | Loose) -> None:
    removing.mark_as_removed(job, board.store)
    if job.group_id:
        board.note_end(job.group_index or 0, job.group_attempt or 0, "removed")


def run(store: Store, tasks: Sequence[Callable[[], object]]) -> None:
    """Do many small things with a store, side by side."""
    for _ in transfer.in_parallel(store, tasks):
        pass

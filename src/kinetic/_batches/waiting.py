"""Waiting for a batch: every input is told once, when the attempt that counts has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._batches import lease
from kinetic.errors import JobTimeoutError

if TYPE_CHECKING:
    from kinetic._batches.board import Board
    from kinetic._batches.handle import BatchHandle
    from kinetic._batches.loose import Loose
    from kinetic._batches.view import View

_LOOK_SECONDS = 1.0  # told, not polled: this only finds what nobody told


@dataclass
class Poll:
    """How a reattached batch looks for inputs that another process still submits.

    Attributes:
        interval: Seconds between two looks at who submits.
        limit: Seconds after which it makes do with what was submitted; None never does.
        attached: Whether this handle does not submit anything itself.
        needs_driver: Whether it makes do with what was submitted as soon as nobody drives the batch any more.
    """

    interval: float = 10.0
    limit: float | None = None
    attached: bool = False
    needs_driver: bool = False


def completions(batch: BatchHandle, timeout: float | None, view: View | None = None) -> Iterator[int]:
    """Yield the index of each input whose job has ended for good, in that order.

    Args:
        batch: The batch.
        timeout: Seconds; None waits for ever.
        view: Shows how it goes; None where the caller's own code runs in between and may write to the terminal.

    Raises:
        JobTimeoutError: The time is over; the jobs go on.
        BaseException: What ended the submission, once everything else was told.
    """
    limit = None if timeout is None else time.monotonic() + timeout
    board, others = batch._seeing(), _Others(batch)  # noqa: SLF001 - one room
    read, held, told = 0, set[int](), set[int]()
    while True:
        over = _is_over(batch, board, others)
        while read < len(board.ended):
            held.add(board.ended[read])
            read += 1
        ready = _counted(board, held, over=over)
        held.difference_update(ready)
        batch._take_over_jobs(ready)  # noqa: SLF001
        for index in ready:
            if index in told:  # it was tried again after all, and is told once
                continue
            told.add(index)
            if view is not None:
                view.look(board)
            yield index
        if over:
            break
        if view is not None:
            view.look(board)
        left = None if limit is None else limit - time.monotonic()
        if left is not None and left <= 0:
            raise _too_late(batch, timeout or 0.0, len(board.active))
        board.wait(_LOOK_SECONDS if left is None else min(left, _LOOK_SECONDS), read=read)
    if batch._submission_error is not None:  # noqa: SLF001
        raise batch._submission_error  # noqa: SLF001


def tell_of_submission_failures(batch: BatchHandle) -> None:
    """Say how many inputs could not be submitted, if any."""
    errors = batch.submission_failures
    if errors:
        index, error = min(errors.items())
        output.warn(f"{len(errors)} of {len(batch.jobs)} inputs could not be submitted; input {index}: {error}")


def _counted(board: Board | Loose, held: set[int], *, over: bool) -> list[int]:
    """Return those that count by now, in the order in which they ended; those that are tried again leave the list."""
    for index in [index for index in held if board.end(index) is None]:
        held.discard(index)
    ready = [index for index in held if over or board.counts(index)]
    return sorted(ready, key=lambda index: (board.end(index) or (0, 0.0))[1])


def _is_over(batch: BatchHandle, board: Board | Loose, others: _Others) -> bool:
    """Look, and say whether nothing runs any more and nothing more will."""
    complete = batch._submission_complete.is_set()  # noqa: SLF001 - before the look: what it launched last is seen
    board.refresh()
    if not _only_unlaunched(board):
        return False
    if not batch._poll.attached:  # noqa: SLF001
        return complete
    if (board.stopped and not board.active) or not others.may_submit(board):
        board.refresh(whole=True)  # a driver may have launched something just before it left
        return _only_unlaunched(board)
    return False


def _only_unlaunched(board: Board | Loose) -> bool:
    """Say whether nothing is open but what a driver named, and died before it launched it."""
    return len(board.active) <= len(board.unlaunched)


class _Others:
    """Whether another process may still submit something for a batch that this one only watches."""

    def __init__(self, batch: BatchHandle) -> None:
        self._batch = batch
        self._poll = batch._poll  # noqa: SLF001 - one room
        self._since = time.monotonic()
        self._asked = float("-inf")

    def may_submit(self, board: Board | Loose) -> bool:
        """Say whether something may come; ask for the driver only now and then."""
        errors = self._batch.submission_failures
        unsubmitted = [index for index, attempt in enumerate(board.attempts) if attempt < 0 and index not in errors]
        missing = [*board.unlaunched, *(index for index in unsubmitted if board.may_launch(index))]
        again = [index for index in range(len(board.attempts)) if board.end(index) and not board.counts(index)]
        if not missing and not again:
            return False
        now = time.monotonic()
        if self._poll.limit is not None and now - self._since > self._poll.limit:
            return False
        if now - self._asked >= self._poll.interval:
            self._asked = now
            found = lease.holder(board.store, self._batch.group_id)
            if found is None or not found.lives:
                if not missing or self._poll.needs_driver:
                    return False
                self._tell(len(missing))
        return True

    def _tell(self, missing: int) -> None:
        gid = self._batch.group_id
        output.once(
            f"{gid}: {missing} inputs were not submitted, and nobody drives this batch any more; "
            f"kinetic batch resume {gid} goes on with them"
        )


def _too_late(batch: BatchHandle, timeout: float, active: int) -> JobTimeoutError:
    return JobTimeoutError(
        f"{batch.group_id} has not ended within {timeout:g} s",
        why=f"{active} of its {len(batch.jobs)} jobs have not, and go on",
        next=f"call it again, or: kinetic batch status {batch.group_id}",
    )

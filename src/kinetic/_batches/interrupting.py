"""Ctrl-C detaches from a batch and ends none of its jobs; it says how to find them again."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._output import live, tracebacks

if TYPE_CHECKING:
    from kinetic._batches.batch import Batch


class LettingGo:
    """What a batch is waited for in: Ctrl-C in it says that the batch keeps running, how to follow and cancel it.

    It leaves as an ordinary KeyboardInterrupt; where nobody catches it, nothing more is printed.
    """

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            words = _tell(self._batch)
            raise tracebacks.interrupt(words) from None


def _tell(batch: Batch) -> str:
    """Print what goes on, and return the most important of it in one line."""
    from kinetic._batches.board import Board

    live.leave_line()
    group_id = batch.group_id
    if not isinstance(batch._seeing(), Board):  # put together by hand: no command knows it
        output.say("detached: the jobs keep running")
        output.say("follow:   kinetic jobs list")
        return "the jobs keep running; cancel them with this handle's cancel()"
    output.say(f"detached: {group_id} keeps running")
    output.say(f"follow:   kinetic batch status {group_id}")
    output.say(f"cancel:   kinetic batch cancel {group_id}")
    if _is_submitting(batch):
        output.say("this process stays to submit the other inputs; Ctrl-C once more ends it, and then")
        output.say(f"          kinetic batch resume {group_id}     submits the rest")
    return f"{group_id} keeps running; cancel it with: kinetic batch cancel {group_id}"


def _is_submitting(batch: Batch) -> bool:
    """Say whether this very process still submits inputs; a batch that was attached only watches."""
    return not batch._poll.attached and not batch._submission_complete.is_set()

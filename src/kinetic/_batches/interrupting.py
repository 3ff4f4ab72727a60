"""Ctrl-C lets go of a batch and ends none of its jobs; whoever presses it is told how to find them again."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from kinetic import _output as output

if TYPE_CHECKING:
    from kinetic._batches.handle import BatchHandle


class LettingGo:
    """What a batch is waited for in: Ctrl-C in it says that the batch goes on, and how to follow and to cancel it.

    It leaves as an ordinary KeyboardInterrupt with the same in its words, for below what was printed Python prints its
    traceback; the frames of the waiting itself help nobody and are left out.
    """

    def __init__(self, batch: BatchHandle) -> None:
        self._batch = batch

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt):
            words = _tell(self._batch)
            # No class of our own: Python tells a shell that Ctrl-C ended the program (130) only if it was exactly this.
            raise KeyboardInterrupt(words) from None


def _tell(batch: BatchHandle) -> str:
    """Print what goes on, and return the most important of it in one line."""
    from kinetic._batches.board import Board

    group_id = batch.group_id
    if not isinstance(batch._seeing(), Board):  # noqa: SLF001 - one room; put together by hand: no command knows it
        output.say("detached: the jobs go on")
        output.say("follow:   kinetic jobs list")
        return "the jobs go on; cancel them with this handle's cancel()"
    output.say(f"detached: {group_id} goes on")
    output.say(f"follow:   kinetic batch status {group_id}")
    output.say(f"cancel:   kinetic batch cancel {group_id}")
    if _is_submitting(batch):
        output.say("this process stays to submit the other inputs; Ctrl-C once more ends it, and then")
        output.say(f"          kinetic batch resume {group_id}     goes on with them")
    return f"{group_id} goes on; cancel it with: kinetic batch cancel {group_id}"


def _is_submitting(batch: BatchHandle) -> bool:
    """Say whether this very process still submits inputs; a batch that was attached only watches."""
    return not batch._poll.attached and not batch._submission_complete.is_set()  # noqa: SLF001 - one room

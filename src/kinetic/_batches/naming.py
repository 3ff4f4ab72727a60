"""Naming the failed inputs of a batch: index, input, exception, and the command that shows the log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kinetic._output.gate import plain
from kinetic._wire import outcome as outcomes
from kinetic.errors import JobCancelledError, ResultMissingError

if TYPE_CHECKING:
    from kinetic._batches.batch import Batch

_MANY = 5
_LONGEST = 200  # characters of an exception's first line
_INDENT = " " * 4
_FAILED, _CANCELLED, _REFUSED, _MISSING = "failed", "cancelled", "refused", "not submitted"
_COLLECTED, _REMOVED = "collected before", "removed before"
_OTHERS = (_COLLECTED, _REMOVED, _CANCELLED, _REFUSED, _MISSING)


def line(batch: Batch, index: int, said: str) -> str:
    """Name one failed input in a line, and its log in another.

    Args:
        batch: Its batch.
        index: The input.
        said: How it failed, e.g. "ValueError: no such thing".
    """
    job = batch.jobs[index]
    log = f"\n{_INDENT}kinetic jobs logs {job.job_id}" if job is not None else ""
    return f"[{index}] {shown(batch, index)}{': ' if said else ''}{said}{log}"


def lines(batch: Batch, failed: Mapping[int, BaseException]) -> list[str]:
    """Name the first few of the failed inputs, those that failed by themselves first, and say how many more there are.

    What was cancelled because something else failed explains nothing, so it is named only where there is room.
    """
    first = in_order(batch, failed)[:_MANY]
    named = [line(batch, index, first_line(failed[index])) for index in first]
    more = len(failed) - len(named)
    if more > 0 and batch.group_id:
        named.append(f"and {more} more: kinetic batch status {batch.group_id} --all")
    return named


def message(batch: Batch, failed: Mapping[int, BaseException]) -> str:
    """Say how many failed, were cancelled, were never submitted, and name the first of them: what a traceback shows."""
    counts = Counter(_kind(batch, index, error) for index, error in failed.items())
    others = "".join(f", {counts[kind]} {kind}" for kind in _OTHERS if counts[kind])
    head = f"batch {batch.group_id}: {counts[_FAILED]} of {len(batch.jobs)} jobs failed{others}"
    return "\n".join([head, *lines(batch, failed)])


def failed_by_itself(batch: Batch, index: int, error: BaseException) -> bool:
    """Say whether a job failed: it was not cancelled, nor collected or removed before."""
    return batch.jobs[index] is not None and _kind(batch, index, error) == _FAILED


def in_order(batch: Batch, failed: Mapping[int, BaseException]) -> list[int]:
    """Return the failed inputs: those that failed by themselves, those that were refused, then the rest."""
    ranks = {_FAILED: 0, _REFUSED: 1}
    return sorted(failed, key=lambda index: (ranks.get(_kind(batch, index, failed[index]), 2), index))


def shown(batch: Batch, index: int) -> str:
    """Return an input as a short text; on one line, and with nothing in it that moves a terminal's cursor."""
    table = batch._table
    return f"input {plain(table.inputs[index].shown)}" if table is not None else "this input"


def first_line(error: BaseException) -> str:
    """Return what an exception says, in one short line; its ``str`` is user code, and may fail."""
    try:
        text = next(iter(str(error).splitlines()), "")
    except Exception:  # noqa: BLE001 - whatever it is, the class says something
        text = ""
    text = plain(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _kind(batch: Batch, index: int, error: BaseException) -> str:
    cancelled = isinstance(error, JobCancelledError)
    if batch.jobs[index] is None:
        return _REFUSED if index in batch._refused() and not cancelled else _MISSING
    if cancelled or not isinstance(error, ResultMissingError):
        return _CANCELLED if cancelled else _FAILED
    end = batch._seeing().end(index)
    if end is None or end.word == outcomes.FAILED:
        return _FAILED
    return _COLLECTED if error.code == "collected" or end.word == outcomes.SUCCEEDED else _REMOVED

"""What is shown of a batch while it is waited for, of its failures, and in a notebook.

On a terminal there is one line for each state, redrawn, and a line that stays for each failure; at the end one line
sums up. Elsewhere it is a line at each tenth or each half minute, whichever is rarer. Nothing is shown of a short wait.
Whatever goes wrong here ends the display, not the waiting.
"""

from __future__ import annotations

import contextlib
import html
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kinetic._batches import state as batch_state
from kinetic._batches.state import AGAIN, ENDED, MISSING, REFUSED, REMOVED, RUNNING, STATES, WAITING, summary_text
from kinetic._jobs.status import observe
from kinetic._output import colors, notebook
from kinetic._output import terminal as output
from kinetic._output.colors import Sanitized
from kinetic._output.format import duration_text, plain
from kinetic._output.notebook import Drawing
from kinetic._output.terminal import Clock
from kinetic._wire.outcomes import CANCELLED, FAILED, SUCCEEDED
from kinetic.errors import JobCancelledError, KineticError, PredecessorError, ResultMissingError

if TYPE_CHECKING:
    from kinetic._batches.state import Batch
    from kinetic._batches.tracker import Tracker

_MANY = 5  # failures in an error, and below the grid of a notebook
_LONGEST = 200  # characters of an exception's first line
_COLLECTED_BEFORE, _REMOVED_BEFORE = "collected before", "removed before"
_OTHERS = (_COLLECTED_BEFORE, _REMOVED_BEFORE, CANCELLED, REFUSED, MISSING)


def failure_line(batch: Batch, index: int, said: str, *, look: str = "logs") -> str:
    """Name one failed input in a line with how it failed, e.g. "ValueError: no such thing", and where to look."""
    job = batch.jobs[index]
    command = f"\n    kinetic jobs {look} {job.job_id}" if job is not None else ""
    return f"[{index}] {input_text(batch, index)}{': ' if said else ''}{said}{command}"


def failure_message(batch: Batch, failed: Mapping[int, BaseException], *, values: int = 0) -> str:
    """Count what failed, was cancelled and was never submitted, and name the first of them: what a traceback shows.

    `values` is of how many others the value is kept.
    """
    counts = Counter(_kind(batch, index, error) for index, error in failed.items())
    others = "".join(f", {counts[kind]} {kind}" for kind in _OTHERS if counts[kind])
    head = f"batch {batch.group_id}: {counts[FAILED]} of {len(batch.jobs)} jobs failed{others}"
    named = [
        failure_line(
            batch,
            index,
            first_line(failed[index]),
            look="explain" if isinstance(failed[index], PredecessorError) else "logs",  # it never had a log
        )
        for index in in_order(batch, failed)[:_MANY]
    ]
    if len(failed) > _MANY and batch.group_id:
        named.append(f"and {len(failed) - _MANY} more: kinetic batch status {batch.group_id} --all")
    if values and batch.group_id:
        what = "1 other value is" if values == 1 else f"{values} other values are"
        named.append(f"{what} kept: kinetic batch results {batch.group_id}")
    return "\n".join([head, *named])


def is_real_failure(batch: Batch, index: int, error: BaseException) -> bool:
    """Return whether a job itself failed: it was not cancelled, nor collected or removed before."""
    return batch.jobs[index] is not None and _kind(batch, index, error) == FAILED


def in_order(batch: Batch, failed: Mapping[int, BaseException]) -> list[int]:
    """Return the failed inputs: those that failed themselves, those that were refused, then the rest.

    What was cancelled because something else failed explains nothing.
    """
    ranks = {FAILED: 0, REFUSED: 1}
    return sorted(failed, key=lambda index: (ranks.get(_kind(batch, index, failed[index]), 2), index))


def input_text(batch: Batch, index: int) -> str:
    """Return an input as a short text, on one line, with nothing in it that moves a terminal's cursor."""
    return f"input {plain(batch._table.inputs[index].shown)}" if batch._table is not None else "this input"


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
        return REFUSED if index in batch._submission_errors and not cancelled else MISSING
    if cancelled or not isinstance(error, ResultMissingError):
        return CANCELLED if cancelled else FAILED
    end = batch._get_tracker().end(index)
    if end is None or end.word == FAILED:
        return FAILED
    return _COLLECTED_BEFORE if error.code == "collected" else _REMOVED_BEFORE


REDRAW_SECONDS = 0.2
_LEISURE = 100.0  # an update that took 6 ms is not repeated for 600: updating takes a hundredth of a core at most
_LEISURE_SECONDS = 10.0  # no longer: what took minutes waited for a terminal that Ctrl-S had stopped
_SOON_SECONDS, _LATER_SECONDS = 1.0, 3.0  # what ends earlier is not mentioned: on a terminal, elsewhere
_SHARE = 0.1  # of all inputs: so many ends are worth a plain line
_LINE_SECONDS = 30.0  # or so many seconds
_NAMED = 20  # failures; the others are only counted
_MEANINGFUL_ENDS, _MEANINGFUL_SECONDS = 5, 5.0  # before that a rate of ends says nothing
_BAR = 30  # characters
_one_at_a_time = threading.Lock()


class View:
    """What is shown while one batch is waited for; of several threads that wait, only one shows anything (``mine``)."""

    def __init__(self, batch: Batch, clock: Clock = time.monotonic, *, mine: bool = True) -> None:
        self._batch = batch
        self._clock = clock
        self._silent = not mine or not output.is_wanted(output.INFO)
        self._is_live = output.is_possible()
        self._cell = notebook.Cell() if notebook.is_kernel() and not self._silent else None
        self._since = self._next = clock()
        self._visible = False
        self._shown_share = self._shown_at = 0.0  # of the last plain line
        self._text = ""
        self._read = 0  # how many of the tracker's ends were handled
        self._held: set[int] = set()
        self._ended = 0
        self._ended_before: int | None = None  # what had ended before the wait began
        self._failed: deque[int] = deque()
        self._named = 0

    def look(self, tracker: Tracker) -> None:
        """Update what is shown after a refresh of the tracker; returns at once if that was done just now."""
        now = self._clock()
        if self._silent or now < self._next:
            return
        try:
            self._update(tracker, now)
        except Exception:  # noqa: BLE001 - the display must not harm what it shows
            self._silent = True
            output.release(self)
        pause = min((self._clock() - now) * _LEISURE, _LEISURE_SECONDS)
        self._next = self._clock() + max(REDRAW_SECONDS, pause)

    def end(self, tracker: Tracker, *, whole: bool = True) -> None:
        """Remove what is shown; if anything was, and the wait was not interrupted, sum up in a line."""
        if self._silent or not self._visible:
            return
        output.release(self)
        if whole:
            with contextlib.suppress(Exception):  # as above
                self._take_ends(tracker)
                self._name_failures(tracker)
                seconds = duration_text(self._clock() - self._since)
                if self._cell is not None:
                    counts = self._counts(tracker)
                    self._show_cell(self._cell, counts, f"{self._batch.group_id}: {summary_text(counts)}, {seconds}")
                    return
                output.report(f"waited {seconds} for {self._batch.group_id}: {summary_text(self._counts(tracker))}")

    def _update(self, tracker: Tracker, now: float) -> None:
        self._take_ends(tracker)
        if self._ended_before is None:
            self._ended_before = self._ended
        if now - self._since < (_SOON_SECONDS if self._is_live or self._cell is not None else _LATER_SECONDS):
            return
        self._visible = True
        self._name_failures(tracker)
        counts = self._counts(tracker)
        if self._cell is not None:
            self._show_cell(self._cell, counts, self._head(tracker, counts, now))
        elif self._is_live:
            output.show_lines(self._live_lines(tracker, counts, now), owner=self)
        else:
            self._print_line(counts, now)

    def _take_ends(self, tracker: Tracker) -> None:
        """Count what has ended for good; what is tried again is removed from the list."""
        self._held.update(new := tracker.ended[self._read :])
        self._read += len(new)
        for index in sorted(self._held):
            end, is_final = tracker.end(index), tracker.is_final(index)
            if end is None or is_final:
                self._held.discard(index)
            if end is not None and is_final:
                self._ended += 1
                if end.word == FAILED:
                    self._failed.append(index)

    def _name_failures(self, tracker: Tracker) -> None:
        while self._failed:
            index = self._failed.popleft()
            self._named += 1
            if self._named <= _NAMED:
                output.report(f"failed: {failure_line(self._batch, index, _reason_of(tracker, index))}")
            elif self._named == _NAMED + 1:
                output.report(
                    f"further failures are only counted: kinetic batch status {self._batch.group_id} --failed"
                )

    def _counts(self, tracker: Tracker) -> Counter[str]:
        return batch_state.count_states(tracker, self._batch._submission_errors)

    def _head(self, tracker: Tracker, counts: Counter[str], now: float) -> str:
        name = f" {plain(self._batch.name)}" if self._batch.name else ""
        left = self._seconds_left(tracker, counts, now)
        about = f", about {duration_text(left)} left" if left is not None else ""
        return f"{self._batch.group_id}{name}: {_ended_text(counts)}, {duration_text(now - self._since)}{about}"

    def _show_cell(self, cell: notebook.Cell, counts: Counter[str], text: str) -> None:
        share = _ended(counts) / max(counts.total(), 1)
        bar = notebook.bar(share, f"Ended inputs of {self._batch.group_id}")
        cell.show(f"<div>{bar}<div>{html.escape(text)}</div></div>", text)

    def _live_lines(self, tracker: Tracker, counts: Counter[str], now: float) -> list[str]:
        """Return the lines of the terminal: a headline, and one for each state that occurs."""
        total = max(len(tracker.attempts), 1)
        head = f"{output.PREFIX}{self._head(tracker, counts, now)}"
        states = [state for state in STATES if counts[state]]
        wide, digits = max(map(len, states), default=0), len(str(total))
        stream = sys.stderr
        fits = wide + digits + _BAR + 6 < output.size().columns

        def line(state: str) -> str:
            length = max(1, round(counts[state] * _BAR / total))
            name = f"{state:<{wide}}"
            text = f"  {counts[state]:>{digits}}  {('█' if colors.shows_blocks(stream) else '#') * length}"
            return (
                Sanitized(f"  {colors.paint(name, colors.color_of(state), stream)}{text}")
                if fits
                else f"  {name}{text}"
            )

        return [head, *map(line, states)]

    def _seconds_left(self, tracker: Tracker, counts: Counter[str], now: float) -> float | None:
        """Estimate from the rate of ends how long it will take; None while that means nothing."""
        ends, seconds = self._ended - (self._ended_before or 0), now - self._since
        if ends < _MEANINGFUL_ENDS or seconds < _MEANINGFUL_SECONDS:
            return None
        left = counts.total() - _ended(counts) - (counts[MISSING] if tracker.stopped else 0)
        found = left * seconds / ends
        return found if found >= 1.0 else None

    def _print_line(self, counts: Counter[str], now: float) -> None:
        """Print a plain line, if there is something new and the last one is old enough."""
        text = f"{self._batch.group_id}: {_ended_text(counts)}: {summary_text(counts)}"
        share = _ended(counts) / max(counts.total(), 1)
        enough = share - self._shown_share >= _SHARE and now - self._shown_at >= _LATER_SECONDS
        if text != self._text and (not self._text or enough or now - self._shown_at >= _LINE_SECONDS):
            self._text, self._shown_share, self._shown_at = text, share, now
            output.report(text)


@contextmanager
def show_progress(batch: Batch, clock: Clock = time.monotonic, *, summary: bool = True) -> Iterator[View]:
    """Show the progress of a batch while the block waits for it and calls ``look``; with a summary at the end."""
    mine = _one_at_a_time.acquire(blocking=False)
    try:
        view, whole = View(batch, clock, mine=mine), False
        try:
            yield view
            whole = summary
        finally:
            view.end(batch._get_tracker(), whole=whole)
    finally:
        if mine:
            _one_at_a_time.release()


def _ended(counts: Counter[str]) -> int:
    return sum(counts[state] for state in ENDED)


def _ended_text(counts: Counter[str]) -> str:
    return f"{_ended(counts)} of {counts.total()} ended"


def _reason_of(tracker: Tracker, index: int) -> str:
    """Return how a child failed, without opening its exception."""
    job = tracker.record(index)
    with contextlib.suppress(KineticError, OSError):
        if job is not None:
            return plain(observe(job).reason)
    return ""


# A square of several inputs has the colour of the first of these states that one of them is in.
_COLOURS = {
    FAILED: "#ea4335",
    REFUSED: "#b31412",
    AGAIN: "#fbbc04",
    RUNNING: "#4c8bf5",
    CANCELLED: "#9aa0a6",
    WAITING: "#c9c9c9",
    MISSING: "#eeeeee",
    SUCCEEDED: "#34a853",
    REMOVED: "#dadce0",
}
_SQUARES = 1000  # a notebook page with many more becomes slow
_SQUARE = "display:inline-block;width:12px;height:12px;margin:1px;background:"


PAUSE_SECONDS = 2.0  # between two looks at a batch in a notebook


def draw(batch: Batch) -> Drawing:
    """Draw the grid as it is now, and whether it stays so."""
    html_, tracker = html_of(batch), batch._tracker
    if tracker is None:
        return Drawing(html_, repr(batch), is_final=True)
    counts = batch_state.count_states(tracker, batch._submission_errors)
    is_final = _ended(counts) + (counts[MISSING] if tracker.stopped else 0) >= counts.total()
    return Drawing(html_, f"{batch.group_id}: {summary_text(counts)}", is_final)


def html_of(batch: Batch) -> str:
    """Return the grid as HTML; never raises: a card must not break a notebook."""
    try:
        return "".join(_html_parts(batch))
    except Exception as error:  # noqa: BLE001 - as above
        return notebook.card("batch", str(getattr(batch, "group_id", "")), html.escape(f": {type(error).__name__}"))


def _html_parts(batch: Batch) -> Iterator[str]:
    tracker, refused = batch._refreshed(), batch._submission_errors
    states = [batch_state.state_of(tracker, index, refused) for index in range(len(tracker.attempts))]
    counts, title = Counter(states), f"{batch.group_id} {batch.name or ''}".strip()
    summary = summary_text(counts)
    yield notebook.card(
        "batch", title, notebook.bar(_ended(counts) / max(len(states), 1), f"Ended inputs of {batch.group_id}")
    )
    yield f"<div>{html.escape(summary)}</div>"
    many = max(1, -(-len(states) // _SQUARES))
    yield f'<div role="img" aria-label="{html.escape(summary, quote=True)}">'
    for first in range(0, len(states), many):
        own = states[first : first + many]
        state = min(own, key=[*_COLOURS].index)
        said = f"[{first}] {state}: {input_text(batch, first)}"
        if many > 1:
            said = f"[{first}] to [{first + len(own) - 1}]: {summary_text(Counter(own))}"
        yield f'<span title="{html.escape(said, quote=True)}" style="{_SQUARE}{_COLOURS[state]}"></span>'
    yield "</div>"
    failed = [index for index, state in enumerate(states) if state == FAILED][:_MANY]
    yield from (f"<pre>{html.escape(failure_line(batch, index, ''))}</pre>" for index in failed)

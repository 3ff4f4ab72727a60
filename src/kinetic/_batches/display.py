"""What is seen while a batch is waited for: live on a terminal, as a few plain lines elsewhere, nothing for a moment.

On a terminal there is one line for each state, written over again, and a line that stays for each failure; all but
those is gone at the end, and one line sums up. Elsewhere it is a line at each tenth or each half minute, whichever is
rarer to read. Nothing of this may harm what it only tells about: whatever goes wrong here ends the telling, not the
waiting.
"""

from __future__ import annotations

import contextlib
import html
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._batches import state as batch_state
from kinetic._batches.state import REMOVED
from kinetic._jobs.status import observe
from kinetic._output import terminal
from kinetic._output.format import duration_text, plain
from kinetic._output.terminal import Clock
from kinetic._wire import outcomes
from kinetic.errors import JobCancelledError, KineticError, ResultMissingError

if TYPE_CHECKING:
    from kinetic._batches.state import AdHocTracker, Batch, BatchTracker


_MANY = 5
_LONGEST = 200  # characters of an exception's first line
_INDENT = " " * 4
_FAILED, _CANCELLED, _REFUSED, _MISSING = "failed", "cancelled", "refused", "not submitted"
_COLLECTED, _REMOVED = "collected before", "removed before"
_OTHERS = (_COLLECTED, _REMOVED, _CANCELLED, _REFUSED, _MISSING)


def failure_line(batch: Batch, index: int, said: str) -> str:
    """Name one failed input in a line, and its log in another.

    Args:
        batch: Its batch.
        index: The input.
        said: How it failed, e.g. "ValueError: no such thing".
    """
    job = batch.jobs[index]
    log = f"\n{_INDENT}kinetic jobs logs {job.job_id}" if job is not None else ""
    return f"[{index}] {input_text(batch, index)}{': ' if said else ''}{said}{log}"


def failure_lines(batch: Batch, failed: Mapping[int, BaseException]) -> list[str]:
    """Name the first few of the failed inputs, those that failed by themselves first, and say how many more there are.

    What was cancelled because something else failed explains nothing, so it is named only where there is room.
    """
    first = in_order(batch, failed)[:_MANY]
    named = [failure_line(batch, index, first_line(failed[index])) for index in first]
    more = len(failed) - len(named)
    if more > 0 and batch.group_id:
        named.append(f"and {more} more: kinetic batch status {batch.group_id} --all")
    return named


def failure_message(batch: Batch, failed: Mapping[int, BaseException]) -> str:
    """Say how many failed, were cancelled, were never submitted, and name the first of them: what a traceback shows."""
    counts = Counter(_kind(batch, index, error) for index, error in failed.items())
    others = "".join(f", {counts[kind]} {kind}" for kind in _OTHERS if counts[kind])
    head = f"batch {batch.group_id}: {counts[_FAILED]} of {len(batch.jobs)} jobs failed{others}"
    return "\n".join([head, *failure_lines(batch, failed)])


def failed_by_itself(batch: Batch, index: int, error: BaseException) -> bool:
    """Say whether a job failed: it was not cancelled, nor collected or removed before."""
    return batch.jobs[index] is not None and _kind(batch, index, error) == _FAILED


def in_order(batch: Batch, failed: Mapping[int, BaseException]) -> list[int]:
    """Return the failed inputs: those that failed by themselves, those that were refused, then the rest."""
    ranks = {_FAILED: 0, _REFUSED: 1}
    return sorted(failed, key=lambda index: (ranks.get(_kind(batch, index, failed[index]), 2), index))


def input_text(batch: Batch, index: int) -> str:
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
    end = batch._get_tracker().end(index)
    if end is None or end.word == outcomes.FAILED:
        return _FAILED
    return _COLLECTED if error.code == "collected" or end.word == outcomes.SUCCEEDED else _REMOVED


REDRAW_SECONDS = 0.2
_LEISURE = 100.0  # a look that took 6 ms is not repeated for 600: looking takes a hundredth of a core at most
_SOON_SECONDS, _LATER_SECONDS = 1.0, 3.0  # what ends earlier is not mentioned: on a terminal, elsewhere
_SHARE = 0.1  # of all inputs: so many ends are worth a plain line
_LINE_SECONDS = 30.0  # or so many seconds
_NAMED = 20  # failures; the others are only counted
_MEANINGFUL_ENDS, _MEANINGFUL_SECONDS = 5, 5.0  # before that a rate of ends says nothing
_BAR = 30  # characters
_one_at_a_time = threading.Lock()


class View:
    """What one batch's waiting shows.

    Args:
        batch: The batch.
        clock: Gives seconds; tests bring their own.
        mine: Whether it may show anything at all: of several threads that wait, one does.
    """

    def __init__(self, batch: Batch, clock: Clock = time.monotonic, *, mine: bool = True) -> None:
        self._batch = batch
        self._clock = clock
        self._silent = not mine or not terminal.is_wanted(terminal.INFO)
        self._is_live = terminal.is_possible()
        self._since = self._next = clock()
        self._visible = False
        self._said = self._said_at = 0.0  # the share that the last plain line told, and when
        self._text = ""
        self._read = 0  # how much of the board's list of ends was looked at
        self._held: set[int] = set()
        self._over = 0
        self._over_before: int | None = None  # what had ended before anybody waited
        self._failed: deque[int] = deque()
        self._named = 0

    def look(self, tracker: BatchTracker | AdHocTracker) -> None:
        """Bring what is shown up to date with a board that has looked; returns at once if that was done just now."""
        now = self._clock()
        if self._silent or now < self._next:
            return
        try:
            self._look(tracker, now)
        except Exception:  # noqa: BLE001 - telling how it goes must not harm how it goes
            self._silent = True
            terminal.release(self)
        self._next = self._clock() + max(REDRAW_SECONDS, (self._clock() - now) * _LEISURE)

    def end(self, tracker: BatchTracker | AdHocTracker, *, whole: bool = True) -> None:
        """Take away what is shown; if it was shown and the waiting came to its end, sum up in a line."""
        if self._silent or not self._visible:
            return
        terminal.release(self)
        if whole:
            with contextlib.suppress(Exception):  # as above
                self._take_ends(tracker)
                self._name_failures(tracker)
                seconds = duration_text(self._clock() - self._since)
                output.report(
                    f"waited {seconds} for {self._batch.group_id}: {batch_state.summary_text(self._counts(tracker))}"
                )

    def _look(self, tracker: BatchTracker | AdHocTracker, now: float) -> None:
        self._take_ends(tracker)
        if self._over_before is None:
            self._over_before = self._over
        if now - self._since < (_SOON_SECONDS if self._is_live else _LATER_SECONDS):
            return
        self._visible = True
        self._name_failures(tracker)
        counts = self._counts(tracker)
        if self._is_live:
            terminal.show_lines(self._picture(tracker, counts, now), owner=self)
        else:
            self._say(counts, now)

    def _take_ends(self, tracker: BatchTracker | AdHocTracker) -> None:
        """Count what has ended for good; what is tried again leaves the list by itself."""
        ended = tracker.ended
        while self._read < len(ended):
            self._held.add(ended[self._read])
            self._read += 1
        for index in sorted(self._held):
            end = tracker.end(index)
            if end is None or tracker.is_final(index):
                self._held.discard(index)
            if end is not None and tracker.is_final(index):
                self._over += 1
                if end.word == outcomes.FAILED:
                    self._failed.append(index)

    def _name_failures(self, tracker: BatchTracker | AdHocTracker) -> None:
        while self._failed:
            index = self._failed.popleft()
            self._named += 1
            if self._named <= _NAMED:
                output.report(f"failed: {failure_line(self._batch, index, _reason_of(tracker, index))}")
            elif self._named == _NAMED + 1:
                output.report(
                    f"further failures are only counted: kinetic batch status {self._batch.group_id} --failed"
                )

    def _counts(self, tracker: BatchTracker | AdHocTracker) -> Counter[str]:
        return batch_state.count_states(tracker, self._batch._refused())

    def _picture(self, tracker: BatchTracker | AdHocTracker, counts: Counter[str], now: float) -> list[str]:
        """Return the lines of the terminal: a headline, and one for each state that there is."""
        total = max(len(tracker.attempts), 1)
        name = f" {plain(self._batch.name)}" if self._batch.name else ""
        left = self._seconds_left(tracker, counts, now)
        about = f", about {duration_text(left)} left" if left is not None else ""
        since = duration_text(now - self._since)
        head = f"{terminal.PREFIX}{self._batch.group_id}{name}: {_ended(counts)}, {since}{about}"
        states = [state for state in batch_state.STATES if counts[state]]
        wide, digits = max(map(len, states), default=0), len(str(total))
        bars = {state: "#" * max(1, round(counts[state] * _BAR / total)) for state in states}
        return [head, *(f"  {state:<{wide}}  {counts[state]:>{digits}}  {bars[state]}" for state in states)]

    def _seconds_left(self, tracker: BatchTracker | AdHocTracker, counts: Counter[str], now: float) -> float | None:
        """Guess from the rate of ends how long it will take; None while that means nothing."""
        ends, seconds = self._over - (self._over_before or 0), now - self._since
        if ends < _MEANINGFUL_ENDS or seconds < _MEANINGFUL_SECONDS:
            return None
        left = sum(count for state, count in counts.items() if state not in batch_state.ENDED)
        if tracker.stopped:
            left -= counts[batch_state.MISSING]
        found = left * seconds / ends
        return found if found >= 1.0 else None

    def _say(self, counts: Counter[str], now: float) -> None:
        """Say a plain line, if there is something new and the last one is long enough ago."""
        text = f"{self._batch.group_id}: {_ended(counts)}: {batch_state.summary_text(counts)}"
        share = _over(counts) / max(counts.total(), 1)
        first = not self._text
        enough = share - self._said >= _SHARE and now - self._said_at >= _LATER_SECONDS
        if text != self._text and (first or enough or now - self._said_at >= _LINE_SECONDS):
            self._text, self._said, self._said_at = text, share, now
            output.report(text)


@contextmanager
def show_progress(batch: Batch, clock: Clock = time.monotonic, *, summary: bool = True) -> Iterator[View]:
    """Show how a batch goes while the block waits for it; the block calls ``look`` as often as it likes.

    Args:
        batch: The batch.
        clock: Gives seconds; tests bring their own.
        summary: Sum up at the end; False where the caller says it in better words.
    """
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


def _over(counts: Counter[str]) -> int:
    return sum(counts[state] for state in batch_state.ENDED)


def _ended(counts: Counter[str]) -> str:
    return f"{_over(counts)} of {counts.total()} ended"


def _reason_of(tracker: BatchTracker | AdHocTracker, index: int) -> str:
    """Say how a child failed, in its own words, without opening its exception."""
    handle = tracker.record(index)
    with contextlib.suppress(KineticError, OSError):
        if handle is not None:
            return plain(observe(handle).reason)
    return ""


_COLOURS = {
    batch_state.SUCCEEDED: "#34a853",
    batch_state.FAILED: "#ea4335",
    batch_state.REFUSED: "#b31412",
    batch_state.AGAIN: "#fbbc04",
    batch_state.RUNNING: "#4c8bf5",
    batch_state.WAITING: "#c9c9c9",
    batch_state.MISSING: "#eeeeee",
    batch_state.CANCELLED: "#9aa0a6",
    REMOVED: "#dadce0",
}
# Which colour a square of several inputs has: the first of these that one of them is in.
_RANKS = (
    batch_state.FAILED,
    batch_state.REFUSED,
    batch_state.AGAIN,
    batch_state.RUNNING,
    batch_state.CANCELLED,
    batch_state.WAITING,
    batch_state.MISSING,
)
_SQUARES = 1000  # a notebook page with many more becomes slow
_SHOWN_FAILURES = 5  # that are named below the grid
_SQUARE = "display:inline-block;width:12px;height:12px;margin:1px;background:"


def html_of(batch: Batch) -> str:
    """Return the grid as HTML; never raises: a card must not break a notebook."""
    try:
        return f"<div>{''.join(_parts(batch))}</div>"
    except Exception as error:  # noqa: BLE001 - whatever it is, the notebook goes on
        group_id = html.escape(str(getattr(batch, "group_id", "")))
        return f"<div><b>kinetic batch</b> <code>{group_id}</code>: {html.escape(type(error).__name__)}</div>"


def _parts(batch: Batch) -> Iterator[str]:
    tracker, refused = batch._refreshed(), batch._refused()
    states = [batch_state.state_of(tracker, index, refused) for index in range(len(tracker.attempts))]
    title = html.escape(f"{batch.group_id} {batch.name or ''}".strip())
    yield f"<div><b>kinetic batch</b> <code>{title}</code></div>"
    yield f"<div>{html.escape(batch_state.summary_text(Counter(states)))}</div>"
    many = max(1, -(-len(states) // _SQUARES))
    yield "<div>"
    yield from (_square(batch, states, first, many) for first in range(0, len(states), many))
    yield "</div>"
    failed = [index for index, state in enumerate(states) if state == batch_state.FAILED][:_SHOWN_FAILURES]
    yield from (f"<pre>{html.escape(failure_line(batch, index, ''))}</pre>" for index in failed)


def _square(batch: Batch, states: list[str], first: int, many: int) -> str:
    """Return one square; the mouse on it shows what it stands for."""
    own = states[first : first + many]
    state = next((rank for rank in _RANKS if rank in own), own[0])
    if many == 1:
        said = f"[{first}] {state}: {input_text(batch, first)}"
    else:
        said = f"[{first}] to [{first + len(own) - 1}]: {batch_state.summary_text(Counter(own))}"
    return f'<span title="{html.escape(said, quote=True)}" style="{_SQUARE}{_COLOURS[state]}"></span>'

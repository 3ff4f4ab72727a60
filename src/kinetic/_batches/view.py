"""What is seen while a batch is waited for: live on a terminal, as a few plain lines elsewhere, nothing for a moment.

On a terminal there is one line for each state, written over again, and a line that stays for each failure; all but
those is gone at the end, and one line sums up. Elsewhere it is a line at each tenth or each half minute, whichever is
rarer to read. Nothing of this may harm what it only tells about: whatever goes wrong here ends the telling, not the
waiting.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._batches import naming, tally
from kinetic._jobs.status import observe
from kinetic._output import lines, live
from kinetic._output.format import duration_text
from kinetic._output.gate import plain
from kinetic._output.progress import Clock
from kinetic._wire import outcome as outcomes
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._batches.batch import Batch
    from kinetic._batches.board import Board
    from kinetic._batches.loose import Loose

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
        self._silent = not mine or not lines.wanted(lines.INFO)
        self._is_live = live.is_possible()
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

    def look(self, board: Board | Loose) -> None:
        """Bring what is shown up to date with a board that has looked; returns at once if that was done just now."""
        now = self._clock()
        if self._silent or now < self._next:
            return
        try:
            self._look(board, now)
        except Exception:  # noqa: BLE001 - telling how it goes must not harm how it goes
            self._silent = True
            live.release(self)
        self._next = self._clock() + max(REDRAW_SECONDS, (self._clock() - now) * _LEISURE)

    def end(self, board: Board | Loose, *, whole: bool = True) -> None:
        """Take away what is shown; if it was shown and the waiting came to its end, sum up in a line."""
        if self._silent or not self._visible:
            return
        live.release(self)
        if whole:
            with contextlib.suppress(Exception):  # as above
                self._take_ends(board)
                self._name_failures(board)
                seconds = duration_text(self._clock() - self._since)
                output.say(f"waited {seconds} for {self._batch.group_id}: {tally.told(self._counts(board))}")

    def _look(self, board: Board | Loose, now: float) -> None:
        self._take_ends(board)
        if self._over_before is None:
            self._over_before = self._over
        if now - self._since < (_SOON_SECONDS if self._is_live else _LATER_SECONDS):
            return
        self._visible = True
        self._name_failures(board)
        counts = self._counts(board)
        if self._is_live:
            live.show_lines(self._picture(board, counts, now), owner=self)
        else:
            self._say(counts, now)

    def _take_ends(self, board: Board | Loose) -> None:
        """Count what has ended for good; what is tried again leaves the list by itself."""
        ended = board.ended
        while self._read < len(ended):
            self._held.add(ended[self._read])
            self._read += 1
        for index in sorted(self._held):
            end = board.end(index)
            if end is None or board.is_final(index):
                self._held.discard(index)
            if end is not None and board.is_final(index):
                self._over += 1
                if end.word == outcomes.FAILED:
                    self._failed.append(index)

    def _name_failures(self, board: Board | Loose) -> None:
        while self._failed:
            index = self._failed.popleft()
            self._named += 1
            if self._named <= _NAMED:
                output.say(f"failed: {naming.line(self._batch, index, _reason(board, index))}")
            elif self._named == _NAMED + 1:
                output.say(f"further failures are only counted: kinetic batch status {self._batch.group_id} --failed")

    def _counts(self, board: Board | Loose) -> Counter[str]:
        return tally.counted(board, self._batch._refused())

    def _picture(self, board: Board | Loose, counts: Counter[str], now: float) -> list[str]:
        """Return the lines of the terminal: a headline, and one for each state that there is."""
        total = max(len(board.attempts), 1)
        name = f" {plain(self._batch.name)}" if self._batch.name else ""
        left = self._seconds_left(board, counts, now)
        about = f", about {duration_text(left)} left" if left is not None else ""
        head = (
            f"{lines.PREFIX}{self._batch.group_id}{name}: {_ended(counts)}, {duration_text(now - self._since)}{about}"
        )
        states = [state for state in tally.STATES if counts[state]]
        wide, digits = max(map(len, states), default=0), len(str(total))
        bars = {state: "#" * max(1, round(counts[state] * _BAR / total)) for state in states}
        return [head, *(f"  {state:<{wide}}  {counts[state]:>{digits}}  {bars[state]}" for state in states)]

    def _seconds_left(self, board: Board | Loose, counts: Counter[str], now: float) -> float | None:
        """Guess from the rate of ends how long it will take; None while that means nothing."""
        ends, seconds = self._over - (self._over_before or 0), now - self._since
        if ends < _MEANINGFUL_ENDS or seconds < _MEANINGFUL_SECONDS:
            return None
        left = sum(count for state, count in counts.items() if state not in tally.OVER)
        if board.stopped:
            left -= counts[tally.MISSING]
        found = left * seconds / ends
        return found if found >= 1.0 else None

    def _say(self, counts: Counter[str], now: float) -> None:
        """Say a plain line, if there is something new and the last one is long enough ago."""
        text = f"{self._batch.group_id}: {_ended(counts)}: {tally.told(counts)}"
        share = _over(counts) / max(counts.total(), 1)
        first = not self._text
        enough = share - self._said >= _SHARE and now - self._said_at >= _LATER_SECONDS
        if text != self._text and (first or enough or now - self._said_at >= _LINE_SECONDS):
            self._text, self._said, self._said_at = text, share, now
            output.say(text)


@contextmanager
def of(batch: Batch, clock: Clock = time.monotonic, *, summary: bool = True) -> Iterator[View]:
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
            view.end(batch._seeing(), whole=whole)
    finally:
        if mine:
            _one_at_a_time.release()


def _over(counts: Counter[str]) -> int:
    return sum(counts[state] for state in tally.OVER)


def _ended(counts: Counter[str]) -> str:
    return f"{_over(counts)} of {counts.total()} ended"


def _reason(board: Board | Loose, index: int) -> str:
    """Say how a child failed, in its own words, without opening its exception."""
    handle = board.record(index)
    with contextlib.suppress(KineticError, OSError):
        if handle is not None:
            return plain(observe(handle).reason)
    return ""

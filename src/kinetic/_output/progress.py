"""Naming the phase that takes long: live on a terminal, as plain lines elsewhere; nothing for what takes a moment.

On a terminal a phase that goes on for more than a second is shown in a line that counts its seconds. Elsewhere one line
says what is waited for, or after some seconds what goes on still. In both, a line at its end says how long it took. No
colours are used anywhere here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kinetic._output import terminal
from kinetic._output.format import duration_text
from kinetic._wire import threads

SLOW_SECONDS = 1.0
LONG_SECONDS = 5.0  # without a terminal: what takes longer may look as if it hung
_MINUTE, _HOUR = 60, 3600
Clock = Callable[[], float]


class Progress:
    """The phases of one piece of work, one after the other.

    Args:
        clock: Gives seconds; tests bring their own.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._is_live = terminal.is_possible() and terminal.wanted(terminal.INFO)
        self._phase = ""
        self._detail = ""
        self._since = 0.0
        self._told = ""  # what a log file has been told, or the terminal shows
        self._mid_line = False

    def enter(self, phase: str, detail: str = "", *, since: float | None = None) -> None:
        """Say what goes on now; the phase before it, if it is another one, has ended.

        Args:
            phase: E.g. "waiting for a slot".
            detail: More about it, e.g. how many are before us.
            since: When it began, by the clock; now by default.
        """
        if phase != self._phase:
            self.end()
            self._phase, self._told = phase, ""
            self._since = self._clock() if since is None else since
        self._detail = detail
        self.show()

    def tell(self, detail: str) -> None:
        """Say how far the phase is."""
        self._detail = detail
        self.show()

    def show(self) -> None:
        """Bring what is shown up to date."""
        seconds = self._clock() - self._since
        if not self._phase or seconds < SLOW_SECONDS:
            return
        about = f": {self._detail}" if self._detail else ""
        if self._is_live and not self._mid_line:
            text = f"{terminal.PREFIX}{self._phase}, {duration_text(seconds)}{about}"
            if text != self._told:
                self._told = text
                terminal.show(text, owner=self)
        elif not self._is_live and about and not self._told:
            self._told = about
            terminal.report(f"{self._phase}{about}")

    def show_still(self, detail: str = "") -> None:
        """Say once that the phase goes on, where no line counts its seconds.

        Args:
            detail: How far it is.
        """
        if self._phase and not self._is_live and not self._told:
            about = f": {detail}" if detail else ""
            self._told = f"still {self._phase} after {duration_text(self._clock() - self._since)}{about}"
            terminal.report(self._told)

    def wrote(self, text: str) -> None:
        """Take note of text that others wrote to the terminal: the line is shown again only where a line begins."""
        if text:
            self._mid_line = not text.endswith("\n")
            self._told = "" if self._is_live else self._told

    def end(self) -> None:
        """Say how long the phase took, if it was long."""
        self.clear()
        seconds = self._clock() - self._since
        if self._phase and seconds >= SLOW_SECONDS:
            if self._mid_line and self._is_live:
                terminal.end_line()
            terminal.report(f"{self._phase} took {duration_text(seconds)}")
        self._phase, self._mid_line = "", False

    def clear(self) -> None:
        """Take the line away that this drew, and none of somebody else's."""
        terminal.release(self)


@contextmanager
def phase(name: str, *, summary: bool = True, detail: Callable[[], str] | None = None) -> Iterator[None]:
    """Name what happens inside, if it takes long.

    Args:
        name: E.g. "packing".
        summary: Say at the end how long it took; False where the caller says it in better words.
        detail: Says how far it is, each second on a terminal, once elsewhere; asked by another thread.
    """
    progress = Progress()
    progress.enter(name)
    stop = _keep_showing(progress, detail) if terminal.wanted(terminal.INFO) else _nothing
    try:
        yield
    finally:
        stop()
        if summary:
            progress.end()
        else:
            progress.clear()


def _keep_showing(progress: Progress, detail: Callable[[], str] | None) -> Callable[[], None]:
    """Show a phase from a thread while the caller works; return what stops it."""
    import threading

    over = threading.Event()

    def tick() -> None:
        while not over.wait(SLOW_SECONDS):
            progress.show() if detail is None else progress.tell(detail())

    def tell_once() -> None:
        if not over.wait(LONG_SECONDS):
            progress.show_still("" if detail is None else detail())

    thread = threads.begin(tick if terminal.is_possible() else tell_once, "kinetic-progress")

    def stop() -> None:
        over.set()
        if thread is not None:
            thread.join()

    return stop


def _nothing() -> None:
    return

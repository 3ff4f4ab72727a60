"""This process's terminal, handed over to a command elsewhere: each key goes there, Ctrl-C too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ENDING = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def raw(on_resize: Callable[[], object]) -> Iterator[None]:
    """Hand it over; whatever ends this block, a signal included, the terminal is as it was before.

    Args:
        on_resize: Called when the terminal's size has changed; it must be quick.
    """
    import termios
    import tty

    before = termios.tcgetattr(0)
    handlers = {number: signal.signal(number, _leave) for number in _ENDING}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: on_resize())
    try:
        tty.setraw(0, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def size() -> tuple[int, int]:
    """Return columns and lines."""
    found = os.get_terminal_size(0)
    return found.columns or 80, found.lines or 24  # a terminal that nobody told its size says 0


def _leave(number: int, _: object) -> None:
    raise SystemExit(128 + number)

"""The lines of a terminal that are written over again: shown while something goes on, gone before anybody writes."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

from kinetic._output import widths

_CLEAR = "\r\x1b[K"
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"  # from the cursor on
_USUAL_WIDTH = 80  # of a terminal that does not say how wide it is
_USUAL_HEIGHT = 24
_lock = threading.RLock()
_shown = False
_above = 0  # how many lines of what is shown stand above the one with the cursor


def is_possible() -> bool:
    """Say whether standard error is a terminal that can write over a line."""
    stream = sys.stderr
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def show(text: str) -> None:
    """Show a text in the place of what is shown; never more than one line of the terminal."""
    global _shown  # noqa: PLW0603 - there is one terminal
    with _lock:
        if _above:
            clear()
        _write(f"{_CLEAR}{text[: _width() - 1]}")
        _shown = True


def show_lines(lines: Sequence[str]) -> None:
    """Show several lines in the place of what is shown, as many as the terminal has room for, each cut to its width.

    All of it is one write, and no line is empty in between: that is what keeps it from flickering.
    """
    global _shown, _above
    with _lock:
        width = _width() - 1
        fitting = [widths.shortened(line, width) for line in lines[: max(_height() - 1, 1)]]
        _write(f"{_to_the_top()}{chr(10).join(f'{line}{_CLEAR_LINE}' for line in fitting)}{_CLEAR_BELOW}")
        _shown, _above = True, len(fitting) - 1


def clear() -> None:
    """Take away what is shown; whoever writes to the terminal calls this first."""
    global _shown, _above
    with _lock:
        if _shown:
            _write(f"{_to_the_top()}{_CLEAR_BELOW}" if _above else _CLEAR)
            _shown, _above = False, 0


def end_line() -> None:
    """End the line that others left open."""
    with _lock:
        _write("\n")


def _to_the_top() -> str:
    return f"\r\x1b[{_above}A" if _above else "\r"


def _width() -> int:
    return _size().columns or _USUAL_WIDTH


def _height() -> int:
    return _size().lines or _USUAL_HEIGHT


def _size() -> os.terminal_size:
    try:
        return os.get_terminal_size(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):  # AttributeError: there is no standard error at all
        return os.terminal_size((_USUAL_WIDTH, _USUAL_HEIGHT))


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # a closed terminal, or none, must not harm the job
        return

"""The one line of a terminal that is written over again: shown while something goes on, gone before anybody writes."""

from __future__ import annotations

import os
import sys
import threading

_CLEAR = "\r\x1b[K"
_USUAL_WIDTH = 80  # of a terminal that does not say how wide it is
_lock = threading.RLock()
_shown = False


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
        _write(f"{_CLEAR}{text[: _width() - 1]}")
        _shown = True


def clear() -> None:
    """Take away what is shown; whoever writes to the terminal calls this first."""
    global _shown  # noqa: PLW0603 - there is one terminal
    with _lock:
        if _shown:
            _write(_CLEAR)
            _shown = False


def end_line() -> None:
    """End the line that others left open."""
    with _lock:
        _write("\n")


def _width() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or _USUAL_WIDTH
    except (OSError, ValueError):
        return _USUAL_WIDTH


def _write(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # a closed terminal must not harm the job
        return

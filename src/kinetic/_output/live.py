"""The lines of a terminal that are written over again: shown while something runs, out of the way of other text.

There is one terminal and many who might draw. Who draws says so (`owner`) and keeps the place until `release`: others
that draw meanwhile are not shown, and what others release is not theirs to take away. Text of any kind goes above.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Sequence

from kinetic._output import gate
from kinetic._output.format import shortened

_CLEAR = "\r\x1b[K"
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"  # from the cursor on
_USUAL_WIDTH = 80  # of a terminal that does not say how wide it is
_USUAL_HEIGHT = 24
_lock = threading.RLock()
_shown = False
_above = 0  # how many lines of what is shown stand above the one with the cursor
_owner: weakref.ref[object] | None = None  # who drew what is shown; one that is gone holds nothing
_again: list[str] = []  # the lines that an owner drew, to be drawn again below what others write


def is_possible() -> bool:
    """Say whether standard error is a terminal that can write over a line."""
    stream = sys.stderr
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def show(text: str, *, owner: object = None) -> None:
    """Show a text in the place of what is shown; never more than one line of the terminal.

    Args:
        text: The line.
        owner: Who draws; None for anybody, whose lines give way to all others.
    """
    global _shown, _owner
    with _lock:
        if _is_taken(owner):
            return
        if _above:
            clear()
        _write(f"{_CLEAR}{gate.plain(text)[: _width() - 1]}")
        _shown, _owner = True, _ref(owner)
        _again.clear()


def show_lines(lines: Sequence[str], *, owner: object = None) -> None:
    """Show several lines in the place of what is shown, as many as the terminal has room for, each cut to its width.

    All of it is one write, and no line is empty in between: that is what keeps it from flickering. Where they have an
    owner they stay below what others write, until the owner takes them away.
    """
    global _owner  # noqa: PLW0603 - there is one terminal
    with _lock:
        if _is_taken(owner):
            return
        width = _width() - 1
        fitting = [shortened(gate.plain(line), width) for line in lines[: max(_height() - 1, 1)]]
        _draw(_to_the_top(), fitting)
        _owner = _ref(owner)
        _again[:] = fitting if owner is not None else []


def write_line(text: str) -> None:
    """Write a line of text above what is shown: in one write, so that no picture is missing in between."""
    with _lock:
        if not _again or _owner is None or _owner() is None or not is_possible():
            clear()
            sys.stderr.write(gate.Own(f"{text}\n"))
            sys.stderr.flush()
            return
        before = f"{_to_the_top()}{_CLEAR_BELOW}" if _shown else ""
        _draw(f"{before}{text}\n", _again)


def clear() -> None:
    """Take away what is shown, whoever drew it, to make room; who writes to the terminal by itself calls this first."""
    global _shown, _above
    with _lock:
        if _shown:
            _write(f"{_to_the_top()}{_CLEAR_BELOW}" if _above else _CLEAR)
            _shown, _above = False, 0


def release(owner: object) -> None:
    """Take away what this owner drew; what others drew stays."""
    global _owner  # noqa: PLW0603 - as above
    with _lock:
        if _owner is not None and _owner() is owner:
            clear()
            _owner = None
            _again.clear()


def end_line() -> None:
    """End the line that others left open."""
    with _lock:
        _write("\n")


def leave_line() -> None:
    """Begin a new line on a terminal, where the ``^C`` of who pressed it stands on the present one."""
    if is_possible():
        clear()
        end_line()


def _is_taken(owner: object) -> bool:
    """Say whether what is shown belongs to somebody else, who still lives."""
    return _shown and _owner is not None and _owner() not in (None, owner)


def _ref(owner: object) -> weakref.ref[object] | None:
    return None if owner is None else weakref.ref(owner)


def _draw(before: str, fitting: Sequence[str]) -> None:
    global _shown, _above
    _write(f"{before}{chr(10).join(f'{line}{_CLEAR_LINE}' for line in fitting)}{_CLEAR_BELOW}")
    _shown, _above = True, len(fitting) - 1


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
        sys.stderr.write(gate.Own(text))
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # a closed terminal, or none, must not harm the job
        return

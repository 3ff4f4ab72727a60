"""Colors of a terminal for a status and for errors, and bars: whether they are used, and how. Meaning needs neither.

Who wins: ``kinetic --color``, then NO_COLOR, then FORCE_COLOR, then whether the stream is a terminal. What a job
printed keeps its own colors, which are not ours.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Literal, TextIO

Choice = Literal["auto", "always", "never"]
_RESET = "\x1b[0m"
_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36", "dim": "2"}
_OF_STATUS = {
    **dict.fromkeys(("running",), "cyan"),
    **dict.fromkeys(("pending", "waiting", "to"), "yellow"),  # "to be tried again"
    **dict.fromkeys(("succeeded",), "green"),
    **dict.fromkeys(("failed", "refused"), "red"),
    **dict.fromkeys(("cancelled", "not_found", "removed"), "dim"),
}
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_choice: Choice = "auto"


class Sanitized(str):
    """Text that is safe for a terminal, or that we made ourselves: the command's streams write it as it is."""

    __slots__ = ()
    is_safe = True


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal; what a program puts in its place may be closed, or able to write only.

    What rich puts there while it draws takes lines only, and writes them above its own.
    """
    try:
        return stream is not None and stream.isatty() and type(stream).__module__ != "rich.file_proxy"
    except (AttributeError, ValueError):
        return False


def write(stream: TextIO | None, text: str) -> None:
    """Write at once, as far as a stream can: like ``print``, it needs no more than ``write``; None takes nothing.

    On a terminal, whole lines are written above the bars of tqdm. What the encoding of the stream does not have is
    written as Python does it in a traceback: a job prints as UTF-8, whatever the locale of its client is.
    """
    if stream is not None:
        bars = tqdm_with_bars() if text.endswith("\n") and is_terminal(stream) else None
        with contextlib.nullcontext() if bars is None else bars.external_write_mode(stream):
            try:
                stream.write(text)
            except UnicodeEncodeError:
                encoding = getattr(stream, "encoding", None) or "ascii"
                stream.write(type(text)(text.encode(encoding, "backslashreplace").decode(encoding)))
            with contextlib.suppress(AttributeError):
                stream.flush()


def tqdm_with_bars() -> Any:
    """Return the class of tqdm while it draws bars in this process, else None."""
    found = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    return found if getattr(found, "_instances", None) else None


def choose(choice: Choice) -> None:
    """Set what ``--color`` says, for this process."""
    global _choice  # noqa: PLW0603 - a process has one
    _choice = choice


def are_used(stream: TextIO | None) -> bool:
    """Return whether text for a stream gets colors."""
    if stream is None or _choice != "auto":
        return stream is not None and _choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "") not in {"", "0"}:
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def paint(text: str, color: str, stream: TextIO | None, *, bold: bool = False) -> str:
    """Return a printable text in a color, if the stream gets any."""
    if not text or not color or not are_used(stream):
        return text
    return Sanitized(f"\x1b[{'1;' if bold else ''}{_CODES[color]}m{text}{_RESET}")


def color_of(status: str) -> str:
    """Return the color of a status, which may be the beginning of a text, or of the state of an input; "" for none."""
    return _OF_STATUS.get(status.split(maxsplit=1)[0].lower() if status.strip() else "", "")


def paint_status(text: str, stream: TextIO | None) -> str:
    """Return a text that begins with a status in the color of that status."""
    return paint(text, color_of(text), stream)


def bar(share: float, columns: int, stream: TextIO | None) -> str:
    """Return a bar that is filled by a share from 0 to 1: in eighths of a column where the stream can show them."""
    share = min(max(share, 0.0), 1.0)
    if not shows_blocks(stream):
        filled = int(share * columns)
        return "#" * filled + "-" * (columns - filled)
    eighths = int(share * columns * 8)
    whole, part = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[part] if part else "") + " " * columns)[:columns]


def shows_blocks(stream: TextIO | None) -> bool:
    """Return whether a stream can show the characters of Unicode that fill a part of a column."""
    try:
        _EIGHTHS.encode(getattr(stream, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return os.environ.get("TERM") not in {"dumb", "linux"}  # a Linux console has no glyphs for eighths

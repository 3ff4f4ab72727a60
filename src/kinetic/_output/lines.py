"""Plain lines on stderr. KINETIC_LOG_LEVEL=WARNING leaves out what is only information, ERROR the warnings too."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import zlib
from pathlib import Path

from kinetic._output import live
from kinetic.errors import printable

PREFIX = "kinetic: "
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "FATAL": 50}
INFO = _LEVELS["INFO"]
_said: set[str] = set()
_DAY_SECONDS = 24 * 3600.0


def say(text: str) -> None:
    """Tell something that is good to know."""
    _write(text, INFO)


def warn(text: str, *, why: str = "", next: str = "") -> None:  # noqa: A002 - as in errors.py
    """Tell something that may need attention, and in lines of their own why, and what to do."""
    parts = (("why:   ", why), ("next:  ", next))
    _write(f"warning: {text}", _LEVELS["WARNING"], *(label + _below(said, len(label)) for label, said in parts if said))


def alarm(text: str) -> None:
    """Tell in one line that something is not what it must be; who wants no warnings is told, too."""
    _write(text, _LEVELS["ERROR"])


def once(text: str, *, about: str = "") -> None:
    """Tell something, but only the first time in this process.

    Args:
        text: What is said.
        about: What counts as the same thing; the text itself by default.
    """
    if (about or text) not in _said:
        _said.add(about or text)
        say(text)


def warn_once(text: str) -> None:
    """Tell something that may need attention, but only the first time in this process."""
    if text not in _said:
        _said.add(text)
        warn(text)


def is_due(notice: str, folder: Path, *, now: float | None = None) -> bool:
    """Return whether a notice is to be given: once a day, as an empty file with its digest for a name remembers.

    Args:
        notice: What is to be said.
        folder: Where it is remembered; where that cannot be written, the notice is due each time.
        now: Seconds since the epoch; tests bring their own.
    """
    now = time.time() if now is None else now
    mark = folder / f"{zlib.crc32(notice.encode()):08x}"
    try:
        if 0 <= now - mark.stat().st_mtime < _DAY_SECONDS:
            return False
    except OSError:
        pass  # not yet
    with contextlib.suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        mark.touch(mode=0o600)
        os.utime(mark, (now, now))
    return True


def wanted(level: int) -> bool:
    """Say whether the user wants to be told what has this weight."""
    return level >= _LEVELS.get(os.environ.get("KINETIC_LOG_LEVEL", "INFO").upper(), INFO)


def _below(text: str, indent: int) -> str:
    """Pass the gate: a name with a line break in it begins no line that could be taken for one of ours."""
    first, *others = printable(text).split("\n")
    return "\n".join([first, *(line if line[:1] in {"", " "} else f"{' ' * indent}{line}" for line in others)])


def _write(text: str, level: int, *parts: str) -> None:
    stream = sys.stderr
    if stream is None or not wanted(level):
        return
    try:
        live.write_line("\n".join([f"{PREFIX}{_below(text, len(PREFIX))}", *parts]))
    except (OSError, ValueError):  # a closed terminal must not harm the job
        return

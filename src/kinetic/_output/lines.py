"""Plain lines on stderr. KINETIC_LOG_LEVEL=WARNING leaves out what is only information, ERROR the warnings too."""

from __future__ import annotations

import os
import sys

from kinetic._output import live

PREFIX = "kinetic: "
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "FATAL": 50}
INFO = _LEVELS["INFO"]
_said: set[str] = set()


def say(text: str) -> None:
    """Tell something that is good to know."""
    _write(text, INFO)


def warn(text: str) -> None:
    """Tell something that may need attention."""
    _write(f"warning: {text}", _LEVELS["WARNING"])


def once(text: str) -> None:
    """Tell something, but only the first time in this process."""
    if text not in _said:
        _said.add(text)
        say(text)


def wanted(level: int) -> bool:
    """Say whether the user wants to be told what has this weight."""
    return level >= _LEVELS.get(os.environ.get("KINETIC_LOG_LEVEL", "INFO").upper(), INFO)


def _write(text: str, level: int) -> None:
    stream = sys.stderr
    if stream is None or not wanted(level):
        return
    try:
        live.write_line(f"{PREFIX}{text}")
    except (OSError, ValueError):  # a closed terminal must not harm the job
        return

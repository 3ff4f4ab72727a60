"""What a visitor in a pod says where it cannot become the command it was asked for: one line, which its client reads.

The line comes the way that the command's own words would have come, and before any of them; the exit code goes with it.
"""

from __future__ import annotations

import json

from kinetic.errors import RunnerError

TROUBLE = 125  # the exit code of a visitor that did not get to see the worker, or could not become the command
MARK = b"\x1ekinetic-visitor: "  # no text that is meant to be read begins with this byte
_FIELDS = ("what", "why", "next", "code")


def line(error: RunnerError) -> bytes:
    """Put what was wrong into a line."""
    return MARK + json.dumps({name: getattr(error, name) for name in _FIELDS}).encode() + b"\n"


def read(text: bytes) -> RunnerError | None:
    """Return what such a line says; None where it is none: then a command wrote it."""
    if not text.startswith(MARK):
        return None
    try:
        page = json.loads(text.removeprefix(MARK))
        what, why, next_, code = (page[name] for name in _FIELDS)
    except (ValueError, KeyError, TypeError):
        return None
    return RunnerError(str(what), why=why, next=next_, code=code)

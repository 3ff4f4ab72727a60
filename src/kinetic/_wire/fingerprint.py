"""Which Python and which pickler speak here: compared before anything is unpickled."""

from __future__ import annotations

import sys


def python() -> str:
    """Return this interpreter's version, X.Y.Z."""
    return ".".join(map(str, sys.version_info[:3]))


def mismatch(client: str) -> str | None:
    """Say in a sentence why pickles of that Python cannot be read here, or None when they can.

    Code objects inside pickles are only good for the same X.Y.
    """
    ours = python()
    if client.split(".")[:2] == ours.split(".")[:2]:
        return None
    return f"it was submitted from Python {client}, and this is Python {ours}"

"""Durations as people write them."""

from __future__ import annotations

import re

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}  # of a span of time, in seconds
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")


def seconds_of(text: str) -> tuple[float, bool] | None:
    """Read a span of time: ``30``, ``10m``, ``1.5h``.

    Returns:
        Its seconds, and whether a unit was written; None where it is no span of time.
    """
    found = _SPAN.fullmatch(text.strip())
    return (float(found[1]) * UNITS[found[2] or "s"], bool(found[2])) if found else None

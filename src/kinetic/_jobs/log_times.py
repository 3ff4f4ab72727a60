"""When the parts of a log were written, by what its host measured of its length: a log itself has no times.

A host looks at the log every second at first, later every 5 s, and keeps 240 lengths: old parts are larger. So a time
is between two bounds, and a span of time selects all lines that may have been written in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kinetic._wire import NamedTuple, keys
from kinetic._wire.measurements import Row

if TYPE_CHECKING:
    from kinetic._backends.protocol import LiveLog
    from kinetic._wire.records import JobRecord

_LOOK_BACK = 1 << 16  # bytes: where a line begins that is longer is not looked for


class Part(NamedTuple):
    """Bytes of a log up to a position, and between which Unix times they were written; ``latest`` may be infinity."""

    end: float
    earliest: float
    latest: float


class Timeline:
    """The parts of one log, in order; the last one has no end."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def start(self, since: float) -> float:
        """Return the position before which everything was written earlier than this Unix time."""
        start = 0.0
        for part in self._parts:
            if part.latest >= math.floor(since):  # an end is known in whole seconds only
                return start
            start = part.end
        return start

    def end(self, until: float) -> float:
        """Return the position behind which everything was written later than this Unix time."""
        return max((part.end for part in self._parts if part.earliest <= until), default=0.0)

    def split(self, position: int, data: bytes) -> Iterator[tuple[float, bytes]]:
        """Yield the bytes from a position on, part by part, each with the time at which it was there; or now."""
        for part in self._parts:
            if position < part.end and data:
                size = len(data) if math.isinf(part.end) else int(part.end) - position
                yield min(part.latest, time.time()), data[:size]
                position, data = position + len(data[:size]), data[size:]


def parts_of(rows: Sequence[Row], *, zero: float, ended: float | None, left_out: int = 0) -> list[Part]:
    """Return the parts of a log.

    Args:
        rows: As ``Measurements.log`` has them.
        zero: When the attempt began (Unix time), from which their seconds count.
        ended: When it ended; None while it runs.
        left_out: How many bytes of its beginning are missing.
    """
    parts, earliest = [], zero
    latest_of_all = math.inf if ended is None else ended
    for first, last, size in rows:
        parts.append(Part(max((size or 0) - left_out, 0), earliest, min(zero + (first or 0), latest_of_all)))
        earliest = min(zero + (last or 0), latest_of_all)
    return [*parts, Part(math.inf, earliest, latest_of_all)]


def timeline_of(job: JobRecord, *, attempt: int, host: int, left_out: int) -> Timeline:
    """Return when the parts of the log of one host of an attempt were written, as far as that is known now.

    ``left_out``: how many bytes of its beginning the log does not have.
    """
    from kinetic._jobs import resource_usage, status

    page = status.history_of(job, status.observe_many([job])[0])
    _, measured = resource_usage.measurements_of(job, attempt=attempt)
    found = next((each for each in measured if each.host == host), None)
    if page["attempt"] in {None, attempt}:
        began, ended = keys.parse_utc(page["started_at"]), keys.parse_utc(page["ended_at"])
    else:
        began, ended = None, found.began + found.seconds if found is not None else None
    zero = found.began if found is not None else began or keys.parse_utc(page["created_at"]) or 0.0
    return Timeline(parts_of(found.log if found is not None else (), zero=zero, ended=ended, left_out=left_out))


def selected(log: LiveLog, timeline: Timeline, since: float | None, until: float | None) -> tuple[int, int]:
    """Return from where to where the lines are that may have been written in a span of time (Unix times)."""
    size = log.size()
    start = 0 if since is None else int(min(timeline.start(since), size))
    end = size if until is None else int(min(timeline.end(until), size))
    if start < size:
        start = _line_start(log, start, 0)
    return start, _line_start(log, end, start) if start < end < size else max(start, end)


def _line_start(log: LiveLog, position: int, least: int) -> int:
    """Return where the line begins that goes on at a position."""
    begin = max(position - _LOOK_BACK, least)
    found = log.read(begin, position - begin).rfind(b"\n")
    return begin + found + 1 if found >= 0 else begin if begin == least else position


NOW = Timeline([Part(math.inf, 0.0, math.inf)])  # of what comes from now on

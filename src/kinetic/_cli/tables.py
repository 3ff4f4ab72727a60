"""What commands print on standard output: tables for people, and JSON documents for programs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kinetic._output.gate import plain
from kinetic._output.widths import shortened, wide

__all__ = [
    "Column",
    "age",
    "ago",
    "document",
    "duration",
    "jsonable",
    "lines",
    "plain",
    "short",
    "shortened",
    "show",
    "status",
    "wide",
]

SCHEMA_VERSION = 1
_GAP = "  "
_LEAST = 12  # characters: a flexible column that is narrower says nothing any more
_UNITS = {"s": "s", "m": "min", "h": "h", "d": "d"}
_MINUTE, _HOUR, _DAY = 60, 3600, 86400  # seconds


class Column(NamedTuple):
    """One column of a table.

    Attributes:
        name: Its heading.
        right: Its cells stand on the right, as numbers do.
        flexible: It is shortened when the terminal is too narrow.
        spare: Left out when shortening is not enough: the highest number first; 0 is never left out.
    """

    name: str
    right: bool = False
    flexible: bool = False
    spare: int = 0


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: no wider than the terminal, and in full where there is no terminal."""
    print("\n".join(lines(columns, rows, width=_terminal_width())))


def lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int | None = None) -> list[str]:
    """Lay a table out.

    Args:
        columns: The columns.
        rows: Their cells. What would move a terminal's cursor is written as Python writes it.
        width: How wide it may be, in characters; None for as wide as it is.
    """
    table = [[column.name for column in columns], *([plain(cell) for cell in row] for row in rows)]
    widths = [max(map(wide, cells)) for cells in zip(*table, strict=True)]
    shown = list(range(len(columns)))
    if width is not None:
        shown, widths = _fitted(columns, widths, width)
    return [_line(columns, row, shown, widths) for row in table]


def document(**fields: Any) -> None:
    """Print one JSON document with the version of its form."""
    import json

    print(json.dumps({"schema_version": SCHEMA_VERSION, **fields}, indent=2, allow_nan=False))


def duration(seconds: float | None) -> str:
    """Say how long something took or takes."""
    if seconds is None:
        return ""
    if seconds < _MINUTE:
        return f"{max(seconds, 0.0):.1f}s"
    if seconds < _HOUR:
        return f"{int(seconds) // _MINUTE}m {int(seconds) % _MINUTE:02d}s"
    return f"{int(seconds) // _HOUR}h {int(seconds) % _HOUR // _MINUTE:02d}m"


def short(seconds: float) -> str:
    """Write an age, e.g. "5m"; one that is still to come is "0s": some clock is wrong."""
    for unit, length in (("d", _DAY), ("h", _HOUR), ("m", _MINUTE)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(int(seconds), 0)}s"


def age(seconds: float) -> str:
    """Say how long ago something was."""
    return f"{short(seconds)} ago"


def ago(written: str, now: float) -> str:
    """Say in a sentence how long ago a time was that is written as everything durable writes it, e.g. "5 s ago"."""
    from datetime import datetime

    try:
        seconds = now - datetime.fromisoformat(written).timestamp()
    except ValueError:
        return written
    written_ = short(seconds)
    return f"{written_[:-1]} {_UNITS[written_[-1]]} ago"


def status(page: Mapping[str, Any], now: float) -> str:
    """Write the status of a job; of one that was collected, how it ended and when it was collected."""
    collected = page.get("collected_at")
    return f"{page['status']} (collected {ago(collected, now)})" if collected else str(page["status"])


def _terminal_width() -> int | None:
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def _fitted(columns: Sequence[Column], widths: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Return the columns that are shown and how wide each is, so that a line fits if it can."""
    shown = list(range(len(columns)))
    fitted = list(widths)
    while True:
        over = sum(fitted[index] for index in shown) + len(_GAP) * (len(shown) - 1) - width
        for index in shown:
            if over > 0 and columns[index].flexible:
                cut = min(over, max(0, fitted[index] - _LEAST))
                fitted[index] -= cut
                over -= cut
        spare = max(shown, key=lambda index: columns[index].spare)
        if over <= 0 or not columns[spare].spare:
            return shown, fitted
        shown.remove(spare)
        fitted = list(widths)


def _line(columns: Sequence[Column], row: Sequence[str], shown: Sequence[int], widths: Sequence[int]) -> str:
    cells = []
    for index in shown:
        text = shortened(row[index], widths[index]) if columns[index].flexible else row[index]
        blank = " " * (widths[index] - wide(text))
        cells.append(blank + text if columns[index].right else text + blank)
    return _GAP.join(cells).rstrip()


def jsonable(value: object) -> bool:
    """Say whether JSON can hold a value; it has no NaN, for one."""
    import json

    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True

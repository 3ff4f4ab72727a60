"""Text for people: sizes, durations, tables and documents; terminal.py says what a terminal may be sent."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kinetic._output import colors
from kinetic._wire import NamedTuple
from kinetic.errors import printable

SCHEMA_VERSION = 1
_SIZES = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))  # SI, as ls --si and every disk; requests keep their Mi and Gi
_MINUTE, _HOUR, _DAY = 60, 3600, 86400  # seconds
_GAP = "  "  # between two columns
_LEAST_WIDTH = 12  # characters: a narrower column shows nothing useful
_MOST_WIDTH = 120  # characters that the longest cell of a flexible column may take from all other lines


def plain(text: str) -> str:
    """Return a text as one line that does nothing to a terminal."""
    return printable(text, keep="")


def count_text(count: int, noun: str) -> str:
    """Write a number of things: "1 job", "2 jobs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def names_text(names: Sequence[str], most: int) -> str:
    """Write the first names and how many there are besides: "a, b and 3 more"."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def size_text(count: float) -> str:
    """Write a number of bytes: "1.5 MB"."""
    return _in_unit(count, count)


def share_text(part: float, whole: float) -> str:
    """Write a part of a number of bytes: "0.5/1.5 MB"."""
    number, _, _ = _in_unit(part, whole).partition(" ")
    return f"{number}/{_in_unit(whole, whole)}"


def _in_unit(count: float, like: float) -> str:
    for unit, unit_bytes in _SIZES:
        if like >= unit_bytes:
            return f"{count / unit_bytes:.1f} {unit}"
    return f"{count:.0f} byte{'' if round(count) == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """Write a duration for a sentence: "5 s", "2 min 05 s", "1 h 30 min"."""
    if seconds < _MINUTE:
        return f"{int(seconds)} s"
    if seconds < _HOUR:
        return f"{int(seconds) // _MINUTE} min {int(seconds) % _MINUTE:02d} s"
    return f"{int(seconds) // _HOUR} h {int(seconds) % _HOUR // _MINUTE:02d} min"


def seconds_text(seconds: float) -> str:
    """Write how long something took: "0.4 s", and from ten seconds on as a duration."""
    return f"{seconds:.1f} s" if seconds < 9.95 else duration_text(seconds)


def duration_cell(seconds: float | None) -> str:
    """Write a duration for a table: "5.0s", "2m 05s", "1h 30m"; "" for None."""
    if seconds is None:
        return ""
    if seconds < _MINUTE:
        return f"{seconds if seconds > 0 else 0.0:.1f}s"
    return duration_text(seconds).replace(" min", "m").replace(" s", "s").replace(" h", "h")


def age_text(seconds: float) -> str:
    """Write an age for a table: "5m"; a time in the future, by a wrong clock, is "0s"."""
    if seconds >= _DAY:
        return f"{int(seconds // _DAY)}d"
    if seconds >= _HOUR:
        return f"{int(seconds // _HOUR)}h"
    return f"{int(seconds // _MINUTE)}m" if seconds >= _MINUTE else f"{max(int(seconds), 0)}s"


def age_in_words(seconds: float) -> str:
    """Write an age for a sentence: "5 min"."""
    age = age_text(seconds)
    return f"{age[:-1]} {'min' if age[-1] == 'm' else age[-1]}"


def ago_text(written: str, now: float) -> str:
    """Write how long ago an ISO time was: "5 s ago"."""
    from datetime import datetime

    try:
        return f"{age_in_words(now - datetime.fromisoformat(written).timestamp())} ago"
    except ValueError:
        return written


def status_text(page: Mapping[str, Any], now: float) -> str:
    """Write the status of a job; of a collected one, how it ended and when it was collected."""
    collected = page.get("collected_at")
    return f"{page['status']} (collected {ago_text(collected, now)})" if collected else str(page["status"])


def width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    import unicodedata  # 1 ms; only for more than ASCII

    return sum(2 if unicodedata.east_asian_width(c) in "WF" else not unicodedata.combining(c) for c in text)


def shortened(text: str, columns: int) -> str:
    """Cut a text to at most some columns; an ellipsis marks the cut."""
    if width(text) <= columns:
        return text
    left = columns - 1
    for end, character in enumerate(text if left >= 0 else ""):
        left -= width(character)
        if left < 0:
            return f"{text[:end]}…"
    return ""


class Column(NamedTuple):
    """One column of a table."""

    name: str
    right: bool = False  # aligned to the right, like numbers
    flexible: bool = False  # shortened if the terminal is too narrow
    wraps: bool = False  # a flexible last column that continues on further lines instead; not in live tables
    is_status: bool = False  # begins with a status, which has a color
    spare: int = 0  # the order in which columns are left out if shortening is not enough, highest first; 0 for never


def table_lines(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    columns_wide: int | None = None,
    paint: Callable[[str], str] | None = None,
) -> list[str]:
    """Return the lines of a table, headings first, for a terminal of this width; control characters are escaped.

    Without a width nothing is cut: the line of a very long cell is longer than the others. ``paint`` returns a cell
    with a status in its color.
    """
    cells: list[Sequence[str]] = [[column.name for column in columns], *rows]
    text = "".join(map("".join, cells))
    is_ascii = text.isascii()
    if not (is_ascii and text.isprintable()):  # else no cell need be looked at
        cells = [list(map(plain, row)) for row in cells]
    measure = len if is_ascii else width
    widths = [max(map(measure, each)) for each in zip(*cells, strict=True)]
    shown = list(range(len(columns)))
    if columns_wide is None:
        is_long = [column.flexible and not column.wraps for column in columns]
        widths = [min(each, _MOST_WIDTH) if long else each for each, long in zip(widths, is_long, strict=True)]
        fitted = widths
    else:
        shown, fitted = _fitted(columns, widths, columns_wide)
    if measure is len and fitted == widths and len(shown) == len(columns) and paint is None:  # ten times as fast
        form = _GAP.join(f"%{'' if column.right else '-'}{each}s" for column, each in zip(columns, widths, strict=True))
        return [(form % tuple(row)).rstrip() for row in cells]

    def line_of(row: Sequence[str], paint: Callable[[str], str] | None = None) -> str:
        texts = []
        for index in shown:
            text, column = row[index], columns[index]
            spare = fitted[index] - measure(text)
            if spare < 0 and columns_wide is not None:  # only a flexible column is narrower than its texts
                text = shortened(text, fitted[index])
                spare = fitted[index] - width(text)
            text = paint(text) if paint is not None and column.is_status else text
            texts.append(" " * spare + text if column.right else text + " " * spare)
        return _GAP.join(texts).rstrip()

    head, *others = cells
    lines = [line_of(head)]
    for row in others:
        parts = _wrapped(row[-1], fitted[-1]) if columns[-1].wraps and shown[-1] == len(columns) - 1 else [row[-1]]
        lines.append(line_of([*row[:-1], parts[0]], paint))
        lines += [line_of([""] * (len(columns) - 1) + [part]) for part in parts[1:]]
    return lines


def _wrapped(text: str, columns: int) -> list[str]:
    """Return a text in lines of at most some columns."""
    if width(text) <= columns:
        return [text]
    import textwrap  # 1 ms; only for what is too long

    return textwrap.wrap(text, columns, break_on_hyphens=False) or [""]


def left_out(columns: Sequence[Column], rows: Sequence[Sequence[str]], columns_wide: int) -> str:
    """Return the names of the columns that a table of this width leaves out, "" for none."""
    cells = zip(*[[column.name for column in columns], *rows], strict=True)
    shown, _ = _fitted(columns, [max(map(width, map(plain, each))) for each in cells], columns_wide)
    return ", ".join(column.name for index, column in enumerate(columns) if index not in shown)


def _fitted(columns: Sequence[Column], widths: Sequence[int], most: int) -> tuple[list[int], list[int]]:
    """Return the columns that are shown and how wide each is, so that a line fits if possible."""
    shown = list(range(len(columns)))
    fitted = list(widths)
    while True:
        over = sum(fitted[index] for index in shown) + len(_GAP) * (len(shown) - 1) - most
        for index in shown:
            if over > 0 and columns[index].flexible:
                cut = min(over, max(0, fitted[index] - _LEAST_WIDTH))
                fitted[index] -= cut
                over -= cut
        spare = max(shown, key=lambda index: columns[index].spare)
        if over <= 0 or not columns[spare].spare:
            return shown, fitted
        shown.remove(spare)
        fitted = list(widths)


def live_table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], columns_wide: int) -> list[str]:
    """Return the lines of a table for ``terminal.show_lines``, with colors if standard error gets any."""
    if not colors.are_used(sys.stderr):
        return table_lines(columns, rows, columns_wide=columns_wide)
    paint = functools.partial(colors.paint_status, stream=sys.stderr)
    lines = table_lines(columns, rows, columns_wide=columns_wide)
    painted = table_lines(columns, rows, columns_wide=columns_wide, paint=paint)
    fits = all(width(line) <= columns_wide for line in lines)
    return [colors.Sanitized(line) for line in painted] if fits else lines


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: no wider than the terminal, and in full where there is no terminal."""
    columns_wide, paint = None, None
    if colors.is_terminal(sys.stdout):
        import shutil

        columns_wide = shutil.get_terminal_size().columns
    if colors.are_used(sys.stdout):
        paint = functools.partial(colors.paint_status, stream=sys.stdout)
    lines = table_lines(columns, rows, columns_wide=columns_wide, paint=paint)
    sys.stdout.write(colors.Sanitized("\n".join(lines) + "\n"))
    if columns_wide is not None and (names := left_out(columns, rows, columns_wide)):
        sys.stdout.flush()
        sys.stderr.write(f"the terminal is too narrow for {names}\n")


def print_fields(fields: Sequence[Sequence[str]]) -> None:
    """Print names and texts below each other, and leave out what has no text."""
    shown = [(name, plain(text)) for name, text in fields if text]
    columns = max(len(name) for name, _ in shown)
    print("\n".join(f"{name:<{columns}}  {text}" for name, text in shown))


def print_document(**fields: Any) -> None:
    """Print one JSON document with the version of its form."""
    import json

    print(json.dumps({"schema_version": SCHEMA_VERSION, **fields}, indent=2, allow_nan=False))


def is_json(value: object) -> bool:
    """Return whether JSON can hold a value; it has no NaN, for one, and of the keys 1 and "1" it makes the same.

    Half of a character, as in names of files that are not UTF-8, ends readers as jq.
    """
    import json

    def check(pairs: list[tuple[str, object]]) -> None:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("two keys are one in JSON")

    try:
        json.loads(json.dumps(value, allow_nan=False, ensure_ascii=False).encode(), object_pairs_hook=check)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def value_page(value: Any) -> dict[str, Any]:
    """Return for JSON the type of a value, and the value itself or, if JSON cannot hold it, its repr."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return {"type": kind} | ({"value": value} if is_json(value) else {"repr": value_repr(value)})


def value_repr(value: object) -> str:
    """Return the repr of a value; the user's own may fail."""
    try:
        return repr(value)
    except Exception as error:  # noqa: BLE001 - the value's class is the user's
        return f"<{type(value).__qualname__} whose repr fails: {type(error).__name__}>"

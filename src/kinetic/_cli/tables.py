"""What commands print on standard output: tables for people, and JSON documents for programs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from kinetic._output.format import Column, age_in_words, table_lines
from kinetic._output.gate import plain

__all__ = ["Column", "ago", "document", "jsonable", "plain", "show", "status"]

SCHEMA_VERSION = 1


def show(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: no wider than the terminal, and in full where there is no terminal."""
    print("\n".join(table_lines(columns, rows, columns_wide=_terminal_width())))


def document(**fields: Any) -> None:
    """Print one JSON document with the version of its form."""
    import json

    print(json.dumps({"schema_version": SCHEMA_VERSION, **fields}, indent=2, allow_nan=False))


def ago(written: str, now: float) -> str:
    """Say in a sentence how long ago a time was that is written as everything durable writes it, e.g. "5 s ago"."""
    from datetime import datetime

    try:
        seconds = now - datetime.fromisoformat(written).timestamp()
    except ValueError:
        return written
    return f"{age_in_words(seconds)} ago"


def status(page: Mapping[str, Any], now: float) -> str:
    """Write the status of a job; of one that was collected, how it ended and when it was collected."""
    collected = page.get("collected_at")
    return f"{page['status']} (collected {ago(collected, now)})" if collected else str(page["status"])


def _terminal_width() -> int | None:
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def jsonable(value: object) -> bool:
    """Say whether JSON can hold a value; it has no NaN, for one."""
    import json

    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True

"""JSON pages: how every durable page is written, read back, and told from a foreign or damaged one."""

from __future__ import annotations

import json
from typing import Any

from kinetic.errors import IntegrityError

SCHEMA = 1  # version N reads N and N-1


def write(fields: dict[str, Any]) -> bytes:
    """Write a page: sorted keys and no spaces, so that equal pages are equal bytes."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read(data: bytes | str, what: str) -> dict[str, Any]:
    """Read a page.

    Raises:
        IntegrityError: It is not JSON, not an object, or of a version that this kinetic cannot read.
    """
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{what} is damaged", why=f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise IntegrityError(f"{what} is damaged", why="the page is not an object")
    version = fields.get("schema")
    if version not in {SCHEMA, SCHEMA - 1}:
        raise IntegrityError(
            f"{what} was written by another version of kinetic",
            why=f"its schema is {version!r}; this version reads {SCHEMA - 1} and {SCHEMA}",
            next="pip install --upgrade kinetic-jobs",
            code="schema",
        )
    return fields

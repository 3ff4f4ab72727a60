"""Which Pythons a project wants: ``requires-python``, read as PEP 440 says, for the versions that Pythons have."""

from __future__ import annotations

import re

_PART = re.compile(r"\s*(~=|===|==|!=|<=|>=|<|>)\s*v?(\d+(?:\.\d+)*)(\.\*)?\s*")


def fits(wanted: str, python: str) -> bool:
    """Say whether a Python is among those that are wanted.

    Args:
        wanted: As it was written, e.g. ">=3.11,<3.14"; every part must hold, and "" wants nothing.
        python: X.Y.Z.

    Raises:
        ValueError: It cannot be read; the message names the part.
    """
    version = _numbers(python)
    held = [_holds(part, version) for part in wanted.split(",") if part.strip()]  # each is read before one decides
    return all(held)


def _holds(part: str, version: tuple[int, ...]) -> bool:
    found = _PART.fullmatch(part)
    if found is None or (found[3] and found[1] not in {"==", "!="}):
        raise ValueError(f"{part.strip()!r} is not a range of versions")
    operator, bound = found[1], _numbers(found[2])
    if operator == "~=":
        if len(bound) == 1:
            raise ValueError(f"{part.strip()!r} needs two numbers at least")
        return _compared(version, bound) >= 0 and version[: len(bound) - 1] == bound[:-1]
    if found[3]:
        return (version[: len(bound)] == bound) is (operator == "==")
    order = _compared(version, bound)
    return {
        "==": order == 0,
        "===": order == 0,
        "!=": order != 0,
        "<=": order <= 0,
        ">=": order >= 0,
        "<": order < 0,
        ">": order > 0,
    }[operator]


def _compared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Say which is later: 3.11 and 3.11.0 are the same."""
    length = max(len(one), len(other))
    left, right = (numbers + (0,) * (length - len(numbers)) for numbers in (one, other))
    return (left > right) - (left < right)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))

"""Fields of JSON pages: the type and the range that each may have. Nothing is converted; what differs is named.

A page comes from a store, and anyone who can write there may have put anything into it. A reader takes one value as
JSON gives it and returns it, or raises ``FieldError`` with the end of a sentence that begins with the field's name.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from kinetic.errors import IntegrityError

T = TypeVar("T")
Reader = Callable[[object], T]

_SHARED = 63  # characters of what many pages say, such as a status or the id of a job: it is in memory once
_SHOWN = 60  # characters of a wrong value in a message
_HEX = re.compile(r"[0-9a-f]{64}")

SECONDS = 1e11  # Unix times and durations: up to the year 5138
BYTES = 1 << 60
NAME, LINE, PATH, TEXT = 256, 4096, 8192, 1 << 20  # characters at most


class FieldError(ValueError):
    """A value that its field cannot have."""


def shown(value: object) -> str:
    """Return a value in a few printable characters."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and value.bit_length() > 64:
        return "a very large number"
    written = ascii(value)
    return written if len(written) <= _SHOWN else f"{written[:_SHOWN]}…"


def text(most: int = LINE, pattern: re.Pattern[str] | None = None, *, least: int = 0) -> Reader[str]:
    """Read text of at most so many characters, all of which a pattern matches."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise FieldError(f"must be text, not {shown(value)}")
        if not least <= len(value) <= most:
            raise FieldError(f"must have {least} to {most} characters, and has {len(value)}")
        if pattern is not None and pattern.fullmatch(value) is None:
            raise FieldError(f"cannot be {shown(value)}")
        return sys.intern(value) if len(value) <= _SHARED else value

    return read


sha256 = text(64, _HEX)  # a digest in lower-case hexadecimal


def integer(least: int, most: int) -> Reader[int]:
    """Read a whole number within a range."""

    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise FieldError(f"must be a whole number, not {shown(value)}")
        if not least <= value <= most:
            raise FieldError(f"must be {least} to {most}, not {shown(value)}")
        return value

    return read


def number(least: float, most: float) -> Reader[float]:
    """Read a number within a range."""

    def read(value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise FieldError(f"must be a number, not {shown(value)}")
        if not (isinstance(value, int) or math.isfinite(value)) or not least <= value <= most:
            raise FieldError(f"must be {least:g} to {most:g}, not {shown(value)}")
        return value

    return read


def boolean(value: object) -> bool:
    """Read true or false."""
    if not isinstance(value, bool):
        raise FieldError(f"must be true or false, not {shown(value)}")
    return value


def optional(reader: Reader[T]) -> Reader[T | None]:
    """Read what may be null."""
    return lambda value: None if value is None else reader(value)


def one_of(*words: str) -> Reader[str]:
    """Read one of some words."""

    def read(value: object) -> str:
        if not isinstance(value, str) or value not in words:
            raise FieldError(f"must be one of {', '.join(words)}, not {shown(value)}")
        return value

    return read


def list_of(reader: Reader[T], most: int) -> Reader[tuple[T, ...]]:
    """Read a list of at most so many values."""

    def read(value: object) -> tuple[T, ...]:
        if not isinstance(value, list | tuple):
            raise FieldError(f"must be a list, not {shown(value)}")
        if len(value) > most:
            raise FieldError(f"must have at most {most} items, and has {len(value)}")
        return tuple([reader(item) for item in value])

    return read


def array_of(reader: Reader[T], most: int) -> Reader[list[T]]:
    """Read a list of at most so many values, as a list."""
    read = list_of(reader, most)
    return lambda value: list(read(value))


def map_of(reader: Reader[T], most: int, name: Reader[str] | None = None) -> Reader[dict[str, T]]:
    """Read an object with any names, at most so many."""
    name_of = name or text()

    def read(value: object) -> dict[str, T]:
        found = _object(value)
        if len(found) > most:
            raise FieldError(f"must have at most {most} names, and has {len(found)}")
        return {name_of(each): reader(item) for each, item in found.items()}

    return read


def nested(cls: type[T], readers: Mapping[str, Reader[Any]]) -> Reader[T]:
    """Read an object within a page into its dataclass."""
    return lambda value: _build(cls, readers, _object(value))


def known_fields(readers: Mapping[str, Reader[Any]], required: Iterable[str] = ()) -> Reader[dict[str, Any]]:
    """Read an object of which some fields are known; the others are ignored."""

    def read(value: object) -> dict[str, Any]:
        found = _known(readers, _object(value))
        for name in required:
            if name not in found:
                raise FieldError(f"{name} is missing")
        return found

    return read


def any_value(value: object) -> Any:
    """Read any JSON value: the page's own limits of size and depth apply."""
    return value


def each(reader: Reader[Any], *names: str) -> dict[str, Reader[Any]]:
    """Return readers of fields that are all of one kind."""
    return dict.fromkeys(names, reader)


def damaged(what: str, why: object) -> IntegrityError:
    """Return the error that a page cannot be used."""
    return IntegrityError(f"{what} is damaged", why=str(why), code="page")


def build(cls: type[T], readers: Mapping[str, Reader[Any]], page: Mapping[str, Any], what: str) -> T:
    """Make a dataclass from a page; unknown names are ignored, and those with a default may be missing."""
    try:
        return _build(cls, readers, page)
    except FieldError as error:
        raise damaged(what, error) from None


def builder(cls: type[T], readers: Mapping[str, Reader[Any]]) -> Callable[[dict[str, Any], str], T]:
    """Return ``build`` for one dataclass."""
    return lambda page, what: build(cls, readers, page, what)


def checked(
    readers: Mapping[str, Reader[Any]], page: Mapping[str, Any], what: str, required: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the fields of a page that are known, each with a value that it can have."""
    try:
        return known_fields(readers, required)(page)
    except FieldError as error:
        raise damaged(what, error) from None


def read_one(reader: Reader[T], value: object, what: str) -> T:
    """Read a single value."""
    try:
        return reader(value)
    except FieldError as error:
        raise damaged(what, f"it {error}") from None


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FieldError(f"must be an object, not {shown(value)}")
    return value


def _build(cls: type[T], readers: Mapping[str, Reader[Any]], page: Mapping[str, Any]) -> T:
    from dataclasses import MISSING  # loaded once there is one

    known = _known(readers, page)
    for name, declared in cls.__dataclass_fields__.items():  # type: ignore[attr-defined] # a dataclass has them
        required = declared.init and declared.default is MISSING and declared.default_factory is MISSING
        if required and name not in known:
            raise FieldError(f"{name} is missing")
    return cls(**known)


def _known(readers: Mapping[str, Reader[Any]], page: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(page, Mapping):
        raise FieldError(f"it must be an object, not {shown(page)}")
    known: dict[str, Any] = {}
    for name, reader in readers.items():
        if name in page:
            try:
                known[name] = reader(page[name])
            except FieldError as error:
                raise FieldError(f"{name} {error}") from None
    return known


UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}  # of a span of time, in seconds
_SPAN = r"(\d+(?:\.\d+)?)\s*([smhdw]?)"


def seconds_of(text: str) -> tuple[float, bool] | None:
    """Read a span of time, as ``30``, ``10m``, ``1h30m``: its seconds, and whether a unit was written; or None."""
    parts = re.findall(_SPAN, text)
    units = [UNITS[unit or "s"] for _, unit in parts]
    is_one = len(parts) == 1 or (all(unit for _, unit in parts) and units == sorted({*units}, reverse=True))
    if not parts or not is_one or re.sub(_SPAN, "", text).strip():
        return None
    return sum(float(number) * unit for (number, _), unit in zip(parts, units, strict=True)), bool(parts[0][1])

"""JSON pages: how every durable page is written, read back, and told from a foreign or damaged one.

``open_page`` is the one door through which a page of a store comes in: it reads no more bytes than its kind may have,
refuses what is nested too deeply before it is parsed, verifies the seal before anything is believed, and checks the
type and range of each field. What it returns is plain, frozen data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from kinetic._wire import seal
from kinetic.errors import IntegrityError, OptionError

SCHEMA = 3  # version N reads N and N-1; before the first release there was 1, whose seals were bound to less
MOST_BYTES = 64 << 20  # of any page, unless its kind says less
MOST_DEEP = 32  # levels of lists and objects

T = TypeVar("T")

# A string, or the rest of the text where one is not closed: one pass, whatever somebody wrote there.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_SAME_BRACKETS = bytes.maketrans(b"{}", b"[]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class Readable(Protocol):
    """What is needed of a store here."""

    @property
    def url(self) -> str:
        """Its address."""

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return bytes of an object."""


@dataclass(frozen=True)
class PageKind(Generic[T]):
    """One kind of page.

    Attributes:
        name: What its seal says that it is.
        what: The same for humans, e.g. "the lease".
        build: Makes the page's dataclass from its fields and from ``what``; raises IntegrityError.
        most_bytes: Longer ones are refused before they are read.
    """

    name: str
    what: str
    build: Callable[[dict[str, Any], str], T]
    most_bytes: int = 1 << 20

    def at(self, key: str) -> str:
        """Return what the page at this key is, for humans; the key is somebody else's word, so it is escaped."""
        return f"{self.what} {ascii(key)[1:-1]}"


def open_page(kind: PageKind[T], store: Readable, at: str, key: bytes | None) -> T:
    """Read, verify and check a page of a store.

    Args:
        kind: What it must be.
        store: Where it lies.
        at: Its key there; the seal is bound to it.
        key: The key that it must be sealed with; None only when the user said to trust the store.

    Raises:
        KeyMissingError: There is none.
        IntegrityError: It is too long, damaged, of another version, or its seal is wrong.
    """
    return verified(kind, claimed(kind, store, at), at, key)


def claimed(kind: PageKind[Any], store: Readable, at: str) -> dict[str, Any]:
    """Read a page without believing it: for what its seal must be looked up by.

    Raises:
        KeyMissingError: There is none.
        IntegrityError: It is too long, damaged, or of another version.
    """
    what = kind.at(at)
    return read(fetch(store, at, kind.most_bytes, what), what, most_bytes=kind.most_bytes)


def verified(kind: PageKind[T], page: dict[str, Any], at: str, key: bytes | None) -> T:
    """Return what a page says, once its seal and each of its fields are right; see ``open_page``."""
    seal.check(page, key, seal.bound(kind.name, at), kind.at(at))
    return kind.build(page, kind.at(at))


def sealed(kind: PageKind[Any], page: dict[str, Any], at: str, key: bytes) -> bytes:
    """Write a page as ``open_page`` reads it; what could not be read again is not written.

    Raises:
        OptionError: A field of it is too long, or of a kind that it cannot have.
    """
    page = {"schema": SCHEMA, **page}
    try:
        kind.build(page, kind.what)
    except IntegrityError as error:
        raise OptionError(f"{kind.what} cannot be written", why=error.why, code="page") from None
    return write(seal.sealed(page, key, seal.bound(kind.name, at)))


def fetch(store: Readable, at: str, most_bytes: int, what: str) -> bytes:
    """Read an object that must not be longer than this, and never more than one byte beyond.

    Raises:
        IntegrityError: It is longer.
    """
    data = store.get(at, length=most_bytes + 1)
    if len(data) > most_bytes:
        _too_long(what, most_bytes)
    return data


def write(fields: dict[str, Any]) -> bytes:
    """Write a page: equal pages are equal bytes."""
    return seal.text_of(fields)


def read(data: bytes | str, what: str, *, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Read a page.

    Raises:
        IntegrityError: It is too long or too deep, not JSON, not an object, or of a version that this kinetic cannot
            read.
    """
    fields = parse(data, what, most_bytes=most_bytes)
    if not isinstance(fields, dict):
        raise IntegrityError(f"{what} is damaged", why="the page is not an object", code="page")
    version = fields.get("schema")
    if type(version) is not int or version not in {SCHEMA, SCHEMA - 1}:
        from kinetic._wire.fields import shown  # only on the way to an error

        raise IntegrityError(
            f"{what} was written by another version of kinetic",
            why=f"its schema is {shown(version)}; this version reads {SCHEMA - 1} and {SCHEMA}",
            next="pip install --upgrade kinetic-jobs",
            code="schema",
        )
    return fields


def parse(data: bytes | str, what: str, *, most_bytes: int = MOST_BYTES, any_name: bool = False) -> Any:
    """Return what JSON text says, if it is short and flat enough.

    Args:
        data: The text.
        what: It is, for humans.
        most_bytes: How long it may be.
        any_name: Whether names of files that are not UTF-8 may stand in it.

    Raises:
        IntegrityError: It is not, or it holds half of a character.
    """
    try:
        raw = data.encode() if isinstance(data, str) else data
        if len(raw) > most_bytes:
            _too_long(what, most_bytes)
        if _is_too_deep(raw):
            raise IntegrityError(
                f"{what} is damaged", why=f"it is nested more than {MOST_DEEP} levels deep", code="page"
            )
        found = json.loads(raw.decode(), parse_constant=_not_a_number)
        if not any_name and _SURROGATE.search(raw):
            json.dumps(found, ensure_ascii=False).encode()  # half of a character: UTF-8 cannot write it
    except (ValueError, RecursionError) as error:  # UnicodeError is a ValueError
        raise IntegrityError(f"{what} is damaged", why=f"not JSON: {error}"[:200], code="page") from error
    return found


def _is_too_deep(data: bytes) -> bool:
    """Say whether lists and objects are nested too deeply, without parsing them."""
    if data.count(b"[") + data.count(b"{") <= MOST_DEEP:
        return False
    brackets = _STRING.sub(b"", data).translate(_SAME_BRACKETS, _NOT_BRACKETS)
    for _ in range(MOST_DEEP):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _not_a_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a number of JSON")


def _too_long(what: str, most_bytes: int) -> NoReturn:
    raise IntegrityError(f"{what} is damaged", why=f"it has more than {most_bytes} bytes", code="page")

"""JSON pages and their seals: how every durable page is written, read back, and told from a forged or damaged one.

``open_page`` is the one way in for a page of a store: it reads no more bytes than its kind may have, refuses what is
nested too deeply before it is parsed, verifies the seal before anything is believed, and checks the type and range of
each field. What it returns is plain, frozen data.

A namespace has one key of 32 random bytes. The key of a job, or of a batch, is an HMAC of it, of the id and of the
address of the store, so that what a job's supervisor holds opens no other job, and a page that was written for one
store is invalid in another. The seal of a page is an HMAC-SHA256 over its kind, its place in the store and all of its
other fields.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast

from kinetic._wire import dataclass, fields
from kinetic.errors import IntegrityError, OptionError

SCHEMA = 3  # version N reads N and N-1; before the first release there was 1, whose seals were bound to less
MOST_BYTES = 64 << 20  # of any page, unless its kind says less
MOST_DEEP = 32  # levels of lists and objects
KEY_BYTES = 32
_TAG = 24  # hexadecimal digits: 96 bits

T = TypeVar("T")

# A string, or the rest of the text where one is not closed: one pass, whatever was written there.
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
    """One kind of page."""

    name: str  # what its seal says that it is
    what: str  # the same for humans, e.g. "the lease"
    build: Callable[[dict[str, Any], str], T]  # from its fields and ``what``; raises IntegrityError
    most_bytes: int = 1 << 20  # longer ones are refused before they are read

    def at(self, key: str) -> str:
        """Return what the page at this key is, for humans; the key is somebody else's word, so it is escaped."""
        return f"{self.what} {ascii(key)[1:-1]}"


def open_page(kind: PageKind[T], store: Readable, at: str, key: bytes | None) -> T:
    """Read, verify and check a page of a store.

    Args:
        kind: What it must be.
        store: Where it is.
        at: Its key there; the seal is bound to it.
        key: The key that it must be sealed with; None only when the user said to trust the store.

    Raises:
        KeyMissingError: There is none.
        IntegrityError: It is too long, damaged, of another version, or its seal is wrong.
    """
    return verify(kind, read_unverified(kind, store, at), at, key)


def read_unverified(kind: PageKind[Any], store: Readable, at: str) -> dict[str, Any]:
    """Read a page without believing it: for what its seal must be looked up by."""
    what = kind.at(at)
    return read(fetch(store, at, kind.most_bytes, what), what, most_bytes=kind.most_bytes)


def verify(kind: PageKind[T], page: dict[str, Any], at: str, key: bytes | None) -> T:
    """Return what a page says, once its seal and each of its fields are right; see ``open_page``."""
    if key is not None and not has_seal(page, key, seal_purpose(kind.name, at)):
        raise IntegrityError(
            f"{kind.at(at)} has a wrong seal",
            why="it was written or changed by a process without this namespace's key",
            next="look at who can write to the store; KINETIC_TRUST_STORE=1 reads it without verification",
            code="seal",
        )
    return kind.build(page, kind.at(at))


def seal_page(kind: PageKind[Any], page: dict[str, Any], at: str, key: bytes) -> bytes:
    """Write a page as ``open_page`` reads it; what could not be read again is not written."""
    page = {"schema": SCHEMA, **page}
    try:
        kind.build(page, kind.what)
    except IntegrityError as error:
        raise OptionError(f"{kind.what} cannot be written", why=error.why, code="page") from None
    try:
        return write(with_seal(page, key, seal_purpose(kind.name, at)))
    except UnicodeEncodeError as error:
        near = ascii(error.object[max(0, error.start - 30) : error.end])
        raise OptionError(f"{kind.what} cannot be written", why=f"not valid UTF-8: {near}", code="page") from None


def fetch(store: Readable, at: str, most_bytes: int, what: str) -> bytes:
    """Read an object that must not be longer than this, and never more than one byte beyond."""
    data = store.get(at, length=most_bytes + 1)
    if len(data) > most_bytes:
        raise _too_long(what, most_bytes)
    return data


def write(page: dict[str, Any]) -> bytes:
    """Write fields as JSON: sorted names and no spaces, so that equal fields are equal bytes."""
    return json.dumps(page, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def write_ascii(page: dict[str, Any]) -> bytes:
    """Write fields as ``write`` does, in ASCII: for names and variables, which need not be UTF-8, see ``parse``."""
    return json.dumps(page, sort_keys=True, separators=(",", ":")).encode()


def read(data: bytes | str, what: str, *, most_bytes: int = MOST_BYTES, any_name: bool = False) -> dict[str, Any]:
    """Read a page; see ``parse``."""
    page = parse(data, what, most_bytes=most_bytes, any_name=any_name)
    if not isinstance(page, dict):
        raise fields.damaged(what, "the page is not an object")
    version = page.get("schema")
    if type(version) is not int or version not in {SCHEMA, SCHEMA - 1}:
        from kinetic._version import __version__  # on the way to an error

        is_older = type(version) is int and version < SCHEMA
        raise IntegrityError(
            f"{what} was written by {'an older' if is_older else 'another'} version of kinetic",
            why=f"its schema is {fields.shown(version)}; this version reads {SCHEMA - 1} and {SCHEMA}",
            next=f'in an environment of its own: pip install "kinetic-jobs<{__version__}"'
            if is_older
            else "pip install --upgrade kinetic-jobs",
            code="schema",
        )
    return page


def parse(data: bytes | str, what: str, *, most_bytes: int = MOST_BYTES, any_name: bool = False) -> Any:
    """Return what JSON text says, if it is short and flat enough.

    With ``any_name``, names of files and variables that are not UTF-8 may be in it.
    """
    try:
        raw = data.encode() if isinstance(data, str) else data
        if len(raw) > most_bytes:
            raise _too_long(what, most_bytes)
        if _is_too_deep(raw):
            raise fields.damaged(what, f"it is nested more than {MOST_DEEP} levels deep")
        found = json.loads(raw.decode(), parse_constant=_not_a_number)
        if not any_name and _SURROGATE.search(raw):
            json.dumps(found, ensure_ascii=False).encode()  # half of a character: UTF-8 cannot write it
    except (ValueError, RecursionError) as error:  # UnicodeError is a ValueError
        raise fields.damaged(what, f"not JSON: {error}"[:200]) from error
    return found


def _is_too_deep(data: bytes) -> bool:
    """Return whether lists and objects are nested too deeply, without parsing them."""
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


def _too_long(what: str, most_bytes: int) -> IntegrityError:
    return fields.damaged(what, f"it has more than {most_bytes} bytes")


# ---------------------------------------------------------------------------------------------------------------- seals


def key_id(key: bytes) -> str:
    """Name a key without telling it."""
    return hashlib.sha256(b"kinetic key id" + key).hexdigest()[:16]


def job_key(key: bytes, job_id: str, store_url: str) -> bytes:
    """Derive the key of one job, or of one batch, in one store."""
    return hmac.digest(key, f"kinetic job {job_id}\0{store_url}".encode(), "sha256")


def cache_key(key: bytes, store_url: str) -> bytes:
    """Derive the key of the compile cache of a namespace, in one store; no job's id has a space."""
    return job_key(key, "compile cache", store_url)


def check_key_length(size: int, where: str) -> None:
    """Refuse a key that is not whole: what is sealed with half of one could never be opened."""
    if size != KEY_BYTES:
        raise IntegrityError(
            "the key of this job is damaged",
            why=f"{where} has {size} bytes instead of {KEY_BYTES}, as after a write to a full disk",
            next="submit the job again",
            code="key",
        )


@contextlib.contextmanager
def temporary_key(path: str | os.PathLike[str], start: int = 0) -> Iterator[bytes]:
    """Lend a key from its file for a moment, in memory that is overwritten afterwards.

    For a process that is about to fork a worker: nothing of the key may be left in what the worker inherits.
    """
    key = bytearray(KEY_BYTES)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.lseek(descriptor, start, os.SEEK_SET)
        check_key_length(os.readv(descriptor, [key]), str(path))
        yield cast("bytes", key)  # HMAC takes either; bytes could not be overwritten
    finally:
        os.close(descriptor)
        key[:] = bytes(KEY_BYTES)


def seal_purpose(kind: str, at: str) -> str:
    """Return what a seal is for: a kind of page, at one place of a store."""
    return f"{kind}\0{at}"


def with_seal(page: dict[str, Any], key: bytes, purpose: str) -> dict[str, Any]:
    """Return the fields with their seal in ``mac``."""
    return {**page, "mac": _mac(page, key, purpose)}


def has_seal(page: dict[str, Any], key: bytes, purpose: str) -> bool:
    """Return whether the seal of these fields is right."""
    mac = page.get("mac")
    return isinstance(mac, str) and mac.isascii() and hmac.compare_digest(mac, _mac(page, key, purpose))


def sealed_name(stem: str, word: str, key: bytes) -> str:
    """Return the name of a key that says something by being there: its seal is part of the name.

    A listing of a thousand such names can be verified without reading a single object.
    """
    tag = hmac.digest(key, f"mark\0{stem}\0{word}".encode(), "sha256").hex()[:_TAG]
    return f"{stem}.{word}.{tag}"


def _mac(page: dict[str, Any], key: bytes, purpose: str) -> str:
    text = write({name: value for name, value in page.items() if name != "mac"})
    return hmac.digest(key, purpose.encode() + b"\0" + text, "sha256").hex()

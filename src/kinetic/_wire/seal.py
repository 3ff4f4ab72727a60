"""Seals: who holds a job's key wrote this page, and nobody changed it since.

A namespace has one key of 32 random bytes. The key of a job, or of a batch, is an HMAC of it, of the id and of the
address of the store, so that what a job's keeper holds opens no other job, and what was written for one store holds in
no other. The seal of a page is an HMAC-SHA256 over its kind, its place in the store and all of its other fields.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
from collections.abc import Iterator
from typing import Any, cast

from kinetic.errors import IntegrityError

KEY_BYTES = 32
_TAG = 24  # hexadecimal digits: 96 bits


def key_id(key: bytes) -> str:
    """Name a key without telling it."""
    return hashlib.sha256(b"kinetic key id" + key).hexdigest()[:16]


def check_length(size: int, where: str) -> None:
    """Refuse a key that is not whole: what is sealed with half of one could never be opened.

    Raises:
        IntegrityError: It has another length.
    """
    if size != KEY_BYTES:
        raise IntegrityError(
            "the key of this job is damaged",
            why=f"{where} has {size} bytes instead of {KEY_BYTES}, as after a write to a full disk",
            next="submit the job again",
            code="key",
        )


@contextlib.contextmanager
def borrowed(path: str | os.PathLike[str], start: int = 0) -> Iterator[bytes]:
    """Lend a key from its file for a moment, in memory that is overwritten afterwards.

    For a process that is about to fork a worker: nothing of the key may be left in what the worker inherits.

    Raises:
        IntegrityError: The file is shorter.
    """
    key = bytearray(KEY_BYTES)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.lseek(descriptor, start, os.SEEK_SET)
        check_length(os.readv(descriptor, [key]), str(path))
        yield cast("bytes", key)  # HMAC takes either; bytes could not be overwritten
    finally:
        os.close(descriptor)
        key[:] = bytes(KEY_BYTES)


def job_key(key: bytes, job_id: str, store_url: str) -> bytes:
    """Derive the key of one job, or of one batch, in one store."""
    return hmac.digest(key, f"kinetic job {job_id}\0{store_url}".encode(), "sha256")


def bound(kind: str, at: str) -> str:
    """Return what a seal is for: a kind of page, at one place of a store."""
    return f"{kind}\0{at}"


def mark(stem: str, word: str, key: bytes) -> str:
    """Return the name of a key that says something by being there: its seal is part of the name.

    A listing of a thousand such names can be verified without reading a single object.
    """
    return f"{stem}.{word}.{_tag(stem, word, key)}"


def _tag(stem: str, word: str, key: bytes) -> str:
    return hmac.digest(key, f"mark\0{stem}\0{word}".encode(), "sha256").hex()[:_TAG]


def sealed(fields: dict[str, Any], key: bytes, purpose: str) -> dict[str, Any]:
    """Return the fields with their seal in ``mac``."""
    return {**fields, "mac": _mac(fields, key, purpose)}


def holds(fields: dict[str, Any], key: bytes, purpose: str) -> bool:
    """Say whether the seal of these fields is right."""
    mac = fields.get("mac")
    return isinstance(mac, str) and mac.isascii() and hmac.compare_digest(mac, _mac(fields, key, purpose))


def check(fields: dict[str, Any], key: bytes | None, purpose: str, what: str) -> None:
    """Refuse a page whose seal is wrong.

    Args:
        fields: Of the page.
        key: The key that it must be sealed with; None only when the user said to trust the store.
        purpose: What the page was sealed for.
        what: What the page is, for humans.

    Raises:
        IntegrityError: The seal is wrong.
    """
    if key is not None and not holds(fields, key, purpose):
        raise IntegrityError(
            f"{what} carries a wrong seal",
            why="it was written or changed by somebody who does not hold this namespace's key",
            next="look at who can write to the store; KINETIC_TRUST_STORE=1 reads it all the same",
            code="seal",
        )


def text_of(fields: dict[str, Any]) -> bytes:
    """Write fields as JSON: sorted names and no spaces, so that equal fields are equal bytes."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _mac(fields: dict[str, Any], key: bytes, purpose: str) -> str:
    page = text_of({name: value for name, value in fields.items() if name != "mac"})
    return hmac.digest(key, purpose.encode() + b"\0" + page, "sha256").hex()

"""Seals: who holds a job's key wrote this page, and nobody changed it since.

A namespace has one key of 32 random bytes. A job's key is an HMAC of it and the job's id, so that what a job's
keeper holds opens no other job. The seal of a page is an HMAC-SHA256 over all of its other fields.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from kinetic._wire import pages
from kinetic.errors import IntegrityError

KEY_BYTES = 32


def key_id(key: bytes) -> str:
    """Name a key without telling it."""
    return hashlib.sha256(b"kinetic key id" + key).hexdigest()[:16]


def job_key(key: bytes, job_id: str) -> bytes:
    """Derive the key of one job."""
    return hmac.digest(key, b"kinetic job " + job_id.encode(), "sha256")


def sealed(fields: dict[str, Any], key: bytes, purpose: str) -> dict[str, Any]:
    """Return the fields with their seal in ``mac``."""
    return {**fields, "mac": _mac(fields, key, purpose)}


def holds(fields: dict[str, Any], key: bytes, purpose: str) -> bool:
    """Say whether the seal of these fields is right."""
    mac = fields.get("mac")
    return isinstance(mac, str) and hmac.compare_digest(mac, _mac(fields, key, purpose))


def check(fields: dict[str, Any], key: bytes | None, purpose: str, what: str) -> None:
    """Refuse a page whose seal is wrong.

    Args:
        fields: Of the page.
        key: The key that it must be sealed with, or None where it cannot be had: then nothing is verified.
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


def _mac(fields: dict[str, Any], key: bytes, purpose: str) -> str:
    page = pages.write({name: value for name, value in fields.items() if name != "mac"})
    return hmac.digest(key, purpose.encode() + b"\0" + page, "sha256").hex()

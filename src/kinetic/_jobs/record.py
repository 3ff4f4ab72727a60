"""The Record of a job: the handle as it lies in the store, with what a human asks about later, sealed."""

from __future__ import annotations

from typing import Any

from kinetic._wire import pages, seal
from kinetic.errors import IntegrityError

PURPOSE = "record"


def to_bytes(handle: dict[str, Any], more: dict[str, Any], key: bytes) -> bytes:
    """Write a record; the handle's fields lie on top, so that it reads as the documents describe it."""
    return pages.write(seal.sealed({"schema": pages.SCHEMA, **more, **handle}, key, PURPOSE))


def from_bytes(data: bytes, job_id: str, key: bytes | None) -> dict[str, Any]:
    """Read a record and verify its seal.

    Args:
        data: The page.
        job_id: The job that it must be about.
        key: The job's key, or None where it cannot be had: then nothing is verified, and nothing can be collected.

    Raises:
        IntegrityError: It is damaged, about another job, or its seal is wrong.
    """
    fields = pages.read(data, f"the record of {job_id}")
    if fields.get("job_id") != job_id:
        raise IntegrityError(f"the record of {job_id} is about {fields.get('job_id')!r}")
    seal.check(fields, key, PURPOSE, f"the record of {job_id}")
    return fields

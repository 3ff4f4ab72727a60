"""The record of a job: made in one place, for single jobs and children of batches; sealed, and read back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetic._jobs import trust
from kinetic._wire import documents, fields, keys, names, records
from kinetic._wire.records import HANDLE, REQUIRED, JobRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinetic._backends.protocol import Backend
    from kinetic._jobs.trust import Untrusted
    from kinetic._stores.protocol import Store

_READERS = {
    **HANDLE,
    "spot": fields.flag,
    "machine": fields.text(),
    "python": fields.text(),
    "order_sha256": fields.text(64),
}


LONGEST_NAME = "longest_name"  # beside the fields that all jobs of a submission share


def longest_name(backend: Backend, hosts: int) -> int:
    """Return how long the name of a job's object may be where it runs, so that a record needs no cluster to know it."""
    return len(backend.name_of("x" * names.MOST_OF_AN_OBJECT, hosts))


def make_record(shared: Mapping[str, Any], job_id: str, **own: Any) -> JobRecord:
    """Make the record of one job.

    Args:
        shared: What the records of all jobs of its submission have in common; ``LONGEST_NAME`` beside it.
        job_id: The job.
        **own: Its other fields.
    """
    derived = {
        "job_id": job_id,
        "k8s_name": names.object_name(job_id, int(shared.get(LONGEST_NAME) or names.MOST_OF_AN_OBJECT)),
        "display_name": f"kinetic-{shared['func_name']}-{job_id}",
    }
    return JobRecord(**records.known({**shared, **derived, **own}))


def to_bytes(handle: dict[str, Any], more: dict[str, Any], key: bytes) -> bytes:
    """Write a record; the handle's fields lie on top, so that it reads as the documents describe it."""
    return documents.sealed(RECORD, {**more, **handle}, keys.record(handle["job_id"]), key)


def read_record(store: Store, job_id: str) -> dict[str, Any] | Untrusted:
    """Read the record of a job, or what can be shown of one that cannot be verified here.

    Raises:
        KeyMissingError: There is none.
        IntegrityError: It is damaged.
    """
    return trust.open_claimed(RECORD, store, keys.record(job_id), job_id)


def _record(page: dict[str, Any], what: str) -> dict[str, Any]:
    return fields.checked(_READERS, page, what, REQUIRED)


RECORD = documents.PageKind("record", "the record", _record, 1 << 18)

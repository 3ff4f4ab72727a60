"""The Record of a job: the handle as it lies in the store, with what a human asks about later, sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetic._jobs import trust
from kinetic._wire import fields, keys, pages
from kinetic._wire.handles import HANDLE, REQUIRED

if TYPE_CHECKING:
    from kinetic._jobs.trust import Untrusted
    from kinetic._stores.protocol import Store

_READERS = {
    **HANDLE,
    "spot": fields.flag,
    "machine": fields.text(),
    "python": fields.text(),
    "order_sha256": fields.text(64),
}


def to_bytes(handle: dict[str, Any], more: dict[str, Any], key: bytes) -> bytes:
    """Write a record; the handle's fields lie on top, so that it reads as the documents describe it."""
    return pages.sealed(RECORD, {**more, **handle}, keys.record(handle["job_id"]), key)


def read(store: Store, job_id: str) -> dict[str, Any] | Untrusted:
    """Read the record of a job, or what can be shown of one that cannot be verified here.

    Raises:
        KeyMissingError: There is none.
        IntegrityError: It is damaged.
    """
    return trust.open_claimed(RECORD, store, keys.record(job_id), job_id)


def _record(page: dict[str, Any], what: str) -> dict[str, Any]:
    return fields.checked(_READERS, page, what, REQUIRED)


RECORD = pages.Kind("record", "the record", _record, 1 << 18)

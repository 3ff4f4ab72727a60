"""Tombstones: what remains of a job that was removed. Status, times and reason; no payload, no secret; for 30 days."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from kinetic._stores.protocol import Store
from kinetic._wire import keys, pages
from kinetic.errors import IntegrityError, KeyMissingError

KEEP_SECONDS = 30 * 24 * 3600.0


def write(store: Store, fields: dict[str, Any]) -> None:
    """Write the tombstone of a job, once."""
    page = {"schema": pages.SCHEMA, "removed": time.time(), **fields}
    store.put(keys.tombstone(fields["job_id"]), pages.write(page), if_absent=True)


def read(store: Store, job_id: str) -> dict[str, Any] | None:
    """Return the tombstone of a job, or None."""
    with contextlib.suppress(KeyMissingError):
        return pages.read(store.get(keys.tombstone(job_id)), f"the history of {job_id}")
    return None


def exists(store: Store, job_id: str) -> bool:
    """Say whether kinetic removed this job."""
    return store.size(keys.tombstone(job_id)) is not None


def listed(store: Store) -> Iterator[dict[str, Any]]:
    """Yield every tombstone, and drop those that are older than 30 days by the store's own clock.

    One whose job still has artifacts stays: without it, a job that was cancelled would look like one that was not.
    """
    entries = list(store.entries(keys.HISTORY))
    newest = max((entry.modified for entry in entries), default=0.0)
    for entry in entries:
        if entry.modified < newest - KEEP_SECONDS and store.size(keys.record(_job_of(entry.key))) is None:
            store.delete(entry.key)
            continue
        with contextlib.suppress(KeyMissingError, IntegrityError):
            yield pages.read(store.get(entry.key), entry.key)


def _job_of(key: str) -> str:
    return key.removeprefix(keys.HISTORY).removesuffix(".json")

"""The pages of the history: what is known of a job that was removed or collected, for 30 days.

Status, times and reason; no payload, no secret. The page of a *collected* job says so: its log is kept beside it (see
``history``), and it can be attached. The page of a job that was removed by hand is all that is left of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from kinetic._stores.protocol import Entry, Store
from kinetic._wire import keys, pages
from kinetic.errors import IntegrityError, KeyMissingError, KineticError

KEEP_SECONDS = 30 * 24 * 3600.0


def write(store: Store, fields: dict[str, Any], *, again: bool = False) -> bool:
    """Write the page of a job, once.

    Args:
        store: Where it goes.
        fields: What is known of the job; ``job_id`` among it.
        again: Replace the page that is there.

    Returns:
        False when there is a page already, which stays.
    """
    page = {"schema": pages.SCHEMA, "removed": time.time(), **fields}
    return store.put(keys.tombstone(fields["job_id"]), pages.write(page), if_absent=not again)


def read(store: Store, job_id: str) -> dict[str, Any] | None:
    """Return the page of a job, or None.

    Raises:
        IntegrityError: It is damaged.
    """
    with contextlib.suppress(KeyMissingError):
        return pages.read(store.get(keys.tombstone(job_id)), f"the history of {job_id}")
    return None


def seen(store: Store, job_id: str) -> dict[str, Any] | None:
    """Return the page of a job, or None where kinetic did not remove it; of a damaged page, that there is one."""
    try:
        return read(store, job_id)
    except IntegrityError:
        return {"job_id": job_id}


def exists(store: Store, job_id: str) -> bool:
    """Return whether kinetic removed this job."""
    return store.size(keys.tombstone(job_id)) is not None


def entries(store: Store) -> Iterator[Entry]:
    """Yield the pages as a listing shows them, without what is kept beside them."""
    for entry in store.entries(keys.HISTORY):
        if not keys.job_of_history(entry.key):
            return
        yield entry


def ids(store: Store) -> set[str]:
    """Return the jobs that have a page."""
    return {keys.job_of_history(entry.key) for entry in entries(store)}


def listed(store: Store) -> Iterator[dict[str, Any]]:
    """Yield every page that can be read."""
    for entry in entries(store):
        with contextlib.suppress(KeyMissingError, IntegrityError):
            yield pages.read(store.get(entry.key), entry.key)


def sweep(store: Store) -> None:
    """Delete what is older than 30 days by the store's own clock: pages, and the logs beside them.

    The age is told by an object that is written now, never by the newest page: one from a wrong clock must not take the
    others with it. A page whose job still has artifacts stays: without it, a job that was cancelled would look like one
    that was not.
    """
    found = [entry for entry in store.entries(keys.HISTORY) if entry.key != keys.HISTORY_CLOCK]
    if not found:
        return
    store.put(keys.HISTORY_CLOCK, b"")
    clock = store.entry(keys.HISTORY_CLOCK)
    store.delete(keys.HISTORY_CLOCK)
    limit = clock.modified - KEEP_SECONDS if clock is not None else 0.0
    for entry in found:
        job_id = keys.job_of_history(entry.key)
        with contextlib.suppress(KineticError):  # one that cannot be deleted does not keep the others
            if entry.modified < limit and not (job_id and store.size(keys.record(job_id)) is not None):
                store.delete(entry.key)

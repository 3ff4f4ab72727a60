"""The pages of the history: what is known of a job that was removed or collected, for 30 days.

Status, times and reason; no payload, no secret. The page of a *collected* job says so: its log is kept beside it (see
``history``), and it can be attached. The page of a job that was removed by hand is all that is left of it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator, Mapping
from typing import Any

from kinetic._jobs import index, trust
from kinetic._stores.protocol import Entry, Store
from kinetic._wire import documents, keys, names
from kinetic._wire.records import HISTORY
from kinetic.errors import IntegrityError, KeyMissingError


def write_page(store: Store, fields: dict[str, Any], key: bytes, *, again: bool = False) -> bool:
    """Write the page of a job, once.

    Args:
        store: Where it goes.
        fields: What is known of the job; ``job_id`` and ``key_id`` among it.
        key: The job's key.
        again: Replace the page that is there.

    Returns:
        False when there is a page already, which stays; one that cannot be verified is replaced.
    """
    at = keys.tombstone(fields["job_id"])
    data = documents.sealed(HISTORY, {"removed": time.time(), **fields, "store": store.url}, at, key)
    if store.put(at, data, if_absent=not again):
        return True
    return read_page(store, fields["job_id"]) is None and store.put(at, data)


def read_page(store: Store, job_id: str) -> dict[str, Any] | None:
    """Return the page of a job; None where there is none, or none that can be read and verified here.

    A page that others put there says nothing: neither that a job was removed, nor where its outputs are.
    """
    with contextlib.suppress(KeyMissingError, IntegrityError):
        page = trust.open_claimed(HISTORY, store, keys.tombstone(job_id), job_id)
        if not isinstance(page, trust.Untrusted) and page["job_id"] == job_id:
            return page
    return None


def is_collected(page: Mapping[str, Any] | None) -> bool:
    """Return whether a page is of a job that was collected: then its log is kept, and it can be attached."""
    return page is not None and bool(page.get("collected"))


def page_entries(store: Store) -> Iterator[Entry]:
    """Yield the pages as a listing shows them, without what is kept beside them."""
    for entry in store.entries(keys.HISTORY):
        if not keys.job_of_history(entry.key):
            return
        yield entry


def page_ids(store: Store) -> set[str]:
    """Return the jobs that have a page."""
    return set(filter(names.is_job_id, (keys.job_of_history(entry.key) for entry in page_entries(store))))


def read_pages(store: Store) -> Iterator[dict[str, Any]]:
    """Yield every page that can be read and verified."""
    known = index.of(store)
    stamps = {keys.job_of_history(entry.key): (entry.size, entry.modified) for entry in page_entries(store)}
    for job_id in sorted(filter(names.is_job_id, stamps)):
        page = known.past(job_id, stamps[job_id], functools.partial(read_page, store, job_id))
        if page is not None:
            yield page
    known.write(functools.partial(job_ids, store))


def job_ids(store: Store) -> set[str]:
    """Return every job that a store or its history names."""
    return {*store.folders(""), *page_ids(store)}

"""Claiming an attempt at a job, which is creating its Note; and whether there is still a job to claim."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import replace

from kinetic._stores.protocol import Store
from kinetic._wire import keys, pages
from kinetic._wire import note as notes
from kinetic._wire.handles import HISTORY
from kinetic._wire.note import Note
from kinetic.errors import IntegrityError, KeyMissingError, KineticError

_ATTEMPTS = 1000


def claim(store: Store, note: Note, key: bytes) -> Note | None:
    """Create the Note of the next attempt; creating it is what makes the attempt ours.

    Args:
        store: Where the job lies.
        note: What is to be said of the attempt; its ``machine_id``, where it has one, is that of a queue.
        key: The job's key.

    Returns:
        The Note; None when another machine has begun: two of them were given the same child of a batch.

    Raises:
        KineticError: There were too many, or the store does not take it.
    """
    machine = note.details.get("machine_id")
    for attempt in range(_ATTEMPTS):
        ours = replace(note, attempt=attempt)
        if store.put(ours.key, ours.to_bytes(key), if_absent=True):
            return ours
        if machine:
            with contextlib.suppress(KeyMissingError, IntegrityError):
                if notes.read(store, note.job_id, attempt, key).details.get("machine_id", machine) != machine:
                    return None
    raise KineticError(f"{note.job_id} has used up {_ATTEMPTS} attempts", code="attempts")


def was_removed(store: Store, job_id: str, lent: AbstractContextManager[bytes]) -> bool:
    """Return whether somebody removed a job, as its sealed page in the history says.

    Args:
        store: Where the job lies.
        job_id: The job.
        lent: Lends its key, if there is such a page.
    """
    at = keys.tombstone(job_id)
    if store.size(at) is None:
        return False
    with contextlib.suppress(KeyMissingError, IntegrityError, OSError), lent as key:
        return bool(pages.open_page(HISTORY, store, at, key).get("resource_removed"))
    return False

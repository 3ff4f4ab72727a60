"""Claiming an attempt: creating its Note. What is known of it at its end is added to the same page."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from kinetic._runner.pod.preparing import Place
from kinetic._stores.protocol import Store
from kinetic._wire import debug, fingerprint, keys
from kinetic._wire.note import Note
from kinetic._wire.pod import PodPage
from kinetic.errors import KineticError

_ATTEMPTS = 1000


def note_of(page: PodPage, place: Place, attempt: int, *, clock: Callable[[], float] = time.time) -> Note:
    """Return the Note with which an attempt begins here."""
    details: dict[str, object] = {"pod": os.uname().nodename, "host": place.host}
    return Note(page.job_id, attempt, os.uname().nodename, clock(), page.runner, fingerprint.python(), details)


def claim(store: Store, page: PodPage, place: Place, key: bytes) -> Note:
    """Create the Note of the next attempt; of several hosts all have the number of their set's restarts.

    Args:
        store: Where the job lies.
        page: What this pod was told.
        place: Where it stands.
        key: The job's key.

    Raises:
        KineticError: There were too many, or the store does not take it.
    """
    if page.hosts > 1:
        return _claim_together(store, page, place, key)
    note = note_of(page, place, 0)
    for attempt in range(_ATTEMPTS):
        ours = replace(note, attempt=attempt)
        if store.put(ours.key, ours.to_bytes(key), if_absent=True):
            return ours
    raise KineticError(f"{page.job_id} has used up {_ATTEMPTS} attempts", code="attempts")


def _claim_together(store: Store, page: PodPage, place: Place, key: bytes) -> Note:
    note = note_of(page, place, place.restarts or 0)
    if place.restarts is None:  # as below; a longer log of that life would stand behind the end of ours
        store.delete(keys.logs(page.job_id, note.attempt, place.host))
    if place.host == 0:
        if place.restarts is None:  # it may be the set's second life: what was told in the first must not count
            store.delete(keys.hosts(page.job_id, note.attempt))
            store.delete(debug.mark_begun(page.job_id, note.attempt, debug.page_key(debug.token(key))))
        store.put(note.key, note.to_bytes(key), if_absent=True)
    return note


def add(store: Store, note: Note, why: str, key: bytes, *, clock: Callable[[], float] = time.time) -> None:
    """Write down how an attempt ended that left no verdict."""
    ended = replace(note, details={**note.details, "ended": clock(), "why": why})
    store.put(note.key, ended.to_bytes(key))

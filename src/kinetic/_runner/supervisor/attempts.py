"""Claiming an attempt at a job, which is creating its Note; and whether there is still a job to claim."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace

from kinetic._stores.protocol import Store
from kinetic._wire import attempt as notes
from kinetic._wire import documents, keys
from kinetic._wire.attempt import LOGS, AttemptNote
from kinetic._wire.outcome import Outcome
from kinetic._wire.records import HISTORY
from kinetic.errors import IntegrityError, KeyMissingError, KineticError

_ATTEMPTS = 1000


def claim(store: Store, note: AttemptNote, key: bytes) -> AttemptNote | None:
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
        return bool(documents.open_page(HISTORY, store, at, key).get("resource_removed"))
    return False


FAILED = "failed"  # a detail of a Note: how the attempt failed, where another one follows
_MOST_LOGS = 256  # hosts whose logs a Note, a page of 64 KiB, has the digests of
# Whoever stopped it wants no more of it. A value that cannot be pickled, or more memory than was asked for, would be so
# the next time as well.
_FINAL = frozenset({"memory", "serialization", "stopped"})


def count_failures(store: Store, job_id: str, attempt: int, key: bytes) -> int:
    """Count the attempts before this one that failed; a Note that cannot be verified counts: retries cost money."""
    count = 0
    for number in range(attempt):
        try:
            count += FAILED in notes.read(store, job_id, number, key).details
        except KeyMissingError:
            continue
        except IntegrityError:
            count += 1
    return count


def next_try(store: Store, verdict: Outcome, retries: int, key: bytes) -> str:
    """Say how a failed attempt ended that is not the last one, in words for its log; "" for a verdict that holds.

    Args:
        store: Where the Notes of its attempts are.
        verdict: How this attempt ended.
        retries: How many more times a job that failed is tried.
        key: The job's key.
    """
    if not retries or verdict.succeeded or verdict.cause in _FINAL:
        return ""
    before = count_failures(store, verdict.job_id, verdict.attempt, key)
    if before >= retries:
        return ""
    return f"attempt {verdict.attempt} failed: {_reason(verdict)}; trying again (retry {before + 1} of {retries})"


def note_failure(store: Store, verdict: Outcome, key: bytes, *, clock: Callable[[], float] = time.time) -> bool:
    """Write into the Note of an attempt that it failed: without that, it would not count. Return True."""
    with contextlib.suppress(KeyMissingError, IntegrityError):
        note = notes.read(store, verdict.job_id, verdict.attempt, key)
        logs = [asdict(replace(log, blocks=())) for log in verdict.logs[:_MOST_LOGS]]
        details = {**note.details, FAILED: _reason(verdict), "ended": clock(), LOGS: logs}
        store.put(note.key, replace(note, details=details).to_bytes(key))
    return True


def _reason(verdict: Outcome) -> str:
    kind, message = verdict.error.get("type", ""), str(verdict.error.get("message", verdict.cause))
    return f"{kind}: {message}" if kind else message

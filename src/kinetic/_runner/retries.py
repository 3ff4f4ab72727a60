"""Retries: whether a job that failed is tried again, as a new attempt under the same id; the failed one keeps its log.

The Note of an attempt that failed says so, before the next one begins: that is how failures are told from attempts
whose machine was taken away, which cost no retry.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, replace

from kinetic._stores.protocol import Store
from kinetic._wire import note as notes
from kinetic._wire.note import LOGS
from kinetic._wire.outcome import Outcome
from kinetic.errors import IntegrityError, KeyMissingError

FAILED = "failed"  # a detail of a Note: how the attempt failed, where another one follows
_MOST_LOGS = 256  # hosts whose logs a Note, a page of 64 KiB, has the digests of
# Whoever stopped it wants no more of it. A value that cannot be pickled, or more memory than was asked for, would be so
# the next time as well.
_FINAL = frozenset({"memory", "serialization", "stopped"})


def failures(store: Store, job_id: str, attempt: int, key: bytes) -> int:
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
    before = failures(store, verdict.job_id, verdict.attempt, key)
    if before >= retries:
        return ""
    return f"attempt {verdict.attempt} failed: {_reason(verdict)}; trying again (retry {before + 1} of {retries})"


def write_down(store: Store, verdict: Outcome, key: bytes, *, clock: Callable[[], float] = time.time) -> bool:
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

"""Claiming an attempt at a job, which is creating its Note; and whether there is still a job to claim."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TypeVar

from kinetic._stores.protocol import Store, put_file
from kinetic._wire import documents, keys, outcomes
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import FAILED, LOGS_DETAIL, AttemptNote, Outcome
from kinetic._wire.records import HISTORY
from kinetic.errors import (
    CredentialsError,
    IntegrityError,
    KeyMissingError,
    KineticError,
    StoreError,
    StoreUnreachableError,
)

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
                if outcomes.read_note(store, note.job_id, attempt, key).details.get("machine_id", machine) != machine:
                    return None
    raise KineticError(f"{note.job_id} has used up {_ATTEMPTS} attempts", code="attempts")


def was_removed(store: Store, job_id: str, lent: AbstractContextManager[bytes]) -> bool:
    """Return whether somebody removed a job, as its sealed page in the history says.

    Args:
        store: Where the job lies.
        job_id: The job.
        lent: Lends its key, if there is such a page.
    """
    at = keys.history(job_id)
    if store.size(at) is None:
        return False
    with contextlib.suppress(KeyMissingError, IntegrityError, OSError), lent as key:
        return bool(documents.open_page(HISTORY, store, at, key).get("resource_removed"))
    return False


FAILURE_DETAIL = "failed"  # a detail of a Note: how the attempt failed, where another one follows
_MOST_LOGS = 256  # hosts whose logs a Note, a page of 64 KiB, has the digests of
# Whoever stopped it wants no more of it. A value that cannot be pickled, or more memory than was asked for, would be so
# the next time as well.
_FINAL = frozenset({"memory", "serialization", "stopped"})


def count_failures(store: Store, job_id: str, attempt: int, key: bytes) -> int:
    """Count the attempts before this one that failed; a Note that cannot be verified counts: retries cost money."""
    count = 0
    for number in range(attempt):
        try:
            count += FAILURE_DETAIL in outcomes.read_note(store, job_id, number, key).details
        except KeyMissingError:
            continue
        except IntegrityError:
            count += 1
    return count


def retry_reason(store: Store, verdict: Outcome, retries: int, key: bytes) -> str:
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
        note = outcomes.read_note(store, verdict.job_id, verdict.attempt, key)
        logs = [asdict(replace(log, blocks=())) for log in verdict.logs[:_MOST_LOGS]]
        details = {**note.details, FAILURE_DETAIL: _reason(verdict), "ended": clock(), LOGS_DETAIL: logs}
        store.put(note.key, replace(note, details=details).to_bytes(key))
    return True


def _reason(verdict: Outcome) -> str:
    kind, message = verdict.error.get("type", ""), str(verdict.error.get("message", verdict.cause))
    return f"{kind}: {message}" if kind else message


RESERVE_BYTES = 65_536  # a page with a long traceback; traceback texts are cut to fit
_TRIES = 3


class DiskReserve:
    """Space on the store's disk, so that a full disk can still be told; a file without a name, for nobody to replace.

    It is gone with this process.

    Raises:
        StoreError: The disk is full already.
    """

    def __init__(self, store: Store) -> None:
        self._descriptor = -1 if store.local is None else store.local.reserve(RESERVE_BYTES)

    def release(self) -> None:
        """Give the space back."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def seal_outcome(
    store: Store,
    verdict: Outcome,
    key: bytes,
    *,
    body: Path | None = None,
    spare: DiskReserve | None = None,
    mark: str = "",
) -> bool:
    """Create the Outcome of a job, and the mark by which a batch sees it in a listing.

    Args:
        store: Where.
        verdict: What it says.
        key: The job's key.
        body: The complete file with the pickled value, on the store's file system if possible; it is consumed, but not
            before the store has it. Whoever was told of a store that is out of reach may try again, also when only the
            mark is missing.
        spare: Space for a verdict without a body.
        mark: Stem of the mark's key, for a batch's child. Whoever looks and finds an Outcome without one, makes it.

    Returns:
        True when the Outcome in the store is this one, False when another verdict was there first.
    """
    verdict, created = _create_outcome(store, verdict, key, body, spare)
    if created and mark:
        step("supervisor:unmarked")
        store.put(documents.sealed_name(mark, verdict.status, key), b"")
    return created


def _create_outcome(
    store: Store, verdict: Outcome, key: bytes, body: Path | None, spare: DiskReserve | None
) -> tuple[Outcome, bool]:
    if verdict.body_length and body is not None:
        try:
            return verdict, _with_body(store, verdict, key, body)
        except (OSError, StoreError) as error:
            if not _is_full(error):
                raise
            verdict = _does_not_fit(verdict, error)
    verdict = replace(verdict, body_length=0, body_sha256="")
    page = verdict.footer(key)
    if spare is not None:
        spare.release()
    return verdict, _create(store, keys.result(verdict.job_id), page)


def _with_body(store: Store, verdict: Outcome, key: bytes, body: Path) -> bool:
    page = verdict.footer(key)
    try:
        with body.open("r+b") as file:
            file.truncate(verdict.body_length)  # a supervisor that died here may have appended a page already
            file.seek(verdict.body_length)
            file.write(page)
    except FileNotFoundError:
        if store.size(keys.result(verdict.job_id)) is None:
            raise
        return _is_ours(store, verdict, page)  # an earlier try handed it over, and failed after that
    step("supervisor:page-appended")
    return put_file(store, keys.result(verdict.job_id), body, if_absent=True) or _is_ours(store, verdict, page)


def _is_full(error: Exception) -> bool:
    return getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT} or getattr(error, "code", "") == "store-full"


def _does_not_fit(verdict: Outcome, error: Exception) -> Outcome:
    """Turn a verdict whose body found no place into one that says so; an exception keeps its words."""
    error = error.__cause__ if isinstance(error.__cause__, OSError) else error  # the system's own words
    if not verdict.succeeded:
        return replace(verdict, error={**verdict.error, "not_delivered": f"it does not fit on the disk: {error}"})
    message = f"the value does not fit on the disk: {error}"
    return replace(verdict, status=FAILED, cause="disk-full", error={"message": message}, value_type="")


def _create(store: Store, key: str, page: bytes) -> bool:
    for _ in range(_TRIES):
        if store.put(key, page, if_absent=True):
            return True
        with contextlib.suppress(KeyMissingError):  # removed between the two: try again
            return store.get(key) == page
    return False


def _is_ours(store: Store, verdict: Outcome, page: bytes) -> bool:
    """Say whether the Outcome that is there is this very one: our own earlier try whose answer was lost."""
    key = keys.result(verdict.job_id)
    with contextlib.suppress(KeyMissingError):
        size = store.size(key)
        return size == verdict.body_length + len(page) and store.get(key, start=verdict.body_length) == page
    return False


T = TypeVar("T")

TRANSIENT_ERRORS = (StoreUnreachableError, CredentialsError)  # what a complete value waits for

FINISHED = "finished"  # what is said of a job begins so whose function has returned, and whose value waits
HOUR = 3600.0  # longer than the outages that services of this kind write reports about
FOREVER = float("inf")  # a value in a pod is worth a machine until somebody says otherwise: a deadline, or a cancel
_LONGEST_PAUSE = 15.0


def waiting_message(error: Exception) -> str:
    """Say what a job waits for that has finished, and whose value the store does not take: one line."""
    what = "credentials" if isinstance(error, CredentialsError) else "its store"
    words = ": ".join(filter(None, (error.what, error.why))) if isinstance(error, KineticError) else str(error)
    return f"{FINISHED}; waiting for {what}: {' '.join(words.split())}"


def keep_trying(
    do: Callable[[], T],
    passes: type[Exception] | tuple[type[Exception], ...],
    *,
    wait: Callable[[float], bool],
    say: Callable[[Exception], object],
    seconds: float = HOUR,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Do something with a store, and again while it fails in a way that passes.

    Args:
        do: What; doing it twice must be harmless.
        passes: The exceptions that may be gone later; any other is raised at once.
        wait: Waits some seconds; True when there is no use in waiting any longer.
        say: Is told of each failure that is waited for.
        seconds: After which the last failure is raised.
        clock: Gives seconds; tests bring their own.
    """
    limit, pause = clock() + seconds, 1.0
    while True:
        try:
            return do()
        except passes as error:
            if clock() > limit:
                raise
            say(error)
            if wait(pause):
                raise
        pause = min(2 * pause, _LONGEST_PAUSE)

"""What a supervisor writes about an attempt: its claim, a failure that is retried, and the one Outcome of the job.

A store that is out of reach, or rejects our credentials, is retried: a computed value waits for it.
"""

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

from kinetic._stores.protocol import Store, put_file, put_hint
from kinetic._wire import documents, keys, outcomes
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import FAILED, LOGS_DETAIL, AttemptNote, Outcome
from kinetic.errors import (
    CredentialsError,
    IntegrityError,
    KeyMissingError,
    KineticError,
    StoreError,
    StoreUnreachableError,
)

T = TypeVar("T")

FAILURE_DETAIL = "failed"  # a detail of a Note: how the attempt failed, if another one follows
RESERVE_BYTES = 65_536  # a page with a long traceback; traceback texts are cut to fit
TRANSIENT_ERRORS = (StoreUnreachableError, CredentialsError)  # what a complete value waits for
FINISHED = "finished"  # how the message begins for a job whose function has returned and whose value waits
HOUR = 3600.0  # longer than the outages that services of this kind write reports about
FOREVER = float("inf")  # a value in a pod is worth a machine until a deadline or a cancel says otherwise

_ATTEMPTS = 1000
_REASON = 300  # characters of why an attempt is followed by another one: its traceback is in its log
_MOST_LOGS = 256  # hosts whose logs a Note, a page of 64 KiB, has the digests of
# The user does not want a stopped job again. A value that cannot be pickled, or a lack of memory, would recur.
_FINAL = frozenset({"memory", "serialization", "stopped"})
_TRIES = 3
_LONGEST_PAUSE = 15.0


def claim(store: Store, note: AttemptNote, key: bytes) -> AttemptNote | None:
    """Create the Note of the next attempt, which makes the attempt ours.

    Returns None if another machine (``machine_id`` in its details) has begun: two queues got the same child of a batch.
    """
    machine = note.details.get("machine_id")
    for attempt in range(_ATTEMPTS):
        ours = replace(note, attempt=attempt)
        # A hint: of what is claimed when the power is cut, the row of the queue says that it may have begun.
        if put_hint(store, ours.key, ours.to_bytes(key)):
            return ours
        if machine:
            with contextlib.suppress(KeyMissingError, IntegrityError):
                if outcomes.read_note(store, note.job_id, attempt, key).details.get("machine_id", machine) != machine:
                    return None
    raise KineticError(f"{note.job_id} has used up {_ATTEMPTS} attempts", code="attempts")


def newest(store: Store, job_id: str, key: bytes) -> AttemptNote | None:
    """Return the note of the newest attempt, of those that the job's key has sealed; None where there is none."""
    for number, _ in reversed(keys.numbered(store.entries(keys.attempts(job_id)))):
        with contextlib.suppress(KeyMissingError, IntegrityError):
            return outcomes.read_note(store, job_id, number, key)  # its seal is bound to its number
    return None


def was_removed(store: Store, job_id: str, temporary_key: AbstractContextManager[bytes]) -> bool:
    """Return whether a job was removed, as its sealed page in the history says."""
    at = keys.history(job_id)
    if store.size(at) is None:
        return False
    from kinetic._wire.records import HISTORY  # 4 ms; most jobs have no history when they begin

    with contextlib.suppress(KeyMissingError, IntegrityError, OSError), temporary_key as key:
        return bool(documents.open_page(HISTORY, store, at, key).get("resource_removed"))
    return False


# ------------------------------------------------------------------------------------------------------------- retries


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
    """Return a line for the log of a failed attempt that is followed by another one; "" if the verdict is final."""
    if not retries or verdict.succeeded or verdict.cause in _FINAL:
        return ""
    before = count_failures(store, verdict.job_id, verdict.attempt, key)
    if before >= retries:
        return ""
    return f"attempt {verdict.attempt} failed: {_failure(verdict)}; trying again (retry {before + 1} of {retries})"


def note_failure(store: Store, verdict: Outcome, key: bytes, *, clock: Callable[[], float] = time.time) -> bool:
    """Write into the Note of an attempt that it failed: without that, it would not count. Return True."""
    with contextlib.suppress(KeyMissingError, IntegrityError):
        note = outcomes.read_note(store, verdict.job_id, verdict.attempt, key)
        logs = [asdict(replace(log, blocks=())) for log in verdict.logs[:_MOST_LOGS]]
        details = {**note.details, FAILURE_DETAIL: _failure(verdict), "ended": clock(), LOGS_DETAIL: logs}
        store.put(note.key, replace(note, details=details).to_bytes(key))
    return True


def _failure(verdict: Outcome) -> str:
    kind, text = verdict.error.get("type", ""), str(verdict.error.get("message", verdict.cause))
    message = (text.splitlines() or [""])[0][:_REASON]
    return f"{kind}: {message}".removesuffix(": ") if kind else message


# ------------------------------------------------------------------------------------------------------------- outcome


class DiskReserve:
    """Space on the disk of a store, in a nameless file, so that "the disk is full" can still be written down."""

    def __init__(self) -> None:
        self._descriptor, self._url = -1, ""

    def hold(self, store: Store) -> None:
        """Reserve the space, unless it is held already since an earlier job."""
        if store.local is not None and (self._descriptor < 0 or self._url != store.url):
            self.release()
            self._descriptor, self._url = store.local.reserve(RESERVE_BYTES), store.url

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
    """Create the Outcome of a job, whole or not at all, and the mark by which a batch sees it in a listing.

    The file ``body`` with the pickled value is consumed, but not before the store has it: after an error the call can
    be repeated, also when only the mark is missing. Returns False when another verdict was there first.
    """
    verdict, created = _create_outcome(store, verdict, key, body, spare)
    if created and mark:
        step("supervisor:unmarked")
        put_hint(store, documents.sealed_name(mark, verdict.status, key))  # who misses it reads the Outcome
    return created


def _create_outcome(
    store: Store, verdict: Outcome, key: bytes, body: Path | None, spare: DiskReserve | None
) -> tuple[Outcome, bool]:
    if verdict.body_length and body is not None:
        try:
            return verdict, _with_body(store, verdict, key, body)
        except (OSError, StoreError) as error:
            if not _is_disk_full(error):
                raise
            verdict = _without_body(verdict, error)
    verdict = replace(verdict, body_length=0, body_sha256="")
    page = verdict.footer(key)
    if spare is not None:
        spare.release()
    return verdict, _put_page(store, keys.result(verdict.job_id), page)


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
        return _is_ours(store, verdict, page)  # an earlier try handed the file over, and failed after that
    step("supervisor:page-appended")
    return put_file(store, keys.result(verdict.job_id), body, if_absent=True) or _is_ours(store, verdict, page)


def _is_disk_full(error: Exception) -> bool:
    return getattr(error, "errno", None) in {errno.ENOSPC, errno.EDQUOT} or getattr(error, "code", "") == "store-full"


def _without_body(verdict: Outcome, error: Exception) -> Outcome:
    """Return a verdict which says that its body does not fit on the disk; an exception keeps its message."""
    error = error.__cause__ if isinstance(error.__cause__, OSError) else error  # the system's own words
    if not verdict.succeeded:
        return replace(verdict, error={**verdict.error, "not_delivered": f"it does not fit on the disk: {error}"})
    told = {"message": f"the value does not fit on the disk: {error}", "next": outcomes.MAKE_ROOM}
    return replace(verdict, status=FAILED, cause="disk-full", error=told, value_type="")


def _put_page(store: Store, key: str, page: bytes) -> bool:
    for _ in range(_TRIES):
        if store.put(key, page, if_absent=True):
            return True
        with contextlib.suppress(KeyMissingError):  # removed between the two: try again
            return store.get(key) == page
    return False


def _is_ours(store: Store, verdict: Outcome, page: bytes) -> bool:
    """Return whether the Outcome in the store is this very one: our own earlier try whose answer was lost."""
    key = keys.result(verdict.job_id)
    with contextlib.suppress(KeyMissingError):
        size = store.size(key)
        return size == verdict.body_length + len(page) and store.get(key, start=verdict.body_length) == page
    return False


# ------------------------------------------------------------------------------------------------------------ patience


def waiting_message(error: Exception) -> str:
    """Return one line about what a finished job waits for, if the store does not take its value."""
    what = "credentials" if isinstance(error, CredentialsError) else "its store"
    return f"{FINISHED}; waiting for {what}: {on_one_line(error)}"


def on_one_line(error: Exception) -> str:
    """Return what happened and why, without what to do next."""
    words = ": ".join(filter(None, (error.what, error.why))) if isinstance(error, KineticError) else str(error)
    return " ".join(words.split())


def keep_trying(
    do: Callable[[], T],
    transient: type[Exception] | tuple[type[Exception], ...],
    *,
    wait: Callable[[float], bool],
    say: Callable[[Exception], object],
    seconds: float = HOUR,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Do something harmless to repeat with a store, again while it fails with a transient error, but not for ever.

    ``wait`` returns True when there is no use in waiting any longer; ``say`` gets each error that is waited for.
    """
    limit, pause = clock() + seconds, 1.0
    while True:
        try:
            return do()
        except transient as error:
            if clock() > limit:
                raise
            say(error)
            if wait(pause):
                raise
        pause = min(2 * pause, _LONGEST_PAUSE)

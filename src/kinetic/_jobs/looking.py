"""Looking at a job once: both witnesses, in the right order."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kinetic._backends.protocol import Sighting
from kinetic._jobs import logs, places, reading, tombstones, verdicts
from kinetic._wire import keys
from kinetic._wire import note as notes
from kinetic._wire import outcome as outcomes
from kinetic._wire.note import Note
from kinetic._wire.outcome import Outcome
from kinetic.errors import IntegrityError, KeyMissingError, KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, Diagnosis
    from kinetic._jobs.handle import JobHandle
    from kinetic._stores.protocol import Store

_NOTES = 10  # so many are tried: others than ours may have put something there

_CODES = {"": "lost", "unknown": "lost", "failed": "job-failed"}  # of a cluster, where errors have other ones
_LOG_BYTES = 8192
_LOG_LINES = 20  # of the log of a job whose runner was killed: as many as a runner puts into its verdict


@dataclass(frozen=True)
class Look:
    """What was seen of a job at one moment.

    Attributes:
        status: The verdict.
        outcome: From the store, or None.
        sighting: From the backend, or None.
        past: The job's page of the history, or None where kinetic did not remove it.
    """

    status: JobStatus
    outcome: Outcome | None = None
    sighting: Sighting | None = None
    past: dict[str, Any] | None = None


def past_of(handle: JobHandle) -> dict[str, Any] | None:
    """Return the page of the history that a handle was made from, or that its own collection wrote; else None."""
    return handle._past  # noqa: SLF001 - one room


def look(handle: JobHandle) -> Look:
    """Look at a job. The Outcome first: a job that has one needs no backend; and one that is history needs nothing."""
    if (past := past_of(handle)) is not None:
        return Look(JobStatus.NOT_FOUND, past=past)
    backend = places.backend_of(handle)
    store = places.store_of(handle)
    outcome = reading.verdict_of(handle)
    if outcome is not None:
        past = tombstones.seen(store, handle.job_id)
        removed = past is not None
        return Look(verdicts.verdict(outcome=outcome, sighting=None, removed=removed), outcome, past=past)
    elsewhere = bool(handle.host) and handle.host != places.machine()
    sighting = None if elsewhere else backend.observe([handle.job_id]).get(handle.job_id)
    if sighting is not None and not sighting.status.is_final:
        sighting = with_its_claim(handle, backend, sighting)
        return Look(verdicts.verdict(outcome=None, sighting=sighting), None, sighting)
    outcome = reading.verdict_of(handle)  # the second look: the verdict may have come in between
    if outcome is None and sighting is not None and sighting.status is JobStatus.FAILED:
        sighting, found = _with_a_reason(backend, sighting)
        outcome = _unwritten(backend, store, sighting, found) if sighting.reason else None
    past = tombstones.seen(store, handle.job_id)
    status = verdicts.verdict(
        outcome=outcome,
        sighting=sighting,
        removed=past is not None,
        **begun(handle, elsewhere=elsewhere),
    )
    return Look(status, outcome, sighting, past)


def with_its_claim(handle: JobHandle, backend: Backend, sighting: Sighting) -> Sighting:
    """Say that a job runs whose attempt is claimed: a cluster counts the pods that are ready a second later.

    A claim outlives a machine that lost its power, so the pod that claimed must still be there.
    """
    if backend.is_here or sighting.status is not JobStatus.PENDING:
        return sighting
    note = last_note(handle)
    if note is None or "ended" in note.details:
        return sighting
    try:
        pod = backend.debug_addresses(sighting.name, hosts=[0]).get(0)
    except KineticError:  # we may not look at pods
        return sighting
    # The note has the pod's hostname; Kubernetes appends six characters to it in the names of indexed pods.
    runs = pod is not None and pod.pod.startswith(str(note.details.get("pod") or note.machine))
    return replace(sighting, status=JobStatus.RUNNING, reason="", started=note.started) if runs else sighting


def begun(handle: JobHandle, *, elsewhere: bool) -> dict[str, bool]:
    """Return whether a job began, and whether it did so on another machine than this: its last Note knows.

    Args:
        handle: The job.
        elsewhere: Whether it was launched on another machine; a batch's child may have been launched on both.
    """
    note = last_note(handle)
    if note is not None and not elsewhere:
        elsewhere = note.details.get("machine_id") not in {None, "", places.machine()}
    return {"attempted": note is not None, "elsewhere": elsewhere}


def last_note(handle: JobHandle) -> Note | None:
    """Return what is known of a job's last attempt; None while none began. What cannot be verified does not count."""
    store = places.store_of(handle)
    noted = keys.numbered(store.entries(keys.attempts(handle.job_id)))
    key = places.key_to_read(handle) if noted else None
    for attempt, _ in reversed(noted[-_NOTES:]):
        with contextlib.suppress(KeyMissingError, IntegrityError):
            return notes.read(store, handle.job_id, attempt, key)
    return None


def _with_a_reason(backend: Backend, sighting: Sighting) -> tuple[Sighting, Diagnosis | None]:
    """Ask the place why a job failed that left no verdict."""
    found = None
    if not backend.is_here:
        with contextlib.suppress(KineticError):
            found = backend.explain(sighting.name)
    if found is None:
        return sighting, None
    words = found.what.removeprefix(f"{sighting.name}: ") + (f" ({found.why})" if found.why else "")
    return replace(sighting, reason=words), found


def _unwritten(backend: Backend, store: Store, sighting: Sighting, found: Diagnosis | None) -> Outcome:
    """Return the verdict of a job that left none: its store could not take one, or its runner was killed.

    In which phase it was is not known; its last lines are, as long as the place has them.
    """
    job_id, log = sighting.name, ""
    with contextlib.suppress(KineticError):
        attempt = logs.noted(store, job_id) if sighting.attempt is None else sighting.attempt
        log = logs.tail(logs.keep_what_is_left(backend, store, job_id, attempt=attempt), _LOG_LINES, most=_LOG_BYTES)
    error = {"message": sighting.reason, "next": found.next if found else "", "log": log}
    return Outcome(
        job_id=job_id,
        status=outcomes.FAILED,
        attempt=sighting.attempt or 0,
        cause=_CODES.get(found.code, found.code) if found is not None else "lost",
        phase="",
        error={name: text for name, text in error.items() if text},
        started=sighting.started,
        ended=sighting.ended,
        witness="observer",
    )

"""Looking at a job once: both witnesses, in the right order."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kinetic._backends.protocol import Sighting
from kinetic._jobs import logs, places, reading, tombstones, verdicts
from kinetic._wire import keys
from kinetic._wire import outcome as outcomes
from kinetic._wire.note import Note
from kinetic._wire.outcome import Outcome
from kinetic.errors import IntegrityError, KeyMissingError, KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, Diagnosis
    from kinetic._jobs.handle import JobHandle
    from kinetic._stores.protocol import Store

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
    key = None if places.trusts_the_store() else places.key_of(handle.job_id, handle.key_id or "")
    outcome = reading.page_of(store, handle.job_id, key)
    if outcome is not None:
        past = tombstones.seen(store, handle.job_id)
        removed = past is not None
        return Look(verdicts.verdict(outcome=outcome, sighting=None, removed=removed), outcome, past=past)
    elsewhere = bool(handle.host) and handle.host != places.machine()
    sighting = None if elsewhere else backend.observe([handle.job_id]).get(handle.job_id)
    if sighting is not None and not sighting.status.is_final:
        sighting = with_its_claim(backend, store, sighting)
        return Look(verdicts.verdict(outcome=None, sighting=sighting), None, sighting)
    outcome = reading.page_of(store, handle.job_id, key)  # the second look: the verdict may have come in between
    if outcome is None and sighting is not None and sighting.status is JobStatus.FAILED:
        sighting, found = _with_a_reason(backend, sighting)
        outcome = _unwritten(backend, store, sighting, found) if sighting.reason else None
    past = tombstones.seen(store, handle.job_id)
    status = verdicts.verdict(
        outcome=outcome,
        sighting=sighting,
        removed=past is not None,
        **begun(store, handle.job_id, elsewhere=elsewhere),
    )
    return Look(status, outcome, sighting, past)


def with_its_claim(backend: Backend, store: Store, sighting: Sighting) -> Sighting:
    """Say that a job runs whose attempt is claimed: a cluster counts the pods that are ready a second later.

    A claim outlives a machine that lost its power, so the pod that claimed must still be there.
    """
    if backend.is_here or sighting.status is not JobStatus.PENDING:
        return sighting
    note = _newest_note(store, sighting.name)
    if note is None or "ended" in note.details:
        return sighting
    try:
        pod = backend.debug_addresses(sighting.name, hosts=[0]).get(0)
    except KineticError:  # we may not look at pods
        return sighting
    # The note has the pod's hostname; Kubernetes appends six characters to it in the names of indexed pods.
    runs = pod is not None and pod.pod.startswith(str(note.details.get("pod") or note.machine))
    return replace(sighting, status=JobStatus.RUNNING, reason="", started=note.started) if runs else sighting


def begun(store: Store, job_id: str, *, elsewhere: bool) -> dict[str, bool]:
    """Say whether a job began, and whether it did so on another machine than this: its last Note knows.

    Args:
        store: Where the job lies.
        job_id: The job.
        elsewhere: Whether it was launched on another machine; a batch's child may have been launched on both.
    """
    noted = _notes(store, job_id)
    if noted and not elsewhere and (note := _newest_note(store, job_id, noted)) is not None:
        elsewhere = note.details.get("machine_id") not in {None, "", places.machine()}
    return {"attempted": bool(noted), "elsewhere": elsewhere}


def _notes(store: Store, job_id: str) -> list[str]:
    return [entry.key for entry in store.entries(keys.attempts(job_id))]


def _newest_note(store: Store, job_id: str, noted: Sequence[str] | None = None) -> Note | None:
    """Return the Note of the last attempt; None where there is none, or none that can be read."""
    noted = _notes(store, job_id) if noted is None else noted
    if not noted:
        return None
    with contextlib.suppress(KeyMissingError, IntegrityError):
        return Note.from_bytes(store.get(max(noted, key=_number)))
    return None


def _number(key: str) -> int:
    """Return which attempt a Note's key is about; 10 comes behind 9."""
    return int(key.rpartition("/")[2])


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

"""Removing and cancelling: what goes, in which order, and what remains."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from kinetic._jobs import describing, history, places, tombstones
from kinetic._jobs.status import Snapshot, observe
from kinetic._runner import sealing
from kinetic._wire import handles, keys, outputs
from kinetic._wire import seal as seals
from kinetic._wire.outcome import CANCELLED, Outcome
from kinetic._wire.steps import step
from kinetic.errors import BackendError, IntegrityError, KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from kinetic._backends.protocol import Sighting
    from kinetic._stores.protocol import Entry, Store
    from kinetic._wire.handles import JobRecord


def remove(job: JobRecord, seen: Snapshot, *, resource: bool, artifacts: bool, wait: float) -> None:
    """Remove the backend's resource, the stored artifacts, or both; a page of the history remains.

    The page comes first: if we die in between, the job is known as removed, and removing again finishes it. Of a job
    that was collected before, its log goes as well. Output directories are never touched.
    """
    places.backend_of(job)  # raises before anything is changed
    store = places.store_of(job)
    if seen.status is not JobStatus.NOT_FOUND or store.size(keys.record(job.job_id)) is not None:
        page = _history(job, seen) | {"artifacts_removed": artifacts, "resource_removed": resource}
        tombstones.write(store, page, places.key_to_seal(job))
        mark_as_removed(job, store)
    if artifacts:
        history.forget(store, job.job_id)
    step("client:tombstone-written")
    _carry_away(job, seen, resource=resource, artifacts=artifacts, wait=wait)


def mark_as_removed(job: JobRecord, store: Store) -> None:
    """Say in the listing of its batch, if it has one, that a job was removed."""
    if mark := mark_of(job):
        store.put(seals.mark(mark, "removed", places.key_to_seal(job)), b"")


def _carry_away(job: JobRecord, seen: Snapshot, *, resource: bool, artifacts: bool, wait: float) -> None:
    """Remove what the history says is removed."""
    backend, store = places.backend_of(job), places.store_of(job)
    if resource:
        ended = seen.outcome is not None and seen.outcome.witness != "client"  # then its worker is gone already
        if (not ended or not artifacts) and not backend.stop([job.job_id], wait=wait):
            _log().warning("%s has not ended within %g s; it was told to", job.job_id, wait)
        backend.remove([job.job_id])
        if not seen.status.is_final:
            _tell_of_another_host(job)
    if artifacts:
        store.delete(keys.job(job.job_id))
        _drop_empty_outputs(job)
        step("client:artifacts-deleted")


def _drop_empty_outputs(job: JobRecord) -> None:
    """Remove the output folder that was made for a job that wrote nothing into it; what holds a file stays."""
    folder = job.output_dir or ""
    if folder.startswith("/") and folder.endswith(f"/{keys.outputs(job.job_id).rstrip('/')}"):
        with contextlib.suppress(OSError):
            os.rmdir(outputs.checkpoint_dir(folder))
        with contextlib.suppress(OSError):
            os.rmdir(folder)


def mark_of(job: JobRecord) -> str:
    """Return the stem of the keys by which a batch sees in a listing what became of its child; "" without a batch."""
    if not job.group_id or job.group_index is None:
        return ""
    return keys.mark(job.group_id, job.group_index, job.group_attempt or 0)


def after_collection(job: JobRecord, seen: Snapshot, *, wait: float) -> dict[str, Any] | None:
    """Remove a job whose value is in memory, and keep its log and its record as history.

    Returns:
        Its page of the history; None where it could not be removed: that is a warning, never an error.
    """
    step("client:collected")
    try:
        page = collected_page(job, seen)
        mark_as_removed(job, places.store_of(job))
        step("client:tombstone-written")
        _carry_away(job, seen, resource=True, artifacts=True, wait=wait)
    except (KineticError, OSError) as error:
        _log().warning("%s was collected, and could not be removed: %s", job.job_id, error)
        return None
    return page


def collected_page(job: JobRecord, seen: Snapshot) -> dict[str, Any]:
    """Write logs and page of a collected job into the history, and return the page."""
    store = places.store_of(job)
    inside = list(store.entries(keys.job(job.job_id)))
    logs = history.keep_logs(job, inside, seen.outcome)
    step("client:log-kept")
    fields = _history(job, seen, inside)
    fields |= {"collected": time.time(), "artifacts_removed": True, "resource_removed": True, "logs": logs}
    if tombstones.write(store, fields, places.key_to_seal(job)):
        return fields
    before = tombstones.seen(store, job.job_id)
    if before is not None and tombstones.is_collected(before):  # by another process, which saw more of it
        return before
    tombstones.write(store, fields, places.key_to_seal(job), again=True)  # it was cleaned up in part before
    return fields


def cancel(job: JobRecord, *, wait: float) -> bool:
    """Cancel a job: first the verdict, then the processes.

    Returns:
        False when the job had ended already; its verdict stays.
    """
    store = places.store_of(job)
    try:
        seen = observe(job)
    except IntegrityError:
        return _cancel_unread(job, wait=wait)
    if seen.outcome is not None and seen.outcome.status == CANCELLED and tombstones.seen(store, job.job_id) is None:
        _carry_out(job, seen.outcome, wait=wait)  # whoever cancelled it died before it was done
        return True
    if seen.status.is_final:
        return False
    verdict = outcome_of(job, sighting=seen.sighting)
    if not seal(job, store, verdict):
        return False
    step("canceller:sealed")
    _carry_out(job, verdict, wait=wait)
    return True


def outcome_of(
    job: JobRecord,
    status: str = CANCELLED,
    cause: str = "cancelled",
    *,
    message: str = "",
    sighting: Sighting | None = None,
) -> Outcome:
    """Return the outcome that a client gives to a job that has none: it is cancelled, or nothing is left of it."""
    return Outcome(
        job_id=job.job_id,
        status=status,
        attempt=sighting.attempt if sighting and sighting.attempt is not None else -1,
        cause=cause,
        phase="",
        error={"message": message} if message else {},
        started=sighting.started if sighting else None,
        ended=time.time(),
        witness="client",
        key_id=job.key_id or "",
    )


def seal(job: JobRecord, store: Store, outcome: Outcome) -> bool:
    """Create the outcome of a job, and the mark that its batch sees; False when it has another outcome already."""
    return sealing.seal(store, outcome, places.key_to_seal(job), mark=mark_of(job))


def _cancel_unread(job: JobRecord, *, wait: float) -> bool:
    """Cancel a job whose result is damaged, if it runs all the same; else it has ended."""
    sighting = places.backend_of(job).observe([job.job_id]).get(job.job_id)
    if sighting is None or sighting.status.is_final:
        return False
    _carry_out(job, outcome_of(job, sighting=sighting), wait=wait)
    return True


def why_not_cancelled(job: JobRecord) -> str:
    """Say why there was nothing to cancel, once ``cancel`` has said that there was not."""
    try:
        seen = observe(job)
    except IntegrityError as error:
        return f"{job.job_id} has ended, and {error.what}; kinetic jobs cleanup {job.job_id} removes it"
    if tombstones.is_collected(seen.past):
        ended = f"{job.job_id} had ended before it could be cancelled"
        return f"{ended}: it was {(seen.past or {}).get('status')}, and was collected afterwards"
    if seen.status is not JobStatus.NOT_FOUND:
        return f"{job.job_id} had ended before it could be cancelled: it is {seen.status.value}"
    if seen.outcome is not None and seen.outcome.status == CANCELLED:
        return f"{job.job_id} was cancelled before"
    if seen.outcome is not None:
        ended = f"{job.job_id} had ended before it could be cancelled"
        return f"{ended}: it was {seen.outcome.status.upper()}, and was removed afterwards"
    was_removed = tombstones.seen(places.store_of(job), job.job_id) is not None
    return f"{job.job_id} was {'removed before' if was_removed else 'never launched'}: there is nothing to cancel"


def _carry_out(job: JobRecord, verdict: Outcome, *, wait: float) -> None:
    """End the processes of a cancelled job and forget it; its artifacts stay."""
    store, backend = places.store_of(job), places.backend_of(job)
    if not backend.stop([job.job_id], wait=wait):
        raise BackendError(
            f"{job.job_id} is cancelled, but its processes have not ended within {wait:g} s",
            why="they were told to, and are killed 5 s after that",
            next=f"kinetic jobs status {job.job_id}",
            code="still-ending",
        )
    step("canceller:stopped")
    page = _history(job, Snapshot(JobStatus.NOT_FOUND, verdict))
    tombstones.write(store, page, places.key_to_seal(job))
    step("canceller:tombstone-written")
    backend.remove([job.job_id])
    _tell_of_another_host(job)


def _tell_of_another_host(job: JobRecord) -> None:
    """Say that a job elsewhere ends a little later: only its own keeper can end it, and looks once a minute."""
    from kinetic import _output as output

    if not places.can_be_seen(job):
        output.say(f"{job.job_id} runs on {describing.place_of(job)}; its processes there end within a minute")


def _log() -> logging.Logger:
    import logging  # 5 ms; only when there is something to tell

    return logging.getLogger("kinetic.jobs")


def _emulation(job: JobRecord) -> str | None:
    with contextlib.suppress(KineticError):
        return describing.emulation_of(job)
    return None


def _history(job: JobRecord, seen: Snapshot, inside: Sequence[Entry] | None = None) -> dict[str, Any]:
    """Return what is remembered of a job: no payload, no secret."""
    outcome, fields = seen.outcome, handles.plain(job)
    status = "CANCELLED" if outcome is not None and outcome.status == CANCELLED else seen.status.value
    reason = ""
    if outcome is not None and not outcome.succeeded:
        kind = outcome.error.get("type")
        reason = f"{kind}: {outcome.error.get('message', '')}" if kind else str(outcome.error.get("message", ""))
    if inside is None:
        with contextlib.suppress(KineticError):
            inside = list(places.store_of(job).entries(keys.job(job.job_id)))
    recorded = [entry.modified for entry in inside or () if entry.key == keys.record(job.job_id)]
    return {
        **fields,
        "created": recorded[0] if recorded else None,
        "emulation": _emulation(job),
        "status": status,
        "reason": reason.splitlines()[0][:500] if reason else "",
        "started": outcome.started if outcome else None,
        "ended": outcome.ended if outcome else None,
        "attempts": sum(entry.key.startswith(keys.attempts(job.job_id)) for entry in inside or ()),
    }

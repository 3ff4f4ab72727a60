"""Removing and cancelling: what goes, in which order, and what remains."""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kinetic import _output as output
from kinetic._jobs import history, locate, logs
from kinetic._jobs import status as job_status
from kinetic._jobs.logs import GZIP, HISTORY_LOG_BYTES, StoredLog
from kinetic._jobs.status import Snapshot, observe
from kinetic._runner.supervisor import attempts
from kinetic._wire import digests, documents, keys, output_paths, records
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import CANCELLED, Outcome
from kinetic.errors import BackendError, IntegrityError, KeyMissingError, KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    import logging

    from kinetic._backends.protocol import LiveLog, Observation
    from kinetic._stores.protocol import Entry, Store
    from kinetic._wire.records import JobRecord

_BLOCK = 1 << 20
_LEVEL = 1  # 10 MiB in 60 ms; a user waits for the value of this job


def store_history_logs(job: JobRecord, inside: Sequence[Entry], outcome: Outcome | None) -> list[dict[str, Any]]:
    """Write the end of every log of an ended job into the history.

    Args:
        job: The job.
        inside: What the store has of it.
        outcome: Its verdict. The log of a job that left a value is in the store, or it printed nothing: no cluster is
            asked.

    Returns:
        Attempt, host, size and digest of each, for the page, and whether it was changed after the job had ended; [] as
        well where another process removed the job meanwhile.
    """
    store, kept, succeeded = locate.store_of(job), [], outcome is not None and outcome.succeeded
    try:
        for attempt, host, log in _logs_of(job, store, inside, succeeded=succeeded):
            sealed = logs.sealed_digest(job, attempt=attempt, host=host, outcome=outcome)
            checked = logs.checked_log(log, sealed, job.job_id)
            data = _end_of(checked)
            # A job that is being deleted is not kept: only a part of its log may have been read.
            if data and not (history.read_page(store, job.job_id) or {}).get("artifacts_removed"):
                writer = zlib.compressobj(_LEVEL, zlib.DEFLATED, GZIP)
                store.put(keys.history_log(job.job_id, attempt, host), writer.compress(data) + writer.flush())
                found = {"size_bytes": len(data), "sha256": digests.of_bytes(data)}
                changed = isinstance(checked, logs.CheckedLog) and checked.is_changed
                kept.append({"attempt": attempt, "host": host, **found, "changed": changed})
    except KeyMissingError:  # another process collected it, and deletes it
        return []
    return kept


def delete_history_logs(store: Store, job_id: str) -> None:
    """Delete the logs of a collected job; its page stays, without what names them."""
    page = history.read_page(store, job_id)
    if page is None or not history.is_collected(page):
        return
    for found in logs.logs_in_history(page):
        store.delete(keys.history_log(job_id, found["attempt"], found["host"]))
    key = locate.key_for(job_id, page.get("key_id") or "", page.get("store") or "")  # or the user trusts the store
    history.write_page(store, {**page, "collected": None, "logs": []}, key or bytes(documents.KEY_BYTES), again=True)


def _logs_of(
    job: JobRecord, store: Store, inside: Sequence[Entry], *, succeeded: bool
) -> Iterator[tuple[int, int, LiveLog]]:
    """Yield attempt, host and log of all that a job printed; on this machine first where the job wrote it."""
    backend, job_id = locate.backend_of(job), job.job_id
    count = max(1, sum(entry.key.startswith(keys.attempts(job_id)) for entry in inside))
    stored, here = _stored_logs(job_id, inside), set[tuple[int, int]]()
    if backend.is_here:
        expected = [(attempt, host) for attempt in range(count) for host in range(locate.hosts_of(job))]
        for attempt, host in expected:
            live = backend.live_log(job_id, host=host, attempt=attempt)
            if live is not None:
                here.add((attempt, host))
                yield attempt, host, live
        if not {*expected} <= here | stored.keys():  # its supervisor has moved one into the store this moment
            stored = _stored_logs(job_id, store.entries(f"{job_id}/logs/"))
    elif not stored and not succeeded:  # its pod may have been cut off before it sent anything
        with contextlib.suppress(KineticError, OSError):
            live = logs.open_log(backend, store, job_id, attempt=count - 1, host=0)
            if live is not None:
                yield count - 1, 0, live
    for (attempt, host), entries in stored.items():
        if (attempt, host) not in here:
            yield attempt, host, StoredLog(store, keys.logs(job_id, attempt, host), entries)


def _stored_logs(job_id: str, inside: Iterable[Entry]) -> dict[tuple[int, int], list[Entry]]:
    """Group what the store has of a job's logs by attempt and host."""
    found: dict[tuple[int, int], list[Entry]] = defaultdict(list)
    for entry in inside:
        if entry.key.startswith(f"{job_id}/logs/"):
            attempt, host = map(int, entry.key.split("/")[-3:-1])
            found[attempt, host].append(entry)
    return found


def _end_of(log: LiveLog) -> bytes:
    """Read the end of a log, from the start of a line on, below a line that says what is missing."""
    try:
        size = log.size()
        start = max(0, size - HISTORY_LOG_BYTES)
        found = bytearray()
        while start + len(found) < size and (piece := log.read(start + len(found), _BLOCK)):
            found += piece
    finally:
        logs.close(log)
    if start == 0:
        return bytes(found)
    cut = found.find(b"\n", 0, _BLOCK) + 1  # 0 where that line is longer
    return f"kinetic: the first {start + cut} bytes of this log were not kept\n".encode() + found[cut:]


def remove(job: JobRecord, seen: Snapshot, *, resource: bool, artifacts: bool, wait: float) -> None:
    """Remove the backend's resource, the stored artifacts, or both; a page of the history remains.

    The page comes first: if we die in between, the job is known as removed, and removing again finishes it. Of a job
    that was collected before, its log is removed as well. Output directories are never touched.
    """
    locate.backend_of(job)  # raises before anything is changed
    store = locate.store_of(job)
    if seen.status is not JobStatus.NOT_FOUND or store.size(keys.record(job.job_id)) is not None:
        page = _history_page(job, seen) | {"artifacts_removed": artifacts, "resource_removed": resource}
        history.write_page(store, page, locate.key_to_seal(job))
        mark_as_removed(job, store)
    if artifacts:
        delete_history_logs(store, job.job_id)
    step("client:history-written")
    _delete(job, seen, resource=resource, artifacts=artifacts, wait=wait)


def mark_as_removed(job: JobRecord, store: Store) -> None:
    """Set the mark by which a batch sees in a listing that its child was removed."""
    if mark := mark_of(job):
        store.put(documents.sealed_name(mark, "removed", locate.key_to_seal(job)), b"")


def mark_of(job: JobRecord) -> str:
    """Return the stem of the keys by which a batch sees in a listing what became of its child; "" without a batch."""
    if not job.group_id or job.group_index is None:
        return ""
    return keys.mark(job.group_id, job.group_index, job.group_attempt or 0)


def _delete(job: JobRecord, seen: Snapshot, *, resource: bool, artifacts: bool, wait: float) -> None:
    """Remove what the history says is removed."""
    backend, store = locate.backend_of(job), locate.store_of(job)
    if resource:
        ended = seen.outcome is not None and seen.outcome.witness != "client"  # then its worker is gone already
        if (not ended or not artifacts) and not backend.stop([job.job_id], wait=wait):
            _log().warning("%s was asked to end and has not ended within %g s", job.job_id, wait)
        backend.remove([job.job_id])
        if not seen.status.is_final:
            _report_another_host(job)
    if artifacts:
        store.delete(keys.job(job.job_id))
        folder = job.output_dir or ""
        if folder.startswith("/") and folder.endswith(f"/{keys.outputs(job.job_id).rstrip('/')}"):
            for made in (output_paths.checkpoint_dir(folder), folder):  # for a job that wrote nothing into them
                with contextlib.suppress(OSError):  # what holds a file stays
                    os.rmdir(made)
        step("client:artifacts-deleted")


def after_collection(job: JobRecord, seen: Snapshot, *, wait: float) -> dict[str, Any] | None:
    """Remove a job whose value is in memory, and keep its log and its record as history.

    Returns:
        Its page of the history; None where it could not be removed: that is a warning, never an error.
    """
    step("client:collected")
    try:
        page = collected_page(job, seen)
        mark_as_removed(job, locate.store_of(job))
        step("client:history-written")
        _delete(job, seen, resource=True, artifacts=True, wait=wait)
    except (KineticError, OSError) as error:
        _log().warning("%s was collected, and could not be removed: %s", job.job_id, error)
        return None
    return page


def collected_page(job: JobRecord, seen: Snapshot) -> dict[str, Any]:
    """Write logs and page of a collected job into the history, and return the page."""
    store = locate.store_of(job)
    inside = list(store.entries(keys.job(job.job_id)))
    kept = store_history_logs(job, inside, seen.outcome)
    step("client:log-kept")
    page = _history_page(job, seen, inside)
    page |= {"collected": time.time(), "artifacts_removed": True, "resource_removed": True, "logs": kept}
    if history.write_page(store, page, locate.key_to_seal(job)):
        return page
    before = history.read_page(store, job.job_id)
    if before is not None and history.is_collected(before):  # by another process, which saw more of it
        return before
    history.write_page(store, page, locate.key_to_seal(job), again=True)  # it was cleaned up in part before
    return page


def cancel(job: JobRecord, *, wait: float) -> bool:
    """Cancel a job: first the verdict, then the processes; False when the job had ended already."""
    store = locate.store_of(job)
    try:
        seen = observe(job)
    except IntegrityError:  # its result is damaged: it has ended, unless it runs all the same
        observation = locate.backend_of(job).observe([job.job_id]).get(job.job_id)
        if observation is None or observation.status.is_final:
            return False
        _finish_cancel(job, outcome_of(job, observation=observation), wait=wait)
        return True
    verdict = seen.outcome
    if verdict is not None and verdict.status == CANCELLED and history.read_page(store, job.job_id) is None:
        _finish_cancel(job, verdict, wait=wait)  # the process that cancelled it died before it was done
        return True
    if seen.status.is_final:
        return False
    verdict = outcome_of(job, observation=seen.observation)
    if not seal_outcome_of(job, store, verdict):
        return False
    step("canceller:sealed")
    _finish_cancel(job, verdict, wait=wait)
    return True


def outcome_of(
    job: JobRecord,
    status: str = CANCELLED,
    cause: str = "cancelled",
    *,
    message: str = "",
    observation: Observation | None = None,
) -> Outcome:
    """Return the outcome that a client gives to a job that has none: it is cancelled, or nothing is left of it."""
    return Outcome(
        job_id=job.job_id,
        status=status,
        attempt=observation.attempt if observation and observation.attempt is not None else -1,
        cause=cause,
        phase="",
        error={"message": message} if message else {},
        started=observation.started if observation else None,
        ended=time.time(),
        witness="client",
        key_id=job.key_id or "",
    )


def seal_outcome_of(job: JobRecord, store: Store, outcome: Outcome) -> bool:
    """Create the outcome of a job, and the mark that its batch sees; False when it has another outcome already."""
    return attempts.seal_outcome(store, outcome, locate.key_to_seal(job), mark=mark_of(job))


def why_not_cancelled(job: JobRecord) -> str:
    """Return why there was nothing to cancel, after ``cancel`` returned False."""
    job_id = job.job_id
    try:
        seen = observe(job)
    except IntegrityError as error:
        return f"{job_id} has ended, and {error.what}; kinetic jobs cleanup {job_id} removes it"
    if history.is_collected(seen.past):
        how = f"it was {(seen.past or {}).get('status')}, and was collected afterwards"
    elif seen.status is not JobStatus.NOT_FOUND:
        how = f"it is {seen.status.value}"
    elif seen.outcome is None:
        was_removed = history.read_page(locate.store_of(job), job_id) is not None
        return f"{job_id} was {'removed before' if was_removed else 'never launched'}: there is nothing to cancel"
    elif seen.outcome.status == CANCELLED:
        return f"{job_id} was cancelled before"
    else:
        how = f"it was {seen.outcome.status.upper()}, and was removed afterwards"
    return f"{job_id} had ended before it could be cancelled: {how}"


def _finish_cancel(job: JobRecord, verdict: Outcome, *, wait: float) -> None:
    """End the processes of a cancelled job and forget it; its artifacts stay."""
    store, backend = locate.store_of(job), locate.backend_of(job)
    if not backend.stop([job.job_id], wait=wait):
        raise BackendError(
            f"{job.job_id} is cancelled, but its processes have not ended within {wait:g} s",
            why="they were asked to end, and are killed 5 s after that",
            next=f"kinetic jobs status {job.job_id}",
            code="still-ending",
        )
    step("canceller:stopped")
    page = _history_page(job, Snapshot(JobStatus.NOT_FOUND, verdict))
    history.write_page(store, page, locate.key_to_seal(job))
    step("canceller:history-written")
    backend.remove([job.job_id])
    _report_another_host(job)


def _report_another_host(job: JobRecord) -> None:
    """Print that a job elsewhere ends a little later: only its own supervisor can end it, and checks once a minute."""
    if not locate.can_be_seen(job):
        output.report(f"{job.job_id} runs on {job_status.place_of(job)}; its processes there end within a minute")


def _log() -> logging.Logger:
    import logging  # 5 ms; only when there is something to report

    return logging.getLogger("kinetic.jobs")


def _history_page(job: JobRecord, seen: Snapshot, inside: Sequence[Entry] | None = None) -> dict[str, Any]:
    """Return what is remembered of a job: no payload, no secret."""
    outcome, emulation, reason = seen.outcome, None, ""
    if outcome is not None and not outcome.succeeded:
        kind = outcome.error.get("type")
        reason = f"{kind}: {outcome.error.get('message', '')}" if kind else str(outcome.error.get("message", ""))
    if inside is None:
        with contextlib.suppress(KineticError):
            inside = list(locate.store_of(job).entries(keys.job(job.job_id)))
    with contextlib.suppress(KineticError):
        emulation = job_status.emulation_of(job)
    recorded = [entry.modified for entry in inside or () if entry.key == keys.record(job.job_id)]
    return {
        **records.plain(job),
        "created": recorded[0] if recorded else None,
        "emulation": emulation,
        "status": "CANCELLED" if outcome is not None and outcome.status == CANCELLED else seen.status.value,
        "reason": reason.splitlines()[0][:500] if reason else "",
        "started": outcome.started if outcome else None,
        "ended": outcome.ended if outcome else None,
        "attempts": sum(entry.key.startswith(keys.attempts(job.job_id)) for entry in inside or ()),
    }

"""Cancelling a job: first the verdict, then the processes."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic._jobs import collect, locate, notifications
from kinetic._jobs.status import Snapshot, has_ended, observe
from kinetic._runner.supervisor import attempts
from kinetic._wire import keys
from kinetic._wire.failpoints import step
from kinetic._wire.outcomes import CANCELLED, Outcome
from kinetic.errors import BackendError, IntegrityError, KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Observation
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import JobRecord


def cancel(job: JobRecord, *, wait: float) -> bool:
    """Cancel a job: first the verdict, then the processes; False when the job had ended already."""
    store = locate.store_of(job)
    try:
        seen = observe(job)
    except IntegrityError:  # its result is damaged: it has ended, unless it runs all the same
        observation = locate.backend_of(job).observe([job.job_id]).get(job.job_id)
        if observation is None or observation.status.is_final:
            return False
        _finish_cancel(job, outcome_of(job, observation=observation), observation, wait=wait)
        return True
    verdict = seen.outcome
    if verdict is not None and verdict.status == CANCELLED and locate.read_page(store, job.job_id) is None:
        left = locate.backend_of(job).observe([job.job_id]).get(job.job_id)
        _finish_cancel(job, verdict, left, wait=wait)  # the process that cancelled it died before it was done
        return True
    if seen.status.is_final:
        return False
    locate.backend_of(job).check_stop()
    verdict = outcome_of(job, observation=seen.observation)
    if not seal_outcome_of(job, store, verdict):
        return False
    step("canceller:sealed")
    _finish_cancel(job, verdict, seen.observation, wait=wait)
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
    return attempts.seal_outcome(store, outcome, locate.key_to_seal(job), mark=collect.mark_of(job))


def why_not_cancelled(job: JobRecord) -> str:
    """Return why there was nothing to cancel, after ``cancel`` returned False."""
    job_id = job.job_id
    try:
        seen = observe(job)
    except IntegrityError as error:
        return f"{job_id} has ended, and {error.what}; kinetic jobs cleanup {job_id} removes it"
    if locate.is_collected(seen.past):
        how = f"it was {(seen.past or {}).get('status')}, and was collected afterwards"
    elif seen.status is not JobStatus.NOT_FOUND:
        how = f"it is {seen.status.value}"
    elif seen.outcome is None:
        was_removed = locate.read_page(locate.store_of(job), job_id) is not None
        return f"{job_id} was {'removed before' if was_removed else 'never launched'}: there is nothing to cancel"
    elif seen.outcome.status == CANCELLED:
        return f"{job_id} was cancelled before"
    else:
        how = f"it was {seen.outcome.status.upper()}, and was removed afterwards"
    return f"{job_id} had ended before it could be cancelled: {how}"


def _finish_cancel(job: JobRecord, verdict: Outcome, left: Observation | None, *, wait: float) -> None:
    """End the processes of a cancelled job and forget it; its artifacts stay.

    ``left``: what was seen of its processes. The history has the time at which they were gone, and not that of the
    verdict, which came before.
    """
    store, backend = locate.store_of(job), locate.backend_of(job)
    if not backend.stop([job.job_id], wait=wait):
        of_pod = "its pod is deleted; on a node that does not respond, it ends when that is back or removed"
        raise BackendError(
            f"{job.job_id} is cancelled, but its processes have not ended within {wait:g} s",
            why="they were asked to end, and are killed 5 s after that" if backend.is_here else of_pod,
            next=f"kinetic jobs cancel {job.job_id}     waits for them again",
            code="still-ending",
        )
    step("canceller:stopped")
    if left is not None:
        verdict = replace(verdict, ended=left.ended or time.time())
    page = collect.history_page(job, Snapshot(JobStatus.NOT_FOUND, verdict))
    locate.write_page(store, page, locate.key_to_seal(job))
    step("canceller:history-written")
    backend.remove([job.job_id])
    if not backend.is_here:
        _settle_followers(job, store)
        if job.group_id:
            from kinetic._jobs import after  # as above

            with contextlib.suppress(KineticError):  # the next look does it
                after.start_others(job, store)
    notifications.see(job, Snapshot(JobStatus.NOT_FOUND, verdict))
    collect.report_another_host(job)


def _settle_followers(job: JobRecord, store: Store) -> None:
    """Look at what follows a job on a cluster that was cancelled, which closes it; on this machine supervisors do."""
    prefix = keys.followers(job.group_id or job.job_id)
    for entry in list(store.entries(prefix)):
        name = entry.key.removeprefix(prefix)
        if keys.is_job_id(name) and not keys.is_group_id(name):
            with contextlib.suppress(KineticError):  # it is closed by the next look
                if (follower := locate.verified_job(store, name)) is not None:
                    has_ended(follower)

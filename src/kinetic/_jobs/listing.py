"""Looking at many jobs at once: one question to the backend, whatever their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kinetic._backends import choosing
from kinetic._backends.protocol import Sighting
from kinetic._jobs import looking, places, reading, record, tombstones, verdicts
from kinetic._jobs.looking import Look
from kinetic._wire import keys
from kinetic._wire import outcome as outcomes
from kinetic.errors import KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle
    from kinetic._stores.protocol import Store
    from kinetic._wire.outcome import Outcome

_LOCAL = "local"


def rows(handles: Sequence[JobHandle]) -> list[Look]:
    """Look at jobs as ``looking.look`` does at one, in their order.

    A job that cannot be judged does not hide the others: its sighting carries the reason.
    """
    verdict_of = {handle.job_id: _verdict(handle) for handle in handles}
    open_ = [handle.job_id for handle in handles if verdict_of[handle.job_id] is None and is_here(handle)]
    backend = choosing.choose(_LOCAL, places.runtime())
    seen = backend.observe(open_) if open_ else {}
    return [_look(handle, verdict_of[handle.job_id], seen.get(handle.job_id)) for handle in handles]


def newest_first(handles: Sequence[JobHandle]) -> list[JobHandle]:
    """Sort jobs, newest first. A record knows the second; within one second, the queue of this machine knows more."""
    number = Counter(handle.created_at for handle in handles)
    tied = [handle.job_id for handle in handles if number[handle.created_at] > 1 and is_here(handle)]
    seen = choosing.choose(_LOCAL, places.runtime()).observe(tied) if tied else {}
    submitted = {name: sighting.submitted or 0.0 for name, sighting in seen.items()}
    return sorted(
        handles,
        key=lambda handle: (handle.created_at, submitted.get(handle.job_id, 0.0), handle.job_id),
        reverse=True,
    )


def is_here(handle: JobHandle) -> bool:
    """Say whether this machine can see the job's processes."""
    return handle.backend == _LOCAL and (not handle.host or handle.host == places.machine())


def place_of(handle: JobHandle) -> str:
    """Say where a job runs, in words."""
    if handle.backend != _LOCAL:
        return f"{handle.backend} {handle.project}/{handle.cluster_name}"
    return "this machine" if is_here(handle) else f"host {_host_name(handle)}"


def reason_of(look: Look) -> str:
    """Say in one line what a waiting job waits for, or how one failed; "" when there is nothing to say."""
    outcome = look.outcome
    if outcome is None:
        if look.sighting is not None and look.sighting.reason:
            return look.sighting.reason
        return "its process is gone, and nothing of it is left" if look.status is JobStatus.FAILED else ""
    if outcome.succeeded:
        return ""
    if outcome.status == outcomes.CANCELLED:
        return "it was cancelled"
    message, *_ = str(outcome.error.get("message", "")).splitlines() or [""]
    kind = outcome.error.get("type")
    if outcome.cause == "serialization":
        return f"it returned a {outcome.error.get('value_type')} that cannot be pickled"
    return f"{kind}: {message}".removesuffix(": ") if kind else message


def is_kept() -> bool:
    """Say whether a keeper is alive or starting here. Whoever looked at the queue has buried the dead ones."""
    return bool(choosing.choose(_LOCAL, places.runtime()).queue.keepers())


def _verdict(handle: JobHandle) -> Outcome | KineticError | None:
    """Read what the store says of a job, or why that cannot be used."""
    key = None if places.trusts_the_store() else places.key_of(handle.job_id, handle.key_id or "")
    try:
        return reading.page_of(places.store_of(handle), handle.job_id, key)
    except KineticError as error:
        return error


def _look(handle: JobHandle, found: Outcome | KineticError | None, sighting: Sighting | None) -> Look:
    if found is None and sighting is not None and not sighting.status.is_final:
        return Look(verdicts.verdict(outcome=None, sighting=sighting), None, sighting)
    if found is None:
        found = _verdict(handle)  # the second look: the verdict may have come in between
    problem = found if isinstance(found, KineticError) else None
    outcome = None if isinstance(found, KineticError) else found
    store, elsewhere = places.store_of(handle), not is_here(handle)
    status = verdicts.verdict(
        outcome=outcome,
        sighting=sighting,
        removed=tombstones.exists(store, handle.job_id),
        **(looking.begun(store, handle.job_id, elsewhere=elsewhere) if outcome is None else {}),
    )
    if problem is not None:
        return Look(status, None, _told(handle, status, sighting, problem.what))
    if outcome is None and not is_here(handle) and not status.is_final:
        return Look(status, None, _told(handle, status, sighting, "only the machine that runs it can see it"))
    return Look(status, outcome, sighting)


def _told(handle: JobHandle, status: JobStatus, sighting: Sighting | None, reason: str) -> Sighting:
    return replace(sighting, reason=reason) if sighting else Sighting(handle.job_id, status, reason=reason)


def _host_name(handle: JobHandle) -> str:
    """Return the name of another machine as its record has it; the handle knows its id only."""
    store: Store = places.store_of(handle)
    try:
        page = record.from_bytes(store.get(keys.record(handle.job_id)), handle.job_id, None)
    except KineticError:
        page = {}
    return str(page.get("machine") or handle.host)

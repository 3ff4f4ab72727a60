"""Looking at many jobs at once: one question to the backend, whatever their number."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kinetic._backends.protocol import Sighting
from kinetic._jobs import looking, places, reading, record, tombstones, verdicts
from kinetic._jobs.looking import Look
from kinetic._wire import keys
from kinetic._wire import outcome as outcomes
from kinetic.errors import KineticError, StoreUnreachableError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend
    from kinetic._jobs.handle import JobHandle
    from kinetic._stores.protocol import Store
    from kinetic._wire.outcome import Outcome

_LOCAL = "local"


def rows(handles: Sequence[JobHandle]) -> list[Look]:
    """Look at jobs as ``looking.look`` does at one, in their order.

    A job that cannot be judged does not hide the others: its sighting carries the reason.
    """
    verdict_of = {handle.job_id: _verdict(handle) for handle in handles}
    open_ = [handle for handle in handles if verdict_of[handle.job_id] is None and can_be_seen(handle)]
    seen = _observe(open_)
    return [_look(handle, verdict_of[handle.job_id], seen.get(handle.job_id)) for handle in handles]


def _observe(handles: Sequence[JobHandle]) -> dict[str, Sighting]:
    """Ask each place about its jobs, once; one that does not answer says so of its jobs, and hides no others."""
    by_place: dict[Backend, list[JobHandle]] = {}
    for handle in handles:
        by_place.setdefault(places.backend_of(handle), []).append(handle)
    seen: dict[str, Sighting] = {}
    for backend, theirs in by_place.items():
        try:
            seen |= backend.observe([handle.job_id for handle in theirs])
        except KineticError as error:
            if backend.is_here:
                raise
            unknown = JobStatus.PENDING
            seen |= {each.job_id: Sighting(each.job_id, unknown, reason=error.what) for each in theirs}
    return seen


def newest_first(handles: Sequence[JobHandle]) -> list[JobHandle]:
    """Sort jobs, newest first. A record knows the second; within one second, the queue of this machine knows more."""
    number = Counter(handle.created_at for handle in handles)
    tied = [handle.job_id for handle in handles if number[handle.created_at] > 1 and is_here(handle)]
    seen = places.local().observe(tied) if tied else {}
    submitted = {name: sighting.submitted or 0.0 for name, sighting in seen.items()}
    return sorted(
        handles,
        key=lambda handle: (handle.created_at, submitted.get(handle.job_id, 0.0), handle.job_id),
        reverse=True,
    )


def can_be_seen(handle: JobHandle) -> bool:
    """Say whether the job's processes can be asked about from here: on a cluster, from everywhere."""
    return handle.backend != _LOCAL or is_here(handle)


def is_here(handle: JobHandle) -> bool:
    """Say whether this machine can see the job's processes."""
    return handle.backend == _LOCAL and (not handle.host or handle.host == places.machine())


def place_of(handle: JobHandle) -> str:
    """Say where a job runs, in words."""
    if handle.backend != _LOCAL:
        return cluster_of(vars(handle))
    return "this machine" if is_here(handle) else f"host {_host_name(handle)}"


def cluster_of(fields: Mapping[str, Any]) -> str:
    """Say on which cluster, and where in it, the fields of a handle name."""
    project, cluster = fields.get("project"), fields.get("cluster_name")
    where = f"{project}/{cluster}" if project else fields.get("context") or cluster
    return f"{fields.get('backend')} {where}/{fields.get('namespace')}"


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
    return bool(places.local().queue.keepers())


def _verdict(handle: JobHandle) -> Outcome | KineticError | None:
    """Read what the store says of a job, or why that cannot be used."""
    key = None if places.trusts_the_store() else places.key_of(handle.job_id, handle.key_id or "")
    try:
        return reading.page_of(places.store_of(handle), handle.job_id, key)
    except KineticError as error:
        return error


def _look(handle: JobHandle, found: Outcome | KineticError | None, sighting: Sighting | None) -> Look:
    if found is None and sighting is not None and not sighting.status.is_final:
        with contextlib.suppress(StoreUnreachableError):  # what the cluster says of it stays true
            sighting = looking.with_its_claim(places.backend_of(handle), places.store_of(handle), sighting)
        return Look(verdicts.verdict(outcome=None, sighting=sighting), None, sighting)
    if found is None:
        found = _verdict(handle)  # the second look: the verdict may have come in between
    problem = found if isinstance(found, KineticError) else None
    outcome = None if isinstance(found, KineticError) else found
    store, elsewhere = places.store_of(handle), not can_be_seen(handle)
    past = tombstones.seen(store, handle.job_id)
    status = verdicts.verdict(
        outcome=outcome,
        sighting=sighting,
        removed=past is not None,
        **(looking.begun(store, handle.job_id, elsewhere=elsewhere) if outcome is None else {}),
    )
    if problem is not None:
        return Look(status, None, _told(handle, status, sighting, problem.what), past)
    if outcome is None and not can_be_seen(handle) and not status.is_final:
        return Look(status, None, _told(handle, status, sighting, "only the machine that runs it can see it"))
    return Look(status, outcome, sighting, past)


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

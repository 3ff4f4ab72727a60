"""Looking at many jobs at once: one question to the backend, whatever their number."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._backends.protocol import Sighting
from kinetic._jobs import index, looking, places, reading, record, tombstones, verdicts
from kinetic._jobs.looking import Look
from kinetic._wire import keys, names
from kinetic._wire import outcome as outcomes
from kinetic.errors import KineticError, StoreUnreachableError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend
    from kinetic._jobs.handle import JobHandle
    from kinetic._wire.outcome import Outcome

_LOCAL = "local"
_FUTURE_SECONDS = 60.0  # clocks of two machines that share a store may differ by so much


def rows(handles: Sequence[JobHandle], *, from_index: bool = False) -> list[Look]:
    """Look at jobs as ``looking.look`` does at one, in their order.

    A job that cannot be judged does not hide the others: its sighting carries the reason.

    Args:
        handles: The jobs.
        from_index: Take verdicts that were read before from the index; they lack logs and tracebacks.
    """
    if from_index:
        verdict_of, plain = _verdicts_by_index(handles)
    else:
        verdict_of, plain = {handle.job_id: _verdict(handle) for handle in handles}, {}
    open_ = [handle for handle in handles if verdict_of[handle.job_id] is None and can_be_seen(handle)]
    seen = _observe(open_)
    return [
        plain.get(handle.job_id) or _safe_look(handle, verdict_of[handle.job_id], seen.get(handle.job_id))
        for handle in handles
    ]


def _safe_look(handle: JobHandle, found: Outcome | KineticError | None, sighting: Sighting | None) -> Look:
    """Look at a job; whatever is wrong with what is stored of it costs its own row a sentence, and no other row."""
    try:
        return _look(handle, found, sighting)
    except Exception as error:  # noqa: BLE001 - as above
        unknown = JobStatus.PENDING  # not final: nobody may take it for a job that has ended
        return Look(unknown, None, _told(handle, unknown, sighting, _what(error)))


def _what(error: Exception) -> str:
    """Return what is wrong with a job's pages, in a sentence."""
    return error.what if isinstance(error, KineticError) else f"it cannot be read: {type(error).__name__}: {error}"


def _observe(handles: Sequence[JobHandle]) -> dict[str, Sighting]:
    """Ask each place about its jobs, once; one that does not answer says so of its jobs, and hides no others."""
    by_place: dict[Backend, list[JobHandle]] = {}
    seen: dict[str, Sighting] = {}
    for handle in handles:
        try:
            by_place.setdefault(places.backend_of(handle), []).append(handle)
        except KineticError as error:  # a place that this kinetic does not know, or that nothing here leads to
            seen[handle.job_id] = Sighting(handle.job_id, JobStatus.PENDING, reason=error.what)
    for backend, theirs in by_place.items():
        try:
            seen |= backend.observe([handle.job_id for handle in theirs])
        except KineticError as error:
            if backend.is_here:
                raise
            unknown = JobStatus.PENDING
            seen |= {each.job_id: Sighting(each.job_id, unknown, reason=error.what) for each in theirs}
    return seen


class Born(NamedTuple):
    """When a job was made, as well as can be known of it.

    Attributes:
        job_id: The job.
        created_at: As its handle has it: in whole seconds.
        precise: Unix time with fractions, by a clock that is the same for the jobs of one second; 0.0 if not known.
        sequence: Its place in this machine's queue, which no clock changes; 0 where it has none.
        group_index: Its index in its batch, or -1.
    """

    job_id: str
    created_at: str
    precise: float = 0.0
    sequence: int = 0
    group_index: int = -1


def newest_first(handles: Sequence[JobHandle], past: Sequence[Mapping[str, Any]] = ()) -> list[JobHandle]:
    """Sort jobs, newest first.

    Args:
        handles: The jobs.
        past: Pages of the history; those of the jobs tell more exactly when they were made.
    """
    by_id = {handle.job_id: handle for handle in handles}
    return [by_id[each.job_id] for each in in_order(births(handles, past)) if each.job_id in by_id]


def births(handles: Sequence[JobHandle], past: Sequence[Mapping[str, Any]] = ()) -> list[Born]:
    """Say when jobs were made; of those of one second as exactly as queue, history and store know it."""
    singles = [handle for handle in handles if handle.group_id is None]
    queued = [handle.job_id for handle in singles if is_here(handle) and looking.past_of(handle) is None]
    rows = places.local().queue.jobs(queued) if queued else {}
    found = {str(page["job_id"]): _of_page(page) for page in past if page.get("job_id")}
    number = Counter(handle.created_at for handle in singles)
    number.update(each.created_at for each in found.values() if each.job_id not in rows)
    for handle in handles:
        job_id, created_at = handle.job_id, handle.created_at
        if (own := looking.past_of(handle)) is not None:
            found[job_id] = _of_page({**own, "job_id": job_id, "created_at": created_at})
        elif job_id in rows:
            found[job_id] = Born(job_id, created_at, rows[job_id].submitted, rows[job_id].seq)
        elif handle.group_id is not None:
            index = handle.group_index
            found[job_id] = Born(job_id, created_at, group_index=index if isinstance(index, int) else 0)
        elif job_id not in found:
            found[job_id] = Born(job_id, created_at, _recorded(handle) if number[created_at] > 1 else 0.0)
    return list(found.values())


def in_order(born: Iterable[Born], *, now: float | None = None) -> list[Born]:
    """Sort jobs, newest first: by time, and by the queue's sequence where clocks went back.

    A time that is still to come is no time: its clock was wrong, so such a job is older than all others. What was
    queued later is never older than what was queued before it.
    """
    limit = (time.time() if now is None else now) + _FUTURE_SECONDS
    when: dict[str, tuple[bool, float, float]] = {}
    latest = (False, 0.0, 0.0)
    for each in (listed := sorted(born, key=lambda each: each.sequence)):
        made = names.moment(each.created_at) or 0.0
        own = (made <= limit, made, each.precise)
        if each.sequence:
            own = latest = max(latest, own)
        when[each.job_id] = own
    return sorted(
        listed, key=lambda each: (when[each.job_id], each.sequence, each.group_index, each.job_id), reverse=True
    )


def _of_page(page: Mapping[str, Any]) -> Born:
    job_id, created_at = str(page["job_id"]), str(page.get("created_at", ""))
    created, index = page.get("created"), page.get("group_index")
    if isinstance(index, int):
        return Born(job_id, created_at, group_index=index)
    return Born(job_id, created_at, float(created) if isinstance(created, int | float) else 0.0)


def _recorded(handle: JobHandle) -> float:
    """Say when a record was written, by the store: it is written once, so this is the order of submission."""
    with contextlib.suppress(KineticError):
        entry = places.store_of(handle).entry(keys.record(handle.job_id))
        return entry.modified if entry is not None else 0.0
    return 0.0


def can_be_seen(handle: JobHandle) -> bool:
    """Say whether the job's processes can be asked about from here: on a cluster, from everywhere."""
    return handle.backend != _LOCAL or is_here(handle)


def is_here(handle: JobHandle) -> bool:
    """Say whether this machine can see the job's processes."""
    return handle.backend == _LOCAL and (not handle.host or handle.host == places.machine())


def emulation_of(handle: JobHandle) -> str | None:
    """Say what stands in for a job's accelerator on this machine: "emulated", "on CPU"; None where it is real."""
    if handle.backend != _LOCAL:
        return None
    kind = _kind_of(handle.accelerator)
    if kind == "gpu" and is_here(handle):
        row = places.local().queue.jobs([handle.job_id]).get(handle.job_id)
        return "on CPU" if row is not None and not row.gpus else None
    return "emulated" if kind == "tpu" else None


@functools.cache
def _kind_of(accelerator: str) -> str:
    from kinetic import _hardware as hardware

    try:
        return hardware.place(accelerator).kind
    except KineticError:  # of another version of kinetic
        return ""


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
    try:
        return reading.verdict_of(handle)
    except KineticError as error:
        return error


def _verdicts_by_index(
    handles: Sequence[JobHandle],
) -> tuple[dict[str, Outcome | KineticError | None], dict[str, Look]]:
    """Return how jobs ended, from the index or else from the store; and the looks at those that need no further one.

    A job that has a verdict and no page of the history is what its verdict says. Which have one, a listing tells.
    """
    by_store: dict[str | None, list[JobHandle]] = {}
    for handle in handles:
        by_store.setdefault(handle.store, []).append(handle)
    found: dict[str, Outcome | KineticError | None] = {}
    plain: dict[str, Look] = {}
    for theirs in by_store.values():
        try:
            store = places.store_of(theirs[0])
        except KineticError as error:  # of a kind that this kinetic does not know
            found |= dict.fromkeys((handle.job_id for handle in theirs), error)
            continue
        known, removed = index.of(store), tombstones.ids(store)
        for handle in theirs:
            told: Outcome | KineticError | None = known.outcome(handle.job_id)
            if told is None and isinstance(told := _verdict(handle), outcomes.Outcome):
                known.note_outcome(handle.job_id, told)
            found[handle.job_id] = told
            if isinstance(told, outcomes.Outcome) and handle.job_id not in removed and looking.past_of(handle) is None:
                status = verdicts.verdict(outcome=told, sighting=None)
                plain[handle.job_id] = Look(status, told)
        known.write(functools.partial(tombstones.named, store))
    return found, plain


def _look(handle: JobHandle, found: Outcome | KineticError | None, sighting: Sighting | None) -> Look:
    if found is None and sighting is not None and not sighting.status.is_final:
        with contextlib.suppress(StoreUnreachableError):  # what the cluster says of it stays true
            sighting = looking.with_its_claim(handle, places.backend_of(handle), sighting)
        return Look(verdicts.verdict(outcome=None, sighting=sighting), None, sighting)
    if found is None:
        found = _verdict(handle)  # the second look: the verdict may have come in between
    problem = found if isinstance(found, KineticError) else None
    outcome = None if isinstance(found, KineticError) else found
    if looking.past_of(handle) is not None:
        return looking.look(handle)
    store, elsewhere = places.store_of(handle), not can_be_seen(handle)
    past = tombstones.seen(store, handle.job_id)
    status = verdicts.verdict(
        outcome=outcome,
        sighting=sighting,
        removed=past is not None,
        **(looking.begun(handle, elsewhere=elsewhere) if outcome is None else {}),
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
    try:
        page = record.read(places.store_of(handle), handle.job_id)
    except KineticError:
        page = {}
    return str((page.get("machine") if isinstance(page, dict) else "") or handle.host)

"""What is told of a job, as JSON values with stable names: of one that is there, and of one that is history."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kinetic._jobs import history, listing, logs, places
from kinetic._wire import keys, names
from kinetic._wire import outcome as outcomes

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.looking import Look


def page_of(handle: JobHandle, seen: Look) -> dict[str, Any]:
    """Put what was seen of a job into JSON values."""
    if seen.past is not None and history.is_collected(seen.past):
        return past({**handle.to_dict(), **seen.past})
    times = seen.outcome or seen.sighting
    started, ended = (times.started, times.ended) if times else (None, None)
    return {
        "job_id": handle.job_id,
        "function": handle.func_name,
        "status": seen.status.value,
        "reason": listing.reason_of(seen),
        "accelerator": handle.accelerator,
        "emulation": listing.emulation_of(handle),
        "group_id": handle.group_id,
        "group_index": handle.group_index,
        "backend": handle.backend,
        "where": listing.place_of(handle),
        "attempt": times.attempt if times and started is not None else None,
        "created_at": handle.created_at,
        "collected_at": None,
        "removed_at": None,
        **_times(started, ended, running=seen.status.value == "RUNNING"),
    }


def history_of(handle: JobHandle, seen: Look) -> dict[str, Any]:
    """Return the same of a job as the history tells it: of one that was removed or cancelled, how it had ended."""
    if seen.past is not None:
        return past({**handle.to_dict(), **seen.past})
    cancelled = seen.outcome is not None and seen.outcome.status == outcomes.CANCELLED
    return page_of(handle, seen) | ({"status": "CANCELLED"} if cancelled else {})


def more(handle: JobHandle, seen: Look) -> dict[str, Any]:
    """Return what only ``show`` tells: the rest of the handle, the verdict's details, the log."""
    store, outcome = places.store_of(handle), seen.outcome
    log = logs.log_of(handle)
    about: dict[str, Any] = {
        "cause": outcome.cause if outcome else None,
        "phase": outcome.phase if outcome else None,
        "phases_seconds": dict(outcome.phases) if outcome else {},
        "value_type": (outcome.value_type or None) if outcome else None,
        "result_bytes": store.size(keys.result(handle.job_id)),
        "log_bytes": log.size() if log is not None else 0,
        "files_left": list(outcome.files) if outcome else [],
    }
    told = {"job_id", "func_name", "accelerator", "backend", "created_at"}  # by page_of, some under other names
    return {**about, **{name: value for name, value in handle.to_dict().items() if name not in told}}


def past(page: dict[str, Any]) -> dict[str, Any]:
    """Put what remains of a removed or collected job into the same values."""
    removed, collected, attempts = page.get("removed"), page.get("collected"), page.get("attempts")
    return {
        "job_id": str(page.get("job_id", "")),
        "function": str(page.get("func_name", "")),
        "status": str(page.get("status", "")),
        "reason": str(page.get("reason") or ""),
        "accelerator": str(page.get("accelerator", "")),
        "emulation": page.get("emulation"),
        "group_id": group_id if isinstance(group_id := page.get("group_id"), str) else None,
        "group_index": index if isinstance(index := page.get("group_index"), int) else None,
        "backend": str(page.get("backend", "")),
        "where": _where(page),
        "attempt": attempts - 1 if attempts else None,
        "created_at": str(page.get("created_at", "")),
        "collected_at": names.utc(collected) if collected else None,
        "removed_at": names.utc(removed) if removed else None,
        **_times(page.get("started"), page.get("ended"), running=False),
    }


def _where(page: dict[str, Any]) -> str:
    """Say where a removed job was."""
    if page.get("backend", "local") != "local":
        return listing.cluster_of(page)
    return "this machine" if page.get("host") in {None, places.machine()} else f"host {page.get('host')}"


def _times(started: float | None, ended: float | None, *, running: bool) -> dict[str, Any]:
    until = time.time() if running else ended
    return {
        "started_at": names.utc(started) if started else None,
        "ended_at": names.utc(ended) if ended else None,
        "duration_seconds": round(max(until - started, 0.0), 3) if started and until else None,
    }

"""What is told of a job, as JSON values with stable names: of one that is there, and of one that is history."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kinetic._backends import registry
from kinetic._jobs import history, locate, logs, record
from kinetic._wire import keys, names, records
from kinetic._wire import outcome as outcomes
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.records import JobRecord


def job_to_json(job: JobRecord, seen: Snapshot) -> dict[str, Any]:
    """Put what was seen of a job into JSON values."""
    if seen.past is not None and history.is_collected(seen.past):
        return history_to_json({**records.plain(job), **seen.past})
    times = seen.outcome or seen.sighting
    started, ended = (times.started, times.ended) if times else (None, None)
    return {
        "job_id": job.job_id,
        "function": job.func_name,
        "status": seen.status.value,
        "reason": seen.reason,
        "accelerator": job.accelerator,
        "emulation": emulation_of(job),
        "group_id": job.group_id,
        "group_index": job.group_index,
        "backend": job.backend,
        "where": place_of(job),
        "attempt": times.attempt if times and started is not None else None,
        "created_at": job.created_at,
        "collected_at": None,
        "removed_at": None,
        **_times(started, ended, running=seen.status.value == "RUNNING"),
    }


def history_of(job: JobRecord, seen: Snapshot) -> dict[str, Any]:
    """Return the same of a job as the history tells it: of one that was removed or cancelled, how it had ended."""
    if seen.past is not None:
        return history_to_json({**records.plain(job), **seen.past})
    cancelled = seen.outcome is not None and seen.outcome.status == outcomes.CANCELLED
    return job_to_json(job, seen) | ({"status": "CANCELLED"} if cancelled else {})


def details_of(job: JobRecord, seen: Snapshot) -> dict[str, Any]:
    """Return what only ``show`` tells: the rest of the job, the verdict's details, the log."""
    store, outcome = locate.store_of(job), seen.outcome
    log = logs.log_of(job)
    about: dict[str, Any] = {
        "cause": outcome.cause if outcome else None,
        "phase": outcome.phase if outcome else None,
        "phases_seconds": dict(outcome.phases) if outcome else {},
        "value_type": (outcome.value_type or None) if outcome else None,
        "result_bytes": store.size(keys.result(job.job_id)),
        "log_bytes": log.size() if log is not None else 0,
        "files_left": list(outcome.files) if outcome else [],
    }
    told = {"job_id", "func_name", "accelerator", "backend", "created_at"}  # by page_of, some under other names
    return {**about, **{name: value for name, value in records.plain(job).items() if name not in told}}


def history_to_json(page: dict[str, Any]) -> dict[str, Any]:
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


def emulation_of(job: JobRecord) -> str | None:
    """Say what stands in for a job's accelerator on this machine: "emulated", "on CPU"; None where it is real."""
    if not registry.is_here(job.backend):
        return None
    kind = _kind_of(job.accelerator)
    if kind == "gpu" and locate.is_here(job):
        row = locate.local().queue.jobs([job.job_id]).get(job.job_id)
        return "on CPU" if row is not None and not row.gpus else None
    return "emulated" if kind == "tpu" else None


@functools.cache
def _kind_of(accelerator: str) -> str:
    from kinetic import _hardware as hardware

    try:
        return hardware.place(accelerator).kind
    except KineticError:  # of another version of kinetic
        return ""


def place_of(job: JobRecord) -> str:
    """Say where a job runs, for humans."""
    if not registry.is_here(job.backend):
        return cluster_of(vars(job))
    return "this machine" if locate.is_here(job) else f"host {_host_name(job)}"


def cluster_of(fields: Mapping[str, Any]) -> str:
    """Say on which cluster, and where in it, the fields of a record name."""
    project, cluster = fields.get("project"), fields.get("cluster_name")
    where = f"{project}/{cluster}" if project else fields.get("context") or cluster
    return f"{fields.get('backend')} {where}/{fields.get('namespace')}"


def _host_name(job: JobRecord) -> str:
    """Return the name of another machine as its record in the store has it; here its id is known only."""
    try:
        page = record.read_record(locate.store_of(job), job.job_id)
    except KineticError:
        page = {}
    return str((page.get("machine") if isinstance(page, dict) else "") or job.host)


def _where(page: dict[str, Any]) -> str:
    """Say where a removed job was."""
    if not registry.is_here(page.get("backend", registry.HERE.name)):
        return cluster_of(page)
    return "this machine" if page.get("host") in {None, locate.machine()} else f"host {page.get('host')}"


def _times(started: float | None, ended: float | None, *, running: bool) -> dict[str, Any]:
    until = time.time() if running else ended
    return {
        "started_at": names.utc(started) if started else None,
        "ended_at": names.utc(ended) if ended else None,
        "duration_seconds": round(max(until - started, 0.0), 3) if started and until else None,
    }

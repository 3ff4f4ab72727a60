"""What a notebook shows of a job: its status with the reason, how far it is, and the command for its log."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kinetic._backends import registry
from kinetic._jobs import activity
from kinetic._jobs.status import history_of, observe
from kinetic._output import notebook
from kinetic._output.format import duration_cell, plain
from kinetic._output.notebook import Drawing
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.progress import Progress
    from kinetic._wire.records import JobRecord

_PAUSE_SECONDS = {True: 1.0, False: 5.0}  # between two looks, on this machine and elsewhere: a request


def draw(job: JobRecord) -> Drawing:
    """Draw a job as it is now; never raises: a card must not break a notebook."""
    seen: Snapshot | None = None
    status, reason, duration = "", "", ""
    try:
        seen = observe(job)
        page = history_of(job, seen)
        status, reason = str(page["status"]), str(page["reason"] or "")
        duration = duration_cell(page["duration_seconds"])
    except Exception as error:  # noqa: BLE001 - as above
        status = f"unknown ({type(error).__name__})"
    progress = _progress(job, seen)
    is_final = seen is None or seen.status.is_final
    told = activity.progress_text(progress, is_final=is_final) if progress is not None else ""
    rows = [
        ("status", status),
        ("reason", plain(reason)),
        ("progress", told),
        ("function", job.func_name),
        ("runs on", f"{job.accelerator} · {job.backend}"),
        ("created", job.created_at),
        ("duration", duration),
        ("log", f"kinetic jobs logs {job.job_id} --follow"),
    ]
    body = notebook.bar(progress.share, f"Progress of {job.job_id}") if progress is not None else ""
    text = ", ".join(filter(None, (f"{job.job_id}: {plain(status)}", plain(reason), told)))
    return Drawing(notebook.card("job", job.job_id, body, rows), text, is_final)


def _progress(job: JobRecord, seen: Snapshot | None) -> Progress | None:
    if seen is None or seen.status.value == "PENDING":
        return None
    with contextlib.suppress(KineticError, OSError):
        return activity.progress_of(job)
    return None


def show(job: JobRecord) -> None:
    """Show a job in a cell that changes until it has ended."""
    here = registry.is_here(job.backend)
    notebook.live_cells(job.job_id).show(lambda: draw(job), lambda: _PAUSE_SECONDS[here])

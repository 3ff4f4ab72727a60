"""``kinetic jobs wait``: until jobs have ended; the exit code says how."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from kinetic import _output as output
from kinetic._cli import completing, durations, failures, options, tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot


@click.command
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...", shell_complete=completing.jobs)
@click.option(
    "--timeout",
    type=durations.Duration(bare=True),
    metavar="TIME",
    help="Stop waiting after this time, such as 90 (seconds), 10m or 2h; exit code 124.",
)
@options.where
@options.as_json
@click.pass_context
def wait(
    ctx: click.Context, /, job_ids: tuple[str, ...], timeout: float | None, as_json: bool, **place: str | None
) -> None:
    """Wait until jobs have ended.

    It prints how each job ended. The exit code is 0 if all succeeded, 125 if one failed, and 124 if the time was
    over before all had ended. Nothing is collected or removed; Ctrl-C only stops waiting.

    Example: kinetic jobs wait @last --timeout 10m
    """
    handles = [options.find(job_id, **place) for job_id in job_ids]
    handles = list({handle.job_id: handle for handle in handles}.values())
    seen = _wait(handles, timeout)
    late = [handle for handle in handles if handle.job_id not in seen]
    if as_json:
        tables.document(jobs=[_page(handle, seen.get(handle.job_id)) for handle in handles])
    bad = [handle for handle in handles if (look := seen.get(handle.job_id)) and not _succeeded(handle, look)]
    for handle in handles:
        if (look := seen.get(handle.job_id)) is not None:
            _tell(handle, look, as_json=as_json)
    if late:
        raise _too_late(late, timeout)
    ctx.exit(failures.JOB_FAILED if bad else 0)


def _wait(handles: Sequence[JobHandle], timeout: float | None) -> dict[str, Snapshot]:
    """Wait for one after the other; return how those ended that did in time."""
    from kinetic._jobs import waiting
    from kinetic.errors import JobTimeoutError

    limit = None if timeout is None else time.monotonic() + timeout
    seen: dict[str, Snapshot] = {}
    progress = output.Progress()
    try:
        for handle in handles:
            left = None if limit is None else max(limit - time.monotonic(), 0.0)
            try:
                seen[handle.job_id] = waiting.wait(handle, timeout=left, progress=progress)
            except JobTimeoutError:
                continue  # the others are looked at once: they may have ended long ago
    except KeyboardInterrupt:
        left_over = [handle.job_id for handle in handles if handle.job_id not in seen]
        click.echo(f"\nnot affected: {', '.join(left_over)}", err=True)
        raise
    progress.end()
    return seen


def _tell(handle: JobHandle, seen: Snapshot, *, as_json: bool) -> None:
    page = _page(handle, seen)
    if not as_json:
        print(f"{handle.job_id}: {tables.status(page, time.time())}")
    if page["status"] != "SUCCEEDED":
        click.echo(f"why:   {tables.plain(str(page['reason'])) or 'it left no result'}", err=True)
        click.echo(f"next:  kinetic jobs explain {handle.job_id}", err=True)


def _succeeded(handle: JobHandle, seen: Snapshot) -> bool:
    return _page(handle, seen)["status"] == "SUCCEEDED"


def _page(handle: JobHandle, seen: Snapshot | None) -> dict[str, object]:
    """Return how a job ended, or how it stands now."""
    from kinetic._jobs import describing
    from kinetic._jobs.status import observe

    return describing.page_of(handle, seen or observe(handle))


def _too_late(late: Sequence[JobHandle], timeout: float | None) -> Exception:
    from kinetic.errors import JobTimeoutError

    what = late[0].job_id if len(late) == 1 else f"{len(late)} jobs"
    goes = "it keeps running" if len(late) == 1 else "they keep running: " + ", ".join(handle.job_id for handle in late)
    return JobTimeoutError(
        f"{what} {'has' if len(late) == 1 else 'have'} not ended within {durations.written(timeout or 0.0)}",
        why=goes,
        next=f"kinetic jobs explain {late[0].job_id}",
    )

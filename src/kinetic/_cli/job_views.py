"""``kinetic jobs``: the commands that look at single jobs: show, status, explain and wait."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import error_output, shared_options
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic.errors import JobTimeoutError, KineticError

if TYPE_CHECKING:
    from kinetic._jobs.index import Row
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.records import JobRecord

Page = dict[str, Any]


@click.command
@shared_options.job_argument
@shared_options.json_option
def show(handle: JobRecord, as_json: bool) -> None:
    """Show all details of a job.

    The function, where it runs, its status, the duration of each phase, its output folder, the most that it used of
    CPU, memory, GPUs and disk, and what it cost so far: the list price of its hardware while its function ran.

    Example: kinetic jobs show @last
    """
    from kinetic._jobs import job_cost
    from kinetic._jobs import status as job_status

    with output.phase("looking at the job", summary=False):
        seen = job_status.observe(handle)
        page = job_status.job_to_json(handle, seen) | job_status.details_of(handle, seen)
        if handle.command and handle.group_id:
            from kinetic._batches import report  # only of a sweep's job

            page["command"] = report.command_of(handle)
        page["dollars"] = job_cost.so_far(handle, page, os.environ)
        page["usage"] = _usage_page(handle)
        page["progress"] = _progress_page(handle, is_final=page["status"] != "RUNNING")
    if as_json:
        output_format.print_document(job=page)
        return
    page["usage"] = _usage_text(page["usage"])
    page["progress"] = (page["progress"] or {}).get("told", "")
    page["dollars"] = job_cost.dollars_text(page["dollars"])
    page["lock"] = _lock_text(page["lock"])
    import shlex  # 1 ms; only here

    page["command"] = shlex.join(page["command"]) if page["command"] else ""
    output_format.print_fields([(name, _text(value)) for name, value in page.items()])


def _progress_page(handle: JobRecord, *, is_final: bool = False) -> dict[str, Any] | None:
    """Return what the code of a job reported of its progress; None where it did not, or it cannot be read here."""
    from kinetic._jobs import activity

    with contextlib.suppress(KineticError):
        return activity.progress_page(activity.progress_of(handle), is_final=is_final)
    return None


def _usage_page(handle: JobRecord) -> dict[str, Any] | None:
    """Return peaks and means of what a job used; None where nothing was measured or can be verified here."""
    from kinetic._jobs import resource_usage

    with contextlib.suppress(KineticError):
        found = resource_usage.usage_of(handle)
        if found.hosts:
            return found.to_dict(samples=False)
    return None


def _usage_text(usage: dict[str, Any] | None) -> str:
    """Return the peaks of a job in one line; of several hosts, those of the one that used most."""
    if not usage:
        return ""
    hosts, peak, size = usage["hosts"], usage["peak"], output_format.size_text
    cores, limit = max(host["cores"] for host in hosts), max(host["memory_limit_bytes"] for host in hosts)
    parts = [f"CPU {peak['cpu_percent']:.0f} % of {100 * cores:.0f} %"]
    if peak["memory_bytes"] is not None:
        parts.append(f"memory {size(peak['memory_bytes'])} of {size(limit)}")
    if devices := hosts[0]["devices"]:
        kind = devices[0]["kind"].upper()
        busy = f" {peak['device_percent']:.0f} %" if peak["device_percent"] is not None else ""
        held = f", its memory {size(peak['device_memory_bytes'])}" if peak["device_memory_bytes"] is not None else ""
        parts.append(f"{kind}{busy}{held} of {size(devices[0]['memory_bytes'])}")
    if peak["disk_used_bytes"] is not None:
        parts.append(f"disk {size(peak['disk_used_bytes'])} of {size(max(host['disk_bytes'] for host in hosts))}")
    return "at most " + ", ".join(parts) + (" (on one host)" if len(hosts) > 1 else "")


def _lock_text(lock: dict[str, Any] | None) -> str:
    """Return how many packages a lock has, and the versions of those that the project names; --json has all."""
    if not lock:
        return ""
    packages = lock["packages"]
    named = [f"{name} {packages[name]}" for name in lock["named"] if packages.get(name)]
    count = output_format.count_text(len(packages), "package")
    return f"{count}, with {', '.join(named)}" if named else count


def _text(value: object) -> str:
    """Return a value of a page for a person; "" when there is none."""
    if isinstance(value, dict):
        of = value.items()
        return ", ".join(f"{name}={each}" if isinstance(each, str) else f"{name} {each:.3f}" for name, each in of)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None or value is False else str(value)


@click.command
@shared_options.job_or_row_argument
@shared_options.json_option
def status(job: JobRecord | Row, as_json: bool) -> None:
    """Print the status of a job.

    One line: the id and PENDING, RUNNING, SUCCEEDED, FAILED or NOT_FOUND; for a collected job, how it ended and
    when it was collected. Why it is pending or failed, or how far a running job is, is printed on standard error.

    Example: kinetic jobs status @last
    """
    from kinetic._jobs.index import Row

    page, advice, stalled = (job.to_json(), "", "") if isinstance(job, Row) else _status_of(job)
    if as_json:
        output_format.print_document(job=page)
        return
    shared_options.print_status(job.job_id, page)
    if reason := page["reason"]:
        click.echo(f"why:   {output_format.plain(reason)}", err=True)
    if page["progress"] and not stalled:
        click.echo(f"done:  {page['progress']['told']}", err=True)
    if stalled:
        click.echo(f"why:   {stalled}\nnext:  kinetic jobs stacks {job.job_id}", err=True)
    if advice:
        click.echo(f"next:  {output_format.plain(advice)}", err=True)
    shared_options.warn_if_unsupervised([Row.of(page, "", None)])


def _status_of(handle: JobRecord) -> tuple[Page, str, str]:
    """Look at a job, and return what is known of it, what to do about it, and why it seems to hang."""
    from kinetic._jobs import status as job_status

    advice, stalled = "", ""
    with output.phase("looking at the job", summary=False):
        seen = job_status.observe(handle)
        page = job_status.job_to_json(handle, seen)
        if page["status"] == "PENDING" and not page["reason"]:  # as of a cluster, which is asked why
            from kinetic._inspect import explanation

            seen, found = explanation.observe_and_explain(handle)
            page, advice = {**job_status.job_to_json(handle, seen), "reason": found.what}, found.next or ""
        page["progress"] = _progress_page(handle) if page["status"] == "RUNNING" else None
    if page["status"] == "RUNNING":
        from kinetic._jobs import activity

        activity.stall_seconds(os.environ)  # raises if it is not a duration
        with contextlib.suppress(KineticError):  # what is measured of it cannot be read here
            stalled = activity.stall_of(handle, os.environ)
    return page, advice, stalled


_INDENT = " " * len("phase: ")


@click.command
@shared_options.job_argument
@shared_options.json_option
def explain(handle: JobRecord, as_json: bool) -> None:
    """Show why a job is pending or failed, and what to do.

    For a pending job: what it waits for, and which jobs use it. For a failed job: the cause, the phase, the last
    lines of its log. The last line is the next command to run.

    Example: kinetic jobs explain @last
    """
    from kinetic._inspect import explanation
    from kinetic._jobs import status as job_status

    with output.phase("looking at the job", summary=False):
        seen, found = explanation.observe_and_explain(handle)
        page = job_status.job_to_json(handle, seen)
    if as_json:
        head = {"job_id": handle.job_id, "function": handle.func_name, "status": page["status"]}
        output_format.print_document(**head, **found._asdict())
        return
    shared_options.print_status(handle.job_id, page)
    parts = {**found._asdict(), "log": "\n".join(found.log)}
    for name, text in parts.items():
        if text:
            first, *others = text.splitlines()
            print(f"{f'{name}:':<{len(_INDENT)}}{first}")
            own = "" if name == "log" else _INDENT  # which our own sentences have in further lines
            print("".join(f"{_INDENT}{line.removeprefix(own)}\n" for line in others), end="")


@click.command
@shared_options.jobs_argument
@shared_options.timeout_option("Stop waiting")
@shared_options.json_option
@click.pass_context
def wait(ctx: click.Context, /, handles: Sequence[JobRecord], timeout: float | None, as_json: bool) -> None:
    """Wait until jobs have ended.

    It prints how each job ended. The exit code is 0 if all succeeded, 125 if one failed, and 124 if the time was
    over before all had ended. Nothing is collected or removed; Ctrl-C only stops waiting.

    Example: kinetic jobs wait @last --timeout 10m
    """
    from kinetic._jobs import status as job_status

    seen = _wait(handles, timeout)
    ended = {
        handle.job_id: job_status.job_to_json(handle, seen[handle.job_id])
        for handle in handles
        if handle.job_id in seen
    }
    late = [handle for handle in handles if handle.job_id not in ended]
    if as_json:
        now = {handle.job_id: job_status.job_to_json(handle, job_status.observe(handle)) for handle in late}
        output_format.print_document(jobs=[(ended | now)[handle.job_id] for handle in handles])
    for job_id, page in ended.items():
        if not as_json:
            shared_options.print_status(job_id, page)
        if page["status"] != "SUCCEEDED":
            click.echo(f"why:   {output_format.plain(str(page['reason'])) or 'it left no result'}", err=True)
            click.echo(f"next:  kinetic jobs explain {job_id}", err=True)
    if late:
        raise _too_late([handle.job_id for handle in late], timeout or 0.0)
    ctx.exit(error_output.JOB_FAILED if any(page["status"] != "SUCCEEDED" for page in ended.values()) else 0)


def _wait(handles: Sequence[JobRecord], timeout: float | None) -> dict[str, Snapshot]:
    """Wait for one after the other; return what was seen of those that ended in time."""
    from kinetic._jobs import wait as job_wait

    limit = None if timeout is None else time.monotonic() + timeout
    seen: dict[str, Snapshot] = {}
    progress = output.Progress()
    try:
        for handle in handles:
            left = None if limit is None else max(limit - time.monotonic(), 0.0)
            with contextlib.suppress(JobTimeoutError):  # the others may have ended long ago
                seen[handle.job_id] = job_wait.wait(handle, timeout=left, progress=progress)
    except KeyboardInterrupt:
        left_over = [handle.job_id for handle in handles if handle.job_id not in seen]
        click.echo(f"\nnot affected: {', '.join(left_over)}", err=True)
        raise
    progress.end()
    return seen


def _too_late(late: Sequence[str], timeout: float) -> JobTimeoutError:
    one = len(late) == 1
    return JobTimeoutError(
        f"{late[0] if one else f'{len(late)} jobs'} {'has' if one else 'have'} not ended within "
        f"{shared_options.duration_argument(timeout)}",
        why="it keeps running" if one else f"they keep running: {', '.join(late)}",
        next=f"kinetic jobs explain {late[0]}",
    )

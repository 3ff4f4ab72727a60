"""``kinetic jobs``: the group, and the two commands that only look: list and status."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from kinetic._cli import options, tables
from kinetic._cli.lazy import Later, LazyGroup, show_help_alone
from kinetic._cli.tables import Column

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.looking import Look

_HERE = "kinetic._cli.commands"
COLUMNS = (
    Column("JOB ID"),
    Column("FUNCTION", spare=2),
    Column("STATUS"),
    Column("REASON", flexible=True, spare=1),
    Column("ACCELERATOR", spare=4),
    Column("WHERE", spare=5),
    Column("CREATED", spare=2),
    Column("DURATION", right=True, spare=3),
)


@click.group(
    cls=LazyGroup,
    later={
        "list": Later(f"{_HERE}.jobs:list_", "List jobs, newest first."),
        "status": Later(f"{_HERE}.jobs:status", "Print the status of a job."),
        "logs": Later(f"{_HERE}.logs:logs", "Print the log of a job."),
        "result": Later(f"{_HERE}.result:result", "Wait for a job and print its value, or save it."),
        "cancel": Later(f"{_HERE}.ending:cancel", "Cancel a job; its log stays."),
        "cleanup": Later(f"{_HERE}.ending:cleanup", "Remove a job and what is stored of it."),
    },
    aliases={"ls": "list"},
    epilog="JOB_ID is a job's id, the beginning of it if only one job begins so, or @last or - for the newest job.",
)
@click.pass_context
def jobs(ctx: click.Context) -> None:
    """Look at jobs, collect them, end them.

    Example: kinetic jobs logs @last --follow
    """
    show_help_alone(ctx)


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that were removed in the last 30 days.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the N newest.")
@click.option("--namespace", metavar="NAME", help="Kubernetes namespace; else KINETIC_NAMESPACE, else the profile.")
@options.where
@options.as_json
def list_(everything: bool, limit: int | None, as_json: bool, **place: str | None) -> None:
    """List jobs, newest first.

    Jobs of this machine and, where the home is shared with other machines, theirs.

    Example: kinetic jobs list --all --limit 20
    """
    pages = _pages(place, everything=everything, limit=limit)
    if as_json:
        tables.document(jobs=pages)
        return
    if pages:
        now = time.time()
        tables.show(COLUMNS, [_cells(page, now) for page in pages])
    else:
        more = "" if everything else "; those that were removed: kinetic jobs list --all"
        click.echo(f"There are no jobs{more}", err=True)
    _say_if_nobody_keeps(pages)


@click.command
@options.on_a_job
@options.as_json
def status(handle: JobHandle, as_json: bool) -> None:
    """Print the status of a job.

    One line: the id and PENDING, RUNNING, SUCCEEDED, FAILED or NOT_FOUND. What a job waits for, or how it failed,
    follows on standard error.

    Example: kinetic jobs status @last
    """
    from kinetic._jobs import listing, looking

    seen = looking.look(handle)
    page = _page(handle, seen)
    if as_json:
        tables.document(job=page)
        return
    print(f"{handle.job_id}: {seen.status.value}")
    if reason := listing.reason_of(seen):
        click.echo(f"why:   {tables.plain(reason)}", err=True)
    _say_if_nobody_keeps([page])


def _pages(place: dict[str, str | None], *, everything: bool, limit: int | None) -> list[dict[str, Any]]:
    """Return what is told of each job, newest first."""
    from kinetic._jobs import finding, listing

    live = listing.newest_first(finding.list_jobs(**place))
    past: list[dict[str, Any]] = []
    if everything:
        alive = {handle.job_id for handle in live}
        past = [_past(page) for page in finding.known().past if page.get("job_id") not in alive]
    pages = [_page(handle, seen) for handle, seen in zip(live[:limit], listing.rows(live[:limit]), strict=True)]
    # sorted() leaves those of one second as they are: live ones first, in the queue's order
    return sorted([*pages, *past], key=lambda page: str(page["created_at"]), reverse=True)[:limit]


def _page(handle: JobHandle, seen: Look) -> dict[str, Any]:
    """Put what was seen of a job into JSON values."""
    from kinetic._jobs import listing

    times = seen.outcome or seen.sighting
    started, ended = (times.started, times.ended) if times else (None, None)
    return {
        "job_id": handle.job_id,
        "function": handle.func_name,
        "status": seen.status.value,
        "reason": listing.reason_of(seen),
        "accelerator": handle.accelerator,
        "backend": handle.backend,
        "where": listing.place_of(handle),
        "attempt": times.attempt if times and started is not None else None,
        "created_at": handle.created_at,
        "removed_at": None,
        **_times(started, ended, running=seen.status.value == "RUNNING"),
    }


def _past(page: dict[str, Any]) -> dict[str, Any]:
    """Put what remains of a removed job into the same values."""
    from kinetic._jobs import places
    from kinetic._wire import names

    here = page.get("host") in {None, places.machine()}
    removed, attempts = page.get("removed"), page.get("attempts")
    return {
        "job_id": str(page.get("job_id", "")),
        "function": str(page.get("func_name", "")),
        "status": str(page.get("status", "")),
        "reason": str(page.get("reason") or ""),
        "accelerator": str(page.get("accelerator", "")),
        "backend": str(page.get("backend", "")),
        "where": "this machine" if here else f"host {page.get('host')}",
        "attempt": attempts - 1 if attempts else None,
        "created_at": str(page.get("created_at", "")),
        "removed_at": names.utc(removed) if removed else None,
        **_times(page.get("started"), page.get("ended"), running=False),
    }


def _times(started: float | None, ended: float | None, *, running: bool) -> dict[str, Any]:
    from kinetic._wire import names

    until = time.time() if running else ended
    return {
        "started_at": names.utc(started) if started else None,
        "ended_at": names.utc(ended) if ended else None,
        "duration_seconds": round(until - started, 3) if started and until else None,
    }


def _cells(page: dict[str, Any], now: float) -> list[str]:
    removed = f"removed {_age(page['removed_at'], now)}" if page["removed_at"] else ""
    return [
        page["job_id"],
        page["function"],
        page["status"],
        "; ".join(filter(None, (page["reason"], removed))),
        page["accelerator"],
        page["where"],
        _age(page["created_at"], now),
        tables.duration(page["duration_seconds"]),
    ]


def _age(written: str, now: float) -> str:
    """Say how long ago a time was that is written as everything durable writes it."""
    from datetime import datetime  # click has it loaded already; strptime would cost 2 ms more

    try:
        return tables.age(now - datetime.fromisoformat(written).timestamp())
    except ValueError:
        return written


def _say_if_nobody_keeps(pages: list[dict[str, Any]]) -> None:
    """Say so when jobs of this machine wait and no process is there that would start them."""
    from kinetic._jobs import listing

    waiting = sum(page["status"] == "PENDING" and page["where"] == "this machine" for page in pages)
    if waiting and not listing.is_kept():
        what = "1 job waits" if waiting == 1 else f"{waiting} jobs wait"
        click.echo(f"{what}, and no keeper is alive: the next command starts one, such as kinetic jobs list", err=True)

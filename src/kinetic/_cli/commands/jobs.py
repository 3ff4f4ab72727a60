"""``kinetic jobs``: the group, and the commands that only look: list, show and status."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kinetic import _output as output
from kinetic._cli import durations, options, tables, tree
from kinetic._cli.lazy import LazyGroup, show_help_alone
from kinetic._cli.tables import Column

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle

STATUSES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "NOT_FOUND", "CANCELLED")
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
    later=tree.below("jobs"),
    aliases={"ls": "list"},
    epilog="JOB_ID is a job's id, the beginning of it if only one job begins so, or @last or - for the newest job.",
)
@click.pass_context
def jobs(ctx: click.Context) -> None:
    """Look at jobs, collect them, end them.

    Example: kinetic jobs logs @last --follow
    """
    show_help_alone(ctx)


class Filters(NamedTuple):
    """Which jobs are meant; all of these must hold.

    Attributes:
        statuses: One of these; none means any.
        function: The name of the function.
        since: Seconds: made no longer ago than this.
        older_than: Seconds: made longer ago than this.
    """

    statuses: frozenset[str] = frozenset()
    function: str | None = None
    since: float | None = None
    older_than: float | None = None

    def may_hold(self, function: str, created_at: str, now: float) -> bool:
        """Say whether a job passes, as far as can be said without looking at it."""
        from kinetic._wire import names

        age = now - (names.moment(created_at) or 0.0)
        return (
            self.function in {None, function}
            and (self.since is None or age <= self.since)
            and (self.older_than is None or age > self.older_than)
        )


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that were removed in the last 30 days.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(STATUSES, case_sensitive=False),
    metavar="STATUS",
    help=f"Only jobs with this status; may be repeated. {', '.join(STATUSES[:-1])}; with --all also {STATUSES[-1]}.",
)
@click.option("--function", metavar="NAME", help="Only jobs of this function.")
@click.option(
    "--since", type=durations.Duration(), metavar="AGE", help="Only jobs made since then, as in 10m, 12h, 7d."
)
@click.option("--older-than", type=durations.Duration(), metavar="AGE", help="Only jobs made before then.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only the N newest.")
@click.option("--namespace", metavar="NAME", help="Kubernetes namespace; else KINETIC_NAMESPACE, else the profile.")
@options.where
@options.as_json
def list_(
    everything: bool,
    statuses: tuple[str, ...],
    function: str | None,
    since: float | None,
    older_than: float | None,
    limit: int | None,
    as_json: bool,
    **place: str | None,
) -> None:
    """List jobs, newest first.

    Jobs of this machine, of others that share its home, and of the cluster that a project or a profile names.

    Example: kinetic jobs list --status failed --since 7d
    """
    filters = Filters(frozenset(statuses), function, since, older_than)
    with output.phase("looking at the jobs", summary=False):
        pages = _pages(place, filters, everything=everything, limit=limit)
    if as_json:
        tables.document(jobs=pages)
        return
    if pages:
        now = time.time()
        tables.show(COLUMNS, [_cells(page, now) for page in pages])
    else:
        which = "There are no jobs" if filters == Filters() else "There are no such jobs"
        more = "" if everything else "; those that were removed: kinetic jobs list --all"
        click.echo(f"{which}{more}", err=True)
    _say_if_nobody_keeps(pages)


@click.command
@options.on_a_job
@options.as_json
def show(handle: JobHandle, as_json: bool) -> None:
    """Show everything that is known of a job.

    What it is, where it runs, how it stands, how long each phase took, and where its outputs are.

    Example: kinetic jobs show @last
    """
    from kinetic._jobs import describing, looking

    with output.phase("looking at the job", summary=False):
        seen = looking.look(handle)
        page = describing.page_of(handle, seen) | describing.more(handle, seen)
    if as_json:
        tables.document(job=page)
        return
    known = {name: text for name, value in page.items() if (text := _text(value))}
    width = max(map(len, known))
    for name, text in known.items():
        print(f"{name:<{width}}  {text}")


@click.command
@options.on_a_job
@options.as_json
def status(handle: JobHandle, as_json: bool) -> None:
    """Print the status of a job.

    One line: the id and PENDING, RUNNING, SUCCEEDED, FAILED or NOT_FOUND; of a job that was collected, how it ended and
    when it was collected. What a job waits for, or how it failed, follows on standard error.

    Example: kinetic jobs status @last
    """
    from kinetic._jobs import describing, looking

    with output.phase("looking at the job", summary=False):
        seen = looking.look(handle)
    page = describing.page_of(handle, seen)
    if as_json:
        tables.document(job=page)
        return
    print(f"{handle.job_id}: {tables.status(page, time.time())}")
    if reason := page["reason"]:
        click.echo(f"why:   {tables.plain(reason)}", err=True)
    _say_if_nobody_keeps([page])


def _pages(
    place: dict[str, str | None], filters: Filters, *, everything: bool, limit: int | None
) -> list[dict[str, Any]]:
    """Return what is told of each job, newest first."""
    from kinetic._jobs import describing, finding, listing

    now = time.time()
    found = finding.known(**place) if everything else None
    every = found.live if found is not None else finding.list_jobs(**place)
    live = [job for job in every if filters.may_hold(job.func_name, job.created_at, now)]
    past = [describing.past(page) for page in found.past] if found is not None else []
    past = [page for page in past if filters.may_hold(page["function"], page["created_at"], now)]
    live = live if filters.statuses else live[:limit]  # the status of a job costs a look at it
    pages = [describing.page_of(handle, seen) for handle, seen in zip(live, listing.rows(live), strict=True)]
    shown = [page for page in (*pages, *past) if not filters.statuses or page["status"] in filters.statuses]
    if found is not None:
        place_of = {job_id: place for place, job_id in enumerate(found.order)}
        shown.sort(key=lambda page: place_of[page["job_id"]])
    return shown[:limit]


def _text(value: object) -> str:
    """Return a value of a page for a person; "" when there is none."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {seconds:.3f}" for name, seconds in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None or value is False else tables.plain(str(value))


def _cells(page: dict[str, Any], now: float) -> list[str]:
    what = "collected" if page["collected_at"] else "removed"
    removed = f"{what} {_age(page['removed_at'], now)}" if page["removed_at"] else ""
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
    from kinetic._wire import names

    moment = names.moment(written)
    return written if moment is None else tables.age(now - moment)


def _say_if_nobody_keeps(pages: list[dict[str, Any]]) -> None:
    """Say so when jobs of this machine wait and no process is there that would start them."""
    from kinetic._jobs import listing

    waiting = sum(page["status"] == "PENDING" and page["where"] == "this machine" for page in pages)
    if waiting and not listing.is_kept():
        what = "1 job waits" if waiting == 1 else f"{waiting} jobs wait"
        click.echo(f"{what}, and no keeper is alive: the next command starts one, such as kinetic jobs list", err=True)

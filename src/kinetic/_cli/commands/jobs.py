"""``kinetic jobs``: the group, and the commands that only look: list, show and status."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from kinetic import _output as output
from kinetic._cli import durations, job_table, options, tables, tree
from kinetic._cli.job_table import Filters
from kinetic._cli.lazy import LazyGroup, show_help_alone
from kinetic._output.format import table_lines
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle

STATUSES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "NOT_FOUND", "CANCELLED")
_WATCH_SECONDS = 2.0


@click.group(
    cls=LazyGroup,
    later=tree.below("jobs"),
    aliases={"ls": "list"},
    epilog="JOB_ID is the id of a job, a unique beginning of it, or @last or - for the newest job.",
)
@click.pass_context
def jobs(ctx: click.Context) -> None:
    """List, inspect, collect and cancel jobs.

    Example: kinetic jobs logs @last --follow
    """
    show_help_alone(ctx)


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="Also show jobs that were removed in the last 30 days.")
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(STATUSES, case_sensitive=False),
    metavar="STATUS",
    help=f"Show only jobs with this status; repeatable. {', '.join(STATUSES[:-1])}; with --all also {STATUSES[-1]}.",
)
@click.option("--function", metavar="NAME", help="Show only jobs of this function.")
@click.option("--name", metavar="PATTERN", help="Show only jobs of batches with this name, such as 'sweep-*'.")
@click.option("--tag", "tags", multiple=True, metavar="KEY[=VALUE]", help="Show only jobs of batches with this tag.")
@click.option(
    "--where",
    metavar="TEXT",
    help="Show only jobs whose WHERE column contains this text, such as 'this machine' or a cluster.",
)
@click.option(
    "--since",
    type=durations.Duration(),
    metavar="AGE",
    help="Show only jobs submitted within this time, such as 10m, 12h or 7d.",
)
@click.option(
    "--older-than", type=durations.Duration(), metavar="AGE", help="Show only jobs submitted longer ago than this."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show only the first N rows.")
@click.option(
    "--sort",
    type=click.Choice([*job_table.SORTS]),
    default="age",
    help="Sort by this column.  [default: age, newest first]",
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--children", is_flag=True, help="Show each job of a batch instead of one row for the batch.")
@click.option("--watch", is_flag=True, help="Refresh the table every two seconds, until Ctrl-C.")
@click.option("--namespace", metavar="NAME", help="Kubernetes namespace.  [default: KINETIC_NAMESPACE, or the profile]")
@options.where
@options.as_json
def list_(
    everything: bool,
    statuses: tuple[str, ...],
    function: str | None,
    name: str | None,
    tags: tuple[str, ...],
    where: str | None,
    since: float | None,
    older_than: float | None,
    limit: int | None,
    sort: str,
    reverse: bool,
    children: bool,
    watch: bool,
    as_json: bool,
    **place: str | None,
) -> None:
    """List jobs, newest first.

    Jobs of this machine, of machines with the same home, and of the configured cluster. The jobs
    of a batch are one row; --children shows each of them, and --json always has all of them.

    Example: kinetic jobs list --status failed --since 7d
    """
    filters = Filters(frozenset(statuses), function, since, older_than, name, tags, where)
    wanted = _Wanted(place, filters, everything, limit, sort, reverse, children or as_json)
    if watch:
        _watch(wanted, as_json=as_json)
    with output.phase("looking at the jobs", summary=False):
        pages = _pages(wanted)
    if as_json:
        tables.document(jobs=pages)
        return
    if pages:
        now = time.time()
        tables.show(job_table.COLUMNS, [job_table.cells(page, now) for page in pages])
    else:
        which = "There are no jobs" if filters == Filters() else "There are no matching jobs"
        more = "" if everything else "; for removed jobs: kinetic jobs list --all"
        click.echo(f"{which}{more}", err=True)
    _say_if_nobody_keeps(pages)


class _Wanted(NamedTuple):
    """What the user wants to see."""

    place: dict[str, str | None]
    filters: Filters
    everything: bool
    limit: int | None
    sort: str
    reverse: bool
    children: bool


class _Screen:
    """Owns what --watch shows."""


def _watch(wanted: _Wanted, *, as_json: bool) -> NoReturn:
    """Show the table anew until Ctrl-C.

    Raises:
        OptionError: There is no terminal to show it on, or JSON is wanted.
    """
    import shutil

    from kinetic._output import live
    from kinetic.errors import OptionError

    if as_json or not live.is_possible():
        raise OptionError(
            "--watch cannot be used here",
            why="--json prints one document" if as_json else "standard error is not a terminal",
            next="kinetic jobs list" + (" --json" if as_json else ""),
        )
    screen = _Screen()
    try:
        while True:
            now, pages = time.time(), _pages(wanted)
            rows = [job_table.cells(page, now) for page in pages]
            width = shutil.get_terminal_size().columns - 1
            shown = table_lines(job_table.COLUMNS, rows, columns_wide=width) if rows else ["There are no matching jobs"]
            live.show_lines(shown, owner=screen)
            time.sleep(_WATCH_SECONDS)
    finally:
        live.release(screen)


@click.command
@options.on_a_job
@options.as_json
def show(handle: JobHandle, as_json: bool) -> None:
    """Show all details of a job.

    The function, where it runs, its status, the duration of each phase, and its output folder.

    Example: kinetic jobs show @last
    """
    from kinetic._jobs import describing
    from kinetic._jobs.status import observe

    with output.phase("looking at the job", summary=False):
        seen = observe(handle)
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

    One line: the id and PENDING, RUNNING, SUCCEEDED, FAILED or NOT_FOUND; for a collected job, how it ended and
    when it was collected. The reason why it is pending or failed is printed on standard error.

    Example: kinetic jobs status @last
    """
    from kinetic._jobs import describing
    from kinetic._jobs.status import observe

    with output.phase("looking at the job", summary=False):
        seen = observe(handle)
    page = describing.page_of(handle, seen)
    if as_json:
        tables.document(job=page)
        return
    print(f"{handle.job_id}: {tables.status(page, time.time())}")
    if reason := page["reason"]:
        click.echo(f"why:   {tables.plain(reason)}", err=True)
    _say_if_nobody_keeps([page])


def _pages(wanted: _Wanted) -> list[dict[str, Any]]:
    """Return what is told of each job, in the order of the rows."""
    from kinetic._jobs import describing, finding, places
    from kinetic._jobs.status import observe_many

    now, filters = time.time(), wanted.filters
    found = finding.known(**wanted.place) if wanted.everything else None
    every = found.live if found is not None else finding.list_jobs(**wanted.place)
    live = [job for job in every if filters.may_hold(job.func_name, job.created_at, now)]
    urls = {store: places.store_of(job).url for store, job in {job.store: job for job in live}.items()}
    stores = {job.job_id: urls[job.store] for job in live}
    past = []
    for page in found.past if found is not None else ():
        with _told_of(str(page.get("job_id"))):
            told = describing.past(page)
            if filters.may_hold(told["function"], told["created_at"], now):
                past.append(told)
                stores[told["job_id"]] = str(page.get("store") or "")
    is_plain = wanted.children and wanted.sort == "age" and not wanted.reverse
    if is_plain and filters._replace(function=None, since=None, older_than=None) == Filters():
        live = live[: wanted.limit]  # the status of a job costs a look at it
    shown = []
    for handle, seen in zip(live, observe_many(live, from_index=True), strict=True):
        with _told_of(handle.job_id):
            shown.append(describing.page_of(handle, seen))
    shown += past
    if found is not None:
        order = {job_id: number for number, job_id in enumerate(found.order)}
        shown.sort(key=lambda page: order[page["job_id"]])
    groups = job_table.groups_of(shown, stores) if filters.needs_groups or not wanted.children else {}
    shown = [page for page in shown if filters.holds(page, groups.get(page["group_id"] or ""))]
    if not wanted.children:
        shown = job_table.folded(shown, groups)
    return job_table.sorted_by(shown, wanted.sort, reverse=wanted.reverse)[: wanted.limit]


@contextmanager
def _told_of(job_id: str) -> Iterator[None]:
    """Let a job that cannot be told of cost a line that names it, and no other job."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as above
        what = error.what if isinstance(error, KineticError) else f"{type(error).__name__}: {error}"
        click.echo(f"warning: {job_id} is not listed: {tables.plain(what)}", err=True)


def _text(value: object) -> str:
    """Return a value of a page for a person; "" when there is none."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {seconds:.3f}" for name, seconds in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None or value is False else tables.plain(str(value))


def _say_if_nobody_keeps(pages: list[dict[str, Any]]) -> None:
    """Say so when jobs of this machine wait and no process is there that would start them."""
    from kinetic._jobs import places

    waiting = sum(page["status"] == "PENDING" and page["where"] == "this machine" for page in pages)
    if waiting and not places.is_supervised():
        what = "1 job is pending" if waiting == 1 else f"{waiting} jobs are pending"
        click.echo(
            f"{what}, and no supervisor is running: the next command starts one, such as kinetic jobs list", err=True
        )

"""``kinetic jobs``: the group, and the commands that only read: list, show, status, explain and wait."""

from __future__ import annotations

import contextlib
import fnmatch
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from kinetic._cli import error_output, shared_options
from kinetic._cli.command_tree import LazyGroup
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column, age_text, count_text, duration_cell, table_lines
from kinetic.errors import JobTimeoutError, KineticError, OptionError

if TYPE_CHECKING:
    from kinetic._jobs.handle import JobHandle
    from kinetic._jobs.status import Snapshot
    from kinetic._wire.records import Group

Page = dict[str, Any]
COLUMNS = (
    Column("JOB ID"),
    Column("FUNCTION", spare=2),
    Column("STATUS"),
    Column("REASON", flexible=True, spare=1),
    Column("ACCELERATOR", spare=4),
    Column("WHERE", spare=5),
    Column("AGE", spare=2),
    Column("DURATION", right=True, spare=3),
)
_COST = Column("COST", right=True)
STATUSES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "NOT_FOUND", "CANCELLED")
_BATCH_STATUSES = ("RUNNING", "PENDING", "FAILED", "CANCELLED", "SUCCEEDED", "NOT_FOUND")  # the first that a job has
# What --sort takes, and whether its largest value comes first.
SORTS = {"age": True, "duration": True, "status": False, "function": False, "accelerator": False, "where": False}
_WATCH_SECONDS = 2.0


@click.group(
    cls=LazyGroup,
    path=["jobs"],
    aliases={"ls": "list"},
    epilog="JOB_ID is the id of a job, a unique beginning of it, or @last or - for the newest job.",
)
def jobs() -> None:
    """List, inspect, collect and cancel jobs.

    Example: kinetic jobs logs @last --follow
    """


class Filters(NamedTuple):
    """Which jobs are listed: those that pass every filter. `since` and `older_than` are ages in seconds."""

    statuses: tuple[str, ...] = ()
    function: str | None = None
    since: float | None = None
    older_than: float | None = None
    name: str | None = None  # a pattern for the name of the job's batch
    tags: tuple[str, ...] = ()  # of the job's batch, as KEY=VALUE or KEY
    where: str | None = None  # part of the WHERE column

    def may_match(self, function: str, created_at: str, now: float) -> bool:
        """Return whether a job may pass, before its status is read."""
        if self.function not in {None, function}:
            return False
        if self.since is None and self.older_than is None:
            return True
        from kinetic._wire import keys

        age = now - (keys.parse_utc(created_at) or 0.0)
        return (self.since is None or age <= self.since) and (self.older_than is None or age > self.older_than)

    def matches(self, page: Page, group: Group | None) -> bool:
        """Return whether a job passes whose status was read; `group` is the manifest of its batch."""
        tags = group.tags if group is not None else {}
        known = {*tags, *(f"{name}={value}" for name, value in tags.items())}
        group_name = (group.group_name if group is not None else None) or ""
        return (
            (not self.statuses or page["status"] in self.statuses)
            and (self.name is None or fnmatch.fnmatchcase(group_name, self.name))
            and known.issuperset(self.tags)
            and (self.where is None or self.where.lower() in page["where"].lower())
        )


class _ListRequest(NamedTuple):
    place: dict[str, str | None]
    filters: Filters
    everything: bool
    limit: int | None
    sort: str
    reverse: bool
    children: bool
    cost: bool


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
    type=shared_options.Duration(),
    metavar="AGE",
    help="Show only jobs submitted within this time, such as 10m, 12h or 7d.",
)
@click.option(
    "--older-than", type=shared_options.Duration(), metavar="AGE", help="Show only jobs submitted longer ago than this."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show only the first N rows.")
@click.option(
    "--sort", type=click.Choice([*SORTS]), default="age", help="Sort by this column.  [default: age, newest first]"
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--children", is_flag=True, help="Show each job of a batch instead of one row for the batch.")
@click.option("--cost", is_flag=True, help="Also show what each job cost so far, at list price.")
@click.option("--watch", is_flag=True, help="Refresh the table every two seconds, until Ctrl-C.")
@click.option("--namespace", metavar="NAME", help="Kubernetes namespace.  [default: KINETIC_NAMESPACE, or the profile]")
@shared_options.place_options
@shared_options.json_option
def list_(watch: bool, as_json: bool, **given: Any) -> None:
    """List jobs, newest first.

    Jobs of this machine, of machines with the same home, and of the configured cluster. The jobs
    of a batch are one row; --children shows each of them, and --json always has all of them.
    --cost shows dollars for the time that functions ran on GPUs and TPUs; Google's bill also has the nodes' other time.

    Example: kinetic jobs list --status failed --since 7d
    """
    place = {name: given.pop(name) for name in ("project", "zone", "cluster", "namespace")}
    filters = Filters(**{name: given.pop(name) for name in Filters._fields})
    children, everything = given.pop("children") or as_json, given["everything"]
    request = _ListRequest(place, filters, children=children, **given)
    if watch:
        _watch(request, as_json=as_json)
    with output.phase("looking at the jobs", summary=False):
        pages = _pages(request)
    if as_json:
        output_format.print_document(jobs=pages)
        return
    if pages:
        now = time.time()
        columns, rows = _table(pages, now, cost=request.cost)
        output_format.print_table(columns, rows)
    else:
        which = "There are no jobs" if filters == Filters() else "There are no matching jobs"
        more = "" if everything else "; for removed jobs: kinetic jobs list --all"
        click.echo(f"{which}{more}", err=True)
    _warn_if_unsupervised(pages)


class _Screen:
    """Owns what --watch shows."""


def _watch(request: _ListRequest, *, as_json: bool) -> NoReturn:
    """Refresh the table until Ctrl-C."""
    import shutil

    from kinetic._output import terminal

    if as_json or not terminal.is_possible():
        raise OptionError(
            "--watch cannot be used here",
            why="--json prints one document" if as_json else "standard error is not a terminal",
            next="kinetic jobs list" + (" --json" if as_json else ""),
        )
    screen = _Screen()
    try:
        while True:
            now, pages = time.time(), _pages(request)
            columns, rows = _table(pages, now, cost=request.cost)
            width = shutil.get_terminal_size().columns - 1
            shown = table_lines(columns, rows, columns_wide=width) if rows else ["There are no matching jobs"]
            terminal.show_lines(shown, owner=screen)
            time.sleep(_WATCH_SECONDS)
    finally:
        terminal.release(screen)


def _table(pages: list[Page], now: float, *, cost: bool) -> tuple[tuple[Column, ...], list[list[str]]]:
    """Return columns and rows, with what jobs cost at the end where that was asked for."""
    rows = [cells(page, now) for page in pages]
    if not cost:
        return COLUMNS, rows
    from kinetic._jobs.cost import dollars_text

    return (*COLUMNS, _COST), [[*row, dollars_text(page["dollars"])] for row, page in zip(rows, pages, strict=True)]


def _pages(request: _ListRequest) -> list[Page]:
    """Return what is known of each job, in the order of the rows."""
    from kinetic._jobs import find, locate
    from kinetic._jobs import status as job_status

    now, filters = time.time(), request.filters
    known = find.list_with_history(**request.place) if request.everything else None
    every = known.live if known is not None else find.list_jobs(**request.place)
    live = [job for job in every if filters.may_match(job.func_name, job.created_at, now)]
    urls = {store: locate.store_of(job).url for store, job in {job.store: job for job in live}.items()}
    stores = {job.job_id: urls[job.store] for job in live}
    zones = {job.job_id: job.zone for job in live}
    past = []
    for entry in known.past if known is not None else ():
        with shared_options.warn_if_unlisted(str(entry.get("job_id"))):
            page = job_status.history_to_json(entry)
            if filters.may_match(page["function"], page["created_at"], now):
                past.append(page)
                zones[page["job_id"]] = str(entry.get("zone") or "")
                stores[page["job_id"]] = str(entry.get("store") or "")
    in_order = request.children and request.sort == "age" and not request.reverse
    if in_order and filters._replace(function=None, since=None, older_than=None) == Filters():
        live = live[: request.limit]  # before their status is read, which takes time
    shown = []
    for handle, seen in zip(live, job_status.observe_many(live, from_index=True), strict=True):
        with shared_options.warn_if_unlisted(handle.job_id):
            shown.append(job_status.job_to_json(handle, seen))
    shown += past
    if known is not None:
        order = {job_id: number for number, job_id in enumerate(known.order)}
        shown.sort(key=lambda page: order[page["job_id"]])
    needs_groups = filters.name is not None or filters.tags or not request.children
    groups = _groups_of(shown, stores) if needs_groups else {}
    shown = [page for page in shown if filters.matches(page, groups.get(page["group_id"] or ""))]
    if request.cost:
        shown = _with_dollars(shown, zones)
    if not request.children:
        shown = fold_batches(shown, groups)
    return _sorted(shown, request.sort, reverse=request.reverse)[: request.limit]


def _with_dollars(pages: Sequence[Page], zones: Mapping[str, str]) -> list[Page]:
    """Add what each job cost so far; `zones` has the zone of each."""
    import os

    from kinetic._jobs import cost

    rates = cost.kept_rates(os.environ)
    return [{**page, "dollars": cost.dollars_of(page, zones.get(page["job_id"], ""), rates)} for page in pages]


def _groups_of(pages: Sequence[Page], stores: Mapping[str, str]) -> dict[str, Group]:
    """Read the manifests of the jobs' batches; `stores` has the URL of each job's store."""
    wanted = {page["group_id"]: stores.get(page["job_id"]) for page in pages if page["group_id"]}
    if not wanted:
        return {}
    from kinetic._batches import state
    from kinetic._stores import open_store

    found: dict[str, Group] = {}
    for group_id, store in wanted.items():
        with contextlib.suppress(KineticError):  # cleaned up meanwhile, or damaged: its jobs are shown all the same
            if store:
                found[group_id] = state.load_group(open_store(store), group_id)
    return found


def _sorted(pages: list[Page], column: str, *, reverse: bool) -> list[Page]:
    """Sort rows by a column; equal rows stay newest first."""
    if column == "age":
        return pages[::-1] if reverse else pages

    def value(page: Page) -> Any:
        return page["duration_seconds"] or 0.0 if column == "duration" else str(page[column])

    return sorted(pages, key=value, reverse=SORTS[column] != reverse)


def fold_batches(pages: Sequence[Page], groups: Mapping[str, Group]) -> list[Page]:
    """Put the jobs of each batch into one row, in the place of the newest of them."""
    children: dict[str | None, list[Page]] = {}
    for page in pages:
        children.setdefault(page["group_id"], []).append(page)
    shown: list[Page] = []
    for page in pages:
        group_id = page["group_id"]
        if not group_id:
            shown.append(page)
        elif group_id in children:
            shown.append(_batch_row(group_id, children.pop(group_id), groups.get(group_id)))
    return shown


def _batch_row(group_id: str, pages: Sequence[Page], group: Group | None) -> Page:
    counts = Counter(page["status"] for page in pages)
    total = group.total_expected if group is not None else len(pages)
    jobs_ = count_text(total, "job") if total == len(pages) else f"{len(pages)} of {count_text(total, 'job')}"
    name = f" of {group.group_name}" if group is not None and group.group_name else ""
    summary = ", ".join(f"{counts[word]} {word}" for word in _BATCH_STATUSES if counts[word])
    started, ended = [page["started_at"] for page in pages], [page["ended_at"] for page in pages]
    dollars = [page["dollars"] for page in pages if page.get("dollars") is not None]
    return {
        **pages[0],
        **({"dollars": sum(dollars) if dollars else None} if "dollars" in pages[0] else {}),
        "job_id": group_id,
        "status": next((word for word in _BATCH_STATUSES if counts[word]), pages[0]["status"]),
        "reason": f"batch: {jobs_}{name}: {summary}",
        "created_at": min(page["created_at"] for page in pages),
        "collected_at": None,
        "removed_at": None,
        "duration_seconds": _duration_of(list(filter(None, started)), ended),
    }


def _duration_of(started: Sequence[str], ended: Sequence[str | None]) -> float | None:
    """Return the seconds from the first start to the last end; None while something has not ended."""
    from kinetic._wire import keys

    first, last = keys.parse_utc(min(started, default="")), keys.parse_utc(max(filter(None, ended), default=""))
    return max(last - first, 0.0) if first is not None and last is not None and all(ended) else None


def cells(page: Page, now: float) -> list[str]:
    """Return the row of a job or a batch."""
    verb = "collected" if page["collected_at"] else "removed"
    removed = f"{verb} {_age(page['removed_at'], now)} ago" if page["removed_at"] else ""
    emulation = f" ({page['emulation']})" if page["emulation"] else ""
    return [
        page["job_id"],
        page["function"],
        page["status"],
        "; ".join(filter(None, (page["reason"], removed))),
        page["accelerator"] + emulation,
        page["where"],
        _age(page["created_at"], now),
        duration_cell(page["duration_seconds"]),
    ]


def _age(written: str, now: float) -> str:
    from kinetic._wire import keys

    moment = keys.parse_utc(written)
    return written if moment is None else age_text(now - moment)


def _warn_if_unsupervised(pages: list[Page]) -> None:
    """Warn when jobs of this machine wait and no process is there that would start them."""
    from kinetic._jobs import locate

    waiting = sum(page["status"] == "PENDING" and page["where"] == "this machine" for page in pages)
    if waiting and not locate.is_supervised():
        what = "1 job is pending" if waiting == 1 else f"{waiting} jobs are pending"
        click.echo(
            f"{what}, and no supervisor is running: the next command starts one, such as kinetic jobs list", err=True
        )


@click.command
@shared_options.job_argument
@shared_options.json_option
def show(handle: JobHandle, as_json: bool) -> None:
    """Show all details of a job.

    The function, where it runs, its status, the duration of each phase, its output folder, and what it cost so far:
    the list price of its hardware while its function ran.

    Example: kinetic jobs show @last
    """
    import os

    from kinetic._jobs import cost
    from kinetic._jobs import status as job_status

    with output.phase("looking at the job", summary=False):
        seen = job_status.observe(handle)
        page = job_status.job_to_json(handle, seen) | job_status.details_of(handle, seen)
        rates, spot = cost.kept_rates(os.environ), job_status.is_spot(handle)
        page["dollars"] = cost.dollars_of(page, handle.zone, rates, spot=spot)
    if as_json:
        output_format.print_document(job=page)
        return
    page["dollars"] = cost.dollars_text(page["dollars"])
    page["lock"] = _lock_text(page["lock"])
    output_format.print_fields([(name, _text(value)) for name, value in page.items()])


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
        return ", ".join(f"{name} {seconds:.3f}" for name, seconds in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None or value is False else str(value)


@click.command
@shared_options.job_argument
@shared_options.json_option
def status(handle: JobHandle, as_json: bool) -> None:
    """Print the status of a job.

    One line: the id and PENDING, RUNNING, SUCCEEDED, FAILED or NOT_FOUND; for a collected job, how it ended and
    when it was collected. The reason why it is pending or failed is printed on standard error.

    Example: kinetic jobs status @last
    """
    from kinetic._jobs import status as job_status

    with output.phase("looking at the job", summary=False):
        seen = job_status.observe(handle)
    page = job_status.job_to_json(handle, seen)
    if as_json:
        output_format.print_document(job=page)
        return
    print(f"{handle.job_id}: {output_format.status_text(page, time.time())}")
    if reason := page["reason"]:
        click.echo(f"why:   {output_format.plain(reason)}", err=True)
    _warn_if_unsupervised([page])


_INDENT = " " * len("phase: ")


@click.command
@shared_options.job_argument
@shared_options.json_option
def explain(handle: JobHandle, as_json: bool) -> None:
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
    print(f"{handle.job_id}: {output_format.status_text(page, time.time())}")
    parts = {**found._asdict(), "log": "\n".join(found.log)}
    for name, text in parts.items():
        if text:
            first, *others = text.splitlines()
            print(f"{f'{name}:':<{len(_INDENT)}}{first}")
            print("".join(f"{_INDENT}{line.removeprefix(_INDENT)}\n" for line in others), end="")


@click.command
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...", shell_complete=shared_options.complete_jobs)
@shared_options.timeout_option("Stop waiting")
@shared_options.place_options
@shared_options.json_option
@click.pass_context
def wait(
    ctx: click.Context, /, job_ids: tuple[str, ...], timeout: float | None, as_json: bool, **place: str | None
) -> None:
    """Wait until jobs have ended.

    It prints how each job ended. The exit code is 0 if all succeeded, 125 if one failed, and 124 if the time was
    over before all had ended. Nothing is collected or removed; Ctrl-C only stops waiting.

    Example: kinetic jobs wait @last --timeout 10m
    """
    from kinetic._jobs import status as job_status

    handles = [shared_options.find_job(job_id, **place) for job_id in job_ids]
    handles = list({handle.job_id: handle for handle in handles}.values())
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
            print(f"{job_id}: {output_format.status_text(page, time.time())}")
        if page["status"] != "SUCCEEDED":
            click.echo(f"why:   {output_format.plain(str(page['reason'])) or 'it left no result'}", err=True)
            click.echo(f"next:  kinetic jobs explain {job_id}", err=True)
    if late:
        raise _too_late([handle.job_id for handle in late], timeout or 0.0)
    ctx.exit(error_output.JOB_FAILED if any(page["status"] != "SUCCEEDED" for page in ended.values()) else 0)


def _wait(handles: Sequence[JobHandle], timeout: float | None) -> dict[str, Snapshot]:
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

"""``kinetic jobs list``: which jobs are shown, the jobs of a batch as one row, and the columns."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from kinetic._backends import registry
from kinetic._cli import shared_options
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column, age_text, count_text, duration_cell
from kinetic._wire import NamedTuple, keys
from kinetic.errors import KineticError, OptionError

if TYPE_CHECKING:
    from kinetic._batches.report import BatchState
    from kinetic._config.target import Target
    from kinetic._jobs.index import Row
    from kinetic._jobs.job_list import Job
    from kinetic._wire.records import Group

COLUMNS = (
    Column("JOB ID"),
    Column("FUNCTION", spare=2),
    Column("STATUS", is_status=True),
    Column("REASON", flexible=True, spare=1),
    Column("ACCELERATOR", spare=4),
    Column("WHERE", spare=5),
    Column("AGE", spare=2),
    Column("DURATION", right=True, spare=3),
)
_COST = Column("COST", right=True)
_STATUSES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "NOT_FOUND", "CANCELLED")
_BATCH_STATUSES = ("RUNNING", "PENDING", "FAILED", "CANCELLED", "SUCCEEDED", "NOT_FOUND")  # the first that a job has
# What --sort takes, and whether its largest value comes first.
_SORTS = {"age": True, "duration": True, "status": False, "function": False, "accelerator": False, "where": False}
_ABANDONED = "not submitted, and no process does it"
_WATCH_SECONDS = 2.0
_MOST_TRIED = 10_000  # attempts at one input whose order is looked for


class Filters(NamedTuple):
    """Which jobs are listed: those that pass every filter. `since` and `older_than` are ages in seconds."""

    statuses: tuple[str, ...] = ()
    function: str | None = None
    since: float | None = None
    older_than: float | None = None
    name: str | None = None  # a pattern for the name of the job or its batch
    tags: tuple[str, ...] = ()  # of the job or its batch, as KEY=VALUE or KEY
    where: str | None = None  # part of the WHERE column
    namespace: str | None = None  # of a cluster

    def may_match(self, function: str, created: float, now: float) -> bool:
        """Return whether a job may pass, before its status is read; it was made at this Unix time."""
        if self.function not in {None, function}:
            return False
        age = now - created
        return (self.since is None or age <= self.since) and (self.older_than is None or age > self.older_than)

    def late(self) -> Filters:
        """Return the filters that need the status of a job, or its batch."""
        return self._replace(function=None, since=None, older_than=None)

    def matches(self, row: Row, group: Group | None) -> bool:
        """Return whether a job passes whose status was read; `group` is the manifest of its batch."""
        return (
            self.is_named((row.name, row.tags) if group is None else (group.group_name, group.tags))
            and (not self.statuses or row.status in self.statuses or _shown_status(row) in self.statuses)
            and (self.where is None or self.where.lower() in row.where.lower())
            and (self.namespace is None or registry.is_here(row.backend) or row.where.endswith(f"/{self.namespace}"))
        )

    def is_named(self, named: tuple[str | None, Mapping[str, str] | None]) -> bool:
        """Return whether a job, or the batch that it is of, has the name and the tags."""
        name, tags = named[0] or "", named[1] or {}
        if self.name is not None:
            from fnmatch import fnmatchcase

            if not name or not fnmatchcase(name, self.name):  # the name of a variable that is not set, or "$PREFIX*"
                return False
        return {*tags, *(f"{key}={value}" for key, value in tags.items())}.issuperset(self.tags)


_ALL = Filters()


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
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also show jobs that were collected, cancelled or removed in the last 30 days.",
)
@click.option(
    "--status",
    "statuses",
    multiple=True,
    type=click.Choice(_STATUSES, case_sensitive=False),
    metavar="STATUS",
    help=f"Show only jobs with this status; repeatable. {', '.join(_STATUSES[:-1])}; with --all also {_STATUSES[-1]}.",
)
@shared_options.filter_options("Show only")
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
    "--sort", type=click.Choice([*_SORTS]), default="age", help="Sort by this column.  [default: age, newest first]"
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--children", is_flag=True, help="Show each job of a batch instead of one row for the batch.")
@click.option("--cost", is_flag=True, help="Also show what each job cost so far, at list price.")
@click.option("-w", "--watch", is_flag=True, help="Refresh the table every two seconds, until Ctrl-C.")
@click.option("--namespace", metavar="NAME", help="Of clusters, show only jobs in this Kubernetes namespace.")
@shared_options.place_options
@shared_options.json_option
def list_(watch: bool, as_json: bool, **given: Any) -> None:
    """List jobs, newest first.

    Jobs of this machine, of machines with the same home, and of the configured cluster. The jobs
    of a batch are one row; --children shows each of them, and --json always has all of them.
    --cost shows dollars for the time that functions ran on GPUs and TPUs; Google's bill also has the nodes' other time.

    Example: kinetic jobs list --status failed --since 7d
    """
    place = {name: given.pop(name) for name in ("project", "zone", "cluster")} | {"namespace": given["namespace"]}
    filters = Filters(**{name: given.pop(name) for name in Filters._fields})
    children, everything = given.pop("children") or as_json, given["everything"]
    request = _ListRequest(place, filters, children=children, **given)
    if watch:
        _watch(request, as_json=as_json)
    with output.phase("looking at the jobs", summary=False):
        rows, unread = _readable_rows(request)
    if as_json:
        output_format.print_document(jobs=[_page(row, cost=request.cost) for row in rows])
    elif rows:
        output_format.print_table(*_table(rows, time.time(), cost=request.cost))
    else:
        which = "There are no matching jobs"
        if filters == _ALL:
            from kinetic._jobs import job_list  # loaded already

            unlisted = job_list.has_unlisted(shared_options.target_of(place))  # a warning has named them
            which = "No jobs are listed" if unlisted else "There are no jobs"
        more = "" if everything else "; for removed jobs: kinetic jobs list --all"
        click.echo(f"{which}{more}", err=True)
        if filters == _ALL:
            listed = "kinetic jobs list --all" if everything else "kinetic jobs list"
            shared_options.report_store_elsewhere(shared_options.target_of(place), listed)
    if unread is not None:
        raise unread
    if not as_json:
        left = [row.job_id for row in rows if row.reason.endswith(_ABANDONED)]
        shared_options.report_partly_submitted(left)
        shared_options.warn_if_unsupervised([row for row in rows if row.job_id not in left])


class _Screen:
    """Owns what --watch shows; a plain object could not be referred to weakly."""


def _watch(request: _ListRequest, *, as_json: bool) -> NoReturn:
    """Refresh the table until Ctrl-C."""
    if as_json or not output.is_possible():
        raise OptionError(
            "--watch cannot be used here",
            why="--json prints one document" if as_json else "standard error is not a terminal that can rewrite a line",
            next=shared_options.typed_again(without=("-w", "--watch")),
        )
    screen = _Screen()
    try:
        while True:
            rows, unread = _readable_rows(request)
            columns, shown = _table(rows, time.time(), cost=request.cost)
            lines = _lines_that_fit(columns, shown, [unread.what] if unread is not None else [])
            output.show_lines(lines, owner=screen)
            time.sleep(_WATCH_SECONDS)
    finally:
        output.release(screen)


def _lines_that_fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], notes: list[str]) -> list[str]:
    """Return as many rows as the terminal has room for, and what it has no room for in the last lines."""
    if not rows:
        return ["There are no matching jobs", *notes]
    size = output.size()
    room = max(size.lines - 3 - len(notes), 1)  # without headings, cursor, and what is said of columns
    if len(rows) > room:
        room = max(room - 1, 1)
        notes = [f"and {output_format.count_text(len(rows) - room, 'more row')}", *notes]
    shown, width = rows[:room], size.columns - 1
    if hidden := output_format.left_out(columns, shown, width):
        notes.append(f"the terminal is too narrow for {hidden}")
    return [*output_format.live_table_lines(columns, shown, width), *notes]


def _page(row: Row, *, cost: bool) -> dict[str, Any]:
    return row.to_json() | ({"dollars": row.dollars} if cost else {})


def _table(rows: Sequence[Row], now: float, *, cost: bool) -> tuple[tuple[Column, ...], Sequence[Sequence[str]]]:
    """Return columns and rows, with what jobs cost at the end where that was asked for."""
    shown = cells(rows, now)
    if not cost:
        return COLUMNS, shown
    from kinetic._jobs.job_cost import dollars_text

    return (*COLUMNS, _COST), [[*texts, dollars_text(row.dollars)] for texts, row in zip(shown, rows, strict=True)]


def _readable_rows(request: _ListRequest) -> tuple[list[Row], KineticError | None]:
    """Return what is known of each job, or of this machine's alone and why; see ``job_list.readable``."""
    from kinetic._jobs import job_list

    return job_list.readable(shared_options.target_of(request.place), functools.partial(_rows, request))


def _rows(request: _ListRequest, target: Target) -> list[Row]:
    """Return what is known of each job, in the order of the rows."""
    from kinetic._jobs import job_list

    filters = request.filters
    found = job_list.live_and_past(target) if request.everything else job_list.live(target)
    late = filters.late()
    if filters != late:
        now = time.time()
        found = [job for job in found if filters.may_match(job_list.function_of(job), job_list.made(job), now)]
    if request.children and request.sort == "age" and not request.reverse and late == _ALL:
        found = found[: request.limit]  # before their status is read, which takes time
    rows = _observed(found)
    needs_groups = filters.name is not None or filters.tags or not request.children
    groups = groups_of({row.group_id: row.store for row in rows}) if needs_groups else {}
    earlier = set[str]() if request.children else _earlier_attempts(rows)
    if late != _ALL:
        matching = (row for row in rows if late.matches(row, groups.get(row.group_id or "")))
        rows = [row for row in matching if row.job_id not in earlier]
    if request.cost:
        from kinetic._jobs import job_cost

        rates = job_cost.kept_rates(os.environ)
        rows = [row._replace(dollars=job_cost.dollars_of(row.to_json(), row.zone, rates)) for row in rows]
    if not request.children:
        rows = fold_batches(rows, groups, earlier, {} if filters.statuses else _incomplete(rows, groups))
    return _sorted(rows, request.sort, reverse=request.reverse)[: request.limit]


def _observed(jobs: Sequence[Job]) -> list[Row]:
    """Return the rows of jobs, in their order, after a look at those whose status is not known."""
    from kinetic._jobs.index import Row

    rows = [job for job in jobs if isinstance(job, Row)]
    if len(rows) == len(jobs):
        return rows
    from kinetic._jobs import activity, job_list, notifications
    from kinetic._jobs import status as job_status

    others = [job for job in jobs if not isinstance(job, Row)]
    found = {row.job_id: row for row in rows}
    notifications.look(others)
    for job_id, row in job_list.noted(others, job_status.observe_many(others, from_index=True)):
        with shared_options.warn_if_unlisted(job_id):
            if isinstance(row, Exception):
                raise row
            found[job_id] = row
    running = [job for job in others if job.job_id in found and found[job.job_id].status == "RUNNING"]
    for job_id, progress in activity.progress_of_many(running).items():
        found[job_id] = found[job_id]._replace(progress=activity.progress_page(progress))
    return [found[job.job_id] for job in jobs if job.job_id in found]


def groups_of(stores: Mapping[str | None, str]) -> dict[str, Group]:
    """Read the manifests of jobs' batches, from the addresses of the batches' stores; None: jobs of no batch."""
    known = {group_id: store for group_id, store in stores.items() if group_id}
    if not known:
        return {}
    from kinetic._batches import state
    from kinetic._jobs import locate
    from kinetic._stores import open_store

    def read(group_id: str, store: str) -> Group | None:
        with contextlib.suppress(KineticError):  # cleaned up meanwhile, or damaged: its jobs are shown all the same
            return state.load_group(open_store(store), group_id)
        return None

    reads = [(store, functools.partial(read, group_id, store)) for group_id, store in known.items()]
    found = locate.in_order(reads)
    return {group_id: group for group_id, group in zip(known, found, strict=True) if group is not None}


def _sorted(rows: list[Row], column: str, *, reverse: bool) -> list[Row]:
    """Sort rows by a column; equal rows stay newest first."""
    if column == "age":
        return rows[::-1] if reverse else rows

    def value(row: Row) -> Any:
        return row.duration_seconds or 0.0 if column == "duration" else str(getattr(row, column))

    return sorted(rows, key=value, reverse=_SORTS[column] != reverse)


def _earlier_attempts(rows: Sequence[Row]) -> set[str]:
    """Return the ids of attempts at inputs of batches that were tried again since, also if that one was collected."""
    ids: dict[tuple[str | None, int | None], set[str]] = {
        (row.group_id, row.group_index): set() for row in rows if row.group_id and row.status in {"FAILED", "NOT_FOUND"}
    }
    if not ids:
        return set()
    from kinetic._jobs import job_list
    from kinetic._stores import open_store

    stores = {row.store for row in rows if row.group_id}
    past = (row for store in stores for row in job_list.history_rows(open_store(store)))
    for row in (*rows, *past):
        if (row.group_id, row.group_index) in ids:
            ids[row.group_id, row.group_index].add(row.job_id)
    return {each for (group, index), tried in ids.items() for each in _all_but_the_last(str(group), index or 0, tried)}


def _all_but_the_last(group_id: str, index: int, tried: set[str]) -> set[str]:
    left = tried  # all are of one second: only their ids say in which order they were made
    for attempt in range(_MOST_TRIED):
        if len(left) < 2:
            break
        word = keys.child_word(group_id, index, attempt)
        left = {job_id for job_id in left if not job_id.endswith(word)}
    return tried - left


def _incomplete(rows: Sequence[Row], groups: Mapping[str, Group]) -> dict[str, BatchState]:
    """Return the state of batches whose jobs have all ended, where some inputs have no job, nor had one."""
    known: dict[str, set[int | None]] = {}
    active = {row.group_id for row in rows if row.status in {"RUNNING", "PENDING"}}  # as the list says of the batch
    for row in rows:
        if row.group_id and row.group_id in groups and row.group_id not in active:
            known.setdefault(row.group_id, set()).add(row.group_index)
    wanting = {group_id for group_id, indexes in known.items() if len(indexes) < groups[group_id].total_expected}
    if not wanting:
        return {}
    from kinetic._batches import batch_handle, report
    from kinetic._jobs import job_list, locate
    from kinetic._stores import open_store

    stores = {row.group_id: row.store for row in rows if row.group_id in wanting}
    for past in (row for store in set(stores.values()) for row in job_list.history_rows(open_store(store))):
        if past.group_id in wanting:  # mostly all of them were collected
            known[past.group_id].add(past.group_index)

    def look(group: Group) -> BatchState | None:
        with contextlib.suppress(KineticError):  # out of reach, or damaged: its jobs are shown all the same
            handle = batch_handle.attached_handle(group, open_store(stores[group.group_id]))
            return report.batch_state(report.FoundBatch(group, handle))
        return None

    left = [groups[group_id] for group_id in wanting if len(known[group_id]) < groups[group_id].total_expected]
    looks = [(stores[group.group_id], functools.partial(look, group)) for group in left]
    states = zip(left, locate.in_order(looks), strict=True)
    return {group.group_id: now for group, now in states if now is not None}


def fold_batches(
    rows: Sequence[Row],
    groups: Mapping[str, Group],
    earlier: Container[str] = (),
    incomplete: Mapping[str, BatchState] | None = None,
) -> list[Row]:
    """Put the jobs of each batch into one row, in the place of the newest of them.

    Jobs that are ``earlier`` attempts cost something, and count for nothing else; see ``_incomplete`` for the last.
    """
    incomplete = incomplete or {}
    children: dict[str, list[Row]] = {}
    for row in rows:
        if row.group_id:
            children.setdefault(row.group_id, []).append(row)
    if not children:
        return [*rows]
    shown: list[Row] = []
    for row in rows:
        group_id = row.group_id
        if not group_id:
            shown.append(row)
        elif group_id in children:
            of_batch = children.pop(group_id)
            if last := [each for each in of_batch if each.job_id not in earlier]:
                shown.append(_batch_row(group_id, last, of_batch, groups.get(group_id), incomplete.get(group_id)))
    return shown


def _batch_row(
    group_id: str, last: Sequence[Row], rows: Sequence[Row], group: Group | None, now: BatchState | None
) -> Row:
    counts = Counter(map(_shown_status, last))
    missing = 0
    if now is not None:
        from kinetic._batches import state

        missing = now.counts[state.MISSING] + now.counts[state.WAITING]
        counts["NOT_FOUND"] -= min(counts["NOT_FOUND"], now.counts[state.WAITING])  # named, and never launched
    submitted = counts.total()
    total = group.total_expected if group is not None else submitted
    name = f" {group.group_name}" if group is not None and group.group_name else ""
    jobs_ = count_text(total, "job")
    what = f"batch{name} of {jobs_}" if total == submitted else f"{submitted} of {jobs_} of batch{name}"
    parts = [f"{counts[word]} {word}" for word in _BATCH_STATUSES if counts[word]]
    if now is not None:
        refused = now.counts[state.REFUSED]
        counts.update({"PENDING" if now.open else "CANCELLED": missing, "FAILED": refused})
        parts += [f"{refused} {state.REFUSED}"] if refused else []
        parts += [f"{missing} {_ABANDONED if now.is_abandoned else state.MISSING}"] if missing else []
    oldest = min(rows, key=lambda row: row.created_at)
    started = [row.started_at for row in rows if row.started_at]
    dollars = [row.dollars for row in rows if row.dollars is not None]
    return rows[0]._replace(
        job_id=group_id,
        status=next((word for word in _BATCH_STATUSES if counts[word]), rows[0].status),
        reason=f"{what}: {', '.join(parts)}",
        created_at=oldest.created_at,
        created=oldest.created,
        collected_at=None,
        removed_at=None,
        removed=None,
        dollars=sum(dollars) if dollars else None,
        duration_seconds=_duration_of(started, [row.ended_at for row in rows]),
    )


def _shown_status(row: Row) -> str:
    """Return the status of a job as the history has it: a cancelled one that is still stored is NOT_FOUND before."""
    if row.status != "NOT_FOUND":
        return row.status
    from kinetic._jobs import status as job_status

    return "CANCELLED" if row.reason == job_status.WAS_CANCELLED else row.status


def _duration_of(started: Sequence[str], ended: Sequence[str | None]) -> float | None:
    """Return the seconds from the first start to the last end; None while something has not ended."""
    first, last = keys.parse_utc(min(started, default="")), keys.parse_utc(max(filter(None, ended), default=""))
    return max(last - first, 0.0) if first is not None and last is not None and all(ended) else None


def cells(rows: Sequence[Row], now: float) -> list[tuple[str, ...]]:
    """Return what a table shows of jobs and batches."""
    return [
        (
            row.job_id,
            shared_options.function_text(row.name, row.command, row.function),
            row.status,
            _reason_text(row, now),
            f"{row.accelerator} ({row.emulation})" if row.emulation else row.accelerator,
            row.where,
            row.created_at if row.created is None else age_text(now - row.created),
            duration_cell(row.duration_seconds),
        )
        for row in rows
    ]


def _reason_text(row: Row, now: float) -> str:
    """Return why a job is in its state, or how far a running one is."""
    if row.removed is not None:
        return f"{row.reason}{row.reason and '; '}{_removed(row, now)}"
    return row.reason or str((row.progress or {}).get("told", ""))


def _removed(row: Row, now: float) -> str:
    # Of a cancelled job the log stays until its cleanup, which is not noted: its end is.
    what = "collected" if row.collected_at else "cancelled" if row.status == "CANCELLED" else "removed"
    return f"{what} {age_text(now - (row.removed or 0.0))} ago"

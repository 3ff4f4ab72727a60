"""``kinetic jobs``: the group, and the commands that only look: list, show and status."""

from __future__ import annotations

import contextlib
import fnmatch
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import click

from kinetic import _output as output
from kinetic._cli import command_tree, error_output, shared_options
from kinetic._cli.command_tree import LazyGroup, show_help_alone
from kinetic._output import format as output_format
from kinetic._output.format import Column, age_text, duration_cell, table_lines
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._backends.protocol import Diagnosis
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
# What a batch is as a whole: the first of these that one of its jobs is.
_STATUSES = ("RUNNING", "PENDING", "FAILED", "CANCELLED", "SUCCEEDED", "NOT_FOUND")
# What --sort takes, and which of the two ends comes first.
SORTS = {"age": True, "duration": True, "status": False, "function": False, "accelerator": False, "where": False}


class Filters(NamedTuple):
    """Which jobs are meant; all of these must hold.

    Attributes:
        statuses: One of these; none means any.
        function: The name of the function.
        since: Seconds: made no longer ago than this.
        older_than: Seconds: made longer ago than this.
        name: A pattern for the name of the job's batch.
        tags: Tags of the job's batch, as KEY=VALUE or KEY.
        where: Part of where it runs.
    """

    statuses: frozenset[str] = frozenset()
    function: str | None = None
    since: float | None = None
    older_than: float | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    where: str | None = None

    def may_hold(self, function: str, created_at: str, now: float) -> bool:
        """Say whether a job passes, as far as can be said without looking at it."""
        from kinetic._wire import keys

        age = now - (keys.parse_utc(created_at) or 0.0)
        return (
            self.function in {None, function}
            and (self.since is None or age <= self.since)
            and (self.older_than is None or age > self.older_than)
        )

    def holds(self, page: Page, group: Group | None) -> bool:
        """Say whether a job passes that was looked at.

        Args:
            page: What is known of the job.
            group: The manifest of its batch, or None.
        """
        tags = group.tags if group is not None else {}
        known = {*tags, *(f"{name}={value}" for name, value in tags.items())}
        called = (group.group_name if group is not None else None) or ""
        return (
            (not self.statuses or page["status"] in self.statuses)
            and (self.name is None or fnmatch.fnmatchcase(called, self.name))
            and known.issuperset(self.tags)
            and (self.where is None or self.where.lower() in page["where"].lower())
        )

    @property
    def needs_groups(self) -> bool:
        """Whether the manifests of batches are needed to know which jobs pass."""
        return self.name is not None or bool(self.tags)


def groups_of(pages: Sequence[Page], stores: Mapping[str, str]) -> dict[str, Group]:
    """Read the manifests of the batches that jobs belong to; one that cannot be read is left out.

    Args:
        pages: What is known of the jobs.
        stores: For the jobs, where each lies.
    """
    wanted = {page["group_id"]: stores.get(page["job_id"]) for page in pages if page["group_id"]}
    if not wanted:
        return {}
    from kinetic._batches import state
    from kinetic._stores import open_store
    from kinetic.errors import KineticError

    found: dict[str, Group] = {}
    for group_id, store in wanted.items():
        with contextlib.suppress(KineticError):  # cleaned up meanwhile, or damaged: its jobs are shown all the same
            if store:
                found[group_id] = state.load_group(open_store(store), group_id)
    return found


def sorted_by(pages: Sequence[Page], column: str, *, reverse: bool) -> list[Page]:
    """Sort rows by a column; those that come newest first stay so among equals."""
    if column == "age":
        return list(reversed(pages)) if reverse else list(pages)
    if column == "duration":
        return sorted(pages, key=lambda page: page["duration_seconds"] or 0.0, reverse=SORTS[column] != reverse)
    return sorted(pages, key=lambda page: str(page[column]), reverse=SORTS[column] != reverse)


def fold_batches(pages: Sequence[Page], groups: Mapping[str, Group]) -> list[Page]:
    """Put the jobs of each batch into one row, in the place of the newest of them."""
    of_batch: dict[str, list[Page]] = {}
    for page in pages:
        of_batch.setdefault(page["group_id"] or "", []).append(page)
    shown: list[Page] = []
    for page in pages:
        group_id = page["group_id"]
        if not group_id:
            shown.append(page)
        elif of_batch.get(group_id):
            shown.append(_batch_row(group_id, of_batch.pop(group_id), groups.get(group_id)))
    return shown


def cells(page: Page, now: float) -> list[str]:
    """Write what is known of a job, or of a batch, as a row."""
    what = "collected" if page["collected_at"] else "removed"
    removed = f"{what} {_age(page['removed_at'], now)} ago" if page["removed_at"] else ""
    beside = f" ({page['emulation']})" if page["emulation"] else ""
    return [
        page["job_id"],
        page["function"],
        page["status"],
        "; ".join(filter(None, (page["reason"], removed))),
        page["accelerator"] + beside,
        page["where"],
        _age(page["created_at"], now),
        duration_cell(page["duration_seconds"]),
    ]


def _batch_row(group_id: str, pages: Sequence[Page], group: Group | None) -> Page:
    counts = Counter(page["status"] for page in pages)
    status = next((word for word in _STATUSES if counts[word]), pages[0]["status"])
    total = group.total_expected if group is not None else len(pages)
    which = f"{len(pages)} jobs" if total == len(pages) else f"{len(pages)} of {total} jobs"
    name = f" of {group.group_name}" if group is not None and group.group_name else ""
    told = ", ".join(f"{counts[word]} {word}" for word in _STATUSES if counts[word])
    begun = [page["started_at"] for page in pages if page["started_at"]]
    return {
        **pages[0],
        "job_id": group_id,
        "status": status,
        "reason": f"batch: {which}{name}: {told}",
        "created_at": min(page["created_at"] for page in pages),
        "collected_at": None,
        "removed_at": None,
        "duration_seconds": _duration_of(begun, [page["ended_at"] for page in pages]),
    }


def _duration_of(begun: Sequence[str], ended: Sequence[str | None]) -> float | None:
    """Return the seconds from the first start to the last end; None while something has not ended."""
    from kinetic._wire import keys

    last = max((each for each in ended if each), default="")
    start, end = keys.parse_utc(min(begun, default="")), keys.parse_utc(last)
    return max(end - start, 0.0) if start is not None and end is not None and all(ended) else None


def _age(written: str, now: float) -> str:
    """Write how long ago a time was that is written as everything durable writes it."""
    from kinetic._wire import keys

    moment = keys.parse_utc(written)
    return written if moment is None else age_text(now - moment)


STATUSES = ("PENDING", "RUNNING", "SUCCEEDED", "FAILED", "NOT_FOUND", "CANCELLED")
_WATCH_SECONDS = 2.0


@click.group(
    cls=LazyGroup,
    later=command_tree.commands_of("jobs"),
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
    type=shared_options.Duration(),
    metavar="AGE",
    help="Show only jobs submitted within this time, such as 10m, 12h or 7d.",
)
@click.option(
    "--older-than", type=shared_options.Duration(), metavar="AGE", help="Show only jobs submitted longer ago than this."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show only the first N rows.")
@click.option(
    "--sort",
    type=click.Choice([*SORTS]),
    default="age",
    help="Sort by this column.  [default: age, newest first]",
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
@click.option("--children", is_flag=True, help="Show each job of a batch instead of one row for the batch.")
@click.option("--watch", is_flag=True, help="Refresh the table every two seconds, until Ctrl-C.")
@click.option("--namespace", metavar="NAME", help="Kubernetes namespace.  [default: KINETIC_NAMESPACE, or the profile]")
@shared_options.place_options
@shared_options.json_option
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
    wanted = _ListRequest(place, filters, everything, limit, sort, reverse, children or as_json)
    if watch:
        _watch(wanted, as_json=as_json)
    with output.phase("looking at the jobs", summary=False):
        pages = _pages(wanted)
    if as_json:
        output_format.print_document(jobs=pages)
        return
    if pages:
        now = time.time()
        output_format.print_table(COLUMNS, [cells(page, now) for page in pages])
    else:
        which = "There are no jobs" if filters == Filters() else "There are no matching jobs"
        more = "" if everything else "; for removed jobs: kinetic jobs list --all"
        click.echo(f"{which}{more}", err=True)
    _warn_if_unsupervised(pages)


class _ListRequest(NamedTuple):
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


def _watch(wanted: _ListRequest, *, as_json: bool) -> NoReturn:
    """Show the table anew until Ctrl-C.

    Raises:
        OptionError: There is no terminal to show it on, or JSON is wanted.
    """
    import shutil

    from kinetic._output import terminal
    from kinetic.errors import OptionError

    if as_json or not terminal.is_possible():
        raise OptionError(
            "--watch cannot be used here",
            why="--json prints one document" if as_json else "standard error is not a terminal",
            next="kinetic jobs list" + (" --json" if as_json else ""),
        )
    screen = _Screen()
    try:
        while True:
            now, pages = time.time(), _pages(wanted)
            rows = [cells(page, now) for page in pages]
            width = shutil.get_terminal_size().columns - 1
            shown = table_lines(COLUMNS, rows, columns_wide=width) if rows else ["There are no matching jobs"]
            terminal.show_lines(shown, owner=screen)
            time.sleep(_WATCH_SECONDS)
    finally:
        terminal.release(screen)


@click.command
@shared_options.job_argument
@shared_options.json_option
def show(handle: JobHandle, as_json: bool) -> None:
    """Show all details of a job.

    The function, where it runs, its status, the duration of each phase, and its output folder.

    Example: kinetic jobs show @last
    """
    from kinetic._jobs import status as job_status
    from kinetic._jobs.status import observe

    with output.phase("looking at the job", summary=False):
        seen = observe(handle)
        page = job_status.job_to_json(handle, seen) | job_status.details_of(handle, seen)
    if as_json:
        output_format.print_document(job=page)
        return
    known = {name: text for name, value in page.items() if (text := _text(value))}
    width = max(map(len, known))
    for name, text in known.items():
        print(f"{name:<{width}}  {text}")


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
    from kinetic._jobs.status import observe

    with output.phase("looking at the job", summary=False):
        seen = observe(handle)
    page = job_status.job_to_json(handle, seen)
    if as_json:
        output_format.print_document(job=page)
        return
    print(f"{handle.job_id}: {output_format.status_text(page, time.time())}")
    if reason := page["reason"]:
        click.echo(f"why:   {output_format.plain(reason)}", err=True)
    _warn_if_unsupervised([page])


def _pages(wanted: _ListRequest) -> list[dict[str, Any]]:
    """Return what is told of each job, in the order of the rows."""
    from kinetic._jobs import find, locate
    from kinetic._jobs import status as job_status
    from kinetic._jobs.status import observe_many

    now, filters = time.time(), wanted.filters
    found = find.list_with_history(**wanted.place) if wanted.everything else None
    every = found.live if found is not None else find.list_jobs(**wanted.place)
    live = [job for job in every if filters.may_hold(job.func_name, job.created_at, now)]
    urls = {store: locate.store_of(job).url for store, job in {job.store: job for job in live}.items()}
    stores = {job.job_id: urls[job.store] for job in live}
    past = []
    for page in found.past if found is not None else ():
        with _warn_if_unlisted(str(page.get("job_id"))):
            told = job_status.history_to_json(page)
            if filters.may_hold(told["function"], told["created_at"], now):
                past.append(told)
                stores[told["job_id"]] = str(page.get("store") or "")
    is_plain = wanted.children and wanted.sort == "age" and not wanted.reverse
    if is_plain and filters._replace(function=None, since=None, older_than=None) == Filters():
        live = live[: wanted.limit]  # the status of a job costs a look at it
    shown = []
    for handle, seen in zip(live, observe_many(live, from_index=True), strict=True):
        with _warn_if_unlisted(handle.job_id):
            shown.append(job_status.job_to_json(handle, seen))
    shown += past
    if found is not None:
        order = {job_id: number for number, job_id in enumerate(found.order)}
        shown.sort(key=lambda page: order[page["job_id"]])
    groups = groups_of(shown, stores) if filters.needs_groups or not wanted.children else {}
    shown = [page for page in shown if filters.holds(page, groups.get(page["group_id"] or ""))]
    if not wanted.children:
        shown = fold_batches(shown, groups)
    return sorted_by(shown, wanted.sort, reverse=wanted.reverse)[: wanted.limit]


@contextmanager
def _warn_if_unlisted(job_id: str) -> Iterator[None]:
    """Let a job that cannot be told of cost a line that names it, and no other job."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - as above
        what = error.what if isinstance(error, KineticError) else f"{type(error).__name__}: {error}"
        click.echo(f"warning: {job_id} is not listed: {output_format.plain(what)}", err=True)


def _text(value: object) -> str:
    """Return a value of a page for a person; "" when there is none."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {seconds:.3f}" for name, seconds in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None or value is False else output_format.plain(str(value))


def _warn_if_unsupervised(pages: list[dict[str, Any]]) -> None:
    """Say so when jobs of this machine wait and no process is there that would start them."""
    from kinetic._jobs import locate

    waiting = sum(page["status"] == "PENDING" and page["where"] == "this machine" for page in pages)
    if waiting and not locate.is_supervised():
        what = "1 job is pending" if waiting == 1 else f"{waiting} jobs are pending"
        click.echo(
            f"{what}, and no supervisor is running: the next command starts one, such as kinetic jobs list", err=True
        )


_CAUSES_WITH_A_REASON = frozenset({"runner", "serialization"})  # of the others, the log is the evidence
_INDENT = " " * len("phase: ")
_LONG_ROW = 3  # hosts; of more, the first and the last are named
_MOST_LOOKS = 3  # at a job that changes while it is looked at
_LINES = 10  # of the log of a job that failed
_LOG_BYTES = 16 << 10
# The runner's phases, as a person would say where a job was.
_PHASES = {
    "order": "before the function started: reading the order",
    "artifact verification": "before the function started: fetching and verifying the uploaded files",
    "context extract": "before the function started: unpacking the project",
    "environment setup": "before the function started: setting up the environment",
    "debugger setup": "before the function started: starting the debug server, or waiting for a debugger",
    "payload unpickle": "before the function started: loading the function and its arguments, and importing modules",
    "execute": "while the function ran",
    "result serialization": "after the function returned: pickling the value",
}


class Explanation(NamedTuple):
    """Why a job is as it is.

    Attributes:
        what: One sentence.
        why: The evidence, or "".
        phase: Where a failed job was, or "".
        log: The last lines of a failed job's log.
        next: What to do now; a command that can be pasted, or "".
    """

    what: str
    why: str = ""
    phase: str = ""
    log: tuple[str, ...] = ()
    next: str = ""


@click.command
@shared_options.job_argument
@shared_options.json_option
def explain(handle: JobHandle, as_json: bool) -> None:
    """Show why a job is pending or failed, and what to do.

    For a pending job: what it waits for, and which jobs use it. For a failed job: the cause, the phase, the last
    lines of its log. The last line is the next command to run.

    Example: kinetic jobs explain @last
    """
    from kinetic._jobs import status as job_status

    with output.phase("looking at the job", summary=False):
        seen, told = _observe_and_explain(handle)
        page = job_status.job_to_json(handle, seen)
    if as_json:
        head = {"job_id": handle.job_id, "function": handle.func_name, "status": page["status"]}
        output_format.print_document(**head, **told._asdict())
        return
    print(f"{handle.job_id}: {output_format.status_text(page, time.time())}")
    for name, text in (("what", told.what), ("why", told.why), ("phase", told.phase)):
        _line(name, text)
    _line("log", "\n".join(told.log))
    _line("next", told.next)


def _observe_and_explain(handle: JobHandle) -> tuple[Snapshot, Explanation]:
    """Look at a job and explain it as it was at that moment: where it changed in between, look again."""
    from dataclasses import replace

    from kinetic._jobs.status import observe

    for _ in range(_MOST_LOOKS):
        seen = observe(handle)
        told = _diagnosis(handle, seen)
        is_gone = told is None or (told.status is not None and told.status.is_final)
        if seen.status.is_final or not is_gone:
            break
    if told is not None and told.status is not None and not told.status.is_final:
        seen = replace(seen, status=told.status)  # the cluster was asked once more, with more to show for it
    return seen, _explained(handle, seen, told)


def _diagnosis(handle: JobHandle, seen: Snapshot) -> Diagnosis | None:
    """Ask the place of a job that has not ended why it is as it is."""
    from kinetic._jobs import locate

    if seen.status.is_final or not locate.can_be_seen(handle):
        return None
    return locate.backend_of(handle).explain(handle.job_id)


def explanation(handle: JobHandle, seen: Snapshot) -> Explanation:
    """Explain a job from what was seen of it."""
    return _explained(handle, seen, _diagnosis(handle, seen))


def _explained(handle: JobHandle, seen: Snapshot, told: Diagnosis | None) -> Explanation:
    job_id = handle.job_id
    if seen.past is not None and seen.past.get("collected"):
        return _of_collected(handle, seen.past)
    match seen.status.value:
        case "PENDING" | "RUNNING":
            return _of_live(handle, seen, told)
        case "FAILED":
            return _of_failed(handle, seen)
        case "SUCCEEDED":
            return Explanation("it succeeded, and its result is ready", next=f"kinetic jobs result {job_id}")
    if seen.outcome is not None and seen.outcome.status == "cancelled":
        return Explanation("it was cancelled; its log is kept", next=f"kinetic jobs logs {job_id}")
    return Explanation("it was removed, or never launched", next="kinetic jobs list --all")


def _of_collected(handle: JobHandle, past: Mapping[str, Any]) -> Explanation:
    """Explain a job whose result was collected: how it ended, and what is left."""
    job_id = handle.job_id
    if past.get("status") == "SUCCEEDED":
        return Explanation("it succeeded and was collected; its log is kept", next=f"kinetic jobs logs {job_id}")
    why = str(past.get("reason") or "")
    what = "it failed and was collected; its log is kept"
    return Explanation(what, why, log=_last_lines(handle), next=f"kinetic jobs logs {job_id}")


def _of_live(handle: JobHandle, seen: Snapshot, told: Diagnosis | None) -> Explanation:
    from kinetic._jobs import locate
    from kinetic._jobs import status as job_status

    if not locate.can_be_seen(handle):
        what = f"it is on {job_status.place_of(handle)}, and only that machine can see more of it"
        return Explanation(what, next=f"on that machine: kinetic jobs explain {handle.job_id}")
    if handle.debug and seen.status.value == "RUNNING" and (waits := _of_debugged(handle)) is not None:
        return waits
    if told is None:  # not in the queue yet, or not any more
        return Explanation(seen.reason or "it is about to start", next="kinetic jobs list")
    what = told.what.removeprefix(f"{handle.job_id} ").removeprefix(f"{handle.job_id}: ")
    why = told.why
    if locate.is_here(handle) and seen.status.value == "PENDING" and not locate.is_supervised():
        why = "no supervisor is running; the next command starts one"
    return Explanation(what, why, next=told.next)


def _of_debugged(handle: JobHandle) -> Explanation | None:
    """Explain a job that waits for a debugger or has one; None for one that goes on without."""
    from kinetic._inspect import port_forward
    from kinetic._jobs import locate

    count = locate.hosts_of(handle)
    addresses = port_forward.debug_addresses(handle, range(count))
    attached = [host for host, address in addresses.items() if address.state == "attached"]
    waiting = [host for host, address in addresses.items() if address.state == "waiting"]
    if attached:
        to = "it" if count == 1 else _named(attached, count)
        return Explanation(f"a debugger is attached to {to}", next=f"kinetic jobs logs {handle.job_id} --follow")
    if not waiting:
        return None
    who = "it waits" if count == 1 else f"{_named(waiting, count)} {'wait' if waiting[1:] else 'waits'}"
    until = time.strftime("%H:%M:%S UTC", time.gmtime(max(addresses[host].until for host in waiting)))
    why = f"it was submitted with debug=True; its function starts when a debugger attaches, or at {until}"
    which = f" --host {waiting[0]}" if waiting[0] else ""
    return Explanation(f"{who} for a debugger", why, next=f"kinetic jobs debug {handle.job_id}{which}")


def _named(hosts: Sequence[int], count: int) -> str:
    """Name hosts of a slice, those in a row by the first and the last of them."""
    words: list[str] = []
    left = list(hosts)
    while left:
        row = [host for at, host in enumerate(left) if host == left[0] + at]
        words += [f"{row[0]} to {row[-1]}"] if len(row) > _LONG_ROW else map(str, row)
        del left[: len(row)]
    *most, last = words
    some = f"hosts {', '.join(most)} and {last}" if most else f"{'hosts' if hosts[1:] else 'host'} {last}"
    return f"{some} of {count}"


def _of_failed(handle: JobHandle, seen: Snapshot) -> Explanation:
    failed = error_output.job_error(handle, seen, log_is_shown=True)
    log = _last_lines(handle)
    phase = ""
    if seen.outcome is not None:
        phase = _PHASES.get(seen.outcome.phase, seen.outcome.phase)
    speaks = not log or (seen.outcome is not None and seen.outcome.cause in _CAUSES_WITH_A_REASON)
    why = (failed.why or "") if speaks else ""
    advice = str(seen.outcome.error.get("next") or "") if seen.outcome is not None else ""
    return Explanation(failed.what, why, phase, log, advice or f"kinetic jobs logs {handle.job_id}")


def _last_lines(handle: JobHandle) -> tuple[str, ...]:
    from kinetic._jobs import logs

    log = logs.log_of(handle)
    return tuple(output_format.plain(line) for line in logs.tail(log, _LINES, most=_LOG_BYTES).splitlines())


def _line(name: str, text: str) -> None:
    """Print one part; the lines after the first stand below its beginning, also those that were indented already."""
    if text:
        first, *others = text.splitlines()
        print(f"{f'{name}:':<{len(_INDENT)}}{first}")
        print("".join(f"{_INDENT}{line.removeprefix(_INDENT)}\n" for line in others), end="")


@click.command
@click.argument("job_ids", nargs=-1, required=True, metavar="JOB_ID...", shell_complete=shared_options.complete_jobs)
@click.option(
    "--timeout",
    type=shared_options.Duration(bare=True),
    metavar="TIME",
    help="Stop waiting after this time, such as 90 (seconds), 10m or 2h; exit code 124.",
)
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
    handles = [shared_options.find_job(job_id, **place) for job_id in job_ids]
    handles = list({handle.job_id: handle for handle in handles}.values())
    seen = _wait(handles, timeout)
    late = [handle for handle in handles if handle.job_id not in seen]
    if as_json:
        output_format.print_document(jobs=[_job_page(handle, seen.get(handle.job_id)) for handle in handles])
    bad = [handle for handle in handles if (look := seen.get(handle.job_id)) and not _succeeded(handle, look)]
    for handle in handles:
        if (look := seen.get(handle.job_id)) is not None:
            _print_end(handle, look, as_json=as_json)
    if late:
        raise _too_late(late, timeout)
    ctx.exit(error_output.JOB_FAILED if bad else 0)


def _wait(handles: Sequence[JobHandle], timeout: float | None) -> dict[str, Snapshot]:
    """Wait for one after the other; return how those ended that did in time."""
    from kinetic._jobs import wait as job_wait
    from kinetic.errors import JobTimeoutError

    limit = None if timeout is None else time.monotonic() + timeout
    seen: dict[str, Snapshot] = {}
    progress = output.Progress()
    try:
        for handle in handles:
            left = None if limit is None else max(limit - time.monotonic(), 0.0)
            try:
                seen[handle.job_id] = job_wait.wait(handle, timeout=left, progress=progress)
            except JobTimeoutError:
                continue  # the others are looked at once: they may have ended long ago
    except KeyboardInterrupt:
        left_over = [handle.job_id for handle in handles if handle.job_id not in seen]
        click.echo(f"\nnot affected: {', '.join(left_over)}", err=True)
        raise
    progress.end()
    return seen


def _print_end(handle: JobHandle, seen: Snapshot, *, as_json: bool) -> None:
    page = _job_page(handle, seen)
    if not as_json:
        print(f"{handle.job_id}: {output_format.status_text(page, time.time())}")
    if page["status"] != "SUCCEEDED":
        click.echo(f"why:   {output_format.plain(str(page['reason'])) or 'it left no result'}", err=True)
        click.echo(f"next:  kinetic jobs explain {handle.job_id}", err=True)


def _succeeded(handle: JobHandle, seen: Snapshot) -> bool:
    return _job_page(handle, seen)["status"] == "SUCCEEDED"


def _job_page(handle: JobHandle, seen: Snapshot | None) -> dict[str, object]:
    """Return how a job ended, or how it stands now."""
    from kinetic._jobs import status as job_status
    from kinetic._jobs.status import observe

    return job_status.job_to_json(handle, seen or observe(handle))


def _too_late(late: Sequence[JobHandle], timeout: float | None) -> Exception:
    from kinetic.errors import JobTimeoutError

    what = late[0].job_id if len(late) == 1 else f"{len(late)} jobs"
    goes = "it keeps running" if len(late) == 1 else "they keep running: " + ", ".join(handle.job_id for handle in late)
    return JobTimeoutError(
        f"{what} {'has' if len(late) == 1 else 'have'} not ended "
        f"within {shared_options.duration_argument(timeout or 0.0)}",
        why=goes,
        next=f"kinetic jobs explain {late[0].job_id}",
    )

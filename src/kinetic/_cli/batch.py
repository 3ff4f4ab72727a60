"""``kinetic batch``: the group, and the list of batches."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kinetic._cli import command_tree, error_output, job_results, shared_options
from kinetic._cli.command_tree import LazyGroup, show_help_alone
from kinetic._cli.job_actions import CleanupRequest
from kinetic._output import format as output_format
from kinetic._output.format import Column, age_text, duration_cell, shortened
from kinetic._wire import threads
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetic._batches.batch_handle import BatchHandle
    from kinetic._batches.control import Holder
    from kinetic._batches.display import View
    from kinetic._batches.state import AdHocTracker, BatchTracker
    from kinetic._jobs.status import Snapshot
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import Group


_LONGEST_INPUT = 60  # characters


class Batch(NamedTuple):
    """A batch that was found.

    Attributes:
        group: Its manifest.
        handle: What works with it; it has looked once.
    """

    group: Group
    handle: BatchHandle


class BatchState(NamedTuple):
    """How a batch stands.

    Attributes:
        counts: How many of its inputs are in each state.
        driver: Who submits what is missing, or did so last; None when nobody ever did.
        stopped: Whether somebody cancelled it, or a failure did.
        open: How many inputs are still to be submitted, or to be tried again.
    """

    counts: Counter[str]
    driver: Holder | None
    stopped: bool
    open: int

    @property
    def is_left(self) -> bool:
        """Whether something is still to be submitted, and nobody is there who does it."""
        return self.open > 0 and not (self.driver and self.driver.lives)


def batch_argument(function: shared_options.Command) -> shared_options.Command:
    """Give a command the argument GROUP, and call it with that batch first."""

    @shared_options.place_options
    @click.argument("group", metavar="GROUP", shell_complete=shared_options.complete_batches)
    @functools.wraps(function)
    def found(group: str, project: str | None, zone: str | None, cluster: str | None, **others: Any) -> Any:  # noqa: ARG001 - a batch is found without its zone
        return function(find_batch(group, project, cluster), **others)

    return found


def find_batch(word: str, project: str | None, cluster: str | None) -> Batch:
    """Return the batch that a user means: by its id, the beginning of it, or "@last" or "-" for the newest.

    Raises:
        BatchNotFoundError: There is none.
        OptionError: It cannot be an id, or several batches begin so.
    """
    from kinetic._batches import batch_handle

    store = batch_handle.store_of(project, cluster)
    if word not in shared_options.NEWEST:
        group = batch_handle.find_batch(word, store)
    elif (newest := batch_handle.newest_batch(store)) is not None:
        group = newest
    else:
        from kinetic.errors import BatchNotFoundError

        raise BatchNotFoundError(
            "there are no batches, so @last is not available",
            why=f"looked in {store.url}; removed batches have no history",
            next="kinetic jobs list --all",
        )
    return Batch(group, batch_handle.attached_handle(group, store))


def batch_state(batch: Batch) -> BatchState:
    """Look at a batch: one question to its backend and one listing of its store, whatever its size."""
    from kinetic._batches import control, state
    from kinetic._jobs import locate

    tracker, refused = batch.handle._refreshed(), batch.handle.submission_failures  # noqa: SLF001 - the terminal's side
    counts = state.count_states(tracker, refused)
    missing = [index for index, attempt in enumerate(tracker.attempts) if attempt < 0 and index not in refused]
    open_ = counts[state.AGAIN] + sum(tracker.may_launch(index) for index in missing)
    # A driver that dies at the wrong moment has named one and not launched it; on other machines they may just wait.
    jobs = filter(None, map(tracker.record, tracker.unseen()))
    open_ += sum(job.host == locate.machine() for job in jobs)
    driver = control.lease_holder(tracker.store, batch.group.group_id, locate.group_key(batch.group))
    return BatchState(counts, driver, tracker.stopped, open_)


def batch_page(batch: Batch, standing: BatchState) -> dict[str, Any]:
    """Put a batch into JSON values."""
    from kinetic._batches import state
    from kinetic._wire import keys

    group, driver = batch.group, standing.driver
    return {
        "group_id": group.group_id,
        "name": group.group_name,
        "function": group.submit_fn_name,
        "tags": dict(group.tags),
        "accelerator": str(group.handle.get("accelerator", "")),
        "backend": str(group.handle.get("backend", "")),
        "created_at": keys.format_utc(group.created),
        "total": group.total_expected,
        "counts": {state.replace(" ", "_"): standing.counts[state] for state in state.STATES},
        "stopped": standing.stopped,
        "driver": {"machine": driver.machine, "pid": driver.pid} if driver and driver.lives else None,
        "is_left": standing.is_left,
    }


def driver_text(standing: BatchState) -> str:
    """Say who submits what is missing; "" when nobody needs to."""
    import os

    driver = standing.driver
    if driver is not None and driver.lives:
        here = driver.machine == os.uname().nodename
        return f"process {driver.pid} here" if here else f"process {driver.pid} on {driver.machine}"
    return "nobody" if standing.is_left else ""


def report_unsubmitted(batch: Batch, standing: BatchState) -> None:
    """Say so when inputs wait for a driver that is not there, and how to go on."""
    if standing.is_left:
        what = "1 input is" if standing.open == 1 else f"{standing.open} inputs are"
        click.echo(f"{what} not submitted, and no process drives this batch", err=True)
        click.echo(f"next:  kinetic batch resume {batch.group.group_id}", err=True)


def input_text(batch: Batch, index: int) -> str:
    """Return an input as a short text, "" where it is not known."""
    from kinetic._output import format as output_format

    table = batch.handle._table  # noqa: SLF001 - the terminal's side of the same thing
    return shortened(output_format.plain(table.inputs[index].shown), _LONGEST_INPUT) if table is not None else ""


COLUMNS = (
    Column("BATCH"),
    Column("NAME", flexible=True, spare=3),
    Column("FUNCTION", spare=2),
    Column("JOBS", right=True),
    Column("STATUS", flexible=True),
    Column("SUBMITTED BY", spare=4),
    Column("AGE", spare=1),
)


@click.group(
    cls=LazyGroup,
    later=command_tree.commands_of("batch"),
    aliases={"ls": "list"},
    epilog="GROUP is the id of a batch, a unique beginning of it, or @last or - for the newest one. "
    "INDEX is the position of an input in the submitted list, from 0.",
)
@click.pass_context
def batch(ctx: click.Context) -> None:
    """List, inspect, collect, cancel and resume batches.

    Submit a batch in Python, with f.run_async_map(inputs).

    Example: kinetic batch status @last --watch
    """
    show_help_alone(ctx)


@click.command("list")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show only the N newest.")
@shared_options.place_options
@shared_options.json_option
def list_(limit: int | None, as_json: bool, project: str | None, zone: str | None, cluster: str | None) -> None:  # noqa: ARG001 - a batch is found without its zone
    """List batches, newest first.

    SUBMITTED BY is the process that submits the remaining inputs and the retries.

    Example: kinetic batch list --limit 10
    """
    from kinetic._batches import batch_handle

    store = batch_handle.store_of(project, cluster)
    newest = sorted(batch_handle.list_groups(store), key=lambda group: group.created, reverse=True)[:limit]
    seen = list(filter(None, (_state_or_warning(group, store) for group in newest)))
    if as_json:
        output_format.print_document(batches=[batch_page(*each) for each in seen])
        return
    if not newest:
        click.echo("There are no batches; f.run_async_map(inputs) submits one", err=True)
        return
    now = time.time()
    output_format.print_table(COLUMNS, [_cells(*each, now) for each in seen])
    left = [each for each, standing in seen if standing.is_left]
    for each in left[:1]:
        more = f", as do {len(left) - 1} more" if len(left) > 1 else ""
        click.echo(f"{each.group.group_id} is only partly submitted{more}", err=True)
        click.echo(f"next:  kinetic batch resume {each.group.group_id}", err=True)


def _state_or_warning(group: Group, store: Store) -> tuple[Batch, BatchState] | None:
    """Look at a batch; one that cannot be looked at costs a line that names it, and hides no other."""
    from kinetic._batches import batch_handle

    try:
        found = Batch(group, batch_handle.attached_handle(group, store))
        return found, batch_state(found)
    except Exception as error:  # noqa: BLE001 - as above
        what = error.what if isinstance(error, KineticError) else f"{type(error).__name__}: {error}"
        click.echo(f"warning: {group.group_id} is not listed: {output_format.plain(what)}", err=True)
        return None


def _cells(batch: Batch, standing: BatchState, now: float) -> list[str]:
    from kinetic._batches import state

    group = batch.group
    return [
        group.group_id,
        group.group_name or "",
        group.submit_fn_name,
        str(group.total_expected),
        state.summary_text(standing.counts),
        driver_text(standing),
        age_text(now - group.created),
    ]


_ROWS = 20  # of a table that a person reads
_LOGS = 3  # commands for logs of failed jobs
STATUS_COLUMNS = (
    Column("INDEX", right=True),
    Column("INPUT", flexible=True),
    Column("STATUS"),
    Column("ATTEMPT", right=True, spare=2),
    Column("DURATION", right=True, spare=1),
    Column("REASON", flexible=True, spare=3),
    Column("JOB ID", spare=4),
)


@dataclass(frozen=True)
class Row:
    """One input of a batch.

    Attributes:
        index: Its place.
        state: In a word; see ``_batches.tally``.
        attempt: The latest attempt at it, from 0; None when it was not submitted.
        seen: What was seen of that attempt, or None.
        job_id: Its id, or None.
        refused: Why it could not be submitted, or "".
    """

    index: int
    state: str
    attempt: int | None
    seen: Snapshot | None
    job_id: str | None
    refused: str = ""


@click.command
@batch_argument
@click.option(
    "--failed", "only_failed", is_flag=True, help="Show only the inputs that failed or could not be submitted."
)
@click.option("--all", "everything", is_flag=True, help=f"Show every input, in order.  [default: at most {_ROWS}]")
@click.option(
    "-w",
    "--watch",
    "-f",
    "--follow",
    "watch",
    is_flag=True,
    help="Show the progress until all jobs have ended; exit code 125 if one failed.",
)
@click.option(
    "--timeout",
    type=shared_options.Duration(bare=True),
    metavar="TIME",
    help="With --watch: stop after this time, such as 90 (seconds), 10m or 2h; exit code 124.",
)
@shared_options.json_option
@click.pass_context
def status(
    ctx: click.Context,
    /,
    batch: Batch,
    only_failed: bool,
    everything: bool,
    watch: bool,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Show the state of a batch and of its jobs.

    Without --all the table shows some jobs: failed ones first, then running ones. --json always has all of
    them. Ctrl-C stops watching and does not end any job.

    Example: kinetic batch status @last --failed
    """
    if timeout is not None and not watch:
        raise click.UsageError("--timeout requires --watch")
    if watch:
        wait_for(batch, timeout)
    standing = batch_state(batch)
    rows = _rows(batch, only_failed=only_failed, limit=None if everything or as_json else _ROWS)
    if as_json:
        shown = [_row_page(batch, row) for row in _observed(batch, rows.shown)]
        output_format.print_document(batch=batch_page(batch, standing), jobs=shown)
    else:
        _show(batch, standing, rows)
    ctx.exit(error_output.JOB_FAILED if watch and has_failed(standing) else 0)


def wait_for(batch: Batch, timeout: float | None) -> None:
    """Wait until a batch has ended, or until nobody is left who would submit the rest of it."""
    batch.handle._poll.needs_driver = True  # noqa: SLF001 - the terminal's side of the same thing
    batch.handle.wait(timeout=timeout)  # which says on Ctrl-C that the batch goes on, and how to cancel it


def has_failed(standing: BatchState) -> bool:
    """Say whether a batch did not come to a good end, as far as it has come to one."""
    from kinetic._batches import state

    return any(standing.counts[state] for state in (state.FAILED, state.CANCELLED, state.REFUSED, state.MISSING))


class _Rows(NamedTuple):
    shown: list[Row]
    more: int


def _rows(batch: Batch, *, only_failed: bool, limit: int | None) -> _Rows:
    """Choose which inputs are shown; nothing is read for those that are not."""
    from kinetic._batches import state

    refused = batch.handle.submission_failures
    tracker = batch.handle._get_tracker()  # noqa: SLF001 - as above
    states = {index: state.state_of(tracker, index, refused) for index in range(len(tracker.attempts))}
    bad = {state.FAILED, state.REFUSED}
    chosen = [index for index, state in states.items() if not only_failed or state in bad]
    if limit is not None and len(chosen) > limit:
        first = (state.FAILED, state.REFUSED, state.AGAIN, state.RUNNING)
        ranks = {state: rank for rank, state in enumerate(first)}
        chosen = sorted(chosen, key=lambda index: (ranks.get(states[index], len(ranks)), index))
    shown = [_row(batch, tracker, index, states[index], refused) for index in chosen[:limit]]
    return _Rows(shown, len(chosen) - len(shown))


def _row(
    batch: Batch, tracker: BatchTracker | AdHocTracker, index: int, state: str, refused: dict[int, Exception]
) -> Row:
    job = batch.handle.jobs[index]
    attempt = tracker.attempts[index] if job is not None else None
    why = " ".join(str(refused[index]).split()) if index in refused else ""
    return Row(index, state, attempt, None, job.job_id if job is not None else None, why)


def _observed(batch: Batch, rows: Sequence[Row]) -> list[Row]:
    """Read of each job that is shown when it ran and why it failed."""
    from kinetic._jobs.status import observe_many

    jobs = [(row, job) for row in rows if (job := batch.handle.jobs[row.index]) is not None]
    looks = observe_many([job for _, job in jobs])
    seen = {row.index: look for (row, _), look in zip(jobs, looks, strict=True)}
    return [replace(row, seen=seen.get(row.index)) for row in rows]


def _show(batch: Batch, standing: BatchState, rows: _Rows) -> None:
    from kinetic._batches import state

    group = batch.group
    print(f"{group.group_id}: {state.summary_text(standing.counts)}, of {group.total_expected}")
    about = filter(None, (group.group_name, f"{group.submit_fn_name} on {group.handle.get('accelerator')}"))
    driver = driver_text(standing)
    age = f"{age_text(time.time() - group.created)} ago"
    print(output_format.plain(", ".join([*about, f"submitted {age}", *([f"driven by {driver}"] if driver else [])])))
    shown = _observed(batch, rows.shown)
    if shown:
        print()
        output_format.print_table(STATUS_COLUMNS, [_status_cells(batch, row) for row in shown])
    if rows.more:
        click.echo(f"and {rows.more} more: kinetic batch status {group.group_id} --all", err=True)
    failed = [row.index for row in shown if row.state == state.FAILED]
    for index in failed[:_LOGS]:
        click.echo(f"log of [{index}]:  kinetic batch logs {group.group_id} {index}", err=True)
    report_unsubmitted(batch, standing)


def _status_cells(batch: Batch, row: Row) -> list[str]:
    return [
        str(row.index),
        input_text(batch, row.index),
        row.state,
        "" if row.attempt is None else str(row.attempt),
        duration_cell(_times(row)[2]),
        _reason(row),
        row.job_id or "",
    ]


def _reason(row: Row) -> str:
    """Say how a job failed or what it waits for; of one that was collected nothing else is left."""
    from kinetic._batches import state
    from kinetic._batches.state import REMOVED

    if row.seen is None:
        return row.refused
    if row.state == state.SUCCEEDED:
        return "collected" if row.seen.status.value == "NOT_FOUND" else ""
    if row.state in {REMOVED, state.CANCELLED}:
        return ""
    return output_format.plain(row.seen.reason)


def _times(row: Row) -> tuple[float | None, float | None, float | None]:
    """Return when the job began and ended, and how long it took or takes, in seconds."""
    witness = (row.seen.outcome or row.seen.observation) if row.seen is not None else None
    if witness is None or witness.started is None:
        return None, None, None
    until = time.time() if row.seen is not None and not row.seen.status.is_final else witness.ended
    return witness.started, witness.ended, round(until - witness.started, 3) if until else None


def _row_page(batch: Batch, row: Row) -> dict[str, Any]:
    from kinetic._wire import keys

    started, ended, seconds = _times(row)
    return {
        "index": row.index,
        "input": input_text(batch, row.index),
        "state": row.state.replace(" ", "_"),
        "status": row.seen.status.value if row.seen is not None else None,
        "job_id": row.job_id,
        "attempt": row.attempt,
        "reason": _reason(row),
        "started_at": keys.format_utc(started) if started else None,
        "ended_at": keys.format_utc(ended) if ended else None,
        "duration_seconds": seconds,
    }


_PATIENCE_SECONDS = 10.0  # how long removing waits for processes; see _batches/closing.py


@click.command
@batch_argument
@shared_options.json_option
def cancel(batch: Batch, as_json: bool) -> None:
    """Cancel the running, pending and unsubmitted jobs of a batch.

    Jobs that have ended, their results and all logs are kept. The process that submits the batch stops.

    Example: kinetic batch cancel @last
    """
    from kinetic._batches import state
    from kinetic._batches.state import REMOVED

    batch.handle._refreshed()  # noqa: SLF001 - the terminal's side of the same thing
    before = batch_state(batch)
    batch.handle.cancel()
    after = batch_state(batch)
    group_id, ended = batch.group.group_id, after.counts[state.CANCELLED] - before.counts[state.CANCELLED]
    if as_json:
        output_format.print_document(batch=batch_page(batch, after), cancelled=ended)
    jobs = "1 job" if ended == 1 else f"{ended} jobs"
    others = state.summary_text(after.counts, of=(state.SUCCEEDED, state.FAILED, REMOVED, state.MISSING))
    click.echo(f"{group_id} is cancelled: {jobs} cancelled{f'; {others}' if others else ''}", err=True)


@click.command
@batch_argument
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--k8s/--no-k8s",
    default=True,
    help="Remove the processes, queue entries and working folders, or the Kubernetes objects.",
)
@click.option("--gcs/--no-gcs", default=True, help="Remove the stored files and the batch itself.")
@shared_options.json_option
def cleanup(batch: Batch, dry_run: bool, yes: bool, k8s: bool, gcs: bool, as_json: bool) -> None:
    """Remove a batch: its jobs, their results and logs, and itself.

    Running jobs are stopped first. The batch can then no longer be found, unless --no-gcs keeps its stored files.
    Files in output folders are always kept.

    Example: kinetic batch cleanup @last --yes
    """
    group_id = batch.group.group_id
    CleanupRequest(k8s, gcs, _PATIENCE_SECONDS).check(f"kinetic batch cleanup {group_id}")
    standing = batch_state(batch)
    removed = False
    if dry_run:
        click.echo(f"{group_id} would be removed: {_summary(standing)}", err=True)
    elif yes or _is_confirmed(batch, standing, results=gcs):
        batch.handle.cleanup(k8s=k8s, gcs=gcs)
        removed = True
        kept = "" if k8s and gcs else "; its stored files are kept" if k8s else "; its resources are kept"
        click.echo(f"{group_id} is removed: {_summary(standing)}{kept}", err=True)
    else:
        click.echo("nothing was removed", err=True)
    if as_json:
        output_format.print_document(batch=batch_page(batch, standing), removed=removed)


def _is_confirmed(batch: Batch, standing: BatchState, *, results: bool) -> bool:
    """Ask a person; where there is none, nothing is removed.

    Raises:
        OptionError: There is no terminal.
    """
    from kinetic._batches import state
    from kinetic.errors import OptionError

    group_id = batch.group.group_id
    if not shared_options.is_interactive():
        raise OptionError(
            f"nothing was removed: {group_id} would be removed, {_summary(standing)}",
            why="not a terminal: pass --yes to confirm",
            next=f"kinetic batch cleanup {group_id} --yes",
        )
    running = standing.counts[state.RUNNING] + standing.counts[state.WAITING]
    open_ = f", {running} of them not ended" if running else ""
    waiting = _uncollected(batch) if results else 0
    lost = f", with {'1 uncollected result' if waiting == 1 else f'{waiting} uncollected results'}" if waiting else ""
    return shared_options.confirm(f"Remove {group_id} with {batch.group.total_expected} jobs{open_}{lost}?")


def _uncollected(batch: Batch) -> int:
    """Count the results that are still in the store."""
    return batch.handle.status_counts().get("SUCCEEDED", 0)  # one that was collected is NOT_FOUND


def _summary(standing: BatchState) -> str:
    from kinetic._batches import state

    return state.summary_text(standing.counts)


@click.command
@batch_argument
@click.argument("index", type=click.IntRange(min=0), metavar="INDEX")
@click.option("-f", "--follow", is_flag=True, help="Follow the log until the job ends; exit code 125 if it failed.")
@click.option("-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Show only the last N lines.")
@click.option(
    "--attempt", type=click.IntRange(min=0), metavar="N", help="Show attempt N, from 0.  [default: the newest]"
)
@click.option("--host", default="0", metavar="N|all", help="Show host N of a slice, or all hosts.  [default: 0]")
@click.pass_context
def logs(
    ctx: click.Context, /, batch: Batch, index: int, follow: bool, tail: int | None, attempt: int | None, host: str
) -> None:
    """Print the log of one job of a batch.

    INDEX is the position of the input, from 0. Each attempt of an input is a job with its own log.

    Example: kinetic batch logs @last 3 --follow
    """
    job_id = _job_id(batch, index, attempt)
    # Its attempt at the input chose the job; within the job it is the newest one.
    ctx.invoke(job_results.logs, job_id=job_id, follow=follow, tail=tail, attempt=None, host=host)


def _job_id(batch: Batch, index: int, attempt: int | None) -> str:
    """Return the id of the job that tried an input.

    Raises:
        OptionError: There is no such input, or no such attempt at it.
    """
    from kinetic.errors import OptionError

    group_id, total = batch.group.group_id, batch.group.total_expected
    if index >= total:
        raise OptionError(
            f"{group_id} has no input {index}",
            why=f"it has {total} inputs, counted from 0",
            next=f"kinetic batch logs {group_id} {total - 1}",
        )
    tracker = batch.handle._refreshed()  # noqa: SLF001 - the terminal's side of the same thing
    newest = tracker.attempts[index]
    if newest < 0:
        error = batch.handle.submission_failures.get(index)
        raise OptionError(
            f"input {index} of {group_id} has no log",
            why=f"it could not be submitted: {error}" if error else "it is not submitted yet",
            next=f"kinetic batch status {group_id}",
        )
    if attempt is not None and attempt > newest:
        raise OptionError(
            f"input {index} of {group_id} has no attempt {attempt}",
            why=f"attempts are counted from 0, and the newest is {newest}",
            next=f"kinetic batch logs {group_id} {index} --attempt {newest}",
        )
    return batch.group.child_id(index, newest if attempt is None else attempt)


_LOOK_SECONDS = 0.2


@click.command
@batch_argument
@click.option("--failed", "again", is_flag=True, help="Also run failed inputs again, once each.")
def resume(batch: Batch, again: bool) -> None:
    """Submit the missing inputs of a batch whose driver has ended.

    It runs until all inputs are submitted; if the batch has retries, until the last attempts are submitted.
    Ctrl-C ends it at any time: submitted jobs keep running, and the same command submits the rest. Jobs
    that run, succeeded or were collected are not started again.

    Example: kinetic batch resume @last
    """
    from kinetic._batches import driver

    standing = batch_state(batch)
    if not again and _is_over(standing):
        click.echo(f"{batch.group.group_id} has ended: {_summary(standing)}; all inputs were submitted", err=True)
        return
    try:
        with _progress_shown(batch):
            if again:
                driver.retry_failed(batch.handle, here=True)
            else:
                driver.resume_batch(batch.handle, batch.group, here=True)
    except KeyboardInterrupt:
        click.echo(f"\ndetached from {batch.group.group_id}: {_summary(batch_state(batch))}", err=True)
        click.echo(
            f"submitted jobs keep running; to submit the rest: kinetic batch resume {batch.group.group_id}", err=True
        )
        raise
    after = batch_state(batch)
    click.echo(f"{batch.group.group_id}: {_summary(after)}", err=True)
    if not _is_over(after):
        click.echo(f"next:  kinetic batch status {batch.group.group_id} --watch", err=True)


def _is_over(standing: BatchState) -> bool:
    """Say whether nothing runs, waits or is to be submitted: taking the lease would then only disturb."""
    from kinetic._batches import state

    return not standing.open and not any(standing.counts[state] for state in (state.RUNNING, state.WAITING))


def _progress_shown(batch: Batch) -> AbstractContextManager[object]:
    """Show how a batch goes from a thread of its own, while the caller's thread drives it."""
    from kinetic._batches import display

    stack = ExitStack()
    shown = stack.enter_context(display.show_progress(batch.handle, summary=False))
    stack.callback(_keep_refreshing(batch, shown))
    return stack


def _keep_refreshing(batch: Batch, shown: View) -> Callable[[], None]:
    over = threading.Event()
    tracker = batch.handle._get_tracker()  # noqa: SLF001 - the terminal's side of the same thing

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            shown.look(tracker)

    thread = threads.start(look, "kinetic-view")

    def stop() -> None:
        over.set()
        if thread is not None:
            thread.join()

    return stop

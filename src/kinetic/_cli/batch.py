"""``kinetic batch``: from what a user typed to a batch, and the commands about one except ``results``."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from kinetic._cli import error_output, shared_options
from kinetic._cli.command_tree import LazyGroup
from kinetic._output import format as output_format
from kinetic._output import terminal as output
from kinetic._output.format import Column, age_text, count_text, duration_cell
from kinetic._wire import keys
from kinetic.errors import BatchNotFoundError, KineticError, OptionError

if TYPE_CHECKING:
    from kinetic._batches.report import BatchState, FoundBatch, Row
    from kinetic._config.target import Target
    from kinetic._stores.protocol import Store
    from kinetic._wire.records import Group

COLUMNS = (
    Column("BATCH"),
    Column("NAME", flexible=True, spare=3),
    Column("FUNCTION", flexible=True, spare=2),
    Column("JOBS", right=True),
    Column("STATUS", is_status=True, flexible=True),
    Column("SUBMITTED BY", spare=4),
    Column("AGE", spare=1),
)
STATUS_COLUMNS = (
    Column("INDEX", right=True),
    Column("INPUT", flexible=True),
    Column("STATUS", is_status=True),
    Column("ATTEMPT", right=True, spare=2),
    Column("DURATION", right=True, spare=1),
    Column("REASON", flexible=True, spare=3),
    Column("JOB ID", spare=4),
)
_ROWS = 20  # of a table that a person reads
_LOGS = 3  # commands for logs of failed jobs
_REFRESH_SECONDS = 0.2


def _find(name: str, target: Target) -> FoundBatch:
    """Return the batch with this id, a unique beginning of it or this name, or the newest for "@last" or "-"."""
    from kinetic._batches import batch_handle, report
    from kinetic._jobs import job_list

    stores = job_list.stores(target)
    newest = name in shared_options.NEWEST
    try:
        found = batch_handle.newest_batch(stores) if newest else batch_handle.find_batch(name, stores)
    except OptionError as error:
        if keys.is_made(name):
            error.why = "it is the id of a job; this command takes a batch"
            error.next = shared_options.job_command(name)
        raise
    if found is None:
        raise BatchNotFoundError(
            "there are no batches, so @last is not available",
            why=f"looked in {' and '.join(store.url for store in stores)}; removed batches have no history",
            next="kinetic jobs list --all",
        )
    group, store = found
    return report.FoundBatch(group, batch_handle.attached_handle(group, store))


batch_argument = shared_options.found_argument("group", "GROUP", shared_options.complete_batches, _find)


def _function_text(group: Group) -> str:
    return shared_options.function_text(None, group.handle.get("command"), group.submit_fn_name)


def _driver_text(now: BatchState) -> str:
    """Return which process submits the rest; "" when there is nothing to submit."""
    if now.driver is not None and now.driver.lives:
        here = now.driver.machine == os.uname().nodename
        return f"process {now.driver.pid} {'here' if here else f'on {now.driver.machine}'}"
    return "none" if now.is_abandoned else ""


def report_unsubmitted(batch: FoundBatch, now: BatchState) -> None:
    """Report inputs that no process submits, and the command that does."""
    if now.is_abandoned:
        what = f"{count_text(now.open, 'input')} {'is' if now.open == 1 else 'are'} not submitted"
        click.echo(f"{what}, and no process drives this batch", err=True)
        click.echo(f"next:  kinetic batch resume {batch.group.group_id}", err=True)


def wait_for(batch: FoundBatch, timeout: float | None) -> None:
    """Wait until a batch has ended, or until no process would submit the rest of it."""
    from kinetic._batches import state

    state.require_driver(batch.handle)
    batch.handle.wait(timeout=timeout)


@click.group(
    cls=LazyGroup,
    path=["batch"],
    epilog="GROUP is the id of a batch, a unique beginning of it, the name that only it has, or @last or - for the "
    "newest one. INDEX is the position of an input in the submitted list, from 0.",
)
def batch() -> None:
    """List, inspect, collect, cancel and resume batches.

    Submit a batch in Python, with f.run_async_map(inputs).

    Example: kinetic batch status @last --watch
    """


@click.command("list")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Show only the N newest.")
@shared_options.place_options
@shared_options.json_option
def list_(limit: int | None, as_json: bool, **place: str | None) -> None:
    """List batches, newest first.

    Batches of this machine and of the configured cluster. SUBMITTED BY is the process that submits the remaining
    inputs and the retries.

    Example: kinetic batch list --limit 10
    """
    from kinetic._batches import batch_handle, report
    from kinetic._jobs import job_list, locate

    known: list[tuple[Group, Store]] = []
    unread: KineticError | None = None
    stores = job_list.stores(shared_options.target_of(place))
    for store in reversed(stores):  # this machine's own first: it needs no network
        try:
            known += [(group, store) for group in batch_handle.list_groups(store)]
        except KineticError as error:
            if not known:
                raise
            unread = error
    newest = sorted(known, key=lambda each: each[0].created, reverse=True)[:limit]

    def look(group: Group, store: Store) -> tuple[FoundBatch, BatchState] | None:
        with shared_options.warn_if_unlisted(group.group_id):
            found = report.FoundBatch(group, batch_handle.attached_handle(group, store))
            return found, report.batch_state(found)
        return None

    looks = [(store.url, functools.partial(look, group, store)) for group, store in newest]
    seen = [each for each in locate.in_order(looks) if each is not None]
    if as_json:
        output_format.print_document(batches=[report.batch_page(*each) for each in seen])
    elif seen:
        _print_list(seen)
    elif not any(map(batch_handle.ids, stores)):  # else a warning has named them
        click.echo("There are no batches; f.run_async_map(inputs) submits one", err=True)
        shared_options.report_store_elsewhere(shared_options.target_of(place), "kinetic batch list")
    if unread is not None:
        raise unread


def _print_list(seen: Sequence[tuple[FoundBatch, BatchState]]) -> None:
    rows = [
        [
            group.group_id,
            group.group_name or "",
            _function_text(group),
            str(group.total_expected),
            now.summary,
            _driver_text(now),
            age_text(time.time() - group.created),
        ]
        for (group, _), now in seen
    ]
    output_format.print_table(COLUMNS, rows)
    shared_options.report_partly_submitted([group.group_id for (group, _), now in seen if now.is_abandoned])


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
@shared_options.timeout_option("With --watch: stop")
@shared_options.json_option
@click.pass_context
def status(
    ctx: click.Context,
    /,
    batch: FoundBatch,
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
    from kinetic._batches import report

    if timeout is not None and not watch:
        raise click.UsageError("--timeout requires --watch")
    if watch:
        wait_for(batch, timeout)
    now = report.batch_state(batch)
    rows, more = report.rows_of(batch, only_failed=only_failed, limit=None if everything or as_json else _ROWS)
    if as_json:
        output_format.print_document(
            batch=report.batch_page(batch, now), jobs=[report.row_page(batch, row) for row in rows]
        )
    else:
        _print_status(batch, now, rows, more)
    ctx.exit(error_output.JOB_FAILED if watch and now.has_failed else 0)


def _print_status(batch: FoundBatch, now: BatchState, rows: Sequence[Row], more: int) -> None:
    from kinetic._batches import state

    group, driver = batch.group, _driver_text(now)
    print(f"{group.group_id}: {now.summary}, of {group.total_expected}")
    about = [
        group.group_name,
        f"{_function_text(group)} on {group.handle.get('accelerator')}",
        f"submitted {age_text(time.time() - group.created)} ago",
        f"driven by {driver}" if driver else "",
    ]
    print(output_format.plain(", ".join(filter(None, about))))
    if rows:
        print()
        output_format.print_table(STATUS_COLUMNS, [_row_cells(batch, row) for row in rows])
    if more:
        click.echo(f"and {more} more: kinetic batch status {group.group_id} --all", err=True)
    failed = [row.index for row in rows if row.state == state.FAILED]
    for index in failed[:_LOGS]:
        click.echo(f"log of [{index}]:  kinetic batch logs {group.group_id} {index}", err=True)
    report_unsubmitted(batch, now)


def _row_cells(batch: FoundBatch, row: Row) -> list[str]:
    from kinetic._batches import report

    return [
        str(row.index),
        report.input_text(batch, row.index),
        row.state,
        "" if row.attempt is None else str(row.attempt),
        duration_cell(row.times[2]),
        row.reason,
        row.job_id or "",
    ]


@click.command
@batch_argument
@shared_options.json_option
def cancel(batch: FoundBatch, as_json: bool) -> None:
    """Cancel the running, pending and unsubmitted jobs of a batch.

    Jobs that have ended, their results and all logs are kept. The process that submits the batch stops.

    Example: kinetic batch cancel @last
    """
    from kinetic._batches import report, state

    before = report.batch_state(batch)
    batch.handle.cancel()
    after = report.batch_state(batch)
    ended = after.counts[state.CANCELLED] - before.counts[state.CANCELLED]
    if as_json:
        output_format.print_document(batch=report.batch_page(batch, after), cancelled=ended)
    others = state.summary_text(after.counts, of=(state.SUCCEEDED, state.FAILED, state.REMOVED, state.MISSING))
    jobs = f"{count_text(ended, 'job')} cancelled{f'; {others}' if others else ''}"
    what = f"had ended before: {before.summary}" if before.is_over else f"is cancelled: {jobs}"
    click.echo(f"{batch.group.group_id} {what}", err=True)


@click.command
@batch_argument
@shared_options.removal_options
@shared_options.json_option
def cleanup(batch: FoundBatch, dry_run: bool, yes: bool, k8s: bool, gcs: bool, as_json: bool) -> None:
    """Remove a batch: its jobs, their results and logs, and itself.

    Running jobs are stopped first. The batch can then no longer be found, unless --no-gcs keeps its stored files.
    Files in output folders are always kept.

    Example: kinetic batch cleanup @last --yes
    """
    from kinetic._batches import report

    group_id = batch.group.group_id
    shared_options.check_removal(f"kinetic batch cleanup {group_id}", k8s=k8s, gcs=gcs)
    now, removed = report.batch_state(batch), False
    if dry_run:
        click.echo(f"{group_id} would be removed: {now.summary}", err=True)
    elif yes or _is_confirmed(batch, now, results=gcs):
        batch.handle.cleanup(k8s=k8s, gcs=gcs)
        removed = True
        kept = "" if k8s and gcs else "; its stored files are kept" if k8s else "; its resources are kept"
        click.echo(f"{group_id} is removed: {now.summary}{kept}", err=True)
    else:
        click.echo("nothing was removed", err=True)
    if as_json:
        output_format.print_document(batch=report.batch_page(batch, now), removed=removed)


def _is_confirmed(batch: FoundBatch, now: BatchState, *, results: bool) -> bool:
    from kinetic._batches import state

    group_id, running = batch.group.group_id, now.counts[state.RUNNING] + now.counts[state.WAITING]
    question = f"Remove {group_id} with {count_text(batch.group.total_expected, 'job')}"
    question += f", {running} of them not ended" if running else ""
    if results and shared_options.is_interactive():
        waiting = batch.handle.status_counts().get("SUCCEEDED", 0)  # a collected one is NOT_FOUND
        question += f", with {count_text(waiting, 'uncollected result')}" if waiting else ""
    refused = f"nothing was removed: {group_id} would be removed, {now.summary}"
    return shared_options.confirm(f"{question}?", refused=refused, newest=group_id)


@click.command
@batch_argument
@click.option("--failed", "again", is_flag=True, help="Also run failed inputs again, once each; edits have no effect.")
def resume(batch: FoundBatch, again: bool) -> None:
    """Submit the missing inputs of a batch whose driver has ended.

    It runs until all inputs are submitted; if the batch has retries, until the last attempts are submitted.
    Ctrl-C ends it at any time: submitted jobs keep running, and the same command submits the rest. Jobs
    that run, succeeded or were collected are not started again.

    Example: kinetic batch resume @last
    """
    from kinetic._batches import driver, report, state

    group_id, before = batch.group.group_id, report.batch_state(batch)
    if not again and before.is_over:
        click.echo(f"{group_id} has ended: {before.summary}; all inputs were submitted", err=True)
        return
    try:
        with _progress_shown(batch):
            if again:
                driver.retry_failed(batch.handle, here=True)
            else:
                driver.resume_batch(batch.handle, batch.group, here=True)
    except KeyboardInterrupt:
        known = state.count_states(state.tracker_of(batch.handle), batch.handle.submission_failures)
        click.echo(f"\ndetached from {group_id}: {state.summary_text(known)}", err=True)  # without one more request
        click.echo(f"submitted jobs keep running; to submit the rest: kinetic batch resume {group_id}", err=True)
        raise
    after = report.batch_state(batch)
    click.echo(f"{group_id}: {after.summary}", err=True)
    if not after.is_over:
        click.echo(f"next:  kinetic batch status {group_id} --watch", err=True)


@contextmanager
def _progress_shown(batch: FoundBatch) -> Iterator[None]:
    """Show the progress of a batch from a thread, while the caller's thread drives it."""
    from kinetic._batches import display, state

    tracker = state.tracker_of(batch.handle)
    with display.show_progress(batch.handle, summary=False) as view:

        def refresh(over: threading.Event) -> None:
            while not over.wait(_REFRESH_SECONDS):
                view.look(tracker)

        with output.beside(refresh, "kinetic-view"):
            yield

"""``kinetic batch status``: how a batch stands, and how each of its jobs does."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kinetic._cli import batches, durations, failures, options, tables
from kinetic._cli.tables import Column
from kinetic._output.format import age_text, duration_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetic._batches.board import Board
    from kinetic._batches.loose import Loose
    from kinetic._cli.batches import Batch, Standing
    from kinetic._jobs.status import Snapshot

_ROWS = 20  # of a table that a person reads
_LOGS = 3  # commands for logs of failed jobs
COLUMNS = (
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
@batches.on_a_batch
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
    type=durations.Duration(bare=True),
    metavar="TIME",
    help="With --watch: stop after this time, such as 90 (seconds), 10m or 2h; exit code 124.",
)
@options.as_json
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
        watched(batch, timeout)
    standing = batches.standing_of(batch)
    rows = _rows(batch, only_failed=only_failed, limit=None if everything or as_json else _ROWS)
    if as_json:
        shown = [_page(batch, row) for row in _looked_at(batch, rows.shown)]
        tables.document(batch=batches.page_of(batch, standing), jobs=shown)
    else:
        _show(batch, standing, rows)
    ctx.exit(failures.JOB_FAILED if watch and has_failed(standing) else 0)


def watched(batch: Batch, timeout: float | None) -> None:
    """Wait until a batch has ended, or until nobody is left who would submit the rest of it."""
    batch.handle._poll.needs_driver = True  # noqa: SLF001 - the terminal's side of the same thing
    batch.handle.wait(timeout=timeout)  # which says on Ctrl-C that the batch goes on, and how to cancel it


def has_failed(standing: Standing) -> bool:
    """Say whether a batch did not come to a good end, as far as it has come to one."""
    from kinetic._batches import tally

    return any(standing.counts[state] for state in (tally.FAILED, tally.CANCELLED, tally.REFUSED, tally.MISSING))


class _Rows(NamedTuple):
    shown: list[Row]
    more: int


def _rows(batch: Batch, *, only_failed: bool, limit: int | None) -> _Rows:
    """Choose which inputs are shown; nothing is read for those that are not."""
    from kinetic._batches import tally

    refused = batch.handle.submission_failures
    board = batch.handle._seeing()  # noqa: SLF001 - as above
    states = {index: tally.state_of(board, index, refused) for index in range(len(board.attempts))}
    bad = {tally.FAILED, tally.REFUSED}
    chosen = [index for index, state in states.items() if not only_failed or state in bad]
    if limit is not None and len(chosen) > limit:
        first = (tally.FAILED, tally.REFUSED, tally.AGAIN, tally.RUNNING)
        ranks = {state: rank for rank, state in enumerate(first)}
        chosen = sorted(chosen, key=lambda index: (ranks.get(states[index], len(ranks)), index))
    shown = [_row(batch, board, index, states[index], refused) for index in chosen[:limit]]
    return _Rows(shown, len(chosen) - len(shown))


def _row(batch: Batch, board: Board | Loose, index: int, state: str, refused: dict[int, Exception]) -> Row:
    job = batch.handle.jobs[index]
    attempt = board.attempts[index] if job is not None else None
    why = " ".join(str(refused[index]).split()) if index in refused else ""
    return Row(index, state, attempt, None, job.job_id if job is not None else None, why)


def _looked_at(batch: Batch, rows: Sequence[Row]) -> list[Row]:
    """Read of each job that is shown when it ran and why it failed."""
    from kinetic._jobs.status import observe_many

    jobs = [(row, job) for row in rows if (job := batch.handle.jobs[row.index]) is not None]
    looks = observe_many([job for _, job in jobs])
    seen = {row.index: look for (row, _), look in zip(jobs, looks, strict=True)}
    return [replace(row, seen=seen.get(row.index)) for row in rows]


def _show(batch: Batch, standing: Standing, rows: _Rows) -> None:
    from kinetic._batches import tally

    group = batch.group
    print(f"{group.group_id}: {tally.told(standing.counts)}, of {group.total_expected}")
    about = filter(None, (group.group_name, f"{group.submit_fn_name} on {group.handle.get('accelerator')}"))
    driver = batches.driver_of(standing)
    age = f"{age_text(time.time() - group.created)} ago"
    print(tables.plain(", ".join([*about, f"submitted {age}", *([f"driven by {driver}"] if driver else [])])))
    shown = _looked_at(batch, rows.shown)
    if shown:
        print()
        tables.show(COLUMNS, [_cells(batch, row) for row in shown])
    if rows.more:
        click.echo(f"and {rows.more} more: kinetic batch status {group.group_id} --all", err=True)
    failed = [row.index for row in shown if row.state == tally.FAILED]
    for index in failed[:_LOGS]:
        click.echo(f"log of [{index}]:  kinetic batch logs {group.group_id} {index}", err=True)
    batches.say_if_left(batch, standing)


def _cells(batch: Batch, row: Row) -> list[str]:
    return [
        str(row.index),
        batches.input_of(batch, row.index),
        row.state,
        "" if row.attempt is None else str(row.attempt),
        duration_cell(_times(row)[2]),
        _reason(row),
        row.job_id or "",
    ]


def _reason(row: Row) -> str:
    """Say how a job failed or what it waits for; of one that was collected nothing else is left."""
    from kinetic._batches import tally
    from kinetic._batches.board import REMOVED

    if row.seen is None:
        return row.refused
    if row.state == tally.SUCCEEDED:
        return "collected" if row.seen.status.value == "NOT_FOUND" else ""
    if row.state in {REMOVED, tally.CANCELLED}:
        return ""
    return tables.plain(row.seen.reason)


def _times(row: Row) -> tuple[float | None, float | None, float | None]:
    """Return when the job began and ended, and how long it took or takes, in seconds."""
    witness = (row.seen.outcome or row.seen.sighting) if row.seen is not None else None
    if witness is None or witness.started is None:
        return None, None, None
    until = time.time() if row.seen is not None and not row.seen.status.is_final else witness.ended
    return witness.started, witness.ended, round(until - witness.started, 3) if until else None


def _page(batch: Batch, row: Row) -> dict[str, Any]:
    from kinetic._wire import names

    started, ended, seconds = _times(row)
    return {
        "index": row.index,
        "input": batches.input_of(batch, row.index),
        "state": row.state.replace(" ", "_"),
        "status": row.seen.status.value if row.seen is not None else None,
        "job_id": row.job_id,
        "attempt": row.attempt,
        "reason": _reason(row),
        "started_at": names.utc(started) if started else None,
        "ended_at": names.utc(ended) if ended else None,
        "duration_seconds": seconds,
    }

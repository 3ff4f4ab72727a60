"""``kinetic batch cancel`` and ``kinetic batch cleanup``: ending a batch, and removing what is left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kinetic._cli import asking, batches, options, tables
from kinetic._cli.commands.ending import Wishes

if TYPE_CHECKING:
    from kinetic._cli.batches import Batch, Standing

_PATIENCE_SECONDS = 10.0  # how long removing waits for processes; see _batches/closing.py


@click.command
@batches.on_a_batch
@options.as_json
def cancel(batch: Batch, as_json: bool) -> None:
    """Cancel the running, pending and unsubmitted jobs of a batch.

    Jobs that have ended, their results and all logs are kept. The process that submits the batch stops.

    Example: kinetic batch cancel @last
    """
    from kinetic._batches import tally
    from kinetic._batches.board import REMOVED

    batch.handle._refreshed()  # noqa: SLF001 - the terminal's side of the same thing
    before = batches.standing_of(batch)
    batch.handle.cancel()
    after = batches.standing_of(batch)
    group_id, ended = batch.group.group_id, after.counts[tally.CANCELLED] - before.counts[tally.CANCELLED]
    if as_json:
        tables.document(batch=batches.page_of(batch, after), cancelled=ended)
    jobs = "1 job" if ended == 1 else f"{ended} jobs"
    others = tally.told(after.counts, of=(tally.SUCCEEDED, tally.FAILED, REMOVED, tally.MISSING))
    click.echo(f"{group_id} is cancelled: {jobs} cancelled{f'; {others}' if others else ''}", err=True)


@click.command
@batches.on_a_batch
@click.option("--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--k8s/--no-k8s",
    default=True,
    help="Remove the processes, queue entries and working folders, or the Kubernetes objects.",
)
@click.option("--gcs/--no-gcs", default=True, help="Remove the stored files and the batch itself.")
@options.as_json
def cleanup(batch: Batch, dry_run: bool, yes: bool, k8s: bool, gcs: bool, as_json: bool) -> None:
    """Remove a batch: its jobs, their results and logs, and itself.

    Running jobs are stopped first. The batch can then no longer be found, unless --no-gcs keeps its stored files.
    Files in output folders are always kept.

    Example: kinetic batch cleanup @last --yes
    """
    group_id = batch.group.group_id
    Wishes(k8s, gcs, _PATIENCE_SECONDS).check(f"kinetic batch cleanup {group_id}")
    standing = batches.standing_of(batch)
    removed = False
    if dry_run:
        click.echo(f"{group_id} would be removed: {_told(standing)}", err=True)
    elif yes or _is_agreed(batch, standing, results=gcs):
        batch.handle.cleanup(k8s=k8s, gcs=gcs)
        removed = True
        kept = "" if k8s and gcs else "; its stored files are kept" if k8s else "; its resources are kept"
        click.echo(f"{group_id} is removed: {_told(standing)}{kept}", err=True)
    else:
        click.echo("nothing was removed", err=True)
    if as_json:
        tables.document(batch=batches.page_of(batch, standing), removed=removed)


def _is_agreed(batch: Batch, standing: Standing, *, results: bool) -> bool:
    """Ask a person; where there is none, nothing is removed.

    Raises:
        OptionError: There is no terminal.
    """
    from kinetic._batches import tally
    from kinetic.errors import OptionError

    group_id = batch.group.group_id
    if not asking.can_ask():
        raise OptionError(
            f"nothing was removed: {group_id} would be removed, {_told(standing)}",
            why="not a terminal: pass --yes to confirm",
            next=f"kinetic batch cleanup {group_id} --yes",
        )
    running = standing.counts[tally.RUNNING] + standing.counts[tally.WAITING]
    open_ = f", {running} of them not ended" if running else ""
    waiting = _uncollected(batch) if results else 0
    lost = f", with {'1 uncollected result' if waiting == 1 else f'{waiting} uncollected results'}" if waiting else ""
    return asking.is_agreed(f"Remove {group_id} with {batch.group.total_expected} jobs{open_}{lost}?")


def _uncollected(batch: Batch) -> int:
    """Count the results that are still in the store."""
    return batch.handle.status_counts().get("SUCCEEDED", 0)  # one that was collected is NOT_FOUND


def _told(standing: Standing) -> str:
    from kinetic._batches import tally

    return tally.told(standing.counts)

"""``kinetic batch logs``: the log of one job of a batch, named by its input's index."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kinetic._cli import batches
from kinetic._cli.commands import logs as of_a_job

if TYPE_CHECKING:
    from kinetic._cli.batches import Batch


@click.command
@batches.on_a_batch
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
    ctx.invoke(of_a_job.logs, job_id=job_id, follow=follow, tail=tail, attempt=None, host=host)


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
    board = batch.handle._refreshed()  # noqa: SLF001 - the terminal's side of the same thing
    newest = board.attempts[index]
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

"""``kinetic batch resume``: submit what a batch's driver left behind, in the foreground."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING

import click

from kinetic._cli import batches
from kinetic._cli.batches import Batch, Standing
from kinetic._wire import threads

if TYPE_CHECKING:
    from kinetic._batches.view import View

_LOOK_SECONDS = 0.2


@click.command
@batches.on_a_batch
@click.option("--failed", "again", is_flag=True, help="Also run failed inputs again, once each.")
def resume(batch: Batch, again: bool) -> None:
    """Submit the missing inputs of a batch whose driver has ended.

    It runs until all inputs are submitted; if the batch has retries, until the last attempts are submitted.
    Ctrl-C ends it at any time: submitted jobs keep running, and the same command submits the rest. Jobs
    that run, succeeded or were collected are not started again.

    Example: kinetic batch resume @last
    """
    from kinetic._batches import resuming

    standing = batches.standing_of(batch)
    if not again and _is_over(standing):
        click.echo(f"{batch.group.group_id} has ended: {_told(standing)}; all inputs were submitted", err=True)
        return
    try:
        with _shown(batch):
            if again:
                resuming.retry_failed(batch.handle, here=True)
            else:
                resuming.resume(batch.handle, batch.group, here=True)
    except KeyboardInterrupt:
        click.echo(f"\ndetached from {batch.group.group_id}: {_told(batches.standing_of(batch))}", err=True)
        click.echo(
            f"submitted jobs keep running; to submit the rest: kinetic batch resume {batch.group.group_id}", err=True
        )
        raise
    after = batches.standing_of(batch)
    click.echo(f"{batch.group.group_id}: {_told(after)}", err=True)
    if not _is_over(after):
        click.echo(f"next:  kinetic batch status {batch.group.group_id} --watch", err=True)


def _is_over(standing: Standing) -> bool:
    """Say whether nothing runs, waits or is to be submitted: taking the lease would then only disturb."""
    from kinetic._batches import tally

    return not standing.open and not any(standing.counts[state] for state in (tally.RUNNING, tally.WAITING))


def _told(standing: Standing) -> str:
    from kinetic._batches import tally

    return tally.told(standing.counts)


def _shown(batch: Batch) -> AbstractContextManager[object]:
    """Show how a batch goes from a thread of its own, while the caller's thread drives it."""
    from kinetic._batches import view

    stack = ExitStack()
    shown = stack.enter_context(view.of(batch.handle, summary=False))
    stack.callback(_keep_looking(batch, shown))
    return stack


def _keep_looking(batch: Batch, shown: View) -> Callable[[], None]:
    over = threading.Event()
    board = batch.handle._seeing()  # noqa: SLF001 - the terminal's side of the same thing

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            shown.look(board)

    thread = threads.begin(look, "kinetic-view")

    def stop() -> None:
        over.set()
        if thread is not None:
            thread.join()

    return stop

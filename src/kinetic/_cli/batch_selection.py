"""From what a user typed to a batch, and what every command about batches tells of one."""

from __future__ import annotations

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kinetic._cli import shared_options
from kinetic._output.format import shortened

if TYPE_CHECKING:
    from kinetic._batches.batch_handle import BatchHandle
    from kinetic._batches.lease import Holder
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


def on_a_batch(function: shared_options.Command) -> shared_options.Command:
    """Give a command the argument GROUP, and call it with that batch first."""

    @shared_options.where
    @click.argument("group", metavar="GROUP", shell_complete=shared_options.batches)
    @functools.wraps(function)
    def found(group: str, project: str | None, zone: str | None, cluster: str | None, **others: Any) -> Any:  # noqa: ARG001 - a batch is found without its zone
        return function(find(group, project, cluster), **others)

    return found


def find(word: str, project: str | None, cluster: str | None) -> Batch:
    """Return the batch that a user means: by its id, the beginning of it, or "@last" or "-" for the newest.

    Raises:
        BatchNotFoundError: There is none.
        OptionError: It cannot be an id, or several batches begin so.
    """
    from kinetic._batches import attach

    store = attach.store_of(project, cluster)
    if word not in shared_options.NEWEST:
        group = attach.find_batch(word, store)
    elif (newest := attach.newest_batch(store)) is not None:
        group = newest
    else:
        from kinetic.errors import BatchNotFoundError

        raise BatchNotFoundError(
            "there are no batches, so @last is not available",
            why=f"looked in {store.url}; removed batches have no history",
            next="kinetic jobs list --all",
        )
    return Batch(group, attach.handle_of(group, store))


def batch_state(batch: Batch) -> BatchState:
    """Look at a batch: one question to its backend and one listing of its store, whatever its size."""
    from kinetic._batches import lease, state
    from kinetic._jobs import locate

    tracker, refused = batch.handle._refreshed(), batch.handle.submission_failures  # noqa: SLF001 - the terminal's side
    counts = state.count_states(tracker, refused)
    missing = [index for index, attempt in enumerate(tracker.attempts) if attempt < 0 and index not in refused]
    open_ = counts[state.AGAIN] + sum(tracker.may_launch(index) for index in missing)
    # A driver that dies at the wrong moment has named one and not launched it; on other machines they may just wait.
    jobs = filter(None, map(tracker.record, tracker.unseen()))
    open_ += sum(job.host == locate.machine() for job in jobs)
    driver = lease.holder(tracker.store, batch.group.group_id, locate.group_key(batch.group))
    return BatchState(counts, driver, tracker.stopped, open_)


def page_of(batch: Batch, standing: BatchState) -> dict[str, Any]:
    """Put a batch into JSON values."""
    from kinetic._batches import state
    from kinetic._wire import names

    group, driver = batch.group, standing.driver
    return {
        "group_id": group.group_id,
        "name": group.group_name,
        "function": group.submit_fn_name,
        "tags": dict(group.tags),
        "accelerator": str(group.handle.get("accelerator", "")),
        "backend": str(group.handle.get("backend", "")),
        "created_at": names.utc(group.created),
        "total": group.total_expected,
        "counts": {state.replace(" ", "_"): standing.counts[state] for state in state.STATES},
        "stopped": standing.stopped,
        "driver": {"machine": driver.machine, "pid": driver.pid} if driver and driver.lives else None,
        "is_left": standing.is_left,
    }


def driver_of(standing: BatchState) -> str:
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


def input_of(batch: Batch, index: int) -> str:
    """Return an input as a short text, "" where it is not known."""
    from kinetic._output import format as output_format

    table = batch.handle._table  # noqa: SLF001 - the terminal's side of the same thing
    return shortened(output_format.plain(table.inputs[index].shown), _LONGEST_INPUT) if table is not None else ""

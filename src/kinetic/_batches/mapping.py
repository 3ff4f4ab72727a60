"""run_async_map: from inputs to a handle, with everything in the store before the first child starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kinetic import _output as output
from kinetic._batches import lease, preparing, resuming
from kinetic._batches.board import Board
from kinetic._batches.handle import BatchHandle, of_group
from kinetic._jobs import places
from kinetic._wire.steps import step
from kinetic.errors import BackendError, KineticError

if TYPE_CHECKING:
    from kinetic._batches.asking import Wish
    from kinetic._batches.launching import Launcher
    from kinetic._batches.lease import Lease
    from kinetic._batches.preparing import Prepared


def submit(wish: Wish) -> BatchHandle:
    """Submit a batch.

    Without a limit and without retries everything is launched before this returns; otherwise a thread goes on launching
    while others are running, and keeps the interpreter until it is done.

    Raises:
        KineticError: Nothing was launched; or the batch is there and could not be launched whole: then a note says how
            to go on with it.
    """
    prepared = preparing.prepare(wish)
    launcher = prepared.launcher
    batch = _handle(prepared)
    held = _lease(launcher)
    step("driver:leased")
    settings = launcher.group.settings
    at_once = settings.max_concurrent is None and settings.retries == 0
    watches = settings.fail_fast and settings.cancel_running_on_fail
    resuming.start(batch, launcher, held, here=at_once and not watches)
    _tell(batch, prepared.errors)
    return batch


def _lease(launcher: Launcher) -> Lease:
    """Take the right to drive what was prepared; from here on a failure leaves a batch that can be resumed."""
    group_id = launcher.group.group_id
    try:
        held = lease.take(launcher.store, group_id, places.group_key(launcher.group))
    except KineticError as error:
        error.add_note(resuming.how_to_go_on(group_id))
        raise
    if held is None:  # somebody saw the manifest and was quicker
        raise BackendError(f"{group_id} is driven by somebody else", code="batch-driven")
    return held


def _handle(prepared: Prepared) -> BatchHandle:
    launcher, group = prepared.launcher, prepared.launcher.group
    batch = of_group(group)
    batch._submission_errors = dict(prepared.errors)
    batch._board = Board(group, launcher.store, launcher.backend)
    batch._table = launcher.table
    return batch


def _tell(batch: BatchHandle, errors: Mapping[int, Exception]) -> None:
    output.say(f"submitted {batch.group_id}: {len(batch.jobs) - len(errors)} jobs")
    output.say(f"follow:   kinetic batch status {batch.group_id}")
    output.say(f"cancel:   kinetic batch cancel {batch.group_id}")

"""Taking a batch over: from its durable pages to a driver in this process."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from kinetic import _hardware as hardware
from kinetic import _output as output
from kinetic._backends import registry
from kinetic._batches import control_log, lease
from kinetic._batches.driver import Driver
from kinetic._batches.launcher import Launcher
from kinetic._batches.state import BatchTracker
from kinetic._config import keyring
from kinetic._jobs import locate
from kinetic._project import pickler
from kinetic._wire import distribution, keys, threads
from kinetic._wire import order as orders
from kinetic._wire import outcome as outcomes
from kinetic._wire.records import read_table
from kinetic.errors import BackendError, CredentialsError, KineticError, OptionError

if TYPE_CHECKING:
    from collections.abc import Collection

    from kinetic._batches.batch import Batch
    from kinetic._batches.lease import Lease
    from kinetic._wire.order import Order
    from kinetic._wire.records import Group


_SOON_SECONDS = 5.0


def start(
    batch: Batch, launcher: Launcher, held: Lease | None, *, here: bool, only: Collection[int] | None = None
) -> None:
    """Drive a batch, in the caller's thread or in one of its own, which keeps the interpreter until it is done.

    Where no thread can be had, the caller waits, and everything is submitted when this returns.

    Args:
        batch: Its handle; it is told of every launch.
        launcher: Launches children.
        held: The right to drive; None when it is to be had only if another machine stays silent.
        here: Drive in the caller's thread; what goes wrong is raised there.
        only: Launch nothing for any other input.
    """
    batch._submission_complete.clear()
    batch._submission_error = None
    batch._poll.attached = False

    def drive() -> None:
        try:
            is_done = _drive(batch, launcher, held, only)
        except BaseException as error:
            error.add_note(how_to_go_on(batch.group_id))
            batch._submission_error = error
            batch._submission_complete.set()
            if here:
                raise
            if not threading.main_thread().is_alive():  # nobody will read it from the handle any more
                output.warn(f"{batch.group_id} was not submitted to its end: {error}\n{how_to_go_on(batch.group_id)}")
        else:
            batch._poll.attached = not is_done
            if is_done:
                batch._submission_complete.set()
            else:
                _tell_who_drives(batch)

    if not here:
        if threads.begin(drive, f"kinetic-{batch.group_id}", daemon=False) is not None:
            return
        output.report(f"{batch.group_id} is submitted before the program goes on: no thread can be had")
        here = True  # what goes wrong is raised
    drive()


def _drive(batch: Batch, launcher: Launcher, held: Lease | None, only: Collection[int] | None) -> bool:
    """Drive a batch to its end; False when another process drives it."""
    tracker = batch._seeing()
    assert isinstance(tracker, BatchTracker)  # noqa: S101 - it has a manifest
    held = held or lease.take_patiently(tracker.store, batch.group_id, tracker.key)
    if held is None:
        return False
    driver = Driver(launcher, tracker, held, lambda index: batch._take_over_jobs((index,)), only)
    try:
        driver.run()
    finally:
        tracker.submit_alone(alone=False)
    return not driver.superseded


def how_to_go_on(group_id: str) -> str:
    """Say what brings a batch to its end that this process could not."""
    return f"kinetic batch resume {group_id}     goes on with what was not submitted"


def resume(batch: Batch, group: Group, *, here: bool = False) -> bool:
    """Take over the driving of a batch whose driver is gone.

    Args:
        batch: Its handle.
        group: Its manifest.
        here: Drive in the caller's thread, and return when that is done.

    Returns:
        True when this process drives it, now or once another machine has stayed silent for a minute; False when
        somebody else does.

    Raises:
        CredentialsError: The values of its captured variables, or its key, are not on this machine.
        OptionError: It was cancelled, or another Python made its pickles.
    """
    tracker = batch._seeing()
    assert isinstance(tracker, BatchTracker)  # noqa: S101 - it has a manifest
    tracker.refresh(whole=True)
    if tracker.stopped:
        cancelled = tracker.turns.why == control_log.CANCELLED
        raise OptionError(
            f"{batch.group_id} was stopped, and is not resumed",
            why="it was cancelled" if cancelled else "something failed, and it was made with fail_fast=True",
            next=f"kinetic batch resume {batch.group_id} --failed     runs what failed; the rest needs a new batch",
            code="batch-stopped",
        )
    launcher = launcher_of(group, tracker)
    held = lease.take(tracker.store, batch.group_id, tracker.key)
    if held is None:
        found = lease.holder(tracker.store, batch.group_id, tracker.key)
        if found is None or found.is_here:
            _tell_who_drives(batch)
            return False
        output.report(
            f"{batch.group_id} was driven on {found.machine} a moment ago; it is taken over here if that stays silent"
            " for a minute"
        )
    start(batch, launcher, held, here=here)
    return True


def retry_failed(batch: Batch, *, here: bool = False) -> None:
    """Allow every failed input one more attempt, durably, and drive the batch until they have had it.

    Args:
        batch: Its handle.
        here: Drive in the caller's thread, and return when that is done.
    """
    tracker = batch._refreshed()
    if not isinstance(tracker, BatchTracker):
        raise OptionError("these jobs belong to no batch", next="run_async_map makes one")
    failed = [index for index in range(len(batch.jobs)) if _has_failed(tracker, index)]
    if not failed:
        output.report(f"{batch.group_id}: nothing has failed")
        return
    launcher = launcher_of(tracker.group, tracker)
    held = _take_soon(tracker)
    if held is None:
        raise BackendError(
            f"{batch.group_id} is still being driven, so nothing was tried again",
            why=_who(batch),
            next=f"kinetic batch status {batch.group_id}     shows when it is done",
            code="batch-driven",
        )
    try:
        tracker.refresh(whole=True)  # now that nobody else changes anything
        failed = [index for index in failed if _has_failed(tracker, index)]
        tracker.want_again(failed)
    except BaseException:
        held.release()
        raise
    batch._cached_failures = None
    start(batch, launcher, held, here=here, only=frozenset(failed))


def _take_soon(tracker: BatchTracker) -> Lease | None:
    """Take the lease; of a driver whose jobs have all ended it is to be had in a moment."""
    limit = time.monotonic() + _SOON_SECONDS
    while (held := lease.take(tracker.store, tracker.group.group_id, tracker.key)) is None:
        if tracker.active or time.monotonic() > limit:
            return None
        time.sleep(0.02)
    return held


def launcher_of(group: Group, tracker: BatchTracker) -> Launcher:
    """Rebuild what launching children needs, from the batch's pages and from what this machine kept.

    Raises:
        CredentialsError: Its key, or the values of its captured variables, are not on this machine.
        OptionError: Another Python made its pickles.
    """
    store = tracker.store
    key = keyring.find(locate.home(), group.key_id)
    if key is None:
        raise CredentialsError(
            f"{group.group_id} cannot be driven from here",
            why=f"its children are sealed with the key {group.key_id}, which is not in {locate.home() / 'keys'}",
            next=f"on the machine that made it: kinetic key export {group.key_id}     then here: kinetic key import",
            code="key-missing-here",
        )
    order = orders.read(store, keys.group_order(group.group_id), group.order_sha256)
    _check_pickles(group, order)
    kept = tracker.backend.kept(group.group_id)
    if kept is None:
        kept = _without_secrets(group, order)
    table = read_table(store, group)
    multi_host = registry.spans_hosts(group.handle.get("backend"))
    placement = hardware.place(str(group.handle["accelerator"]), spot=group.spot, multi_host=multi_host)
    return Launcher(group, table, order, store, tracker.backend, placement, key, kept)


def _check_pickles(group: Group, order: Order) -> None:
    """Refuse to launch what this side's runner could not open: every input would fail, and use up its attempts.

    Raises:
        OptionError: The batch was made by another X.Y of Python, or by another cloudpickle.
    """
    theirs, ours = order.fingerprint, pickler.pickler_version()
    why = distribution.version_mismatch(theirs.get("python", distribution.python_version()))
    if not why and theirs.get("cloudpickle", ours) != ours:
        why = f"its pickles were made by cloudpickle {theirs['cloudpickle']}, and this is cloudpickle {ours}"
    if why:
        raise OptionError(
            f"{group.group_id} cannot be driven by this Python",
            why=why,
            next="resume it from the environment that made it",
            code="python-mismatch",
        )


def _without_secrets(group: Group, order: Order) -> dict[str, object]:
    """Return what stands for secrets where there were none; refuse where values are missing."""
    import os

    if order.environment:
        raise CredentialsError(
            f"{group.group_id} cannot be driven from here",
            why=f"the values of {', '.join(order.environment)} never leave the machine that captured them",
            next=f"run there: kinetic batch resume {group.group_id}",
            code="captured-elsewhere",
        )
    return {"captured": {}, "environ": dict(os.environ), "interpreter": ""}


def _has_failed(tracker: BatchTracker, index: int) -> bool:
    end = tracker.end(index)
    return end is not None and end.word == outcomes.FAILED


def _tell_who_drives(batch: Batch) -> None:
    output.report(f"{batch.group_id} is driven by another process: {_who(batch)}; this one only watches")


def _who(batch: Batch) -> str:
    with contextlib.suppress(KineticError):
        tracker = batch._seeing()
        found = lease.holder(tracker.store, batch.group_id, tracker.key) if isinstance(tracker, BatchTracker) else None
        if found is not None:
            return f"process {found.pid} on {found.machine}"
    return "a process that has just begun"

"""Driving a batch: launch what there is room for, try again what failed, stop when that was asked for.

The driver holds the batch's lease. It decides only what the board shows, and everything it decides is a key that is
created once: an attempt, its end, the stop. So a driver can die at any step, and the next one goes on from there.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kinetic import _hardware as hardware
from kinetic import _output as output
from kinetic._backends import registry
from kinetic._backends.protocol import Launch
from kinetic._batches import control, removal, state
from kinetic._batches.removal import run_all
from kinetic._batches.state import BatchTracker
from kinetic._config import keyring
from kinetic._jobs import locate, record
from kinetic._project import pickler
from kinetic._wire import distribution, documents, keys, outcomes, records, threads
from kinetic._wire import order as orders
from kinetic._wire.failpoints import step
from kinetic._wire.records import read_table
from kinetic.errors import BackendError, CredentialsError, KineticError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from kinetic._backends.protocol import Backend
    from kinetic._batches.control import Lease
    from kinetic._batches.state import Batch
    from kinetic._config.resources import PodRequirements
    from kinetic._hardware.placement import Placement
    from kinetic._stores.protocol import Store
    from kinetic._wire.order import Order
    from kinetic._wire.records import Group, JobRecord, Table


LAUNCHES_AT_ONCE = (
    200  # children to one call of the backend: each is locked by a descriptor while it is being submitted
)


@dataclass(frozen=True)
class ChildLauncher:
    """Everything that launching a child of one batch needs.

    Attributes:
        group: The batch.
        table: Its inputs.
        order: What its children share.
        store: Where it lies.
        backend: The place.
        placement: The hardware.
        key: The namespace's sealing key.
        kept: What no store holds: "captured", "environ", "interpreter".
    """

    group: Group
    table: Table
    order: Order
    store: Store
    backend: Backend
    placement: Placement
    key: bytes = field(repr=False)
    kept: Mapping[str, Any] = field(repr=False)

    def launch(self, wanted: Sequence[tuple[int, int]]) -> list[JobRecord]:
        """Launch attempts at inputs, given as (index, attempt); what was launched before is success."""
        launched: list[JobRecord] = []
        for start in range(0, len(wanted), LAUNCHES_AT_ONCE):
            launched += self._launch(wanted[start : start + LAUNCHES_AT_ONCE])
        return launched

    def _launch(self, wanted: Sequence[tuple[int, int]]) -> list[JobRecord]:
        here = locate.machine_of(self.backend)
        jobs = [state.record_of(self.group, index, attempt, here) for index, attempt in wanted]
        run_all(self.store, [partial(self._write, job) for job in jobs])
        self.backend.launch([self._one(job) for job in jobs])
        step("driver:launched")
        return jobs

    def _write(self, job: JobRecord) -> None:
        """Make a child known: by its key in the batch's listing, and by its record under its own id."""
        assert job.group_index is not None  # noqa: S101 - it is a child
        stem = keys.child(self.group.group_id, job.group_index, job.group_attempt or 0)
        self.store.put(documents.sealed_name(stem, job.host or "", self._key_of(self.group.group_id)), b"")
        step("driver:child-written")
        more = {**self.group.more, "machine": os.uname().nodename}
        page = record.to_bytes(records.plain(job), more, self._key_of(job.job_id))
        self.store.put(keys.record(job.job_id), page)
        step("driver:record-written")

    def _one(self, job: JobRecord) -> Launch:
        assert job.group_index is not None  # noqa: S101 - it is a child
        child = self.table.child(self.group, job.group_index, job.group_attempt or 0)
        return Launch(
            order=self.order.of_child(child),
            order_sha256=self.group.order_sha256,
            store_url=self.store.url,
            placement=self.placement,
            key=self._key_of(job.job_id),
            key_id=self.group.key_id,
            captured=self.kept["captured"],
            group=self.group.group_id,
            interpreter=self.interpreter,
            child=child,
            environ=self.kept["environ"],
            requirements=self.kept.get("pod"),
            owner=self.owner,
        )

    def _key_of(self, name: str) -> bytes:
        return documents.job_key(self.key, name, self.group.store)

    @functools.cached_property
    def owner(self) -> str:
        """Who submits, as jobs on a cluster are labelled; "" on a machine."""
        if not self.kept.get("pod"):
            return ""
        from kinetic._config import cluster

        return cluster.owner(os.environ)

    @property
    def interpreter(self) -> str:
        """The Python that the children run in; "" when it is this client's own."""
        chosen = str(self.kept["interpreter"])
        return "" if chosen == sys.executable else chosen


def secrets_of(
    captured: Mapping[str, str],
    environ: Mapping[str, str],
    interpreter: str,
    addresses: Sequence[str],
    pod: PodRequirements | None,
) -> dict[str, Any]:
    """Return what is kept beside the batch, for its owner only, so that another process can take it over."""
    return {
        "pod": pod.to_json() if pod is not None else None,
        "captured": dict(captured),
        "environ": dict(environ),
        "interpreter": interpreter or sys.executable,
        "addresses": list(addresses),
    }


_LOOK_SECONDS = 1.0  # told, not polled: this only finds what nobody told
_PATIENCE_SECONDS = 600.0  # a store or a queue that is out of reach this long ends the driving; it can be resumed
_LONGEST_PAUSE = 30.0
_LAST_WORDS_SECONDS = 10.0  # between the verdict of a job and the end of its supervisor's work on it


class Driver:
    """Drive one batch, in a thread of its own or in the caller's.

    Args:
        launcher: Launches children.
        lease: The right to drive.
        on_launch: Told of the index of every child that was launched.
        only: Launch nothing for any other input; None drives them all.
    """

    def __init__(
        self,
        launcher: ChildLauncher,
        tracker: BatchTracker,
        lease: Lease,
        on_launch: Callable[[int], None],
        only: Collection[int] | None = None,
    ) -> None:
        self._launcher = launcher
        self._tracker = tracker
        self._lease = lease
        self._on_launch = on_launch
        self._only = only
        self._settings = launcher.group.settings
        self._again: deque[tuple[int, int]] = deque()  # submitted by a driver that died before it launched them
        self._waiting: deque[tuple[int, int]] = deque()
        self._tried: set[tuple[int, int]] = set()  # what follows a failure: the board may tell of one end twice
        self._read = 0  # how much of the board's list of ends was looked at
        self._failed = False
        self.superseded = False

    def run(self) -> None:
        """Drive until nothing is left to be done, or somebody stops it or takes over."""
        try:
            self._begin()
            while self._round():
                if not self._can_launch():
                    self._tracker.wait(_LOOK_SECONDS, read=self._read)
        finally:
            self._lease.release()
            step("driver:released")

    def _begin(self) -> None:
        """Find out what is left to be launched: everything of a new batch, the rest of one that is taken over."""
        if self._lease.epoch:
            self._tracker.refresh(whole=True)
            self._again.extend((index, self._tracker.attempts[index]) for index in self._tracker.unseen())
        self._tracker.set_only_submitter()
        for index, item in enumerate(self._launcher.table.inputs):
            if not self._is_ours(index):
                continue
            if item.arguments is None:
                self._failed = True
            elif self._tracker.attempts[index] < 0:
                self._waiting.append((index, 0))

    def _is_ours(self, index: int) -> bool:
        return (self._only is None or index in self._only) and not self._tracker.turns.stops(index)

    def _round(self) -> bool:
        """Do what can be done now; True when there may be more to do. A place out of reach is waited for."""
        for pause in _pauses():
            try:
                return self._once()
            except KineticError as error:
                if isinstance(error, OptionError) or pause is None:
                    raise
                output.report_once(f"{self._launcher.group.group_id}: {error.what}; trying again")
                time.sleep(pause)
        return False

    def _once(self) -> bool:
        self.superseded = not self._lease.is_ours()
        if self.superseded:
            return False
        self._tracker.read_control_log()
        self._tracker.refresh()
        if self._tracker.stopped:
            self._leave_nothing()
            return False
        self._take_ends()
        if self._failed and self._settings.fail_fast:
            self._stop_after_a_failure()
            return False
        launched = self._launch()  # then once more: somebody may have stopped the batch in between
        return launched or bool(self._again or self._waiting) or self._has_reason_to_look()

    def _take_ends(self) -> None:
        """Look at what has ended since the last time: what may be tried again is queued behind everything else."""
        ended = self._tracker.ended
        while self._read < len(ended):
            self._take_end(ended[self._read])
            self._read += 1

    def _take_end(self, index: int) -> None:
        end = self._tracker.end(index)
        if end is None or not self._is_ours(index):
            return
        following = index, self._tracker.attempts[index] + 1
        if end.word == outcomes.FAILED and self._tracker.may_launch(index):
            if following not in self._tried:
                step("driver:saw-an-end")
                self._close(index)
                self._tried.add(following)
                self._waiting.append(following)
        elif end.word in {outcomes.FAILED, outcomes.CANCELLED}:
            self._failed = True

    def _close(self, index: int) -> None:
        """See to it that a failed attempt can never succeed any more, and free what it held; its artifacts stay."""
        handle = self._tracker.record(index)
        if handle is not None:
            removal.close_attempt(handle, self._launcher.store)
            backend = self._launcher.backend
            backend.stop([handle.job_id], wait=_LAST_WORDS_SECONDS)  # it has ended; its log may be on its way yet
            backend.remove([handle.job_id])
            step("driver:attempt-closed")

    def _launch(self) -> bool:
        """Launch as many as there is room for; of very many only some, to look up in between."""
        source = self._again or self._waiting
        room = len(source) if source is self._again else self._room()
        wanted = [source.popleft() for _ in range(min(room, len(source), LAUNCHES_AT_ONCE))]
        if not wanted:
            return False
        try:
            self._launcher.launch(wanted)
        except BaseException:
            source.extendleft(reversed(wanted))  # ids are derived: launching once more what was is harmless
            raise
        for index, attempt in wanted:
            self._tracker.submitted(index, attempt)
            self._on_launch(index)
        return True

    def _can_launch(self) -> bool:
        return bool(self._again or (self._waiting and self._room()))

    def _room(self) -> int:
        limit = self._settings.max_concurrent
        return len(self._waiting) if limit is None else max(0, limit - len(self._tracker.active))

    def _has_reason_to_look(self) -> bool:
        """Say whether what still runs may give this driver something to do."""
        active = self._tracker.active
        if self._settings.fail_fast and self._settings.cancel_running_on_fail and active:
            return True
        return any(self._is_ours(index) and self._tracker.may_launch(index) for index in active)

    def _stop_after_a_failure(self) -> None:
        """Launch nothing more, and let nobody else do so; cancel what runs if that was asked for."""
        self._tracker.stop(control.FAIL_FAST)
        step("driver:stopped-the-rest")
        if self._settings.cancel_running_on_fail:
            removal.cancel_attempts(sorted(self._tracker.active), self._tracker)

    def _leave_nothing(self) -> None:
        """After somebody cancelled the batch, cancel what was launched in that very moment."""
        if self._tracker.turns.why == control.CANCELLED:
            removal.cancel_attempts(sorted(self._tracker.active), self._tracker)


def _pauses() -> Iterator[float | None]:
    """Yield how long to wait before each further try, and None when patience is at its end."""
    pause, spent = 0.5, 0.0
    while spent < _PATIENCE_SECONDS:
        yield pause
        spent += pause
        pause = min(pause * 2, _LONGEST_PAUSE)
    yield None


_SOON_SECONDS = 5.0


def start_driver(
    batch: Batch, launcher: ChildLauncher, held: Lease | None, *, here: bool, only: Collection[int] | None = None
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
            error.add_note(resume_hint(batch.group_id))
            batch._submission_error = error
            batch._submission_complete.set()
            if here:
                raise
            if not threading.main_thread().is_alive():  # nobody will read it from the handle any more
                output.warn(f"{batch.group_id} was not submitted to its end: {error}\n{resume_hint(batch.group_id)}")
        else:
            batch._poll.attached = not is_done
            if is_done:
                batch._submission_complete.set()
            else:
                _report_driver(batch)

    if not here:
        if threads.start(drive, f"kinetic-{batch.group_id}", daemon=False) is not None:
            return
        output.report(f"{batch.group_id} is submitted before the program goes on: no thread can be had")
        here = True  # what goes wrong is raised
    drive()


def _drive(batch: Batch, launcher: ChildLauncher, held: Lease | None, only: Collection[int] | None) -> bool:
    """Drive a batch to its end; False when another process drives it."""
    tracker = batch._get_tracker()
    assert isinstance(tracker, BatchTracker)  # noqa: S101 - it has a manifest
    held = held or control.wait_for_lease(tracker.store, batch.group_id, tracker.key)
    if held is None:
        return False
    driver = Driver(launcher, tracker, held, lambda index: batch._update_jobs((index,)), only)
    try:
        driver.run()
    finally:
        tracker.set_only_submitter(alone=False)
    return not driver.superseded


def resume_hint(group_id: str) -> str:
    """Say what brings a batch to its end that this process could not."""
    return f"kinetic batch resume {group_id}     goes on with what was not submitted"


def resume_batch(batch: Batch, group: Group, *, here: bool = False) -> bool:
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
    tracker = batch._get_tracker()
    assert isinstance(tracker, BatchTracker)  # noqa: S101 - it has a manifest
    tracker.refresh(whole=True)
    if tracker.stopped:
        cancelled = tracker.turns.why == control.CANCELLED
        raise OptionError(
            f"{batch.group_id} was stopped, and is not resumed",
            why="it was cancelled" if cancelled else "something failed, and it was made with fail_fast=True",
            next=f"kinetic batch resume {batch.group_id} --failed     runs what failed; the rest needs a new batch",
            code="batch-stopped",
        )
    launcher = launcher_of(group, tracker)
    held = control.take_lease(tracker.store, batch.group_id, tracker.key)
    if held is None:
        found = control.lease_holder(tracker.store, batch.group_id, tracker.key)
        if found is None or found.is_here:
            _report_driver(batch)
            return False
        output.report(
            f"{batch.group_id} was driven on {found.machine} a moment ago; it is taken over here if that stays silent"
            " for a minute"
        )
    start_driver(batch, launcher, held, here=here)
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
    held = _take_lease_soon(tracker)
    if held is None:
        raise BackendError(
            f"{batch.group_id} is still being driven, so nothing was tried again",
            why=_driver_text(batch),
            next=f"kinetic batch status {batch.group_id}     shows when it is done",
            code="batch-driven",
        )
    try:
        tracker.refresh(whole=True)  # now that nobody else changes anything
        failed = [index for index in failed if _has_failed(tracker, index)]
        tracker.allow_retry(failed)
    except BaseException:
        held.release()
        raise
    batch._cached_failures = None
    start_driver(batch, launcher, held, here=here, only=frozenset(failed))


def _take_lease_soon(tracker: BatchTracker) -> Lease | None:
    """Take the lease; of a driver whose jobs have all ended it is to be had in a moment."""
    limit = time.monotonic() + _SOON_SECONDS
    while (held := control.take_lease(tracker.store, tracker.group.group_id, tracker.key)) is None:
        if tracker.active or time.monotonic() > limit:
            return None
        time.sleep(0.02)
    return held


def launcher_of(group: Group, tracker: BatchTracker) -> ChildLauncher:
    """Rebuild what launching children needs, from the batch's pages and from what this machine kept.

    Raises:
        CredentialsError: Its key, or the values of its captured variables, are not on this machine.
        OptionError: Another Python made its pickles.
    """
    store = tracker.store
    key = keyring.find_key(locate.home(), group.key_id)
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
    return ChildLauncher(group, table, order, store, tracker.backend, placement, key, kept)


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


def _report_driver(batch: Batch) -> None:
    output.report(f"{batch.group_id} is driven by another process: {_driver_text(batch)}; this one only watches")


def _driver_text(batch: Batch) -> str:
    with contextlib.suppress(KineticError):
        tracker = batch._get_tracker()
        found = (
            control.lease_holder(tracker.store, batch.group_id, tracker.key)
            if isinstance(tracker, BatchTracker)
            else None
        )
        if found is not None:
            return f"process {found.pid} on {found.machine}"
    return "a process that has just begun"

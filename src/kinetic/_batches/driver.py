"""Driving a batch: launch what there is room for, try again what failed, stop on request, take over from a dead driver.

The driver holds the batch's lease. It decides only by what the tracker shows, and everything it decides is a key that
is created once: an attempt, its end, the stop. So a driver can die at any step, and the next one continues from there.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import functools
import math
import os
import sys
import threading
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from kinetic import _hardware as hardware
from kinetic._backends import registry
from kinetic._backends.protocol import Launch
from kinetic._batches import collection, control, removal, state
from kinetic._batches.tracker import BatchTracker, record_of
from kinetic._config import home
from kinetic._jobs import locate
from kinetic._output import terminal as output
from kinetic._output.format import age_in_words, count_text
from kinetic._project import pickler
from kinetic._stores import put_many
from kinetic._wire import dataclass, documents, folders, keys, python_runtime, records
from kinetic._wire import order as orders
from kinetic._wire.failpoints import step
from kinetic._wire.input_table import read_table
from kinetic._wire.outcomes import CANCELLED, FAILED, SUCCEEDED
from kinetic.errors import BackendError, CapacityError, CredentialsError, KineticError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from kinetic._backends.protocol import Backend
    from kinetic._batches.control import Lease
    from kinetic._batches.state import Batch
    from kinetic._hardware.placement import Placement
    from kinetic._stores.protocol import Store
    from kinetic._wire.input_table import Table
    from kinetic._wire.order import Order
    from kinetic._wire.records import Group, JobRecord

T = TypeVar("T")
LAUNCHES_AT_ONCE = 200  # to one call of the backend: each is locked by a descriptor while it is being submitted
_POLL_SECONDS = 1.0  # watched, not polled: this only finds what no watch reported
_PATIENCE_SECONDS = 600.0  # a store or a queue that is unreachable this long ends the driving; it can be resumed
_LONGEST_PAUSE = 30.0
_FULL_SECONDS = 5.0  # after which a quota is tried again, though nothing of the batch has ended
_TOGETHER_SECONDS = 0.05  # few free places wait so long for more
_LARGE = 32  # max_concurrent: half of it keeps all slots of a machine busy while the next ones are launched
_CLOSE_SECONDS = 10.0  # between the verdict of a job and the end of its supervisor's work on it
_SOON_SECONDS = 5.0
_STAYS_SECONDS = 1.0  # after the end of a program that still submits
_INTERRUPTED = 128 + 2  # the exit code of a program that Ctrl-C has ended


@dataclass(frozen=True)
class ChildLauncher:
    """Everything that launching a child of one batch needs.

    A child is made known by its key in the batch's listing, then by its record, and then launched.
    """

    group: Group
    table: Table
    order: Order  # what the children share
    store: Store
    backend: Backend
    placement: Placement
    key: bytes = field(repr=False)  # the namespace's sealing key
    kept: Mapping[str, Any] = field(repr=False)  # what no store holds; see submission
    # the children that warm pods have got: not launched again where a launch with others fails and is repeated
    _in_warm_pods: set[str] = field(init=False, default_factory=set)
    # those that may have pods of their own, as nothing says what became of a launch that failed
    _perhaps_cold: set[str] = field(init=False, default_factory=set)

    def launch(self, wanted: Sequence[tuple[int, int]]) -> None:
        """Launch attempts at inputs, given as (index, attempt); what was launched before is success."""
        here, launched = locate.machine_of(self.backend), list[str]()
        for some in self._together(wanted):
            holds = self._first is not None and some != [self._first] and not self._has_compiled()
            put_many(self.store, [(self._name_of(*run, here), b"") for run in _runs(some)])
            step("driver:child-written")
            put_many(self.store, [self._record_of(record_of(self.group, *child, here)) for child in some])
            step("driver:record-written")
            launches = [self._launch_of(*child, holds=holds) for child in some]
            cold = self._without_warm_pod(launches)
            self._perhaps_cold.update(launch.order.job_id for launch in cold)
            try:
                self.backend.launch(cold)
            except CapacityError as error:
                error.launched += (*launched, *self._in_warm_pods)
                self._perhaps_cold.clear()
                raise
            launched += [launch.order.job_id for launch in launches]
            step("driver:launched")
            if holds and self._has_compiled():  # meanwhile, so perhaps no other process starts them
                self.backend.release([launch.order.job_id for launch in launches if launch.programs_of])
        self._in_warm_pods.clear()
        self._perhaps_cold.clear()

    def _without_warm_pod(self, launches: Sequence[Launch]) -> Sequence[Launch]:
        """Give the first of them to idle warm pods, if this user may have any, and return the others."""
        left = [launch for launch in launches if launch.order.job_id not in self._in_warm_pods]
        if not (left and self.kept.get("pod")):
            return left
        from kinetic._jobs import warm_assignment  # only for clusters

        keep = self.kept.get("keep_warm")
        if warm_assignment.is_wanted(keep):
            backend: Any = self.backend  # of the only kind with containers
            place = warm_assignment.Place(backend, self.store, self.key, folders.read_umask())
            new = [launch for launch in left if launch.order.job_id not in self._perhaps_cold]
            for given in warm_assignment.give_children(new, place, float(keep or 0.0)) if new else ():
                self._in_warm_pods.add(given.order.job_id)
        return [launch for launch in left if launch.order.job_id not in self._in_warm_pods]

    def _together(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
        """Yield what is launched at a time: first, by itself, the child that others wait for."""
        first = self._first
        if first is not None and first in wanted:
            yield [first]
            wanted = [child for child in wanted if child != first]
        for start in range(0, len(wanted), LAUNCHES_AT_ONCE):
            yield wanted[start : start + LAUNCHES_AT_ONCE]

    @property
    def _first(self) -> tuple[int, int] | None:
        """The attempt whose compiled programs the first attempts at all other inputs wait for."""
        return (self.group.first_index, 0) if self.group.first_seconds else None

    def _has_compiled(self) -> bool:
        return self.store.size(keys.group_compiled(self.group.group_id)) is not None

    def _name_of(self, indexes: range, attempt: int, machine: str) -> str:
        stem = keys.children_of(self.group.group_id, indexes, attempt)
        return documents.sealed_name(stem, machine or str(self.group.handle.get("host") or ""), self._group_key)

    def _record_of(self, job: JobRecord) -> tuple[str, bytes]:
        more = {**self.group.more, "machine": os.uname().nodename}
        return keys.record(job.job_id), locate.seal_record(records.plain(job), more, self._key_of(job.job_id))

    def _launch_of(self, index: int, attempt: int, *, holds: bool) -> Launch:
        is_first = (index, attempt) == self._first
        child = self.table.child(self.group, index, attempt)
        interpreter = str(self.kept["interpreter"])
        return Launch(
            order=self.order.of_child(child),
            order_sha256=self.group.order_sha256,
            store_url=self.store.url,
            placement=self.placement,
            key=self._key_of(child.job_id),
            key_id=self.group.key_id,
            captured=self.kept["captured"],
            cache_key=bytes.fromhex(self.kept.get("cache_key") or ""),
            group=self.group.group_id,
            interpreter="" if interpreter == python_runtime.own_python() else interpreter,
            child=child,
            environ=self.kept["environ"],
            requirements=self.kept.get("pod"),
            owner=self._owner,
            followed=self._followed,
            awaited_seconds=self.group.first_seconds if is_first else 0.0,
            programs_of=self.group.child_id(*self._first) if self._first and holds and not attempt else "",
        )

    def _key_of(self, name: str) -> bytes:
        return documents.job_key(self.key, name, self.group.store)

    @functools.cached_property
    def _group_key(self) -> bytes:
        return self._key_of(self.group.group_id)

    @functools.cached_property
    def _followed(self) -> bytes:
        """The keys that verify what the batch follows."""
        return base64.b64decode(str(self.kept.get("followed") or ""))

    @functools.cached_property
    def _owner(self) -> str:
        """Who submits, as jobs on a cluster are labelled."""
        if not self.kept.get("pod"):
            return ""
        from kinetic._config import cluster  # only for clusters

        return cluster.owner(os.environ)


def _runs(children: Iterable[tuple[int, int]]) -> Iterator[tuple[range, int]]:
    """Group attempts at inputs into runs of inputs that follow each other: each run has one key in the store."""
    run, latest = range(0), -1
    for index, attempt in sorted(children, key=lambda child: (child[1], child[0])):
        if run and attempt == latest and index == run.stop:
            run = range(run.start, run.stop + 1)
            continue
        if run:
            yield run, latest
        run, latest = range(index, index + 1), attempt
    if run:
        yield run, latest


class _Queue:
    """Attempts at inputs that wait to be launched, in 8 bytes each; of one thread."""

    def __init__(self) -> None:
        self._attempts, self._taken = array("Q"), 0

    def __len__(self) -> int:
        return len(self._attempts) - self._taken

    def append(self, index: int, attempt: int) -> None:
        self._attempts.append(attempt << 32 | index)

    def take(self, count: int) -> list[tuple[int, int]]:
        """Take the first ones out, as (index, attempt)."""
        taken = self._attempts[self._taken : self._taken + count]
        self._taken += len(taken)
        return [(each & 0xFFFFFFFF, each >> 32) for each in taken]

    def put_back(self, children: Sequence[tuple[int, int]]) -> None:
        """Put some of those that were taken last to the front again."""
        end, self._taken = self._taken, self._taken - len(children)
        self._attempts[self._taken : end] = array("Q", (attempt << 32 | index for index, attempt in children))


class Driver:
    """Drive one batch, in a thread of its own or in the caller's.

    ``on_launch`` is called with the index of every child that was launched; only inputs in ``only`` are launched.
    """

    def __init__(
        self,
        launcher: ChildLauncher,
        tracker: BatchTracker,
        lease: Lease,
        on_launch: Callable[[int], None],
        only: Collection[int] | None = None,
    ) -> None:
        self._launcher, self._tracker, self._lease = launcher, tracker, lease
        self._on_launch, self._only = on_launch, only
        self._settings = launcher.group.settings
        self._again = _Queue()  # submitted by a driver that died before it launched them
        self._waiting = _Queue()
        self._tried: set[tuple[int, int]] = set()  # what follows a failure: the tracker may report one end twice
        self._read = 0  # how many of the tracker's ends were handled
        self._failed = False
        self._room_since = math.inf  # by the backend's clock
        self._at_once = LAUNCHES_AT_ONCE  # fewer where a quota did not allow that many
        self._full = -1, -math.inf  # how many had ended when not even one fitted, and until when that is believed
        self._freed = 0  # how many of the ends were looked at to make room
        self.superseded = False

    def run(self) -> None:
        """Drive until nothing is left to be done, or the batch is stopped or taken over."""
        try:
            self._begin()
            while self._patiently(self._round):
                if self._is_full() or not (self._again or (self._waiting and self._has_room())):
                    seconds = _TOGETHER_SECONDS if self._room() else _POLL_SECONDS
                    self._patiently(functools.partial(self._tracker.wait, seconds, read=self._read))
        finally:
            self._lease.release()
            step("driver:released")

    def _begin(self) -> None:
        """Find out what is left to be launched: everything of a new batch, the rest of one that is taken over."""
        if self._lease.epoch:
            self._tracker.refresh(whole=True)
            for index in self._tracker.unseen():
                self._again.append(index, self._tracker.attempts[index])
            self._tracker.start_untaken()
        self._tracker.set_only_submitter()
        for index, item in enumerate(self._launcher.table.inputs):
            if not self._is_ours(index):
                continue
            if item.arguments is None:
                self._failed = True
            elif self._tracker.attempts[index] < 0:
                self._waiting.append(index, 0)

    def _is_ours(self, index: int) -> bool:
        return (self._only is None or index in self._only) and not self._tracker.control.stops(index)

    def _patiently(self, do: Callable[[], T]) -> T:
        """Do something, and again where store or backend cannot be reached."""
        pauses = _pauses()
        while True:
            try:
                return do()
            except KineticError as error:
                pause = next(pauses, None)
                if isinstance(error, OptionError) or pause is None:
                    raise
                output.report_once(f"{self._launcher.group.group_id}: {error.what}; trying again")
                self._launcher.backend.clock.sleep(pause)

    def _round(self) -> bool:
        """Do what can be done now; True when there may be more to do."""
        tracker, settings = self._tracker, self._settings
        looks: list[Callable[[], bool | None]] = [self._lease.is_ours, tracker.control.read]
        is_ours, _ = locate.in_order([(tracker.store.url, look) for look in looks])
        self.superseded = not is_ours and not tracker.was_removed()
        if self.superseded:
            return False
        tracker.refresh()
        if tracker.stopped:
            if tracker.control.why == records.STOPPED_BY_USER:  # what was launched in that very moment
                removal.cancel_attempts(sorted(tracker.active), tracker)
            return False
        while self._read < len(tracker.ended):
            self._handle_end(tracker.ended[self._read])
            self._read += 1
        if self._failed and settings.fail_fast:
            tracker.control.stop(records.FAIL_FAST)
            step("driver:stopped-the-rest")
            if settings.cancel_running_on_fail:
                removal.cancel_attempts(sorted(tracker.active), tracker)
            return False
        if self._launch() or self._again or self._waiting:  # then once more: it may have been stopped in between
            return True
        active = tracker.active
        if active and settings.fail_fast and settings.cancel_running_on_fail:
            return True
        return any(self._is_ours(index) and tracker.may_launch(index) for index in active)

    def _handle_end(self, index: int) -> None:
        """Queue what may be tried again, behind everything else."""
        end = self._tracker.end(index)
        if end is None or not self._is_ours(index):
            return
        following = index, self._tracker.attempts[index] + 1
        if end.word == FAILED and self._tracker.may_launch(index):
            if following not in self._tried:
                step("driver:saw-an-end")
                self._close(index)
                self._tried.add(following)
                self._waiting.append(*following)
        elif end.word in {FAILED, CANCELLED}:
            self._failed = True

    def _close(self, index: int) -> None:
        """Make sure that a failed attempt can never succeed, and free what it held; its artifacts stay."""
        job, backend = self._tracker.record(index), self._launcher.backend
        if job is not None:
            removal.close_attempt(job, self._launcher.store)
            backend.stop([job.job_id], wait=_CLOSE_SECONDS)  # it has ended; its log may still be on its way
            backend.remove([job.job_id])
            step("driver:attempt-closed")

    def _launch(self) -> bool:
        """Launch as many as there is room for; of very many only some, to look up in between."""
        source = self._again or self._waiting
        room = len(source) if source is self._again else self._room() if self._has_room() else 0
        wanted = source.take(0 if self._is_full() else min(room, self._at_once))
        if not wanted:
            return False
        self._room_since = math.inf
        try:
            self._launcher.launch(wanted)
        except CapacityError as error:
            launched = frozenset(error.launched)
            there = [child for child in wanted if self._launcher.group.child_id(*child) in launched]
            source.put_back([child for child in wanted if child not in there])
            self._note(there)
            self._at_once = 1
            if there or len(wanted) == 1:  # else it may have refused all for the last of them
                self._make_room(error)
            return False
        except BaseException:
            source.put_back(wanted)  # ids are derived: launching a child twice is harmless
            raise
        self._at_once = min(2 * self._at_once, LAUNCHES_AT_ONCE)
        self._note(wanted)
        return True

    def _note(self, launched: Iterable[tuple[int, int]]) -> None:
        for index, attempt in launched:
            self._tracker.submitted(index, attempt)
            self._on_launch(index)

    def _make_room(self, error: CapacityError) -> None:
        """Remove what has succeeded, and wait for further ends: nothing more may be launched now.

        A Job that has ended counts in a quota for Jobs until it is removed. What succeeded is in the store.
        """
        group_id, tracker, backend = self._launcher.group.group_id, self._tracker, self._launcher.backend
        ends = [(tracker.end(index), tracker.record(index)) for index in tracker.ended[self._freed :]]
        done = [job.job_id for end, job in ends if end is not None and end.word == SUCCEEDED and job is not None]
        self._freed = len(tracker.ended)
        waits = f"{group_id}: {error.what}; the rest is launched when there is room"
        output.warn_once(waits, why=str(error.why or ""), next=str(error.next or ""))
        with contextlib.suppress(KineticError):  # without the right, others have to make room
            backend.remove(done)
        self._full = len(tracker.ended), backend.clock.monotonic() + _FULL_SECONDS

    def _is_full(self) -> bool:
        ends, until = self._full
        return len(self._tracker.ended) <= ends and self._launcher.backend.clock.monotonic() < until

    def _room(self) -> int:
        """Return how many of those that wait may be launched now.

        None while half of what may be there waits in the backend: more would only wait there as well, and what is
        launched together costs less.
        """
        limit = self._settings.max_concurrent
        if limit is None:
            return len(self._waiting)
        if limit >= _LARGE and self._tracker.pending >= limit // 2:
            return 0
        return max(0, min(limit - len(self._tracker.active), len(self._waiting)))

    def _has_room(self) -> bool:
        """Return whether to launch now: the last eighth that ends waits a moment, so that a write serves several."""
        room, now = self._room(), self._launcher.backend.clock.monotonic()
        if room:
            self._room_since = min(self._room_since, now)
        few = min(len(self._waiting), (self._settings.max_concurrent or 0) // 8)
        return room > 0 and (room >= few or now - self._room_since >= _TOGETHER_SECONDS)


def _pauses() -> Iterator[float]:
    """Yield how long to wait before each further try."""
    pause, spent = 0.5, 0.0
    while spent < _PATIENCE_SECONDS:
        yield pause
        spent += pause
        pause = min(pause * 2, _LONGEST_PAUSE)


def start_driver(
    batch: Batch, launcher: ChildLauncher, held: Lease | None, *, here: bool, only: Collection[int] | None = None
) -> None:
    """Drive a batch in the caller's thread (``here``), or in one of its own, which keeps the interpreter until then.

    Where no thread can be started, the caller waits, and everything is submitted when this returns. Without a lease it
    is taken once another machine stays silent. With ``only``, nothing is launched for any other input.
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
            has_ended = _AtExit.has_come or not threading.main_thread().is_alive()
            if has_ended:  # the program no longer reads it from the handle
                output.warn(f"{batch.group_id} was not completely submitted: {error}\n{resume_hint(batch.group_id)}")
        else:
            batch._poll.attached = not is_done
            if is_done:
                batch._submission_complete.set()
            else:
                _report_driver(batch)
        finally:
            batch._submission_begun.set()  # no thread waits for it any more

    if not here:
        thread = python_runtime.start_thread(drive, f"kinetic-{batch.group_id}", daemon=False)
        if thread is not None:
            _AtExit.wait_for(thread, batch)
            return
        output.report(f"{batch.group_id} is submitted before the program continues: no thread can be started")
        here = True  # errors are raised
    drive()


class _AtExit:
    """What a program waits for that has come to its end: the threads that submit its batches.

    Python itself would wait for them, and of Ctrl-C say where in its own code it came, and end with 0.
    """

    _threads: ClassVar[dict[threading.Thread, Batch]] = {}
    _is_registered = has_come = False

    @classmethod
    def wait_for(cls, thread: threading.Thread, batch: Batch) -> None:
        register = getattr(threading, "_register_atexit", None)
        if register is not None and not cls._is_registered:
            with contextlib.suppress(RuntimeError):  # the interpreter is about to end
                register(cls._wait)
                cls._is_registered = True
        cls._threads = {each: of for each, of in cls._threads.items() if each.is_alive()} | {thread: batch}

    @classmethod
    def after_fork(cls) -> None:
        """Watch, in a process that was forked, what the threads of its parent submit."""
        batches, cls._threads = cls._threads.values(), {}
        for batch in batches:
            if not batch._submission_complete.is_set():
                state.watch_from_here(batch)

    @classmethod
    def finish_in_a_job(cls) -> None:
        """Wait for the threads when the function of a job has ended, as for those of a program; others get its slot."""
        cls.has_come = True
        for thread, batch in cls._threads.items():
            batch._submission_begun.wait()
            first = next(filter(None, batch.jobs), None)
            if first is None or os.environ.get("KINETIC_JOB_ID") in (first.after or ()):
                continue  # its children start when this job has ended
            with locate.backend_of(first).without_slot():
                thread.join()

    @classmethod
    def _wait(cls) -> None:
        cls.has_come = True
        python_runtime.free_import_lock()  # Ctrl-C may have come in the middle of an import
        try:
            is_interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
            if is_interrupted and not hasattr(sys, "ps1"):  # in a wait for something else
                for batch in filter(collection.is_submitting, cls._threads.values()):
                    if batch.group_id not in collection.told_that_it_stays:
                        collection.report_detached(batch)
            for thread, batch in cls._threads.items():
                thread.join(_STAYS_SECONDS)
                if thread.is_alive():
                    _report_that_it_stays(batch)
                thread.join()
        except KeyboardInterrupt:
            for batch in filter(collection.is_submitting, cls._threads.values()):  # threads waited for count as ended
                collection.report_detached(batch, ends=True)
            atexit._run_exitfuncs()  # the program's own; there is no other way to run them and to end then
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            os._exit(_INTERRUPTED)


def _report_that_it_stays(batch: Batch) -> None:
    """Say why a program does not end, once what it printed itself can be read."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    if batch.group_id not in collection.told_that_it_stays:
        missing = sum(job is None for job in batch.jobs) - len(batch._submission_errors)
        tracker = batch._get_tracker()
        tries_again = any(map(tracker.may_launch, range(len(tracker.attempts))))
        then = "try again what fails" if tries_again else "cancel the others if one fails"
        rest = f"submit the other {count_text(missing, 'input')}" if missing > 0 else then
        output.report(f"{batch.group_id}: this process stays to {rest}; if it ends before that:")
        output.report(f"          {resume_hint(batch.group_id)}")


os.register_at_fork(after_in_child=_AtExit.after_fork)
finish_in_a_job = _AtExit.finish_in_a_job  # the worker calls it at the end of a job that submits batches


def _drive(batch: Batch, launcher: ChildLauncher, held: Lease | None, only: Collection[int] | None) -> bool:
    """Drive a batch to its end; False when another process drives it."""
    tracker = _tracker_of(batch)
    held = held or control.wait_for_lease(tracker.store, batch.group_id, tracker.key)
    if held is None:
        return False

    def launched(index: int) -> None:
        batch._update_jobs((index,))
        batch._submission_begun.set()

    driver = Driver(launcher, tracker, held, launched, only)
    try:
        driver.run()
    finally:
        tracker.set_only_submitter(alone=False)
    return not driver.superseded


def _tracker_of(batch: Batch) -> BatchTracker:
    tracker = batch._get_tracker()
    if not isinstance(tracker, BatchTracker):
        raise OptionError("these jobs belong to no batch", next="run_async_map makes one")
    return tracker


def resume_hint(group_id: str) -> str:
    """Return what brings a batch to its end that this process could not."""
    return f"kinetic batch resume {group_id}     submits the rest"


def resume_batch(batch: Batch, group: Group, *, here: bool = False) -> None:
    """Take over a batch whose driver is gone, now or once another machine has stayed silent for a minute.

    With ``here`` it is driven in the caller's thread, and this returns when that is done.
    """
    tracker = _tracker_of(batch)
    tracker.refresh(whole=True)
    if tracker.stopped:
        cancelled = tracker.control.why == records.STOPPED_BY_USER
        raise OptionError(
            f"{batch.group_id} was stopped and is not resumed",
            why="it was cancelled" if cancelled else "a job failed, and the batch has fail_fast=True",
            next=f"kinetic batch resume {batch.group_id} --failed     runs what failed; the rest needs a new batch",
            code="batch-stopped",
        )
    if all(tracker.is_final(index) for index in range(len(batch.jobs))):
        return  # once all is collected, the values that a launch needs are gone
    launcher = launcher_of(group, tracker)
    held = control.take_lease(tracker.store, batch.group_id, tracker.key)
    if held is None:
        found = control.lease_holder(tracker.store, batch.group_id, tracker.key)
        if found is None or found.is_here:
            _report_driver(batch)
            return
        output.report(
            f"{batch.group_id} was driven on {found.machine} a moment ago; it is taken over here if that machine stays "
            "silent for a minute"
        )
    start_driver(batch, launcher, held, here=here)


def retry_failed(batch: Batch, *, here: bool = False) -> None:
    """Allow every failed input one more attempt, durably, and drive the batch until they have had it; see above."""
    tracker = _tracker_of(batch)
    batch._refreshed()
    tracker.read_unmarked()
    failed = _failed(tracker, range(len(batch.jobs)))
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
        tracker.refresh(whole=True)  # now that no other process changes anything
        failed = _failed(tracker, failed)
        tracker.allow_retry(failed)
    except BaseException:
        held.release()
        raise
    batch._cached_failures = None
    if failed:
        sent = age_in_words(time.time() - tracker.group.created)
        output.report(
            f"{batch.group_id}: runs {count_text(len(failed), 'failed input')} again, with the code that was submitted "
            f"{sent} ago; edited code needs a new batch"
        )
    start_driver(batch, launcher, held, here=here, only=frozenset(failed))


def _failed(tracker: BatchTracker, indexes: Collection[int]) -> list[int]:
    return [index for index in indexes if (end := tracker.end(index)) is not None and end.word == FAILED]


def _take_lease_soon(tracker: BatchTracker) -> Lease | None:
    """Take the lease; a driver whose jobs have all ended releases it in a moment."""
    limit = time.monotonic() + _SOON_SECONDS
    while (held := control.take_lease(tracker.store, tracker.group.group_id, tracker.key)) is None:
        if tracker.active or time.monotonic() > limit:
            return None
        time.sleep(0.02)
    return held


def launcher_of(group: Group, tracker: BatchTracker) -> ChildLauncher:
    """Rebuild what launching children needs, from the batch's pages and from what this machine kept."""
    store = tracker.store
    key = home.find_key(locate.home(), group.key_id)
    if key is None:
        what = f"{group.group_id} cannot be driven from here"
        raise locate.key_missing(what, "its children are sealed with", group.key_id)
    order = orders.read(store, keys.group_order(group.group_id), group.order_sha256)
    _check_pickles(group, order)
    kept = tracker.backend.kept(group.group_id)
    if kept is None:
        if order.environment:
            raise CredentialsError(
                f"{group.group_id} cannot be driven from here",
                why=f"the values of {', '.join(order.environment)} never leave the machine that captured them",
                next=f"run there: kinetic batch resume {group.group_id}",
                code="captured-elsewhere",
            )
        kept = {"captured": {}, "environ": dict(os.environ), "interpreter": ""}
    multi_host = registry.spans_hosts(group.handle.get("backend"))
    placement = hardware.place(str(group.handle["accelerator"]), spot=group.spot, multi_host=multi_host)
    return ChildLauncher(group, read_table(store, group), order, store, tracker.backend, placement, key, kept)


def _check_pickles(group: Group, order: Order) -> None:
    """Refuse to launch what this side's runner could not open: every input would fail, and use up its attempts."""
    theirs, ours = order.fingerprint, pickler.pickler_version()
    python = theirs.get("python", python_runtime.python_version())
    why = python_runtime.version_mismatch(python)
    first = f"with Python {python.rpartition('.')[0]} and the project's packages, as in a new environment"
    if not why and theirs.get("cloudpickle", ours) != ours:
        why = f"its pickles were made by cloudpickle {theirs['cloudpickle']}, and this is cloudpickle {ours}"
        first = f'after pip install "cloudpickle=={theirs["cloudpickle"]}"'
    if why:
        raise OptionError(
            f"{group.group_id} cannot be driven by this Python",
            why=why,
            next=f"{first}: kinetic batch resume {group.group_id}",
            code="python-mismatch",
        )


def _report_driver(batch: Batch) -> None:
    output.report(f"{batch.group_id} is driven by another process: {_driver_text(batch)}; this one only watches")


def _driver_text(batch: Batch) -> str:
    with contextlib.suppress(KineticError):
        tracker = batch._get_tracker()
        found = control.lease_holder(tracker.store, batch.group_id, tracker.key)
        if found is not None:
            return f"process {found.pid} on {found.machine}"
    return "a process that has just started"

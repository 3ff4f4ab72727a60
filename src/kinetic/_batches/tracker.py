"""Follow the jobs of a batch: what became of every input, from one observation and one listing, whatever their number.

There are two witnesses, as for one job. The marks in the store say which children have ended and how; they are set
after the outcome. The backend says what runs and what waits. A child that the backend does not see and that has no mark
is observed by itself, and its mark is repaired: the outcome decides. So it is, now and then, for children of another
machine.
"""

from __future__ import annotations

import contextlib
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

from kinetic._backends.protocol import SYSTEM, Clock
from kinetic._batches.control import ControlLog
from kinetic._jobs import locate
from kinetic._jobs.handle import JobHandle
from kinetic._jobs.status import Snapshot, has_ended, observe_many
from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import CLOUDS
from kinetic._wire import NamedTuple, documents, keys
from kinetic._wire.outcomes import CANCELLED, FAILED, REMOVED, SUCCEEDED
from kinetic._wire.records import Group, JobRecord
from kinetic.errors import IntegrityError, KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, Observation
    from kinetic._stores.protocol import Entry, Store

_STATUS = {
    SUCCEEDED: JobStatus.SUCCEEDED,
    FAILED: JobStatus.FAILED,
    CANCELLED: JobStatus.NOT_FOUND,
    REMOVED: JobStatus.NOT_FOUND,
}
_WORDS, _IS_REMOVED = (REMOVED, SUCCEEDED, FAILED, CANCELLED), 8  # as numbers; 0 for none, or none that is known
_StemOf = Callable[[str, range, int], str]
_LEISURE = 10.0  # a refresh that took 5 ms is not repeated for 50: refreshing takes a tenth of one core at most
_MORE_LEISURE, _UNHURRIED_SECONDS = 3, 0.1  # so many times longer where the backend has work for long, at most this
_PENDING_EACH = 8  # more children than this wait for each that runs: no slot gets idle within that time
_LEAST_SECONDS = 0.002
_LOST_SECONDS = 5.0  # how often a child is read by itself
_ELSEWHERE_SECONDS = 60.0  # the same for one of another machine
_LOST_AT_ONCE = 50  # children that one refresh reads by themselves: it stays short, whatever the size of the batch
_FEW_SHARDS = 2
_WATCH_SECONDS = 0.2  # of jobs without a batch, one at a time is watched


class End(NamedTuple):
    """How one attempt ended, and when, by the store's clock; "removed" where nothing else is known any more."""

    word: str
    at: float


def record_of(group: Group, index: int, attempt: int, machine: str = "") -> JobRecord:
    """Return the record of one attempt at one input, launched on a machine; "" where the batch was made."""
    own: dict[str, object] = {
        "group_id": group.group_id,
        "group_kind": group.group_kind,
        "group_index": index,
        "group_attempt": attempt,
        "output_dir": f"{group.outputs}/{group.group_id}/{index}",
    }
    if machine:
        own["host"] = machine
    return locate.make_record(group.handle, group.child_id(index, attempt), **own)


class Tracker:
    """How the jobs of a batch stand, for any thread of this process.

    As it is, it serves jobs that only a list holds together: each is observed by itself, and nothing follows it.

    Attributes:
        key: The key of the batch's own pages, if it has any.
        attempts: For each input the latest attempt that was submitted, -1 while there is none.
        ended: The inputs whose latest attempt has ended, in that order; an input can end once for each attempt.
    """

    key: bytes | None = None
    clock: Clock = SYSTEM  # by which refreshing is limited

    def __init__(self, jobs: Sequence[JobHandle | None]) -> None:
        self.attempts = [-1 if job is None else job.group_attempt or 0 for job in jobs]
        self.ended = array("L")
        self._jobs = jobs
        self._active = {index for index, job in enumerate(jobs) if job is not None}
        # How the latest attempts ended, in 9 bytes each; and what is known of the ends of attempts to come.
        self._words, self._times = bytearray(len(jobs)), array("d", bytes(8 * len(jobs)))
        self._early: dict[tuple[int, int], list[End]] = {}
        self._ends = 0  # how many there were, of all attempts
        self._statuses: dict[int, JobStatus] = {}  # of jobs that were observed by themselves
        self._ids: dict[tuple[int, int], str] = {}  # of attempts that have not ended
        self._lock = threading.RLock()
        self._news = threading.Condition()
        self._watching = threading.Lock()
        self._refreshed_at, self._took = 0.0, 0.0
        self._cost = 0.0  # seconds that a refresh takes: of the last two the shorter, as this process may be stopped
        self._is_unhurried = False  # whether the backend has work for long

    @cached_property
    def store(self) -> Store:
        """Where the jobs are stored."""
        return locate.store_of(next(filter(None, self._jobs)))

    @cached_property
    def backend(self) -> Backend:
        """Where the jobs run."""
        return locate.backend_of(next(filter(None, self._jobs)))

    @property
    def active(self) -> frozenset[int]:
        """The inputs whose latest attempt has not ended."""
        with self._lock:
            return frozenset(self._active)

    @property
    def unlaunched(self) -> list[int]:
        """Active inputs that were found to be not launched: their driver is about to launch them, or died."""
        return []

    @property
    def stopped(self) -> bool:
        """Whether nothing more will be launched."""
        return True

    def was_removed(self) -> bool:
        """Return whether the batch is gone from the store; of jobs without a batch, nothing is."""
        return False

    def status(self, index: int) -> JobStatus | None:
        """Return the status of an input's latest attempt, or None while there is none."""
        if self.attempts[index] < 0:
            return None
        word = self._words[index]
        if word & _IS_REMOVED:
            return JobStatus.NOT_FOUND
        return _STATUS[_WORDS[word]] if word else self._active_status(index)

    def end(self, index: int) -> End | None:
        """Return how an input's latest attempt ended, or None while it has not."""
        word = self._words[index]
        return End(_WORDS[word & ~_IS_REMOVED], self._times[index]) if word else None

    def may_launch(self, index: int) -> bool:  # noqa: ARG002 - a batch with a manifest needs it
        """Return whether one more attempt at an input is allowed."""
        return False

    def is_final(self, index: int) -> bool:
        """Return whether an input's latest attempt has ended and no further one will follow it."""
        end = self.end(index)
        return end is not None and (end.word != FAILED or not self.may_launch(index))

    def unseen(self) -> list[int]:
        """Return active inputs that the backend does not know: their driver may have died before launching them."""
        return []

    def read_unmarked(self) -> None:
        """Read what the backend sees running by itself: the mark of a child comes a moment after its outcome."""

    def record(self, index: int) -> JobRecord | None:
        """Return the record of an input's latest attempt, or None while there is none."""
        return self._jobs[index]

    def forget_kept(self) -> None:
        """Remove the values of captured variables, if any: nothing of this batch will run any more."""

    def refresh(self, *, whole: bool = False) -> None:
        """Observe the jobs, unless that was done just now; ``whole``: now, and also those that have ended.

        Others may have removed these.
        """
        with self._lock:
            begun = self.clock.monotonic()
            if not whole and begun < self._next_refresh():
                return
            self._observe(whole=whole)
            took, self._took = self._took, self.clock.monotonic() - begun
            self._cost = min(took, self._took)
            self._refreshed_at = begun + self._cost  # what was seen before this process was stopped is not of now
        with self._news:
            self._news.notify_all()

    def wait(self, seconds: float, *, read: int) -> None:
        """Wait for news, at most some seconds, and refresh, unless there are more ends than the caller has read.

        Of several threads one watches for all.
        """
        if not self._watching.acquire(blocking=False):
            with self._news:
                self._news.wait_for(lambda: len(self.ended) > read or not self._watching.locked(), seconds)
            return
        try:
            if len(self.ended) > read:
                return
            limit = self.clock.monotonic() + seconds
            self._watch(seconds)
            self.clock.sleep(max(0.0, min(self._next_refresh(), limit) - self.clock.monotonic()))
            self.refresh()
        finally:
            self._watching.release()
            with self._news:
                self._news.notify_all()

    def _next_refresh(self) -> float:
        pause = self._cost * _LEISURE
        if self._is_unhurried:
            pause = max(pause, min(_MORE_LEISURE * pause, _UNHURRIED_SECONDS))
        return self._refreshed_at + max(_LEAST_SECONDS, pause)

    def _active_status(self, index: int) -> JobStatus | None:
        return self._statuses.get(index)

    def _observe(self, *, whole: bool) -> None:  # noqa: ARG002 - all of them, each time
        present = [(index, job) for index, job in enumerate(self._jobs) if job is not None]
        for (index, _), seen in zip(present, observe_many([job for _, job in present]), strict=True):
            self._statuses[index] = seen.status
            if seen.status.is_final:
                at = seen.outcome.ended if seen.outcome is not None else None
                self._end(index, self.attempts[index], _end_of(seen), at or time.time())
            if seen.status is JobStatus.NOT_FOUND:
                self._words[index] |= _IS_REMOVED

    def _watch(self, seconds: float) -> None:
        job = next((self._jobs[index] for index in self.active), None)
        if job is not None:
            locate.backend_of(job).watch(job.job_id, seconds=min(seconds, _WATCH_SECONDS))

    def _end(self, index: int, attempt: int, word: str, at: float) -> None:
        if attempt > self.attempts[index]:
            self._early.setdefault((index, attempt), []).append(End(word, at))
        elif attempt == self.attempts[index]:
            self._note(index, word, at)
            self._settle(index)

    def _note(self, index: int, word: str, at: float) -> None:
        """Note how the latest attempt at an input ended: the first verdict stays, also when it is removed."""
        before = self._words[index]
        if word == REMOVED:
            self._words[index] = before | _IS_REMOVED
        elif not before & ~_IS_REMOVED:
            self._times[index] = at
            self._words[index] = before | _WORDS.index(word)
            self._ends += 1

    def _settle(self, index: int) -> None:
        """Move an input from the active to the ended ones if its latest attempt has ended."""
        if index in self._active and self._words[index]:
            self._active.discard(index)
            self._statuses.pop(index, None)
            self._ids.pop((index, self.attempts[index]), None)
            self.ended.append(index)


class BatchTracker(Tracker):
    """The state of every child of a batch; ``control`` says whether it was stopped or inputs shall be tried again."""

    def __init__(self, group: Group, store: Store, backend: Backend) -> None:
        super().__init__([None] * group.total_expected)
        self.group, self.store, self.backend, self.clock = group, store, backend, backend.clock
        self.key = locate.group_key(group)
        self.control = ControlLog(store, group.group_id, self.key)
        self._root = None if locate.trusts_the_store() else locate.namespace_key(group.key_id)
        self._machine = locate.machine_of(backend)
        self._elsewhere: dict[int, str] = {}  # inputs whose latest attempt another machine launched, and which
        self._only_submitter = False
        self._seen: dict[str, Observation] = {}
        self._listed: dict[str, Iterable[Entry]] = {}  # what was listed ahead of its use
        # Hashes of the keys of children and marks whose seals are right: of the first mark of each input, and others.
        self._first_read, self._read = array("q", bytes(8 * group.total_expected)), set[int]()
        self._asks_at = 0.0  # whether the first child has compiled
        self._observed_at: dict[int, float] = {}  # when a child that the backend does not see was observed by itself

    @property
    def stopped(self) -> bool:
        """Whether the batch was cancelled, or a failure stopped it."""
        return self.control.stopped

    def was_removed(self) -> bool:
        """Return whether the batch is gone from the store, which stops it."""
        return self.control.was_removed()

    @property
    def unlaunched(self) -> list[int]:
        """Active inputs of this machine that were found to be not launched."""
        with self._lock:
            waiting = (index for index, status in self._statuses.items() if status is JobStatus.PENDING)
            return sorted(index for index in waiting if index not in self._elsewhere and self._seen_of(index) is None)

    @property
    def pending(self) -> int:
        """How many children waited in the backend for their start at the last refresh; none of a warm pod does."""
        return sum(seen.status is JobStatus.PENDING and not seen.warm for seen in list(self._seen.values()))

    def may_launch(self, index: int) -> bool:
        """Return whether one more attempt at an input is allowed: it was not stopped, and attempts are left."""
        allowed = max(1 + self.group.settings.retries, self.control.allowed(index))
        return not self.control.stops(index) and self.attempts[index] + 1 < allowed

    def unseen(self) -> list[int]:
        """Return active inputs that the backend does not know: their driver may have died before launching them.

        Of those that another machine launched, only what has not begun there: the first to begin keeps it.
        """
        with self._lock:
            return sorted(index for index in self._unseen() if index not in self._elsewhere or not self._began(index))

    def read_unmarked(self) -> None:
        """Read what the backend sees running by itself: the mark of a child comes a moment after its outcome.

        Who waited for a child, and not for its batch, may ask within that moment.
        """
        with self._lock:
            running = [index for index in self._active if self._active_status(index) is JobStatus.RUNNING]
            found = in_parallel(self.store, (partial(self._has_outcome, index) for index in running))
            self._read_each([index for index, has_outcome in found if has_outcome])

    def start_untaken(self) -> None:
        """Start in pods of their own the children that a driver was giving to warm pods when it died."""
        from kinetic._jobs import cold_start  # few batches are driven by a second process

        with self._lock:
            for index in self._untold():
                job, seen = self.record(index), self._seen_of(index)
                with contextlib.suppress(KineticError):  # the looks that follow try again
                    if job is not None and seen is not None:
                        cold_start.start_if_left(job, seen, giver_died=True)

    def record(self, index: int) -> JobRecord | None:
        """Return the record of an input's latest attempt, or None while there is none."""
        if self.attempts[index] < 0:
            return None
        return record_of(self.group, index, self.attempts[index], self._elsewhere.get(index, self._machine))

    def forget_kept(self) -> None:
        """Remove the values of captured variables."""
        self.backend.forget_kept(self.group.group_id)

    def set_only_submitter(self, *, alone: bool = True) -> None:
        """Note that only this process submits, so that what was submitted need not be listed; or that this ends."""
        self._only_submitter = alone

    def submitted(self, index: int, attempt: int, machine: str = "") -> None:
        """Note that an attempt was submitted on a machine; what was submitted here as well counts as here."""
        with self._lock:
            latest = self.attempts[index]
            if attempt < latest:
                return
            if machine in {"", self._machine}:
                self._elsewhere.pop(index, None)
            elif attempt > latest:
                self._elsewhere[index] = machine
            if attempt > latest:
                self._ids.pop((index, latest), None)
                self._words[index] = 0
                self.attempts[index] = attempt
                for end in self._early.pop((index, attempt), ()):
                    self._note(index, *end)
                self._statuses.pop(index, None)
                self._active.add(index)
                self._settle(index)

    def note_end(self, index: int, attempt: int, word: str) -> None:
        """Note an end that this process brought about."""
        with self._lock:
            self._end(index, attempt, word, time.time())

    def allow_retry(self, indexes: Iterable[int]) -> None:
        """Allow each of some inputs one more attempt than it had, even if the batch is stopped."""
        with self._lock:
            self.control.retry({index: self.attempts[index] + 2 for index in indexes})

    def children(self) -> list[tuple[int, int, str]]:
        """Return everything that was ever submitted: index, attempt and machine."""
        listed = self.store.entries(keys.children(self.group.group_id))
        found = filter(None, (self._verified(keys.children_of, entry.key) for entry in listed))
        return [(index, attempt, machine) for indexes, attempt, machine in found for index in indexes]

    def _active_status(self, index: int) -> JobStatus:
        if index in self._statuses:
            return self._statuses[index]
        observation = self._seen_of(index)
        return observation.status if observation is not None else JobStatus.PENDING

    def _watch(self, seconds: float) -> None:
        self.backend.watch_group(self.group.group_id, seconds=seconds)

    def _observe(self, *, whole: bool) -> None:
        group_id = self.group.group_id
        control, self._listed = keys.control_entries(group_id), {}
        if not self._only_submitter:
            ahead = [control] if not self._active else []  # else what is read below is newer
            ahead += [keys.marks(group_id)] if not self._refreshed_at else []
            self._list_at_once(keys.children(group_id), *ahead)
            for indexes, attempt, machine, _ in self._unread(keys.children_of, [keys.children(group_id)]):
                for index in indexes:
                    self.submitted(index, attempt, machine)
            if not self._refreshed_at:  # of a batch that has ended, the marks say everything
                self._read_marks(whole=True)
                whole = False
        # Before the marks: what has ended by now is marked by then.
        self._seen = self.backend.observe_group(group_id) if self._active else {}
        pending = self.pending
        self._is_unhurried = pending > _PENDING_EACH * max(1, len(self._seen) - pending)
        if self.group.handle.get("after"):
            self._settle_waiting()
        if marks := self._mark_prefixes(whole=whole):
            self._list_at_once(control, *marks)
        self.control.read(self._listed.pop(control, None))
        self._read_marks(whole=whole)
        self._read_lost_children()
        if self.group.first_seconds and not self.stopped:
            self._start_others()

    def _list_at_once(self, *prefixes: str) -> None:
        """List what is read next side by side, if each request takes long."""
        if len(prefixes) > 1 and self.store.url.startswith(CLOUDS):
            tasks = [(self.store.url, partial(self._list, prefix)) for prefix in prefixes]
            self._listed = dict(zip(prefixes, locate.in_order(tasks), strict=True))

    def _list(self, prefix: str) -> Iterable[Entry]:
        return [*self.store.entries(prefix)]

    def _mark_prefixes(self, *, whole: bool) -> list[str]:
        shards = sorted({index // keys.SHARD for index in self._active})
        # A request returns a thousand entries: one for each shard that is open, or all that have ended.
        few = not whole and len(shards) <= max(_FEW_SHARDS, self._ends // keys.SHARD)
        group_id = self.group.group_id
        return [keys.marks(group_id, shard) for shard in shards] if few else [keys.marks(group_id)]

    def _read_marks(self, *, whole: bool) -> None:
        for indexes, attempt, word, at in self._unread(_mark_of, self._mark_prefixes(whole=whole)):
            if word in _STATUS:
                self._end(indexes[0], attempt, word, at)

    def _start_others(self) -> None:
        """Start the children that wait for the programs of the first one, if it has compiled or ended.

        Its pod does that as well; it may have had no time to, or never existed.
        """
        held = [name for name, observation in self._seen.items() if observation.waits_for_others]
        first = self.group.first_index
        is_launched = self.attempts[first] >= 0 or not self._only_submitter  # ours may be launching it just now
        is_over = self.control.stops(first) or self.attempts[first] > 0 or (is_launched and first not in self._active)
        if held and (is_over or self._has_compiled()):
            with contextlib.suppress(KineticError):  # out of reach, or without the right: the next refresh tries again
                self.store.put(keys.group_compiled(self.group.group_id), b"", if_absent=True)
                self.backend.release(held)

    def _has_compiled(self) -> bool:
        """Ask the store now and then; the pod of the first child does not wait for us."""
        now = self.clock.monotonic()
        if now < self._asks_at:
            return False
        self._asks_at = now + _LOST_SECONDS
        return self.store.size(keys.group_compiled(self.group.group_id)) is not None

    def _settle_waiting(self) -> None:
        """Start the children on a cluster that wait for other jobs, or close them, if those have ended."""
        from kinetic._jobs import after  # only for a batch that follows others

        for index in sorted(self._active):
            observation = self._seen_of(index)
            job = self.record(index) if observation is not None and observation.waits_for_others else None
            with contextlib.suppress(KineticError):  # out of reach: the next refresh tries again
                if job is not None and not after.settle(job, has_ended):
                    return  # all of them wait for the same

    def _read_lost_children(self) -> None:
        """Read children that the backend does not see alive, and that have no mark; those never read before first.

        So are those that a warm pod may have left, which the backend does not tell: they start in pods of their own.
        """
        now, untold = time.monotonic(), self._untold()
        due = [(due_at, index) for index in (*self._unseen(), *untold) if now >= (due_at := self._due_at(index))]
        self._read_each([index for _, index in sorted(due)[:_LOST_AT_ONCE]])

    def _read_each(self, indexes: Sequence[int]) -> None:
        now = time.monotonic()
        jobs = [(index, job) for index in indexes if (job := self.record(index)) is not None]
        for (index, job), seen in zip(jobs, observe_many([job for _, job in jobs], thorough=True), strict=True):
            self._judge(index, job, seen, now)

    def _seen_of(self, index: int) -> Observation | None:
        return self._seen.get(self._id(index, self.attempts[index]))

    def _has_outcome(self, index: int) -> tuple[int, bool]:
        return index, self.store.size(keys.result(self._id(index, self.attempts[index]))) is not None

    def _due_at(self, index: int) -> float:
        pause = _ELSEWHERE_SECONDS if index in self._elsewhere else _LOST_SECONDS
        return self._observed_at[index] + pause if index in self._statuses else float("-inf")

    def _began(self, index: int) -> bool:
        return any(True for _ in self.store.entries(keys.attempts(self._id(index, self.attempts[index]))))

    def _unseen(self) -> Iterator[int]:
        for index in self._active:
            seen = self._seen_of(index)
            if seen is None:
                yield index
            elif not _may_be_left(seen):
                self._statuses.pop(index, None)

    def _untold(self) -> list[int]:
        if not any(seen.warm for seen in self._seen.values()):
            return []
        found = ((index, self._seen_of(index)) for index in self._active)
        return [index for index, seen in found if seen is not None and _may_be_left(seen)]

    def _judge(self, index: int, job: JobRecord, seen: Snapshot, now: float) -> None:
        attempt = self.attempts[index]
        if isinstance(seen.error, IntegrityError):  # its outcome was tampered with: one child must not hide the others
            self._end(index, attempt, FAILED, time.time())
            return
        if seen.error is not None:
            raise seen.error
        self._observed_at[index], self._statuses[index] = now, seen.status
        if seen.outcome is not None and self.store.size(keys.result(job.job_id)) is not None:
            stem = keys.mark(self.group.group_id, index, attempt)
            self.store.put(documents.sealed_name(stem, seen.outcome.status, locate.key_to_seal(job)), b"")
            self._end(index, attempt, seen.outcome.status, seen.outcome.ended or time.time())
        elif seen.status is JobStatus.FAILED:
            self._end(index, attempt, FAILED, time.time())
        elif seen.status is JobStatus.NOT_FOUND and locate.read_page(self.store, job.job_id):
            self._end(index, attempt, REMOVED, time.time())
        elif seen.status is JobStatus.NOT_FOUND:  # a driver is about to launch it, or died just before
            self._statuses[index] = JobStatus.PENDING

    def _unread(self, stem_of: _StemOf, prefixes: Iterable[str]) -> Iterator[tuple[range, int, str, float]]:
        """Yield what the keys of children or marks say that were not read before, and how old they are."""
        first, others, group_id = self._first_read, self._read, self.group.group_id
        digits = slice(len(keys.marks(group_id, 0)), len(keys.mark(group_id, 0, 0)) - len(".0"))

        def index_of(key: str) -> int:
            index = int(key[digits]) if stem_of is _mark_of and key[digits].isdecimal() else len(first)
            return min(index, len(first))

        def is_known(key: str) -> bool:
            number, index = hash(key), index_of(key)
            return (index < len(first) and first[index] == number) or number in others

        for prefix in prefixes:
            local, listed = self.store.local, self._listed.pop(prefix, None)
            if listed is None:
                listed = self.store.entries(prefix) if local is None else local.entries(prefix, known=is_known)
            for entry in listed:
                if is_known(entry.key) or (found := self._verified(stem_of, entry.key)) is None:
                    continue
                index = index_of(entry.key)
                if index < len(first) and not first[index]:
                    first[index] = hash(entry.key)
                else:
                    others.add(hash(entry.key))
                yield *found, entry.modified

    def _verified(self, stem_of: _StemOf, at: str) -> tuple[range, int, str] | None:
        """Return what the key of children or of a mark says if its seal is right."""
        found = keys.parse_children(at)
        if found is None:
            return None
        indexes, attempt, word = found
        if not indexes or indexes[-1] >= self.group.total_expected or attempt >= keys.MOST_ATTEMPTS:
            return None
        if self._root is not None:
            sealed_for = self.group.group_id
            if stem_of is _mark_of:
                sealed_for = self._ids.get((indexes[0], attempt)) or self.group.child_id(indexes[0], attempt)
            key = documents.job_key(self._root, sealed_for, self.group.store)
            if at != documents.sealed_name(stem_of(self.group.group_id, indexes, attempt), word, key):
                return None
        return found

    def _id(self, index: int, attempt: int) -> str:
        """Return the id of an active attempt; deriving all of them on every refresh would be most of its cost."""
        found = self._ids.get((index, attempt))
        if found is None:
            found = self._ids[index, attempt] = self.group.child_id(index, attempt)
        return found


def _mark_of(group_id: str, indexes: range, attempt: int) -> str:
    return keys.mark(group_id, indexes[0], attempt)


def _may_be_left(seen: Observation) -> bool:
    """Return whether a warm pod may have ended that tells us nothing, or may have given its task back."""
    return bool(seen.warm) and (seen.may_come_back or not seen.is_told)


def _end_of(seen: Snapshot) -> str:
    """Return how a job ended; of one that was collected, what the history says."""
    if seen.status in {JobStatus.SUCCEEDED, JobStatus.FAILED}:
        return SUCCEEDED if seen.status is JobStatus.SUCCEEDED else FAILED
    word = str((seen.past or {}).get("status", "")).lower()
    if locate.is_collected(seen.past) and word in {SUCCEEDED, FAILED}:
        return word
    return CANCELLED if seen.past is None else REMOVED

"""The board of a batch: how every child stands, seen with one observation and one listing, whatever their number.

Two witnesses, as for one job. The marks in the store say which children have ended and how; whoever creates an Outcome
sets the mark after it. The backend says what runs and what waits. A child that the backend does not see alive and that
has no mark is looked at by itself, and its mark is made good: the Outcome decides.

Children that another machine launched cannot be seen by the backend here: their marks tell of them, and now and then
each is looked at by itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kinetic._batches import children
from kinetic._batches.turns import Turns
from kinetic._jobs import places, tombstones
from kinetic._jobs.status import Snapshot, observe_many
from kinetic._wire import keys, names, seal
from kinetic._wire import outcome as outcomes
from kinetic.errors import IntegrityError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, Sighting
    from kinetic._stores.protocol import Store
    from kinetic._wire.group import Group
    from kinetic._wire.handles import JobRecord

REMOVED = "removed"
_STATUS = {
    outcomes.SUCCEEDED: JobStatus.SUCCEEDED,
    outcomes.FAILED: JobStatus.FAILED,
    outcomes.CANCELLED: JobStatus.NOT_FOUND,
    REMOVED: JobStatus.NOT_FOUND,
}
_LEISURE = 10.0  # a look that took 5 ms is not repeated for 50: looking takes a tenth of one core at most
_LEAST_SECONDS = 0.002
_LOST_SECONDS = 5.0  # a child that only a look of its own can judge is looked at this often
_ELSEWHERE_SECONDS = 60.0  # and one of another machine so often
_LOST_AT_ONCE = 50  # looks of their own in one look at the board: it stays short, whatever the size of the batch
_FEW_SHARDS = 2


class End(NamedTuple):
    """How one attempt ended.

    Attributes:
        word: "succeeded", "failed", "cancelled", or "removed" where nothing else is known any more.
        at: Unix time by the store's clock.
    """

    word: str
    at: float


class Board:
    """How every child of a batch stands; for any thread of this process.

    Args:
        group: The batch.
        store: Where it lies.
        backend: The place that runs its children.

    Attributes:
        attempts: For each input the latest attempt that was submitted, -1 while there is none.
        ended: The inputs whose latest attempt has ended, in that order; an input can end once for each attempt.
        turns: Whether somebody stopped the batch, or wants something tried again.
    """

    def __init__(self, group: Group, store: Store, backend: Backend) -> None:
        self.group = group
        self.store = store
        self.backend = backend
        self.attempts = [-1] * group.total_expected
        self.ended: list[int] = []
        self.key = places.group_key(group)
        self.turns = Turns(self.key)
        self._root = None if places.trusts_the_store() else places.namespace_key(group.key_id)
        self._machine = places.machine_of(backend)
        self._elsewhere: dict[int, str] = {}  # inputs whose latest attempt another machine launched, and which
        self._alone = False  # this process is the only one that submits: it need not ask what was
        self._active: set[int] = set()
        self._ends: dict[tuple[int, int], End] = {}
        self._gone: set[tuple[int, int]] = set()
        self._seen: dict[str, Sighting] = {}
        self._ids: dict[tuple[int, int], str] = {}
        self._names: dict[str, tuple[int, int, str]] = {}  # keys of children and marks whose seals are right
        self._lost: dict[int, tuple[float, JobStatus]] = {}
        self._lock = threading.RLock()
        self._news = threading.Condition()
        self._watching = threading.Lock()
        self._looked, self._cost = 0.0, 0.0

    # ------------------------------------------------------------------------------------------------ what is known

    def status(self, index: int) -> JobStatus | None:
        """Return the status of an input's latest attempt, or None while there is none."""
        attempt = self.attempts[index]
        if attempt < 0:
            return None
        if (index, attempt) in self._gone:
            return JobStatus.NOT_FOUND
        if end := self._ends.get((index, attempt)):
            return _STATUS[end.word]
        if lost := self._lost.get(index):
            return lost[1]
        sighting = self._seen.get(self._id(index, attempt))
        return sighting.status if sighting is not None else JobStatus.PENDING

    def end(self, index: int) -> End | None:
        """Return how an input's latest attempt ended, or None while it has not."""
        found = self._ends.get((index, self.attempts[index]))
        if found is None and (index, self.attempts[index]) in self._gone:
            return End(REMOVED, 0.0)
        return found

    def started(self, index: int) -> float | None:
        """Return since when a child runs, as Unix time; None while it does not, or nobody knows."""
        sighting = self._seen.get(self._id(index, self.attempts[index]))
        return sighting.started if sighting is not None and sighting.status is JobStatus.RUNNING else None

    def record(self, index: int) -> JobRecord | None:
        """Return the record of an input's latest attempt, or None while there is none."""
        attempt = self.attempts[index]
        if attempt < 0:
            return None
        return children.record_of(self.group, index, attempt, self._elsewhere.get(index, self._machine))

    def may_launch(self, index: int) -> bool:
        """Say whether one more attempt at an input is allowed: nobody stopped it, and it has not had all of them."""
        allowed = max(1 + self.group.settings.retries, self.turns.allowed(index))
        return not self.turns.stops(index) and self.attempts[index] + 1 < allowed

    def is_final(self, index: int) -> bool:
        """Say whether an input's latest attempt has ended and no further one will follow it."""
        end = self.end(index)
        return end is not None and (end.word != outcomes.FAILED or not self.may_launch(index))

    @property
    def stopped(self) -> bool:
        """Whether nothing more will be launched, because somebody cancelled or something failed."""
        return self.turns.stopped

    @property
    def active(self) -> frozenset[int]:
        """The inputs whose latest attempt has not ended."""
        with self._lock:
            return frozenset(self._active)

    # ------------------------------------------------------------------------------------------------ what is told

    def submit_alone(self, *, alone: bool = True) -> None:
        """Take note that only this process submits, so that what was submitted need not be listed; or that it ends."""
        self._alone = alone

    def submitted(self, index: int, attempt: int, machine: str = "") -> None:
        """Take note that an attempt was submitted on a machine; what was submitted here as well counts as here."""
        with self._lock:
            if attempt < self.attempts[index]:
                return
            if machine in {"", self._machine}:
                self._elsewhere.pop(index, None)
            elif attempt > self.attempts[index]:
                self._elsewhere[index] = machine
            if attempt > self.attempts[index]:
                self.attempts[index] = attempt
                self._lost.pop(index, None)
                self._active.add(index)
                self._settle(index)

    def note_end(self, index: int, attempt: int, word: str) -> None:
        """Take note of an end that this process brought about."""
        with self._lock:
            self._end(index, attempt, word, time.time())

    def stop(self, why: str) -> None:
        """Launch nothing more, whoever drives."""
        with self._lock:
            self.turns.stop(self.store, self.group.group_id, why)

    def read_turns(self) -> None:
        """Read whether somebody stopped the batch just now."""
        with self._lock:
            self.turns.read(self.store, self.group.group_id)

    def want_again(self, indexes: Iterable[int]) -> None:
        """Allow each of some inputs one more attempt than it had, even if the batch is stopped."""
        with self._lock:
            more = {index: self.attempts[index] + 2 for index in indexes}
            self.turns.again(self.store, self.group.group_id, more)

    def children(self) -> list[tuple[int, int, str]]:
        """Return everything that was ever submitted: index, attempt and machine."""
        listed = self.store.entries(keys.children(self.group.group_id))
        return list(filter(None, (self._verified(keys.child, entry.key) for entry in listed)))

    def forget_kept(self) -> None:
        """Remove the values of captured variables: nothing of this batch will run any more."""
        self.backend.forget_kept(self.group.group_id)

    # ------------------------------------------------------------------------------------------------ looking

    def refresh(self, *, whole: bool = False) -> None:
        """Look once, unless somebody here looked just now.

        Args:
            whole: Look now, and at the children that have ended as well: others may have removed them.
        """
        with self._lock:
            begun = time.monotonic()
            if not whole and begun - self._looked < max(_LEAST_SECONDS, self._cost * _LEISURE):
                return
            self._look(whole=whole)
            self._looked = time.monotonic()
            self._cost = self._looked - begun
        with self._news:
            self._news.notify_all()

    def wait(self, seconds: float, *, read: int | None = None) -> None:
        """Wait until there may be news, at most some seconds, and look. Of several threads one watches for all.

        Args:
            seconds: At most.
            read: How many ends the caller has seen: when there are more by now, it need not wait.
        """

        def is_new() -> bool:
            return read is not None and len(self.ended) > read

        if not self._watching.acquire(blocking=False):
            with self._news:
                self._news.wait_for(lambda: is_new() or not self._watching.locked(), seconds)
            return
        try:
            if is_new():
                return
            limit = time.monotonic() + seconds
            self.backend.watch_group(self.group.group_id, seconds=seconds)
            rest = self._looked + max(_LEAST_SECONDS, self._cost * _LEISURE) - time.monotonic()
            time.sleep(max(0.0, min(rest, limit - time.monotonic())))
            self.refresh()
        finally:
            self._watching.release()
            with self._news:
                self._news.notify_all()

    def _look(self, *, whole: bool) -> None:
        group_id = self.group.group_id
        if not self._alone:
            for entry in self.store.entries(keys.children(group_id)):
                if (child := self._verified(keys.child, entry.key)) is not None:
                    self.submitted(*child)
        self._seen = self.backend.observe_group(group_id)  # before the marks: what has ended by now is marked by then
        self.turns.read(self.store, group_id)
        for prefix in self._prefixes(whole=whole):
            for entry in self.store.entries(prefix):
                mark = self._verified(keys.mark, entry.key)
                if mark is not None and mark[2] in _STATUS:
                    self._end(*mark, entry.modified)
        self._look_for_the_lost()

    def _prefixes(self, *, whole: bool) -> Iterable[str]:
        """Name what to list: everything, or the folders in which something is still open, if they are few."""
        shards = sorted({index // keys.SHARD for index in self._active})
        if whole or len(shards) > _FEW_SHARDS:
            return [keys.marks(self.group.group_id)]
        return [keys.marks(self.group.group_id, shard) for shard in shards]

    def _end(self, index: int, attempt: int, word: str, at: float) -> None:
        if word == REMOVED:
            self._gone.add((index, attempt))
        else:
            self._ends.setdefault((index, attempt), End(word, at))
        self._settle(index)

    def _settle(self, index: int) -> None:
        """Move an input from the active to the ended ones if its latest attempt has ended."""
        if index in self._active and self.end(index) is not None:
            self._active.discard(index)
            self._lost.pop(index, None)
            self.ended.append(index)

    def _look_for_the_lost(self) -> None:
        """Look at children that the backend does not see alive, and that have no mark."""
        now = time.monotonic()
        due = [(due_at, index) for index in self._unseen() if now >= (due_at := self._due_at(index))]
        indexes = [index for _, index in sorted(due)[:_LOST_AT_ONCE]]
        jobs = [job for index in indexes if (job := self.record(index)) is not None]  # each of them: they are active
        for index, job, seen in zip(indexes, jobs, observe_many(jobs, thorough=True), strict=True):
            self._judge(index, job, seen, now)

    def _due_at(self, index: int) -> float:
        """Return when a child is to be looked at by itself again; one that never was, first of all."""
        looked = self._lost.get(index)
        pause = _ELSEWHERE_SECONDS if index in self._elsewhere else _LOST_SECONDS
        return float("-inf") if looked is None else looked[0] + pause

    @property
    def unlaunched(self) -> list[int]:
        """The active inputs that nobody has launched, as far as was looked: their driver is about to, or died."""
        with self._lock:
            return sorted(index for index in self._active - self._elsewhere.keys() if self._waits_for_launch(index))

    def _waits_for_launch(self, index: int) -> bool:
        looked = self._lost.get(index)
        return looked is not None and looked[1] is JobStatus.PENDING

    def unseen(self) -> list[int]:
        """Return active inputs that the backend does not know: their driver may have died just before launching them.

        Of those that another machine launched, only what has not begun there: whoever begins first keeps it.
        """
        with self._lock:
            return sorted(index for index in self._unseen() if index not in self._elsewhere or not self._began(index))

    def _began(self, index: int) -> bool:
        job_id = self._id(index, self.attempts[index])
        return any(True for _ in self.store.entries(keys.attempts(job_id)))

    def _unseen(self) -> Iterator[int]:
        for index in self._active:
            if self._id(index, self.attempts[index]) not in self._seen:
                yield index
            else:
                self._lost.pop(index, None)

    def _judge(self, index: int, job: JobRecord, seen: Snapshot, now: float) -> None:
        attempt = self.attempts[index]
        if isinstance(seen.error, IntegrityError):  # its Outcome was tampered with: one child must not hide the others
            self._end(index, attempt, outcomes.FAILED, time.time())
            return
        if seen.error is not None:
            raise seen.error
        self._lost[index] = now, seen.status
        if seen.outcome is not None and self.store.size(keys.result(job.job_id)) is not None:
            stem = keys.mark(self.group.group_id, index, attempt)
            self.store.put(seal.mark(stem, seen.outcome.status, places.key_to_seal(job)), b"")
            self._end(index, attempt, seen.outcome.status, seen.outcome.ended or time.time())
        elif seen.status is JobStatus.FAILED:
            self._end(index, attempt, outcomes.FAILED, time.time())
        elif seen.status is JobStatus.NOT_FOUND and tombstones.seen(self.store, job.job_id):
            self._end(index, attempt, REMOVED, time.time())
        elif seen.status is JobStatus.NOT_FOUND:  # a driver is about to launch it, or died just before
            self._lost[index] = now, JobStatus.PENDING

    def _verified(self, stem_of: Callable[[str, int, int], str], at: str) -> tuple[int, int, str] | None:
        """Return what the name of a child's key or of a mark says, if its seal is right; one that was is not asked."""
        found = self._names.get(at)
        if found is None and (found := keys.parse_child(at)) is not None:
            index, attempt, word = found
            if index >= self.group.total_expected or attempt >= names.MOST_ATTEMPTS:
                return None
            if self._root is not None:
                of = self._id(index, attempt) if stem_of is keys.mark else self.group.group_id
                key = seal.job_key(self._root, of, self.group.store)
                if at != seal.mark(stem_of(self.group.group_id, index, attempt), word, key):
                    return None
            self._names[at] = found
        return found

    def _id(self, index: int, attempt: int) -> str:
        """Return the id of an attempt; deriving ten thousand of them on every look would be most of its cost."""
        found = self._ids.get((index, attempt))
        if found is None:
            found = self._ids[index, attempt] = self.group.child_id(index, attempt)
        return found

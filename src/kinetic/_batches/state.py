"""The board of a batch: how every child stands, seen with one observation and one listing, whatever their number.

Two witnesses, as for one job. The marks in the store say which children have ended and how; whoever creates an Outcome
sets the mark after it. The backend says what runs and what waits. A child that the backend does not see alive and that
has no mark is looked at by itself, and its mark is made good: the Outcome decides.

Children that another machine launched cannot be seen by the backend here: their marks tell of them, and now and then
each is looked at by itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from kinetic._batches.control import ControlLog
from kinetic._jobs import history, locate, record
from kinetic._jobs.handle import JobHandle, handle_of
from kinetic._jobs.status import Snapshot, observe_many
from kinetic._stores import open_store
from kinetic._wire import documents, keys, outcomes
from kinetic._wire.records import MANIFEST, Group, JobRecord, Table, read_table
from kinetic.errors import BatchNotFoundError, IntegrityError, KeyMissingError, KineticError, OptionError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, Observation
    from kinetic._stores.protocol import Store


def record_of(group: Group, index: int, attempt: int, machine: str = "") -> JobRecord:
    """Return the record of one attempt at one input, launched on a machine; "" where the batch was made."""
    own: dict[str, object] = {
        "group_id": group.group_id,
        "group_kind": group.group_kind,
        "group_index": index,
        "group_attempt": attempt,
        "output_dir": f"{group.outputs}/{group.group_id}/{index}",
    }
    return record.make_record(
        group.handle, group.child_id(index, attempt), **own, **({"host": machine} if machine else {})
    )


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


class BatchTracker:
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
        self.key = locate.group_key(group)
        self.turns = ControlLog(self.key)
        self._root = None if locate.trusts_the_store() else locate.namespace_key(group.key_id)
        self._machine = locate.machine_of(backend)
        self._elsewhere: dict[int, str] = {}  # inputs whose latest attempt another machine launched, and which
        self._alone = False  # this process is the only one that submits: it need not ask what was
        self._active: set[int] = set()
        self._ends: dict[tuple[int, int], End] = {}
        self._gone: set[tuple[int, int]] = set()
        self._seen: dict[str, Observation] = {}
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
        observation = self._seen.get(self._id(index, attempt))
        return observation.status if observation is not None else JobStatus.PENDING

    def end(self, index: int) -> End | None:
        """Return how an input's latest attempt ended, or None while it has not."""
        found = self._ends.get((index, self.attempts[index]))
        if found is None and (index, self.attempts[index]) in self._gone:
            return End(REMOVED, 0.0)
        return found

    def started(self, index: int) -> float | None:
        """Return since when a child runs, as Unix time; None while it does not, or nobody knows."""
        observation = self._seen.get(self._id(index, self.attempts[index]))
        return observation.started if observation is not None and observation.status is JobStatus.RUNNING else None

    def record(self, index: int) -> JobRecord | None:
        """Return the record of an input's latest attempt, or None while there is none."""
        attempt = self.attempts[index]
        if attempt < 0:
            return None
        return record_of(self.group, index, attempt, self._elsewhere.get(index, self._machine))

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

    def set_only_submitter(self, *, alone: bool = True) -> None:
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

    def read_control_log(self) -> None:
        """Read whether somebody stopped the batch just now."""
        with self._lock:
            self.turns.read(self.store, self.group.group_id)

    def allow_retry(self, indexes: Iterable[int]) -> None:
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
            self.store.put(documents.sealed_name(stem, seen.outcome.status, locate.key_to_seal(job)), b"")
            self._end(index, attempt, seen.outcome.status, seen.outcome.ended or time.time())
        elif seen.status is JobStatus.FAILED:
            self._end(index, attempt, outcomes.FAILED, time.time())
        elif seen.status is JobStatus.NOT_FOUND and history.read_page(self.store, job.job_id):
            self._end(index, attempt, REMOVED, time.time())
        elif seen.status is JobStatus.NOT_FOUND:  # a driver is about to launch it, or died just before
            self._lost[index] = now, JobStatus.PENDING

    def _verified(self, stem_of: Callable[[str, int, int], str], at: str) -> tuple[int, int, str] | None:
        """Return what the name of a child's key or of a mark says, if its seal is right; one that was is not asked."""
        found = self._names.get(at)
        if found is None and (found := keys.parse_child(at)) is not None:
            index, attempt, word = found
            if index >= self.group.total_expected or attempt >= keys.MOST_ATTEMPTS:
                return None
            if self._root is not None:
                of = self._id(index, attempt) if stem_of is keys.mark else self.group.group_id
                key = documents.job_key(self._root, of, self.group.store)
                if at != documents.sealed_name(stem_of(self.group.group_id, index, attempt), word, key):
                    return None
            self._names[at] = found
        return found

    def _id(self, index: int, attempt: int) -> str:
        """Return the id of an attempt; deriving ten thousand of them on every look would be most of its cost."""
        found = self._ids.get((index, attempt))
        if found is None:
            found = self._ids[index, attempt] = self.group.child_id(index, attempt)
        return found


RUNNING, WAITING, AGAIN = "running", "waiting", "to be tried again"
MISSING, REFUSED = "not submitted", "refused"
SUCCEEDED, FAILED, CANCELLED = "succeeded", "failed", "cancelled"
# The order in which they are told: how it goes first, then what is still to come.
STATES = (SUCCEEDED, FAILED, CANCELLED, REMOVED, RUNNING, AGAIN, WAITING, REFUSED, MISSING)
ENDED = frozenset({SUCCEEDED, FAILED, CANCELLED, REMOVED, REFUSED})


def state_of(tracker: BatchTracker | AdHocTracker, index: int, refused: Collection[int] = ()) -> str:
    """Return in which state one input was when it was looked at last; ``refused`` could not be submitted."""
    if tracker.attempts[index] < 0:
        return REFUSED if index in refused else MISSING
    end = tracker.end(index)
    if end is None:
        return RUNNING if tracker.status(index) is JobStatus.RUNNING else WAITING
    return AGAIN if end.word == outcomes.FAILED and not tracker.is_final(index) else end.word


def count_states(tracker: BatchTracker | AdHocTracker, refused: Collection[int] = ()) -> Counter[str]:
    """Count the inputs by their states: one pass, 6 ms for 10,000."""
    return Counter(state_of(tracker, index, refused) for index in range(len(tracker.attempts)))


def summary_text(counts: Counter[str], *, of: Iterable[str] = STATES) -> str:
    """Write counts in a line, e.g. "8 succeeded, 1 failed, 2 running"; "" when all of them are nought."""
    return ", ".join(f"{counts[state]} {state}" for state in of if counts[state])


_PAUSE_SECONDS = 0.05
_WORDS = {JobStatus.SUCCEEDED: outcomes.SUCCEEDED, JobStatus.FAILED: outcomes.FAILED}


class AdHocTracker:
    """What ``Board`` tells of a batch, of jobs that only a list holds together."""

    key: bytes | None = None

    def __init__(self, jobs: Sequence[JobHandle | None]) -> None:
        self._jobs = jobs
        self._found: dict[int, End] = {}
        self._statuses: dict[int, JobStatus] = {}
        self.attempts = [-1 if job is None else job.group_attempt or 0 for job in jobs]
        self.ended: list[int] = []
        self.stopped = True  # nothing more comes

    @property
    def store(self) -> Store:
        """The store of the first job."""
        return locate.store_of(self._first())

    @property
    def backend(self) -> Backend:
        """The backend of the first job."""
        return locate.backend_of(self._first())

    @property
    def unlaunched(self) -> list[int]:
        """None: a handle is of a job that was submitted."""
        return []

    @property
    def active(self) -> frozenset[int]:
        """The jobs that have not ended."""
        return frozenset(index for index, job in enumerate(self._jobs) if job is not None and index not in self._found)

    def status(self, index: int) -> JobStatus | None:
        """Return the status of a job as it was seen last, or None where there is none."""
        return self._statuses.get(index)

    def end(self, index: int) -> End | None:
        """Return how a job ended, or None."""
        return self._found.get(index)

    def may_launch(self, index: int) -> bool:  # noqa: ARG002 - as the board has it
        """Say no: nothing follows."""
        return False

    def is_final(self, index: int) -> bool:
        """Say whether a job has ended: nothing follows it."""
        return index in self._found

    def unseen(self) -> list[int]:
        """Return nothing: whoever has a handle has a job."""
        return []

    def record(self, index: int) -> JobRecord | None:
        """Return the handle that was given."""
        return self._jobs[index]

    def note_end(self, index: int, attempt: int, word: str) -> None:
        """Do nothing: indexes are those of the jobs' own batches here, and the next look finds it."""

    def forget_kept(self) -> None:
        """Do nothing: nothing was kept for them."""

    def refresh(self, *, whole: bool = False) -> None:  # noqa: ARG002 - as the board has it
        """Look at every job."""
        present = [(index, job) for index, job in enumerate(self._jobs) if job is not None]
        for (index, _), seen in zip(present, observe_many([job for _, job in present]), strict=True):
            self._statuses[index] = seen.status
            if seen.status.is_final and index not in self._found:
                at = seen.outcome.ended if seen.outcome is not None else None
                self._found[index] = End(_word_of(seen), at or time.time())
                self.ended.append(index)

    def wait(self, seconds: float, *, read: int | None = None) -> None:  # noqa: ARG002 - as the board has it
        """Wait for a moment."""
        first = next(iter(self.active), None)
        job = self._jobs[first] if first is not None else None
        if job is None:
            time.sleep(min(seconds, _PAUSE_SECONDS))
        else:
            locate.backend_of(job).watch(job.job_id, seconds=min(seconds, _PAUSE_SECONDS * 4))

    def _first(self) -> JobHandle:
        return next(job for job in self._jobs if job is not None)


def _word_of(seen: Snapshot) -> str:
    """Say how a job ended; of one that was collected, how the history says it did."""
    if seen.status in _WORDS:
        return _WORDS[seen.status]
    told = str((seen.past or {}).get("status", "")).lower()
    if history.is_collected(seen.past) and told in _WORDS.values():
        return told
    return outcomes.CANCELLED if seen.past is None else REMOVED


if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from kinetic._stores.protocol import Store

    R = TypeVar("R", default=Any)  # as in JobHandle
else:
    from typing import TypeVar

    R = TypeVar("R")


@dataclass
class Poll:
    """How a reattached batch looks for inputs that another process still submits.

    Attributes:
        interval: Seconds between two looks at who submits.
        limit: Seconds after which it makes do with what was submitted; None never does.
        attached: Whether this handle does not submit anything itself.
        needs_driver: Whether it makes do with what was submitted as soon as nobody drives the batch any more.
    """

    interval: float = 10.0
    limit: float | None = None
    attached: bool = False
    needs_driver: bool = False


@dataclass
class Batch(Generic[R]):
    """What is known of a batch, by any thread of this process; ``BatchHandle`` tells what users may read of it."""

    group_id: str
    name: str | None
    tags: dict[str, str]
    jobs: list[JobHandle[R] | None]
    _bucket_name: str = ""
    _project: str = ""
    _submission_complete: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    _submission_error: BaseException | None = field(default=None, repr=False, compare=False)
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)
    _submission_errors: dict[int, Exception] = field(default_factory=dict, repr=False, compare=False)
    _cached_failures: list[JobHandle[R]] | None = field(default=None, repr=False, compare=False)
    _tracker: BatchTracker | AdHocTracker | None = field(default=None, repr=False, compare=False)
    _table: Table | None = field(default=None, repr=False, compare=False)
    _poll: Poll = field(default_factory=Poll, repr=False, compare=False)
    _store: str = field(default="", init=False, repr=False, compare=False)

    def _refreshed(self) -> BatchTracker | AdHocTracker:
        """Look at everything now, and bring ``jobs`` up to date."""
        tracker = self._get_tracker()
        tracker.refresh(whole=True)
        self._update_jobs()
        return tracker

    def _get_tracker(self) -> BatchTracker | AdHocTracker:
        """Return what shows how the children stand; made here for a handle that somebody built by hand."""
        with self._lock:
            if self._tracker is None and self._store:
                reconnect(self, self._store)
            if self._tracker is None:
                self._tracker = AdHocTracker(self.jobs)
                self._submission_complete.set()
            return self._tracker

    def _update_jobs(self, indexes: Iterable[int] | None = None) -> None:
        """Put handles into ``jobs`` for what the board has seen submitted, of all inputs or of some.

        One that is there keeps its value.
        """
        tracker = self._get_tracker()
        with self._lock:
            for index in range(len(tracker.attempts)) if indexes is None else indexes:
                job, attempt = self.jobs[index], tracker.attempts[index]
                if attempt >= 0 and (job is None or (job.group_attempt or 0) != attempt):
                    found = tracker.record(index)
                    self.jobs[index] = None if found is None else handle_of(found)

    def _refused(self) -> dict[int, Exception]:
        """Return why inputs could not be submitted, by index. A copy."""
        with self._lock:
            return dict(self._submission_errors)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what is known, and where the batch lies; where it is opened, it only watches."""
        names = ("group_id", "name", "tags", "jobs", "_bucket_name", "_project", "_submission_errors")
        store = self._tracker.store.url if self._table is not None and self._tracker is not None else self._store
        return {name: getattr(self, name) for name in names} | {"_store": store}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become what was pickled; the batch is looked for when it is needed."""
        self.__init__(state["group_id"], state["name"], state["tags"], state["jobs"])  # type: ignore[misc] # a dataclass
        self.__dict__.update(state)


def reconnect(batch: Batch, store: str) -> None:
    """Give a handle that was unpickled its batch; one that was removed meanwhile has only its jobs."""
    opened = open_store(store)
    with contextlib.suppress(BatchNotFoundError):
        connect(batch, load_group(opened, batch.group_id), opened)
        batch._poll = Poll(attached=True)


def connect(batch: Batch, group: Group, store: Store) -> None:
    """Give a handle what shows how its children stand, and what their inputs were."""
    batch._tracker = BatchTracker(group, store, locate.backend_for(group.handle))
    table = _read_table(group, store)
    batch._table = table
    if table is not None and not batch._submission_errors:
        refused = {index: item.error for index, item in enumerate(table.inputs) if item.arguments is None}
        batch._submission_errors = {index: OptionError(text) for index, text in refused.items()}


def load_group(store: Store, group_id: str) -> Group:
    """Read and verify the manifest of a batch.

    Raises:
        BatchNotFoundError: There is none.
        KineticError: It is damaged, or cannot be verified here.
    """
    group = read_manifest(store, group_id)
    if isinstance(group, record.Untrusted):
        raise group.error()
    return group


def read_manifest(store: Store, group_id: str) -> Group | record.Untrusted:
    """Read the manifest of a batch, or what can be shown of one that cannot be verified here."""
    try:
        group = record.open_claimed(MANIFEST, store, keys.group_manifest(group_id), group_id)
    except KeyMissingError:
        raise BatchNotFoundError(
            f"no batch {group_id} was found",
            why=f"looked in {store.url}; a batch that was cleaned up cannot be attached any more",
            next="kinetic batch list",
        ) from None
    if not isinstance(group, record.Untrusted) and group.group_id != group_id:
        raise IntegrityError(f"the manifest of {group_id} is about {group.group_id}")
    return group


def _read_table(group: Group, store: Store) -> Table | None:
    with contextlib.suppress(KineticError):
        return read_table(store, group)
    return None

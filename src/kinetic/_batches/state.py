"""A batch as plain values, which ``BatchHandle`` gives functions to; and in which state each of its inputs is."""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import field
from typing import TYPE_CHECKING, Any, Generic

from kinetic import errors
from kinetic._batches.tracker import BatchTracker, Tracker
from kinetic._jobs import locate
from kinetic._jobs.handle import JobHandle, R, handle_of
from kinetic._jobs.locate import Untrusted
from kinetic._stores import open_store
from kinetic._wire import dataclass, outcomes
from kinetic._wire.input_table import Table, read_table
from kinetic._wire.order import Predecessor
from kinetic._wire.records import Group
from kinetic.errors import (
    BatchNotFoundError,
    CallableError,
    IntegrityError,
    KeyMissingError,
    KineticError,
    OptionError,
    PackingError,
)
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._stores.protocol import Store

SUCCEEDED, FAILED, CANCELLED, REMOVED = outcomes.SUCCEEDED, outcomes.FAILED, outcomes.CANCELLED, outcomes.REMOVED
RUNNING, WAITING, AGAIN = "running", "waiting", "to be tried again"
MISSING, REFUSED = "not submitted", "refused"
# In the order in which they are shown: how it goes first, then what is still to come.
STATES = (SUCCEEDED, FAILED, CANCELLED, REMOVED, RUNNING, AGAIN, WAITING, REFUSED, MISSING)
ENDED = frozenset({SUCCEEDED, FAILED, CANCELLED, REMOVED, REFUSED})


@dataclass
class Poll:
    """How a reattached batch checks for inputs that another process still submits."""

    interval: float = 10.0  # seconds between two checks who submits
    limit: float | None = None  # seconds after which only what was submitted is waited for
    attached: bool = False  # whether this handle does not submit anything itself
    needs_driver: bool = False  # whether only what was submitted is waited for once no process drives the batch


@dataclass
class Batch(Generic[R]):
    """What is known of a batch, by any thread of this process; ``BatchHandle`` documents what users may read."""

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
    _tracker: Tracker | None = field(default=None, repr=False, compare=False)
    _table: Table | None = field(default=None, repr=False, compare=False)
    _poll: Poll = field(default_factory=Poll, repr=False, compare=False)
    _store: str = field(default="", init=False, repr=False, compare=False)
    _submission_begun: threading.Event = field(default_factory=threading.Event, init=False, repr=False, compare=False)

    def _refreshed(self) -> Tracker:
        """Observe everything now, and bring ``jobs`` up to date."""
        tracker = self._get_tracker()
        tracker.refresh(whole=True)
        self._update_jobs()
        return tracker

    def _followed(self) -> tuple[Predecessor, dict[str, Any]]:
        """Return what a batch is to a job that follows it, and where it is."""
        tracker = self._get_tracker()
        if not isinstance(tracker, BatchTracker):
            raise OptionError(
                f"{self.group_id} cannot be followed",
                why="it was put together from jobs, and has no manifest",
                next="after=batch.jobs",
            )
        if self._submission_errors:
            raise OptionError(
                f"{self.group_id} cannot be followed",
                why=f"{len(self._submission_errors)} of its inputs could not be submitted, so it never succeeds",
                next=f"kinetic batch status {self.group_id}     or follow the jobs that matter: after=batch.jobs[:3]",
            )
        group = tracker.group
        tracker.control.read()  # another process may have tried inputs again
        about = Predecessor(
            group.group_id,
            group.submit_fn_name,
            group.group_id,
            inputs=group.total_expected,
            attempts=1 + group.settings.retries,
            retried=tracker.control.most_allowed,
            slug=group.slug,
            created=group.created,
        )
        return about, {**group.handle, "key_id": group.key_id, "output_dir": f"{group.outputs}/{group.group_id}"}

    def _get_tracker(self) -> Tracker:
        """Return the tracker; it is made here for a handle that was built by hand or unpickled."""
        with self._lock:
            if self._tracker is None and self._store:
                store = open_store(self._store)
                with contextlib.suppress(BatchNotFoundError):  # removed meanwhile: only its jobs are left
                    connect(self, load_group(store, self.group_id), store)
                    self._poll = Poll(attached=True)
            if self._tracker is None:
                self._tracker = Tracker(self.jobs)
                self._submission_complete.set()
            return self._tracker

    def _update_jobs(self, indexes: Iterable[int] | None = None) -> None:
        """Put handles of what was submitted into ``jobs``, of all inputs or of some; an up-to-date handle stays."""
        tracker = self._get_tracker()
        with self._lock:
            for index in range(len(tracker.attempts)) if indexes is None else indexes:
                job, attempt = self.jobs[index], tracker.attempts[index]
                if attempt >= 0 and (job is None or (job.group_attempt or 0) != attempt):
                    found = tracker.record(index)
                    self.jobs[index] = None if found is None else handle_of(found)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what is known, and the store of the batch; the copy only watches."""
        kept = ("group_id", "name", "tags", "jobs", "_bucket_name", "_project", "_submission_errors")
        store = self._tracker.store.url if self._table is not None and self._tracker is not None else self._store
        return {name: getattr(self, name) for name in kept} | {"_store": store}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Become what was pickled; the batch is opened when it is needed."""
        self.__init__(state["group_id"], state["name"], state["tags"], state["jobs"])  # type: ignore[misc] # a dataclass
        self.__dict__.update(state)


def tracker_of(batch: Batch) -> Tracker:
    """Return what follows the jobs of a batch, as it was at the last refresh."""
    return batch._get_tracker()


def refreshed(batch: Batch) -> Tracker:
    """Observe all jobs of a batch now, and return what follows them."""
    return batch._refreshed()


def require_driver(batch: Batch) -> None:
    """Let waiting end with what was submitted once no process drives the batch."""
    batch._poll.needs_driver = True


def watch_from_here(batch: Batch) -> None:
    """Make of a handle that another thread submits one that only watches; that thread may hold any lock of it."""
    batch._store = batch._tracker.store.url if batch._tracker is not None else batch._store
    batch._tracker, batch._lock = None, threading.Lock()


def connect(batch: Batch, group: Group, store: Store) -> None:
    """Give a handle the tracker of its batch, and what its inputs were."""
    batch._tracker = BatchTracker(group, store, locate.backend_for(group.handle))
    with contextlib.suppress(KineticError):
        batch._table = read_table(store, group)
    if batch._table is not None and not batch._submission_errors:
        refused = {index: item.error for index, item in enumerate(batch._table.inputs) if item.arguments is None}
        batch._submission_errors = {index: _refusal(text) for index, text in refused.items()}


def _refusal(text: str) -> KineticError:
    """Make the error of an input that could not be submitted from what is stored: its class and its ``str()``."""
    kind, _, message = text.partition(": ")
    made = getattr(errors, kind, None)
    parts = re.fullmatch(r"(.*?) \[([a-z-]+)\](?:\nwhy:   (.*?))?(?:\nnext:  (.*))?", message, re.DOTALL)
    if parts is None or not isinstance(made, type) or not issubclass(made, CallableError | OptionError | PackingError):
        return OptionError(text)
    return made(parts[1], code=parts[2], why=parts[3], next=parts[4])


def load_group(store: Store, group_id: str) -> Group:
    """Read and verify the manifest of a batch."""
    return locate.believed(read_manifest(store, group_id))


def read_manifest(store: Store, group_id: str) -> Group | Untrusted:
    """Read the manifest of a batch, or what can be shown of one that cannot be verified here."""
    try:
        group = locate.read_group(store, group_id)
    except KeyMissingError:
        raise BatchNotFoundError(
            f"no batch {group_id} was found",
            why=f"looked in {store.url}; a batch that was cleaned up can no longer be attached",
            next="kinetic batch list",
        ) from None
    if not isinstance(group, Untrusted) and group.group_id != group_id:
        raise IntegrityError(f"the manifest of {group_id} is about {group.group_id}")
    return group


def state_of(tracker: Tracker, index: int, refused: Collection[int] = ()) -> str:
    """Return in which state one input was at the last refresh; ``refused`` could not be submitted."""
    if tracker.attempts[index] < 0:
        return REFUSED if index in refused else MISSING
    end = tracker.end(index)
    if end is None:
        return RUNNING if tracker.status(index) is JobStatus.RUNNING else WAITING
    return AGAIN if end.word == FAILED and not tracker.is_final(index) else end.word


def count_states(tracker: Tracker, refused: Collection[int] = ()) -> Counter[str]:
    """Count the inputs by their states: one pass, 6 ms for 10,000."""
    return Counter(state_of(tracker, index, refused) for index in range(len(tracker.attempts)))


def summary_text(counts: Counter[str], *, of: Iterable[str] = STATES) -> str:
    """Return counts in a line, e.g. "8 succeeded, 1 failed, 2 running"; "" when all of them are 0."""
    return ", ".join(f"{counts[state]} {state}" for state in of if counts[state])

"""A batch as everything that works on it sees it: what it is, how its children stand, and who submits the rest.

``BatchHandle`` is one that users call; nothing here knows the handle.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic

from kinetic._batches.state import AdHocTracker, BatchTracker
from kinetic._jobs import locate, trust
from kinetic._jobs.handle import JobHandle, handle_of
from kinetic._stores import open_store
from kinetic._wire import keys
from kinetic._wire.records import MANIFEST, Group, Table, read_table
from kinetic.errors import BatchNotFoundError, IntegrityError, KeyMissingError, KineticError, OptionError

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
        tracker = self._seeing()
        tracker.refresh(whole=True)
        self._take_over_jobs()
        return tracker

    def _seeing(self) -> BatchTracker | AdHocTracker:
        """Return what shows how the children stand; made here for a handle that somebody built by hand."""
        with self._lock:
            if self._tracker is None and self._store:
                find_again(self, self._store)
            if self._tracker is None:
                self._tracker = AdHocTracker(self.jobs)
                self._submission_complete.set()
            return self._tracker

    def _take_over_jobs(self, indexes: Iterable[int] | None = None) -> None:
        """Put handles into ``jobs`` for what the board has seen submitted, of all inputs or of some.

        One that is there keeps its value.
        """
        tracker = self._seeing()
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


def find_again(batch: Batch, store: str) -> None:
    """Give a handle that was unpickled its batch; one that was removed meanwhile has only its jobs."""
    opened = open_store(store)
    with contextlib.suppress(BatchNotFoundError):
        equip(batch, load(opened, batch.group_id), opened)
        batch._poll = Poll(attached=True)


def equip(batch: Batch, group: Group, store: Store) -> None:
    """Give a handle what shows how its children stand, and what their inputs were."""
    batch._tracker = BatchTracker(group, store, locate.backend_for(group.handle))
    table = _table(group, store)
    batch._table = table
    if table is not None and not batch._submission_errors:
        refused = {index: item.error for index, item in enumerate(table.inputs) if item.arguments is None}
        batch._submission_errors = {index: OptionError(text) for index, text in refused.items()}


def load(store: Store, group_id: str) -> Group:
    """Read and verify the manifest of a batch.

    Raises:
        BatchNotFoundError: There is none.
        KineticError: It is damaged, or cannot be verified here.
    """
    group = read_manifest(store, group_id)
    if isinstance(group, trust.Untrusted):
        raise group.error()
    return group


def read_manifest(store: Store, group_id: str) -> Group | trust.Untrusted:
    """Read the manifest of a batch, or what can be shown of one that cannot be verified here."""
    try:
        group = trust.open_claimed(MANIFEST, store, keys.group_manifest(group_id), group_id)
    except KeyMissingError:
        raise BatchNotFoundError(
            f"no batch {group_id} was found",
            why=f"looked in {store.url}; a batch that was cleaned up cannot be attached any more",
            next="kinetic batch list",
        ) from None
    if not isinstance(group, trust.Untrusted) and group.group_id != group_id:
        raise IntegrityError(f"the manifest of {group_id} is about {group.group_id}")
    return group


def _table(group: Group, store: Store) -> Table | None:
    with contextlib.suppress(KineticError):
        return read_table(store, group)
    return None

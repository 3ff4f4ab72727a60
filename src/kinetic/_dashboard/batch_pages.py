"""What the pages of batches show, as JSON: the list of all, one with a row for each input, and its values."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING, Any

from kinetic._batches import batch_handle, report, state
from kinetic._batches.report import FoundBatch
from kinetic._dashboard import job_pages
from kinetic._dashboard.job_feed import problem_page
from kinetic._jobs import locate
from kinetic._stores.parallel import in_parallel
from kinetic._wire import NamedTuple, keys
from kinetic.errors import BatchNotFoundError, KineticError, LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kinetic._batches.report import BatchState
    from kinetic._dashboard.job_feed import JobFeed
    from kinetic._dashboard.places import Place
    from kinetic._jobs.handle import JobHandle

Page = dict[str, Any]
_MOST_VALUES = 2000  # of a batch, that one page shows
_MOST_FIELDS = 50  # of a value that has many: the table shows fewer
_LONGEST_VALUE = 1000  # characters of one value in the table; the page of its job has more
_FRESH_SECONDS = 5.0  # how long the state of a batch is shown again while none of its jobs changed
_BEGIN_SECONDS = 1.5  # a retry that fails says so within this time


class _Seen(NamedTuple):
    page: Page
    version: int  # of the feed
    at: float


class BatchPages:
    """Reads batches, and keeps what cannot have changed: the feed knows whether a job of a batch did."""

    def __init__(self, feed: JobFeed) -> None:
        self._feed = feed
        self._found: dict[str, tuple[Place, FoundBatch]] = {}
        self._seen: dict[str, _Seen] = {}
        self._listed: dict[str, list[str]] = {}  # the batches of each place, by its name, when it was listed last
        self._values: dict[str, Page] = {}
        self._lock = threading.Lock()

    def list_page(self) -> Page:
        """Return the batches of all places, newest first, as ``kinetic batch list --json`` has them."""
        away = self._feed.away()
        problems: list[Page] = [*away.values()]
        # Their stores would be waited for, for minutes; these batches are shown as they were seen last.
        known = [name for place in away for name in self._listed.get(place, ())]
        kept = [self._seen[name].page for name in known if name in self._seen]

        def read(name: str, place: Place) -> Page | None:
            try:
                return self._page(name, place)
            except BatchNotFoundError:  # removed this moment
                pass
            except KineticError as error:  # unverified or damaged: the others are shown
                problems.append(problem_page(place.name, error))
            return None

        reads: list[tuple[str, Callable[[], Page | None]]] = []
        for place in [each for each in self._feed.places if each.name not in away]:
            try:
                names = self._listed[place.name] = batch_handle.ids(place.store)
            except KineticError as error:
                problems.append(problem_page(place.name, error))
            else:
                reads += [(place.store.url, functools.partial(read, name, place)) for name in names]
        pages = [*kept, *(page for page in locate.in_order(reads) if page is not None)]
        pages.sort(key=lambda page: (page["created_at"], page["group_id"]), reverse=True)
        return {"batches": pages, "problems": problems}

    def _page(self, group_id: str, place: Place) -> Page:
        version, now = self._feed.version_of(group_id), time.monotonic()
        seen = self._seen.get(group_id)
        if seen is not None and seen.version == version and (seen.page["is_over"] or now - seen.at < _FRESH_SECONDS):
            return seen.page
        batch = self._batch(group_id, place)
        current = report.batch_state(batch)
        page = _page_of(batch, current, place)
        self._seen[group_id] = _Seen(page, version, now)
        return page

    def _batch(self, group_id: str, place: Place) -> FoundBatch:
        with self._lock:
            known = self._found.get(group_id)
        if known is not None:
            return known[1]
        store = place.store
        group = state.load_group(store, group_id)
        batch = FoundBatch(group, batch_handle.attached_handle(group, store))
        with self._lock:
            return self._found.setdefault(group_id, (place, batch))[1]

    def find(self, group_id: str) -> tuple[Place, FoundBatch]:
        """Return a batch and its place.

        Raises:
            BatchNotFoundError: No place has a batch with this id.
        """
        keys.check_group_id(group_id)
        last: KineticError | None = None
        for place in self._feed.places:
            try:
                batch = self._batch(group_id, place)
            except KineticError as error:
                last = error if last is None or not isinstance(error, BatchNotFoundError) else last
            else:
                return self._found[group_id][0], batch
        raise last or BatchNotFoundError(f"no batch {group_id} was found")

    def batch_page(self, group_id: str) -> Page:
        """Return one batch and a row for each input, as ``kinetic batch status --json`` has them."""
        place, batch = self.find(group_id)
        current = report.batch_state(batch)
        rows, _ = report.rows_of(batch, only_failed=False, limit=None)
        return {"batch": _page_of(batch, current, place), "jobs": [report.row_page(batch, row) for row in rows]}

    def values_page(self, group_id: str) -> Page:
        """Return the values of inputs that succeeded; each is verified with this user's own key before it is opened."""
        place, batch = self.find(group_id)
        tracker = state.refreshed(batch.handle)
        succeeded = [
            (index, job)
            for index, job in enumerate(batch.handle.jobs)
            if job is not None and state.state_of(tracker, index) == state.SUCCEEDED
        ]
        shown, left_out = succeeded[:_MOST_VALUES], len(succeeded[_MOST_VALUES:])
        new = [functools.partial(self._value, job) for _, job in shown if job.job_id not in self._values]
        failed: dict[str, Page] = {}  # read again with the next page: the store may have been away
        for job_id, value in in_parallel(place.store, new):
            if isinstance(value, KineticError):
                failed[job_id] = {"left_out": value.what}
            elif value is not None:
                self._values[job_id] = value
        rows = [
            {"index": index, "job_id": job.job_id, **page}
            for index, job in shown
            if (page := self._values.get(job.job_id) or failed.get(job.job_id))
        ]
        return {"group_id": group_id, "values": rows, "left_out": left_out}

    def _value(self, job: JobHandle) -> tuple[str, Page | KineticError | None]:
        """Return a job's id, and its value as it is shown, or why it cannot be; None where it was collected."""
        try:
            outcome = job_pages.verified_outcome(job)
            if outcome is None or not outcome.succeeded:
                return job.job_id, None
            return job.job_id, _brief(job_pages.value_of(locate.store_of(job), outcome))
        except KineticError as error:
            return job.job_id, error

    def cancel(self, group_id: str) -> Page:
        """Cancel a batch; return it as it is then."""
        place, batch = self.find(group_id)
        batch.handle.cancel()
        return {"batch": _page_of(batch, report.batch_state(batch), place)}

    def retry_failed(self, group_id: str) -> Page:
        """Run the failed inputs of a batch again, in a process that outlives the dashboard.

        Raises:
            LaunchError: It could not begin, for example because another process drives this batch.
        """
        place, _ = self.find(group_id)
        command = [sys.executable, "-P", "-m", "kinetic", "batch", "resume", group_id, "--failed"]
        with tempfile.TemporaryFile() as told:
            process = subprocess.Popen(
                command,
                env=dict(place.environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=told,
                start_new_session=True,
            )
            try:
                code = process.wait(_BEGIN_SECONDS)
            except subprocess.TimeoutExpired:
                threading.Thread(target=process.wait, name="kinetic-retry", daemon=True).start()
                return {"started": True}
            told.seek(0)
            words = told.read(8192).decode(errors="replace").strip()
        if code != 0:
            raise LaunchError(
                f"the failed inputs of {group_id} were not run again",
                why=words,
                next=f"kinetic batch resume {group_id} --failed",
            )
        return {"started": True}


def _brief(page: Page) -> Page:
    """Return a value that fits into a cell: of a long one its plain fields, which are columns, else its beginning."""
    value = page.get("value")
    text = page.get("repr") or json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONGEST_VALUE:
        return page
    fields = value.items() if isinstance(value, dict) else ()
    plain = dict([(name, _cut(each)) for name, each in fields if isinstance(each, str | int | float)][:_MOST_FIELDS])
    about = {name: each for name, each in page.items() if name not in {"value", "repr"}}
    return {**about, "value": plain} if plain else {**about, "repr": _cut(value if isinstance(value, str) else text)}


def _cut(value: str | float) -> str | float:
    return f"{value[:_LONGEST_VALUE]}…" if isinstance(value, str) and len(value) > _LONGEST_VALUE else value


def _page_of(batch: FoundBatch, current: BatchState, place: Place) -> Page:
    return {**report.batch_page(batch, current), "place": place.name, "is_over": current.is_over}

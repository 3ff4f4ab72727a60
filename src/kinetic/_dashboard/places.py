"""The places whose jobs are shown, and what is known of the jobs of each; one place that is away hides no other."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kinetic._backends import registry
from kinetic._config import profiles
from kinetic._config import target as settings
from kinetic._jobs import find, job_list, locate
from kinetic._jobs import status as job_status
from kinetic._stores import open_store
from kinetic._wire import NamedTuple, folders, keys, python_runtime
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kinetic._config.target import Target
    from kinetic._jobs.handle import JobHandle
    from kinetic._stores.protocol import Store

Page = dict[str, Any]
_MOST_WATCHED = (
    16  # active jobs of a place whose changes are waited for; of more, the others are seen with the next look
)
_WATCH_SECONDS = 10.0
_LEAST_SECONDS = 0.2  # between two waits for a job that cannot be watched now
_LOOK_SECONDS, _LOOK_SECONDS_AWAY = 1.0, 5.0  # between two looks without news: at this machine, and at a cluster
# Between two listings: of a folder, which says that it changed, and of a bucket, which does not.
_LIST_SECONDS, _LIST_SECONDS_AWAY = 60.0, 10.0
_LEISURE = 5.0  # a listing that took 1 s is not repeated for 5, however many jobs are submitted


class Known(NamedTuple):
    """A job as it was seen last."""

    handle: JobHandle | None  # None of a removed job
    page: Page
    is_final: bool


class Changes(NamedTuple):
    """What a look found: pages that are new or differ, and ids of jobs that are not listed any more."""

    changed: list[Page]
    gone: list[str]


class Place:
    """One store and the backend of its jobs. One thread calls ``refresh`` and ``wait``; any may read ``jobs``.

    Args:
        name: As the user calls it: a profile, or "this machine".
        target: What it resolves to.
        environ: With which a command would come to the same target.
    """

    def __init__(self, name: str, target: Target, environ: Mapping[str, str]) -> None:
        self.name, self.target, self.environ = name, target, environ
        self.is_here = registry.is_here(target.backend.value)
        self.jobs: dict[str, Known] = {}  # replaced as a whole, never changed
        self.order: list[str] = []  # newest first
        self._news = threading.Event()
        self._ended = False
        self._watched: set[str] = set()
        self._stamp: tuple[int, ...] | None = None
        self._listed_at, self._list_cost = float("-inf"), 0.0

    @property
    def store(self) -> Store:
        """The store of its jobs."""
        return open_store(self.target.store.value)

    def refresh(self) -> Changes:
        """Look at the jobs that may have changed, and at the list of all of them if that may have.

        Raises:
            KineticError: The place cannot be seen now; what was known of it stays.
        """
        stamp, now = self._stamp_of_the_list(), time.monotonic()
        since = now - self._listed_at
        if since > (_LIST_SECONDS if stamp else _LIST_SECONDS_AWAY) or (
            stamp != self._stamp and since > _LEISURE * self._list_cost
        ):
            found, order = self._listed()
            self._stamp, self._listed_at, self._list_cost = stamp, now, time.monotonic() - now
        else:
            found, order = dict(self.jobs), self.order
            active = [known.handle for known in found.values() if not known.is_final and known.handle is not None]
            self._look(active, found)
        before, self.jobs, self.order = self.jobs, found, order
        changed = [
            known.page
            for job_id, known in found.items()
            if (seen := before.get(job_id)) is not known  # of thousands, to compare pages takes a tenth of each second
            and (seen is None or _compared(known.page) != _compared(seen.page))
        ]
        self._watch([known.handle for known in found.values() if not known.is_final and known.handle is not None])
        return Changes(changed, [job_id for job_id in before if job_id not in found])

    def _listed(self) -> tuple[dict[str, Known], list[str]]:
        """List all jobs; what has ended is not looked at again."""
        live, past = find.live_at(self.target, alone=True), job_list.history_rows(self.store)
        found: dict[str, Known] = {}
        unknown: list[JobHandle] = []
        for handle in live:
            known = self.jobs.get(handle.job_id)
            if known is not None and known.handle is not None and not known.page["removed_at"]:
                found[handle.job_id] = known
            if known is None or not known.is_final or known.page["removed_at"]:
                unknown.append(handle)
        self._look(unknown, found)
        for row in past:
            if row.job_id not in found:
                found[row.job_id] = Known(None, self._shown(row.to_json()), is_final=True)
        return found, [job.job_id for job in job_list.newest_first(live, past) if job.job_id in found]

    def handle_of(self, job_id: str) -> JobHandle | None:
        """Return the handle of a job that is shown; None of a removed one whose page does not say enough.

        Of a cancelled job the list shows its page of the history, while its record and its log are in the store.
        """
        known = self.jobs.get(job_id)
        if known is None or known.handle is not None:
            return known.handle if known is not None else None
        with contextlib.suppress(KineticError):
            return find.handle_of(locate.read_job(self.store, job_id))
        page = locate.read_page(self.store, job_id)
        job = find.record_in_history(self.store, page) if page is not None else None
        return find.handle_of(job) if job is not None else None

    def _look(self, handles: list[JobHandle], found: dict[str, Known]) -> None:
        """Look at jobs; one that cannot be judged now stays as it was seen last."""
        for handle, seen in zip(handles, job_status.observe_many(handles, from_index=True), strict=True):
            if seen.error is not None and handle.job_id in found:
                continue
            page = self._shown(job_status.history_of(handle, seen))
            found[handle.job_id] = Known(handle, page, is_final=seen.error is None and seen.status.is_final)

    def _shown(self, page: Page) -> Page:
        return {"progress": None, **page, "place": self.name}

    def _stamp_of_the_list(self) -> tuple[int, ...]:
        """Return what changes whenever a job is added or removed; () where the store cannot say it.

        A time that a further job may leave as it is counts as another one each time.
        """
        local, found, now = self.store.local, [], time.time_ns()
        for folder in (local.root, local.root / keys.HISTORY) if local is not None else ():
            with contextlib.suppress(FileNotFoundError):
                changed = os.stat(folder).st_mtime_ns
                found.append(changed if folders.is_settled(changed, now) else now)
        return tuple(found)

    # ------------------------------------------------------------------------------------------------------- waiting

    def wait(self) -> None:
        """Wait until there may be something new."""
        self._news.wait(_LOOK_SECONDS if self.is_here else _LOOK_SECONDS_AWAY)
        self._news.clear()

    def notify(self) -> None:
        """Let the next look begin now."""
        self._news.set()

    def end(self) -> None:
        """Let the threads that watch jobs end."""
        self._ended = True
        self._watched = set()
        self._news.set()

    def _watch(self, active: list[JobHandle]) -> None:
        """Wait for changes of some active jobs, each in a thread of its own; backends report them."""
        wanted = {handle.job_id: handle for handle in active[:_MOST_WATCHED] if locate.can_be_seen(handle)}
        new = wanted.keys() - self._watched
        self._watched = set() if self._ended else set(wanted)
        for job_id in new:
            python_runtime.start_thread(functools.partial(self._wait_for, wanted[job_id]), "kinetic-watch")

    def _wait_for(self, handle: JobHandle) -> None:
        pause = threading.Event()
        with contextlib.suppress(KineticError, OSError):  # the next look says what is wrong
            backend = locate.backend_of(handle)
            try:
                while handle.job_id in self._watched:
                    if backend.watch(handle.job_id, seconds=_WATCH_SECONDS):
                        self._news.set()
                    pause.wait(_LEAST_SECONDS)
            finally:
                backend.stop_watching(handle.job_id)


def _compared(page: Page) -> Page:
    """Return what of a page counts as a change: how long a job runs does not."""
    return {**page, "duration_seconds": None} if page["status"] == "RUNNING" else page


def find_places(environ: Mapping[str, str]) -> tuple[list[Place], list[KineticError]]:
    """Return this machine, the current target and that of each profile, each once; and why others cannot be used."""
    found: dict[tuple[str, ...], Place] = {}
    problems: list[KineticError] = []
    for name, target, own in _targets(environ, problems):
        fields = (target.store, target.backend, target.project, target.cluster, target.namespace, target.context)
        key = tuple(field.value for field in fields)
        if key not in found:
            found[key] = Place(name, target, own)
    return [*found.values()], problems


def _targets(
    environ: Mapping[str, str], problems: list[KineticError]
) -> Iterator[tuple[str, Target, Mapping[str, str]]]:
    here = {**environ, "KINETIC_BACKEND": registry.HERE.name}
    yield "this machine", settings.resolve(environ=here), here
    try:
        known = profiles.load(environ)
        current = settings.resolve(environ=environ)
        yield (current.profile.name if current.profile else current.backend.value), current, environ
    except KineticError as error:
        problems.append(error)
        return
    for name in known.names:
        own = {**environ, "KINETIC_PROFILE": name}
        try:
            yield name, settings.resolve(environ=own), own
        except KineticError as error:
            problems.append(error)

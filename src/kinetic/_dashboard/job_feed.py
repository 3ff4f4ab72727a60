"""All jobs of all places, kept up to date while a page is open, and what changed for its listeners."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kinetic._output.format import SCHEMA_VERSION, plain
from kinetic._wire import python_runtime
from kinetic.errors import JobNotFoundError, KineticError, StoreUnreachableError

if TYPE_CHECKING:
    from kinetic._dashboard.places import Page, Place
    from kinetic._jobs.handle import JobHandle

Listener = Callable[[dict[str, Any]], object]
_FIRST_LOOK_SECONDS = 10.0  # for a job that may be in a place that was not seen yet
_AGAIN_SECONDS = 2.0  # after a look that failed


class JobFeed:
    """The jobs of places. A thread for each looks at it, so one that does not answer delays no other."""

    def __init__(self, places: Sequence[Place], problems: Sequence[KineticError] = ()) -> None:
        self.places = places
        # Known before the first look, such as a profile that cannot be used.
        self._lasting = [problem_page("settings", error) for error in problems]
        self._problems: dict[str, Page] = {}
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()
        self._texts: dict[str, str] = {}
        self._groups: dict[str, int] = {}  # the version in which a job of a batch changed last
        self._first_looks = {place.name: threading.Event() for place in places}
        self._wanted, self._ended = threading.Event(), threading.Event()
        self.version = 0
        self._document: tuple[int, bytes] | None = None  # of a version; whatever is in it changes the version

    def start(self) -> None:
        """Begin to look."""
        self._wanted.set()
        for place in self.places:
            python_runtime.start_thread(functools.partial(self._follow, place), f"kinetic-{place.name}")

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._wanted.set()
        for place in self.places:
            place.end()

    def subscribe(self, listener: Listener) -> None:
        """Call a listener with each change from now on; looking begins again if it had ended."""
        with self._lock:
            self._listeners.add(listener)
            self._wanted.set()
        for place in self.places:
            place.notify()

    def unsubscribe(self, listener: Listener) -> None:
        """Forget a listener; without any, nothing is looked at."""
        with self._lock:
            self._listeners.discard(listener)
            if not self._listeners and not self._ended.is_set():
                self._wanted.clear()

    def document(self, *, wait_seconds: float) -> bytes:
        """Return all jobs, newest first, as ``kinetic jobs list --all --json`` has them.

        The first look at each place is waited for so long. A place that does not answer comes later.
        """
        with self._lock:
            self._wanted.set()
        for looked in self._first_looks.values():
            looked.wait(wait_seconds)
        with self._lock:
            if self._document and self._document[0] == self.version:
                return self._document[1]
            # A place changes its jobs and their order one after the other.
            each = ((jobs, job_id) for place in self.places for jobs in (place.jobs,) for job_id in place.order)
            ids = [(jobs[job_id].page["created_at"], job_id) for jobs, job_id in each if job_id in jobs]
            if len(self.places) > 1:  # each is sorted already, and equal ones stay as they are
                ids.sort(key=lambda pair: pair[0], reverse=True)
            jobs = ",".join(text for _, job_id in ids if (text := self._texts.get(job_id)) is not None)
            head = {
                "schema_version": SCHEMA_VERSION,
                "version": self.version,
                "places": [{"name": place.name, "store": place.target.store.value} for place in self.places],
                **self.state(),
            }
            data = f'{json.dumps(head)[:-1]}, "jobs":[{jobs}]}}'.encode()
            self._document = (self.version, data)
        return data

    def problems(self) -> list[Page]:
        """Return what is wrong with places now."""
        return [*self._lasting, *self._problems.values()]

    def away(self) -> dict[str, Page]:
        """Return what is wrong with the places whose store did not answer the last look; looking begins again."""
        with self._lock:
            self._wanted.set()
            found = [*self._problems.values()]
        return {problem["place"]: problem for problem in found if problem["code"] == StoreUnreachableError.default_code}

    def state(self) -> Page:
        """Return what each event has besides changes."""
        return {"problems": self.problems(), "looking": self.looking()}

    def looking(self) -> list[str]:
        """Return the places that were not seen yet: whether they have jobs is not known."""
        return [name for name, looked in self._first_looks.items() if not looked.is_set()]

    def handle(self, job_id: str) -> JobHandle:
        """Return the handle of a listed job; wait for the first look at each place, as long as it may be there.

        Raises:
            JobNotFoundError: No listed job has this id.
        """
        for wait_seconds in (0.0, _FIRST_LOOK_SECONDS):
            for name in self.looking() if wait_seconds else ():
                self._first_looks[name].wait(wait_seconds)
            for place in self.places:
                handle = place.handle_of(job_id)
                if handle is not None:
                    return handle
        raise JobNotFoundError(
            f"no job {plain(job_id)} is listed",
            why=f"looked at {', '.join(place.name for place in self.places)}",
            next="kinetic jobs list --all",
        )

    def version_of(self, group_id: str) -> int:
        """Return the version in which a job of a batch changed last."""
        return self._groups.get(group_id, 0)

    # ------------------------------------------------------------------------------------------------------- looking

    def _follow(self, place: Place) -> None:
        while not self._ended.is_set():
            self._wanted.wait()
            if self._ended.is_set():
                return
            try:
                found = place.refresh()
            except KineticError as error:
                self._publish([], [], place, problem_page(place.name, error))
                self._ended.wait(_AGAIN_SECONDS)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with one place, the page stays live
                failed = KineticError(f"{type(error).__name__}: {error}", code="unexpected")
                self._publish([], [], place, problem_page(place.name, failed))
                self._ended.wait(_AGAIN_SECONDS)
            else:
                self._publish(found.changed, found.gone, place, None)
            place.wait()

    def _publish(self, changed: list[Page], gone: list[str], place: Place, problem: Page | None) -> None:
        with self._lock:
            same, looked = problem == self._problems.get(place.name), self._first_looks[place.name]
            if not changed and not gone and same and looked.is_set():
                return
            looked.set()
            if problem is None:
                self._problems.pop(place.name, None)
            else:
                self._problems[place.name] = problem
            self.version += 1
            for page in changed:
                self._texts[page["job_id"]] = json.dumps(page, separators=(",", ":"))
                if page["group_id"]:
                    self._groups[page["group_id"]] = self.version
            for job_id in gone:
                if not any(job_id in other.jobs for other in self.places):
                    self._texts.pop(job_id, None)
            event = {"version": self.version, "changed": changed, "gone": gone, **self.state()}
            listeners = [*self._listeners]
        for listener in listeners:
            listener(event)


def problem_page(place: str, error: KineticError) -> Page:
    """Return an error as its three parts, for JSON."""
    return {"place": place, "code": error.code, "what": error.what, "why": error.why, "next": error.next}

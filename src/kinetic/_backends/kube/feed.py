"""A feed: the objects that a selector fits as they are now, kept up to date by one watch, for all who wait.

Whoever asks finds the answer here without a request. What was made by this process is put in at once; for what is not
here, the server is asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

from kinetic._backends.kube import observing
from kinetic._backends.kube.watching import Watch
from kinetic._wire import threads

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Object
    from kinetic._backends.kube.kinds import Kind

UNUSED_SECONDS = 120.0  # after which nobody seems to wait any more, and the watch ends


class Feed:
    """The jobs that a selector fits, in one kind or several.

    Args:
        client: Of the cluster.
        kinds: Of the objects.
        selector: Of labels.
    """

    def __init__(self, client: Client, kinds: tuple[Kind, ...], selector: str) -> None:
        self._client, self._kinds, self.selector = client, kinds, selector
        self._objects: dict[str, Object] = {}  # by uid
        self._of_jobs: dict[str, str] = {}  # the uid of a job's own object, by job id
        self._news: dict[str, int] = {}  # how many changes there were (count), by job id
        self._ends = 0  # how many objects ended or went (count)
        self._changed = threading.Condition()
        self._current = [False] * len(kinds)
        self._used = time.monotonic()
        self._ended = False
        self.trouble: Exception | None = None

    def start(self) -> Feed:
        """Begin to watch, in threads that keep no interpreter; where none can be had, whoever waits asks instead."""
        for at, kind in enumerate(self._kinds):
            if threads.begin(partial(self._follow, at, kind), f"kinetic-watch-{kind.plural}") is None:
                self.end()
        return self

    @property
    def is_alive(self) -> bool:
        """Whether what it says can still change."""
        return not self._ended and self.trouble is None

    @property
    def is_current(self) -> bool:
        """Whether everything that was there at the beginning is known."""
        return self.is_alive and all(self._current)

    def objects(self) -> list[Object]:
        """Return what is there now."""
        self._used = time.monotonic()
        with self._changed:
            return list(self._objects.values())

    def find(self, job_id: str) -> Object | None:
        """Return the object of a job, or None when it is not known here."""
        with self._changed:
            found = self._objects.get(self._of_jobs.get(job_id, ""))
        if found is not None:  # whoever asks all feeds for a job of another one does not use this one
            self._used = time.monotonic()
        return found

    def put(self, found: Object) -> None:
        """Take in what this process made, before the watch tells of it."""
        with self._changed:
            if found["metadata"]["uid"] not in self._objects:
                self._take(observing.slim(found))

    def tell(self, job_id: str) -> None:
        """Wake whoever waits for a job: there is news of it that is not of its object."""
        with self._changed:
            self._news[job_id] = self._news.get(job_id, 0) + 1
            self._changed.notify_all()

    def news_of(self, job_id: str) -> int:
        """Return how many changes of a job there were."""
        with self._changed:
            return self._news.get(job_id, 0)

    def wait(self, job_id: str, seen: int, seconds: float) -> None:
        """Wait until there were more changes of a job than were seen, at most some seconds."""
        self._used = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._news.get(job_id, 0) > seen or not self.is_alive, seconds)

    @property
    def ends(self) -> int:
        """How many objects have ended or are gone."""
        return self._ends

    def wait_for_an_end(self, seen: int, seconds: float) -> None:
        """Wait until more objects have ended than were seen, at most some seconds."""
        self._used = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._ends > seen or not self.is_alive, seconds)

    def wait_until_current(self, seconds: float) -> bool:
        """Wait for the first list; say whether it came."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_current or not self.is_alive, seconds)
            return self.is_current

    def end(self) -> None:
        """Stop watching."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _is_unwanted(self) -> bool:
        if time.monotonic() - self._used > UNUSED_SECONDS:
            self.end()
        return self._ended

    def _follow(self, at: int, kind: Kind) -> None:
        watch = Watch(self._client, kind, self.selector, slim=observing.slim)
        try:
            for event in watch.events(self._is_unwanted):
                with self._changed:
                    if event.kind == "current":
                        self._drop_what_is_gone(kind, watch.known)
                        self._current[at] = True
                    elif event.kind == "gone":
                        self._lose(event.object)
                    else:
                        self._take(event.object)
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - whoever waits asks the server itself then, and hears it again
            self.trouble = error
        finally:
            self.end()

    def _drop_what_is_gone(self, kind: Kind, known: Collection[str]) -> None:
        """Forget what a list has no more: of what this process put in, a watch that was away tells no end.

        What was made after the list is forgotten as well; it is asked for until the watch tells of it.
        """
        for uid, found in list(self._objects.items()):
            if found.get("kind") == kind.name and uid not in known:
                self._lose(found)

    def _take(self, found: Object) -> None:
        uid, job_id = found["metadata"]["uid"], observing.job_id_of(found)
        before = self._objects.get(uid)
        self._objects[uid] = found
        if not observing.is_a_part(found):
            self._of_jobs[job_id] = uid
            self._news[job_id] = self._news.get(job_id, 0) + 1
            was_over = before is not None and observing.status_of(before).is_final
            self._ends += observing.status_of(found).is_final and not was_over

    def _lose(self, found: Object) -> None:
        uid, job_id = found["metadata"]["uid"], observing.job_id_of(found)
        self._objects.pop(uid, None)
        if self._of_jobs.get(job_id) == uid:
            del self._of_jobs[job_id]
            self._news[job_id] = self._news.get(job_id, 0) + 1
            self._ends += 1


class Feeds:
    """The feeds of one cluster in this process, each made when it is first needed, and anew when it has ended."""

    def __init__(self, make: Callable[[str], Feed]) -> None:
        self._make = make
        self._feeds: dict[str, Feed] = {}
        self._lock = threading.Lock()

    def get(self, selector: str) -> Feed:
        """Return the feed for a selector."""
        with self._lock:
            found = self._feeds.get(selector)
            if found is None or not found.is_alive:
                found = self._feeds[selector] = self._make(selector).start()
            return found

    def there(self) -> list[Feed]:
        """Return the feeds that are alive."""
        with self._lock:
            return [feed for feed in self._feeds.values() if feed.is_alive]

"""What changes among some objects: one list, then one request that goes on, resumed where it broke.

A watch ends for many reasons, none of which concerns whoever watches: the server ends it after some minutes, a
balancer forgets it, a laptop sleeps, a token ends, the server restarts. Each time it goes on from the last version that
was seen; bookmarks move that version on while nothing happens. When the server has forgotten the version (410), all is
listed again, and the difference is told.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kinetic._backends.kube import object_status
from kinetic._backends.kube.transport import RETRYABLE_STATUSES, Reply
from kinetic._wire import threads
from kinetic.errors import BackendUnavailableError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Kind, Object


WINDOW_SECONDS = 240  # below the five minutes after which balancers cut what is silent
_SLACK_SECONDS = 30.0
_MOST_FAILURES = 12  # in a row: with the pauses between them about two minutes


class Event(NamedTuple):
    """What happened.

    Attributes:
        kind: "here" for what is there or has changed, "gone" for what is not any more, "current" when all that was
            there at some moment has been told; then there is no object.
        object: As it is now, or was last.
    """

    kind: Literal["here", "gone", "current"]
    object: Object


class _WatchExpired(Exception):  # noqa: N818 - an event, not a mistake
    """The server has forgotten the version that we know."""


class Watch:
    """Follow the objects that a selector fits, until told to stop."""

    def __init__(
        self,
        client: Client,
        kind: Kind,
        selector: str = "",
        *,
        window: int = WINDOW_SECONDS,
        slim: Callable[[Object], Object] = lambda found: found,
    ) -> None:
        """Prepare.

        Args:
            client: Of the cluster.
            kind: Of the objects.
            selector: Of labels; "" for all.
            window: Seconds after which the server ends one request, and the next goes on.
            slim: Makes of each object what is remembered and told of it.
        """
        self._client = client
        self._slim = slim
        self._kind = kind
        self._selector = selector
        self._window = window
        self._known: dict[str, Object] = {}  # by uid
        self._version = ""

    @property
    def known(self) -> frozenset[str]:
        """The uids of what is there, as far as was told."""
        return frozenset(self._known)

    def events(self, stopped: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Yield what is there, then what happens.

        Args:
            stopped: Asked between requests and events; True ends it.

        Raises:
            AccessDeniedError: We may not list or watch.
            BackendUnavailableError: Nobody has answered for minutes.
        """
        failures = 0
        while not stopped():
            try:
                if not self._version:
                    yield from self._listed()
                    continue
                told = 0
                for event in self._streamed():
                    failures, told = 0, told + 1
                    if event is not None:
                        yield event
                    if stopped():
                        return
                if not told:  # a server that ends watches at once must not be asked without a pause
                    self._client.transport.pause(0)
            except _WatchExpired:
                self._version = ""
            except _stream_errors() as error:
                failures += 1
                self._survive(error, failures)

    def _survive(self, error: Exception, failures: int) -> None:
        if failures == 1 and _could_not_connect(error):
            self._client.transport.moved()
        if failures >= _MOST_FAILURES:
            raise BackendUnavailableError(
                f"{self._client.about} cannot be watched",
                why=f"{type(error).__name__}: {error}",
                next="look at the network and at the cluster; jobs go on",
            ) from error
        self._client.transport.pause(failures - 1)

    def _listed(self) -> Iterator[Event]:
        """Tell what a list has, and what it has no more."""
        listing = self._client.list(self._kind, self._selector)
        now = {each["metadata"]["uid"]: self._slim(each) for each in listing.objects}
        before, self._known = self._known, now
        self._version = listing.version
        for uid, found in now.items():
            if uid not in before or _resource_version(before[uid]) != _resource_version(found):
                yield Event("here", found)
        for uid, found in before.items():
            if uid not in now:
                yield Event("gone", found)
        yield Event("current", {})

    def _streamed(self) -> Iterator[Event | None]:
        """Yield what one request tells; None for a bookmark."""
        query: dict[str, str | int | bool] = {
            "watch": True,
            "resourceVersion": self._version,
            "allowWatchBookmarks": True,
            "timeoutSeconds": self._window,
        }
        query |= {"labelSelector": self._selector} if self._selector else {}
        path = self._kind.path(self._client.namespace)
        patience = self._window + _SLACK_SECONDS
        with self._client.transport.stream(path, query=query, silence_seconds=patience) as answer:
            if answer.status_code != 200:
                answer.read()
                self._refuse(Reply(answer.status_code, answer.content, repeated=False))
            for line in answer.iter_lines():
                if line.strip():
                    yield self._event(json.loads(line))

    def _event(self, page: dict[str, Any]) -> Event | None:
        kind, found = page.get("type"), page.get("object") or {}
        if kind == "ERROR":
            self._refuse(Reply(int(found.get("code") or 500), json.dumps(found).encode(), repeated=False))
        self._version = _resource_version(found) or self._version
        if kind == "BOOKMARK":
            return None
        uid, found = found["metadata"]["uid"], self._slim(found)
        if kind == "DELETED":
            self._known.pop(uid, None)
            return Event("gone", found)
        self._known[uid] = found
        return Event("here", found)

    def _refuse(self, reply: Reply) -> None:
        if reply.status == 410:
            raise _WatchExpired
        if reply.status in RETRYABLE_STATUSES:
            raise ConnectionError(f"HTTP {reply.status}")
        raise self._client.refuse("watch", self._kind, "", reply)


def _stream_errors() -> tuple[type[Exception], ...]:
    """Return what a stream breaks with; a line that was cut is no JSON any more."""
    import httpx2

    return (httpx2.TransportError, httpx2.StreamError, ConnectionError, json.JSONDecodeError)


def _could_not_connect(error: Exception) -> bool:
    """Say whether nobody answers where the server was, so that it may have moved."""
    import httpx2

    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)


def _resource_version(found: Object) -> str:
    return str((found.get("metadata") or {}).get("resourceVersion", ""))


UNUSED_SECONDS = 120.0  # after which nobody seems to wait any more, and the watch ends


class Informer:
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

    def start(self) -> Informer:
        """Begin to watch, in threads that keep no interpreter; where none can be had, whoever waits asks instead."""
        for at, kind in enumerate(self._kinds):
            if threads.start(partial(self._follow, at, kind), f"kinetic-watch-{kind.plural}") is None:
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
                self._take(object_status.reduced(found))

    def tell(self, job_id: str) -> None:
        """Wake whoever waits for a job: there is news of it that is not of its object."""
        with self._changed:
            self._news[job_id] = self._news.get(job_id, 0) + 1
            self._changed.notify_all()

    def changes_of(self, job_id: str) -> int:
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

    def wait_for_any_end(self, seen: int, seconds: float) -> None:
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
        watch = Watch(self._client, kind, self.selector, slim=object_status.reduced)
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
        uid, job_id = found["metadata"]["uid"], object_status.job_id_of(found)
        before = self._objects.get(uid)
        self._objects[uid] = found
        if not object_status.belongs_to_job_set(found):
            self._of_jobs[job_id] = uid
            self._news[job_id] = self._news.get(job_id, 0) + 1
            was_over = before is not None and object_status.status_of(before).is_final
            self._ends += object_status.status_of(found).is_final and not was_over

    def _lose(self, found: Object) -> None:
        uid, job_id = found["metadata"]["uid"], object_status.job_id_of(found)
        self._objects.pop(uid, None)
        if self._of_jobs.get(job_id) == uid:
            del self._of_jobs[job_id]
            self._news[job_id] = self._news.get(job_id, 0) + 1
            self._ends += 1


class Informers:
    """The feeds of one cluster in this process, each made when it is first needed, and anew when it has ended."""

    def __init__(self, make: Callable[[str], Informer]) -> None:
        self._make = make
        self._feeds: dict[str, Informer] = {}
        self._lock = threading.Lock()

    def get(self, selector: str) -> Informer:
        """Return the feed for a selector."""
        with self._lock:
            found = self._feeds.get(selector)
            if found is None or not found.is_alive:
                found = self._feeds[selector] = self._make(selector).start()
            return found

    def there(self) -> list[Informer]:
        """Return the feeds that are alive."""
        with self._lock:
            return [feed for feed in self._feeds.values() if feed.is_alive]

"""The jobs of a cluster as a watch keeps them: one list, then one request that stays open, resumed where it broke.

A watch ends for many reasons that do not concern its readers: the server ends it after some minutes, a load balancer
drops it, a laptop sleeps, a token expires, the server restarts. Each time it resumes from the last version that it
received; bookmarks advance that version while nothing happens. When the server no longer has the version (410), all is
listed again, and the difference is reported; so it is every two seconds for who may list the jobs and not watch them.
A server whose data was restored from a backup counts from an earlier version: it would not report anything until it
reaches ours. So after a failure its version is compared with ours, and all is listed again where it is behind.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from kinetic._backends.kube import object_status
from kinetic._backends.kube.client import POD
from kinetic._backends.kube.transport import RETRYABLE_STATUSES, Reply
from kinetic._wire import NamedTuple, python_runtime
from kinetic.errors import AccessDeniedError, BackendUnavailableError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Kind, Object

_WINDOW_SECONDS = 240  # below the five minutes after which load balancers cut what is silent
_SLACK_SECONDS = 30.0
_POLL_SECONDS = 2.0  # between two lists where we may not watch
_MOST_FAILURES = 12  # in a row: with the pauses between them about two minutes


class Event(NamedTuple):
    """One change, and the object as it is now or was last.

    "changed" is what is new or has changed. "listed", without an object, follows all that existed at some moment.
    """

    kind: Literal["changed", "deleted", "listed"]
    object: Object


class _WatchExpired(Exception):  # noqa: N818 - an event, not a mistake
    """The server no longer has the version that we know."""


class Watch:
    """Follow the objects of a kind that a selector of labels fits, "" for all, each as `reduce` makes it smaller."""

    _may_poll = True  # whether lists tell what a watch would

    def __init__(
        self,
        client: Client,
        kind: Kind,
        selector: str = "",
        *,
        reduce: Callable[[Object], Object] = lambda found: found,
    ) -> None:
        self.known: dict[str, Object] = {}  # what exists, as far as was reported, by uid
        self._client = client
        self._kind = kind
        self._selector, self._fields = selector, ""
        self._headers: dict[str, str] = {}
        self._reduce = reduce
        self._version = ""
        self._failures = 0  # in a row

    def events(self, stopped: Callable[[], bool] = lambda: False) -> Iterator[Event]:
        """Yield what exists, then what happens, until it is stopped, or no answer came for minutes."""
        while not stopped():
            try:
                if not self._version:
                    yield from self._list()
                    continue
                is_empty = True
                for event in self._stream():
                    self._failures, is_empty = 0, False
                    if event is not None:
                        yield event
                    if stopped():
                        return
                if is_empty:  # a server that ends watches at once must not be asked without a pause
                    self._client.transport.pause(0)
            except _WatchExpired:
                self._version = ""
            except AccessDeniedError:
                if not (self._version and self._may_poll):
                    raise
                self._version = ""  # who may list, and not watch, lists again
                time.sleep(_POLL_SECONDS)
            except ConnectionError as error:
                self._failures += 1
                if self._failures >= _MOST_FAILURES:
                    raise BackendUnavailableError(
                        f"cannot watch {self._client.about}",
                        why=f"{type(error).__name__}: {error}",
                        next="check the network and the cluster; jobs keep running",
                    ) from error
                self._client.transport.pause(self._failures - 1)

    def _list(self) -> Iterator[Event]:
        """Report what a list has, and what it no longer has."""
        listing = self._client.list(self._kind, self._selector, reduce=self._reduce)
        before, self.known = self.known, {each["metadata"]["uid"]: each for each in listing.objects}
        self._version = listing.version
        for uid, found in self.known.items():
            if uid not in before or _resource_version(before[uid]) != _resource_version(found):
                yield Event("changed", found)
        for uid, found in before.items():
            if uid not in self.known:
                yield Event("deleted", found)
        yield Event("listed", {})

    def _stream(self) -> Iterator[Event | None]:
        """Yield the events of one request; None for a bookmark."""
        query: dict[str, str | int | bool] = {
            "watch": True,
            "resourceVersion": self._version,
            "allowWatchBookmarks": True,
            "timeoutSeconds": _WINDOW_SECONDS,
        }
        query |= {"labelSelector": self._selector} if self._selector else {}
        query |= {"fieldSelector": self._fields} if self._fields else {}
        path = self._kind.path(self._client.namespace)
        with self._client.transport.stream(
            path,
            query=query,
            silence_seconds=_WINDOW_SECONDS + _SLACK_SECONDS,
            may_have_moved=not self._failures,
            headers=self._headers,
        ) as answer:
            if answer.status != 200:
                self._fail(Reply(answer.status, answer.read()))
            if self._failures and _is_before(self._read_version(), self._version):
                raise _WatchExpired
            for line in answer.lines():
                if line.strip():
                    try:
                        page = json.loads(line)
                    except ValueError as error:
                        raise ConnectionError("the connection was cut in a line") from error
                    yield self._event(page)

    def _read_version(self) -> str:
        """Read the version that the server has now."""
        page = next(self._client.pages(self._kind, {"limit": 1, "labelSelector": self._selector})) or {}
        return _resource_version(page)

    def _event(self, page: dict[str, Any]) -> Event | None:
        kind, found = page.get("type"), page.get("object") or {}
        if kind == "ERROR":
            self._fail(Reply(int(found.get("code") or 500), json.dumps(found).encode()))
        self._version = _resource_version(found) or self._version
        if kind == "BOOKMARK":
            return None
        uid, found = found["metadata"]["uid"], self._reduce(found)
        if kind == "DELETED":
            self.known.pop(uid, None)
            return Event("deleted", found)
        self.known[uid] = found
        return Event("changed", found)

    def _fail(self, reply: Reply) -> None:
        if reply.status == 410:
            raise _WatchExpired
        if reply.status in RETRYABLE_STATUSES:
            raise ConnectionError(f"HTTP {reply.status}")
        raise self._client.error_for("watch", self._kind, "", reply)


class EndedPods(Watch):
    """Follow the pods that end with exit code 0 from now on: "changed", with no more than metadata, when one has.

    Its Job says so a second later, since the controller of Jobs counts pods once a second.
    """

    _may_poll = False

    def __init__(self, client: Client, selector: str) -> None:
        super().__init__(client, POD, selector)
        self._fields = "status.phase=Succeeded"  # so the server reports a pod only then
        self._headers = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}

    def _list(self) -> Iterator[Event]:
        """Read the version of now, and nothing of the pods that have ended before."""
        self._version = self._read_version()
        yield Event("listed", {})

    def _event(self, page: dict[str, Any]) -> Event | None:
        event = super()._event(page)
        self.known.clear()
        return event if page.get("type") == "ADDED" else None


def _resource_version(found: Object) -> str:
    return str((found.get("metadata") or {}).get("resourceVersion", ""))


def _is_before(version: str, other: str) -> bool:
    return version.isdecimal() and other.isdecimal() and int(version) < int(other)


UNUSED_SECONDS = 120.0  # after which nothing seems to wait any more, and the watch ends


class Informer:
    """The jobs that a selector of labels fits, in one kind or several, for all threads that wait for them."""

    def __init__(self, client: Client, kinds: tuple[Kind, ...], selector: str, *, follows_pods: bool = False) -> None:
        self.selector = selector
        self._follows_pods = follows_pods  # to count an end as soon as a pod of the job has succeeded
        self._ended_early: set[str] = set()  # uids of objects whose end was counted so
        self.ends = 0  # how many objects have ended, or may have, or are gone
        self.error: Exception | None = None  # why it ended
        self._client, self._kinds = client, kinds
        self._objects: dict[str, Object] = {}  # by uid
        self._of_jobs: dict[str, str] = {}  # the uid of a job's own object, by job id
        self._changes: dict[str, int] = {}  # how many there were (count), by job id
        self._changed = threading.Condition()
        self._listed = [False] * len(kinds)
        self._used = time.monotonic()
        self._ended = False
        self.threads: list[threading.Thread] = []

    def start(self) -> Informer:
        """Begin to watch, in threads that do not keep the interpreter; if none can be started, it ends."""
        for at, kind in enumerate(self._kinds):
            if thread := python_runtime.start_thread(partial(self._follow, at, kind), f"kinetic-watch-{kind.plural}"):
                self.threads.append(thread)
            else:
                self.end()
        if self._follows_pods and (thread := python_runtime.start_thread(self._follow_pods, "kinetic-watch-pods")):
            self.threads.append(thread)
        return self

    @property
    def is_alive(self) -> bool:
        """Whether it still receives changes; if not, ask the server."""
        return not self._ended and self.error is None

    @property
    def is_current(self) -> bool:
        """Whether everything that existed at the beginning is known."""
        return self.is_alive and all(self._listed)

    def objects(self) -> list[Object]:
        self._used = time.monotonic()
        with self._changed:
            return list(self._objects.values())

    def find(self, job_id: str) -> Object | None:
        """Return the object of a job, or None when it is not known here."""
        with self._changed:
            found = self._objects.get(self._of_jobs.get(job_id, ""))
        if found is not None:  # asking every informer for a job of another one does not use this one
            self._used = time.monotonic()
        return found

    def add(self, found: Object) -> None:
        """Add an object that this process created, before the watch reports it."""
        with self._changed:
            if found["metadata"]["uid"] not in self._objects:
                self._update(object_status.reduced(found))

    def notify(self, job_id: str) -> None:
        """Wake the threads that wait for a job, or for its batch: it changed, though not its object."""
        with self._changed:
            self._count_change(job_id)
            self.ends += job_id in self._of_jobs  # as it may have
            self._changed.notify_all()

    def changes_of(self, job_id: str) -> int:
        with self._changed:
            return self._changes.get(job_id, 0)

    def wait(self, job_id: str, seen: int, seconds: float) -> None:
        self._wait_for(lambda: self._changes.get(job_id, 0) > seen, seconds)

    def wait_for_any_end(self, seen: int, seconds: float) -> None:
        self._wait_for(lambda: self.ends > seen, seconds)

    def wait_until_current(self, seconds: float) -> bool:
        """Wait for the first list; return whether it came."""
        self._wait_for(lambda: self.is_current, seconds)
        return self.is_current

    def _wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        self._used = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: condition() or not self.is_alive, seconds)

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _is_unused(self) -> bool:
        if time.monotonic() - self._used > UNUSED_SECONDS:
            self.end()
        return self._ended

    def _follow(self, at: int, kind: Kind) -> None:
        watch = Watch(self._client, kind, self.selector, reduce=object_status.reduced)
        try:
            for event in watch.events(self._is_unused):
                with self._changed:
                    if event.kind == "changed":
                        self._update(event.object)
                    elif event.kind == "deleted":
                        self._delete(event.object)
                    else:
                        self._drop_unlisted(kind, watch)
                        self._listed[at] = True
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - waiting threads ask the server then, and get the error again
            self.error = error
        finally:
            self.end()

    def _drop_unlisted(self, kind: Kind, watch: Watch) -> None:
        """Remove what a new list does not have: a watch that was away reports no end of what this process added.

        What was created after the list goes as well; the server is asked for it until the watch reports it.
        """
        for uid, found in list(self._objects.items()):
            if found.get("kind") == kind.name and uid not in watch.known:
                self._delete(found)

    def _follow_pods(self) -> None:
        """Count the ends of pods; where that is not possible, the Jobs tell, a second later."""
        with contextlib.suppress(Exception):  # we may not watch pods, say
            for event in EndedPods(self._client, self.selector).events(self._is_unused):
                owners = (event.object.get("metadata") or {}).get("ownerReferences") or ()
                with self._changed:
                    self._count_ends({each.get("uid") for each in owners})

    def _count_ends(self, owners: set[str]) -> None:
        for uid in owners & self._objects.keys() - self._ended_early:
            if not object_status.status_of(self._objects[uid]).is_final:
                self._ended_early.add(uid)
                self.ends += 1
                self._changed.notify_all()

    def _update(self, found: Object) -> None:
        uid, job_id = found["metadata"]["uid"], object_status.job_id_of(found)
        before = self._objects.get(uid)
        self._objects[uid] = found
        if not object_status.belongs_to_job_set(found):
            self._of_jobs[job_id] = uid
            warm = object_status.warm_pod_of(found)
            if not warm or before is None or object_status.warm_pod_of(before) != warm:
                self._count_change(job_id)  # the Job of a warm pod's task says nothing of it: that is only made ready
            self._count_tasks(job_id, found)
            had_ended = before is not None and object_status.status_of(before).is_final
            if object_status.status_of(found).is_final and not had_ended and uid not in self._ended_early:
                self.ends += 1

    def _delete(self, found: Object) -> None:
        uid, job_id = found["metadata"]["uid"], object_status.job_id_of(found)
        self._objects.pop(uid, None)
        self._ended_early.discard(uid)
        if self._of_jobs.get(job_id) == uid:
            del self._of_jobs[job_id]
            self._count_change(job_id)
            self._count_tasks(job_id, found)
            self.ends += 1

    def _count_tasks(self, job_id: str, found: Object) -> None:
        """Count a change of a warm pod as one of the jobs that were assigned to it."""
        if object_status.is_warm_pod(found):
            for other in self._objects.values():
                if object_status.warm_pod_of(other) == job_id:
                    self._count_change(object_status.job_id_of(other))

    def _count_change(self, job_id: str) -> None:
        self._changes[job_id] = self._changes.get(job_id, 0) + 1


class Informers:
    """The informers of one cluster in this process, each made when it is first needed, and anew when it has ended."""

    def __init__(self, make: Callable[[str], Informer]) -> None:
        self._make = make
        self._informers: dict[str, Informer] = {}
        self._lock = threading.Lock()

    def get(self, selector: str) -> Informer:
        with self._lock:
            found = self._informers.get(selector)
            if found is None or not found.is_alive:
                found = self._informers[selector] = self._make(selector).start()
            return found

    def alive(self) -> list[Informer]:
        with self._lock:
            return [informer for informer in self._informers.values() if informer.is_alive]

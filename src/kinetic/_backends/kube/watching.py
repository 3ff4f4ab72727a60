"""What changes among some objects: one list, then one request that goes on, resumed where it broke.

A watch ends for many reasons, none of which concerns whoever watches: the server ends it after some minutes, a
balancer forgets it, a laptop sleeps, a token ends, the server restarts. Each time it goes on from the last version that
was seen; bookmarks move that version on while nothing happens. When the server has forgotten the version (410), all is
listed again, and the difference is told.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from kinetic._backends.kube.transport import AGAIN, Reply
from kinetic.errors import BackendUnavailableError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Object
    from kinetic._backends.kube.kinds import Kind

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


class _Expired(Exception):  # noqa: N818 - an event, not a mistake
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
            except _Expired:
                self._version = ""
            except _broken() as error:
                failures += 1
                self._survive(error, failures)

    def _survive(self, error: Exception, failures: int) -> None:
        if failures == 1 and _is_refused(error):
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
            if uid not in before or _version(before[uid]) != _version(found):
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
        self._version = _version(found) or self._version
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
            raise _Expired
        if reply.status in AGAIN:
            raise ConnectionError(f"HTTP {reply.status}")
        raise self._client.refuse("watch", self._kind, "", reply)


def _broken() -> tuple[type[Exception], ...]:
    """Return what a stream breaks with; a line that was cut is no JSON any more."""
    import httpx2

    return (httpx2.TransportError, httpx2.StreamError, ConnectionError, json.JSONDecodeError)


def _is_refused(error: Exception) -> bool:
    """Say whether nobody answers where the server was, so that it may have moved."""
    import httpx2

    return isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)


def _version(found: Object) -> str:
    return str((found.get("metadata") or {}).get("resourceVersion", ""))

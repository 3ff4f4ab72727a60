"""The log of a container while its pod is there: followed through broken connections, each line once, in order.

The API knows no byte positions. Each line comes with the time at which it was written, to the nanosecond, and a log
can be asked for from a second on. So a broken follower asks again from the last time that it saw, and leaves out what
it has told already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._backends.kube.containers import CONTAINER
from kinetic._backends.kube.kinds import POD
from kinetic._backends.kube.transport import AGAIN, Reply

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client

SILENCE_SECONDS = 300.0  # a job may say nothing for hours; a connection that is silent this long is opened anew
_MOST_FAILURES = 8


class Line(NamedTuple):
    """One line of a log.

    Attributes:
        time: When the container wrote it, as RFC 3339 with nanoseconds.
        text: Without the end of the line.
    """

    time: str
    text: bytes


def read(client: Client, pod: str, *, last_lines: int | None = None, previous: bool = False) -> bytes | None:
    """Return what a pod's log has now, or None when there is no such pod or nothing has started in it.

    Args:
        client: Of the cluster.
        pod: Its name.
        last_lines: Not more than so many, from the end.
        previous: That of the container before its restart.
    """
    query: dict[str, str | int | bool] = {"container": CONTAINER}
    query |= {"tailLines": last_lines} if last_lines is not None else {}
    query |= {"previous": True} if previous else {}
    reply = client.transport.send("GET", POD.path(client.namespace, pod, "log"), query=query)
    if reply.status in {400, 404}:  # 400: "waiting to start", or no container before this one
        return None
    if reply.status != 200:
        raise client.refuse("get", POD, pod, reply)
    return reply.body


def follow(
    client: Client, pod: str, *, since: Line | None = None, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Line]:
    """Yield the lines of a pod's log as they are written, until the container has ended or the pod is gone.

    Args:
        client: Of the cluster.
        pod: Its name.
        since: The last line that was seen; what comes after it is told.
        stopped: Asked before each request and after each line; True ends it.

    Raises:
        AccessDeniedError: We may not read logs.
    """
    seen = _Seen(since)
    failures = 0
    while not stopped():
        seen.again()
        try:
            for line in _stream(client, pod, seen.time):
                failures = 0
                if seen.is_new(line):
                    yield line
                if stopped():
                    return
        except _broken():
            failures += 1
            if failures > _MOST_FAILURES:
                return
            client.transport.pause(failures - 1)
            continue
        except _NotThere:
            return
        if _has_ended(client, pod):
            return


class _NotThere(Exception):  # noqa: N818 - an answer, not a mistake
    """There is no such pod, or nothing has started in it."""


class _Seen:
    """Remember the last moment that was told, and how much of it."""

    def __init__(self, last: Line | None) -> None:
        self.time = last.time if last else ""
        self._told = 1 if last else 0  # lines of that moment that were told
        self._coming_again = 0  # lines of that moment that come once more; -1 when nothing does

    def again(self) -> None:
        """Expect what was told: the API counts in whole seconds, so all of the last second comes once more."""
        self._coming_again = self._told if self.time else -1

    def is_new(self, line: Line) -> bool:
        """Say whether a line was not told before; lines come in order."""
        if self._coming_again >= 0:
            if _moment(line.time) < _moment(self.time):
                return False
            if line.time == self.time and self._coming_again:
                self._coming_again -= 1
                return False
            self._coming_again = -1
        self._told = self._told + 1 if line.time == self.time else 1
        self.time = line.time
        return True


def _moment(time: str) -> str:
    """Return a time whose text sorts as the time does: some servers drop zeros at the end of the fraction."""
    whole, _, fraction = time.rstrip("Z").partition(".")
    return f"{whole}.{fraction:0<9}"


def _stream(client: Client, pod: str, since: str) -> Iterator[Line]:
    query: dict[str, str | int | bool] = {"container": CONTAINER, "follow": True, "timestamps": True}
    query |= {"sinceTime": since} if since else {}
    path = POD.path(client.namespace, pod, "log")
    with client.transport.stream(path, query=query, silence_seconds=SILENCE_SECONDS) as answer:
        if answer.status_code != 200:
            answer.read()
            reply = Reply(answer.status_code, answer.content, repeated=False)
            if reply.status in {400, 404}:
                raise _NotThere
            if reply.status in AGAIN:
                raise ConnectionError(f"HTTP {reply.status}")
            raise client.refuse("get", POD, pod, reply)
        rest = b""
        for piece in answer.iter_raw():
            *lines, rest = (rest + piece).split(b"\n")
            yield from map(_line, lines)
        if rest and _has_ended(client, pod):  # the last line of a log need not end; any other comes again whole
            yield _line(rest)


def _line(written: bytes) -> Line:
    time, _, text = written.partition(b" ")
    return Line(time.decode(errors="replace"), text)


def _has_ended(client: Client, pod: str) -> bool:
    """Say whether a stream that ended has told all: a server that restarts ends streams, too."""
    found = client.get(POD, pod)
    if found is None:
        return True
    statuses = found.get("status", {}).get("containerStatuses") or ()
    ours: dict[str, Any] = next((each for each in statuses if each.get("name") == CONTAINER), {})
    return "running" not in (ours.get("state") or {})


def _broken() -> tuple[type[Exception], ...]:
    import httpx2

    return (httpx2.TransportError, httpx2.StreamError, ConnectionError)

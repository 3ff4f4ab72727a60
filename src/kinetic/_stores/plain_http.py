"""HTTP with the standard library: connections that stay open, and requests that are repeated."""

from __future__ import annotations

import contextlib
import http.client
import os
import time
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from kinetic._stores.retrying import Retry

AGAIN = frozenset({408, 429, 500, 502, 503, 504})
TIMEOUT_SECONDS = 60.0  # without a single byte
MOST_IDLE = 32  # connections kept open


class NoAnswer(Exception):  # noqa: N818 - of this room; what leaves it is an error of ours
    """No answer came, or none that tells anything, however often we asked."""


class Reply(NamedTuple):
    """An answer.

    Attributes:
        status: The HTTP status.
        headers: Names in small letters.
        body: Whole.
        repeated: An earlier try may have been carried out, too.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    repeated: bool


class Caller:
    """Send requests to one server."""

    def __init__(self, base: str, retry: Retry, *, timeout: float = TIMEOUT_SECONDS) -> None:
        scheme, _, self._host = base.partition("://")
        self._secure = scheme == "https"
        self._retry = retry
        self._timeout = timeout
        self._idle: deque[_Line] = deque()

    def call(
        self,
        method: str,
        path: str,
        *,
        body: bytes | memoryview | None = None,
        headers: Mapping[str, str] | None = None,
        again: bool = True,
    ) -> Reply:
        """Send a request, and again after what passes.

        Args:
            method: Of HTTP.
            path: With the query.
            body: What to send.
            headers: To send with it.
            again: Repeat it; else the first failure is the answer.

        Raises:
            NoAnswer: With the last failure's words.
        """
        begun = time.monotonic()
        repeated = False
        for attempt in range(self._retry.attempts if again else 1):
            failure, wanted = "", 0.0
            try:
                reply = self._once(method, path, body, headers or {}, repeated=repeated)
                if reply.status not in AGAIN:
                    return reply
                failure = f"HTTP {reply.status}: {reply.body[:200].decode(errors='replace')}"
                wanted = _seconds(reply.headers.get("retry-after", ""))
            except (OSError, http.client.HTTPException) as error:
                self._idle.clear()  # what one server closed, it has closed for all
                failure = f"{type(error).__name__}: {error}"
                again = again and not _is_untrusted(error)
            repeated = True
            last = attempt == self._retry.attempts - 1 or not again
            if last or time.monotonic() - begun > self._retry.total_seconds:
                break
            self._retry.pause(attempt, at_least=min(wanted, self._retry.most_seconds))
        raise NoAnswer(f"{method} {self._host}{path.partition('?')[0]}: {failure}")

    def _once(
        self, method: str, path: str, body: bytes | memoryview | None, headers: Mapping[str, str], *, repeated: bool
    ) -> Reply:
        line = self._take()
        try:
            line.connection.request(method, path, body=body, headers=headers)
            answer = line.connection.getresponse()
            data = answer.read()
        except BaseException:
            line.connection.close()
            raise
        if not answer.will_close and len(self._idle) < MOST_IDLE:
            self._idle.append(line)
        return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, data, repeated)

    def _take(self) -> _Line:
        """Return a connection that nobody uses; never one that a parent process opened."""
        while self._idle:
            try:
                line = self._idle.pop()
            except IndexError:  # another thread was quicker
                break
            if line.process == os.getpid():
                return line
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return _Line(kind(self._host, timeout=self._timeout))


class _Line:
    """A connection and who opened it; closed with its last user, without a warning."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self.connection = connection
        self.process = os.getpid()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # at the end of an interpreter, half of what it needs may be gone
            self.connection.close()


def _is_untrusted(error: BaseException) -> bool:
    """Return whether a server's certificate was refused: asking again does not change it."""
    return type(error).__name__ == "SSLCertVerificationError"  # importing ssl costs 20 ms


def _seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0  # the other form is a date, which no bucket sends

"""The output of a container, byte for byte from its beginning, through broken connections.

The API knows no positions, and its timestamps would have to be taken out of long lines again, which reach us in pieces.
So a broken connection is followed by the whole output once more; what comes again is compared with what was told, by
its digest. Where it is something else, the log was rotated or the container began anew: then nobody can go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kinetic._backends.kube import reading
from kinetic._backends.kube.containers import CONTAINER
from kinetic._backends.kube.kinds import POD
from kinetic._backends.kube.transport import AGAIN, Reply
from kinetic.errors import AccessDeniedError, KineticError

if TYPE_CHECKING:
    import httpx2

    from kinetic._backends.kube.client import Client

SILENCE_SECONDS = 300.0  # a job may say nothing for hours; a connection that is silent this long is opened anew
_MOST_FAILURES = 8


class _Told:
    """How much was told, and what it was."""

    def __init__(self) -> None:
        self._count = 0
        self._digest = hashlib.sha256()
        self._coming, self._again = 0, hashlib.sha256()

    def again(self) -> None:
        """Expect everything once more."""
        self._coming, self._again = self._count, hashlib.sha256()

    def new(self, piece: bytes) -> bytes | None:
        """Return what of a piece was not told before; None when what was told comes otherwise."""
        if self._coming:
            known, piece = piece[: self._coming], piece[self._coming :]
            self._again.update(known)
            self._coming -= len(known)
            if not self._coming and self._again.digest() != self._digest.digest():
                return None
        self._count += len(piece)
        self._digest.update(piece)
        return piece


class Tail:
    """Follows the output of one container.

    Attributes:
        is_final: Whether it makes no sense to follow this container again: it has ended, or cannot be told whole.
    """

    def __init__(self, client: Client, pod: str) -> None:
        self.is_final = False
        self._client, self._pod = client, pod
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._cut: Callable[[], None] | None = None

    def stop(self) -> None:
        """End it, from any thread, also while nothing comes."""
        self._stopped.set()
        with self._lock:
            cut = self._cut
        if cut is not None:
            cut()

    def pieces(self) -> Iterator[bytes]:
        """Yield the output as it comes, each byte once, until the container has ended or nobody answers any more."""
        told, failures = _Told(), 0
        while not self._stopped.is_set() and failures <= _MOST_FAILURES:
            told.again()
            try:
                for piece in self._stream():
                    new = told.new(piece)
                    if new is None:
                        self.is_final = True
                        return
                    if new:
                        failures = 0
                        yield new
                    if self._stopped.is_set():
                        return
                if self._has_ended():
                    return
            except AccessDeniedError:
                self.is_final = True
                return
            except KineticError:
                return
            except _broken() as error:
                self._look_where_it_is(error, failures)
            self._client.transport.pause(failures)
            failures += 1

    def _stream(self) -> Iterator[bytes]:
        """Yield what one request tells."""
        query: dict[str, str | int | bool] = {"container": CONTAINER, "follow": True}
        path = POD.path(self._client.namespace, self._pod, "log")
        with self._client.transport.stream(path, query=query, silence_seconds=SILENCE_SECONDS) as answer:
            if answer.status_code != 200:
                answer.read()
                self._refuse(Reply(answer.status_code, answer.content, repeated=False))
                return
            with self._lock:
                self._cut = _cutter(answer)
            try:
                if not self._stopped.is_set():
                    yield from answer.iter_raw()
            finally:
                with self._lock:
                    self._cut = None

    def _refuse(self, reply: Reply) -> None:
        if reply.status in {400, 404}:  # nothing has started there yet, or it is gone
            return
        if reply.status in AGAIN:
            raise ConnectionError(f"HTTP {reply.status}")
        raise self._client.refuse("get", POD, self._pod, reply)

    def _has_ended(self) -> bool:
        """Say whether a stream that ended has told all: a server that restarts ends streams, too."""
        found = self._client.get(POD, self._pod)
        self.is_final = found is None or not is_running(found)
        return self.is_final

    def _look_where_it_is(self, error: Exception, failures: int) -> None:
        """When nobody answers where the server was, ask once where it is now."""
        import httpx2

        if not failures and isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            self._client.transport.moved()


def is_running(pod: reading.Object) -> bool:
    """Say whether a pod's container runs."""
    return "running" in (reading.container(pod).get("state") or {})


def _cutter(answer: httpx2.Response) -> Callable[[], None] | None:
    """Return what wakes whoever reads an answer, or None where its connection is not a socket of ours."""
    stream = answer.extensions.get("network_stream")
    found = stream.get_extra_info("socket") if stream is not None else None
    if not isinstance(found, socket.socket):
        return None

    def cut() -> None:
        with contextlib.suppress(OSError):  # it is closed
            socket.socket.shutdown(found, socket.SHUT_RDWR)  # not TLS's own, which other threads must not call

    return cut


def _broken() -> tuple[type[Exception], ...]:
    import httpx2

    return (httpx2.TransportError, httpx2.StreamError, ConnectionError)

"""What the log of a container has now, while its pod is there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kinetic._backends.kube import object_status
from kinetic._backends.kube.client import POD
from kinetic._backends.kube.job_manifests import CONTAINER
from kinetic._backends.kube.object_status import Object
from kinetic._backends.kube.transport import RETRYABLE_STATUSES, Reply
from kinetic._runner.supervisor import attempts
from kinetic._wire import pod_log_format
from kinetic._wire.task import FAILED_EXIT
from kinetic.errors import AccessDeniedError, KineticError

if TYPE_CHECKING:
    import logging

    import httpx2

    from kinetic._backends.kube.client import Client


def read_log(client: Client, pod: str, *, last_lines: int | None = None, previous: bool = False) -> bytes | None:
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


SILENCE_SECONDS = 300.0  # a job may say nothing for hours; a connection that is silent this long is opened anew
_MOST_FAILURES = 8


class _SeenBytes:
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
        told, failures = _SeenBytes(), 0
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
            except _stream_errors() as error:
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
                self._cut = _socket_shutdown(answer)
            try:
                if not self._stopped.is_set():
                    yield from answer.iter_raw()
            finally:
                with self._lock:
                    self._cut = None

    def _refuse(self, reply: Reply) -> None:
        if reply.status in {400, 404}:  # nothing has started there yet, or it is gone
            return
        if reply.status in RETRYABLE_STATUSES:
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


def is_running(pod: object_status.Object) -> bool:
    """Say whether a pod's container runs."""
    return "running" in (object_status.main_container(pod).get("state") or {})


def _socket_shutdown(answer: httpx2.Response) -> Callable[[], None] | None:
    """Return what wakes whoever reads an answer, or None where its connection is not a socket of ours."""
    stream = answer.extensions.get("network_stream")
    found = stream.get_extra_info("socket") if stream is not None else None
    if not isinstance(found, socket.socket):
        return None

    def cut() -> None:
        with contextlib.suppress(OSError):  # it is closed
            socket.socket.shutdown(found, socket.SHUT_RDWR)  # not TLS's own, which other threads must not call

    return cut


def _stream_errors() -> tuple[type[Exception], ...]:
    import httpx2

    return (httpx2.TransportError, httpx2.StreamError, ConnectionError)


# A kubelet rotates a log at 10 MiB, with what it writes before each line and each 16 KiB of one, and serves what is in
# the newest file only. Nobody tells whoever follows at that moment what was lost; so the store has what is beyond.
MOST_BYTES = 9_500_000
_LINE_BYTES, _PIECE_BYTES = 48, 16_000

OnVerdict = Callable[[], object]


class BytesLog:
    """A log as it was at one moment.

    Attributes:
        is_complete: False: the store may have more.
    """

    is_complete = False

    def __init__(self, data: bytes) -> None:
        self._data = data

    def size(self) -> int:
        """Return how many bytes there are."""
        return len(self._data)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position."""
        return self._data[start : start + length]


class LogFollower:
    """What one thread has read so far. It ends when it is told to, and with the container.

    Attributes:
        reader: Knows whose log it is.
        is_over: Whether no more comes.

    Args:
        client: Of the cluster.
        pod: Its name.
        uid: What tells it from every other one.
        useless: Gets the uid when it makes no sense to follow this pod again.
    """

    def __init__(self, client: Client, pod: str, uid: str, useless: set[str]) -> None:
        self.reader = pod_log_format.Reader()
        self.is_over = False
        self._uid, self._useless = uid, useless
        self._tail = Tail(client, pod)
        self._data = bytearray()
        self._changed = threading.Condition()
        self._on_verdict: OnVerdict | None = None
        threading.Thread(target=self._run, name="kinetic-pod-log", daemon=True).start()

    def wait_for_claim(self, seconds: float) -> pod_log_format.Claim | None:
        """Return whose log it is, as soon as that is known."""
        with self._changed:
            self._changed.wait_for(lambda: self.reader.claim or self.is_over, seconds)
            return self.reader.claim

    def tell(self, on_verdict: OnVerdict) -> None:
        """Call somebody when there is a verdict."""
        with self._changed:
            self._on_verdict = on_verdict
            is_there = self.reader.has_verdict
        if is_there:
            self._call(on_verdict)

    def size(self) -> int:
        """Return how many bytes came so far."""
        return len(self._data)

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position; see ``PodLog``."""
        with self._changed:
            data = bytes(self._data[start : start + length])
            if not data and self.is_over:
                raise ConnectionError("the log of this pod goes no further here")
            return data

    def stop(self) -> None:
        """End it; whoever reads is sent to the store."""
        with self._changed:
            self.is_over = True
        self._tail.stop()

    def _run(self) -> None:
        try:
            size = 0
            for piece in self._tail.pieces():
                size += len(piece) + _LINE_BYTES * (piece.count(b"\n") + len(piece) // _PIECE_BYTES)
                self._take(piece)
                if size > MOST_BYTES or self.reader.is_lost:
                    self._tail.is_final = True
                    break
        finally:
            if self._tail.is_final:
                self._useless.add(self._uid)
            with self._changed:
                self.is_over = True
                self._changed.notify_all()

    def _take(self, piece: bytes) -> None:
        with self._changed:
            knew = self.reader.has_verdict
            self._data += self.reader.read(piece)
            on_verdict = self._on_verdict if self.reader.has_verdict and not knew else None
            self._changed.notify_all()
        if on_verdict is not None:
            self._call(on_verdict)

    def _call(self, on_verdict: OnVerdict) -> None:
        try:
            on_verdict()
        except Exception:  # noqa: BLE001 - the log goes on, and whoever waits looks by itself
            _log().exception("whoever waits for a job could not be told that it has ended")


class PodLog:
    """The log of a pod that runs, as it grows, for one reader. When nobody holds it any more, it is closed.

    Attributes:
        is_complete: False: the store has the rest.
    """

    is_complete = False

    def __init__(self, following: LogFollower) -> None:
        self._following = following
        self._end = weakref.finalize(self, following.stop)
        self._end.atexit = False

    def size(self) -> int:
        """Return how many bytes came so far."""
        return self._following.size()

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position; none when more may come.

        Raises:
            OSError: No more comes here.
        """
        return self._following.read(start, length)

    def close(self) -> None:
        """Follow no longer."""
        self._end()


def _log() -> logging.Logger:
    import logging  # 5 ms; only when there is something to tell

    return logging.getLogger("kinetic.kube")


_BLOCK_SECONDS = 0.3  # for the line that says whose log it is
_LAST_LINES = 5  # of a container's output, among which its runner's last word is
_FORGET_SECONDS = 15.0  # after which nobody asks any more for a log that was about to be opened


class _KnownPods:
    """What is known of the pods of one cluster, in one process.

    Attributes:
        attempts: Which attempt a pod carries out, by its uid.
        useless: Pods whose log cannot be followed any more.
        lost: Pods whose log has no beginning any more.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.attempts: dict[str, pod_log_format.Claim] = {}
        self.useless: set[str] = set()
        self.lost: set[str] = set()
        self._lock = threading.Lock()
        self._opening: dict[str, tuple[LogFollower, threading.Timer]] = {}

    def take(self, client: Client, pod: Object) -> LogFollower:
        """Return what is being opened for a pod, for this caller alone; else begin."""
        with self._lock:
            following, timer = self._opening.pop(_uid(pod), (None, None))
        if timer is not None:
            timer.cancel()
        return following or LogFollower(client, object_status.object_name(pod), _uid(pod), self.useless)

    def keep(self, pod: Object, following: LogFollower) -> None:
        """Keep what is not open yet for whoever asks next, a while."""
        timer = threading.Timer(_FORGET_SECONDS, self._forget, (_uid(pod), following))
        timer.daemon = True
        with self._lock:
            other, _ = self._opening.setdefault(_uid(pod), (following, timer))
        if other is following:
            timer.start()
        else:
            following.stop()

    def _forget(self, uid: str, following: LogFollower) -> None:
        with self._lock:
            if self._opening.get(uid, (None,))[0] is not following:
                return  # somebody took it meanwhile
            del self._opening[uid]
        following.stop()


_known_logs: weakref.WeakKeyDictionary[Client, _KnownPods] = weakref.WeakKeyDictionary()


def snapshot(client: Client, pods: Sequence[Object], *, host: int, attempt: int) -> BytesLog | None:
    """Return the log of an attempt as it is now, or None when only the store may have it.

    Args:
        client: Of the cluster.
        pods: Those of the job.
        host: Which host.
        attempt: Which attempt.
    """
    known = _known_pods(client)
    with contextlib.suppress(KineticError):
        for pod in _candidates(client, pods, host, attempt):
            if _uid(pod) in known.lost:
                continue
            reader = pod_log_format.Reader()
            data = reader.read(read_log(client, object_status.object_name(pod)) or b"")
            if reader.claim is not None:
                known.attempts[_uid(pod)] = reader.claim
            if reader.is_lost:
                known.lost.add(_uid(pod))
            elif (found := reader.claim) and (found.attempt, found.host) == (attempt, host):
                return BytesLog(data)
    return None


def last_log(client: Client, pods: Sequence[Object], *, host: int, attempt: int) -> BytesLog | None:
    """Return the log of an attempt whose container was killed as a whole, or None.

    A runner that ends by itself brings the log into the store; then nothing is read here.

    Args:
        client: Of the cluster.
        pods: Those of the job.
        host: Which host.
        attempt: Which attempt.
    """
    known = _known_pods(client).attempts
    with contextlib.suppress(KineticError):
        for pod, ended in _killed(pods, host):
            uid = f"{_uid(pod)}/{ended.get('containerID') or ''}"
            claim = known.get(uid)
            if claim is not None and (claim.attempt, claim.host) != (attempt, host):
                continue
            reader = pod_log_format.Reader()
            output = read_log(client, object_status.object_name(pod), previous=is_running(pod)) or b""
            data = reader.read(output) + reader.rest()
            if reader.claim is not None:
                known[uid] = reader.claim
                if (reader.claim.attempt, reader.claim.host) == (attempt, host):
                    return BytesLog(data)
    return None


def waiting_reason(client: Client, pod: str) -> str:
    """Return what a pod says that it waits for, its function having returned; "" for one that does not."""
    output = b""
    with contextlib.suppress(KineticError):
        output = read_log(client, pod, last_lines=_LAST_LINES) or b""
    begins = pod_log_format.RUNNER_PREFIX.encode()
    said = [line.removeprefix(begins) for line in output.splitlines() if line.startswith(begins)]
    found = said[-1].decode(errors="replace") if said else ""
    return found if found.startswith(attempts.FINISHED) else ""


def _killed(pods: Sequence[Object], host: int) -> Iterator[tuple[Object, Object]]:
    """Yield the pods of a host whose runner did not end by itself, the newest first, and how each ended."""
    for pod in sorted(
        pods, key=lambda pod: (object_status.created_at(pod), object_status.object_name(pod)), reverse=True
    ):
        ended = object_status.terminated(pod)
        if (
            object_status.host_index(pod) == host
            and ended is not None
            and ended.get("exitCode") not in {0, FAILED_EXIT}
        ):
            yield pod, ended


def follow_live(
    client: Client, pods: Sequence[Object], *, host: int, attempt: int, on_verdict: OnVerdict
) -> PodLog | None:
    """Follow the log of an attempt from its beginning, or return None when only the store may have it.

    None is also what a pod gets that has not said yet which attempt it carries out: ask again in a second.

    Args:
        client: Of the cluster.
        pods: Those of the job.
        host: Which host.
        attempt: Which attempt.
        on_verdict: Called on another thread when the pod says that the verdict is in the store.
    """
    known, limit = _known_pods(client), time.monotonic() + _BLOCK_SECONDS
    for pod in _candidates(client, pods, host, attempt):
        if _uid(pod) in known.useless:
            continue
        following = known.take(client, pod)
        claim = following.wait_for_claim(max(0.0, limit - time.monotonic()))
        if claim is None and not following.is_over:
            known.keep(pod, following)
            return None
        if claim is not None:
            known.attempts[_uid(pod)] = claim
        if claim is not None and (claim.attempt, claim.host) == (attempt, host):
            following.tell(on_verdict)
            return PodLog(following)
        following.stop()
    return None


def _candidates(client: Client, pods: Sequence[Object], host: int, attempt: int) -> Iterator[Object]:
    """Yield the pods that may carry out an attempt now, the newest first."""
    known = _known_pods(client).attempts
    ours = [pod for pod in pods if object_status.host_index(pod) == host and is_running(pod)]
    for pod in sorted(
        ours, key=lambda pod: (object_status.created_at(pod), object_status.object_name(pod)), reverse=True
    ):
        claim = known.get(_uid(pod))
        if claim is None or (claim.attempt, claim.host) == (attempt, host):
            yield pod


def _known_pods(client: Client) -> _KnownPods:
    found = _known_logs.get(client)
    if found is None or found.process != os.getpid():  # threads do not come along when a process forks
        found = _known_logs[client] = _KnownPods()
    return found


def _uid(pod: Object) -> str:
    """Return what tells a pod, and a container that was started again in it, from any other."""
    about = pod.get("metadata") or {}
    return f"{about.get('uid') or about.get('name')}/{object_status.main_container(pod).get('containerID') or ''}"

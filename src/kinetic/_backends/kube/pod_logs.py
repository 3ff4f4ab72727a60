"""The log of a container while its pod exists: as it is now, or followed as it grows."""

from __future__ import annotations

import contextlib
import hashlib
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
from kinetic._backends.protocol import BytesLog
from kinetic._runner.supervisor import attempts
from kinetic._wire import keys, pod_log_format
from kinetic._wire.pod_log_format import Claim
from kinetic._wire.task import FAILED_EXIT
from kinetic.errors import AccessDeniedError, KineticError

if TYPE_CHECKING:
    import logging

    from kinetic._backends.kube.client import Client
    from kinetic._backends.kube.http_connection import Response


# In the object of a pod that has many jobs: which is meant, and a time by the node's clock before all of its lines.
WARM_JOB, WARM_SINCE = "warm-job", "warm-since"
SKEW_SECONDS = 60.0  # a node's clock may be so much behind the server's
_STEP_SECONDS = 2.0  # and so much may be the difference between two clocks of one node


def _since(pod: Object) -> dict[str, str | int | bool]:
    """Return what of a pod's log to ask for: of a warm pod nothing older than the job."""
    found = pod.get(WARM_SINCE)
    return {"sinceTime": keys.format_utc(found - _STEP_SECONDS)} if found else {}


def read_log(
    client: Client, pod: str, *, last_lines: int | None = None, previous: bool = False, of: Object | None = None
) -> bytes | None:
    """Return what a pod's log has now, or None when there is no such pod or nothing has started in it."""
    query: dict[str, str | int | bool] = {"container": CONTAINER, **_since(of or {})}
    query |= {"tailLines": last_lines} if last_lines is not None else {}
    query |= {"previous": True} if previous else {}
    reply = client.transport.send("GET", POD.path(client.namespace, pod, "log"), query=query)
    if reply.status in {400, 404}:  # 400: "waiting to start", or no container before this one
        return None
    if reply.status != 200:
        raise client.error_for("get", POD, pod, reply)
    return reply.body


# ----------------------------------------------------------------------------------------------------------- following

SILENCE_SECONDS = 300.0  # a job may be silent for hours; a connection that is silent this long is opened anew
_MOST_FAILURES = 8
# A kubelet rotates a log at 10 MiB, with what it writes before each line and each 16 KiB of one, and serves what is in
# the newest file only. A follower is not told what it lost at that moment; so beyond this the store is read.
MOST_BYTES = 9_500_000
_LINE_BYTES, _PIECE_BYTES = 48, 16_000

_LAST_LINES = 5  # of a container's output, among which its runner's last word is
OnVerdict = Callable[[], object]


class _SeenBytes:
    """What came so far, of which each new connection repeats the whole."""

    def __init__(self) -> None:
        self._count = 0
        self._digest = hashlib.sha256()
        self._expected, self._repeated = 0, hashlib.sha256()

    def restart(self) -> None:
        self._expected, self._repeated = self._count, hashlib.sha256()

    def new(self, piece: bytes) -> bytes | None:
        """Return the part of a piece that did not come before; None when what came before differs now."""
        if self._expected:
            known, piece = piece[: self._expected], piece[self._expected :]
            self._repeated.update(known)
            self._expected -= len(known)
            if not self._expected and self._repeated.digest() != self._digest.digest():
                return None
        self._count += len(piece)
        self._digest.update(piece)
        return piece


class LogFollower:
    """Reads the log of one container on a thread, as it grows, until it is stopped or the container ends."""

    _last_lines: int | None = None

    def __init__(self, client: Client, pod: Object, useless: set[str]) -> None:
        self.reader = pod_log_format.Reader(str(pod.get(WARM_JOB) or ""))  # knows whose log it is
        self.is_over = False  # whether no more comes
        self._since = _since(pod)
        self._client, self._pod = client, object_status.object_name(pod)
        self._uid, self._useless = _uid(pod), useless
        self._data = bytearray()
        self._changed = threading.Condition()
        self._answer: Response | None = None
        self._on_verdict: OnVerdict | None = None
        threading.Thread(target=self._run, name="kinetic-pod-log", daemon=True).start()

    def wait_for_claim(self, seconds: float) -> Claim | None:
        """Return whose log it is, as soon as that is known."""
        with self._changed:
            self._changed.wait_for(lambda: self.reader.claim or self.is_over, seconds)
            return self.reader.claim

    def notify_of_verdict(self, on_verdict: OnVerdict) -> None:
        """Call a function once there is a verdict."""
        with self._changed:
            self._on_verdict = on_verdict
            has_verdict = self.reader.has_verdict
        if has_verdict:
            self._call(on_verdict)

    def size(self) -> int:
        return len(self._data)

    def read(self, start: int, length: int) -> bytes:
        with self._changed:
            data = bytes(self._data[start : start + length])
            if not data and self.is_over:
                raise ConnectionError("the pod has no more of this log")
            return data

    def stop(self) -> None:
        """End it, from any thread, also while nothing comes; readers continue in the store."""
        with self._changed:
            self.is_over = True
            if self._answer is not None:
                self._answer.abort()

    def _run(self) -> None:
        is_useless = False
        try:
            is_useless = self._follow()
        finally:
            if is_useless:
                self._useless.add(self._uid)
            with self._changed:
                self.is_over = True
                self._changed.notify_all()

    def _follow(self) -> bool:
        """Read the log to its end; return whether it makes no sense to follow this container again."""
        seen, size, failures = _SeenBytes(), 0, 0
        while not self.is_over and failures <= _MOST_FAILURES:
            seen.restart()
            try:
                for piece in self._stream(may_have_moved=not failures):
                    new = seen.new(piece)
                    if new is None:
                        return True
                    if new:
                        failures = 0
                        size += len(new) + _LINE_BYTES * (new.count(b"\n") + len(new) // _PIECE_BYTES)
                        self._take(new)
                        if size > MOST_BYTES or self.reader.is_lost:
                            return True
                        if self.reader.is_over:
                            return False
                    if self.is_over:
                        return False
                found = self._client.get(POD, self._pod)  # a server that restarts ends streams, too
                if found is None or not object_status.is_running(found):
                    return True
            except AccessDeniedError:
                return True
            except KineticError:
                return False
            except ConnectionError:
                pass
            self._client.transport.pause(failures)
            failures += 1
        return False

    def _stream(self, *, may_have_moved: bool) -> Iterator[bytes]:
        query: dict[str, str | int | bool] = {"container": CONTAINER, "follow": True, **self._since}
        query |= {"tailLines": self._last_lines} if self._last_lines is not None else {}
        with self._client.transport.stream(
            POD.path(self._client.namespace, self._pod, "log"),
            query=query,
            silence_seconds=SILENCE_SECONDS,
            may_have_moved=may_have_moved,
        ) as answer:
            if answer.status != 200:
                if answer.status in {400, 404}:  # nothing has started there yet, or it is gone
                    return
                if answer.status in RETRYABLE_STATUSES:
                    raise ConnectionError(f"HTTP {answer.status}")
                raise self._client.error_for("get", POD, self._pod, Reply(answer.status, answer.read()))
            with self._changed:
                self._answer = answer
            try:
                if not self.is_over:
                    yield from answer.pieces()
            finally:
                with self._changed:
                    self._answer = None

    def _take(self, piece: bytes) -> None:
        with self._changed:
            had_verdict = self.reader.has_verdict
            self._data += self.reader.read(piece)
            on_verdict = self._on_verdict if self.reader.has_verdict and not had_verdict else None
            self._changed.notify_all()
        if on_verdict is not None:
            self._call(on_verdict)

    def _call(self, on_verdict: OnVerdict) -> None:
        try:
            on_verdict()
        except Exception:  # noqa: BLE001 - the log continues, and those who wait look by themselves
            _log().exception("cannot notify those who wait for a job that it has ended")


class VerdictFollower(LogFollower):
    """Follows the end of a container's log, and keeps nothing of it, until it says that there is a verdict.

    The cluster itself says so a second later: the controller of Jobs counts pods once a second.
    """

    _last_lines = _LAST_LINES

    def __init__(self, client: Client, pod: Object, useless: set[str], on_verdict: OnVerdict) -> None:
        self._notify = on_verdict
        job_id = pod.get(WARM_JOB)
        said = pod_log_format.verdict_of(job_id) if job_id else pod_log_format.VERDICT
        self._line = f"\n{pod_log_format.RUNNER_PREFIX}{said}".encode()
        super().__init__(client, pod, useless)

    def _follow(self) -> bool:
        """Read until there is a verdict; one that is cut off is not repeated: the Job will tell."""
        held = b"\n"
        try:
            for piece in self._stream(may_have_moved=False):
                held += piece
                if self._line in held:
                    self._call(self._notify)
                    break
                held = held[-len(self._line) :]
        except AccessDeniedError:
            return True
        except (KineticError, ConnectionError):
            pass
        return False


def _log() -> logging.Logger:
    import logging  # 5 ms; only when there is something to log

    return logging.getLogger("kinetic.kube")


class PodLog:
    """The log of a pod that runs, as it grows, for one reader, until the reader drops it; the store has the rest."""

    is_complete = False

    def __init__(self, follower: LogFollower) -> None:
        self.size, self.read = follower.size, follower.read
        self.close = weakref.finalize(self, follower.stop)
        self.close.atexit = False


# ------------------------------------------------------------------------------------------------------ whose log it is

BLOCK_SECONDS = 0.3  # for the line that says whose log it is
_FORGET_SECONDS = 15.0  # after which a log that was about to be opened is no longer wanted


class _KnownPods:
    """What this process knows of the pods of one cluster, by their uids."""

    def __init__(self) -> None:
        self.claims: dict[str, Claim] = {}  # which attempt a pod carries out
        self.useless: set[str] = set()  # their log cannot be followed any more
        self.lost: set[str] = set()  # their log has no beginning any more
        self._lock = threading.Lock()
        self._opening: dict[str, tuple[LogFollower, threading.Timer]] = {}

    def take(self, client: Client, pod: Object) -> LogFollower:
        """Return what is being opened for a pod, for this caller alone; else begin."""
        with self._lock:
            follower, timer = self._opening.pop(_uid(pod), (None, None))
        if timer is not None:
            timer.cancel()
        return follower or LogFollower(client, pod, self.useless)

    def keep(self, pod: Object, follower: LogFollower) -> None:
        """Keep what is not open yet for the next caller, a while."""
        timer = threading.Timer(_FORGET_SECONDS, self._forget, (_uid(pod), follower))
        timer.daemon = True
        with self._lock:
            other, _ = self._opening.setdefault(_uid(pod), (follower, timer))
        if other is follower:
            timer.start()
        else:
            follower.stop()

    def _forget(self, uid: str, follower: LogFollower) -> None:
        with self._lock:
            if self._opening.get(uid, (None,))[0] is not follower:
                return  # another caller took it meanwhile
            del self._opening[uid]
        follower.stop()

    def note(self, uid: str, reader: pod_log_format.Reader) -> None:
        """Remember whose log a reader found."""
        if reader.claim is not None:
            self.claims[uid] = reader.claim

    def may_carry_out(self, pod: Object, host: int, attempt: int) -> bool:
        """Return whether a pod may carry out an attempt now."""
        if object_status.host_index(pod) != host or not object_status.is_running(pod):
            return False
        return _is_of(self.claims.get(_uid(pod)), host, attempt) is not False


# A forked child has other clients, see kube.connection, and so knows no pods, whose threads it would not have.
_known_pods: weakref.WeakKeyDictionary[Client, _KnownPods] = weakref.WeakKeyDictionary()


def _is_of(claim: Claim | None, host: int, attempt: int) -> bool | None:
    """Return whether a log is that of an attempt; None while that is not known."""
    return None if claim is None else (claim.attempt, claim.host) == (attempt, host)


def _uid(pod: Object) -> str:
    """Return what distinguishes a pod, and a container that was restarted in it, from any other."""
    about = pod.get("metadata") or {}
    container = object_status.main_container(pod).get("containerID") or ""
    return f"{about.get('uid') or about.get('name')}/{container}/{pod.get(WARM_JOB) or ''}"


def snapshot(client: Client, pods: Sequence[Object], *, host: int, attempt: int) -> BytesLog | None:
    """Return the log of an attempt as it is now, or None when only the store may have it."""
    known = _known_pods.setdefault(client, _KnownPods())
    with contextlib.suppress(KineticError):
        for pod in object_status.newest_first(pods):
            uid = _uid(pod)
            if uid in known.lost or not known.may_carry_out(pod, host, attempt):
                continue
            reader = pod_log_format.Reader(str(pod.get(WARM_JOB) or ""))
            output = read_log(client, object_status.object_name(pod), of=pod) or b""
            data = reader.read(output)
            known.note(uid, reader)
            if reader.is_lost:
                known.lost.add(uid)
            elif _is_of(reader.claim, host, attempt):
                return BytesLog(data, is_complete=False)
    return None


def last_log(client: Client, pods: Sequence[Object], *, host: int, attempt: int) -> BytesLog | None:
    """Return the log of an attempt whose container was killed as a whole, or None.

    A runner that ends by itself brings the log into the store; then nothing is read here.
    """
    known = _known_pods.setdefault(client, _KnownPods())
    with contextlib.suppress(KineticError):
        for pod in object_status.newest_first(pods):
            ended = object_status.terminated(pod)
            if object_status.host_index(pod) != host or ended is None or ended.get("exitCode") in {0, FAILED_EXIT}:
                continue
            uid = f"{_uid(pod)}/{ended.get('containerID') or ''}"
            if _is_of(known.claims.get(uid), host, attempt) is False:
                continue
            reader = pod_log_format.Reader(str(pod.get(WARM_JOB) or ""))
            previous = object_status.is_running(pod)
            output = read_log(client, object_status.object_name(pod), previous=previous, of=pod) or b""
            data = reader.read(output) + reader.rest()
            known.note(uid, reader)
            if _is_of(reader.claim, host, attempt):
                return BytesLog(data, is_complete=False)
    return None


def follow_live(
    client: Client,
    pods: Sequence[Object],
    *,
    host: int,
    attempt: int,
    on_verdict: OnVerdict,
    block_seconds: float = BLOCK_SECONDS,
) -> PodLog | None:
    """Follow the log of an attempt from its beginning, or return None when only the store may have it.

    None is also the answer for a pod that does not say yet which attempt it carries out: ask again in a second.
    `on_verdict` is called on another thread when the pod says that the verdict is in the store.
    """
    known, limit = _known_pods.setdefault(client, _KnownPods()), time.monotonic() + block_seconds
    for pod in object_status.newest_first(pods):
        if _uid(pod) in known.useless or not known.may_carry_out(pod, host, attempt):
            continue
        follower = known.take(client, pod)
        claim = follower.wait_for_claim(max(0.0, limit - time.monotonic()))
        if claim is None and not follower.is_over:
            known.keep(pod, follower)
            return None
        known.note(_uid(pod), follower.reader)
        if _is_of(claim, host, attempt):
            follower.notify_of_verdict(on_verdict)
            return PodLog(follower)
        follower.stop()
    return None


def follow_verdict(client: Client, pods: Sequence[Object], on_verdict: OnVerdict) -> VerdictFollower | None:
    """Call a function on another thread when the leader of a job says that there is a verdict; None if none runs."""
    useless = _known_pods.setdefault(client, _KnownPods()).useless
    for pod in object_status.newest_first(pods):
        if object_status.host_index(pod) == 0 and object_status.is_running(pod) and _uid(pod) not in useless:
            return VerdictFollower(client, pod, useless, on_verdict)
    return None


def waiting_reason(client: Client, pod: str) -> str:
    """Return what a pod waits for whose function has returned, as it says itself; "" for any other."""
    output = b""
    with contextlib.suppress(KineticError):
        output = read_log(client, pod, last_lines=_LAST_LINES) or b""
    prefix = pod_log_format.RUNNER_PREFIX.encode()
    lines = [line.removeprefix(prefix) for line in output.splitlines() if line.startswith(prefix)]
    last = lines[-1].decode(errors="replace") if lines else ""
    return last if last.startswith(attempts.FINISHED) else ""

"""The log of a job while its pod runs, with the same positions as in the store: of what the cluster serves, the user's.

Everything here may answer None: then the store is asked, which has the log of every pod, some seconds later. Only where
the runner itself was killed, the store lacks what was printed last; its pod has that until it is gone.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kinetic._backends.kube import pod_logs, reading
from kinetic._backends.kube.following import BytesLog, Following, OnVerdict, PodLog
from kinetic._backends.kube.reading import Object
from kinetic._backends.kube.tailing import is_running
from kinetic._runner import patience
from kinetic._wire import podlog
from kinetic._wire.pod import FAILED_EXIT
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client

_BLOCK_SECONDS = 0.3  # for the line that says whose log it is
_LAST_LINES = 5  # of a container's output, among which its runner's last word is
_FORGET_SECONDS = 15.0  # after which nobody asks any more for a log that was about to be opened


class _Known:
    """What is known of the pods of one cluster, in one process.

    Attributes:
        attempts: Which attempt a pod carries out, by its uid.
        useless: Pods whose log cannot be followed any more.
        lost: Pods whose log has no beginning any more.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.attempts: dict[str, podlog.Claim] = {}
        self.useless: set[str] = set()
        self.lost: set[str] = set()
        self._lock = threading.Lock()
        self._opening: dict[str, tuple[Following, threading.Timer]] = {}

    def take(self, client: Client, pod: Object) -> Following:
        """Return what is being opened for a pod, for this caller alone; else begin."""
        with self._lock:
            following, timer = self._opening.pop(_uid(pod), (None, None))
        if timer is not None:
            timer.cancel()
        return following or Following(client, reading.name(pod), _uid(pod), self.useless)

    def keep(self, pod: Object, following: Following) -> None:
        """Keep what is not open yet for whoever asks next, a while."""
        timer = threading.Timer(_FORGET_SECONDS, self._forget, (_uid(pod), following))
        timer.daemon = True
        with self._lock:
            other, _ = self._opening.setdefault(_uid(pod), (following, timer))
        if other is following:
            timer.start()
        else:
            following.stop()

    def _forget(self, uid: str, following: Following) -> None:
        with self._lock:
            if self._opening.get(uid, (None,))[0] is not following:
                return  # somebody took it meanwhile
            del self._opening[uid]
        following.stop()


_known: weakref.WeakKeyDictionary[Client, _Known] = weakref.WeakKeyDictionary()


def snapshot(client: Client, pods: Sequence[Object], *, host: int, attempt: int) -> BytesLog | None:
    """Return the log of an attempt as it is now, or None when only the store may have it.

    Args:
        client: Of the cluster.
        pods: Those of the job.
        host: Which host.
        attempt: Which attempt.
    """
    known = _of(client)
    with contextlib.suppress(KineticError):
        for pod in _candidates(client, pods, host, attempt):
            if _uid(pod) in known.lost:
                continue
            reader = podlog.Reader()
            data = reader.read(pod_logs.read(client, reading.name(pod)) or b"")
            if reader.claim is not None:
                known.attempts[_uid(pod)] = reader.claim
            if reader.is_lost:
                known.lost.add(_uid(pod))
            elif (found := reader.claim) and (found.attempt, found.host) == (attempt, host):
                return BytesLog(data)
    return None


def last(client: Client, pods: Sequence[Object], *, host: int, attempt: int) -> BytesLog | None:
    """Return the log of an attempt whose container was killed as a whole, or None.

    A runner that ends by itself brings the log into the store; then nothing is read here.

    Args:
        client: Of the cluster.
        pods: Those of the job.
        host: Which host.
        attempt: Which attempt.
    """
    known = _of(client).attempts
    with contextlib.suppress(KineticError):
        for pod, ended in _killed(pods, host):
            uid = f"{_uid(pod)}/{ended.get('containerID') or ''}"
            claim = known.get(uid)
            if claim is not None and (claim.attempt, claim.host) != (attempt, host):
                continue
            reader = podlog.Reader()
            output = pod_logs.read(client, reading.name(pod), previous=is_running(pod)) or b""
            data = reader.read(output) + reader.rest()
            if reader.claim is not None:
                known[uid] = reader.claim
                if (reader.claim.attempt, reader.claim.host) == (attempt, host):
                    return BytesLog(data)
    return None


def waits_for(client: Client, pod: str) -> str:
    """Return what a pod says that it waits for, its function having returned; "" for one that does not."""
    output = b""
    with contextlib.suppress(KineticError):
        output = pod_logs.read(client, pod, last_lines=_LAST_LINES) or b""
    begins = podlog.SAID.encode()
    said = [line.removeprefix(begins) for line in output.splitlines() if line.startswith(begins)]
    found = said[-1].decode(errors="replace") if said else ""
    return found if found.startswith(patience.FINISHED) else ""


def _killed(pods: Sequence[Object], host: int) -> Iterator[tuple[Object, Object]]:
    """Yield the pods of a host whose runner did not end by itself, the newest first, and how each ended."""
    for pod in sorted(pods, key=lambda pod: (reading.made(pod), reading.name(pod)), reverse=True):
        ended = reading.terminated(pod)
        if reading.host(pod) == host and ended is not None and ended.get("exitCode") not in {0, FAILED_EXIT}:
            yield pod, ended


def follow(client: Client, pods: Sequence[Object], *, host: int, attempt: int, on_verdict: OnVerdict) -> PodLog | None:
    """Follow the log of an attempt from its beginning, or return None when only the store may have it.

    None is also what a pod gets that has not said yet which attempt it carries out: ask again in a second.

    Args:
        client: Of the cluster.
        pods: Those of the job.
        host: Which host.
        attempt: Which attempt.
        on_verdict: Called on another thread when the pod says that the verdict is in the store.
    """
    known, limit = _of(client), time.monotonic() + _BLOCK_SECONDS
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
    known = _of(client).attempts
    ours = [pod for pod in pods if reading.host(pod) == host and is_running(pod)]
    for pod in sorted(ours, key=lambda pod: (reading.made(pod), reading.name(pod)), reverse=True):
        claim = known.get(_uid(pod))
        if claim is None or (claim.attempt, claim.host) == (attempt, host):
            yield pod


def _of(client: Client) -> _Known:
    found = _known.get(client)
    if found is None or found.process != os.getpid():  # threads do not come along when a process forks
        found = _known[client] = _Known()
    return found


def _uid(pod: Object) -> str:
    """Return what tells a pod, and a container that was started again in it, from any other."""
    about = pod.get("metadata") or {}
    return f"{about.get('uid') or about.get('name')}/{reading.container(pod).get('containerID') or ''}"

"""The hosts of a slice: which attempt they are in, what they report to each other, how the leader comes to a verdict.

Hosts meet at keys of the store that each host writes for itself:

    {job_id}/hosts/{attempt}/{host}.begun.{seal}        it began
    {job_id}/hosts/{attempt}/{host}.succeeded.{seal}    how it ended: an Outcome, sealed, with the pickled exception
    {job_id}/hosts/{attempt}/{host}.failed.{seal}
    {job_id}/hosts/{attempt}/{host}.preempted.{seal}
    {job_id}/hosts/{attempt}/0.call.{seal}              the leader asks which hosts are still there
    {job_id}/hosts/{attempt}/{host}.here.{seal}         the answer

    {job_id}/hosts/{attempt}/0/address                  where the leader listens for notifications

Each name carries its seal, so one listing is verified without reading an object, and a forged report does not count.
Only the leader makes the verdict.

A host that writes a report notifies the others, so that none waits for the next poll. The leader listens at its pod's
address, and the others connect. A notification carries nothing: the report is in the store, sealed, and a stranger's
notification costs one listing. If no connection is possible, because a network policy forbids it or a pod has no
address, hosts poll every few seconds, as they do anyway.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Protocol

from kinetic._runner.pod import cluster_api
from kinetic._runner.pod.cluster_api import ACCOUNT_FOLDER
from kinetic._runner.pod.container import HostInPod
from kinetic._runner.pod.log_pump import say
from kinetic._runner.supervisor import attempts, verdicts
from kinetic._runner.supervisor.attempts import FOREVER
from kinetic._runner.supervisor.supervise import Decision, Source, store_patiently
from kinetic._runner.supervisor.verdicts import PREEMPTED, Ending
from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Store
from kinetic._wire import dataclass, digests, documents, fields, keys, outcomes
from kinetic._wire.outcomes import FAILED, HOST_PURPOSE, SUCCEEDED, AttemptNote, Outcome
from kinetic._wire.task import FAILED_EXIT, INFRASTRUCTURE_EXIT, POD_VARIABLE, PodSettings, Task
from kinetic.errors import KineticError

BEGUN, HERE, CALL = "begun", "here", "call"

_ENDS = (SUCCEEDED, FAILED, PREEMPTED)
_SLICE_VERDICT_SECONDS = 120.0  # for the leader to come to its verdict, after a host has reported that it failed
_RING = b"."
_CONNECT_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_IDLE_SECONDS = 60  # after which the kernel checks whether the other end is still there
_FIRST_LOOK, _LONGEST_LOOK = 0.05, 3.2  # between two looks whether the leader has begun; doubled each time
_TOLD_LOOK = 0.8  # the one before which a line says what is waited for
_POD, _LEADER, _RESTARTS = "pod_uid", "addresses", "restarts"  # of the leader, in the note of an attempt
_FIELDS = {"host": fields.text(fields.NAME), "port": fields.integer(1, 65_535)}


# -------------------------------------------------------------------------------------------------------------- reports


@dataclass(frozen=True)
class HostRoster:
    """What is known of every host at one moment."""

    begun: frozenset[int] = frozenset()
    here: frozenset[int] = frozenset()  # have answered the leader's call
    ended: dict[int, str] = field(default_factory=dict)  # how

    @property
    def trouble(self) -> bool:
        return any(status != SUCCEEDED for status in self.ended.values())

    @property
    def preempted(self) -> list[int]:
        return sorted(host for host, status in self.ended.items() if status == PREEMPTED)

    def missing(self) -> list[int]:
        """Return the hosts that had begun, have not ended, and do not answer."""
        return sorted(self.begun - self.here - set(self.ended))

    def all_ended(self, hosts: int) -> bool:
        return set(range(1, hosts)) <= set(self.ended)


class Peers:
    def __init__(self, store: Store, job_id: str, attempt: int, host: int) -> None:
        self._store, self._job_id, self._attempt, self._host = store, job_id, attempt, host
        self.key = b""  # the job's, which verifies what the others write; empty until the worker has been forked
        self.notify: Callable[[], object] = lambda: None  # until there is a notifier
        self.roster = HostRoster()  # as it was read last
        self.has_ended = False  # whether this host has reported how it ended

    def begin(self, key: bytes) -> None:
        """Report that this host has begun; the key is used for this alone."""
        self._store.put(self._place(self._host, BEGUN, key), b"")

    def has_begun(self, key: bytes) -> bool:
        """Return whether this host has reported, maybe in an earlier life, that it began; for ``key`` see ``begin``."""
        return self._store.size(self._place(self._host, BEGUN, key)) is not None

    def report(self, ended: Outcome, body: Path | None = None) -> None:
        """Report how this host ended; a body that is there goes along."""
        content: bytes | Path
        if not ended.body_length or body is None:
            content = replace(ended, body_length=0, body_sha256="").footer(self.key, HOST_PURPOSE)
        else:
            with body.open("r+b") as file:
                file.truncate(ended.body_length)
                file.seek(ended.body_length)
                file.write(ended.footer(self.key, HOST_PURPOSE))
            content = body
        self._store.put(self._place(self._host, ended.status), content)
        self.has_ended = True
        self.notify()

    def call(self) -> None:
        self._store.put(self._place(0, CALL), b"")
        self.notify()

    def answer(self) -> None:
        if self._store.size(self._place(0, CALL)) is not None:
            self._store.put(self._place(self._host, HERE), b"")
            self.notify()

    def read(self) -> HostRoster:
        """Read what all hosts reported, with one listing; what the job's key did not seal is ignored."""
        begun, here, ended = set(), set(), {}
        for entry in self._store.entries(keys.hosts(self._job_id, self._attempt)):
            host, word = keys.parse_host(entry.key) or (self._host, "")
            if host == self._host or entry.key != self._place(host, word):
                continue
            if word in _ENDS:
                ended[host] = word
            elif word == BEGUN:
                begun.add(host)
            elif word == HERE:
                here.add(host)
        self.roster = HostRoster(frozenset(begun), frozenset(here), ended)
        return self.roster

    def reports(self) -> list[Outcome]:
        """Return the reports of the hosts that succeeded or failed, as far as they can be read, in their order."""
        hosts = [(host, status) for host, status in sorted(self.roster.ended.items()) if status != PREEMPTED]
        found = in_parallel(self._store, (functools.partial(self._read_report, *each) for each in hosts))
        return sorted(filter(None, found), key=lambda ended: ended.host)

    def why_preempted(self) -> str:
        """Return why this attempt has no verdict: a host could not fetch what it needs, or was taken away."""
        for host in self.roster.preempted:
            report = self._read_report(host, PREEMPTED)
            why = str(report.error.get("message")) if report is not None else ""
            if why.startswith(verdicts.OUT_OF_REACH):  # the next attempts count it, whichever host was first
                return f"{why} (host {host})"
        return f"host {self.roster.preempted[0]} was taken away"

    def fetch_body(self, ended: Outcome, to: Path) -> Path | None:
        """Fetch the pickled exception of a host; None when there is none, or it is not what was sealed."""
        if not ended.body_length:
            return None
        self._store.fetch(self._place(ended.host, ended.status), to)
        with to.open("rb") as file:
            found = digests.of_stream(file, ended.body_length)
        return to if found == ended.body_sha256 else None

    def _place(self, host: int, word: str, key: bytes = b"") -> str:
        """Return the key of one report of one host: its seal is part of the name."""
        return documents.sealed_name(keys.host(self._job_id, self._attempt, host), word, key or self.key)

    def _read_report(self, host: int, status: str) -> Outcome | None:
        place = self._place(host, status)

        def read_range(start: int, length: int) -> bytes:
            return self._store.get(place, start=start, length=length)

        with contextlib.suppress(KineticError):  # an unreadable report of one host must not prevent a verdict
            read = outcomes.read(self._store.size(place) or 0, read_range, self.key, HOST_PURPOSE)
            if (read.job_id, read.attempt, read.host, read.status) == (self._job_id, self._attempt, host, status):
                return read
        return None


# ------------------------------------------------------------------------------------------------------------- attempt


def claim_in_group(source: Host, note: AttemptNote, key: bytes) -> AttemptNote | None:
    """Make the next attempt, as the leader, or join it. Returns None if there is a verdict.

    Nothing counts how often all hosts have begun: the number of a JobSet's restarts stays when Kueue takes its machines
    away, and the other kinds have none. So a host that is there before its leader must not join the attempt before: the
    number is another one, or it has begun in that one, or the leader's name has another address by now. If it joins
    all the same, it leaves once the next attempt is there.
    """
    is_leader, pod = source.place.host == 0, source.environ.get(POD_VARIABLE, "")
    # All of them: the leader's name has those of one family only. In the network of the node, its own may be 127.0.1.1.
    found = [str(address[0]) for _, address in _own_addresses()] if is_leader else []
    addresses = [each for each in found if each != "::1" and not each.startswith("127.")]
    of_leader = {_POD: pod, _LEADER: addresses, _RESTARTS: source.place.restarts}
    note = replace(note, details={**note.details, **of_leader})
    if is_leader and not pod:
        return attempts.claim(source.store, note, key)
    pause = _FIRST_LOOK
    while source.store.size(keys.result(note.job_id)) is None:
        newest = attempts.newest(source.store, note.job_id, key)
        if is_leader:  # of a LeaderWorkerSet, whose pod stays when its container is started again
            if newest is None or newest.details.get(_POD) != pod:
                return attempts.claim(source.store, note, key)
        elif newest is not None and _is_of_this_group(source, newest, key):
            return replace(note, attempt=newest.attempt)
        if pause == _TOLD_LOOK:
            say("this container was started again; its group follows" if is_leader else "host 0 has not begun yet")
        source.wait(pause)
        pause = min(2 * pause, _LONGEST_LOOK)
    return None


def _is_of_this_group(source: Host, found: AttemptNote, key: bytes) -> bool:
    if found.details.get(_RESTARTS, "") != source.place.restarts:  # that of a warm slice has no such number
        return False
    if Peers(source.store, found.job_id, found.attempt, source.place.host).has_begun(key):
        return False
    name, addresses = source.settings.leader, found.details.get(_LEADER)
    if name and isinstance(addresses, list) and addresses:
        with contextlib.suppress(OSError):  # no name is known: then only what was begun tells
            there = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
            return any(each[4][0] in addresses for each in there)
    return True


# -------------------------------------------------------------------------------------------------------------- verdict


class Host(Source, Protocol):
    """What is needed here of a host's source: ``PodSource`` in ``pod_source.py``."""

    settings: PodSettings
    place: HostInPod
    environ: Mapping[str, str]
    peers: Peers
    end_requested: bool
    is_settled: bool
    is_removed: bool
    code: int

    @property
    def verdict_words(self) -> str: ...

    def is_replaced(self) -> bool: ...

    def leave(self, why: str, more: Callable[[], object] | None = None) -> None: ...

    def leave_to_the_verdict(self) -> None: ...

    def gives_back(self, verdict: Outcome) -> bool: ...

    def leave_to_own_pod(self, verdict: Outcome, log: Path) -> None: ...

    def send_log(self) -> str: ...

    def wait_for(self, holds: Callable[[], bool], seconds: float) -> bool: ...

    def in_background(self, task: Callable[[], object]) -> object: ...


def lead(source: Host, task: Task, verdict: Outcome, ending: Ending, why: str) -> Decision | None:
    """Be host 0 at its worker's end: read the reports of the others, then come to a verdict or leave without one."""
    peers, hosts = source.peers, source.task.hosts

    def has_failed() -> bool:  # another host, by itself; one that was taken away does not affect a value that is there
        return FAILED in peers.roster.ended.values()

    if why:
        source.leave(why)
        return None
    if verdict.succeeded:
        source.wait_for(lambda: peers.roster.all_ended(hosts) or has_failed() or source.end_requested, FOREVER)
        if not has_failed():
            return replace(verdict, logs=_logs(peers.reports())), task.body
    elif source.is_settled:
        source.leave_to_the_verdict()
        return None
    trouble = _wait_for_all(source)
    own = [] if verdict.succeeded or ending.stopped else [verdict]
    reports = [] if trouble else peers.reports()
    failures = [] if trouble else own + [each for each in reports if each.status == FAILED]
    if not failures:
        source.leave(trouble or "a host failed, and its report cannot be read")
        return None
    cause = replace(verdicts.first_failure(failures), logs=_logs(reports))
    if source.gives_back(cause):
        source.leave_to_own_pod(cause, task.log)
        return None
    if cause.host == 0:
        return cause, task.body
    body = peers.fetch_body(cause, source.place.base / "peer.body")
    return replace(cause, error={**cause.error, "hosts": hosts}, witness=source.witness), body


def _logs(reports: Sequence[Outcome]) -> tuple[digests.LogDigest, ...]:
    """Return the digests of the logs of the other hosts: each has sealed that of its own."""
    return tuple(log for each in reports for log in each.logs if log.host == each.host)


def _wait_for_all(source: Host) -> str:
    """Give every host time to report; return why there is no verdict, or ""."""
    peers, seconds = source.peers, source.settings.grace_seconds
    say(f"a host failed; every host has {seconds:g} s to report what it knows")
    source.in_background(peers.call)

    def is_clear() -> bool:
        return source.end_requested or bool(peers.roster.preempted) or peers.roster.all_ended(source.task.hosts)

    source.wait_for(is_clear, seconds)
    if source.end_requested:
        return "this machine was taken away, or the job was stopped"
    if peers.roster.preempted:
        return peers.why_preempted()
    if missing := peers.roster.missing():
        return f"host {missing[0]} does not answer any more"
    return ""


def follow(source: Host, task: Task, verdict: Outcome, ending: Ending, why: str) -> None:
    """Be another host at its worker's end: report to the leader, and stay until there is a verdict."""
    if source.is_settled and ending.stopped:
        source.leave_to_the_verdict()
        return
    if ending.stopped and not source.settings.warm and source.is_replaced():
        source.leave("another attempt has taken its place", lambda: None)
        return
    if why:
        taken = replace(verdict, status=PREEMPTED, error={"message": why})
        source.leave(why, lambda: source.peers.report(taken))
        return
    verdict = replace(verdict, logs=source.log_digests((task,)))
    if verdict.succeeded:  # the verdict may follow at once, and a client that sees it sees the logs of all hosts
        source.send_log()
    store_patiently(source, lambda: source.peers.report(verdict, None if verdict.succeeded else task.body))
    say(f"this host is done: {verdict.status}; it stays until the job has its verdict")
    source.send_log()
    seconds = FOREVER if verdict.succeeded else _SLICE_VERDICT_SECONDS + source.settings.grace_seconds
    source.wait_for(lambda: source.is_settled or source.end_requested, seconds)
    if source.is_settled:
        say("the job had its verdict, and was removed" if source.is_removed else source.verdict_words)
        source.code = 0 if verdict.succeeded else FAILED_EXIT
    else:
        say("no verdict came")
        source.code = INFRASTRUCTURE_EXIT


# -------------------------------------------------------------------------------------------------------- notifications


def _address(page: dict[str, Any], what: str) -> dict[str, Any]:
    return fields.checked(_FIELDS, page, what, _FIELDS)


_ADDRESS = documents.PageKind("address", "the address of the first host", _address, 4096)


class Notifier:
    def __init__(self, store: Store, job_id: str, attempt: int, host: int) -> None:
        self._store, self._is_leader = store, host == 0
        self._place = keys.host_address(job_id, attempt)
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._listener = _make_listener() if self._is_leader else None

    def publish(self, key: bytes) -> None:
        """Write down where the leader listens, sealed with the job's key; nothing for the others."""
        if self._listener is not None:
            host, port = self._listener.getsockname()[:2]
            page = documents.seal_page(_ADDRESS, {"host": host, "port": port}, self._place, key)
            with contextlib.suppress(KineticError):
                self._store.put(self._place, page)

    def start(self, on_ring: Callable[[], object], key: bytes) -> None:
        """Listen on a thread of its own; a host connects to no address that the job's key did not seal."""
        target, more = (self._serve, ()) if self._is_leader else (self._follow, (key,))
        if not self._is_leader or self._listener is not None:
            threading.Thread(target=target, args=(on_ring, *more), name="kinetic-notifier", daemon=True).start()

    @property
    def is_connected(self) -> bool:
        return bool(self._connections)

    def notify(self) -> None:
        """Notify all connected hosts: a host its leader, the leader all the others."""
        with self._lock:
            connections = list(self._connections)
        for each in connections:
            with contextlib.suppress(OSError):  # it is gone, or has enough unread notifications
                each.send(_RING, socket.MSG_DONTWAIT)

    def _serve(self, on_ring: Callable[[], object]) -> None:
        assert self._listener is not None  # noqa: S101 - see start
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        self._accept(self._listener, selector)
                        continue
                    if not _receive(key.data):
                        selector.unregister(key.data)
                        self._drop(key.data)
                    on_ring()

    def _accept(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it is gone again
            return
        connection.setblocking(False)  # noqa: FBT003 - takes no keyword
        self._add(connection)
        selector.register(connection, selectors.EVENT_READ, connection)

    def _follow(self, on_ring: Callable[[], object], key: bytes) -> None:
        pause = _FIRST_PAUSE
        while True:
            with contextlib.suppress(KineticError, OSError, ValueError):
                page = documents.open_page(_ADDRESS, self._store, self._place, key)
                with socket.create_connection((page["host"], page["port"]), _CONNECT_SECONDS) as connection:
                    connection.settimeout(None)
                    self._add(connection)
                    pause = _FIRST_PAUSE
                    try:
                        on_ring()  # each may have reported something before this connection was there
                        self.notify()
                        while _receive(connection):
                            on_ring()
                    finally:
                        self._drop(connection)
            on_ring()  # a leader that is not there may have left a verdict
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _add(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
        with self._lock:
            self._connections.add(connection)

    def _drop(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.close()


def _own_addresses() -> list[tuple[socket.AddressFamily, Any]]:
    """Return this pod's own addresses, which Kubernetes writes into /etc/hosts: two in a network of two families."""
    try:
        found = socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [(family, address) for family, _, _, _, address in found]


def _make_listener() -> socket.socket | None:
    """Listen at this pod's own address; None if there is none."""
    for family, address in _own_addresses()[:1]:
        with contextlib.suppress(OSError):
            return socket.create_server(address[:2], family=family, backlog=1024)  # IP only
    return None


def _receive(connection: socket.socket) -> bool:
    try:
        return bool(connection.recv(4096))
    except BlockingIOError:
        return True
    except OSError:
        return False


# -------------------------------------------------------------------------------------------------------------- removal


def remove_own_slice(path: str, environ: Mapping[str, str], folder: Path = ACCOUNT_FOLDER) -> str:
    """Delete the object of the cluster that makes this pod, by its path in the API; return "", or why not.

    A LeaderWorkerSet starts again whatever exits, so its processes have to stay; and it would hold its chips until the
    result is collected. The leader's pod has a token of its service account, which may be allowed to delete the set.
    """
    answer = cluster_api.request("DELETE", path, environ=environ, folder=folder)
    return "" if answer.status in {200, 202, 404} else answer.reason

"""The hosts of a warm slice: the leader hands each task to the others, which tell it when they are ready for the next.

The leader listens at its pod's address. Each other host connects when it is clean and idle, says so, and stays
connected: so the leader knows which hosts are ready, and a client gets the slice only when all of them are. Once the
leader has begun a task, it hands it to every host that is connected or connects later. What is lost on the way, the
hosts find in the Secret of the slice, which has had the task before the leader was told of it.

A process of these only accepts and counts connections: a child of its own reads the key, talks, and ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kinetic._wire import NamedTuple, documents, folders, warm_pods
from kinetic._wire import task as wire_task
from kinetic._wire.failpoints import step
from kinetic._wire.warm_pods import Ready, WarmPod
from kinetic.errors import IntegrityError

TOLD, ENDS, PAST = 0, 3, 4  # exit codes of the child that waits for the leader
_MEET_SECONDS = 10.0
_STRANGERS = 8  # that are heard at the same time as all hosts
_SEND_SECONDS = 30.0
_END_SECONDS = 5.0  # for the others to hear that the slice ends
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_IDLE_SECONDS = 60  # after which the kernel checks whether the other end is still there

Fork = Callable[[Callable[[], int], Callable[[int], None]], int]  # what a child does, and what gets its exit code


class _Host(NamedTuple):
    """Another host, which is ready."""

    connection: socket.socket
    nonce: str
    sequence: int  # of the task that it takes next


class Leader:
    """The first host's side."""

    def __init__(self, page: WarmPod, base: Path) -> None:
        self._page, self._base = page, base
        self._ready: dict[int, _Host] = {}
        self._meeting: dict[int, socket.socket] = {}  # by the number of the child that talks
        family, _, _, _, address = socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM)[0]
        at = (address[0], warm_pods.HOSTS_PORT)
        self._listener = socket.create_server(at, family=family, backlog=1024)
        self._listener.setblocking(False)  # noqa: FBT003 - Python's own signature

    @property
    def is_complete(self) -> bool:
        """Whether all other hosts are ready."""
        return len(self._ready) == self._page.hosts - 1

    @property
    def _meets_more(self) -> bool:
        """Whether another process may be forked for who connects, which any pod of the cluster can."""
        return len(self._meeting) < self._page.hosts + _STRANGERS

    def descriptors(self) -> list[int]:
        """Return what to wait for."""
        listener = [self._listener.fileno()] if self._meets_more else []
        return [*listener, *(host.connection.fileno() for host in self._ready.values())]

    def react(self, fork: Fork) -> None:
        """Accept connections, and forget hosts that are gone or busy."""
        for number, host in list(self._ready.items()):
            with contextlib.suppress(BlockingIOError):
                with contextlib.suppress(ConnectionError, TimeoutError):
                    host.connection.recv(1, socket.MSG_DONTWAIT)  # a host that is ready says nothing more
                self._drop(number)
        while self._meets_more:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._talk(connection, fork)

    def _talk(self, connection: socket.socket, fork: Fork) -> None:
        """Have a child talk to each host that connected."""
        connection.setblocking(True)  # noqa: FBT003 - as above
        _keep_alive(connection)
        pids: list[int] = []
        pids.append(fork(lambda: self._meet(connection), lambda code: self._met(pids[0], code)))
        self._meeting[pids[0]] = connection

    def hand_over(self, path: Path, sequence: int, fork: Fork) -> None:
        """Hand the assignment in a file to every host that is ready for it; one that is done already is not."""
        told = {number: host for number, host in self._ready.items() if host.sequence <= sequence}
        if not told:
            return
        step("leader:hands-over")
        for number in told:
            del self._ready[number]

        def send() -> int:
            assignment = path.read_bytes()
            return self._send(told, lambda key, nonce: warm_pods.handed_over(assignment, key, nonce))

        fork(send, lambda _: None)
        for host in told.values():
            host.connection.close()

    def send_end(self) -> int:
        """Ask every host that is ready to end, in a child, and wait until they do."""
        self._send(self._ready, warm_pods.end_request)
        limit = time.monotonic() + _END_SECONDS
        for host in self._ready.values():
            with contextlib.suppress(OSError):
                select.select([host.connection], [], [], max(0.0, limit - time.monotonic()))
        return 0

    def close(self) -> None:
        """Drop every connection."""
        for connection in (
            self._listener,
            *(host.connection for host in self._ready.values()),
            *self._meeting.values(),
        ):
            connection.close()

    def _send(self, hosts: Mapping[int, _Host], message: Callable[[bytes, str], bytes]) -> int:
        with _key(self._page) as key:
            for host in hosts.values():
                host.connection.settimeout(_SEND_SECONDS)
                with contextlib.suppress(OSError):  # it finds the task in the Secret
                    host.connection.sendall(message(key, host.nonce) + b"\n")
        return 0

    def _meet(self, connection: socket.socket) -> int:
        """Talk to a host that connected, in a child; what is known of a host then is in a file."""
        nonce = os.urandom(16).hex()
        connection.settimeout(_MEET_SECONDS)
        connection.sendall(warm_pods.leader_greeting(nonce) + b"\n")
        line = _line(connection, 4096)
        with _key(self._page) as key:
            found = Ready.from_bytes(line, key, nonce)
        met = json.dumps([found.host, found.nonce, found.sequence]).encode()
        folders.write_whole(self._base / f"met-{os.getpid()}", met)  # whatever a job has put there
        return 0

    def _met(self, pid: int, code: int) -> None:
        connection, met = self._meeting.pop(pid), self._base / f"met-{pid}"
        if code:
            connection.close()
            return
        host, nonce, sequence = json.loads(folders.read_file(self._base, met.name, 4096))
        met.unlink()
        self._drop(host)
        self._ready[host] = _Host(connection, nonce, sequence)

    def _drop(self, host: int) -> None:
        was = self._ready.pop(host, None)
        if was is not None:
            was.connection.close()


def wait_for_leader(page: WarmPod, host: int, sequence: int, stage: Callable[[bytes], str]) -> int:
    """Tell the leader that this host is ready, in a child, and wait for what it says: TOLD, ENDS or PAST.

    ``stage`` takes an assignment and returns why this host does not, or "".
    """
    pause = _FIRST_PAUSE
    while True:
        with contextlib.suppress(OSError, IntegrityError):  # the leader is not there, and the cluster starts it again
            assignment = _hear(page, host, sequence)
            if not assignment:
                return ENDS
            return PAST if stage(assignment) else TOLD
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _hear(page: WarmPod, host: int, sequence: int) -> bytes:
    """Return what the leader hands over, or nothing if it asks this host to end."""
    with socket.create_connection((page.leader, warm_pods.HOSTS_PORT), _MEET_SECONDS) as connection:
        _keep_alive(connection)
        nonce = os.urandom(16).hex()
        leaders = warm_pods.leader_nonce(_line(connection, 4096))
        with _key(page) as key:
            connection.sendall(Ready(host, sequence, nonce).to_bytes(key, leaders) + b"\n")
        connection.settimeout(None)
        line = _line(connection, warm_pods.MOST_HANDED)
        with _key(page) as key:
            return warm_pods.assignment_from_leader(line, key, nonce)


def _line(connection: socket.socket, most: int) -> bytes:
    with connection.makefile("rb") as lines:
        line = lines.readline(most)
    if not line.endswith(b"\n"):
        raise ConnectionError("the connection ended")
    return line


def _key(page: WarmPod) -> contextlib.AbstractContextManager[bytes]:
    return documents.temporary_key(Path(page.secret, wire_task.KEY_FILE))


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)

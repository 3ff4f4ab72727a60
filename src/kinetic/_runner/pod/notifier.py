"""The notifier: hosts of a slice ring each other when the store has news, so that nobody waits for the next look.

The leader listens at its pod's address, which it writes into the store, and the others connect. A ring carries nothing:
what it is about lies in the store, sealed; a stranger's ring costs one look. Where no connection comes about, because a
network policy forbids it or a pod has no address, hosts look every few seconds, as they do anyway.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from kinetic._stores.protocol import Store
from kinetic._wire import documents, fields, keys
from kinetic.errors import KineticError

_RING = b"."
_CONNECT_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_IDLE_SECONDS = 60  # after which the kernel asks whether the other end is still there
_FIELDS = {"host": fields.text(fields.NAME), "port": fields.whole(1, 65_535)}


def _address(page: dict[str, Any], what: str) -> dict[str, Any]:
    return fields.checked(_FIELDS, page, what, _FIELDS)


_ADDRESS = documents.PageKind("address", "the address of the first host", _address, 4096)


class Notifier:
    """One host's end of it.

    Args:
        store: Where the leader's address lies.
        job_id: The job.
        attempt: Its number.
        host: This host.
    """

    def __init__(self, store: Store, job_id: str, attempt: int, host: int) -> None:
        self._store, self._is_leader = store, host == 0
        self._place = keys.host_address(job_id, attempt)
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._listener = _listener() if self._is_leader else None

    def publish(self, key: bytes) -> None:
        """Write down where the leader listens, sealed with the job's key; the others need not know."""
        if self._listener is not None:
            host, port = self._listener.getsockname()[:2]
            with contextlib.suppress(KineticError):
                self._store.put(self._place, documents.sealed(_ADDRESS, {"host": host, "port": port}, self._place, key))

    def start(self, ring: Callable[[], object], key: bytes) -> None:
        """Listen on a thread of its own; call back on each ring.

        Args:
            ring: What to call.
            key: The job's key: a host connects to no address that it did not seal.
        """
        work = functools.partial(self._serve, ring) if self._is_leader else functools.partial(self._follow, ring, key)
        if not self._is_leader or self._listener is not None:
            threading.Thread(target=work, name="kinetic-notifier", daemon=True).start()

    def tell(self) -> None:
        """Ring whoever is connected: a host its leader, the leader all the others."""
        with self._lock:
            connections = list(self._connections)
        for each in connections:
            with contextlib.suppress(OSError):  # it is gone, or has enough rings to hear
                each.send(_RING, socket.MSG_DONTWAIT)

    def _serve(self, ring: Callable[[], object]) -> None:
        assert self._listener is not None  # noqa: S101 - see start
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        self._accept(self._listener, selector)
                        continue
                    if not _hear(key.data):
                        selector.unregister(key.data)
                        self._drop(key.data)
                    ring()

    def _accept(self, listener: socket.socket, selector: selectors.BaseSelector) -> None:
        try:
            connection, _ = listener.accept()
        except OSError:  # it is gone again
            return
        connection.setblocking(False)  # noqa: FBT003 - takes no keyword
        self._add(connection)
        selector.register(connection, selectors.EVENT_READ, connection)

    def _follow(self, ring: Callable[[], object], key: bytes) -> None:
        pause = _FIRST_PAUSE
        while True:
            with contextlib.suppress(KineticError, OSError, ValueError):
                page = documents.open_page(_ADDRESS, self._store, self._place, key)
                with socket.create_connection((page["host"], page["port"]), _CONNECT_SECONDS) as connection:
                    connection.settimeout(None)
                    self._add(connection)
                    pause = _FIRST_PAUSE
                    try:
                        ring()  # each may have told something before this connection was there
                        self.tell()
                        while _hear(connection):
                            ring()
                    finally:
                        self._drop(connection)
            ring()  # a leader that is not there may have left a verdict
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


def _listener() -> socket.socket | None:
    """Listen at this pod's own address, which Kubernetes writes into /etc/hosts; None where there is none."""
    with contextlib.suppress(OSError):
        family, _, _, _, address = socket.getaddrinfo(socket.gethostname(), 0, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)  # IP only
    return None


def _hear(connection: socket.socket) -> bool:
    """Take in what rang; say whether the other end is still there."""
    try:
        return bool(connection.recv(4096))
    except BlockingIOError:
        return True
    except OSError:
        return False

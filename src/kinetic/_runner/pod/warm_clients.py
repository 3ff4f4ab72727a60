"""The clients that are connected to a warm pod: told how it is, and heard by children, one message at a time."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Collection, Iterator

from kinetic._wire import warm_pods
from kinetic._wire.warm_pods import Greeting

CONFIRMED = 3  # how a child ends whose client has confirmed the task that it brought
_MOST = 8
_MESSAGE_SECONDS = 30.0  # for the rest of a message
_QUIET_SECONDS = 900.0  # after which a client that sends nothing is disconnected


class _Client:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.nonce = ""  # of its next message
        self.is_heard = False  # whether a child reads a message of it
        self.since = time.monotonic()


class Clients:
    """The clients of one pod.

    Args:
        port: Where they connect, on the loopback interface.
        fork: Has a child do something, and calls the second function with its exit code.
        greeting: Returns how the pod is; its argument is the nonce of the client's next message.
        answer: Reads a message in a child and answers it; returns the exit code.
        heard: Gets the number of such a child, and its exit code.
    """

    def __init__(
        self,
        port: int,
        fork: Callable[[Callable[[], int], Callable[[int], None]], int],
        greeting: Callable[[str], Greeting],
        answer: Callable[[socket.socket, str], int],
        heard: Callable[[int, int], object],
    ) -> None:
        self._fork, self._greeting, self._answer, self._heard = fork, greeting, answer, heard
        self._clients: dict[int, _Client] = {}  # by descriptor
        self._known: tuple[object, ...] = ()  # what they were told
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", port))
        self._listener.listen(_MOST)
        self._listener.setblocking(False)  # noqa: FBT003 - Python's own signature

    def descriptors(self) -> Iterator[int]:
        """Yield what becomes readable when a client comes, sends something or goes."""
        yield self._listener.fileno()
        yield from (descriptor for descriptor, client in self._clients.items() if not client.is_heard)

    def react(self, ready: Collection[int]) -> None:
        """Do what readable descriptors ask for."""
        if self._listener.fileno() in ready:
            with contextlib.suppress(OSError):
                self._accept(self._listener.accept()[0])
        for descriptor in [each for each in self._clients if each in ready]:
            self._hear(self._clients[descriptor])

    def greet_all(self, state: tuple[object, ...]) -> None:
        """Tell all clients how the pod is, if its state has changed, and drop those that were quiet for long."""
        if state != self._known:
            self._known = state
            for client in list(self._clients.values()):
                self._greet(client)
        for client in list(self._clients.values()):
            if not client.is_heard and time.monotonic() - client.since > _QUIET_SECONDS:
                self._disconnect(client)

    def _accept(self, connection: socket.socket) -> None:
        """Greet a client; one too many takes the place of the one that was quiet for the longest time."""
        connection.settimeout(0.0)
        quiet = sorted((each for each in self._clients.values() if not each.is_heard), key=lambda each: each.since)
        if len(self._clients) >= _MOST and not quiet:
            connection.close()
            return
        if len(self._clients) >= _MOST:
            self._disconnect(quiet[0])
        client = self._clients[connection.fileno()] = _Client(connection)
        self._greet(client)

    def _disconnect(self, client: _Client) -> None:
        self._clients.pop(client.connection.fileno(), None)
        client.connection.close()

    def _greet(self, client: _Client) -> None:
        """Tell a client how the pod is; one that does not read is dropped."""
        if not client.is_heard:
            client.nonce = os.urandom(16).hex()
        data = self._greeting(client.nonce).to_bytes() + b"\n"
        try:
            if client.connection.send(data) == len(data):
                return
        except OSError:
            pass
        self._disconnect(client)

    def _hear(self, client: _Client) -> None:
        """Have a child read what a client sends: this process keeps nothing of it."""
        try:
            is_over = not client.connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            is_over = True
        if is_over:
            self._disconnect(client)
            return
        client.is_heard = True

        def heard(code: int) -> None:
            client.is_heard, client.since = False, time.monotonic()
            if code not in {0, CONFIRMED}:
                self._disconnect(client)
            self._heard(child, code)

        child = self._fork(lambda: self._answer(client.connection, client.nonce), heard)


def read_line(connection: socket.socket) -> bytes:
    """Read one message, in a child; b"" if it is cut short. Who sends one waits for its answer: no other follows it."""
    connection.settimeout(_MESSAGE_SECONDS)
    with connection.makefile("rb") as lines:
        line = lines.readline(warm_pods.MOST_LINE)
    return line if line.endswith(b"\n") else b""

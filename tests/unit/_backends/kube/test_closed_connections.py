"""A connection that is closed while a thread reads from it: the thread ends, and reads nothing of anybody else's."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest
from cluster.certificates import Authority
from cluster.plane import wait_for

from kinetic._backends.kube import http_connection
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.http_connection import TransportError, WebSocket
from kinetic._backends.kube.transport import Access
from kinetic._stores.parallel import Retry

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
CLOSING = b"\x88\x02\x03\xe8"  # a WebSocket's last frame


class SlowServer:
    """Accepts one WebSocket over TLS, and answers its end late: when it is told to."""

    def __init__(self, folder: Path, *, answers: bool = True) -> None:
        self.answers = answers
        self.asked = threading.Event()
        self.authority = Authority(folder)
        pair = self.authority.issue("server")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.certificate, pair.key)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        self.may_answer = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        raw, _ = self._listener.accept()
        with self._context.wrap_socket(raw, server_side=True) as peer:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += peer.recv(1 << 16)
            self.asked.set()
            if not self.answers:
                self.may_answer.wait(30)
                return
            (key,) = re.findall(rb"(?i)sec-websocket-key: (\S+)", head)
            accepted = base64.b64encode(hashlib.sha1(key + GUID).digest())
            peer.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: " + accepted + b"\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n"
            )
            self.may_answer.wait(30)
            with contextlib.suppress(OSError):
                peer.sendall(CLOSING)

    def close(self) -> None:
        self.may_answer.set()
        self.thread.join()
        self._listener.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SlowServer]:
    with contextlib.closing(SlowServer(tmp_path)) as server:
        yield server


@pytest.fixture
def client(server: SlowServer) -> Iterator[Client]:
    with contextlib.closing(client_of(server)) as client:
        yield client


def client_of(server: SlowServer) -> Client:
    authority = server.authority.certificate.read_bytes()
    access = Access(server.url, "the context test", FixedCredential("Bearer t"), authority=authority)
    return Client(access, "research", Retry(1))


@contextlib.contextmanager
def reading(opened: WebSocket) -> Iterator[list[bytes | None]]:
    """Read from a connection on a thread, and return what it got; wait for its end."""
    got: list[bytes | None] = []
    thread = threading.Thread(target=lambda: got.append(opened.receive()))
    thread.start()
    wait_for("a thread that reads", lambda: any(map(is_waiting, sys._current_frames().values())), 10)
    try:
        yield got
    finally:
        thread.join(10)
    assert not thread.is_alive()


def is_waiting(frame: FrameType) -> bool:
    return frame.f_code is http_connection._poll.__code__


def test_what_is_opened_after_a_connection_loses_nothing_to_it(server: SlowServer, client: Client) -> None:
    with contextlib.ExitStack() as stack:
        with client.transport.websocket("/ports", query={}, protocols=["v4.channel.k8s.io"]) as opened:
            number = opened._socket.fileno()
            got = stack.enter_context(reading(opened))
        pairs = [[stack.enter_context(end) for end in socket.socketpair()] for _ in range(4)]  # one has its number
        server.may_answer.set()
        server.thread.join()
        for near, far in pairs:
            near.settimeout(10)
            far.sendall(b"all of it")

        found = [near.recv(100) for near, _ in pairs]

    assert number > 2
    assert found == [b"all of it"] * 4
    assert got == [None]


def test_a_thread_that_waits_for_a_message_wakes_up_when_another_closes_all_connections(
    server: SlowServer, client: Client
) -> None:
    with client.transport.websocket("/ports", query={}, protocols=["v4.channel.k8s.io"]) as opened:
        number = opened._socket.fileno()
        with reading(opened) as got:
            client.close()

    assert got == [None]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_the_last_thread_that_uses_a_connection_closes_its_file(server: SlowServer, client: Client) -> None:
    with client.transport.websocket("/ports", query={}, protocols=["v4.channel.k8s.io"]) as opened:
        number = opened._socket.fileno()
        with opened._in_use():
            opened.close()
            os.fstat(number)

        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(number)
        with pytest.raises(TransportError, match="being closed"):
            opened.send(b"too late")


def test_a_connection_is_opened_anew_where_another_thread_closed_all_of_them_this_moment(
    server: SlowServer, client: Client
) -> None:
    used = client.transport.access.credential

    class Closing(FixedCredential):
        def header(self, *, rejected: str = "") -> str:
            client.transport.access = replace(client.transport.access, credential=used)
            client.close()
            return used.header(rejected=rejected)

    client.transport.access = replace(client.transport.access, credential=Closing("Bearer t"))

    with client.transport.websocket("/ports", query={}, protocols=["v4.channel.k8s.io"]) as opened:
        assert opened.subprotocol == "v4.channel.k8s.io"


def test_whoever_waits_for_a_connection_learns_that_another_thread_closed_it(tmp_path: Path) -> None:
    with contextlib.closing(SlowServer(tmp_path, answers=False)) as server, contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(client_of(server)))
        closing = threading.Thread(target=lambda: (server.asked.wait(10), client.close()))
        closing.start()
        stack.callback(closing.join)

        with pytest.raises(TransportError), client.transport.websocket("/ports", query={}, protocols=[]):
            pass

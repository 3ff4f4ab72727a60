"""HTTP and WebSockets as API servers and what stands before them speak them: byte for byte, from a server's script."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import os
import re
import select
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import wsproto
from cluster.certificates import Authority
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Pong, Request

from kinetic._backends.kube import http_connection
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.http_connection import (
    ClosedError,
    ConnectError,
    ConnectionPool,
    Response,
    Timeouts,
    TransportError,
    WebSocket,
)
from kinetic._backends.kube.transport import Access, Transport
from kinetic._stores.parallel import Retry
from kinetic._wire import proxies
from kinetic.errors import BackendUnavailableError, SettingsError

TIMEOUTS = Timeouts(5, 5)


def not_again(_seconds: float) -> None:
    """Fail where something is tried again."""
    raise AssertionError("it was tried again")


Serve = Callable[[socket.socket], object]


class Peer:
    """Accepts connections on a thread, and does with each what the test says."""

    def __init__(self, *scripts: Serve) -> None:
        self.heads: list[bytes] = []
        self.failed: list[BaseException] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._scripts = scripts
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.url = f"http://{self.address}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for script in self._scripts:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer:
                peer.settimeout(10)
                try:
                    script(peer)
                except OSError as error:
                    self.failed.append(error)

    def head(self, peer: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := peer.recv(1 << 16)):
                break
            data += more
        self.heads.append(data)
        return data

    def close(self) -> None:
        with contextlib.suppress(OSError):
            socket.create_connection(self._listener.getsockname(), 1).close()
        self._listener.close()
        self._thread.join()


@pytest.fixture
def start() -> Iterator[Callable[..., tuple[Peer, ConnectionPool]]]:
    with contextlib.ExitStack() as stack:

        def make(*answers: bytes | Serve, **more: object) -> tuple[Peer, ConnectionPool]:
            """Answer a request on each connection with bytes, or by a function."""

            def reply(answer: bytes | Serve) -> Serve:
                if not isinstance(answer, bytes):
                    return answer

                def serve(used: socket.socket) -> None:
                    peer.head(used)
                    used.sendall(answer)

                return serve

            peer = Peer(*map(reply, answers))
            stack.callback(peer.close)
            context = ssl.create_default_context(cadata=None)
            pool = ConnectionPool(**{"server": peer.url, "context": context, "most": 4, "options": [], **more})
            stack.callback(pool.close)
            return peer, pool

        yield make


def ask(pool: ConnectionPool, method: str = "GET", body: bytes | None = None) -> Response:
    return pool.send(method, "/api", headers={"Accept": "*/*"}, body=body, timeouts=TIMEOUTS)


CHUNKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
PACKED = gzip.compress(b"a list " * 1000, mtime=0)  # the same in all processes, whose tests it names


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole", b"whole"),
        (b"HTTP/1.1 200 OK\nContent-Length: 5\n\nwhole", b"whole"),
        (b"HTTP/1.1 200\r\ncontent-length:5\r\n\r\nwhole", b"whole"),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nold", b"old"),
        (b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n", b""),
        (b"HTTP/1.1 100 Continue\r\nA: b\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (CHUNKS + b"5\r\npiece\r\n1;name=value\r\ns\r\n0\r\n\r\n", b"pieces"),
        (CHUNKS + b"00A\r\n0123456789\r\n0\r\nTrailer: late\r\n\r\n", b"0123456789"),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(PACKED) + PACKED,
            b"a list " * 1000,
        ),
    ],
)
def test_a_body_is_read_however_its_end_is_told(start, answer: bytes, body: bytes) -> None:
    _, pool = start(answer)

    assert ask(pool).read() == body


def test_a_body_is_read_though_each_byte_comes_alone(start) -> None:
    answer = CHUNKS + b"5\r\npiece\r\n1\r\ns\r\n0\r\n\r\n"

    def slowly(used: socket.socket) -> None:
        peer.head(used)
        used.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in answer:
            used.sendall(bytes([byte]))
            time.sleep(0.0002)

    peer, pool = start(slowly)

    assert ask(pool).read() == b"pieces"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf",
        CHUNKS + b"5\r\npie",
        CHUNKS + b"5\r\npiece\r\n",
        CHUNKS + b"nonsense\r\n",
        CHUNKS + b"-1\r\n",
        CHUNKS + b"2\r\npiece\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 20\r\n\r\n" + PACKED[:20],
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnope",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: zstd\r\nContent-Length: 4\r\n\r\nnope",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"x" * (2 << 20),
        b"HTTP/1.1 200 OK\r\n" + b"".join(b"Name-%d: %s\r\n" % (n, b"v" * 1000) for n in range(1200)),
    ],
)
def test_what_is_cut_or_no_answer_is_an_error_and_never_half_a_body(start, answer: bytes) -> None:
    _, pool = start(answer)

    with pytest.raises(TransportError):
        ask(pool).read()


@pytest.mark.parametrize("library", ["none", "eventlet"])
def test_a_connection_serves_the_next_request_once_its_answer_was_read(start, library, monkeypatch) -> None:
    if library == "eventlet":
        monkeypatch.delattr(select, "poll")

    def twice(used: socket.socket) -> None:
        for _ in range(2):
            peer.head(used)
            used.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        used.recv(1)

    peer, pool = start(twice)
    ask(pool).read()
    ask(pool, "POST", b"{}").read()

    assert len(peer.heads) == 2
    assert b"Content-Length: 2\r\n" in peer.heads[1]
    assert peer.heads[0].startswith(b"GET /api HTTP/1.1\r\nHost: " + peer.address.encode() + b"\r\n")


@pytest.mark.parametrize("more", [b"Connection: close\r\n\r\nok", b"\r\nokHTTP/1.1 200 OK\r\n"])
def test_a_connection_that_the_server_ends_or_that_says_too_much_is_not_used_again(start, more: bytes) -> None:
    first = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + more
    peer, pool = start(first, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")

    assert [ask(pool).read(), ask(pool).read()] == [b"ok", b"no"]
    assert len(peer.heads) == 2


def test_an_idle_connection_that_the_server_closed_is_replaced(start) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    _, pool = start(answer, answer)
    ask(pool).read()
    deadline = time.monotonic() + 10
    while not pool._idle[0].has_ended() and time.monotonic() < deadline:
        time.sleep(0.001)

    assert ask(pool).read() == b"ok"


def test_a_body_that_is_dropped_ends_its_connection(start) -> None:
    answer = CHUNKS + b"5\r\npiece\r\n"
    _, pool = start(answer, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    dropped = ask(pool)
    next(dropped.pieces())
    dropped.close()

    assert ask(pool).read() == b"ok"
    assert len(pool._idle) <= 1


def test_no_more_connections_are_used_than_allowed(start) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    _, pool = start(answer, answer, most=1)
    held = ask(pool)

    with pytest.raises(ConnectError, match="too many connections"):
        pool.send("GET", "/", headers={}, timeouts=Timeouts(1, 0.05))
    held.close()

    assert ask(pool).read() == b"ok"


def test_a_server_that_says_nothing_is_given_up(start) -> None:
    _, pool = start(lambda used: used.recv(1 << 16) and used.recv(1))

    with pytest.raises(TransportError, match="timed out"):
        pool.send("GET", "/", headers={}, timeouts=Timeouts(5, 0.1))


def test_a_pool_that_was_closed_sends_nothing(start) -> None:
    _, pool = start()
    pool.close()

    with pytest.raises(ClosedError):
        ask(pool)


def test_a_line_break_in_a_header_is_not_sent(start) -> None:
    _, pool = start(lambda used: used.recv(1))

    with pytest.raises(TransportError, match="Illegal header value"):
        pool.send("GET", "/", headers={"Authorization": "Bearer a\r\nX: y"}, timeouts=TIMEOUTS)


class ContextOfGevent(ssl.SSLContext):
    """Passes a host on as it is, as gevent's does; Python's own decodes bytes first."""

    def wrap_socket(self, sock: socket.socket, *, server_hostname: str) -> ssl.SSLSocket:  # type: ignore[override]
        assert isinstance(server_hostname, str)
        return super().wrap_socket(sock, server_hostname=server_hostname)


class SocketOfEventlet:
    """Wraps a socket; the class itself has no ``shutdown``."""

    def __init__(self, used: socket.socket) -> None:
        self.fd = used


def test_a_connection_of_a_program_under_eventlet_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(socket, "socket", SocketOfEventlet)

    with ours, theirs:
        http_connection._Connection(SocketOfEventlet(ours)).abort()  # type: ignore[arg-type]

        assert theirs.recv(1) == b""


@pytest.mark.parametrize("kind", [ssl.SSLContext, ContextOfGevent])
def test_a_server_with_tls_is_reached_from_a_program_under_gevent_as_well(start, tmp_path: Path, kind) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(pair.certificate, pair.key)

    def serve(used: socket.socket) -> None:
        with theirs.wrap_socket(used, server_side=True) as inner:
            peer.head(inner)  # type: ignore[arg-type]
            inner.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    ours = kind(ssl.PROTOCOL_TLS_CLIENT)
    ours.load_verify_locations(str(authority.certificate))
    peer, _ = start(serve)
    _, pool = start(server=f"https://{peer.address}", context=ours)

    assert ask(pool).read() == b"ok"


# -------------------------------------------------------------------------------------------------------------- proxies


def test_a_server_with_tls_is_reached_through_a_proxy_that_sees_nothing_of_it(start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(pair.certificate, pair.key)

    def tunnel(used: socket.socket) -> None:
        proxy.head(used)
        used.sendall(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
        with theirs.wrap_socket(used, server_side=True) as inner:
            proxy.head(inner)  # type: ignore[arg-type]
            inner.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    ours = ssl.create_default_context(cafile=str(authority.certificate))
    ours.verify_flags &= ~ssl.VERIFY_X509_STRICT
    proxy, _ = start(tunnel)
    _, pool = start(server="https://127.0.0.1:6443", context=ours, proxy=f"http://ann:p%40ss@{proxy.address}")

    assert ask(pool).read() == b"ok"
    assert proxy.heads[0].startswith(b"CONNECT 127.0.0.1:6443 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"ann:p@ss") in proxy.heads[0]
    assert b"Proxy-Authorization" not in proxy.heads[1]


def test_a_proxy_that_refuses_is_an_error_before_anything_was_sent(start) -> None:
    proxy, _ = start(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
    _, pool = start(server="https://127.0.0.1:6443", proxy=proxy.url)

    with pytest.raises(ConnectError, match="HTTP 407"):
        ask(pool)


@pytest.mark.parametrize("size", [2, 3_000_000])
def test_a_server_is_reached_through_a_proxy_that_is_spoken_to_over_tls(start, tmp_path, monkeypatch, size) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(pair.certificate, pair.key)

    def tunnel(used: socket.socket) -> None:
        proxy.head(used)
        used.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with theirs.wrap_socket(used, server_side=True) as inner:
            proxy.head(inner)  # type: ignore[arg-type]
            inner.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n".encode() + b"x" * size)

    def terminate_tls(used: socket.socket) -> None:
        host, _, port = proxy.address.partition(":")
        outer = theirs.wrap_socket(used, server_side=True)
        proxies._pass_on(socket.create_connection((host, int(port))), outer)

    ours = ssl.create_default_context(cafile=str(authority.certificate))
    ours.verify_flags &= ~ssl.VERIFY_X509_STRICT
    monkeypatch.setattr(ssl, "create_default_context", lambda **_: ours)
    proxy, _ = start(tunnel)
    front, pool = start(terminate_tls)
    _, pool = start(server="https://127.0.0.1:6443", context=ours, proxy=f"https://{front.address}")

    assert len(ask(pool).read()) == size
    pool.close()
    assert proxy.heads[0].startswith(b"CONNECT 127.0.0.1:6443 HTTP/1.1\r\n")


def test_the_certificate_of_a_proxy_is_not_taken_for_that_of_the_cluster(start, tmp_path) -> None:
    pair = Authority(tmp_path).issue("proxy")
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(pair.certificate, pair.key)

    def answer_in_tls(used: socket.socket) -> None:
        with contextlib.suppress(OSError):
            theirs.wrap_socket(used, server_side=True)

    front, _ = start(answer_in_tls)
    own = f"https://{front.address}"
    access = Access("https://127.0.0.1:6443", "the context test", FixedCredential("Bearer t"), proxy=own)

    with pytest.raises(BackendUnavailableError, match="the proxy for the context test does not let us") as caught:
        Transport(access, Retry(8, sleep=not_again)).send("GET", "/version")

    assert "the certificate of the proxy 127.0.0.1 is not trusted" in caught.value.why
    assert "set SSL_CERT_FILE" in caught.value.why


def test_a_proxy_that_wants_another_login_is_asked_only_once(start) -> None:
    proxy, _ = start(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
    access = Access("https://127.0.0.1:6443", "the context test", FixedCredential("Bearer t"), proxy=proxy.url)

    with pytest.raises(BackendUnavailableError, match="does not let us through") as caught:
        Transport(access, Retry(8, sleep=not_again)).send("GET", "/version")

    assert caught.value.why == "the proxy 127.0.0.1 answered with HTTP 407"
    assert "http://USER:PASSWORD@HOST:PORT" in caught.value.next


WRONG_KINDS = [
    ("http", b"\5\xff", "the proxy 127.0.0.1 does not speak HTTP"),
    ("https", b"HTTP/1.1 400 Bad Request\r\n\r\n", "the proxy 127.0.0.1 speaks no TLS ("),
]


@pytest.mark.parametrize(("kind", "answer", "why"), WRONG_KINDS)
def test_a_proxy_that_speaks_something_else_than_its_address_says_is_named(start, kind, answer, why) -> None:
    def speak(used: socket.socket) -> None:
        used.recv(4096)
        used.sendall(answer)

    proxy, _ = start(speak)
    access = Access("https://10.0.0.1:6443", "the context test", FixedCredential(), proxy=f"{kind}://{proxy.address}")

    with pytest.raises(BackendUnavailableError, match="the proxy for the context test does not let us") as caught:
        Transport(access, Retry(8, sleep=not_again)).send("GET", "/version")

    assert caught.value.why.startswith(why)


def test_a_proxy_that_closes_the_connection_is_named(start) -> None:
    proxy, _ = start(lambda used: used.recv(4096))
    _, pool = start(server="https://10.0.0.1:6443", proxy=proxy.url)

    with pytest.raises(ConnectError, match=r"^the proxy 127\.0\.0\.1 closed the connection$"):
        ask(pool)


NOT_VALID = ["ann:hunter#2@proxy.example:3128", "ann:hunter/2@proxy.example:3128", "proxy.example:80800", "[::1:3128"]


@pytest.mark.parametrize("server", ["https://10.0.0.1:6443", "http://10.0.0.1:8080"])
@pytest.mark.parametrize("address", NOT_VALID)
def test_an_address_of_a_proxy_that_is_not_valid_is_an_error_without_its_password(server: str, address: str) -> None:
    access = Access(server, "the context test", FixedCredential(), proxy=f"http://{address}")

    with pytest.raises(BackendUnavailableError, match="the address of the proxy is not valid; in a user or") as caught:
        Transport(access, Retry(8, sleep=not_again)).send("GET", "/version")

    assert "hunter" not in "".join(traceback.format_exception(caught.value))


def socks(answer: bytes, asked: list[bytes], *, login: bool = False) -> Serve:
    """Be a SOCKS proxy, RFC 1928 and 1929, before a server that answers with two bytes, without TLS."""

    def serve(used: socket.socket) -> None:
        asked.append(used.recv(2 + 2))  # the methods, of which there are two with a login and one without
        used.sendall(b"\5\2" if login else b"\5\0")
        if login:
            asked.append(used.recv(100))
            used.sendall(b"\1\0")
        asked.append(used.recv(100))
        used.sendall(answer)
        if used.recv(4096):
            used.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    return serve


BOUND = [b"\1\x7f\0\0\1\0\1", b"\3\4here\0\1", b"\4" + bytes(16) + b"\0\1"]


@pytest.mark.parametrize("bound", BOUND, ids=["ipv4", "name", "ipv6"])
def test_a_server_is_reached_through_a_socks_proxy_which_looks_up_its_name(start, bound: bytes) -> None:
    asked: list[bytes] = []
    proxy, _ = start(socks(b"\5\0\0" + bound, asked))
    _, pool = start(server="http://k8s.example:6443", proxy=f"socks5://{proxy.address}")

    assert ask(pool).read() == b"ok"
    assert asked == [b"\5\1\0", b"\5\1\0\3\x0bk8s.example\x19\x2b"]


@pytest.mark.parametrize("library", ["none", "eventlet"])
def test_a_socks_proxy_is_shown_the_login_of_its_address(start, library, monkeypatch) -> None:
    if library == "eventlet":
        monkeypatch.delattr(select, "poll")
    asked: list[bytes] = []
    proxy, _ = start(socks(b"\5\0\0" + BOUND[0], asked, login=True))
    _, pool = start(server="http://[::1]:80", proxy=f"SOCKS5H://ann:p%40ss@{proxy.address}")

    assert ask(pool).read() == b"ok"
    assert asked == [b"\5\2\0\2", b"\1\3ann\4p@ss", b"\5\1\0\4" + bytes(15) + b"\1\0\x50"]


NOT_SOCKS = "the proxy 127.0.0.1 does not speak SOCKS version 5; if it is one for HTTP, its address begins with http://"
REFUSING = [
    (b"\5\xff", "the proxy 127.0.0.1 demands a login"),
    (b"\5\0\5\5\0\1", "the proxy 127.0.0.1 does not connect to 10.0.0.1: connection refused"),
    (b"HTTP/1.1 400 Bad Request\r\n\r\n", NOT_SOCKS),
    (b"", "the proxy closed the connection"),
]


@pytest.mark.parametrize(("answer", "why"), REFUSING)
def test_a_socks_proxy_that_refuses_says_why(start, answer: bytes, why: str) -> None:
    def refuse(used: socket.socket) -> None:
        used.recv(100)
        used.sendall(answer)
        while answer and used.recv(100):
            pass

    proxy, _ = start(refuse)
    _, pool = start(server="https://10.0.0.1:6443", proxy=f"socks5://{proxy.address}")

    with pytest.raises(ConnectError, match=f"^{re.escape(why)}$"):
        ask(pool)


def test_a_proxy_for_http_that_waits_for_a_line_is_not_taken_for_one_of_socks(start, monkeypatch) -> None:
    def wait_for_a_line(used: socket.socket) -> None:
        while used.recv(100):
            pass

    monkeypatch.setattr(proxies, "_GREETING_SECONDS", 0.1)
    proxy, _ = start(wait_for_a_line)
    _, pool = start(server="https://10.0.0.1:6443", proxy=f"socks5://{proxy.address}")

    with pytest.raises(ConnectError, match=f"^{re.escape(NOT_SOCKS)}$") as caught:
        ask(pool)
    assert isinstance(caught.value.__cause__, proxies.RefusedError), "so it is not asked again"


@pytest.mark.parametrize("proxy", ["socks4://proxy.example:1080", "socks://proxy.example:1080"])
def test_a_proxy_of_another_kind_is_refused_with_its_reason(proxy: str) -> None:
    access = Access("https://127.0.0.1:6443", "the context test", FixedCredential("Bearer t"), proxy=proxy)

    with pytest.raises(SettingsError, match=r"only http://, https:// and socks5:// are supported"):
        Transport(access, Retry(1)).send("GET", "/version")


# ----------------------------------------------------------------------------------------------------------- WebSockets


class Ends:
    """Both ends of a WebSocket: ours, and a machine of wsproto behind a socket."""

    def __init__(self, start, protocols: list[str]) -> None:
        self.ready, self.may_end = threading.Event(), threading.Event()
        self.machine = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
        _, pool = start(self._serve)
        opened = pool.upgrade("/exec?a=b", headers={}, protocols=protocols, most_bytes=1 << 20, timeouts=TIMEOUTS)
        assert isinstance(opened, WebSocket)
        self.ours = opened
        assert self.ready.wait(10)

    def _serve(self, used: socket.socket) -> None:
        self.theirs = used
        data = b""
        while b"\r\n\r\n" not in data:
            data += used.recv(1 << 16)
        self.machine.receive_data(data)
        request = next(each for each in self.machine.events() if isinstance(each, Request))
        self.protocols = request.subprotocols
        chosen = request.subprotocols[-1] if request.subprotocols else None
        # The first message comes in the same packet as the acceptance: it must not be lost.
        first = self.machine.send(AcceptConnection(subprotocol=chosen)) + self.machine.send(BytesMessage(b"hello"))
        used.sendall(first)
        self.ready.set()
        self.may_end.wait(20)

    def send(self, *events: object) -> None:
        for event in events:
            self.theirs.sendall(self.machine.send(event))  # type: ignore[arg-type]

    def next_event(self, kind: type) -> object:
        while True:
            for event in self.machine.events():
                if isinstance(event, kind):
                    return event
            data = self.theirs.recv(1 << 16)
            assert data, f"no {kind.__name__} came"
            self.machine.receive_data(data)

    def close(self) -> None:
        self.ours.close()
        self.may_end.set()


@pytest.fixture
def ends(start) -> Iterator[Ends]:
    with contextlib.closing(Ends(start, ["v5.channel.k8s.io", "v4.channel.k8s.io"])) as ends:
        yield ends


def test_the_server_chooses_the_protocol_and_its_first_message_may_come_at_once(ends: Ends) -> None:
    assert ends.protocols == ["v5.channel.k8s.io", "v4.channel.k8s.io"]
    assert ends.ours.subprotocol == "v4.channel.k8s.io"
    assert ends.ours.receive() == b"hello"


@pytest.mark.parametrize("library", ["none", "eventlet"])
def test_messages_of_all_sizes_arrive_whole_in_both_directions(ends: Ends, library, monkeypatch) -> None:
    if library == "eventlet":
        monkeypatch.delattr(select, "poll")
    ends.ours.receive()
    for size in (0, 1, 125, 126, 65_535, 65_536, 900_000):
        data = os.urandom(size)
        beside = threading.Thread(target=ends.send, args=(BytesMessage(data),))
        beside.start()
        assert ends.ours.receive() == data
        beside.join()
        beside = threading.Thread(target=ends.ours.send, args=(data,))
        beside.start()
        parts = []
        while not parts or not parts[-1].message_finished:
            parts.append(ends.next_event(BytesMessage))
        beside.join()
        assert b"".join(bytes(each.data) for each in parts) == data


def test_a_message_in_parts_is_one_and_a_ping_between_them_is_answered(ends: Ends) -> None:
    ends.ours.receive()
    ends.send(BytesMessage(b"one ", message_finished=False), Ping(b"there?"), BytesMessage(b"message"))

    assert ends.ours.receive() == b"one message"
    pong = ends.next_event(Pong)
    assert isinstance(pong, Pong)
    assert bytes(pong.payload) == b"there?"


def test_the_end_of_the_other_side_is_answered_and_is_no_message(ends: Ends) -> None:
    ends.ours.receive()
    ends.send(CloseConnection(code=1000))

    assert ends.ours.receive() is None
    assert isinstance(ends.next_event(CloseConnection), CloseConnection)
    with pytest.raises(TransportError):
        ends.ours.send(b"too late")


def test_after_our_end_what_the_other_side_still_sends_is_read(ends: Ends) -> None:
    ends.ours.receive()
    ends.ours.finish()
    assert isinstance(ends.next_event(CloseConnection), CloseConnection)
    ends.theirs.shutdown(socket.SHUT_WR)

    assert ends.ours.receive() is None


@pytest.mark.parametrize("frame", [b"\x82\x7f" + (2 << 20).to_bytes(8, "big"), b"\x82", b""])
def test_a_message_that_is_too_long_or_cut_is_the_end(ends: Ends, frame: bytes) -> None:
    ends.ours.receive()
    ends.theirs.sendall(frame)
    ends.theirs.shutdown(socket.SHUT_WR)

    assert ends.ours.receive() is None


def test_an_idle_connection_is_kept_open_by_pings(start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "_PING_SECONDS", 0.01)
    with contextlib.closing(Ends(start, [])) as ends:
        assert ends.ours.subprotocol == ""
        for _ in range(2):
            assert isinstance(ends.next_event(Ping), Ping)


def test_a_peer_that_does_not_read_holds_up_no_close(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connection, "_CLOSE_SECONDS", 0.1)
    failed: list[BaseException] = []

    def fill() -> None:
        try:
            while True:
                ends.ours.send(b"x" * (1 << 19))
        except TransportError as error:
            failed.append(error)

    thread = threading.Thread(target=fill)
    thread.start()
    time.sleep(0.2)  # until all buffers are full

    begun = time.monotonic()
    ends.ours.close()
    took = time.monotonic() - begun
    thread.join(10)

    assert took < 5
    assert len(failed) == 1


def test_a_server_that_refuses_a_websocket_is_read(start) -> None:
    _, pool = start(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")

    answer = pool.upgrade("/exec", headers={}, protocols=[], most_bytes=1, timeouts=TIMEOUTS)

    assert isinstance(answer, Response)
    assert (answer.status, answer.read()) == (403, b"no")


def test_an_acceptance_of_something_else_is_not_taken_for_ours(start) -> None:
    wrong = base64.b64encode(hashlib.sha1(b"another key").digest())
    _, pool = start(b"HTTP/1.1 101 Switching Protocols\r\nSec-WebSocket-Accept: " + wrong + b"\r\n\r\n")

    with pytest.raises(TransportError, match=re.escape("was not asked for")):
        pool.upgrade("/exec", headers={}, protocols=[], most_bytes=1, timeouts=TIMEOUTS)


@pytest.mark.parametrize(
    ("host", "name"), [("kubernetes.default.svc", b"kubernetes.default.svc"), ("bücher.example", "bücher.example")]
)
def test_names_in_ascii_need_no_table_of_other_scripts(host: str, name: str | bytes) -> None:
    assert http_connection._name(host) == name


def test_a_name_in_another_script_is_looked_up_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def connect(address: tuple[object, int], timeout: float) -> socket.socket:
        asked.append(address)
        raise OSError("no such host")

    monkeypatch.setattr(socket, "create_connection", connect)
    for host in ("xn--bcher-kva.example", "bücher.example"):
        with pytest.raises(ConnectError):
            ask(ConnectionPool(f"http://{host}:1", context=ssl.create_default_context(), most=1, options=[]))

    assert asked == [(b"xn--bcher-kva.example", 1), ("bücher.example", 1)]

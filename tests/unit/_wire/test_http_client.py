"""Connections are kept for any thread, a closed one costs nothing, and logins are shown to one host alone."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import ssl
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

import pytest
from cluster.certificates import Authority
from servers.http11 import Answer, Request, Server

from kinetic._wire import http_client, proxies
from kinetic._wire.http_client import HttpClient


@pytest.fixture
def server() -> Iterator[Callable[[Callable[[Request], Answer]], Server]]:
    started: list[Server] = []

    def start(answer: Callable[[Request], Answer]) -> Server:
        started.append(Server(answer).start())
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.fixture
def client() -> Iterator[HttpClient]:
    made = HttpClient(most_bytes=1000)
    yield made
    made.close()


@pytest.fixture
def raw() -> Iterator[Callable[..., str]]:
    """Return a function that serves connections one after the other: each gets its answer and is closed."""
    sockets: list[socket.socket] = []

    def serve(*answers: bytes, accepted: list[int] | None = None) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        sockets.append(listening)

        def work() -> None:
            for answer in answers:
                try:
                    connection, _ = listening.accept()
                except OSError:  # closed at the end of the test, which asked for fewer
                    return
                if accepted is not None:
                    accepted.append(1)
                connection.recv(65536)
                connection.sendall(answer)
                connection.close()

        threading.Thread(target=work, daemon=True).start()
        return f"http://127.0.0.1:{listening.getsockname()[1]}"

    yield serve
    for each in sockets:
        each.close()


def test_threads_that_come_later_use_the_connections_of_those_that_ended(client, raw) -> None:
    accepted: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def serve() -> None:
            connection, _ = listening.accept()
            accepted.append(1)
            with connection:
                while connection.recv(65536):
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

        server = threading.Thread(target=serve, daemon=True)
        server.start()
        for _ in range(3):
            thread = threading.Thread(target=client.send, args=("GET", url))
            thread.start()
            thread.join()
        client.close()
        server.join()

    assert (len(accepted), client.requests) == (1, 3)


def test_a_connection_that_the_server_closed_meanwhile_is_not_used_for_an_upload(client, raw) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    url = raw(answer, answer)

    assert client.send("GET", url).status == 200
    for _ in range(100):  # until the end of the first connection has come
        if not client._idle or any(map(http_client._has_ended, next(iter(client._idle.values())))):
            break
        threading.Event().wait(0.01)
    assert client.send("PUT", url, body=iter([b"a", b"b"]), headers={"Content-Length": "2"}).status == 200


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
def test_connections_to_hosts_that_are_gone_are_closed_though_nobody_asks_those_hosts_again(client) -> None:
    counts = []
    for _ in range(12):
        server = Server(lambda _: Answer(200, b"ok")).start()
        client.send("GET", server.url)
        server.close()
        counts.append(len(os.listdir("/proc/self/fd")))

    assert counts[-1] <= counts[1] + 1, counts  # of the last server, which closed its end after the answer


def test_an_answer_that_is_cut_off_is_no_answer(client, raw) -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
    came: list[bytes] = []

    with pytest.raises(OSError, match="IncompleteRead"):
        client.send("GET", raw(half))
    with pytest.raises(OSError, match="IncompleteRead"):
        client.send("GET", raw(half), take=lambda response: came.append(response.read(1000)))


def test_a_long_answer_is_cut_off_and_the_next_request_is_not_confused(client, server) -> None:
    started = server(lambda request: Answer(200, b"x" * 5000))

    assert [len(client.send("GET", started.url).body) for _ in range(3)] == [1000] * 3


def test_another_host_is_asked_without_the_login(client, server) -> None:
    seen: list[str | None] = []

    def answer(request: Request) -> Answer:
        seen.append(request.headers.get("authorization"))
        return Answer(200, b"blob")

    target = server(answer)
    first = server(lambda request: Answer(307, b"", {"Location": f"http://localhost:{target.port}/blob"}))

    found = client.send("GET", first.url, headers={"Authorization": "Bearer secret"})

    assert (found.body, seen) == (b"blob", [None])


def test_a_host_that_is_not_this_machine_is_not_asked_without_tls(client) -> None:
    with pytest.raises(OSError, match=r"^registry\.example\.com would be asked without TLS$"):
        client.send("GET", "http://ann:secret@registry.example.com/v2/")


def test_an_untrusted_certificate_is_said_with_the_variable_that_makes_it_trusted(client, tmp_path) -> None:
    pair = Authority(tmp_path).issue("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                context.wrap_socket(connection, server_side=True)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(OSError, match=r"^the certificate of 127\.0\.0\.1 is not trusted: .*; set SSL_CERT_FILE to"):
            client.send("GET", f"https://127.0.0.1:{listening.getsockname()[1]}/v2/")
        thread.join()


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_a_proxy_that_wants_a_login_is_shown_the_one_of_its_address(client, monkeypatch, scheme) -> None:
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            seen.append(connection.recv(65536))
            connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        monkeypatch.setenv("https_proxy", f"{scheme}ann:se%40cret@127.0.0.1:{listening.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pytest.raises(OSError):
            client.send("GET", "https://registry.example.com/v2/")
        thread.join()

    assert seen[0].startswith(b"CONNECT registry.example.com:443")
    assert b"Proxy-Authorization: Basic YW5uOnNlQGNyZXQ=" in seen[0]


@pytest.mark.parametrize("proxy", ["http://127.0.0.1", "127.0.0.1/", "http://ann:se%40cret@127.0.0.1"])
def test_a_proxy_without_a_port_is_at_port_80(client, monkeypatch, proxy) -> None:
    asked: list[tuple[str, int]] = []

    def connect(address, *_, **__) -> NoReturn:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setenv("https_proxy", proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(OSError):
        client.send("GET", "https://registry.example.com/v2/")

    assert set(asked) == {("127.0.0.1", 80)}


@pytest.fixture
def proxy_over_tls(tmp_path, monkeypatch) -> Iterator[tuple[str, list[bytes]]]:
    """Return a proxy that is spoken to over TLS, and what it read before the tunnel; behind it, each server is ours."""
    authority = Authority(tmp_path)
    pair = authority.issue("server", hosts=("127.0.0.1", "registry.example"))
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(pair.certificate, pair.key)
    heads: list[bytes] = []
    with contextlib.ExitStack() as open_sockets:
        front = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        back = open_sockets.enter_context(socket.create_server(("127.0.0.1", 0)))

        def terminate_tls() -> None:
            with contextlib.suppress(OSError):
                outer = theirs.wrap_socket(front.accept()[0], server_side=True)
                proxies._pass_on(socket.create_connection(back.getsockname()), outer)

        def serve() -> None:
            with contextlib.suppress(OSError), back.accept()[0] as used:  # nothing comes where TLS fails before
                heads.append(used.recv(65536))
                used.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                with theirs.wrap_socket(used, server_side=True) as inner:
                    for body in (b"first", b"second"):
                        heads.append(inner.recv(65536))
                        inner.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

        for work in (terminate_tls, serve):
            threading.Thread(target=work, daemon=True).start()
        ours = ssl.create_default_context(cafile=str(authority.certificate))
        ours.verify_flags &= ~ssl.VERIFY_X509_STRICT
        monkeypatch.setattr(ssl, "create_default_context", lambda: ours)
        monkeypatch.setattr(http_client, "_tls", lambda: ours)
        monkeypatch.setenv("https_proxy", f"https://ann:se%40cret@127.0.0.1:{front.getsockname()[1]}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        yield "https://registry.example:5000/v2/", heads


@pytest.mark.parametrize("library", ["none", "eventlet"])
def test_a_proxy_whose_address_begins_with_https_is_spoken_to_over_tls(
    client, proxy_over_tls, library, monkeypatch
) -> None:
    if library == "eventlet":
        monkeypatch.delattr(select, "poll")
        monkeypatch.setattr(selectors, "DefaultSelector", selectors.SelectSelector)
    url, heads = proxy_over_tls

    answers = [client.send("GET", url).body for _ in range(2)]

    assert answers == [b"first", b"second"]
    assert heads[0].startswith(b"CONNECT registry.example:5000 HTTP/1.1\r\nHost: registry.example:5000\r\n")
    assert b"Proxy-Authorization: Basic YW5uOnNlQGNyZXQ=" in heads[0]
    assert heads[1].startswith(b"GET /v2/ HTTP/1.1\r\nHost: registry.example:5000\r\n")
    assert b"Proxy-Authorization" not in heads[1]


def test_the_certificate_of_a_proxy_that_is_not_trusted_is_not_taken_for_that_of_the_server(
    client, proxy_over_tls, monkeypatch
) -> None:
    monkeypatch.setattr(ssl, "create_default_context", lambda: ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))

    with pytest.raises(OSError, match=r"^the certificate of the proxy 127\.0\.0\.1 is not trusted: .*; set SSL"):
        client.send("GET", proxy_over_tls[0])


@pytest.mark.parametrize("name", ["http_proxy", "ALL_PROXY"])
def test_what_has_no_tls_is_forwarded_by_the_proxy_for_it_except_on_this_machine(server, monkeypatch, name) -> None:
    for each in [each for each in os.environ if each.lower().endswith("_proxy")]:
        monkeypatch.delenv(each)
    here = server(lambda _: Answer(200, b"here"))
    asked: list[Request] = []

    def forward(request: Request) -> Answer:
        asked.append(request)
        return Answer(200)

    proxy = server(forward)
    monkeypatch.setenv(name, proxy.url.replace("//", "//ann:se%40cret@"))
    client = HttpClient(plain_http=True)

    answers = [client.send("GET", url).body for url in ("http://registry.lan:5000/v2/?n=1", f"{here.url}/v2/")]
    client.close()

    assert answers == [b"", b"here"]
    ((method, path, query, headers, *_),) = asked
    assert (method, path, query) == ("GET", "http://registry.lan:5000/v2/", {"n": "1"})
    assert (headers["host"], headers["proxy-authorization"]) == ("registry.lan:5000", "Basic YW5uOnNlQGNyZXQ=")


def test_a_proxy_that_refuses_is_named(client, raw, monkeypatch) -> None:
    monkeypatch.setenv("https_proxy", raw(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(OSError, match=r"^the proxy 127\.0\.0\.1 answered with HTTP 407$"):
        client.send("GET", "https://registry.example.com/v2/")


@pytest.mark.parametrize("kind", ["http", "https", "socks5"])
def test_a_proxy_that_cannot_be_reached_is_named(client, monkeypatch, kind) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("https_proxy", f"{kind}://127.0.0.1:{port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(OSError, match=r"^the proxy 127\.0\.0\.1 cannot be reached: Connection refused$"):
        client.send("GET", "https://registry.example.com/v2/")


@pytest.mark.parametrize("token", ["tr0ub4dor\n", "tr0ub4dor\r\nX-Other: 1", "tr0ub4dor\N{EM DASH}"])
def test_a_login_that_no_header_can_have_is_not_shown(client, raw, token: str) -> None:
    with pytest.raises(OSError, match="as a line break") as caught:
        client.send("GET", raw(b""), headers={"Authorization": f"Bearer {token}"})

    assert "tr0ub4dor" not in "".join(traceback.format_exception(caught.value))

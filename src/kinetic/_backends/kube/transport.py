"""Requests to one API server: with our credentials, repeated after what passes, sent on when the server has moved.

An ``Access`` says where the server is and which credentials it accepts, whatever it was read from; see ``connection``.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from kinetic._stores.parallel import Retry
from kinetic._wire import dataclass, folders
from kinetic.errors import BackendUnavailableError, CredentialsError

if TYPE_CHECKING:
    import ssl

    import httpx2
    from httpx2.websockets import WebSocketSession


class Certificate(NamedTuple):
    """A client's certificate and its private key, both as PEM."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        """Keep the key out of logs and tracebacks."""
        return "Certificate(…)"


class Credential(Protocol):
    """The credentials that a server accepts from us."""

    def header(self, *, rejected: str = "") -> str:
        """Return the header Authorization, "" for none; not the one that was just rejected, if there is another."""

    def certificate(self) -> Certificate | None:
        """Return a client's certificate that comes with it, or None."""
        return None


@dataclass(frozen=True)
class Access:
    """Where an API server is, how it proves its identity, and our credentials."""

    server: str  # its address, without a slash at the end
    about: str  # for messages: "the context kind-dev", "the cluster c in us-central1-a"
    credential: Credential
    authority: bytes = b""  # the certificate of who signed the server's, as PEM; empty for what this machine trusts
    verify: bool = True  # whether the server must prove its identity; False only where a kubeconfig says so
    server_name: str = ""  # that the server's certificate must have; "" for that of the address
    certificate: Certificate | None = None  # a client's
    namespace: str = ""  # the context's own, "" for none
    proxy: str = field(default="", repr=False)  # the context's own; it may hold a password
    again: Callable[[], Access] | None = field(default=None, compare=False)  # looks up anew where the server is


# --------------------------------------------------------------------------------------------------------- connections

_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_MOST_CONNECTIONS = 512  # a follower of a log holds one, and so does a watch; half the files that a process may open


def _http_client(access: Access) -> httpx2.Client:
    """Return a client whose connections trust what the access trusts."""
    import httpx2

    transport = httpx2.HTTPTransport(
        verify=_ssl_context(access),
        limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=16, keepalive_expiry=60.0),
        proxy=access.proxy or _environment_proxy(access.server),
        socket_options=_keepalive_options(),
    )
    return httpx2.Client(
        transport=transport,
        timeout=httpx2.Timeout(_READ_SECONDS, connect=_CONNECT_SECONDS),
        trust_env=False,
        follow_redirects=False,
        event_hooks={"response": [_read_failed_upgrade]},
    )


def _read_failed_upgrade(response: httpx2.Response) -> None:
    """Read why a WebSocket was rejected while that is possible: it is closed before an error is raised."""
    if "upgrade" in response.request.headers and response.status_code != 101:
        response.read()


def _ssl_context(access: Access) -> ssl.SSLContext:
    import ssl  # 20 ms

    try:
        context = ssl.create_default_context(cadata=access.authority.decode() or None)
        context.sslsocket_class = _socket_class()
        if access.authority:
            # Python 3.13 began to insist on extensions that authorities made for one cluster often lack, EKS's among
            # them; whom they signed is verified as before.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not access.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        own = access.certificate or access.credential.certificate()
        if own is not None:
            _load_certificate(context, own)
    except (ssl.SSLError, ValueError, OSError) as error:
        raise CredentialsError(
            f"the certificates for {access.about} cannot be used", why=str(error), next="log in to the cluster again"
        ) from error
    return context


@cache
def _socket_class() -> type[ssl.SSLSocket]:
    """Return a socket that any thread may close: those that use it wake up, and its file lives until the last has left.

    OpenSSL reads a record in two calls, by the number of the file. If it is closed between them, whoever opens a file
    next gets that number, and loses bytes to the thread that still reads.
    """
    import errno
    import ssl

    class SharedSocket(ssl.SSLSocket):
        _lock: threading.Lock
        _users = 0
        _is_ended = False

        def __new__(cls, *words: Any, **more: Any) -> Self:
            made = super().__new__(cls, *words, **more)
            made._lock = threading.Lock()  # ssl makes its sockets without __init__
            return made

        def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
            with self._in_use():
                return super().recv(buflen, flags)

        def send(self, data: Any, flags: int = 0) -> int:
            with self._in_use():
                return super().send(data, flags)

        def settimeout(self, value: float | None) -> None:
            with self._in_use():
                super().settimeout(value)

        @contextmanager
        def _in_use(self) -> Iterator[None]:
            with self._lock:
                if self._is_ended:
                    raise OSError(errno.EBADF, "the connection was closed")
                self._users += 1
            try:
                yield
            finally:
                with self._lock:
                    self._users -= 1
                    is_last = self._is_ended and not self._users
                if is_last:
                    super().close()

        def close(self) -> None:
            with self._lock:
                self._is_ended, is_used = True, self._users > 0
                if is_used:
                    with contextlib.suppress(OSError):  # the other end may be gone
                        # SSLSocket's own forgets that it is encrypted, and what is sent after it goes out as it is.
                        socket.socket.shutdown(self, socket.SHUT_RDWR)
            if not is_used:
                super().close()

    return SharedSocket


def _load_certificate(context: ssl.SSLContext, own: Certificate) -> None:
    """Load a certificate and its key, which Python takes from a file only: one in memory where that exists."""
    pem = own.chain.rstrip() + b"\n" + own.key
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("certificate")
        try:
            folders.write_all(descriptor, pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        return
    import tempfile

    with tempfile.NamedTemporaryFile() as file:  # 0600, and removed at once
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


def _environment_proxy(server: str) -> str | None:
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.parse
    import urllib.request  # 30 ms; only where there is a proxy

    parts = urllib.parse.urlsplit(server)
    proxies = urllib.request.getproxies()
    found, host = proxies.get(parts.scheme) or proxies.get("all"), parts.hostname or ""
    if found is None or urllib.request.proxy_bypass(host) or _is_in_networks(host, proxies.get("no", "")):
        return None
    return found


def _is_in_networks(host: str, networks: str) -> bool:
    """Return whether an address is in one of some networks, as in 10.0.0.0/8: kubectl knows them, urllib does not."""
    import ipaddress

    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        for written in (part.strip() for part in networks.split(",") if "/" in part):
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(written, strict=False):
                    return True
    return False


def _keepalive_options() -> list[tuple[int, int, int]]:
    """Notice within about a minute that the other end is gone: a laptop slept, or a load balancer dropped us."""
    wanted = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
    known = [
        (socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in wanted.items() if hasattr(socket, name)
    ]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *known]


def _is_untrusted(error: BaseException) -> bool:
    """Return whether a connection failed because the server's certificate was rejected: no retry helps."""
    import ssl  # it is loaded already: a connection was tried

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


# ------------------------------------------------------------------------------------------------------------ requests

RETRYABLE_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
DEFAULT_RETRY = Retry(attempts=8, first_seconds=0.25, most_seconds=10.0, total_seconds=60.0)
_MESSAGE_BYTES = 1 << 20  # of a connection that both ends write to
_LONGEST_WAIT = 30.0  # seconds; a server that asks for more is reported as unavailable

Query = Mapping[str, str | int | bool]


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    repeated: bool = False  # whether an earlier attempt may have been carried out, too


@dataclass
class _Once:
    """What one request may do once: use another credential, and look up where the server is now."""

    rejected: str = ""  # the header that the server rejected
    moved: bool = False


class Transport:
    """Send requests. Threads may share it; a forked process makes connections of its own."""

    def __init__(self, access: Access, retry: Retry = DEFAULT_RETRY) -> None:
        self.access = access
        self._retry = retry
        self._lock = threading.Lock()
        self._http: httpx2.Client | None = None
        self._process = 0

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        once_seconds: float | None = None,
    ) -> Reply:
        """Send a request and return the answer, whatever it is, unless a retry or other credentials may change it.

        Requests are repeated though the first may have been carried out: names are derived, so that creating an
        object twice creates it once. With `once_seconds`, it is sent once, and waited so long for a connection and
        twice as long for the answer: somebody asks whether the server is there.
        """
        import httpx2  # 90 ms; only for a cluster

        timeout = None if once_seconds is None else httpx2.Timeout(2 * once_seconds, connect=once_seconds)
        build = partial(self._request, method, path, query, body, headers or {}, timeout)
        begun, attempt, once, failure = time.monotonic(), 0, _Once(), ""
        while True:
            wanted = 0.0
            try:
                answer = self._try(build, once)
            except httpx2.TransportError as error:
                failure = f"{type(error).__name__}: {error}"
            else:
                if answer.status_code not in RETRYABLE_STATUSES:
                    return Reply(answer.status_code, answer.content, repeated=bool(failure))
                failure = f"HTTP {answer.status_code}: {answer.text[:300]}"
                after = answer.headers.get("retry-after", "")
                wanted = float(after) if after.isdecimal() else 0.0  # a date, which no API server sends
            attempt += 1
            is_over = attempt >= self._retry.attempts or time.monotonic() - begun > self._retry.total_seconds
            if is_over or once_seconds is not None:
                raise BackendUnavailableError(
                    f"{self.access.about} does not respond",
                    why=f"{self.access.server}: {failure}",
                    next="check the network and the cluster, and try again",
                )
            self._retry.pause(attempt - 1, at_least=min(wanted, _LONGEST_WAIT))

    def _try(
        self, build: Callable[[httpx2.Client, str], httpx2.Request], once: _Once, *, stream: bool = False
    ) -> httpx2.Response:
        """Send a request, once more with other credentials, once more to where the server is now."""
        import httpx2

        while True:
            http = self._connected()
            header = self.access.credential.header(rejected=once.rejected)
            try:
                answer = http.send(build(http, header), stream=stream)
            except httpx2.TransportError as error:
                if self._has_moved(error, once):
                    continue
                if _is_untrusted(error):
                    raise BackendUnavailableError(
                        f"the certificate of {self.access.about} is not trusted",
                        why=f"{self.access.server}: {error}",
                        next="log in to the cluster again, or correct certificate-authority-data in the kubeconfig",
                    ) from error
                raise
            except RuntimeError:
                if not http.is_closed:
                    raise
                continue  # another thread closed it this moment, for another certificate or another address
            if answer.status_code != 401 or not self._reject(header, once):
                return answer
            answer.close()

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        query: Query,
        silence_seconds: float,
        may_have_moved: bool = True,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[httpx2.Response]:
        """Open an answer that keeps coming, once: the reader knows where to resume; see ``stream_errors``.

        With `may_have_moved`, it is looked up where the server is now if it cannot be reached.
        """
        import httpx2

        timeout = httpx2.Timeout(_CONNECT_SECONDS, read=silence_seconds)
        build = partial(self._request, "GET", path, query, None, headers or {}, timeout)
        answer = self._try(build, _Once(moved=not may_have_moved), stream=True)
        try:
            yield answer
        finally:
            answer.close()

    @contextmanager
    def websocket(
        self, path: str, *, query: Mapping[str, str | int | bool | list[str]], protocols: list[str]
    ) -> Iterator[WebSocketSession]:
        """Open a connection that both ends write to, once more with other credentials or to where the server is now."""
        import httpx2
        from httpx2.websockets import WebSocketUpgradeError

        once = _Once()
        with ExitStack() as stack:
            while True:
                http = self._connected()
                header = self.access.credential.header(rejected=once.rejected)
                try:
                    session = stack.enter_context(
                        http.websocket(
                            f"{self.access.server}{path}",
                            params=query,
                            headers=_authorization(header),
                            extensions=self._extensions(),
                            subprotocols=protocols,
                            max_message_size_bytes=_MESSAGE_BYTES,
                            # Pings keep load balancers from dropping an idle connection. Their answers are not waited
                            # for: they come late while nothing reads, as when output is piped into a pager. Keepalive
                            # notices a peer that is gone.
                            keepalive_ping_timeout_seconds=None,
                        )
                    )
                    break
                except WebSocketUpgradeError as error:
                    if error.response.status_code != 401 or not self._reject(header, once):
                        raise
                except httpx2.TransportError as error:
                    if not self._has_moved(error, once):
                        raise
                except RuntimeError:
                    if not http.is_closed:
                        raise  # otherwise another thread closed it this moment; see _try
            yield session

    def _reject(self, header: str, once: _Once) -> bool:
        """Note that a credential was rejected; return whether to try again with another one."""
        if once.rejected:
            return False
        once.rejected = header or "a certificate"
        if self.access.credential.certificate() is not None:
            self.close()  # it is shown when a connection is made
        return True

    def _has_moved(self, error: Exception, once: _Once) -> bool:
        """Return whether the server could not be reached because it is elsewhere now, or has another certificate."""
        import httpx2

        if (
            once.moved
            or self.access.again is None
            or not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
        ):
            return False
        once.moved = True
        found = self.access.again()
        if (found.server, found.authority) == (self.access.server, self.access.authority):
            return False
        self.close()
        self.access = found
        return True

    def pause(self, attempt: int) -> None:
        """Wait before a stream is opened again; the first time hardly at all."""
        self._retry.pause(min(attempt, 6))

    def close(self) -> None:
        """Close all connections. Using it again opens new ones."""
        with self._lock:
            http, self._http = self._http, None
        if http is not None and self._process == os.getpid():
            http.close()

    def _request(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout: httpx2.Timeout | None,
        http: httpx2.Client,
        credential: str,
    ) -> httpx2.Request:
        """Build every request but the beginning of a WebSocket, which httpx2 builds."""
        content = {"Content-Type": "application/json"} if body is not None else {}
        return http.build_request(
            method,
            f"{self.access.server}{path}",
            params=query,
            content=body,
            headers={"Accept": "application/json", **content, **headers, **_authorization(credential)},
            timeout=http.timeout if timeout is None else timeout,
            extensions=self._extensions(),
        )

    def _extensions(self) -> dict[str, str] | None:
        return {"sni_hostname": self.access.server_name} if self.access.server_name else None

    def _connected(self) -> httpx2.Client:
        with self._lock:
            if self._http is None or self._process != os.getpid():
                self._http, self._process = _http_client(self.access), os.getpid()
            return self._http


def _authorization(header: str) -> dict[str, str]:
    return {"Authorization": header} if header else {}


def stream_errors() -> tuple[type[Exception], ...]:
    import httpx2

    return (httpx2.TransportError, httpx2.StreamError, ConnectionError)

"""Requests to one API server: as who we are, again after what passes, and to the new address when it has moved."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from kinetic._stores.parallel import Retry
from kinetic._wire import folders
from kinetic.errors import BackendUnavailableError, CredentialsError

if TYPE_CHECKING:
    import ssl

    import httpx2
    from httpx2.websockets import WebSocketSession

    from kinetic._backends.kube.credentials import Access, Certificate


CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_UPGRADED = 101
_MOST_CONNECTIONS = 512  # a follower of a log holds one, and so does a watch; half the files that a process may open


def http_client(access: Access) -> httpx2.Client:
    """Make a client whose connections trust what the access trusts.

    Raises:
        CredentialsError: A certificate cannot be used.
    """
    import httpx2

    transport = httpx2.HTTPTransport(
        verify=_ssl_context(access),
        limits=httpx2.Limits(max_connections=_MOST_CONNECTIONS, max_keepalive_connections=16, keepalive_expiry=60.0),
        proxy=access.proxy or _environment_proxy(access.server),
        socket_options=_socket_options(),
    )
    timeout = httpx2.Timeout(_READ_SECONDS, connect=CONNECT_SECONDS)
    return httpx2.Client(
        transport=transport,
        timeout=timeout,
        trust_env=False,
        follow_redirects=False,
        event_hooks={"response": [_read_if_refused]},
    )


def is_untrusted(error: BaseException) -> bool:
    """Return whether a connection failed because the server's certificate was refused: no repetition helps."""
    import ssl  # loaded by whoever has tried to connect

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


def _read_if_refused(response: httpx2.Response) -> None:
    """Read why a WebSocket was refused, while it can be read: it is closed before anybody is told of it."""
    if "upgrade" in response.request.headers and response.status_code != _UPGRADED:
        response.read()


def _ssl_context(access: Access) -> ssl.SSLContext:
    import ssl  # 20 ms

    try:
        context = ssl.create_default_context(cadata=access.authority.decode() or None)
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

    with tempfile.NamedTemporaryFile() as file:  # 0600, and gone in a moment
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name)


def _environment_proxy(server: str) -> str | None:
    """Return the proxy that the environment wants for a server."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    import urllib.parse
    import urllib.request  # 30 ms; only where there is a proxy

    parts = urllib.parse.urlsplit(server)
    proxies = urllib.request.getproxies()
    found, host = proxies.get(parts.scheme) or proxies.get("all"), parts.hostname or ""
    past = found is None or urllib.request.proxy_bypass(host) or _is_in_networks(host, proxies.get("no", ""))
    return None if past else found


def _is_in_networks(host: str, networks: str) -> bool:
    """Say whether an address lies in one of some networks, as in 10.0.0.0/8: kubectl knows them, and urllib not."""
    import ipaddress

    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        for written in (part.strip() for part in networks.split(",") if "/" in part):
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(written, strict=False):
                    return True
    return False


def _socket_options() -> list[tuple[int, int, int]]:
    """Notice within about a minute that the other end is gone: a laptop slept, or a balancer forgot us."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


RETRYABLE_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
DEFAULT_RETRY = Retry(attempts=8, first_seconds=0.25, most_seconds=10.0, total_seconds=60.0)
_MESSAGE = 1 << 20  # bytes: of a connection that both ends write to
_LONGEST_WAIT = 30.0  # seconds; a server that asks for more is told off as unavailable

Query = Mapping[str, str | int | bool]


class Reply(NamedTuple):
    """An answer.

    Attributes:
        status: The HTTP status.
        body: Whole.
        repeated: An earlier try may have been carried out, too.
    """

    status: int
    body: bytes
    repeated: bool


class _Once:
    """What one request may do once.

    Attributes:
        refused: The header that the server did not know; "" before it refused one.
        moved: Whether we have asked where the server is now.
    """

    def __init__(self) -> None:
        self.refused = ""
        self.moved = False


class Transport:
    """Send requests. Threads may share it; a forked process makes connections of its own."""

    def __init__(self, access: Access, retry: Retry = DEFAULT_RETRY) -> None:
        self.access = access
        self.requests = 0  # sent so far (count)
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
    ) -> Reply:
        """Send a request and return the answer, whatever it is, except for what passes or concerns us and not it.

        Requests are repeated though the first may have been carried out: names are derived, so that making a thing
        twice makes it once.

        Raises:
            BackendUnavailableError: No answer came, or only ones that say "later".
            CredentialsError: We are not who we say, or have nothing to say it with.
        """
        begun, attempt, once, failure = time.monotonic(), 0, _Once(), ""
        while True:
            answer, words = self._try(once, method, path, query, body, headers)
            if answer is not None and answer.status_code not in RETRYABLE_STATUSES:
                return Reply(answer.status_code, answer.content, repeated=bool(failure))
            failure, wanted = words, 0.0
            if answer is not None:
                failure = f"HTTP {answer.status_code}: {answer.text[:300]}"
                wanted = _retry_after_seconds(answer.headers.get("retry-after", ""))
            attempt += 1
            if attempt >= self._retry.attempts or time.monotonic() - begun > self._retry.total_seconds:
                raise self._unavailable(failure)
            self._retry.pause(attempt - 1, at_least=min(wanted, _LONGEST_WAIT))

    def _try(
        self,
        once: _Once,
        method: str,
        path: str,
        query: Query | None,
        body: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> tuple[httpx2.Response | None, str]:
        """Send a request, once more as somebody who is known, once more to where the server is now.

        Returns:
            The answer, or None and how the connection failed.
        """
        import httpx2  # 90 ms; only for a cluster

        while True:
            http = self._connected()
            header = self.access.credential.header(rejected=once.refused)
            try:
                answer = http.send(self._request(http, method, path, query, body, headers, header))
            except httpx2.TransportError as error:
                if not once.moved and isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
                    once.moved = True
                    if self.moved():
                        continue
                if is_untrusted(error):
                    raise self._untrusted(error) from error
                return None, f"{type(error).__name__}: {error}"
            except RuntimeError:
                if not http.is_closed:
                    raise
                continue  # another thread closed it this moment, for another certificate or another address
            if answer.status_code != 401 or once.refused:
                return answer, ""
            once.refused = header or "a certificate"
            if self.access.credential.certificate() is not None:
                self.close()  # it is shown when a connection is made

    @contextmanager
    def stream(self, path: str, *, query: Query, silence_seconds: float) -> Iterator[httpx2.Response]:
        """Open an answer that goes on, once: whoever reads knows where to resume.

        Args:
            path: Of a watch or a log.
            query: What is asked for.
            silence_seconds: How long nothing may come.

        Raises:
            httpx2.TransportError: The connection could not be made, or broke.
        """
        import httpx2

        http = self._connected()
        header = self.access.credential.header()
        request = self._request(http, "GET", path, query, None, None, header)
        request.extensions["timeout"] = httpx2.Timeout(CONNECT_SECONDS, read=silence_seconds).as_dict()
        try:
            answer = http.send(request, stream=True)
            if answer.status_code == 401:
                answer.close()
                request.headers["Authorization"] = self.access.credential.header(rejected=header)
                answer = http.send(request, stream=True)
        except RuntimeError as error:
            if not http.is_closed:
                raise
            raise httpx2.CloseError("another thread closed the connections this moment") from error
        try:
            yield answer
        finally:
            answer.close()

    @contextmanager
    def websocket(
        self, path: str, *, query: Mapping[str, str | int | bool | list[str]], protocols: list[str]
    ) -> Iterator[WebSocketSession]:
        """Open a connection that both ends write to, once more as somebody who is known or to where the server is now.

        Raises:
            httpx2.HTTPError: It could not be made.
            HTTPXWSException: The server did not agree to it.
        """
        import httpx2
        from httpx2.websockets import WebSocketUpgradeError

        once = _Once()
        with ExitStack() as stack:
            while True:
                header = self.access.credential.header(rejected=once.refused)
                try:
                    socket = stack.enter_context(self._websocket(path, query, protocols, header))
                    break
                except WebSocketUpgradeError as error:
                    if error.response.status_code != 401 or once.refused:
                        raise
                    once.refused = header or "a certificate"
                    if self.access.credential.certificate() is not None:
                        self.close()
                except (httpx2.ConnectError, httpx2.ConnectTimeout):
                    if once.moved or not self.moved():
                        raise
                    once.moved = True
            yield socket

    def _websocket(
        self,
        path: str,
        query: Mapping[str, str | int | bool | list[str]],
        protocols: list[str],
        credential: str,
    ) -> AbstractContextManager[WebSocketSession]:
        self.requests += 1
        name = self.access.server_name
        return self._connected().websocket(
            f"{self.access.server}{path}",
            params={key: value if isinstance(value, list) else _query_value(value) for key, value in query.items()},
            headers={"Authorization": credential} if credential else {},
            extensions={"sni_hostname": name} if name else None,
            subprotocols=protocols,
            max_message_size_bytes=_MESSAGE,
            # Pings keep balancers from forgetting an idle connection. Their answers are not waited for: they come late
            # while nobody reads, as when output is piped into a pager. Who is gone is noticed as with all connections.
            keepalive_ping_timeout_seconds=None,
        )

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
        http: httpx2.Client,
        method: str,
        path: str,
        query: Query | None,
        body: bytes | None,
        headers: Mapping[str, str] | None,
        credential: str,
    ) -> httpx2.Request:
        self.requests += 1
        found = {"Accept": "application/json", **(headers or {})}
        if body is not None:
            found.setdefault("Content-Type", "application/json")
        if credential:
            found["Authorization"] = credential
        name = self.access.server_name
        more = {"sni_hostname": name} if name else None
        params = {key: _query_value(value) for key, value in (query or {}).items()}
        return http.build_request(
            method, f"{self.access.server}{path}", params=params, content=body, headers=found, extensions=more
        )

    def _connected(self) -> httpx2.Client:
        with self._lock:
            if self._http is None or self._process != os.getpid():
                self._http, self._process = http_client(self.access), os.getpid()
            return self._http

    def moved(self) -> bool:
        """Ask anew where the server is; True when it is somewhere else, or has another certificate."""
        if self.access.again is None:
            return False
        found = self.access.again()
        if (found.server, found.authority) == (self.access.server, self.access.authority):
            return False
        self.close()
        self.access = found
        return True

    def _unavailable(self, failure: str) -> BackendUnavailableError:
        return BackendUnavailableError(
            f"{self.access.about} does not answer",
            why=f"{self.access.server}: {failure}",
            next="look at the network and at the cluster, and try again",
        )

    def _untrusted(self, error: BaseException) -> BackendUnavailableError:
        return BackendUnavailableError(
            f"the certificate of {self.access.about} is not trusted",
            why=f"{self.access.server}: {error}",
            next="log in to the cluster again, or correct certificate-authority-data of its entry in the kubeconfig",
        )


def _retry_after_seconds(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0  # the other form is a date, which no API server sends


def _query_value(value: str | float) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

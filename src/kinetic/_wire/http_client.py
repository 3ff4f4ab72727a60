"""HTTP requests by Python's own client, over connections that stay open: for registries, package indexes and Google.

It needs no package, so a pod can use it. A redirect to another host is followed without our credentials, and never
from https to http. Proxies come from the environment, as for other programs.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import http.client
import os
import selectors
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping

from kinetic._wire import NamedTuple, proxies, python_runtime

TIMEOUT_SECONDS = 60.0  # for connecting, and for each read
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})  # ours, not the network's: raised while a body is kept
_SECRET_HEADERS = frozenset({"authorization"})

Body = bytes | Iterator[bytes] | None
Take = Callable[[http.client.HTTPResponse], None]  # reads the body of an answer with status 200


class _Request(NamedTuple):
    """What is sent once, and who reads the answer."""

    method: str
    url: str
    body: Body
    headers: Mapping[str, str]
    take: Take | None


class Response(NamedTuple):
    """An answer, whatever its status; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after(self) -> float:
        """Return the seconds that the server asks us to wait, 0 where it does not say."""
        written = self.headers.get("retry-after", "")
        return float(written) if written.isascii() and written.isdecimal() else 0.0


class HttpClient:
    """Connections to any number of hosts, kept for the next request. Threads may share the client.

    Args:
        plain_http: Whether a host other than this machine may be asked without TLS.
        timeout_seconds: For each read.
        connect_seconds: For connecting; None for as long as for a read.
        most_bytes: Of a body that is returned; a longer one is cut off.
        is_direct: Whether no proxy is asked, as for a server of this machine's own host.
    """

    def __init__(
        self,
        *,
        plain_http: bool = False,
        timeout_seconds: float = TIMEOUT_SECONDS,
        connect_seconds: float | None = None,
        most_bytes: int = 64 << 20,
        is_direct: bool = False,
    ) -> None:
        self.requests = 0
        self._plain_http, self._timeout, self._most = plain_http, timeout_seconds, most_bytes
        self._is_direct = is_direct
        self._connect_seconds = min(timeout_seconds, connect_seconds or timeout_seconds)
        self._reset()

    def _reset(self) -> None:
        """Begin without connections; a forked child must not write into those of its parent."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._idle: dict[tuple[str, str], list[http.client.HTTPConnection]] = {}
        self._is_hung_up = False
        self._open: dict[http.client.HTTPConnection, socket.socket | None] = {}  # with what each of them uses

    def close(self) -> None:
        """Close all connections; a later request opens new ones."""
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()
            self._idle.clear()
            self._is_hung_up = False

    def hang_up(self) -> None:
        """End all connections at once: ``send`` raises OSError, also where it waits for an answer, until ``close``."""
        with self._lock:
            self._is_hung_up = True
            for used in self._open.values():
                if used is not None:
                    with contextlib.suppress(OSError):
                        used.shutdown(socket.SHUT_RDWR)

    def send(
        self,
        method: str,
        url: str,
        *,
        body: Body = None,
        headers: Mapping[str, str] | None = None,
        take: Take | None = None,
        follow: bool = True,
    ) -> Response:
        """Send a request once.

        Args:
            method: E.g. "GET".
            url: Whole, with its query.
            body: Bytes, or an iterator of them together with a Content-Length.
            headers: Of the request.
            take: Reads the body of an answer with status 200, instead of its being returned.
            follow: Whether a redirect of a GET or HEAD is followed.

        Raises:
            OSError: No answer came, or only a part of one; broken HTTP counts as none.
        """
        given = dict(headers or {})
        if self._process != os.getpid():
            self._reset()
        try:
            for _ in range(_MOST_REDIRECTS):
                answer, target = self._once(_Request(method, url, body, given, take))
                if not target or not follow:
                    return answer
                before, after = urllib.parse.urlsplit(url), urllib.parse.urlsplit(target)
                if before.scheme == "https" != after.scheme:
                    raise OSError(f"{before.hostname} redirects from https to {after.scheme}")
                if before[:2] != after[:2]:
                    given = {name: value for name, value in given.items() if name.lower() not in _SECRET_HEADERS}
                url = target
        except ssl.SSLCertVerificationError as error:
            host = urllib.parse.urlsplit(url).hostname
            raise OSError(
                f"the certificate of {host} is not trusted: {error.verify_message}; {python_runtime.TRUST}"
            ) from error
        except (http.client.HTTPException, ValueError) as error:  # ValueError: the address is broken
            raise OSError(f"{type(error).__name__}: {error}") from error
        raise OSError(f"{urllib.parse.urlsplit(url).hostname} redirects without end")

    def _once(self, request: _Request) -> tuple[Response, str]:
        """Send a request; return its answer, and where it redirects to or ""."""
        parts = urllib.parse.urlsplit(request.url)
        with self._lock:
            self.requests += 1
        connection = self._idle_connection(parts.scheme, parts.netloc)
        if connection is not None and (request.body is None or isinstance(request.body, bytes)):
            try:
                return self._exchange(connection, request)
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                connection = None  # it was closed while nobody used it: ask once more, on a new one
        if connection is None:
            connection = self._new_connection(parts.scheme, parts.netloc)
        return self._exchange(connection, request)

    def _exchange(self, connection: http.client.HTTPConnection, request: _Request) -> tuple[Response, str]:
        """Send a request over a connection, and keep the connection if all of the answer was read."""
        keep = False
        try:
            if connection.sock is None:
                connection.connect()
            with self._lock:
                self._check()
                if connection in self._open:  # else it was closed by ``close`` meanwhile
                    self._open[connection] = connection.sock
            whole = _send_request(connection, request)
            response = connection.getresponse()
            found: dict[str, str] = {}
            for name, value in response.getheaders():
                found[name.lower()] = f"{found[name.lower()]}, {value}" if name.lower() in found else value
            target, data = "", b""
            if response.status in _REDIRECTS and request.method in {"GET", "HEAD"} and "location" in found:
                target = urllib.parse.urljoin(request.url, found["location"])
                response.read(self._most)
            elif request.take is not None and response.status == 200:
                request.take(response)
            else:
                data = response.read(self._most)
            if response.length and len(data) < self._most and request.method != "HEAD":
                raise http.client.IncompleteRead(b"", response.length)
            keep = whole and response.isclosed() and not response.will_close
            return Response(response.status, found, data), target
        finally:
            self._give_back(connection, urllib.parse.urlsplit(request.url)[:2], keep=keep)

    # ---------------------------------------------------------------------------------------------------- connections

    def _check(self) -> None:
        if self._is_hung_up:
            raise OSError("the connection was ended from here")

    def _idle_connection(self, scheme: str, netloc: str) -> http.client.HTTPConnection | None:
        with self._lock:
            idle = self._idle.get((scheme, netloc), [])
            while idle:
                found = idle.pop()
                if not _has_ended(found):
                    return found
                self._open.pop(found, None)
                found.close()
        return None

    def _new_connection(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        if scheme != "https" and not (self._plain_http or is_this_machine(netloc)):
            raise OSError(f"{netloc.rpartition('@')[2]} would be asked without TLS")
        made = self._made(scheme, netloc)
        with self._lock:
            self._drop_ended()
            self._check()
            self._open[made] = None
        return made

    def _drop_ended(self) -> None:
        """Close idle connections that their servers have closed, also of hosts that are never asked again."""
        for origin, idle in list(self._idle.items()):
            for each in filter(_has_ended, list(idle)):
                idle.remove(each)
                self._open.pop(each, None)
                each.close()
            if not idle:
                del self._idle[origin]

    def _give_back(self, connection: http.client.HTTPConnection, origin: tuple[str, ...], *, keep: bool) -> None:
        with self._lock:
            if keep and connection in self._open:  # not closed by ``close`` meanwhile
                self._idle.setdefault((origin[0], origin[1]), []).append(connection)
                return
            self._open.pop(connection, None)
        connection.close()

    def _made(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        is_tls, seconds = scheme == "https", self._connect_seconds
        proxy = "" if self._is_direct else proxies.proxy_for(f"{scheme}://{netloc}")
        made: http.client.HTTPConnection
        if is_tls:
            made = http.client.HTTPSConnection(netloc, timeout=seconds, context=_tls())
        else:
            made = _PlainConnection(netloc, timeout=seconds)
            made.forwarder = "" if proxies.is_socks(proxy) else proxy
        if proxy:
            made.connect = functools.partial(_connect_through, proxy, made)  # type: ignore[method-assign]  # as below
        return self._patient(made)

    def _patient(self, made: http.client.HTTPConnection) -> http.client.HTTPConnection:
        """Let a connection wait longer for an answer than it took to be made."""
        connect = made.connect

        def connect_and_wait() -> None:
            connect()
            made.sock.settimeout(self._timeout)

        made.connect = connect_and_wait  # type: ignore[method-assign]  # http.client calls it where it needs one
        return made


class _PlainConnection(http.client.HTTPConnection):
    """A connection without TLS, to a server or to a proxy that forwards what names its server."""

    forwarder = ""  # the address of that proxy


def _connect_through(proxy: str, made: http.client.HTTPConnection) -> None:
    """Connect to a server through a proxy, or to the proxy if that forwards requests."""
    used = proxies.connect(proxy, made.timeout or TIMEOUT_SECONDS)
    try:
        is_tls = isinstance(made, http.client.HTTPSConnection)
        if is_tls or proxies.is_socks(proxy):
            proxies.open_tunnel(used, proxy, made.host, made.port)
        made.sock = _tls().wrap_socket(used, server_hostname=made.host) if is_tls else used
    except BaseException:
        used.close()
        raise


def _has_ended(connection: http.client.HTTPConnection) -> bool:
    """Return whether the server closed an idle connection: then there is something to read, which is its end."""
    if connection.sock is None:
        return True
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _send_request(connection: http.client.HTTPConnection, request: _Request) -> bool:
    """Send a request; return whether all of it was sent.

    A server that rejects a long body answers and closes at once: then sending fails, and the answer says why.
    """
    parts = urllib.parse.urlsplit(request.url)
    proxy = connection.forwarder if isinstance(connection, _PlainConnection) else ""
    path = urllib.parse.urlunsplit((*(parts[:2] if proxy else ("", "")), parts.path or "/", parts.query, ""))
    headers = {**request.headers, **(proxies.login(proxy) if proxy else {})}
    for name in [name for name in headers if name.lower() in _SECRET_HEADERS]:
        if not headers[name].isascii() or not headers[name].isprintable():  # http.client's own error would show it
            raise OSError(f"the login for {parts.hostname} has a character that no header can have, as a line break")
    try:
        connection.request(request.method, path, body=request.body, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        if connection.sock is None or not isinstance(request.body, Iterator):
            raise
        return False
    return True


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return what connections share: reading the certificates of all authorities takes 30 ms and 2 MB."""
    return ssl.create_default_context()


def is_this_machine(netloc: str) -> bool:
    """Return whether an address of a URL is the loopback of this machine."""
    return proxies.is_loopback(urllib.parse.urlsplit(f"//{netloc}").hostname or "")

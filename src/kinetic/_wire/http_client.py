"""HTTP requests by Python's own client, over connections that stay open: for registries, package indexes and Google.

It needs no package, so a pod can use it. A redirect to another host is followed without our credentials, and never
from https to http. Proxies come from the environment, as for other programs.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import ssl
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

TIMEOUT_SECONDS = 60.0  # for connecting, and for each read
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
_SECRET_HEADERS = frozenset({"authorization"})

Body = bytes | Iterator[bytes] | None
Take = Callable[[http.client.HTTPResponse], None]  # reads the body of an answer with status 200


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
    """Connections to any number of hosts, one of each for a thread. Threads may share the client.

    Args:
        plain_http: Whether a host other than this machine may be asked without TLS.
        timeout_seconds: For connecting, and for each read.
        most_bytes: Of a body that is returned; a longer one is cut off.
    """

    def __init__(
        self, *, plain_http: bool = False, timeout_seconds: float = TIMEOUT_SECONDS, most_bytes: int = 64 << 20
    ) -> None:
        self.requests = 0
        self._plain_http, self._timeout, self._most = plain_http, timeout_seconds, most_bytes
        self._reset()

    def _reset(self) -> None:
        """Begin without connections; a forked child must not write into those of its parent."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._of_thread = threading.local()
        self._open: list[http.client.HTTPConnection] = []

    def close(self) -> None:
        """Close the connections of every thread; a later request opens new ones."""
        with self._lock:
            for connection in self._open:
                connection.close()
            self._open.clear()
            self._of_thread = threading.local()

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
            OSError: No answer came; broken HTTP counts as none.
        """
        given = dict(headers or {})
        if self._process != os.getpid():
            self._reset()
        try:
            for _ in range(_MOST_REDIRECTS):
                answer, target = self._once(method, url, body, given, take)
                if not target or not follow:
                    return answer
                before, after = urllib.parse.urlsplit(url), urllib.parse.urlsplit(target)
                if before.scheme == "https" != after.scheme:
                    raise OSError(f"{before.netloc} redirects from https to {after.scheme}")
                if before[:2] != after[:2]:
                    given = {name: value for name, value in given.items() if name.lower() not in _SECRET_HEADERS}
                url = target
        except http.client.HTTPException as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        raise OSError(f"{urllib.parse.urlsplit(url).netloc} redirects without end")

    def _once(
        self, method: str, url: str, body: Body, headers: Mapping[str, str], take: Take | None
    ) -> tuple[Response, str]:
        """Send a request; return its answer, and where it redirects to or ""."""
        parts = urllib.parse.urlsplit(url)
        reused, connection = self._connection(parts.scheme, parts.netloc)
        with self._lock:
            self.requests += 1
        path = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        try:
            connection.request(method, path, body=body, headers=dict(headers))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            if response.status in _REDIRECTS and method in {"GET", "HEAD"} and "location" in found:
                response.read()
                return Response(response.status, found, b""), urllib.parse.urljoin(url, found["location"])
            if take is not None and response.status == 200:
                take(response)
                return Response(200, found, b""), ""
            return Response(response.status, found, response.read(self._most)), ""
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            connection.close()
            if reused and (body is None or isinstance(body, bytes)):  # it was closed while nobody used it
                return self._once(method, url, body, headers, take)
            raise
        except BaseException:
            connection.close()
            raise

    def _connection(self, scheme: str, netloc: str) -> tuple[bool, http.client.HTTPConnection]:
        """Return whether this thread's connection to a host is open already, and the connection."""
        held: dict[tuple[str, str], http.client.HTTPConnection] = self._of_thread.__dict__.setdefault("held", {})
        if (scheme, netloc) not in held:
            if scheme != "https" and not (self._plain_http or is_this_machine(netloc)):
                raise OSError(f"{netloc} would be asked without TLS")
            made = self._made(scheme, netloc)
            held[scheme, netloc] = made
            with self._lock:
                self._open.append(made)
        found = held[scheme, netloc]
        return found.sock is not None, found

    def _made(self, scheme: str, netloc: str) -> http.client.HTTPConnection:
        address = urllib.parse.urlsplit(f"//{netloc}")
        proxy = "" if urllib.request.proxy_bypass(address.hostname or "") else urllib.request.getproxies().get(scheme)
        through = urllib.parse.urlsplit(proxy).netloc.rpartition("@")[2] if proxy else ""
        if scheme == "https":
            context = ssl.create_default_context()
            made = http.client.HTTPSConnection(through or netloc, timeout=self._timeout, context=context)
            if through:
                made.set_tunnel(address.hostname or "", address.port or 443)
            return made
        return http.client.HTTPConnection(netloc, timeout=self._timeout)


def is_this_machine(netloc: str) -> bool:
    """Return whether an address of a URL is the loopback of this machine."""
    host = urllib.parse.urlsplit(f"//{netloc}").hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

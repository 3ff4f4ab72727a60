"""Requests to one API server: with our credentials, repeated after what passes, sent on when the server has moved.

An ``Access`` says where the server is and which credentials it accepts, whatever it was read from; see ``connection``.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import os
import re
import socket
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import Any, Protocol, TypeVar

from kinetic._backends.kube.http_connection import (
    ClosedError,
    ConnectError,
    ConnectionPool,
    Response,
    Timeouts,
    TransportError,
    WebSocket,
)
from kinetic._stores.parallel import Retry
from kinetic._wire import NamedTuple, dataclass, folders, python_runtime
from kinetic.errors import BackendUnavailableError, CredentialsError, SettingsError

Opened = TypeVar("Opened", Response, Response | WebSocket)


# Two times in DER, with two digits of the year until 2049: RFC 5280, section 4.1.2.5.
_VALIDITY = rb"\x30.(?:\x17\x0d|\x18\x0f)(\d{12,14}Z)(?:\x17\x0d|\x18\x0f)(\d{12,14}Z)"
_SHORT_TIME = 13  # characters


class Certificate(NamedTuple):
    """A client's certificate and its private key, both as PEM."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        """Keep the key out of logs and tracebacks."""
        return "Certificate(…)"

    def why_not_valid(self) -> str:
        """Return that it has expired, or is not valid yet by the clock of this machine; "" otherwise."""
        pem = re.search(rb"-----BEGIN CERTIFICATE-----([^-]+)", self.chain)
        found = re.search(_VALIDITY, base64.b64decode(pem[1]), re.DOTALL) if pem else None
        if found is None:
            return ""
        begins, ends = (
            dt.datetime.strptime(each.decode() if len(each) > _SHORT_TIME else f"20{each.decode()}", "%Y%m%d%H%M%S%z")
            for each in found.groups()
        )
        if dt.datetime.now(dt.UTC) > ends:
            return f"the client certificate expired on {ends:%Y-%m-%d at %H:%M} UTC"
        return "" if dt.datetime.now(dt.UTC) >= begins else f"the client certificate is valid from {begins:%Y-%m-%d} on"


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
    unreachable: str = ""  # what to do where no connection can be made; "" for what anybody would try

    def shown_certificate(self) -> Certificate | None:
        """Return the client's certificate that we show, or None."""
        return self.certificate or self.credential.certificate()

    def rejected(self, why: str) -> CredentialsError:
        """Return the error that the server does not accept our credentials."""
        own = self.shown_certificate()
        expired = own.why_not_valid() if own else ""
        return CredentialsError(
            f"{self.about} rejected our credentials",
            why=expired or why,
            next="fetch the kubeconfig of the cluster anew, or renew the certificate (kubeadm certs renew)"
            if expired
            else "log in again: gcloud auth application-default login for GKE, or as your kubeconfig's user does",
        )


# --------------------------------------------------------------------------------------------------------- connections

_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_TIMEOUTS = Timeouts(_CONNECT_SECONDS, _READ_SECONDS)
_AGENT = "kinetic"
_PROXIES = frozenset({"http", "https", "socks5", "socks5h"})  # as proxies.KINDS, which takes 30 ms to import
# What a server with mutual TLS, as before some clusters, answers to a certificate that is missing or not accepted.
_CERTIFICATE_REFUSED = r"_ALERT_(?:\w*CERTIFICATE|UNKNOWN_CA|ACCESS_DENIED|DECRYPT_ERROR)"
_IN_A_HEADER = re.compile("[ -~]*")
_FAILED_WEBHOOK = r'failed calling webhook "([^"]+)'
_MOST_CONNECTIONS = 512  # a follower of a log holds one, and so does a watch; half the files that a process may open


def _connections(access: Access) -> ConnectionPool:
    """Return connections that trust what the access trusts."""
    proxy = access.proxy or _environment_proxy(access.server)
    if proxy and "://" not in proxy:
        proxy = f"http://{proxy}"
    if proxy and (kind := proxy.partition("://")[0]) not in _PROXIES:
        raise SettingsError(
            f"the proxy for {access.about} cannot be used",
            why=f"its address begins with {kind}://, and only http://, https:// and socks5:// are supported",
            next="name such a proxy in proxy-url of the kubeconfig, or in HTTPS_PROXY",
        )
    return ConnectionPool(
        access.server,
        _ssl_context(access),
        server_name=access.server_name,
        proxy=proxy,
        most=_MOST_CONNECTIONS,
        options=_keepalive_options(),
    )


def _ssl_context(access: Access) -> ssl.SSLContext:
    try:
        # Comments, which bundles of authorities have in many languages, are the only letters that ASCII lacks.
        context = ssl.create_default_context(cadata=access.authority.decode("ascii", "ignore") or None)
        if access.authority:
            # Python 3.13 began to insist on extensions that authorities made for one cluster often lack, EKS's among
            # them; whom they signed is verified as before.
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not access.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        own = access.shown_certificate()
        if own is not None:
            _load_certificate(context, own, access.about)
    except (ssl.SSLError, ValueError, OSError) as error:
        raise CredentialsError(
            f"the certificates for {access.about} cannot be used", why=str(error), next="log in to the cluster again"
        ) from error
    return context


def _load_certificate(context: ssl.SSLContext, own: Certificate, about: str) -> None:
    """Load a certificate and its key, which Python takes from a file only: one in memory where that exists."""

    def password() -> str:  # else OpenSSL would ask on the terminal, for each connection pool
        raise CredentialsError(
            f"the client key for {about} is encrypted with a password",
            why="Kubernetes clients do not ask for it, kubectl included",
            next="write it without: openssl pkey -in KEY -out NEW_KEY     and name that file as client-key",
        )

    pem = own.chain.rstrip() + b"\n" + own.key
    if hasattr(os, "memfd_create"):
        with folders.closing(os.memfd_create("certificate")) as descriptor:
            folders.write_all(descriptor, pem)
            context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=password)
        return
    import tempfile

    with tempfile.NamedTemporaryFile() as file:  # 0600, and removed at once
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name, password=password)


def _environment_proxy(server: str) -> str:
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return ""
    from kinetic._wire import proxies  # 30 ms; only where there is a proxy

    return proxies.proxy_for(server)


def _keepalive_options() -> list[tuple[int, int, int]]:
    """Notice within about a minute that the other end is gone: a laptop slept, or a load balancer dropped us."""
    wanted = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
    known = [
        (socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in wanted.items() if hasattr(socket, name)
    ]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *known]


def _is_refused_by_proxy(error: TransportError) -> bool:
    """Return whether a proxy said that it does not connect us: no retry helps."""
    proxies = sys.modules.get("kinetic._wire.proxies")  # else no proxy was asked
    return proxies is not None and isinstance(error.__cause__, proxies.RefusedError)


def _is_untrusted(error: BaseException) -> bool:
    """Return whether a connection failed because the server's certificate was rejected: no retry helps."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
        cause = cause.__cause__ or cause.__context__
    return cause is not None


# ------------------------------------------------------------------------------------------------------------ requests

RETRYABLE_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_TOO_MANY = 429  # requests at the same time, of all clients
_TOOK_TOO_LONG = 504  # of the API server: not within its 60 s
DEFAULT_RETRY = Retry(attempts=8, first_seconds=0.25, most_seconds=10.0, total_seconds=60.0)
_MESSAGE_BYTES = 1 << 20  # of a connection that both ends write to
_AWAY_SECONDS = 30.0  # since a look failed, however often it was tried: another one is tried once
_LOOK_SECONDS = 20.0  # for a look, after which it is not tried again: somebody waits for a list
_LONGEST = 600  # characters of a server's message
_LONGEST_WAIT = 30.0  # seconds; a server that asks for more is reported as unavailable

Query = Mapping[str, str | int | bool]


class UnfinishedAnswerError(BackendUnavailableError):
    """The server took a request, and did not answer it to the end; it may be too much for it."""


class Reply(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    repeated: bool = False  # whether an earlier attempt may have been carried out, too


def response_json(body: bytes) -> dict[str, Any]:
    """Read an answer of the API, or return an empty dictionary for what is not JSON."""
    try:
        page = json.loads(body)
    except ValueError:
        return {}
    return page if isinstance(page, dict) else {}


def response_message(body: bytes) -> str:
    return str(response_json(body).get("message") or body.decode(errors="replace").strip())[:_LONGEST]


class RefusedError(Exception):
    """A server answered a request for a WebSocket with something else."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(f"HTTP {reply.status}")
        self.reply = reply


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
        self._connections: ConnectionPool | None = None
        self._process = 0
        self._submissions = 0  # that are under way: nothing would repeat their looks
        self._away = float("-inf")  # when it was last known that the server does not answer, by time.monotonic
        self._dated = "", 0.0  # what the last answer said that the time is, and when it came, by time.monotonic

    @contextmanager
    def submitting(self) -> Iterator[None]:
        """Try looks as patiently as what changes something: a submission would fail with the first that is given up."""
        with self._lock:
            self._submissions += 1
        try:
            yield
        finally:
            with self._lock:
                self._submissions -= 1

    def now(self) -> float:
        """Return the time (Unix) by the server's clock, as of its last answer: ours may be wrong by minutes."""
        from email.utils import parsedate_to_datetime  # few ask

        written, at = self._dated
        try:
            return parsedate_to_datetime(written).timestamp() + time.monotonic() - at
        except (TypeError, ValueError):  # it said nothing
            return time.time()

    def send(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        once_seconds: float | None = None,
        can_ask_for_less: bool = False,
    ) -> Reply:
        """Send a request and return the answer, whatever it is, unless a retry or other credentials may change it.

        Requests are repeated though the first may have been carried out: names are derived, so that creating an
        object twice creates it once. With `once_seconds`, it is sent once, and waited so long for a connection and
        twice as long for the answer: somebody asks whether the server is there.

        Raises:
            UnfinishedAnswerError: An answer was not finished, and the caller can ask for less: it is not asked again.
            BackendUnavailableError: The server did not answer, however often it was asked.
        """
        timeouts = _TIMEOUTS if once_seconds is None else Timeouts(once_seconds, 2 * once_seconds)
        packed = {"Accept-Encoding": "gzip", **(headers or {})}
        ask = partial(self._ask, method, _target(path, query), body, packed, timeouts)
        begun, attempt, once, failure = time.monotonic(), 0, _Once(), ""
        is_known_away = begun - self._away < _AWAY_SECONDS
        while True:
            is_look, wanted = method == "GET" and not self._submissions, 0.0
            try:
                answer = self._try(ask, once)
                content = answer.read()
                self._dated = answer.headers.get("date", ""), time.monotonic()
            except TransportError as error:
                failure, is_absent = f"{type(error).__name__}: {error}", isinstance(error, ConnectError)
                is_unfinished = not is_absent
            else:
                if answer.status not in RETRYABLE_STATUSES:
                    self._away = float("-inf")
                    return Reply(answer.status, content, repeated=bool(failure))
                is_unfinished, is_absent = answer.status == _TOOK_TOO_LONG, False
                is_look = is_look and answer.status != _TOO_MANY  # it is there, and asks to come later
                failure = f"HTTP {answer.status}: {response_message(content)}"
                after = answer.headers.get("retry-after", "")
                wanted = float(after) if after.isdecimal() else 0.0  # a date, which no API server sends
            attempt += 1
            most = min(_LOOK_SECONDS, self._retry.total_seconds) if is_look else self._retry.total_seconds
            attempts = 1 if is_look and is_known_away else self._retry.attempts
            is_over = attempt >= attempts or time.monotonic() - begun > most
            is_slow = attempt > 1 or time.monotonic() - begun > _READ_SECONDS / 2  # no old connection that was closed
            asks_for_less = can_ask_for_less and is_unfinished and is_slow
            if is_over or asks_for_less or once_seconds is not None:
                if is_over and is_look and once_seconds is None:
                    self._away = time.monotonic()
                kind = UnfinishedAnswerError if asks_for_less else BackendUnavailableError
                if webhook := re.search(_FAILED_WEBHOOK, failure):
                    raise kind(
                        f"the admission webhook {webhook[1]} of {self.access.about} does not respond",
                        why=f"the cluster creates and changes nothing without its answer: {failure}",
                        next="ask an administrator of the cluster, and try again when it responds",
                    )
                if failure.startswith(f"HTTP {_TOO_MANY}:"):
                    raise kind(
                        f"{self.access.about} has too many requests, and refuses ours",
                        why=f"{self.access.server}: {failure}",
                        next="try again in a few minutes; jobs that run are not concerned",
                    )
                raise kind(
                    f"{self.access.about} does not respond",
                    why=f"{self.access.server}: {failure}",
                    next=(self.access.unreachable if is_absent else "")
                    or "check the network and the cluster, and try again",
                )
            self._retry.pause(attempt - 1, at_least=min(wanted, _LONGEST_WAIT))

    def _try(self, ask: Callable[[ConnectionPool, str], Opened], once: _Once) -> Opened:
        """Ask, once more with other credentials, once more where the server is now."""
        while True:
            header = self.access.credential.header(rejected=once.rejected)
            if not _IN_A_HEADER.fullmatch(header):  # h11 would show it in its error
                raise CredentialsError(
                    f"the credentials for {self.access.about} cannot be sent",
                    why="the token has a line break in it, or a character that is not ASCII",
                    next="correct the token in the kubeconfig, or log in to the cluster again",
                )
            try:
                answer = ask(self._connected(), header)
            except ClosedError:
                continue  # another thread closed it this moment, for another certificate or another address
            except TransportError as error:
                if self._has_moved(error, once):
                    continue
                if _is_refused_by_proxy(error):
                    raise BackendUnavailableError(
                        f"the proxy for {self.access.about} does not let us through",
                        why=str(error),
                        next="correct proxy-url in the kubeconfig, or HTTPS_PROXY; a login is part of the address: "
                        "http://USER:PASSWORD@HOST:PORT",
                    ) from error
                if re.search(_CERTIFICATE_REFUSED, str(error)):
                    if self._reject(header, once):
                        continue
                    raise self.access.rejected(f"{self.access.server}: {error}") from error
                if _is_untrusted(error):
                    own = "log in to the cluster again, or correct certificate-authority-data in the kubeconfig"
                    next_ = own if self.access.authority else f"{python_runtime.TRUST}; or {own}"
                    if re.search("has expired|not yet valid", str(error)):
                        now = f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC"
                        next_ = f"set the clock of this machine, unless it is {now}; then the cluster's administrator "
                        next_ += "has to renew the certificate"
                    raise BackendUnavailableError(
                        f"the certificate of {self.access.about} is not trusted",
                        why=f"{self.access.server}: {error}",
                        next=next_,
                    ) from error
                raise
            if not isinstance(answer, Response) or answer.status != 401 or not self._reject(header, once):
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
    ) -> Iterator[Response]:
        """Open an answer that keeps coming, once: the reader knows where to resume.

        With `may_have_moved`, it is looked up where the server is now if it cannot be reached.
        """
        timeouts = Timeouts(_CONNECT_SECONDS, silence_seconds)
        ask = partial(self._ask, "GET", _target(path, query), None, headers or {}, timeouts)
        answer = self._try(ask, _Once(moved=not may_have_moved))
        try:
            yield answer
        finally:
            answer.close()

    @contextmanager
    def websocket(
        self, path: str, *, query: Mapping[str, str | int | bool | list[str]], protocols: list[str]
    ) -> Iterator[WebSocket]:
        """Open a connection that both ends write to, once more with other credentials or to where the server is now.

        Raises:
            RefusedError: The server answered with something else.
            TransportError: It did not answer.
        """

        def ask(connections: ConnectionPool, credential: str) -> WebSocket | Response:
            return connections.upgrade(
                _target(path, query),
                headers=_authorization(credential),
                protocols=protocols,
                most_bytes=_MESSAGE_BYTES,
                timeouts=_TIMEOUTS,
            )

        opened = self._try(ask, _Once())
        if isinstance(opened, Response):
            raise RefusedError(Reply(opened.status, opened.read()))
        try:
            yield opened
        finally:
            opened.close()

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
        if once.moved or self.access.again is None or not isinstance(error, ConnectError):
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
            connections, self._connections = self._connections, None
        if connections is not None and self._process == os.getpid():
            connections.close()

    def _ask(
        self,
        method: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
        timeouts: Timeouts,
        connections: ConnectionPool,
        credential: str,
    ) -> Response:
        """Send every request but the beginning of a WebSocket."""
        content = {"Content-Type": "application/json"} if body is not None else {}
        sent = {"Accept": "application/json", **content, **headers, **_authorization(credential)}
        return connections.send(method, target, headers=sent, body=body, timeouts=timeouts)

    def _connected(self) -> ConnectionPool:
        with self._lock:
            if self._connections is None or self._process != os.getpid():
                self._connections, self._process = _connections(self.access), os.getpid()
            return self._connections


def _target(path: str, query: Mapping[str, str | int | bool | list[str]] | None) -> str:
    """Return the path of a request with its query, as in ``?watch=true``."""
    words = {key: str(value).lower() if isinstance(value, bool) else value for key, value in (query or {}).items()}
    written = urllib.parse.quote(path, safe="/%:@!$&'()*+,;=~-._")
    return f"{written}?{urllib.parse.urlencode(words, doseq=True)}" if words else written


def _authorization(header: str) -> dict[str, str]:
    return {"Authorization": header, "User-Agent": _AGENT} if header else {"User-Agent": _AGENT}

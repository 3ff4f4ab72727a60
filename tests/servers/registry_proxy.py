"""A proxy before a registry that behaves like those of clouds, Artifact Registry first, and like a slow line.

Bodies pass through in pieces, so its memory does not grow with them, and a line of so many megabits can be played.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import secrets
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from servers.faults import HOP_BY_HOP, BrokenServer, Fault, QuietHandler

PIECE = 1 << 14
UPLOADS = "/artifacts-uploads/namespaces/p/repositories/r/uploads/"


@dataclass
class Rules:
    """What the proxy asks for, and how it answers.

    Attributes:
        login: "" for nobody; "token" takes a Google access token itself, as Artifact Registry does; "realm" issues
            tokens at an address of its own, for a password or an identity token; "basic" takes a password alone,
            as ECR does.
        user: Of the password.
        password: What "realm" and "basic" take.
        identity_token: What "realm" takes besides.
        access_tokens: What "token" takes.
        mounts: Whether a mount is granted; else it is answered with 202, as an upload.
        pieces: Whether uploads in several pieces are taken.
        elsewhere: Whether uploads go to another path of another host, with an absolute address.
        megabits: Of the line, for each direction; 0 for no limit.
    """

    login: str = ""
    user: str = "ann"
    password: str = "secret"
    identity_token: str = "identity"
    access_tokens: set[str] = field(default_factory=lambda: {"ya29.first"})
    mounts: bool = False
    pieces: bool = False
    elsewhere: bool = True
    megabits: float = 0.0


class RegistryProxy:
    """A server on a free port of 127.0.0.1.

    Attributes:
        address: Host and port, for clients.
        rules: May be changed at any time.
        faults: The first that meets a request happens to it.
        requests: Method and path of everything that came.
        issued: How many tokens were issued.
        leaked: Requests to the other host that showed a login.
        up: Bytes of bodies that came from clients.
        down: Bytes of bodies that went to them.
        on_piece: Is called for each piece of a body that came, and for each request.
    """

    def __init__(self, upstream: str, rules: Rules | None = None) -> None:
        self.upstream, self.rules = upstream, rules or Rules()
        self.faults: list[Fault] = []
        self.on_piece: Callable[[], None] = lambda: None
        self.lock = threading.Lock()
        self.idle = threading.Condition()
        self.active = 0
        self.tokens: set[str] = set()
        self.forget()
        self._free_at = {"up": 0.0, "down": 0.0}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.proxy = self
        self.port = self._server.server_address[1]
        self.address = f"127.0.0.1:{self.port}"
        self.close = self._server.serve()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def forget(self) -> None:
        """Count from zero again."""
        self.requests: list[tuple[str, str]] = []
        self.leaked: list[str] = []
        self.issued = self.up = self.down = 0

    def expire_tokens(self) -> None:
        """Reject from now on what was issued so far."""
        with self.lock:
            self.tokens.clear()

    def wait_until_idle(self) -> None:
        """Wait until every request has been answered, or was broken off by its client."""
        with self.idle:
            self.idle.wait_for(lambda: not self.active)

    def issue(self) -> str:
        with self.lock:
            self.issued += 1
            token = secrets.token_hex(8)
            self.tokens.add(token)
            return token

    def passed(self, direction: str, size: int) -> None:
        """Count a piece, and take the time that it needs on the line."""
        with self.lock:
            setattr(self, direction, getattr(self, direction) + size)
            wait = 0.0
            if self.rules.megabits:
                now = time.monotonic()
                self._free_at[direction] = max(now - 0.02, self._free_at[direction]) + size * 8e-6 / self.rules.megabits
                wait = self._free_at[direction] - now
        if direction == "up":
            self.on_piece()
        if wait > 0:
            time.sleep(wait)

    def due(self, method: str, target: str) -> Fault | None:
        with self.lock:
            self.requests.append((method, target))
            found = next((fault for fault in self.faults if fault.meets(method, target)), None)
        self.on_piece()
        return found


class _Server(BrokenServer):
    proxy: RegistryProxy
    daemon_threads = True


class _Handler(QuietHandler):
    server: _Server

    def answer_request(self) -> None:
        proxy = self.server.proxy
        with proxy.idle:
            proxy.active += 1
        try:
            self._answer_request(proxy)
        finally:
            with proxy.idle:
                proxy.active -= 1
                proxy.idle.notify_all()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_PATCH = answer_request  # noqa: N815 - the base's names

    def _answer_request(self, proxy: RegistryProxy) -> None:
        self._left = int(self.headers.get("Content-Length") or 0)
        fault = proxy.due(self.command, self.path)
        path = urllib.parse.urlsplit(self.path).path
        if fault is not None and fault.kind == "status":
            return self._refuse(fault.status, "UNAVAILABLE", headers={"Retry-After": "3"})
        if fault is not None and fault.kind == "drop":
            return self.reset()
        if fault is not None and fault.kind == "half":
            self._skip(self._left // 2)
            return self.reset()
        if path == "/token":
            return self._issue()
        if path.startswith(UPLOADS):
            if self.headers.get("Authorization"):
                proxy.leaked.append(self.path)
            inner = urllib.parse.unquote(path.removeprefix(UPLOADS))
            return self._pass_on(f"{inner}?{urllib.parse.urlsplit(self.path).query}", fault)
        if not self._is_known():
            return self._ask_who()
        if self.command == "PATCH" and not proxy.rules.pieces:
            return self._refuse(405, "UNSUPPORTED")
        if self.command == "POST" and not proxy.rules.mounts:
            return self._pass_on(path, fault)
        return self._pass_on(self.path, fault)

    # ------------------------------------------------------------------------------------------------------------ login

    def _is_known(self) -> bool:
        kind, _, shown = self.headers.get("Authorization", "").partition(" ")
        rules, proxy = self.server.proxy.rules, self.server.proxy
        if rules.login == "token":
            return kind == "Bearer" and shown in rules.access_tokens
        if rules.login == "realm":
            return kind == "Bearer" and shown in proxy.tokens
        return not rules.login or (
            kind == "Basic" and base64.b64decode(shown).decode() == f"{rules.user}:{rules.password}"
        )

    def _ask_who(self) -> None:
        rules = self.server.proxy.rules
        name = re.match(r"/v2/(.+?)/(?:blobs|manifests|tags)/", self.path)
        realm = f"http://{self.headers['Host']}/token"
        bearer = f'Bearer realm="{realm}",service="registry.test",scope="repository:{name[1] if name else ""}:pull"'
        challenge = 'Basic realm="registry"' if rules.login == "basic" else bearer
        self._refuse(401, "UNAUTHORIZED", headers={"WWW-Authenticate": challenge})

    def _issue(self) -> None:
        rules = self.server.proxy.rules
        if self.command == "POST":  # OAuth 2
            form = dict(urllib.parse.parse_qsl(self.rfile.read(self._left).decode()))
            self._left = 0
            asked = (
                form.get("grant_type"),
                form.get("refresh_token"),
                form.get("service"),
                bool(form.get("client_id")),
            )
            if asked != ("refresh_token", rules.identity_token, "registry.test", True):
                return self._refuse(401, "UNAUTHORIZED")
            return self._answer(200, {}, json.dumps({"access_token": self.server.proxy.issue()}).encode())
        shown = base64.b64decode(self.headers.get("Authorization", "").partition(" ")[2]).decode()
        if shown != f"{rules.user}:{rules.password}":
            return self._refuse(401, "UNAUTHORIZED")
        page = {"token": self.server.proxy.issue(), "expires_in": 300}
        return self._answer(200, {}, json.dumps(page).encode())

    # ---------------------------------------------------------------------------------------------------------- passing

    def _pass_on(self, target: str, fault: Fault | None) -> None:
        proxy = self.server.proxy
        connection = http.client.HTTPConnection(proxy.upstream)
        try:
            connection.putrequest(self.command, target, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {"authorization", "connection"}:
                    connection.putheader(name, value)
            connection.endheaders()
            while self._left:
                piece = self.rfile.read(min(PIECE, self._left))
                if not piece:
                    return None
                self._left -= len(piece)
                proxy.passed("up", len(piece))
                connection.send(piece)
            answer = connection.getresponse()
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in HOP_BY_HOP}
            if "Location" in headers and self.command == "POST" and proxy.rules.elsewhere:
                headers["Location"] = self._elsewhere(headers["Location"])
            if fault is not None and fault.kind == "lose":
                answer.read()
                return self.reset()
            self.send_response_only(answer.status)
            for name, value in headers.items():
                self.send_header(name, value)
            length = int(answer.getheader("Content-Length") or 0)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command == "HEAD":
                return None
            end = length // 2 if fault is not None and fault.kind == "cut" else length
            came = 0
            while came < end and (piece := answer.read(min(PIECE, end - came))):
                came += len(piece)
                proxy.passed("down", len(piece))
                self.wfile.write(piece)
            if end < length:
                self.wfile.flush()
                return self.reset()
        except OSError:
            self.close_connection = True
        finally:
            connection.close()
        return None

    def _elsewhere(self, location: str) -> str:
        """Return another address for the same upload: another host as clients see it, another path, a longer query."""
        parts = urllib.parse.urlsplit(location)
        inner = urllib.parse.quote(parts.path, safe="")
        return f"http://localhost:{self.server.proxy.port}{UPLOADS}{inner}?{parts.query}"

    def _skip(self, size: int) -> None:
        while size and (piece := self.rfile.read(min(PIECE, size))):
            size -= len(piece)
            self.server.proxy.passed("up", len(piece))

    def _refuse(self, status: int, code: str, headers: dict[str, str] | None = None) -> None:
        """Answer before the body was read, as servers do, and close the connection if there is one."""
        if self._left:
            self.close_connection = True
        page = {"errors": [{"code": code, "message": "as the test wants it"}]}
        self._answer(status, headers or {}, json.dumps(page).encode())
        if self._left:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)
                self._drain()

    def _drain(self) -> None:
        """Take what is under way for a moment, so that the answer is not lost to a reset."""
        self.connection.settimeout(0.2)
        while self.connection.recv(1 << 16):
            pass

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

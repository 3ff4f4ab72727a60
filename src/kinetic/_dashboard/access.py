"""Who may ask the dashboard: requests with its token, from its own page, addressed to this machine by name.

A browser sends requests to this machine for any page that it shows. So there are three checks, and each is enough to
keep a foreign page out. The *host* must be ours, or a foreign name could be made to lead here (DNS rebinding). The
*origin* must be ours where the browser names one, and what changes something must name one. And a *token*, new for
each dashboard, is in the address that is opened first; a cookie of the same site, with a secret of its own, is given
for it. That address is an argument of the browser, which every user of this machine can read: so the token counts only
where our own user sends it.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qs

from kinetic._wire import inspection

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

HOST = "127.0.0.1"
_TOKEN_BYTES = 24
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# What a job wrote is never a page of ours, even if it is opened by itself.
FILE_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),  # the first address has the token in it
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def is_own(scope: Scope) -> bool:
    """Return whether no other user of this machine sends a request; it may start lsof."""
    return inspection.is_own_client(tuple(scope["client"]), tuple(scope["server"]), elsewhere=True)


class Guard:
    """Passes on the requests that may be answered, and adds to each answer what browsers must hold to."""

    def __init__(self, app: Application, *, token: str, port: int, is_own: Callable[[Scope], bool] = is_own) -> None:
        self._app, self._token, self._is_own = app, token, is_own
        self._secret = new_token()  # of the cookie
        self._hosts = {f"{HOST}:{port}", f"localhost:{port}"}
        # Cookies belong to a host and all its ports: two dashboards must not take each other's.
        self._cookie = f"kinetic_dashboard_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            raise RuntimeError(f"the dashboard speaks HTTP, not {scope['type']}")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        has_token = self._has_token(scope)
        if has_token and not await asyncio.to_thread(self._is_own, scope):
            why = "its address was opened by another user of this machine; only the user who started it may open it"
        else:
            why = self._refusal(scope, headers, has_token=has_token)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = list(message.get("headers", ()))
                names = {name for name, _ in given}
                given += [(name, value) for name, value in _HEADERS if name not in names]
                if b"content-security-policy" not in names:
                    given.append((b"content-security-policy", _POLICY.encode()))
                if has_token and not why:
                    cookie = f"{self._cookie}={self._secret}; Path=/; HttpOnly; SameSite=Strict"
                    given.append((b"set-cookie", cookie.encode()))
                message = {**message, "headers": given}
            await send(message)

        if why:
            body = f"kinetic dashboard: {why}\n".encode()
            head = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
            await answer({"type": "http.response.start", "status": 403, "headers": head})
            await answer({"type": "http.response.body", "body": body})
            return
        await self._app(scope, receive, answer)

    def _refusal(self, scope: Scope, headers: dict[str, str], *, has_token: bool) -> str:
        """Return why a request is refused, or ""."""
        if sum(name == b"host" for name, _ in scope["headers"]) != 1 or headers["host"] not in self._hosts:
            return "this host name does not belong to it; use the address that the command printed"
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in self._hosts}:
            return "requests of other pages are refused"
        if scope["method"] not in {"GET", "HEAD"} and origin != f"http://{headers['host']}":
            return "only its own page may change something"
        # The first address may be opened from anywhere, by a link in a notebook, too: it has the token.
        if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} and not has_token:
            return "requests of other pages are refused"
        if not has_token and not self._has_cookie(headers):
            return "the token is missing or is that of another dashboard; use the address that the command printed"
        return ""

    def _has_token(self, scope: Scope) -> bool:
        """Return whether the address of the page itself has the token."""
        if scope["path"] != "/" or scope["method"] != "GET":
            return False
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])
        return _is_same(given[0], self._token)

    def _has_cookie(self, headers: dict[str, str]) -> bool:
        # Not http.cookies: one cookie of another program that it cannot read would hide ours.
        pairs = (each.strip().partition("=") for each in headers.get("cookie", "").split(";"))
        return any(name == self._cookie and _is_same(value, self._secret) for name, _, value in pairs)


def _is_same(given: str, secret: str) -> bool:
    return hmac.compare_digest(given.encode(), secret.encode())

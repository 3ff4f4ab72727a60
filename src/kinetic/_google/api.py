"""Requests to Google's REST APIs, with tokens of ``login``."""

from __future__ import annotations

import json
import os
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from kinetic._google import login
from kinetic._google.login import Response, Tokens
from kinetic._wire import proxies
from kinetic._wire.http_client import RETRYABLE
from kinetic.errors import BackendUnavailableError, CredentialsError

_SCOPE_LOGIN = (
    "gcloud auth application-default login     or give the machine all scopes while it is stopped: "
    "gcloud compute instances set-service-account NAME --scopes cloud-platform"
)
_LONGEST_WAIT = 16.0  # seconds, whatever a service asks for
_LONGEST = 500  # characters of a message of Google's

_DISABLED = frozenset({"SERVICE_DISABLED", "accessNotConfigured"})
_OTHER_PROJECT = _DISABLED | {"USER_PROJECT_DENIED"}

Page = dict[str, Any]


class Retry(Protocol):
    """How often a request is repeated, and after which pauses; a ``Retry`` of ``_stores`` is one."""

    @property
    def attempts(self) -> int: ...
    def pause(self, attempt: int, *, at_least: float = 0.0) -> None: ...


class ApiError(Exception):
    """A service rejected a request; what leaves this room is an error of ours."""

    def __init__(self, status: int, reason: str, message: str, consumer: str = "") -> None:
        super().__init__(message)
        self.status = status  # the HTTP status
        self.reason = reason  # Google's word for it, e.g. "SERVICE_DISABLED" or "alreadyExists"; "" where there is none
        self.message = message  # the service's message
        self.consumer = consumer  # the project that a SERVICE_DISABLED is about, e.g. "projects/123"; else ""


class Service:
    """One of Google's APIs, e.g. "container.googleapis.com"."""

    def __init__(self, name: str, tokens: Tokens, retry: Retry, *, environ: Mapping[str, str] = os.environ) -> None:
        self.name = name
        word = name.partition(".")[0].upper()  # of the variable by which Google's own tools are sent elsewhere, too
        self._base = (environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{word}") or f"https://{name}").rstrip("/")
        self.user_project = ""  # whose quota requests count against, where that is settled
        self._payer: str | None = None  # the one for which the last request was accepted
        self._tokens = tokens
        self._retry = retry

    def get(self, path: str, **query: str | Sequence[str]) -> Page:
        """Read a resource; see ``request``."""
        return self.request("GET", path, query=query)

    def request(
        self,
        method: str,
        path: str,
        body: Page | None = None,
        *,
        query: Mapping[str, str | Sequence[str]] | None = None,
        once: bool = False,
    ) -> Page:
        """Send a request, again and again while the service is busy or does not respond.

        Args:
            method: E.g. "POST".
            path: Below the service's address.
            body: Of the request.
            query: Of the address; a name with several values is repeated.
            once: Whether a request that may have had its effect is not sent again: what it makes would be made twice.

        Raises:
            ApiError: The service rejected the request.
            CredentialsError: There is no token, or it is rejected.
            BackendUnavailableError: No answer came in all attempts.
        """
        url = f"{self._base}/{path}" + (f"?{urllib.parse.urlencode(query, doseq=True)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        refused: ApiError | None = None
        for payer in self._payers(path):
            try:
                page = self._sent(method, url, data, payer, once=once)
            except ApiError as error:
                if error.status != 403 or error.reason not in _OTHER_PROJECT:
                    self._payer = payer
                    raise
                # That an API is off in the project itself says more than that it is off in another one.
                is_owner = error.reason in _DISABLED and payer == _owner(path)
                refused = error if refused is None or is_owner else refused
            else:
                self._payer = payer
                return page
        assert refused is not None  # noqa: S101 - there is always one to ask
        raise refused

    def _payers(self, path: str) -> list[str]:
        """Return whose quota a request may count against, the most likely first; "" for whose Google takes by itself.

        The login's own project may have the API off, or be one that this account may not use: then the project that the
        request is about is as good.
        """
        if self.user_project:
            return [self.user_project]
        own, owner = self._tokens.quota_project, _owner(path)
        found = [own, *([owner] if owner else []), ""]
        return [*dict.fromkeys([*([self._payer] if self._payer in found else []), *found])]

    def _sent(self, method: str, url: str, data: bytes | None, payer: str, *, once: bool) -> Page:
        """Send a request whose quota is a project's; see ``request``."""
        rejected, attempt = "", 0
        while True:
            token, wanted = self._tokens.get(rejected), 0.0
            try:
                answer = login.send(url, method, data, _headers(token, data, payer))
            except OSError as error:
                if isinstance(error, proxies.RefusedError):
                    what = f"the proxy for {self.name} does not let us through"
                    raise BackendUnavailableError(what, why=str(error), next=proxies.ADVICE) from error
                failure = str(error)
                attempt = self._retry.attempts if once else attempt
            else:
                if answer.status == 401 and not rejected:
                    rejected = token
                    continue
                page = None if answer.status in RETRYABLE else self._page(answer)
                if page is not None:
                    return page
                failure = f"HTTP {answer.status}: {_message(answer.data)}"
                written = str(answer.headers.get("retry-after", ""))
                wanted = float(written) if written.isdecimal() else 0.0
                attempt = self._retry.attempts if once and answer.status not in {429, 503} else attempt
                if answer.status == 429 and attempt + 1 >= self._retry.attempts:
                    self._page(answer)  # raises it: the service did respond, and says which quota is used up
            attempt += 1
            if attempt >= self._retry.attempts:
                raise BackendUnavailableError(
                    f"{self.name} does not respond",
                    why=f"{self._base}: {failure}",
                    next="check the network and Google Cloud's status page, and try again",
                )
            self._retry.pause(attempt - 1, at_least=min(wanted, _LONGEST_WAIT))

    def follow(self, path: str, is_done: Callable[[Page], bool], pause: Callable[[float], object]) -> Page:
        """Read a resource until it is done: Google's operations and builds report nothing by themselves.

        The pauses grow from 1 to 10 seconds.
        """
        seconds = 1.0
        while not is_done(page := self.get(path)):
            pause(seconds)
            seconds = min(10.0, seconds * 1.3)
        return page

    def _page(self, answer: Response) -> Page | None:
        """Return what a service said; None where a success is no JSON, as of a proxy that answers in its place."""
        if answer.status == 401:
            raise CredentialsError(f"{self.name} rejected our credentials", why=_message(answer.data), next=login.LOGIN)
        if answer.status < 300:
            try:
                page = json.loads(answer.data or b"{}")
            except ValueError:
                return None
            return page if isinstance(page, dict) else None
        error = _error_json(answer.data)
        known = [each for field in ("details", "errors") for each in error.get(field) or () if isinstance(each, dict)]
        reason = next((str(each["reason"]) for each in known if each.get("reason")), "")
        consumers = [(each.get("metadata") or {}).get("consumer") for each in known]
        message = _message(answer.data) + constraints_text(error)
        if reason == "ACCESS_TOKEN_SCOPE_INSUFFICIENT" or "insufficient authentication scopes" in message:
            raise CredentialsError(f"this login may not use {self.name}", why=message, next=_SCOPE_LOGIN)
        raise ApiError(answer.status, reason, message, str(next(filter(None, consumers), "")))


def _owner(path: str) -> str:
    """Return the project that a request is about, "" for none."""
    found = re.match(r"(?:compute/)?v[0-9]+/projects/([^/:]+)", path)
    return found[1] if found else ""


def _headers(token: str, data: bytes | None, payer: str) -> dict[str, str]:
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
    headers |= {"Content-Type": "application/json"} if data is not None else {}
    return headers | ({"X-Goog-User-Project": payer} if payer else {})


def constraints_text(error: Page) -> str:
    """Return the organization policies that an error is about, " (constraints/…)", where its message has them not."""
    details = [each for each in error.get("details") or () if isinstance(each, dict)]
    names = {str(one.get("type", "")) for each in details for one in each.get("violations") or ()}
    missing = sorted(each for each in names if "onstraints/" in each and each not in str(error.get("message")))
    return f" ({', '.join(missing)})" if missing else ""


def _error_json(body: bytes) -> Page:
    try:
        page = json.loads(body)
    except ValueError:
        return {}
    error = page.get("error") if isinstance(page, dict) else None
    return error if isinstance(error, dict) else {}


def _message(body: bytes) -> str:
    return str(_error_json(body).get("message") or body.decode(errors="replace"))[:_LONGEST]

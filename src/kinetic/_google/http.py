"""Requests to Google's REST APIs: with a token, again after what passes, refusals in three parts."""

from __future__ import annotations

import json
import os
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from kinetic.errors import AccessDeniedError, BackendUnavailableError, CredentialsError, KineticError

AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_TIMEOUT_SECONDS = 30.0
_LONGEST = 500  # characters of what a service says

Page = dict[str, Any]


class TokenSource(Protocol):
    """Whoever hands out tokens."""

    def get(self, instead_of: str = "") -> str:
        """Return one."""

    @property
    def quota_project(self) -> str:
        """The project that requests are counted for, or ""."""


class Patience(NamedTuple):
    """How often a request is repeated, with growing pauses of random length.

    Attributes:
        attempts: The most requests for one answer.
        first_seconds: The longest first pause; each further one may be twice as long.
        most_seconds: The longest pause.
        sleep: Waits so many seconds.
        random: A number from 0 to 1.
    """

    attempts: int = 5
    first_seconds: float = 0.5
    most_seconds: float = 16.0
    sleep: Callable[[float], object] = time.sleep
    random: Callable[[], float] = random.random

    def pause(self, attempt: int, at_least: float = 0.0) -> None:
        """Wait after a failed attempt, numbered from 0."""
        longest = min(self.most_seconds, self.first_seconds * 2**attempt)
        self.sleep(max(min(at_least, self.most_seconds), longest * (0.5 + self.random() / 2)))


class Refused(Exception):  # noqa: N818 - of this room; what leaves it is an error of ours
    """A service said no.

    Attributes:
        status: The HTTP status.
        reason: The machine's word for it, e.g. "SERVICE_DISABLED"; "" where there is none.
        said: The service's words.
    """

    def __init__(self, status: int, reason: str, said: str) -> None:
        super().__init__(said)
        self.status = status
        self.reason = reason
        self.said = said


class Service:
    """One of Google's APIs."""

    def __init__(
        self,
        name: str,
        tokens: TokenSource,
        *,
        environ: Mapping[str, str] = os.environ,
        patience: Patience | None = None,
    ) -> None:
        self.name = name
        self._base = _address(name, environ)
        self._tokens = tokens
        self._patience = patience or Patience()

    def get(self, path: str, **query: str) -> Page:
        """Read a resource.

        Args:
            path: As the API's reference writes it, from the version on; each word that is not ours quoted.
            query: Of the method.

        Raises:
            Refused: The service said no.
            CredentialsError: Nobody gives us a token, or it is refused.
            BackendUnavailableError: No answer came, however often we asked.
        """
        return self._ask("GET", path, query, None)

    def _ask(self, method: str, path: str, query: Mapping[str, str], body: Page | None) -> Page:
        url = f"{self._base}/{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        refused, failure, attempt = "", "", 0
        while True:
            token = self._tokens.get(refused)
            status, said, wanted = _send(method, url, data, self._headers(token))
            if status == 401 and not refused:
                refused = token
                continue
            if status == 401:
                raise self._unknown(said)
            if status and status not in AGAIN:
                return _read(status, said)
            failure = f"HTTP {status}: {_message(said)}" if status else said.decode(errors="replace")
            attempt += 1
            if attempt >= self._patience.attempts:
                raise self._silent(failure)
            self._patience.pause(attempt - 1, wanted)

    def _headers(self, token: str) -> dict[str, str]:
        found = {"Authorization": f"Bearer {token}", "Accept": "application/json", "Content-Type": "application/json"}
        project = self._tokens.quota_project
        return found | ({"X-Goog-User-Project": project} if project else {})

    def _unknown(self, said: bytes) -> CredentialsError:
        return CredentialsError(
            f"{self.name} does not know who we are",
            why=_message(said),
            next="gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a key file",
        )

    def _silent(self, failure: str) -> BackendUnavailableError:
        return BackendUnavailableError(
            f"{self.name} does not answer",
            why=f"{self._base}: {failure}",
            next="look at the network and at Google Cloud's status page, and try again",
        )


def denied(error: Refused, service: str, project: str, wanted: str) -> KineticError:
    """Return the error for a 403.

    Args:
        error: What the service said.
        service: Its name, e.g. "container.googleapis.com".
        project: In which project.
        wanted: The permission that is needed, and the least role that has it.
    """
    if error.reason == "SERVICE_DISABLED" or "has not been used in project" in error.said:
        return AccessDeniedError(
            f"{service} is not switched on in the project {project}",
            why=error.said,
            next=f"gcloud services enable {service} --project {project}",
        )
    return AccessDeniedError(
        f"{service} does not let us into the project {project}",
        why=error.said,
        next=f"ask who runs the project for {wanted}",
    )


def _address(name: str, environ: Mapping[str, str]) -> str:
    """Return where an API answers; Google's own tools let the same variable name another place."""
    word = name.partition(".")[0].upper()
    return (environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{word}") or f"https://{name}").rstrip("/")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Have a redirection told as the refusal that it is."""


def open_here(request: urllib.request.Request, timeout: float) -> Any:
    """Send a request to the address that it names and to no other: a redirection would carry our token elsewhere."""
    return urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout)


def _send(method: str, url: str, data: bytes | None, headers: dict[str, str]) -> tuple[int, bytes, float]:
    """Return status, body and the seconds that the server asks us to wait; status 0 when no answer came."""
    request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 - Google's address
    try:
        with open_here(request, _TIMEOUT_SECONDS) as answer:
            return answer.status, answer.read(), 0.0
    except urllib.error.HTTPError as error:
        with error:
            written = error.headers.get("retry-after", "")
            return error.code, error.read(), float(written) if written.isdecimal() else 0.0
    except (OSError, urllib.error.URLError) as error:
        return 0, str(error).encode(), 0.0


def _read(status: int, body: bytes) -> Page:
    if status < 300:
        page: Page = json.loads(body or b"{}")
        return page
    error = _error(body)
    reasons = [each.get("reason", "") for each in error.get("details") or () if isinstance(each, dict)]
    raise Refused(status, next(filter(None, reasons), ""), _message(body))


def _error(body: bytes) -> Page:
    try:
        page = json.loads(body)
    except ValueError:
        return {}
    error = page.get("error") if isinstance(page, dict) else None
    return error if isinstance(error, dict) else {}


def _message(body: bytes) -> str:
    return str(_error(body).get("message") or body.decode(errors="replace"))[:_LONGEST]

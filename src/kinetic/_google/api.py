"""Requests to Google's REST APIs: with a token, again after what passes, refusals in three parts."""

from __future__ import annotations

import json
import os
import random
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kinetic.errors import AccessDeniedError, BackendUnavailableError, CredentialsError, KineticError

if TYPE_CHECKING:
    from google.auth.credentials import Credentials


RETRYABLE_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_TIMEOUT_SECONDS = 30.0
_LONGEST = 500  # characters of what a service says

Page = dict[str, Any]


class TokenSource(Protocol):
    """Whoever hands out tokens."""

    def get(self, rejected: str = "") -> str:
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


class ApiError(Exception):
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
        self._base = _base_url(name, environ)
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
            if status and status not in RETRYABLE_STATUSES:
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


def access_denied_error(error: ApiError, service: str, project: str, wanted: str) -> KineticError:
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


def _base_url(name: str, environ: Mapping[str, str]) -> str:
    """Return where an API answers; Google's own tools let the same variable name another place."""
    word = name.partition(".")[0].upper()
    return (environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{word}") or f"https://{name}").rstrip("/")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Have a redirection told as the refusal that it is."""


def open_without_redirects(request: urllib.request.Request, timeout: float) -> Any:
    """Send a request to the address that it names and to no other: a redirection would carry our token elsewhere."""
    return urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout)


def _send(method: str, url: str, data: bytes | None, headers: dict[str, str]) -> tuple[int, bytes, float]:
    """Return status, body and the seconds that the server asks us to wait; status 0 when no answer came."""
    request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 - Google's address
    try:
        with open_without_redirects(request, _TIMEOUT_SECONDS) as answer:
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
    error = _error_json(body)
    reasons = [each.get("reason", "") for each in error.get("details") or () if isinstance(each, dict)]
    raise ApiError(status, next(filter(None, reasons), ""), _message(body))


def _error_json(body: bytes) -> Page:
    try:
        page = json.loads(body)
    except ValueError:
        return {}
    error = page.get("error") if isinstance(page, dict) else None
    return error if isinstance(error, dict) else {}


def _message(body: bytes) -> str:
    return str(_error_json(body).get("message") or body.decode(errors="replace"))[:_LONGEST]


SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
LOGIN = "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"


class Tokens:
    """Hand out tokens; ask for a new one when the old one is about to end, or was refused. Threads may share it."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._lock = threading.Lock()  # one thread asks, the others wait for its answer
        self._credentials: Credentials | None = None

    def get(self, rejected: str = "") -> str:
        """Return a token.

        Args:
            rejected: A token that was just refused; "" for none.

        Raises:
            CredentialsError: Nobody gives us one.
            BackendUnavailableError: Whoever would does not answer.
        """
        with self._lock:
            credentials = self._found()
            if not credentials.valid or credentials.token == rejected:
                self._refresh(credentials)
            return str(credentials.token)

    @property
    def quota_project(self) -> str:
        """The project that requests are counted for; "" for that of the resource."""
        with self._lock:
            return str(getattr(self._found(), "quota_project_id", None) or "")

    def _found(self) -> Credentials:
        if self._credentials is None:
            self._credentials = _find_credentials(self._environ)
        return self._credentials

    @staticmethod
    def _refresh(credentials: Credentials) -> None:
        from google.auth.exceptions import GoogleAuthError, TransportError

        try:
            credentials.refresh(_token_request)  # type: ignore[no-untyped-call]  # google-auth is typed in parts
        except TransportError as error:
            raise BackendUnavailableError(
                "Google does not answer when asked for a token", why=str(error), next="look at the network, try again"
            ) from error
        except GoogleAuthError as error:
            raise _no_credentials(f"Google gives us no token: {_first_line(error)}") from error


def _find_credentials(environ: Mapping[str, str]) -> Credentials:
    """Find credentials in the order that Google documents.

    The files are read here and not by ``google.auth.default()``, which would start gcloud to learn a project: 1 s.
    """
    import google.auth as library  # 22 ms, and cryptography with key files: only for a cluster of Google's
    from google.auth.exceptions import GoogleAuthError

    auth: Any = library  # typed in parts only
    how = {"scopes": SCOPES, "request": _token_request, "quota_project_id": environ.get("GOOGLE_CLOUD_QUOTA_PROJECT")}
    file = credentials_file(environ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a user's own login counts against somebody's quota
        try:
            if file is not None:
                found, _ = auth.load_credentials_from_file(str(file), **how)
            else:
                found, _ = auth.default(**how)
        except (GoogleAuthError, OSError, ValueError) as error:
            raise _no_credentials(f"{file or 'no file, and no metadata server'}: {_first_line(error)}") from error
    credentials: Credentials = found
    return credentials


def credentials_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file with application default credentials, or None when there is none."""
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named:
        return Path(named)
    windows = os.name == "nt"
    folder = Path(environ.get("APPDATA", "")) / "gcloud" if windows else Path.home() / ".config" / "gcloud"
    written = Path(environ.get("CLOUDSDK_CONFIG") or folder) / "application_default_credentials.json"
    return written if written.is_file() else None


def _no_credentials(why: str) -> KineticError:
    return CredentialsError("there are no usable credentials for Google Cloud", why=why, next=LOGIN)


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0][:500]


class _Response(NamedTuple):
    """What google-auth wants to know of an answer."""

    status: int
    headers: Mapping[str, str]
    data: bytes


def _token_request(
    url: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    **_: Any,
) -> _Response:
    """Send a request for google-auth: its own way needs requests, 230 ms."""
    from google.auth.exceptions import TransportError

    data = body.encode() if isinstance(body, str) else body
    wanted = urllib.request.Request(url, data=data, headers=dict(headers or {}), method=method)  # noqa: S310 - from google-auth
    try:
        with open_without_redirects(wanted, timeout or _TIMEOUT_SECONDS) as answer:
            return _Response(answer.status, dict(answer.headers), answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return _Response(error.code, dict(error.headers), error.read())
    except OSError as error:
        raise TransportError(str(error)) from error  # type: ignore[no-untyped-call]  # as above

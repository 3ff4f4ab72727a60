"""Who we are to Google: access tokens of the application default credentials.

No command of Google's is called and nothing is written: google-auth reads what is there, impersonation, workload
identity and key files included.
"""

from __future__ import annotations

import functools
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from kinetic._google import default_credentials
from kinetic._wire import NamedTuple
from kinetic.errors import BackendUnavailableError, CredentialsError

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

    from kinetic._wire.http_client import HttpClient

LOGIN = "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_TIMEOUT_SECONDS = 30.0
_CONNECT_SECONDS = 5.0  # an address that swallows connections is named soon; a real one connects within one
_ASKED_ONCE = ("/v1/token", ":generateAccessToken")  # of a federated login; google-auth repeats its other requests
_LONGEST = 500  # characters of a message of Google's
_METADATA_HEADER = "metadata-flavor"  # on every request of google-auth's to the metadata server


def send(
    url: str,
    method: str = "GET",
    body: bytes | str | None = None,
    headers: Mapping[str, str] | None = None,
    **_: Any,
) -> Response:
    """Send a request; a redirect is an answer like others, since following it would carry our token elsewhere.

    Raises:
        OSError: No answer came.
    """
    data = body.encode() if isinstance(body, str) else body
    return Response(*_client_for(headers or {}).send(method, url, body=data, headers=headers, follow=False))


def _client_for(headers: Mapping[str, str]) -> HttpClient:
    """Return the client that may ask without TLS only for what asks the metadata server, and sends no token.

    A machine of Google's asks its own host at a link-local address, which has no TLS; elsewhere nothing answers there.
    """
    names = {name.lower() for name in headers}
    return _client(plain_http=_METADATA_HEADER in names and "authorization" not in names)


@functools.cache
def _client(*, plain_http: bool) -> HttpClient:
    from kinetic._wire.http_client import HttpClient  # 20 ms; a store only asks what kind of login there is

    if plain_http:
        return HttpClient(plain_http=True, timeout_seconds=3.0, connect_seconds=0.5, is_direct=True)
    return HttpClient(timeout_seconds=_TIMEOUT_SECONDS, connect_seconds=_CONNECT_SECONDS)


class Response(NamedTuple):
    """An answer, as google-auth wants it; other statuses than 2xx included."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Tokens:
    """Hand out access tokens, a new one once the old one expires or is rejected. Threads may share it."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._lock = threading.Lock()  # one thread refreshes, the others wait
        self._credentials: Credentials | None = None

    def get(self, rejected: str = "") -> str:
        """Return a token.

        Raises:
            CredentialsError: There are no usable credentials.
            BackendUnavailableError: The token endpoint does not respond.
        """
        with self._lock:
            credentials = self._found()
            if not credentials.valid or credentials.token == rejected:
                _refresh(credentials)
            return str(credentials.token)

    def with_expiry(self) -> tuple[str, datetime | None]:
        """Return a token and when it ends (UTC), as far as that is known; see ``get``."""
        token = self.get()
        with self._lock:
            expiry = self._found().expiry
        return token, expiry.replace(tzinfo=UTC) if expiry is not None else None

    @property
    def quota_project(self) -> str:
        """The project whose quota requests count against; "" for that of the resource."""
        with self._lock:
            return str(getattr(self._found(), "quota_project_id", None) or "")

    def _found(self) -> Credentials:
        if self._credentials is None:
            self._credentials = _find_credentials(self._environ)
        return self._credentials


def token_source(environ: Mapping[str, str]) -> Callable[[str], str] | None:
    """Return what gives access tokens, see ``Tokens.get``; None where this machine has no login."""
    return Tokens(environ).get if default_credentials.file_of(environ) else None


def _find_credentials(environ: Mapping[str, str]) -> Credentials:
    """Find credentials in the order that Google documents.

    The file is chosen here and not by ``google.auth.default()``, which would start gcloud to learn a project: 1 s.
    """
    try:
        import google.auth as library  # 22 ms, and cryptography with key files: only for a cluster of Google's
        from google.auth.exceptions import GoogleAuthError, TransportError
    except ImportError as error:
        raise CredentialsError(
            f"the login in {default_credentials.file_of(environ)} cannot be used here",
            why=f"it needs google-auth, which is missing: {error}",
            next="pip install google-auth; in an image of your own, add the line RUN pip install google-auth",
        ) from error

    auth: Any = library  # typed in parts only
    options = {
        "scopes": _SCOPES,
        "request": _send_while_loading,
        "quota_project_id": environ.get("GOOGLE_CLOUD_QUOTA_PROJECT"),
    }
    file = default_credentials.file_of(environ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a user's own login counts against another project's quota
        try:
            found, _ = auth.load_credentials_from_file(str(file), **options) if file else auth.default(**options)
        except TransportError as error:  # a federated login asks for a token while it is read
            raise _no_answer(error) from error
        except (GoogleAuthError, OSError, ValueError) as error:
            raise _no_credentials(f"{file or 'no file, and no metadata server'}: {_first_line(error)}") from error
    credentials: Credentials = found
    return credentials


def _refresh(credentials: Credentials) -> None:
    from google.auth.exceptions import GoogleAuthError, TransportError

    try:
        credentials.refresh(_send_for_google_auth)  # type: ignore[no-untyped-call]  # google-auth is typed in parts
    except TransportError as error:
        raise _no_answer(error) from error
    except GoogleAuthError as error:
        raise _no_credentials(f"Google did not issue a token: {_first_line(error)}") from error


def _send_for_google_auth(url: str, *args: Any, **options: Any) -> Response:
    """Send a request for google-auth: its own way needs the library requests, 230 ms."""
    from google.auth.exceptions import TransportError

    try:
        answer = send(url, *args, **options)
    except OSError as error:
        raise TransportError(str(error)) from error  # type: ignore[no-untyped-call]  # as above
    if answer.status >= 500 and url.endswith(_ASKED_ONCE):
        raise TransportError(f"{url}: HTTP {answer.status}")  # type: ignore[no-untyped-call]
    return answer


def _send_while_loading(url: str, method: str = "GET", *args: Any, **options: Any) -> Response:
    """Send a request, but for the project of a federated login: nobody asks for it, and that API may be off."""
    if method == "GET" and url.startswith("https://cloudresourcemanager."):
        return Response(404, {}, b"{}")
    return _send_for_google_auth(url, method, *args, **options)


def _no_answer(error: Exception) -> BackendUnavailableError:
    step = "check the network and try again"
    return BackendUnavailableError("Google's token endpoint did not respond", why=str(error), next=step)


def _no_credentials(why: str) -> CredentialsError:
    return CredentialsError("no usable credentials for Google Cloud", why=why, next=LOGIN)


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0][:_LONGEST]

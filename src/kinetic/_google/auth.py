"""Who we are to Google: application default credentials, as a token that is good for some minutes more.

No command of Google's is called and nothing is written: google-auth reads what is there. Impersonation, workload
identity and key files are its matter.
"""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._google.http import open_here
from kinetic.errors import BackendUnavailableError, CredentialsError, KineticError

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
NEXT = "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
_TIMEOUT_SECONDS = 30.0


class Tokens:
    """Hand out tokens; ask for a new one when the old one is about to end, or was refused. Threads may share it."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._lock = threading.Lock()  # one thread asks, the others wait for its answer
        self._credentials: Credentials | None = None

    def get(self, instead_of: str = "") -> str:
        """Return a token.

        Args:
            instead_of: A token that was just refused; "" for none.

        Raises:
            CredentialsError: Nobody gives us one.
            BackendUnavailableError: Whoever would does not answer.
        """
        with self._lock:
            credentials = self._found()
            if not credentials.valid or credentials.token == instead_of:
                self._refresh(credentials)
            return str(credentials.token)

    @property
    def quota_project(self) -> str:
        """The project that requests are counted for; "" for that of the resource."""
        with self._lock:
            return str(getattr(self._found(), "quota_project_id", None) or "")

    def _found(self) -> Credentials:
        if self._credentials is None:
            self._credentials = _find(self._environ)
        return self._credentials

    @staticmethod
    def _refresh(credentials: Credentials) -> None:
        from google.auth.exceptions import GoogleAuthError, TransportError

        try:
            credentials.refresh(_request)  # type: ignore[no-untyped-call]  # google-auth is typed in parts
        except TransportError as error:
            raise BackendUnavailableError(
                "Google does not answer when asked for a token", why=str(error), next="look at the network, try again"
            ) from error
        except GoogleAuthError as error:
            raise _none(f"Google gives us no token: {_first_line(error)}") from error


def _find(environ: Mapping[str, str]) -> Credentials:
    """Find credentials in the order that Google documents.

    The files are read here and not by ``google.auth.default()``, which would start gcloud to learn a project: 1 s.
    """
    import google.auth as library  # 22 ms, and cryptography with key files: only for a cluster of Google's
    from google.auth.exceptions import GoogleAuthError

    auth: Any = library  # typed in parts only
    how = {"scopes": SCOPES, "request": _request, "quota_project_id": environ.get("GOOGLE_CLOUD_QUOTA_PROJECT")}
    file = file_of(environ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a user's own login counts against somebody's quota
        try:
            if file is not None:
                found, _ = auth.load_credentials_from_file(str(file), **how)
            else:
                found, _ = auth.default(**how)
        except (GoogleAuthError, OSError, ValueError) as error:
            raise _none(f"{file or 'no file, and no metadata server'}: {_first_line(error)}") from error
    credentials: Credentials = found
    return credentials


def file_of(environ: Mapping[str, str]) -> Path | None:
    """Return the file with application default credentials, or None when there is none."""
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named:
        return Path(named)
    windows = os.name == "nt"
    folder = Path(environ.get("APPDATA", "")) / "gcloud" if windows else Path.home() / ".config" / "gcloud"
    written = Path(environ.get("CLOUDSDK_CONFIG") or folder) / "application_default_credentials.json"
    return written if written.is_file() else None


def _none(why: str) -> KineticError:
    return CredentialsError("there are no usable credentials for Google Cloud", why=why, next=NEXT)


def _first_line(error: object) -> str:
    return str(error).partition("\n")[0][:500]


class _Answer(NamedTuple):
    """What google-auth wants to know of an answer."""

    status: int
    headers: Mapping[str, str]
    data: bytes


def _request(
    url: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float | None = None,
    **_: Any,
) -> _Answer:
    """Send a request for google-auth: its own way needs requests, 230 ms."""
    from google.auth.exceptions import TransportError

    data = body.encode() if isinstance(body, str) else body
    wanted = urllib.request.Request(url, data=data, headers=dict(headers or {}), method=method)  # noqa: S310 - from google-auth
    try:
        with open_here(wanted, timeout or _TIMEOUT_SECONDS) as answer:
            return _Answer(answer.status, dict(answer.headers), answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return _Answer(error.code, dict(error.headers), error.read())
    except OSError as error:
        raise TransportError(str(error)) from error  # type: ignore[no-untyped-call]  # as above

"""Tokens for Google's services with the standard library: from the metadata server, or from a user's own login.

Key files of service accounts are signed with RSA, which the standard library cannot: those need obstore.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kinetic._stores import complaints
from kinetic._stores.addresses import Address
from kinetic._stores.plain_http import Caller, NoAnswer
from kinetic._stores.retrying import Retry
from kinetic.errors import CredentialsError

EARLY_SECONDS = 225.0  # before a token ends: the metadata server gives a new one from four minutes before on
PATIENCE_SECONDS = 5.0  # on a laptop nobody answers where the metadata server would be
BRIEF_ATTEMPTS = 3  # for the same reason; in a pod of GKE it answers some seconds after the pod began, or its node
METADATA_PATH = "/computeMetadata/v1/instance/service-accounts/default/token"
TOKEN_URI = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address


class Token(NamedTuple):
    """A bearer token.

    Attributes:
        text: What goes into the header.
        ends: By the clock that was given.
    """

    text: str
    ends: float


class Tokens:
    """Hand out a token that is good for some minutes more; ask for a new one when it is not."""

    def __init__(self, address: Address, retry: Retry, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._retry = retry
        self._clock = clock
        self._lock = threading.Lock()  # one thread asks, the others wait for its answer
        self._token: Token | None = None

    def get(self, *, instead_of: str | None = None) -> str:
        """Return a token.

        Args:
            instead_of: A token that was just refused.

        Raises:
            CredentialsError: Nobody gives us one.
        """
        with self._lock:
            token = self._token
            if token is None or token.ends <= self._clock() or token.text == instead_of:
                token = self._token = self._ask()
            elif token.ends - self._clock() < EARLY_SECONDS:
                with contextlib.suppress(CredentialsError):  # it is good for some minutes, in which we ask again
                    token = self._token = self._ask(briefly=True)
            return token.text

    def _ask(self, *, briefly: bool = False) -> Token:
        page = _credentials_file(self._address)
        try:
            return self._of_user(page) if page is not None else self._of_machine(briefly)
        except NoAnswer as error:
            raise complaints.refused(self._address, f"no token: {error}") from error

    def _of_machine(self, briefly: bool) -> Token:
        host = os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_ROOT") or "metadata.google.internal"
        patient = not briefly and "KUBERNETES_SERVICE_HOST" in os.environ
        retry = self._retry if patient else self._retry._replace(attempts=BRIEF_ATTEMPTS)
        caller = Caller(f"http://{host}", retry, timeout=PATIENCE_SECONDS)
        reply = caller.call("GET", METADATA_PATH, headers={"Metadata-Flavor": "Google"})
        return self._read(reply.status, reply.body)

    def _of_user(self, page: dict[str, Any]) -> Token:
        names = ("client_id", "client_secret", "refresh_token")
        form = {"grant_type": "refresh_token", **{name: str(page.get(name, "")) for name in names}}
        base, _, path = _split(str(page.get("token_uri") or TOKEN_URI))
        reply = Caller(base, self._retry).call(
            "POST",
            f"/{path}",
            body=urllib.parse.urlencode(form).encode(),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
        )
        return self._read(reply.status, reply.body)

    def _read(self, status: int, body: bytes) -> Token:
        if status != 200:
            raise complaints.refused(self._address, f"no token: HTTP {status}: {body[:200].decode(errors='replace')}")
        page = json.loads(body)
        return Token(page["access_token"], self._clock() + float(page["expires_in"]))


def _credentials_file(address: Address) -> dict[str, Any] | None:
    named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    path = Path(named) if named else Path.home() / complaints.GOOGLE_FILE
    if not named and not path.exists():
        return None
    try:
        page: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise CredentialsError(
            f"the credentials for {address.url} cannot be read", why=f"{path}: {error}", next=complaints.GOOGLE_NEXT
        ) from error
    kind = page.get("type")
    if kind != "authorized_user":
        raise CredentialsError(
            f"credentials of the kind {kind!r} need obstore",
            why=f"{path}: Python's standard library cannot sign what Google wants signed",
            next="pip install obstore in the environment or image of the job, or run it on a machine of Google's",
        )
    return page


def _split(url: str) -> tuple[str, str, str]:
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host}", slash, path

"""The login of a registry, as Docker's and Podman's files and helpers keep it; Google's token for Google's registries.

{cache}/images/registries.json      host of a registry -> how it asks for a login: no login, and no token

Source: docs.docker.com/reference/cli/docker/login, github.com/docker/docker-credential-helpers (read 2026-11-22);
containers-auth.json(5) of containers/image.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kinetic._images.container_registry import DOCKER_HUB, Login
from kinetic._wire import folders
from kinetic.errors import CredentialsError

_GOOGLE = (".pkg.dev", ".gcr.io")  # and gcr.io itself
_DOCKER_HUB_KEY = "https://index.docker.io/v1/"  # under which Docker keeps the login of its own registry
_HELPER_SECONDS = 30.0
_NOT_FOUND = "credentials not found"  # what every helper prints for a server that it does not know
_TOKEN_USER = "<token>"  # noqa: S105 - a helper's word for "the secret is an identity token"

GoogleToken = Callable[[str], str]  # takes a rejected token, or ""; returns one


def find_login(
    host: str,
    google_token: GoogleToken | None,
    environ: Mapping[str, str],
    rejected: str = "",
    *,
    repository: str = "",
) -> Login:
    """Return the login of a registry: Docker's configuration first, then Podman's, then Google's token, then none.

    Args:
        host: With its port if it is not 443.
        google_token: Returns an access token for Google Cloud; None where there is no such login.
        environ: Names the files: REGISTRY_AUTH_FILE and XDG_RUNTIME_DIR (podman), DOCKER_CONFIG.
        rejected: A token that the registry rejected; it is not returned again.
        repository: The name within the registry: Podman keeps logins for parts of one, too.

    Raises:
        CredentialsError: A file or a helper that is configured for this host does not work.
    """
    for file in config_files(environ):
        if (login := _login_in(file, host, repository, environ)) is not None:
            return login
    if google_token is not None and (host == "gcr.io" or host.endswith(_GOOGLE)):
        return Login(token=google_token(rejected))
    return Login()


class KnownChallenges:
    """How registries asked for a login, in a file of this machine; see ``registry.Challenges``."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def known(self, host: str) -> str:
        """Return what a registry asked for last, or ""."""
        return self._read().get(host, "")

    def note(self, host: str, challenge: str) -> None:
        """Remember what a registry asks for; what cannot be written is asked for again."""
        known = self._read()
        if challenge and known.get(host) != challenge:
            with contextlib.suppress(OSError):
                folders.make(self._file.parent)
                folders.write_whole(self._file, json.dumps({**known, host: challenge}).encode())

    def _read(self) -> dict[str, str]:
        try:
            return {str(host): str(challenge) for host, challenge in json.loads(self._file.read_bytes()).items()}
        except (OSError, ValueError, AttributeError):
            return {}


def config_files(environ: Mapping[str, str]) -> list[Path]:
    """Return the files with logins that exist, the one that counts first.

    ``su`` and ``sudo`` may leave a folder in XDG_RUNTIME_DIR that only the user before may enter.
    """
    home = Path(environ.get("HOME") or Path.home())
    named = [Path(environ["REGISTRY_AUTH_FILE"])] if environ.get("REGISTRY_AUTH_FILE") else []
    docker = Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json"
    runtime = environ.get("XDG_RUNTIME_DIR")
    podman = [
        Path(f"{runtime}/containers/auth.json" if runtime else f"/run/containers/{os.getuid()}/auth.json"),
        Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "containers" / "auth.json",
    ]
    return [file for file in (*named, docker, *podman) if os.path.isfile(file)]


def _login_in(file: Path, host: str, repository: str, environ: Mapping[str, str]) -> Login | None:
    page = _read(file)
    names = [_DOCKER_HUB_KEY, host] if host == DOCKER_HUB else [host, f"https://{host}"]
    parts = repository.split("/") if repository else []
    helpers = page.get("credHelpers") or {}
    for name in (*("/".join([host, *parts[:end]]) for end in range(len(parts), 0, -1)), *names):
        helper = (helpers.get(name) or page.get("credsStore")) if name in names else ""
        if helper and (login := _ask_helper(str(helper), name, file, environ)) is not None:
            return login
        entry = (page.get("auths") or {}).get(name)
        if isinstance(entry, dict) and (login := _login_of(entry, file, name)) is not None:
            return login
    return None


def _login_of(entry: dict[str, Any], file: Path, name: str) -> Login | None:
    if entry.get("identitytoken"):
        return Login(refresh_token=str(entry["identitytoken"]))
    try:
        user, colon, password = base64.b64decode(entry.get("auth") or "", validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError, TypeError) as error:
        raise _damaged(file, f'"auth" of {name} is not base64: {error}') from error
    return Login(user, password) if colon else None


def _read(file: Path) -> dict[str, Any]:
    try:
        page = json.loads(file.read_text() or "{}")  # as docker reads an empty one
    except (OSError, ValueError) as error:
        raise _damaged(file, str(error)) from error
    if not isinstance(page, dict):
        raise _damaged(file, "it does not contain an object")
    return page


def _ask_helper(helper: str, name: str, file: Path, environ: Mapping[str, str]) -> Login | None:
    """Run ``docker-credential-HELPER get``: the server on its input, the login as JSON on its output."""
    program = f"docker-credential-{helper}"
    if os.path.basename(program) != program:
        raise _damaged(file, f"{helper!r} is not the name of a credential helper")
    try:
        done = subprocess.run(
            [program, "get"],
            input=name,
            env=dict(environ),
            capture_output=True,
            text=True,
            timeout=_HELPER_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise _damaged(file, f"it names {program}, which is not installed") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _damaged(file, f"{program} does not work: {type(error).__name__}") from error
    if done.returncode:
        if _NOT_FOUND in done.stdout.lower() or _NOT_FOUND in done.stderr.lower():
            return None
        raise _damaged(file, f"{program} failed: {_reason(done)}")
    try:
        page = json.loads(done.stdout)
        user, secret = str(page["Username"]), str(page["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(file, f"{program} printed no login") from error
    return Login(refresh_token=secret) if user == _TOKEN_USER else Login(user, secret)


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a helper says of its failure; its output may be a login, unless it is a sentence."""
    said = done.stderr.strip() or ("" if "{" in done.stdout else done.stdout.strip())
    return " ".join(said.split())[:200] or f"exit {done.returncode}"


def _damaged(file: Path, why: str) -> CredentialsError:
    return CredentialsError(
        "the login of a container registry could not be read",
        why=f"{file}: {why}",
        next="correct the file, or log in again: docker login HOST",
        code="registry-login",
    )

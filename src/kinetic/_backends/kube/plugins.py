"""Programs that hand out credentials: the ``exec`` of a kubeconfig, as client-go calls it."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetic._backends.kube.access import Certificate
from kinetic.errors import CredentialsError

VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
PATIENCE_SECONDS = 60.0  # a plug-in that waits for a human is of no use here
EARLY_SECONDS = 60.0
_SECRET_LENGTH = 6  # characters; what is shorter cannot be told from ordinary words

Page = dict[str, Any]


class Plugin:
    """Call a program for a credential, and again when that ends or is refused."""

    def __init__(self, command: list[str], environment: dict[str, str], about: str, clock: Callable[[], float]) -> None:
        self._command = command
        self._environment = environment
        self._about = about
        self._clock = clock
        self._lock = threading.Lock()  # one thread calls it, the others wait for its answer
        self._page: Page | None = None

    @classmethod
    def of_page(
        cls, page: Page, folder: Path, cluster: Page, about: str, clock: Callable[[], float] = time.time
    ) -> Plugin:
        """Read the ``exec`` of a user.

        Raises:
            CredentialsError: It speaks a version that has been removed.
        """
        version = str(page.get("apiVersion"))
        if version not in VERSIONS:
            raise CredentialsError(
                f"the plug-in of {about} speaks {version}",
                why=f"known are {', '.join(VERSIONS)}",
                next="log in again with a newer version of the cluster's own tool",
            )
        command = str(page.get("command") or "")
        if os.sep in command and not os.path.isabs(command):
            command = str(folder / command)
        extra = {str(each["name"]): str(each["value"]) for each in page.get("env") or ()}
        spec: Page = {"interactive": False}
        if page.get("provideClusterInfo"):
            spec["cluster"] = {key: cluster[key] for key in ("server", "certificate-authority-data") if key in cluster}
        info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
        extra["KUBERNETES_EXEC_INFO"] = json.dumps(info)
        return cls([command, *map(str, page.get("args") or ())], extra, about, clock)

    def header(self, *, instead_of: str = "") -> str:
        """Return the header with the plug-in's token, "" if it hands out a certificate.

        Raises:
            CredentialsError: It cannot be called, or hands out nothing.
        """
        token = self._status(instead_of).get("token")
        return f"Bearer {token}" if token else ""

    def certificate(self) -> Certificate | None:
        """Return the certificate that the plug-in hands out, or None.

        Raises:
            CredentialsError: It cannot be called, or hands out nothing.
        """
        status = self._status("")
        chain, key = status.get("clientCertificateData"), status.get("clientKeyData")
        return Certificate(chain.encode(), key.encode()) if chain and key else None

    def _status(self, instead_of: str) -> Page:
        with self._lock:
            page = self._page
            if page is None or _is_refused(page, instead_of) or _ends(page) - self._clock() < EARLY_SECONDS:
                page = self._page = self._call()
            return page

    def _call(self) -> Page:
        environment = {**os.environ, **self._environment}
        try:
            done = subprocess.run(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PATIENCE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:  # whose words hold all arguments
            raise self._failed(f"no answer within {PATIENCE_SECONDS:g} s") from None
        except OSError as error:
            raise self._failed(error.strerror or type(error).__name__) from error
        if done.returncode != 0:
            said = self._without_secrets(done.stderr.decode(errors="replace")).strip()[-500:]
            raise self._failed(f"it exited with {done.returncode}: {said}")
        try:
            status = json.loads(done.stdout)["status"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._failed("its answer is no ExecCredential with a status") from error
        if not isinstance(status, dict) or not (status.get("token") or status.get("clientCertificateData")):
            raise self._failed("its answer has neither a token nor a certificate")
        return status

    def _without_secrets(self, said: str) -> str:
        """Take out of its words what the kubeconfig hands to the plug-in and may be a secret."""
        given = [*self._command[1:], *self._environment.values()]
        values = {value for each in given for value in (each, each.partition("=")[2]) if not value.startswith("-")}
        for value in sorted(values, key=len, reverse=True):
            if len(value) >= _SECRET_LENGTH:
                said = said.replace(value, "***")
        return said

    def _failed(self, why: str) -> CredentialsError:
        """Say what went wrong; the plug-in's arguments are not shown: some kubeconfigs keep passwords there."""
        with_ = ", with the arguments that the kubeconfig has" if len(self._command) > 1 else ""
        return CredentialsError(
            f"the plug-in of {self._about} hands out no credentials",
            why=f"{self._command[0]}: {why}",
            next=f"run {self._command[0]} yourself{with_}, and log in if it asks you to",
        )


def _is_refused(status: Page, instead_of: str) -> bool:
    """Say whether it is this very credential that was refused, and not one that another thread has exchanged."""
    token = status.get("token")
    return bool(instead_of) and (not token or instead_of == f"Bearer {token}")


def _ends(status: Page) -> float:
    """Return when a credential ends, as Unix time."""
    written = status.get("expirationTimestamp")
    if not written:
        return float("inf")
    try:
        return dt.datetime.fromisoformat(str(written)).timestamp()
    except ValueError:
        return float("inf")

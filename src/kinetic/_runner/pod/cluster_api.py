"""Requests of a pod's first process to the API of its cluster, with the token of the pod's service account."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinetic._runner.pod.container import ACCOUNT_TOKEN
from kinetic._wire import NamedTuple

ACCOUNT_FOLDER = ACCOUNT_TOKEN.parent
_SECONDS = 30.0


class Answer(NamedTuple):
    """What the server answered; a status of 0 where it did not."""

    status: int
    reason: str  # why it was refused, or why there was no answer
    page: dict[str, Any]


def namespace(folder: Path = ACCOUNT_FOLDER) -> str:
    """Return the namespace of this pod."""
    return (folder / "namespace").read_text().strip()


def request(
    method: str,
    path: str,
    change: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    folder: Path = ACCOUNT_FOLDER,
) -> Answer:
    """Send one request; ``change`` is merged into the object. Each time the token is read: the kubelet renews it."""
    answer = _send(method, path, change, environ, folder)
    return _send(method, path, change, environ, folder) if answer.status == 401 else answer


def _send(method: str, path: str, change: Mapping[str, Any] | None, environ: Mapping[str, str], folder: Path) -> Answer:
    import http.client  # few jobs ask anything of their cluster
    import ssl

    try:
        token = (folder / "token").read_text().strip()
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # see kube/transport.py
        host, port = environ["KUBERNETES_SERVICE_HOST"], int(environ["KUBERNETES_SERVICE_PORT"])
        connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/merge-patch+json"}
        try:
            connection.request(method, path, None if change is None else json.dumps(change), headers)
            answer = connection.getresponse()
            body = answer.read()
        finally:
            connection.close()
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        return Answer(0, f"{type(error).__name__}: {error}", {})
    try:
        page = json.loads(body) if body else {}
    except ValueError:
        page = {}
    return Answer(answer.status, f"HTTP {answer.status} {answer.reason}", page if isinstance(page, dict) else {})

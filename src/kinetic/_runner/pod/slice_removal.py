"""Dismissing: a slice that nothing else would end removes what makes its pods, from inside, once there is a verdict.

A LeaderWorkerSet starts again whatever exits, so its processes have to stay; and it would hold its chips until somebody
collects the result. The leader's pod has a token of its service account, which may be allowed to delete the set.
"""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_SECONDS = 30.0


def remove_own_slice(path: str, environ: Mapping[str, str] = os.environ, folder: Path = ACCOUNT_FOLDER) -> str:
    """Delete an object of the cluster that this pod runs in; its pods follow.

    Args:
        path: Of the object, in the API.
        environ: Says where the API is.
        folder: Where the service account's token and the cluster's certificate lie.

    Returns:
        "" when it is deleted, or was already; otherwise why not.
    """
    try:
        token = (folder / "token").read_text().strip()
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # see kube/connecting.py
        host, port = environ["KUBERNETES_SERVICE_HOST"], int(environ["KUBERNETES_SERVICE_PORT"])
        connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)
        try:
            connection.request("DELETE", path, headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
        finally:
            connection.close()
    except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    return "" if answer.status in {200, 202, 404} else f"HTTP {answer.status} {answer.reason}"

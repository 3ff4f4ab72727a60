"""Service accounts of a test, and what they may do."""

from __future__ import annotations

import contextlib
from typing import Any

from cluster.calls import RefusedError

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def account_token(plane: Any, namespace: str, name: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    with contextlib.suppress(RefusedError):
        plane.api.create(path, {"metadata": {"name": name}})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    return plane.api.create(f"{path}/{name}/token", asked)["status"]["token"]


def bind(plane: Any, namespace: str, name: str, role: dict[str, str], account: str) -> None:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    body = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", **role},
        "subjects": [subject],
    }
    plane.api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", body)

"""The JobSet controller, outside the cluster: the server is told where to find its webhooks by address.

In a cluster they are found through a Service, and the controller makes its own certificates; neither works for a
process beside the server, so the addresses and certificates are ours, and its own management of them is off.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from cluster import binaries

if TYPE_CHECKING:
    from cluster.access import Access
    from cluster.certificates import Authority
    from cluster.settings import Ports

MANIFEST = "manifests.yaml"
# Only pods of JobSets: while the controller is down, nothing else must wait for it.
OF_JOBSETS = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}


def configure(folder: Path, ports: Ports, authority: Authority) -> list[str]:
    """Write the controller's configuration and certificates; return its words on the command line."""
    serving = folder / "jobset-serving"
    serving.mkdir()
    authority.issue("jobset", folder=serving, stem="tls")
    settings = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{ports.jobset_health}"},
        "metrics": {"bindAddress": "0", "certDir": str(serving)},
        "webhook": {"host": "127.0.0.1", "port": ports.jobset_webhook, "certDir": str(serving)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    path = folder / "jobset.yaml"
    path.write_text(yaml.safe_dump(settings))
    return [f"--config={path}", "--metrics-bind-address=0"]


def webhooks(port: int, authority: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path and body of each webhook configuration that comes with the controller, with our address in it."""
    bundle = base64.b64encode(authority.read_bytes()).decode()
    (manifest,) = [path for path in binaries.definitions("jobset-webhooks") if path.name == MANIFEST]
    for document in yaml.safe_load_all(manifest.read_text()):
        if not document:
            continue
        document["metadata"]["name"] = f"jobset-{document['metadata']['name']}"
        for webhook in document["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            webhook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
            if path.endswith("-pod"):
                webhook["objectSelector"] = OF_JOBSETS
        kind = document["kind"].lower() + "s"
        yield f"/apis/admissionregistration.k8s.io/v1/{kind}", document


def install_definitions(api: Access) -> None:
    """Teach the server JobSet, LeaderWorkerSet and Kueue."""
    for name in ("jobset", "lws", "kueue"):
        for path in binaries.definitions(name):
            # As it is: the server reads YAML, and Python would take seconds. Not strict: the file is not ours.
            where = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            api.call("POST", where, path.read_bytes(), kind="application/yaml")


def are_established(api: Access) -> bool:
    """Tell whether the server serves everything that it was taught."""
    definitions = api.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    return all(
        any(
            each["type"] == "Established" and each["status"] == "True" for each in one["status"].get("conditions") or []
        )
        for one in definitions
    )

"""The controller of Kueue beside a test cluster, whose server is told where to find its webhooks by address.

`make kueue-build` makes it. It runs for its own tests: while its webhooks are known and it is away, no job can be made.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from cluster import binaries, containers
from cluster.binaries import KUEUE
from cluster.processes import Process, answers, free_ports

if TYPE_CHECKING:
    from cluster.plane import Plane

FRAMEWORKS = {"batch/job": "batch-v1-job", "jobset.x-k8s.io/jobset": "jobset-x-k8s-io", "": "kueue-x-k8s-io"}
API = "/apis/kueue.x-k8s.io/v1beta1"


def why_not() -> str:
    """Return why there is no Kueue here, or ""."""
    if KUEUE.missing():
        return f"{KUEUE.folder()} has no {', '.join(KUEUE.missing())}: `make kueue-build`"
    return "" if containers.isolated() else "this user may not make namespaces here; root may"


@contextmanager
def started(plane: Plane, folder: Path) -> Iterator[Process]:
    """Run Kueue until the end of a block."""
    plane.authority.issue("kueue", folder=folder, stem="tls")
    webhook, health = free_ports(2)
    settings = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": [name for name in FRAMEWORKS if name]},
    }
    (folder / "kueue.yaml").write_text(yaml.safe_dump(settings))
    # It wants certificates of its metrics in a folder whose name is fixed: there, and only for it.
    link = shlex.join(["ln", "-s", str(folder), "/etc/kueue/metrics/certs"])
    shown = f"mount -t tmpfs none /etc && mkdir -p /etc/kueue/metrics && {link}"
    words = [str(KUEUE.program("kueue")), f"--config={folder}/kueue.yaml", "--feature-gates=VisibilityOnDemand=false"]
    command = ["unshare", "--mount", "sh", "-c", f"{shown} && exec {shlex.join(words)}"]
    process = Process("kueue", command, folder / "kueue.log", {"KUBECONFIG": str(plane.folder / "components.yaml")})
    made: list[str] = []
    try:
        process.wait_until(lambda: answers(health, "/readyz", tls=False))
        for path, body in _webhooks(webhook, plane.authority.certificate):
            plane.api.create(path, body)
            made.append(f"{path}/{body['metadata']['name']}")
        yield process
    finally:
        for path in made:
            plane.api.delete(path)
        process.kill()


def _webhooks(port: int, authority: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    bundle = base64.b64encode(authority.read_bytes()).decode()
    (manifest,) = [path for path in binaries.definitions("kueue-webhooks", KUEUE) if path.name == "manifests.yaml"]
    for document in filter(None, yaml.safe_load_all(manifest.read_text())):
        kept = []
        for webhook in document["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            if any(part in path for part in FRAMEWORKS.values()):
                address = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
                kept.append(webhook | {"clientConfig": address})
        about = {"name": f"kueue-{document['metadata']['name']}"}
        yield (
            f"/apis/admissionregistration.k8s.io/v1/{document['kind'].lower()}s",
            {**document, "metadata": about, "webhooks": kept},
        )

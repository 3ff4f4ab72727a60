"""Kueue, LeaderWorkerSet and Volcano beside a test cluster, whose server finds their webhooks by address.

`make controllers` makes them. Each runs for its own tests: while its webhooks are known and it is away, no job can be
made.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from cluster import binaries, containers, jobset
from cluster.binaries import CONTROLLERS
from cluster.plane import Plane, wait_for
from cluster.processes import Process, answers, free_ports

VOLCANO = "scheduling.volcano.sh"


class Controller(NamedTuple):
    """A controller.

    Attributes:
        name: Of its program.
        settings: What its configuration has besides addresses and certificates.
        paths: What is in the paths of those of its webhooks that are wanted.
        labelled: Those of its webhooks that are about pods ask for this label: nothing else waits while it is away.
        words: More words on its command line.
        metrics: A folder with a fixed name in which it wants the certificates of its metrics, or "".
    """

    name: str
    settings: Mapping[str, Any]
    paths: tuple[str, ...]
    labelled: str = ""
    words: tuple[str, ...] = ()
    metrics: str = ""


KUEUE = Controller(
    "kueue",
    {
        "apiVersion": "config.kueue.x-k8s.io/v1beta1",
        "integrations": {"frameworks": ["batch/job", "jobset.x-k8s.io/jobset"]},
    },
    ("batch-v1-job", "jobset-x-k8s-io", "kueue-x-k8s-io"),
    words=("--feature-gates=VisibilityOnDemand=false",),
    metrics="/etc/kueue/metrics",
)
LEADER_WORKER_SET = Controller(
    "lws",
    {"apiVersion": "config.lws.x-k8s.io/v1alpha1"},
    ("leaderworkerset", "-pod"),
    labelled="leaderworkerset.sigs.k8s.io/name",
)


@contextmanager
def volcano(plane: Plane, folder: Path) -> Iterator[None]:
    """Run the scheduler of Volcano, and what makes a group for each pod, until the end of a block."""
    for name in ("volcano", "volcano-flows"):
        for path in binaries.definitions(name, CONTROLLERS):
            where = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            plane.api.call("POST", where, path.read_bytes(), kind="application/yaml")
    wait_for("the definitions of Volcano", lambda: jobset.are_established(plane.api))
    about = {"apiVersion": f"{VOLCANO}/v1beta1", "kind": "Queue", "metadata": {"name": "default"}}
    plane.api.create(f"/apis/{VOLCANO}/v1beta1/queues", {**about, "spec": {"weight": 1}})
    kubeconfig = plane.folder / "components.yaml"
    running: list[Process] = []
    try:
        ports = free_ports(3)
        of_scheduler = ["--cache-dumper=false", f"--listen-address=127.0.0.1:{ports.pop()}"]
        for name, more in (("vc-controller-manager", []), ("vc-scheduler", of_scheduler)):
            health = ports.pop()
            at = [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--enable-healthz"]
            command = [str(CONTROLLERS.program(name)), *at, f"--healthz-address=127.0.0.1:{health}", *more]
            process = Process(name, command, folder / f"{name}.log", {})
            running.append(process)
            process.wait_until(lambda health=health: answers(health, "/healthz", tls=False))
        yield
    finally:
        for process in running:
            process.kill()


def why_not() -> str:
    """Return why there are no such controllers here, or ""."""
    if CONTROLLERS.missing():
        return f"{CONTROLLERS.folder()} has no {', '.join(CONTROLLERS.missing())}: `make controllers`"
    return "" if containers.isolated() else "this user may not make namespaces here; root may"


@contextmanager
def started(controller: Controller, plane: Plane, folder: Path) -> Iterator[Process]:
    """Run a controller until the end of a block."""
    plane.authority.issue(controller.name, folder=folder, stem="tls")
    webhook, health = free_ports(2)
    settings = {
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        **controller.settings,
    }
    written = folder / f"{controller.name}.yaml"
    written.write_text(yaml.safe_dump(settings))
    command = [str(CONTROLLERS.program(controller.name)), f"--config={written}", *controller.words]
    if where := controller.metrics:  # there, and only for it
        link = shlex.join(["ln", "-s", str(folder), f"{where}/certs"])
        shown = f"mount -t tmpfs none /etc && mkdir -p {where} && {link}"
        command = ["unshare", "--mount", "sh", "-c", f"{shown} && exec {shlex.join(command)}"]
    environ = {"KUBECONFIG": str(plane.folder / "components.yaml")}
    process = Process(controller.name, command, folder / f"{controller.name}.log", environ)
    made: list[str] = []
    try:
        process.wait_until(lambda: answers(health, "/readyz", tls=False))
        for path, body in _webhooks(controller, webhook, plane.authority.certificate):
            plane.api.create(path, body)
            made.append(f"{path}/{body['metadata']['name']}")
        yield process
    finally:
        for path in made:
            plane.api.delete(path)
        process.kill()


def _webhooks(controller: Controller, port: int, authority: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    bundle = base64.b64encode(authority.read_bytes()).decode()
    found = binaries.definitions(f"{controller.name}-webhooks", CONTROLLERS)
    (manifest,) = [path for path in found if path.name == "manifests.yaml"]
    labelled = {"matchExpressions": [{"key": controller.labelled, "operator": "Exists"}]}
    for document in filter(None, yaml.safe_load_all(manifest.read_text())):
        kept = []
        for webhook in document["webhooks"]:
            path = webhook["clientConfig"]["service"]["path"]
            if any(part in path for part in controller.paths):
                address = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
                asked = {"objectSelector": labelled} if controller.labelled and path.endswith("-pod") else {}
                kept.append(webhook | {"clientConfig": address} | asked)
        about = {"name": f"{controller.name}-{document['metadata']['name']}"}
        yield (
            f"/apis/admissionregistration.k8s.io/v1/{document['kind'].lower()}s",
            {**document, "metadata": about, "webhooks": kept},
        )

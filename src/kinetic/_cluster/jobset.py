"""JobSet, the controller of slices of several hosts: a pinned version, shipped with kinetic and verified by its digest.

The manifests are those of its Go module, put together by kustomize, with four changes: the released image, a smaller
request of the controller, which costs money on Autopilot, another port of its webhooks, and our label. See
docs/design/decisions, record 26.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from kinetic._backends.kube.client import CONFIG_MAP, NAMESPACE, SECRET, SERVICE, SERVICE_ACCOUNT, Kind
from kinetic._cluster.resource import KUBERNETES_MARK, Change, Found, Resource, foreign_error
from kinetic.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kinetic._backends.kube.client import Client, Object

VERSION = "0.10.1"
_FILE, _SHA256 = "jobset.json.gz", "8e6b635c93c4959e0d3210f385fffdccc14f63253fd6efde2c6b0a83b288d6a6"
_MADE = f"{VERSION}-2"  # what we make of it; another value is installed over the one before
_SYSTEM = "jobset-system"
# Where nodes are private, GKE lets the control plane connect to them at 443 and 10250 only, and not at JobSet's own
# port. Source: cloud.google.com/kubernetes-engine/docs/how-to/private-clusters, "Add firewall rules", read 2026-11.
_THEIR_PORT, _PORT = 9443, 10250
_VERSION_LABEL = "app.kubernetes.io/version"
_READY_SECONDS = 300.0  # with a node that must be made for it
_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
DEFINITION = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
DEPLOYMENT = Kind("apps", "v1", "deployments", "Deployment")
KINDS = {
    each.name: each
    for each in (
        NAMESPACE,
        DEFINITION,
        SERVICE_ACCOUNT,
        CONFIG_MAP,
        SECRET,
        SERVICE,
        DEPLOYMENT,
        Kind(_RBAC, "v1", "roles", "Role"),
        Kind(_RBAC, "v1", "rolebindings", "RoleBinding"),
        Kind(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
        Kind(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
        Kind(_ADMISSION, "v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False),
        Kind(_ADMISSION, "v1", "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False),
    )
}
_LABELS = {**KUBERNETES_MARK, _VERSION_LABEL: _MADE}


@cache
def manifests() -> tuple[Object, ...]:
    """Return the objects in the order in which they are made: the definition comes last, so it promises the rest.

    Raises:
        ClusterError: The file was changed since kinetic was released.
    """
    content = files(__package__).joinpath(_FILE).read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != _SHA256:
        raise ClusterError(
            "the manifests of JobSet are not those that kinetic was released with",
            why=f"{_FILE} has the sha256 {found}, not {_SHA256}",
            next='install kinetic again: pip install --force-reinstall "kinetic-jobs[gke]"',
            code="cluster-failed",
        )
    objects = json.loads(gzip.decompress(content))
    for each in objects:
        _move_webhooks(each)
        each["metadata"]["labels"] = {**(each["metadata"].get("labels") or {}), **_LABELS}
    return tuple(sorted(objects, key=_order))


def _move_webhooks(manifest: Object) -> None:
    """Have the webhooks answer at a port that the control plane reaches."""
    if manifest["kind"] == "ConfigMap":
        manifest["data"] = {name: f"{text}webhook:\n  port: {_PORT}\n" for name, text in manifest["data"].items()}
    elif manifest["kind"] == "Service":
        for each in manifest["spec"]["ports"]:
            each["targetPort"] = _PORT if each["targetPort"] == _THEIR_PORT else each["targetPort"]
    elif manifest["kind"] == "Deployment":
        for each in manifest["spec"]["template"]["spec"]["containers"][0]["ports"]:
            each["containerPort"] = _PORT if each["containerPort"] == _THEIR_PORT else each["containerPort"]


def _order(manifest: Object) -> int:
    kinds = ["Namespace", "ServiceAccount", "ConfigMap", "Secret", "Service"]
    last = ["Deployment", "CustomResourceDefinition"]
    kind = manifest["kind"]
    return kinds.index(kind) if kind in kinds else 50 + last.index(kind) if kind in last else 20


class JobSet(Resource):
    """JobSet. One that somebody else installed is used as it is."""

    key = "jobset"
    needs = ("cluster",)
    rights = ("container.customResourceDefinitions.create", "container.clusterRoles.create")
    seconds = (20, 120)
    dollars_per_hour = 0.003  # 50m CPU and 64 MiB on Autopilot; general knowledge, not read again
    is_local = True
    in_cluster = True

    @property
    def title(self) -> str:
        return f"JobSet {VERSION}"

    @property
    def _client(self) -> Client:
        return self.setup.client().in_namespace(_SYSTEM)

    def read(self) -> Found:
        page = self._client.get(DEFINITION, "jobsets.jobset.x-k8s.io")
        if page is None:
            return Found("missing")
        return Found("ours" if _is_ours(page) else "given", page)

    def diff(self, found: Found) -> list[Change]:
        before = str((found.page["metadata"].get("labels") or {}).get(_VERSION_LABEL, "unknown"))
        return [] if before == _MADE else [Change("version", before, _MADE)]

    def make(self, found: Found) -> None:
        if self.read().state == "given":  # when the plan was made, the cluster may not have run yet
            return
        client = self._client
        for manifest in manifests():
            kind, name = KINDS[manifest["kind"]], manifest["metadata"]["name"]
            there = client.get(kind, name)
            if there is not None and not _is_ours(there):
                why = f"the {kind.name} {name} does not have the label of kinetic"
                raise foreign_error(self, Found("foreign", there, why))
            self.apis.writes += 1
            client.apply(kind, manifest, force=there is not None)
        self._wait_until_ready(client)

    def _wait_until_ready(self, client: Client) -> None:
        waited = 0.0
        while True:
            page = client.get(DEPLOYMENT, "jobset-controller-manager") or {}
            if (page.get("status") or {}).get("availableReplicas"):
                return
            if waited >= _READY_SECONDS:
                raise ClusterError(
                    f"JobSet does not run after {_READY_SECONDS / 60:.0f} minutes",
                    why="its controller has no available pod; slices of several hosts need it",
                    next=f"kubectl get pods -n {_SYSTEM}",
                    code="cluster-timeout",
                )
            self.setup.report("waiting for the controller of JobSet")
            self.apis.sleep(3.0)
            waited += 3.0

    def change(self, found: Found, changes: Sequence[Change]) -> None:
        self.make(found)

    def remove(self, found: Found) -> None:
        """Remove it and every JobSet; the definition goes last, so that what was cut off is found again."""
        client = self._client
        for manifest in sorted(
            manifests(), key=lambda each: (each["kind"] == "CustomResourceDefinition", -_order(each))
        ):
            kind, name = KINDS[manifest["kind"]], manifest["metadata"]["name"]
            there = client.get(kind, name)
            if there is not None and _is_ours(there):
                self.apis.writes += 1
                client.delete(kind, name, uid=str(there["metadata"].get("uid", "")))


def _is_ours(page: Object) -> bool:
    labels = page["metadata"].get("labels") or {}
    return all(labels.get(name) == value for name, value in KUBERNETES_MARK.items())

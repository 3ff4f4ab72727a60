"""What others made on our network or for our cluster, and that its removal leaves behind.

A Service of type LoadBalancer leaves firewalls, forwarding rules and network endpoint groups, which keep the network
from being removed; a volume leaves a disk. They have no mark, and are removed only where they are on a network that is
ours. Disks may hold data: they are removed only together with the data of the bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kinetic._cluster.project_apis import COMPUTE, ProjectApis
from kinetic._cluster.resource import Spec
from kinetic._google.api import ApiError, Page

_AGGREGATED = {
    "forwardingRules": "forwarding rule",
    "networkEndpointGroups": "network endpoint group",
    "disks": "disk",
}
_CLUSTER_LABEL = "goog-k8s-cluster-name"


class Leftover(NamedTuple):
    """One thing that is left."""

    kind: str  # "firewall", "forwarding rule", "network endpoint group", "disk"
    name: str
    path: str  # in Compute Engine

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def find(apis: ProjectApis, spec: Spec) -> list[Leftover]:
    """Return what is on our own network, and the disks of our cluster."""
    base, network = f"compute/v1/projects/{spec.project}", f"/networks/{spec.own_name}"
    found = [
        Leftover("firewall", str(each["name"]), f"{base}/global/firewalls/{each['name']}")
        for page in _pages(apis, f"{base}/global/firewalls")
        for each in page.get("items") or ()
        if str(each.get("network", "")).endswith(network)
    ]
    for collection, kind in _AGGREGATED.items():
        scopes = [
            scope
            for page in _pages(apis, f"{base}/aggregated/{collection}")
            for scope in (page.get("items") or {}).items()
        ]
        for scope, listed in scopes:
            for each in listed.get(collection) or ():
                labels = each.get("labels") or {}
                is_ours = (
                    labels.get(_CLUSTER_LABEL) == spec.cluster
                    if collection == "disks"
                    else str(each.get("network", "")).endswith(network)
                )
                if is_ours:
                    found.append(Leftover(kind, str(each["name"]), f"{base}/{scope}/{collection}/{each['name']}"))
    return found


def _pages(apis: ProjectApis, path: str) -> Iterator[Page]:
    """Yield all pages of a list: one has at most 500 items, of a whole project."""
    query: dict[str, str] = {}
    while True:
        page = apis.read(COMPUTE, path, **query) or {}
        yield page
        if not page.get("nextPageToken"):
            return
        query["pageToken"] = str(page["nextPageToken"])


def remove(apis: ProjectApis, leftover: Leftover) -> None:
    """Remove one; one that is gone already is success."""
    try:
        apis.write_compute("DELETE", leftover.path)
    except ApiError as error:
        if error.status != 404:
            raise

"""Where a GKE cluster's API server is, as Google's container API describes it."""

from __future__ import annotations

import base64
from typing import NamedTuple
from urllib.parse import quote

from kinetic._google.http import Page, Refused, Service, denied
from kinetic.errors import BackendUnavailableError, KineticError

NAME = "container.googleapis.com"
# Only these: the whole description of a cluster has 10 kB and more.
_FIELDS = "name,location,status,statusMessage,endpoint,masterAuth/clusterCaCertificate,controlPlaneEndpointsConfig"
_NOT_YET = frozenset({"PROVISIONING", "STOPPING", "ERROR"})
_WANTED = "container.clusters.get, as in roles/container.developer (Kubernetes Engine Developer)"


class Cluster(NamedTuple):
    """A cluster, as far as a client needs to know it.

    Attributes:
        name: Its name.
        location: The zone or the region it lies in.
        project: Of Google Cloud.
        server: The address of its API server.
        authority: The certificate of who signed the server's, as PEM; empty where everybody trusts it.
    """

    name: str
    location: str
    project: str
    server: str
    authority: bytes


def read(service: Service, project: str, location: str, name: str) -> Cluster:
    """Ask where a cluster is.

    Args:
        service: The container API.
        project: Of Google Cloud.
        location: A zone or a region.
        name: Of the cluster.

    Raises:
        AccessDeniedError: We may not ask, or the API is not switched on in the project.
        BackendUnavailableError: There is no such cluster there, or it does not serve yet.
        CredentialsError: Nobody knows who we are.

    Source: the REST reference of projects.locations.clusters.get; the DNS endpoint as in
    cloud.google.com/kubernetes-engine/docs/concepts/network-isolation, read 2026-11.
    """
    page = describe(service, project, location, name, _FIELDS)
    status = str(page.get("status", ""))
    if status in _NOT_YET:
        raise BackendUnavailableError(
            f"the cluster {name} in {location} of {project} does not serve now",
            why=f"its status is {status}" + (f": {page['statusMessage']}" if page.get("statusMessage") else ""),
            next=f"gcloud container clusters describe {name} --location {location} --project {project}",
        )
    return _cluster(page, project, location, name)


def describe(service: Service, project: str, location: str, name: str, fields: str) -> Page:
    """Ask for some fields of a cluster; raises what ``read`` does.

    Args:
        service: The container API.
        project: Of Google Cloud.
        location: A zone or a region.
        name: Of the cluster.
        fields: A mask as Google writes it: "name,nodePools(name,status)".
    """
    path = f"v1/projects/{quote(project, safe='')}/locations/{quote(location, safe='')}/clusters/{quote(name, safe='')}"
    try:
        return service.get(path, fields=fields)
    except Refused as error:
        raise _refused(service, error, project, location, name) from error


def _cluster(page: Page, project: str, location: str, name: str) -> Cluster:
    """Prefer the DNS endpoint where it can be used: it is reachable without a VPN, and its certificate is public.

    The name is always there; only ``allowExternalTraffic`` says that it is answered.
    """
    dns = (page.get("controlPlaneEndpointsConfig") or {}).get("dnsEndpointConfig") or {}
    if dns.get("allowExternalTraffic") and dns.get("endpoint"):
        return Cluster(name, location, project, f"https://{dns['endpoint']}", b"")
    address = str(page.get("endpoint") or "")
    written = (page.get("masterAuth") or {}).get("clusterCaCertificate")
    if not address or not written:
        raise BackendUnavailableError(
            f"the cluster {name} in {location} of {project} has no endpoint that can be used from outside",
            why="it answers neither at an IP address nor at its DNS name",
            next=f"gcloud container clusters update {name} --location {location} --enable-dns-access",
        )
    host = f"[{address}]" if address.count(":") > 1 else address  # of IPv6; a port stays a port
    return Cluster(name, location, project, f"https://{host}", base64.b64decode(written))


def _refused(service: Service, error: Refused, project: str, location: str, name: str) -> KineticError:
    if error.status == 403:
        return denied(error, NAME, project, _WANTED)
    if error.status == 404:
        there = _there(service, project)
        return BackendUnavailableError(
            f"there is no cluster {name} in {location} of the project {project}",
            why=f"clusters there: {', '.join(there)}" if there else error.said,
            next=_set(there) if there else f"gcloud container clusters list --project {project}",
            code="cluster-missing",
        )
    return BackendUnavailableError(
        f"{NAME} does not say where the cluster {name} is", why=f"HTTP {error.status}: {error.said}", next="try again"
    )


def _there(service: Service, project: str) -> list[str]:
    """Return the clusters that a project has, as "NAME in LOCATION"; nothing when that cannot be learnt."""
    try:
        path = f"v1/projects/{quote(project, safe='')}/locations/-/clusters"
        page = service.get(path, fields="clusters(name,location)")
    except (Refused, KineticError):
        return []
    return [f"{each.get('name')} in {each.get('location')}" for each in page.get("clusters") or ()][:10]


def _set(there: list[str]) -> str:
    name, _, location = there[0].partition(" in ")
    return f"export KINETIC_CLUSTER={name} KINETIC_ZONE={location}"

"""Where a GKE cluster's API server is, as Google's container API describes it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol
from urllib.parse import quote

from kinetic._google.api import ApiError, Page, Service, access_denied_error
from kinetic.errors import BackendUnavailableError, KineticError

CONTAINER_API = "container.googleapis.com"
# Only these: the whole description of a cluster has 10 kB and more.
_ENDPOINT_FIELDS = (
    "name,location,status,statusMessage,endpoint,masterAuth/clusterCaCertificate,controlPlaneEndpointsConfig"
)
_NOT_SERVING = frozenset({"PROVISIONING", "STOPPING", "ERROR"})
_PERMISSION = "container.clusters.get, as in roles/container.developer (Kubernetes Engine Developer)"


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


def read_cluster(service: Service, project: str, location: str, name: str) -> Cluster:
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
    page = describe(service, project, location, name, _ENDPOINT_FIELDS)
    status = str(page.get("status", ""))
    if status in _NOT_SERVING:
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
    except ApiError as error:
        raise _cluster_error(service, error, project, location, name) from error


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


def _cluster_error(service: Service, error: ApiError, project: str, location: str, name: str) -> KineticError:
    if error.status == 403:
        return access_denied_error(error, CONTAINER_API, project, _PERMISSION)
    if error.status == 404:
        there = _existing_clusters(service, project)
        return BackendUnavailableError(
            f"there is no cluster {name} in {location} of the project {project}",
            why=f"clusters there: {', '.join(there)}" if there else error.said,
            next=_settings_for(there) if there else f"gcloud container clusters list --project {project}",
            code="cluster-missing",
        )
    return BackendUnavailableError(
        f"{CONTAINER_API} does not say where the cluster {name} is",
        why=f"HTTP {error.status}: {error.said}",
        next="try again",
    )


def _existing_clusters(service: Service, project: str) -> list[str]:
    """Return the clusters that a project has, as "NAME in LOCATION"; nothing when that cannot be learnt."""
    try:
        path = f"v1/projects/{quote(project, safe='')}/locations/-/clusters"
        page = service.get(path, fields="clusters(name,location)")
    except (ApiError, KineticError):
        return []
    return [f"{each.get('name')} in {each.get('location')}" for each in page.get("clusters") or ()][:10]


def _settings_for(there: list[str]) -> str:
    name, _, location = there[0].partition(" in ")
    return f"export KINETIC_CLUSTER={name} KINETIC_ZONE={location}"


_GPU_LABEL = "cloud.google.com/gke-accelerator"
_TPU_LABEL = "cloud.google.com/gke-tpu-accelerator"


class Hardware(Protocol):
    """What is wanted: as much of ``_hardware.Placement``."""

    @property
    def name(self) -> str:
        """Its canonical spelling."""

    @property
    def kind(self) -> str:
        """Whether it is a "cpu", a "gpu" or a "tpu"."""

    @property
    def chips(self) -> int:
        """GPUs or TPU chips of all hosts together (count)."""

    @property
    def hosts(self) -> int:
        """Machines (count)."""

    @property
    def chips_per_host(self) -> int:
        """Chips of each machine (count)."""

    @property
    def topology(self) -> str | None:
        """TPU chips per axis."""

    @property
    def machine_type(self) -> str | None:
        """Compute Engine's machine type."""

    @property
    def node_selector(self) -> dict[str, str]:
        """Labels that a node must carry."""

    @property
    def tolerations(self) -> Sequence[Mapping[str, str]]:
        """Taints that its pods tolerate."""

    @property
    def spot(self) -> bool:
        """Whether it may be taken away."""


def is_tolerated(taint: tuple[str, str, str], tolerations: Sequence[Mapping[str, str]]) -> bool:
    """Say whether pods with some tolerations may go to where a taint (key, value, effect) is."""
    key, value, effect = taint
    for each in tolerations:
        if each.get("key", key) != key or each.get("effect", effect) != effect:
            continue
        if each.get("operator") == "Exists" or each.get("value", "") == value:
            return True
    return False


def accelerator_label(wanted: Hardware) -> str:
    """Return Google's word for the accelerator, which labels, limits and commands share; "" for a CPU."""
    return wanted.node_selector.get(_GPU_LABEL) or wanted.node_selector.get(_TPU_LABEL) or ""


POOL_FIELDS = (
    "locations,autopilot/enabled,autoscaling(enableNodeAutoprovisioning,resourceLimits),"
    "nodePools(name,status,initialNodeCount,locations,autoscaling,placementPolicy,"
    "config/machineType,config/accelerators,config/spot,config/taints)"
)
_REMOVED_STATUSES = frozenset({"STOPPING", "ERROR"})
_EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute"}
_LONGEST_NAME = 40  # characters of a node pool's name
_SHOWN = 8  # pools in a message


class NodePool(NamedTuple):
    """One node pool.

    Attributes:
        name: Its name.
        machine_type: Of Compute Engine.
        gpus: Kind and count of the GPUs of each machine.
        topology: Of the TPU slice that the pool is; "" for machines that stand alone.
        policy: A placement policy, which may hold the topology instead; or "".
        spot: Whether its machines may be taken away.
        taints: Key, value and effect, with Kubernetes' word for it; those that keep pods away.
        most: Machines that the autoscaler goes up to (count); None for a pool of a fixed size.
    """

    name: str
    machine_type: str
    gpus: tuple[tuple[str, int], ...] = ()
    topology: str = ""
    policy: str = ""
    spot: bool = False
    taints: tuple[tuple[str, str, str], ...] = ()
    most: int | None = None

    def __str__(self) -> str:
        """Write it for a message."""
        has = [f"{count} {kind}" for kind, count in self.gpus] + ([self.topology] if self.topology else [])
        return f"{self.name} ({', '.join([self.machine_type, *has, *(['spot'] if self.spot else [])])})"


class Capacity(NamedTuple):
    """Whether hardware can be had.

    Attributes:
        word: "exists": such machines are kept; "can-grow": an autoscaler may make them; "impossible".
        why: A sentence without a full stop.
        next: The command that makes room: for "impossible" a pool, for "exists" machines, should none be up.
    """

    word: Literal["exists", "can-grow", "impossible"]
    why: str
    next: str = ""


class NodePools(NamedTuple):
    """What a cluster has, and what it may make.

    Attributes:
        project: Of Google Cloud.
        location: The zone or the region of the cluster.
        cluster: Its name.
        zones: Where its machines are.
        autopilot: Whether Google makes machines for whatever pods ask for.
        limits: What node auto-provisioning may make of each resource (count); None where it is switched off.
        pools: Its node pools.
    """

    project: str
    location: str
    cluster: str
    zones: tuple[str, ...]
    autopilot: bool
    limits: Mapping[str, int] | None
    pools: tuple[NodePool, ...]

    def capacity_for(self, wanted: Hardware) -> Capacity:
        """Say whether the cluster has, or can get, the machines for some hardware."""
        if self.autopilot:
            return Capacity("can-grow", f"{self.cluster} is an Autopilot cluster, which makes machines for its pods")
        fitting = [pool for pool in self.pools if _fits(pool, wanted)]
        for pool in fitting:
            if pool.most is not None and pool.most >= wanted.hosts:
                return Capacity("can-grow", f"the node pool {pool.name} grows to {pool.most} of such machines")
        most = self._provisioned(wanted)
        if most is not None and most >= wanted.chips:
            what = f"up to {most} {accelerator_label(wanted)}" if accelerator_label(wanted) else "machines"
            return Capacity("can-grow", f"node auto-provisioning may make {what}")
        for pool in fitting:
            if pool.most is None:
                return self._fixed(pool, wanted)
        if fitting:
            return self._too_small(fitting[0], wanted)
        return Capacity("impossible", self._why_not(accelerator_label(wanted), most), self._create(wanted))

    def _provisioned(self, wanted: Hardware) -> int | None:
        """Return how many chips auto-provisioning may make, or None where it is switched off."""
        return None if self.limits is None else self.limits.get(accelerator_label(wanted), 0)

    def _why_not(self, named: str, most: int | None) -> str:
        shown = ", ".join(map(str, self.pools[:_SHOWN])) + (", …" if len(self.pools) > _SHOWN else "")
        if most is None:
            return f"node pools there: {shown or 'none'}; node auto-provisioning is off"
        limit = f"may make {most} {named}" if most else f"has no limit for {named}, so it makes none"
        return f"node pools there: {shown or 'none'}; node auto-provisioning {limit}"

    def _fixed(self, pool: NodePool, wanted: Hardware) -> Capacity:
        where = f"--location {self.location} --project {self.project}"
        resize = f"gcloud container clusters resize {self.cluster} --node-pool {pool.name} --num-nodes {wanted.hosts}"
        why = f"the node pool {pool.name} has such machines, and does not grow by itself"
        return Capacity("exists", why, f"{resize} {where}")

    def _too_small(self, pool: NodePool, wanted: Hardware) -> Capacity:
        why = f"the node pool {pool.name} has such machines, but its autoscaler stops at {pool.most} of {wanted.hosts}"
        grow = f"--enable-autoscaling --min-nodes 0 --max-nodes {wanted.hosts}"
        return Capacity("impossible", why, f"gcloud container node-pools update {pool.name} {self._where()} {grow}")

    def _create(self, wanted: Hardware) -> str:
        """Write the command that makes a pool for some hardware: empty, and growing to just that."""
        name = _pool_name(wanted)
        words = [f"gcloud container node-pools create {name}", self._where()]
        if self.location not in self.zones and self.zones:
            words.append(f"--node-locations {self.zones[0]}")
        words.append(f"--machine-type {wanted.machine_type}")
        before = ""
        if wanted.kind == "gpu":
            words.append(
                f"--accelerator type={accelerator_label(wanted)},count={wanted.chips_per_host},"
                "gpu-driver-version=default"
            )
        elif wanted.hosts > 1 and _needs_workload_policy(wanted.machine_type):
            before = self._policy(name, wanted)
            words.append(f"--placement-policy {name}")
        elif wanted.hosts > 1:
            words.append(f"--tpu-topology {wanted.topology}")
        words += ["--spot"] if wanted.spot else []
        words.append(f"--num-nodes 0 --enable-autoscaling --min-nodes 0 --max-nodes {wanted.hosts}")
        return before + " ".join(words)

    def _policy(self, name: str, wanted: Hardware) -> str:
        """Write the command for the policy that the newest TPUs need in place of a topology of the pool."""
        region = re.sub(r"-[a-z]$", "", self.location)
        shape = f"--type HIGH_THROUGHPUT --accelerator-topology {wanted.topology}"
        where = f"--region {region} --project {self.project}"
        return f"gcloud compute resource-policies create workload-policy {name} {shape} {where} && "

    def _where(self) -> str:
        return f"--cluster {self.cluster} --location {self.location} --project {self.project}"


def read_pools(service: Service, project: str, location: str, name: str) -> NodePools:
    """Ask for the node pools of a cluster, with one request.

    Raises:
        AccessDeniedError: We may not ask, or the API is not switched on in the project.
        BackendUnavailableError: There is no such cluster there, or no answer came.
        CredentialsError: Nobody knows who we are.

    Source: the REST reference of projects.locations.clusters, held against its discovery document in tests.
    """
    return pools_from_json(describe(service, project, location, name, POOL_FIELDS), project, location, name)


def pools_from_json(page: Page, project: str, location: str, name: str) -> NodePools:
    """Read what Google says of a cluster."""
    autoscaling = page.get("autoscaling") or {}
    zones = tuple(page.get("locations") or ())
    on = bool(autoscaling.get("enableNodeAutoprovisioning"))
    # 64-bit numbers are strings in Google's JSON, and what is 0 or false is left out.
    limits = {
        str(each.get("resourceType")): int(each.get("maximum") or 0) for each in autoscaling.get("resourceLimits") or ()
    }
    return NodePools(
        project=project,
        location=location,
        cluster=name,
        zones=zones,
        autopilot=bool((page.get("autopilot") or {}).get("enabled")),
        limits=limits if on else None,
        pools=tuple(
            _pool(each, zones) for each in page.get("nodePools") or () if each.get("status") not in _REMOVED_STATUSES
        ),
    )


def _pool(page: Page, zones: tuple[str, ...]) -> NodePool:
    config, policy = page.get("config") or {}, page.get("placementPolicy") or {}
    return NodePool(
        name=str(page.get("name")),
        machine_type=str(config.get("machineType") or ""),
        gpus=tuple(
            (str(each.get("acceleratorType")), int(each.get("acceleratorCount") or 0))
            for each in config.get("accelerators") or ()
        ),
        topology=str(policy.get("tpuTopology") or ""),
        policy=str(policy.get("policyName") or ""),
        spot=bool(config.get("spot")),
        taints=tuple(
            (str(each.get("key")), str(each.get("value") or ""), _EFFECTS[each["effect"]])
            for each in config.get("taints") or ()
            if each.get("effect") in _EFFECTS
        ),
        most=_max_nodes(page.get("autoscaling") or {}, len(page.get("locations") or zones) or 1),
    )


def _max_nodes(autoscaling: Page, zones: int) -> int | None:
    """Return how many machines a pool may grow to: its limit is for the whole pool, or for each zone."""
    if not autoscaling.get("enabled"):
        return None
    return int(autoscaling.get("totalMaxNodeCount") or int(autoscaling.get("maxNodeCount") or 0) * zones)


def _fits(pool: NodePool, wanted: Hardware) -> bool:
    """Say whether pods that ask for some hardware would be put on a pool's machines."""
    if wanted.spot and not pool.spot:
        return False
    if not all(is_tolerated(taint, wanted.tolerations) for taint in pool.taints):
        return False
    if wanted.kind == "gpu":
        return _has_gpus(pool, wanted)
    if wanted.kind == "tpu":
        return pool.machine_type == wanted.machine_type and _is_shaped(pool, wanted)
    return True


def _has_gpus(pool: NodePool, wanted: Hardware) -> bool:
    if pool.gpus:
        return (accelerator_label(wanted), wanted.chips_per_host) in pool.gpus
    # Machines that come with GPUs may be described without them; N1 machines have none of their own.
    return pool.machine_type == wanted.machine_type and not pool.machine_type.startswith("n1-")


def _is_shaped(pool: NodePool, wanted: Hardware) -> bool:
    if wanted.hosts == 1:
        return pool.topology in {"", wanted.topology}
    return pool.topology == wanted.topology or bool(pool.policy and not pool.topology)


def _needs_workload_policy(machine_type: str | None) -> bool:
    return str(machine_type).startswith("tpu7")


def _pool_name(wanted: Hardware) -> str:
    words = re.sub(r"[^a-z0-9]+", "-", wanted.name.lower()).strip("-")
    return f"kinetic-{words}{'-spot' if wanted.spot else ''}"[:_LONGEST_NAME].rstrip("-")

"""What Google's container API says of a GKE cluster: where its API server is, and which hardware it can have.

A job's hardware is checked in this order:

    a pool with such nodes that grows far enough                             can grow
    Autopilot, unless it is one of few old GPUs                              can grow
    auto-provisioning whose limits name enough of them                       can grow
    a pool with such nodes, of a fixed size                                  exists
    anything else                                                            impossible
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol
from urllib.parse import quote

from kinetic._google.api import ApiError, Page, Service
from kinetic._google.locations import region_of
from kinetic._wire import NamedTuple
from kinetic.errors import AccessDeniedError, BackendUnavailableError, KineticError

CONTAINER_API = "container.googleapis.com"
# Only these: the whole description of a cluster has 10 kB and more.
_ENDPOINT_FIELDS = (
    "name,location,status,statusMessage,endpoint,masterAuth/clusterCaCertificate,controlPlaneEndpointsConfig"
)
_POOL_FIELDS = (
    "locations,autopilot/enabled,autoscaling(enableNodeAutoprovisioning,resourceLimits),"
    "nodePools(name,status,initialNodeCount,locations,autoscaling,placementPolicy,"
    "config/machineType,config/accelerators,config/spot,config/taints)"
)
_NOT_SERVING = frozenset({"PROVISIONING", "STOPPING", "ERROR"})
_PERMISSION = "container.clusters.get, as in roles/container.developer (Kubernetes Engine Developer)"
_USE_PERMISSION = "serviceusage.services.use, as in roles/serviceusage.serviceUsageConsumer"


class Cluster(NamedTuple):
    """A cluster and where its API server is."""

    name: str
    location: str  # a zone or a region
    project: str
    server: str
    authority: bytes  # the certificate of who signed the server's, as PEM; empty for a public one


def read_cluster(service: Service, project: str, location: str, name: str) -> Cluster:
    """Ask where a cluster is.

    Raises:
        AccessDeniedError: We may not ask, or the API is not enabled in the project.
        BackendUnavailableError: There is no such cluster, or it is not running.
        CredentialsError: Our credentials are rejected.

    Source: the REST reference of projects.locations.clusters.get; the DNS endpoint as in
    cloud.google.com/kubernetes-engine/docs/concepts/network-isolation, read 2026-11.
    """
    page = _describe(service, project, location, name, _ENDPOINT_FIELDS)
    status = str(page.get("status", ""))
    if status in _NOT_SERVING:
        raise BackendUnavailableError(
            f"the cluster {name} in {location} of {project} is not running",
            why=f"its status is {status}" + (f": {page['statusMessage']}" if page.get("statusMessage") else ""),
            next=f"gcloud container clusters describe {name} --location {location} --project {project}",
        )
    # The DNS endpoint first: it is reachable without a VPN, and its certificate is public. Its name is always there;
    # only allowExternalTraffic says that it is answered.
    dns = (page.get("controlPlaneEndpointsConfig") or {}).get("dnsEndpointConfig") or {}
    if dns.get("allowExternalTraffic") and dns.get("endpoint"):
        return Cluster(name, location, project, f"https://{dns['endpoint']}", b"")
    address = str(page.get("endpoint") or "")
    authority = (page.get("masterAuth") or {}).get("clusterCaCertificate")
    if not address or not authority:
        raise BackendUnavailableError(
            f"the cluster {name} in {location} of {project} has no endpoint that is reachable from outside",
            why="it has no IP endpoint, and its DNS endpoint does not accept external traffic",
            next=f"gcloud container clusters update {name} --location {location} --enable-dns-access",
        )
    host = f"[{address}]" if address.count(":") > 1 else address  # of IPv6; a port stays a port
    return Cluster(name, location, project, f"https://{host}", base64.b64decode(authority))


def _describe(service: Service, project: str, location: str, name: str, fields: str) -> Page:
    """Ask for some fields of a cluster, by a mask as Google writes it."""
    try:
        return service.get(f"{_clusters_path(project, location)}/{quote(name, safe='')}", fields=fields)
    except ApiError as error:
        raise _cluster_error(service, error, project, location, name) from error


def _clusters_path(project: str, location: str) -> str:
    return f"v1/projects/{quote(project, safe='')}/locations/{quote(location, safe='')}/clusters"


def _cluster_error(service: Service, error: ApiError, project: str, location: str, name: str) -> KineticError:
    if error.status == 403:
        is_disabled = error.reason == "SERVICE_DISABLED" or "has not been used in project" in error.message
        step = f"ask an administrator of the project for {_PERMISSION}"
        if error.reason == "USER_PROJECT_DENIED":
            step = f"ask an administrator of the project for {_USE_PERMISSION}"
        elif is_disabled:
            step = f"gcloud services enable {CONTAINER_API} --project {project}"
        return AccessDeniedError(
            f"{CONTAINER_API} {'is not enabled in' if is_disabled else 'denied access to'} the project {project}",
            why=error.message,
            next=step,
        )
    if error.status != 404:
        return BackendUnavailableError(
            f"{CONTAINER_API} did not describe the cluster {name}",
            why=f"HTTP {error.status}: {error.message}",
            next="try again",
        )
    return missing_error(service, error, project, location, name)


def missing_error(service: Service, error: ApiError, project: str, location: str, name: str) -> BackendUnavailableError:
    """Return the error that there is no such cluster, with those that there are."""
    try:
        page = service.get(_clusters_path(project, "-"), fields="clusters(name,location)")
    except (ApiError, KineticError):
        page = {}
    existing = [(str(each.get("name")), str(each.get("location"))) for each in page.get("clusters") or ()]
    what = f"there is no cluster {name} in {location} of the project {project}"
    if not existing:
        next_ = f"gcloud container clusters list --project {project}"
        return BackendUnavailableError(what, why=error.message, next=next_, code="cluster-missing")
    return BackendUnavailableError(
        what,
        why=f"its clusters: {', '.join(f'{other} in {place}' for other, place in existing[:10])}",
        next="export KINETIC_CLUSTER={} KINETIC_ZONE={}".format(*existing[0]),
        code="cluster-missing",
    )


# ---------------------------------------------------------------------------------------------------------- node pools

_GPU_LABEL = "cloud.google.com/gke-accelerator"
_TPU_LABEL = "cloud.google.com/gke-tpu-accelerator"
# Source: cloud.google.com/kubernetes-engine/docs/how-to/autopilot-gpus, read 2026-11.
NOT_ON_AUTOPILOT = frozenset({"nvidia-tesla-p4", "nvidia-tesla-p100", "nvidia-tesla-v100"})
_REMOVED_STATUSES = frozenset({"STOPPING", "ERROR"})
_EFFECTS = {"NO_SCHEDULE": "NoSchedule", "NO_EXECUTE": "NoExecute"}
_LONGEST_NAME = 40  # characters of a node pool's name
_SHOWN = 8  # pools in a message


class Hardware(Protocol):
    """What is wanted: the part of ``_hardware.Placement`` that matters here, which describes it."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def chips(self) -> int: ...
    @property
    def hosts(self) -> int: ...
    @property
    def chips_per_host(self) -> int: ...
    @property
    def topology(self) -> str | None: ...
    @property
    def machine_type(self) -> str | None: ...
    @property
    def node_selector(self) -> dict[str, str]: ...
    @property
    def tolerations(self) -> Sequence[Mapping[str, str]]: ...
    @property
    def spot(self) -> bool: ...


def is_tolerated(taint: tuple[str, str, str], tolerations: Sequence[Mapping[str, str]]) -> bool:
    """Return whether pods with some tolerations may go to a node with a taint (key, value, effect)."""
    key, value, effect = taint
    return any(
        each.get("key", key) == key
        and each.get("effect", effect) == effect
        and (each.get("operator") == "Exists" or each.get("value", "") == value)
        for each in tolerations
    )


def accelerator_label(wanted: Hardware) -> str:
    """Return Google's name of the accelerator, which labels, limits and commands share; "" for a CPU."""
    return wanted.node_selector.get(_GPU_LABEL) or wanted.node_selector.get(_TPU_LABEL) or ""


def standard_command(wanted: Hardware) -> str:
    """Return the command that makes a Standard cluster for some hardware."""
    return f"kinetic up --standard --cluster another-name --accelerator {wanted.name}"


class NodePool(NamedTuple):
    """One node pool."""

    name: str
    machine_type: str
    gpus: tuple[tuple[str, int], ...] = ()  # kind and count of the GPUs of each node
    topology: str = ""  # of the TPU slice that the pool is; "" for nodes that are not a slice
    policy: str = ""  # a placement policy, which may hold the topology instead
    spot: bool = False
    taints: tuple[tuple[str, str, str], ...] = ()  # key, value and effect in Kubernetes' spelling
    max_nodes: int | None = None  # of the autoscaler; None for a pool of a fixed size

    def __str__(self) -> str:
        """Write it for a message."""
        has = [f"{count} {kind}" for kind, count in self.gpus] + ([self.topology] if self.topology else [])
        return f"{self.name} ({', '.join([self.machine_type, *has, *(['spot'] if self.spot else [])])})"

    def fits(self, wanted: Hardware) -> bool:
        """Return whether the scheduler puts pods that ask for some hardware on the pool's nodes."""
        if wanted.spot and not self.spot:
            return False
        if not all(is_tolerated(taint, wanted.tolerations) for taint in self.taints):
            return False
        same_machine = self.machine_type == wanted.machine_type
        if wanted.kind == "gpu":
            if self.gpus:
                return (accelerator_label(wanted), wanted.chips_per_host) in self.gpus
            # Machines that come with GPUs may be described without them; N1 machines have none of their own.
            return same_machine and not self.machine_type.startswith("n1-")
        if wanted.kind == "tpu":
            if wanted.hosts == 1:
                return same_machine and self.topology in {"", wanted.topology}
            return same_machine and (self.topology == wanted.topology or bool(self.policy and not self.topology))
        return True


class Capacity(NamedTuple):
    """Whether a cluster can have some hardware."""

    # "exists": a pool of a fixed size has such nodes; "can-grow": an autoscaler may add them; "impossible"
    kind: Literal["exists", "can-grow", "impossible"]
    why: str  # a sentence without a full stop
    next: str = ""  # the command that adds a pool for "impossible", or nodes for "exists", should none be up


class NodePools(NamedTuple):
    """The nodes that a cluster has, and those that it may add."""

    project: str
    location: str  # the zone or the region of the cluster
    cluster: str
    zones: tuple[str, ...]  # where its nodes are
    autopilot: bool
    limits: Mapping[str, int] | None  # what node auto-provisioning may add of each resource; None where it is off
    pools: tuple[NodePool, ...]

    def capacity_for(self, wanted: Hardware, slices: int = 1) -> Capacity:
        """Return whether the cluster has, or can add, the nodes for some hardware.

        Of several slices, ``wanted`` is one: a slice of several hosts is a pool of its own, others may share one.
        """
        if self.autopilot and accelerator_label(wanted) in NOT_ON_AUTOPILOT:
            why = f"{self.cluster} is an Autopilot cluster, and those have no {accelerator_label(wanted)}"
            return Capacity("impossible", why, standard_command(wanted))
        if self.autopilot:
            return Capacity("can-grow", f"{self.cluster} is an Autopilot cluster, which adds nodes for its pods")
        is_alone = slices > 1 and wanted.hosts > 1
        nodes = wanted.hosts if is_alone else wanted.hosts * slices  # that one pool should have
        fitting = [pool for pool in self.pools if pool.fits(wanted)]
        fixed = [pool for pool in fitting if pool.max_nodes is None]
        able = [pool for pool in fitting if pool.max_nodes is not None and pool.max_nodes >= wanted.hosts]
        room = sum((pool.max_nodes or 0) // wanted.hosts for pool in able)  # for slices
        if able and room >= slices:
            shown = able[:1] if slices == 1 else able
            grow = ", ".join(f"{pool.name} can grow to {pool.max_nodes} such nodes" for pool in shown)
            return Capacity("can-grow", f"the node pool {grow}")
        label = accelerator_label(wanted)
        limit = None if self.limits is None else self.limits.get(label, 0)
        if limit is not None and limit >= wanted.chips * slices:
            return Capacity(
                "can-grow", f"node auto-provisioning may add {f'up to {limit} {label}' if label else 'nodes'}"
            )
        if fixed and (not is_alone or room + len(fixed) >= slices):
            resize = f"gcloud container clusters resize {self.cluster} --node-pool {fixed[0].name}"
            where = f"--location {self.location} --project {self.project}"
            why = f"the node pool {fixed[0].name} has such nodes, and a fixed size"
            return Capacity("exists", why, f"{resize} --num-nodes {nodes} {where}")
        add = f"kinetic pool add {wanted.name}{' --spot' if wanted.spot else ''} --slices {slices}"
        if fitting and is_alone:
            names = ", ".join(pool.name for pool in fitting)
            why = f"each slice is a node pool of its own, and there are not {slices}: {names}"
            return Capacity("impossible", why, add)
        if fitting:
            name, most = fitting[0].name, fitting[0].max_nodes
            why = f"the node pool {name} has such nodes, but its limit is {most} and the job needs {nodes}"
            update = f"gcloud container node-pools update {name} {self._flags} --enable-autoscaling --min-nodes 0"
            return Capacity("impossible", why, f"{update} --max-nodes {nodes}")
        shown_pools = ", ".join(map(str, self.pools[:_SHOWN])) + (", …" if len(self.pools) > _SHOWN else "")
        provisioning = (
            "is off" if limit is None else f"may add {limit} {label}" if limit else f"has no limit for {label}"
        )
        why = f"node pools: {shown_pools or 'none'}; node auto-provisioning {provisioning}"
        return Capacity("impossible", why, add if is_alone else self._create_command(wanted, nodes))

    @property
    def _flags(self) -> str:
        return f"--cluster {self.cluster} --location {self.location} --project {self.project}"

    def _create_command(self, wanted: Hardware, nodes: int) -> str:
        """Write the command that adds a pool for some hardware: empty, and growing to just that."""
        words = re.sub(r"[^a-z0-9]+", "-", wanted.name.lower()).strip("-")
        name = f"kinetic-{words}{'-spot' if wanted.spot else ''}"[:_LONGEST_NAME].rstrip("-")
        command, policy = [f"gcloud container node-pools create {name}", self._flags], ""
        if self.location not in self.zones and self.zones:
            command.append(f"--node-locations {self.zones[0]}")
        command.append(f"--machine-type {wanted.machine_type}")
        if wanted.kind == "gpu":
            gpus = f"type={accelerator_label(wanted)},count={wanted.chips_per_host},gpu-driver-version=default"
            command.append(f"--accelerator {gpus}")
        elif wanted.hosts > 1 and str(wanted.machine_type).startswith("tpu7"):
            # The newest TPUs need a policy in place of a topology of the pool.
            region = region_of(self.location)
            policy = (
                f"gcloud compute resource-policies create workload-policy {name} --type HIGH_THROUGHPUT "
                f"--accelerator-topology {wanted.topology} --region {region} --project {self.project} && "
            )
            command.append(f"--placement-policy {name}")
        elif wanted.hosts > 1:
            command.append(f"--tpu-topology {wanted.topology}")
        command += ["--spot"] if wanted.spot else []
        command.append(f"--num-nodes 0 --enable-autoscaling --min-nodes 0 --max-nodes {nodes}")
        return policy + " ".join(command)


def read_pools(service: Service, project: str, location: str, name: str) -> NodePools:
    """Ask for the node pools of a cluster, with one request; raises what ``read_cluster`` does.

    Source: the REST reference of projects.locations.clusters, held against its discovery document in tests.
    """
    return pools_from_json(_describe(service, project, location, name, _POOL_FIELDS), project, location, name)


def pools_from_json(page: Page, project: str, location: str, name: str) -> NodePools:
    """Read Google's description of a cluster; 64-bit numbers are strings in it, and what is 0 or false is left out."""
    autoscaling = page.get("autoscaling") or {}
    zones = tuple(page.get("locations") or ())
    limits = {
        str(each.get("resourceType")): int(each.get("maximum") or 0) for each in autoscaling.get("resourceLimits") or ()
    }
    return NodePools(
        project=project,
        location=location,
        cluster=name,
        zones=zones,
        autopilot=bool((page.get("autopilot") or {}).get("enabled")),
        limits=limits if autoscaling.get("enableNodeAutoprovisioning") else None,
        pools=tuple(
            _pool(each, len(zones))
            for each in page.get("nodePools") or ()
            if each.get("status") not in _REMOVED_STATUSES
        ),
    )


def _pool(page: Page, zones: int) -> NodePool:
    config, policy = page.get("config") or {}, page.get("placementPolicy") or {}
    autoscaling, most = page.get("autoscaling") or {}, None
    if autoscaling.get("enabled"):  # the limit is for the whole pool, or for each zone
        in_zones = int(autoscaling.get("maxNodeCount") or 0) * (len(page.get("locations") or ()) or zones or 1)
        most = int(autoscaling.get("totalMaxNodeCount") or in_zones)
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
        max_nodes=most,
    )

"""The cluster itself: regional Autopilot, or a zonal Standard one with a small node for the system; and its pools."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

from kinetic._cluster.network import choose_subnet
from kinetic._cluster.project_apis import COMPUTE, CONTAINER, check_operation, ignoring, is_disabled
from kinetic._cluster.resource import Found, Resource, Setup
from kinetic._google.api import ApiError, Page
from kinetic._google.clusters import accelerator_label
from kinetic._hardware import Placement
from kinetic.errors import ClusterError

CONTAINER_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
SCOPES = [CONTAINER_SCOPE]
CONTROL_PLANE_DOLLARS = 0.10  # per hour; cloud.google.com/kubernetes-engine/pricing, 2026-11
FREE_DOLLARS_A_MONTH = 74.40  # for one zonal or Autopilot cluster of a billing account; the same page
SYSTEM_DOLLARS = 0.067  # e2-standard-2 per hour, us-central1; general knowledge, not read again
SYSTEM_MACHINES = ("e2-standard-2", "n2-standard-2", "n2d-standard-2", "n1-standard-2", "c3-standard-4")
_RUNNING = frozenset({"RUNNING", "RECONCILING", "DEGRADED"})
LONGEST_POOL = 40  # characters of a pool's name
# Families whose machines take no other boot disk: cloud.google.com/compute/docs/disks/hyperdisks, 2026-11.
_BOOT_DISKS = dict.fromkeys(("v6e", "tpu7x", "h200", "b200", "gb200", "gb300", "rtx-pro-6000"), "hyperdisk-balanced")


def operation_status(page: Page) -> str:
    """Return how far an operation on a cluster is, for the line that counts its seconds."""
    counts = []
    for each in (page.get("progress") or {}).get("metrics") or ():
        name, value = str(each.get("name", "")), each.get("intValue")
        if name.startswith("CLUSTER_") and not name.endswith("_TOTAL") and value is not None:
            counts.append(f"{name.removeprefix('CLUSTER_').lower()} {value}")
    return ", ".join(counts) or str(page.get("status", "")).lower()


class _ContainerResource(Resource):
    """What operations of a cluster make and remove: one at a time, and none can be cancelled."""

    @property
    def location_path(self) -> str:
        return f"v1/projects/{self.spec.project}/locations/{self.setup.location}"

    @property
    def cluster_path(self) -> str:
        return f"{self.location_path}/clusters/{self.spec.cluster}"

    def follow(self, operation: Page, doing: str) -> None:
        """Wait for an operation. Its end says little: what it was for must be read afterwards."""
        path = f"{self.location_path}/operations/{operation['name']}"
        report = self.setup.report
        done = self.apis.follow(
            CONTAINER,
            path,
            lambda page: page.get("status") == "DONE",
            lambda page: report(f"{doing}: {operation_status(page)}"),
        )
        check_operation(done or {})

    def join(self, kind: str, target: str) -> bool:
        """Wait for a running operation of another request; return whether there was one."""
        page = self.apis.read(CONTAINER, f"{self.location_path}/operations") or {}
        for each in page.get("operations") or ():
            is_same = each.get("operationType") == kind and str(each.get("targetLink", "")).endswith(target)
            if is_same and each.get("status") != "DONE":
                self.follow(each, self.title)
                return True
        return False


class Cluster(_ContainerResource):
    """The cluster: without nodes on Autopilot, with one small node for the system on Standard."""

    key = "cluster"
    rights = (
        "container.clusters.create",
        "container.clusters.get",
        "container.clusters.connect",
        "container.operations.get",
    )
    dollars_per_hour = CONTROL_PLANE_DOLLARS

    def __init__(self, setup: Setup, needs: tuple[str, ...]) -> None:
        super().__init__(setup)
        self.needs = needs
        self.system_machine = SYSTEM_MACHINES[0]
        self.seconds = (240, 420) if self.spec.standard else (300, 600)

    @property
    def title(self) -> str:
        return f"cluster {self.spec.cluster}" + (f" in {self.setup.location}" if self.setup.location else "")

    def read(self) -> Found:
        """Look in every location, and remember the one that has it: a second `up` need not name it."""
        try:
            page = self.apis.call(CONTAINER, "GET", f"v1/projects/{self.spec.project}/locations/-/clusters")
        except ApiError as error:
            if is_disabled(error) and CONTAINER not in self.apis.enabled:
                return Found("missing")
            raise
        found = [each for each in page.get("clusters") or () if each.get("name") == self.spec.cluster]
        ours = [each for each in found if self.marked(each, self.spec.labels, "resourceLabels").state == "ours"]
        for each in (ours or found)[:1]:
            self.setup.location = str(each["location"])
            return self._state(each)
        if lost := page.get("missingZones"):
            raise ClusterError(
                f"Google does not show all clusters, so {self.spec.cluster} may exist",
                why=f"these zones do not answer: {', '.join(lost)}",
                next="run the same command again in some minutes",
                code="google-refused",
            )
        return Found("missing")

    def _state(self, page: Page) -> Found:
        found = self.marked(page, self.spec.labels, "resourceLabels")
        if found.state != "ours":
            return found._replace(why="it does not have our labels: it was not made by kinetic up")
        status = str(page.get("status"))
        if status in _RUNNING:
            return found
        if status == "ERROR":
            return Found("failed", page, conditions_text(page))
        return Found("pending", page, status)

    def make(self, found: Found) -> None:
        if found.state == "failed":
            self.remove(found)
        elif found.state == "pending":
            if found.page.get("status") != "STOPPING":
                self._wait_until_running()
                return
            self.join("DELETE_CLUSTER", f"/clusters/{self.spec.cluster}")
        path = f"{self.location_path}/clusters"
        if self.spec.standard:
            self.system_machine = self._sold_machine()
        try:
            operation = self.apis.retry_unseen(
                lambda: self.apis.call(CONTAINER, "POST", path, {"cluster": self.body()})
            )
        except ApiError as error:
            if error.status != 409:
                raise
        else:
            self._follow_creation(operation)
        self._wait_until_running()

    def _follow_creation(self, operation: Page) -> None:
        try:
            self.follow(operation, self.title)
        except ApiError as error:
            now = self.read()
            if now.state == "failed":
                raise ApiError(error.status, error.reason, f"{error.message} {now.why}".strip()) from error
            if now.state not in {"ours", "pending"}:
                raise

    def _wait_until_running(self) -> None:
        self.join("CREATE_CLUSTER", f"/clusters/{self.spec.cluster}")
        while True:
            found = self.read()
            if found.state == "ours":
                return
            if found.state != "pending":
                raise ClusterError(
                    f"the cluster {self.spec.cluster} was not made",
                    why=found.why or "it is gone",
                    next="kinetic up removes what is left of it and makes it again",
                    code="cluster-failed",
                )
            self.setup.report(f"{self.title}: {str(found.page.get('status', '')).lower()}")
            self.apis.check_time(self.title)
            self.apis.sleep(5.0)

    def body(self) -> Page:
        """Return the cluster as Google is asked for it."""
        spec, setup = self.spec, self.setup
        network = spec.network or f"projects/{spec.project}/global/networks/{spec.own_name}"
        body: Page = {
            "name": spec.cluster,
            "description": spec.description,
            "releaseChannel": {"channel": "REGULAR"},
            "resourceLabels": spec.labels,
            "network": network,
            "ipAllocationPolicy": {"useIpAliases": True},
            "networkConfig": {"defaultEnablePrivateNodes": not spec.public_nodes},
            # Reachable from everywhere, with Google's own login and certificate in front of it; no IP endpoint.
            "controlPlaneEndpointsConfig": {
                "dnsEndpointConfig": {"allowExternalTraffic": True},
                "ipEndpointsConfig": {"enabled": True, "enablePublicEndpoint": False},
            },
        }
        own = f"projects/{spec.project}/regions/{setup.region}/subnetworks/{spec.own_name}"
        if spec.network and not setup.subnet:  # when the plan was made, Compute Engine was off
            choose_subnet(setup)
        body["ipAllocationPolicy"] |= setup.ranges
        body["subnetwork"] = setup.subnet if spec.network else own
        return body | (self._standard() if spec.standard else self._autopilot())

    def _autopilot(self) -> Page:
        defaults = {"serviceAccount": self.spec.account, "oauthScopes": SCOPES}
        return {"autopilot": {"enabled": True}, "autoscaling": {"autoprovisioningNodePoolDefaults": defaults}}

    def _sold_machine(self) -> str:
        """Return the first of the machine types for the system that its zone sells; some zones lack the usual one."""
        types = f"compute/v1/projects/{self.spec.project}/zones/{self.setup.location}/machineTypes"
        with contextlib.suppress(ApiError):
            return next(
                (name for name in SYSTEM_MACHINES if self.apis.read(COMPUTE, f"{types}/{name}")), SYSTEM_MACHINES[0]
            )
        return SYSTEM_MACHINES[0]

    def system_pool(self) -> Page:
        """Return the pool of a Standard cluster on which Kubernetes' own pods run."""
        return {
            "name": "system",
            "initialNodeCount": 1,
            "autoscaling": {"enabled": True, "minNodeCount": 1, "maxNodeCount": 3},
            "config": node_config(self.spec.account, self.spec.labels)
            | {"machineType": self.system_machine, "diskType": "pd-balanced", "diskSizeGb": 50},
            "management": {"autoRepair": True, "autoUpgrade": True},
        }

    def _standard(self) -> Page:
        return {
            "locations": [self.setup.location],
            "workloadIdentityConfig": {"workloadPool": self.spec.pool},
            "addonsConfig": {
                "gcsFuseCsiDriverConfig": {"enabled": True},
                "gcePersistentDiskCsiDriverConfig": {"enabled": True},
            },
            "networkConfig": {
                "datapathProvider": "ADVANCED_DATAPATH",
                "defaultEnablePrivateNodes": not self.spec.public_nodes,
            },
            "nodePoolDefaults": {"nodeConfigDefaults": {"gcfsConfig": {"enabled": True}}},
            "autoscaling": {"autoscalingProfile": "OPTIMIZE_UTILIZATION"},
            "nodePools": [self.system_pool()],
        }

    def remove(self, found: Found) -> None:
        target = f"/clusters/{self.spec.cluster}"
        if found.page.get("status") == "PROVISIONING":
            self._join_quietly("CREATE_CLUSTER", target)
        if found.page.get("status") == "STOPPING" and self._join_quietly("DELETE_CLUSTER", target):
            return
        with ignoring(404):
            self.follow(self.apis.call(CONTAINER, "DELETE", self.cluster_path), f"removing the {self.title}")

    def _join_quietly(self, kind: str, target: str) -> bool:
        """Wait for an operation, however it ends."""
        with contextlib.suppress(ApiError):
            return self.join(kind, target)
        return True


def conditions_text(page: Page) -> str:
    """Return why a cluster or pool is not usable, as Google says."""
    texts = [
        f"{each.get('canonicalCode') or each.get('code', '')}: {each.get('message', '')}"
        for each in page.get("conditions") or ()
    ]
    return "; ".join(texts) or str(page.get("statusMessage") or page.get("status", ""))


def node_config(account: str, labels: Mapping[str, str]) -> Page:
    """Return what the nodes of every pool have in common."""
    return {
        "serviceAccount": account,
        "oauthScopes": SCOPES,
        "workloadMetadataConfig": {"mode": "GKE_METADATA"},
        "gcfsConfig": {"enabled": True},  # images of Artifact Registry are streamed
        "resourceLabels": dict(labels),
    }


def pool_name(wanted: Placement) -> str:
    """Return the name of the pool for some hardware: the same for the same hardware."""
    words = re.sub(r"[^a-z0-9]+", "-", wanted.name.lower()).strip("-")
    spot = "-spot" if wanted.spot else ""
    return f"{words[: LONGEST_POOL - len(spot)].rstrip('-')}{spot}"


class Pool(_ContainerResource):
    """A pool of nodes with one kind of hardware, which starts without nodes. One pool is one slice of several hosts."""

    needs = ("cluster",)
    rights = ("container.clusters.update",)
    seconds = (40, 90)
    is_local = True

    def __init__(self, setup: Setup, wanted: Placement, *, zone: str = "", most_nodes: int = 0) -> None:
        super().__init__(setup)
        self.wanted = wanted
        self.zone = zone
        self.most_nodes = most_nodes or max(1, wanted.hosts)
        self.name = pool_name(wanted)
        self.key = f"pool {self.name}"

    @property
    def title(self) -> str:
        return f"node pool {self.name}: 0 to {self.most_nodes} × {self.wanted.machine_type}"

    def read(self) -> Found:
        page = self.apis.read(CONTAINER, f"{self.cluster_path}/nodePools/{self.name}") if self.setup.location else None
        if page is None:
            return Found("missing")
        labels = (page.get("config") or {}).get("resourceLabels") or {}
        found = self.marked({**page, "labels": labels}, self.spec.labels, "labels")
        status = page.get("status")
        if found.state != "ours":
            return found
        if status in {"ERROR", "RUNNING_WITH_ERROR"}:
            return Found("failed", page, conditions_text(page))
        return Found("pending", page, str(status)) if status in {"PROVISIONING", "STOPPING"} else found

    def make(self, found: Found) -> None:
        target = f"/nodePools/{self.name}"
        if found.state == "failed":
            self.remove(found)
        elif found.state == "pending":
            is_made = found.page.get("status") == "PROVISIONING"
            self.join("CREATE_NODE_POOL" if is_made else "DELETE_NODE_POOL", target)
            if is_made:
                self.check_is_ours()
                return
        if self.has_policy:
            self._make_policy()
        try:
            operation = self.apis.call(CONTAINER, "POST", f"{self.cluster_path}/nodePools", {"nodePool": self.body()})
        except ApiError as error:
            if error.status != 409:
                raise
            self.join("CREATE_NODE_POOL", target)
        else:
            self.follow(operation, self.title)
        self.check_is_ours()

    def body(self) -> Page:
        """Return the pool as Google is asked for it."""
        wanted = self.wanted
        config = node_config(self.spec.account, self.spec.labels) | {"machineType": wanted.machine_type}
        if wanted.spot:
            config["spot"] = True
        if wanted.kind == "gpu":
            config["accelerators"] = [
                {
                    "acceleratorType": accelerator_label(wanted),
                    "acceleratorCount": str(wanted.chips_per_host),
                    "gpuDriverInstallationConfig": {"gpuDriverVersion": "DEFAULT"},
                }
            ]
        if disk := _BOOT_DISKS.get(wanted.family):
            config["bootDisk"] = {"diskType": disk}
        body: Page = {
            "name": self.name,
            "initialNodeCount": 0,
            "autoscaling": {
                "enabled": True,
                "totalMinNodeCount": 0,
                "totalMaxNodeCount": self.most_nodes,
                "locationPolicy": "ANY",
            },
            "config": config,
            "management": {"autoRepair": True, "autoUpgrade": True},
            "maxPodsConstraint": {"maxPodsPerNode": "16"},
        }
        if self.zone or "-" in self.setup.location.removeprefix(self.setup.region):
            body["locations"] = [self.zone or self.setup.location]
        if wanted.kind == "tpu" and wanted.hosts > 1:
            shape = {"type": "COMPACT", "tpuTopology": wanted.topology}
            body["placementPolicy"] = {"policyName": self.name} if self.has_policy else shape
        return body

    @property
    def has_policy(self) -> bool:
        """Return whether its topology is that of a policy of its own: slices of the newest TPUs."""
        return self.wanted.hosts > 1 and str(self.wanted.machine_type).startswith("tpu7")

    def _make_policy(self) -> None:
        path = f"compute/v1/projects/{self.spec.project}/regions/{self.setup.region}/resourcePolicies"
        if self.apis.read(COMPUTE, f"{path}/{self.name}") is not None:
            return
        policy = {"type": "HIGH_THROUGHPUT", "acceleratorTopology": self.wanted.topology}
        body = {"name": self.name, "description": self.spec.description, "workloadPolicy": policy}
        with ignoring(409):
            self.apis.write_compute("POST", path, body)

    def remove(self, found: Found) -> None:
        with ignoring(404):
            operation = self.apis.call(CONTAINER, "DELETE", f"{self.cluster_path}/nodePools/{self.name}")
            self.follow(operation, f"removing the {self.title}")

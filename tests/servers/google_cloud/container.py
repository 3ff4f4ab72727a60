"""GKE: clusters and node pools, one operation of a cluster at a time."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from servers.google_cloud import refusals
from servers.google_cloud.refusals import Refusal

if TYPE_CHECKING:
    from servers.google_cloud.cloud import Call, GoogleCloud

Page = dict[str, Any]
MASTER = "1.35.8-gke.1026000"
AUTHORITY = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]+-(ai[0-9]+)?[a-z]")
_LONGEST_CLUSTER = 40  # characters
_LONGEST_POOL = 40
_LABEL = re.compile(r"[a-z0-9_-]{0,63}")
# cloud.google.com/compute/docs/disks/hyperdisks: what Persistent Disks cannot be attached to.
_ONLY_HYPERDISKS = ("ct6e-", "tpu7", "a3-ultragpu-", "a4-", "a4x-", "g4-")
_WEEK = 604800  # seconds; the longest run of a flex-start node


class Container:
    """The clusters of a project.

    Attributes:
        clusters: By location and name, node pools included.
        api_server: Where the Kubernetes API of the clusters is, and the certificate of who signed it; None leads to an
            address that does not answer. Given, the DNS endpoint is left out of answers, for nothing here has a
            certificate of public trust.
        missing_zones: Zones that a listing could not reach.
        on_made: Called with a cluster that has become ready.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud
        self.clusters: dict[tuple[str, str], Page] = {}
        self.api_server: tuple[str, bytes] | None = None
        self.missing_zones: list[str] = []
        self.on_made: Callable[[Page], object] = lambda _: None
        self.operations: dict[str, Page] = {}
        self._left: dict[str, int] = {}
        self._effects: dict[str, Callable[[], object]] = {}
        self._failures: dict[str, Callable[[str], object]] = {}

    def add(self, location: str, name: str, **more: Any) -> Page:
        """Add a cluster that runs, as another client would."""
        cluster = self._made(location, {"name": name, **more})
        cluster["status"] = "RUNNING"
        for pool in cluster.get("nodePools", ()):
            pool["status"] = "RUNNING"
        self.clusters[location, name] = cluster
        self._cloud.projects.identity_pool |= bool(cluster.get("workloadIdentityConfig", {}).get("workloadPool"))
        return cluster

    def pool(self, location: str, cluster: str, name: str) -> Page:
        """Return a node pool as it is."""
        for each in self.clusters[location, cluster].get("nodePools", ()):
            if each["name"] == name:
                return each  # type: ignore[no-any-return]  # a page
        raise refusals.missing(f"{self._path(location, cluster)}/nodePools/{name}")

    def users_of(self, path: str) -> list[str]:
        """Return the clusters that use a network or a subnet."""
        return [
            self._path(*key)
            for key, page in self.clusters.items()
            if path in {page.get("networkConfig", {}).get(each) for each in ("network", "subnetwork")}
        ]

    def _path(self, location: str, name: str) -> str:
        return f"projects/{self._cloud.project}/locations/{location}/clusters/{name}"

    # ------------------------------------------------------------------------------------------------------- answers

    def answer(self, call: Call) -> Page:
        _, project, place, location, kind, *names = (*call.parts, "")
        if place != "locations":
            raise Refusal(400, "zones/ is the old way to write a location")
        names = [name for name in names if name]
        if project not in {self._cloud.project, self._cloud.number}:
            raise refusals.denied("container.clusters.get", f"projects/{project}")
        if kind == "serverConfig":
            return self._server_config()
        if kind == "operations":
            return self._operation(names[0]) if names else self._operations_of(location)
        if not names:
            return self._create(location, call.body) if call.verb == "POST" else self._list(location)
        cluster = self._find(location, names[0])
        if len(names) == 1:
            return self._on_cluster(call, location, cluster)
        if names[1] != "nodePools":
            raise Refusal(400, f"{call.method} is not played")
        return self._on_pools(call, location, cluster, names[2:])

    def _find(self, location: str, name: str) -> Page:
        if (location, name) not in self.clusters:
            raise Refusal(404, f"Not found: {self._path(location, name)}.", "NOT_FOUND")
        return self.clusters[location, name]

    def _list(self, location: str) -> Page:
        found = [self._shown(page) for (where, _), page in self.clusters.items() if location in {"-", where}]
        missing = {"missingZones": self.missing_zones} if self.missing_zones else {}
        return ({"clusters": found} if found else {}) | missing

    def _shown(self, cluster: Page) -> Page:
        """Return a cluster as it is described; without the DNS endpoint where a test has a server of its own."""
        if self.api_server is None or cluster["status"] == "PROVISIONING":
            return cluster
        address, authority = self.api_server
        endpoints = dict(cluster.get("controlPlaneEndpointsConfig", {}))
        dns = {name: value for name, value in endpoints.get("dnsEndpointConfig", {}).items() if name != "endpoint"}
        return {
            **cluster,
            "endpoint": address,
            "masterAuth": {"clusterCaCertificate": base64.b64encode(authority).decode()},
            "controlPlaneEndpointsConfig": {**endpoints, "dnsEndpointConfig": dns},
        }

    def _on_cluster(self, call: Call, location: str, cluster: Page) -> Page:
        name = cluster["name"]
        if call.action == "get":
            return self._shown(cluster)
        self._free(location, cluster)
        if call.action == "delete":
            cluster["status"] = "STOPPING"
            gone = lambda: self._removed(location, name)  # noqa: E731 - one use
            return self._started(location, name, "DELETE_CLUSTER", effect=gone, failure=_cluster_failed(cluster))
        if call.action == "setResourceLabels":
            if call.body.get("labelFingerprint") != cluster["labelFingerprint"]:
                raise Refusal(412, "Labels could not be set due to fingerprint mismatch.", "FAILED_PRECONDITION")
            cluster["resourceLabels"] = _checked_labels(call.body.get("resourceLabels", {}))
            cluster["labelFingerprint"] = f"{next(self._cloud.ids):08x}"
            return self._started(location, name, "UPDATE_CLUSTER")
        if call.action == "update":
            return self._update(location, cluster, call.body.get("update", {}))
        raise Refusal(400, f"{call.method} is not played")

    def _removed(self, location: str, name: str) -> None:
        self.clusters.pop((location, name), None)
        rules = self._cloud.compute.things
        for key in [key for key in rules if key[1] == "firewalls" and key[2].startswith(f"gke-{name}-")]:
            del rules[key]

    # -------------------------------------------------------------------------------------------------- a new cluster

    def _create(self, location: str, body: Page) -> Page:
        cluster = body["cluster"]
        name = cluster["name"]
        if (location, name) in self.clusters:
            raise Refusal(409, f"Already exists: {self._path(location, name)}.", "ALREADY_EXISTS")
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > _LONGEST_CLUSTER:
            raise Refusal(400, f"Invalid value for field cluster.name: {name!r}.")
        _checked_labels(cluster.get("resourceLabels", {}))
        self._check_cluster(location, cluster)
        made = self._made(location, cluster)
        self.clusters[location, name] = made
        if network := cluster.get("network"):
            self._cloud.compute.add("firewalls", f"gke-{name}-1a2b3c4d-all", network=network)
        return self._started(
            location, name, "CREATE_CLUSTER", effect=lambda: self._is_up(made), failure=_cluster_failed(made)
        )

    def _is_up(self, cluster: Page) -> None:
        cluster["status"] = "RUNNING"
        for pool in cluster.get("nodePools", ()):
            pool["status"] = "RUNNING"
        self._cloud.projects.identity_pool |= bool(cluster.get("workloadIdentityConfig", {}).get("workloadPool"))
        self.on_made(cluster)

    def _check_cluster(self, location: str, cluster: Page) -> None:
        cloud = self._cloud
        autopilot = cluster.get("autopilot", {}).get("enabled")
        # An AI zone has the letter of a zone beside it.
        zones = {re.sub(r"-ai[0-9]+", "-", zone) for each in cloud.compute.regions.values() for zone in each}
        if _ZONE.fullmatch(location) and location not in zones and "-ai" not in location:
            raise Refusal(400, f'Location "{location}" does not exist.')
        if autopilot and _ZONE.fullmatch(location):
            raise Refusal(400, "Autopilot clusters must be regional clusters.")
        if autopilot and (cluster.get("nodePools") or cluster.get("initialNodeCount")):
            raise Refusal(400, "Node pools cannot be created in Autopilot clusters.")
        if not autopilot and not cluster.get("nodePools") and not cluster.get("initialNodeCount"):
            raise Refusal(400, "Cluster.initial_node_count must be greater than zero.")
        for kind, scope in (("network", "global/networks"), ("subnetwork", None)):
            named = cluster.get(kind)
            region = location if not _ZONE.fullmatch(location) else location.rpartition("-")[0]
            path = (
                named
                if named and "/" in named
                else f"projects/{cloud.project}/{scope or f'regions/{region}/subnetworks'}/{named}"
            )
            known = {page["selfLink"].rpartition("/v1/")[2] for page in cloud.compute.things.values()}
            if named and path.startswith(f"projects/{cloud.project}/") and path not in known:
                raise Refusal(400, f"Network or subnetwork {named!r} does not exist.")
            if kind == "subnetwork" and not path.startswith(f"projects/{cloud.project}/"):
                self._check_ranges(path, cluster.get("ipAllocationPolicy", {}))
        defaults = cluster.get("autoscaling", {}).get("autoprovisioningNodePoolDefaults", {})
        for account in [defaults.get("serviceAccount"), *(_account(pool) for pool in cluster.get("nodePools", ()))]:
            self._check_account(account)

    def _check_ranges(self, subnet: str, policy: Page) -> None:
        """Refuse ranges that a subnet of another project does not have: GKE makes ranges in its own project only."""
        known = {each["rangeName"] for each in self._cloud.compute.shared[subnet].get("secondaryIpRanges", ())}
        pods, services = policy.get("clusterSecondaryRangeName"), policy.get("servicesSecondaryRangeName")
        if not pods:
            raise Refusal(400, "Shared VPC clusters need user-managed secondary ranges.")
        for kind, name in (("Pod", pods), ("Service", services)):
            if name and name not in known:
                raise Refusal(400, f'{kind} secondary range "{name}" not found in subnetwork "{subnet}".')
        if pods == services:
            raise Refusal(400, f"Pod secondary range name ({pods}) should not be the same as service's.")

    def _check_account(self, account: str | None) -> None:
        """Refuse nodes of an account that does not exist, or that we may not act as."""
        if not account or account == "default":
            return
        if not self._cloud.projects.is_seen(account):
            raise Refusal(400, f"Service account {account!r} does not exist.")
        if "iam.serviceAccounts.actAs" in self._cloud.denied:
            raise Refusal(
                403,
                f"The user does not have access to service account {account!r}. Ask a project owner to grant you the "
                "iam.serviceAccountUser role on the service account.",
            )

    def _made(self, location: str, body: Page) -> Page:
        cloud, name = self._cloud, body["name"]
        region = location.rpartition("-")[0] if _ZONE.fullmatch(location) else location
        zones = [location] if _ZONE.fullmatch(location) else cloud.compute.regions.get(region, [f"{region}-a"])
        autopilot = bool(body.get("autopilot", {}).get("enabled"))
        identity = {"workloadPool": f"{cloud.project}.svc.id.goog"} if autopilot else {}
        given = body.get("controlPlaneEndpointsConfig", {})
        dns = {"endpoint": f"gke-{cloud.number}.{region}.gke.goog", **given.get("dnsEndpointConfig", {})}
        network, subnet = body.get("network", "default"), body.get("subnetwork", "default")
        full = {
            "network": f"projects/{cloud.project}/global/networks/{network.rpartition('/')[2]}",
            "subnetwork": f"projects/{cloud.project}/regions/{region}/subnetworks/{subnet.rpartition('/')[2]}",
        }
        return {
            **body,
            "status": "PROVISIONING",
            "location": location,
            "zone": location,
            "locations": body.get("locations", zones),
            "network": network.rpartition("/")[2],
            "subnetwork": subnet.rpartition("/")[2],
            "networkConfig": {**body.get("networkConfig", {}), **full},
            "endpoint": "203.0.113.7",
            "masterAuth": {"clusterCaCertificate": base64.b64encode(AUTHORITY).decode()},
            "controlPlaneEndpointsConfig": {**given, "dnsEndpointConfig": dns},
            "currentMasterVersion": MASTER,
            "initialClusterVersion": MASTER,
            "createTime": "2026-11-23T00:00:00+00:00",
            "id": f"{next(cloud.ids):064x}",
            "etag": "e1",
            "labelFingerprint": f"{next(cloud.ids):08x}",
            "selfLink": f"https://container.googleapis.com/v1/{self._path(location, name)}",
            "workloadIdentityConfig": body.get("workloadIdentityConfig", identity),
            "addonsConfig": {"gcsFuseCsiDriverConfig": {"enabled": True}} | body.get("addonsConfig", {})
            if autopilot
            else body.get("addonsConfig", {}),
            "releaseChannel": body.get("releaseChannel", {"channel": "REGULAR"}),
            **({"nodePools": [self._new_pool(each) for each in body["nodePools"]]} if body.get("nodePools") else {}),
        }

    def _update(self, location: str, cluster: Page, update: Page) -> Page:
        if len(update) != 1:
            raise Refusal(400, "Exactly one field of the update must be set.")
        ((name, value),) = update.items()
        target = {
            "desiredControlPlaneEndpointsConfig": "controlPlaneEndpointsConfig",
            "desiredWorkloadIdentityConfig": "workloadIdentityConfig",
            "desiredAddonsConfig": "addonsConfig",
            "desiredClusterAutoscaling": "autoscaling",
        }.get(name)
        if target is None:
            raise Refusal(400, f"the update {name} is not played")
        cluster[target] = _merged(cluster.get(target, {}), value)
        pool = cluster.get("workloadIdentityConfig", {}).get("workloadPool", "")
        if pool and pool != f"{self._cloud.project}.svc.id.goog":
            raise Refusal(400, f"the workload pool {pool} is not that of the project")
        self._cloud.projects.identity_pool |= bool(pool)
        return self._started(location, cluster["name"], "UPDATE_CLUSTER")

    # ---------------------------------------------------------------------------------------------------- node pools

    def _on_pools(self, call: Call, location: str, cluster: Page, names: list[str]) -> Page:
        pools: list[Page] = cluster.setdefault("nodePools", [])
        if call.action == "list":
            return {"nodePools": pools} if pools else {}
        if call.action == "get":
            return self.pool(location, cluster["name"], names[0])
        if call.action == "create":
            return self._create_pool(location, cluster, call.body["nodePool"])
        pool = self.pool(location, cluster["name"], names[0])
        self._free(location, cluster)
        target = f"{cluster['name']}/nodePools/{names[0]}"
        if call.action == "delete":
            pool["status"] = "STOPPING"
            return self._started(location, target, "DELETE_NODE_POOL", effect=lambda: pools.remove(pool))
        if call.action == "setAutoscaling":
            _check_autoscaling(call.body.get("autoscaling", {}))
            pool["autoscaling"] = call.body.get("autoscaling", {})
            return self._started(location, target, "UPDATE_CLUSTER")
        raise Refusal(400, f"{call.method} is not played")

    def _create_pool(self, location: str, cluster: Page, body: Page) -> Page:
        name, cloud = body["name"], self._cloud
        target = f"{cluster['name']}/nodePools/{name}"
        if any(each["name"] == name for each in cluster["nodePools"]):
            path = self._path(location, target)
            raise Refusal(409, f"Already exists: {path}.", "ALREADY_EXISTS")
        if cluster.get("autopilot", {}).get("enabled"):
            raise Refusal(400, "Autopilot clusters do not support node pool mutations.")
        if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name) or len(name) > _LONGEST_POOL:
            raise Refusal(400, f"Invalid value for field node_pool.name: {name!r}.")
        self._free(location, cluster)
        _check_autoscaling(body.get("autoscaling", {}))
        self._check_account(_account(body))
        self._check_machine(body)
        pool = self._new_pool(body)
        cluster["nodePools"].append(pool)
        stock = bool(body.get("initialNodeCount")) and cloud.fates.get("stockout")
        return self._started(
            location,
            target,
            "CREATE_NODE_POOL",
            effect=lambda: pool.update(status="RUNNING"),
            failure=lambda message: pool.update(
                status="RUNNING_WITH_ERROR",
                statusMessage=message,
                conditions=[{"canonicalCode": "RESOURCE_EXHAUSTED", "code": "GCE_STOCKOUT", "message": message}],
            ),
            fate=("error", "ZONE_RESOURCE_POOL_EXHAUSTED: does not have enough resources") if stock else None,
        )

    def _check_machine(self, body: Page) -> None:
        config, placement = body.get("config", {}), body.get("placementPolicy", {})
        affinity = config.get("reservationAffinity", {})
        reserved = affinity.get("consumeReservationType") == "SPECIFIC_RESERVATION"
        if reserved and (config.get("spot") or config.get("flexStart")):
            raise Refusal(400, "Spot and flex-start VMs cannot consume reservations.")
        if config.get("spot") and config.get("flexStart"):
            raise Refusal(400, "flexStart and spot exclude each other.")
        if body.get("queuedProvisioning", {}).get("enabled") and body.get("initialNodeCount"):
            raise Refusal(400, "Node pools with queued provisioning must be created with 0 nodes.")
        if config.get("flexStart") and body.get("management", {}).get("autoRepair"):
            raise Refusal(400, "autoRepair must be off for flex-start nodes.")
        limit = config.get("maxRunDuration", "")
        if limit and not (limit.endswith("s") and 0 < int(limit[:-1]) <= _WEEK):
            raise Refusal(400, f"Invalid maxRunDuration {limit!r}.")
        family = config.get("machineType", "").partition("-")[0]
        disk = config.get("bootDisk", {}).get("diskType") or config.get("diskType") or "pd-balanced"
        if config.get("machineType", "").startswith(_ONLY_HYPERDISKS) and disk != "hyperdisk-balanced":
            raise Refusal(400, f"{disk} disk type cannot be used by {config['machineType']} machine type.")
        for zone in body.get("locations", []):
            if family and zone not in self._cloud.compute.zones_by_family.get(family, ()):
                raise Refusal(400, f"Machine type {config['machineType']!r} does not exist in zone {zone!r}.")
        policy = placement.get("policyName")
        if policy and policy not in self._cloud.compute.names("resourcePolicies"):
            raise Refusal(400, f"Resource policy {policy!r} does not exist.")
        if family == "tpu7x" and placement.get("tpuTopology") and not policy:
            raise Refusal(400, "A workload policy is required for multi-host node pools of tpu7x machines.")

    def _new_pool(self, body: Page) -> Page:
        taints = list(body.get("config", {}).get("taints", ()))
        config = body.get("config", {})
        family = config.get("machineType", "").partition("-")[0]
        # What GKE adds by itself.
        if family.startswith(("ct", "tpu")):
            taints.append({"key": "google.com/tpu", "value": "present", "effect": "NO_SCHEDULE"})
        if config.get("accelerators"):
            taints.append({"key": "nvidia.com/gpu", "value": "present", "effect": "NO_SCHEDULE"})
        if body.get("queuedProvisioning", {}).get("enabled"):
            taints.append({"key": "cloud.google.com/gke-queued", "value": "true", "effect": "NO_SCHEDULE"})
        return {
            **body,
            "status": "PROVISIONING",
            "version": MASTER,
            "config": {**config, **({"taints": taints} if taints else {})},
            "etag": f"{next(self._cloud.ids):08x}",
        }

    # ---------------------------------------------------------------------------------------------------- operations

    def _free(self, location: str, cluster: Page) -> None:
        """Refuse a second operation on a cluster while one is on its way."""
        if cluster["status"] in {"PROVISIONING", "STOPPING"} or self.running(location, cluster["name"]):
            running = self.running(location, cluster["name"]) or ["operation-0"]
            with contextlib.suppress(Refusal):  # a request that is refused is one that time passes with
                self._operation(running[0])
            raise Refusal(
                400,
                f"Cluster is running incompatible operation {running[0]}.",
                "FAILED_PRECONDITION",
                reason="CLUSTER_ALREADY_HAS_OPERATION",
            )

    def running(self, location: str, cluster: str) -> list[str]:
        """Return the unfinished operations of a cluster."""
        path = self._path(location, cluster)
        return [
            name
            for name, page in self.operations.items()
            if page["status"] != "DONE" and re.search(f"{re.escape(path)}(/|$)", page["targetLink"])
        ]

    def _started(
        self,
        location: str,
        target: str,
        kind: str,
        effect: Callable[[], object] = lambda: None,
        failure: Callable[[str], object] = lambda _: None,
        fate: tuple[str, str] | None = None,
    ) -> Page:
        name = f"operation-{next(self._cloud.ids):013}-{kind.lower().replace('_', '-')}"
        page = {
            "name": name,
            "operationType": kind,
            "status": "RUNNING",
            "location": location,
            "zone": location,
            "startTime": "2026-11-23T00:00:00.000000000Z",
            "selfLink": f"https://container.googleapis.com/v1/projects/{self._cloud.number}/zones/{location}/operations/{name}",
            "targetLink": f"https://container.googleapis.com/v1/{self._path(location, target)}",
            "progress": {
                "metrics": [
                    {"name": "CLUSTER_CONFIGURING", "intValue": "0"},
                    {"name": "CLUSTER_CONFIGURING_TOTAL", "intValue": "10"},
                ]
            },
        }
        self.operations[name] = page
        self._left[name] = self._cloud.pending
        self._effects[name], self._failures[name] = effect, failure
        if fate:
            self._cloud.fates[name] = fate
        return dict(page)

    def _operations_of(self, location: str) -> Page:
        found = [page for page in self.operations.values() if location in {"-", page["location"]}]
        return {"operations": found} if found else {}

    def _operation(self, name: str) -> Page:
        if name not in self.operations:
            raise Refusal(404, f"Not found: {name}.", "NOT_FOUND")
        page = self.operations[name]
        fate = self._cloud.fates.get(name) or self._cloud.fates.get(page["operationType"], "")
        if page["status"] == "DONE":
            return page
        if self._left[name] > 0 or fate == "never":
            self._left[name] -= 1
            metrics = page["progress"]["metrics"]
            metrics[0]["intValue"] = str(min(10, int(metrics[0]["intValue"]) + 5))
            return page
        kind, message, code = (*fate, 13)[:3] if isinstance(fate, tuple) else (fate, "Internal error.", 13)
        page |= {"status": "DONE", "endTime": "2026-11-23T00:01:00.000000000Z"}
        if kind == "error":
            page["error"] = {"code": code, "message": message}
            self._failures[name](message)
            return page
        self._effects[name]()
        if kind == "vanish":
            del self.operations[name]
            raise Refusal(404, f"Not found: {name}.", "NOT_FOUND")
        return page

    def _server_config(self) -> Page:
        channel = {"channel": "REGULAR", "defaultVersion": MASTER, "validVersions": [MASTER, "1.34.9-gke.1000"]}
        return {
            "defaultClusterVersion": MASTER,
            "validMasterVersions": [MASTER],
            "validNodeVersions": [MASTER, "1.34.9-gke.1000"],
            "channels": [channel],
        }


def _cluster_failed(cluster: Page) -> Callable[[str], object]:
    def fail(message: str) -> None:
        cluster.update(
            status="ERROR",
            statusMessage=message,
            conditions=[{"canonicalCode": "INTERNAL", "message": message}],
        )

    return fail


def _account(pool: Page) -> str | None:
    return pool.get("config", {}).get("serviceAccount")


def _check_autoscaling(page: Page) -> None:
    least, most = page.get("totalMinNodeCount", 0), page.get("totalMaxNodeCount", 0)
    if page.get("enabled") and not (most or page.get("maxNodeCount")):
        raise Refusal(400, "max_node_count must be greater than zero when autoscaling is enabled.")
    if least > most and not page.get("maxNodeCount"):
        raise Refusal(400, "min_node_count must not be above max_node_count.")
    if most and page.get("maxNodeCount"):
        raise Refusal(400, "total_max_node_count and max_node_count exclude each other.")


def _checked_labels(labels: dict[str, str]) -> dict[str, str]:
    for name, value in labels.items():
        if not _LABEL.fullmatch(name) or not _LABEL.fullmatch(value):
            raise Refusal(400, f"Invalid resource label {name}={value}.")
    return labels


def _merged(old: Page, new: Page) -> Page:
    found = dict(old)
    for name, value in new.items():
        found[name] = _merged(old.get(name, {}), value) if isinstance(value, dict) else value
    return found

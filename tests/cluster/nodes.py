"""Nodes as GKE labels and taints them, and how one of them lives: registered, renewing its lease, or not any more."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster import binaries
from cluster.access import RefusedError
from cluster.statuses import Conditions, now

if TYPE_CHECKING:
    from cluster.calls import Calls

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEW_SECONDS = 1.0


class NodeSpec(NamedTuple):
    """What a node is.

    Attributes:
        name: Its name.
        labels: Beside those that every node has.
        taints: As (key, value, effect).
        capacity: Amounts as Kubernetes writes them.
    """

    name: str
    labels: dict[str, str]
    taints: tuple[tuple[str, str, str], ...]
    capacity: dict[str, str]


def _node(name: str, pool: str, machine: str, cpu: int, memory: str, *, spot: bool = False) -> NodeSpec:
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": machine,
        "topology.kubernetes.io/region": "us-west4",
        "topology.kubernetes.io/zone": "us-west4-a",
        "cloud.google.com/gke-nodepool": pool,
        "cloud.google.com/gke-provisioning": "spot" if spot else "standard",
        "cloud.google.com/machine-family": machine.split("-", maxsplit=1)[0],
    }
    taints: tuple[tuple[str, str, str], ...] = ()
    if spot:
        labels["cloud.google.com/gke-spot"] = "true"
        taints = (("cloud.google.com/gke-spot", "true", "NoSchedule"),)
    capacity = {"cpu": str(cpu), "memory": memory, "ephemeral-storage": "94Gi", "pods": "110"}
    return NodeSpec(name, labels, taints, capacity)


def cpu(name: str, *, cores: int = 8, memory: str = "32Gi", spot: bool = False) -> NodeSpec:
    """Describe an e2-standard node."""
    return _node(name, "default-pool", f"e2-standard-{cores}", cores, memory, spot=spot)


def gpu(name: str, accelerator: str = "nvidia-l4", count: int = 1, *, spot: bool = False) -> NodeSpec:
    """Describe a node with GPUs, tainted as GKE taints them."""
    node = _node(name, f"gpu-{accelerator}-{count}", "g2-standard-12", 12 * count, f"{48 * count}Gi", spot=spot)
    labels = {"cloud.google.com/gke-accelerator": accelerator, "cloud.google.com/gke-accelerator-count": str(count)}
    taint = ("nvidia.com/gpu", "present", "NoSchedule")
    return _with(node, labels, taint, {"nvidia.com/gpu": str(count)})


def tpu(
    name: str, accelerator: str = "tpu-v5-lite-podslice", topology: str = "2x2", chips: int = 4, *,
    pool: str = "", spot: bool = False,
) -> NodeSpec:  # fmt: skip
    """Describe one host of a TPU slice; all hosts of a slice share a pool."""
    node = _node(name, pool or f"tpu-{accelerator}-{topology}", "ct5lp-hightpu-4t", 112, "192Gi", spot=spot)
    labels = {
        "cloud.google.com/gke-tpu-accelerator": accelerator,
        "cloud.google.com/gke-tpu-topology": topology,
        "cloud.google.com/gke-accelerator-count": str(chips),
    }
    taint = ("google.com/tpu", "present", "NoSchedule")
    return _with(node, labels, taint, {"google.com/tpu": str(chips)})


def _with(node: NodeSpec, labels: dict[str, str], taint: tuple[str, str, str], capacity: dict[str, str]) -> NodeSpec:
    return node._replace(labels=node.labels | labels, taints=(*node.taints, taint), capacity=node.capacity | capacity)


class Node:
    """A node that lives on this machine: its object, its lease, and whether it can be heard.

    Attributes:
        online: Set while its network works; otherwise it hears nothing and nobody hears it, but its pods go on.
        is_alive: False once it has lost its power.
    """

    def __init__(self, spec: NodeSpec, address: str, port: int, calls: Calls) -> None:
        self.spec = spec
        self.address = address
        self.online = asyncio.Event()
        self.online.set()
        self.is_alive = True
        self._port = port
        self._calls = calls
        self._path = f"/api/v1/nodes/{spec.name}"
        self._conditions = Conditions()
        self._lost: set[str] = set()
        self._lease = asyncio.ensure_future(self._renew())
        for pressure in ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"):
            self._conditions.set(pressure, true=False, reason="Fine")
        self._conditions.set("Ready", true=True, reason="KubeletReady", message="the test's node agent is ready")

    async def register(self) -> None:
        """Create the node's object, or take over the one that is there."""
        taints = [{"key": key, "value": value, "effect": effect} for key, value, effect in self.spec.taints]
        body = {"metadata": {"name": self.spec.name, "labels": self.spec.labels}, "spec": {"taints": taints}}
        try:
            await self._calls.insist("POST", "/api/v1/nodes", body)
        except RefusedError as refused:
            if refused.status != 409:
                raise
        await self.report()

    async def report(self) -> None:
        capacity = self.spec.capacity | dict.fromkeys(self._lost, "0")
        await self._calls.patch_status(
            self._path,
            {
                "capacity": capacity,
                "allocatable": capacity,
                "conditions": self._conditions.list(),
                "addresses": [
                    {"type": "InternalIP", "address": self.address},
                    {"type": "Hostname", "address": self.spec.name},
                ],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
                "nodeInfo": {
                    "kubeletVersion": binaries.version("kubernetes"),
                    "operatingSystem": "linux",
                    "architecture": "amd64",
                },
                # So the server passes WebSockets on to us. Otherwise it translates them to SPDY, a protocol of 2012.
                "declaredFeatures": ["ExtendWebSocketsToKubelet"],
            },
        )

    async def take_away(self, resource: str) -> None:
        """Have a device plugin lose its devices."""
        self._lost.add(resource)
        await self.report()

    async def give_back(self, resource: str) -> None:
        self._lost.discard(resource)
        await self.report()

    async def announce_shutdown(self) -> None:
        self._conditions.set("Ready", true=False, reason="KubeletNotReady", message="node is shutting down")
        await self.report()

    async def remove(self) -> None:
        """Delete the node's object, as the cloud does some time after its machine is gone."""
        self.silence()
        with contextlib.suppress(RefusedError):
            await self._calls.insist("DELETE", self._path)

    def silence(self) -> None:
        """Stop every sign of life."""
        self.is_alive = False
        self._lease.cancel()

    async def _renew(self) -> None:
        lease = f"{LEASES}/{self.spec.name}"
        spec: dict[str, Any] = {"holderIdentity": self.spec.name, "leaseDurationSeconds": 40}
        while True:
            await self.online.wait()
            spec["renewTime"] = now().replace("Z", ".000000Z")
            body = {"metadata": {"name": self.spec.name}, "spec": spec}
            try:
                await self._calls.insist("PATCH", lease, {"spec": spec}, kind="application/merge-patch+json")
            except RefusedError:
                with contextlib.suppress(RefusedError):
                    await self._calls.insist("POST", LEASES, body)
            await asyncio.sleep(RENEW_SECONDS)

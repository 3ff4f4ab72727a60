"""The network of a cluster's nodes: a network, a subnet, and a router with NAT, since nodes have no address outside."""

from __future__ import annotations

from collections.abc import Sequence

from kinetic._cluster.project_apis import COMPUTE, explained, explaining, ignoring, is_disabled
from kinetic._cluster.resource import Change, Found, Resource, Setup
from kinetic._google.api import ApiError, Page
from kinetic._output.format import names_text
from kinetic.errors import AccessDeniedError, OptionError

RANGE = "10.0.0.0/20"  # 4,092 nodes; pods get ranges of their own, which GKE adds
_IN_USE = frozenset({"resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE"})
_NAMED = 6  # subnets or regions in a message
_LAG_SECONDS = 120.0  # a network is released some time after what used it was deleted


class _ComputeResource(Resource):
    """What Compute Engine keeps below a scope, found by its description."""

    @property
    def scope(self) -> str:
        return f"regions/{self.setup.region}" if self.is_local else "global"

    collection = ""

    @property
    def path(self) -> str:
        return f"compute/v1/projects/{self.spec.project}/{self.scope}/{self.collection}"

    def read(self) -> Found:
        page = self.apis.read(COMPUTE, f"{self.path}/{self.spec.own_name}")
        return self.marked(page, self.spec.description, "description")

    def body(self) -> Page:
        raise NotImplementedError

    def make(self, found: Found) -> None:
        name = {"name": self.spec.own_name, "description": self.spec.description}
        with ignoring(409):
            self.apis.write_compute("POST", self.path, name | self.body())
        self.check_is_ours()

    def remove(self, found: Found) -> None:
        waited = 0.0
        with ignoring(404):
            while True:
                try:
                    return self.apis.write_compute("DELETE", f"{self.path}/{self.spec.own_name}")
                except ApiError as error:
                    if error.reason not in _IN_USE or waited >= _LAG_SECONDS:
                        raise
                self.apis.sleep(10.0)
                waited += 10.0


class Network(_ComputeResource):
    """The network: no subnets of its own making, routes within the region."""

    key = "network"
    needs = ("services",)
    rights = ("compute.networks.create", "compute.networks.get")
    seconds = (10, 25)
    collection = "networks"

    @property
    def title(self) -> str:
        return f"network {self.spec.own_name}"

    def body(self) -> Page:
        return {"autoCreateSubnetworks": False, "routingConfig": {"routingMode": "REGIONAL"}}


class Subnet(_ComputeResource):
    """The subnet of the nodes, from which Google's own services are reached without NAT."""

    key = "subnet"
    needs = ("network",)
    rights = ("compute.subnetworks.create", "compute.subnetworks.get", "compute.networks.updatePolicy")
    seconds = (10, 20)
    is_local = True
    collection = "subnetworks"

    @property
    def title(self) -> str:
        return f"subnet {self.spec.own_name} in {self.setup.region}"

    def body(self) -> Page:
        return {
            "network": f"projects/{self.spec.project}/global/networks/{self.spec.own_name}",
            "ipCidrRange": RANGE,
            "privateIpGoogleAccess": True,
        }

    def diff(self, found: Found) -> list[Change]:
        on = bool(found.page.get("privateIpGoogleAccess"))
        return [] if on else [Change("private Google access", "off", "on")]

    def change(self, found: Found, changes: Sequence[Change]) -> None:
        path = f"{self.path}/{self.spec.own_name}/setPrivateIpGoogleAccess"
        self.apis.write_compute("POST", path, {"privateIpGoogleAccess": True})


class Router(_ComputeResource):
    """The router, whose NAT gives nodes a way to the internet: package indexes, Hugging Face."""

    key = "router"
    needs = ("subnet",)
    rights = ("compute.routers.create", "compute.routers.get", "compute.routers.update")
    seconds = (10, 30)
    dollars_per_hour = 0.0064  # one address and one node; cloud.google.com/nat/pricing, 2026-11
    is_local = True
    collection = "routers"

    @property
    def title(self) -> str:
        return f"router {self.spec.own_name} with NAT in {self.setup.region}"

    def body(self) -> Page:
        network = f"projects/{self.spec.project}/global/networks/{self.spec.own_name}"
        return {"network": network, "nats": [self.nat()]}

    def nat(self) -> Page:
        """Return the NAT as Google is asked for it."""
        return {
            "name": self.spec.own_name,
            "natIpAllocateOption": "AUTO_ONLY",
            "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
            "enableDynamicPortAllocation": True,
            "minPortsPerVm": 64,
            "maxPortsPerVm": 4096,
        }

    def diff(self, found: Found) -> list[Change]:
        names = [str(each.get("name")) for each in found.page.get("nats") or ()]
        return [] if names else [Change("NAT", "none", self.spec.own_name)]

    def change(self, found: Found, changes: Sequence[Change]) -> None:
        self.apis.write_compute("PATCH", f"{self.path}/{self.spec.own_name}", {"nats": [self.nat()]})


def choose_subnet(setup: Setup) -> None:
    """Choose the subnet that nodes use on a network which the user named, and the ranges of pods and services in it."""
    setup.subnet = setup.subnet or _given_subnet(setup)
    if setup.subnet.split("/")[1] != setup.project:
        setup.ranges = _ranges(setup)


def _ranges(setup: Setup) -> dict[str, str]:
    """Return which ranges of a subnet of another project pods and services use: Google makes none there.

    Raises:
        OptionError: There is none, or which is meant is not clear.

    Source: cloud.google.com/kubernetes-engine/docs/how-to/cluster-shared-vpc, read 2026-11.
    """
    spec = setup.spec
    with explaining(f"show the subnet {setup.subnet}", spec.project):
        page = setup.apis.read(COMPUTE, f"compute/v1/{setup.subnet}") or {}
    # The largest first: there are more pods than services.
    found = sorted(page.get("secondaryIpRanges") or (), key=lambda each: int(str(each["ipCidrRange"]).split("/")[1]))
    names = [str(each["rangeName"]) for each in found]

    def named(words: Sequence[str]) -> str:
        fitting = [each for each in names if any(word in each for word in words)]
        return fitting[0] if len(fitting) == 1 else ""

    pods = spec.pod_range or named(["pod"]) or (names[0] if 0 < len(names) < 3 else "")
    services = spec.service_range or named(["service", "svc"])
    services = services or next((each for each in names if len(names) == 2 and each != pods), "")
    unknown = {pods, services} - {"", *names}
    if pods and not unknown and pods != services:
        return {"clusterSecondaryRangeName": pods, **({"servicesSecondaryRangeName": services} if services else {})}
    has = f"its ranges: {names_text(names, _NAMED)}" if names else "it has no range besides that of nodes"
    again = f"kinetic up --network {spec.network} --subnet {setup.subnet}"
    raise OptionError(
        f"the subnet {setup.subnet} has no range {unknown.pop()}" if unknown
        else f"which ranges of the subnet {setup.subnet} pods and services use is not known",
        why=f"{has}; in a subnet of another project, Google makes none for them",
        next=f"{again} --pod-range {names[0]} --service-range {names[-1]}" if names
        else "ask the administrator of that project for two secondary ranges",
    )  # fmt: skip


def _given_subnet(setup: Setup) -> str:
    """Return the path of the subnet that nodes use on a network which the user named, in the region of the cluster.

    Raises:
        OptionError: There is no such network or subnet, or there are several and none was named: which one is right
            depends on the ranges and firewalls of its owner.
    """
    spec, region = setup.spec, setup.region
    network = spec.network.rpartition("/v1/")[2]
    network = network if "/" in network else f"projects/{spec.project}/global/networks/{network}"
    try:
        page = setup.apis.read(COMPUTE, f"compute/v1/{network}")
    except ApiError as error:
        full = spec.subnet.rpartition("/v1/")[2]
        if error.status == 403 and f"/regions/{region}/" in full:  # who may use one subnet may not see its network
            return full
        if error.status == 403 and not is_disabled(error):
            owner = network.split("/")[1]
            step = (
                f"name its subnet in full: --subnet projects/{owner}/regions/{region}/subnetworks/NAME     or ask for "
            )
            step += f"roles/compute.networkViewer in {owner}"
            what = f"this account may not see the network {spec.network}"
            raise AccessDeniedError(what, why=error.message, next=step) from error
        raise explained(error, f"show the network {spec.network}", spec.project) from error
    if page is None:
        raise OptionError(
            f"the network {spec.network} does not exist",
            why=f"{network} is not found; the network of another project needs its full name",
            next="kinetic up --network projects/PROJECT/global/networks/NAME",
        )
    paths = sorted(str(each).rpartition("/v1/")[2] for each in page.get("subnetworks") or ())
    here = {path.rpartition("/")[2]: path for path in paths if f"/regions/{region}/" in path}
    wanted = spec.subnet.rpartition("/")[2]
    if wanted in here:
        return here[wanted]
    again = f"kinetic up --network {spec.network}"
    if not here:
        regions = sorted({path.partition("/regions/")[2].partition("/")[0] for path in paths})
        has = f"it has some in {names_text(regions, _NAMED)}" if regions else "it has none at all"
        step = f"{again} --region {regions[0]}" if regions else "add one to the network, or leave out --network"
        raise OptionError(f"the network {spec.network} has no subnet in {region}", why=has, next=step)
    if len(here) == 1 and not wanted:
        return next(iter(here.values()))
    names = names_text([*here], _NAMED)
    what = (
        f"the network {spec.network} has no subnet {wanted} in {region}"
        if wanted
        else (f"the network {spec.network} has {len(here)} subnets in {region}")
    )
    raise OptionError(what, why=f"its subnets there: {names}", next=f"{again} --subnet {next(iter(here))}")

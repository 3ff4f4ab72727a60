"""Node pools of a Standard cluster that are added one by one: Spot, reservations, flex-start, queued, their limits.

machineType, Spot, reservation and topology of a pool cannot change; how far it grows can. So the name of a pool says
what it is, and adding one that exists changes its limits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kinetic._cluster.control_plane import LONGEST_POOL, Pool, pool_name
from kinetic._cluster.project_apis import COMPUTE, CONTAINER, ProjectApis
from kinetic._cluster.regions import zones_selling
from kinetic._cluster.resource import Change, Found, Setup, Spec
from kinetic._google.api import ApiError, Page
from kinetic._google.clusters import missing_error
from kinetic._google.locations import parent_zone, region_of
from kinetic._hardware import Placement
from kinetic._wire import NamedTuple
from kinetic.errors import CapacityError, OptionError

_WEEK = "604800s"  # the longest that a flex-start node runs


class PoolOptions(NamedTuple):
    """How a pool gets its nodes."""

    # the name of a reservation, or projects/OWNER/reservations/NAME, and /reservationBlocks/BLOCK after either for a
    # part of it; "" for none
    reservation: str = ""
    flex_start: bool = False  # nodes that Google gives when it has them, for at most seven days
    # all nodes of a job at once, by a ProvisioningRequest, as Kueue makes them; includes flex-start
    queued: bool = False
    least: int | None = None  # nodes that run always (count); None to leave it: 0 for a new pool
    most: int | None = None  # nodes that may run (count); None to leave it: one slice, or one node, for a new pool
    # which of several pools of the same kind it is, from 1: a slice of several hosts is a pool of its own
    number: int = 1

    @property
    def suffix(self) -> str:
        """Return the end of the pool's name."""
        way = "-queued" if self.queued else "-flex" if self.flex_start else "-res" if self.reservation else ""
        return way + (f"-{self.number}" if self.number > 1 else "")


def check_options(wanted: Placement, options: PoolOptions, *, slices: int = 1) -> None:
    """Refuse options that exclude each other."""
    ways = [
        name
        for name, given in (
            ("--spot", wanted.spot),
            ("--reservation", bool(options.reservation)),
            ("--flex-start", options.flex_start or options.queued),
        )
        if given
    ]
    if len(ways) > 1:
        raise OptionError(
            f"{' and '.join(ways)} exclude each other",
            why="a node comes from one of them",
            next=f"kinetic pool add {wanted.name} {ways[0]}" if ways[0] != "--reservation" else "leave one of them out",
        )
    if wanted.kind == "cpu":
        raise OptionError(
            "a node pool is added for an accelerator", why="CPU jobs run on any node", next="kinetic pool add l4"
        )
    is_slice = wanted.kind == "tpu" and wanted.hosts > 1
    if slices > 1 and not is_slice:
        raise OptionError(
            f"--slices {slices} does not fit {wanted.name}, which is not a slice of several hosts",
            why="one pool holds many nodes of it",
            next=f"kinetic pool add {wanted.name} --max {slices}",
        )
    least, most = options.least or 0, options.most
    if most is not None and (most < 1 or least > most):
        raise OptionError(
            f"--min {least} --max {most} is not possible",
            why="the largest number of nodes must be at least 1, and not below the smallest",
            next=f"kinetic pool add {wanted.name} --max {max(1, least)}",
        )
    if is_slice and most is not None and most != wanted.hosts:
        raise OptionError(
            f"--max {most} does not fit {wanted.name}, which has {wanted.hosts} hosts",
            why="a pool of a slice of several hosts is exactly that slice",
            next=f"kinetic pool add {wanted.name} --slices {max(2, most // wanted.hosts)}     for several slices",
        )


class AddedPool(Pool):
    """A pool that was asked for by name, in a cluster that exists."""

    def __init__(
        self, setup: Setup, wanted: Placement, options: PoolOptions, *, zone: str = "", account: str = ""
    ) -> None:
        super().__init__(setup, wanted, zone=zone, most_nodes=options.most or max(wanted.hosts, options.least or 0))
        self.options, self._account = options, account
        ending = options.suffix
        self.name = pool_name(wanted)[: LONGEST_POOL - len(ending)].rstrip("-") + ending
        self.key = f"pool {self.name}"

    @property
    def title(self) -> str:
        least = self.options.least or 0
        return f"node pool {self.name}: {least} to {self.most_nodes} × {self.wanted.machine_type}"

    def body(self) -> Page:
        """Return the pool as Google is asked for it."""
        body, options = super().body(), self.options
        config: Page = body["config"]
        if self._account:
            config["serviceAccount"] = self._account
        else:
            del config["serviceAccount"]
        body["autoscaling"]["totalMinNodeCount"] = options.least or 0
        if options.reservation:
            config["reservationAffinity"] = {
                "consumeReservationType": "SPECIFIC_RESERVATION",
                "key": "compute.googleapis.com/reservation-name",
                "values": [options.reservation],
            }
        if options.flex_start or options.queued:
            config |= {"flexStart": True, "maxRunDuration": _WEEK}
            config["reservationAffinity"] = {"consumeReservationType": "NO_RESERVATION"}
            body["management"] = {"autoRepair": False, "autoUpgrade": True}
            body["upgradeSettings"] = {"strategy": "SHORT_LIVED"}
        if options.queued:
            body["queuedProvisioning"] = {"enabled": True}
        return body

    def settle(self, found: Found, changes: Sequence[Change]) -> None:
        """Make it, or change it where something differs."""
        if changes:
            self.change(found, changes)
        else:
            self.make(found)

    def diff(self, found: Found) -> list[Change]:
        """Return which limits differ from those that were asked for."""
        scaling = found.page.get("autoscaling") or {}
        now = {"least": int(scaling.get("totalMinNodeCount") or 0), "most": int(scaling.get("totalMaxNodeCount") or 0)}
        asked = {"least": self.options.least, "most": self.options.most}
        return [
            Change(name, str(now[name]), str(value))
            for name, value in asked.items()
            if value is not None and value != now[name]
        ]

    def change(self, found: Found, changes: Sequence[Change]) -> None:
        """Change how far it grows."""
        scaling = dict(found.page.get("autoscaling") or {})
        wanted = {each.field: int(each.after) for each in changes}
        scaling |= {"enabled": True, "locationPolicy": "ANY"}
        scaling["totalMinNodeCount"] = wanted.get("least", int(scaling.get("totalMinNodeCount") or 0))
        scaling["totalMaxNodeCount"] = wanted.get("most", int(scaling.get("totalMaxNodeCount") or 0) or self.most_nodes)
        scaling.pop("minNodeCount", None)
        scaling.pop("maxNodeCount", None)
        path = f"{self.cluster_path}/nodePools/{self.name}:setAutoscaling"
        self.follow(self.apis.call(CONTAINER, "POST", path, {"autoscaling": scaling}), self.title)


class RemovedPool(Pool):
    """A pool that is removed by its name."""

    def __init__(self, setup: Setup, name: str) -> None:
        from kinetic._hardware import place

        super().__init__(setup, place("cpu"))
        self.name, self.key = name, f"pool {name}"

    @property
    def title(self) -> str:
        return f"node pool {self.name}"

    def remove(self, found: Found) -> None:
        """Remove it, and its placement policy if that has its name and our mark."""
        if found.page.get("status") == "STOPPING":  # by a request before this one
            self.join("DELETE_NODE_POOL", f"/nodePools/{self.name}")
        super().remove(found)
        policy = (found.page.get("placementPolicy") or {}).get("policyName")
        if policy != self.name:
            return
        path = f"compute/v1/projects/{self.spec.project}/regions/{self.setup.region}/resourcePolicies/{policy}"
        page = self.apis.read(COMPUTE, path)
        if page is not None and page.get("description") == self.spec.description:
            self.apis.write_compute("DELETE", path)


def read_cluster(apis: ProjectApis, spec: Spec) -> Page:
    """Return Google's description of the cluster; raises BackendUnavailableError if there is none."""
    path = f"v1/projects/{spec.project}/locations/{spec.location}/clusters/{spec.cluster}"
    try:
        return apis.call(CONTAINER, "GET", path)
    except ApiError as error:
        if error.status != 404:
            raise
        place = (spec.project, spec.location, spec.cluster)
        raise missing_error(apis.services[CONTAINER], error, *place) from error


def is_autopilot(cluster: Page) -> bool:
    return bool((cluster.get("autopilot") or {}).get("enabled"))


def account_of(cluster: Page) -> str:
    """Return the service account of the cluster's nodes; "" for Compute Engine's default one."""
    accounts = [str((each.get("config") or {}).get("serviceAccount") or "") for each in cluster.get("nodePools") or ()]
    return next((each for each in accounts if each and each != "default"), "")


def zone_for(apis: ProjectApis, cluster: Page, wanted: Placement) -> str:
    """Return a zone of the cluster that sells the machine; raises CapacityError if there is none."""
    machine, location = str(wanted.machine_type), str(cluster.get("location", ""))
    sold = sorted(zones_selling(apis, machine, must_answer=True), key=lambda zone: zone != parent_zone(zone))
    zones = [*(cluster.get("locations") or ()), *(zone for zone in sold if region_of(zone) == region_of(location))]
    found = next((zone for zone in zones if zone in sold), "")
    if found:
        return found
    raise CapacityError(
        f"{machine} is not sold in {region_of(location)}, where the cluster is",
        why=f"it is in {', '.join(sold) or 'no zone that this project sees'}",
        next=f"kinetic up --standard --accelerator {wanted.name} --region {sold[0]}"
        if sold
        else "kinetic accelerators",
    )


def check_reservation(apis: ProjectApis, zone: str, wanted: Placement, name: str) -> str:
    """Check that a reservation has what is wanted, and return a sentence about it.

    Raises:
        CapacityError: It does not exist, is not ready, has other machines, or too few.
    """
    written = re.fullmatch(r"(?:projects/([^/]+)/reservations/)?([^/]+)(?:/reservationBlocks/.+)?", name)
    owner, short = (written[1] or apis.project, written[2]) if written else (apis.project, name)
    page = apis.read(COMPUTE, f"compute/v1/projects/{owner}/zones/{zone}/reservations/{short}")
    list_them = f"gcloud compute reservations list --project {owner}"
    if page is None:
        raise CapacityError(f"there is no reservation {short} in {zone}", why=f"of the project {owner}", next=list_them)
    specific, whole = page.get("specificReservation") or {}, page.get("aggregateReservation")
    machine, free, needed, unit = str(wanted.machine_type), 0, wanted.hosts, "machines"
    if whole is None:
        held = str((specific.get("instanceProperties") or {}).get("machineType", ""))
        free = int(specific.get("count") or 0) - int(specific.get("inUseCount") or 0)
    else:  # of TPUs: of chips, for machines of any size; VM_FAMILY_CLOUD_TPU_LITE_POD_SLICE_CT6E
        held, machine = str(whole.get("vmFamily", "")).rpartition("_")[2].lower(), machine.partition("-")[0]
        free = _chips(whole, "reservedResources") - _chips(whole, "inUseResources")
        needed, unit = wanted.chips, "chips"
    problems = [
        f"its status is {page.get('status')}" if page.get("status") != "READY" else "",
        f"it holds {held}, not {machine}" if held != machine else "",
        f"{free} of its {unit} are free, {needed} are needed" if free < needed else "",
    ]
    if any(problems):
        why = "; ".join(filter(None, problems))
        raise CapacityError(f"the reservation {short} cannot be used for {wanted.name}", why=why, next=list_them)
    return f"the reservation {short} has {free} {machine if whole is None else f'{unit} of {machine}'} free"


def _chips(reservation: Page, field: str) -> int:
    resources = reservation.get(field) or ()
    return sum(int((each.get("accelerator") or {}).get("acceleratorCount") or 0) for each in resources)

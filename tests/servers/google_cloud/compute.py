"""Compute Engine: networks and what hangs on them, machine types, quota, reservations, capacity advice."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from servers.google_cloud import refusals
from servers.google_cloud.refusals import Refusal

if TYPE_CHECKING:
    from servers.google_cloud.cloud import Call, GoogleCloud

Page = dict[str, Any]
_KINDS = {
    "networks": "compute#network",
    "subnetworks": "compute#subnetwork",
    "routers": "compute#router",
    "firewalls": "compute#firewall",
    "resourcePolicies": "compute#resourcePolicy",
    "reservations": "compute#reservation",
    "disks": "compute#disk",
    "networkEndpointGroups": "compute#networkEndpointGroup",
    "forwardingRules": "compute#forwardingRule",
}
_LISTS = {
    "networks": "compute#networkList",
    "subnetworks": "compute#subnetworkList",
    "routers": "compute#routerList",
    "firewalls": "compute#firewallList",
    "resourcePolicies": "compute#resourcePolicyList",
    "reservations": "compute#reservationList",
    "disks": "compute#diskList",
    "networkEndpointGroups": "compute#networkEndpointGroupList",
    "forwardingRules": "compute#forwardingRuleList",
}
_FINGERPRINTED = {"subnetworks", "forwardingRules"}  # of what is stored here
WAIT_SECONDS = 1.0  # for which an answer about an operation that is waited for is kept back; Google: two minutes
_NO_REQUEST = "00000000-0000-0000-0000-000000000000"

# Where machine types are sold, by the beginning of their names: a small part of the world, enough to choose from.
ZONES_BY_FAMILY = {
    "e2": ("us-central1-a", "us-central1-b", "us-west4-a", "us-west4-b", "europe-west4-a", "us-east1-b", "us-east1-c"),
    "n2": ("us-central1-a", "us-west4-a", "europe-west4-a", "us-south1-a"),
    "n1": ("us-central1-a", "us-central1-b", "europe-west4-a"),
    "g2": ("us-central1-a", "us-central1-b", "us-west4-a", "europe-west4-a"),
    "a2": ("us-central1-a", "europe-west4-a"),
    "a3": ("us-central1-a", "europe-west4-a"),
    "ct4p": ("us-central2-b",),
    "ct5lp": ("us-west4-a", "us-central1-a", "europe-west4-b", "us-south1-a"),
    "ct5p": ("us-central1-a", "us-east5-a", "europe-west4-b"),
    "ct6e": ("us-east5-a", "europe-west4-a", "us-south1-a"),
    "tpu7x": ("us-central1-c",),
}
# Regional metrics with the limit and the use of a project that has been granted a little.
QUOTAS = {
    "CPUS": (200.0, 4.0),
    "IN_USE_ADDRESSES": (8.0, 0.0),
    "SSD_TOTAL_GB": (500.0, 0.0),
    "TPU_LITE_PODSLICE_V5": (16.0, 0.0),
    "PREEMPTIBLE_TPU_LITE_PODSLICE_V5": (64.0, 0.0),
    "TPU_PODSLICE_V4": (0.0, 0.0),
    "NVIDIA_L4_GPUS": (4.0, 0.0),
    "PREEMPTIBLE_NVIDIA_L4_GPUS": (4.0, 0.0),
    "NVIDIA_T4_GPUS": (0.0, 0.0),
    "NVIDIA_A100_GPUS": (0.0, 0.0),
}


class Place(NamedTuple):
    """Where something is: "global", "regions/R" or "zones/Z"."""

    project: str
    scope: str
    collection: str

    def link(self, name: str) -> str:
        """Return the address of something there."""
        path = f"projects/{self.project}/{self.scope}/{self.collection}/{name}"
        return f"https://www.googleapis.com/compute/v1/{path}"


class Compute:
    """What a project has of Compute Engine.

    Attributes:
        things: Networks, subnets, routers and the like, by where they are and their names.
        quotas: Limit and use by metric, the same in every region.
        regional_quotas: Limit and use by region and metric, where a region differs.
        project_quotas: Those of the whole project.
        zones_by_family: Where machine types are sold.
        obtainability: What the advice says of a machine type's family; else 0.5.
        shared: What of other projects is shown, by its path: networks and subnets.
        scopes_on_a_page: How many regions and zones one answer of a list over all of them has.
        lag: How many deletions are refused with resourceInUseByAnotherResource although nothing uses it any more.
    """

    def __init__(self, cloud: GoogleCloud) -> None:
        self._cloud = cloud
        self.things: dict[tuple[str, str, str], Page] = {}
        self.quotas = dict(QUOTAS)
        self.regional_quotas: dict[tuple[str, str], tuple[float, float]] = {}
        self.project_quotas = {"GPUS_ALL_REGIONS": (4.0, 0.0), "CPUS_ALL_REGIONS": (200.0, 4.0)}
        self.zones_by_family = dict(ZONES_BY_FAMILY)
        self.obtainability: dict[str, float] = {}
        self.lag = 0
        self.shared: dict[str, Page] = {}
        self.scopes_on_a_page = 500
        self._operations: dict[str, Page] = {}
        self._left: dict[str, int] = {}
        self._effects: dict[str, tuple[str, str, str]] = {}  # what an operation deletes when it is done
        self._busy: dict[str, str] = {}  # the operation of something, by its address
        self._requests: dict[str, str] = {}

    def names(self, collection: str) -> list[str]:
        """Return the names of all things of a kind."""
        return sorted(name for _, kind, name in self.things if kind == collection)

    def add(self, collection: str, name: str, scope: str = "global", **more: Any) -> Page:
        """Add something, as another client or GKE would."""
        place = Place(self._cloud.project, scope, collection)
        self.things[scope, collection, name] = self._made(place, {"name": name, **more})
        return self.things[scope, collection, name]

    # ------------------------------------------------------------------------------------------------------- answers

    def answer(self, call: Call) -> Page:
        project = call.parts[1]
        if project != self._cloud.project:
            return self._of_others(call)
        rest = call.parts[2:]
        if not rest:
            return self._project()
        if rest[0] == "aggregated":
            return self._aggregated(rest[1], call.query)
        if rest[0] == "regions" and len(rest) <= 2:
            return self._region(rest[1]) if len(rest) > 1 else self._regions()
        scope, rest = ("global", rest[1:]) if rest[0] == "global" else ("/".join(rest[:2]), rest[2:])
        collection, names = rest[0], rest[1:]
        if collection == "operations":
            return self._operation(names[0], waits=call.action == "wait")
        if collection == "advice":
            return self._advice(scope, names[0], call.body)
        if collection == "machineTypes":
            return self._machine_types(scope, names)
        place = Place(project, scope, collection)
        if call.verb == "GET":
            return self._find(place, names[0]) if names else self._list(place, call.query.get("filter", ""))
        request = call.query.get("requestId", "")
        if request == _NO_REQUEST:
            raise Refusal(400, "Invalid value for field 'requestId'", "invalid")
        if request and request in self._requests:
            return self._operations[self._requests[request]]
        operation = self._write(call, place, names)
        if request:
            self._requests[request] = operation["name"]
        return operation

    def _of_others(self, call: Call) -> Page:
        path = "/".join(call.parts)
        if call.verb != "GET" or path not in self.shared:
            message = f"Required 'compute.projects.get' permission for 'projects/{call.parts[1]}'"
            raise Refusal(403, message, "forbidden")
        return self.shared[path]

    def _write(self, call: Call, place: Place, names: tuple[str, ...]) -> Page:
        if call.action == "insert":
            return self._insert(place, call.body)
        if call.action == "delete":
            return self._delete(place, names[0])
        if call.action in {"patch", "update"}:
            page = self._find(place, names[0])
            self._ready(page["selfLink"])
            page.update(call.body)
            return self._started(place, names[0], call.action)
        raise Refusal(400, f"{call.method} is not played")

    def _find(self, place: Place, name: str) -> Page:
        if (place.scope, place.collection, name) not in self.things:
            raise refusals.missing(place.link(name).partition("/v1/")[2])
        page = self.things[place.scope, place.collection, name]
        if place.collection == "networks":
            subnets = [each["selfLink"] for each in self._using("subnetworks", page["selfLink"])]
            page = {**page, **({"subnetworks": subnets} if subnets else {})}
        return page

    def _list(self, place: Place, filter_: str) -> Page:
        found = [page for (scope, kind, _), page in self.things.items() if (scope, kind) == place[1:]]
        found = [page for page in found if _fits(page, filter_)]
        return {"kind": _LISTS[place.collection], "id": "list", **({"items": found} if found else {})}

    def _aggregated(self, collection: str, query: dict[str, str]) -> Page:
        filter_ = query.get("filter", "")
        if collection == "machineTypes":
            return self._all_machine_types(filter_)
        items: dict[str, Page] = {}
        for (scope, kind, _), page in self.things.items():
            if kind == collection and _fits(page, filter_):
                items.setdefault(scope, {}).setdefault(collection, []).append(page)
        begin = int(query.get("pageToken") or 0)
        scopes = sorted(items.items())
        shown = dict(scopes[begin : begin + self.scopes_on_a_page])
        more = {"nextPageToken": str(begin + len(shown))} if begin + len(shown) < len(scopes) else {}
        return {"kind": f"{_KINDS[collection]}AggregatedList", "id": "list", "items": shown, **more}

    # -------------------------------------------------------------------------------------------------------- writes

    def _insert(self, place: Place, body: Page) -> Page:
        name = body["name"]
        if (place.scope, place.collection, name) in self.things:
            path = place.link(name).partition("/v1/")[2]
            raise Refusal(409, f"The resource '{path}' already exists", "alreadyExists")
        if network := body.get("network"):
            self._depend(network)
        if place.collection == "subnetworks":
            self._check_range(body)
        self.things[place.scope, place.collection, name] = self._made(place, body)
        return self._started(place, name, "insert")

    def _made(self, place: Place, body: Page) -> Page:
        page = {
            **body,
            "kind": _KINDS[place.collection],
            "id": str(7 * 10**18 + next(self._cloud.ids)),
            "selfLink": place.link(body["name"]),
            "creationTimestamp": "2026-11-23T00:00:00.000-08:00",
        }
        if place.scope.startswith("regions/"):
            page["region"] = f"https://www.googleapis.com/compute/v1/projects/{place.project}/{place.scope}"
        if place.scope.startswith("zones/"):
            page["zone"] = f"https://www.googleapis.com/compute/v1/projects/{place.project}/{place.scope}"
        if place.collection in _FINGERPRINTED:
            page["fingerprint"] = "c29tZXRoaW5n"
        if place.collection == "reservations":
            page["status"] = body.get("status", "READY")
        return {name: self._full(value) if name in {"network", "subnetwork"} else value for name, value in page.items()}

    def _full(self, link: str) -> str:
        return "https://www.googleapis.com/compute/v1/" + link.rpartition("/v1/")[2]

    def _check_range(self, body: Page) -> None:
        network, cidr = self._full(body["network"]), body["ipCidrRange"]
        for each in self._using("subnetworks", network):
            if each["ipCidrRange"] == cidr:
                raise Refusal(
                    400,
                    f"Invalid IPCidrRange: {cidr} conflicts with existing subnetwork '{each['name']}'.",
                    "invalid",
                )

    def _depend(self, link: str) -> None:
        """Refuse what hangs on something that does not exist, or is not ready."""
        path = link.rpartition("/v1/")[2]
        if path not in {page["selfLink"].rpartition("/v1/")[2] for page in self.things.values()}:
            raise Refusal(404, f"The resource '{path}' was not found", "notFound")
        operation = self._busy.get(path, "")
        if operation and self._is_unfinished(operation):
            raise Refusal(400, f"The resource '{path}' is not ready", "resourceNotReady")

    def _delete(self, place: Place, name: str) -> Page:
        page = self._find(place, name)
        link = page["selfLink"]
        self._ready(link)
        users = [each["selfLink"] for each in self.things.values() if each.get("network") == link]
        users += self._cloud.container.users_of(link.rpartition("/v1/")[2])
        lags, self.lag = self.lag > 0, max(0, self.lag - 1)
        if users or lags:
            user = users[0].rpartition("/v1/")[2] if users else f"projects/{place.project}/zones/x/instances/y"
            path = link.rpartition("/v1/")[2]
            message = f"The {place.collection.removesuffix('s')} resource '{path}' is already being used by '{user}'"
            raise Refusal(400, message, "resourceInUseByAnotherResource")
        operation = self._started(place, name, "delete")
        self._effects[operation["name"]] = (place.scope, place.collection, name)
        return operation

    def _ready(self, link: str) -> None:
        operation = self._busy.get(link.rpartition("/v1/")[2], "")
        if operation and self._is_unfinished(operation):
            path = link.rpartition("/v1/")[2]
            raise Refusal(400, f"The resource '{path}' is not ready", "resourceNotReady")

    def _is_unfinished(self, operation: str) -> bool:
        """Return whether something is still being changed; an operation advances although its client is gone."""
        if self._operations[operation]["status"] == "DONE":
            return False
        self._operation(operation)
        return True

    def _using(self, collection: str, network: str) -> list[Page]:
        return [
            page for (_, kind, _), page in self.things.items() if kind == collection and page.get("network") == network
        ]

    # ---------------------------------------------------------------------------------------------------- operations

    def _started(self, place: Place, name: str, action: str) -> Page:
        target = place.link(name)
        made = f"operation-{next(self._cloud.ids)}"
        page: Page = {
            "kind": "compute#operation",
            "id": str(next(self._cloud.ids)),
            "name": made,
            "operationType": action,
            "targetLink": target,
            "status": "RUNNING",
            "progress": 0,
            "user": self._cloud.account,
            "selfLink": Place(place.project, place.scope, "operations").link(made),
        }
        self._operations[made] = page
        self._left[made] = self._cloud.pending
        self._busy[target.rpartition("/v1/")[2]] = made
        return page

    def _operation(self, name: str, *, waits: bool = False) -> Page:
        if name not in self._operations:
            raise refusals.missing(f"operations/{name}")
        page = self._operations[name]
        time.sleep(WAIT_SECONDS if waits and page["status"] != "DONE" else 0)
        fate = self._cloud.fates.get(f"{page['targetLink'].split('/')[-2]}.{page['operationType']}", "")
        if page["status"] == "DONE":
            return page
        if self._left[name] > 0 or fate == "never":
            self._left[name] -= 1
            return page
        page |= {"status": "DONE", "progress": 100}
        kind, message = fate if isinstance(fate, tuple) else (fate, "Internal error.")
        if kind == "vanish":
            if name in self._effects:
                self.things.pop(self._effects.pop(name), None)
            del self._operations[name]
            self._operations[name] = page  # it is done, but who asks again does not learn it
            raise refusals.missing(f"operations/{name}")
        if kind == "error":
            page["error"] = {"errors": [{"code": "INTERNAL_ERROR", "message": message}]}
            page |= {"httpErrorStatusCode": 500, "httpErrorMessage": "INTERNAL SERVER ERROR"}
            if page["operationType"] == "insert":
                self.things = {key: each for key, each in self.things.items() if each["selfLink"] != page["targetLink"]}
        elif name in self._effects:
            self.things.pop(self._effects.pop(name), None)
        return page

    # ------------------------------------------------------------------------------------- quota, machines, capacity

    def _project(self) -> Page:
        quotas = [_quota(metric, *each) for metric, each in self.project_quotas.items()]
        return {"kind": "compute#project", "id": self._cloud.number, "name": self._cloud.project, "quotas": quotas}

    @property
    def regions(self) -> dict[str, list[str]]:
        """Return the zones of every region."""
        zones = sorted({zone for each in self.zones_by_family.values() for zone in each})
        found: dict[str, list[str]] = {}
        for zone in zones:
            found.setdefault(zone.rpartition("-")[0], []).append(zone)
        return found

    def _regions(self) -> Page:
        return {"kind": "compute#regionList", "id": "list", "items": [self._region(each) for each in self.regions]}

    def _region(self, name: str) -> Page:
        if name not in self.regions:
            raise refusals.missing(f"projects/{self._cloud.project}/regions/{name}")
        link = f"https://www.googleapis.com/compute/v1/projects/{self._cloud.project}"
        metrics = {
            **self.quotas,
            **{metric: each for (region, metric), each in self.regional_quotas.items() if region == name},
        }
        return {
            "kind": "compute#region",
            "id": str(1000 + list(self.regions).index(name)),
            "name": name,
            "status": "UP",
            "selfLink": f"{link}/regions/{name}",
            "zones": [f"{link}/zones/{zone}" for zone in self.regions[name]],
            "quotas": [_quota(metric, *each) for metric, each in metrics.items()],
        }

    def _machine_types(self, scope: str, names: tuple[str, ...]) -> Page:
        zone = scope.rpartition("/")[2]
        sold = [family for family, zones in self.zones_by_family.items() if zone in zones]
        if not names:
            return {
                "kind": "compute#machineTypeList",
                "id": "list",
                "items": [_machine(f"{each}-standard-4", zone) for each in sold],
            }
        if names[0].partition("-")[0] not in sold:
            raise refusals.missing(f"projects/{self._cloud.project}/{scope}/machineTypes/{names[0]}")
        return _machine(names[0], zone)

    def _all_machine_types(self, filter_: str) -> Page:
        """Answer by family: what a filter does not name is left out, for there are thousands."""
        names = re.findall(r"name\s*(?:=|eq|:)\s*\"?([a-z0-9-]+)", filter_)
        items: dict[str, Page] = {}
        for zone in sorted({zone for each in self.zones_by_family.values() for zone in each}):
            found = [name for name in names if zone in self.zones_by_family.get(name.partition("-")[0], ())]
            if found:
                items[f"zones/{zone}"] = {"machineTypes": [_machine(name, zone) for name in found]}
            else:
                warning = {"code": "NO_RESULTS_ON_PAGE", "message": f"There are no results for scope 'zones/{zone}'"}
                items[f"zones/{zone}"] = {"warning": warning}
        return {"kind": "compute#machineTypeAggregatedList", "id": "list", "items": items}

    def _advice(self, scope: str, action: str, body: Page) -> Page:
        region = scope.rpartition("/")[2]
        if action != "capacity":
            raise Refusal(400, f"advice.{action} is not played")
        selections = body["instanceFlexibilityPolicy"]["instanceSelections"].values()
        machine = next(iter(selections))["machineTypes"][0]
        zones = [
            zone
            for zone in self.zones_by_family.get(machine.partition("-")[0], ())
            if zone.rpartition("-")[0] == region
        ]
        if not zones:
            raise Refusal(400, f"The machine type {machine} is not available in {region}.", "invalid")
        score = self.obtainability.get(machine.partition("-")[0], 0.5)
        link = f"https://www.googleapis.com/compute/v1/projects/{self._cloud.project}/zones/{zones[0]}"
        shard = {
            "zone": link,
            "machineType": machine,
            "instanceCount": int(body["size"]),
            "provisioningModel": body["instanceProperties"]["scheduling"]["provisioningModel"],
        }
        scores = {"obtainability": score, "estimatedUptime": "7200s"}
        return {"recommendations": [{"scores": scores, "shards": [shard]}]}


def _quota(metric: str, limit: float, usage: float) -> Page:
    return {"metric": metric, "limit": limit, "usage": usage}


def _machine(name: str, zone: str) -> Page:
    digits = re.findall(r"[0-9]+", name.rpartition("-")[2]) or ["4"]
    return {"kind": "compute#machineType", "name": name, "zone": zone, "guestCpus": int(digits[0]), "memoryMb": 16384}


def _fits(page: Page, filter_: str) -> bool:
    """Return whether something fits a filter of equalities, joined by AND, such as ``name=a AND network=b``."""
    for each in filter(None, re.split(r"\s+AND\s+|\)\s*\(", filter_.strip("()"))):
        match = re.fullmatch(r"\s*([a-zA-Z.-]+)\s*(=|eq|!=|ne|:)\s*\"?([^\"]*)\"?\s*", each)
        if match is None:
            raise Refusal(400, f"Invalid value for field 'filter': '{filter_}'.", "invalid")
        value: Any = page
        for word in match[1].split("."):
            value = value.get(word, "") if isinstance(value, dict) else ""
        same = match[3].rstrip("*") in str(value) if match[2] == ":" else re.fullmatch(match[3], str(value)) is not None
        if same == (match[2] in {"!=", "ne"}):
            return False
    return True

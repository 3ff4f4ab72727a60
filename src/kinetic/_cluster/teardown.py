"""What ``kinetic down`` removes: the list of ``up`` backwards. What has not our mark is named, and never removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from kinetic._backends.kube.client import NODE, POD
from kinetic._backends.kube.job_manifests import JOB_LABEL
from kinetic._cluster.accounts import Billing, Project
from kinetic._cluster.control_plane import Cluster, Pool
from kinetic._cluster.inventory import Inventory, read_all, resources_of
from kinetic._cluster.jobset import JobSet
from kinetic._cluster.namespace import Namespace, Quota
from kinetic._cluster.network import Network
from kinetic._cluster.plan import Step, levels_of
from kinetic._cluster.project_apis import COMPUTE, ProjectApis, explaining, ignoring, pages
from kinetic._cluster.resource import Found, Resource, Setup, Spec
from kinetic._cluster.storage import Bucket
from kinetic._config import profiles
from kinetic._google.api import ApiError, Page
from kinetic._output.format import count_text, names_text, size_text
from kinetic._stores.parallel import in_parallel
from kinetic._wire import NamedTuple, dataclass
from kinetic.errors import KineticError

_AT_ONCE = 6
_GONE = Found("missing")
_NAMED = 5  # jobs in a line
_GONE_SECONDS = 90.0  # for which accounts may still be shown that were removed, and namespaces are being removed
_PAUSE_SECONDS = 5.0

Action = Literal["remove", "keep", "foreign", "with the cluster"]
_SIGNS = {"remove": "-", "keep": "=", "foreign": "!", "with the cluster": "-"}
_AGGREGATED = {
    "forwardingRules": "forwarding rule",
    "networkEndpointGroups": "network endpoint group",
    "disks": "disk",
    "resourcePolicies": "placement policy",
}
_CLUSTER_LABEL = "goog-k8s-cluster-name"


class Leftover(NamedTuple):
    """One thing that is left."""

    kind: str  # "firewall", "forwarding rule", "network endpoint group", "disk", "placement policy"
    name: str
    path: str  # in Compute Engine

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Removal(NamedTuple):
    """One thing that exists, and what becomes of it."""

    resource: Resource
    found: Found
    action: Action
    why: str = ""

    def __str__(self) -> str:
        return f"  {_SIGNS[self.action]} {self.resource.title}" + (f": {self.why}" if self.why else "")


class Contents(NamedTuple):
    """What is in a cluster and its bucket, and is interrupted or lost with them."""

    # ids of jobs that wait or run, in all namespaces, or in the one that goes; None where the cluster does not say
    jobs: tuple[str, ...] | None = None
    nodes: int | None = None  # of the cluster (count); None as above, and where it stays
    objects: int | None = None  # in the bucket, old versions included (count); None where Google does not say
    size_bytes: int = 0  # of all these objects
    is_whole: bool = True  # False where the bucket has more objects than were read

    @property
    def cluster_text(self) -> str:
        if self.jobs is None:
            return "which jobs run on it is not known: it does not answer"
        jobs = f"{count_text(len(self.jobs), 'job')} {'in' if self.nodes is None else 'on'} it"
        if self.jobs:
            jobs += f", interrupted and not resumed ({names_text(self.jobs, _NAMED)})"
        return jobs if self.nodes is None else f"{jobs}; {count_text(self.nodes, 'node')}"

    @property
    def bucket_text(self) -> str:
        if self.objects is None:
            return "its size is not known: this account may not list it"
        more = "" if self.is_whole else "more than "
        return f"{more}{count_text(self.objects, 'object')}, {size_text(self.size_bytes)}"


@dataclass(frozen=True)
class RemovalPlan:
    """All that exists of a cluster, and what becomes of it."""

    setup: Setup
    removals: tuple[Removal, ...]
    left: tuple[Leftover, ...]  # what others left on our network, and the disks of the cluster
    delete_data: bool  # whether the bucket and disks of volumes go as well
    contents: Contents = Contents()  # what is in the cluster and the bucket

    @property
    def to_remove(self) -> list[Removal]:
        return [each for each in self.removals if each.action == "remove"]

    @property
    def kept_store(self) -> str:
        """The address of a bucket of ours that stays, with what is in it; "" where there is none."""
        is_kept = any(isinstance(each.resource, Bucket) and each.action == "keep" for each in self.removals)
        return f"gs://{self.setup.spec.bucket}" if is_kept and self.contents.objects != 0 else ""

    @property
    def swept(self) -> list[Leftover]:
        """What of the leftovers is removed."""
        is_ours = any(isinstance(each.resource, Network) for each in self.to_remove)
        swept = {"disk": self.delete_data, "placement policy": True}
        return [each for each in self.left if swept.get(each.kind, is_ours)]

    def lines(self) -> list[str]:
        """Write the plan."""
        spec = self.setup.spec
        lines = [f"cluster {spec.cluster} of the project {spec.project}"]
        lines += [self._line(each) for each in self.removals]
        lines += [f"  {'-' if each in self.swept else '='} {each}" for each in self.left]
        return lines if len(lines) > 1 else [*lines, "there is nothing to remove"]

    def _line(self, removal: Removal) -> str:
        goes = removal.action == "remove" and removal.found.state == "ours"
        is_cluster = isinstance(removal.resource, Cluster | Namespace) and goes  # one of the two
        is_bucket = isinstance(removal.resource, Bucket) and removal.found.state == "ours"
        known = self.contents.cluster_text if is_cluster else self.contents.bucket_text if is_bucket else ""
        return str(removal) + (f"{'; ' if removal.why else ': '}{known}" if known else "")

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain JSON."""
        return {
            "project": self.setup.project,
            "cluster": self.setup.spec.cluster,
            "location": self.setup.location,
            "removals": [
                {"key": each.resource.key, "title": each.resource.title, "action": each.action, "why": each.why}
                for each in self.removals
            ],
            "contents": self.contents._asdict(),
            "leftovers": [each._asdict() | {"removed": each in self.swept} for each in self.left],
        }


def plan_removal(setup: Setup, *, delete_data: bool = False, keep_cluster: bool = False) -> RemovalPlan:
    """Read everything, and say what would be removed; nothing is written.

    Args:
        setup: With everything that `up` can make in its list.
        delete_data: Whether the bucket goes as well, with every result in it.
        keep_cluster: Whether the cluster stays, and with it what its nodes need; as a joined cluster always does.
    """
    resources = _everything(setup)
    # What is in a cluster goes with it: one that does not answer any more, or not to this account, can be removed.
    inventory = read_all(setup, resources, must_answer=lambda found: keep_cluster or found.state == "foreign")
    cluster = inventory.of("cluster")
    stays = keep_cluster or cluster.state == "foreign"
    removals = [
        _removal(each, found, inventory, delete_data=delete_data, stays=stays, cluster=cluster)
        for each in resources
        # What was given is others', whatever is said about it; of what is missing, a binding may be left.
        if (found := inventory.of(each.key)).state != "given" and (found.state != "missing" or found.why)
    ]
    with explaining("list what is left on the network", setup.project):
        left = _leftovers(setup.apis, setup.spec) if not stays else []
    if cluster.state != "missing":  # its own firewalls go with it
        own = f"gke-{setup.spec.cluster}-"
        left = [each for each in left if not (each.kind == "firewall" and each.name.startswith(own))]
    return RemovalPlan(setup, tuple(removals), tuple(left), delete_data, _contents(setup, inventory, stays=stays))


def _contents(setup: Setup, inventory: Inventory, *, stays: bool) -> Contents:
    """Read what is in a cluster and a bucket of ours; what may not be read stops nothing."""
    found = Contents()
    if inventory.of("namespace" if stays else "cluster").state == "ours" and inventory.answers:
        with suppress(KineticError):
            client = setup.client()
            nodes = None if stays else len(client.list(NODE).objects)
            pods = client.list(POD if stays else POD._replace(namespaced=False), JOB_LABEL).objects
            open_ = [each for each in pods if (each.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}]
            jobs = tuple(sorted({str(each["metadata"]["labels"][JOB_LABEL]) for each in open_}))
            found = found._replace(jobs=jobs, nodes=nodes)
    bucket = next((each for each in inventory.resources if isinstance(each, Bucket)), None)
    if bucket is not None and inventory.of("bucket").state == "ours":
        with suppress(ApiError, KineticError):
            objects, size, is_whole = bucket.measure()
            found = found._replace(objects=objects, size_bytes=size, is_whole=is_whole)
    return found


def _everything(setup: Setup) -> list[Resource]:
    """Return the list with what is optional, too."""
    listed = resources_of(setup)
    for kind in (Quota, JobSet):
        if not any(isinstance(each, kind) for each in listed):
            listed.append(kind(setup))
    # Pools go with their cluster; who pays stays.
    return [each for each in listed if not isinstance(each, Pool | Billing | Project)]


def _removal(
    resource: Resource, found: Found, inventory: Inventory, *, delete_data: bool, stays: bool, cluster: Found
) -> Removal:
    if found.state == "foreign":
        return Removal(resource, found, "foreign", found.why)
    if isinstance(resource, Bucket) and not delete_data:
        return Removal(resource, found, "keep", "results are kept; remove them with --delete-data")
    if resource.in_cluster and not stays and cluster.state != "missing":
        return Removal(resource, found, "with the cluster", "goes with the cluster")
    needed = {"cluster", *_below(inventory.resources, "cluster")}
    if stays and resource.key in needed and not isinstance(resource, Bucket):
        return Removal(
            resource, found, "keep", "the cluster stays" if resource.key == "cluster" else "the cluster needs it"
        )
    return Removal(resource, found, "remove", found.why)


def _below(resources: Iterable[Resource], key: str) -> set[str]:
    """Return the keys of everything that one of some resources needs, at any depth."""
    needs = {each.key: each.needs for each in resources}
    found: set[str] = set()
    open_ = [*needs.get(key, ())]
    while open_:
        each = open_.pop()
        if each not in found:
            found.add(each)
            open_ += needs.get(each, ())
    return found


class Remains(NamedTuple):
    """What is left after a removal."""

    names: list[str]  # of everything of ours that was to be removed, and is still there
    errors: list[KineticError]  # why, in the order in which they happened


def remove(plan: RemovalPlan, report: Callable[[str], object] = lambda _: None) -> Remains:
    """Remove what the plan says, backwards; what a thing needs stays as long as the thing cannot be removed."""
    setup = plan.setup
    errors: list[KineticError] = []
    blocked: set[str] = set()
    wanted = {each.resource.key: each for each in plan.to_remove}
    steps = [Step(each.resource, each.found, "make") for each in plan.to_remove]
    for level in reversed(levels_of(steps)):
        ready = [wanted[each.resource.key] for each in level if each.resource.key not in blocked]
        if any(isinstance(each.resource, Network) for each in ready):
            errors += _sweep(plan, report)
        tasks = [partial(_remove, setup, each) for each in ready]
        for removal, error in in_parallel(None, tasks, limit=_AT_ONCE):
            if error is None:
                report(removal.resource.title)
                continue
            errors.append(error)
            blocked |= _below((each.resource for each in plan.removals), removal.resource.key)
    if not blocked and not any(isinstance(each.resource, Network) for each in wanted.values()):
        errors += _sweep(plan, report)
    names, waited = _names_left(plan), 0.0
    while names and not errors and waited < _GONE_SECONDS:
        setup.report("waiting until Google shows no more of it")
        setup.apis.sleep(_PAUSE_SECONDS)
        waited += _PAUSE_SECONDS
        names = _names_left(plan)
    return Remains(names, errors)


def _sweep(plan: RemovalPlan, report: Callable[[str], object]) -> list[KineticError]:
    errors: list[KineticError] = []
    for each in plan.swept:
        try:
            with explaining(f"remove the {each}", plan.setup.project), ignoring(404):
                plan.setup.apis.write_compute("DELETE", each.path)
            report(str(each))
        except KineticError as error:
            errors.append(error)
    return errors


def _remove(setup: Setup, removal: Removal) -> tuple[Removal, KineticError | None]:
    try:
        with explaining(f"remove the {removal.resource.title}", setup.project):
            removal.resource.remove(removal.found)
    except KineticError as error:
        return removal, error
    return removal, None


def _names_left(plan: RemovalPlan) -> list[str]:
    """Read what was to be removed once more, and return what is still there."""
    cluster_goes = any(isinstance(each.resource, Cluster) for each in plan.to_remove)
    some = [each.resource for each in plan.to_remove if not (each.resource.in_cluster and cluster_goes)]

    def look(resource: Resource) -> tuple[Resource, Found]:
        try:
            return resource, resource.read()
        except (ApiError, KineticError):
            return resource, Found("failed", {}, "it cannot be read")

    found = dict(in_parallel(None, [partial(look, each) for each in some], limit=_AT_ONCE))
    names = [each.title for each in some if found.get(each, _GONE).state not in {"missing", "given"}]
    kinds = {each.path for each in plan.swept}
    try:
        names += [str(each) for each in _leftovers(plan.setup.apis, plan.setup.spec) if each.path in kinds]
    except (ApiError, KineticError):
        names += [str(each) for each in plan.swept]
    return names


def forget_profiles(setup: Setup, environ: Mapping[str, str]) -> list[str]:
    """Remove the profiles that lead to the cluster; return their names."""
    spec = setup.spec
    named = [
        name
        for name, each in profiles.load(environ).saved.items()
        if (each.project, each.cluster) == (spec.project, spec.cluster) and not each.context
    ]
    for name in named:
        profiles.remove(environ, name)
    return named


# ------------------------------------------------------------------------------------- what others left on our network
# A Service of type LoadBalancer leaves firewalls, forwarding rules and network endpoint groups, which keep the network
# from being removed; a volume leaves a disk. They have no mark, and are removed only where they are on a network that
# is ours. Disks may hold data: they are removed only together with the data of the bucket. Placement policies of our
# pools have our mark.


def _leftovers(apis: ProjectApis, spec: Spec) -> list[Leftover]:
    """Return what is on our own network, and the disks and placement policies of our cluster."""
    base, network = f"compute/v1/projects/{spec.project}", f"/networks/{spec.own_name}"

    def listed(path: str) -> list[Page]:
        return [*pages(lambda query: apis.read(COMPUTE, f"{base}/{path}", **query))]

    found = [
        Leftover("firewall", str(each["name"]), f"{base}/global/firewalls/{each['name']}")
        for page in listed("global/firewalls")
        for each in page.get("items") or ()
        if str(each.get("network", "")).endswith(network)
    ]
    for collection, kind in _AGGREGATED.items():
        try:
            found_pages = listed(f"aggregated/{collection}")
        except ApiError as error:
            if error.status != 403 or collection != "resourcePolicies":  # few clusters have one, and it costs nothing
                raise
            continue
        for scope, items in [item for page in found_pages for item in (page.get("items") or {}).items()]:
            for each in items.get(collection) or ():
                is_ours = {
                    "disks": (each.get("labels") or {}).get(_CLUSTER_LABEL) == spec.cluster,
                    "resourcePolicies": each.get("description") == spec.description,
                }
                if is_ours.get(collection, str(each.get("network", "")).endswith(network)):
                    found.append(Leftover(kind, str(each["name"]), f"{base}/{scope}/{collection}/{each['name']}"))
    return found

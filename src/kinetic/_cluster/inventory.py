"""The one list of what a cluster consists of, and the reads of all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kinetic._cluster.accounts import Billing, NodeAccount, NodeRole, Project, Services
from kinetic._cluster.control_plane import Cluster, Pool
from kinetic._cluster.jobset import JobSet
from kinetic._cluster.namespace import BuilderAccount, FollowerBinding, FollowerRole, Namespace, Quota, ServiceAccount
from kinetic._cluster.network import Network, Router, Subnet
from kinetic._cluster.project_apis import explaining
from kinetic._cluster.resource import Found, Resource, Setup
from kinetic._cluster.storage import Access, Bucket, BucketAccess, BuilderBucketAccess, Repository, RepositoryAccess
from kinetic._google.locations import region_of
from kinetic._stores.parallel import in_parallel
from kinetic._wire import NamedTuple
from kinetic.errors import KineticError

_AT_ONCE = 12  # requests
_THERE = Found("given")


class Inventory(NamedTuple):
    """How everything is now, by the key of each resource, in the order of the list."""

    resources: tuple[Resource, ...]
    found: dict[str, Found]
    answers: bool = True  # whether the cluster said what is in it; else that counts as missing

    def of(self, key: str) -> Found:
        return self.found.get(key, Found("missing"))


def resources_of(setup: Setup) -> list[Resource]:
    """Return the list, in an order in which it can be made; `down` goes through it backwards."""
    spec = setup.spec
    listed: list[Resource] = [Project(setup)] if spec.create_project else []
    listed += [Billing(setup), Services(setup)]
    before: list[str] = ["services"]
    if not spec.network:
        listed += [Network(setup), Subnet(setup)]
        before.append("subnet")
        if not spec.public_nodes:
            listed.append(Router(setup))
            before.append("router")
    if not spec.node_account:
        listed += [NodeAccount(setup), NodeRole(setup)]
        before.append("node-role")
    listed.append(Bucket(setup))
    if spec.registry:
        listed.append(Repository(setup))
    listed.append(Cluster(setup, tuple(before)))
    if spec.standard:
        listed += [Pool(setup, each) for each in spec.hardware if each.kind != "cpu"]
    listed += [BucketAccess(setup), Namespace(setup), ServiceAccount(setup)]
    listed += [FollowerRole(setup), FollowerBinding(setup)]
    if spec.registry:
        listed += [BuilderAccount(setup), BuilderBucketAccess(setup), RepositoryAccess(setup)]
    if spec.limits:
        listed.append(Quota(setup))
    if spec.jobset:
        listed.append(JobSet(setup))
    known = {each.key for each in listed}
    for each in listed:
        each.needs = tuple(key for key in each.needs if key in known)
    return listed


def read_all(
    setup: Setup, resources: Sequence[Resource], *, must_answer: Callable[[Found], bool] = lambda _: True
) -> Inventory:
    """Read everything: what is found without a region, what needs one, and what is inside of a running cluster.

    The region is that of the cluster, else of the subnet or the bucket that an interrupted `up` left, else the one that
    the user named; it stays "" where nothing says one, and nothing of ours is in a region then.
    ``must_answer`` says whether it is an error that the cluster, as it was found, does not say what is in it.
    """
    found: dict[str, Found] = {}

    def read(some: Sequence[Resource]) -> None:
        def task(each: Resource) -> tuple[str, Found]:
            with explaining(f"show the {each.title}", setup.project):
                return each.key, each.read()

        for key, state in in_parallel(None, (partial(task, each) for each in some), limit=_AT_ONCE):
            found[key] = state

    read([each for each in resources if isinstance(each, Project)])
    if found.get("project", _THERE).state == "missing":
        return nothing(setup, resources)
    # The member of a binding has the number of the project, which the services tell.
    first = [each for each in resources if each.key not in found and not each.is_local and not isinstance(each, Access)]
    read(first)
    if not setup.location or found["cluster"].state == "missing":
        setup.location = _left_region(found, setup.location) or setup.location
    second = [each for each in resources if each.key not in found and not each.in_cluster]
    if not setup.location:
        found |= {each.key: Found("missing") for each in second if each.is_local}
        second = [each for each in second if not each.is_local]
    read(second)
    inside = [each for each in resources if each.in_cluster]
    answers = found["cluster"].state in {"ours", "foreign"}
    if answers:
        try:
            read(inside)
        except KineticError:
            if must_answer(found["cluster"]):
                raise
            answers = False
    if not answers:
        found |= {each.key: Found("given" if each.key == "namespace" and setup.spec.namespace == "default"
                                  else "missing") for each in inside}  # fmt: skip
    return Inventory(tuple(resources), {each.key: found[each.key] for each in resources}, answers)


def nothing(setup: Setup, resources: Sequence[Resource]) -> Inventory:
    """Return what is there before anything is made; nothing is asked."""
    found = {each.key: Found("missing") for each in resources}
    for each in resources:
        if isinstance(each, Services):
            found[each.key] = Found("missing", {"off": each.names})
    if setup.spec.namespace == "default":
        found["namespace"] = Found("given")
    return Inventory(tuple(resources), found)


def _left_region(found: dict[str, Found], location: str) -> str:
    """Return where an interrupted `up` left a subnet or a bucket of ours; "" for a location that is in that region."""
    network, bucket = found.get("network", Found("missing")), found.get("bucket", Found("missing"))
    regions = []
    if network.state == "ours":
        links = [str(each) for each in network.page.get("subnetworks") or ()]
        regions += [link.partition("/regions/")[2].partition("/")[0] for link in links]
    if bucket.state == "ours":
        regions.append(str(bucket.page.get("location", "")).lower())
    region = next(filter(None, regions), "")
    return "" if location and region_of(location) == region else region

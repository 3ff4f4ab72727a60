"""Machines for a job: which nodes could take it, and what to expect where none can.

enough nodes that fit                        nothing to say
none, and Google tells of the node pools     what they may grow to; refused where they never can
none, on a cluster that grows                a sentence: the job waits until a node is made
none, on any other cluster                   a sentence: the job waits, and for which labels
we may not list nodes                        no conclusion from nodes
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._backends.kube import containers, facts, serving
from kinetic._backends.kube.client import PAGE
from kinetic._backends.kube.kinds import CONFIG_MAP, NODE
from kinetic._backends.kube.refusals import page_of
from kinetic._backends.kube.request import JobRequest
from kinetic._gcp.hardware import is_tolerated
from kinetic.errors import CapacityError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client
    from kinetic._gcp.pools import Pools
    from kinetic._hardware.placement import Placement
    from kinetic._settings.cluster import ClusterSettings

_GKE_POOL = "cloud.google.com/gke-nodepool"
_STATUS = CONFIG_MAP.path("kube-system", "cluster-autoscaler-status")  # where the upstream autoscaler reports
_KARPENTER = "karpenter.sh"
_AWAY = frozenset({"NoSchedule", "NoExecute"})


class Seen(NamedTuple):
    """What the nodes say.

    Attributes:
        fitting: Nodes that could take a pod of the job, were they idle (count), up to as many as it needs.
        labelled: Nodes with the labels (count), up to the same.
    """

    fitting: int
    labelled: int


def check(
    client: Client,
    placement: Placement,
    settings: ClusterSettings,
    pools: Pools | Callable[[], Pools | None] | None = None,
) -> tuple[str, ...]:
    """Return what to tell of the machines for a job.

    Args:
        client: Of the cluster.
        placement: The hardware.
        settings: May name other labels than Google's.
        pools: Of a cluster of GKE, where known, or what asks for them.

    Raises:
        CapacityError: The cluster can never have such machines.
    """
    by_count = settings.node_selector is not None or selects_by_count(client, placement)
    labels = _labels(placement, settings, by_count=by_count)
    if not labels and placement.resource is None:
        return ()  # any node will do, and a cluster without a single one makes them when they are needed
    seen = _seen(client, placement, labels)
    if seen is not None and seen.fitting >= placement.hosts:
        return () if by_count else (_without_count(placement, labels),)
    if settings.node_selector is None and placement.kind != "cpu":
        known = pools() if callable(pools) else pools
        if known is not None:
            return _by_pools(client, placement, seen, known)
    return () if seen is None else (_waiting(client, placement, labels, seen),)


def selects_by_count(client: Client, placement: Placement) -> bool:
    """Say whether the pods of a GPU job may ask for a number of GPUs by its label: some clusters do not set it.

    Nodes that have the accelerator's label and none with a number decide; where there are no such nodes, or we may not
    list them, the label is asked for, as Google's nodes have it.
    """
    if placement.kind != "gpu":
        return True

    def look() -> bool:
        seen = _seen(client, placement, _labels(placement))
        if seen is None or seen.labelled:
            return True
        labels = _labels(placement, by_count=False)
        others = list(_nodes(client, labels, PAGE))
        return not others or any(containers.COUNT_LABEL in node["metadata"].get("labels", {}) for node in others)

    about = ("gpu-count", placement.chips_per_host, tuple(sorted(placement.node_selector.items())))
    return facts.of(client).ask(about, look, lambda _: facts.BRIEF)


def _without_count(placement: Placement, labels: Mapping[str, str]) -> str:
    written = ", ".join(f"{name}={value}" for name, value in labels.items())
    return (
        f"{placement.name}: the nodes with {written} do not say how many GPUs they have (they lack the label "
        f"{containers.COUNT_LABEL}); the job takes any with {placement.resource_count} free"
    )


def _by_pools(client: Client, placement: Placement, seen: Seen | None, pools: Pools) -> tuple[str, ...]:
    verdict = pools.can_give(placement)
    if verdict.word != "impossible":
        if seen is None:
            return ()
        then = f": {verdict.next}" if verdict.next else ""
        lacking = f"nodes for {placement.name} that are up now: {seen.fitting} of {placement.hosts}"
        return (f"{lacking}; {verdict.why}{then}",)
    facts.of(client).forget(_key(placement, _labels(placement)))  # to be looked for again once a pool is made
    raise CapacityError(f"{client.about} has no machines for {placement.name}", why=verdict.why, next=verdict.next)


def _waiting(client: Client, placement: Placement, labels: Mapping[str, str], seen: Seen) -> str:
    written = ", ".join(f"{name}={value}" for name, value in labels.items())
    if seen.labelled:
        what = f"{placement.resource_count} {placement.resource}" if placement.resource else "room for the job's pods"
        fault = f"of the nodes with {written} too few have {what} and take its pods"
    else:
        fault = f"no node of {client.about} has the labels {written}" if labels else "no node has what it asks for"
    so = f"{placement.name}: {fault}; the job waits until {'enough of them do' if seen.labelled else 'one has'}"
    if facts.of(client).ask("grows", lambda: _grows(client)):
        return f"{so}, which an autoscaler may bring about"
    return (
        f"{so}; nothing here seems to add nodes by itself: add some, or name your own labels in KINETIC_NODE_SELECTOR"
    )


def _labels(placement: Placement, settings: ClusterSettings | None = None, *, by_count: bool = True) -> dict[str, str]:
    """Return the labels that the job's pods will ask for, as they are written into its manifest."""
    wanted = settings.node_selector if settings else None
    asked = JobRequest("", "", placement, "", (), node_selector=wanted, by_count=by_count)
    return containers.node_selector(asked)


def _key(placement: Placement, labels: Mapping[str, str]) -> tuple[object, ...]:
    return ("nodes", tuple(sorted(labels.items())), placement.resource_count, placement.hosts, placement.spot)


def _seen(client: Client, placement: Placement, labels: dict[str, str]) -> Seen | None:
    return facts.of(client).ask(
        _key(placement, labels),
        lambda: _look(client, placement, labels),
        lambda seen: facts.LASTING if seen is None or seen.fitting >= placement.hosts else facts.BRIEF,
    )


def _look(client: Client, placement: Placement, labels: dict[str, str]) -> Seen | None:
    """Look at nodes until there are enough; None where we may not."""
    fitting = labelled = 0
    try:
        for node in _nodes(client, labels, PAGE):
            labelled += 1
            fitting += _takes(node, placement)
            if fitting >= placement.hosts:
                break
    except PermissionError:
        return None
    return Seen(fitting, labelled)


def _takes(node: Mapping[str, Any], placement: Placement) -> bool:
    """Say whether a node has what a pod asks for, and no taint against it: one that is not ready, or cordoned, has."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    taints = [
        (str(each.get("key")), str(each.get("value") or ""), str(each.get("effect")))
        for each in spec.get("taints") or ()
    ]
    if any(taint[2] in _AWAY and not is_tolerated(taint, placement.tolerations) for taint in taints):
        return False
    has = str((status.get("allocatable") or {}).get(placement.resource or "", "0"))
    return placement.resource is None or (has.isdecimal() and int(has) >= placement.resource_count)


def _grows(client: Client) -> bool:
    """Look for traces of something that makes nodes: GKE, the upstream autoscaler, or Karpenter."""
    if _KARPENTER in serving.groups(client):
        return True
    try:
        if any(True for _ in _nodes(client, {_GKE_POOL: ""}, 1)):
            return True
    except PermissionError:
        return False
    return client.transport.send("GET", _STATUS).status == 200


def _nodes(client: Client, labels: Mapping[str, str], limit: int) -> Iterator[dict[str, Any]]:
    """Yield nodes with some labels, page by page; a label without a value may have any.

    Raises:
        PermissionError: We may not list nodes.
    """
    selector = ",".join(f"{name}={value}" if value else name for name, value in sorted(labels.items()))
    query: dict[str, str | int] = {"labelSelector": selector, "limit": limit}
    while True:
        reply = client.transport.send("GET", NODE.path(""), query=query)
        if reply.status == 403:
            raise PermissionError
        if reply.status != 200:  # a page that grew stale, too: enough was seen
            if reply.status == 410 and "continue" in query:
                return
            raise client.refuse("list", NODE, "", reply)
        page = page_of(reply.body)
        yield from page.get("items") or ()
        query["continue"] = str((page.get("metadata") or {}).get("continue") or "")
        if not query["continue"]:
            return

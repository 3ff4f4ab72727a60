"""Refuse what cannot work on a cluster before anything is packed, and say what the user should know.

All questions are asked at the same time, and what was answered well is believed for ten minutes: a second job in the
same process asks nothing. Whatever the cluster does not let us look at is not held against it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import discovery, job_manifests
from kinetic._backends.kube.client import (
    CONFIG_MAP,
    JOB,
    NAMESPACE,
    NODE,
    PAGE,
    PRIORITY_CLASS,
    SECRET,
    SERVICE_ACCOUNT,
    Kind,
    response_json,
)
from kinetic._backends.kube.connection import pools_of
from kinetic._backends.kube.discovery import kind_for_slices
from kinetic._backends.kube.job_manifests import JobRequest
from kinetic._config.options import read_variable
from kinetic._google.clusters import is_tolerated
from kinetic._stores.protocol import PUBLIC_VARIABLES
from kinetic.errors import (
    AccessDeniedError,
    BackendError,
    BackendUnavailableError,
    CapacityError,
    LaunchError,
    OptionError,
)

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client
    from kinetic._config.cluster import ClusterSettings
    from kinetic._google.clusters import NodePools
    from kinetic._hardware.placement import Placement


_GKE_POOL = "cloud.google.com/gke-nodepool"
_AUTOSCALER_STATUS = CONFIG_MAP.path(
    "kube-system", "cluster-autoscaler-status"
)  # where the upstream autoscaler reports
_KARPENTER = "karpenter.sh"
_AWAY = frozenset({"NoSchedule", "NoExecute"})


class MatchingNodes(NamedTuple):
    """What the nodes say.

    Attributes:
        fitting: Nodes that could take a pod of the job, were they idle (count), up to as many as it needs.
        labelled: Nodes with the labels (count), up to the same.
    """

    fitting: int
    labelled: int


def check_capacity(
    client: Client,
    placement: Placement,
    settings: ClusterSettings,
    pools: NodePools | Callable[[], NodePools | None] | None = None,
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
    seen = _matching_nodes(client, placement, labels)
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
        seen = _matching_nodes(client, placement, _labels(placement))
        if seen is None or seen.labelled:
            return True
        labels = _labels(placement, by_count=False)
        others = list(_nodes(client, labels, PAGE))
        return not others or any(job_manifests.COUNT_LABEL in node["metadata"].get("labels", {}) for node in others)

    about = ("gpu-count", placement.chips_per_host, tuple(sorted(placement.node_selector.items())))
    return discovery.cache_of(client).ask(about, look, lambda _: discovery.SHORT_SECONDS)


def _without_count(placement: Placement, labels: Mapping[str, str]) -> str:
    written = ", ".join(f"{name}={value}" for name, value in labels.items())
    return (
        f"{placement.name}: the nodes with {written} do not say how many GPUs they have (they lack the label "
        f"{job_manifests.COUNT_LABEL}); the job takes any with {placement.resource_count} free"
    )


def _by_pools(client: Client, placement: Placement, seen: MatchingNodes | None, pools: NodePools) -> tuple[str, ...]:
    verdict = pools.capacity_for(placement)
    if verdict.kind != "impossible":
        if seen is None:
            return ()
        then = f": {verdict.next}" if verdict.next else ""
        lacking = f"nodes for {placement.name} that are up now: {seen.fitting} of {placement.hosts}"
        return (f"{lacking}; {verdict.why}{then}",)
    discovery.cache_of(client).forget(_key(placement, _labels(placement)))  # to be looked for again once a pool is made
    raise CapacityError(f"{client.about} has no machines for {placement.name}", why=verdict.why, next=verdict.next)


def _waiting(client: Client, placement: Placement, labels: Mapping[str, str], seen: MatchingNodes) -> str:
    written = ", ".join(f"{name}={value}" for name, value in labels.items())
    if seen.labelled:
        what = f"{placement.resource_count} {placement.resource}" if placement.resource else "room for the job's pods"
        fault = f"of the nodes with {written} too few have {what} and take its pods"
    else:
        fault = f"no node of {client.about} has the labels {written}" if labels else "no node has what it asks for"
    so = f"{placement.name}: {fault}; the job waits until {'enough of them do' if seen.labelled else 'one has'}"
    if discovery.cache_of(client).ask("grows", lambda: _grows(client)):
        return f"{so}, which an autoscaler may bring about"
    return (
        f"{so}; nothing here seems to add nodes by itself: add some, or name your own labels in KINETIC_NODE_SELECTOR"
    )


def _labels(placement: Placement, settings: ClusterSettings | None = None, *, by_count: bool = True) -> dict[str, str]:
    """Return the labels that the job's pods will ask for, as they are written into its manifest."""
    wanted = settings.node_selector if settings else None
    asked = JobRequest("", "", placement, "", (), node_selector=wanted, by_count=by_count)
    return job_manifests.node_selector(asked)


def _key(placement: Placement, labels: Mapping[str, str]) -> tuple[object, ...]:
    return ("nodes", tuple(sorted(labels.items())), placement.resource_count, placement.hosts, placement.spot)


def _matching_nodes(client: Client, placement: Placement, labels: dict[str, str]) -> MatchingNodes | None:
    return discovery.cache_of(client).ask(
        _key(placement, labels),
        lambda: _find_nodes(client, placement, labels),
        lambda seen: (
            discovery.LONG_SECONDS if seen is None or seen.fitting >= placement.hosts else discovery.SHORT_SECONDS
        ),
    )


def _find_nodes(client: Client, placement: Placement, labels: dict[str, str]) -> MatchingNodes | None:
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
    return MatchingNodes(fitting, labelled)


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
    if _KARPENTER in discovery.api_groups(client):
        return True
    try:
        if any(True for _ in _nodes(client, {_GKE_POOL: ""}, 1)):
            return True
    except PermissionError:
        return False
    return client.transport.send("GET", _AUTOSCALER_STATUS).status == 200


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
            raise client.error_for("list", NODE, "", reply)
        page = response_json(reply.body)
        yield from page.get("items") or ()
        query["continue"] = str((page.get("metadata") or {}).get("continue") or "")
        if not query["continue"]:
            return


__all__ = ["ACCOUNT", "check", "check_store", "kind_for_slices", "pools_of", "service_account"]

ACCOUNT = "kinetic"  # the service account that pods run as where nobody names another and it exists
_HEADERS = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}  # never a Secret's content

_ENFORCED = "pod-security.kubernetes.io/enforce"


def check(
    client: Client,
    placement: Placement,
    settings: ClusterSettings,
    *,
    pools: NodePools | Callable[[], NodePools | None] | None = None,
) -> tuple[str, ...]:
    """Refuse what cannot work in the client's namespace, and return sentences for the user.

    Args:
        client: Of the cluster and the namespace.
        placement: The hardware of the job.
        settings: What holds for all jobs of the cluster.
        pools: The node pools of a cluster of GKE, where they are known; or a function that asks for them, which is
            called only where the nodes of the moment do not suffice.

    Raises:
        CredentialsError: The cluster does not know who we are.
        LaunchError: The namespace, or something else that the settings name, is not there.
        AccessDeniedError: We may not do what a job needs.
        CapacityError: The cluster can never have such machines.
        BackendUnavailableError: It does not answer.
    """
    return discovery.cache_of(client).ask(
        ("checked", repr(placement), repr(settings)),
        lambda: _check(client, placement, settings, pools),
        lambda notes: (
            discovery.SHORT_SECONDS if notes else discovery.LONG_SECONDS
        ),  # that machines are missing ages with them
    )


def _check(
    client: Client,
    placement: Placement,
    settings: ClusterSettings,
    pools: NodePools | Callable[[], NodePools | None] | None,
) -> tuple[str, ...]:
    notes: list[str] = []
    kube_client.request_all(
        [
            lambda: pod_security(client),
            lambda: _permissions(client, placement),
            lambda: notes.extend(_account_notes(client, settings)),
            lambda: _queue(client, settings.queue),
            lambda: _priority_class(client, settings.priority_class),
            lambda: _secret(client, settings.store_secret),
            lambda: notes.extend(check_capacity(client, placement, settings, pools)),
        ]
    )
    return tuple(notes)


def service_account(client: Client, settings: ClusterSettings) -> str:
    """Return whom pods are to the cluster: the one that is named, "kinetic" where it exists, else "", the default.

    Raises:
        LaunchError: The one that is named does not exist.
    """
    given = settings.service_account
    there = _exists(client, SERVICE_ACCOUNT, given or ACCOUNT, absent=0.0 if given else discovery.SHORT_SECONDS)
    if there is False and given:
        raise LaunchError(
            f"the namespace {client.namespace} has no service account {given}",
            why="the settings name it, so every pod of the job would be refused",
            next=f"kubectl create serviceaccount {given} -n {client.namespace}     "
            "or name another in KINETIC_SERVICE_ACCOUNT",
            code="service-account",
        )
    return given or (ACCOUNT if there else "")


def _account_notes(client: Client, settings: ClusterSettings) -> list[str]:
    """Refuse a service account that is not there; say so where nobody tells us whether the usual one is."""
    service_account(client, settings)
    if settings.service_account or _exists(client, SERVICE_ACCOUNT, ACCOUNT) is not None:
        return []
    unseen = f"we may not see whether the namespace {client.namespace} has a service account {ACCOUNT}"
    return [f"{unseen}, so pods run as the default one; KINETIC_SERVICE_ACCOUNT={ACCOUNT} names it"]


def check_store(url: str, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse a store that pods of a cluster cannot reach.

    Args:
        url: Of the store.
        environ: Where KINETIC_SHARED_STORE=1 says that every pod has the folder at the same path.

    Raises:
        OptionError: It is a folder of this machine, or memory of this process.
    """
    refuse_user_info(environ)
    scheme = url.partition("://")[0] if "://" in url else "file"
    if scheme in {"gs", "s3"} or (scheme == "file" and read_variable("KINETIC_SHARED_STORE", environ) == "1"):
        return
    where = "a folder of this machine" if scheme == "file" else "not a bucket"
    raise OptionError(
        "jobs on a cluster need a store that their pods can reach",
        why=f"{url} is {where}",
        next="export KINETIC_STORE=gs://your-bucket"
        + ("     or KINETIC_SHARED_STORE=1 if every pod has that folder at the same path" if scheme == "file" else ""),
    )


def refuse_user_info(environ: Mapping[str, str]) -> None:
    """Refuse addresses of a store that hold a name or a password: they would stand in the pods' spec.

    Raises:
        OptionError: One does.
    """
    for name in PUBLIC_VARIABLES:
        if "@" in environ.get(name, "").partition("://")[2].partition("/")[0]:
            raise OptionError(
                f"{name} holds a user name or a password",
                why="it would stand in the spec of the job's pods, and whoever may read pods could read it",
                next="take what is before the @ out of it; a Secret that KINETIC_STORE_SECRET names brings credentials",
            )


def pod_security(client: Client) -> str:
    """Return the level of Pod Security that the namespace enforces: "" for none, and where we may not look.

    Raises:
        LaunchError: There is no such namespace.
    """
    return discovery.cache_of(client).ask("namespace", lambda: _find_namespace(client))


def _find_namespace(client: Client) -> str:
    try:
        found = client.get(NAMESPACE, client.namespace)
    except AccessDeniedError:
        _try_namespace(client)
        return ""
    leaving = found is not None and (found.get("status") or {}).get("phase") == "Terminating"
    if found is None or leaving:
        raise LaunchError(
            f"there is no namespace {client.namespace} in {client.about}",
            why="it is being removed" if leaving else "the cluster says so",
            next=f"kubectl create namespace {client.namespace}     or name another in KINETIC_NAMESPACE",
            code="namespace-missing",
        )
    return str(((found.get("metadata") or {}).get("labels") or {}).get(_ENFORCED) or "")


def _try_namespace(client: Client) -> None:
    """Where we may not look at the namespace: let something be made there as if, and see what is said."""
    probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "kinetic-check-"}}
    try:
        client.create(CONFIG_MAP, probe, dry_run=True)
    except BackendUnavailableError:
        raise
    except BackendError as error:  # a missing permission, a quota: not what we ask about here
        if error.code == "namespace-missing":
            raise


def _permissions(client: Client, placement: Placement) -> None:
    maker = kind_for_slices(client) if placement.hosts > 1 else JOB
    discovery.check_permissions(client, discovery.needed_permissions(maker, hosts=placement.hosts))


def _queue(client: Client, name: str) -> None:
    if not name:
        return
    kind = discovery.local_queue(client)
    if kind is None:
        raise LaunchError(
            f"{client.about} has no Kueue, so the queue {name} leads nowhere",
            why="the cluster does not serve kueue.x-k8s.io",
            next="unset KINETIC_QUEUE, or take queue out of the profile     or ask who runs the cluster for Kueue",
            code="queue-missing",
        )
    if _exists(client, kind, name) is False:
        raise LaunchError(
            f"the namespace {client.namespace} has no queue {name}",
            why="no LocalQueue of Kueue has that name there, so the job would wait for ever",
            next=f"kubectl get localqueues -n {client.namespace}     and name one of them in KINETIC_QUEUE",
            code="queue-missing",
        )


def _priority_class(client: Client, name: str) -> None:
    if name and _exists(client, PRIORITY_CLASS, name) is False:
        raise LaunchError(
            f"{client.about} has no priority class {name}",
            why="the settings name it, so every pod of the job would be refused",
            next="kubectl get priorityclasses     and name one of them in KINETIC_PRIORITY_CLASS",
            code="priority-class",
        )


def _secret(client: Client, name: str) -> None:
    if name and _exists(client, SECRET, name) is False:
        raise LaunchError(
            f"the namespace {client.namespace} has no Secret {name}",
            why="the settings name it for the store, and a pod without it does not start",
            next=f"kubectl get secrets -n {client.namespace}     and name one of them in KINETIC_STORE_SECRET",
            code="secret-missing",
        )


def _exists(client: Client, kind: Kind, name: str, *, absent: float = 0.0) -> bool | None:
    """Say whether an object exists; None where we may not look.

    Args:
        client: Of the cluster.
        kind: Of the object.
        name: Of the object.
        absent: How long to believe that it does not (seconds); not at all where that is refused.
    """
    return discovery.cache_of(client).ask(
        (kind, name),
        lambda: _exists_in_cluster(client, kind, name),
        lambda there: absent if there is False else discovery.LONG_SECONDS,
    )


def _exists_in_cluster(client: Client, kind: Kind, name: str) -> bool | None:
    reply = client.transport.send("GET", kind.path(client.namespace, name), headers=_HEADERS)
    if reply.status in {403, 404}:
        return None if reply.status == 403 else False
    if reply.status != 200 or not response_json(reply.body):
        raise client.error_for("get", kind, name, reply)
    return True

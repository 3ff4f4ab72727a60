"""Refuse what cannot work on a cluster before anything is packed, and return what the user should know.

All requests are sent at the same time, and a good answer is believed for ten minutes: a second job in the same process
sends none. What the cluster does not let us read is assumed to be right.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import discovery, job_manifests
from kinetic._backends.kube.client import (
    CONFIG_MAP,
    JOB,
    JOB_SET,
    LOCAL_QUEUE,
    NAMESPACE,
    NODE,
    PAGE,
    POD,
    POD_GROUP,
    PRIORITY_CLASS,
    RUNTIME_CLASS,
    SECRET,
    SERVICE_ACCOUNT,
    VOLUME_CLAIM,
    Kind,
)
from kinetic._backends.kube.job_manifests import NODE_POOL, QUEUE_LABEL, node_selector, placed
from kinetic._backends.kube.transport import response_json
from kinetic._config.variables import read_variable
from kinetic._hardware.placement import COUNT_LABEL
from kinetic._stores.protocol import CLOUDS, PUBLIC_VARIABLES
from kinetic._wire import NamedTuple, order
from kinetic.errors import (
    AccessDeniedError,
    BackendError,
    BackendUnavailableError,
    CapacityError,
    LaunchError,
    OptionError,
)

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Object
    from kinetic._backends.kube.job_manifests import JobRequest
    from kinetic._config.cluster import ClusterSettings
    from kinetic._google.clusters import NodePools
    from kinetic._hardware.placement import Placement

STARTS_FOLLOWERS = "kinetic/starts-followers"  # an annotation of it
ACCOUNT = "kinetic"  # the service account of pods where the settings name none and it exists
BUILDER_ACCOUNT = "kinetic-builder"  # that of pods that build images, likewise: only it may write to their repository
_HEADERS = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}  # never a Secret's content
_ENFORCED = "pod-security.kubernetes.io/enforce"
# OpenShift gives each namespace a range of users. A pod that names no user and no group gets some of it; one that names
# others is rejected. Source: Red Hat's page "Managing security context constraints", 2026-11.
_USERS_OF_OPENSHIFT = "openshift.io/sa.scc.uid-range"
OPENSHIFT = "openshift"
# https://kueue.sigs.k8s.io/docs/tasks/manage/enforce_job_management/setup_default_local_queue
_DEFAULT_QUEUE = "default"
_VOLCANO = "volcano"  # what Volcano's scheduler is called, unless its administrator says otherwise
_AUTOSCALER_STATUS = CONFIG_MAP.path("kube-system", "cluster-autoscaler-status")  # of the upstream autoscaler
_KARPENTER = "karpenter.sh"
_SHARED_MODES = frozenset({"ReadWriteMany", "ReadOnlyMany"})
_DRY_RUN_SECONDS = 5.0  # for a connection, and twice as long for an answer
_REPELLING = frozenset({"NoSchedule", "NoExecute"})


def check(
    client: Client,
    placement: Placement,
    settings: ClusterSettings,
    *,
    pools: Callable[[], NodePools | None] = lambda: None,
) -> tuple[str, ...]:
    """Refuse what cannot work in the client's namespace, and return sentences for the user.

    ``pools`` returns the node pools of a GKE cluster, or None; it is called only if the current nodes do not suffice.
    """

    def ask() -> tuple[str, ...]:
        found = kube_client.request_all([*questions(client, placement, settings, pools=pools).values()])
        return tuple(note for notes in found for note in notes)

    return discovery.cache_of(client).ask(
        ("checked", repr(placement), repr(settings)),
        ask,
        lambda notes: discovery.SHORT_SECONDS if notes else discovery.LONG_SECONDS,  # missing nodes may come soon
    )


def questions(
    client: Client,
    placement: Placement,
    settings: ClusterSettings,
    *,
    pools: Callable[[], NodePools | None] = lambda: None,
) -> dict[str, Callable[[], Sequence[str]]]:
    """Return what must be right for a job, a function for each: it refuses what is not, or returns sentences."""

    def check_permissions() -> Sequence[str]:
        maker = discovery.kind_for_slices(client) if placement.hosts > 1 else JOB
        discovery.check_permissions(client, discovery.needed_permissions(maker, hosts=placement.hosts))
        return ()

    def check_slices() -> Sequence[str]:
        if placement.slices > 1 and discovery.kind_for_slices(client) is not JOB_SET:
            raise CapacityError(
                f"{placement.name} has {placement.slices} slices, and JobSet is not installed in {client.about}",
                why="it starts several slices together, and all of them again when one of them loses a host",
                next=f"kinetic doctor     has the command that installs it; one slice: {placement.one_slice.name}",
                code="kind-missing",
            )
        return ()

    def check_namespace() -> Sequence[str]:
        pod_security(client)
        return ()

    def check_volume_claims() -> Sequence[str]:
        notes = []
        for name in dict.fromkeys(each.claim for each in settings.volume_claims):
            _require(client, VOLUME_CLAIM, name, in_every_pod, code="volume-claim")
            modes = ((_metadata_of(client, VOLUME_CLAIM, name) or {}).get("spec") or {}).get("accessModes") or ()
            if placement.hosts > 1 and modes and not _SHARED_MODES.intersection(modes):
                notes.append(
                    f"the volume claim {name} is {' and '.join(modes)}, which one machine can mount at a time: the"
                    f" {placement.hosts} hosts of {placement.name} start only if it is ReadWriteMany or ReadOnlyMany"
                )
        return notes

    def check_config_maps() -> Sequence[str]:
        for name in settings.config_maps:
            _require(client, CONFIG_MAP, name, in_no_pod, code="config-map")
        return ()

    in_no_pod = "the settings name it, and a pod without it does not start"
    in_every_pod = "the settings name it, so every pod of the job would be rejected"
    in_the_store = "the settings name it for the store, and a pod without it does not start"
    secret, priority, runtime = settings.store_secret, settings.priority_class, settings.runtime_class

    def check_scheduler() -> Sequence[str]:
        if not _may_start_in_part(placement, settings) or starts_together(client, placement, settings):
            return ()
        found = f"you may not create podgroups in the namespace {client.namespace}"
        why = found if discovery.serves(client, POD_GROUP) else f"{client.about} serves no PodGroups"
        return [f"Volcano may start some of the {placement.hosts} hosts before there is room for all: {why}"]

    return {
        "namespace": check_namespace,
        "permissions": check_permissions,
        "slices": check_slices,
        "service-account": lambda: _account_notes(client, settings),
        "queue": lambda: _check_queue(client, settings.queue),
        "priority-class": lambda: _require(client, PRIORITY_CLASS, priority, in_every_pod, code="priority-class"),
        "runtime-class": lambda: _require(client, RUNTIME_CLASS, runtime, in_every_pod, code="runtime-class"),
        "scheduler": check_scheduler,
        "config-maps": check_config_maps,
        "volume-claims": check_volume_claims,
        "store-secret": lambda: _require(client, SECRET, secret, in_the_store, code="secret-missing"),
        "nodes": lambda: _capacity_notes(client, placement, settings, pools),
    }


# ------------------------------------------------------------------------------------------ what the settings name


def service_account(client: Client, settings: ClusterSettings) -> str:
    """Return the service account of pods: the named one, "kinetic" where it exists, else "", the default.

    For a pod that builds an image and no named one, "kinetic-builder" where it exists.
    """
    given = settings.service_account
    if settings.builds_image and not given:
        seconds = discovery.SHORT_SECONDS
        if _exists(client, SERVICE_ACCOUNT, BUILDER_ACCOUNT, absent_seconds=seconds):
            return BUILDER_ACCOUNT
    there = _exists(client, SERVICE_ACCOUNT, given or ACCOUNT, absent_seconds=0.0 if given else discovery.SHORT_SECONDS)
    if there is False and given:
        raise LaunchError(
            f"the namespace {client.namespace} has no service account {given}",
            why="the settings name it, so every pod of the job would be rejected",
            next=f"kubectl create serviceaccount {given} -n {client.namespace}     "
            "or name another in KINETIC_SERVICE_ACCOUNT",
            code="service-account",
        )
    return given or (ACCOUNT if there else "")


def starts_followers(client: Client, account: str) -> bool:
    """Return whether pods of a service account may start jobs that follow theirs, as an annotation of it says.

    Only then they get its token, which the user's code could read as well. Nothing is asked that is not known already.
    """
    found = _metadata_of(client, SERVICE_ACCOUNT, account) if account else None
    annotations = ((found or {}).get("metadata") or {}).get("annotations") or {}
    return annotations.get(STARTS_FOLLOWERS) == "true"


def starts_together(client: Client, placement: Placement, settings: ClusterSettings) -> bool:
    """Return whether the hosts of a job can be one PodGroup, which Volcano starts as a whole."""
    is_there = _may_start_in_part(placement, settings) and discovery.serves(client, POD_GROUP)
    return is_there and discovery.is_allowed(client, discovery.Permission("create", POD_GROUP))


def _may_start_in_part(placement: Placement, settings: ClusterSettings) -> bool:
    """Return whether Volcano would start some hosts of a job; a TPU slice has a node pool of its own.

    JobSet does not even make the other pods of such a slice before the first one has its node.
    """
    return placement.hosts > 1 and placement.kind != "tpu" and settings.scheduler == _VOLCANO


def _account_notes(client: Client, settings: ClusterSettings) -> list[str]:
    service_account(client, settings)
    if settings.service_account or _exists(client, SERVICE_ACCOUNT, ACCOUNT) is not None:
        return []
    unknown = f"we may not check whether the namespace {client.namespace} has a service account {ACCOUNT}"
    return [f"{unknown}, so pods use the default one; KINETIC_SERVICE_ACCOUNT={ACCOUNT} names it"]


def _check_queue(client: Client, name: str) -> Sequence[str]:
    kind = discovery.served(client, LOCAL_QUEUE) if name else None
    if name and kind is None:
        raise LaunchError(
            f"Kueue is not installed in {client.about}; queue {name} cannot be used",
            why="the cluster does not serve kueue.x-k8s.io",
            next="unset KINETIC_QUEUE, or remove queue from the profile     or have Kueue installed",
            code="queue-missing",
        )
    if kind is not None:
        why = "no LocalQueue of Kueue has that name there, so the job would wait forever"
        _require(client, kind, name, why, code="queue-missing")
    return ()


def default_queue(client: Client) -> str:
    """Return the LocalQueue into which Kueue puts jobs of the namespace that name none; "" where there is none."""
    kind = discovery.served(client, LOCAL_QUEUE)
    if kind is None:
        return ""
    is_there = _exists(client, kind, _DEFAULT_QUEUE, absent_seconds=discovery.SHORT_SECONDS)
    if is_there is None:  # the role "edit" is for what comes with Kubernetes
        cache = discovery.cache_of(client)
        return cache.ask("default queue", lambda: _queue_of_others(client), lambda _: discovery.SHORT_SECONDS)
    return _DEFAULT_QUEUE if is_there else ""


def _queue_of_others(client: Client) -> str:
    """Return the queue that Kueue gives a Job that names none, by a dry run; "" for none, or unknown."""
    pod = {"restartPolicy": "Never", "containers": [{"name": "none", "image": "none"}]}
    probe = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "kinetic-check-"}}
    try:
        made = client.create(JOB, {**probe, "spec": {"suspend": True, "template": {"spec": pod}}}, dry_run=True)
    except (AccessDeniedError, LaunchError):  # a rule of the cluster for all Jobs
        return ""
    return str((made["metadata"].get("labels") or {}).get(QUEUE_LABEL) or "")


# What a message calls a kind, and the variable that names such an object.
_NAMED = {
    "LocalQueue": ("queue", "KINETIC_QUEUE"),
    "PriorityClass": ("priority class", "KINETIC_PRIORITY_CLASS"),
    "RuntimeClass": ("runtime class", "KINETIC_RUNTIME_CLASS"),
    "ConfigMap": ("ConfigMap", "KINETIC_CONFIG_MAPS"),
    "PersistentVolumeClaim": ("volume claim", "KINETIC_VOLUME_CLAIMS"),
    "Secret": ("Secret", "KINETIC_STORE_SECRET"),
}


def _require(client: Client, kind: Kind, name: str, why: str, *, code: str) -> Sequence[str]:
    if not name or _exists(client, kind, name) is not False:
        return ()
    noun, variable = _NAMED[kind.name]
    where, option = (
        (f"the namespace {client.namespace}", f" -n {client.namespace}") if kind.namespaced else (client.about, "")
    )
    raise LaunchError(
        f"{where} has no {noun} {name}",
        why=why,
        next=f"kubectl get {kind.plural}{option}     and name one of them in {variable}",
        code=code,
    )


def _exists(client: Client, kind: Kind, name: str, *, absent_seconds: float = 0.0) -> bool | None:
    """Return whether an object exists; None where we may not read it.

    Its absence is believed for some seconds, and not at all where that is an error.
    """
    found = _metadata_of(client, kind, name, absent_seconds=absent_seconds)
    return None if found is None else bool(found)


def _metadata_of(client: Client, kind: Kind, name: str, *, absent_seconds: float = 0.0) -> Object | None:
    """Return an object without its content; an empty one where there is none, None where we may not read it.

    Of a volume claim, the content as well.
    """

    def ask() -> Object | None:
        headers = {} if kind is VOLUME_CLAIM else _HEADERS
        reply = client.transport.send("GET", kind.path(client.namespace, name), headers=headers)
        if reply.status in {403, 404}:
            return None if reply.status == 403 else {}
        if reply.status != 200 or not (found := response_json(reply.body)):
            raise client.error_for("get", kind, name, reply)
        return found

    def seconds(found: Object | None) -> float:
        return absent_seconds if found == {} else discovery.LONG_SECONDS

    return discovery.cache_of(client).ask((kind, name), ask, seconds)


# ------------------------------------------------------------------------------------------ the store, the namespace


def check_store(url: str, environ: Mapping[str, str], settings: ClusterSettings) -> None:
    """Refuse a store that pods of a cluster cannot reach, and addresses that contain a password."""
    for name in PUBLIC_VARIABLES:
        if "@" in environ.get(name, "").partition("://")[2].partition("/")[0]:
            raise OptionError(
                f"{name} contains a user name or a password",
                why="it would be part of the spec of the job's pods, which everybody who may read pods can read",
                next="remove what is before the @; a Secret that KINETIC_STORE_SECRET names provides credentials",
            )
    scheme = url.partition("://")[0] if "://" in url else "file"
    volume = settings.volume_at(order.local_folder(url))
    if volume and not os.path.isdir(volume):  # else it would be made here, and the pods would find nothing
        raise OptionError(
            f"the store {url} is not on this machine",
            why=f"it is in the volume of the cluster at {volume}, and there is no {volume} here",
            next="mount the same file system here, at the same path; or name a bucket in KINETIC_STORE",
        )
    is_shared = bool(volume) or read_variable("KINETIC_SHARED_STORE", environ) == "1"
    if url.startswith(CLOUDS) or (scheme == "file" and is_shared):
        return
    where = "a folder of this machine" if scheme == "file" else "not a bucket"
    ways = "KINETIC_VOLUME_CLAIMS, if it is in a volume of the cluster, or KINETIC_SHARED_STORE=1, if every pod has it"
    shared = f"     or {ways}" if scheme == "file" else ""
    raise OptionError(
        "jobs on a cluster need a store that their pods can reach",
        why=f"{url} is {where}",
        next=f"export KINETIC_STORE=gs://your-bucket{shared}",
    )


def pod_security(client: Client) -> str:
    """Return the level of Pod Security that the namespace enforces, or OPENSHIFT; "" for none, or unknown."""
    return discovery.cache_of(client).ask("namespace", lambda: _request_pod_security(client))


def _request_pod_security(client: Client) -> str:
    try:
        found = client.get(NAMESPACE, client.namespace)
    except AccessDeniedError:
        _try_namespace(client)
        return ""
    leaving = found is not None and (found.get("status") or {}).get("phase") == "Terminating"
    if found is None or leaving:
        raise LaunchError(
            f"there is no namespace {client.namespace} in {client.about}",
            why="it is being deleted" if leaving else "the cluster says so",
            next=f"kubectl create namespace {client.namespace}     or name another in KINETIC_NAMESPACE",
            code="namespace-missing",
        )
    about = found.get("metadata") or {}
    if _USERS_OF_OPENSHIFT in (about.get("annotations") or {}):
        return OPENSHIFT
    return str((about.get("labels") or {}).get(_ENFORCED) or "")


def has_read_only_root(client: Client, request: JobRequest, beside: Callable[[], object] = lambda: None) -> bool:
    """Return whether a policy of the cluster rejects pods that may write into their root file system, or forbids it.

    A dry run of a pod tells, which needs the right to create pods; without it, or an answer, a pod has none of this.
    Where the cluster is asked, ``beside`` is called at the same time.
    """

    def ask() -> bool | None:
        path = POD.path(client.namespace)
        for wanted in (False, True):
            body = json.dumps(job_manifests.pod(replace(request, has_read_only_root=wanted))).encode()
            try:
                reply = client.transport.send(
                    "POST", path, query={"dryRun": "All"}, body=body, once_seconds=_DRY_RUN_SECONDS
                )
            except BackendUnavailableError:  # as where a webhook does not respond
                return None
            if reply.status < 300:
                containers = response_json(reply.body)["spec"]["containers"]
                own = next(each for each in containers if each["name"] == job_manifests.CONTAINER)
                return bool((own.get("securityContext") or {}).get("readOnlyRootFilesystem"))
            if not kube_client.is_rejected(reply):
                return None
        return None  # for another reason, which the events of the job tell

    def seconds(found: bool | None) -> float:
        return discovery.SHORT_SECONDS if found is None else discovery.LONG_SECONDS

    def ask_beside() -> bool | None:
        found, _ = kube_client.request_all([ask, beside])
        return found  # type: ignore[return-value] # of the first

    return bool(discovery.cache_of(client).ask("root", ask_beside, seconds))


def sees_namespace(client: Client) -> bool:
    """Return whether we may see that the namespace exists; a submission takes it for granted where we may not."""
    try:
        return client.get(NAMESPACE, client.namespace) is not None
    except AccessDeniedError:
        return _try_namespace(client)


def _try_namespace(client: Client) -> bool:
    """Find out by a dry run whether a namespace exists that we may not read; return whether that tells."""
    probe = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "kinetic-check-"}}
    try:
        client.create(CONFIG_MAP, probe, dry_run=True)
    except BackendUnavailableError:
        raise
    except AccessDeniedError:
        return False
    except BackendError as error:  # a quota: not what we ask about here
        if error.code == "namespace-missing":
            raise
    return True


# ---------------------------------------------------------------------------------------------------------------- nodes


class MatchingNodes(NamedTuple):
    """The nodes for a job, each counted up to as many as it needs."""

    fitting: int  # could take a pod of the job if they were idle
    labelled: int  # have the labels
    reserved: int  # of these have a taint against the job's pods


def _capacity_notes(
    client: Client, placement: Placement, settings: ClusterSettings, pools: Callable[[], NodePools | None]
) -> tuple[str, ...]:
    placement = placed(placement, settings)
    by_count = settings.node_selector is not None or selects_by_count(client, placement)
    labels = node_selector(placement, settings.node_selector, by_count=by_count)
    if not labels and placement.resource is None:
        return ()  # any node will do, and a cluster without a single one creates them when they are needed
    seen = _matching_nodes(client, placement, labels)
    if seen is not None and seen.fitting >= placement.hosts:
        return () if by_count else (_note_without_count(placement, labels),)
    if settings.node_selector is None and placement.kind != "cpu":
        known = pools()
        if known is not None:
            return _pool_notes(client, placement, seen, known)
    return () if seen is None else (_note_on_waiting(client, placement, labels, seen),)


def selects_by_count(client: Client, placement: Placement) -> bool:
    """Return whether pods of a GPU job can select nodes by their number of GPUs: some clusters do not set that label.

    Nodes that have the accelerator's label and none with a number decide; where there are no such nodes, or we may not
    list them, the label is required, as Google's nodes have it.
    """
    if placement.kind != "gpu":
        return True

    def look() -> bool:
        seen = _matching_nodes(client, placement, node_selector(placement))
        if seen is None or seen.labelled:
            return True
        others = list(_nodes(client, node_selector(placement, by_count=False), PAGE))
        return not others or any(COUNT_LABEL in node["metadata"].get("labels", {}) for node in others)

    about = ("gpu-count", placement.chips_per_host, tuple(sorted(placement.node_selector.items())))
    return discovery.cache_of(client).ask(about, look, lambda _: discovery.SHORT_SECONDS)


def _note_without_count(placement: Placement, labels: Mapping[str, str]) -> str:
    return (
        f"{placement.name}: the nodes with {_written(labels)} do not say how many GPUs they have (they lack the label "
        f"{COUNT_LABEL}); the job takes any with {placement.resource_count} free"
    )


def _pool_notes(client: Client, placement: Placement, seen: MatchingNodes | None, pools: NodePools) -> tuple[str, ...]:
    capacity = pools.capacity_for(placement.one_slice, placement.slices)
    if capacity.kind != "impossible":
        if seen is None:
            return ()
        then = f": {capacity.next}" if capacity.next else ""
        return (
            f"nodes for {placement.name} that are up now: {seen.fitting} of {placement.hosts}; {capacity.why}{then}",
        )
    discovery.cache_of(client).forget(_key(placement, node_selector(placement)))  # so that a new pool is seen at once
    raise CapacityError(f"{client.about} has no nodes for {placement.name}", why=capacity.why, next=capacity.next)


def _note_on_waiting(client: Client, placement: Placement, labels: Mapping[str, str], seen: MatchingNodes) -> str:
    if seen.labelled:
        what = f"{placement.resource_count} {placement.resource}" if placement.resource else "room for the job's pods"
        fault = f"of the nodes with {_written(labels)} too few have {what} and accept its pods"
    else:
        fault = (
            f"no node of {client.about} has the labels {_written(labels)}" if labels else "no node has what it asks for"
        )
    waits = f"{placement.name}: {fault}; the job waits until {'enough of them do' if seen.labelled else 'one has'}"
    if may_grow(client):
        return f"{waits}, which an autoscaler may bring about"
    return (
        f"{waits}; nothing here seems to add nodes automatically: add some"
        f"{', or name the taints of these in KINETIC_TOLERATIONS' if seen.reserved else ''}"
        f"{'' if seen.labelled else ', or name your own labels in KINETIC_NODE_SELECTOR'}"
    )


def _written(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in labels.items())


def _key(placement: Placement, labels: Mapping[str, str]) -> tuple[object, ...]:
    tolerated = tuple(tuple(each.items()) for each in placement.tolerations)
    asked = (placement.resource, placement.resource_count, placement.hosts)
    return ("nodes", tuple(sorted(labels.items())), *asked, tolerated)


def _matching_nodes(client: Client, placement: Placement, labels: dict[str, str]) -> MatchingNodes | None:
    """Count nodes until there are enough; None where we may not list them."""

    def count() -> MatchingNodes | None:
        fitting = labelled = reserved = 0
        try:
            for node in _nodes(client, labels, PAGE):
                labelled += 1
                if taint := _taint_against(node, placement):
                    from kinetic._backends.kube.event_patterns import NOT_TOLERATED  # many nodes have no taint

                    reserved += re.match(NOT_TOLERATED, taint) is None
                else:
                    fitting += _room_in(node, placement)
                if fitting >= placement.hosts:
                    break
        except AccessDeniedError:
            return None
        return MatchingNodes(fitting, labelled, reserved)

    def seconds(seen: MatchingNodes | None) -> float:
        return discovery.LONG_SECONDS if seen is None or seen.fitting >= placement.hosts else discovery.SHORT_SECONDS

    return discovery.cache_of(client).ask(_key(placement, labels), count, seconds)


def _taint_against(node: Mapping[str, Any], placement: Placement) -> str:
    """Return the key of a taint that keeps pods away from a node, or ""."""
    for each in (node.get("spec") or {}).get("taints") or ():
        taint = (str(each.get("key")), str(each.get("value") or ""), str(each.get("effect")))
        if taint[2] in _REPELLING:
            from kinetic._google.clusters import is_tolerated  # 10 ms, with what speaks to Google; many have no taint

            if not is_tolerated(taint, placement.tolerations):
                return taint[0]
    return ""


def _room_in(node: Mapping[str, Any], placement: Placement) -> int:
    """Return for how many pods a node has what they ask for."""
    has = str(((node.get("status") or {}).get("allocatable") or {}).get(placement.resource or "", "0"))
    if placement.resource is None:
        return 1
    return int(has) // placement.resource_count if has.isdecimal() else 0


def may_grow(client: Client) -> bool:
    """Return whether a cluster seems to add nodes by itself."""
    return discovery.cache_of(client).ask("grows", lambda: _has_autoscaler(client))


def _has_autoscaler(client: Client) -> bool:
    """Look for traces of GKE, the upstream autoscaler, or Karpenter."""
    if _KARPENTER in discovery.api_groups(client):
        return True
    try:
        if any(True for _ in _nodes(client, {NODE_POOL: ""}, 1)):
            return True
    except AccessDeniedError:
        return False
    return client.transport.send("GET", _AUTOSCALER_STATUS).status == 200


def _nodes(client: Client, labels: Mapping[str, str], limit: int) -> Iterator[dict[str, Any]]:
    """Yield nodes with some labels, page by page; a label without a value may have any.

    Raises:
        AccessDeniedError: We may not list nodes.
    """
    selector = ",".join(f"{name}={value}" if value else name for name, value in sorted(labels.items()))
    for page in client.pages(NODE, {"labelSelector": selector, "limit": limit}):
        if page is None:  # the rest of the list expired; enough was seen
            return
        yield from page.get("items") or ()

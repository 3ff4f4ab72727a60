"""The pod of a job: one template for every kind of object that makes pods.

image, command, environment          as asked
chips, processor, memory, disk       requests, and limits for what was asked for by name
node selector, tolerations           of the placement, with the number of GPUs
Secret, ConfigMap, /dev/shm, folders, buckets    volumes
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kinetic._config.resources import ResourceRequests
from kinetic._wire import keys
from kinetic._wire.task import (
    DETECT,
    INFRASTRUCTURE_EXIT,
    LOST_EXIT,
    RESTART_VARIABLE,
    SECRET_FOLDER,
    STORE_SECRET_FOLDER,
)
from kinetic.errors import LaunchError

if TYPE_CHECKING:
    from kinetic._data.remote_refs import FuseMount
    from kinetic._hardware.placement import Placement


DAY_SECONDS = 86_400
SPOT_GRACE_SECONDS = 15  # of the 30 s after the notice the first 15 belong to us; a larger number changes nothing
GRACE_SECONDS = 30  # what Kubernetes gives by default
RUNNER_FILE = "runner.zip"  # the one entry of the ConfigMap
RUNNER_PATH = f"/kinetic/{RUNNER_FILE}"


class BucketVolume(NamedTuple):
    """A bucket, or a folder of it, that appears at a path of the job.

    Attributes:
        path: Absolute.
        mount: Which bucket, and how.
    """

    path: str
    mount: FuseMount


@dataclass(frozen=True)
class JobRequest:
    """What one job asks of a cluster.

    Attributes:
        job_id: The job.
        namespace: Where its objects go.
        placement: The hardware.
        image: What its containers are made of.
        command: What they run; the first word is a program of the image.
        owner: Who submitted it.
        group: The batch it belongs to, or "".
        order_sha256: Digest of its order: tells a launch of the same job from another that has its name.
        environment: Variables with their values. Nothing secret: whoever may read pods can read them.
        from_pod: Variables whose value only the pod knows, and the field that has it, e.g. "metadata.name".
        secret: The Secret whose entries lie in the runner's ``SECRET_FOLDER``, or "".
        runner: The ConfigMap whose ``RUNNER_FILE`` lies at ``RUNNER_PATH``, or "".
        needs: Processor, memory, disk and shared memory of each host.
        deadline_seconds: How long a pod may run before the cluster ends it; waiting does not count. None: no limit.
        life_seconds: How long the job may exist before the cluster ends it; waiting does count. None: no limit.
        ttl_seconds: After the end, when the cluster removes what is left.
        grace_seconds: Between the request to end and the end; None for what fits the hardware.
        service_account: Whom the pod is to the cluster and its cloud; "" for the namespace's default.
        needs_token: Whether the pod gets a token of that account, for stores whose client asks with one.
        queue: A LocalQueue of Kueue, or "".
        priority_class: How important it is, or "".
        buckets: What is mounted instead of copied.
        folders: Absolute paths at which the pod gets an empty folder that it may write to.
        pull_secrets: Secrets with which the image is pulled.
        run_as: User and group number that the container runs as; None for the image's own, mostly root.
        non_root: Whether the machine shall refuse an image whose user is root.
        node_selector: Labels of nodes, for clusters whose nodes do not carry Google's; None for Google's.
        by_count: Whether nodes are selected by the number of their GPUs, too; not where the cluster's do not tell it.
        store_secret: A Secret with credentials for the store: its entries become variables, and files.
        retries: How often what may pass is tried again (count); preemptions do not count.
        coordinator_port: Where the first host listens for the others, outside TPUs.
    """

    job_id: str
    namespace: str
    placement: Placement
    image: str
    command: tuple[str, ...]
    owner: str = ""
    group: str = ""
    order_sha256: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    from_pod: Mapping[str, str] = field(default_factory=dict)
    secret: str = ""
    runner: str = ""
    needs: ResourceRequests = field(default_factory=ResourceRequests)
    deadline_seconds: int | None = None
    life_seconds: int | None = None
    ttl_seconds: int = DAY_SECONDS
    grace_seconds: int | None = None
    service_account: str = ""
    needs_token: bool = False
    queue: str = ""
    priority_class: str = ""
    buckets: tuple[BucketVolume, ...] = ()
    folders: tuple[str, ...] = ()
    pull_secrets: tuple[str, ...] = ()
    run_as: int | None = None
    non_root: bool = False
    node_selector: Mapping[str, str] | None = None
    by_count: bool = True
    store_secret: str = ""
    retries: int = 3
    coordinator_port: int = 8482

    @property
    def grace(self) -> int:
        """Seconds between the request to end and the end."""
        if self.grace_seconds is not None:
            return self.grace_seconds
        return SPOT_GRACE_SECONDS if self.placement.spot else GRACE_SECONDS


MOST_NAME_CHARACTERS = keys.MOST_OF_AN_OBJECT
NAME_PREFIX = "kinetic-"  # a Service must begin with a letter, and an id need not
SLICE_PREFIX = "s"  # the one replicated job of a JobSet; one letter, since it stands in every hostname

APP, APP_MANY_HOSTS = "kinetic", "kinetic-pathways"
APP_LABEL = "app"
JOB_LABEL = "job-id"
OWNER_LABEL = "kinetic/owner"
GROUP_LABEL = "kinetic/group"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

_HASH = 8  # hexadecimal digits
_POD_SUFFIX = 6  # "-" and the five characters that the Job controller draws
_REVISION_SUFFIX = 11  # "-" and ten characters: a StatefulSet's revision, which is a label of its pods
_OUTSIDE = re.compile(r"[^A-Za-z0-9_.-]+")


def job_name(job_id: str) -> str:
    """Name the Job of one host.

    Kubernetes cuts such a name before it appends five random characters, so all 63 may be used.
    """
    return keys.object_name(job_id, MOST_NAME_CHARACTERS)


def indexed_job_name(job_id: str, hosts: int) -> str:
    """Name the Indexed Job of many hosts, and its Service: a pod's hostname is ``NAME-INDEX``."""
    return keys.object_name(job_id, MOST_NAME_CHARACTERS - _digits(hosts) - _POD_SUFFIX)


def job_set_name(job_id: str, hosts: int) -> str:
    """Name a JobSet: a pod's hostname is ``NAME-s-0-INDEX``, and its name has six characters more."""
    return keys.object_name(job_id, MOST_NAME_CHARACTERS - len(f"-{SLICE_PREFIX}-0") - _digits(hosts) - _POD_SUFFIX)


def leader_worker_set_name(job_id: str, hosts: int) -> str:
    """Name a LeaderWorkerSet: pods are ``NAME-0-INDEX``, and a label adds a revision to ``NAME-0``."""
    return keys.object_name(job_id, MOST_NAME_CHARACTERS - len("-0") - max(_digits(hosts), _REVISION_SUFFIX))


def secret_name(job_id: str) -> str:
    """Name the Secret of a job."""
    return keys.object_name(job_id, MOST_NAME_CHARACTERS)


def group_secret_name(group: str) -> str:
    """Name the Secret that the children of a batch share."""
    return keys.object_name(group, MOST_NAME_CHARACTERS)


def runner_name(version: str, digest: str) -> str:
    """Name the ConfigMap of a runner: by its content, so that it can be shared and never changes.

    Args:
        version: Of kinetic; for whoever looks at the cluster.
        digest: SHA-256 of the runner's bytes.
    """
    readable = re.sub(r"[^a-z0-9]+", "-", version.lower()).strip("-")[:20]
    return f"{NAME_PREFIX}runner-{readable}-{digest[:16]}"


def label_value(text: str) -> str:
    """Turn any text into a value that a label may have; what had to be changed gets a digest, so that two stay two."""
    value = _OUTSIDE.sub("-", text).strip("-_.")
    if value == text and len(text) <= MOST_NAME_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH]
    return f"{value[: MOST_NAME_CHARACTERS - _HASH - 1].rstrip('-_.')}-{digest}".lstrip("-")


def label_selector(**labels: str) -> str:
    """Write a label selector for what kinetic made: ``app``, ``job_id``, ``owner`` and ``group``, as far as given.

    Several values of ``app`` are separated by commas.
    """
    keys = {"app": APP_LABEL, "job_id": JOB_LABEL, "owner": OWNER_LABEL, "group": GROUP_LABEL}
    parts = []
    for name, value in labels.items():
        several = [label_value(each) for each in value.split(",")] if name == "app" else [label_value(value)]
        parts.append(f"{keys[name]}={several[0]}" if len(several) == 1 else f"{keys[name]} in ({','.join(several)})")
    return ",".join(parts)


def _digits(hosts: int) -> int:
    """Return the characters of ``-INDEX`` for the last host."""
    return len(f"-{hosts - 1}")


_QUANTITY_UNITS = (("Ti", 1024**4), ("Gi", 1024**3), ("Mi", 1024**2), ("Ki", 1024))


def bytes_quantity(size: int) -> str:
    """Write a number of bytes: "16Gi" where it is so many of a unit, else all the digits."""
    for unit, factor in _QUANTITY_UNITS:
        if size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def cores_quantity(cores: float) -> str:
    """Write a number of cores: "4", or thousandths of one as "500m"; never less than one thousandth."""
    thousandths = max(1, round(cores * 1000))
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


Manifest = dict[str, Any]

CONTAINER = "kinetic-worker"  # as the original called it: people grep for it
FUSE_DRIVER = "gcsfuse.csi.storage.gke.io"
FUSE_ANNOTATION = "gke-gcsfuse/volumes"
# Autoscalers empty machines that are hardly used, and a job that is moved begins anew: they are asked to let it end.
# What an Autopilot cluster cannot keep on its machine gets none at all if it asks GKE's: Spot, a compute class of the
# cluster's own, and hosts that want to be together. A slice's machines are never hardly used.
# Source: GKE's page "Extend the run time of Autopilot Pods", as manuals of other projects quote its limits, 2026-11.
KEEP_ANNOTATION, KARPENTER_ANNOTATION = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
_CLASS_LABEL = "cloud.google.com/compute-class"
COUNT_LABEL = "cloud.google.com/gke-accelerator-count"
_OWNER_ONLY = 0o400  # a kubelet lets the group below read it as well: 0440, of root and that group
GROUP = (
    65_532  # what reads the Secret in an image whose user is not root; and the user of Python's own, where none may be
)
_GIB = 1024**3

# What a job gets that asks for nothing: little enough for the smallest machine of each kind (g2-standard-4 has 4 cores
# and 16 GB), enough for a scheduler to spread jobs, and without a limit, so that a machine of its own is all its own.
_CPU = {"cpu": 1.0, "gpu": 2.0, "tpu": 2.0}
_MEMORY = {"cpu": 2 * _GIB, "gpu": 8 * _GIB, "tpu": 8 * _GIB}
_DISK = {"cpu": 1 * _GIB, "gpu": 10 * _GIB, "tpu": 10 * _GIB}


def labels(request: JobRequest) -> dict[str, str]:
    """Return what every object of a job is found by."""
    app = APP if request.placement.hosts == 1 else APP_MANY_HOSTS
    found = {APP_LABEL: app, JOB_LABEL: label_value(request.job_id)}
    if request.owner:
        found[OWNER_LABEL] = label_value(request.owner)
    if request.group:
        found[GROUP_LABEL] = label_value(request.group)
    return found


def job_annotations(request: JobRequest) -> dict[str, str]:
    """Return what does not fit into labels: id, owner and accelerator as written, and which order this is."""
    found = {
        "kinetic/job-id": request.job_id,
        "kinetic/owner": request.owner,
        "kinetic/order": request.order_sha256,
        "kinetic/accelerator": request.placement.accelerator,
    }
    return {name: value for name, value in found.items() if value}


def metadata(request: JobRequest, name: str) -> Manifest:
    """Return the metadata of an object that makes pods."""
    queue = {QUEUE_LABEL: request.queue} if request.queue else {}
    found = {"name": name, "namespace": request.namespace, "labels": labels(request) | queue}
    return found | ({"annotations": job_annotations(request)} if job_annotations(request) else {})


def pod_template(request: JobRequest, environment: list[Manifest] | None = None, **spec: Any) -> Manifest:
    """Return the template of a job's pods.

    Args:
        request: The job.
        environment: Variables that depend on what makes the pods.
        spec: Fields of the pod that do, too; None takes one away.
    """
    fields = _pod(request, environment or []) | spec
    about: Manifest = {"labels": labels(request), "annotations": _tolerations(request)}
    return {"metadata": about, "spec": {name: value for name, value in fields.items() if value not in (None, [], {})}}


def _tolerations(request: JobRequest) -> dict[str, str]:
    """Return what pods ask of those who manage machines and volumes."""
    found = {KARPENTER_ANNOTATION: "true"}
    placement = request.placement
    if placement.hosts == 1 and not placement.spot and _CLASS_LABEL not in node_selector(request):
        found[KEEP_ANNOTATION] = "false"
    return found | ({FUSE_ANNOTATION: "true"} if request.buckets else {})


def _pod(request: JobRequest, environment: list[Manifest]) -> Manifest:
    placement = request.placement
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": request.needs_token,
        "enableServiceLinks": False,  # else every Service of the namespace adds seven variables
        "serviceAccountName": request.service_account or None,
        "priorityClassName": request.priority_class or None,
        "terminationGracePeriodSeconds": request.grace,
        "activeDeadlineSeconds": request.deadline_seconds,
        "imagePullSecrets": [{"name": name} for name in request.pull_secrets],
        "nodeSelector": node_selector(request),
        "tolerations": [dict(toleration) for toleration in placement.tolerations],
        "securityContext": _pod_security(request),
        "containers": [_container(request, environment)],
        "volumes": _volumes(request),
    }


def node_selector(request: JobRequest) -> dict[str, str]:
    """Return the labels that a node must carry; a small GPU job must not take, and waste, a large machine."""
    if request.node_selector is not None:
        return dict(request.node_selector)
    placement = request.placement
    count = {COUNT_LABEL: str(placement.chips_per_host)} if placement.kind == "gpu" and request.by_count else {}
    return placement.node_selector | count


def _container(request: JobRequest, environment: list[Manifest]) -> Manifest:
    return {
        "name": CONTAINER,
        "image": request.image,
        "command": [_literal(word) for word in request.command],
        "env": [*_environment(request), *environment],
        **_from_secret(request),
        "resources": resources(request),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **({"runAsNonRoot": True} if request.non_root else {}),
        },
        "volumeMounts": _mounts(request),
        # The end of the log stands in for last words when the runner left none: explain shows it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _from_secret(request: JobRequest) -> Manifest:
    """Let a Secret's entries be variables, unless it holds a key file: that is no variable's value."""
    if not request.store_secret or "GOOGLE_APPLICATION_CREDENTIALS" in request.environment:
        return {}
    return {"envFrom": [{"secretRef": {"name": request.store_secret}}]}


def _environment(request: JobRequest) -> list[Manifest]:
    plain = [{"name": name, "value": _literal(value)} for name, value in request.environment.items()]
    fields = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in request.from_pod.items()]
    return [*fields, *plain]


def _literal(text: str) -> str:
    """Write text so that Kubernetes, which fills in "$(NAME)" and makes one "$" of "$$", leaves it as it is."""
    return text.replace("$", "$$")


def resources(request: JobRequest) -> Manifest:
    """Return requests, and limits for what was asked for.

    Processor and memory that nobody asked for have no limit: a job on a machine of its own may use all of it. Chips are
    asked for as a limit and a request, which must agree.
    """
    needs, kind = request.needs, request.placement.kind
    memory = needs.memory_bytes or max(_MEMORY[kind], needs.shm_bytes or 0)
    requests = {
        "cpu": cores_quantity(needs.cpu or _CPU[kind]),
        "memory": bytes_quantity(memory),
        "ephemeral-storage": bytes_quantity(needs.disk_bytes or _DISK[kind]),
    }
    asked = {"cpu": needs.cpu, "memory": needs.memory_bytes, "ephemeral-storage": needs.disk_bytes}
    limits = {name: requests[name] for name, amount in asked.items() if amount is not None}
    chips = {}
    if request.placement.resource:
        chips[request.placement.resource] = str(request.placement.resource_count)
    return {"requests": requests | chips} | ({"limits": limits | chips} if limits | chips else {})


def _pod_security(request: JobRequest) -> Manifest:
    """Keep system calls that no job needs away. Most images run as root, so that is allowed unless it must not be.

    With this and what each container has, pods meet the level "restricted" of Pod Security.
    """
    found: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    if request.run_as is None:
        found["fsGroup"] = GROUP
    else:
        found |= {"runAsUser": request.run_as, "runAsGroup": request.run_as, "fsGroup": request.run_as}
        found["runAsNonRoot"] = request.run_as != 0
    return found


def _volumes(request: JobRequest) -> list[Manifest]:
    shm: Manifest = {"medium": "Memory"}
    if request.needs.shm_bytes:
        shm["sizeLimit"] = bytes_quantity(request.needs.shm_bytes)
    found: list[Manifest] = [{"name": "shm", "emptyDir": shm}]
    if request.secret:
        found.append({"name": "secret", "secret": {"secretName": request.secret, "defaultMode": _OWNER_ONLY}})
    if request.store_secret:
        named = {"secretName": request.store_secret, "defaultMode": _OWNER_ONLY}
        found.append({"name": "store", "secret": named})
    if request.runner:
        found.append({"name": "runner", "configMap": {"name": request.runner, "defaultMode": _OWNER_ONLY}})
    found += [{"name": f"folder-{at}", "emptyDir": {}} for at in range(len(request.folders))]
    found += [_bucket(at, volume) for at, volume in enumerate(request.buckets)]
    return found


def _bucket(at: int, volume: BucketVolume) -> Manifest:
    attributes = {"bucketName": volume.mount.bucket, "mountOptions": volume.mount.mount_options}
    driver = {"driver": FUSE_DRIVER, "readOnly": volume.mount.read_only, "volumeAttributes": attributes}
    return {"name": f"bucket-{at}", "csi": driver}


def _mounts(request: JobRequest) -> list[Manifest]:
    found: list[Manifest] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - the very path that is meant
    if request.secret:
        found.append({"name": "secret", "mountPath": SECRET_FOLDER, "readOnly": True})
    if request.store_secret:
        found.append({"name": "store", "mountPath": STORE_SECRET_FOLDER, "readOnly": True})
    if request.runner:
        mount = {"name": "runner", "mountPath": RUNNER_PATH, "subPath": RUNNER_FILE, "readOnly": True}
        found.append(mount)  # a file of its own: a folder would be in the way of the Secret's beside it
    found += [{"name": f"folder-{at}", "mountPath": path} for at, path in enumerate(request.folders)]
    found += [
        {"name": f"bucket-{at}", "mountPath": volume.path, "readOnly": volume.mount.read_only}
        for at, volume in enumerate(request.buckets)
    ]
    return found


def job(request: JobRequest) -> Manifest:
    """Return the Job of a job on one host.

    It is made suspended: its Secret can then name it as its owner before a pod needs the Secret, and a client that dies
    in between leaves something harmless that can be seen. Under Kueue, it is Kueue that lets it go.
    """
    spec: Manifest = {
        "suspend": True,
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": request.retries,
        "podFailurePolicy": {"rules": [disruption_rule("Ignore"), success_policy()]},
        # A second pod must not start while the first still holds the chips, or writes.
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": request.ttl_seconds,
        "template": pod_template(request),
    }
    if request.life_seconds is not None:
        spec["activeDeadlineSeconds"] = request.life_seconds
    about = metadata(request, job_name(request.job_id))
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


def disruption_rule(action: str) -> Manifest:
    """Return the rule for pods whose machine was taken away. It stands first: such pods have exit codes as well."""
    return {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def success_policy() -> Manifest:
    """Return the rule for everything that would end the same way again: all codes but those for the infrastructure.

    137 is among it: without a disruption it means that memory ran out, and would run out again.
    """
    passing = [INFRASTRUCTURE_EXIT, LOST_EXIT]
    return {
        "action": "FailJob",
        "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": passing},
    }


NODE_POOL = "cloud.google.com/gke-nodepool"  # GKE makes one node pool for each slice


def job_set(request: JobRequest) -> Manifest:
    """Return a JobSet with one Indexed Job, made suspended as a Job is."""
    name = job_set_name(request.job_id, request.placement.hosts)
    about = metadata(request, name)
    if request.placement.kind == "tpu":
        about.setdefault("annotations", {})["alpha.jobset.sigs.k8s.io/exclusive-topology"] = NODE_POOL
    restarts = _from_field(RESTART_VARIABLE, "metadata.labels['jobset.sigs.k8s.io/restart-attempt']")
    template = pod_template(request, [restarts])
    spec = {
        "suspend": True,
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": name},
        "successPolicy": {"operator": "All"},
        "failurePolicy": _restarts(request),
        "ttlSecondsAfterFinished": request.ttl_seconds,
        "replicatedJobs": [
            {
                "name": SLICE_PREFIX,
                "replicas": 1,
                "template": {"metadata": {"labels": labels(request)}, "spec": _hosts(request, template)},
            }
        ],
    }
    return {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": about, "spec": spec}


def _restarts(request: JobRequest) -> Manifest:
    """Say which failures of the hosts' Job start all of them again. The first rule that matches counts."""
    return {
        "maxRestarts": request.retries,
        # All old pods are gone before new ones come: the chips are theirs alone, and so is the store.
        "restartStrategy": "BlockingRecreate",
        "rules": [
            {
                "name": "verdict",
                "action": "FailJobSet",
                "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
            },
            {
                "name": "disruption",
                "action": "RestartJobSetAndIgnoreMaxRestarts",
                "onJobFailureReasons": ["BackoffLimitExceeded"],
            },
        ],
    }


def _hosts(request: JobRequest, template: Manifest) -> Manifest:
    """Return the Indexed Job of a slice.

    With backoffLimit 0 a pod that *counts* ends it as BackoffLimitExceeded: a preempted host, or one that exits with
    the code for the infrastructure, as all do that only notice a lost peer. All else ends it as PodFailurePolicy.
    That is what a JobSet tells them apart by.
    """
    spec: Manifest = {
        "completionMode": "Indexed",
        "completions": request.placement.hosts,
        "parallelism": request.placement.hosts,
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [disruption_rule("Count"), success_policy()]},
        "podReplacementPolicy": "Failed",
        "template": template,
    }
    if request.life_seconds is not None:
        spec["activeDeadlineSeconds"] = request.life_seconds
    return spec


def indexed_job(request: JobRequest) -> Manifest:
    """Return an Indexed Job for a cluster without JobSet; ``service`` belongs to it. It has no restart as a gang."""
    name = indexed_job_name(request.job_id, request.placement.hosts)
    template = pod_template(request, subdomain=name, affinity=_indexed_pods(request))
    spec = _hosts(request, template) | {"suspend": True, "ttlSecondsAfterFinished": request.ttl_seconds}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(request, name), "spec": spec}


def _indexed_pods(request: JobRequest) -> Manifest | None:
    """Keep the hosts in one node pool, which is one slice: two free slices could otherwise get half of them each.

    A JobSet's annotation does this, and here an affinity to the job's own pods; for the first of them it holds.
    """
    if request.placement.kind != "tpu":
        return None
    own = {"matchLabels": {JOB_LABEL: label_value(request.job_id)}}
    term = {"labelSelector": own, "topologyKey": NODE_POOL}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def service(request: JobRequest, uid: str = "") -> Manifest:
    """Return the headless Service that gives the hosts of an Indexed Job their names.

    Args:
        request: The job.
        uid: Of the Job, which then owns it: it goes when the Job goes.
    """
    name = indexed_job_name(request.job_id, request.placement.hosts)
    about: Manifest = {"name": name, "namespace": request.namespace, "labels": labels(request)}
    if uid:
        about["ownerReferences"] = [owner_reference("batch/v1", "Job", name, uid)]
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # hosts look for each other before anybody calls them ready
        "selector": {JOB_LABEL: label_value(request.job_id)},
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": spec}


def leader_worker_set(request: JobRequest) -> Manifest:
    """Return a LeaderWorkerSet, for clusters that have nothing else.

    It knows no end: its pods are started again whenever they exit. So the runner must not exit before the set is
    deleted; whoever builds the request says so to the runner, and whoever collects deletes the set.
    """
    name = leader_worker_set_name(request.job_id, request.placement.hosts)
    about = metadata(request, name)
    if request.placement.kind == "tpu":
        about.setdefault("annotations", {})["leaderworkerset.sigs.k8s.io/exclusive-topology"] = NODE_POOL
    # Its pods belong to a StatefulSet, which refuses both fields.
    template = pod_template(request, restartPolicy="Always", activeDeadlineSeconds=None)
    group = {
        "size": request.placement.hosts,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "workerTemplate": template,
    }
    spec = {"replicas": 1, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": group}
    return {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": about, "spec": spec}


def owner_reference(version: str, kind: str, name: str, uid: str) -> Manifest:
    """Return a reference to an owner: what has it is removed when the owner is."""
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": False}


def coordinator(request: JobRequest, manifest: Manifest) -> str:
    """Return where JAX's processes meet, for the launch page.

    On TPUs GKE's own variables say it, or those of the LeaderWorkerSet's controller, and JAX reads them.

    Args:
        request: The job.
        manifest: What makes its pods.
    """
    if request.placement.hosts == 1:
        return ""
    if request.placement.kind == "tpu":
        return DETECT
    name = manifest["metadata"]["name"]
    first = f"{name}-{SLICE_PREFIX}-0-0" if manifest["kind"] == "JobSet" else f"{name}-0"
    return f"{first}.{name}:{request.coordinator_port}"


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


MOST_OBJECT_BYTES = 1_048_576  # what the server takes of a Secret's or a ConfigMap's values together


def secret(request: JobRequest, entries: Mapping[str, bytes], owned_by: Manifest) -> Manifest:
    """Return the Secret of one job.

    Args:
        request: The job.
        entries: Names and bytes; each becomes a file of the pod.
        owned_by: The object that makes the job's pods, as the server returned it: the Secret goes with it.

    Raises:
        LaunchError: They are too large.
    """
    about = _about(secret_name(request.job_id), request.namespace, labels(request))
    kept = owned_by["metadata"]
    about["ownerReferences"] = [owner_reference(owned_by["apiVersion"], owned_by["kind"], kept["name"], kept["uid"])]
    return _secret(about, entries)


def group_secret(group: str, namespace: str, owner_name: str, entries: Mapping[str, bytes]) -> Manifest:
    """Return the Secret that the children of a batch share; nothing owns it, so whoever closes the batch removes it.

    Raises:
        LaunchError: They are too large.
    """
    found = {APP_LABEL: APP, GROUP_LABEL: label_value(group)}
    if owner_name:
        found[OWNER_LABEL] = label_value(owner_name)
    return _secret(_about(group_secret_name(group), namespace, found), entries)


def runner_config_map(namespace: str, version: str, digest: str, files: Mapping[str, bytes]) -> Manifest:
    """Return the ConfigMap with the runner: one for each version and namespace, shared by all jobs, never changed.

    Args:
        namespace: Where it goes.
        version: Of kinetic.
        digest: SHA-256 of the runner's bytes.
        files: Names and bytes; each becomes a file of the pod.

    Raises:
        LaunchError: They are too large.
    """
    _check_size("the runner", files)
    found = {APP_LABEL: APP, "kinetic/runner": digest[:32]}
    about = _about(runner_name(version, digest), namespace, found)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": about,
        "immutable": True,
        "binaryData": _encoded(files),
    }


def _secret(about: Manifest, entries: Mapping[str, bytes]) -> Manifest:
    _check_size("the captured environment variables", entries)
    encoded = _encoded(entries)
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": about,
        "type": "Opaque",
        "immutable": True,
        "data": encoded,
    }


def _about(name: str, namespace: str, found: dict[str, str]) -> Manifest:
    return {"name": name, "namespace": namespace, "labels": found}


def _encoded(entries: Mapping[str, bytes]) -> dict[str, str]:
    return {name: base64.b64encode(value).decode() for name, value in entries.items()}


def _check_size(what: str, entries: Mapping[str, bytes]) -> None:
    size = sum(map(len, entries.values()))
    if size > MOST_OBJECT_BYTES:
        raise LaunchError(
            f"{what} are too large for a cluster" if what.endswith("s") else f"{what} is too large for a cluster",
            why=f"{size:,} bytes; a Secret or a ConfigMap holds {MOST_OBJECT_BYTES:,}",
            next="capture fewer variables, or pass large values as arguments",
        )

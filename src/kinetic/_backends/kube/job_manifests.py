"""What one job asks of a cluster (``JobRequest``), and the objects that it becomes: names, labels and manifests.

One template of a pod serves every kind of object that makes pods: Job, JobSet, Indexed Job and LeaderWorkerSet.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from kinetic._backends.kube.client import JOB, JOB_SET, LEADER_WORKER_SET, POD_GROUP
from kinetic._config.cluster import DAY_SECONDS, PodRequirements
from kinetic._hardware.placement import COUNT_LABEL
from kinetic._wire import NamedTuple, dataclass, keys
from kinetic._wire.task import (
    DETECT,
    INFRASTRUCTURE_EXIT,
    LOST_EXIT,
    POD_VARIABLE,
    RESTART_VARIABLE,
    SECRET_FOLDER,
    SLICE_VARIABLE,
    STORE_SECRET_FOLDER,
)
from kinetic.errors import LaunchError, OptionError

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Kind
    from kinetic._config.cluster import ClusterSettings
    from kinetic._hardware.placement import Placement, Toleration
    from kinetic._wire.order import DataRef

Manifest = dict[str, Any]

SPOT_GRACE_SECONDS = 15  # of the 30 s after the notice the first 15 belong to us; a larger number changes nothing
GRACE_SECONDS = 30  # what Kubernetes gives by default
RUNNER_FILE = "runner.zip"  # the one entry of the ConfigMap
RUNNER_PATH = f"/kinetic/{RUNNER_FILE}"


class BucketVolume(NamedTuple):
    """A bucket, or a folder of it, that is mounted at an absolute path of the job, which only reads it."""

    path: str
    bucket: str  # its name, without a scheme
    options: str  # of the FUSE driver, with commas between them


def bucket_volume(path: str, ref: DataRef) -> BucketVolume:
    """Return how plain objects in a bucket of Google Cloud Storage are mounted; a single object by its folder.

    Source: GKE's documentation of the Cloud Storage FUSE CSI driver.
    """
    if ref.kind not in {"prefix", "object"} or not ref.uri.startswith("gs://"):
        raise OptionError(
            f"{ref.path!r} cannot be mounted in a cluster",
            why="only data in a gs:// bucket can be mounted",
            next="leave out fuse=True, and the job gets a copy",
        )
    bucket, _, key = ref.uri.removeprefix("gs://").partition("/")
    folder = key.rpartition("/")[0]
    only = ["only-dir=" + folder.replace(",", "\\,")] if folder else []  # a comma would end the option
    return BucketVolume(path, bucket, ",".join(["implicit-dirs", *only]))


@dataclass(frozen=True)
class JobRequest:
    """What one job asks of a cluster."""

    job_id: str
    namespace: str
    placement: Placement
    requirements: PodRequirements = field(default_factory=PodRequirements)  # image, resources, settings of the cluster
    command: tuple[str, ...] = ()  # the first word is a program of the image
    owner: str = ""  # who submitted it
    group: str = ""  # the batch it belongs to
    order_sha256: str = ""  # tells a launch of the same job from another that has its name
    environment: Mapping[str, str] = field(default_factory=dict)  # nothing secret: who may read pods can read it
    secret: str = ""  # the Secret whose entries are files in the runner's SECRET_FOLDER
    runner: str = ""  # the ConfigMap whose RUNNER_FILE is mounted at RUNNER_PATH
    deadline_seconds: int | None = None  # of a running pod; waiting does not count
    ttl_seconds: int = DAY_SECONDS  # after the end, when the cluster removes what is left
    service_account: str = ""  # "" for the namespace's default
    needs_token: bool = False  # of that account
    buckets: tuple[BucketVolume, ...] = ()  # what is mounted instead of copied
    run_as: tuple[int, int] | None = None  # user and group; None for the image's own, mostly root
    non_root: bool = False  # whether the node refuses an image whose user is root
    has_own_users: bool = False  # whether the cluster gives each pod a user and a group, and rejects others
    has_read_only_root: bool = False  # whether the cluster wants pods that write into volumes only
    by_count: bool = True  # whether nodes are selected by the number of their GPUs, too; some lack that label
    starts_together: bool = False  # whether its hosts are one PodGroup of Volcano
    retries: int = 3  # of infrastructure failures (count); preemptions do not count
    warm: str = ""  # the warm pod that carries the job out
    is_warm_pod: bool = False  # whether it is such a pod, which takes many jobs

    @property
    def settings(self) -> ClusterSettings:
        """What applies to all jobs of the cluster."""
        return self.requirements.settings

    def labels(self) -> dict[str, str]:
        """Return what every object of the job is found by, and the labels of the settings."""
        app = APP_WARM if self.is_warm_pod else APP if self.placement.hosts == 1 else APP_MULTI_HOST
        found = {**(self.settings.labels or {}), APP_LABEL: app, JOB_LABEL: label_value(self.job_id)}
        if self.owner:
            found[OWNER_LABEL] = label_value(self.owner)
        if self.group:
            found[GROUP_LABEL] = label_value(self.group)
        return found

    def metadata(self, name: str, exclusive_topology: str = "") -> Manifest:
        """Return the metadata of an object that makes pods; an annotation keeps a TPU slice in one node pool."""
        # What does not fit into labels: id, owner and accelerator as written, and which order this is.
        annotations = {
            JOB_ID_ANNOTATION: self.job_id,
            OWNER_LABEL: self.owner,
            "kinetic/order": self.order_sha256,
            ACCELERATOR_ANNOTATION: self.placement.accelerator,
        }
        if exclusive_topology and self.placement.kind == "tpu":
            annotations[exclusive_topology] = NODE_POOL
        queue = {QUEUE_LABEL: self.settings.queue} if self.settings.queue else {}
        queue |= {WARM_LABEL: self.warm} if self.warm else {}
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels() | queue,
            "annotations": {key: value for key, value in annotations.items() if value},
        }


# ---------------------------------------------------------------------------------------------------- names and labels

MOST_NAME_CHARACTERS = keys.MOST_OF_AN_OBJECT
_MOST_WARM_RESTARTS = 5  # of a warm slice, preemptions included; hosts of its job's own have some tries left then
SLICE_PREFIX = "s"  # the one replicated job of a JobSet; one letter, since every hostname contains it

APP, APP_MULTI_HOST, APP_WARM = "kinetic", "kinetic-pathways", "kinetic-warm"
APP_LABEL = "app"
JOB_LABEL = "job-id"
OWNER_LABEL = "kinetic/owner"
GROUP_LABEL = "kinetic/group"
RUNNER_LABEL = "kinetic/runner"  # of the ConfigMap
POD_GROUP_ANNOTATION = "scheduling.k8s.io/group-name"  # by which Volcano finds the group of a pod
POD_GROUP_QUEUE = "scheduling.volcano.sh/queue-name"  # the annotation that puts a pod into a queue of Volcano
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
QUEUE_ANNOTATION = "kinetic/queue"  # of what waits for other jobs; Kueue reads an annotation with its label's name, too
NO_QUEUE = "kinetic-none"  # a queue that is nowhere: Kueue puts what names none into the namespace's default queue
JOB_ID_ANNOTATION = "kinetic/job-id"  # an id may be too long for a label
ACCELERATOR_ANNOTATION = "kinetic/accelerator"
AFTER_ANNOTATION = "kinetic/after"  # what a suspended job waits for; removed when it may start
PROGRAMS_OF = "programs-of"  # its first word, where a child waits for what the first one of its batch compiles
_MOST_AFTER = 4096  # characters
WARM_LABEL = "kinetic/warm"  # of a job that a warm pod carries out: which; such a Job stays suspended
FITS_ANNOTATION = "kinetic/fits"  # of a warm pod: what a job must ask for to run there
PACKAGES_ANNOTATION = "kinetic/packages"  # of a warm pod: its lock, and what its own jobs install first
DIFFERS_ANNOTATION = "kinetic/differs"  # of a task: it has other packages than its warm pod, and may come back
WARM_ANNOTATION = "kinetic/warm-page"  # of a warm pod: how long it stays

_HASH = 8  # hexadecimal digits
_POD_SUFFIX = 6  # "-" and the five characters that the Job controller draws
_REVISION_SUFFIX = 11  # "-" and ten characters: a StatefulSet's revision, which is a label of its pods
_OUTSIDE = r"[^A-Za-z0-9_.-]+"


def object_name(name: str) -> str:
    """Name the Job of one host, the Secret of a job, or the Secret of a batch by its id.

    Kubernetes cuts a Job's name before it appends five random characters, so all 63 may be used.
    """
    return keys.object_name(name, MOST_NAME_CHARACTERS)


def resource_name(kind: Kind, job_id: str, hosts: int) -> str:
    """Name the object of a kind that makes the pods of a job, so that the names of its pods fit as well.

    Indexed Job        a pod is NAME-INDEX-xxxxx, and so is its hostname without the end; so is its Service
    JobSet             a pod is NAME-s-0-INDEX-xxxxx
    LeaderWorkerSet    a pod is NAME-0-INDEX, and a label adds a revision to NAME-0
    """
    if hosts == 1:
        return object_name(job_id)
    index = len(f"-{hosts - 1}")
    if kind == JOB_SET:
        suffix = len(f"-{SLICE_PREFIX}-0") + index + _POD_SUFFIX
    else:
        suffix = index + _POD_SUFFIX if kind == JOB else len("-0") + max(index, _REVISION_SUFFIX)
    return keys.object_name(job_id, MOST_NAME_CHARACTERS - suffix)


def runner_name(version: str, digest: str) -> str:
    """Name the ConfigMap of a runner: by its content, so that it can be shared; the version is for readers."""
    readable = re.sub(r"[^a-z0-9]+", "-", version.lower()).strip("-")[:20]
    return f"kinetic-runner-{readable}-{digest[:16]}"


def label_value(text: str) -> str:
    """Turn any text into a value that a label may have; a changed one gets a digest, so that different texts differ."""
    value = re.sub(_OUTSIDE, "-", text).strip("-_.")
    if value == text and len(text) <= MOST_NAME_CHARACTERS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH]
    return f"{value[: MOST_NAME_CHARACTERS - _HASH - 1].rstrip('-_.')}-{digest}".lstrip("-")


def label_selector(**labels: str) -> str:
    """Return a label selector for objects by ``job_id``, ``owner`` and ``group``, or for every job."""
    keys = {"job_id": JOB_LABEL, "owner": OWNER_LABEL, "group": GROUP_LABEL}
    if not labels:
        return f"{APP_LABEL} in ({APP},{APP_MULTI_HOST})"
    return ",".join(f"{keys[name]}={label_value(value)}" for name, value in labels.items())


def jobs_selector(job_ids: Iterable[str]) -> str:
    """Return a label selector for the objects of some jobs."""
    return f"{JOB_LABEL} in ({','.join(map(label_value, job_ids))})"


# ------------------------------------------------------------------------------------------------------------- the pod

CONTAINER = "kinetic-worker"  # as the original called it: people grep for it
FUSE_DRIVER = "gcsfuse.csi.storage.gke.io"
FUSE_ANNOTATION = "gke-gcsfuse/volumes"
# Autoscalers drain nodes with low utilization, and a job that is moved starts again: they are asked to let it end.
# Pods that an Autopilot cluster cannot keep in place get no node at all if they ask GKE's for it: Spot, a compute class
# of the cluster's own, and hosts that must be together. A slice's nodes never have low utilization.
# Source: GKE's page "Extend the run time of Autopilot Pods", as manuals of other projects quote its limits, 2026-11.
KEEP_ANNOTATION, KARPENTER_ANNOTATION = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
_CLASS_LABEL = "cloud.google.com/compute-class"
# GKE taints the nodes of a pool with queued provisioning, which `kinetic pool add --queued` makes; Kueue leads to them.
_OF_A_QUEUE: Toleration = {"key": "cloud.google.com/gke-queued", "operator": "Exists", "effect": "NoSchedule"}
SLICE_INDEX = "jobset.sigs.k8s.io/job-index"  # label of a JobSet's pods: which of its slices they are in
SLICE_HOSTS_ANNOTATION = "kinetic/slice-hosts"  # of pods of several slices: how many hosts each slice has
NODE_POOL = "cloud.google.com/gke-nodepool"  # GKE makes one node pool for each slice
_OWNER_ONLY = 0o400  # a kubelet lets the group below read it as well: 0440, of root and that group
# The group that reads the Secret in an image whose user is not root, and the user of Python's own image where pods must
# not run as root.
GROUP = 65_532
TEMPORARY = "/tmp"  # noqa: S108 - of a container: where it has its own folder, and its home if it may not write there
_COORDINATOR_PORT = 8482
_WARM_GUARD_SECONDS = 7 * 86_400.0  # 7 days: few jobs run longer, and a node that is idle for nothing costs

# What a job gets that asks for nothing: little enough for the smallest machine of each kind (g2-standard-4 has 4 cores
# and 16 GB), enough for a scheduler to spread jobs, and without a limit, so that a machine of its own is all its own.
_GIB = 1024**3
_CPU = {"cpu": 1.0, "gpu": 2.0, "tpu": 2.0}
_MEMORY = {"cpu": 2 * _GIB, "gpu": 8 * _GIB, "tpu": 8 * _GIB}
_DISK = {"cpu": 1 * _GIB, "gpu": 10 * _GIB, "tpu": 10 * _GIB}


def pod_template(request: JobRequest, environment: list[Manifest] | None = None, **spec: Any) -> Manifest:
    """Return the template of a job's pods, with variables and fields for what makes them; None omits a field."""
    settings = request.settings
    placement = placed(request.placement, settings)
    volumes, mounts = _volumes(request)
    selector = node_selector(placement, settings.node_selector, by_count=request.by_count)
    fields = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": request.needs_token,
        "enableServiceLinks": False,  # else every Service of the namespace adds seven variables
        "serviceAccountName": request.service_account or None,
        "priorityClassName": settings.priority_class or None,
        "runtimeClassName": settings.runtime_class or None,
        "schedulerName": settings.scheduler or None,
        "terminationGracePeriodSeconds": SPOT_GRACE_SECONDS if placement.spot else GRACE_SECONDS,
        "activeDeadlineSeconds": request.deadline_seconds,
        "imagePullSecrets": [{"name": name} for name in settings.pull_secrets],
        "nodeSelector": selector,
        "tolerations": [dict(toleration) for toleration in placement.tolerations],
        "securityContext": _pod_security(request),
        "containers": [_container(request, mounts, environment or [])],
        "volumes": volumes,
    } | spec
    annotations = {KARPENTER_ANNOTATION: "true"}
    if placement.slices > 1:
        annotations[SLICE_HOSTS_ANNOTATION] = str(placement.one_slice.hosts)
    if placement.hosts == 1 and not placement.spot and _CLASS_LABEL not in selector:
        annotations[KEEP_ANNOTATION] = "false"
    if request.buckets:
        annotations[FUSE_ANNOTATION] = "true"
    if request.starts_together:
        annotations[POD_GROUP_ANNOTATION] = object_name(request.job_id)
    return {
        "metadata": {"labels": request.labels(), "annotations": annotations | dict(settings.annotations or {})},
        "spec": {name: value for name, value in fields.items() if value not in (None, [], {})},
    }


def pod(request: JobRequest) -> Manifest:
    """Return a pod of a job as its Job would make it, to ask the server what becomes of it."""
    template = pod_template(request)
    about = {**template["metadata"], "generateName": "kinetic-check-", "namespace": request.namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": template["spec"]}


def placed(placement: Placement, settings: ClusterSettings) -> Placement:
    """Return hardware as a cluster has it: with the taints that its pods tolerate, and what it calls a GPU."""
    of_settings = (*map(dict, settings.tolerations), *([_OF_A_QUEUE] if settings.queue else ()))
    called = settings.gpu_resource if settings.gpu_resource and placement.kind == "gpu" else placement.resource
    return placement._replace(tolerations=(*placement.tolerations, *of_settings), resource=called)


def node_selector(
    placement: Placement, own: Mapping[str, str] | None = None, *, by_count: bool = True
) -> dict[str, str]:
    """Return the labels that a node must carry: of the settings, else Google's for the hardware.

    A GPU job also asks for the number of GPUs: a small one must not take, and waste, a large machine.
    """
    if own is not None:
        return dict(own)
    count = {COUNT_LABEL: str(placement.chips_per_host)} if placement.kind == "gpu" and by_count else {}
    return placement.node_selector | count


def _container(request: JobRequest, mounts: list[Manifest], environment: list[Manifest]) -> Manifest:
    variables = [{"name": name, "value": _literal(value)} for name, value in request.environment.items()]
    # A Secret's entries become variables, unless it holds a key file: that is not the value of a variable.
    store = "" if "GOOGLE_APPLICATION_CREDENTIALS" in request.environment else request.settings.store_secret
    whole = [{"configMapRef": {"name": name}} for name in request.settings.config_maps]
    whole += [{"secretRef": {"name": store}}] if store else []
    return {
        "name": CONTAINER,
        "image": request.requirements.image,
        "command": [_literal(word) for word in request.command],
        "env": [*variables, *environment],
        **({"envFrom": whole} if whole else {}),
        "resources": resources(request),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            **({"runAsNonRoot": True} if request.non_root else {}),
            **({"readOnlyRootFilesystem": True} if request.has_read_only_root else {}),
        },
        "volumeMounts": mounts,
        # Without a message of the runner, Kubernetes takes the end of the log: explain shows it.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _literal(text: str) -> str:
    """Escape text for Kubernetes, which replaces "$(NAME)" and turns "$$" into "$"."""
    return text.replace("$", "$$")


def resources(request: JobRequest) -> Manifest:
    """Return requests, and limits for what was asked for.

    Without a request, CPU and memory have no limit: a job on a node of its own may use all of it. Chips are asked for
    as a limit and a request, which must agree.
    """
    needs, kind = request.requirements.needs, request.placement.kind
    disk_bytes = (request.settings.cpu_disk if kind == "cpu" else 0) or _DISK[kind]
    requests = {
        "cpu": _cores_quantity(needs.cpu or _CPU[kind]),
        "memory": _bytes_quantity(needs.memory_bytes or max(_MEMORY[kind], needs.shm_bytes or 0)),
        "ephemeral-storage": _bytes_quantity(needs.disk_bytes or disk_bytes),
    }
    asked = {"cpu": needs.cpu, "memory": needs.memory_bytes, "ephemeral-storage": needs.disk_bytes}
    limits = {name: requests[name] for name, amount in asked.items() if amount is not None}
    if called := placed(request.placement, request.settings).resource:
        chips = {called: str(request.placement.resource_count)}
        requests, limits = requests | chips, limits | chips
    return {"requests": requests} | ({"limits": limits} if limits else {})


def _bytes_quantity(size: int) -> str:
    """Write a number of bytes: "16Gi" where it is so many of a unit, else all the digits."""
    for power, unit in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)


def _cores_quantity(cores: float) -> str:
    """Write a number of cores: "4", or thousandths of one as "500m"; never less than one thousandth."""
    thousandths = max(1, round(cores * 1000))
    return str(thousandths // 1000) if thousandths % 1000 == 0 else f"{thousandths}m"


def _pod_security(request: JobRequest) -> Manifest:
    """Block system calls that no job needs. Most images run as root, so that is allowed unless it must not be.

    With this and what each container has, pods meet the level "restricted" of Pod Security.
    """
    found: Manifest = {"seccompProfile": {"type": "RuntimeDefault"}}
    if request.has_own_users:
        return found
    found["fsGroup"] = GROUP
    if request.settings.volume_claims:  # else a kubelet would go through all files of a large volume at each start
        found["fsGroupChangePolicy"] = "OnRootMismatch"
    if request.run_as is not None:
        user, group = request.run_as
        found |= {"runAsUser": user, "runAsGroup": group, "runAsNonRoot": user != 0}
    return found


def _volumes(request: JobRequest) -> tuple[list[Manifest], list[Manifest]]:
    """Return the volumes of the pod, and where its container mounts them."""
    volumes: list[Manifest] = []
    mounts: list[Manifest] = []

    def add(name: str, path: str, source: Manifest, **mount: Any) -> None:
        volumes.append({"name": name, **source})
        mounts.append({"name": name, "mountPath": path, **mount})

    shm_bytes = request.requirements.needs.shm_bytes
    size = {"sizeLimit": _bytes_quantity(shm_bytes)} if shm_bytes else {}
    add("shm", "/dev/shm", {"emptyDir": {"medium": "Memory", **size}})  # noqa: S108 - exactly this path
    claimed = {each.path for each in request.settings.volume_claims}
    if request.has_read_only_root and TEMPORARY not in claimed:
        add("tmp", TEMPORARY, {"emptyDir": {}})
    if request.secret:
        source = {"secretName": request.secret, "defaultMode": _OWNER_ONLY}
        add("secret", SECRET_FOLDER, {"secret": source}, readOnly=True)
    if request.settings.store_secret:
        source = {"secretName": request.settings.store_secret, "defaultMode": _OWNER_ONLY}
        add("store", STORE_SECRET_FOLDER, {"secret": source}, readOnly=True)
    if request.runner:
        # A file of its own: a folder would hide the Secret's folder beside it.
        source = {"name": request.runner, "defaultMode": _OWNER_ONLY}
        add("runner", RUNNER_PATH, {"configMap": source}, subPath=RUNNER_FILE, readOnly=True)
    # A volume for each claim, whatever is mounted of it: many kubelets wait forever for the second one of a claim.
    # https://github.com/kubernetes/kubernetes/issues/51853
    folders = request.settings.volume_claims
    for at, name in enumerate(dict.fromkeys(each.claim for each in folders)):
        of_it = [each for each in folders if each.claim == name]
        source = {"claimName": name, "readOnly": all(each.read_only for each in of_it)}
        volumes.append({"name": f"claim-{at}", "persistentVolumeClaim": source})
        for each in of_it:
            part = {"name": f"claim-{at}", "mountPath": each.path, "readOnly": each.read_only}
            mounts.append(part | ({"subPath": each.folder} if each.folder else {}))
    for at, (path, bucket, options) in enumerate(request.buckets):
        attributes = {"bucketName": bucket, "mountOptions": options}
        driver = {"driver": FUSE_DRIVER, "readOnly": True, "volumeAttributes": attributes}
        add(f"bucket-{at}", path, {"csi": driver}, readOnly=True)
    return volumes, mounts


# -------------------------------------------------------------------------------------------- objects that make pods


def manifest(request: JobRequest, kind: Kind) -> Manifest:
    """Return the object of a kind that makes the pods of a job."""
    if request.placement.hosts == 1:
        return job(request)
    if kind == JOB_SET:
        return job_set(request)
    return indexed_job(request) if kind == JOB else leader_worker_set(request)


def job(request: JobRequest) -> Manifest:
    """Return the Job of a job on one host.

    It is made suspended: its Secret can then name it as its owner before a pod needs the Secret, and a client that dies
    in between leaves something harmless and visible. Under Kueue, Kueue resumes it.
    """
    spec: Manifest = {
        "suspend": True,
        "completions": 1,
        "parallelism": 1,
        "backoffLimit": request.retries,
        "podFailurePolicy": _pod_failure_policy("Ignore"),
        # A second pod must not start while the first still holds the chips, or writes.
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": request.ttl_seconds,
        "template": pod_template(request),
    }
    return _object("batch/v1", "Job", request.metadata(object_name(request.job_id)), spec)


def _pod_failure_policy(on_disruption: str) -> Manifest:
    """Return what the failure of a pod means for its Job.

    The rule for pods that lost their node comes first: such pods have exit codes as well. The second is for everything
    that would end the same way again: all codes but those for the infrastructure. 137 is one of them: without a
    disruption it means that memory ran out, and would run out again.
    """
    codes = {"containerName": CONTAINER, "values": [INFRASTRUCTURE_EXIT, LOST_EXIT]}
    rules: list[Manifest] = [
        {"action": on_disruption, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {**codes, "operator": "NotIn"}},
    ]
    if on_disruption == "Count":
        # A kubelet ended it before our container ran: at its deadline, for an image that cannot be pulled, or as what
        # the cluster runs before it failed. A JobSet would start the slice again without end.
        rules += [
            {"action": "Count", "onExitCodes": {**codes, "operator": "In"}},
            {"action": "FailJob", "onPodConditions": [{"type": "Ready", "status": "False"}]},
        ]
    return {"rules": rules}


def job_set(request: JobRequest) -> Manifest:
    """Return a JobSet with one Indexed Job, made suspended as a Job is."""
    name = resource_name(JOB_SET, request.job_id, request.placement.hosts)
    slices = request.placement.slices
    variables = [_of_label(RESTART_VARIABLE, "jobset.sigs.k8s.io/restart-attempt")]
    variables += [_of_label(SLICE_VARIABLE, SLICE_INDEX)] if slices > 1 else []
    hosts = _indexed_spec(request, pod_template(request, variables))
    template = {"metadata": {"labels": request.labels()}, "spec": hosts}
    # A job is worth any number of preemptions. A warm slice is not: whatever ends it again and again may be its job,
    # which continues on hosts of its own.
    again = "RestartJobSet" if request.is_warm_pod else "RestartJobSetAndIgnoreMaxRestarts"
    # Which failures of the hosts' Job restart all of them. The first rule that matches counts.
    rules = [
        {"name": "verdict", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"]},
        {"name": "disruption", "action": again, "onJobFailureReasons": ["BackoffLimitExceeded"]},
    ]
    spec = {
        "suspend": True,
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": name},
        "successPolicy": {"operator": "All"},
        "failurePolicy": {
            "maxRestarts": _MOST_WARM_RESTARTS if request.is_warm_pod else request.retries,
            # All old pods are gone before new ones come: they would share the chips, and the store.
            "restartStrategy": "BlockingRecreate",
            "rules": rules,
        },
        "ttlSecondsAfterFinished": request.ttl_seconds,
        "replicatedJobs": [{"name": SLICE_PREFIX, "replicas": slices, "template": template}],
    }
    # Each slice of several hosts is a node pool of its own; those of one host may share one.
    is_alone = slices == 1 or request.placement.one_slice.hosts > 1
    about = request.metadata(name, "alpha.jobset.sigs.k8s.io/exclusive-topology" if is_alone else "")
    return _object("jobset.x-k8s.io/v1alpha2", "JobSet", about, spec)


def _of_label(variable: str, label: str) -> Manifest:
    return _of_field(variable, f"metadata.labels['{label}']")


def _of_field(variable: str, path: str) -> Manifest:
    return {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _indexed_spec(request: JobRequest, template: Manifest) -> Manifest:
    """Return the spec of the Indexed Job of a slice.

    With backoffLimit 0 a pod that *counts* ends it as BackoffLimitExceeded: a preempted host, or one that exits with
    the code for the infrastructure, as all do that only notice a lost peer. All else ends it as PodFailurePolicy.
    A JobSet tells them apart by these reasons.
    """
    return {
        "completionMode": "Indexed",
        "completions": request.placement.one_slice.hosts,
        "parallelism": request.placement.one_slice.hosts,
        "backoffLimit": 0,
        "podFailurePolicy": _pod_failure_policy("Count"),
        "podReplacementPolicy": "Failed",
        "template": template,
    }


def indexed_job(request: JobRequest) -> Manifest:
    """Return an Indexed Job for a cluster without JobSet; ``service`` belongs to it. It does not restart as a whole."""
    name = resource_name(JOB, request.job_id, request.placement.hosts)
    affinity = None
    if request.placement.kind == "tpu":
        # Keeps the hosts in one node pool, which is one slice: two free slices could otherwise get half of them each.
        # A JobSet's annotation does this; here it is an affinity to the job's own pods, which the first one fulfills.
        own = {"matchLabels": {JOB_LABEL: label_value(request.job_id)}}
        terms = [{"labelSelector": own, "topologyKey": NODE_POOL}]
        affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    template = pod_template(request, subdomain=name, affinity=affinity)
    spec = _indexed_spec(request, template) | {"suspend": True, "ttlSecondsAfterFinished": request.ttl_seconds}
    return _object("batch/v1", "Job", request.metadata(name), spec)


def service(request: JobRequest, uid: str) -> Manifest:
    """Return the headless Service that gives the hosts of an Indexed Job their names; the Job (uid) owns it."""
    name = resource_name(JOB, request.job_id, request.placement.hosts)
    about = _metadata(name, request.namespace, request.labels(), _owner_reference("batch/v1", "Job", name, uid))
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # hosts look for each other before they are ready
        "selector": {JOB_LABEL: label_value(request.job_id)},
    }
    return _object("v1", "Service", about, spec)


def pod_group(request: JobRequest, owned_by: Manifest) -> Manifest:
    """Return the PodGroup of all hosts of a job, which Volcano starts together or not at all.

    The one that Volcano makes for the pods of a Job by itself begins with any of them, so two slices could get half of
    their nodes each, and wait for the other half.
    https://volcano.sh/en/docs/podgroup/
    """
    about = _metadata(object_name(request.job_id), request.namespace, request.labels(), owner_of(owned_by))
    spec = {
        "minMember": request.placement.hosts,
        "queue": (request.settings.annotations or {}).get(POD_GROUP_QUEUE),
        "priorityClassName": request.settings.priority_class,
    }
    return _object(POD_GROUP.api_version, POD_GROUP.name, about, {name: value for name, value in spec.items() if value})


def leader_worker_set(request: JobRequest) -> Manifest:
    """Return a LeaderWorkerSet, for clusters that have nothing else.

    It never completes: its pods are started again whenever they exit. So the runner must not exit before the set is
    deleted: the request tells the runner to stay, and the client that collects the result deletes the set.
    """
    name = resource_name(LEADER_WORKER_SET, request.job_id, request.placement.hosts)
    own_uid = _of_field(POD_VARIABLE, "metadata.uid")
    group = {
        "size": request.placement.hosts,
        "restartPolicy": "RecreateGroupOnPodRestart",
        # Its pods belong to a StatefulSet, which rejects both fields.
        "workerTemplate": pod_template(request, [own_uid], restartPolicy="Always", activeDeadlineSeconds=None),
    }
    spec = {"replicas": 1, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": group}
    about = request.metadata(name, "leaderworkerset.sigs.k8s.io/exclusive-topology")
    return _object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", about, spec)


def coordinator(request: JobRequest, kind: Kind) -> str:
    """Return the address of JAX's coordinator; on TPUs, JAX finds it in variables of GKE or of the controller."""
    hosts = request.placement.hosts
    if hosts == 1:
        return ""
    if request.placement.kind == "tpu":
        return DETECT
    return f"{first_host(request, kind)}:{_COORDINATOR_PORT}"


def first_host(request: JobRequest, kind: Kind) -> str:
    """Return the name of the first host of a slice in the network of pods."""
    name = resource_name(kind, request.job_id, request.placement.hosts)
    return f"{jobs_name(kind, name)}-0.{name}"


def jobs_name(kind: Kind, name: str) -> str:
    """Return the name of the Job that makes the pods: the object itself, or the one Job of a JobSet."""
    return f"{name}-{SLICE_PREFIX}-0" if kind == JOB_SET else name


def _object(version: str, kind: str, about: Manifest, spec: Manifest) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": about, "spec": spec}


# ------------------------------------------------------------------------------------------- Secrets and the ConfigMap

MOST_OBJECT_BYTES = 1_048_576  # what the server takes of a Secret's or a ConfigMap's values together


def hold(manifest: Manifest, after: Sequence[str], default_queue: str) -> None:
    """Make an object wait: suspended, with what it waits for, and in no queue of Kueue, which would start it."""
    about = manifest["metadata"]
    queue = about["labels"].get(QUEUE_LABEL) or default_queue
    about["labels"] = outside_of_queues(about["labels"], default_queue)
    about["annotations"] |= {
        AFTER_ANNOTATION: " ".join(after)[:_MOST_AFTER],
        **({QUEUE_ANNOTATION: queue} if queue else {}),
    }
    manifest["spec"]["suspend"] = True


def outside_of_queues(labels: Mapping[str, str], default_queue: str) -> dict[str, str]:
    """Return labels with which Kueue does not start an object; ``default_queue``: of its namespace, "" for none."""
    found = {name: value for name, value in labels.items() if name != QUEUE_LABEL}
    return found | ({QUEUE_LABEL: NO_QUEUE} if default_queue else {})


def secret(request: JobRequest, entries: Mapping[str, bytes], owned_by: Manifest) -> Manifest:
    """Return the Secret of one job, whose entries become files of the pod; what makes the pods owns it."""
    about = _metadata(object_name(request.job_id), request.namespace, request.labels(), owner_of(owned_by))
    return _secret(about, entries)


def secret_again(made: Manifest, job_id: str, entries: Mapping[str, bytes]) -> Manifest:
    """Return the Secret of a job whose object is there, in place of one that is gone."""
    about = made["metadata"]
    labels = {name: value for name, value in about["labels"].items() if name not in {QUEUE_LABEL, WARM_LABEL}}
    return _secret(_metadata(object_name(job_id), about["namespace"], labels, owner_of(made)), entries)


def owner_of(owned_by: Mapping[str, Any]) -> Manifest:
    """Return the reference to an object in what it owns."""
    owner = owned_by["metadata"]
    return _owner_reference(owned_by["apiVersion"], owned_by["kind"], owner["name"], owner["uid"])


def warm_guard_seconds(most_seconds: float) -> int:
    """Return when the server ends a warm pod that has not ended by itself.

    Not soon after its maximum: the server does not know whether a job runs there, and would end that as well.
    """
    return int(max(2 * most_seconds, _WARM_GUARD_SECONDS)) + 60


def warm_job(request: JobRequest, kind: Kind, annotations: Mapping[str, str], most_seconds: float) -> Manifest:
    """Return what makes a warm pod, or the pods of a warm slice."""
    made = manifest(request, kind)
    _job_of(made)["spec"]["activeDeadlineSeconds"] = warm_guard_seconds(most_seconds)
    made["metadata"]["annotations"] = {**made["metadata"].get("annotations", {}), **annotations}
    return made


def pods_of(made: Mapping[str, Any]) -> Manifest:
    """Return the template of the pods of a Job, or of the one Job of a JobSet."""
    template: Manifest = _job_of(made)["spec"]["template"]
    return template


def _job_of(made: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Sequence[Mapping[str, Any]] = made["spec"].get("replicatedJobs") or ()
    return found[0]["template"] if found else made


def group_secret(
    group: str, namespace: str, owner: str, entries: Mapping[str, bytes], labels: Mapping[str, str]
) -> Manifest:
    """Return the Secret that the children of a batch share; it has no owner: closing the batch removes it."""
    found = {**labels, APP_LABEL: APP, GROUP_LABEL: label_value(group)}
    if owner:
        found[OWNER_LABEL] = label_value(owner)
    return _secret(_metadata(object_name(group), namespace, found), entries)


def runner_config_map(namespace: str, version: str, digest: str, files: Mapping[str, bytes]) -> Manifest:
    """Return the ConfigMap with the runner: one for each version and namespace, shared by all jobs, never changed."""
    about = _metadata(runner_name(version, digest), namespace, {APP_LABEL: APP, RUNNER_LABEL: digest[:32]})
    data = encoded(files, "the runner is")
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": about, "immutable": True, "binaryData": data}


def _secret(about: Manifest, entries: Mapping[str, bytes]) -> Manifest:
    found = {"apiVersion": "v1", "kind": "Secret", "metadata": about, "type": "Opaque", "immutable": True}
    return {**found, "data": encoded(entries)}


def _metadata(name: str, namespace: str, labels: dict[str, str], *owners: Manifest) -> Manifest:
    about = {"name": name, "namespace": namespace, "labels": labels}
    return about | ({"ownerReferences": [*owners]} if owners else {})


def _owner_reference(version: str, kind: str, name: str, uid: str) -> Manifest:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": uid, "controller": False}


def encoded(entries: Mapping[str, bytes], what: str = "the captured environment variables are") -> dict[str, str]:
    """Encode the entries of a Secret or a ConfigMap in base64, or raise a LaunchError if they are too large."""
    size = sum(map(len, entries.values()))
    if size > MOST_OBJECT_BYTES:
        raise LaunchError(
            f"{what} too large for a cluster",
            why=f"{size:,} bytes; a Secret or a ConfigMap holds {MOST_OBJECT_BYTES:,}",
            next="capture fewer variables, or pass large values as arguments",
        )
    return {name: base64.b64encode(value).decode() for name, value in entries.items()}

"""What clusters say, and what it means: tables over the very words of Kubernetes, GKE's autoscaler and Kueue.

The first row that fits holds. ``what`` and ``next`` may use the pattern's groups and {namespace}, {pod}, {image},
{account}, {queue}, {accelerator} and {machines}, a command. ``stuck`` means: waiting alone will not help.

The words were read in Kubernetes 1.36 (scheduler, kubelet, controllers, admission), in Kueue 0.14, and in events of
GKE's autoscaler as they stand in public issues; spec/gke.md sections 3 and 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Pattern(NamedTuple):
    """A row: words of a cluster, and what they mean.

    Attributes:
        code: A short word for it.
        pattern: Of what the cluster says.
        what: For the user.
        next: What to do.
        stuck: Whether waiting alone will not help.
    """

    code: str
    pattern: str
    what: str
    next: str = ""
    stuck: bool = False


class Explanation(NamedTuple):
    """What something that a cluster said means; the fields of a row, filled in."""

    code: str
    what: str
    why: str = ""
    next: str = ""
    stuck: bool = False


_DESCRIBE = "kubectl describe pod {pod} -n {namespace}"
_MACHINES = "{machines} shows what the cluster has; ask for another accelerator, or add machines"
_QUOTA = "ask for more at console.cloud.google.com/iam-admin/quotas, or for a smaller accelerator, or another region"
_ADMISSION = "change what the message names, use another namespace, or ask who runs the cluster"

# A Job's event FailedCreate: the API server refused its pod. Also what a JobSet says of its Jobs.
CREATION = (
    Pattern(
        "service-account",
        r'serviceaccount "[^"]+" not found|error looking up service account',
        "the namespace {namespace} has no service account {account}",
        "kubectl create serviceaccount {account} -n {namespace}, or name another in KINETIC_SERVICE_ACCOUNT",
        stuck=True,
    ),
    Pattern(
        "quota",
        r"exceeded quota: (?P<quota>[^,\s]+)",
        "the quota {quota} of the namespace {namespace} is used up",
        "kubectl describe resourcequota {quota} -n {namespace}; the job starts when others end",
    ),
    Pattern(
        "quota",
        r"failed quota: (?P<quota>[^:\s]+): must specify (?P<missing>.+)",
        "the quota {quota} of the namespace {namespace} wants every pod to say {missing}",
        'write resources = {{ cpu = 4, memory = "16Gi" }} under [tool.kinetic] in pyproject.toml',
        stuck=True,
    ),
    Pattern(
        "admission",
        r"violates PodSecurity \"(?P<level>[^\"]+)\"",
        "the namespace {namespace} takes pods of the level {level} only",
        "use another namespace, or ask who runs the cluster",
        stuck=True,
    ),
    Pattern(
        "webhook-down",
        r'failed calling webhook "(?P<hook>[^"]+)"',
        "the cluster's webhook {hook} does not answer, and no pod comes past it",
        "ask who runs the cluster; the job starts when it answers",
    ),
    Pattern(
        "admission",
        r"admission webhook|ValidatingAdmissionPolicy|denied the request|denied request",
        "a rule of the cluster refuses the pod",
        _ADMISSION,
        stuck=True,
    ),
    Pattern(
        "priority-class",
        r"no PriorityClass with name (?P<name>\S+) was found",
        "the cluster has no priority class {name}",
        "kubectl get priorityclasses shows those it has",
        stuck=True,
    ),
    Pattern(
        "busy",
        r"Operation cannot be fulfilled|etcdserver|time(?:d |)out|deadline exceeded|too many requests",
        "the cluster is too busy to make its pod",
        "nothing: it tries again by itself",
    ),
    Pattern(
        "admission",
        r"is invalid:|maximum .* usage per|minimum .* usage per",
        "the cluster does not take the pod as it is written",
        _ADMISSION,
        stuck=True,
    ),
)

# The event that the autoscaler wrote last. It comes before the scheduler's words, which know today's nodes only.
SCALING = (
    Pattern(
        "out-of-stock",
        r"GCE out of resources|ZONE_RESOURCE_POOL_EXHAUSTED|out\.of\.resources|does not have enough resources",
        "Google has no {accelerator} left in this zone at the moment",
        "wait, it is asked for again and again; or try :spot, another zone or another accelerator",
    ),
    Pattern(
        "quota",
        r"GCE quota exceeded|QUOTA_EXCEEDED|quota\.exceeded|Quota '(?P<quota>[^']+)' exceeded",
        "the project's quota does not allow another machine with {accelerator}",
        _QUOTA,
        stuck=True,
    ),
    Pattern(
        "addresses",
        r"IP space exhausted|IP_SPACE_EXHAUSTED|ip\.space\.exhausted",
        "the cluster's network has no addresses left for another machine",
        "ask who runs the cluster for a larger range of pod addresses",
        stuck=True,
    ),
    Pattern(
        "permission",
        r"SERVICE_ACCOUNT_DELETED|service\.account\.deleted|PERMISSIONS_ERROR",
        "the cluster may not make machines: its own service account was removed or lost its role",
        "ask who runs the project",
        stuck=True,
    ),
    Pattern(
        "scaling-failed",
        r"Node scale up in zones .* failed|scale.?up .*failed|FailedScaleUp",
        "the cluster tried to make a machine and failed",
        "wait, it tries again; " + _DESCRIBE + " shows each try",
    ),
    Pattern(
        "scaling-up",
        r"pod triggered scale-up",
        "a machine with {accelerator} is being made: some minutes",
    ),
    Pattern(
        "pool-full",
        r"max node group size reached|max cluster (?:cpu|memory|\S+) limit reached|max total nodes in cluster reached"
        r"|cluster-wide .* limit|in backoff after failed scale-up",
        "the node pool with {accelerator} has all the machines that it may have, or waits after a failure",
        "wait for other jobs, or let the pool grow: gcloud container clusters update --enable-autoscaling --max-nodes",
    ),
    Pattern(
        "no-node-matches",
        r"pod didn't trigger scale-up",
        "no node pool of this cluster can provide {accelerator}",
        _MACHINES,
        stuck=True,
    ),
)

# The condition PodScheduled of a pod for which no autoscaler has said anything.
SCHEDULING = (
    Pattern(
        "volume",
        r"persistentvolumeclaim \"(?P<claim>[^\"]+)\" not found|unbound immediate PersistentVolumeClaims",
        "a volume of the pod cannot be had",
        _DESCRIBE,
        stuck=True,
    ),
    Pattern(  # not even an idle one would do; GPUs and chips are left out: those of a new node appear late
        "too-large",
        r"Insufficient (?P<what>cpu|memory|ephemeral-storage)\b(?!.*No preemption victims).*Preemption is not helpful",
        "no machine of this cluster is large enough: not enough {what}, even on an idle one",
        'write resources = {{ cpu = 0.5, memory = "1Gi" }} under [tool.kinetic] in pyproject.toml, or add machines',
        stuck=True,
    ),
    Pattern(
        "busy",
        r"Insufficient (?P<what>[\w./-]+)",
        "every machine that would do is taken: not enough {what}",
        "wait for other jobs, or ask for less; where an autoscaler runs it makes a machine now",
    ),
    Pattern(
        "no-node-matches",
        r"(?:untolerated|had) taint (?P<taint>\{[^}]*\})",
        "no machine of this cluster takes the job: some are reserved by {taint}",
        _MACHINES,
        stuck=True,
    ),
    Pattern(
        "no-node-matches",
        r"didn't match Pod's node affinity/selector|didn't match node selector|node\(s\) didn't match",
        "no machine of this cluster is what the job asks for: {accelerator}",
        _MACHINES,
        stuck=True,
    ),
    Pattern(  # Kubernetes 1.36 names no taint any more: it may be that of a machine that is just starting
        "no-node-matches",
        r"had untolerated taint\(s\)",
        "no machine of this cluster takes the job: all that could are tainted for others, or not ready",
        "kubectl describe nodes | grep -A3 Taints shows the taints; ask for another accelerator, or add machines",
    ),
    Pattern("no-node-matches", r"no nodes available", "the cluster has no machines", _MACHINES),
    Pattern("waits", r".", "the scheduler has found no machine yet", _DESCRIBE),
)

# Why a container waits: its reason and message, with a colon between.
WAITING = (
    Pattern(
        "image-name",
        r"^InvalidImageName",
        "{image} is no name of an image",
        "write container_image as REGISTRY/NAME:TAG",
        stuck=True,
    ),
    Pattern(
        "image-architecture",
        r"no match for platform|exec format error|does not match the specified platform",
        "the image {image} is not made for the processor of this machine",
        "build it for linux/amd64, or for linux/arm64 where the accelerator has Arm hosts",
        stuck=True,
    ),
    Pattern(
        "image-denied",
        r"(?:ErrImagePull|ImagePullBackOff).*(?:\b40[13]\b|[Uu]nauthorized|[Ff]orbidden|denied|authorization failed)",
        "the cluster may not pull the image {image}",
        "look at its spelling; give the nodes' service account Artifact Registry Reader, or name a pull secret",
        stuck=True,
    ),
    Pattern(
        "image-registry",
        r"(?:ErrImagePull|ImagePullBackOff).*(?:no such host|server misbehaving|Name or service not known)",
        "the registry of {image} is not known by this name",
        "look at its spelling, before the first slash; a registry inside a network needs a name that nodes can resolve",
        stuck=True,
    ),
    Pattern(
        "image-missing",
        r"(?:ErrImagePull|ImagePullBackOff).*(?:not found|manifest unknown|NotFound|does not exist|name unknown)",
        "there is no image {image}",
        "look at its name and tag; a tag that was pushed a moment ago may take some seconds",
        stuck=True,
    ),
    Pattern(
        "image-slow",
        r"(?:ErrImagePull|ImagePullBackOff).*(?:toomanyrequests|\b429\b|rate limit|timeout|EOF)",
        "the registry of {image} does not serve the cluster well: it is tried again",
        "wait; if it stays so, copy the image to a registry near the cluster",
    ),
    Pattern(
        "image",
        r"^(?:ErrImagePull|ImagePullBackOff|ErrImageNeverPull|RegistryUnavailable)",
        "the image {image} cannot be pulled",
        _DESCRIBE + " has the registry's words",
        stuck=True,
    ),
    Pattern(
        "program",
        r"executable file not found|no such file or directory",
        "the image {image} does not have the program that starts the job",
        "take an image with Python in its PATH",
        stuck=True,
    ),
    Pattern(
        "configuration",
        r"^CreateContainerConfigError.*(?P<kind>secret|configmap) \"(?P<name>[^\"]+)\" not found",
        "the {kind} {name} of the job is gone",
        "submit the job again",
        stuck=True,
    ),
    Pattern(
        "image-user",
        r"^CreateContainerConfigError.*runAsNonRoot",
        "the namespace {namespace} takes no container whose user is root, and that of {image} is, or has no number",
        "write USER 1000 into its Dockerfile, use Python's own image, or use another namespace",
        stuck=True,
    ),
    Pattern(
        "configuration",
        r"^(?:CreateContainerConfigError|CreateContainerError|RunContainerError|StartError)",
        "the container cannot be made",
        _DESCRIBE,
        stuck=True,
    ),
    Pattern("restarts", r"^CrashLoopBackOff", "the container ended again and again", _DESCRIBE),
)

# Events of a pod that has its machine and no container yet.
STARTING = (
    Pattern(
        "bucket",
        r"(?:FailedMount|gcsfuse).*(?:bucket does not exist|bucket doesn't exist|Bucket .*not found|code = NotFound)",
        "a bucket that the job mounts does not exist",
        "look at the spelling of the gs:// address",
        stuck=True,
    ),
    Pattern(
        "bucket-denied",
        r"(?:FailedMount|gcsfuse).*(?:PermissionDenied|Unauthenticated|403|does not have storage\.)",
        "the job's service account may not read a bucket that it mounts",
        "give it Storage Object Viewer on the bucket",
        stuck=True,
    ),
    Pattern(
        "driver",
        r"driver name gcsfuse\.csi\.storage\.gke\.io not found",
        "this cluster cannot mount buckets: its Cloud Storage FUSE driver is off",
        "gcloud container clusters update --update-addons GcsFuseCsiDriver=ENABLED, or leave out fuse=True",
        stuck=True,
    ),
    Pattern(
        "configuration",
        r"FailedMount.*(?P<kind>secret|configmap) \"(?P<name>[^\"]+)\" not found",
        "the {kind} {name} of the job is not there",
        "it comes within seconds of the job; if it stays away, submit the job again",
    ),
    Pattern("volume", r"^(?:FailedMount|FailedAttachVolume)", "a volume cannot be mounted yet", _DESCRIBE),
    Pattern("network", r"^FailedCreatePodSandBox", "the machine cannot give the pod a network yet", _DESCRIBE),
    Pattern("pulling", r"^Pulling:? ", "the machine pulls the image {image}"),
    Pattern("starting", r".", "the machine makes the container"),
)

# Kueue: conditions and messages of a Workload.
QUEUEING = (
    Pattern(
        "queue-missing",
        r"LocalQueue (?P<name>\S+) doesn't exist|localQueue doesn't exist",
        "the namespace {namespace} has no queue {queue}",
        "kubectl get localqueues -n {namespace} shows those it has",
        stuck=True,
    ),
    Pattern(
        "queue-stopped",
        r"(?:LocalQueue|ClusterQueue) (?P<name>\S+) (?:is inactive|doesn't exist)|clusterQueue doesn't exist",
        "the queue {queue} is not served now",
        "ask who runs the cluster: kubectl describe localqueue {queue} -n {namespace}",
        stuck=True,
    ),
    Pattern(
        "queue-too-small",
        r"request > maximum capacity|insufficient quota for (?P<what>\S+) in flavor",
        "the queue {queue} can never hold this job: it asks for more than there is in all",
        "ask for less, or use another queue: kubectl get clusterqueues",
        stuck=True,
    ),
    Pattern(
        "queue-no-flavor",
        r"(?:flavor .* not found|doesn't match node affinity|untolerated taint .*flavor|didn't match)",
        "the queue {queue} offers nothing that the job could run on",
        "ask for another accelerator, or use another queue",
        stuck=True,
    ),
    Pattern(
        "queued",
        r"insufficient unused quota for (?P<what>\S+) in flavor",
        "it waits in the queue {queue} for {what}",
        "kubectl get workloads -n {namespace} shows who is before it",
    ),
    Pattern(
        "provisioning",
        r"ProvisioningRequest|admission check",
        "the queue {queue} has let it in, and its machines are being made",
    ),
    Pattern(
        "queue-evicted",
        r"[Pp]reempted|Evicted",
        "a more important job took its place in the queue {queue}; it starts again when there is room",
    ),
    Pattern("queued", r".?", "it waits in the queue {queue}", "kubectl get workloads -n {namespace}"),
)


def explain_message(table: Iterable[Pattern], said: str, context: Mapping[str, str]) -> Explanation | None:
    """Return what words mean, by the first row of a table that fits, or None."""
    for row in table:
        found = re.search(row.pattern, said, re.DOTALL)
        if found is not None:
            words = _Words(context) | {name: value for name, value in found.groupdict().items() if value}
            return Explanation(row.code, _filled(row.what, words), said, _filled(row.next, words), row.stuck)
    return None


class _Words(dict[str, str]):
    """What the texts of a row may use; what is not known is written as the word itself."""

    def __missing__(self, key: str) -> str:
        return key.upper()

    def __or__(self, other: Mapping[str, str]) -> _Words:  # type: ignore[override]  # stays one of us
        return _Words({**self, **other})


def _filled(text: str, words: _Words) -> str:
    return text.format_map(words)

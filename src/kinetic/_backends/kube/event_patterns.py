"""What messages of a cluster mean: tables over the exact texts of Kubernetes, GKE's autoscaler and Kueue.

The first row that matches counts. ``what`` and ``next`` may use the pattern's groups and {namespace}, {pod}, {image},
{account}, {queue}, {accelerator} and {list_nodes}, a command.

The texts were read in Kubernetes 1.36 (scheduler, kubelet, controllers, admission), of which 1.37 has changed none, in
Kueue 0.14, and in events of GKE's autoscaler as public issues quote them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from kinetic._wire import NamedTuple


class Pattern(NamedTuple):
    """A row: a message of a cluster, and what it means."""

    code: str  # a short word for it
    pattern: str  # of the message
    what: str  # a sentence for the user, without a full stop
    next: str = ""  # what to do
    stuck: bool = False  # whether waiting alone will not help


class Explanation(NamedTuple):
    """What a message of a cluster means; the fields of a row, filled in, and the message itself as ``why``."""

    code: str
    what: str
    why: str = ""
    next: str = ""
    stuck: bool = False


_DESCRIBE = "kubectl describe pod {pod} -n {namespace}"
_TAINTS = "if the job may run there, name the taint in KINETIC_TOLERATIONS, as in dedicated=research:NoSchedule"
# Taints of nodes that are not ready (any more), and others that no job should tolerate: of the control plane, and
# of another accelerator.
_PASSING = r"node(?:\.cloudprovider)?\.kubernetes\.io/|ToBeDeletedByClusterAutoscaler|karpenter\.sh/"
NOT_TOLERATED = rf"{_PASSING}|node-role\.kubernetes\.io/|(?:google|nvidia)\.com/"
_NODES = "{list_nodes} shows what the cluster has; ask for another accelerator, or add nodes"
_QUOTA = "ask for more at console.cloud.google.com/iam-admin/quotas, or for a smaller accelerator, or another region"
_SHOWN_BY_NAMESPACE = "an administrator of the cluster gives you the right to get the namespace {namespace}"
_ADMISSION = (
    "change what the message names (KINETIC_LABELS and KINETIC_ANNOTATIONS set those of pods), use another namespace, "
    "or ask an administrator of the cluster"
)

# A Job's event FailedCreate: the API server rejected its pod. Also what a JobSet says of its Jobs.
CREATION = (
    Pattern(
        "service-account", r'serviceaccount "[^"]+" not found|error looking up service account',
        "the namespace {namespace} has no service account {account}",
        "kubectl create serviceaccount {account} -n {namespace}, or name another in KINETIC_SERVICE_ACCOUNT",
        stuck=True),
    Pattern(
        "quota", r"exceeded quota: (?P<quota>[^,\s]+)",
        "the quota {quota} of the namespace {namespace} is used up",
        "kubectl describe resourcequota {quota} -n {namespace}; the job starts when others end"),
    Pattern(
        "quota", r"failed quota: (?P<quota>[^:\s]+): must specify (?P<missing>.+)",
        "the quota {quota} of the namespace {namespace} requires every pod to specify {missing}",
        'write resources = {{ cpu = 4, memory = "16Gi" }} under [tool.kinetic] in pyproject.toml', stuck=True),
    Pattern(  # pods meet it where kinetic knows that it is enforced
        "admission", r"violates PodSecurity \"(?P<level>restricted\b[^\"]*)\"",
        "the namespace {namespace} only accepts pods of the Pod Security level {level}, which kinetic could not see",
        f"submit it again after {_SHOWN_BY_NAMESPACE}, and has the level in its labels: "
        "kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=restricted", stuck=True),
    Pattern(
        "admission", r"security context constraint.*\b65532\b",
        "OpenShift chooses user and group of pods in the namespace {namespace}, which kinetic could not see",
        f"submit it again after {_SHOWN_BY_NAMESPACE}", stuck=True),
    Pattern(
        "admission", r"violates PodSecurity \"(?P<level>[^\"]+)\"",
        "the namespace {namespace} only accepts pods of the Pod Security level {level}",
        "use another namespace, or ask an administrator of the cluster", stuck=True),
    Pattern(
        "webhook-down", r'failed calling webhook "(?P<hook>[^"]+)"',
        "the cluster's webhook {hook} does not respond, so no pod can be created",
        "ask an administrator of the cluster; the job starts when it responds"),
    Pattern(
        "admission", r"(?i)read-?only ?root",
        "the namespace {namespace} only accepts pods with a read-only root file system, which kinetic could not see",
        "submit it again after an administrator of the cluster gives you the right to create pods in the namespace: a "
        "submission asks by a dry run of one", stuck=True),
    Pattern(
        "admission",
        r"admission webhook|ValidatingAdmissionPolicy|denied the request|denied request|security context constraint",
        "an admission rule of the cluster rejected the pod", _ADMISSION, stuck=True),
    Pattern(
        "priority-class", r"no PriorityClass with name (?P<name>\S+) was found",
        "the cluster has no priority class {name}", "kubectl get priorityclasses lists them", stuck=True),
    Pattern(
        "runtime-class", r"RuntimeClass \"?(?P<name>[^\s\"]+)\"? not found",
        "the cluster has no runtime class {name}", "kubectl get runtimeclasses lists them", stuck=True),
    Pattern(
        "limit-range", r"ephemeral-storage (?:limit of|usage per|max limit to request)",
        "a LimitRange of the namespace {namespace} does not allow the disk that the job requests",
        'write resources = {{ disk = "500Mi" }} under [tool.kinetic] in pyproject.toml, with a value that '
        "kubectl describe limitrange -n {namespace} shows", stuck=True),
    Pattern(
        "limit-range",
        r"must be less than or equal to (?:\S+) limit|m(?:ax|in)imum .* usage per|max limit to request ratio per",
        "a LimitRange of the namespace {namespace} does not allow what the job requests",
        'write resources = {{ cpu = 0.5, memory = "512Mi" }} under [tool.kinetic] in pyproject.toml, with values that '
        "kubectl describe limitrange -n {namespace} shows", stuck=True),
    Pattern(
        "busy", r"Operation cannot be fulfilled|etcdserver|time(?:d |)out|deadline exceeded|too many requests",
        "the cluster is too busy to create the pod", "nothing: it is retried automatically"),
    Pattern(
        "admission", r"is invalid:",
        "the cluster rejected the pod's specification", _ADMISSION, stuck=True),
)  # fmt: skip

# The event that the autoscaler wrote last. It comes before the scheduler's message, which knows today's nodes only.
SCALING = (
    Pattern(
        "out-of-stock",
        r"GCE out of resources|ZONE_RESOURCE_POOL_EXHAUSTED|out\.of\.resources|does not have enough resources",
        "Google has no {accelerator} left in this zone at the moment",
        "wait, the request is repeated; or try :spot, another zone or another accelerator"),
    Pattern(
        "quota", r"GCE quota exceeded|QUOTA_EXCEEDED|quota\.exceeded|Quota '(?P<quota>[^']+)' exceeded",
        "the project's quota does not allow another node with {accelerator}", _QUOTA, stuck=True),
    Pattern(
        "addresses", r"IP space exhausted|IP_SPACE_EXHAUSTED|ip\.space\.exhausted",
        "the cluster's network has no addresses left for another node",
        "ask an administrator of the cluster for a larger range of pod addresses", stuck=True),
    Pattern(
        "permission", r"SERVICE_ACCOUNT_DELETED|service\.account\.deleted|PERMISSIONS_ERROR",
        "the cluster may not create nodes: its own service account was deleted or lost its role",
        "ask the project's administrator", stuck=True),
    Pattern(
        "scaling-failed", r"Node scale up in zones .* failed|scale.?up .*failed|FailedScaleUp",
        "the cluster tried to create a node and failed", "wait, it is retried; " + _DESCRIBE + " shows each attempt"),
    Pattern(
        "scaling-up", r"pod triggered scale-up",
        "a node with {accelerator} is being created, which takes some minutes"),
    Pattern(
        "pool-full",
        r"max node group size reached|max cluster (?:cpu|memory|\S+) limit reached|max total nodes in cluster reached"
        r"|cluster-wide .* limit|in backoff after failed scale-up",
        "the node pool with {accelerator} has its maximum number of nodes, or waits after a failure",
        "wait for other jobs, or let the pool grow: gcloud container clusters update --enable-autoscaling --max-nodes"),
    Pattern(
        "no-node-matches", r"pod didn't trigger scale-up",
        "no node pool of this cluster can provide {accelerator}", _NODES, stuck=True),
)  # fmt: skip

# The condition PodScheduled of a pod for which there is no event of an autoscaler.
SCHEDULING = (
    Pattern(
        "volume", r"persistentvolumeclaim \"(?P<claim>[^\"]+)\" not found|unbound immediate PersistentVolumeClaims",
        "a volume of the pod is not available", _DESCRIBE, stuck=True),
    Pattern(  # not even an idle node would do; GPUs and chips are left out: those of a new node appear late
        "too-large",
        r"Insufficient (?P<what>cpu|memory|ephemeral-storage)\b(?!.*No preemption victims).*Preemption is not helpful",
        "no node of this cluster is large enough: not enough {what}, even on an idle one",
        'write resources = {{ cpu = 0.5, memory = "1Gi" }} under [tool.kinetic] in pyproject.toml, or add nodes',
        stuck=True),
    Pattern(
        "busy", r"Insufficient (?P<what>[\w./-]+)",
        "all matching nodes are busy: not enough {what}",
        "wait for other jobs, or ask for less; an autoscaler, if there is one, is creating a node now"),
    Pattern(  # whether a cordoned one would match, the scheduler does not tell
        "no-node-matches", r"\A(?=.*node\(s\) were unschedulable)(?=.*(?:didn't match|taint))",
        "no open node of this cluster has what the job asks for, {accelerator}; others are cordoned, as for an upgrade",
        "kubectl get nodes names the cordoned ones (SchedulingDisabled): if one of them fits, wait until it is open "
        f"again (kubectl uncordon NODE); else {_NODES}"),
    Pattern(
        "cordoned", r"node\(s\) were unschedulable",
        "its nodes are cordoned: they take no new pods, as while they are drained or upgraded",
        "wait until a node is open again; an administrator opens one with kubectl uncordon NODE"),
    Pattern(  # where a node is starting, it may be the one in the volume's zone: see "not-ready"
        "volume",
        rf"\A(?!.*taint \{{(?:{_PASSING})).*(?:volume node affinity conflict|didn't find available persistent volumes)",
        "no node that fits can mount a volume of the job, which is in another zone or on another node",
        "kubectl get pv -o yaml shows where it is: choose nodes there with KINETIC_NODE_SELECTOR, or name a claim that "
        "all nodes reach in KINETIC_VOLUME_CLAIMS", stuck=True),
    Pattern(
        "no-node-matches",
        rf"(?:untolerated|had) taint (?P<taint>\{{(?!{NOT_TOLERATED})[^}}]*\}})",
        "no node of this cluster accepts the job: some are reserved by {taint}",
        f"{_TAINTS}; otherwise: {_NODES}", stuck=True),
    Pattern(
        "not-ready", rf"(?:untolerated|had) taint (?P<taint>\{{(?:{_PASSING})[^}}]*\}})",
        "no node that is ready accepts the job; some are not ready yet, or are about to be removed: {taint}",
        f"kubectl get nodes shows them; if one of them fits, wait until it is ready; else {_NODES}"),
    Pattern(
        "no-node-matches",
        r"didn't match Pod's node affinity/selector|didn't match node selector|node\(s\) didn't match",
        "no node of this cluster has what the job asks for: {accelerator}", _NODES, stuck=True),
    Pattern(
        "no-node-matches", r"(?:untolerated|had) taint (?P<taint>\{[^}]*\})",
        "no node of this cluster accepts the job: some are reserved by {taint}", _NODES, stuck=True),
    Pattern(  # Kubernetes 1.36 names no taint any more: it may be that of a node that is just starting
        "no-node-matches", r"had untolerated taint\(s\)",
        "no node of this cluster accepts the job: all matching nodes are tainted for others, or not ready",
        f"kubectl describe nodes | grep -A3 Taints shows the taints; {_TAINTS}; otherwise ask for another accelerator, "
        "or add nodes"),
    Pattern(
        "busy", r"pod group is not ready|can possibly be assigned to",
        "Volcano has no room for it: no nodes are free for all of its pods, or its queue is full",
        "wait for other jobs, or ask for less; kubectl get queues -o yaml shows what each queue may use, and "
        "kubectl describe nodes what is free"),
    Pattern("no-node-matches", r"no nodes available", "the cluster has no nodes", _NODES),
    Pattern("waits", r".", "the scheduler has not found a node yet", _DESCRIBE),
)  # fmt: skip

# Why a container waits: its reason and message, with a colon between.
WAITING = (
    Pattern(
        "image-name", r"^InvalidImageName",
        "{image} is not a valid image name", "write container_image as REGISTRY/NAME:TAG", stuck=True),
    Pattern(
        "image-architecture", r"no match for platform|exec format error|does not match the specified platform",
        "the image {image} does not support the processor of this node",
        "build it for linux/amd64, or for linux/arm64 where the accelerator has Arm hosts; kinetic builds images for "
        "Arm nodes with KINETIC_NODE_SELECTOR=kubernetes.io/arch=arm64", stuck=True),
    Pattern(
        "image-denied",
        r"(?:ErrImagePull|ImagePullBackOff).*(?:\b40[13]\b|[Uu]nauthorized|[Ff]orbidden|denied|authorization failed)",
        "the cluster may not pull the image {image}",
        "check its spelling; give the nodes' service account Artifact Registry Reader, or name a pull secret",
        stuck=True),
    Pattern(
        "image-registry",
        r"(?:ErrImagePull|ImagePullBackOff).*(?:no such host|server misbehaving|Name or service not known)",
        "the host name of the registry of {image} cannot be resolved",
        "check its spelling, before the first slash; a registry inside a network needs a name that nodes can resolve",
        stuck=True),
    Pattern(
        "image-missing",
        r"(?:ErrImagePull|ImagePullBackOff).*(?:not found|manifest unknown|NotFound|does not exist|name unknown)",
        "the image {image} does not exist",
        "check its name and tag; a tag that was pushed a moment ago may take some seconds", stuck=True),
    Pattern(
        "image-slow",
        r"(?:ErrImagePull|ImagePullBackOff).*(?:toomanyrequests|\b429\b|rate limit|timeout|EOF)",
        "the registry of {image} is slow or limits requests; the pull is retried",
        "wait; if this continues, copy the image to a registry near the cluster"),
    Pattern(
        "image", r"^(?:ErrImagePull|ImagePullBackOff|ErrImageNeverPull|RegistryUnavailable)",
        "the image {image} cannot be pulled", _DESCRIBE + " shows the registry's message", stuck=True),
    Pattern(
        "program", r"executable file not found|no such file or directory",
        "the image {image} does not have the program that starts the job",
        "use an image with Python in its PATH", stuck=True),
    Pattern(
        "configuration", r"^CreateContainerConfigError.*(?P<kind>secret|configmap) \"(?P<name>[^\"]+)\" not found",
        "the {kind} {name} of the job was deleted", "submit the job again", stuck=True),
    Pattern(
        "image-user", r"^CreateContainerConfigError.*runAsNonRoot",
        "the namespace {namespace} does not accept containers that run as root, as {image} does, or may do",
        "write USER 1000 into its Dockerfile, use Python's own image, or use another namespace", stuck=True),
    Pattern(
        "configuration", r"^(?:CreateContainerConfigError|CreateContainerError|RunContainerError|StartError)",
        "the container cannot be created", _DESCRIBE, stuck=True),
    Pattern("restarts", r"^CrashLoopBackOff", "the container exits again and again", _DESCRIBE),
)  # fmt: skip

# Events of a pod that has its node and no container yet.
STARTING = (
    Pattern(
        "bucket",
        r"(?:FailedMount.*\"bucket-|gcsfuse).*(?:bucket (?:does not|doesn't) exist|Bucket .*not found|code = NotFound)",
        "a bucket that the job mounts does not exist", "check the spelling of the gs:// address", stuck=True),
    Pattern(
        "bucket-denied",
        r"(?:FailedMount.*\"bucket-|gcsfuse).*(?:PermissionDenied|Unauthenticated|403|does not have storage\.)",
        "the job's service account may not read a bucket that it mounts",
        "give it Storage Object Viewer on the bucket", stuck=True),
    Pattern(
        "driver", r"driver name gcsfuse\.csi\.storage\.gke\.io not found",
        "this cluster cannot mount buckets: its Cloud Storage FUSE driver is off",
        "gcloud container clusters update --update-addons GcsFuseCsiDriver=ENABLED, or leave out fuse=True",
        stuck=True),
    Pattern(
        "configuration", r"FailedMount.*(?P<kind>secret|configmap) \"(?P<name>[^\"]+)\" not found",
        "the {kind} {name} of the job does not exist",
        "it is created within seconds of the job; if it does not appear, submit the job again"),
    Pattern(
        "volume", r"Multi-Attach error",
        "a volume of the job can be mounted by one node at a time, and another one has it",
        "wait until the pods there have ended, or use a volume claim with the access mode ReadWriteMany"),
    Pattern("volume", r"^(?:FailedMount|FailedAttachVolume)", "a volume cannot be mounted yet", _DESCRIBE),
    Pattern("network", r"^FailedCreatePodSandBox", "the node cannot connect the pod to a network yet", _DESCRIBE),
    Pattern("pulling", r"^Pulling:? ", "the node is pulling the image {image}"),
    Pattern("starting", r".", "the node is creating the container"),
)  # fmt: skip

# Kueue: conditions and messages of a Workload.
QUEUEING = (
    Pattern(
        "queue-deactivated", r"workload is deactivated",
        "the queue {queue} has deactivated it, and does not try it again by itself",
        "kubectl describe workloads -n {namespace} has the reason; it waits again after kubectl patch workload NAME "
        """-n {namespace} --type merge -p '{{"spec":{{"active":true}}}}'""", stuck=True),
    Pattern(
        "queue-missing", r"LocalQueue (?P<name>\S+) doesn't exist|localQueue doesn't exist",
        "the namespace {namespace} has no queue {queue}", "kubectl get localqueues -n {namespace} lists them",
        stuck=True),
    Pattern(
        "queue-stopped",
        r"(?:LocalQueue|ClusterQueue) (?P<name>\S+) (?:is inactive|doesn't exist)|clusterQueue doesn't exist",
        "the queue {queue} is inactive",
        "ask an administrator of the cluster: kubectl describe localqueue {queue} -n {namespace}", stuck=True),
    Pattern(
        "queue-too-small", r"request > maximum capacity|insufficient quota for (?P<what>\S+) in flavor",
        "the queue {queue} can never admit this job: it asks for more than the queue's capacity",
        "ask for less, or use another queue: kubectl get clusterqueues", stuck=True),
    Pattern(
        "queue-no-flavor",
        r"(?:flavor .* not found|doesn't match node affinity|untolerated taint .*flavor|didn't match)",
        "the queue {queue} has no nodes that the job could run on",
        "ask for another accelerator, or use another queue", stuck=True),
    Pattern(
        "queued", r"insufficient unused quota for (?P<what>\S+) in flavor",
        "it waits in the queue {queue} for {what}", "kubectl get workloads -n {namespace} shows what is ahead of it"),
    Pattern(
        "provisioning", r"ProvisioningRequest|admission check",
        "the queue {queue} has admitted it, and its nodes are being created"),
    Pattern(
        "queue-evicted", r"[Pp]reempted|Evicted",
        "a job of higher priority took its place in the queue {queue}; it starts again when there is room"),
    Pattern("queued", r".?", "it waits in the queue {queue}", "kubectl get workloads -n {namespace}"),
)  # fmt: skip


def explain_message(table: Iterable[Pattern], message: str, context: Mapping[str, str]) -> Explanation | None:
    """Return what a message means, by the first row of a table that matches, or None."""
    for row in table:
        found = re.search(row.pattern, message, re.DOTALL)
        if found is not None:
            values = _Values({**context, **{name: value for name, value in found.groupdict().items() if value}})
            return Explanation(row.code, row.what.format_map(values), message, row.next.format_map(values), row.stuck)
    return None


class _Values(dict[str, str]):
    """What the texts of a row may use; an unknown value is written as its name."""

    def __missing__(self, key: str) -> str:
        return key.upper()

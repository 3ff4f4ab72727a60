"""Why a job waits or failed, read from what clusters really write: a row for each reason.

The texts are those of Kubernetes 1.36, GKE's autoscaler and Kueue 0.14, with names shortened.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from kinetic._backends.kube import diagnosis, object_status
from kinetic._backends.kube.diagnosis import Evidence, diagnose
from kinetic._wire import task
from kinetic.job_status import JobStatus

JOB_ID = "l4-train-20261121-143000-1a2b3c4"
NAME = f"kinetic-{JOB_ID}"
IMAGE = "europe-docker.pkg.dev/p/r/train:1"


def at(second: int) -> str:
    return f"2026-11-21T14:30:{second:02}Z"


def job(*conditions: dict, suspend: bool = False, queue: str = "", account: str = "kinetic") -> dict:
    labels = {"job-id": JOB_ID, **({"kueue.x-k8s.io/queue-name": queue} if queue else {})}
    template = {"spec": {"serviceAccountName": account, "containers": [{"name": "kinetic-worker", "image": IMAGE}]}}
    return {
        "metadata": {"name": NAME, "namespace": "research", "uid": "job", "labels": labels},
        "spec": {"suspend": suspend, "template": template},
        "status": {"conditions": list(conditions)},
    }


def condition(kind: str, reason: str = "", message: str = "", *, holds: bool = True) -> dict:
    return {"type": kind, "status": str(holds), "reason": reason, "message": message}


def pod(name: str = "pod-a", *, made: int = 0, host: int | None = None, node: str = "", **status: Any) -> dict:
    labels = {} if host is None else {"batch.kubernetes.io/job-completion-index": str(host)}
    spec: dict[str, Any] = {"serviceAccountName": "kinetic", "containers": [{"name": "kinetic-worker", "image": IMAGE}]}
    spec |= {"nodeName": node} if node else {}
    about = {"name": name, "uid": name, "creationTimestamp": at(made), "labels": labels}
    return {"metadata": about, "spec": spec, "status": {"phase": "Pending", **status}}


def event(reason: str, message: str, *, of: str = "pod-a", when: int = 1) -> dict:
    return {"reason": reason, "message": message, "lastTimestamp": at(when), "involvedObject": {"uid": of, "name": of}}


def unschedulable(message: str) -> dict:
    return pod(conditions=[condition("PodScheduled", "Unschedulable", message, holds=False)])


def waiting(reason: str, message: str = "") -> dict:
    state = {"name": "kinetic-worker", "state": {"waiting": {"reason": reason, "message": message}}}
    return pod(node="node-1", containerStatuses=[state])


def ended(code: int, how: str = "Error", said: str = "", **more: Any) -> dict:
    terminated = {"exitCode": code, "reason": how, "message": said, "finishedAt": at(9)}
    statuses = [{"name": "kinetic-worker", "state": {"terminated": terminated}}]
    return pod(**{"node": "node-1", "phase": "Failed", "containerStatuses": statuses, **more})


def with_limit(found: dict) -> dict:
    found["spec"]["containers"][0]["resources"] = {"limits": {"memory": "4Gi"}}
    return found


def scheduled_by(name: str) -> dict:
    found = pod()
    found["spec"]["schedulerName"] = name
    return found


def disrupted(cause: str, said: str = "", **more: Any) -> dict:
    conditions = [condition("DisruptionTarget", cause, said)]
    return ended(143, **{"conditions": conditions, **more})


RUNNING = [{"name": "kinetic-worker", "state": {"running": {"startedAt": at(5)}}}]
BUSY = (
    "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. preemption: 0/3 nodes are available: 3 No preemption "
    "victims found for incoming pod."
)
SMALL = (
    "0/3 nodes are available: 1 Insufficient memory, 2 node(s) didn't match Pod's node affinity/selector. preemption: "
    "0/3 nodes are available: 3 Preemption is not helpful for scheduling."
)
NO_CHIPS_YET = (
    "0/1 nodes are available: 1 Insufficient google.com/tpu. preemption: 0/1 nodes are available: 1 Preemption is not "
    "helpful for scheduling."
)
MISMATCH = (
    "0/3 nodes are available: 3 node(s) didn't match Pod's node affinity/selector. preemption: 0/3 nodes are "
    "available: 3 Preemption is not helpful for scheduling."
)
TAINTED = "0/2 nodes are available: 2 node(s) had untolerated taint {google.com/tpu: present}."
GROUP = "https://www.googleapis.com/compute/v1/projects/p/zones/us-central1-a/instanceGroups/gke-c-l4-grp"
UP = f"pod triggered scale-up: [{{{GROUP} 0->1 (max: 4)}}]"
NOT_FOUND = f'failed to pull and unpack image "{IMAGE}": failed to resolve reference "{IMAGE}": {IMAGE}: not found'
FORBIDDEN = (
    f'failed to pull and unpack image "{IMAGE}": failed to resolve reference: failed to authorize: failed to fetch '
    "anonymous token: unexpected status from GET request: 403 Forbidden"
)


class Row(NamedTuple):
    """What a cluster says, and what we make of it."""

    name: str
    facts: Evidence
    status: JobStatus
    code: str
    what: str
    next: str
    stuck: bool = False


def facts(pod_: dict | None, *events: dict, job_: dict | None = None, workload: dict | None = None) -> Evidence:
    return Evidence(job_ or job(), [pod_] if pod_ else [], events, workload, "gpu-l4x4")


def refused(message: str) -> Evidence:
    return facts(None, event("FailedCreate", f'Error creating: pods "{NAME}-" is forbidden: {message}', of="job"))


def queued(*conditions: dict) -> Evidence:
    workload = {"metadata": {"name": "job-x"}, "status": {"conditions": list(conditions)}}
    return facts(None, job_=job(suspend=True, queue="team-a"), workload=workload)


def deactivated(*conditions: dict) -> Evidence:
    """Make a job of a queue whose Workload an administrator, or Kueue itself, has set inactive."""
    found = queued(*conditions)
    return found._replace(workload={**found.workload, "spec": {"active": False}})


def beside(*added: dict, ours: dict | None = None, phase: str = "Failed") -> dict:
    """Make a pod to which an admission webhook has added init containers, as a kubelet and our node agent report it."""
    own = ours or {"name": "kinetic-worker", "state": {"waiting": {"reason": "PodInitializing"}}}
    found = pod(node="node-1", phase=phase, initContainerStatuses=list(added), containerStatuses=[own])
    found["metadata"]["namespace"] = "research"
    found["spec"]["containers"].insert(0, {"name": "istio-proxy", "image": "istio/proxyv2:1"})
    found["spec"]["initContainers"] = [{"name": "vault-agent-init", "image": "hashicorp/vault:1"}]
    return found


def suspended_by(manager: str) -> dict:
    """Make a job that another program has suspended after its start."""
    found = job(suspend=True)
    written = [("kinetic", {"f:backoffLimit": {}}), (manager, {"f:suspend": {}})]
    found["metadata"]["managedFields"] = [{"manager": name, "fieldsV1": {"f:spec": each}} for name, each in written]
    return found


WAIT, STUCK = False, True
P, R, S, F = JobStatus.PENDING, JobStatus.RUNNING, JobStatus.SUCCEEDED, JobStatus.FAILED
ROWS = [
    # -------------------------------------------------------------------------------------------- no pod can be made
    Row(
        "service account missing",
        refused('error looking up service account research/kinetic: serviceaccount "kinetic" not found'),
        P, "service-account", "no service account kinetic", "kubectl create serviceaccount kinetic -n research", STUCK,
    ),
    Row(
        "quota of the namespace",
        refused("exceeded quota: team, requested: requests.cpu=4, used: requests.cpu=8, limited: requests.cpu=10"),
        P, "quota", "the quota team of the namespace research is used up", "kubectl describe resourcequota team", WAIT,
    ),
    Row(
        "quota wants limits",
        refused("failed quota: team: must specify limits.cpu for: kinetic-worker; limits.memory for: kinetic-worker"),
        P, "quota", "requires every pod to specify limits.cpu", 'write resources = { cpu = 4, memory = "16Gi" }', STUCK,
    ),
    Row(
        "pod security",
        refused('violates PodSecurity "restricted:latest": runAsNonRoot != true (pod or container "kinetic-worker")'),
        P, "admission", "level restricted:latest, which kinetic could not see",
        "kubectl label namespace research pod-security.kubernetes.io/enforce=restricted", STUCK,
    ),
    Row(
        "pod security of less",
        refused('violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)'),
        P, "admission", "only accepts pods of the Pod Security level baseline:latest", "another namespace", STUCK,
    ),
    Row(
        "admission refused",
        refused('admission webhook "validation.gatekeeper.sh" denied the request: [need-team] no label team'),
        P, "admission", "an admission rule of the cluster rejected the pod", "change what the message names", STUCK,
    ),
    Row(
        "webhook down",
        facts(None, event("FailedCreate", 'Error creating: Internal error occurred: failed calling webhook '
                          '"gcsfuse-sidecar-injector.csi.storage.gke.io": no endpoints available', of="job")),
        P, "webhook-down", "webhook gcsfuse-sidecar-injector.csi.storage.gke.io does not respond", "ask an", WAIT,
    ),
    Row(
        "priority class",
        refused("no PriorityClass with name urgent was found"),
        P, "priority-class", "no priority class urgent", "kubectl get priorityclasses", STUCK,
    ),
    Row(
        "OpenShift",
        refused('pods "x" is forbidden: unable to validate against any security context constraint: [provider '
                '"anyuid": Forbidden: not usable by user or serviceaccount, provider restricted-v2: '
                ".spec.securityContext.fsGroup: Invalid value: []int64{65532}: 65532 is not an allowed group]"),
        P, "admission", "OpenShift chooses user and group", "the right to get the namespace research", STUCK,
    ),
    Row(
        "OpenShift, for another reason",
        refused('pods "x" is forbidden: unable to validate against any security context constraint: [provider '
                'restricted-v2: spec.volumes[3]: Invalid value: "csi": csi volumes are not allowed to be used]'),
        P, "admission", "an admission rule of the cluster", "KINETIC_LABELS", STUCK,
    ),
    Row(
        "runtime class",
        refused('pods "x" is forbidden: pod rejected: RuntimeClass "nvidia" not found'),
        P, "runtime-class", "no runtime class nvidia", "kubectl get runtimeclasses", STUCK,
    ),
    Row(
        "Volcano, the whole group",
        facts(unschedulable("pod group is not ready, 2 Pending, 2 minAvailable; Pending: 2 Unschedulable")),
        P, "busy", "Volcano has no room", "kubectl get queues",
    ),
    Row(
        "Volcano, one that would fit",
        facts(unschedulable("Pod team/one can possibly be assigned to node-1")),
        P, "busy", "Volcano has no room", "kubectl get queues",
    ),
    Row("no pod yet", facts(None), P, "no-pod", "has not created its pod yet", ""),
    Row("client died", facts(None, job_=job(suspend=True)), P, "held", "has not started it", "kinetic jobs cancel"),
    Row(
        "client died beside a default queue", facts(None, job_=job(suspend=True, queue="kinetic-none")),
        P, "held", "has not started it", "kinetic jobs cancel"),
    # ------------------------------------------------------------------------------------------------------- queues
    Row(
        "waits in a queue",
        queued(condition("QuotaReserved", "Pending", "couldn't assign flavors to pod set main: insufficient unused "
                         "quota for nvidia.com/gpu in flavor l4, 2 more needed", holds=False)),
        P, "queued", "waits in the queue team-a for nvidia.com/gpu", "kubectl get workloads -n research", WAIT,
    ),
    Row(
        "deactivated in its queue",
        deactivated(condition("QuotaReserved", "Pending", "couldn't assign flavors to pod set main", holds=False),
                    condition("Evicted", "DeactivatedDueToRequeuingLimitExceeded", "The workload is deactivated due to "
                              "exceeding the maximum number of re-queuing retries")),
        P, "queue-deactivated", "the queue team-a has deactivated it", '-p \'{"spec":{"active":true}}\'', STUCK,
    ),
    Row("deactivated before it ran", deactivated(condition("QuotaReserved", "Pending", "waits", holds=False)),
        P, "queue-deactivated", "does not try it again by itself", "kubectl describe workloads -n research", STUCK),
    Row(
        "queue too small",
        queued(condition("QuotaReserved", "Pending", "couldn't assign flavors to pod set main: insufficient quota for "
                         "nvidia.com/gpu in flavor l4, request > maximum capacity (8 > 4)", holds=False)),
        P, "queue-too-small", "can never admit this job", "ask for less", STUCK,
    ),
    Row(
        "no such queue",
        queued(condition("QuotaReserved", "Inadmissible", "LocalQueue team-a doesn't exist", holds=False)),
        P, "queue-missing", "the namespace research has no queue team-a", "kubectl get localqueues -n research", STUCK,
    ),
    Row(
        "queue inactive",
        queued(condition("QuotaReserved", "Inadmissible", "ClusterQueue team is inactive", holds=False)),
        P, "queue-stopped", "the queue team-a is inactive", "kubectl describe localqueue team-a", STUCK,
    ),
    Row(
        "evicted from a queue",
        queued(condition("QuotaReserved", "Pending", "", holds=False),
               condition("Evicted", "Preempted", "Preempted to accommodate a workload (UID: 1) due to prioritization")),
        P, "queue-evicted", "a job of higher priority took its place", "", WAIT,
    ),
    Row(
        "machines of a queue",
        queued(condition("QuotaReserved", "QuotaReserved", "Quota reserved in ClusterQueue team")),
        P, "provisioning", "its nodes are being created", "", WAIT,
    ),
    Row("queued, nothing said", facts(None, job_=job(suspend=True, queue="team-a")), P, "queued", "in the queue", ""),
    # ---------------------------------------------------------------------------------------------------- no machine
    Row("too large", facts(unschedulable(SMALL)), P, "too-large", "not enough memory, even on", "resources =", STUCK),
    Row("late chips", facts(unschedulable(NO_CHIPS_YET)), P, "busy", "not enough google.com/tpu", "wait", WAIT),
    Row("busy", facts(unschedulable(BUSY)), P, "busy", "not enough nvidia.com/gpu", "wait for other jobs", WAIT),
    Row(
        "no node matches",
        facts(unschedulable(MISMATCH)),
        P, "no-node-matches", "what the job asks for: gpu-l4x4", "kubectl get nodes", STUCK,
    ),
    Row(
        "taint",
        facts(unschedulable(TAINTED)),
        P, "no-node-matches", "reserved by {google.com/tpu: present}", "kubectl get nodes", STUCK,
    ),
    Row(
        "a taint of the cluster's own",
        facts(unschedulable(TAINTED.replace("google.com/tpu: present", "dedicated: research"))),
        P, "no-node-matches", "reserved by {dedicated: research}", "name the taint in KINETIC_TOLERATIONS", STUCK,
    ),
    Row(
        "labels that nobody has beside the control plane",
        facts(unschedulable("0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) "
                            "had untolerated taint {node-role.kubernetes.io/control-plane: }.")),
        P, "no-node-matches", "what the job asks for: gpu-l4x4", "kubectl get nodes", STUCK,
    ),
    Row(
        "a node that is starting",
        facts(unschedulable("0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, 1 node(s) "
                            "had untolerated taint {node.kubernetes.io/not-ready: }.")),
        P, "not-ready", "some are not ready yet, or are about to be removed", "wait until it is ready", WAIT,
    ),
    Row(
        "a node that the autoscaler removes",
        facts(unschedulable(TAINTED.replace("google.com/tpu: present", "ToBeDeletedByClusterAutoscaler: 1732"))),
        P, "not-ready", "some are not ready yet, or are about to be removed", "kubectl get nodes", WAIT,
    ),
    Row(
        "taints without a name",
        facts(unschedulable("0/2 nodes are available: 2 node(s) had untolerated taint(s).")),
        P, "no-node-matches", "tainted for others, or not ready", "name the taint in KINETIC_TOLERATIONS", WAIT,
    ),
    Row(
        "other labels beside taints",
        facts(unschedulable(MISMATCH.replace(". pre", ", 1 node(s) had untolerated taint(s). pre"))),
        P, "no-node-matches", "what the job asks for: gpu-l4x4", "kubectl get nodes", STUCK,
    ),
    Row(
        "cordoned",
        facts(unschedulable("0/1 nodes are available: 1 node(s) were unschedulable. preemption: 0/1 nodes are "
                            "available: 1 Preemption is not helpful for scheduling.")),
        P, "cordoned", "its nodes are cordoned", "kubectl uncordon NODE", WAIT,
    ),
    Row(
        "a cordoned node beside others, which may be of any kind",
        facts(unschedulable(MISMATCH.replace(". pre", ", 1 node(s) were unschedulable. pre"))),
        P, "no-node-matches", "no open node of this cluster has what the job asks for, gpu-l4x4", "add nodes", WAIT,
    ),
    Row(
        "no nodes at all",
        facts(unschedulable("no nodes available to schedule pods")),
        P, "no-node-matches", "the cluster has no nodes", "kubectl get nodes --show-labels", WAIT,
    ),
    Row(
        "quota of the namespace being changed",
        refused('Operation cannot be fulfilled on resourcequotas "gke-resource-quotas": the object has been modified'),
        P, "busy", "too busy to create the pod", "retried", WAIT,
    ),
    Row(
        "scale-up running",
        facts(unschedulable(MISMATCH), event("TriggeredScaleUp", UP)),
        P, "scaling-up", "a node with gpu-l4x4 is being created", "", WAIT,
    ),
    Row(
        "out of stock",
        facts(
            unschedulable(MISMATCH),
            event("TriggeredScaleUp", UP, when=1),
            event("FailedScaleUp", "Node scale up in zones us-central1-a associated with this pod failed: GCE out of "
                  "resources. Pod is at risk of not being scheduled.", when=2),
        ),
        P, "out-of-stock", "Google has no gpu-l4x4 left in this zone", "another zone", WAIT,
    ),
    Row(
        "asked for again after a failure",
        facts(
            unschedulable(MISMATCH),
            event("FailedScaleUp", "Node scale up in zones us-central1-a associated with this pod failed: GCE out of "
                  "resources. Pod is at risk of not being scheduled.", when=1),
            event("TriggeredScaleUp", UP, when=2),
        ),
        P, "scaling-up", "is being created", "", WAIT,
    ),
    Row(
        "quota of the project",
        facts(unschedulable(MISMATCH), event("FailedScaleUp", "Node scale up in zones us-central1-a associated with "
              "this pod failed: GCE quota exceeded. Pod is at risk of not being scheduled.")),
        P, "quota", "the project's quota does not allow another node", "iam-admin/quotas", STUCK,
    ),
    Row(
        "no addresses",
        facts(unschedulable(MISMATCH), event("FailedScaleUp", "Node scale up in zones us-central1-a associated with "
              "this pod failed: IP space exhausted. Pod is at risk of not being scheduled.")),
        P, "addresses", "no addresses left", "pod addresses", STUCK,
    ),
    Row(
        "another failure to scale",
        facts(unschedulable(MISMATCH), event("FailedScaleUp", "Node scale up in zones us-central1-a associated with "
              "this pod failed: Internal error. Pod is at risk of not being scheduled.")),
        P, "scaling-failed", "tried to create a node and failed", "kubectl describe pod pod-a -n research", WAIT,
    ),
    Row(
        "no pool can provide it",
        facts(unschedulable(MISMATCH), event("NotTriggerScaleUp", "pod didn't trigger scale-up: 3 node(s) didn't match "
              "Pod's node affinity/selector")),
        P, "no-node-matches", "no node pool of this cluster can provide gpu-l4x4", "or add nodes", STUCK,
    ),
    Row(
        "pool is full",
        facts(unschedulable(BUSY), event("NotTriggerScaleUp", "pod didn't trigger scale-up: 2 node(s) didn't match "
              "Pod's node affinity/selector, 1 max node group size reached")),
        P, "pool-full", "has its maximum number of nodes", "--max-nodes", WAIT,
    ),
    Row(
        "backing off",
        facts(unschedulable(BUSY), event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 node(s) didn't match "
              "Pod's node affinity/selector, 1 in backoff after failed scale-up")),
        P, "pool-full", "waits after a failure", "", WAIT,
    ),
    Row(
        "out of stock, and the autoscaler pauses",
        facts(
            unschedulable(MISMATCH),
            event("FailedScaleUp", "Node scale up in zones us-central1-a associated with this pod failed: GCE out of "
                  "resources. Pod is at risk of not being scheduled.", when=2),
            event("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 node(s) didn't match Pod's node "
                  "affinity/selector, 1 in backoff after failed scale-up", when=3),
        ),
        P, "out-of-stock", "Google has no gpu-l4x4 left", "wait", WAIT,
    ),
    Row(
        "gated",
        facts(pod(conditions=[condition("PodScheduled", "SchedulingGated", "Scheduling is blocked due to non-empty "
              "scheduling gates", holds=False)])),
        P, "queued", "a queue of the cluster holds it", "", WAIT,
    ),
    Row("new pod", facts(pod()), P, "new", "the scheduler has not looked at it yet", ""),
    Row(
        "no scheduler", facts(scheduled_by("volcano")), P, "new", "the scheduler volcano has not looked at it yet",
        "correct KINETIC_SCHEDULER", WAIT,
    ),
    # ------------------------------------------------------------------------------------------- image and container
    Row(
        "image missing",
        facts(waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'),
              event("Failed", f'Failed to pull image "{IMAGE}": rpc error: code = NotFound desc = {NOT_FOUND}')),
        P, "image-missing", f"the image {IMAGE} does not exist", "check its name and tag", STUCK,
    ),
    Row(
        "image forbidden",
        facts(waiting("ErrImagePull", FORBIDDEN)),
        P, "image-denied", "the cluster may not pull", "Artifact Registry Reader", STUCK,
    ),
    Row(
        "image name",
        facts(waiting("InvalidImageName", 'Failed to apply default image tag "A:b:c": invalid reference format')),
        P, "image-name", "is not a valid image name", "REGISTRY/NAME:TAG", STUCK,
    ),
    Row(
        "image of another processor",
        facts(waiting("ErrImagePull", f'failed to pull image "{IMAGE}": no match for platform in manifest: not found')),
        P, "image-architecture", "does not support the processor", "linux/arm64", STUCK,
    ),
    Row(
        "registry, misspelt",
        facts(waiting("ErrImagePull", f'failed to pull and unpack image "{IMAGE}": failed to do request: Head '
              '"https://registry.nowhere.example/v2/x/manifests/1": dial tcp: lookup registry.nowhere.example: '
              "no such host")),
        P, "image-registry", "cannot be resolved", "check its spelling", STUCK,
    ),
    Row(
        "registry is busy",
        facts(waiting("ErrImagePull", "toomanyrequests: You have reached your pull rate limit.")),
        P, "image-slow", "is slow or limits requests", "registry near the cluster", WAIT,
    ),
    Row(
        "registry busy, about an image whose digest has a 403 in it",
        facts(waiting("ErrImagePull", "failed to copy: unexpected status code https://registry-1.docker.io/v2/library/"
              "python/manifests/sha256:5f403ab: 429 Too Many Requests - Server message: toomanyrequests: You have "
              "reached your unauthenticated pull rate limit.")),
        P, "image-slow", "is slow or limits requests", "registry near the cluster", WAIT,
    ),
    Row(
        "image, other",
        facts(waiting("ErrImagePull", "something new")),
        P, "image", "cannot be pulled", "kubectl describe pod pod-a -n research", STUCK,
    ),
    Row(
        "no Python in the image",
        facts(waiting("RunContainerError", 'failed to create containerd task: exec: "python3": executable file not '
                      "found in $PATH: unknown")),
        P, "program", "does not have the program", "Python in its PATH", STUCK,
    ),
    Row(
        "secret gone",
        facts(waiting("CreateContainerConfigError", 'secret "kinetic-x" not found')),
        P, "configuration", "the secret kinetic-x of the job was deleted", "submit the job again", STUCK,
    ),
    Row(
        "secret not there yet",
        facts(pod(node="node-1"), event("FailedMount", 'MountVolume.SetUp failed for volume "secret" : secret '
              '"kinetic-x" not found')),
        P, "configuration", "the secret kinetic-x of the job does not exist", "within seconds", WAIT,
    ),
    Row(
        "a volume that another node has",
        facts(pod(node="node-1"), event("FailedAttachVolume", 'Multi-Attach error for volume "pvc-1" Volume is already '
                                        "used by pod(s) other")),
        P, "volume", "mounted by one node at a time", "ReadWriteMany", WAIT,
    ),
    Row(
        "a volume in another zone",
        facts(unschedulable("0/4 nodes are available: 1 node(s) had volume node affinity conflict, 3 node(s) didn't "
                            "match Pod's node affinity/selector. preemption: 0/4 nodes are available.")),
        P, "volume", "a volume of the job, which is in another zone", "KINETIC_NODE_SELECTOR", STUCK,
    ),
    Row(
        "a node in the zone of the volume that is starting",
        facts(unschedulable("0/2 nodes are available: 1 node(s) had volume node affinity conflict, 1 node(s) "
                            "had untolerated taint {node.kubernetes.io/not-ready: }.")),
        P, "not-ready", "some are not ready yet, or are about to be removed", "wait until it is ready", WAIT,
    ),
    Row(
        "a volume that may not be mounted",
        facts(pod(node="node-1"), event("FailedMount", 'MountVolume.SetUp failed for volume "pvc-1" : mount failed: '
                                        "exit status 32: mount.nfs: PermissionDenied")),
        P, "volume", "a volume cannot be mounted yet", "kubectl describe", WAIT,
    ),
    Row(
        "bucket missing",
        facts(pod(node="node-1"), event("FailedMount", 'MountVolume.SetUp failed for volume "bucket-0" : rpc error: '
              "code = NotFound desc = failed to get GCS bucket \"my-bucket\": storage: bucket doesn't exist")),
        P, "bucket", "a bucket that the job mounts does not exist", "gs://", STUCK,
    ),
    Row(
        "bucket forbidden",
        facts(pod(node="node-1"), event("FailedMount", 'MountVolume.SetUp failed for volume "bucket-0" : rpc error: '
              "code = PermissionDenied desc = failed to get GCS bucket: googleapi: Error 403: caller does not have "
              "storage.objects.list access")),
        P, "bucket-denied", "may not read a bucket", "Storage Object Viewer", STUCK,
    ),
    Row(
        "no FUSE driver",
        facts(pod(node="node-1"), event("FailedMount", 'MountVolume.SetUp failed for volume "bucket-0" : '
              "kubernetes.io/csi: mounter.SetUpAt failed to get CSI client: driver name gcsfuse.csi.storage.gke.io "
              "not found in the list of registered CSI drivers")),
        P, "driver", "its Cloud Storage FUSE driver is off", "GcsFuseCsiDriver=ENABLED", STUCK,
    ),
    Row(
        "image being pulled",
        facts(pod(node="node-1"), event("Scheduled", "Successfully assigned research/pod-a to node-1"),
              event("Pulling", f'Pulling image "{IMAGE}"', when=2)),
        P, "pulling", f"the node is pulling the image {IMAGE}", "", WAIT,
    ),
    Row(
        "container being made",
        facts(pod(node="node-1"), event("Scheduled", "Successfully assigned research/pod-a to node-1")),
        P, "starting", "the node is creating the container", "", WAIT,
    ),
    # ------------------------------------------------------------------------------------------- preempted: once more
    Row(
        "spot",
        facts(disrupted("TerminationByKubelet", "Pod was terminated in response to imminent node shutdown.",
                        reason="Terminated")),
        P, "preempted", "preempted, as Spot capacity can be", "starts again automatically", WAIT,
    ),
    Row("node gone", facts(disrupted("DeletionByPodGC", "PodGC: node no longer exists")), P, "preempted",
        "its node no longer exists", "starts again", WAIT),
    Row("node lost", facts(disrupted("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")), P,
        "preempted", "no longer responded", "starts again", WAIT),
    Row("node lost, pod still there", facts(disrupted("DeletionByTaintManager", "Taint manager", phase="Running")), P,
        "preempted", "and its pod on node-1 has not ended yet", "kubectl delete node node-1", WAIT),
    Row("drained", facts(disrupted("EvictionByEvictionAPI", "Eviction API: evicting")), P, "preempted",
        "its node was drained", "starts again", WAIT),
    Row("pushed aside", facts(disrupted("PreemptionByScheduler", "default-scheduler: preempting to accommodate a "
        "higher priority pod")), P, "preempted", "a pod of higher priority took its place", "starts again", WAIT),
    Row(
        "node pressure",
        facts(disrupted("TerminationByKubelet", reason="Evicted", message="The node was low on resource: memory. "
                        "Threshold quantity: 100Mi, available: 81Mi. Container kinetic-worker was using 14Gi, request "
                        "is 8Gi, has larger consumption of memory. ")),
        P, "evicted", "ran out of memory or disk", 'memory = "32Gi"', WAIT,
    ),
    Row("infrastructure", facts(ended(task.INFRASTRUCTURE_EXIT, said="the store is out of reach")), P,
        "infrastructure", "retried", f"kinetic jobs logs {JOB_ID}", WAIT),
    Row("store refuses", facts(ended(task.INFRASTRUCTURE_EXIT, said="gs://jobs rejected our credentials: "
        "GET https://x: 403 Forbidden")), P, "store-refused", "the store refused its pods, and it is retried",
        "kinetic doctor --try cpu", WAIT),
    Row("failed, with retries left", facts(ended(task.INFRASTRUCTURE_EXIT, said="attempt 0 failed: ValueError: no 1; "
        "trying again (retry 1 of 2)")), P, "infrastructure", "attempt 0 failed, and it is retried",
        "", WAIT),
    Row("machine restarted", facts(ended(task.LOST_EXIT, "Unknown")), P, "machine-restarted",
        "its node was restarted", "", WAIT),
    Row("refused by its machine", facts(pod(phase="Failed", reason="UnexpectedAdmissionError", message="Allocate "
        "failed due to requested number of devices unavailable for nvidia.com/gpu")), P, "refused-by-machine",
        "rejected it at the last moment", "", WAIT),
    # ---------------------------------------------------------------------------------------------------------- ended
    Row("running on a node that is away", facts(pod(node="node-1", phase="Running", containerStatuses=RUNNING,
        conditions=[condition("Ready", "", "", holds=False)]), event("NodeNotReady", "Node is not ready")), R,
        "node-silent", "its node node-1 does not respond", "kubectl delete node node-1"),
    Row("running on a node that was away", facts(pod(node="node-1", phase="Running", containerStatuses=RUNNING,
        conditions=[condition("Ready", "", "")]), event("NodeNotReady", "Node is not ready")), R, "", "", ""),
    Row("running", facts(pod(node="node-1", phase="Running", containerStatuses=RUNNING)), R, "", "", ""),
    Row("complete", facts(None, job_=job(condition("Complete"))), S, "", "", ""),
    Row("success counted soon", facts(None, job_=job(condition("SuccessCriteriaMet"))), S, "", "", ""),
    Row(
        "out of memory",
        facts(ended(137, "OOMKilled"), job_=job(condition("Failed", "PodFailurePolicy"))),
        F, "memory", "it ran out of memory", 'memory = "32Gi"', STUCK,
    ),
    Row("killed", facts(ended(137), job_=job(condition("Failed", "PodFailurePolicy"))), F, "killed",
        "the cluster does not say why", "if memory was short", STUCK),
    Row("crashed", facts(ended(139), job_=job(condition("FailureTarget", "PodFailurePolicy"))), F, "signal",
        "ended by SIGSEGV", "kinetic jobs logs", STUCK),
    Row("user error", facts(ended(task.FAILED_EXIT, said="Traceback\nValueError: no data\n"),
        job_=job(condition("Failed", "PodFailurePolicy"))), F, "failed", "it failed", "kinetic jobs logs", STUCK),
    Row("another Python", facts(ended(task.IMAGE_EXIT, said="kinetic| this image has Python 3.9, and the job was"),
        job_=job(condition("Failed", "PodFailurePolicy"))), F, "python-mismatch", "another Python than the client",
        "container_image", STUCK),
    Row("another Python, its pod is gone", facts(None, job_=job(condition("Failed", "PodFailurePolicy", "Container "
        f"kinetic-worker for pod team/x-ab1cd failed with exit code {task.IMAGE_EXIT} matching FailJob rule at 1"))), F,
        "python-mismatch", "another Python than the client", "container_image", STUCK),
    Row("another exit", facts(ended(1, said="python3: can't open file"), job_=job(condition("Failed"))), F, "exit",
        "it exited with 1", "kinetic jobs logs", STUCK),
    Row(
        "disk",
        facts(ended(137) | {"status": {"phase": "Failed", "reason": "Evicted", "message":
              "Pod ephemeral local storage usage exceeds the total limit of containers 10Gi. "}},
              job_=job(condition("Failed", "PodFailurePolicy"))),
        F, "evicted", "used more than its limits", 'disk = "100Gi"', STUCK,
    ),
    Row(
        "shared memory",
        facts(pod(phase="Failed", reason="Evicted", message='Usage of EmptyDir volume "shm" exceeds the limit "1Gi". '),
              job_=job(condition("Failed", "BackoffLimitExceeded"))),
        F, "evicted", "used more than its limits", 'shm = "16Gi"', STUCK,
    ),
    Row("deadline of the pod", facts(pod(phase="Failed", reason="DeadlineExceeded", message="Pod was active on the "
        "node longer than the specified deadline"), job_=job(condition("Failed"))), F, "deadline", "longer than its",
        "deadline", STUCK),
    Row("deadline before it was ready", facts(pod(phase="Failed", reason="DeadlineExceeded", node="node-1",
        containerStatuses=[{"name": "kinetic-worker", "state": {"waiting": {"reason": "ContainerCreating"}}}]),
        event("FailedMount", 'MountVolume.SetUp failed for volume "secret" : secret "kinetic-x" not found'),
        job_=job(condition("Failed"))), F, "deadline", "not ready within its deadline and half an hour: ", "", STUCK),
    Row("deadline of the job", facts(None, job_=job(condition("Failed", "DeadlineExceeded", "Job was active longer "
        "than specified deadline"))), F, "deadline", "longer than its deadline", "", STUCK),
    Row("failed, pods gone", facts(None, job_=job(condition("Failed", "BackoffLimitExceeded", "Job has reached the "
        "specified backoff limit"))), F, "failed", "its pods no longer exist", "", STUCK),
    Row("an init container fails", facts(beside({"name": "vault-agent-init",
        "state": {"terminated": {"exitCode": 3, "reason": "Error", "message": "permission denied"}}})),
        P, "container", "the container vault-agent-init, which the cluster added to its pod, failed with exit code 3",
        "kubectl logs pod-a -c vault-agent-init -n research"),
    Row("an init container failed for good", facts(beside({"name": "vault-agent-init",
        "state": {"terminated": {"exitCode": 3, "reason": "Error"}}}), job_=job(condition("Failed"))),
        F, "container", "vault-agent-init, which the cluster added to its pod, failed", "submit it again", STUCK),
    Row("a sidecar fails after ours has ended", facts(beside({"name": "vault-agent-init",
        "state": {"terminated": {"exitCode": 3}}}, ours={"name": "kinetic-worker",
        "state": {"terminated": {"exitCode": 0}}})), P, "container", "vault-agent-init", "kubectl logs"),
    Row("the image of an init container", facts(beside({"name": "vault-agent-init",
        "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}, phase="Pending")),
        P, "image-missing",
        "vault-agent-init, which the cluster added to its pod: the image hashicorp/vault:1 does not exist",
        "check its name", STUCK),
    Row("our image beside a sidecar", facts(beside(ours={"name": "kinetic-worker",
        "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}, phase="Pending")),
        P, "image-missing", f"the image {IMAGE} does not exist", "check its name", STUCK),
    Row("suspended by an administrator", facts(None, job_=suspended_by("kubectl-patch")),
        P, "suspended", "kubectl-patch has suspended it", f"kubectl patch job {NAME} -n research --type merge"),
    Row("suspended by Kueue", facts(None, job_=suspended_by("kueue")),
        P, "suspended", "kueue has suspended it", "name one in KINETIC_QUEUE"),
    Row("a read-only root that was not seen", refused('admission webhook "v.gatekeeper.sh" denied the request: '
        "[ro] only read-only root filesystem container is allowed: kinetic-worker"), P, "admission",
        "only accepts pods with a read-only root file system", "the right to create pods", STUCK),
    Row("over a LimitRange", refused("maximum cpu usage per Pod is 500m.  No limit is specified"),
        P, "limit-range", "a LimitRange of the namespace research does not allow", "resources = { cpu = 0.5", STUCK),
    Row("over the disk of a LimitRange", refused('spec.containers[0].resources.requests: Invalid value: "1Gi": must be '
        "less than or equal to ephemeral-storage limit of 100Mi"), P, "limit-range", "does not allow the disk that the",
        'resources = { disk = "500Mi" }', STUCK),
    Row("over the default limit of a LimitRange", refused('spec.containers[0].resources.requests: Invalid value: "1": '
        "must be less than or equal to cpu limit of 500m"), P, "limit-range", "does not allow what the job requests",
        "kubectl describe limitrange -n research", STUCK),
    Row("start error", facts(ended(128, "StartError", 'exec: "python3": executable file not found in $PATH'),
        job_=job(condition("Failed"))), F, "program", "does not have the program", "Python", STUCK),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_reason_is_read_from_what_the_cluster_says(row: Row) -> None:
    found = diagnose(row.facts)

    assert (found.status, found.code, found.stuck) == (row.status, row.code, row.stuck)
    assert row.what in found.what
    assert row.next in found.next


def test_no_text_has_a_hole_or_a_brace_that_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for row in ROWS:
        found = diagnose(row.facts)

        holes = {"QUOTA", "WHAT", "TAINT", "HOOK", "NAME", "LEVEL", "KIND", "MISSING"}
        assert not set(found.what.split()) & holes, found
        assert "{{" not in found.next


def test_every_way_to_wait_says_what_to_do_or_that_it_passes() -> None:
    silent = [
        row.name for row in ROWS if diagnose(row.facts).stuck and row.status is P and not diagnose(row.facts).next
    ]

    assert silent == []


def test_the_newest_pod_speaks_for_a_job_that_was_preempted() -> None:
    old = disrupted("DeletionByPodGC")
    new = pod("pod-b", made=30, node="node-2", phase="Running", containerStatuses=RUNNING)

    assert diagnose(Evidence(job(), [new, old])) == diagnosis.JobState(R, pod="pod-b")


def test_a_verdict_that_the_cluster_has_not_counted_yet_is_not_called_pending() -> None:
    assert diagnose(facts(ended(task.FAILED_EXIT))).status is R
    assert diagnose(facts(ended(task.INFRASTRUCTURE_EXIT))).status is P


def test_an_event_about_another_pod_is_not_ours() -> None:
    other = event("FailedScaleUp", "Node scale up in zones a failed: GCE out of resources.", of="pod-b")

    assert diagnose(facts(unschedulable(BUSY), other)).code == "busy"


def test_a_refusal_to_make_the_next_pod_is_told_when_the_last_one_is_gone() -> None:
    old = ended(task.INFRASTRUCTURE_EXIT)
    refusal = event("FailedCreate", 'Error creating: pods "x" is forbidden: exceeded quota: team, requested: pods=1, '
                    "used: pods=1, limited: pods=1", of="job")  # fmt: skip

    assert diagnose(Evidence(job(), [old], [refusal])).code == "quota"


def test_an_old_refusal_says_nothing_about_a_pod_that_runs() -> None:
    refusal = event("FailedCreate", "Error creating: exceeded quota: team, requested", of="job")
    running = pod(node="node-1", phase="Running", containerStatuses=RUNNING)

    assert diagnose(Evidence(job(), [running], [refusal])).status is R


def test_a_container_that_the_cluster_added_is_not_taken_for_ours() -> None:
    sidecar = {"name": "gke-gcsfuse-sidecar", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}
    found = ended(137, "OOMKilled")
    found["status"]["containerStatuses"].insert(0, sidecar)

    assert diagnose(facts(found, job_=job(condition("Failed")))).code == "memory"


def test_a_job_that_failed_is_not_called_retried_and_its_last_pod_is_the_cause() -> None:
    said = "this attempt has no verdict: this machine was taken away, or the job was stopped; another one may follow"
    pods = [ended(task.INFRASTRUCTURE_EXIT, said=said, name=f"pod-{made}", made=made) for made in (0, 10, 20)]
    killed = ended(137, "OOMKilled", name="pod-30", made=30)
    spent = condition("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")

    found = diagnose(Evidence(job(spent), pods))
    later = diagnose(Evidence(job(spent), [*pods, killed]))

    assert (found.status, found.what) == (F, "an infrastructure failure ended it, 3 times")
    assert found.why == said.removesuffix("; another one may follow")
    assert found.next == f"kinetic jobs logs {JOB_ID}     or submit it again"
    assert (later.code, later.pod) == ("memory", "pod-30")
    assert object_status.observation(job(spent)).reason == f"all its pods failed: kinetic jobs explain {JOB_ID}"


def test_a_slice_that_does_not_start_again_is_to_be_submitted_again() -> None:
    lost = disrupted("DeletionByPodGC", host=1)

    found = diagnose(slice_of(host(0), lost, job_=job(condition("Failed", "BackoffLimitExceeded"))))

    assert (found.code, found.next) == ("preempted", "submit it again")


# ----------------------------------------------------------------------------------------------------------- many hosts


def slice_of(*pods: dict, job_: dict | None = None) -> Evidence:
    return Evidence(job_ or job(), pods, (), None, "tpu-v6e-4x4", hosts=4)


def host(number: int, **more: Any) -> dict:
    fields = {"node": f"node-{number}", "phase": "Running", "containerStatuses": RUNNING, **more}
    return pod(f"pod-{number}", host=number, **fields)


def test_a_slice_waits_for_its_worst_host() -> None:
    lost = pod("pod-2", host=2, conditions=[condition("PodScheduled", "Unschedulable", MISMATCH, holds=False)])

    found = diagnose(slice_of(host(0), host(1), lost, host(3)))

    assert found.status is R
    assert found.what.startswith("3 of 4 hosts are running; host 2: no node of this cluster")
    assert found.stuck


def test_a_host_that_the_cluster_refuses_a_pod_is_what_a_slice_waits_for() -> None:
    refusal = event("FailedCreate", "Error creating: exceeded quota: team, requested: pods=1", of="job")

    found = diagnose(slice_of(host(0), host(1))._replace(events=[refusal]))

    assert found.code == "quota"
    assert found.what.startswith("2 of 4 hosts are running; host 2: the quota team of the namespace research")
    assert diagnose(slice_of(*map(host, range(4)))._replace(events=[refusal])).what == ""


@pytest.mark.parametrize(
    "said",  # of JobSet 0.10.1
    [
        "follower pod node selector for topology domain not found. missing selector: cloud.google.com/gke-nodepool",
        "follower pod node selector not set",
        "leader pod not yet scheduled, not creating follower pod. this is an expected, transient error",
        "expected 1 leader pod (x), but got 0. this is an expected, transient error",
    ],
)
def test_a_slice_whose_first_host_has_no_node_says_why_and_not_that_its_other_hosts_are_refused(said) -> None:
    refusal = event("FailedCreate", f'Error creating: admission webhook "vpod.kb.io" denied the request: {said}')
    first = pod("pod-0", host=0, conditions=[condition("PodScheduled", "Unschedulable", MISMATCH, holds=False)])

    found = diagnose(slice_of(first)._replace(events=[refusal]))

    assert found.code == "no-node-matches"
    assert found.what.startswith("0 of 4 hosts are running; host 0: no node of this cluster")
    assert diagnose(slice_of()._replace(events=[refusal])).code == "no-pod"


def test_a_slice_whose_service_cannot_be_created_says_why() -> None:
    denied = "services \"x\" is forbidden: ValidatingAdmissionPolicy 'labels' denied request: no label team"
    quota = 'services "x" is forbidden: exceeded quota: team, requested: services=1'

    found, other = (
        diagnose(slice_of()._replace(events=[event("HeadlessServiceCreationFailed", said, of="job")]))
        for said in (denied, quota)
    )

    assert (found.code, found.why, found.stuck) == ("admission", f"HeadlessServiceCreationFailed: {denied}", True)
    assert "rejected the Service" in found.what
    assert (other.code, "the quota team" in other.what) == ("quota", True)


def test_a_slice_whose_job_cannot_be_created_says_why() -> None:
    denied = "jobs.batch \"x\" is forbidden: ValidatingAdmissionPolicy 'labels' denied request: no label team"

    found = diagnose(slice_of()._replace(events=[event("JobCreationFailed", denied, of="job")]))  # JobSet 0.12

    assert (found.code, found.why, found.stuck) == ("admission", f"JobCreationFailed: {denied}", True)
    assert found.what == "an admission rule of the cluster rejected the Job that JobSet creates for its hosts"
    assert "KINETIC_LABELS" in found.next  # they are on it


def test_a_job_set_without_a_job_names_where_its_controller_says_why() -> None:
    waits = slice_of()._replace(job=job() | {"kind": "JobSet"})

    found, later = diagnose(waits), diagnose(waits._replace(parts=[job()]))

    assert "JobSet has not created the Job" in found.what
    assert "kubectl logs -n jobset-system" in found.next
    assert later.what == "the cluster has not created its pod yet"


def test_the_host_that_failed_by_itself_is_the_cause_and_not_the_preempted_or_the_later_one() -> None:
    late = {"exitCode": task.FAILED_EXIT, "finishedAt": at(30), "message": "peer lost"}
    early = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": at(20)}
    first = host(0, phase="Failed", containerStatuses=[{"name": "kinetic-worker", "state": {"terminated": late}}])
    cause = host(2, phase="Failed", containerStatuses=[{"name": "kinetic-worker", "state": {"terminated": early}}])
    taken = disrupted("DeletionByPodGC")

    found = diagnose(slice_of(first, taken, cause, job_=job(condition("Failed", "PodFailurePolicy"))))

    assert (found.status, found.code, found.pod) == (F, "memory", "pod-2")
    assert found.what == "host 2: it ran out of memory"


def test_a_job_set_that_is_complete_is_a_success() -> None:
    assert diagnose(slice_of(job_=job(condition("Completed", "AllJobsCompleted")))).status is S


def test_before_the_autoscaler_has_looked_at_a_job_its_user_is_not_told_to_add_nodes() -> None:
    said = unschedulable("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.")
    full = unschedulable(
        "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available: 2 Preemption is not helpful "
        "for scheduling."
    )

    for pod_, code in ((said, "no-node-matches"), (full, "too-large")):
        first, later = diagnose(facts(pod_)._replace(unseen=True)), diagnose(facts(pod_))

        assert (first.code, first.stuck, first.next) == (code, False, "")
        assert first.what.endswith("; the autoscaler has not looked at it yet")
        assert (later.code, later.stuck) == (code, True)


def test_a_job_set_names_the_service_account_of_its_hosts() -> None:
    found = job()
    template = found["spec"].pop("template")
    found["spec"]["replicatedJobs"] = [{"name": "s", "template": {"spec": {"template": template}}}]
    refusal = event("FailedCreate", 'Error creating: pods "x" is forbidden: error looking up service account '
                    'research/kinetic: serviceaccount "kinetic" not found', of="child")  # fmt: skip

    assert "kubectl create serviceaccount kinetic" in diagnose(Evidence(found, (), [refusal])).next


@pytest.mark.parametrize(("of", "hosts", "slices", "host"), [("s-0-1", 2, 1, 1), ("s-2-1", 12, 3, 9)])
def test_a_host_that_was_killed_is_named_by_the_job_when_its_pod_is_gone(of, hosts, slices, host) -> None:
    pod = f"kinetic-x-{of}-ab1cd"
    said = f"Container kinetic-worker for pod team/{pod} failed with exit code 137 matching FailJob rule"
    failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": said}]}
    whole = {"conditions": [{"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "a job failed"}]}

    found = diagnosis.diagnose(
        Evidence(
            {"kind": "JobSet", "metadata": {}, "status": whole},
            hosts=hosts,
            slices=slices,
            parts=[{"metadata": {}, "status": failed}],
        )
    )

    assert (found.status, found.code) == (JobStatus.FAILED, "killed")
    assert found.what == f"host {host}: it was killed (SIGKILL), and the cluster does not say why"
    assert found.why == "exit code 137; its pod no longer exists"
    assert found.pod == pod


def test_a_killed_container_says_whether_it_had_a_limit_that_could_have_ended_it() -> None:
    free, limited = (object_status.pod_end(found, "j").why for found in (ended(137), with_limit(ended(137))))

    assert free == "exit code 137; it had no memory limit, so its node may have run out of memory"
    assert limited == "exit code 137; its memory limit of 4Gi was not reported as exceeded"


def test_a_job_on_one_host_names_its_lost_pod_as_well() -> None:
    said = "Container kinetic-worker for pod team/kinetic-x-ab1cd failed with exit code 1 matching FailJob rule at 1"
    failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": said}]}

    found = diagnosis.diagnose(Evidence({"kind": "Job", "metadata": {}, "status": failed}))

    assert found.what == "it exited with 1"

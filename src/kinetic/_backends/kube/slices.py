"""A job on many hosts: a JobSet; where clusters have none, an Indexed Job with a Service; else a LeaderWorkerSet.

| | JobSet | Indexed Job | LeaderWorkerSet |
|---|---|---|---|
| a host is preempted | all hosts start again, not counted | the job fails | all hosts start again |
| a host fails in the user's code | the job fails | the job fails | the runner decides |
| a host lost its store, or a peer | all hosts start again, not counted | the job fails | all hosts start again |
| ends, and goes after a while, by itself | yes | yes | no: the runner holds until it is deleted |
| names of hosts | NAME-s-0-INDEX.NAME | NAME-INDEX.NAME | NAME-0.NAME, and NAME-0-INDEX.NAME |

No rule ignores a lost host: a replacement would leave its peers hanging. Nothing sets TPU_WORKER_ID,
TPU_WORKER_HOSTNAMES or MEGASCALE_*: GKE and the LeaderWorkerSet controller set them, and none of them if one is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic._backends.kube import names
from kinetic._backends.kube.containers import Manifest, labels, metadata, pod_template
from kinetic._backends.kube.single import disruption, verdict
from kinetic._wire.pod import DETECT, RESTART_VARIABLE

if TYPE_CHECKING:
    from kinetic._backends.kube.request import JobRequest

NODE_POOL = "cloud.google.com/gke-nodepool"  # GKE makes one node pool for each slice


def job_set(request: JobRequest) -> Manifest:
    """Return a JobSet with one Indexed Job, made suspended as a Job is."""
    name = names.job_set(request.job_id, request.placement.hosts)
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
                "name": names.SLICE,
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
        "podFailurePolicy": {"rules": [disruption("Count"), verdict()]},
        "podReplacementPolicy": "Failed",
        "template": template,
    }
    if request.life_seconds is not None:
        spec["activeDeadlineSeconds"] = request.life_seconds
    return spec


def indexed_job(request: JobRequest) -> Manifest:
    """Return an Indexed Job for a cluster without JobSet; ``service`` belongs to it. It has no restart as a gang."""
    name = names.indexed(request.job_id, request.placement.hosts)
    template = pod_template(request, subdomain=name, affinity=_together(request))
    spec = _hosts(request, template) | {"suspend": True, "ttlSecondsAfterFinished": request.ttl_seconds}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata(request, name), "spec": spec}


def _together(request: JobRequest) -> Manifest | None:
    """Keep the hosts in one node pool, which is one slice: two free slices could otherwise get half of them each.

    A JobSet's annotation does this, and here an affinity to the job's own pods; for the first of them it holds.
    """
    if request.placement.kind != "tpu":
        return None
    own = {"matchLabels": {names.JOB_LABEL: names.label_value(request.job_id)}}
    term = {"labelSelector": own, "topologyKey": NODE_POOL}
    return {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def service(request: JobRequest, uid: str = "") -> Manifest:
    """Return the headless Service that gives the hosts of an Indexed Job their names.

    Args:
        request: The job.
        uid: Of the Job, which then owns it: it goes when the Job goes.
    """
    name = names.indexed(request.job_id, request.placement.hosts)
    about: Manifest = {"name": name, "namespace": request.namespace, "labels": labels(request)}
    if uid:
        about["ownerReferences"] = [owner("batch/v1", "Job", name, uid)]
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,  # hosts look for each other before anybody calls them ready
        "selector": {names.JOB_LABEL: names.label_value(request.job_id)},
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": about, "spec": spec}


def leader_worker_set(request: JobRequest) -> Manifest:
    """Return a LeaderWorkerSet, for clusters that have nothing else.

    It knows no end: its pods are started again whenever they exit. So the runner must not exit before the set is
    deleted; whoever builds the request says so to the runner, and whoever collects deletes the set.
    """
    name = names.leader_worker_set(request.job_id, request.placement.hosts)
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


def owner(version: str, kind: str, name: str, uid: str) -> Manifest:
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
    first = f"{name}-{names.SLICE}-0-0" if manifest["kind"] == "JobSet" else f"{name}-0"
    return f"{first}.{name}:{request.coordinator_port}"


def _from_field(name: str, path: str) -> Manifest:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

"""The pod of a job: one template for every kind of object that makes pods.

image, command, environment          as asked
chips, processor, memory, disk       requests, and limits for what was asked for by name
node selector, tolerations           of the placement, with the number of GPUs
Secret, ConfigMap, /dev/shm, folders, buckets    volumes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinetic._backends.kube import names
from kinetic._backends.kube.quantities import bytes_quantity, cores_quantity
from kinetic._backends.kube.request import RUNNER_FILE, RUNNER_PATH
from kinetic._wire.pod import SECRET_FOLDER, STORE_SECRET_FOLDER

if TYPE_CHECKING:
    from kinetic._backends.kube.request import BucketVolume, JobRequest

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
    app = names.APP if request.placement.hosts == 1 else names.APP_MANY_HOSTS
    found = {names.APP_LABEL: app, names.JOB_LABEL: names.label_value(request.job_id)}
    if request.owner:
        found[names.OWNER_LABEL] = names.label_value(request.owner)
    if request.group:
        found[names.GROUP_LABEL] = names.label_value(request.group)
    return found


def marks(request: JobRequest) -> dict[str, str]:
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
    queue = {names.QUEUE_LABEL: request.queue} if request.queue else {}
    found = {"name": name, "namespace": request.namespace, "labels": labels(request) | queue}
    return found | ({"annotations": marks(request)} if marks(request) else {})


def pod_template(request: JobRequest, environment: list[Manifest] | None = None, **spec: Any) -> Manifest:
    """Return the template of a job's pods.

    Args:
        request: The job.
        environment: Variables that depend on what makes the pods.
        spec: Fields of the pod that do, too; None takes one away.
    """
    fields = _pod(request, environment or []) | spec
    about: Manifest = {"labels": labels(request), "annotations": _pleas(request)}
    return {"metadata": about, "spec": {name: value for name, value in fields.items() if value not in (None, [], {})}}


def _pleas(request: JobRequest) -> dict[str, str]:
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

"""A job on one host: a Job that survives preemptions, repeats what may pass, and ends with the first verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinetic._backends.kube import names
from kinetic._backends.kube.containers import CONTAINER, Manifest, metadata, pod_template
from kinetic._wire.pod import INFRASTRUCTURE_EXIT, LOST_EXIT

if TYPE_CHECKING:
    from kinetic._backends.kube.request import JobRequest


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
        "podFailurePolicy": {"rules": [disruption("Ignore"), verdict()]},
        # A second pod must not start while the first still holds the chips, or writes.
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": request.ttl_seconds,
        "template": pod_template(request),
    }
    if request.life_seconds is not None:
        spec["activeDeadlineSeconds"] = request.life_seconds
    about = metadata(request, names.single(request.job_id))
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


def disruption(action: str) -> Manifest:
    """Return the rule for pods whose machine was taken away. It stands first: such pods have exit codes as well."""
    return {"action": action, "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def verdict() -> Manifest:
    """Return the rule for everything that would end the same way again: all codes but those for the infrastructure.

    137 is among it: without a disruption it means that memory ran out, and would run out again.
    """
    passing = [INFRASTRUCTURE_EXIT, LOST_EXIT]
    return {
        "action": "FailJob",
        "onExitCodes": {"containerName": CONTAINER, "operator": "NotIn", "values": passing},
    }

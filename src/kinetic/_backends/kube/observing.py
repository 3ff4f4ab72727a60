"""From the objects that make pods to sightings: how a job stands by what its Job, JobSet or LeaderWorkerSet says.

| | PENDING | RUNNING | SUCCEEDED | FAILED |
|---|---|---|---|---|
| Job | nothing is ready | its hosts are ready | Complete | Failed |
| JobSet | nothing is ready | its Job is ready | Completed | Failed |
| LeaderWorkerSet | nothing is ready | its group is ready | never: the store knows | never |

A job whose machine was taken away is PENDING again. Pods are looked at only to explain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kinetic._backends.kube import names, reading
from kinetic._backends.kube.kinds import JOB_SET, LEADER_WORKER_SET
from kinetic._backends.protocol import Sighting
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Object

JOB_ID = "kinetic/job-id"  # the annotation with an id that is too long for a label
_OF_A_JOB_SET = "jobset.sigs.k8s.io/jobset-name"


def job_id_of(found: Object) -> str:
    """Return the id of the job that an object belongs to."""
    about = found.get("metadata") or {}
    return str((about.get("annotations") or {}).get(JOB_ID) or (about.get("labels") or {}).get(names.JOB_LABEL) or "")


def is_a_part(found: Object) -> bool:
    """Say whether a Job only carries out what a JobSet says, which is the one to ask."""
    return _OF_A_JOB_SET in ((found.get("metadata") or {}).get("labels") or {})


def group_of(found: Object) -> str:
    """Return the label of the batch that an object belongs to, or ""."""
    return _label(found, names.GROUP_LABEL)


def owner_of(found: Object) -> str:
    """Return the label of who submitted an object, or ""."""
    return _label(found, names.OWNER_LABEL)


def _label(found: Object, name: str) -> str:
    return str(((found.get("metadata") or {}).get("labels") or {}).get(name) or "")


def slim(found: Object) -> Object:
    """Return what is needed of an object to say how its job stands: a tenth of it."""
    about, spec = found.get("metadata") or {}, found.get("spec") or {}
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "labels")
    annotations = {name: text for name, text in (about.get("annotations") or {}).items() if name == JOB_ID}
    return {
        "apiVersion": found.get("apiVersion", ""),
        "kind": found.get("kind", ""),
        "metadata": {**{name: about[name] for name in kept if name in about}, "annotations": annotations},
        "spec": {name: spec[name] for name in ("suspend", "completions") if name in spec},
        "status": found.get("status") or {},
    }


def sightings(objects: Iterable[Object]) -> dict[str, Sighting]:
    """Return what objects say of their jobs, by job id."""
    seen = {}
    for found in objects:
        if not is_a_part(found) and job_id_of(found):
            seen[job_id_of(found)] = sighting(found)
    return seen


def sighting(found: Object) -> Sighting:
    """Return what an object says of its job."""
    status = status_of(found)
    about, state = found.get("metadata") or {}, found.get("status") or {}
    ended = _ended(found) if status.is_final else None
    failed = reading.condition(found, "Failed", "FailureTarget") if status is JobStatus.FAILED else None
    return Sighting(
        name=job_id_of(found),
        status=status,
        attempt=None,
        reason=str(failed.get("message") or failed.get("reason") or "") if failed else "",
        where=str(about.get("namespace") or ""),
        submitted=reading.made(found) or None,
        started=reading.seconds(state.get("startTime")) or None,
        ended=ended,
        version=str(about.get("resourceVersion") or ""),
    )


def status_of(found: Object) -> JobStatus:
    """Return how a job stands."""
    if found.get("kind") == LEADER_WORKER_SET.name:
        ready = (found.get("status") or {}).get("readyReplicas") or 0
        return JobStatus.RUNNING if ready else JobStatus.PENDING
    if reading.condition(found, "Complete", "Completed", "SuccessCriteriaMet"):
        return JobStatus.SUCCEEDED
    if reading.condition(found, "Failed", "FailureTarget"):
        return JobStatus.FAILED
    if (found.get("spec") or {}).get("suspend"):
        return JobStatus.PENDING
    state = found.get("status") or {}
    if found.get("kind") == JOB_SET.name:
        return _of_parts(state.get("replicatedJobsStatus") or ())
    ready = (state.get("ready") or 0) + (state.get("succeeded") or 0)
    wanted = (found.get("spec") or {}).get("completions") or 1
    return JobStatus.RUNNING if ready >= wanted and state.get("ready") else JobStatus.PENDING


def _of_parts(parts: Iterable[dict[str, Any]]) -> JobStatus:
    up = sum((part.get("ready") or 0) + (part.get("succeeded") or 0) for part in parts)
    return JobStatus.RUNNING if up else JobStatus.PENDING


def _ended(found: Object) -> float | None:
    state = found.get("status") or {}
    ended = reading.condition(found, "Complete", "Completed", "Failed", "FailureTarget") or {}
    return reading.seconds(state.get("completionTime") or ended.get("lastTransitionTime")) or None

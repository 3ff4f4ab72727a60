"""From the objects that make pods to sightings: how a job stands by what its Job, JobSet or LeaderWorkerSet says.

| | PENDING | RUNNING | SUCCEEDED | FAILED |
|---|---|---|---|---|
| Job | nothing is ready | its hosts are ready | Complete | Failed |
| JobSet | nothing is ready | its Job is ready | Completed | Failed |
| LeaderWorkerSet | nothing is ready | its group is ready | never: the store knows | never |

A job whose machine was taken away is PENDING again. Pods are looked at only to explain.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from kinetic._backends.kube import job_request
from kinetic._backends.kube.client import JOB_SET, LEADER_WORKER_SET
from kinetic._backends.kube.job_manifests import CONTAINER
from kinetic._backends.protocol import Sighting
from kinetic.job_status import JobStatus

Object = dict[str, Any]


def condition_of(found: Object, *types: str) -> Object | None:
    """Return the condition of one of some types that holds, or None."""
    for each in (found.get("status") or {}).get("conditions") or ():
        if each.get("type") in types and each.get("status") == "True":
            return dict(each)
    return None


def denied(found: Object, kind: str) -> Object | None:
    """Return a condition that is said not to hold, or None."""
    for each in (found.get("status") or {}).get("conditions") or ():
        if each.get("type") == kind and each.get("status") == "False":
            return dict(each)
    return None


def main_container(pod: Object) -> Object:
    """Return what a pod says of our container, by its name: a cluster may add others before it."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((each for each in statuses if each.get("name") == CONTAINER), {})


def terminated(pod: Object) -> Object | None:
    """Return how our container ended, now or before it was started again, or None."""
    ours = main_container(pod)
    found = (ours.get("state") or {}).get("terminated") or (ours.get("lastState") or {}).get("terminated")
    return dict(found) if found else None


def waiting(pod: Object) -> tuple[str, str]:
    """Return why our container, or one that must be done before it, waits: reason and message."""
    status = pod.get("status") or {}
    before = [each for each in status.get("initContainerStatuses") or () if (each.get("state") or {}).get("waiting")]
    for each in (main_container(pod), *before):
        found = (each.get("state") or {}).get("waiting")
        if found and found.get("reason") not in {None, "PodInitializing", "ContainerCreating"}:
            return str(found["reason"]), str(found.get("message") or "")
    return "", ""


def is_disrupted(pod: Object) -> bool:
    """Say whether a pod's machine was taken away, or its place."""
    return condition_of(pod, "DisruptionTarget") is not None


def pod_phase(pod: Object) -> str:
    """Return a pod's phase."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def object_name(found: Object) -> str:
    """Return an object's name."""
    return str((found.get("metadata") or {}).get("name") or "")


def created_at(found: Object) -> float:
    """Return when an object was made, as Unix time; 0 where nothing says so."""
    return timestamp((found.get("metadata") or {}).get("creationTimestamp"))


def host_index(pod: Object) -> int:
    """Return which host of a slice a pod is, from 0."""
    about = pod.get("metadata") or {}
    marks = {**(about.get("annotations") or {}), **(about.get("labels") or {})}
    for key in ("batch.kubernetes.io/job-completion-index", "leaderworkerset.sigs.k8s.io/worker-index"):
        if str(marks.get(key, "")).isdecimal():
            return int(marks[key])
    return 0


def events_of(found: Object, events: Iterable[Object]) -> list[Object]:
    """Return the events about an object, the latest last."""
    about = found.get("metadata") or {}
    ours = [each for each in events if _concerns(each, about)]
    return sorted(ours, key=event_time)


def _concerns(event: Object, about: Object) -> bool:
    involved = event.get("involvedObject") or event.get("regarding") or {}
    if involved.get("uid") and about.get("uid"):
        return bool(involved["uid"] == about["uid"])
    return bool(involved.get("name") == about.get("name"))


def event_time(event: Object) -> float:
    """Return when an event happened last, as Unix time."""
    series = event.get("series") or {}
    about = event.get("metadata") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return timestamp(next(filter(None, times), None) or about.get("creationTimestamp"))


def event_message(event: Object) -> str:
    """Return an event's reason and words."""
    return f"{event.get('reason', '')}: {event.get('message') or event.get('note') or ''}"


def newest(pods: Sequence[Object]) -> Object:
    """Return the pod that was made last."""
    return max(pods, key=lambda pod: (created_at(pod), object_name(pod)))


def timestamp(written: object) -> float:
    """Return a time that the API wrote, as Unix time; 0 where there is none."""
    if not written:
        return 0.0
    try:
        return dt.datetime.fromisoformat(str(written)).timestamp()
    except ValueError:
        return 0.0


JOB_ID = "kinetic/job-id"  # the annotation with an id that is too long for a label
_OF_A_JOB_SET = "jobset.sigs.k8s.io/jobset-name"


def job_id_of(found: Object) -> str:
    """Return the id of the job that an object belongs to."""
    about = found.get("metadata") or {}
    return str(
        (about.get("annotations") or {}).get(JOB_ID) or (about.get("labels") or {}).get(job_request.JOB_LABEL) or ""
    )


def is_a_part(found: Object) -> bool:
    """Say whether a Job only carries out what a JobSet says, which is the one to ask."""
    return _OF_A_JOB_SET in ((found.get("metadata") or {}).get("labels") or {})


def group_of(found: Object) -> str:
    """Return the label of the batch that an object belongs to, or ""."""
    return _label(found, job_request.GROUP_LABEL)


def owner_of(found: Object) -> str:
    """Return the label of who submitted an object, or ""."""
    return _label(found, job_request.OWNER_LABEL)


def _label(found: Object, name: str) -> str:
    return str(((found.get("metadata") or {}).get("labels") or {}).get(name) or "")


def reduced(found: Object) -> Object:
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
    failed = condition_of(found, "Failed", "FailureTarget") if status is JobStatus.FAILED else None
    return Sighting(
        name=job_id_of(found),
        status=status,
        attempt=None,
        reason=str(failed.get("message") or failed.get("reason") or "") if failed else "",
        where=str(about.get("namespace") or ""),
        submitted=created_at(found) or None,
        started=timestamp(state.get("startTime")) or None,
        ended=ended,
        version=str(about.get("resourceVersion") or ""),
    )


def status_of(found: Object) -> JobStatus:
    """Return how a job stands."""
    if found.get("kind") == LEADER_WORKER_SET.name:
        ready = (found.get("status") or {}).get("readyReplicas") or 0
        return JobStatus.RUNNING if ready else JobStatus.PENDING
    if condition_of(found, "Complete", "Completed", "SuccessCriteriaMet"):
        return JobStatus.SUCCEEDED
    if condition_of(found, "Failed", "FailureTarget"):
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
    ended = condition_of(found, "Complete", "Completed", "Failed", "FailureTarget") or {}
    return timestamp(state.get("completionTime") or ended.get("lastTransitionTime")) or None

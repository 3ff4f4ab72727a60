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
import re
import signal
from collections.abc import Iterable, Sequence
from typing import Any

from kinetic._backends.kube import job_manifests
from kinetic._backends.kube.client import JOB_SET, LEADER_WORKER_SET
from kinetic._backends.kube.event_patterns import Explanation
from kinetic._backends.kube.job_manifests import CONTAINER
from kinetic._backends.protocol import Observation
from kinetic._wire import pod_log_format
from kinetic._wire.task import FAILED_EXIT, INFRASTRUCTURE_EXIT, LOST_EXIT, MORE_MEMORY
from kinetic.job_status import JobStatus

Object = dict[str, Any]


def condition_of(found: Object, *types: str) -> Object | None:
    """Return the condition of one of some types that holds, or None."""
    for each in (found.get("status") or {}).get("conditions") or ():
        if each.get("type") in types and each.get("status") == "True":
            return dict(each)
    return None


def unmet_condition(found: Object, kind: str) -> Object | None:
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
        (about.get("annotations") or {}).get(JOB_ID) or (about.get("labels") or {}).get(job_manifests.JOB_LABEL) or ""
    )


def belongs_to_job_set(found: Object) -> bool:
    """Say whether a Job only carries out what a JobSet says, which is the one to ask."""
    return _OF_A_JOB_SET in ((found.get("metadata") or {}).get("labels") or {})


def group_of(found: Object) -> str:
    """Return the label of the batch that an object belongs to, or ""."""
    return _label(found, job_manifests.GROUP_LABEL)


def owner_of(found: Object) -> str:
    """Return the label of who submitted an object, or ""."""
    return _label(found, job_manifests.OWNER_LABEL)


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


def observations(objects: Iterable[Object]) -> dict[str, Observation]:
    """Return what objects say of their jobs, by job id."""
    seen = {}
    for found in objects:
        if not belongs_to_job_set(found) and job_id_of(found):
            seen[job_id_of(found)] = observation(found)
    return seen


def observation(found: Object) -> Observation:
    """Return what an object says of its job."""
    status = status_of(found)
    about, state = found.get("metadata") or {}, found.get("status") or {}
    ended = _ended(found) if status.is_final else None
    failed = condition_of(found, "Failed", "FailureTarget") if status is JobStatus.FAILED else None
    return Observation(
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


_MORE_DISK = 'write resources = { disk = "100Gi" } under [tool.kinetic] in pyproject.toml'
_MORE_SHM = 'write resources = { shm = "16Gi" } under [tool.kinetic] in pyproject.toml'
_NEXT_TRY = "nothing: it starts again by itself when there is a machine"
_LOOK = "kinetic jobs logs {job}"

_DISRUPTIONS = {
    "PreemptionByScheduler": "a more important pod took its place",
    "EvictionByEvictionAPI": "its machine was emptied, as for an upgrade",
    "DeletionByTaintManager": "its machine did not answer any more",
    "DeletionByPodGC": "its machine is gone",
    "PreemptionByKubeScheduler": "a more important pod took its place",
}
_OF_A_JOB = re.compile(r"for pod [^/\s]+/(\S+) failed with exit code (\d+)")  # of a Job whose podFailurePolicy ended it
_REFUSALS = ("UnexpectedAdmissionError", "OutOfcpu", "OutOfmemory", "OutOfpods", "NodeAffinity", "NodePorts", "OutOf")


def pod_disruption(pod: Object) -> Explanation | None:
    """Say how a pod lost its machine, or None when it did not."""
    found = condition_of(pod, "DisruptionTarget")
    if found is None:
        return None
    status = pod.get("status") or {}
    reason, message = str(status.get("reason") or ""), str(status.get("message") or found.get("message") or "")
    if "low on resource" in message or "had condition" in message:
        return Explanation("evicted", "its machine ran out of room, and it was evicted", message, _roomier(message))
    if found.get("reason") == "TerminationByKubelet" or reason in {"Terminated", "NodeShutdown", "Shutdown"}:
        return Explanation("preempted", "its machine was taken away, as Spot capacity is", message, _NEXT_TRY)
    what = _DISRUPTIONS.get(str(found.get("reason")), "it lost its machine")
    return Explanation("preempted", what, message or str(found.get("reason") or ""), _NEXT_TRY)


def pod_end(pod: Object, job_id: str) -> Explanation:
    """Say how a pod ended that has failed."""
    lost = pod_disruption(pod)
    if lost is not None:
        return lost
    status = pod.get("status") or {}
    reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    if reason == "Evicted":
        return Explanation(
            "evicted", "it used more than it may, and was evicted", message, _roomier(message), stuck=True
        )
    if reason == "DeadlineExceeded":
        return Explanation("deadline", "it ran longer than its deadline", message, "raise the deadline", stuck=True)
    if reason.startswith(_REFUSALS):
        return Explanation("refused-by-machine", "its machine refused it at the last moment", f"{reason}: {message}")
    return _exit(terminated(pod) or {}, message or reason, job_id)


def pod_end_in_message(said: str, job_id: str) -> tuple[str, Explanation] | None:
    """Say how the pod ended that a Job names as the reason of its failure, when the pod itself is gone.

    Args:
        said: The Job's words, e.g. "Container kinetic-worker for pod ns/x-s-0-1-abcde failed with exit code 137 …".
        job_id: The job.

    Returns:
        The pod's name and how it ended; None when these are other words.
    """
    found = _OF_A_JOB.search(said)
    return (found[1], _exit({"exitCode": int(found[2])}, said, job_id)) if found else None


def _exit(ended: Object, said: str, job_id: str) -> Explanation:
    code, reason = ended.get("exitCode"), str(ended.get("reason") or "")
    message = str(ended.get("message") or said)
    if reason == "OOMKilled":
        return Explanation("memory", "its memory ran out", f"exit code {code}, OOMKilled", MORE_MEMORY, stuck=True)
    if reason in {"StartError", "ContainerCannotRun"}:
        return Explanation(
            "program",
            "its image does not have the program that starts a job, or not for this processor",
            message,
            "take an image with Python in its PATH, for the processor of the machine",
            stuck=True,
        )
    look = _LOOK.format(job=job_id)
    if code is None:
        return Explanation("unknown", "it ended, and nothing says how", message, look, stuck=True)
    if code == INFRASTRUCTURE_EXIT:
        return Explanation(
            "infrastructure", "something around it failed, and it is tried again", _last_words(message), look
        )
    if code == LOST_EXIT:
        what = "its machine was restarted under it, and it is tried again"
        return Explanation("machine-restarted", what, f"exit code {code}, {reason or 'Unknown'}", look)
    if code == FAILED_EXIT:
        return Explanation("failed", "it failed", _last_words(message), look, stuck=True)
    if code == 137:
        return Explanation(
            "killed", "it was killed, most often because memory ran out", "exit code 137", MORE_MEMORY, stuck=True
        )
    if code > 128:
        return Explanation(
            "signal", f"it was ended by {_signal_name(code - 128)}", f"exit code {code}", look, stuck=True
        )
    return Explanation("exit", f"it exited with {code}", _last_words(message), look, stuck=True)


def _roomier(message: str) -> str:
    if "shm" in message:
        return _MORE_SHM
    if "ephemeral" in message or "EmptyDir" in message or "disk" in message.lower():
        return _MORE_DISK
    return MORE_MEMORY


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(text: str) -> str:
    """Return the last line: the end of a log may stand in for a message."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].removeprefix(pod_log_format.RUNNER_PREFIX)[:300] if lines else ""

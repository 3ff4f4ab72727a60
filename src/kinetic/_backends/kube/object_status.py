"""What Kubernetes objects say about a job: its status, by its Job, JobSet or LeaderWorkerSet, and how its pods ended.

| | PENDING | RUNNING | SUCCEEDED | FAILED |
|---|---|---|---|---|
| Job | nothing is ready | its hosts are ready | Complete | Failed |
| JobSet | nothing is ready | its Job is ready | Completed | Failed |
| LeaderWorkerSet | nothing is ready | its group is ready | never: the store knows | never |

A job that lost its node is PENDING again. Pods are only read to explain.
"""

from __future__ import annotations

import datetime as dt
import re
import signal
from collections.abc import Iterable
from typing import Any

from kinetic._backends.kube.client import JOB_SET, LEADER_WORKER_SET
from kinetic._backends.kube.event_patterns import Explanation
from kinetic._backends.kube.job_manifests import (
    AFTER_ANNOTATION,
    APP_LABEL,
    APP_WARM,
    CONTAINER,
    DIFFERS_ANNOTATION,
    JOB_ID_ANNOTATION,
    JOB_LABEL,
    PROGRAMS_OF,
    QUEUE_ANNOTATION,
    SLICE_HOSTS_ANNOTATION,
    SLICE_INDEX,
    WARM_LABEL,
)
from kinetic._backends.protocol import Observation
from kinetic._wire import pod_log_format
from kinetic._wire.task import FAILED_EXIT, IMAGE_EXIT, INFRASTRUCTURE_EXIT, LOST_EXIT, MORE_MEMORY
from kinetic.job_status import JobStatus

Object = dict[str, Any]

_JOB_SET_LABEL = "jobset.sigs.k8s.io/jobset-name"
_INDEX_KEYS = ("batch.kubernetes.io/job-completion-index", "leaderworkerset.sigs.k8s.io/worker-index")


def _status(found: Object) -> Object:
    """Return the status of an object; the server may omit it."""
    return found.get("status") or {}


def _metadata(found: Object) -> Object:
    return found.get("metadata") or {}


def condition_of(found: Object, *types: str, status: str = "True") -> Object | None:
    for each in _status(found).get("conditions") or ():
        if each.get("type") in types and each.get("status") == status:
            return dict(each)
    return None


def label_of(found: Object, name: str) -> str:
    """Return the value of a label, or ""."""
    return str((_metadata(found).get("labels") or {}).get(name) or "")


def annotation_of(found: Object, name: str) -> str:
    """Return the value of an annotation, or ""."""
    return str((_metadata(found).get("annotations") or {}).get(name) or "")


def object_name(found: Object) -> str:
    """Return an object's name, or ""."""
    return str(_metadata(found).get("name") or "")


def created_at(found: Object) -> float:
    return timestamp(_metadata(found).get("creationTimestamp"))


def timestamp(written: object) -> float:
    """Return a time that the API wrote, as Unix time; 0 where there is none."""
    try:
        return dt.datetime.fromisoformat(str(written)).timestamp() if written else 0.0
    except ValueError:
        return 0.0


# ------------------------------------------------------------------------------------------------------ pods and events


def main_container(pod: Object) -> Object:
    """Return the status of our container, found by its name: a cluster may add others before it."""
    statuses = _status(pod).get("containerStatuses") or ()
    return next((each for each in statuses if each.get("name") == CONTAINER), {})


def is_running(pod: Object) -> bool:
    return "running" in (main_container(pod).get("state") or {})


def terminated(pod: Object) -> Object | None:
    """Return how our container ended, now or before it was restarted, or None."""
    ours = main_container(pod)
    found = (ours.get("state") or {}).get("terminated") or (ours.get("lastState") or {}).get("terminated")
    return dict(found) if found else None


def running_since(pod: Object) -> float:
    """Return since when our container has run (Unix time); 0.0 where it does not."""
    running = (main_container(pod).get("state") or {}).get("running") or {}
    return timestamp(running.get("startedAt"))


def waiting(pod: Object) -> tuple[str, str, str]:
    """Return why our container, or an init container before it, waits: reason, message and the container's name."""
    before = [each for each in _status(pod).get("initContainerStatuses") or () if each.get("state")]
    for each in (main_container(pod), *before):
        found = (each.get("state") or {}).get("waiting")
        if found and found.get("reason") not in {None, "PodInitializing", "ContainerCreating"}:
            return str(found["reason"]), str(found.get("message") or ""), str(each.get("name") or CONTAINER)
    return "", "", CONTAINER


def added_by_the_cluster(container: str) -> str:
    """Name a container that is not ours: an admission webhook, or a driver, has added it."""
    return f"the container {container}, which the cluster added to its pod"


def _failed_beside(pod: Object) -> tuple[str, Object] | None:
    """Return the name of a container that is not ours and that failed, and how it ended, or None."""
    status = _status(pod)
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = (each.get("state") or {}).get("terminated") or {}
        if each.get("name") != CONTAINER and ended.get("exitCode"):
            return str(each.get("name")), dict(ended)
    return None


def is_disrupted(pod: Object) -> bool:
    """Return whether a pod lost its node, or its place there."""
    return condition_of(pod, "DisruptionTarget") is not None


def pod_phase(pod: Object) -> str:
    return str(_status(pod).get("phase") or "Pending")


def host_index(pod: Object) -> int:
    """Return which host of its job a pod is, from 0."""
    written = [value for key in _INDEX_KEYS for value in (label_of(pod, key), annotation_of(pod, key))]
    found, before = next((int(value) for value in written if value.isdecimal()), 0), label_of(pod, SLICE_INDEX)
    hosts = annotation_of(pod, SLICE_HOSTS_ANNOTATION)  # of each slice
    return found + int(before) * int(hosts) if hosts.isdecimal() and before.isdecimal() else found


def newest_first(pods: Iterable[Object]) -> list[Object]:
    """Return pods by the time of their creation, the newest first."""
    return sorted(pods, key=lambda pod: (created_at(pod), object_name(pod)), reverse=True)


def events_of(found: Object, events: Iterable[Object]) -> list[Object]:
    """Return the events about an object, the latest last."""
    about = _metadata(found)

    def concerns(event: Object) -> bool:
        involved = event.get("involvedObject") or event.get("regarding") or {}
        key = "uid" if involved.get("uid") and about.get("uid") else "name"
        return bool(involved.get(key) == about.get(key))

    return sorted(filter(concerns, events), key=event_time)


def event_time(event: Object) -> float:
    """Return when an event happened last, as Unix time."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return timestamp(next(filter(None, times), None)) or created_at(event)


def event_message(event: Object) -> str:
    """Return an event's reason and message."""
    return f"{event.get('reason', '')}: {event.get('message') or event.get('note') or ''}"


# ----------------------------------------------------------------------------------------------------------------- jobs


def job_id_of(found: Object) -> str:
    """Return the id of the job that an object belongs to, or ""."""
    return annotation_of(found, JOB_ID_ANNOTATION) or label_of(found, JOB_LABEL)


def is_warm_pod(found: Object) -> bool:
    """Return whether an object makes a warm pod."""
    return label_of(found, APP_LABEL) == APP_WARM


def warm_pod_of(found: Object) -> str:
    """Return the warm pod that carries a job out whose own Job stays suspended, or ""."""
    return label_of(found, WARM_LABEL) if (found.get("spec") or {}).get("suspend") else ""


def belongs_to_job_set(found: Object) -> bool:
    """Return whether an object is a Job of a JobSet, which has the status of the whole."""
    return bool(label_of(found, _JOB_SET_LABEL))


def reduced(found: Object) -> Object:
    """Return what is needed of an object for the status of its job: a tenth of it."""
    about, spec = _metadata(found), found.get("spec") or {}
    kept = ("name", "namespace", "uid", "resourceVersion", "labels", "finalizers")
    times = ("creationTimestamp", "deletionTimestamp")
    wanted = (JOB_ID_ANNOTATION, AFTER_ANNOTATION, DIFFERS_ANNOTATION, QUEUE_ANNOTATION)
    annotations = {name: value for name in wanted if (value := annotation_of(found, name))}
    slices = [{"replicas": part.get("replicas")} for part in spec.get("replicatedJobs") or ()]
    return {
        "apiVersion": found.get("apiVersion", ""),
        "kind": found.get("kind", ""),
        "metadata": {**{name: about[name] for name in (*kept, *times) if name in about}, "annotations": annotations},
        "spec": {name: spec[name] for name in ("suspend", "completions") if name in spec}
        | ({"replicatedJobs": slices} if slices else {}),
        "status": _status(found),
    }


def observations(objects: Iterable[Object]) -> dict[str, Observation]:
    """Return what objects say about their jobs, by job id."""
    return {
        job_id_of(found): observation(found) for found in objects if job_id_of(found) and not belongs_to_job_set(found)
    }


def observation(found: Object) -> Observation:
    status, state = status_of(found), _status(found)
    ended = condition_of(found, "Complete", "Completed", "Failed", "FailureTarget") or {}
    return Observation(
        name=job_id_of(found),
        status=status,
        attempt=None,
        reason=_failure_of(job_id_of(found), ended) if status is JobStatus.FAILED else waits_for(found),
        waits_for_others=bool(waits_for(found)),
        submitted=created_at(found) or None,
        started=timestamp(state.get("startTime")) or None,
        ended=timestamp(state.get("completionTime") or ended.get("lastTransitionTime")) or None
        if status.is_final
        else None,
        version=str(_metadata(found).get("resourceVersion") or ""),
        warm=warm_pod_of(found),
        may_come_back=bool(annotation_of(found, DIFFERS_ANNOTATION)),
    )


def _failure_of(job_id: str, ended: Object) -> str:
    if ended.get("reason") == "BackoffLimitExceeded":  # its message says no more than that
        return f"all its pods failed: kinetic jobs explain {job_id}"
    message = str(ended.get("message") or ended.get("reason") or "")
    of_pod = pod_end_in_message(message, job_id)
    return of_pod[1].what if of_pod else message


def waits_for(found: Object) -> str:
    """Return as text which jobs a suspended one waits for; "" where it does not."""
    names = annotation_of(found, AFTER_ANNOTATION).split()
    if not names or not (found.get("spec") or {}).get("suspend"):
        return ""
    if names[0] == PROGRAMS_OF:
        return f"waits until {names[-1]} has compiled the programs that both use"
    return f"waits for {' and '.join(names)}"


def status_of(found: Object) -> JobStatus:
    state, spec = _status(found), found.get("spec") or {}
    if found.get("kind") == LEADER_WORKER_SET.name:
        return JobStatus.RUNNING if state.get("readyReplicas") else JobStatus.PENDING
    if condition_of(found, "Complete", "Completed", "SuccessCriteriaMet"):
        return JobStatus.SUCCEEDED
    if condition_of(found, "Failed", "FailureTarget"):
        return JobStatus.FAILED
    if spec.get("suspend"):
        return JobStatus.PENDING
    if found.get("kind") == JOB_SET.name:
        parts, wanted = state.get("replicatedJobsStatus") or (), spec.get("replicatedJobs") or ()
        up = sum((part.get("ready") or 0) + (part.get("succeeded") or 0) for part in parts)
        is_up = up >= max(1, sum(int(part.get("replicas") or 1) for part in wanted))
    else:
        ready = state.get("ready") or 0
        is_up = bool(ready and ready + (state.get("succeeded") or 0) >= (spec.get("completions") or 1))
    return JobStatus.RUNNING if is_up else JobStatus.PENDING


# --------------------------------------------------------------------------------------------------- how a pod ended

_MORE_DISK = 'write resources = { disk = "100Gi" } under [tool.kinetic] in pyproject.toml'
_MORE_SHM = 'write resources = { shm = "16Gi" } under [tool.kinetic] in pyproject.toml'
NEXT_ATTEMPT = "nothing: it starts again automatically when a node is available"
_OTHER_IMAGE = "choose another container_image, or submit with the Python of the image"
_PYTHON_IMAGE = "use an image with Python in its PATH, for the processor of the node"
_DISRUPTIONS = {
    "PreemptionByScheduler": "a pod of higher priority took its place",
    "EvictionByEvictionAPI": "its node was drained, as for an upgrade",
    "DeletionByTaintManager": "its node no longer responded",
    "DeletionByPodGC": "its node no longer exists",
    "PreemptionByKubeScheduler": "a pod of higher priority took its place",
}
_POD_OF_A_JOB = r"for pod [^/\s]+/(\S+) failed with exit code (\d+)"  # of a Job with a podFailurePolicy
_RETRIED = r"(attempt \d+ failed): (.*); trying again \((retry \d+ of \d+)\)"  # _runner/supervisor/attempts.py
_NO_RIGHT = r"^\w+://\S+ (rejected our credentials|does not let our account)"  # _stores/obstore_client.py
_TRY = "kinetic doctor --try cpu     runs a job that writes to the store; its pods' service account needs rights there"
_REJECTIONS = ("UnexpectedAdmissionError", "OutOf", "NodeAffinity", "NodePorts")


def pod_disruption(pod: Object) -> Explanation | None:
    """Explain how a pod lost its node; None if it did not."""
    found = condition_of(pod, "DisruptionTarget")
    if found is None:
        return None
    cause, reason = str(found.get("reason") or ""), str(_status(pod).get("reason") or "")
    message = str(_status(pod).get("message") or found.get("message") or "")
    if "low on resource" in message or "had condition" in message:
        what = "its node ran out of memory or disk, and it was evicted"
        return Explanation("evicted", what, message, _more_resources(message))
    if cause == "TerminationByKubelet" or reason in {"Terminated", "NodeShutdown", "Shutdown"}:
        return Explanation("preempted", "its node was preempted, as Spot capacity can be", message, NEXT_ATTEMPT)
    return Explanation("preempted", _DISRUPTIONS.get(cause, "it lost its node"), message or cause, NEXT_ATTEMPT)


def pod_end(pod: Object, job_id: str) -> Explanation:
    """Explain how a failed pod ended."""
    lost = pod_disruption(pod)
    if lost is not None:
        return lost
    reason, message = str(_status(pod).get("reason") or ""), str(_status(pod).get("message") or "")
    if reason == "Evicted":
        what = "it used more than its limits, and was evicted"
        return Explanation("evicted", what, message, _more_resources(message), stuck=True)
    if reason == "DeadlineExceeded":
        return Explanation("deadline", "it ran longer than its deadline", message, "raise the deadline", stuck=True)
    if reason.startswith(_REJECTIONS):
        return Explanation("refused-by-machine", "its node rejected it at the last moment", f"{reason}: {message}")
    containers: list[Object] = (pod.get("spec") or {}).get("containers") or []
    ours = next((each for each in containers if each.get("name") == CONTAINER), {})
    ended = terminated(pod) or {}
    if not ended.get("exitCode") and (beside := _failed_beside(pod)):
        name, its = beside
        logs = f"kubectl logs {object_name(pod)} -c {name} -n {_metadata(pod).get('namespace') or 'default'}"
        what = f"{added_by_the_cluster(name)}, failed with exit code {its['exitCode']}"
        return Explanation("container", what, _last_line(str(its.get("message") or its.get("reason") or "")), logs)
    limit = ((ours.get("resources") or {}).get("limits") or {}).get("memory")
    memory = "it had no memory limit, so its node may have run out of memory"
    if limit:
        memory = f"its memory limit of {limit} was not reported as exceeded"
    return _container_end(ended, message or reason, job_id, memory)


def pod_end_in_message(message: str, job_id: str) -> tuple[str, Explanation] | None:
    """Return the name of the pod that a Job names as the reason of its failure, and how it ended, or None.

    The pod itself may be gone. "Container kinetic-worker for pod ns/x-s-0-1-abcde failed with exit code 137 …"
    """
    found = re.search(_POD_OF_A_JOB, message)
    return (found[1], _container_end({"exitCode": int(found[2])}, message, job_id)) if found else None


def _container_end(ended: Object, message: str, job_id: str, memory: str = "its pod no longer exists") -> Explanation:
    code, reason = ended.get("exitCode"), str(ended.get("reason") or "")
    message = str(ended.get("message") or message)
    logs = f"kinetic jobs logs {job_id}"
    if reason == "OOMKilled":
        return Explanation("memory", "it ran out of memory", f"exit code {code}, OOMKilled", MORE_MEMORY, stuck=True)
    if reason in {"StartError", "ContainerCannotRun"}:
        what = "its image does not have the program that starts a job, or not for this processor"
        return Explanation("program", what, message, _PYTHON_IMAGE, stuck=True)
    if code is None:
        return Explanation("unknown", "it ended for an unknown reason", message, logs, stuck=True)
    if code == INFRASTRUCTURE_EXIT:
        if failed := re.fullmatch(_RETRIED, last := _last_line(message)):
            return Explanation("infrastructure", failed[1], f"{failed[2]}; {failed[3]}", logs)
        if re.search(_NO_RIGHT, last):
            return Explanation("store-refused", "the store refused its pods", last, _TRY)
        why = last.removesuffix("; another one may follow")
        return Explanation("infrastructure", "an infrastructure failure ended it", why, logs)
    if code == LOST_EXIT:
        what = "its node was restarted"
        return Explanation("machine-restarted", what, f"exit code {code}, {reason or 'Unknown'}", logs)
    if code == FAILED_EXIT:
        return Explanation("failed", "it failed", _last_line(message), logs, stuck=True)
    if code == IMAGE_EXIT:
        what = "its image has another Python than the client, or one without lzma or zlib"
        return Explanation("python-mismatch", what, _last_line(message), _OTHER_IMAGE, stuck=True)
    if code == 137:
        what = "it was killed (SIGKILL), and the cluster does not say why"
        next_ = f"{logs}     or, if memory was short, {MORE_MEMORY}"
        return Explanation("killed", what, f"exit code 137; {memory}", next_, stuck=True)
    if code > 128:
        return Explanation(
            "signal", f"it was ended by {_signal_name(code - 128)}", f"exit code {code}", logs, stuck=True
        )
    return Explanation("exit", f"it exited with {code}", _last_line(message), logs, stuck=True)


def _more_resources(message: str) -> str:
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


def _last_line(text: str) -> str:
    """Return the last line: the end of a log may replace a message."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].removeprefix(pod_log_format.RUNNER_PREFIX)[:300] if lines else ""

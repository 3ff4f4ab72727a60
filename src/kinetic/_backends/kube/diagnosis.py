"""Why a job on a cluster is as it is: from its Job or JobSet, its pods, events and Kueue's Workload to one finding.

    ended?      the Job's conditions say so        → SUCCEEDED, or FAILED with how the pod ended
    held?       suspended, by Kueue or by us       → what the queue says
    no pod?     the events of the Job              → what refused it
    a pod?      preempted, no machine, no image, starting, running

Pure: nothing is asked here. Objects are plain dictionaries, as the API returns them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kinetic._backends.kube import discovery, event_patterns, job_manifests, object_status
from kinetic._backends.kube.client import EVENT, JOB, JOB_SET, POD
from kinetic._backends.kube.event_patterns import Explanation
from kinetic._backends.kube.object_status import Object
from kinetic._backends.protocol import Diagnosis
from kinetic.errors import KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client


NODES = "kubectl get nodes --show-labels"
_INDEX = re.compile(r"-(\d+)-[a-z0-9]{5}$")  # of the name of an indexed pod
_SCALING_FAILED = ("FailedScaleUp", "FailedToScaleUp")
_SCALING = ("TriggeredScaleUp", "NotTriggerScaleUp", *_SCALING_FAILED)
_PAUSES = "in backoff after failed scale-up"


class JobState(NamedTuple):
    """How a job stands, and why.

    Attributes:
        status: As the cluster sees it.
        code: A short word for the reason; "" where there is none.
        what: A sentence for the user, without a full stop; "" where the status says it all.
        why: The cluster's own words.
        next: What to do.
        stuck: Whether waiting alone will not help.
        pod: The pod that it was read from, or "".
    """

    status: JobStatus
    code: str = ""
    what: str = ""
    why: str = ""
    next: str = ""
    stuck: bool = False
    pod: str = ""


class Evidence(NamedTuple):
    """All that is known about one job.

    Attributes:
        job: Its Job, JobSet or LeaderWorkerSet.
        pods: Of all its attempts and hosts, as far as they are still there.
        events: About any of these, in any order.
        workload: Kueue's, or None.
        accelerator: As the user wrote it.
        hosts: How many the job has.
        parts: The Jobs that a JobSet has made.
        machines: The command that lists the machines of this cluster.
    """

    job: Object
    pods: Sequence[Object] = ()
    events: Sequence[Object] = ()
    workload: Object | None = None
    accelerator: str = ""
    hosts: int = 1
    parts: Sequence[Object] = ()
    machines: str = NODES

    @property
    def job_id(self) -> str:
        """The job."""
        about = self.job.get("metadata") or {}
        return str((about.get("labels") or {}).get(job_manifests.JOB_LABEL) or about.get("name") or "")


def diagnose(scene: Evidence) -> JobState:
    """Say how a job stands and why."""
    for judge in (_ended, _held, _without_pods):
        found = judge(scene)
        if found is not None:
            return found
    return _of_pods(scene)


def _ended(scene: Evidence) -> JobState | None:
    if object_status.condition_of(scene.job, "Complete", "Completed", "SuccessCriteriaMet"):
        return JobState(JobStatus.SUCCEEDED)
    failed = object_status.condition_of(scene.job, "Failed", "FailureTarget")
    if failed is None:
        return None
    if failed.get("reason") == "DeadlineExceeded":
        why = str(failed.get("message") or "")
        return JobState(
            JobStatus.FAILED, "deadline", "it existed longer than it may", why, "raise the limit", stuck=True
        )
    broken = [pod for pod in scene.pods if object_status.pod_phase(pod) == "Failed"]
    # The host that failed by itself is the cause, and peers of it follow: the earliest without a disruption.
    broken.sort(key=lambda pod: (object_status.is_disrupted(pod), _end_time(pod), object_status.host_index(pod)))
    if not broken:
        said = " ".join(
            str((object_status.condition_of(each, "Failed", "FailureTarget") or {}).get("message"))
            for each in (scene.job, *scene.parts)
        )
        named = object_status.pod_end_in_message(said, scene.job_id)
        if named is not None:
            return _gone(scene, *named)
        why = f"{failed.get('reason') or 'Failed'}: {failed.get('message') or ''}"
        return JobState(JobStatus.FAILED, "failed", "it failed, and its pods are gone", why, stuck=True)
    return _finding(JobStatus.FAILED, object_status.pod_end(broken[0], scene.job_id), broken[0], scene, stuck=True)


def _gone(scene: Evidence, pod: str, found: Explanation) -> JobState:
    """Make a finding of a pod that is gone: of several hosts, its name says which it was."""
    made = _plain(JobStatus.FAILED, found)
    host = _INDEX.search(pod)
    what = f"host {host[1]}: {made.what}" if scene.hosts > 1 and host else made.what
    return made._replace(what=what, pod=pod, stuck=True)


def _held(scene: Evidence) -> JobState | None:
    """Say what holds a suspended job back."""
    if not (scene.job.get("spec") or {}).get("suspend"):
        return None
    queue = _context(scene)["queue"]
    if not queue:
        what = "it was made, and whoever made it has not let it go yet"
        return JobState(
            JobStatus.PENDING,
            "held",
            what,
            "spec.suspend is true",
            f"if this stays so, its client died: kinetic jobs cancel {scene.job_id}, and submit again",
        )
    said = _queue_says(scene)
    found = event_patterns.explain_message(event_patterns.QUEUEING, said, _context(scene))
    return _plain(JobStatus.PENDING, found) if found else JobState(JobStatus.PENDING, "queued")


def _queue_says(scene: Evidence) -> str:
    """Return Kueue's latest words about a job that it holds back."""
    workload = scene.workload
    if workload is None:
        events = [event for event in object_status.events_of(scene.job, scene.events) if "ueue" in str(event)]
        return object_status.event_message(events[-1]) if events else ""
    for found in (
        object_status.unmet_condition(workload, "QuotaReserved"),
        object_status.condition_of(workload, "Evicted"),
    ):
        if found is not None and found.get("message"):
            return str(found["message"])
    if object_status.condition_of(workload, "QuotaReserved"):
        return "admission check"
    return ""


def _without_pods(scene: Evidence) -> JobState | None:
    alive = [pod for pod in scene.pods if object_status.pod_phase(pod) != "Failed" or object_status.is_disrupted(pod)]
    refusals = [event for event in scene.events if event.get("reason") in {"FailedCreate", "JobCreationFailed"}]
    if refusals and not alive:
        said = object_status.event_message(max(refusals, key=object_status.event_time))
        found = event_patterns.explain_message(event_patterns.CREATION, said, _context(scene))
        if found is None:
            found = Explanation("refused", "the cluster does not make its pod", said, "", stuck=True)
        return _plain(JobStatus.PENDING, found)
    if scene.pods:
        return None
    return JobState(JobStatus.PENDING, "no-pod", "the cluster has not made its pod yet")


def _of_pods(scene: Evidence) -> JobState:
    """Look at the newest pod of each host, and tell what is worst."""
    newest: dict[int, Object] = {}
    for pod in sorted(scene.pods, key=lambda pod: (object_status.created_at(pod), object_status.object_name(pod))):
        newest[object_status.host_index(pod)] = pod
    found = [(host, _of_pod(pod, scene)) for host, pod in sorted(newest.items())]
    waits = [(host, each) for host, each in found if each.status is not JobStatus.RUNNING]
    if not waits:
        return found[0][1]
    host, worst = min(waits, key=lambda pair: (not pair[1].stuck, pair[0]))
    if scene.hosts == 1:
        return worst
    running = len(found) - len(waits)
    status = JobStatus.RUNNING if found[0][1].status is JobStatus.RUNNING else worst.status
    return worst._replace(status=status, what=f"{running} of {scene.hosts} hosts run; host {host}: {worst.what}")


def _of_pod(pod: Object, scene: Evidence) -> JobState:
    if object_status.pod_phase(pod) == "Failed":
        # The Job has not failed: another pod follows, or it fails in a moment and is not called pending until then.
        found = object_status.pod_end(pod, scene.job_id)
        return _finding(JobStatus.RUNNING if found.stuck else JobStatus.PENDING, found, pod, scene, stuck=False)
    if object_status.is_disrupted(pod):
        lost = object_status.pod_disruption(pod)
        if lost is not None:
            return _finding(JobStatus.PENDING, lost, pod, scene)
    if object_status.pod_phase(pod) == "Succeeded":
        return JobState(
            JobStatus.RUNNING,
            "ending",
            "it has ended, and the cluster has not counted it yet",
            pod=object_status.object_name(pod),
        )
    if "running" in (object_status.main_container(pod).get("state") or {}):
        return JobState(JobStatus.RUNNING, pod=object_status.object_name(pod))
    return _pending(pod, scene)


def _pending(pod: Object, scene: Evidence) -> JobState:
    reason, message = object_status.waiting(pod)
    context = _context(scene, pod)
    events = object_status.events_of(pod, scene.events)
    if reason:
        said = f"{reason}: {message}"
        # The back-off's own message says less than the failure before it, which is an event.
        if reason == "ImagePullBackOff":
            failures = [object_status.event_message(event) for event in events if event.get("reason") == "Failed"]
            said = f"{said} {' '.join(failures)}"
        found = event_patterns.explain_message(event_patterns.WAITING, said, context)
        return _finding(JobStatus.PENDING, found, pod, scene)
    unplaced = object_status.unmet_condition(pod, "PodScheduled")
    if unplaced is not None:
        return _finding(JobStatus.PENDING, _unplaced(unplaced, events, context), pod, scene)
    if not (pod.get("spec") or {}).get("nodeName"):
        return JobState(
            JobStatus.PENDING, "new", "the scheduler has not looked at it yet", pod=object_status.object_name(pod)
        )
    return _finding(JobStatus.PENDING, _starting(events, context), pod, scene)


def _unplaced(condition: Object, events: Sequence[Object], context: Mapping[str, str]) -> Explanation | None:
    """Say why a pod has no machine: the autoscaler's last word, else the scheduler's."""
    if condition.get("reason") == "SchedulingGated":
        return Explanation("queued", "a queue of the cluster holds it back", str(condition.get("message") or ""), "")
    scaling = [event for event in events if event.get("reason") in _SCALING]
    failures = [event for event in scaling if event.get("reason") in _SCALING_FAILED]
    if failures and _PAUSES in object_status.event_message(
        scaling[-1]
    ):  # it tells only that it failed, again and again
        scaling.append(failures[-1])
    for event in reversed(scaling):
        found = event_patterns.explain_message(event_patterns.SCALING, object_status.event_message(event), context)
        if found is not None:
            return found
    return event_patterns.explain_message(event_patterns.SCHEDULING, str(condition.get("message") or "."), context)


def _starting(events: Sequence[Object], context: Mapping[str, str]) -> Explanation | None:
    """Say what a pod does that has its machine; the last failure stays true until the container is there."""
    failures = [
        event
        for event in events
        if str(event.get("reason", "")).startswith("Failed") and event.get("reason") != "FailedScheduling"
    ]
    for event in reversed(failures or events):
        if event.get("reason") in {"Scheduled", "FailedScheduling", *_SCALING}:
            continue
        return event_patterns.explain_message(event_patterns.STARTING, object_status.event_message(event), context)
    return event_patterns.explain_message(event_patterns.STARTING, "ContainerCreating", context)


def _context(scene: Evidence, pod: Object | None = None) -> dict[str, str]:
    about = scene.job.get("metadata") or {}
    labels = about.get("labels") or {}
    template = (pod or {}).get("spec") or _template(scene.job)
    images = [each.get("image", "") for each in template.get("containers") or ()]
    return {
        "namespace": str(about.get("namespace") or "default"),
        "pod": object_status.object_name(pod or {}) or f"-l {job_manifests.JOB_LABEL}={scene.job_id}",
        "image": next(iter(images), ""),
        "account": str(template.get("serviceAccountName") or "default"),
        "queue": str(labels.get(job_manifests.QUEUE_LABEL) or ""),
        "accelerator": scene.accelerator or "what the job asks for",
        "machines": scene.machines,
    }


def _template(job: Object) -> Object:
    """Return the spec of the pods that a Job, a JobSet or a LeaderWorkerSet makes."""
    spec = job.get("spec") or {}
    for each in spec.get("replicatedJobs") or ():
        spec = each.get("template", {}).get("spec") or {}
    template = spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get("workerTemplate") or {}
    return dict(template.get("spec") or {})


def _finding(
    status: JobStatus, found: Explanation | None, pod: Object, scene: Evidence, *, stuck: bool | None = None
) -> JobState:
    """Make a finding of what was read from a pod."""
    if found is None:
        return JobState(status, pod=object_status.object_name(pod))
    made = _plain(status, found)
    what = (
        f"host {object_status.host_index(pod)}: {made.what}"
        if scene.hosts > 1 and status is JobStatus.FAILED
        else made.what
    )
    return made._replace(what=what, pod=object_status.object_name(pod), stuck=made.stuck if stuck is None else stuck)


def _plain(status: JobStatus, found: Explanation) -> JobState:
    return JobState(status, found.code, found.what, found.why, found.next, found.stuck)


def _end_time(pod: Object) -> float:
    ended = object_status.terminated(pod) or {}
    return object_status.timestamp(ended.get("finishedAt")) or float("inf")


_MOST_PODS = 3  # whose events are asked for: the newest tell what goes on
_KUEUE_UID = "kueue.x-k8s.io/job-uid"


def gather_evidence(client: Client, job: Object, *, hosts: int = 1, machines: str = NODES) -> Evidence:
    """Ask for everything that is known about one job: four requests for most.

    Args:
        client: Of the cluster.
        job: Its Job, JobSet or LeaderWorkerSet.
        hosts: How many the job has.
        machines: The command that lists the machines of this cluster.
    """
    accelerator = str(((job.get("metadata") or {}).get("annotations") or {}).get("kinetic/accelerator") or "")
    label = str(((job.get("metadata") or {}).get("labels") or {}).get(job_manifests.JOB_LABEL) or "")
    pods = client.list(POD, f"{job_manifests.JOB_LABEL}={label}").objects
    newest = sorted(pods, key=lambda pod: (object_status.created_at(pod), object_status.object_name(pod)))[-_MOST_PODS:]
    events = [event for found in (job, *newest) for event in _events(client, found)]
    if job.get("kind") == JOB_SET.name and not pods:
        events += _events_named(
            client, f"{object_status.object_name(job)}-{job_manifests.SLICE_PREFIX}-0"
        )  # its Job's own
    queue = (job["metadata"].get("labels") or {}).get(job_manifests.QUEUE_LABEL)
    held = queue and (job.get("spec") or {}).get("suspend")
    parts = client.list(JOB, f"{job_manifests.JOB_LABEL}={label}").objects if job.get("kind") == JOB_SET.name else []
    return Evidence(job, pods, events, _workload(client, job) if held else None, accelerator, hosts, parts, machines)


def to_diagnosis(found: JobState, job_id: str) -> Diagnosis:
    """Put a finding into words for the user."""
    if not found.what:
        words = {
            JobStatus.SUCCEEDED: "has ended well",
            JobStatus.FAILED: "has failed",
            JobStatus.RUNNING: f"runs in the pod {found.pod}" if found.pod else "runs",
        }
        what = words.get(found.status, "waits")
        return Diagnosis(
            f"{job_id} {what}",
            found.why,
            found.next or f"kinetic jobs logs {job_id} --follow",
            found.stuck,
            waits=found.status not in words,
            code=found.code,
            status=found.status,
        )
    told = f"{job_id}: {found.what}"
    return Diagnosis(told, found.why, found.next, found.stuck, code=found.code, status=found.status)


def _events(client: Client, found: Object) -> list[Object]:
    return _events_named(client, object_status.object_name(found), str((found.get("metadata") or {}).get("uid") or ""))


def _events_named(client: Client, name: str, uid: str = "") -> list[Object]:
    fields = f"involvedObject.name={name}" + (f",involvedObject.uid={uid}" if uid else "")
    with contextlib.suppress(KineticError):  # who may not read events gets a shorter answer
        return client.list(EVENT, fields=fields).objects
    return []


def _workload(client: Client, job: Object) -> Object | None:
    with contextlib.suppress(KineticError):
        kind = discovery.workload(client)
        found = client.list(kind, f"{_KUEUE_UID}={job['metadata'].get('uid')}").objects if kind else []
        return found[0] if found else None
    return None

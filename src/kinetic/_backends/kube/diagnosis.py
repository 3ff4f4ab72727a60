"""Why a job on a cluster has its status: from its Job or JobSet, its pods, events and Kueue's Workload.

    ended?         the Job's conditions say so        → SUCCEEDED, or FAILED with how the pod ended
    suspended?     by Kueue or by us                  → the message of the queue
    no pod?        the events of the Job              → what rejected it
    a pod?         preempted, no node, no image, starting, running

Only ``gather_evidence`` sends requests. Objects are plain dictionaries, as the API returns them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kinetic._backends.kube import discovery, job_manifests, object_status, preflight
from kinetic._backends.kube.client import EVENT, FIELD_MANAGER, JOB, JOB_SET, POD, WORKLOAD
from kinetic._backends.kube.event_patterns import (
    CREATION,
    QUEUEING,
    SCALING,
    SCHEDULING,
    STARTING,
    WAITING,
    Explanation,
    explain_message,
)
from kinetic._backends.kube.object_status import Object
from kinetic._backends.protocol import Diagnosis
from kinetic._runner.supervisor import predecessors
from kinetic._wire import NamedTuple
from kinetic.errors import KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client

LIST_NODES = "kubectl get nodes --show-labels"
_MOST_PODS = 3  # whose events are requested, the newest ones
_KUEUE_UID = "kueue.x-k8s.io/job-uid"
# Of the name of an indexed pod: its slice, where a JobSet made it, and its number there.
_INDEX = rf"(?:-{job_manifests.SLICE_PREFIX}-(\d+))?-(\d+)-[a-z0-9]{{5}}$"
_NODE_SILENT = "NodeNotReady"  # the event of each pod on a node that the cluster has not heard from for some 40 s
_SCALING_FAILED = ("FailedScaleUp", "FailedToScaleUp")
_SCALING = ("TriggeredScaleUp", "NotTriggerScaleUp", *_SCALING_FAILED)
_PAUSES = "in backoff after failed scale-up"
_USUAL_SCHEDULER = "default-scheduler"
_BY_NODES_OF_NOW = {"no-node-matches", "too-large"}  # what the scheduler says where an autoscaler makes the node
_FULL = {"busy", "pool-full", "quota"}  # where an idle warm pod of one's own may be what holds the node
# JobSet 0.10 refuses the other hosts of a slice until the first one has its node: that host's pod says why it has none.
_WAITS_FOR_FIRST_HOST = r"denied the request: (?:follower pod|leader pod|expected 1 leader pod)"
_NO_SERVICE = "HeadlessServiceCreationFailed"  # a reason of JobSet 0.10, which creates no pods without it
_NO_JOB = "JobCreationFailed"  # a reason of JobSet 0.11 and newer
_JOB_SET_SAYS_WHY = (
    "it is not running, or a rule of the cluster rejects Jobs: "
    "kubectl logs -n jobset-system deployment/jobset-controller-manager"
)
_UNSEEN_SECONDS = 120.0  # an autoscaler looks at a pod within some ten seconds, and says so by an event


class JobState(NamedTuple):
    """The status of a job, and why; the fields of an ``Explanation`` between the first and the last."""

    status: JobStatus
    code: str = ""
    what: str = ""  # "" where the status says it all
    why: str = ""
    next: str = ""
    stuck: bool = False
    pod: str = ""  # that it was read from


class Evidence(NamedTuple):
    """All that is known about one job."""

    job: Object  # its Job, JobSet or LeaderWorkerSet
    pods: Sequence[Object] = ()  # of all its attempts and hosts, as far as they still exist
    events: Sequence[Object] = ()  # about any of these, in any order
    workload: Object | None = None  # Kueue's
    accelerator: str = ""  # as the user wrote it
    hosts: int = 1  # of all slices
    slices: int = 1
    parts: Sequence[Object] = ()  # the Jobs that a JobSet has made
    list_nodes: str = LIST_NODES  # the command that lists the nodes of this cluster
    unseen: bool = False  # whether an autoscaler, which the cluster seems to have, has not looked at its pods yet
    warm: str = ""  # a warm pod of the same owner, which holds such a node

    @property
    def job_id(self) -> str:
        """The job."""
        return object_status.label_of(self.job, job_manifests.JOB_LABEL) or object_status.object_name(self.job)

    def context(self, pod: Object | None = None, container: str = job_manifests.CONTAINER) -> dict[str, str]:
        """Return the values that the texts of ``event_patterns`` may use, about one container of a pod."""
        template = (pod or {}).get("spec") or _template(self.job)
        containers = (*(template.get("containers") or ()), *(template.get("initContainers") or ()))
        labels = (f"{name.rpartition('/')[2]}={value}" for name, value in (template.get("nodeSelector") or {}).items())
        return {
            "namespace": str((self.job.get("metadata") or {}).get("namespace") or "default"),
            "pod": object_status.object_name(pod or {}) or f"-l {job_manifests.JOB_LABEL}={self.job_id}",
            "image": next((each.get("image", "") for each in containers if each.get("name") == container), ""),
            "account": str(template.get("serviceAccountName") or "default"),
            "queue": _queue_of(self.job),
            "accelerator": self.accelerator or ", ".join(labels) or "such hardware",
            "list_nodes": self.list_nodes,
        }


def gather_evidence(client: Client, job: Object, *, list_nodes: str = LIST_NODES) -> Evidence:
    """Request everything that is known about one job (a Job, JobSet or LeaderWorkerSet): four requests for most."""
    is_set, label = job.get("kind") == JOB_SET.name, object_status.label_of(job, job_manifests.JOB_LABEL)
    pods = client.list(POD, f"{job_manifests.JOB_LABEL}={label}").objects
    events = [
        event for found in (job, *object_status.newest_first(pods)[:_MOST_PODS]) for event in _events(client, found)
    ]
    parts = client.list(JOB, f"{job_manifests.JOB_LABEL}={label}").objects if is_set else ()
    hosts, slices = _hosts_of(job)
    if len(pods) < hosts:  # each slice is a Job, which may be refused its pods
        lacking = [part for part in parts if _lacks_pods(part)][:_MOST_PODS]
        events += [event for part in lacking for event in _events(client, part)]
    unplaced = [pod for pod in pods if object_status.condition_of(pod, "PodScheduled", status="False")]
    is_young = any(client.transport.now() - object_status.created_at(pod) < _UNSEEN_SECONDS for pod in unplaced)
    is_unseen = is_young and not any(event.get("reason") in _SCALING for event in events)
    is_of_google = list_nodes != LIST_NODES  # found through Google; without a node, nothing else tells that it may grow
    held = _queue_of(job) and (job.get("spec") or {}).get("suspend")
    return Evidence(
        job,
        pods,
        events,
        workload=_workload(client, job) if held else None,
        accelerator=object_status.annotation_of(job, job_manifests.ACCELERATOR_ANNOTATION),
        hosts=hosts,
        slices=slices,
        parts=parts,
        list_nodes=list_nodes,
        unseen=is_unseen and (is_of_google or preflight.may_grow(client)),
        warm=_warm_pod_beside(client, job) if unplaced or not pods else "",
    )


def _warm_pod_beside(client: Client, job: Object) -> str:
    """Return a running warm pod on such a node as a job asks for, of the same owner; "" where none is."""
    owner = object_status.label_of(job, job_manifests.OWNER_LABEL)
    if not owner:
        return ""
    selector = f"{job_manifests.APP_LABEL}={job_manifests.APP_WARM},{job_manifests.label_selector(owner=owner)}"
    wanted = _template(job).get("nodeSelector") or {}
    for pod in filter(object_status.is_running, client.list(POD, selector).objects):
        there = pod["spec"].get("nodeSelector") or {}
        if wanted.items() <= there.items() and bool(wanted) == bool(there):
            return object_status.job_id_of(pod)
    return ""


def _events(client: Client, found: Object) -> list[Object]:
    about = found.get("metadata") or {}
    fields = f"involvedObject.name={about.get('name') or ''}"
    fields += f",involvedObject.uid={about['uid']}" if about.get("uid") else ""
    with contextlib.suppress(KineticError):  # without the right to list events, the answer is shorter
        return client.list(EVENT, fields=fields).objects
    return []


def _lacks_pods(part: Object) -> bool:
    state = part.get("status") or {}
    there = int(state.get("active") or 0) + int(state.get("succeeded") or 0)
    return there < int((part.get("spec") or {}).get("completions") or 1)


def _queue_of(job: Object) -> str:
    """Return the queue that starts a job; "" also for the name that keeps it out of the default one."""
    found = object_status.label_of(job, job_manifests.QUEUE_LABEL)
    return "" if found == job_manifests.NO_QUEUE else found


def _workload(client: Client, job: Object) -> Object | None:
    with contextlib.suppress(KineticError):
        kind = discovery.served(client, WORKLOAD)
        found = client.list(kind, f"{_KUEUE_UID}={job['metadata'].get('uid')}").objects if kind else []
        return found[0] if found else None
    return None


def _hosts_of(job: Object) -> tuple[int, int]:
    """Return how many hosts a job has, and in how many slices."""
    spec, slices = job.get("spec") or {}, 1
    for part in spec.get("replicatedJobs") or ():
        spec, slices = part["template"]["spec"], int(part.get("replicas") or 1)
    each = int(spec.get("completions") or (spec.get("leaderWorkerTemplate") or {}).get("size") or 1)
    return each * slices, slices


def _template(job: Object) -> Object:
    """Return the spec of the pods that a Job, a JobSet or a LeaderWorkerSet makes."""
    spec = job.get("spec") or {}
    for each in spec.get("replicatedJobs") or ():
        spec = each.get("template", {}).get("spec") or {}
    template = spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get("workerTemplate") or {}
    return dict(template.get("spec") or {})


def to_diagnosis(state: JobState, job_id: str) -> Diagnosis:
    """Describe a state for the user."""
    if state.what:
        what = f"{job_id}: {state.what}"
        return Diagnosis(what, state.why, state.next, state.stuck, code=state.code, status=state.status)
    texts = {
        JobStatus.SUCCEEDED: "has succeeded",
        JobStatus.FAILED: "has failed",
        JobStatus.RUNNING: f"is running in the pod {state.pod}" if state.pod else "is running",
    }
    return Diagnosis(
        f"{job_id} {texts.get(state.status, 'is pending')}",
        state.why,
        state.next or f"kinetic jobs logs {job_id} --follow",
        state.stuck,
        waits=state.status not in texts,
        code=state.code,
        status=state.status,
    )


def diagnose(evidence: Evidence) -> JobState:
    """Return the status of a job, and why."""
    return _ended(evidence) or _suspended(evidence) or _without_pods(evidence) or _of_pods(evidence)


def _ended(evidence: Evidence) -> JobState | None:
    if object_status.condition_of(evidence.job, "Complete", "Completed", "SuccessCriteriaMet"):
        return JobState(JobStatus.SUCCEEDED)
    failed = object_status.condition_of(evidence.job, "Failed", "FailureTarget")
    if failed is None:
        return None
    reason, message = str(failed.get("reason") or "Failed"), str(failed.get("message") or "")
    if reason == "DeadlineExceeded":
        what = "it existed longer than its deadline"
        return JobState(JobStatus.FAILED, "deadline", what, message, "raise the limit", stuck=True)
    broken = [pod for pod in evidence.pods if object_status.pod_phase(pod) == "Failed"]
    if broken:
        # The host that failed by itself is the cause, and its peers follow: the earliest without a disruption. Of one
        # host, the pods are attempts, of which the last one ended the job.
        order = _cause_order if evidence.hosts > 1 else _attempt_order
        cause = min(object_status.newest_first(broken), key=order)
        found = _never_ready(cause, evidence) or object_status.pod_end(cause, evidence.job_id)
        if not found.stuck:  # another pod would follow, and none does any more
            times = f", {len(broken)} times" if evidence.hosts == 1 and len(broken) > 1 else ""
            next_ = found.next if found.code == "store-refused" else _ended_for_good(found.next)
            found = found._replace(what=f"{found.what}{times}", next=next_)
        return _state(JobStatus.FAILED, found, cause, evidence, stuck=True)
    conditions = (
        object_status.condition_of(each, "Failed", "FailureTarget") for each in (evidence.job, *evidence.parts)
    )
    messages = " ".join(str((each or {}).get("message")) for each in conditions)
    named = object_status.pod_end_in_message(messages, evidence.job_id)
    if named is None:
        what = "it failed, and its pods no longer exist"
        return JobState(JobStatus.FAILED, "failed", what, f"{reason}: {message}", stuck=True)
    pod, found = named
    what = found.what
    if evidence.hosts > 1 and (host := re.search(_INDEX, pod)):  # the name of a pod that is gone says which it was
        what = f"host {int(host[1] or 0) * (evidence.hosts // evidence.slices) + int(host[2])}: {what}"
    return JobState(JobStatus.FAILED, *found)._replace(what=what, pod=pod, stuck=True)


def _never_ready(pod: Object, evidence: Evidence) -> Explanation | None:
    """Explain a pod that was ended at its deadline before its container ran, or return None."""
    state = object_status.main_container(pod).get("state") or {}
    began = (state.get("terminated") or state.get("running") or {}).get("startedAt")
    if not state or began or (pod.get("status") or {}).get("reason") != "DeadlineExceeded":
        return None
    reason, message, container = object_status.waiting(pod)
    events = object_status.events_of(pod, evidence.events)
    if not reason and any("ErrImagePull" in object_status.event_message(event) for event in events):
        reason = "ImagePullBackOff"  # in place of which a kubelet writes that its container is unknown
    starts = _starting(events, evidence.context(pod))
    found = _waiting(reason, message, container, pod, evidence) if reason else starts
    what = ": ".join(filter(None, ("it was not ready within its deadline and half an hour", found and found.what)))
    return Explanation("deadline", what, message, found.next if found else "", stuck=True)


def _cause_order(pod: Object) -> tuple[bool, float, int]:
    ended = object_status.timestamp((object_status.terminated(pod) or {}).get("finishedAt")) or float("inf")
    return object_status.is_disrupted(pod), ended, object_status.host_index(pod)


def _attempt_order(pod: Object) -> tuple[bool, float]:
    return object_status.is_disrupted(pod), -object_status.created_at(pod)


def _ended_for_good(next_: str) -> str:
    return f"{'' if next_ == object_status.NEXT_ATTEMPT else f'{next_}     or '}submit it again"


def _suspended(evidence: Evidence) -> JobState | None:
    """Explain what a suspended job waits for."""
    if not (evidence.job.get("spec") or {}).get("suspend"):
        return None
    context = evidence.context()
    if reason := object_status.waits_for(evidence.job):
        first = reason.split()[2]
        return JobState(JobStatus.PENDING, "follows", reason, "it is suspended, and holds no machine",
                        predecessors.command_about(first))  # fmt: skip
    if (other := _suspended_by(evidence.job)) and not context["queue"]:
        return JobState(
            JobStatus.PENDING,
            "suspended",
            f"{other} has suspended it, and it starts again when that resumes it",
            "spec.suspend is true",
            _resume_command(evidence.job, other),
        )
    if not context["queue"]:
        return JobState(
            JobStatus.PENDING,
            "held",
            "it was created, and its client has not started it yet",
            "spec.suspend is true",
            f"if this does not change, the client died: kinetic jobs cancel {evidence.job_id}, and submit again",
        )
    found = explain_message(QUEUEING, _queue_message(evidence), context)
    return JobState(JobStatus.PENDING, *found) if found else JobState(JobStatus.PENDING, "queued")


def _suspended_by(job: Object) -> str:
    """Return what other program than kinetic wrote last whether a job is suspended, as its API requests name it."""
    for entry in (job.get("metadata") or {}).get("managedFields") or ():
        fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        if "f:suspend" in fields and entry.get("manager") != FIELD_MANAGER:
            return str(entry.get("manager") or "")
    return ""


def _resume_command(job: Object, other: str) -> str:
    if "kueue" in other.lower():  # as with its setting manageJobsWithoutQueueName
        return "Kueue may want a queue for every job of this cluster: name one in KINETIC_QUEUE, and submit again"
    thing, about = str(job.get("kind") or "Job").lower(), job.get("metadata") or {}
    resume = """--type merge -p '{"spec":{"suspend":false}}'"""
    return (
        f"ask who did it; to resume it: kubectl patch {thing} {about.get('name')} -n {about.get('namespace')} {resume}"
    )


def _queue_message(evidence: Evidence) -> str:
    """Return Kueue's latest message about a job that it keeps suspended."""
    workload = evidence.workload
    if workload is None:
        events = [event for event in object_status.events_of(evidence.job, evidence.events) if "ueue" in str(event)]
        return object_status.event_message(events[-1]) if events else ""
    evicted = object_status.condition_of(workload, "Evicted")
    if (workload.get("spec") or {}).get("active") is False:  # an administrator, a rejected check, or too many tries
        return str((evicted or {}).get("message") or "The workload is deactivated")
    unreserved = object_status.condition_of(workload, "QuotaReserved", status="False")
    for found in (unreserved, evicted):
        if found is not None and found.get("message"):
            return str(found["message"])
    return "admission check" if object_status.condition_of(workload, "QuotaReserved") else ""


def _without_pods(evidence: Evidence) -> JobState | None:
    alive = [
        pod for pod in evidence.pods if object_status.pod_phase(pod) != "Failed" or object_status.is_disrupted(pod)
    ]
    if not alive and (refused := _refused_pod(evidence)):
        return JobState(JobStatus.PENDING, *refused)
    if evidence.pods:
        return None
    if evidence.job.get("kind") == JOB_SET.name and not evidence.parts:
        # JobSet 0.10 writes no event where that is rejected, and a newer one may not run.
        what = "JobSet has not created the Job of its hosts yet"
        return JobState(JobStatus.PENDING, "no-pod", what, next=f"if this does not change, {_JOB_SET_SAYS_WHY}")
    return JobState(JobStatus.PENDING, "no-pod", "the cluster has not created its pod yet")


def _refused_pod(evidence: Evidence) -> Explanation | None:
    """Explain why the cluster creates no pod, by the latest event that says so; None where none does."""
    rejections = [
        event
        for event in evidence.events
        if event.get("reason") in {"FailedCreate", _NO_JOB, _NO_SERVICE}
        and not re.search(_WAITS_FOR_FIRST_HOST, object_status.event_message(event))
    ]
    if not rejections:
        return None
    latest = max(rejections, key=object_status.event_time)
    message, context = object_status.event_message(latest), evidence.context()
    found = explain_message(CREATION, message, context)
    rejected = {_NO_JOB: "Job", _NO_SERVICE: "Service"}.get(latest["reason"])
    if found is not None and rejected and found.what.endswith("rejected the pod"):
        what = found.what.removesuffix("pod") + f"{rejected} that JobSet creates for its hosts"
        ask = f"ask an administrator of the cluster to allow it in the namespace {context['namespace']}, or use another"
        return found._replace(what=what, next=ask if rejected == "Service" else found.next)  # which lacks our labels
    if found is None:
        return Explanation("refused", "the cluster cannot create its pod", message, stuck=True)
    return found if found.stuck else _with_warm_pod(found, evidence)


def _of_pods(evidence: Evidence) -> JobState:
    """Look at the newest pod of each host, and return what is worst."""
    newest: dict[int, Object] = {}
    for pod in object_status.newest_first(evidence.pods):
        newest.setdefault(object_status.host_index(pod), pod)
    states = {host: _of_pod(pod, evidence) for host, pod in sorted(newest.items())}
    waiting = {host: each for host, each in states.items() if each.status is not JobStatus.RUNNING}
    absent = next((host for host in range(evidence.hosts) if host not in states), None)
    if absent is not None and (refused := _refused_pod(evidence)):  # as where a quota allows some pods
        waiting[absent] = JobState(JobStatus.PENDING, *refused)
    first = next(iter(states.values()))
    if not waiting:
        return next((each for each in states.values() if each.what), first)
    host = min(waiting, key=lambda host: (not waiting[host].stuck, host))
    worst = waiting[host]
    if evidence.hosts == 1:
        return worst
    status = JobStatus.RUNNING if first.status is JobStatus.RUNNING else worst.status
    running = len(states.keys() - waiting.keys())
    return worst._replace(
        status=status, what=f"{running} of {evidence.hosts} hosts are running; host {host}: {worst.what}"
    )


def _of_pod(pod: Object, evidence: Evidence) -> JobState:
    name = object_status.object_name(pod)
    if object_status.pod_phase(pod) == "Failed":
        # The Job has not failed: another pod follows, or the Job fails in a moment, and is not pending until then.
        found = object_status.pod_end(pod, evidence.job_id)
        if found.code in {"container", "infrastructure", "machine-restarted", "store-refused"}:
            found = found._replace(what=f"{found.what}, and it is retried")
        return _state(JobStatus.RUNNING if found.stuck else JobStatus.PENDING, found, pod, evidence, stuck=False)
    lost = object_status.pod_disruption(pod)
    if lost is not None:
        return _state(JobStatus.PENDING, _with_node(lost, pod), pod, evidence)
    if object_status.pod_phase(pod) == "Succeeded":
        what = "it has ended, and the cluster has not recorded that yet"
        return JobState(JobStatus.RUNNING, "ending", what, pod=name)
    if object_status.is_running(pod):
        return _silent(pod, evidence) or JobState(JobStatus.RUNNING, pod=name)
    return _pending(pod, evidence)


def _silent(pod: Object, evidence: Evidence) -> JobState | None:
    """Explain a pod that runs, as far as is known, on a node that has stopped to respond."""
    said = [each for each in object_status.events_of(pod, evidence.events) if each.get("reason") == _NODE_SILENT]
    if not said or not object_status.condition_of(pod, "Ready", status="False"):
        return None
    node = (pod.get("spec") or {}).get("nodeName")
    return JobState(
        JobStatus.RUNNING,
        "node-silent",
        f"its node {node} does not respond, so its log and what it does cannot be seen; it may still run there",
        object_status.event_message(said[-1]),
        f"wait: the job continues if the node comes back; if it is gone for good: kubectl delete node {node}",
        pod=object_status.object_name(pod),
    )


def _with_node(lost: Explanation, pod: Object) -> Explanation:
    """Say what a pod waits for that only its node could end: the next one is not created before it has ended."""
    cause = object_status.condition_of(pod, "DisruptionTarget") or {}
    if cause.get("reason") != "DeletionByTaintManager":
        return lost
    node = (pod.get("spec") or {}).get("nodeName")
    what = f"{lost.what}, and its pod on {node} has not ended yet"
    next_ = f"it starts again once the node is back or removed; if it is gone for good: kubectl delete node {node}"
    return lost._replace(what=what, next=next_)


def _pending(pod: Object, evidence: Evidence) -> JobState:
    reason, message, container = object_status.waiting(pod)
    context = evidence.context(pod)
    events = object_status.events_of(pod, evidence.events)
    if reason:
        found = _waiting(reason, message, container, pod, evidence)
    elif unplaced := object_status.condition_of(pod, "PodScheduled", status="False"):
        found = _unplaced(unplaced, events, context, unseen=evidence.unseen)
    elif (pod.get("spec") or {}).get("nodeName"):
        found = _starting(events, context)
    else:
        found = _unseen(str((pod.get("spec") or {}).get("schedulerName") or _USUAL_SCHEDULER))
    return _state(JobStatus.PENDING, _with_warm_pod(found, evidence), pod, evidence)


def _unseen(scheduler: str) -> Explanation:
    """Explain why a pod waits that no scheduler has looked at: one that is not in the cluster never does."""
    if scheduler == _USUAL_SCHEDULER:
        return Explanation("new", "the scheduler has not looked at it yet")
    missing = "if it does not within a minute, the cluster may have no such scheduler: correct KINETIC_SCHEDULER"
    return Explanation("new", f"the scheduler {scheduler} has not looked at it yet", next=missing)


def _waiting(reason: str, message: str, container: str, pod: Object, evidence: Evidence) -> Explanation | None:
    """Explain why a container waits, by its reason and message."""
    said = [f"{reason}: {message}"]
    # The back-off's own message says less than the failure before it, which is an event.
    if reason == "ImagePullBackOff":
        events = object_status.events_of(pod, evidence.events)
        said += [object_status.event_message(event) for event in events if event.get("reason") == "Failed"]
    found = explain_message(WAITING, " ".join(said), evidence.context(pod, container))
    if found is None or container == job_manifests.CONTAINER:
        return found
    return found._replace(what=f"{object_status.added_by_the_cluster(container)}: {found.what}")


def _with_warm_pod(found: Explanation | None, evidence: Evidence) -> Explanation | None:
    """Add the command that ends a warm pod which may be what the job waits for."""
    if found is None or found.code not in _FULL or not evidence.warm:
        return found
    advice = f"kinetic warm stop {evidence.warm}     if kinetic warm list says that it is idle; else {found.next}"
    return found._replace(next=advice)


def _unplaced(
    condition: Object, events: Sequence[Object], context: Mapping[str, str], *, unseen: bool
) -> Explanation | None:
    """Explain why a pod has no node: the autoscaler's latest message, else the scheduler's."""
    message = str(condition.get("message") or "")
    if condition.get("reason") == "SchedulingGated":
        return Explanation("queued", "a queue of the cluster holds it", message)
    scaling = [event for event in events if event.get("reason") in _SCALING]
    failures = [event for event in scaling if event.get("reason") in _SCALING_FAILED]
    if failures and _PAUSES in object_status.event_message(scaling[-1]):  # which only says that it failed before
        scaling.append(failures[-1])
    for event in reversed(scaling):
        found = explain_message(SCALING, object_status.event_message(event), context)
        if found is not None:
            return found
    known = explain_message(SCHEDULING, message or ".", context)
    if unseen and known is not None and known.code in _BY_NODES_OF_NOW:
        return known._replace(what=f"{known.what}; the autoscaler has not looked at it yet", next="", stuck=False)
    return known


def _starting(events: Sequence[Object], context: Mapping[str, str]) -> Explanation | None:
    """Explain what a pod that has its node does; the last failure counts until its container exists."""
    ignored = {"Scheduled", "FailedScheduling", *_SCALING}
    ours = [event for event in events if event.get("reason") not in ignored]
    failures = [event for event in ours if str(event.get("reason", "")).startswith("Failed")]
    latest = (failures or ours)[-1:]
    message = object_status.event_message(latest[0]) if latest else "ContainerCreating"
    return explain_message(STARTING, message, context)


def _state(
    status: JobStatus, found: Explanation | None, pod: Object, evidence: Evidence, *, stuck: bool | None = None
) -> JobState:
    """Make a state of what was read from a pod."""
    name = object_status.object_name(pod)
    if found is None:
        return JobState(status, pod=name)
    of_host = evidence.hosts > 1 and status is JobStatus.FAILED
    what = f"host {object_status.host_index(pod)}: {found.what}" if of_host else found.what
    return JobState(status, *found)._replace(what=what, pod=name, stuck=found.stuck if stuck is None else stuck)

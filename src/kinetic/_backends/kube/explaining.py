"""Asking a cluster why a job is as it is: its object, its pods, the events about them, and what Kueue says."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from kinetic._backends.kube import names, reading, serving
from kinetic._backends.kube.diagnosis import NODES, Scene
from kinetic._backends.kube.kinds import EVENT, JOB, JOB_SET, POD
from kinetic._backends.protocol import Diagnosis
from kinetic.errors import KineticError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.kube.client import Client, Object
    from kinetic._backends.kube.diagnosis import Finding

_MOST_PODS = 3  # whose events are asked for: the newest tell what goes on
_KUEUE_UID = "kueue.x-k8s.io/job-uid"


def scene(client: Client, job: Object, *, hosts: int = 1, machines: str = NODES) -> Scene:
    """Ask for everything that is known about one job: four requests for most.

    Args:
        client: Of the cluster.
        job: Its Job, JobSet or LeaderWorkerSet.
        hosts: How many the job has.
        machines: The command that lists the machines of this cluster.
    """
    accelerator = str(((job.get("metadata") or {}).get("annotations") or {}).get("kinetic/accelerator") or "")
    label = str(((job.get("metadata") or {}).get("labels") or {}).get(names.JOB_LABEL) or "")
    pods = client.list(POD, f"{names.JOB_LABEL}={label}").objects
    newest = sorted(pods, key=lambda pod: (reading.made(pod), reading.name(pod)))[-_MOST_PODS:]
    events = [event for found in (job, *newest) for event in _events(client, found)]
    if job.get("kind") == JOB_SET.name and not pods:
        events += _events_named(client, f"{reading.name(job)}-{names.SLICE}-0")  # its Job's own
    queue = (job["metadata"].get("labels") or {}).get(names.QUEUE_LABEL)
    held = queue and (job.get("spec") or {}).get("suspend")
    parts = client.list(JOB, f"{names.JOB_LABEL}={label}").objects if job.get("kind") == JOB_SET.name else []
    return Scene(job, pods, events, _workload(client, job) if held else None, accelerator, hosts, parts, machines)


def diagnosis(found: Finding, job_id: str) -> Diagnosis:
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
    return _events_named(client, reading.name(found), str((found.get("metadata") or {}).get("uid") or ""))


def _events_named(client: Client, name: str, uid: str = "") -> list[Object]:
    fields = f"involvedObject.name={name}" + (f",involvedObject.uid={uid}" if uid else "")
    with contextlib.suppress(KineticError):  # who may not read events gets a shorter answer
        return client.list(EVENT, fields=fields).objects
    return []


def _workload(client: Client, job: Object) -> Object | None:
    with contextlib.suppress(KineticError):
        kind = serving.workload(client)
        found = client.list(kind, f"{_KUEUE_UID}={job['metadata'].get('uid')}").objects if kind else []
        return found[0] if found else None
    return None

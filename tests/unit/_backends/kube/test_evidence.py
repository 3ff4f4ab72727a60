"""What is asked to say why a job waits; what the answers mean is tested beside this file."""

from __future__ import annotations

import datetime as dt
import email.utils
import time
from contextlib import closing

import pytest
from servers.http11 import Answer, Request, Server
from servers.scripted import page, refusal

from kinetic._backends.kube import diagnosis
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.transport import Access
from kinetic._stores.parallel import Retry

JOB = {
    "kind": "Job",
    "metadata": {"name": "kinetic-a", "uid": "u-1", "labels": {"job-id": "a", "kueue.x-k8s.io/queue-name": "team"}},
    "spec": {"suspend": True},
}
SAID = (
    "couldn't assign flavors to pod set main: insufficient unused quota for nvidia.com/gpu in flavor l4, 1 more needed"
)
WORKLOAD = {
    "metadata": {"name": "job-a"},
    "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "message": SAID}]},
}


@pytest.mark.parametrize("version", ["v1beta1", "v1beta2"])
def test_kueue_is_asked_in_a_version_that_it_serves(version: str) -> None:
    def answer(request: Request) -> Answer:
        if request.path == "/apis":
            versions = [{"version": version}]
            return page({"groups": [{"name": "kueue.x-k8s.io", "versions": versions}]})
        if request.path == f"/apis/kueue.x-k8s.io/{version}/namespaces/team/workloads":
            return page({"metadata": {}, "items": [WORKLOAD]})
        if request.path.startswith("/api/v1/"):
            return page({"metadata": {}, "items": []})
        return refusal(404, "the server could not find the requested resource", "NotFound")

    with closing(Server(answer).start()) as server:
        access = Access(server.url, "the context test", FixedCredential("Bearer t"))
        with closing(Client(access, "team", Retry(2, 0.0, 0.0, 1.0, sleep=lambda _: None))) as client:
            found = diagnosis.diagnose(diagnosis.gather_evidence(client, JOB))

    assert found.what == "it waits in the queue team for nvidia.com/gpu"


@pytest.mark.parametrize(
    ("age_seconds", "reason", "nodes", "command", "expected"),
    [
        (5, "", 1, "", True),  # a node of GKE is a trace of its autoscaler
        (5, "", 0, "gcloud container node-pools list", True),  # and so is the cluster that Google describes
        (5, "", 0, "", False),
        (5, "TriggeredScaleUp", 1, "", False),
        (600, "", 1, "", False),
    ],
)
def test_whether_an_autoscaler_has_looked_at_a_pod_is_known_by_its_events_and_for_two_minutes(
    age_seconds: float, reason: str, nodes: int, command: str, expected: bool
) -> None:
    now = dt.datetime.fromtimestamp(time.time() - 700, dt.UTC)  # by the cluster's clock
    created = (now - dt.timedelta(seconds=age_seconds)).isoformat()
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2"}
    pod = {
        "metadata": {"name": "a-1", "uid": "u-2", "creationTimestamp": created},
        "status": {"conditions": [unplaced]},
    }

    def answer(request: Request) -> Answer:
        found = answer_without_date(request)
        return found._replace(headers={**found.headers, "Date": email.utils.format_datetime(now, usegmt=True)})

    def answer_without_date(request: Request) -> Answer:
        if request.path.endswith("/pods"):
            return page({"metadata": {}, "items": [pod]})
        if request.path.endswith("/events"):
            return page({"metadata": {}, "items": [{"reason": reason}] if reason else []})
        if request.path.endswith("/nodes"):
            return page({"metadata": {}, "items": [{}] * nodes})
        return page({"groups": []}) if request.path == "/apis" else refusal(404, "not found", "NotFound")

    with closing(Server(answer).start()) as server:
        access = Access(server.url, "the context test", FixedCredential("Bearer t"))
        with closing(Client(access, "team", Retry(2, 0.0, 0.0, 1.0, sleep=lambda _: None))) as client:
            job = {
                "kind": "Job",
                "metadata": {"name": "kinetic-a", "uid": "u-1", "labels": {"job-id": "a"}},
                "spec": {},
            }
            found = diagnosis.gather_evidence(client, job, list_nodes=command or diagnosis.LIST_NODES)

    assert found.unseen is expected


def test_of_a_job_set_the_job_of_a_slice_that_lacks_pods_is_asked_why() -> None:
    hosts = {"completions": 2, "template": {"spec": {}}}
    job_set = {
        "kind": "JobSet",
        "metadata": {"name": "kinetic-a", "namespace": "team", "uid": "u-1", "labels": {"job-id": "a"}},
        "spec": {"replicatedJobs": [{"name": "s", "replicas": 2, "template": {"spec": hosts}}]},
    }
    parts = [
        {"metadata": {"name": f"kinetic-a-s-{number}"}, "spec": hosts, "status": {"active": active}}
        for number, active in enumerate([2, 0])
    ]
    pods = [
        {
            "metadata": {"name": f"a-{number}", "labels": {"batch.kubernetes.io/job-completion-index": f"{number}"}},
            "status": {
                "phase": "Running",
                "containerStatuses": [{"name": "kinetic-worker", "state": {"running": {}}}],
            },
        }
        for number in range(2)
    ]
    refused = {"reason": "FailedCreate", "message": "Error creating: exceeded quota: few, requested: pods=1"}
    lists = {"pods": pods, "jobs": parts, "nodes": []}
    asked: list[str] = []

    def answer(request: Request) -> Answer:
        kind = request.path.rpartition("/")[2]
        if kind == "events":
            asked.append(request.query["fieldSelector"])
            return page({"metadata": {}, "items": [refused] if "name=kinetic-a-s-1" in asked[-1] else []})
        return page({"metadata": {}, "items": lists[kind]}) if kind in lists else refusal(404, "not found", "NotFound")

    with closing(Server(answer).start()) as server:
        access = Access(server.url, "the context test", FixedCredential("Bearer t"))
        with closing(Client(access, "team", Retry(2, 0.0, 0.0, 1.0, sleep=lambda _: None))) as client:
            found = diagnosis.diagnose(diagnosis.gather_evidence(client, job_set))

    assert found.what == "2 of 4 hosts are running; host 2: the quota few of the namespace team is used up"
    assert not any("name=kinetic-a-s-0" in each for each in asked)

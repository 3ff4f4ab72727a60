"""`kinetic status`: what a cluster is, costs and waits for, asked side by side of the fakes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from servers.kubernetes import KubernetesServer
from servers.scripted import refusal

from kinetic._backends.kube.job_manifests import JOB_LABEL
from kinetic._cluster.live_status import Status, read_status
from kinetic._cluster.project_apis import ProjectApis
from kinetic._google import login
from kinetic._google.login import Tokens

if TYPE_CHECKING:
    from servers.google_cloud import GoogleCloud

TPU = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "node.kubernetes.io/instance-type": "ct5lp-hightpu-4t",
    "cloud.google.com/gke-nodepool": "v5e",
}


@pytest.fixture
def kube() -> Iterator[KubernetesServer]:
    with KubernetesServer() as server:
        yield server


@pytest.fixture
def read(cloud: GoogleCloud, kube: KubernetesServer, tmp_path: Path):
    cloud.container.add("us-west4", "team", autopilot={"enabled": True})
    environ = cloud.environ(tmp_path)

    def ask(*, google: bool = True) -> Status:
        apis = ProjectApis(cloud.project, Tokens(environ), environ) if google else None
        return read_status(kube.client, apis, cloud.project, "us-west4", "team")

    return ask


def pod(kube: KubernetesServer, name: str, phase: str, node: str = "", **status) -> None:
    spec = {"nodeName": node} if node else {"nodeSelector": dict(list(TPU.items())[:1])}
    metadata = {"labels": {JOB_LABEL: f"job-{name}"}, "creationTimestamp": "2026-11-23T00:00:00Z"}
    path = f"/api/v1/namespaces/default/pods/{name}"
    kube.add(path, metadata=metadata, spec=spec, status={"phase": phase, **status})


def test_a_status_has_nodes_prices_and_the_reason_of_what_waits(read, cloud, kube) -> None:
    for name in ("busy", "idle"):
        kube.add(f"/api/v1/nodes/{name}", metadata={"labels": TPU}, status={"allocatable": {"google.com/tpu": "4"}})
    pod(kube, "running", "Running", "busy")
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no nodes available"}
    pod(kube, "waiting", "Pending", conditions=[unplaced])
    unlike = unplaced | {"message": "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."}
    pod(kube, "unlike", "Pending", conditions=[unlike])

    found = read()

    assert (found.state, found.mode, found.version) == ("RUNNING", "Autopilot", "1.35.8-gke.1026000")
    assert found.dollars_per_hour == pytest.approx(0.10 + 8 * 1.20)
    assert found.idle == ("idle",)
    assert found.running == 1
    unmatched = "no node of this cluster has what the job asks for: gke-tpu-accelerator=tpu-v5-lite-podslice"
    assert {each.job: each.why for each in found.waiting} == {
        "job-waiting": "the cluster has no nodes",
        "job-unlike": unmatched,
    }
    assert ("TPU_LITE_PODSLICE_V5", 16.0, 0.0) in found.quotas
    assert found.is_usable
    assert found.unknown == ()


@pytest.mark.parametrize(
    ("gpu", "machine", "count", "dollars"),
    [
        ("nvidia-l4", "g2-standard-24", 2, 2.11),
        ("nvidia-tesla-t4", "n1-standard-4", 1, 0.54),
        ("nvidia-h100-80gb", "a3-highgpu-8g", 8, None),
    ],
)
def test_a_node_with_gpus_has_the_price_of_its_machine(gpu, machine, count, dollars, read, kube) -> None:
    labels = {"cloud.google.com/gke-accelerator": gpu, "node.kubernetes.io/instance-type": machine}
    kube.add("/api/v1/nodes/gpu", metadata={"labels": labels}, status={"allocatable": {"nvidia.com/gpu": str(count)}})

    (node,) = read(google=False).nodes

    assert node.dollars_per_hour == (None if dollars is None else pytest.approx(dollars))


def test_warm_pods_are_named_with_the_price_of_their_nodes(read, kube) -> None:
    for name in ("warm", "other"):
        kube.add(f"/api/v1/nodes/{name}", metadata={"labels": TPU}, status={"allocatable": {"google.com/tpu": "4"}})
    labels = {JOB_LABEL: "tpu-warm-1", "app": "kinetic-warm"}
    kube.add(
        "/api/v1/namespaces/default/pods/one",
        metadata={"labels": labels, "creationTimestamp": "2026-11-23T00:00:00Z"},
        spec={"nodeName": "warm"},
        status={"phase": "Running"},
    )
    pod(kube, "running", "Running", "other")

    found = read()

    assert found.warm == ("tpu-warm-1",)
    assert found.warm_dollars_per_hour == pytest.approx(4 * 1.20)


def test_it_takes_at_most_eight_requests_and_writes_nothing(read, cloud, kube) -> None:
    cloud.read_only = True

    read()

    assert len(cloud.calls) + len(kube.seen) <= 8
    assert all(each.startswith("GET ") for each in kube.seen)


def test_a_cluster_that_is_not_googles_has_a_status_too(read, cloud, kube) -> None:
    kube.add("/api/v1/nodes/gpu", status={"allocatable": {"nvidia.com/gpu": "2"}})

    found = read(google=False)

    assert (found.state, found.mode) == ("answers", "")
    assert found.dollars_per_hour == 0
    assert found.without_price == ["gpu"]
    assert cloud.calls == []


def test_what_may_not_be_read_is_named_and_the_rest_is_shown(read, cloud, kube) -> None:
    cloud.denied.add("compute.regions.get")
    kube.answers["/nodes"] = refusal(403, "nodes is forbidden")

    found = read()

    assert found.state == "RUNNING"
    assert [each.partition(":")[0] for each in found.unknown] == ["nodes", "quotas"]
    assert found.dollars_per_hour is None


@pytest.mark.parametrize(("state", "usable"), [("RECONCILING", True), ("DEGRADED", True), ("STOPPING", False)])
def test_a_cluster_is_usable_in_the_states_in_which_jobs_run(state: str, usable: bool, read, cloud) -> None:
    ((_, cluster),) = cloud.container.clusters.items()
    cluster["status"] = state

    assert read().is_usable is usable


def test_a_cluster_that_is_gone_is_not_usable(read, cloud) -> None:
    cloud.container.clusters.clear()

    found = read()

    assert not found.is_usable
    assert found.unknown


def test_its_questions_are_asked_side_by_side(read, cloud, kube, monkeypatch: pytest.MonkeyPatch) -> None:
    read()  # and a token is there
    cloud.delay(0.3)
    send, lock = login.send, threading.Lock()
    open_, most = [0], [0]

    def counted(*args: Any, **options: Any) -> Any:
        with lock:
            open_[0] += 1
            most[0] = max(most[0], open_[0])
        try:
            return send(*args, **options)
        finally:
            with lock:
                open_[0] -= 1

    monkeypatch.setattr(login, "send", counted)

    read()

    assert most[0] >= 2

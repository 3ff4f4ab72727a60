"""Jobs on a cluster whose pods Volcano schedules: what waits is explained, and hosts of one job start together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster import controllers, nodes
from cluster.plane import wait_for
from flows.kube.test_slices import TEAM

pytestmark = pytest.mark.skipif(bool(controllers.why_not()), reason=controllers.why_not())

API = f"/apis/{controllers.VOLCANO}/v1beta1"
MEET = """
    @kinetic.run(accelerator="gpu-l4x2x2")
    def meet():
        return kinetic.current().host_count

    tell(meet.run_async().job_id)
"""


@pytest.fixture(scope="module", autouse=True)
def volcano(plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with controllers.volcano(plane, tmp_path_factory.mktemp("volcano")):
        yield


@pytest.fixture(autouse=True)
def scheduler(home: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_SCHEDULER", "volcano")
    monkeypatch.setenv("KINETIC_REQUIRE_ACCELERATOR", "0")  # the test's nodes have labels, and no GPU


def explained(kinetic: Any, job_id: str, words: str) -> str:
    return str(wait_for(words, lambda: words in (said := kinetic("jobs", "explain", job_id).out) and said))


def test_a_job_runs_and_one_without_room_says_that_volcano_has_none(clients: Any, machine: str, kinetic: Any) -> None:
    value, job_id = clients.run("""
        from one import add
        tell([add(1, 2), add.with_options(resources={"cpu": 64}).run_async(1, 2).job_id])
    """)

    found = explained(kinetic, job_id, "Volcano has no room for it")

    assert value == 3
    assert "kubectl get queues -o yaml shows what each queue may use" in found


def test_a_queue_of_volcano_that_an_annotation_names_holds_what_is_above_its_limit(
    clients: Any, site: Any, machine: str, kinetic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"small-{site.namespace}"
    monkeypatch.setenv("KINETIC_ANNOTATIONS", f"scheduling.volcano.sh/queue-name={name}")
    spec = {"weight": 1, "capability": {"cpu": "1", "memory": "8Gi"}}
    about = {"apiVersion": f"{controllers.VOLCANO}/v1beta1", "kind": "Queue", "metadata": {"name": name}}
    site.api.create(f"{API}/queues", {**about, "spec": spec})
    job_id = clients.run("from one import add\ntell(add.with_options(resources={'cpu': 4}).run_async(1, 2).job_id)")

    explained(kinetic, job_id, "or its queue is full")
    site.api.merge(f"{API}/queues/{name}", {"spec": {"capability": {"cpu": "8", "memory": "16Gi"}}})

    assert clients.run("tell(kinetic.attach(words[0]).result())", job_id) == 3


@pytest.mark.parametrize("kind", ["JobSet", "Indexed Job"])
def test_the_hosts_of_a_job_with_gpus_start_together_or_not_at_all(
    clients: Any, site: Any, add_node: Any, plane: Any, kinetic: Any, kind: str
) -> None:
    if kind == "Indexed Job":
        plane.proxy.hide("jobset.x-k8s.io")
        plane.proxy.hide("leaderworkerset.x-k8s.io")
    add_node(nodes.gpu(f"gpu-0-{site.namespace}", "nvidia-l4", 2))
    job_id = clients.run(MEET)

    found = explained(kinetic, job_id, "Volcano has no room for it")
    placed = [pod["spec"].get("nodeName") for pod in site.pods_of(job_id)]
    add_node(nodes.gpu(f"gpu-1-{site.namespace}", "nvidia-l4", 2))

    assert "0 of 2 hosts are running" in found
    assert placed == [None, None]
    assert clients.run("tell(kinetic.attach(words[0]).result())", job_id) == 2
    site.gone(job_id)
    wait_for("the end of its group", lambda: not site.api.get(f"{API}/namespaces/{site.namespace}/podgroups")["items"])


def test_a_slice_of_tpus_whose_first_host_decides_on_the_node_pool_is_no_group(clients: Any, machines: Any) -> None:
    clients.project.write("team.py", TEAM)
    machines()

    assert clients.run("from team import report\ntell(report())") == {"host": 0, "attempt": 0}

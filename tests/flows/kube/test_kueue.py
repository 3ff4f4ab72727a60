"""Queues with the controller of Kueue itself: what waits, what is preempted, and what Kueue must not start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import controllers
from cluster.plane import wait_for
from flows.kube.test_slices import TEAM

pytestmark = pytest.mark.skipif(bool(controllers.why_not()), reason=controllers.why_not())

API = "/apis/kueue.x-k8s.io/v1beta1"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
TALK = "talk.with_options(resources={{'cpu': 4}}).run_async(1, until={until!r})"
AMOUNTS = {"cpu": "4", "memory": "1000Gi", "ephemeral-storage": "1000Gi", "google.com/tpu": "8"}

Queue = Callable[..., None]


@pytest.fixture(scope="module", autouse=True)
def controller(plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with controllers.started(controllers.KUEUE, plane, tmp_path_factory.mktemp("kueue")):
        yield


@pytest.fixture
def queue(site: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """Return a function that makes a LocalQueue of the namespace; all of them share four CPUs and eight chips."""
    made: list[str] = []
    name, about = f"all-{site.namespace}", {"apiVersion": "kueue.x-k8s.io/v1beta1"}
    flavor = {"name": name, "resources": [{"name": each, "nominalQuota": most} for each, most in AMOUNTS.items()]}
    group = {"coveredResources": list(AMOUNTS), "flavors": [flavor]}
    preemption = {"withinClusterQueue": "LowerPriority"}
    spec = {"namespaceSelector": {}, "preemption": preemption, "resourceGroups": [group]}

    def make(local: str, *, is_named: bool = True) -> None:
        if not made:
            for path, kind, own in (("resourceflavors", "ResourceFlavor", {}), ("clusterqueues", "ClusterQueue", spec)):
                body = {**about, "kind": kind, "metadata": {"name": name}, "spec": own}
                site.api.create(f"{API}/{path}", body)
                made.append(f"{API}/{path}/{name}")
        path = f"{API}/namespaces/{site.namespace}/localqueues"
        site.api.create(
            path, {**about, "kind": "LocalQueue", "metadata": {"name": local}, "spec": {"clusterQueue": name}}
        )
        made.append(f"{path}/{local}")

        def is_active() -> bool:
            conditions = (site.api.get(f"{path}/{local}").get("status") or {}).get("conditions") or []
            return any(each["type"] == "Active" and each["status"] == "True" for each in conditions)

        wait_for("the queue", is_active)
        if is_named:
            monkeypatch.setenv("KINETIC_QUEUE", local)

    yield make
    for path in reversed(made):
        site.api.delete(path)


@pytest.fixture
def urgent(site: Any) -> Iterator[str]:
    """A priority class above all others."""
    name = f"urgent-{site.namespace}"
    about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    site.api.create(PRIORITIES, {**about, "value": 1000})
    yield name
    site.api.delete(f"{PRIORITIES}/{name}")


def talk(clients: Any, until: Path) -> str:
    return str(clients.run(f"from one import talk\ntell({TALK.format(until=str(until))}.job_id)"))


def explained(kinetic: Any, job_id: str, words: str) -> str:
    """Wait until the explanation of a job has some words; return it."""

    def ask() -> str:
        told = str(kinetic("jobs", "explain", job_id).out)
        return told if words in told else ""

    return wait_for(f"the explanation of {job_id}: {words}", ask)


def test_a_job_waits_in_its_queue_for_room_and_one_that_asks_for_more_than_the_queue_has_says_so(
    clients: Any, machine: str, shared: Path, queue: Queue, site: Any, kinetic: Any
) -> None:
    queue("team")
    first = talk(clients, shared / "go")
    site.running(first)
    second = talk(clients, shared / "go")
    large = clients.run("from one import add\ntell(add.with_options(resources={'cpu': 8}).run_async(1, 2).job_id)")

    assert "kubectl get workloads" in explained(kinetic, second, "it waits in the queue team for cpu")
    assert "ask for less" in explained(kinetic, large, "the queue team can never admit this job")
    assert kinetic("jobs", "cancel", large).code == 0
    (shared / "go").touch()
    attach = f"import kinetic\ntell([kinetic.attach(each).result() for each in {[first, second]!r}])"
    assert clients.run(attach) == [1, 1]


def test_a_job_that_is_preempted_waits_and_begins_again_as_its_next_attempt(
    clients: Any, machine: str, shared: Path, queue: Queue, urgent: str, site: Any, kinetic: Any, monkeypatch: Any
) -> None:
    queue("team")
    low = talk(clients, shared / "go")
    before = site.running(low)["metadata"]["name"]
    wait_for("its function", lambda: "line 0000" in kinetic("jobs", "logs", low).out)
    monkeypatch.setenv("KINETIC_PRIORITY_CLASS", urgent)
    high = talk(clients, shared / "go-high")
    site.running(high)

    assert "PENDING" in explained(kinetic, low, "it waits in the queue team for cpu")
    (shared / "go-high").touch()
    assert clients.run(f"import kinetic\ntell(kinetic.attach({high!r}).result())") == 1
    site.running(low, but=before)
    (shared / "go").touch()
    assert clients.run(f"import kinetic\ntell(kinetic.attach({low!r}).result(cleanup=False))") == 1
    assert "attempt           1" in kinetic("jobs", "show", low).out


@pytest.mark.parametrize("queues", [["team"], ["default"], ["default", "team"]], ids="+".join)
def test_a_job_that_follows_another_is_not_started_by_kueue_before_that_has_ended(
    clients: Any, machine: str, shared: Path, queue: Queue, site: Any, kinetic: Any, queues: list[str]
) -> None:
    for each in queues:
        queue(each, is_named=each != "default")
    go = str(shared / "go")
    first, follower = clients.run(
        f"from one import add, talk\nfirst = {TALK.format(until=go)}\n"
        "follower = add.with_options(resources={'cpu': 4}).run_async(first, 3)\n"
        "tell((first.job_id, follower.job_id))"
    )
    site.running(first)

    assert f"waits for {first}" in kinetic("jobs", "explain", follower).out
    assert site.pods_of(follower) == []
    (shared / "go").touch()
    assert clients.run(f"import kinetic\ntell(kinetic.attach({follower!r}).result(cleanup=False))") == 4
    workloads = site.api.get(f"{API}/namespaces/{site.namespace}/workloads")["items"]
    (own,) = [each for each in workloads if follower in each["metadata"]["name"]]
    assert own["spec"]["queueName"] == queues[-1]


def test_who_may_not_read_queues_keeps_what_waits_out_of_the_default_one(
    clients: Any, machine: str, home: Path, tmp_path: Path, shared: Path, queue: Queue, site: Any, monkeypatch: Any
) -> None:
    queue("default", is_named=False)
    where = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{site.namespace}/rolebindings"
    subject = {"kind": "ServiceAccount", "name": "editor", "namespace": site.namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    site.put("serviceaccounts", {"metadata": {"name": "editor"}})
    site.api.create(where, {"metadata": {"name": "editor"}, "roleRef": role, "subjects": [subject]})
    token = site.put("serviceaccounts/editor/token", {"spec": {}})["status"]["token"]
    endpoint = site.plane.client._replace(token=token)
    monkeypatch.setenv("KUBECONFIG", str(endpoint.write_kubeconfig(tmp_path / "editor.yaml")))

    first, follower = clients.run(
        f"from one import add, talk\nfirst = {TALK.format(until=str(shared / 'go'))}\n"
        "follower = add.run_async(first, 3)\ntell((first.job_id, follower.job_id))"
    )
    site.running(first)

    (made,) = site.jobs(follower)
    assert made["spec"]["suspend"]
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "kinetic-none"
    (shared / "go").touch()
    assert clients.run(f"import kinetic\ntell(kinetic.attach({follower!r}).result())") == 4


def test_no_pod_is_kept_warm_where_kueue_admits_each_job(clients: Any, machine: str, queue: Queue, site: Any) -> None:
    queue("default", is_named=False)

    value, said = clients.both("from one import add\ntell(add.with_options(keep_warm='10m')(2, 3))")

    assert value == 5
    assert "the queue default of Kueue admits each job by itself" in said


def test_a_slice_enters_its_queue_as_a_whole(
    clients: Any, machines: Any, queue: Queue, site: Any, shared: Path, kinetic: Any
) -> None:
    machines()
    queue("team")
    clients.project.write("team.py", TEAM)
    until = str(shared / "go")
    first, second = clients.run(
        f"from team import talk\ntell([talk.run_async({until!r}).job_id, talk.run_async({until!r}).job_id])"
    )
    site.running(first)

    assert "insufficient unused quota" in explained(kinetic, second, "it waits in the queue team for ")
    assert site.pods_of(second) == []
    (shared / "go").touch()
    clients.run(f"import kinetic\ntell([kinetic.attach(each).result() for each in {[first, second]!r}])")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", ["JobSet", "Indexed Job"])
def test_a_slice_that_is_preempted_begins_again_as_a_whole_as_its_next_attempt(
    clients: Any,
    machines: Any,
    shared: Path,
    queue: Queue,
    urgent: str,
    site: Any,
    kinetic: Any,
    plane: Any,
    monkeypatch: Any,
    kind: str,
) -> None:
    if kind == "Indexed Job":
        plane.proxy.hide("jobset.x-k8s.io")
        plane.proxy.hide("leaderworkerset.x-k8s.io")
    queue("team")
    clients.project.write("team.py", TEAM)
    machines()
    machines(pool=1)
    low = clients.run("from team import again\ntell(again.run_async(words[0]).job_id)", str(shared))
    for host in (0, 1):
        wait_for(f"host {host}", (shared / f"host-{host}-attempt-0").exists)
    monkeypatch.setenv("KINETIC_PRIORITY_CLASS", urgent)

    assert clients.run("from team import report\ntell(report())") == {"host": 0, "attempt": 0}

    assert clients.run("tell(kinetic.attach(words[0]).result(cleanup=False, timeout=120))", low) == 1
    assert {path.name for path in shared.iterdir()} == {f"host-{host}-attempt-{at}" for host in (0, 1) for at in (0, 1)}
    for attempt in (0, 1):
        log = kinetic("jobs", "logs", low, "--attempt", str(attempt), "--host", "all").out
        assert [line for line in log.splitlines() if "attempt" in line] == [
            f"[host {host}] attempt {attempt}" for host in (0, 1)
        ]

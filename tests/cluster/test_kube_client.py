"""Our client and our manifests on a real API server, with its own validation, controllers and scheduler."""

from __future__ import annotations

import base64
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import nodes
from cluster.plane import Plane, wait_for
from servers.google_cloud import GoogleCloud
from servers.google_cloud.tokens import Tokens
from unit._backends.kube.test_job_request_pages import launch

from kinetic._backends.kube import client as kube_client
from kinetic._backends.kube import diagnosis, discovery, job_launcher, job_manifests, pod_exec, pod_logs
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import context_access, gke_access
from kinetic._backends.kube.informer import Watch
from kinetic._backends.kube.job_manifests import BucketVolume, JobRequest
from kinetic._backends.kube.transport import Access
from kinetic._config.cluster import ClusterSettings, PodRequirements
from kinetic._config.options import ResourceRequests
from kinetic._google import clusters
from kinetic._google.api import Service
from kinetic._hardware import GPUS, TPUS, place
from kinetic._stores.parallel import Retry
from kinetic._wire import task
from kinetic.errors import BackendError, CredentialsError, LaunchError
from kinetic.job_status import JobStatus

pytestmark = pytest.mark.timeout(120)

GIB = 1024**3
JOB_ID = "cpu-train-20261121-143000-1a2b3c4"
FULL = {
    "group": "grp-0a1b2c3d",
    "environment": {"A": "costs $(nothing)"},
    "needs": ResourceRequests(4, 16 * GIB, 100 * GIB, 8 * GIB),
    "deadline_seconds": 3600,
    "service_account": "kinetic",
    "needs_token": True,
    "queue": "team-a",
    "buckets": (BucketVolume("/data/set", "b", "implicit-dirs,only-dir=a"),),
    "pull_secrets": ("registry",),
    "run_as": (1000, 100),
}
ROWS = [f"gpu-{name}x{max(family.machines)}" for name, family in GPUS.items()] + [
    family.canonical(topology)
    for family in TPUS.values()
    for topology in (family.machines[-1].own_topology, family.largest)
    if topology
]


@pytest.fixture
def ask(namespace: str) -> Callable[..., JobRequest]:
    def make(accelerator: str = "cpu", *, image: str = "python:3.11-slim", **more: Any) -> JobRequest:
        needs = more.pop("needs", ResourceRequests())
        settings = {
            name: more.pop(name) for name in ClusterSettings._fields if name in more and name != "service_account"
        }
        requirements = PodRequirements(image, needs=needs, settings=ClusterSettings(**settings))
        fields = {
            "job_id": JOB_ID,
            "namespace": namespace,
            "placement": place(accelerator),
            "requirements": requirements,
            "command": ("python", "-c", "print('hello')"),
            "owner": "ann@example.com",
            "order_sha256": "ab" * 32,
        }
        return JobRequest(**{**fields, **more})

    return make


# ------------------------------------------------------------------------------------------------------------ manifests


@pytest.mark.parametrize("more", [{}, FULL], ids=["plain", "full"])
def test_the_server_takes_every_row_of_the_registry_with_strict_validation(kube, ask, more: dict) -> None:
    for accelerator in ["cpu", *ROWS]:
        request = ask(accelerator, secret="s", runner="r", **more)
        if request.placement.hosts == 1:
            kube.create(kube_client.JOB, job_manifests.job(request), dry_run=True)
            continue
        kube.create(kube_client.JOB_SET, job_manifests.job_set(request), dry_run=True)
        kube.create(kube_client.JOB, job_manifests.indexed_job(request), dry_run=True)
        kube.create(kube_client.SERVICE, job_manifests.service(request, "uid-1"), dry_run=True)
        kube.create(kube_client.LEADER_WORKER_SET, job_manifests.leader_worker_set(request), dry_run=True)


def test_the_longest_id_fits_on_the_largest_slice(kube, ask) -> None:
    request = ask("tpu7x-16x16x36", job_id="7" + "x" * 61 + "9")

    kube.create(kube_client.JOB_SET, job_manifests.job_set(request), dry_run=True)
    kube.create(kube_client.JOB, job_manifests.indexed_job(request), dry_run=True)
    kube.create(kube_client.JOB, job_manifests.job(ask(job_id=request.job_id)), dry_run=True)


def test_a_field_that_the_server_does_not_know_is_refused_and_named(kube, ask) -> None:
    manifest = job_manifests.job(ask())
    manifest["spec"]["podReplacementPolicyy"] = "Failed"

    with pytest.raises(LaunchError, match="podReplacementPolicyy"):
        kube.create(kube_client.JOB, manifest)


def test_the_cluster_says_which_kinds_it_has(kube) -> None:
    assert discovery.serves(kube, kube_client.JOB_SET)
    assert not discovery.serves(kube, kube_client.JOB_SET._replace(group="nobody.example.com"))


# ---------------------------------------------------------------------------------------------- making it exactly once


def test_a_lost_answer_makes_one_job(plane, kube, ask) -> None:
    lost = plane.proxy.fail("lose", method="POST", target="/jobs", times=1)

    made = kube.create(kube_client.JOB, job_manifests.job(ask()))

    assert lost.met == 1
    assert [each["metadata"]["uid"] for each in kube.list(kube_client.JOB).objects] == [made["metadata"]["uid"]]


def test_the_same_name_for_another_order_is_refused(kube, ask) -> None:
    first = kube.create(kube_client.JOB, job_manifests.job(ask()))

    again = kube.create(kube_client.JOB, job_manifests.job(ask()))
    with pytest.raises(LaunchError) as caught:
        kube.create(kube_client.JOB, job_manifests.job(ask(order_sha256="cd" * 32)))

    assert again["metadata"]["uid"] == first["metadata"]["uid"]
    assert caught.value.code == "name-taken"


def test_a_storm_of_refusals_is_outlasted(plane, kube, ask) -> None:
    plane.proxy.fail(status=503, times=3)
    plane.proxy.fail("drop", times=2)

    assert kube.create(kube_client.JOB, job_manifests.job(ask()))["metadata"]["uid"]


def test_a_job_waits_suspended_and_its_secret_goes_with_it(kube, ask) -> None:
    request = ask(secret=job_manifests.object_name(JOB_ID))
    made = kube.create(kube_client.JOB, job_manifests.job(request))
    kube.create(kube_client.SECRET, job_manifests.secret(request, {"job-key": b"\x00" * 32}, made))
    assert kube.get(kube_client.JOB, made["metadata"]["name"])["spec"]["suspend"] is True

    kube.delete(kube_client.JOB, made["metadata"]["name"], uid=made["metadata"]["uid"])

    wait_for("the secret to go", lambda: kube.get(kube_client.SECRET, request.secret) is None)


def test_a_job_of_that_name_that_came_later_is_not_removed(kube, ask) -> None:
    made = kube.create(kube_client.JOB, job_manifests.job(ask()))

    assert kube.delete(kube_client.JOB, made["metadata"]["name"], uid="00000000-0000-0000-0000-000000000000") is False
    assert kube.get(kube_client.JOB, made["metadata"]["name"]) is not None


def test_a_list_longer_than_a_page_is_whole(kube, ask, monkeypatch) -> None:
    monkeypatch.setattr("kinetic._backends.kube.client.PAGE", 2)
    for at in range(5):
        kube.create(kube_client.CONFIG_MAP, {"metadata": {"name": f"page-{at}", "labels": {"app": "kinetic"}}})

    assert len(kube.list(kube_client.CONFIG_MAP, "app=kinetic").objects) == 5


def test_we_may_do_everything_here(kube) -> None:
    assert kube.review_access("create", kube_client.JOB).allowed
    assert kube.review_access("get", kube_client.POD, part="log").allowed


def test_a_revoked_token_is_said(plane, kube) -> None:
    plane.revoke_token()
    try:
        with pytest.raises(CredentialsError, match="rejected our credentials"):
            kube.list(kube_client.JOB)
    finally:
        plane.restore_token()


def test_a_namespace_that_is_not_there_is_named(plane, ask) -> None:
    access = context_access("", {"KUBECONFIG": str(plane.kubeconfig)})
    with contextlib.closing(Client(access, "nowhere", Retry(2, 0.05))) as client, pytest.raises(LaunchError) as caught:
        client.create(kube_client.JOB, job_manifests.job(ask(namespace="nowhere")))

    assert caught.value.code == "namespace-missing"


# ------------------------------------------------------------------------------------------------------------- watching


def test_a_cluster_of_gke_is_found_by_its_name_and_spoken_to(plane, namespace) -> None:
    tokens = Tokens(plane.client.token)
    with GoogleCloud("my-project") as google:
        google.container.api_server = (f"127.0.0.1:{plane.proxy.port}", plane.authority.certificate.read_bytes())
        google.container.add("us-central1-a", "mine")
        service = Service(clusters.CONTAINER_API, tokens, Retry(), environ=google.endpoints)

        access = gke_access(lambda: clusters.read_cluster(service, "my-project", "us-central1-a", "mine"), tokens.get)
        with contextlib.closing(Client(access, namespace)) as client:
            assert client.review_access("create", kube_client.JOB).allowed

        assert google.wrong == []


def watched(client: Client, seen: list[tuple[str, str]], last: set[tuple[str, str]]) -> threading.Thread:
    """Watch ConfigMaps of ours on another thread until the last events have been seen."""

    def work() -> None:
        with contextlib.closing(Watch(client, kube_client.CONFIG_MAP, "app=kinetic").events()) as events:
            for event in events:
                seen.append((event.kind, event.object.get("metadata", {}).get("name", "")))
                if last <= set(seen):
                    return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def config_map(name: str) -> dict:
    return {"metadata": {"name": name, "labels": {"app": "kinetic"}}}


BREAKS: dict[str, Callable[[Any], object]] = {
    "its connections are cut": lambda plane: plane.proxy.cut_connections(),
    "the server restarts": lambda plane: plane.restart_api_server(),
    "the server has forgotten": lambda plane: plane.expire_watches(),
}


@pytest.mark.parametrize("break_it", BREAKS.values(), ids=list(BREAKS))
def test_a_watch_misses_nothing_when(plane, kube, break_it) -> None:
    seen: list[tuple[str, str]] = []
    kube.create(kube_client.CONFIG_MAP, config_map("before"))
    kube.create(kube_client.CONFIG_MAP, config_map("removed"))
    thread = watched(kube, seen, {("deleted", "removed"), ("changed", "after")})
    wait_for("the watch", lambda: ("listed", "") in seen)

    break_it(plane)
    kube.delete(kube_client.CONFIG_MAP, "removed")
    kube.create(kube_client.CONFIG_MAP, config_map("after"))

    thread.join(60)
    told = [event for event in seen if event[0] != "listed"]
    assert sorted(told) == [("changed", "after"), ("changed", "before"), ("changed", "removed"), ("deleted", "removed")]


# ------------------------------------------------------------------------------------ a whole life, and what goes wrong


def look(client: Client, job: str, **more: Any) -> diagnosis.JobState:
    found = client.get(kube_client.JOB, job)
    assert found is not None
    pods = client.list(kube_client.POD, f"job-id={JOB_ID}").objects
    return diagnosis.diagnose(diagnosis.Evidence(found, pods, client.list(kube_client.EVENT).objects, **more))


def start(client: Client, request: JobRequest, *variables: dict) -> str:
    manifest = job_manifests.job(request)
    manifest["spec"]["template"]["spec"]["containers"][0]["env"] += variables
    made = client.create(kube_client.JOB, manifest)
    name = str(made["metadata"]["name"])
    client.patch(kube_client.JOB, name, {"spec": {"suspend": False}})
    return name


SHOW = """
import os
for path in ("/kinetic/secret/job-key", "/kinetic/runner.zip"):
    print(path, open(path, "rb").read())
print(os.environ["A"], os.path.ismount("/dev/shm"))
"""


def test_a_job_runs_with_all_that_its_manifest_promises(kube, ask, node) -> None:
    request = ask(
        command=("python", "-u", "-c", SHOW),
        secret="kinetic-secret",
        runner="kinetic-runner",
        environment={"A": "costs $(nothing)"},
        node_selector={"kubernetes.io/hostname": node},
    )
    made = kube.create(kube_client.JOB, job_manifests.job(request))
    secret = job_manifests.secret(request, {"job-key": b"key"}, made)
    secret["metadata"]["name"] = request.secret
    runner = job_manifests.runner_config_map(request.namespace, "1", "ab" * 32, {"runner.zip": b"PK"})
    runner["metadata"]["name"] = request.runner
    kube.create(kube_client.SECRET, secret)
    kube.create(kube_client.CONFIG_MAP, runner)
    name = made["metadata"]["name"]
    assert look(kube, name).code == "held"

    kube.patch(kube_client.JOB, name, {"spec": {"suspend": False}})
    wait_for("its end", lambda: look(kube, name).status is JobStatus.SUCCEEDED)

    (pod,) = kube.list(kube_client.POD, f"job-id={JOB_ID}").objects
    log = pod_logs.read_log(kube, pod["metadata"]["name"])
    assert log.decode().splitlines() == [
        "/kinetic/secret/job-key b'key'",
        "/kinetic/runner.zip b'PK'",
        "costs $(nothing) True",
    ]


@pytest.mark.parametrize(("accelerator", "kind"), [("cpu", kube_client.JOB), ("tpu-v5e-4x4", kube_client.JOB_SET)])
def test_a_job_enters_its_queue_of_kueue_once_its_secret_is_there(kube, monkeypatch, accelerator: str, kind) -> None:
    seen: dict[str, dict] = {}

    def step(name: str) -> None:
        (found,) = kube.list(kind).objects
        seen[name] = found["metadata"]["labels"]

    monkeypatch.setattr(job_launcher, "step", step)
    wanted = launch(accelerator, settings=ClusterSettings(queue="team-a"))

    made = job_launcher.JobLauncher(lambda: kube, {}).make(wanted, 0o022)

    assert [name for name, labels in seen.items() if job_manifests.QUEUE_LABEL in labels] == []
    assert seen.keys() == {"client:job-created", "client:secret-created"}
    assert (made["metadata"]["labels"][job_manifests.QUEUE_LABEL], made["spec"]["suspend"]) == ("team-a", True)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(task.FAILED_EXIT, "failed"), (task.IMAGE_EXIT, "python-mismatch"), (137, "killed"), (1, "exit")],
)
def test_a_verdict_fails_the_job_at_once(kube, ask, node, code: int, reason: str) -> None:
    request = ask(
        command=("python", "-c", f"import os; os._exit({code})"), node_selector={"kubernetes.io/hostname": node}
    )
    name = start(kube, request)

    found = wait_for("the end", lambda: (each := look(kube, name)).status is JobStatus.FAILED and each)

    assert found.code == reason
    assert len(kube.list(kube_client.POD, f"job-id={JOB_ID}").objects) == 1


@pytest.mark.parametrize(
    ("code", "reason"), [(task.INFRASTRUCTURE_EXIT, "infrastructure"), (task.LOST_EXIT, "machine-restarted")]
)
def test_trouble_around_a_job_starts_another_pod(kube, ask, node, code: int, reason: str) -> None:
    command = ("python", "-c", f"import os; os._exit({code})")
    name = start(kube, ask(command=command, node_selector={"kubernetes.io/hostname": node}))

    wait_for("the first pod's end", lambda: look(kube, name).code == reason)

    assert look(kube, name).status is JobStatus.PENDING


ECHO = """
import os, socket
server = socket.create_server((os.environ["ADDRESS"], 0))
print(server.getsockname()[1], flush=True)
while True:
    peer = server.accept()[0]
    while data := peer.recv(1 << 16):
        peer.sendall(data.upper())
"""


def test_a_port_of_a_pod_is_reached_through_the_server(kube, ask, node) -> None:
    request = ask(
        command=("python", "-c", ECHO),
        node_selector={"kubernetes.io/hostname": node},
    )
    name = start(kube, request, {"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    wait_for("the job to run", lambda: look(kube, name).status is JobStatus.RUNNING)
    (pod,) = kube.list(kube_client.POD, f"job-id={JOB_ID}").objects
    port = int(wait_for("its port", lambda: pod_logs.read_log(kube, pod["metadata"]["name"])))
    sent, received = b"hello " * 20_000, b""

    with pod_exec.connect_port(kube, pod["metadata"]["name"], port) as tunnel:
        tunnel.send(sent)
        while len(received) < len(sent):
            received += tunnel.receive()

    assert received == sent.upper()


def test_a_port_of_a_pod_that_is_not_there_is_named(kube) -> None:
    with pytest.raises(BackendError, match="port 80 of the pod nobody"), pod_exec.connect_port(kube, "nobody", 80):
        pass


def test_a_missing_service_account_is_named_within_seconds(kube, ask) -> None:
    name = start(kube, ask(service_account="kinetic"))

    found = wait_for("a reason", lambda: (each := look(kube, name)).code == "service-account" and each)

    assert found.stuck
    assert found.next.startswith(f"kubectl create serviceaccount kinetic -n {kube.namespace}")


def test_a_machine_that_nobody_has_is_named_within_seconds(kube, ask, node) -> None:
    name = start(kube, ask("gpu-l4x4"))

    found = wait_for("a reason", lambda: (each := look(kube, name, accelerator="gpu-l4x4")).stuck and each)

    assert found.code == "no-node-matches"


def test_an_image_that_nobody_has_is_named_within_seconds(kube, ask, node) -> None:
    name = start(kube, ask(image="nowhere.example.com/a/b:1", node_selector={"kubernetes.io/hostname": node}))

    found = wait_for("a reason", lambda: (each := look(kube, name)).code.startswith("image") and each)

    assert "nowhere.example.com/a/b:1" in found.what


LEAVE = f"""
import os, signal, time
signal.signal(15, lambda *_: os._exit({task.INFRASTRUCTURE_EXIT}))
print("up", flush=True)
time.sleep(600)
"""


def test_a_preempted_pod_makes_the_job_wait_and_not_fail(kube, ask, add_node, namespace, agent, objects) -> None:
    spot = add_node(nodes.cpu(f"spot-{namespace}", spot=True))
    request = ask(command=("python", "-c", LEAVE), placement=place("cpu")._replace(spot=True, tolerations=(
        {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
    )), node_selector={"kubernetes.io/hostname": spot})  # fmt: skip
    name = start(kube, request)
    wait_for("the job to run", lambda: look(kube, name).status is JobStatus.RUNNING)
    [pod] = objects.pods(f"job-name={name}")
    objects.wrote(pod["metadata"]["name"], "up")  # a first process that has no handler yet would take all of its grace

    agent.preempt(spot)

    found = wait_for("the loss", lambda: (each := look(kube, name)).status is JobStatus.PENDING and each)
    assert found.code in {"preempted", "busy", "no-node-matches", "new", "no-pod"}
    assert kube.get(kube_client.JOB, name)["status"].get("failed", 0) in {0, 1}
    assert not {each["type"] for each in kube.get(kube_client.JOB, name)["status"].get("conditions", ())} & {
        "Failed",
        "FailureTarget",
    }


def test_the_hosts_of_a_job_set_have_the_names_that_were_promised(kube, ask, node) -> None:
    placement = place("cpu")._replace(hosts=2)
    request = ask(
        command=("python", "-c", "import socket, time; print(socket.gethostname()); time.sleep(600)"),
        placement=placement,
        node_selector={"kubernetes.io/hostname": node},
    )
    manifest = job_manifests.job_set(request)
    kube.create(kube_client.JOB_SET, manifest)
    kube.patch(kube_client.JOB_SET, manifest["metadata"]["name"], {"spec": {"suspend": False}})

    pods = wait_for(
        "both hosts", lambda: (found := kube.list(kube_client.POD, f"job-id={JOB_ID}").objects)[1:] and found
    )

    first = job_manifests.coordinator(request, kube_client.JOB_SET).partition(".")[0]
    assert sorted(pod["spec"]["hostname"] for pod in pods) == [first, first[:-1] + "1"]
    assert {pod["spec"]["subdomain"] for pod in pods} == {manifest["metadata"]["name"]}
    restarts = {pod["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] for pod in pods}
    assert restarts == {"0"}
    kube.delete(kube_client.JOB_SET, manifest["metadata"]["name"])


GANG = """
import os, sys, time
host, attempt = os.environ["JOB_COMPLETION_INDEX"], os.environ["JOBSET_RESTART_ATTEMPT"]
if host == "1" and attempt == "0":
    os._exit({code})
if attempt == "0":
    time.sleep(600)
"""


def start_set(client: Client, request: JobRequest) -> str:
    manifest = job_manifests.job_set(request)
    hosts = manifest["spec"]["replicatedJobs"][0]["template"]
    hosts["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    client.create(kube_client.JOB_SET, manifest)
    client.patch(kube_client.JOB_SET, manifest["metadata"]["name"], {"spec": {"suspend": False}})
    return str(manifest["metadata"]["name"])


def look_at_set(client: Client, name: str) -> tuple[diagnosis.JobState, dict]:
    found = client.get(kube_client.JOB_SET, name)
    assert found is not None
    pods = client.list(kube_client.POD, f"job-id={JOB_ID}").objects
    return diagnosis.diagnose(diagnosis.Evidence(found, pods, hosts=2)), found.get("status", {})


@pytest.fixture
def gang(ask, node) -> Callable[[int], JobRequest]:
    def make(code: int) -> JobRequest:
        return ask(
            command=("python", "-c", GANG.format(code=code)),
            placement=place("cpu")._replace(hosts=2),
            node_selector={"kubernetes.io/hostname": node},
        )

    return make


def test_a_set_that_lost_a_host_starts_again_as_a_whole_and_does_not_count_it(kube, gang) -> None:
    name = start_set(kube, gang(task.INFRASTRUCTURE_EXIT))

    wait_for("its end", lambda: look_at_set(kube, name)[0].status is JobStatus.SUCCEEDED, 60)

    status = look_at_set(kube, name)[1]
    assert status["restarts"] == 1
    assert status.get("restartsCountTowardsMax", 0) == 0


def test_a_verdict_on_one_host_ends_the_whole_set(kube, gang) -> None:
    name = start_set(kube, gang(task.FAILED_EXIT))

    found = wait_for("its end", lambda: (each := look_at_set(kube, name))[0].status is JobStatus.FAILED and each, 60)

    assert found[1].get("restarts", 0) == 0
    wait_for("the other host to end", lambda: not running(kube))


def running(client: Client) -> list[dict]:
    pods = client.list(kube_client.POD, f"job-id={JOB_ID}").objects
    return [pod for pod in pods if pod["status"]["phase"] == "Running"]


def test_a_verdict_on_one_host_ends_an_indexed_job(kube, gang) -> None:
    request = gang(task.FAILED_EXIT)
    manifest = job_manifests.indexed_job(replace(request, environment={"JOBSET_RESTART_ATTEMPT": "0"}))
    manifest["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    made = kube.create(kube_client.JOB, manifest)
    kube.create(kube_client.SERVICE, job_manifests.service(request, made["metadata"]["uid"]))
    name = made["metadata"]["name"]
    kube.patch(kube_client.JOB, name, {"spec": {"suspend": False}})

    found = wait_for("its end", lambda: (each := look(kube, name, hosts=2)).status is JobStatus.FAILED and each, 60)

    assert (found.code, found.what) == ("failed", "host 1: it failed")
    wait_for("the other host to end", lambda: not running(kube))


def test_the_template_of_pods_is_one_for_all(ask) -> None:
    request = ask("tpu-v6e-4x4")

    assert (
        job_manifests.indexed_job(request)["spec"]["template"]["spec"]["containers"]
        == (job_manifests.pod_template(request)["spec"]["containers"])
    )


@pytest.mark.parametrize("is_in_files", [True, False])
def test_a_client_certificate_is_accepted_and_one_that_has_expired_is_named(
    plane: Plane, tmp_path: Path, is_in_files: bool
) -> None:
    def access(name: str, days: tuple[float, float]) -> Access:
        pair = plane.authority.issue(name, organization="system:masters", folder=tmp_path, days=days)
        user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        if not is_in_files:
            user = {f"{each}-data": base64.b64encode(Path(path).read_bytes()).decode() for each, path in user.items()}
        page = yaml.safe_load(plane.kubeconfig.read_text())
        page["users"][0]["user"] = user
        page["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{plane.ports.api}"  # the proxy ends TLS
        (tmp_path / name).write_text(yaml.safe_dump(page))
        return context_access("", {"KUBECONFIG": str(tmp_path / name)})

    with contextlib.closing(Client(access("ann", (-1, 1)), "default", Retry(1))) as client:
        assert client.get(kube_client.JOB, "none") is None
    with (
        contextlib.closing(Client(access("bob", (-9, -1)), "default", Retry(1))) as client,
        pytest.raises(CredentialsError, match="the client certificate expired on"),
    ):
        client.get(kube_client.JOB, "none")

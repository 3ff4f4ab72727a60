"""What is checked before a job, on a real API server: who we are, what we may do, what is there, which nodes fit.

Users are service accounts with tokens of their own, so that RBAC decides as everywhere; what an error tells the reader
to type is then done, and has to help.
"""

from __future__ import annotations

import base64
import contextlib
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import nodes, settings
from cluster.accounts import RBAC, account_token, bind
from cluster.plane import Plane, wait_for
from cluster.processes import answers

from kinetic._backends.kube import client, discovery, preflight
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import ClusterAddress, FixedCredential, connect
from kinetic._backends.kube.discovery import kind_for_slices
from kinetic._backends.kube.preflight import check, service_account
from kinetic._backends.kube.transport import Access
from kinetic._config.cluster import ClusterSettings
from kinetic._google.clusters import NodePool, NodePools
from kinetic._hardware import place
from kinetic._stores.parallel import Retry
from kinetic.errors import AccessDeniedError, CapacityError, CredentialsError, KineticError, LaunchError

pytestmark = pytest.mark.timeout(120)

PLAIN = ClusterSettings()

Connect = Callable[..., Client]


@pytest.fixture
def connect_as(plane, namespace) -> Iterator[Connect]:
    """Return a function: a client that is a service account, made for the test, with a role or none."""
    with contextlib.ExitStack() as stack:

        def make(name: str = "user", role: str = "", where: str = "") -> Client:
            token = account_token(plane, namespace, name)
            if role:
                bind(plane, namespace, f"{name}-{role}", {"kind": "ClusterRole", "name": role}, name)
            client = client_of(plane, token, where or namespace)
            stack.callback(client.close)
            return client

        yield make


@pytest.fixture
def admin(plane, namespace) -> Iterator[Client]:
    """Somebody who may do everything, list nodes among it."""
    with contextlib.closing(client_of(plane, plane.client.token, namespace)) as client:
        yield client


def client_of(plane: Any, token: str, namespace: str) -> Client:
    authority = plane.authority.certificate.read_bytes()
    access = Access(plane.client.url, "the test cluster", FixedCredential(f"Bearer {token}"), authority)
    return Client(access, namespace, Retry(4, 0.05, 1.0, 30.0))


def type_in(plane: Any, command: str) -> None:
    """Do what kubectl does for a command, as the administrator."""
    words = shlex.split(command)
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
    namespace = words[words.index("-n") + 1]
    match words[:3]:
        case ["kubectl", "create", "namespace"]:
            plane.api.create("/api/v1/namespaces", {"metadata": {"name": words[3]}})
        case ["kubectl", "create", "serviceaccount"]:
            plane.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": words[3]}})
        case ["kubectl", "create", "role"]:
            resource, _, group = options["resource"].partition(".")
            rule = {"verbs": options["verb"].split(","), "apiGroups": [group], "resources": [resource]}
            body = {"metadata": {"name": words[3]}, "rules": [rule]}
            plane.api.create(f"{RBAC}/namespaces/{namespace}/roles", body)
        case ["kubectl", "create", "rolebinding"]:
            kind = "ClusterRole" if "clusterrole" in options else "Role"
            role = {"kind": kind, "name": options.get("clusterrole") or options["role"]}
            whose, _, account = options["serviceaccount"].partition(":")
            assert whose == namespace
            bind(plane, namespace, words[3], role, account)
        case _:
            pytest.fail(f"nobody can type {command!r}")


def do_as_told(plane: Any, error: KineticError) -> None:
    for command in error.next.partition("     ")[0].split(" && "):
        type_in(plane, command)


def allowed(client: Client, accelerator: str) -> Any:
    """Check again until the server has taken the new roles in: its authorizer learns of them by a watch."""

    def ask() -> Any:
        try:
            return (check(client, place(accelerator), PLAIN),)
        except AccessDeniedError:
            return None

    return wait_for("roles to take effect", ask)[0]


# ----------------------------------------------------------------------------------------------------- who, and where


def test_somebody_with_the_usual_role_may_submit_a_job_and_is_asked_about_it_once(plane, connect_as, namespace) -> None:
    editor = connect_as("editor", "edit")
    assert allowed(editor, "cpu") == ()

    plane.proxy.seen.clear()
    check(editor, place("cpu"), PLAIN)

    assert plane.proxy.seen == []


def test_an_administrator_costs_three_requests(plane, admin) -> None:
    assert check(admin, place("cpu"), PLAIN) == ()

    assert len(plane.proxy.seen) == 3


def test_somebody_whom_the_server_does_not_know_has_no_credentials(plane, admin) -> None:
    stranger = client_of(plane, "nobody-has-this", admin.namespace)

    with contextlib.closing(stranger), pytest.raises(CredentialsError, match="rejected our credentials"):
        check(stranger, place("gpu-l4"), ClusterSettings(queue="q"))


def test_a_namespace_that_is_missing_is_found_by_whoever_may_look(plane, admin) -> None:
    admin.namespace = "nowhere"

    with pytest.raises(LaunchError) as caught:
        check(admin, place("cpu"), PLAIN)

    assert caught.value.code == "namespace-missing"
    assert caught.value.next.startswith("kubectl create namespace nowhere")


def test_a_namespace_that_is_missing_is_found_by_whoever_may_not_look(plane, connect_as, namespace) -> None:
    """Somebody who may make things in every namespace, and look at none."""
    name = f"maker-{namespace}"
    rules = [{"verbs": ["create"], "apiGroups": [""], "resources": ["configmaps"]}]
    maker = connect_as("maker", where="nowhere")
    plane.api.create(f"{RBAC}/clusterroles", {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "maker", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    body = {"metadata": {"name": name}, "roleRef": role, "subjects": [subject]}
    plane.api.create(f"{RBAC}/clusterrolebindings", body)
    try:

        def refused() -> KineticError:
            with pytest.raises((LaunchError, AccessDeniedError)) as caught:
                check(maker, place("cpu"), PLAIN)
            return caught.value

        wait_for("the role to take effect", lambda: refused().code == "namespace-missing")
    finally:
        plane.api.delete(f"{RBAC}/clusterrolebindings/{name}")
        plane.api.delete(f"{RBAC}/clusterroles/{name}")


# -------------------------------------------------------------------------------------------------------- permissions


def test_somebody_without_a_role_is_told_a_command_that_helps(plane, connect_as, namespace) -> None:
    user = connect_as("user")

    with pytest.raises(AccessDeniedError) as caught:
        check(user, place("cpu"), PLAIN)
    do_as_told(plane, caught.value)

    assert f"system:serviceaccount:{namespace}:user" in caught.value.why
    (note,) = allowed(user, "cpu")  # what the command gives does not include looking at service accounts
    assert "pods use the default one" in note


def test_somebody_who_may_look_only_is_told_what_is_missing(plane, connect_as) -> None:
    viewer = connect_as("viewer", "view")
    wait_for("the role to take effect", lambda: viewer.review_access("list", client.JOB).allowed)

    with pytest.raises(AccessDeniedError) as caught:
        check(viewer, place("cpu"), PLAIN)

    assert caught.value.what.endswith(": create jobs, delete jobs, patch jobs, create secrets, create configmaps")


def test_slices_need_a_role_for_jobsets_and_the_command_makes_it(plane, connect_as) -> None:
    editor = connect_as("editor", "edit")
    allowed(editor, "cpu")

    with pytest.raises(AccessDeniedError) as caught:
        check(editor, place("tpu-v5e-4x4"), PLAIN)
    do_as_told(plane, caught.value)

    assert "create jobsets.jobset.x-k8s.io" in caught.value.what
    assert allowed(editor, "tpu-v5e-4x4") == ()  # and nodes, which it may not list, are not held against it


def test_whoever_is_let_in_can_make_what_a_job_needs(plane, connect_as, namespace) -> None:
    """The list of permissions is the one that making, watching and removing a job takes."""
    editor = connect_as("editor", "edit")
    allowed(editor, "cpu")
    pod = {"restartPolicy": "Never", "containers": [{"name": "m", "image": "i"}]}
    job = {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": {"spec": pod}}}

    made = editor.create(client.JOB, job)
    editor.create(client.SECRET, {"metadata": {"name": "s"}})
    editor.create(client.CONFIG_MAP, {"metadata": {"name": "c"}})
    editor.create(client.CONFIG_MAP, {"metadata": {"name": "c"}})  # one that is there already
    editor.patch(client.JOB, "j", {"spec": {"suspend": False}})

    assert editor.list(client.POD).version
    assert editor.delete(client.JOB, "j", uid=made["metadata"]["uid"])


# ------------------------------------------------------------------------------------------- what the settings name


def test_a_service_account_is_the_named_one_or_kinetic_or_the_default(plane, namespace, admin) -> None:
    assert service_account(admin, PLAIN) == ""

    with pytest.raises(LaunchError) as caught:
        check(admin, place("cpu"), ClusterSettings(service_account="trainer"))
    do_as_told(plane, caught.value)

    assert caught.value.code == "service-account"
    assert check(admin, place("cpu"), ClusterSettings(service_account="trainer")) == ()
    assert service_account(admin, ClusterSettings(service_account="trainer")) == "trainer"


def test_a_service_account_called_kinetic_is_taken(plane, namespace, admin) -> None:
    plane.api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "kinetic"}})

    assert service_account(admin, PLAIN) == "kinetic"


def test_a_queue_must_exist_where_kueue_is(plane, namespace, admin) -> None:
    chosen = ClusterSettings(queue="team-a")
    with pytest.raises(LaunchError) as caught:
        check(admin, place("cpu"), chosen)
    assert caught.value.what == f"the namespace {namespace} has no queue team-a"

    queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "LocalQueue",
        "metadata": {"name": "team-a"},
        "spec": {"clusterQueue": "all"},
    }
    plane.api.create(client.LOCAL_QUEUE.path(namespace), queue)

    assert check(admin, place("cpu"), chosen) == ()


class Bare(Plane):
    """A server that was taught nothing: no JobSet, no Kueue, and nobody behind it."""

    def _start(self) -> None:
        self._run("etcd", settings.etcd(self.folder, self.ports))
        self._processes["etcd"].wait_until(lambda: answers(self.ports.etcd, "/health", tls=False))
        self.start_api_server()


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The administrator of such a server."""
    plane = Bare(tmp_path_factory.mktemp("bare")).start()
    try:
        with contextlib.closing(client_of(plane, plane.client.token, "default")) as client:
            yield client
    finally:
        plane.stop()


def test_a_queue_where_kueue_is_not_is_refused(bare) -> None:
    with pytest.raises(LaunchError, match="queue team-a cannot be used"):
        check(bare, place("cpu"), ClusterSettings(queue="team-a"))


def test_without_jobset_a_slice_is_an_indexed_job(bare) -> None:
    assert kind_for_slices(bare) is client.JOB


def test_no_nodes_and_no_trace_of_an_autoscaler_are_a_sentence_that_says_so(bare) -> None:
    (said,) = check(bare, place("gpu-l4"), PLAIN)

    assert "has the labels cloud.google.com/gke-accelerator=nvidia-l4" in said
    assert "nothing here seems to add nodes automatically" in said


def test_a_priority_class_must_exist_and_every_cluster_has_two(admin) -> None:
    with pytest.raises(LaunchError) as caught:
        check(admin, place("cpu"), ClusterSettings(priority_class="high"))

    assert caught.value.code == "priority-class"
    assert check(admin, place("cpu"), ClusterSettings(priority_class="system-node-critical")) == ()


def test_the_secret_of_the_store_must_exist_and_what_is_in_it_is_not_asked_for(plane, namespace, admin) -> None:
    chosen = ClusterSettings(store_secret="aws")
    with pytest.raises(LaunchError) as caught:
        check(admin, place("cpu"), chosen)
    assert caught.value.code == "secret-missing"

    body = {"metadata": {"name": "aws"}, "stringData": {"AWS_SECRET_ACCESS_KEY": "hush"}}
    plane.api.create(f"/api/v1/namespaces/{namespace}/secrets", body)

    assert check(admin, place("cpu"), chosen) == ()
    answer = admin.transport.send("GET", client.SECRET.path(namespace, "aws"), headers=preflight._HEADERS).body
    assert base64.b64encode(b"hush") not in answer


# ------------------------------------------------------------------------------------------------------ kinds, nodes


@pytest.fixture
def up(plane, add_node) -> Callable[[nodes.NodeSpec], str]:
    """Return a function that adds a node and waits until it may take pods."""

    def add(spec: nodes.NodeSpec) -> str:
        name = add_node(spec)
        wait_for(f"{name} to be ready", lambda: "node.kubernetes.io/not-ready" not in taints(plane, name))
        return name

    return add


def taints(plane: Any, node: str) -> set[str]:
    return {each["key"] for each in plane.api.get(f"/api/v1/nodes/{node}")["spec"].get("taints") or ()}


def test_slices_are_jobsets_where_they_are_served_and_one_request_tells(plane, admin) -> None:
    assert kind_for_slices(admin) is client.JOB_SET

    assert [each.target for each in plane.proxy.seen] == ["/apis"]
    assert "v1" in discovery.api_groups(admin)["leaderworkerset.x-k8s.io"]


def test_nodes_with_googles_labels_and_taints_are_enough(up, namespace, admin) -> None:
    up(nodes.gpu(f"gpu-{namespace}"))
    for host in range(4):
        up(nodes.tpu(f"tpu-{host}-{namespace}", topology="4x4"))

    assert check(admin, place("gpu-l4"), PLAIN) == ()
    assert check(admin, place("tpu-v5e-4x4"), PLAIN) == ()


def test_a_spot_node_is_for_spot_jobs(up, namespace, admin) -> None:
    up(nodes.gpu(f"gpu-{namespace}", "nvidia-tesla-t4", spot=True))

    assert check(admin, place("gpu-t4:spot"), PLAIN) == ()
    assert "accept its pods" in check(admin, place("gpu-t4"), PLAIN)[0]


def test_a_node_of_a_queued_pool_is_for_jobs_of_a_queue(up, namespace, admin) -> None:
    node = nodes.gpu(f"gpu-{namespace}", "nvidia-tesla-p4")
    up(node._replace(taints=(*node.taints, ("cloud.google.com/gke-queued", "true", "NoSchedule"))))

    def said(settings: ClusterSettings) -> tuple[str, ...]:
        return tuple(preflight.questions(admin, place("gpu-p4"), settings)["nodes"]())

    assert said(ClusterSettings(queue="dws")) == ()
    assert "accept its pods" in said(PLAIN)[0]


def test_a_slice_that_lacks_a_host_is_a_sentence(up, namespace, admin) -> None:
    for host in range(3):
        up(nodes.tpu(f"tpu-{host}-{namespace}", "tpu-v6e-slice", "4x4"))

    (said,) = check(admin, place("tpu-v6e-4x4"), PLAIN)

    assert "too few have 4 google.com/tpu" in said
    assert said.endswith("which an autoscaler may bring about")  # nodes of GKE are a trace of one


def test_a_cordoned_node_does_not_count(plane, up, namespace, admin) -> None:
    name = up(nodes.gpu(f"gpu-{namespace}", "nvidia-tesla-v100"))
    plane.api.merge(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
    wait_for("the cordon to become a taint", lambda: "node.kubernetes.io/unschedulable" in taints(plane, name))

    assert "accept its pods" in check(admin, place("gpu-v100"), PLAIN)[0]


def test_labels_of_other_clusters_are_looked_for_where_the_settings_name_them(plane, up, namespace, admin) -> None:
    name = up(nodes.gpu(f"gpu-{namespace}", "nvidia-something"))
    plane.api.merge(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"gpu": namespace}}})

    assert check(admin, place("gpu-l4"), ClusterSettings(node_selector={"gpu": namespace})) == ()


def test_what_google_says_of_node_pools_decides_where_no_node_is_up(admin) -> None:
    bare = NodePools("p", "us-west4-a", "c", ("us-west4-a",), autopilot=False, limits=None, pools=())
    growing = bare._replace(pools=(NodePool("b200", "a4-highgpu-8g", (("nvidia-b200", 8),), max_nodes=2),))

    with pytest.raises(CapacityError) as caught:
        check(admin, place("gpu-b200x8"), PLAIN, pools=lambda: bare)
    (said,) = check(admin, place("gpu-b200x8"), PLAIN, pools=lambda: growing)

    assert caught.value.next.startswith("gcloud container node-pools create kinetic-gpu-b200x8 --cluster c")
    assert said.endswith("the node pool b200 can grow to 2 such nodes")


# ------------------------------------------------------------------------------------------------------ inside a pod


def test_inside_a_pod_its_service_account_is_who_we_are(plane, namespace, tmp_path: Path) -> None:
    token = account_token(plane, namespace, "insider")
    bind(plane, namespace, "insider", {"kind": "ClusterRole", "name": "edit"}, "insider")
    for name, text in {
        "token": token,
        "namespace": namespace,
        "ca.crt": plane.authority.certificate.read_text(),
    }.items():
        (tmp_path / name).write_text(text)
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(plane.ports.api)}

    with contextlib.closing(connect(ClusterAddress("", "", "", "", ""), environ, folder=tmp_path)) as client:
        assert client.namespace == namespace
        assert allowed(client, "cpu") == ()

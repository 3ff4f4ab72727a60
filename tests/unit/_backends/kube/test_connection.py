"""From settings to a client: which cluster is meant, one client for it, and none that a parent process has opened."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from servers.google_cloud import GoogleCloud

from kinetic._backends.kube import connection
from kinetic._backends.kube.connection import ClusterAddress, client_of, connect, pools_of
from kinetic.errors import BackendUnavailableError, CredentialsError, SettingsError

NOWHERE = ClusterAddress("", "us-central1-a", "kinetic-cluster", "", "")
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
GKE = NOWHERE._replace(project="my-project")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    _close_clients()  # of a test before
    yield
    _close_clients()


def _close_clients() -> None:
    for slot in connection._clients.slots.values():
        if slot.client is not None:
            slot.client.close()
    connection._forget_clients()


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    write(path, "https://127.0.0.1:1")
    return path


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """The folder that Kubernetes gives to each pod."""
    folder = tmp_path / "account"
    folder.mkdir()
    for name, text in {"ca.crt": "", "namespace": "inside\n", "token": "mine"}.items():
        (folder / name).write_text(text)
    return folder


def write(path: Path, server: str, *, namespace: str = "team", token: str = "t") -> None:
    context = {"cluster": "dev", "user": "dev", "namespace": namespace}
    page = {
        "clusters": [{"name": "dev", "cluster": {"server": server}}],
        "users": [{"name": "dev", "user": {"token": token}}],
        "contexts": [{"name": "dev", "context": context}],
    }
    path.write_text(yaml.safe_dump(page))


def server_of(client: Any) -> str:
    return client.transport.access.server


# ------------------------------------------------------------------------------------------------------ which cluster


def test_a_context_is_looked_for_in_the_files_of_kubeconfig(kubeconfig: Path) -> None:
    client = connect(NOWHERE._replace(context="dev", project="my-project"), {"KUBECONFIG": str(kubeconfig)})

    assert (client.about, server_of(client)) == ("the context dev", "https://127.0.0.1:1")


@pytest.mark.parametrize(("asked", "expected"), [("", "team"), ("research", "research")])
def test_a_namespace_that_is_named_wins_over_that_of_the_context(kubeconfig: Path, asked: str, expected: str) -> None:
    client = connect(NOWHERE._replace(context="dev", namespace=asked), {"KUBECONFIG": str(kubeconfig)})

    assert client.namespace == expected


def test_without_any_namespace_it_is_default(kubeconfig: Path) -> None:
    write(kubeconfig, "https://127.0.0.1:1", namespace="")

    assert connect(NOWHERE._replace(context="dev"), {"KUBECONFIG": str(kubeconfig)}).namespace == "default"


def test_a_context_that_is_nowhere_is_an_error_of_settings(kubeconfig: Path) -> None:
    with pytest.raises(SettingsError, match="no context 'prod'"):
        connect(NOWHERE._replace(context="prod"), {"KUBECONFIG": str(kubeconfig)})


def test_inside_a_pod_its_own_cluster_is_meant(account: Path) -> None:
    client = connect(NOWHERE, POD, folder=account)

    assert (server_of(client), client.namespace) == ("https://10.0.0.1:443", "inside")
    assert client.transport.access.credential.header() == "Bearer mine"


def test_a_context_and_a_project_win_over_the_pod_that_we_run_in(kubeconfig: Path, account: Path) -> None:
    environ = {**POD, "KUBECONFIG": str(kubeconfig)}

    assert connect(NOWHERE._replace(context="dev"), environ, folder=account).about == "the context dev"


def test_one_name_of_a_context_means_the_pod_whatever_else_is_set(account: Path) -> None:
    client = connect(GKE._replace(context="in-cluster"), POD, folder=account)

    assert client.about == "the cluster of this pod"


def test_outside_of_a_pod_that_name_says_what_is_missing() -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        connect(NOWHERE._replace(context="in-cluster"), {})

    assert "only inside a pod" in caught.value.what
    assert "KUBERNETES_SERVICE_HOST" in caught.value.why


def test_a_pod_without_a_token_says_so(tmp_path: Path) -> None:
    with pytest.raises(CredentialsError, match="has no token"):
        connect(NOWHERE, POD, folder=tmp_path)


def test_when_nothing_says_which_cluster_both_ways_to_say_it_are_named() -> None:
    with pytest.raises(BackendUnavailableError) as caught:
        connect(NOWHERE, {})

    assert "KINETIC_PROJECT" in caught.value.next
    assert "KINETIC_KUBE_CONTEXT" in caught.value.next


@pytest.mark.parametrize("library", ["yaml", "google.auth"])
def test_a_library_that_is_not_installed_comes_with_the_command(
    library: str, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> object:
        if name == library == "google.auth":
            raise ModuleNotFoundError(name)
        return None if name == library else object()

    monkeypatch.setattr(connection.importlib.util, "find_spec", find)
    asked = GKE if library == "google.auth" else NOWHERE._replace(context="dev")

    with pytest.raises(BackendUnavailableError) as caught:
        connect(asked, {"KUBECONFIG": str(kubeconfig)})

    assert library in caught.value.why
    assert caught.value.next == 'pip install "kinetic-jobs[gke]"'


# --------------------------------------------------------------------------------------------------------------- GKE


@pytest.fixture
def google(tmp_path: Path) -> Iterator[tuple[GoogleCloud, dict[str, str]]]:
    """Google's container API and what hands out tokens, and the environment that leads to both."""
    with GoogleCloud("my-project") as cloud:
        cloud.container.add("us-central1-a", "kinetic-cluster")
        yield cloud, cloud.environ(tmp_path)
        assert cloud.wrong == []


def test_a_project_means_the_endpoint_of_its_cluster_at_google(google) -> None:
    _, environ = google

    client = client_of(GKE, environ)

    assert server_of(client) == "https://203.0.113.7"
    assert client.about == "the cluster kinetic-cluster in us-central1-a of my-project"
    assert client.transport.access.credential.header() == "Bearer token"


def test_a_token_that_is_refused_is_exchanged(google) -> None:
    cloud, environ = google
    credential = client_of(GKE, environ).transport.access.credential
    first = credential.header()
    cloud.token = "another"

    assert (credential.header(), credential.header(rejected=first)) == (first, "Bearer another")


def test_node_pools_are_asked_for_with_the_same_token(google) -> None:
    cloud, environ = google
    cloud.container.add("us-central1-a", "kinetic-cluster", nodePools=[{"name": "p"}])
    client_of(GKE, environ)
    cloud.token = "another"

    found = pools_of(GKE, environ)

    assert [pool.name for pool in found.pools] == ["p"]
    assert [call.headers["authorization"] for call in cloud.calls] == ["Bearer token"] * 2


def test_node_pools_that_nobody_tells_are_unknown(google) -> None:
    cloud, environ = google
    cloud.denied = {"container.clusters.get"}

    assert pools_of(GKE, environ) is None
    assert pools_of(GKE._replace(context="dev"), environ) is None
    assert pools_of(NOWHERE, environ) is None


def test_another_login_makes_another_client(google, tmp_path: Path) -> None:
    _, environ = google
    first = client_of(GKE, environ)

    page = json.loads((tmp_path / "login.json").read_text())
    (tmp_path / "login.json").write_text(json.dumps(page | {"client_email": "somebody-else@example.com"}))

    assert client_of(GKE, environ) is not first


# --------------------------------------------------------------------------------------------- one client, one process


@pytest.fixture
def dev(kubeconfig: Path) -> Callable[[], Any]:
    return lambda: client_of(NOWHERE._replace(context="dev"), {"KUBECONFIG": str(kubeconfig)})


def test_a_place_has_one_client(dev: Callable[[], Any]) -> None:
    assert dev() is dev()


def test_two_namespaces_and_two_environments_have_two(kubeconfig: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    write(other, "https://127.0.0.1:2")
    place = NOWHERE._replace(context="dev")
    environ = {"KUBECONFIG": str(kubeconfig)}

    found = [
        client_of(place, environ),
        client_of(place._replace(namespace="b"), environ),
        client_of(place, {"KUBECONFIG": str(other)}),
    ]

    assert len({id(client) for client in found}) == 3
    assert client_of(place, environ) is found[0]  # the others have not driven it out
    assert server_of(found[2]) == "https://127.0.0.1:2"


def test_a_kubeconfig_that_was_written_anew_is_read_anew(dev: Callable[[], Any], kubeconfig: Path) -> None:
    first = dev()

    write(kubeconfig, "https://127.0.0.1:1", token="after-a-login")

    assert dev() is not first
    assert dev().transport.access.credential.header() == "Bearer after-a-login"
    assert {slot.client for slot in connection._clients.slots.values()} == {dev()}


def test_a_context_and_the_name_of_its_namespace_have_one_client(dev: Callable[[], Any], kubeconfig: Path) -> None:
    first = dev()

    named = NOWHERE._replace(context="dev", namespace=first.namespace)
    assert client_of(named, {"KUBECONFIG": str(kubeconfig)}) is first


def test_threads_that_come_at_once_share_one_client(dev: Callable[[], Any]) -> None:
    found: list[Any] = []
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait()
        found.append(dev())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({id(client) for client in found}) == 1


def test_a_client_that_could_not_be_made_is_tried_again(dev: Callable[[], Any], kubeconfig: Path) -> None:
    text = kubeconfig.read_text()
    kubeconfig.unlink()
    with pytest.raises(SettingsError):
        dev()

    kubeconfig.write_text(text)

    assert dev().about == "the context dev"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads; from 3.12
def test_a_forked_child_has_clients_of_its_own_even_while_a_thread_of_the_parent_connects(dev) -> None:
    before = dev()
    held = connection._clients

    with held.lock:  # as by a thread, which the child does not have
        pid = os.fork()
        if pid == 0:
            signal.alarm(5)  # a lock that is never freed must not outlive the test
            os._exit(0 if dev() is not before and connection._clients is not held else 1)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert dev() is before

"""`kinetic doctor` and `kinetic status` on a real API server, found by a kubeconfig or through the fake of Google."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import nodes
from cluster.accounts import account_token, bind
from servers.google_cloud import GoogleCloud

from kinetic._backends.kube.client import Client
from kinetic._backends.kube.connection import FixedCredential
from kinetic._backends.kube.transport import Access
from kinetic._cluster import checks, cluster_checks
from kinetic._cluster.cluster_checks import ClusterChecks
from kinetic._cluster.live_status import read_status
from kinetic._cluster.project_apis import ProjectApis
from kinetic._config import target as settings
from kinetic._google.login import Tokens
from kinetic._stores.parallel import Retry

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def client(plane, namespace, monkeypatch) -> Iterator[Client]:
    authority = plane.authority.certificate.read_bytes()
    access = Access(plane.client.url, "the test cluster", FixedCredential(f"Bearer {plane.client.token}"), authority)
    with contextlib.closing(Client(access, namespace, Retry(4, 0.05, 1.0, 30.0))) as made:
        monkeypatch.setattr(cluster_checks, "client_of", lambda *_: made)
        yield made


def foreign(tmp_path: Path, namespace: str, accelerator: str = "") -> list[checks.Check]:
    environ = {
        "KINETIC_BACKEND": "gke",
        "KINETIC_KUBE_CONTEXT": "any",
        "KINETIC_NAMESPACE": namespace,
        "KINETIC_STORE": "s3://bucket/jobs",
        "KINETIC_HOME": str(tmp_path),
    }
    return ClusterChecks(settings.resolve(environ=environ), environ, accelerator).checks()


def test_a_foreign_cluster_is_checked_and_its_account_is_made(client, namespace, tmp_path) -> None:
    asked = foreign(tmp_path, namespace)
    found = {each.key: each for each in checks.run(asked)}
    assert {key: each.level for key, each in found.items() if each.level != "PASS"} == {"service-account": "WARN"}

    (after,) = checks.repair(asked, list(found.values()))

    assert after.level == "PASS"
    assert after.what.startswith("jobs run as kinetic; their pods may not start jobs that follow theirs")
    assert {each.level for each in checks.run(foreign(tmp_path, namespace))} == {"PASS"}


@pytest.mark.parametrize("role", ["", "edit"])
def test_somebody_with_few_rights_is_told_what_is_not_known_and_needs_no_rights_for_slices(
    plane, client, namespace, tmp_path, role: str, monkeypatch
) -> None:
    token = account_token(plane, namespace, "ada")
    if role:
        bind(plane, namespace, "ada-edit", {"kind": "ClusterRole", "name": role}, "ada")
    access = replace(client.transport.access, credential=FixedCredential(f"Bearer {token}"))
    with contextlib.closing(Client(access, namespace if role else "no-such", Retry(4, 0.05, 1.0, 30.0))) as ada:
        monkeypatch.setattr(cluster_checks, "client_of", lambda *_: ada)
        found = {each.key: each for each in checks.run(foreign(tmp_path, ada.namespace))}

    assert found["namespace"].level == ("PASS" if role else "WARN")
    assert found["permissions"].level == ("PASS" if role else "FAIL")
    assert (found["jobset"].level, "only slices" in found["jobset"].what) == ("WARN", True)


def test_a_namespace_that_is_missing_is_made(plane, client, tmp_path, namespace) -> None:
    client.namespace = f"{namespace}-new"
    asked = foreign(tmp_path, client.namespace)

    (after,) = checks.repair(asked, list(checks.run(asked)))

    assert (after.key, after.level) == ("namespace", "PASS")
    plane.delete_namespace(client.namespace)


def test_a_status_through_google_has_the_nodes_of_the_cluster(client, add_node, namespace, tmp_path) -> None:
    add_node(nodes.cpu(f"node-{namespace}"))
    with GoogleCloud() as cloud:
        cloud.container.add("us-west4", "team", autopilot={"enabled": True})
        environ = cloud.environ(tmp_path)
        apis = ProjectApis(cloud.project, Tokens(environ), environ)

        found = read_status(client, apis, cloud.project, "us-west4", "team")

        assert (found.state, found.mode, found.unknown) == ("RUNNING", "Autopilot", ())
        assert f"node-{namespace}" in [node.name for node in found.nodes]
        assert cloud.wrong == []

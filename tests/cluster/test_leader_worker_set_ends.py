"""A LeaderWorkerSet goes when its slice has its verdict: the leader deletes it with the token of its pod."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster.accounts import account_token, bind

from kinetic._runner.pod import rendezvous

SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/{}/leaderworkersets"
TEMPLATE = {"spec": {"containers": [{"name": "c", "image": "python:3.11"}]}}


@pytest.fixture
def made(plane, namespace: str) -> str:
    """The path of a LeaderWorkerSet; no controller makes pods of it here."""
    about = {"name": "kinetic-x", "namespace": namespace}
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": TEMPLATE}}
    manifest = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": about, "spec": spec}
    plane.api.create(SETS.format(namespace), manifest)
    return f"{SETS.format(namespace)}/kinetic-x"


@pytest.fixture
def pod(plane, namespace: str, tmp_path: Path):
    """What a pod finds: where the API is, and a token of its service account."""

    def make(role: str) -> tuple[dict[str, str], Path]:
        (tmp_path / "token").write_text(account_token(plane, namespace, "slice"))
        (tmp_path / "ca.crt").write_text(plane.authority.certificate.read_text())
        bind(plane, namespace, "slice", {"kind": "ClusterRole", "name": role}, "slice")
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(plane.ports.api)}, tmp_path

    return make


def test_the_set_is_gone_afterwards_and_a_second_try_is_success(plane, made: str, pod) -> None:
    environ, folder = pod("cluster-admin")

    assert rendezvous.remove_own_slice(made, environ, folder) == ""
    assert rendezvous.remove_own_slice(made, environ, folder) == ""


def test_who_may_not_delete_it_is_told(made: str, pod) -> None:
    environ, folder = pod("view")

    assert "403" in rendezvous.remove_own_slice(made, environ, folder)


def test_a_pod_without_a_token_says_so(made: str, tmp_path: Path) -> None:
    assert "FileNotFoundError" in rendezvous.remove_own_slice(made, {}, tmp_path)

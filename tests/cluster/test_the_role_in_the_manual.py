"""The Role that docs/clusters.md offers is enough to submit, watch and remove jobs, on a real API server."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from cluster.access import RefusedError
from cluster.manifests import objects_on
from cluster.test_preflight import RBAC, allowed, bind, connect_as

from kinetic._backends.kube import client, job_manifests
from kinetic._backends.kube.client import Client
from kinetic._backends.kube.job_launcher import JobLauncher

__all__ = ["connect_as"]

pytestmark = pytest.mark.timeout(120)

PAGE = "clusters.md"


@pytest.fixture
def submitter(plane: Any, namespace: str, connect_as: Callable[..., Client]) -> Client:
    """Somebody who has the rights on the page, and no other."""
    role = objects_on(PAGE)["Role"]
    plane.api.create(f"{RBAC}/namespaces/{namespace}/roles", role | {"metadata": {"name": role["metadata"]["name"]}})
    client = connect_as("submitter")
    bind(plane, namespace, "submitter", {"kind": "Role", "name": role["metadata"]["name"]}, "submitter")
    allowed(client, "cpu")
    return client


@pytest.mark.parametrize("accelerator", ["cpu", "gpu-l4", "tpu-v5e-4x4"])
def test_whoever_has_the_role_may_submit(submitter: Client, accelerator: str) -> None:
    assert isinstance(allowed(submitter, accelerator), tuple)  # nodes, which it may not see, are not held against it


def test_whoever_has_the_role_can_make_and_remove_what_a_job_needs(submitter: Client, namespace: str) -> None:
    pod = {"restartPolicy": "Never", "containers": [{"name": "m", "image": "i"}]}
    job = {"metadata": {"name": "j"}, "spec": {"suspend": True, "template": {"spec": pod}}}
    launcher = JobLauncher(lambda: submitter, os.environ)

    assert launcher.ensure_runner().startswith("kinetic-runner-")
    made = submitter.create(client.JOB, job)
    assert submitter.patch(client.JOB, "j", {"spec": {"suspend": False}})
    assert submitter.list(client.POD).version
    assert submitter.list(client.EVENT).version
    assert submitter.delete(client.JOB, "j", uid=made["metadata"]["uid"])


def test_whoever_has_the_role_can_keep_and_forget_what_a_batch_needs(submitter: Client, namespace: str) -> None:
    secret = job_manifests.group_secret("grp-0123abcd", namespace, "ada", {"job-key": b"k" * 32}, {})
    name = job_manifests.object_name("grp-0123abcd")

    submitter.create(client.SECRET, secret)
    submitter.create(client.SECRET, secret)  # as if the first answer had been lost

    assert submitter.get(client.SECRET, name)
    assert submitter.delete(client.SECRET, name)


def test_the_api_server_takes_the_binding_on_the_page(plane: Any, namespace: str) -> None:
    binding = objects_on(PAGE)["RoleBinding"]
    binding["metadata"]["namespace"] = namespace

    try:
        made = plane.api.create(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)
    except RefusedError as error:
        pytest.fail(str(error))

    assert made["subjects"] == binding["subjects"]


def test_the_api_server_takes_the_network_policy_on_the_page_and_it_is_about_all_pods_of_jobs(
    plane: Any, namespace: str
) -> None:
    policy = objects_on(PAGE)["NetworkPolicy"]
    policy["metadata"]["namespace"] = namespace

    made = plane.api.create(f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies", policy)

    (about,) = made["spec"]["podSelector"]["matchExpressions"]
    assert about["key"] == job_manifests.APP_LABEL
    assert set(about["values"]) == {job_manifests.APP, job_manifests.APP_MULTI_HOST, job_manifests.APP_WARM}
    assert made["spec"]["ingress"][0]["from"] == [{"podSelector": made["spec"]["podSelector"]}]

"""Clusters with rules of their own: labels that each pod must have, taints, a container runtime by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cluster import nodes
from cluster.access import RefusedError
from cluster.plane import wait_for

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
RUNTIMES = "/apis/node.k8s.io/v1/runtimeclasses"
TAINT = ("dedicated", "research", "NoSchedule")


def here(namespace: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}


@pytest.fixture
def policy(site: Any) -> Iterator[None]:
    """A rule of the API server: every pod names its team."""
    name = f"team-{site.namespace}"
    spec = {
        "matchConstraints": here(site.namespace)
        | {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        },
        "validations": [
            {"expression": "'team' in object.metadata.?labels.orValue({})", "message": "each pod needs the label team"}
        ],
    }
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    site.api.create(POLICIES, {**kind, "kind": "ValidatingAdmissionPolicy", "spec": spec})
    bound = {"policyName": name, "validationActions": ["Deny"], "matchResources": here(site.namespace)}
    site.api.create(BINDINGS, {**kind, "kind": "ValidatingAdmissionPolicyBinding", "spec": bound})
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }  # fmt: skip

    def holds() -> bool:
        try:
            site.api.create(f"{site.core}/pods", pod, dryRun="All")
        except RefusedError as refused:
            return "each pod needs the label team" in str(refused)
        return False

    wait_for("the rule", holds)
    yield
    for path in (BINDINGS, POLICIES):
        site.api.delete(f"{path}/{name}")


@pytest.fixture
def runtime(site: Any) -> Iterator[str]:
    """A RuntimeClass; what it names is the node's affair."""
    name = f"runtime-{site.namespace}"
    about = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}}
    site.api.create(RUNTIMES, {**about, "handler": "runc"})
    yield name
    site.api.delete(f"{RUNTIMES}/{name}")


def test_a_job_goes_where_labels_taints_and_a_runtime_are_asked_for(
    clients: Any, site: Any, add_node: Any, namespace: str, policy: None, runtime: str, monkeypatch: Any
) -> None:
    add_node(nodes.cpu(f"machine-{namespace}")._replace(taints=(TAINT,)))
    monkeypatch.setenv("KINETIC_TOLERATIONS", "dedicated=research:NoSchedule")
    monkeypatch.setenv("KINETIC_LABELS", "team=vision,cost-center=42")
    monkeypatch.setenv("KINETIC_ANNOTATIONS", "example.com/note=from a test")
    monkeypatch.setenv("KINETIC_RUNTIME_CLASS", runtime)

    submit = "job = add.run_async(2, 3)\ntell((job.job_id, job.result(cleanup=False)))"
    job_id, value = clients.run(f"from one import add\n{submit}")

    assert value == 5
    (job,), (pod,) = site.jobs(job_id), site.pods_of(job_id)
    for found in (job, pod):
        assert found["metadata"]["labels"].items() >= {"team": "vision", "cost-center": "42", "job-id": job_id}.items()
    assert pod["metadata"]["annotations"]["example.com/note"] == "from a test"
    assert pod["spec"]["runtimeClassName"] == runtime


def test_the_reason_of_a_job_that_a_rule_refuses_names_the_setting(
    clients: Any, kinetic: Any, machine: str, policy: None
) -> None:
    job_id = clients.run("from one import add\ntell(add.run_async(2, 3).job_id)")

    def explained() -> str:
        told = str(kinetic("jobs", "explain", job_id).out)
        return told if "each pod needs the label team" in told else ""

    assert "KINETIC_LABELS and KINETIC_ANNOTATIONS set those of pods" in wait_for("the rule", explained)


def test_a_warm_pod_takes_no_job_that_is_to_have_other_labels(
    clients: Any, site: Any, machine: str, monkeypatch: Any
) -> None:
    submit = "from one import add\ntell(add.with_options(keep_warm='10m')(2, 3))"
    for team in ("vision", "vision", "speech"):
        monkeypatch.setenv("KINETIC_LABELS", f"team={team}")
        value, said = clients.both(submit)
        assert value == 5

    assert "starts in a pod of its own" in said
    assert "has other settings" in said

"""Somebody with no other rights than the Role of docs/clusters.md does everything that its users do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster.manifests import objects_on
from cluster.plane import wait_for

pytestmark = pytest.mark.usefixtures("machine", "submitter")

RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def submitter(site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Make the client somebody with the rights on the page, or with those but one verb."""
    role = objects_on("clusters.md")["Role"]
    for rule in role["rules"]:
        rule["verbs"] = [verb for verb in rule["verbs"] if verb != getattr(request, "param", "")]
    name = role["metadata"]["name"]
    where = f"{RBAC}/namespaces/{site.namespace}"
    site.api.create(f"{where}/roles", role | {"metadata": {"name": name}})
    site.put("serviceaccounts", {"metadata": {"name": "submitter"}})
    subject = {"kind": "ServiceAccount", "name": "submitter", "namespace": site.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    site.api.create(f"{where}/rolebindings", binding)
    token = site.put("serviceaccounts/submitter/token", {"spec": {}})["status"]["token"]
    endpoint = site.plane.client._replace(token=token)
    monkeypatch.setenv("KUBECONFIG", str(endpoint.write_kubeconfig(tmp_path / "submitter.yaml")))


@pytest.mark.parametrize("submitter", ["", "watch"], indirect=True, ids=["as it is", "without watch"])
def test_the_role_is_enough_for_a_job_its_log_its_end_and_a_batch(clients: Any, site: Any, kinetic: Any) -> None:
    first = clients.run("""
        from one import add, talk
        job = talk.run_async(2)
        tell([job.job_id, job.result(cleanup=False), job.logs()])
    """)
    stuck = clients.run("from one import talk\ntell(talk.run_async(1, '/never').job_id)")
    site.running(stuck)

    told = kinetic("jobs", "explain", stuck)
    cancelled = kinetic("jobs", "cancel", stuck)
    batch = clients.run("""
        from one import add
        batch = add.run_async_map([(1, 2), (3, 4)])
        values = batch.results()
        batch.cleanup()
        tell(values)
    """)

    assert first[1:] == [2, "line 0000\nline 0001\nthe end\n"]
    assert (told.code, cancelled.code) == (0, 0), told.err + cancelled.err
    assert batch == [3, 7]
    wait_for("what was cancelled to go", lambda: site.left(stuck) == [])

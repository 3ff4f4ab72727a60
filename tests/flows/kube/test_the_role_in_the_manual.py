"""Somebody with no other rights than the Role of docs/clusters.md does everything that its users do."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from cluster.manifests import objects_on
from cluster.plane import wait_for

pytestmark = pytest.mark.usefixtures("machine", "submitter")

RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture
def submitter(
    site: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:  # after `home`, which points at the administrator's kubeconfig
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


def test_a_status_says_what_the_role_does_not_let_it_read_and_no_price_of_nothing(clients: Any, kinetic: Any) -> None:
    clients.run("from one import talk\ntell(talk.run_async(1, '/never').job_id)")

    told, page = kinetic("status"), json.loads(kinetic("status", "--json").out)

    lines = {name: said.strip() for name, _, said in (line.partition("  ") for line in told.out.splitlines())}
    assert (lines["nodes"], lines["cost"]) == ("not known", "not known")
    assert {lines["running"], lines["waiting"]} & {"1 pod"}
    assert lines["not known"].startswith("nodes: missing permission for all of the context test: list nodes")
    assert (page["dollars_per_hour"], page["nodes"]) == (None, [])


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


@pytest.mark.parametrize("submitter", ["delete"], indirect=True)
@pytest.mark.parametrize("ends", ["jobs cancel", "jobs cleanup", "batch cancel", "batch cleanup --yes"])
def test_who_may_not_delete_jobs_ends_none_and_takes_no_result_away(
    clients: Any, site: Any, plane: Any, kinetic: Any, monkeypatch: pytest.MonkeyPatch, shared: Path, ends: str
) -> None:
    reader = os.environ["KUBECONFIG"]
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))
    job_id, group = clients.run(
        """
        from one import talk
        batch = talk.run_async_map([(1, words[0])])
        while batch.jobs[0] is None:
            time.sleep(0.02)
        tell([batch.jobs[0].job_id, batch.group_id])
        """,
        str(shared / "go"),
    )
    site.running(job_id)
    monkeypatch.setenv("KUBECONFIG", reader)

    told = kinetic(*ends.split(), group if "batch" in ends else job_id)
    (shared / "go").touch()
    monkeypatch.setenv("KUBECONFIG", str(plane.kubeconfig))

    assert told.code == 1
    assert "delete jobs" in told.err
    assert clients.run("tell(kinetic.attach_batch(words[0]).results())", group) == [1]


def test_the_role_is_enough_in_a_namespace_that_enforces_restricted(clients: Any, site: Any) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    site.api.merge(f"/api/v1/namespaces/{site.namespace}", {"metadata": {"labels": labels}})

    assert clients.run("from one import add\ntell(add(2, 3))") == 5

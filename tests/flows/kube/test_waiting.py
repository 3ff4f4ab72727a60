"""A job that does not begin: its user learns why within seconds, in words, and what to do; nothing is left of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cluster import nodes
from cluster.plane import wait_for


@pytest.fixture
def submit(clients: Any) -> Any:
    """Return a function that submits a job with an accelerator and an image, and returns the id."""

    def submit_(accelerator: str = "cpu", **options: str) -> str:
        code = f"from one import add\ntell(add.with_options(accelerator={accelerator!r}, **{options!r})"
        return str(clients.run(f"{code}.run_async(1, 2).job_id)"))

    return submit_


def explained(kinetic: Any, job_id: str, words: str) -> str:
    """Ask why a job waits until these words stand in the answer; return all of it."""

    def ask() -> str:
        told = kinetic("jobs", "explain", job_id)
        assert told.code == 0, told.err
        return told.out if words in told.out else ""

    return str(wait_for(f"{words!r} in what explains {job_id}", ask))


def test_without_a_machine_that_fits_the_job_waits_and_says_for_what(submit: Any, kinetic: Any, machine: str) -> None:
    job_id = submit("gpu-l4")

    told = explained(kinetic, job_id, "no node of this cluster has what the job asks for")

    assert "gpu-l4; the autoscaler has not looked at it yet" in told  # a node of GKE is a trace of one
    assert "next:" not in told
    status = kinetic("jobs", "status", job_id)
    assert status.out == f"{job_id}: PENDING\n"
    assert "why:   no node of this cluster has what the job asks for" in status.err


def test_whoever_waits_is_told_what_the_job_waits_for(clients: Any, site: Any, add_node: Any, namespace: str) -> None:
    clients.project.write("call.py", "from one import add\nprint(add(1, 2))\n")
    client = clients.project.start("call.py")
    wait_for("the line that says so", lambda: "the cluster has no nodes" in clients.peek(client), 30)

    add_node(nodes.cpu(f"late-{namespace}"))
    out, told = client.communicate(timeout=60)

    assert (client.returncode, out) == (0, "adding\n3\n"), told


def test_a_job_that_found_no_machine_is_cancelled_and_gone(submit: Any, kinetic: Any, site: Any, clients: Any) -> None:
    job_id = submit()

    told = kinetic("jobs", "cancel", job_id)

    assert told.code == 0, told.err
    assert site.left(job_id) == []
    site.gone(job_id)
    assert clients.run("tell(kinetic.attach(words[0]).exception().code)", job_id) == "job-cancelled"


def test_an_image_that_does_not_exist_is_named(submit: Any, kinetic: Any, machine: str) -> None:
    job_id = submit(container_image="registry.test/no/such:1")

    told = explained(kinetic, job_id, "the image registry.test/no/such:1 does not exist")

    assert "check its name and tag" in told


@pytest.mark.parametrize(
    ("said", "what", "advice"),
    [
        ("code = Unknown desc = failed to authorize: failed to fetch anonymous token: 401 Unauthorized",
         "the cluster may not pull the image {}", "name a pull secret"),
        ("code = NotFound desc = no match for platform in manifest: not found",
         "the image {} does not support the processor of this node", "linux/arm64"),
        ("code = NotFound desc = manifest unknown: not found", "the image {} does not exist", "check its name and tag"),
    ],
    ids=["no-login", "platform", "missing"],
)  # fmt: skip
def test_an_image_that_cannot_be_pulled_is_explained_in_three_parts(
    submit: Any, kinetic: Any, machine: str, agent: Any, said: str, what: str, advice: str
) -> None:
    image = f"registry.test/team/train:{len(said)}"
    agent.registry.refusals[image] = said
    job_id = submit(container_image=image)

    told = explained(kinetic, job_id, what.format(image))
    status = kinetic("jobs", "status", job_id)

    parts = {line.partition(":")[0]: line for line in told.splitlines()}
    assert what.format(image) in parts["what"]
    assert said.rpartition(": ")[2] in told.partition("why:")[2]
    assert advice in parts["next"]
    assert status.out == f"{job_id}: PENDING\n"
    assert status.err.splitlines()[:2] == [f"why:   {what.format(image)}", parts["next"].replace("next: ", "next: ")]


def test_a_machine_that_is_full_is_waited_for(
    submit: Any, kinetic: Any, add_node: Any, namespace: str, clients: Any
) -> None:
    add_node(nodes.cpu(f"small-{namespace}", cores=1))
    first = clients.run("from one import talk\ntell(talk.run_async(1, go).job_id)")
    wait_for("the first to hold the machine", lambda: "RUNNING" in kinetic("jobs", "status", first).out)
    second = submit()

    told = explained(kinetic, second, "all matching nodes are busy: not enough cpu")
    clients.go.touch()

    assert "wait for other jobs" in told
    found = clients.run("tell([kinetic.attach(word).result(timeout=60) for word in words])", first, second)
    assert found == [1, 3]


def test_where_every_machine_is_too_small_no_other_job_is_waited_for(
    submit: Any, kinetic: Any, add_node: Any, namespace: str
) -> None:
    tiny = nodes.cpu(f"tiny-{namespace}", cores=2, memory="1Gi")
    del tiny.labels["cloud.google.com/gke-nodepool"]  # nothing tells of an autoscaler, which might make a larger one
    add_node(tiny)
    job_id = submit()

    told = explained(kinetic, job_id, "no node of this cluster is large enough: not enough memory")

    assert "resources = { cpu = 0.5" in told


def test_a_quota_that_is_used_up_is_named(submit: Any, kinetic: Any, machine: str, site: Any, clients: Any) -> None:
    site.put("resourcequotas", {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "0"}}})
    wait_for("the quota to hold", lambda: "hard" in site.api.get(f"{site.core}/resourcequotas/tight").get("status", {}))
    job_id = submit()

    told = explained(kinetic, job_id, "the quota tight of the namespace")
    site.api.delete(f"{site.core}/resourcequotas/tight")

    assert "is used up" in told
    assert clients.run("tell(kinetic.attach(words[0]).result(timeout=60))", job_id) == 3


def test_a_job_whose_only_node_is_cordoned_says_so_and_starts_when_it_is_open_again(
    submit: Any, kinetic: Any, machine: str, site: Any, clients: Any
) -> None:
    def close(*, closed: bool) -> None:
        body = {"spec": {"unschedulable": closed}}
        site.api.call("PATCH", f"/api/v1/nodes/{machine}", body, kind="application/merge-patch+json")

    close(closed=True)
    job_id = submit()
    told = explained(kinetic, job_id, "its nodes are cordoned")
    close(closed=False)

    assert "kubectl uncordon" in told
    assert clients.run("tell(kinetic.attach(words[0]).result(timeout=60))", job_id) == 3


def test_a_limit_range_that_is_too_small_for_a_job_is_named_with_what_to_write(
    submit: Any, kinetic: Any, machine: str, site: Any
) -> None:
    limits = [{"type": "Container", "default": {"cpu": "500m", "memory": "512Mi"}}]
    site.put("limitranges", {"metadata": {"name": "small"}, "spec": {"limits": limits}})
    job_id = submit()

    told = explained(kinetic, job_id, f"a LimitRange of the namespace {site.namespace} does not allow")

    assert "must be less than or equal to cpu limit of 500m" in told
    assert f"kubectl describe limitrange -n {site.namespace} shows" in told


def test_a_running_job_that_an_administrator_suspends_names_who_did_it_and_continues_when_it_is_resumed(
    submit: Any, kinetic: Any, machine: str, site: Any, clients: Any
) -> None:
    job_id = clients.run("from one import talk\ntell(talk.run_async(1, go).job_id)")
    name = site.running(job_id)["metadata"]["labels"]["batch.kubernetes.io/job-name"]

    def suspend(*, suspended: bool) -> None:
        body, path = {"spec": {"suspend": suspended}}, f"{site.batch}/jobs/{name}"
        site.api.call("PATCH", path, body, kind="application/merge-patch+json", fieldManager="kubectl-patch")

    suspend(suspended=True)
    told = explained(kinetic, job_id, "kubectl-patch has suspended it")
    suspend(suspended=False)
    clients.go.touch()

    assert f"kubectl patch job {name} -n {site.namespace} --type merge" in told
    assert "cancel" not in told
    assert clients.run("tell(kinetic.attach(words[0]).result(timeout=60))", job_id) == 1


# ------------------------------------------------------------------------------------------------- refused at once


def refused(clients: Any) -> tuple[str, list[str]]:
    """Submit a job that is refused; return the error's name, and its three parts."""
    found = clients.run("""
        from one import add
        try:
            add.run_async(1, 2)
        except kinetic.errors.KineticError as error:
            tell([type(error).__name__, [error.what, str(error.why), str(error.next)]])
    """)
    return str(found[0]), list(found[1])


def test_a_namespace_that_does_not_exist_is_named_before_anything_is_stored(
    clients: Any, site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_NAMESPACE", "nobodys")

    name, (what, _, advice) = refused(clients)

    assert name == "LaunchError"
    assert "there is no namespace nobodys" in what
    assert "kubectl create namespace nobodys" in advice


@pytest.fixture
def nobody(site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the client somebody whom the cluster knows and lets do nothing; return the name."""
    site.put("serviceaccounts", {"metadata": {"name": "nobody"}})
    token = site.put("serviceaccounts/nobody/token", {"spec": {}})["status"]["token"]
    endpoint = site.plane.client._replace(token=token)
    monkeypatch.setenv("KUBECONFIG", str(endpoint.write_kubeconfig(tmp_path / "nobody.yaml")))
    return f"system:serviceaccount:{site.namespace}:nobody"


def test_whoever_may_not_make_jobs_is_told_what_is_missing(clients: Any, site: Any, nobody: str) -> None:
    name, (what, why, advice) = refused(clients)

    assert name == "AccessDeniedError"
    assert f"in the namespace {site.namespace}" in what
    assert nobody in why
    assert "kubectl create rolebinding kinetic-nobody" in advice
    assert site.jobs() == []


def test_a_context_that_does_not_exist_is_named(clients: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETIC_KUBE_CONTEXT", "tset")

    _, (what, why, _) = refused(clients)

    assert "tset" in what
    assert "test" in why


def test_a_cluster_that_does_not_answer_is_named_and_nothing_waits_for_it(clients: Any, site: Any) -> None:
    site.plane.kill_api_server()

    name, (what, _, _) = refused(clients)

    assert name == "BackendUnavailableError"
    assert "test" in what


def test_a_job_that_has_ended_is_shown_with_its_log_while_its_cluster_does_not_answer(
    clients: Any, site: Any, kinetic: Any, machine: str
) -> None:
    job_id, silent = clients.run("""
        @kinetic.run(accelerator="cpu")
        def speak(number):
            print("hello", number)
            return number

        @kinetic.run(accelerator="cpu")
        def think(number):
            return number

        jobs = [speak.run_async(7), think.run_async(7)]
        [job.wait() for job in jobs]
        tell([job.job_id for job in jobs])
    """)
    site.plane.kill_api_server()

    shown = kinetic("jobs", "show", job_id)
    logs = [kinetic("jobs", "logs", job_id, *words).out for words in ([], ["--follow"], ["--tail", "1"])]
    result = kinetic("jobs", "result", job_id)

    assert (shown.code, result.out) == (0, "7\n"), shown.err
    assert "log_bytes         8\n" in shown.out
    assert logs == ["hello 7\n"] * 3
    assert "log_bytes         0\n" in kinetic("jobs", "show", silent).out
    assert kinetic("jobs", "logs", silent).code == 0

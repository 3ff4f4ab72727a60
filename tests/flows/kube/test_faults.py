"""What clusters, machines and stores do to a job: it goes on, it is never called failed too early, nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from cluster import nodes
from cluster.plane import wait_for


@pytest.fixture
def two_machines(add_node: Any, namespace: str) -> list[str]:
    """Two Spot machines."""
    return [add_node(nodes.cpu(f"spot-{number}-{namespace}")) for number in range(2)]


class Watched:
    """A job that waits for a file, and a client in a process of its own that waits for the job."""

    def __init__(self, clients: Any, site: Any) -> None:
        self.clients, self.site = clients, site
        self.job_id = str(clients.run("from one import talk\ntell(talk.run_async(3, go).job_id)"))

    def start(self) -> Any:
        """Begin to wait, as users do; return the client once it has seen the job run and the function has begun."""
        pod = self.site.running(self.job_id)
        wait_for("its function", lambda: "line 0002" in self.site.log(pod["metadata"]["name"]))
        client = self.clients.start(
            """
            seen = []
            def note(status):
                seen.append(status.value)
                tell(status.value)
            job = kinetic.attach(words[0])
            try:
                value = job.result(timeout=90, on_status_change=note, cleanup=False)
            except Exception as error:
                tell([seen, type(error).__name__, message(error)])
            else:
                tell([seen, value, job.logs()])
            """,
            self.job_id,
        )
        while client.stdout.readline() != 'told:"RUNNING"\n':
            assert client.poll() is None, client.communicate()
        return client

    def end(self, client: Any) -> tuple[list[Any], str]:
        """Let the job end; return what its client told last, and what it wrote to stderr."""
        self.clients.go.touch()
        out, err = client.communicate(timeout=100)
        assert client.returncode == 0, err
        return self.clients.told(out)[-1], err

    def ends_well(self, client: Any) -> bool:
        """Let the job end, and say whether its client saw nothing but its good end, with all of its log."""
        (seen, *rest), _ = self.end(client)
        assert rest == [3, "line 0000\nline 0001\nline 0002\nthe end\n"]
        assert [status for status in seen if status != "PENDING"] == ["RUNNING", "SUCCEEDED"]
        return True


@pytest.fixture
def watched(clients: Any, site: Any, machine: str) -> Watched:
    return Watched(clients, site)


# ------------------------------------------------------------------------------------------------------------- machines


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", ["preempted", pytest.param("gone", marks=pytest.mark.nightly)])
def test_a_job_whose_machine_is_taken_away_ends_well_on_another_one(
    clients: Any, site: Any, agent: Any, two_machines: list[str], shared: Any, how: str
) -> None:
    job_id = clients.run(f"from one import again\ntell(again.run_async({str(shared)!r}, '/never').job_id)")
    first = site.running(job_id)
    wait_for("the first attempt", (shared / "attempt-0").exists)
    client = clients.start(
        """
        seen = []
        job = kinetic.attach(words[0])
        value = job.result(timeout=140, on_status_change=lambda status: seen.append(status.value), cleanup=False)
        tell([value, seen, job.logs()])
        """,
        job_id,
    )

    if how == "preempted":
        agent.preempt(first["spec"]["nodeName"], grace_seconds=15)
    else:
        agent.remove_node(first["spec"]["nodeName"])  # after 40 to 60 seconds the cluster believes it
    out, err = client.communicate(timeout=150)

    assert client.returncode == 0, err
    value, seen, log = clients.told(out)[-1]
    assert value == 1
    assert "FAILED" not in seen
    assert seen[-1] == "SUCCEEDED"
    assert "attempt 1" in log
    (second,) = [pod for pod in site.pods_of(job_id) if pod["status"].get("phase") == "Succeeded"]
    assert second["spec"]["nodeName"] != first["spec"]["nodeName"]


def test_a_job_whose_machine_does_not_respond_says_so_and_ends_well_when_that_is_back(
    watched: Watched, agent: Any, machine: str, kinetic: Any
) -> None:
    client = watched.start()
    agent.set_offline(machine)

    def explained() -> str:
        told = str(kinetic("jobs", "explain", watched.job_id).out)
        return told if f"its node {machine} does not respond" in told else ""

    assert "RUNNING" in wait_for("the reason", explained, 90)
    agent.set_online(machine)
    assert watched.ends_well(client)


def test_a_job_that_runs_out_of_memory_fails_and_says_so(clients: Any, site: Any, agent: Any, watched: Watched) -> None:
    pod = site.running(watched.job_id)
    wait_for("its function", lambda: "line 0002" in site.log(pod["metadata"]["name"]))

    agent.out_of_memory(site.namespace, pod["metadata"]["name"])

    name, words, status = clients.run(
        """
        job = kinetic.attach(words[0])
        error = job.exception(timeout=60)
        tell([type(error).__name__, message(error), job.status().value])
        """,
        watched.job_id,
    )
    assert status == "FAILED"
    assert "memory" in words, (name, words)


# ------------------------------------------------------------------------------------------------------ the API server


def test_a_restart_of_the_api_server_is_not_noticed(watched: Watched, plane: Any) -> None:
    client = watched.start()

    plane.restart_api_server()

    assert watched.ends_well(client)


def test_an_api_server_that_is_away_when_the_job_ends_is_waited_for(watched: Watched, plane: Any) -> None:
    client = watched.start()

    plane.kill_api_server()
    watched.clients.go.touch()
    wait_for("the verdict", lambda: f"{watched.job_id}/result.pkl" in watched.site.bucket.names(watched.job_id))
    plane.start_api_server()

    assert watched.ends_well(client)


@pytest.mark.parametrize("status", [429, 500])
def test_a_storm_of_refusals_is_weathered(watched: Watched, plane: Any, status: int) -> None:
    client = watched.start()

    plane.proxy.fail("status", status=status, times=8)
    plane.proxy.cut_connections()

    assert watched.ends_well(client)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_refusals_while_a_job_is_submitted_make_one_job(
    clients: Any, site: Any, plane: Any, machine: str, status: int
) -> None:
    plane.proxy.fail("status", method="POST|PATCH", status=status, times=4)

    job_id, value = clients.run(
        "from one import add\njob = add.run_async(1, 2)\ntell([job.job_id, job.result(cleanup=False)])"
    )

    assert value == 3
    assert len(site.jobs()) == 1
    assert len(site.jobs(job_id)) == 1


def test_a_watch_that_missed_too_much_looks_at_everything_again(watched: Watched, plane: Any) -> None:
    client = watched.start()

    plane.expire_watches()

    assert watched.ends_well(client)


def test_a_job_that_a_restored_backup_of_the_cluster_does_not_have_is_not_waited_for(
    clients: Any, site: Any, plane: Any, machine: str
) -> None:
    plane.back_up()
    for number in range(300):  # so that the server is behind for longer than its controllers need to catch up
        site.api.merge(f"/api/v1/namespaces/{site.namespace}", {"metadata": {"annotations": {"at": str(number)}}})
    watched = Watched(clients, site)
    client = watched.start()

    plane.restore()
    (seen, name, words), _ = watched.end(client)

    assert (seen[-1], name) == ("FAILED", "ResultMissingError")
    assert f"its Job is no longer in the namespace {site.namespace} of test: it was deleted there" in words


@pytest.mark.parametrize("kind", ["jobs", "secrets"])
def test_an_answer_that_is_lost_makes_no_second_object(
    clients: Any, site: Any, plane: Any, machine: str, kind: str
) -> None:
    lost = plane.proxy.fail("lose", method="POST", target=f"/{kind}")

    job_id, value = clients.run(
        "from one import add\njob = add.run_async(1, 2)\ntell([job.job_id, job.result(cleanup=False)])"
    )

    assert lost.met == 1
    assert value == 3
    assert len(site.jobs()) == 1
    assert len([each for each in site.secrets() if each["metadata"]["labels"]["job-id"] == job_id]) == 1


def test_a_token_that_is_revoked_is_a_clear_error_and_with_a_good_one_the_same_handle_goes_on(
    watched: Watched, plane: Any, clients: Any
) -> None:
    client = clients.project.start(
        clients.project.write(
            "waits.py",
            """
            import json, os, sys, time
            import kinetic

            job = kinetic.attach(sys.argv[1])
            try:
                job.result(timeout=90, on_status_change=lambda status: print(status.value, flush=True))
            except kinetic.errors.CredentialsError as error:
                print(error.what, flush=True)
            while not os.path.exists(sys.argv[2]):
                time.sleep(0.02)
            print(job.result(timeout=90))
            """,
        ).name,
        watched.job_id,
        str(clients.go),
    )
    while client.stdout.readline() != "RUNNING\n":
        assert client.poll() is None, client.communicate()

    plane.revoke_token()
    said = client.stdout.readline()
    plane.restore_token()
    clients.go.touch()
    out, err = client.communicate(timeout=100)

    assert "rejected our credentials" in said
    assert out == "3\n", err


def test_a_finished_job_is_collected_without_its_cluster(watched: Watched, plane: Any, clients: Any) -> None:
    clients.go.touch()
    wait_for("the verdict", lambda: f"{watched.job_id}/result.pkl" in watched.site.bucket.names(watched.job_id))
    plane.kill_api_server()

    value = clients.run(
        "job = kinetic.attach(words[0])\ntell([job.status().value, job.result(cleanup=False)])", watched.job_id
    )

    assert value == ["SUCCEEDED", 3]


def test_a_namespace_that_is_deleted_ends_the_job_in_words(watched: Watched, plane: Any) -> None:
    client = watched.start()

    plane.delete_namespace(watched.site.namespace)
    out, err = client.communicate(timeout=100)

    assert client.returncode == 0, err
    seen, name, words = watched.clients.told(out)[-1]
    assert "SUCCEEDED" not in seen
    assert name in {"ResultMissingError", "JobError", "LaunchError"}, words


def test_a_job_that_somebody_deletes_while_it_runs_is_noticed(watched: Watched) -> None:
    client = watched.start()
    (name,) = [job["metadata"]["name"] for job in watched.site.jobs(watched.job_id)]

    watched.site.api.delete(f"{watched.site.batch}/jobs/{name}", propagationPolicy="Background")
    out, err = client.communicate(timeout=100)

    assert client.returncode == 0, err
    assert watched.clients.told(out)[-1][1] in {"ResultMissingError", "JobError"}


def test_a_cancelled_job_ends_though_another_program_holds_its_object(watched: Watched, kinetic: Any) -> None:
    site, job_id = watched.site, watched.job_id
    path = f"{site.batch}/jobs/{site.jobs(job_id)[0]['metadata']['name']}"
    site.running(job_id)
    site.api.merge(path, {"metadata": {"finalizers": ["example.com/audit"]}})

    told = kinetic("jobs", "cancel", job_id, "--cleanup-timeout", "30")
    held = site.api.get(path)["metadata"]["finalizers"]
    site.api.merge(path, {"metadata": {"finalizers": None}})

    assert told.code == 0, told.err
    assert "example.com/audit" in held


# ------------------------------------------------------------------------------------------------------------ the store


def test_a_store_that_is_away_while_the_job_ends_loses_nothing(watched: Watched) -> None:
    client = watched.start()

    refused = watched.site.bucket.fail(method="PUT|POST", times=6)  # who writes now is the pod

    assert watched.ends_well(client)
    assert refused.met == 6


def test_a_store_that_is_away_when_the_pod_begins_costs_no_job(
    clients: Any, site: Any, add_node: Any, namespace: str
) -> None:
    job_id = clients.run("from one import add\ntell(add.run_async(1, 2).job_id)")
    refused = site.bucket.fail()

    add_node(nodes.cpu(f"late-{namespace}"))
    site.running(job_id)
    wait_for("many refusals", lambda: refused.met > 12, 60)
    site.bucket.heal()

    assert clients.run("tell(kinetic.attach(words[0]).result(timeout=90))", job_id) == 3


def test_a_store_that_is_away_while_the_order_is_read_costs_an_attempt_and_no_job(
    clients: Any, site: Any, machine: str
) -> None:
    refused = site.bucket.fail(target="order", method="GET", times=12)  # more often than a client asks

    job_id = clients.run("from one import add\ntell(add.run_async(1, 2).job_id)")

    assert clients.run("tell(kinetic.attach(words[0]).result(timeout=90))", job_id) == 3
    assert refused.met == 12


def test_a_store_that_is_away_for_a_moment_is_not_noticed(watched: Watched) -> None:
    client = watched.start()

    refused = watched.site.bucket.fail(times=12)

    assert watched.ends_well(client)
    assert refused.met == 12


def test_whoever_waits_is_told_that_the_store_is_away_and_goes_on_when_it_is_back(watched: Watched) -> None:
    client = watched.start()

    refused = watched.site.bucket.fail()
    wait_for("more refusals than a client asks for by itself", lambda: refused.met > 30, 90)
    watched.site.bucket.heal()

    assert watched.ends_well(client)


def test_a_job_whose_namespace_lost_kinetics_code_before_its_pod_began_ends_well(
    clients: Any, site: Any, add_node: Any, namespace: str
) -> None:
    client = clients.start(
        """
        from one import add
        job = add.run_async(2, 3)
        tell(job.job_id)
        tell(job.result(stream_logs=True))
        """
    )
    client.stdout.readline()
    code = [each["metadata"]["name"] for each in site.api.get(f"{site.core}/configmaps")["items"]]
    (name,) = [each for each in code if each.startswith("kinetic-runner-")]
    site.api.delete(f"{site.core}/configmaps/{name}")

    add_node(nodes.cpu(f"machine-{namespace}"))

    out, said = client.communicate(timeout=60)
    assert clients.told(out) == [5], said

"""Warm pods whose surroundings fail: nothing is lost, nothing runs twice, and messages say what happened."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml
from cluster import nodes
from cluster.accounts import account_token
from cluster.plane import wait_for
from flows.kube.test_warm_pods import is_idle, pods_of_warm, warm_job

pytestmark = [pytest.mark.usefixtures("machine"), pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[3] / "docs" / "clusters.md"
FIRST = "from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))"
ADD = """
    from one import add
    job = add.with_options(keep_warm='10m').run_async(3, 4)
    tell([job.job_id, job.result(cleanup=False)])
"""
LOSING = """
from kinetic._backends.kube.warm_connection import KeptConnection
from kinetic.errors import BackendError
heard = KeptConnection.ask
def ask(self, message, job_id):
    answer = heard(self, message, job_id)
    if LOST.encode() in message:
        raise BackendError("the answer was lost")
    return answer
KeptConnection.ask = ask
"""
AWAY = (
    """
    import os, time
    from kinetic._backends.kube import client, transport
    from kinetic._jobs import cold_start
    from kinetic._runner.supervisor import bindings
    client.Client.__init__.__defaults__ = (transport.DEFAULT_RETRY._replace(attempts=int(words[1])),)
    cold_start._UNTAKEN_SECONDS = 3.0
    done = bindings.assign
    def assign(*arguments):
        open(words[0] + "/assigned", "w").close()
        while not os.path.exists(words[0] + "/away"):
            time.sleep(0.02)
        return done(*arguments)
    bindings.assign = assign
"""
    + ADD
)
BEGIN = """
    from one import again
    tell(again.with_options(keep_warm='10m').run_async(words[0], words[1]).job_id)
"""
COLLECT = "tell(kinetic.attach(words[0]).result(timeout=90, cleanup=False))"


# ---------------------------------------------------------------------------------------------------- the pod's own Job


def test_a_task_survives_the_deletion_of_the_job_of_its_warm_pod(
    clients: Any, site: Any, shared: Any, kinetic: Any
) -> None:
    job_id = clients.run(BEGIN, str(shared), "/never")
    wait_for("its first attempt", (shared / "attempt-0").exists)

    name = warm_job(site)["metadata"]["name"]
    site.api.delete(f"{site.batch}/jobs/{name}", propagationPolicy="Background")
    wait_for("the end of the pod", lambda: not site.pods_of(), 60)
    explained = kinetic("jobs", "explain", job_id)
    value = clients.run(COLLECT, job_id)

    assert f"its warm pod {name.removeprefix('kinetic-')} has ended; it starts in a pod of its own" in explained.err
    assert value == 1
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/{number}" for number in range(2)]
    (own,) = site.jobs(job_id)
    assert "kinetic/warm" not in own["metadata"]["labels"]


def test_a_job_whose_warm_pod_cannot_start_is_explained_by_what_its_warm_pod_lacks(
    clients: Any, site: Any, kinetic: Any
) -> None:
    clients.run("""
        from one import add
        tell(add.with_options(keep_warm='10m', container_image='registry.test/nowhere:1').run_async(1, 2).job_id)
    """)
    name = warm_job(site)["metadata"]["name"].removeprefix("kinetic-")

    def explained() -> str:
        return out if "image" in (out := str(kinetic("jobs", "explain", "@last").out)) else ""

    assert f"what:  its warm pod {name}: the image registry.test/nowhere:1 " in wait_for("the reason", explained, 60)


def test_a_task_whose_own_job_somebody_deleted_runs_to_its_end_and_is_cancelled_like_any_other(
    clients: Any, site: Any, shared: Any, kinetic: Any
) -> None:
    def lost_task(until: str) -> str:
        (shared / "attempt-0").unlink(missing_ok=True)
        job_id = clients.run(BEGIN, str(shared), until)
        wait_for("its first attempt", (shared / "attempt-0").exists)
        site.api.delete(f"{site.batch}/jobs/kinetic-{job_id}", propagationPolicy="Background")
        return str(job_id)

    job_id = lost_task(str(shared / "go"))
    explained = kinetic("jobs", "explain", job_id)
    waiting = clients.start(COLLECT, job_id)
    (shared / "go").touch()
    out, err = waiting.communicate(timeout=90)
    cancelled = kinetic("jobs", "cancel", lost_task("/never"))

    assert explained.out.splitlines()[0] == f"{job_id}: RUNNING"
    assert f"it is in the warm pod {pods_of_warm(site)[0]['metadata']['labels']['job-id']}" in explained.out
    assert f"next:  kinetic jobs logs {job_id} --follow" in explained.out
    assert clients.told(out) == [0], err
    assert " is cancelled" in cancelled.err
    wait_for("an idle pod", is_idle(site, 2), 20)


@pytest.mark.nightly
def test_what_an_ended_task_left_in_the_cluster_goes_when_the_next_warm_pod_starts(
    clients: Any, site: Any, kinetic: Any
) -> None:
    submit = """
        from kinetic._jobs import warm_assignment
        warm_assignment._ENDED_SECONDS = float(words[0])
        from one import add
        job = add.with_options(keep_warm='10m').run_async(1, 2)
        job.wait()
        tell(job.job_id)
    """
    job_id = clients.run(submit, "3600")
    kinetic("warm", "stop", "--all")
    wait_for("the end of the pod", lambda: not warm_job(site)["status"].get("active"), 60)

    kept_id = clients.run(submit, "3600")
    kept = site.left(job_id)
    kinetic("warm", "stop", "--all")
    wait_for("the end of the pod", lambda: not any(each["status"].get("active") for each in site.jobs()), 60)
    clients.run(submit, "-60")

    assert len(kept) == 2
    wait_for("the end of what is left", lambda: site.left(job_id) == site.left(kept_id) == [])
    assert clients.run(COLLECT, job_id) == 3


# ------------------------------------------------------------------------------------------------------------ the store


def test_a_store_that_refuses_the_assignment_means_a_pod_of_its_own(clients: Any, site: Any) -> None:
    clients.run(FIRST)
    wait_for("an idle pod", is_idle(site, 1))
    refused = site.bucket.fail(target="below(/|%2F)warm", method="POST|PUT", status=403)

    (job_id, value), err = clients.both(ADD)
    site.bucket.heal()
    after = clients.run(FIRST)

    assert refused.met
    assert (value, after) == (7, 3)
    assert "the store does not take it as a task of" in err
    assert [each["metadata"]["labels"]["app"] for each in site.pods_of()] == ["kinetic-warm", "kinetic"]
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]


@pytest.mark.nightly
def test_a_store_that_refuses_everything_from_the_assignment_on_means_no_job_and_an_error(
    clients: Any, site: Any
) -> None:
    clients.run(FIRST)
    wait_for("an idle pod", is_idle(site, 1))
    jobs = len(site.jobs())
    site.bucket.fail(target="(warm|placements)", method="POST|PUT", status=403)

    refused = clients.run("""
        from one import add
        try:
            add.with_options(keep_warm='10m')(3, 4)
        except Exception as error:
            tell([type(error).__name__, message(error)])
    """)
    site.bucket.heal()
    after = clients.run(FIRST)

    assert refused[0] == "CredentialsError", refused
    assert after == 3
    wait_for("the end of what was refused", lambda: len(site.jobs()) == jobs)


@pytest.mark.nightly
@pytest.mark.parametrize("where", ["placements", "attempts", "result"])
def test_a_store_that_is_away_while_a_task_is_claimed_or_sealed_loses_nothing(
    clients: Any, site: Any, where: str
) -> None:
    clients.run(FIRST)
    wait_for("an idle pod", is_idle(site, 1))
    away = site.bucket.fail(target=where, method="POST|PUT", times=3)

    job_id, value = clients.run(ADD)

    assert away.met == 3
    assert value == 7
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]
    wait_for("an idle pod", is_idle(site, 2))
    assert len(site.pods_of()) == 1


SLOW = """
    import kinetic

    @kinetic.run(accelerator="cpu", keep_warm="10m", deadline=60, capture_env_vars=["TOKEN_OF_A_TEST"])
    def prints(fails):
        import os, time
        for number in range(300):
            print("line", number, os.environ["TOKEN_OF_A_TEST"], flush=True)
            time.sleep(0.01)
        if fails:
            raise ValueError("on purpose")
        return number
"""


@pytest.mark.nightly
def test_tasks_whose_store_takes_two_seconds_for_each_request_end_as_ever(clients: Any, site: Any) -> None:
    clients.project.write("slow.py", SLOW)
    clients.run(FIRST)
    wait_for("an idle pod", is_idle(site, 1))
    site.bucket.delay(2.0)

    job_id, value, failed_id, error = clients.run(
        """
        from slow import prints
        job = prints.run_async(False)
        value = job.result(cleanup=False)
        failed = prints.run_async(True)
        tell([job.job_id, value, failed.job_id, str(failed.exception(timeout=150))])
        """,
        TOKEN_OF_A_TEST="of-a-test",
    )
    site.bucket.delay(0.0)
    logs = clients.run("tell([kinetic.attach(job_id).logs() for job_id in words])", job_id, failed_id)

    assert (value, error) == (299, "on purpose")
    lines = [f"line {number} of-a-test" for number in range(300)]
    assert [log.splitlines()[:300] for log in logs] == [lines, lines]
    for each in (job_id, failed_id):
        assert site.bucket.names(f"{each}/attempts/") == [f"{each}/attempts/0"]
    wait_for("an idle pod", is_idle(site, 3))
    assert len(site.pods_of()) == 1


@pytest.mark.nightly
def test_credentials_of_the_pod_that_the_store_rejects_once_are_made_anew(clients: Any, site: Any) -> None:
    clients.run(FIRST)
    wait_for("an idle pod", is_idle(site, 1))
    expired = site.bucket.fail(target="placements", method="POST|PUT", times=1, status=401)

    _, value = clients.run(ADD)

    assert expired.met == 1
    assert value == 7


@pytest.mark.nightly
def test_a_warm_pod_ends_by_itself_without_store_and_api_server(
    clients: Any, site: Any, plane: Any, agent: Any
) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='4s')(1, 2))")
    (pod,) = pods_of_warm(site)
    site.bucket.fail()
    plane.kill_api_server()

    log = agent.log(site.namespace, pod["metadata"]["name"], pod["spec"]["containers"][0]["name"], previous=False)
    wait_for("its end", lambda: "ends: idle for 4 s" in log.tail(20, 4000), 30)
    plane.start_api_server()

    wait_for("its Job to know", lambda: warm_job(site)["status"].get("succeeded") == 1, 60)


# ------------------------------------------------------------------------------------------------------- the API server


def test_a_pod_that_cannot_be_dialed_gets_no_second_one_beside_it_and_a_cancelled_job_in_it_ends_later(
    clients: Any, site: Any, plane: Any, shared: Any, kinetic: Any
) -> None:
    clients.run(FIRST)
    wait_for("an idle pod", is_idle(site, 1))
    plane.proxy.fail("status", target="portforward", times=float("inf"))

    (_, value), err = clients.both(ADD)
    plane.proxy.faults.clear()
    after = clients.run(FIRST)
    busy = clients.run(BEGIN, str(shared), "/never")
    wait_for("its first attempt", (shared / "attempt-0").exists)
    plane.proxy.fail("status", target="portforward", times=float("inf"), status=403)
    cancelled = kinetic("jobs", "cancel", busy)

    assert (value, after) == (7, 3)
    assert "cannot be reached" in err, err
    assert len(pods_of_warm(site)) == 1
    assert f"{busy} ends within a minute in its warm pod " in cancelled.err


@pytest.mark.parametrize("message", ["run", "confirm"])
def test_an_answer_of_the_pod_that_is_lost_means_one_attempt(clients: Any, site: Any, message: str) -> None:
    clients.run(FIRST)
    wait_for("an idle pod", is_idle(site, 1))

    losing = f'LOST = \'"do":"{message}"\'\n{LOSING}'

    (job_id, value), err = clients.both(losing + textwrap.dedent(ADD))

    assert value == 7
    if site.pods_of(job_id):  # else the warm pod had begun with it
        assert "the answer was lost" in err
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]
    wait_for("an idle pod", is_idle(site, 2))


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("is_there", "tries", "until"),
    [
        (True, 8, "cannot be told"),
        (True, 2, "a later command that looks at it starts it"),
        (False, 2, "a later command that looks at it starts it"),
    ],
    ids=["a pod that is there", "for long", "a new pod, for long"],
)
def test_a_job_that_is_given_to_a_warm_pod_while_the_api_server_goes_away_runs_once(
    clients: Any, site: Any, plane: Any, shared: Any, is_there: bool, tries: int, until: str
) -> None:
    if is_there:
        clients.run(FIRST)
        wait_for("an idle pod", is_idle(site, 1))
    client = clients.start(AWAY, str(shared), str(tries))
    wait_for("its assignment", (shared / "assigned").exists)

    plane.kill_api_server()
    (shared / "away").touch()
    wait_for("its words", lambda: until in clients.peek(client), 60)
    plane.start_api_server()
    out, err = client.communicate(timeout=100)

    (found,) = clients.told(out)
    assert found[1:] == [7], err
    assert site.bucket.names(f"{found[0]}/attempts/") == [f"{found[0]}/attempts/0"]


@pytest.mark.nightly
def test_an_api_server_that_is_away_when_a_task_ends_is_waited_for(
    clients: Any, site: Any, plane: Any, shared: Any
) -> None:
    go = shared / "go"
    job_id = clients.run(BEGIN, str(shared), str(go))
    wait_for("its first attempt", (shared / "attempt-0").exists)
    client = clients.start(COLLECT, job_id)

    plane.kill_api_server()
    go.touch()
    wait_for("the verdict", lambda: f"{job_id}/result.pkl" in site.bucket.names(job_id))
    plane.start_api_server()
    out, err = client.communicate(timeout=100)

    assert clients.told(out) == [0], err
    wait_for("an idle pod", is_idle(site, 1))


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["/jobs", "/secrets", "portforward"])
def test_refusals_of_the_api_server_while_a_task_is_told_make_one_attempt(
    clients: Any, site: Any, plane: Any, target: str
) -> None:
    clients.run(FIRST)
    wait_for("an idle pod", is_idle(site, 1))
    refused = plane.proxy.fail("status", method="POST|PATCH|GET", target=target, times=2)

    job_id, value = clients.run(ADD)

    assert refused.met
    assert value == 7
    assert len(site.jobs(job_id)) <= 1
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]


# -------------------------------------------------------------------------------------------- credentials and rights


@pytest.mark.nightly
def test_credentials_that_expire_while_a_client_waits_for_a_task_are_named_and_lose_nothing(
    clients: Any, site: Any, plane: Any, shared: Any
) -> None:
    go = shared / "go"
    job_id = clients.run(BEGIN, str(shared), str(go))
    wait_for("its first attempt", (shared / "attempt-0").exists)

    plane.revoke_token()
    expired = clients.run(
        """
        try:
            kinetic.attach(words[0]).result(timeout=60)
        except Exception as error:
            tell([type(error).__name__, message(error)])
    """,
        job_id,
    )
    plane.restore_token()
    go.touch()
    value = clients.run(COLLECT, job_id)

    assert expired[0] == "CredentialsError", expired
    assert value == 0


@pytest.mark.nightly
def test_a_client_whose_token_expires_between_two_calls_says_so_and_loses_neither_pod_nor_job(
    clients: Any, site: Any, plane: Any, shared: Any, kinetic: Any
) -> None:
    three_calls = """
        import os, time
        from one import add
        found = []
        for number in range(3):
            while not os.path.exists(f"{words[0]}/{number}"):
                time.sleep(0.02)
            try:
                found.append(add.with_options(keep_warm="10m")(number, 1))
            except Exception as error:
                found.append([type(error).__name__, message(error)])
            open(f"{words[0]}/{number}-done", "w").close()
        tell(found)
    """
    client = clients.start(three_calls, str(shared))
    for number in range(3):
        if number == 1:  # though its connection to the pod stays open
            plane.proxy.fail("status", status=401, times=float("inf"))
        (shared / f"{number}").touch()
        wait_for("its call", (shared / f"{number}-done").exists, 90)
        plane.proxy.faults.clear()
    out, err = client.communicate(timeout=60)

    ((first, refused, third),) = clients.told(out)
    left = json.loads(kinetic("jobs", "list", "--json").out)["jobs"]
    removed = kinetic("jobs", "cleanup", left[0]["job_id"], "--yes")

    assert (first, refused[0], third) == (1, "CredentialsError", 3), err
    assert f"kinetic jobs cleanup {left[0]['job_id']}" in refused[1], "there may be something of it in the cluster"
    assert (len(left), removed.code) == (1, 0), removed.err
    assert site.bucket.names(left[0]["job_id"]) == []
    assert len(site.pods_of()) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("missing", ["pods/portforward", "patch secrets"])
def test_a_client_without_a_right_for_warm_pods_runs_its_job_and_names_the_right(
    clients: Any, site: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    kubeconfig = submitter(site, tmp_path, missing)

    (_, first), err = clients.both(ADD, KUBECONFIG=kubeconfig)
    warm = len(pods_of_warm(site))
    if missing == "pods/portforward":
        clients.run(FIRST)
    wait_for("an idle pod", is_idle(site, 1))
    (_, second), more = clients.both(ADD, KUBECONFIG=kubeconfig)

    assert first == second == 7
    if missing == "pods/portforward":
        assert warm == 0, "a pod that its owner cannot tell would be idle for nothing"
        assert "create pods/portforward" in err
        assert "create pods/portforward" in more
    else:
        assert warm == 1
        assert "patch secrets" in more
        assert len(site.pods_of()) == 1


def submitter(site: Any, folder: Any, missing: str) -> str:
    """Return the kubeconfig of somebody who may do all that warm pods need, but for one thing."""
    found = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (role,) = [each for text in found for each in yaml.safe_load_all(text) if each["kind"] == "Role"]
    rules = [each for each in role["rules"] if each["resources"] != ["secrets"]]
    verbs = [verb for verb in ("create", "get", "delete", "patch") if missing != f"{verb} secrets"]
    rules.append({"apiGroups": [""], "resources": ["secrets"], "verbs": verbs})
    if missing != "pods/portforward":
        rules.append({"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["create", "get"]})
    where = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{site.namespace}"
    site.api.create(f"{where}/roles", role | {"metadata": {"name": "some"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "some", "namespace": site.namespace}
    token = account_token(site.plane, site.namespace, "some")
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "some"}
    site.api.create(
        f"{where}/rolebindings", {"metadata": {"name": "some"}, "roleRef": reference, "subjects": [subject]}
    )
    return str(site.plane.client._replace(token=token).write_kubeconfig(folder / "some.yaml"))


# ----------------------------------------------------------------------------------------------------------- preemption


@pytest.mark.nightly
def test_a_task_continues_on_another_machine_when_its_own_is_taken_away(
    clients: Any, site: Any, agent: Any, add_node: Any, shared: Any
) -> None:
    job_id = clients.run(BEGIN, str(shared), "/never")
    wait_for("its first attempt", (shared / "attempt-0").exists)
    (pod,) = pods_of_warm(site)
    add_node(nodes.cpu(f"other-{site.namespace}"))

    agent.preempt(pod["spec"]["nodeName"], grace_seconds=15)
    value = clients.run(COLLECT, job_id)

    assert value == 1
    assert {each["metadata"]["labels"]["app"] for each in site.pods_of()} == {"kinetic-warm"}


@pytest.mark.nightly
def test_an_idle_pod_is_started_again_on_another_machine_and_takes_the_next_task(
    clients: Any, site: Any, agent: Any, add_node: Any
) -> None:
    clients.run(FIRST)
    wait_for("an idle pod", is_idle(site, 1))
    (pod,) = pods_of_warm(site)
    add_node(nodes.cpu(f"other-{site.namespace}"))

    agent.preempt(pod["spec"]["nodeName"], grace_seconds=15)
    again = wait_for("another pod", lambda: [each for each in pods_of_warm(site) if is_running(each)], 60)
    wait_for("an idle pod", lambda: " is idle; it ends in " in site.log(again[-1]["metadata"]["name"]), 60)
    _, value = clients.run(ADD)

    assert value == 7
    assert {each["metadata"]["labels"]["app"] for each in site.pods_of()} == {"kinetic-warm"}


def is_running(pod: dict[str, Any]) -> bool:
    return bool(pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"])

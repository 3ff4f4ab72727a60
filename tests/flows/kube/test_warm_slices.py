"""Warm slices: the next job of several hosts begins on the hosts of the last one, and a lost host costs an attempt."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import Any

import pytest
from cluster.access import RefusedError
from cluster.plane import wait_for
from flows.kube.test_slices import TEAM, kind

from kinetic._wire import failpoints

__all__ = ["kind"]

HOSTS = 2
WARM_KINDS = pytest.mark.parametrize("kind", ["JobSet", "Indexed Job"], indirect=True)
pytestmark = pytest.mark.timeout(300)

WARM = TEAM.replace('accelerator="tpu-v4-2x2x2"', 'accelerator="tpu-v4-2x2x2", keep_warm="10m"')


@pytest.fixture
def team(clients: Any) -> Any:
    """Clients that find ``team.py`` with jobs of two hosts that keep their slice warm."""
    clients.project.write("team.py", WARM)
    return clients


def pods_of_slice(site: Any) -> list[dict[str, Any]]:
    """List the pods of warm slices, by their hosts."""
    found = [pod for pod in site.pods_of() if pod["metadata"]["labels"]["app"] == "kinetic-warm"]
    return sorted(found, key=lambda pod: str(pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]))


def is_idle(site: Any, times: int) -> Any:
    """Return a function that returns whether each host has been idle so often."""

    def look() -> bool:
        logs = [site.log(pod["metadata"]["name"]) for pod in pods_of_slice(site)]
        return len(logs) == HOSTS and all(log.count(" is idle; it ends in ") >= times for log in logs)

    return look


def wait_until_idle(site: Any, times: int = 1) -> None:
    """Wait until each host has been idle so often; else show what each of them said."""
    try:
        wait_for("an idle slice", is_idle(site, times), 30)
    except TimeoutError as error:
        for pod in site.pods_of():
            name = pod["metadata"]["name"]
            error.add_note(f"--- {name}, {pod.get('status', {}).get('phase')}\n{said(site, name)}")
        raise


def ran_in(site: Any) -> set[str]:
    """Return the names of the pods that were there."""
    return {pod["metadata"]["name"] for pod in site.pods_of()}


def test_two_jobs_in_a_row_run_on_one_warm_slice_without_a_new_pod(
    team: Any, site: Any, machines: Any, kinetic: Any
) -> None:
    machines()

    found, err = team.both("""
        from team import report
        found = []
        for _ in range(2):
            job = report.run_async()
            found.append([job.job_id, job.result(cleanup=False)])
        tell(found)
    """)
    listed = json.loads(kinetic("warm", "list", "--json").out)["warm_pods"]

    assert [value for _, value in found] == [{"host": 0, "attempt": 0}] * 2
    for job_id, _ in found:
        log = kinetic("jobs", "logs", job_id, "--host", "all").out
        assert ("[host 0] I am host 0 of 2" in log, "[host 1] I am host 1 of 2" in log) == (True, True)
        assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]
    assert (len(pods_of_slice(site)), len(site.pods_of())) == (HOSTS, HOSTS)
    assert [(each["accelerator"], each["jobs"]) for each in listed] == [("tpu-v4-2x2x2", 2)]
    (kept,) = re.findall(r"its 2 hosts stay for 10 min 00 s .* as the warm slice (\S+); it costs (.*)", err)
    assert kept == (listed[0]["name"], f"about ${listed[0]['dollars_per_hour']:.2f} per hour")
    assert listed[0]["dollars_per_hour"] > 0


@pytest.mark.nightly
def test_the_jobs_of_a_batch_follow_each_other_on_one_warm_slice(team: Any, site: Any, machines: Any) -> None:
    machines()

    values = team.run("""
        from team import report
        batch = report.run_async_map([{}] * 3, input_mode="kwargs", max_concurrent=1)
        tell(batch.results())
    """)

    assert values == [{"host": 0, "attempt": 0}] * 3
    assert (len(pods_of_slice(site)), len(site.pods_of())) == (HOSTS, HOSTS)


@pytest.mark.nightly
def test_a_cancelled_job_ends_on_all_hosts_and_the_slice_takes_the_next_one(
    team: Any, site: Any, machines: Any, kinetic: Any, shared: Any
) -> None:
    machines()
    job_id = team.run("from team import again\ntell(again.run_async(words[0]).job_id)", str(shared))
    for host in range(HOSTS):
        wait_for(f"host {host}", (shared / f"host-{host}-attempt-0").exists)
    before = ran_in(site)

    cancelled = kinetic("jobs", "cancel", job_id)
    wait_until_idle(site)
    value = team.run("from team import report\ntell(report())")

    assert cancelled.code == 0, cancelled.err
    assert value == {"host": 0, "attempt": 0}
    assert ran_in(site) == before


@pytest.mark.nightly
@pytest.mark.parametrize("host", range(HOSTS))
def test_a_host_that_is_lost_while_it_is_busy_restarts_the_slice_and_its_job(
    team: Any, site: Any, machines: Any, shared: Any, host: int
) -> None:
    machines()
    job_id = team.run("from team import again\ntell(again.run_async(words[0]).job_id)", str(shared))
    for each in range(HOSTS):
        wait_for(f"host {each}", (shared / f"host-{each}-attempt-0").exists)
    before = ran_in(site)

    lose_host(site, host)
    value = team.run("tell(kinetic.attach(words[0]).result(timeout=90, cleanup=False))", job_id)
    after = team.run("from team import report\ntell(report())")

    assert value == 1
    assert {path.name for path in shared.glob("host-*-attempt-1")} == {"host-0-attempt-1", "host-1-attempt-1"}
    assert site.bucket.names(f"{job_id}/result") == [f"{job_id}/result.pkl"]
    assert after == {"host": 0, "attempt": 0}
    assert not ran_in(site) & before
    assert len(pods_of_slice(site)) == len(site.pods_of()) == HOSTS


def said(site: Any, pod: str) -> str:
    """Return the log of a pod; nothing while it starts."""
    try:
        return str(site.log(pod))
    except RefusedError:
        return ""


def lose_host(site: Any, host: int) -> None:
    site.api.delete(f"{site.core}/pods/{pods_of_slice(site)[host]['metadata']['name']}")


@pytest.mark.nightly
def test_a_job_whose_slice_ends_because_a_first_process_is_killed_continues_on_hosts_of_its_own(
    team: Any, site: Any, machines: Any, agent: Any, shared: Any
) -> None:
    machines()
    job_id = team.run("from team import again\ntell(again.run_async(words[0]).job_id)", str(shared))
    for each in range(HOSTS):
        wait_for(f"host {each}", (shared / f"host-{each}-attempt-0").exists)
    (first,) = agent.pids(site.namespace, pods_of_slice(site)[1]["metadata"]["name"]).values()

    os.kill(first, signal.SIGKILL)  # 137: as where memory ran out, which would happen again
    value = team.run("tell(kinetic.attach(words[0]).result(timeout=90, cleanup=False))", job_id)

    assert value == 1
    assert site.bucket.names(f"{job_id}/result") == [f"{job_id}/result.pkl"]


@pytest.mark.nightly
def test_a_host_that_is_lost_while_it_is_idle_restarts_the_slice_which_takes_the_next_job(
    team: Any, site: Any, machines: Any
) -> None:
    machines()
    team.run("from team import report\ntell(report())")
    wait_until_idle(site)
    before = ran_in(site)

    lose_host(site, 1)
    wait_for("new hosts", lambda: len(ran_in(site) - before) == HOSTS, 60)
    for name in ran_in(site) - before:
        wait_for("its process", lambda: "is ready" in said(site, name), 60)  # noqa: B023 - called now
    value = team.run("from team import report\ntell(report())")

    assert value == {"host": 0, "attempt": 0}
    assert len(pods_of_slice(site)) == len(site.pods_of()) == HOSTS


@pytest.mark.parametrize("keep", [None, "10m"])
def test_a_job_that_comes_while_its_warm_slice_restarts_waits_for_it_instead_of_for_machines_of_its_own(
    team: Any, site: Any, machines: Any, kinetic: Any, keep: str | None
) -> None:
    nodes = [f"/api/v1/nodes/{name}" for name in machines()]
    team.run("from team import report\ntell(report())")
    wait_until_idle(site)
    for node in nodes:
        site.api.merge(node, {"spec": {"unschedulable": True}})
    before = ran_in(site)

    lose_host(site, 1)
    wait_for("its leader to be made again", lambda: (now := ran_in(site)) and not now & before, 60)
    job_id, said = team.both(
        "from team import report\ntell(report.with_options(keep_warm=eval(words[0])).run_async().job_id)", repr(keep)
    )
    explained = kinetic("jobs", "explain", job_id)
    for node in nodes:
        site.api.merge(node, {"spec": {"unschedulable": False}})
    value = team.run("tell(kinetic.attach(words[0]).result(timeout=90, cleanup=False))", job_id)

    (name,) = {pod["metadata"]["labels"]["job-id"] for pod in pods_of_slice(site)}
    assert f"waits for the warm slice {name}, which is being started" in said
    assert f"what:  its warm pod {name}: " in explained.out, explained
    assert value["host"] == 0
    assert len(pods_of_slice(site)) == len(site.pods_of()) == HOSTS


@pytest.mark.nightly
@pytest.mark.parametrize("step", failpoints.SLICE)
def test_a_leader_that_dies_before_the_others_heard_of_a_job_loses_nothing(
    team: Any, site: Any, machines: Any, agent: Any, shared: Any, step: str
) -> None:
    machines()
    python = agent.registry.pull("python:3")
    agent.registry.add("python:*", python._replace(environment={failpoints.VARIABLE: f"{step}@{shared}/died"}))

    found = team.run(
        """
        from team import report
        import os
        found = []
        while len(found) < 2 or not os.path.exists(words[0]) and len(found) < 10:  # the Secret may be faster
            job = report.run_async()
            found.append([job.job_id, job.result(timeout=90, cleanup=False)["host"]])
        tell(found)
        """,
        str(shared / "died"),
    )

    assert (shared / "died").exists()
    for job_id, host in found:
        assert host == 0
        assert site.bucket.names(f"{job_id}/result") == [f"{job_id}/result.pkl"]
    if step == "leader:took":  # by its supervisor; the end of the first process is that of the slice
        assert len(pods_of_slice(site)) == len(site.pods_of()) == HOSTS


@pytest.mark.nightly
def test_a_slice_that_is_idle_ends_on_all_hosts(team: Any, site: Any, machines: Any) -> None:
    machines()
    team.run("from team import report\ntell(report.with_options(keep_warm='3s')())")

    def has_ended() -> bool:
        warm = [each for each in site.job_sets() if each["metadata"]["labels"]["app"] == "kinetic-warm"]
        return [each["status"].get("terminalState") for each in warm] == ["Completed"]

    wait_for("its end", has_ended, 60)
    assert {pod["status"]["phase"] for pod in pods_of_slice(site)} <= {"Succeeded"}


@pytest.mark.nightly
@WARM_KINDS
def test_a_job_whose_slice_was_stopped_continues_on_hosts_of_its_own(
    team: Any, site: Any, machines: Any, kinetic: Any, shared: Any, kind: str
) -> None:
    machines()
    job_id = team.run("from team import again\ntell(again.run_async(words[0]).job_id)", str(shared))
    for host in range(HOSTS):
        wait_for(f"host {host}", (shared / f"host-{host}-attempt-0").exists)

    stopped = kinetic("warm", "stop", "--all")
    wait_for(
        "its end", lambda: "in a pod of its own" in (found := kinetic("jobs", "explain", job_id)).out + found.err, 60
    )
    value = team.run("tell(kinetic.attach(words[0]).result(timeout=90))", job_id)

    assert stopped.code == 0, stopped.err
    assert value == 1


@pytest.mark.nightly
@WARM_KINDS
def test_a_slice_that_was_started_before_its_first_job_takes_it_on_any_kind_of_cluster(
    team: Any, site: Any, machines: Any, kinetic: Any, kind: str
) -> None:
    machines()

    started = kinetic("warm", "start", "tpu-v4-2x2x2", "--idle", "10m")
    before = ran_in(site)
    values = team.run("from team import report\ntell([report.with_options(keep_warm=None)() for _ in range(2)])")
    listed = json.loads(kinetic("warm", "list", "--json").out)["warm_pods"]

    assert started.code == 0, started.err
    assert len(site.job_sets()) == (kind == "JobSet")
    assert values == [{"host": 0, "attempt": 0}] * 2
    assert [(each["name"], each["jobs"]) for each in listed] == [(started.out.strip(), 3)]
    assert ran_in(site) == before
    assert len(before) == HOSTS


def test_of_four_hosts_a_lost_one_restarts_all_and_they_take_the_next_job(
    team: Any, site: Any, machines: Any, kinetic: Any, shared: Any
) -> None:
    machines(4, "2x2x4")
    team.project.write("team.py", WARM.replace("tpu-v4-2x2x2", "tpu-v4-2x2x4"))
    job_id = team.run("from team import again\ntell(again.run_async(words[0]).job_id)", str(shared))
    for each in range(4):
        wait_for(f"host {each}", (shared / f"host-{each}-attempt-0").exists, 60)
    before = ran_in(site)

    lose_host(site, 2)
    value = team.run("tell(kinetic.attach(words[0]).result(timeout=90, cleanup=False))", job_id)
    after, next_id = team.run("""
        from team import report
        job = report.run_async()
        tell([job.result(cleanup=False), job.job_id])
    """)
    log = kinetic("jobs", "logs", next_id, "--host", "all").out

    assert (value, after) == (1, {"host": 0, "attempt": 0})
    assert {path.name for path in shared.glob("*-attempt-1")} == {f"host-{host}-attempt-1" for host in range(4)}
    assert [f"[host {host}] I am host {host} of 4" in log for host in range(4)] == [True] * 4
    assert not ran_in(site) & before
    assert len(pods_of_slice(site)) == len(site.pods_of()) == 4

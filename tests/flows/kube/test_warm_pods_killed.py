"""Whoever dies around a warm pod: no job is lost, and none is carried out twice at the same time."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from cluster.plane import wait_for
from flows.kube.test_warm_pods import busy_task, is_idle, is_warm, pods_of_warm, says, warm_job
from flows.kube.test_warm_pods_in_trouble import submitter
from servers.faults import Fault

from kinetic._wire import failpoints

pytestmark = [pytest.mark.usefixtures("machine"), pytest.mark.timeout(300)]

KILLING = """
    import os, signal, kinetic

    @kinetic.run(accelerator="cpu", keep_warm="10m")
    def strike(generation):
        attempt = int(os.environ["KINETIC_ATTEMPT"])
        if attempt == 0:
            pid = os.getppid()
            for _ in range(generation):
                pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
            os.kill(pid, signal.SIGKILL)
            signal.pause()
        return attempt
"""
TAKES_ANOTHER = "task 1 was assigned to this warm pod and never told; it takes task 2 next"
SUBMIT = "from one import add\nadd.with_options(keep_warm='10m').run_async(1, 2)"
# What another client does that waits for the job; it does not wait three minutes for a pod that was never told.
COLLECT = """
    from kinetic._jobs import cold_start
    cold_start._UNTAKEN_SECONDS = 3.0
    (job,) = kinetic.list_jobs()
    tell([job.job_id, job.result(timeout=80, cleanup=False)])
"""


def killed(clients: Any, tmp_path: Path, step: str, **environ: str) -> None:
    """Submit a job from a client that dies at a step."""
    mark = tmp_path / "died"
    client = clients.start(SUBMIT, **environ, **{failpoints.VARIABLE: f"{step}@{mark}"})
    client.communicate(timeout=100)
    assert mark.exists(), f"{step} was not reached"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", ["client:secret-created", "client:task-assigned"])
def test_a_client_that_dies_before_its_warm_pod_is_started_leaves_a_job_that_another_one_starts(
    clients: Any, site: Any, tmp_path: Path, step: str, kinetic: Any
) -> None:
    killed(clients, tmp_path, step)

    job_id, value = clients.run(COLLECT)
    stopped = kinetic("warm", "stop", "--all")

    assert value == 3
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]
    assert stopped.code == 0, stopped.err
    wait_for("the end of what it left", lambda: not [each for each in site.jobs() if is_suspended(each)])


def is_suspended(job: dict[str, Any]) -> bool:
    return is_warm(job) and bool(job["spec"].get("suspend"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("step", failpoints.WARM[3:7])
def test_a_client_that_dies_while_it_tells_a_warm_pod_loses_no_job(
    clients: Any, site: Any, tmp_path: Path, step: str
) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))

    killed(clients, tmp_path, step)
    job_id, value = clients.run(COLLECT)
    after = clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(3, 4))")

    assert (value, after) == (3, 7)
    (secret,), (job,) = site.secrets(job_id), site.jobs(job_id)
    owners = [each["uid"] for each in secret["metadata"]["ownerReferences"]]
    assert owners == [job["metadata"]["uid"]], "it does not go with the warm pod"
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]


def test_a_pod_does_not_begin_with_a_job_whose_client_dies_before_it_is_safe_and_takes_the_next_one(
    clients: Any, site: Any, plane: Any, tmp_path: Path
) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))
    plane.proxy.delay_seconds = 0.5  # the pod holds the task long before there is a Job

    killed(clients, tmp_path, "client:job-created")
    plane.proxy.delay_seconds = 0.0
    wait_for("a pod that has given the task up", is_idle(site, 2))
    if len(site.bucket.names("warm/")) > 1:  # and its number, where that was its job's already
        wait_for("the next number", lambda: TAKES_ANOTHER in says(site))
    left = site.bucket.names("cpu-add")
    value = clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(3, 4))")

    assert value == 7
    assert [name for name in left if "/attempts/" in name or "/placements/" in name] == []
    assert len(site.pods_of()) == 1


def test_a_pod_takes_the_next_job_after_one_that_the_cluster_refused_once_it_was_assigned(
    clients: Any, site: Any, plane: Any
) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))
    plane.proxy.faults.append(Fault("status", status=403, method="POST", target=r"/jobs\?", times=1))
    refused = clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 3))")
    wait_for("a pod that has given the number up", lambda: TAKES_ANOTHER in says(site))
    value = clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(3, 4))")

    assert (refused, value) == (4, 7)
    assert says(site).count("the verdict is in the store") == 2, "the first one and the last one"


LOOKS = {
    "list": "subprocess.run([sys.executable, '-m', 'kinetic', 'jobs', 'list'], check=True)",
    "status on another machine": "kinetic.attach(words[0]).status()",
}


@pytest.mark.parametrize("look", ["list", pytest.param("status on another machine", marks=pytest.mark.nightly)])
def test_a_task_that_was_never_told_is_started_by_whoever_looks_first_once_its_warm_pod_has_ended(
    clients: Any, site: Any, tmp_path: Path, kinetic: Any, look: str
) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))
    killed(clients, tmp_path, "client:task-assigned")
    job_id = clients.run("tell(kinetic.list_jobs()[0].job_id)")
    shutil.copytree(clients.home / "keys", tmp_path / "elsewhere" / "keys")
    home = str(tmp_path / "elsewhere") if "another" in look else str(clients.home)

    meanwhile = kinetic("jobs", "explain", job_id)
    stopped = kinetic("warm", "stop", "--all")
    wait_for("the end of the pod", lambda: not warm_job(site)["status"].get("active"), 60)
    untouched = site.pods_of(job_id)
    if look == "list":  # as a day after the end of the pod: it has everything but captured values
        site.api.delete(f"{site.core}/secrets/kinetic-{job_id}")
    clients.run(f"import subprocess, sys\n{LOOKS[look]}\ntell(0)", job_id, KINETIC_HOME=home)
    wait_for("its value", lambda: f"{job_id}/result.pkl" in site.bucket.names(job_id), 60)

    assert "has not begun with it" in meanwhile.out, meanwhile.err
    assert (stopped.code, untouched) == (0, []), stopped.err
    assert len(site.pods_of(job_id)) == 1
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]


@pytest.mark.nightly
def test_who_may_not_delete_secrets_and_so_not_change_their_owners_loses_no_job(
    clients: Any, site: Any, tmp_path: Path
) -> None:
    kubeconfig = submitter(site, tmp_path, "delete secrets")
    told = "from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))"
    clients.run(told, KUBECONFIG=kubeconfig)
    wait_for("an idle pod", is_idle(site, 1))

    value, err = clients.both(told, KUBECONFIG=kubeconfig)
    killed(clients, tmp_path, "client:task-assigned", KUBECONFIG=kubeconfig)
    (_, later), more = clients.both(COLLECT, KUBECONFIG=kubeconfig)

    assert (value, later) == (3, 3)
    assert err.count("its Secret goes with its warm pod") == more.count("its Secret goes with its warm pod") == 1
    assert ": delete secrets" in more
    assert len(pods_of_warm(site)) == 1


@pytest.mark.parametrize("generation", [0, 1], ids=["supervisor", "fork server"])
def test_a_process_of_the_pod_that_is_killed_is_followed_by_the_next_attempt(
    clients: Any, site: Any, generation: int
) -> None:
    clients.project.write("killing.py", KILLING)

    value = clients.run("from killing import strike\ntell(strike(int(words[0])))", str(generation))
    after = clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")

    assert (value, after) == (1, 3)
    assert len(site.pods_of()) == 1


def test_a_first_process_that_is_killed_takes_the_pod_along_and_not_the_job(
    clients: Any, site: Any, shared: Any, agent: Any
) -> None:
    job_id = busy_task(clients, shared)
    (pod,) = pods_of_warm(site)
    (first,) = agent.pids(site.namespace, pod["metadata"]["name"]).values()

    os.kill(first, signal.SIGKILL)
    value = clients.run("tell(kinetic.attach(words[0]).result(timeout=90))", job_id)

    assert value == 1


def test_an_idle_pod_that_is_deleted_costs_the_next_job_a_start_and_nothing_else(clients: Any, site: Any) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))
    (pod,) = pods_of_warm(site)

    site.api.delete(f"{site.core}/pods/{pod['metadata']['name']}")
    value = clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(3, 4))")

    assert value == 7


# A client that waits before it gives a job to an idle pod, or before it has assigned it, until that pod has ended.
LATE = """
    import os, time
    from kinetic._backends.kube.warm_launcher import WarmLauncher
    from kinetic._runner.supervisor import bindings
    where, name = (WarmLauncher, "tell") if words[1:] == [] else (bindings, words[1])
    do = getattr(where, name)
    def later(*arguments, **named):
        open(words[0] + "/waits", "w").close()
        while not os.path.exists(words[0] + "/ended"):
            time.sleep(0.02)
        return do(*arguments, **named)
    setattr(where, name, later)
    from one import add
    job = add.with_options(keep_warm='10m').run_async(3, 4)
    tell([job.job_id, job.result(cleanup=False)])
"""


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("", id="nobody dies", marks=pytest.mark.nightly),
        "pod:ends",
        pytest.param("client:task-held", marks=pytest.mark.nightly),
        pytest.param("client:placed-cold", marks=pytest.mark.nightly),
    ],
)
def test_a_job_that_is_given_to_a_pod_while_that_ends_runs_once_in_another_one_whoever_dies(
    clients: Any, site: Any, agent: Any, shared: Any, step: str
) -> None:
    dying = {failpoints.VARIABLE: f"{step}@{shared}/died"} if step else {}
    if step == "pod:ends":
        agent.registry.add("python:*", agent.registry.pull("python:3")._replace(environment=dying))
    clients.run("from one import add\ntell(add.with_options(keep_warm='6s')(1, 2))")

    client = clients.start(LATE, str(shared), **dying)
    wait_for("a client that has seen it idle", (shared / "waits").exists)
    wait_for("the end of the pod", lambda: "ends: idle for 6 s" in said(site), 60)
    (shared / "ended").touch()
    out, err = client.communicate(timeout=100)
    found = clients.run(COLLECT) if step.startswith("client:") else (clients.told(out) or [err])[-1]

    assert (shared / "died").exists() == bool(step)
    job_id, value = found
    assert value == 7, err
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]
    assert len(site.pods_of(job_id)) == 1
    wait_for("the end of the warm pod", lambda: not warm_job(site)["status"].get("active"), 60)


@pytest.mark.nightly
def test_a_job_that_a_pod_holds_when_it_is_killed_runs_once_in_another_one(
    clients: Any, site: Any, agent: Any, shared: Any
) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))
    (pod,) = pods_of_warm(site)
    (first,) = agent.pids(site.namespace, pod["metadata"]["name"]).values()

    client = clients.start(LATE, str(shared), "assign")
    wait_for("a client whose task is held", (shared / "waits").exists)
    os.kill(first, signal.SIGKILL)
    wait_for("the end of the pod", lambda: not warm_job(site)["status"].get("active"), 60)
    (shared / "ended").touch()
    out, err = client.communicate(timeout=100)

    assert client.returncode == 0, err
    job_id, value = clients.told(out)[-1]
    assert value == 7
    assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]
    assert len(site.pods_of(job_id)) == 1


def said(site: Any) -> str:
    """Return what all warm pods have written."""
    return "".join(site.log(pod["metadata"]["name"]) for pod in pods_of_warm(site))

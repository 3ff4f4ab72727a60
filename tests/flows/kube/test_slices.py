"""A slice of several hosts on a cluster, by what makes its pods there: it stands and falls as one."""

from __future__ import annotations

import os
import re
import textwrap
import zlib
from importlib.util import find_spec
from typing import Any

import pytest
from cluster import nodes
from cluster.plane import wait_for
from flows.programs import FAKE_TORCH

from kinetic._backends.kube.job_manifests import SLICE_INDEX

HOSTS = 2
HOST_LABELS = ("batch.kubernetes.io/job-completion-index", "leaderworkerset.sigs.k8s.io/worker-index")

TEAM = """
    import os
    import time
    import kinetic

    @kinetic.run(accelerator="tpu-v4-2x2x2")
    def report():
        host = int(os.environ["KINETIC_HOST_INDEX"])
        print("I am host", host, "of", os.environ["KINETIC_HOST_COUNT"])
        return {"host": host, "attempt": int(os.environ["KINETIC_ATTEMPT"])}

    @kinetic.run(accelerator="tpu-v4-2x2x2")
    def talk(until):
        print("before", flush=True)
        while not os.path.exists(until):
            time.sleep(0.02)
        print("after")

    @kinetic.run(accelerator="tpu-v4-2x2x2")
    def fall():
        if os.environ["KINETIC_HOST_INDEX"] == "1":
            raise ValueError("this host is unwell")
        time.sleep(600)

    @kinetic.run(accelerator="tpu-v4-2x2x2")
    def again(folder):
        host, attempt = os.environ["KINETIC_HOST_INDEX"], int(os.environ["KINETIC_ATTEMPT"])
        open(f"{folder}/host-{host}-attempt-{attempt}", "w").close()
        print("attempt", attempt, flush=True)
        while attempt == 0:
            time.sleep(0.1)
        return attempt
"""

COMMAND = """
    import runpy
    runpy.run_module("kinetic", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def team(clients: Any) -> Any:
    """Clients that find ``team.py`` with jobs of two hosts."""
    clients.project.write("team.py", TEAM)
    return clients


@pytest.fixture(params=["JobSet", "Indexed Job", "LeaderWorkerSet"])
def kind(request: pytest.FixtureRequest, plane: Any) -> str:
    """What makes the pods: where the cluster has no JobSet and no LeaderWorkerSet, an Indexed Job."""
    if request.param == "LeaderWorkerSet":
        for name in ("set_controller", "only_leader_worker_sets"):
            request.getfixturevalue(name)
    elif request.param == "Indexed Job":
        plane.proxy.hide("jobset.x-k8s.io")
        plane.proxy.hide("leaderworkerset.x-k8s.io")
    return str(request.param)


@pytest.mark.real_node
def test_the_leader_of_a_slice_answers(team: Any, site: Any, machines: Any, kind: str) -> None:
    machines()

    job_id, backend, value = team.run("""
        from team import report
        job = report.run_async()
        tell([job.job_id, job.backend, job.result(cleanup=False)])
    """)

    assert (backend, value) == ("pathways", {"host": 0, "attempt": 0})
    assert len(site.job_sets(job_id)) == (kind == "JobSet")
    if kind != "LeaderWorkerSet":  # which has removed its pods
        assert len({pod["spec"]["nodeName"] for pod in site.pods_of(job_id)}) == HOSTS


@pytest.mark.real_node
@pytest.mark.parametrize("kind", ["JobSet", "Indexed Job"], indirect=True)
def test_a_slice_whose_hosts_are_not_ready_before_its_deadline_fails_and_says_why(
    team: Any, site: Any, machines: Any, kinetic: Any, kind: str
) -> None:
    machines()

    job_id, words = team.run("""
        from kinetic._backends.kube import job_launcher
        from team import report
        job_launcher._SETUP_SECONDS = 15
        job = report.with_options(container_image="registry.test/nowhere:1", deadline=1).run_async()
        tell([job.job_id, message(job.exception(timeout=90))])
    """)
    explained = kinetic("jobs", "explain", job_id)

    assert "it was not ready within its deadline and half an hour: the " in words
    assert "registry.test/nowhere:1" in explained.out
    assert explained.out.splitlines()[0] == f"{job_id}: FAILED"
    assert [each["status"].get("restarts", 0) for each in site.job_sets(job_id)] == [0] * (kind == "JobSet")


def test_collecting_removes_everything_of_a_slice(team: Any, site: Any, machines: Any, kind: str) -> None:
    machines()

    job_id = team.run("from team import report\njob = report.run_async()\njob.result()\ntell(job.job_id)")

    site.gone(job_id)
    assert site.bucket.names(f"{job_id}/") == []
    services = site.api.get(f"{site.core}/services")["items"]
    assert [each["metadata"]["name"] for each in services if each["metadata"]["name"] != "kubernetes"] == []


def test_every_hosts_log_is_kept_and_shown_with_its_prefix(team: Any, machines: Any, kinetic: Any) -> None:
    machines()
    job_id = team.run("""
        from team import report
        job = report.run_async()
        job.result(cleanup=False)
        tell(job.job_id)
    """)

    everything = kinetic("jobs", "logs", job_id, "--host", "all").out
    second = kinetic("jobs", "logs", job_id, "--host", "1").out

    found = re.findall(r"^\[host (\d)\] I am host (\d) of 2$", everything, re.MULTILINE)
    assert found == [("0", "0"), ("1", "1")]
    missing, *others = second.splitlines()  # the machines of these tests have no chips
    assert missing.startswith("kinetic: the TPU of this pod did not come up: ")
    assert others == ["I am host 1 of 2"]


@pytest.mark.nightly
def test_the_hosts_of_a_command_use_what_the_first_one_compiled_in_a_job_before(
    team: Any, site: Any, machines: Any, kinetic: Any
) -> None:
    machines()
    team.project.write("torch/__init__.py", "")
    team.project.write("torch/_inductor.py", FAKE_TORCH)
    words = ["run", "-a", "tpu-v4-2x2x2", "--", "python", "-c", "import torch._inductor"]

    first, _ = (kinetic(*words) for _ in range(2))
    log = kinetic("jobs", "logs", "@last", "--host", "all").out

    assert "TRITON_CACHE_DIR compiles" in first.out, first.err
    assert "0 files found, 2 added" in first.out
    found = re.findall(r"^\[host (\d)\] TRITON_CACHE_DIR made by (\d+)$", log, re.MULTILINE)
    assert (len(found), len({maker for _, maker in found})) == (HOSTS, 1), log
    assert log.count("compile cache of torch: 2 files found, 0 added") == HOSTS
    assert len(site.bucket.names("data/compiled/entries/")) == 2


def test_every_hosts_log_is_followed_with_its_prefix_while_the_slice_runs(
    team: Any, machines: Any, shared: Any
) -> None:
    machines()
    job_id = team.run("from team import talk\ntell(talk.run_async(words[0]).job_id)", str(shared / "go"))
    team.project.write("command.py", COMMAND)

    follower = team.project.start("command.py", "jobs", "logs", job_id, "--follow", "--host", "all")
    said = [follower.stdout.readline() for _ in range(2 * HOSTS)]  # the first line of each tells of the missing TPU
    first = sorted(line for line in said if "did not come up" not in line)
    is_live = follower.poll() is None
    (shared / "go").touch()
    rest, err = follower.communicate(timeout=60)

    assert first == ["[host 0] before\n", "[host 1] before\n"]
    assert is_live
    assert (follower.returncode, sorted(rest.splitlines())) == (0, ["[host 0] after", "[host 1] after"]), err


@pytest.mark.real_node
def test_a_host_that_fails_is_named_with_its_traceback(team: Any, machines: Any, kind: str) -> None:
    machines()

    name, words, status = team.run("""
        from team import fall
        job = fall.run_async()
        error = job.exception(timeout=90)
        tell([type(error).__name__, message(error), job.status().value])
    """)

    assert (name, status) == ("ValueError", "FAILED")
    assert "this host is unwell" in words
    assert "It happened on host 1 of 2." in words
    assert 'raise ValueError("this host is unwell")' in words


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["JobSet", "LeaderWorkerSet"], indirect=True)
@pytest.mark.parametrize(
    "how",
    [
        "the machine is preempted",
        pytest.param("the machine is gone", marks=pytest.mark.nightly),  # the cluster believes it after a minute
        "the pod is deleted",
    ],
)
def test_a_slice_that_lost_a_host_begins_again_as_a_whole(
    team: Any, site: Any, agent: Any, machines: Any, kinetic: Any, kind: str, shared: Any, how: str
) -> None:
    machines()
    client = team.start(
        """
        from team import again
        seen = []
        job = again.run_async(words[0])
        tell(job.job_id)
        value = job.result(timeout=150, on_status_change=lambda status: seen.append(status.value), cleanup=False)
        tell([value, seen, job.logs()])
        """,
        str(shared),
    )
    (job_id,) = team.told(client.stdout.readline())
    for host in range(HOSTS):
        wait_for(f"host {host}", (shared / f"host-{host}-attempt-0").exists)
    second = next(pod for pod in site.pods_of(job_id) if host_of(pod) == "1")

    machines(1)
    _take_away(agent, site, second, how)
    out, err = client.communicate(timeout=160)

    assert client.returncode == 0, err
    value, seen, log = team.told(out)[-1]
    assert value == 1
    assert "FAILED" not in seen
    assert "attempt 1" in log
    assert "attempt 0" in kinetic("jobs", "logs", job_id, "--attempt", "0").out
    assert {path.name for path in shared.glob("host-*-attempt-1")} == {"host-0-attempt-1", "host-1-attempt-1"}


def host_of(pod: dict[str, Any]) -> str:
    labels = pod["metadata"]["labels"]
    return str(next(labels[name] for name in HOST_LABELS if name in labels))


def _take_away(agent: Any, site: Any, pod: dict[str, Any], how: str) -> None:
    if how == "the pod is deleted":
        site.api.delete(f"{site.core}/pods/{pod['metadata']['name']}")
    elif how == "the machine is gone":
        agent.remove_node(pod["spec"]["nodeName"])
    else:
        agent.preempt(pod["spec"]["nodeName"], grace_seconds=15)


@pytest.mark.timeout(180)
def test_a_slice_goes_by_itself_however_it_ends_and_nobody_need_come_back(
    team: Any, site: Any, machines: Any, kind: str, shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_TTL_HOURS", "0.0005")
    ways = {
        "report.run_async()": ["SUCCEEDED", "NoneType"],
        "fall.run_async()": ["FAILED", "ValueError"],
        f"again.with_options(deadline=2).run_async({str(shared)!r})": ["FAILED", "deadline"],
    }
    job_ids = []

    for number, way in enumerate(ways):
        machines(pool=number)  # a slice has a pool to itself
        job_ids.append(team.run(f"from team import *\ntell({way}.job_id)"))
        assert len(site.job_sets(job_ids[-1])) == (kind == "JobSet")
    wait_for("the end of each", lambda: not any(site.left(each) or site.pods_of(each) for each in job_ids), 60)
    found = team.run(
        """
        jobs = [kinetic.attach(word) for word in words]
        codes = [getattr(error := job.exception(), "code", type(error).__name__) for job in jobs]
        tell([[job.status().value, code] for job, code in zip(jobs, codes)])
        """,
        *job_ids,
    )

    assert found == [*ways.values()]
    services = site.api.get(f"{site.core}/services")["items"]
    assert [each["metadata"]["name"] for each in services if each["metadata"]["name"] != "kubernetes"] == []


def test_a_slice_that_waits_for_machines_says_so_and_is_cancelled(
    team: Any, site: Any, machines: Any, kinetic: Any
) -> None:
    machines(1)
    job_id = team.run("from team import report\ntell(report.run_async().job_id)")

    wait_for("its pods", lambda: len(site.pods_of(job_id)) == HOSTS)
    told = wait_for(
        "the reason", lambda: "hosts are running" in (said := kinetic("jobs", "explain", job_id)).out and said
    )
    cancelled = kinetic("jobs", "cancel", job_id)

    assert "tpu" in told.out
    assert cancelled.code == 0, cancelled.err
    site.gone(job_id)


def test_a_slice_that_no_machine_fits_says_so_though_its_other_hosts_get_no_pods_until_then(
    team: Any, site: Any, machine: str, kinetic: Any
) -> None:
    job_id = team.run("from team import report\ntell(report.run_async().job_id)")

    def refused() -> bool:
        events = site.api.get(f"{site.core}/events")["items"]
        return any("follower pod" in each["message"] for each in events)

    wait_for("what JobSet says of the other hosts", refused)
    told = wait_for(
        "the reason", lambda: "hosts are running" in (said := kinetic("jobs", "explain", job_id)).out and said
    )

    assert "host 0: no node of this cluster has what the job asks for" in told.out


def test_a_slice_is_refused_by_the_backend_of_one_host(team: Any) -> None:
    found = team.run("""
        from team import report
        try:
            report.with_options(backend="gke").run_async()
        except kinetic.errors.OptionError as error:
            tell(str(error))
    """)

    assert "has 2 hosts" in found


def test_several_machines_with_gpus_are_hosts_on_any_nodes_that_find_each_other_by_the_first_ones_name(
    team: Any, site: Any, kind: str, add_node: Any, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINETIC_REQUIRE_ACCELERATOR", "0")  # the test's nodes have labels, and no GPU
    for number in range(HOSTS):
        add_node(nodes.gpu(f"gpu-{number}-{namespace}", "nvidia-l4", 2))

    found = team.run("""
        import os, socket

        @kinetic.run(accelerator="gpu-l4x2x2")
        def meet():
            import jax
            count = jax.process_count()  # all hosts meet
            where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            if os.environ["NODE_RANK"] == "0":
                with socket.create_server(where) as server, server.accept()[0] as other:
                    return other.makefile().read(), count
            while True:
                try:
                    with socket.create_connection(where) as other:
                        return other.sendall(b"hello")
                except OSError:
                    time.sleep(0.05)

        tell(meet())
    """)

    assert found == ["hello", 2]


def test_several_slices_are_one_job_whose_hosts_are_counted_on_and_each_has_a_node_pool_of_its_own(
    team: Any, site: Any, machines: Any, kinetic: Any
) -> None:
    pools = [set(machines(pool=0)), set(machines(pool=1))]
    pools[1] -= pools[0]

    (job_id, first), said = team.both("""
        @kinetic.run(accelerator="tpu-2xv4-2x2x2", keep_warm="10m")
        def where():
            me = kinetic.current()
            print("slice", me.slice_index, "of", me.slice_count, "host", me.host_index, "of", me.host_count)
            return [*me, me.slice_count]

        job = where.run_async()
        tell([job.job_id, job.result(cleanup=False)])
    """)
    log = kinetic("jobs", "logs", job_id, "--host", "all").out
    explained = kinetic("jobs", "explain", job_id).out

    assert first[2:] == [0, 4, 2]  # host 0 of 4, in 2 slices
    found = re.findall(r"^\[host (\d)\] slice (\d) of 2 host (\d) of 4$", log, re.MULTILINE)
    assert sorted(found) == [(str(host), str(host // HOSTS), str(host)) for host in range(2 * HOSTS)]
    assert len(site.job_sets(job_id)) == 1
    used = [
        {pod["spec"]["nodeName"] for pod in site.pods_of(job_id) if pod["metadata"]["labels"][SLICE_INDEX] == index}
        for index in ("0", "1")
    ]
    assert sorted(map(sorted, used)) == sorted(map(sorted, pools))
    assert explained.splitlines()[0] == f"{job_id}: SUCCEEDED"
    assert "only hosts of one slice are kept" in said


def test_a_lost_host_of_one_slice_starts_all_slices_again_and_one_that_fails_is_named(
    team: Any, site: Any, agent: Any, machines: Any, shared: Any
) -> None:
    for number in range(2):
        machines(pool=number)
    client = team.start(
        """
        from team import again
        job = again.with_options(accelerator="tpu-2xv4-2x2x2").run_async(words[0])
        tell(job.job_id)
        value = job.result(timeout=100, cleanup=False)

        @kinetic.run(accelerator="tpu-2xv4-2x2x2")
        def fall():
            if kinetic.current().host_index == 3:
                raise ValueError("this host is unwell")
            time.sleep(600)

        tell([value, message(fall.run_async().exception(timeout=90))])
        """,
        str(shared),
    )
    (job_id,) = team.told(client.stdout.readline())
    for host in range(2 * HOSTS):
        wait_for(f"host {host}", (shared / f"host-{host}-attempt-0").exists)
    last = next(pod for pod in site.pods_of(job_id) if pod["metadata"]["labels"][SLICE_INDEX] == "1")

    site.api.delete(f"{site.core}/pods/{last['metadata']['name']}")
    out, err = client.communicate(timeout=110)

    assert client.returncode == 0, err
    value, words = team.told(out)[-1]
    assert value == 1
    assert {path.name for path in shared.glob("host-*-attempt-1")} == {f"host-{host}-attempt-1" for host in range(4)}
    assert "It happened on host 3 of 4." in words


def test_several_slices_are_refused_where_there_is_no_job_set(team: Any, plane: Any) -> None:
    plane.proxy.hide("jobset.x-k8s.io")

    found = team.run("""
        from team import report
        try:
            report.with_options(accelerator="tpu-2xv4-2x2x2").run_async()
        except kinetic.errors.CapacityError as error:
            tell([error.code, str(error)])
    """)

    assert found[0] == "kind-missing"
    assert "tpu-2xv4-2x2x2 has 2 slices, and JobSet is not installed in " in found[1]
    assert "one slice: tpu-v4-2x2x2" in found[1]


# What GKE tells JAX about a slice of TPUs nobody tells it on CPUs; here another cluster that JAX knows is played to it.
PLAYED = """
    import os

    index = os.environ.get("JOB_COMPLETION_INDEX") or os.environ.get("LWS_WORKER_INDEX")
    if index:
        base = os.environ["HOSTNAME"].rpartition("-")[0]
        first = os.environ.get("LWS_LEADER_ADDRESS") or f"{base}-0.{base.removesuffix('-s-0')}"
        os.environ["OMPI_MCA_orte_hnp_uri"] = f"1531576320.0;tcp://{first}:12345"
        os.environ["OMPI_COMM_WORLD_SIZE"] = "2"
        os.environ["OMPI_COMM_WORLD_RANK"] = index
        os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] = "0"
"""
JAX = """
    import kinetic

    @kinetic.run(accelerator="tpu-v4-2x2x2")
    def total():
        import jax
        import jax.numpy as jnp
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        spread = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
        everywhere = NamedSharding(spread.mesh, PartitionSpec())
        size = len(jax.devices())
        numbers = jax.make_array_from_callback((size,), spread, lambda index: np.arange(float(size))[index])
        summed = float(jax.jit(jnp.sum, out_shardings=everywhere)(numbers))
        return jax.process_index(), jax.process_count(), summed
"""


@pytest.mark.skipif(find_spec("jax") is None, reason="real JAX is needed, and it is not installed here")
def test_the_processes_of_a_slice_find_each_other_by_their_names_and_are_one_for_jax(
    team: Any, machines: Any, kind: str, agent: Any, shared: Any
) -> None:
    machines()
    run = str(zlib.crc32(os.fsencode(shared)))  # from its number JAX makes a port of this machine, which tests share
    (shared / "sitecustomize.py").write_text(textwrap.dedent(PLAYED).replace("1531576320", run))
    python = agent.registry.pull("python:3")
    agent.registry.add("python:*", python._replace(environment={"PYTHONPATH": str(shared)}))
    team.project.write("joined.py", JAX)

    index, count, total = team.run("from joined import total\ntell(total())")

    assert (index, count) == (0, 2)
    assert total > 0

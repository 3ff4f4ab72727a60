"""Batches and warm pods: a child begins where the one before it has ended, and no promise of a batch is weaker."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from cluster.plane import wait_for
from flows.kube.test_warm_pods import is_idle, pods_of_warm, warm_job

from kinetic._wire import failpoints

pytestmark = [pytest.mark.usefixtures("machine"), pytest.mark.timeout(300)]

KEPT = {"KINETIC_KEEP_WARM": "10m"}
RESUME = """
    from kinetic._jobs import cold_start
    cold_start._UNTAKEN_SECONDS = 3.0
    batch = kinetic.attach_batch(words[0], resume=True)
    tell([batch.results(cleanup=False), [job.job_id for job in batch.jobs]])
"""


def warm_up(clients: Any, site: Any) -> None:
    clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(1, 2))")
    wait_for("an idle pod", is_idle(site, 1))


@pytest.mark.real_node
def test_children_follow_each_other_in_one_warm_pod_and_leave_nothing_but_that(clients: Any, site: Any) -> None:
    statuses, log, values = clients.run(
        """
        batch = run([plan(0), plan(1, fails=1), *(plan(number) for number in range(2, 5))], max_concurrent=1, retries=1)
        batch.wait()
        found = [job.status().value for job in batch.jobs], batch.jobs[4].logs()
        tell([*found, batch.results()])
    """,
        **KEPT,
    )

    assert values == [0, 10, 20, 30, 40]
    assert (statuses, log) == (["SUCCEEDED"] * 5, "")
    (pod,) = site.pods_of()
    assert pod["metadata"]["labels"]["app"] == "kinetic-warm"
    assert site.log(pod["metadata"]["name"]).count("the job succeeded") == 5
    wait_for("the removal of the jobs", lambda: site.jobs() == [warm_job(site)])
    assert len(site.secrets()) == 1


def test_a_batch_takes_the_pods_that_are_idle_and_starts_the_others_in_pods_of_their_own(
    clients: Any, site: Any, kinetic: Any
) -> None:
    for words in ([], ["--another"]):
        started = kinetic("warm", "start", "cpu", "--idle", "10m", *words)
        assert started.code == 0, started.err
    wait_for("two idle pods", lambda: kinetic("warm", "list").out.count("idle") == 2, 60)

    values, ids, listed = clients.run("""
        import subprocess
        batch = run(plans(4, until=go), max_concurrent=None)
        while len(noted(notes)) < 4:
            time.sleep(0.05)
        words = [sys.executable, "-m", "kinetic", "batch", "status", batch.group_id, "--json"]
        listed = json.loads(subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True).stdout)
        open(go, "w").close()
        ids = [job.job_id for job in batch.jobs]
        tell([batch.results(cleanup=False), ids, listed])
    """)

    assert values == [0, 10, 20, 30]
    states = {row["index"]: row["state"] for row in listed["jobs"]}
    assert [states[0], states[1]] == ["running"] * 2, "those in warm pods; of the others, a Job tells a second later"
    assert [len(site.pods_of(job_id)) for job_id in ids] == [0, 0, 1, 1]
    assert len(pods_of_warm(site)) == 2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", failpoints.WARM[2:7])
def test_a_driver_that_dies_while_it_tells_a_warm_pod_loses_no_child_and_none_runs_twice(
    clients: Any, site: Any, tmp_path: Path, step: str
) -> None:
    warm_up(clients, site)
    mark, environ = tmp_path / "died", {**KEPT, "TOKEN_OF_A_TEST": "tr0ub4dor-and-3"}
    batch = "from jobs import act\nact = act.with_options(capture_env_vars=['TOKEN_OF_A_TEST'])\n"
    batch += "tell(act.run_async_map(plans(3), input_mode='single', max_concurrent=1).group_id)"
    client = clients.start(batch, **environ, **{failpoints.VARIABLE: f"{step}@{mark}"})
    out, err = client.communicate(timeout=100)
    assert mark.exists(), f"{step} was not reached: {out} {err}"

    group = re.findall(r"grp-[0-9a-f]{8}", "\n".join(site.bucket.names()))[0]

    # No look waits long enough: the next driver knows by itself that its predecessor is dead.
    values, ids = clients.run(RESUME.replace("3.0", "1e6"), group, **KEPT)

    assert values == [0, 10, 20]
    assert clients.numbers("begins") == [0, 1, 2]
    for job_id in ids:
        assert site.bucket.names(f"{job_id}/attempts/") == [f"{job_id}/attempts/0"]


def test_a_warm_pod_that_is_stopped_costs_the_child_in_it_a_start_and_the_batch_nothing(
    clients: Any, site: Any, kinetic: Any
) -> None:
    warm_up(clients, site)
    client = clients.start(
        """
        batch = run([plan(0), plan(1, until=go), plan(2)], max_concurrent=1)
        tell([batch.results(cleanup=False), [job.job_id for job in batch.jobs]])
    """,
        **KEPT,
    )
    wait_for("the second child", lambda: clients.numbers("begins") == [0, 1], 60)

    stopped = kinetic("warm", "stop", "--all")
    wait_for("its second start", lambda: clients.numbers("begins") == [0, 1, 1], 60)
    clients.go.touch()
    out, err = client.communicate(timeout=100)

    assert (client.returncode, stopped.code) == (0, 0), err
    values, ids = clients.told(out)[-1]
    assert values == [0, 10, 20]
    assert [len(site.pods_of(job_id)) for job_id in ids] == [0, 1, 0], "the second continued in a pod of its own"
    assert len(pods_of_warm(site)) == 1, "the third has one that stays again"


def test_a_batch_that_is_cancelled_gives_its_warm_pod_back(clients: Any, site: Any, kinetic: Any) -> None:
    warm_up(clients, site)
    client = clients.start("run(plans(3, until=go), max_concurrent=1).wait()\ntell(0)", **KEPT)
    wait_for("the first child", lambda: clients.numbers("begins") == [0], 60)
    group = re.findall(r"grp-[0-9a-f]{8}", "\n".join(site.bucket.names()))[0]

    cancelled = kinetic("batch", "cancel", group)
    client.communicate(timeout=100)
    wait_for("an idle pod", is_idle(site, 2), 60)
    value = clients.run("from one import add\ntell(add.with_options(keep_warm='10m')(3, 4))")

    assert (cancelled.code, value) == (0, 7), cancelled.err
    assert clients.numbers("begins") == [0]
    assert len(site.pods_of()) == 1


def test_a_job_that_may_have_a_pod_of_its_own_is_offered_to_no_warm_one(clients: Any, site: Any) -> None:
    warm_up(clients, site)

    (values, has_secret), said = clients.both(
        """
        from kinetic._backends.kube.backend import KubeBackend
        from kinetic._backends.kube.client import SECRET
        from kinetic._backends.kube.job_manifests import object_name
        from kinetic._jobs import warm_assignment
        from kinetic.errors import BackendUnavailableError
        launch, give, lost, has_secret = KubeBackend.launch, warm_assignment.give_children, [], []

        def lose_the_answer(backend, launches):
            found = launch(backend, launches)
            if lost:
                has_secret.append(backend.client.get(SECRET, object_name(lost[0])) is not None)
            elif launches and launches[0].order.group_attempt:
                lost.append(launches[0].order.job_id)
                raise BackendUnavailableError("the answer of the API server was lost")
            return found

        KubeBackend.launch = lose_the_answer
        warm_assignment.give_children = lambda *words: give(*words) if lost else iter(())  # until then it is busy
        batch = run([plan(0, fails=1)], retries=1)
        tell([batch.results(), has_secret])
    """,
        **KEPT,
    )

    assert (values, has_secret) == ([0], [True])
    assert "cannot be reached" not in said


@pytest.mark.nightly
def test_a_quota_with_room_for_one_job_at_a_time_lets_a_batch_run_without_a_warm_pod(clients: Any, site: Any) -> None:
    site.put("resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": {"count/jobs.batch": "1"}}})
    wait_for("the quota to hold", lambda: "hard" in site.api.get(f"{site.core}/resourcequotas/few").get("status", {}))

    values = clients.run("tell(run(plans(3), max_concurrent=None).results(timeout=100))", **KEPT)

    assert values == [0, 10, 20]
    assert site.jobs() == []


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(112, 116))  # the first one found a batch that did not wait for its last job
def test_whatever_ends_while_a_batch_runs_in_warm_pods_each_input_gets_its_value(
    clients: Any, site: Any, kinetic: Any, seed: int
) -> None:
    draw = random.Random(seed)
    client = clients.start(
        """
        batch = run([plan(number, seconds=0.3, fails=int(number == 3)) for number in range(8)],
                    max_concurrent=int(words[0]), retries=1)
        tell([batch.results(cleanup=False), []])
    """,
        str(draw.choice([1, 2])),
        **KEPT,
    )
    wait_for("the first child", lambda: clients.numbers("begins"), 60)
    for _ in range(3):
        ended = len(clients.numbers("ends")) + draw.randint(0, 2)
        wait_for("some more", lambda: len(clients.numbers("ends")) >= min(ended, 8), 100)  # noqa: B023 - called at once
        what = draw.choice(["driver", "driver", "pod", "warm pod"])
        if what == "driver":
            client.kill()
            client.communicate()
            group = re.findall(r"grp-[0-9a-f]{8}", "\n".join(site.bucket.names()))[0]
            client = clients.start(RESUME, group, **KEPT)
        elif what == "pod":
            for pod in pods_of_warm(site)[:1]:
                site.api.delete(f"{site.core}/pods/{pod['metadata']['name']}")
        else:
            kinetic("warm", "stop", "--all")
    out, err = client.communicate(timeout=200)

    assert client.returncode == 0, err
    assert clients.told(out)[-1][0] == [10 * number for number in range(8)]
    assert clients.numbers("ends") == list(range(8))

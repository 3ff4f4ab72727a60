"""How much is asked of the API server: little for a job, and for a look at a batch as much as for a look at one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from cluster import nodes

MANY, MOST = 60, 1000


def of(seen: Any) -> Counter[tuple[str, str]]:
    """Count requests by method and what they are about, names left out."""
    return Counter((each.method, _about(each.target)) for each in seen)


def _about(target: str) -> str:
    path, _, query = target.partition("?")
    after = path.partition("/namespaces/")[2].split("/")
    plural = after[1] if len(after) > 1 else path
    return f"{plural} watch" if "watch=" in query else plural


SEVERAL = """
    from one import add
    import kinetic._backends.kube.transport as transport
    send, spent = transport.Transport.send, [0.0]

    def timed(*words, **more):
        begun = time.perf_counter()
        try:
            return send(*words, **more)
        finally:
            spent[0] += time.perf_counter() - begun

    transport.Transport.send = timed
    for number in range(4):
        spent[0], begun = 0.0, time.perf_counter()
        job = add.run_async(1, number)
        seconds = time.perf_counter() - begun
        job.result(cleanup=False)
        tell([job.job_id, seconds, spent[0], time.time()])
        job.cleanup()
"""


@pytest.mark.usefixtures("machine")
def test_one_job_costs_four_writes_at_most_and_a_constant_number_of_questions(clients: Any, site: Any) -> None:
    clients.run("from one import add\ntell(add(1, 2))")  # what is made once for all jobs is there now
    site.forget()

    clients.run("from one import add\ntell(add(1, 2))")

    asked = of(site.asked())
    assert sum(of(site.writes()).values()) == 4, asked  # Job, Secret, its start, its removal
    assert asked["GET", "jobs watch"] == 1, asked
    explained = asked["GET", "events"]  # a job that waits is asked for its reasons, with four requests each time
    assert sum(asked.values()) - 4 * explained <= 14, asked


@pytest.mark.usefixtures("machine")
def test_a_further_job_of_a_process_costs_four_writes_and_two_questions(clients: Any, site: Any) -> None:
    """With an API server that is 20 ms away: its writes follow one another, so they are what a submission waits for."""
    clients.run("from one import add\ntell(add(1, 2))")
    site.plane.proxy.delay_seconds = 0.02
    site.forget()

    process = clients.start(SEVERAL)
    found = [clients.told(line) for line in process.stdout if line.strip()]

    asked = of(site.asked())
    own = [seconds - spent for ((_, seconds, spent, _),) in found[1:]]
    assert min(own) <= 0.15, own
    assert asked["POST", "jobs"] == asked["POST", "secrets"] == asked["PATCH", "jobs"] == asked["DELETE", "jobs"] == 4
    questions = sum(count for (method, _), count in asked.items() if method == "GET")
    assert questions <= 6 + 2 * 4, asked  # of each job: which pod runs it, and the end of that pod's log


@pytest.mark.usefixtures("machine")
def test_a_result_is_read_as_soon_as_its_outcome_is_in_the_store(clients: Any, site: Any) -> None:
    """The controller of Jobs counts pods once a second; the pod itself says so at once."""
    found = clients.run(
        """
        from one import talk
        rows = []
        for number in range(3):
            job = talk.run_async(1, seconds=1.5)
            job.result(cleanup=False)
            rows.append([job.job_id, time.time()])
        tell(rows)
        """
    )

    late = [at - site.bucket.written_at(f"{job_id}/result.pkl") for job_id, at in found]
    assert min(late) <= 0.1, late


@pytest.mark.usefixtures("machine")
def test_the_end_of_a_child_is_seen_when_its_pod_says_so_and_not_a_second_later_when_its_job_does(
    clients: Any, site: Any
) -> None:
    found = clients.run(
        """
        from one import talk
        rows = []
        for number in range(3):
            batch = talk.run_async_map([(1, "", 1.5)], max_concurrent=1)
            batch.results(cleanup=False)
            rows.append([batch.jobs[0].job_id, time.time()])
        tell(rows)
        """
    )

    late = [at - site.bucket.written_at(f"{job_id}/result.pkl") for job_id, at in found]
    assert min(late) <= 0.5, late
    assert of(site.asked())["GET", "pods watch"] == 3


@pytest.mark.usefixtures("machine")
def test_waiting_for_a_long_job_asks_nothing(clients: Any, site: Any) -> None:
    client = clients.start("from one import talk\njob = talk.run_async(1, go)\njob.result(stream_logs=True)")
    assert client.stdout.readline() == "line 0000\n"
    before = len(site.asked())

    job_id = site.jobs()[0]["metadata"]["labels"]["job-id"]
    _let_time_pass(site, job_id, seconds=5)
    asked = site.asked()[before:]
    clients.go.touch()
    client.communicate(timeout=60)

    assert len(asked) <= 2, of(asked)
    assert client.returncode == 0


def _let_time_pass(site: Any, job_id: str, seconds: float) -> None:
    """Let as many signs of life of the machine go by as come in some seconds."""
    from cluster.nodes import LEASES
    from cluster.plane import wait_for

    lease = f"{LEASES}/machine-{site.namespace}"
    for _ in range(int(seconds)):
        before = site.api.get(lease)["spec"]["renewTime"]
        wait_for("a sign of life", lambda before=before: site.api.get(lease)["spec"]["renewTime"] != before)


SUBMIT = """
    batch = double.run_async_map(range(int(words[0])), max_concurrent=None)
    limit = time.monotonic() + 300
    while any(job is None for job in batch.jobs) and time.monotonic() < limit:
        time.sleep(0.05)
    tell(batch.group_id)
"""


@pytest.mark.parametrize("jobs", [MANY, pytest.param(MOST, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])])
def test_a_batch_costs_one_write_for_each_job_and_a_look_at_it_a_constant(batches: Any, site: Any, jobs: int) -> None:
    """No machine: the children wait, which is what a driver looks at for most of its time."""
    group = batches.run(SUBMIT, str(jobs))
    writes = of(site.writes())

    site.forget()
    found = batches.run("batch = kinetic.attach_batch(words[0])\ntell(batch.status_counts())", group)
    looked = site.asked()
    site.forget()
    batches.run("kinetic.attach_batch(words[0]).cancel()\ntell(0)", group)
    ended = of(site.writes())

    assert found == {"PENDING": jobs}
    assert sum(writes.values()) <= jobs + 3, writes
    assert len(looked) <= 4 + jobs // 500, of(looked)
    assert ended["DELETE", "jobs"] == jobs
    assert sum(ended.values()) <= jobs + 3, ended
    assert site.jobs() == []


@pytest.mark.parametrize("jobs", [20, pytest.param(MOST, marks=[pytest.mark.nightly, pytest.mark.timeout(1800)])])
def test_a_batch_that_runs_comes_in_order_leaves_nothing_and_costs_at_most_two_writes_for_each_job(
    batches: Any, site: Any, add_node: Any, namespace: str, jobs: int
) -> None:
    """One that makes it, and one that removes it; and far fewer questions than jobs."""
    add_node(nodes.cpu(f"wide-{namespace}"))

    found = batches.run("tell(double.run_async_map(range(int(words[0])), max_concurrent=6).results())", str(jobs))

    made = of(site.writes())
    questions = [each for each in site.asked() if each.method == "GET"]
    assert found == [2 * number for number in range(jobs)]
    assert site.jobs() == []
    assert site.api.get(f"{site.core}/secrets")["items"] == []
    assert not [key for key in site.bucket.names() if key.startswith("cpu-")]
    assert made["DELETE", "jobs"] <= jobs
    assert sum(made.values()) - made["DELETE", "jobs"] <= jobs + 4, made
    assert len(questions) <= 20 + jobs // 2, of(questions)

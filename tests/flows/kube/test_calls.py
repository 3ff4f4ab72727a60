"""How much is asked of the API server: little for a job, and for a look at a batch as much as for a look at one."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from cluster import nodes

MANY, MOST = 200, 1000


def of(seen: Any) -> Counter[tuple[str, str]]:
    """Count requests by method and what they are about, names left out."""
    return Counter((each.method, _about(each.target)) for each in seen)


def _about(target: str) -> str:
    path, _, query = target.partition("?")
    after = path.partition("/namespaces/")[2].split("/")
    plural = after[1] if len(after) > 1 else path
    return f"{plural} watch" if "watch=" in query else plural


@pytest.mark.usefixtures("machine")
def test_one_job_costs_four_writes_at_most_and_a_constant_number_of_questions(clients: Any, site: Any) -> None:
    clients.run("from one import add\ntell(add(1, 2))")  # what is made once for all jobs is there now
    site.forget()

    clients.run("from one import add\ntell(add(1, 2))")

    assert len(site.writes()) <= 4, of(site.asked())
    assert len(site.asked()) <= 20, of(site.asked())


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
def test_a_batch_that_runs_costs_at_most_two_writes_for_each_job(
    batches: Any, site: Any, add_node: Any, namespace: str, jobs: int
) -> None:
    """One that makes it, and one that removes it; and far fewer questions than jobs."""
    add_node(nodes.cpu(f"wide-{namespace}"))

    found = batches.run("tell(sum(double.run_async_map(range(int(words[0])), max_concurrent=6).results()))", str(jobs))

    made = of(site.writes())
    questions = [each for each in site.asked() if each.method == "GET"]
    assert found == jobs * (jobs - 1)
    assert made["DELETE", "jobs"] <= jobs
    assert sum(made.values()) - made["DELETE", "jobs"] <= jobs + 4, made
    assert len(questions) <= 20 + jobs // 2, of(questions)

"""A container that is killed as a whole, its runner too: as GKE's kubelets do when a job's memory runs out."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from cluster.images import Image
from cluster.plane import wait_for

LINES = [f"line {number:04}" for number in range(118)]


@pytest.fixture
def talking(clients: Any, site: Any, machine: str) -> tuple[str, str]:
    """Submit a job that has just printed 118 lines, the last of which no store has yet; return its id and its pod."""
    job_id = clients.run("from one import talk\ntell(talk.run_async(118, '/never').job_id)")
    pod = site.running(job_id)["metadata"]["name"]
    wait_for("its lines", lambda: LINES[-1] in site.log(pod))
    return job_id, pod


def ended(site: Any, job_id: str) -> Callable[[], bool]:
    """Say whether the cluster calls a job failed."""
    return lambda: any(
        each["type"] == "Failed" and each["status"] == "True"
        for job in site.jobs(job_id)
        for each in job["status"].get("conditions") or ()
    )


def parts(told: str) -> dict[str, str]:
    """Return the parts of an explanation, by name."""
    found: dict[str, str] = {}
    name = ""
    for line in told.splitlines():
        text = line
        if not line.startswith(" "):
            name, _, text = line.partition(":")
        found[name] = f"{found.get(name, '')}\n{text.strip()}".strip()
    return found


def test_the_log_of_a_job_whose_first_process_was_killed_is_whole_and_stays(
    talking: tuple[str, str], site: Any, agent: Any, kinetic: Any
) -> None:
    job_id, pod = talking
    (first,) = agent.pids(site.namespace, pod).values()

    os.kill(first, signal.SIGKILL)
    wait_for("its end", ended(site, job_id))
    told = kinetic("jobs", "logs", job_id)
    last = kinetic("jobs", "logs", job_id, "--tail", "2")
    explained = kinetic("jobs", "explain", job_id)
    site.api.delete(f"{site.core}/pods/{pod}")
    wait_for("the end of its pod", lambda: not site.pods_of(job_id))
    afterwards = kinetic("jobs", "logs", job_id)

    assert (told.code, told.out.splitlines()) == (0, LINES), told.err
    assert last.out.splitlines() == LINES[-2:]
    why = parts(explained.out)
    assert why[job_id] == "FAILED"
    assert "it was killed" in why["what"]
    assert why["log"].splitlines() == LINES[-10:]
    assert 'resources = { memory = "32Gi" }' in why["next"]
    assert "phase" not in why
    assert afterwards.out.splitlines() == LINES


def test_a_job_that_ran_out_of_memory_says_so_with_its_last_lines_and_what_to_do(
    talking: tuple[str, str], site: Any, agent: Any, clients: Any, kinetic: Any
) -> None:
    job_id, pod = talking
    agent.out_of_memory(site.namespace, pod)

    code, words, next_ = clients.run(
        """
        error = kinetic.attach(words[0]).exception(timeout=60)
        tell([error.code, str(error), error.next])
        """,
        job_id,
    )
    explained = kinetic("jobs", "explain", job_id, "--json")

    assert code == "memory"
    assert "it ran out of memory" in words
    assert LINES[-1] in words
    assert 'resources = { memory = "32Gi" }' in next_
    page = json.loads(explained.out)
    assert page["log"] == LINES[-10:]
    assert page["next"] == next_
    assert page["status"] == "FAILED"


def test_an_image_that_cannot_start_python_is_named_and_nothing_is_said_of_the_function(
    clients: Any, kinetic: Any, machine: str, agent: Any, site: Any
) -> None:
    agent.registry.add("no-python:*", Image(environment={"PATH": "/nowhere"}))
    image = "container_image='no-python:1'"
    job_id = clients.run(f"from one import add\ntell(add.with_options({image}).run_async(1, 2).job_id)")
    wait_for("its end", ended(site, job_id), 60)

    why = parts(kinetic("jobs", "explain", job_id).out)

    assert why[job_id] == "FAILED"
    assert "its image does not have the program that starts a job" in why["what"]
    assert "use an image with Python in its PATH" in why["next"]
    assert "phase" not in why


def test_what_is_explained_is_what_is_said_while_a_job_is_being_deleted(
    talking: tuple[str, str], site: Any, kinetic: Any
) -> None:
    job_id, _ = talking
    before = kinetic("jobs", "explain", job_id)
    (job,) = site.jobs(job_id)

    site.api.delete(f"{site.batch}/jobs/{job['metadata']['name']}", propagationPolicy="Background")
    after = kinetic("jobs", "explain", job_id)

    assert before.out.startswith(f"{job_id}: RUNNING\n")
    assert "is running in the pod" in before.out
    assert after.out.startswith(f"{job_id}: FAILED\n"), after.out
    assert "was lost" in after.out
    assert f"its Job is no longer in the namespace {site.namespace} of test: it was deleted there" in after.out
    assert "about to begin" not in after.out

"""A batch on a cluster: what the sentences next door promise, and a driver that dies while its children are pods."""

from __future__ import annotations

from typing import Any

import pytest
from cluster.plane import wait_for
from flows.test_batches import test_statuses_follow_the_life_of_each_job_and_the_counts_are_theirs

pytestmark = pytest.mark.usefixtures("machine")

__all__ = ["test_statuses_follow_the_life_of_each_job_and_the_counts_are_theirs"]

TAKE_OVER = """
    batch = kinetic.attach_batch(words[0], resume=True)
    values = batch.results(return_exceptions=True, cleanup=False)
    tell([value if isinstance(value, int) else repr(value) for value in values])
"""


def test_a_failure_raises_with_everything_that_worked_in_its_place(batches: Any) -> None:
    found = batches.run(
        """
        batch = run([plan(0), plan(1, fails=9), plan(2), plan(3, fails=9)], max_concurrent=None)
        try:
            batch.results()
        except kinetic.BatchError as error:
            caught = [error.group_id == batch.group_id, [job.group_index for job in error.failures],
                      error.partial_results, message(error), repr(error.__cause__)]
        tell([caught, [job.group_index for job in batch.failures()],
              ["number 1" in job.tail(n=20) for job in batch.failures()], batch.failures()[0].status().value])
        """
    )

    (same, failures, partial, text, cause), cached, logs, status = found
    assert same
    assert failures == cached == [1, 3]
    assert partial == [0, None, 20, None]
    assert "2 of 4 jobs failed" in text
    assert "ValueError: number 1 at its attempt 1" in text
    assert "kinetic jobs logs cpu-act-" in text
    assert "number 1" in cause
    assert logs == [True, False]
    assert status == "FAILED"  # what failed is kept, so that it can be looked into


def test_a_batch_that_a_quota_for_jobs_does_not_allow_at_once_runs_to_its_end(batches: Any, site: Any) -> None:
    site.put("resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": {"count/jobs.batch": "2"}}})
    wait_for("the quota to hold", lambda: "hard" in site.api.get(f"{site.core}/resourcequotas/few").get("status", {}))

    found = batches.run("""
        batch = run([plan(number) for number in range(5)], max_concurrent=None)
        tell(batch.results(timeout=100))
    """)

    assert found == [0, 10, 20, 30, 40]
    assert site.jobs() == []


def test_exceptions_can_take_the_places_of_results(batches: Any) -> None:
    found = batches.run(
        """
        batch = run([plan(0), plan(1, fails=9), plan(2)])
        found = batch.results(return_exceptions=True)
        tell([[value if isinstance(value, int) else repr(value) for value in found], len(batch.failures())])
        """
    )

    assert found == [[0, "ValueError('number 1 at its attempt 1')", 20], 1]


def test_what_fails_is_tried_again(batches: Any) -> None:
    found = batches.run("""
        batch = run([plan(0), plan(1, fails=1), plan(2, fails=9)], retries=1)
        tell([value if isinstance(value, int) else repr(value) for value in batch.results(return_exceptions=True)])
    """)

    assert found == [0, 10, "ValueError('number 2 at its attempt 2')"]
    assert batches.numbers("begins") == [0, 1, 1, 2, 2]


def test_a_batch_is_cancelled_with_all_that_runs_waits_or_is_still_to_come(batches: Any, site: Any) -> None:
    client = batches.start(
        "batch = run(plans(6, until='/never'), max_concurrent=3)\ntell(batch.group_id)\nbatch.wait()"
    )
    (group,) = batches.told(client.stdout.readline())
    wait_for("three jobs", lambda: len(batches.noted("begins")) == 3, 60)

    batches.run("kinetic.attach_batch(words[0]).cancel()\ntell(0)", group)
    client.communicate(timeout=60)

    assert site.jobs() == []
    wait_for("the end of its pods", lambda: not site.pods_of())
    found = batches.run(
        """
        batch = kinetic.attach_batch(words[0], poll_timeout=0)
        tell([type(value).__name__ for value in batch.results(return_exceptions=True, cleanup=False)])
        """,
        group,
    )
    assert set(found) == {"JobCancelledError"}
    assert batches.numbers("begins") == [0, 1, 2]


def test_another_process_takes_over_from_a_driver_that_was_killed_and_runs_nothing_twice(
    batches: Any, site: Any
) -> None:
    client = batches.start("batch = run(plans(8, until=go), max_concurrent=3)\ntell(batch.group_id)\nbatch.wait()")
    (group,) = batches.told(client.stdout.readline())
    wait_for("three jobs", lambda: len(batches.noted("begins")) == 3, 60)
    client.kill()
    client.communicate()

    batches.go.touch()
    found = batches.run(TAKE_OVER, group)

    assert found == [number * 10 for number in range(8)]
    assert batches.numbers("begins") == list(range(8))


def test_a_machine_that_goes_away_under_a_batch_costs_an_attempt_and_no_input(
    batches: Any, site: Any, agent: Any, add_node: Any, namespace: str, machine: str
) -> None:
    from cluster import nodes

    client = batches.start(
        "batch = run(plans(4, until=go), max_concurrent=None)\nvalues = batch.results(cleanup=False)\n"
        "tell([values, batch.status_counts()])"
    )
    wait_for("four jobs", lambda: len(batches.noted("begins")) == 4, 60)

    add_node(nodes.cpu(f"other-{namespace}"))
    agent.preempt(machine, grace_seconds=15)
    batches.go.touch()
    out, err = client.communicate(timeout=100)

    assert client.returncode == 0, err
    assert batches.told(out)[-1] == [[0, 10, 20, 30], {"SUCCEEDED": 4}]

"""`kinetic jobs list`: a batch is one row, every filter holds, what is emulated says so, and JSON stays true."""

from __future__ import annotations

import json
import time
from collections import Counter

import pytest

from kinetic._backends.local.limits import Limits
from kinetic._batches import state
from kinetic._batches.report import BatchState
from kinetic._cli import job_table
from kinetic._jobs import locate
from kinetic._jobs.index import Row
from kinetic._wire import keys


def rows(told) -> dict[str, list[str]]:
    """Return the words of each row, by what stands first in it."""
    return {line.split()[0]: line.split()[1:] for line in told.stdout.splitlines()[1:]}


def ids(told) -> list[str]:
    return [line.split()[0] for line in told.stdout.splitlines()[1:]]


def test_a_batch_is_one_row_and_its_children_are_shown_on_demand(kinetic, made_job, made_batch) -> None:
    job = made_job()
    group = made_batch("succeeded", "failed", "succeeded", "", name="sweep", created=time.time() - 60)

    told, unfolded = kinetic("jobs", "list"), kinetic("jobs", "list", "--children")

    assert told.stdout.split()[:8] == ["JOB", "ID", "FUNCTION", "STATUS", "REASON", "ACCELERATOR", "WHERE", "AGE"]
    assert ids(told) == [job, group]
    jobs = "3 of 4 jobs of batch sweep: 1 FAILED, 2 SUCCEEDED, 1 not submitted, and no process does it"
    assert f" PENDING    {jobs}  cpu " in told.stdout
    assert rows(told)[group][-3:] == ["machine", "1m", "2.0s"]
    assert len(rows(unfolded)) == 4
    assert group not in rows(unfolded)


def test_a_filter_that_leaves_nothing_of_a_batch_shows_nothing_of_it(kinetic, made_batch) -> None:
    made_batch("succeeded", "", name="sweep")

    told = kinetic("jobs", "list", "--name", "other")

    assert (told.exit_code, told.stdout) == (0, "")


def test_json_has_every_job_whatever_a_table_folds(kinetic, made_batch) -> None:
    group = made_batch("succeeded", "failed")

    jobs = json.loads(kinetic("jobs", "list", "--json").stdout)["jobs"]

    assert sorted((job["group_id"], job["group_index"], job["status"]) for job in jobs) == [
        (group, 0, "SUCCEEDED"),
        (group, 1, "FAILED"),
    ]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--name", "sweep"], ["tagged"]),
        (["--name", "s*"], ["tagged"]),
        (["--tag", "team"], ["tagged"]),
        (["--tag", "team=a", "--tag", "kind=x"], ["tagged"]),
        (["--tag", "team=b"], []),
        (["--status", "failed"], ["tagged", "failed"]),
        (["--status", "failed", "--status", "succeeded", "--since", "1h"], ["failed", "good"]),
        (["--older-than", "1h"], ["tagged"]),
        (["--function", "other"], ["failed"]),
        (["--where", "this machine"], ["tagged", "failed", "good"]),
        (["--where", "gke"], []),
    ],
)
def test_every_filter_holds(words, found, kinetic, made_job, made_batch) -> None:
    made = {"good": made_job(), "failed": made_job("failed", function="other")}
    tags = {"team": "a", "kind": "x"}
    made["tagged"] = made_batch("failed", "succeeded", name="sweep", tags=tags, created=time.time() - 7200)

    assert sorted(ids(kinetic("jobs", "list", *words))) == sorted(made[name] for name in found)


def test_a_cancelled_job_of_a_batch_is_found_by_the_status_that_the_table_shows(kinetic, made_batch) -> None:
    group = made_batch("succeeded", "cancelled")

    told = kinetic("jobs", "list", "--status", "cancelled")
    jobs = json.loads(kinetic("jobs", "list", "--status", "cancelled", "--json").stdout)["jobs"]

    assert rows(told)[group][1] == "CANCELLED"
    assert [job["group_index"] for job in jobs] == [1]
    assert ids(kinetic("jobs", "list", "--status", "not_found")) == [group]  # what a handle says of it


def test_a_long_name_of_a_function_takes_no_room_from_other_columns_and_is_found_whole(kinetic, made_job) -> None:
    name = "train_resnet_with_cosine_schedule_on_imagenet"
    job = made_job(function=name)

    told = kinetic("jobs", "list", "--function", name)

    assert rows(told)[job][0] == f"{name[:39]}…"
    assert json.loads(kinetic("jobs", "list", "--json").stdout)["jobs"][0]["function"] == name


def test_a_namespace_hides_the_jobs_of_others_on_clusters(kinetic, made_job) -> None:
    here, there = made_job(), made_job(backend="gke", zone="us-central1-a")  # in the namespace "default"

    assert sorted(ids(kinetic("jobs", "list", "--namespace", "default"))) == sorted([here, there])
    assert ids(kinetic("jobs", "list", "--namespace", "fault")) == [here]


def test_rows_are_sorted_by_the_column_that_is_named(kinetic, made_job) -> None:
    old, young = made_job("failed", function="b", days=1), made_job(function="a")

    for words, order in [
        ([], [young, old]),
        (["--reverse"], [old, young]),
        (["--sort", "function", "--reverse"], [old, young]),
        (["--sort", "status"], [old, young]),
        (["--sort", "status", "--limit", "1"], [old]),
        (["--limit", "1"], [young]),
    ]:
        assert ids(kinetic("jobs", "list", *words)) == order, words


def test_what_is_not_real_says_so_beside_its_name(kinetic, made_job) -> None:
    slots = {"cpu": made_job(), "tpu": made_job(accelerator="tpu-v5e-1"), "gpu": made_job(accelerator="gpu-l4")}
    locate.local().queue.add(
        [(slots["gpu"], "", 0)], "earth", '{"arguments":["/bin/false"],"environment":{}}', Limits(1, ())
    )

    told = kinetic("jobs", "list").stdout
    jobs = json.loads(kinetic("jobs", "list", "--json").stdout)["jobs"]

    assert "tpu-v5e-1 (emulated)" in told
    assert "gpu-l4 (on CPU)" in told
    found = {job["job_id"]: job["emulation"] for job in jobs}
    assert [found[slots[kind]] for kind in ("cpu", "tpu", "gpu")] == [None, "emulated", "on CPU"]


def test_watching_is_refused_where_there_is_no_terminal(kinetic) -> None:
    told = kinetic("jobs", "list", "--watch")

    assert told.exit_code == 2
    assert "why:   standard error is not a terminal" in told.stderr


def test_a_batch_with_a_cancelled_job_has_not_succeeded() -> None:
    page = dict.fromkeys(Row._fields) | {"group_id": "grp-1", "created_at": "2026-11-20T14:30:00Z", "reason": ""}
    cancelled = Row(**page)._replace(status="NOT_FOUND", reason="it was cancelled", group_index=0)

    (row,) = job_table.fold_batches([Row(**page)._replace(status="SUCCEEDED", group_index=1), cancelled], {})

    assert (row.status, row.reason) == ("CANCELLED", "batch of 2 jobs: 1 CANCELLED, 1 SUCCEEDED")


def test_a_batch_that_was_cleaned_up_while_it_was_read_is_still_one_row() -> None:
    page = dict.fromkeys(Row._fields) | {"group_id": "grp-1", "status": "RUNNING", "created_at": "2026-11-20T14:30:00Z"}

    rows = [Row(**page)._replace(group_index=0), Row(**page)._replace(status="PENDING", group_index=1)]

    (row,) = job_table.fold_batches(rows, {})

    assert (row.job_id, row.status, row.reason) == ("grp-1", "RUNNING", "batch of 2 jobs: 1 RUNNING, 1 PENDING")


def test_an_input_that_was_named_and_never_launched_counts_once() -> None:
    page = dict.fromkeys(Row._fields) | {"group_id": "grp-1", "created_at": "2026-11-20T14:30:00Z"}
    rows = [
        Row(**page)._replace(status=status, group_index=index)
        for index, status in enumerate(["SUCCEEDED", "NOT_FOUND"])
    ]
    counts = Counter({state.SUCCEEDED: 1, state.WAITING: 1, state.MISSING: 2})

    (row,) = job_table.fold_batches(rows, {}, (), {"grp-1": BatchState(counts, None, stopped=False, open=3)})

    assert (row.status, row.reason) == (
        "PENDING",
        "batch of 1 job: 1 SUCCEEDED, 3 not submitted, and no process does it",
    )


def test_of_an_input_that_was_tried_again_the_last_attempt_counts_in_whatever_order_they_are_listed(home) -> None:
    page = dict.fromkeys(Row._fields) | {"group_id": "grp-1", "created_at": "2026-11-20T14:30:00Z", "group_index": 0}
    tried = [
        Row(**page)._replace(
            status=status, job_id=f"cpu-{keys.child_word('grp-1', 0, attempt)}", store=f"file://{home}"
        )
        for attempt, status in enumerate(["FAILED", "FAILED", "SUCCEEDED"])
    ]

    for rows in (tried, tried[::-1]):
        (row,) = job_table.fold_batches(rows, {}, job_table._earlier_attempts(rows))

        assert (row.status, row.reason) == ("SUCCEEDED", "batch of 1 job: 1 SUCCEEDED")

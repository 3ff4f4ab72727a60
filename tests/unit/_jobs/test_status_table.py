"""Every row of the table that decides a status."""

from __future__ import annotations

import itertools

import pytest

from kinetic._backends.protocol import Observation
from kinetic._jobs.status import decide as decided
from kinetic._wire.outcomes import Outcome
from kinetic.job_status import FINAL, JobStatus

PENDING, RUNNING, SUCCEEDED, FAILED, NOT_FOUND = JobStatus


def outcome(status: str | None) -> Outcome | None:
    return None if status is None else Outcome(job_id="cpu-train-1", status=status)


def observation(status: JobStatus | None) -> Observation | None:
    return None if status is None else Observation(name="cpu-train-1", status=status)


# removed, outcome, sighting, attempted, elsewhere → status
TABLE = [
    # A job that runs its ordinary course.
    (False, None, PENDING, False, False, PENDING),
    (False, None, RUNNING, True, False, RUNNING),
    (False, "succeeded", None, True, False, SUCCEEDED),
    (False, "failed", None, True, False, FAILED),
    # The store is the truth, whatever became of the process.
    (False, "succeeded", RUNNING, True, False, SUCCEEDED),
    (False, "succeeded", FAILED, True, False, SUCCEEDED),
    (False, "succeeded", NOT_FOUND, True, False, SUCCEEDED),
    (False, "failed", SUCCEEDED, True, False, FAILED),
    (False, "failed", RUNNING, True, False, FAILED),
    # Cancelled or removed by kinetic itself.
    (False, "cancelled", None, True, False, NOT_FOUND),
    (False, "cancelled", RUNNING, True, False, NOT_FOUND),
    (True, "succeeded", None, True, False, NOT_FOUND),
    (True, "failed", None, True, False, NOT_FOUND),
    (True, None, None, False, False, NOT_FOUND),
    (True, None, RUNNING, True, False, NOT_FOUND),
    # No verdict, and the backend has seen its end.
    (False, None, FAILED, True, False, FAILED),
    (False, None, SUCCEEDED, True, False, SUCCEEDED),
    # No verdict, and nobody has seen it.
    (False, None, None, True, False, FAILED),
    (False, None, None, False, False, NOT_FOUND),
    # It belongs to another machine: it is never called failed from here.
    (False, None, None, True, True, RUNNING),
    (False, None, None, False, True, PENDING),
    (False, "succeeded", None, True, True, SUCCEEDED),
    (True, None, None, False, True, NOT_FOUND),
]


@pytest.mark.parametrize(("removed", "said", "seen", "attempted", "elsewhere", "status"), TABLE)
def test_a_row_of_the_table(removed, said, seen, attempted, elsewhere, status: JobStatus) -> None:
    found = decided(
        outcome=outcome(said), observation=observation(seen), removed=removed, attempted=attempted, elsewhere=elsewhere
    )

    assert found is status


ALL = list(
    itertools.product(
        [False, True], [None, "succeeded", "failed", "cancelled"], [None, *JobStatus], [False, True], [False, True]
    )
)


def decide(row) -> JobStatus:
    removed, said, seen, attempted, elsewhere = row
    return decided(
        outcome=outcome(said), observation=observation(seen), removed=removed, attempted=attempted, elsewhere=elsewhere
    )


def test_what_kinetic_removed_is_not_found_whatever_else_is_known() -> None:
    assert {decide(row) for row in ALL if row[0]} == {NOT_FOUND}


def test_a_success_in_the_store_is_a_success_until_it_is_removed() -> None:
    assert {decide(row) for row in ALL if not row[0] and row[1] == "succeeded"} == {SUCCEEDED}


def test_a_verdict_is_final() -> None:
    assert {decide(row) for row in ALL if row[1] is not None} <= FINAL


def test_a_job_of_another_machine_is_never_called_failed_without_a_verdict() -> None:
    unseen = [row for row in ALL if row[1] is None and row[2] is None and row[4]]

    assert FAILED not in {decide(row) for row in unseen}


def test_three_states_are_final() -> None:
    assert {status for status in JobStatus if status.is_final} == {SUCCEEDED, FAILED, NOT_FOUND}

"""Whether a job that failed is tried again, and how its failures are counted."""

from __future__ import annotations

import pytest

from kinetic._runner.supervisor import attempts
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys, outcomes
from kinetic._wire.outcomes import FAILED, SUCCEEDED, AttemptNote, Outcome

JOB = "cpu-train-20261122-100000-abcdef0"
KEY = b"k" * 32


@pytest.fixture
def store():
    return MemoryStore()


def attempt(store, number, *, failed=False):
    """Begin an attempt, and end it: it failed, or its machine was taken away."""
    store.put(
        keys.attempt(JOB, number), AttemptNote(JOB, number, "machine", 1.0, details={"why": "taken"}).to_bytes(KEY)
    )
    if failed:
        assert attempts.note_failure(store, verdict(number), KEY, clock=lambda: 5.0)


def verdict(number, cause="exception", status=FAILED, message="boom"):
    return Outcome(JOB, status, attempt=number, cause=cause, error={"type": "ValueError", "message": message})


def test_a_job_is_tried_again_as_often_as_its_retries_say(store):
    attempt(store, 0)
    assert attempts.retry_reason(store, verdict(0), 2, KEY) == (
        "attempt 0 failed: ValueError: boom; trying again (retry 1 of 2)"
    )
    assert attempts.retry_reason(store, verdict(0, message=""), 2, KEY) == (  # as of a bare assert
        "attempt 0 failed: ValueError; trying again (retry 1 of 2)"
    )
    attempt(store, 0, failed=True)
    attempt(store, 1, failed=True)
    attempt(store, 2)

    assert attempts.retry_reason(store, verdict(1), 2, KEY).endswith("(retry 2 of 2)")
    assert attempts.retry_reason(store, verdict(2), 2, KEY) == ""
    assert attempts.retry_reason(store, verdict(0), 0, KEY) == ""
    long = verdict(2, message="b" * 5000 + "\nand more")
    assert attempts.retry_reason(store, long, 3, KEY) == (
        f"attempt 2 failed: ValueError: {'b' * 300}; trying again (retry 3 of 3)"
    ), "its pod leaves one short line for the cluster"


def test_an_attempt_whose_machine_was_taken_away_costs_no_retry(store):
    for number in range(3):
        attempt(store, number)
    attempt(store, 3, failed=True)

    assert attempts.count_failures(store, JOB, 4, KEY) == 1
    assert attempts.retry_reason(store, verdict(4), 2, KEY).endswith("(retry 2 of 2)")


def test_the_note_of_a_failed_attempt_says_how_it_failed_and_keeps_what_it_said(store):
    attempt(store, 0, failed=True)

    details = outcomes.read_note(store, JOB, 0, KEY).details
    assert details == {"why": "taken", "failed": "ValueError: boom", "ended": 5.0, "logs": []}


@pytest.mark.parametrize(
    ("cause", "again"),
    [
        ("exception", True),
        ("signal", True),
        ("exit", True),
        ("deadline", True),
        ("runner", True),
        ("stopped", False),
        ("serialization", False),
        ("memory", False),
    ],
)
def test_what_was_stopped_or_cannot_be_pickled_is_not_tried_again(store, cause, again):
    attempt(store, 0)

    assert bool(attempts.retry_reason(store, verdict(0, cause), 1, KEY)) is again


def test_what_succeeded_is_not_tried_again(store):
    assert attempts.retry_reason(store, verdict(0, "", SUCCEEDED), 3, KEY) == ""


def test_a_note_that_cannot_be_verified_counts_as_a_failure_and_one_that_is_gone_does_not(store):
    store.put(keys.attempt(JOB, 0), b"nonsense")

    assert attempts.count_failures(store, JOB, 2, KEY) == 1
    assert attempts.note_failure(store, verdict(1), KEY)

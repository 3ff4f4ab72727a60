"""Whether a job that failed is tried again, and how its failures are counted."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from kinetic._runner.supervisor import attempts
from kinetic._stores.memory import MemoryStore
from kinetic._wire import digests, documents, keys, outcomes, records
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


def test_the_note_of_a_failed_attempt_has_the_digests_of_its_logs_by_which_a_change_is_found_later(store):
    attempt(store, 0)
    log = digests.LogDigest(0, 1, 3, "0" * 64, blocks=("1" * 64,))

    attempts.note_failure(store, replace(verdict(0), logs=(log,)), KEY, clock=lambda: 5.0)

    details = outcomes.read_note(store, JOB, 0, KEY).details
    assert details["logs"] == [{"attempt": 0, "host": 1, "size_bytes": 3, "sha256": "0" * 64, "blocks": []}]


def note_of(machine: str) -> AttemptNote:
    return AttemptNote(JOB, 0, machine, 1.0, details={"machine_id": machine} if machine else {})


def test_a_machine_claims_attempt_after_attempt_and_none_of_what_another_one_has_begun(store):
    claimed = [attempts.claim(store, note_of("first"), KEY) for _ in range(2)]
    refused = attempts.claim(store, note_of("second"), KEY)

    assert [note.attempt for note in claimed if note] == [0, 1]
    assert refused is None
    assert len(list(store.entries(keys.attempts(JOB)))) == 2
    assert attempts.claim(store, note_of(""), KEY).attempt == 2, "a pod follows another one"


def test_a_note_that_others_put_into_the_store_keeps_no_machine_from_its_attempt(store):
    store.put(keys.attempt(JOB, 0), note_of("theirs").to_bytes(b"x" * 32))

    assert attempts.claim(store, note_of("ours"), KEY).attempt == 1


def test_the_newest_attempt_is_the_newest_that_the_key_has_sealed_under_its_own_number(store):
    for number in range(2):
        attempt(store, number)
    store.put(keys.attempt(JOB, 2), note_of("theirs").to_bytes(b"x" * 32))
    store.put(keys.attempt(JOB, 3), store.get(keys.attempt(JOB, 0)))

    assert attempts.newest(store, JOB, KEY).attempt == 1
    assert attempts.newest(store, JOB, b"y" * 32) is None


@pytest.mark.parametrize(("removed", "key", "said"), [(True, KEY, True), (False, KEY, False), (True, b"x" * 32, False)])
def test_a_job_was_removed_if_its_sealed_page_says_that_its_processes_were(store, removed, key, said):
    at = keys.history(JOB)
    page = {"job_id": JOB, "artifacts_removed": True, "resource_removed": removed}
    store.put(at, documents.seal_page(records.HISTORY, page, at, key))

    assert attempts.was_removed(store, JOB, contextlib.nullcontext(KEY)) is said


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

"""The slot of a job that waits for other jobs is lent to one of them, and is neither lost nor lent twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kinetic._backends.local import scheduler
from kinetic._backends.local.limits import Limits
from kinetic._backends.local.queue import Queue
from kinetic._backends.local.runtime_files import Paths
from kinetic.errors import BackendUnavailableError

JOB = {"KINETIC_JOB_ID": "one", "KINETIC_ATTEMPT": "0"}


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """Yield a queue with one slot, whose first job runs."""
    with closing(Queue(tmp_path / "queue.db")) as made:
        made.add([(name, "", 0) for name in ("one", "two", "three")], "template", "{}", Limits(1, ()))
        made.claim("first", "template")
        made.running("one", "first", 0)
        yield made


def test_a_slot_that_was_lent_is_another_jobs_until_it_is_taken_back(queue: Queue) -> None:
    assert queue.claim("second", "template") is None

    queue.lend_slot("one", 0)
    claimed = queue.claim("second", "template")
    queue.end("two", "succeeded")
    queue.take_slot_back("one")

    assert claimed.job_id == "two"
    assert queue.claim("third", "template") is None


def test_a_slot_that_an_attempt_has_lent_is_held_by_the_next_one(queue: Queue) -> None:
    queue.lend_slot("one", 0)
    queue.requeue("one", "first")
    queue.claim("first", "template")
    before = queue.claim("second", "template")
    queue.running("one", "first", 1)

    assert before is None
    assert queue.claim("second", "template") is None


def test_a_slot_is_lent_again_while_its_job_waits(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)

    with scheduler.slot_lent(Paths(tmp_path), queue, JOB):
        queue.take_slot_back("one")  # as a queue that was rebuilt, or another process of the job, would have it
        scheduler.advance(Paths(tmp_path), queue)
        claimed = queue.claim("second", "template")

    assert claimed is not None
    assert claimed.job_id == "two"
    assert not queue.has_lent("one", 0)


def test_a_slot_that_could_not_be_lent_is_lent_the_next_time(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(queue, "lend_slot", _out_of_reach)
        with pytest.raises(BackendUnavailableError), scheduler.slot_lent(Paths(tmp_path), queue, JOB):
            pass

    with scheduler.slot_lent(Paths(tmp_path), queue, JOB):
        assert queue.has_lent("one", 0)


def test_a_fork_of_a_job_that_waits_lends_the_slot_of_its_own_accord(queue: Queue, tmp_path: Path) -> None:
    with scheduler.slot_lent(Paths(tmp_path), queue, JOB):
        queue.take_slot_back("one")
        if (child := os.fork()) == 0:
            with scheduler.slot_lent(Paths(tmp_path), queue, JOB):
                os._exit(0 if queue.has_lent("one", 0) else 1)

        assert os.waitpid(child, 0)[1] == 0


def test_a_wait_that_is_over_does_not_fail_for_a_queue_out_of_reach(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scheduler.slot_lent(Paths(tmp_path), queue, JOB):
        monkeypatch.setattr(queue, "take_slot_back", _out_of_reach)


def _out_of_reach(*_: object) -> None:
    raise BackendUnavailableError("the queue is out of reach")

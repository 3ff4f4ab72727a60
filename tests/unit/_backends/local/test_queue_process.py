"""The queue, asked by a process that is a fork of one that has it open."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kinetic._backends.local import queue_process
from kinetic._backends.local.limits import Limits
from kinetic._backends.local.queue import JobRow, Queue, is_of_parent
from kinetic._backends.local.queue_process import QueueOfParent
from kinetic.errors import BackendUnavailableError


@pytest.fixture
def asked(tmp_path: Path):
    made = QueueOfParent(tmp_path / "queue.db")
    yield made
    made.close()


def test_it_answers_as_the_queue_does(asked: Any, tmp_path: Path) -> None:
    asked.add([("one", "", 0)], "template", "{}", Limits(1, ()))

    row = asked.jobs(["one"])["one"]

    assert isinstance(row, JobRow)
    assert row == Queue(tmp_path / "queue.db").jobs(["one"])["one"]


def test_a_process_that_was_killed_is_started_again(asked: Any) -> None:
    asked.add([("one", "", 0)], "template", "{}", Limits(1, ()))
    os.kill(asked._pipes[0].pid, signal.SIGKILL)

    assert [*asked.jobs(["one"])] == ["one"]


def test_what_the_queue_raises_arrives(asked: Any, tmp_path: Path) -> None:
    asked.is_busy()
    with Queue(tmp_path / "queue.db").change() as db:
        db.execute("PRAGMA user_version = 99")
    asked.close()

    with pytest.raises(BackendUnavailableError, match="cannot be used"):
        asked.is_busy()


def test_one_that_never_answers_is_an_error_with_advice(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_process, "_START", "raise SystemExit")

    with pytest.raises(BackendUnavailableError, match="ended") as raised:
        asked.is_busy()

    assert raised.value.next == "submit from a process that is not a job"


def test_a_fork_of_a_process_that_has_the_queue_open_knows_it(tmp_path: Path) -> None:
    Queue(tmp_path / "queue.db")
    assert not is_of_parent()
    if (child := os.fork()) == 0:
        os._exit(0 if is_of_parent() else 1)

    assert os.waitpid(child, 0)[1] == 0


def test_a_slot_that_was_lent_is_another_jobs_until_it_is_taken_back(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue.db")
    queue.add([(name, "", 0) for name in ("one", "two", "three")], "template", "{}", Limits(1, ()))
    assert queue.claim("first", "template").job_id == "one"
    queue.running("one", "first", 0)
    assert queue.claim("second", "template") is None

    queue.lend_slot("one", 0)
    claimed = queue.claim("second", "template")
    queue.end("two", "succeeded")
    queue.take_slot_back("one")

    assert claimed.job_id == "two"
    assert queue.claim("third", "template") is None


def test_a_slot_that_an_attempt_has_lent_is_held_by_the_next_one(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue.db")
    queue.add([(name, "", 0) for name in ("one", "two")], "template", "{}", Limits(1, ()))
    queue.claim("first", "template")
    queue.running("one", "first", 0)
    queue.lend_slot("one", 0)
    queue.requeue("one", "first")
    queue.claim("first", "template")
    queue.running("one", "first", 1)

    assert queue.claim("second", "template") is None

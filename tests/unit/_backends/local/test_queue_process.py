"""The queue, asked by a process that is a fork of one that has it open."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinetic._backends.local import queue_process
from kinetic._backends.local.limits import Limits
from kinetic._backends.local.queue import JobRow, Queue
from kinetic._backends.local.queue_connection import is_of_parent
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
    with contextlib.closing(Queue(tmp_path / "queue.db")) as queue:
        assert row == queue.jobs(["one"])["one"]


def test_the_process_imports_nothing_of_the_current_folder(asked: Any, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "sqlite3.py").write_text("raise ImportError")
    monkeypatch.chdir(tmp_path)

    assert not asked.is_busy()


def test_a_process_that_was_killed_is_started_again(asked: Any) -> None:
    asked.add([("one", "", 0)], "template", "{}", Limits(1, ()))
    os.kill(asked._pipes[0].pid, signal.SIGKILL)

    assert [*asked.jobs(["one"])] == ["one"]


def test_what_the_queue_raises_arrives(asked: Any, tmp_path: Path) -> None:
    asked.is_busy()
    with contextlib.closing(Queue(tmp_path / "queue.db")) as queue, queue.change() as db:
        db.execute("PRAGMA user_version = 99")
    asked.close()

    with pytest.raises(BackendUnavailableError, match="cannot be used"):
        asked.is_busy()


def test_one_that_never_answers_is_an_error_with_advice(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_process, "_START", "raise SystemExit")

    with pytest.raises(BackendUnavailableError, match="ended") as raised:
        asked.is_busy()

    assert raised.value.next == "submit from a process that is not a job"


def test_an_answer_that_nobody_waited_for_is_not_taken_for_the_next_one(asked: Any, tmp_path: Path) -> None:
    asked.add([("one", "", 0)], "template", "{}", Limits(1, ()))

    open_queue = contextlib.closing(Queue(tmp_path / "queue.db"))
    with open_queue as queue, queue.change(), pytest.raises(TimeoutError), interrupted_after(0.3):
        asked.end("one", "failed")

    assert asked.is_busy() is True
    assert asked.jobs(["one"])["one"].state == "queued"


@contextlib.contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Have a signal raise an error here, as a user's handler may."""

    is_over = threading.Event()

    def interrupt(*_: object) -> None:
        if not is_over.is_set():
            raise TimeoutError

    def send() -> None:  # again and again: what is raised while garbage is collected is lost
        while not is_over.wait(seconds):
            os.kill(os.getpid(), signal.SIGUSR1)  # SIGALRM is the time-out of the tests

    before = signal.signal(signal.SIGUSR1, interrupt)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_a_fork_of_a_process_that_has_the_queue_open_knows_it(tmp_path: Path) -> None:
    with contextlib.closing(Queue(tmp_path / "queue.db")):
        assert not is_of_parent()
        if (child := os.fork()) == 0:
            os._exit(0 if is_of_parent() else 1)

        assert os.waitpid(child, 0)[1] == 0

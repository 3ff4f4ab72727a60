"""What a warm pod is given waits in its inbox, whole or not at all; and whom it asks while it is idle."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kinetic._runner.pod import container
from kinetic._runner.pod.warm_clients import CONFIRMED
from kinetic._runner.pod.warm_pod import WarmProcess
from kinetic._wire.task import KEY_FILE, PodSettings, Task
from kinetic._wire.warm_pods import Assignment, WarmPod

TASK = Task("cpu-train-20261123-103059-1234567", "0" * 64, "gs://b", "k", 0o22, None, {}, pod=PodSettings())
KEY = bytes(32)
GIVEN = Assignment(0, TASK.job_id, TASK.to_bytes().decode(), bytes(32), {"TOKEN": "a" * 2000})


@pytest.fixture
def process(tmp_path: Path) -> WarmProcess:
    made = WarmProcess.__new__(WarmProcess)  # what starts and listens is not needed
    made.page, made.runner, made.inbox, made.task = WarmPod("warm", "gs://b"), "", tmp_path / "inbox", tmp_path / "task"
    made._about, made._sequence, made._host, made._leader = {}, 0, 0, None
    made.inbox.mkdir()
    return made


@pytest.fixture
def full_disk() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
def test_of_a_task_for_which_the_disk_has_no_room_nothing_stays(process: WarmProcess) -> None:
    with pytest.raises(OSError, match="too large"):
        process._stage(GIVEN, KEY)

    assert os.listdir(process.inbox) == []


def test_a_task_that_came_twice_is_there_once(process: WarmProcess) -> None:
    assert [process._stage(GIVEN, KEY), process._stage(replace(GIVEN, key=bytes(31) + b"a"), KEY)] == ["", ""]

    assert os.listdir(process.inbox) == ["0"]
    assert (process.inbox / "0" / "secret" / KEY_FILE).read_bytes() == GIVEN.key


def test_a_store_that_does_not_answer_is_asked_by_one_child(process: WarmProcess) -> None:
    asking: list[Callable[[int], None]] = []
    process._fork = lambda _, then: asking.append(then)  # type: ignore[method-assign] # no child is needed
    process._next_look = process._next_stat = 0.0
    process._is_asking, process._secret_stamp = False, None

    for minute in range(1, 4):
        process._look(minute * 61.0)
    while_it_asks = len(asking)
    asking[0](0)
    process._look(300.0)

    assert (while_it_asks, len(asking)) == (1, 2)


def test_what_a_slow_store_says_of_a_number_that_is_past_changes_nothing(process: WarmProcess, tmp_path: Path) -> None:
    process.base, process._tasks, process._strange_since = tmp_path, 3, -1000.0
    process._is_asking, process._secret_stamp, process._sequence = True, None, 3

    (tmp_path / "following").write_text("1")  # a child asked it before the first task
    process._after_store(0, 1)
    after_a_late_answer = process._sequence
    (tmp_path / "following").write_text("4")
    process._after_store(3, 1)

    assert (after_a_late_answer, process._sequence) == (3, 4)


def test_a_task_begins_that_its_client_confirmed_before_another_client_was_heard(process: WarmProcess) -> None:
    process._children, process._hold, process._confirmed_by = {}, -1, 0
    process.task.mkdir()

    for child, code in ((41, CONFIRMED), (42, 0)):  # both have ended before the pod looks into its inbox
        process._after_message(child, code)
    process._about = {"held_by": 41}
    process._begin_to_hold()

    assert not process._is_given_up
    assert os.read(process._hold, 9) == b"."


def test_a_task_whose_client_did_not_confirm_is_given_up(process: WarmProcess) -> None:
    process._children, process._hold, process._confirmed_by = {}, -1, 0
    process.task.mkdir()

    process._after_message(41, 1)
    process._about = {"held_by": 41}
    process._begin_to_hold()

    assert process._is_given_up
    assert os.read(process._hold, 9) == b"x"


def test_a_child_with_the_number_of_one_that_confirmed_a_task_before_confirms_nothing(process: WarmProcess) -> None:
    process._children, process._hold, process._confirmed_by, process._tasks = {}, -1, 0, 0
    process.task.mkdir()
    process._after_message(41, CONFIRMED)
    process._about = {"job_id": "first", "held_by": 41}
    process._begin_to_hold()
    process._forget_task()
    (process.task / container.HOLD).unlink(missing_ok=True)

    process._after_message(41, 1)
    process._about = {"held_by": 41}
    process._begin_to_hold()

    assert process._is_given_up

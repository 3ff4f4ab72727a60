"""What a warm pod is given waits in its inbox, whole or not at all."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kinetic._runner.pod.warm_pod import WarmProcess
from kinetic._wire.task import KEY_FILE, PodSettings, Task
from kinetic._wire.warm_pods import Assignment, WarmPod

TASK = Task("cpu-train-20261123-103059-1234567", "0" * 64, "gs://b", "k", 0o22, None, {}, pod=PodSettings())
GIVEN = Assignment(0, TASK.job_id, TASK.to_bytes().decode(), bytes(32), {"TOKEN": "a" * 2000})


@pytest.fixture
def process(tmp_path: Path) -> WarmProcess:
    made = WarmProcess.__new__(WarmProcess)  # what starts and listens is not needed
    made.page, made.runner, made.inbox, made.task = WarmPod("warm", "gs://b"), "", tmp_path / "inbox", tmp_path / "task"
    made._about, made._sequence = None, 0
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
        process._stage(GIVEN)

    assert os.listdir(process.inbox) == []


def test_a_task_that_came_twice_is_there_once(process: WarmProcess) -> None:
    assert [process._stage(GIVEN), process._stage(replace(GIVEN, key=bytes(31) + b"a"))] == ["", ""]

    assert os.listdir(process.inbox) == ["0"]
    assert (process.inbox / "0" / "secret" / KEY_FILE).read_bytes() == GIVEN.key

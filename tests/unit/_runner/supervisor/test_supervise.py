"""The life of an attempt, with a source of its own: tasks of a list, carried out one after the other by one process."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from servers import fuse

from kinetic._runner.supervisor import verdicts, worker_monitor, worker_process
from kinetic._stores.files import FileStore
from kinetic._wire import keys, outcomes
from kinetic._wire.task import Task

KEY = bytes(range(32))

# A process of its own, as every supervisor must be: it reaps all children and adopts all orphans.
SCRIPT = """
import contextlib, os, pickle, sys, tempfile, time
from dataclasses import replace
from pathlib import Path

import cloudpickle

from kinetic._runner.worker import worker as working
from kinetic._runner.supervisor import attempts as supervisor_attempts
from kinetic._runner.supervisor import worker_monitor, worker_process
from kinetic._runner.supervisor.supervise import Supervisor
from kinetic._stores.files import FileStore
from kinetic._wire import digests, python_runtime as fingerprint, keys
from kinetic._wire.outcomes import AttemptNote
from kinetic._wire.order import Artifact, Order
from kinetic._wire.task import Task

KEY, HERE = bytes(range(32)), Path(sys.argv[1])
STORE = FileStore(HERE / "store")


class ListSource:
    wake, witness, passes, is_retried, elsewhere, waits_for_exit = -1, "runner", (), True, None, False

    def __init__(self, task):
        self.task, self.told = task, []

    def temporary_key(self):
        return contextlib.nullcontext(KEY)

    def key(self):
        return KEY

    def reach(self, do):
        return do()

    def skip(self, why):
        self.told.append(why)

    def claim(self, key):
        return supervisor_attempts.claim(self.store, AttemptNote(self.task.job_id, 0, "here", time.time()), key)

    def begin(self, note):
        base = HERE / f"{self.task.job_id}-{note.attempt}"
        base.mkdir()
        return [replace(self.task, attempt=note.attempt, base=str(base), environment=dict(os.environ))]

    def forked(self, hosts):
        self.told.append("forked")

    def keep_usage(self, task, found):
        pass

    def is_unwanted(self):
        return False

    def decide(self, tasks, task, ending, verdict):
        return verdict, task.body

    def log_digests(self, tasks):
        return tuple(digests.of_log(task.log, task.attempt, task.host) for task in tasks)

    def may_seal(self, verdict):
        return True

    def try_again(self, reason):
        self.told.append(reason)

    def wait(self, seconds):
        return True

    def report_waiting(self, words):
        self.told.append(words)

    def patience_seconds(self, verdict):
        return 0.0

    def wake_waiting(self, tasks, verdict):
        self.told.append("let go")

    def finish(self, tasks, verdict, *, created):
        self.told.append(f"{verdict.status} {created}")


def task(job_id, function, *arguments, **more):
    order = Order(
        job_id,
        function.__name__,
        Artifact.within(cloudpickle.dumps(function)),
        Artifact.within(pickle.dumps((arguments, {}))),
        fingerprint={"python": fingerprint.python_version()},
    ).to_bytes()
    STORE.put(keys.order(job_id), order)
    return Task(job_id, digests.of_bytes(order), STORE.url, "key", 0o022, None, {}, **more)


def double(number):
    print("doubling")
    return 2 * number


def fail():
    raise ValueError("never")


def main():
    supervisor = Supervisor(working.work)
    one = task("one", double, 21)
    tasks = one, task("two", fail), task("three", fail, retries=1), one
    if sys.argv[2:] == ["no early worker"]:
        if sys.platform == "linux":
            tempfile.tempdir = str(HERE / "full")  # a disk that has no room for a task
        supervisor.early = worker_process.EarlyWorker(lambda tasks, report: os._exit(1), supervisor.libc)
        while supervisor.early.is_alive:
            pass
    elif sys.argv[2:]:
        worker_monitor._STUCK_SECONDS = 0.5
        tasks = replace(task("stuck", os.listdir, sys.argv[2]), deadline=0.5), one
    for each in tasks:
        while True:
            source = ListSource(each)
            supervisor.carry_out(source)
            print(each.job_id, *source.told, sep="|")
            if not any("trying again" in words for words in source.told):
                break


main()
"""


@pytest.fixture(scope="module")
def carried_out(tmp_path_factory) -> tuple[Path, list[str]]:
    """Carry out the tasks of the list; return their folder, and what the sources were told."""
    folder = tmp_path_factory.mktemp("tasks")
    return folder, carry_out(folder)


def carry_out(folder: Path, *words: str) -> list[str]:
    (folder / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(folder / "script.py"), str(folder), *words]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def sealed(folder: Path, job_id: str) -> outcomes.Outcome:
    store, at = FileStore(folder / "store"), keys.result(job_id)
    return outcomes.read(store.size(at), lambda start, length: store.get(at, start=start, length=length), KEY)


def test_each_task_of_a_list_has_its_verdict_and_its_source_is_told(carried_out) -> None:
    folder, told = carried_out

    assert told[:2] == ["one|forked|let go|succeeded True", "two|forked|let go|failed True"]
    assert (sealed(folder, "one").status, sealed(folder, "one").witness) == ("succeeded", "runner")
    assert sealed(folder, "two").error["message"] == "never"
    assert [log.size_bytes for log in sealed(folder, "one").logs] == [len("doubling\n")]
    assert (folder / "one-0" / "log").read_text() == "doubling\n"


def test_a_failure_with_a_retry_left_is_another_attempt_and_its_note_says_so(carried_out) -> None:
    folder, told = carried_out

    assert told[2:4] == [
        "three|forked|attempt 0 failed: ValueError: never; trying again (retry 1 of 1)|let go",
        "three|forked|let go|failed True",
    ]
    assert sealed(folder, "three").attempt == 1
    assert (
        json.dumps(outcomes.read_note(FileStore(folder / "store"), "three", 0, KEY).details["failed"])
        == '"ValueError: never"'
    )
    assert "trying again" in (folder / "three-0" / "log").read_text()


def test_what_a_supervisor_has_not_written_yet_is_written_by_none_of_its_workers(carried_out) -> None:
    folder, told = carried_out

    assert len(told) == len(set(told)) == 5
    assert not [log for log in folder.glob("*-0/log") if "|forked|" in log.read_text()]


def test_a_task_that_has_its_verdict_is_not_begun_again(carried_out) -> None:
    folder, told = carried_out

    assert told[4:] == ["one|decided"]
    assert not (folder / "one-1").exists()


def test_a_worker_that_ended_before_it_was_told_its_task_is_replaced_whatever_the_disk_has_room_for(tmp_path) -> None:
    told = carry_out(tmp_path, "no early worker")

    assert told[0] == "one|forked|let go|succeeded True"
    assert sealed(tmp_path, "one").attempt == 0


def test_a_host_that_is_done_after_its_stacks_were_written_is_not_looked_at_again_and_again() -> None:
    reader = verdicts.ReportReader(-1)
    reader.report = verdicts.Report(done={"status": "succeeded"})
    task = Task("slice", "ab" * 32, "file:///store", "key", 0o022, 0.5, {}, hosts=2)
    watched = worker_monitor.WatchedWorker(
        task, -1, reader, time.monotonic() - 5.0, (), 0, dumped_at=time.monotonic() - 4.5
    )

    assert worker_monitor._seconds_to_next_action(watched) > 1  # its peers are waited for


def refused() -> int:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_a_process_that_cannot_be_started_leaves_no_descriptor_open() -> None:
    before = os.listdir("/dev/fd")

    with pytest.MonkeyPatch.context() as patch:  # a limit does not bind root
        patch.setattr(os, "fork", refused)
        for _ in range(3):
            with pytest.raises(BlockingIOError):
                worker_process.EarlyWorker(lambda tasks, report: os._exit(1), None)

    assert len(os.listdir("/dev/fd")) == len(before)


@pytest.mark.skipif(not fuse.may_mount(), reason="this user may not mount")
def test_a_worker_that_no_signal_ends_is_judged_without_its_end_and_holds_up_no_other(tmp_path: Path) -> None:
    with fuse.mounted(tmp_path / "bucket") as silent:
        told = carry_out(tmp_path, str(silent))

        assert told == ["stuck|forked|let go|failed True", "one|forked|let go|succeeded True"]
        assert sealed(tmp_path, "stuck").cause == "deadline"
        assert "does not end: it waits in the kernel" in (tmp_path / "stuck-0" / "log").read_text()

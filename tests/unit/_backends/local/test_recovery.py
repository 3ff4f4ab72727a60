"""Burying: what becomes of the jobs and processes of a supervisor that is gone."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic._backends.local import recovery, runtime_files
from kinetic._backends.local.limits import Limits
from kinetic._backends.local.queue import Queue
from kinetic._backends.local.runtime_files import Paths
from kinetic._runner.data import mounted_data
from kinetic._runner.supervisor import attempts
from kinetic._stores.files import FileStore
from kinetic._wire import digests, documents, folders, keys, outcomes
from kinetic._wire.outcomes import Outcome
from kinetic._wire.records import HISTORY
from kinetic._wire.task import Task
from kinetic.errors import CredentialsError, StoreUnreachableError

KEY = bytes(range(32))
JOB = "cpu-train-20261120-143000-1a2b3c4"


class Grave:
    """A home in which a supervisor has just died."""

    def __init__(self, folder: Path) -> None:
        self.paths = Paths(folder / "run")
        self.paths.make()
        self.queue = Queue(self.paths.queue)
        self.store = FileStore(folder / "store")
        self.submit(JOB)

    def submit(self, job: str) -> None:
        self.paths.job(job).mkdir()
        page = Task(job, "0" * 64, self.store.url, "key-id", 0o22, None, {})
        runtime_files.write_tasks(self.paths, [(page, documents.job_key(KEY, job, self.store.url))])
        self.store.put(keys.record(job), b"{}")
        self.queue.add([(job, "", 0)], "earth", '{"arguments":["/nowhere/python"],"environment":{}}', Limits(9, ()))

    def die(self, state: str = "running", *, began: bool = True, supervisor: str = "dead") -> None:
        """Leave everything as a supervisor does that was killed while its job was in this state."""
        with self.queue.change() as db:
            db.execute("INSERT INTO supervisors VALUES (?, 'earth', 'busy', 1, ?)", (supervisor, time.time()))
        self.queue.claim(supervisor, "earth")
        self.paths.lock(supervisor).touch()
        self.paths.wake(supervisor).touch()
        self.paths.supervisor_log(supervisor).touch()
        if state == "running":
            self.queue.running(JOB, supervisor, 0)
            self.work.log.write_text("epoch 1\nepoch 2\n")
            if began:
                self.work.began.touch()

    @property
    def work(self):
        page = runtime_files.read_task(self.paths, JOB)
        return runtime_files.tasks_of(self.paths, page, 0)[0]

    def complete(self, value: bytes = b"a pickle") -> None:
        """Leave the worker's complete value and its last word."""
        self.work.body.write_bytes(value)
        word = {"status": "succeeded", "cause": "value", "body_length": len(value)}
        self.work.word.write_text(json.dumps(word | {"body_sha256": digests.of_bytes(value)}))

    def bury(self) -> None:
        recovery.recover_dead_supervisors(self.paths, self.queue)

    def outcome(self) -> Outcome | None:
        size = self.store.size(keys.result(JOB))
        if size is None:
            return None
        name = keys.result(JOB)
        return outcomes.read(
            size,
            lambda start, length: self.store.get(name, start=start, length=length),
            documents.job_key(KEY, JOB, self.store.url),
        )

    @property
    def state(self) -> str:
        return self.queue.jobs([JOB])[JOB].state

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.paths.supervisors.iterdir())

    @property
    def scratch(self) -> list[str]:
        return sorted(path.name for path in self.store.scratch().iterdir())


@pytest.fixture
def grave(tmp_path: Path) -> Iterator[Grave]:
    made = Grave(tmp_path)
    yield made
    made.queue.close()


def test_a_job_that_was_claimed_only_waits_again(grave):
    grave.die("claimed")

    grave.bury()

    assert grave.state == "queued"
    assert grave.outcome() is None
    assert grave.left == []


def test_a_job_whose_function_had_not_begun_waits_again_and_leaves_no_scratch(grave):
    grave.die("running", began=False)

    grave.bury()

    assert grave.state == "queued"
    assert grave.scratch == []


def test_a_job_that_ended_its_supervisor_three_times_before_it_began_is_lost(grave):
    for _ in range(3):
        grave.die("claimed")
        grave.bury()

    assert grave.state == "ended"
    assert grave.outcome().status == "failed"


def test_a_job_whose_function_may_have_begun_is_lost_with_a_plain_sentence_and_its_log(grave):
    grave.die()

    grave.bury()

    found = grave.outcome()
    assert (found.status, found.cause, found.witness) == ("failed", "lost", "observer")
    assert found.error["message"] == "the supervisor of this job was killed, and the job with it"
    assert found.error["log"] == "epoch 1\nepoch 2"
    assert grave.store.get(keys.log_segment(JOB, 0, 0, 0)) == b"epoch 1\nepoch 2\n"
    assert (grave.state, grave.scratch, grave.left) == ("ended", [], [])


def test_a_job_that_ran_when_the_machine_went_down_is_lost_even_without_the_sign_that_it_began(grave):
    grave.die("running", began=False)
    with grave.queue.change() as db:
        db.execute("UPDATE jobs SET started = 1000")

    grave.bury()

    assert grave.outcome().cause == "lost"


def test_a_value_that_was_complete_is_delivered(grave):
    grave.die()
    grave.complete()

    grave.bury()

    found = grave.outcome()
    assert found.status == "succeeded"
    assert grave.store.get(keys.result(JOB), length=found.body_length) == b"a pickle"
    assert grave.scratch == []


def test_a_value_behind_which_the_supervisor_had_begun_to_write_is_delivered(grave):
    grave.die()
    grave.complete()
    with grave.work.body.open("ab") as file:
        file.write(b"half a page")

    grave.bury()

    found = grave.outcome()
    assert found.status == "succeeded"
    assert grave.store.get(keys.result(JOB), length=found.body_length) == b"a pickle"


def test_a_value_that_is_shorter_than_promised_is_not_delivered(grave):
    grave.die()
    grave.complete()
    grave.work.body.write_bytes(b"a pi")

    grave.bury()

    assert grave.outcome().status == "failed"


def test_a_value_that_fits_on_the_disk_without_its_page_ends_as_a_failure_that_says_so(grave, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    grave.die()
    grave.complete()
    monkeypatch.setattr(recovery.attempts, "_with_body", full)

    grave.bury()

    found = grave.outcome()
    assert (found.status, found.cause, found.body_length) == ("failed", "disk-full", 0)
    assert "the value does not fit on the disk" in found.error["message"]
    assert grave.scratch == []


def test_a_verdict_that_is_there_stays_and_the_rest_is_finished(grave):
    grave.die()
    told = {path: path.read_bytes() for path in (grave.paths.launch(JOB), grave.paths.key(JOB), grave.work.began)}
    recovery.settle(grave.paths, grave.queue, grave.queue.jobs([JOB])[JOB])
    grave.paths.job(JOB).mkdir(exist_ok=True)
    for path, content in told.items():  # as if the supervisor had died between sealing and ending
        path.write_bytes(content)
    before = grave.store.get(keys.result(JOB))
    with grave.queue.change() as db:
        db.execute("UPDATE jobs SET state = 'running', supervisor = 'dead'")
    grave.complete()

    grave.bury()

    assert grave.store.get(keys.result(JOB)) == before
    assert (grave.state, grave.scratch) == ("ended", [])


def test_what_was_captured_for_a_job_is_gone_with_its_verdict(grave):
    grave.die()

    grave.bury()

    assert grave.state == "ended"
    assert not grave.paths.launch(JOB).exists()
    assert not grave.paths.key(JOB).exists()


def test_a_supervisor_that_lives_is_left_alone(grave):
    grave.die()
    hears, speaks = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = runtime_files.take_lock(grave.paths.lock("dead"))
        os.write(speaks, b"x")
        signal.pause()
        os._exit(int(held is None))
    os.read(hears, 1)

    grave.bury()
    alive = grave.state
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    grave.bury()

    assert (alive, grave.state) == ("running", "ended")


def test_two_that_bury_at_once_settle_a_job_once(grave):
    grave.die()
    grave.complete(bytes(1 << 20))
    gate, start = os.pipe()
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            os.close(start)
            os.read(gate, 1)
            code = 1
            try:
                recovery.recover_dead_supervisors(grave.paths, grave.queue)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    os.close(start)
    os.close(gate)

    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    grave.bury()
    found = grave.outcome()
    body = grave.store.get(keys.result(JOB), length=found.body_length)
    outcomes.check_body(found, digests.of_bytes(body))
    assert found.status == "succeeded"
    assert (grave.scratch, grave.left) == ([], [])


def test_a_supervisor_whose_row_and_lock_have_vanished_is_buried_all_the_same(grave):
    grave.die()
    grave.paths.lock("dead").unlink()
    with grave.queue.change() as db:
        db.execute("DELETE FROM supervisors")

    grave.bury()

    assert grave.state == "ended"
    assert grave.left == []


def test_a_supervisor_that_is_starting_is_given_time(grave):
    with grave.queue.change() as db:
        db.execute("INSERT INTO supervisors VALUES ('young', 'earth', 'starting', 0, ?)", (time.time(),))

    grave.bury()

    assert [supervisor.supervisor for supervisor in grave.queue.supervisors()] == ["young"]


def test_a_supervisor_that_never_came_up_does_not_count_as_coming_until_a_clock_that_went_back_catches_up(grave):
    with grave.queue.change() as db:
        db.execute("INSERT INTO supervisors VALUES ('never', 'earth', 'starting', 0, ?)", (time.time() + 4e7,))

    grave.bury()

    assert grave.queue.supervisors() == []


def test_a_slow_start_is_given_time_as_long_as_its_process_lives(grave):
    process = subprocess.Popen(["sleep", "60"], env={recovery.SUPERVISOR_VARIABLE: "slow"})
    with grave.queue.change() as db:
        db.execute("INSERT INTO supervisors VALUES ('slow', 'earth', 'starting', 0, ?)", (time.time() - 10,))

    grave.bury()
    slow = grave.queue.supervisors()
    process.kill()
    process.wait()
    grave.bury()

    assert [supervisor.supervisor for supervisor in slow] == ["slow"]
    assert grave.queue.supervisors() == []


def test_jobs_whose_supervisors_never_come_up_end_with_the_last_words_of_one(grave):
    for number in range(3):
        with grave.queue.change() as db:
            db.execute(
                "INSERT INTO supervisors VALUES (?, 'earth', 'starting', 0, ?)", (f"k{number}", time.time() - 99)
            )
        grave.paths.supervisor_log(f"k{number}").write_text("Traceback …\nImportError: no module named x\n")
        assert grave.state == "queued"
        grave.bury()

    message = grave.outcome().error["message"]
    assert "does not start" in message
    assert "ImportError: no module named x" in message


@pytest.mark.parametrize("gone", ["launch", "key", "folder"])
def test_a_job_of_which_something_is_gone_ends_and_hurts_nobody_else(grave, gone):
    grave.die()
    if gone == "folder":
        shutil.rmtree(grave.paths.job(JOB))
    else:
        getattr(grave.paths, gone)(JOB).unlink()

    grave.bury()

    rows = grave.queue.jobs([JOB])
    assert not rows or rows[JOB].state == "ended"
    if gone == "key":
        assert "could not be written" in rows[JOB].verdict


def test_a_store_that_refuses_does_not_stop_the_burial_and_the_row_tells_why(grave, monkeypatch):
    grave.die()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(recovery.attempts, "seal_outcome", refuse)
    grave.bury()

    assert grave.state == "ended"
    assert "Permission denied" in grave.queue.jobs([JOB])[JOB].verdict
    assert grave.left == []


@pytest.mark.parametrize(
    ("error", "waits_for"),
    [
        (CredentialsError("gs://jobs does not let us in", why="403"), "finished; waiting for credentials: gs://jobs"),
        (StoreUnreachableError("gs://jobs did not answer"), "finished; waiting for its store: gs://jobs"),
    ],
    ids=["credentials", "an outage"],
)
def test_a_value_that_was_complete_waits_until_somebody_with_good_credentials_looks(
    grave, monkeypatch, error, waits_for: str
):
    grave.die()
    grave.complete()

    def refuse(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as refusing:
        refusing.setattr(recovery.attempts, "seal_outcome", refuse)
        for _ in range(3):  # whoever looks with bad ones changes nothing
            grave.bury()
            assert grave.state == "running"
            assert grave.queue.jobs([JOB])[JOB].verdict.startswith(waits_for)
    grave.bury()

    assert grave.outcome().status == "succeeded"
    assert grave.state == "ended"
    assert grave.scratch == []


def test_a_job_that_left_no_value_is_not_waited_for(grave, monkeypatch):
    grave.die()

    def refuse(*_: object, **__: object) -> None:
        raise CredentialsError("gs://jobs does not let us in")

    monkeypatch.setattr(recovery.attempts, "seal_outcome", refuse)
    grave.bury()

    assert grave.state == "ended"
    assert "its verdict could not be written" in grave.queue.jobs([JOB])[JOB].verdict


def test_a_launch_page_that_is_damaged_ends_its_job_with_a_reason(grave):
    grave.die()
    grave.paths.launch(JOB).write_bytes(b"{}")

    grave.bury()

    assert grave.state == "ended"
    assert "another version of kinetic" in grave.queue.jobs([JOB])[JOB].verdict


def test_a_job_that_somebody_removed_meanwhile_leaves_nothing(grave, monkeypatch):
    grave.die()
    ship_log = recovery.ship_log

    def removed_meanwhile(store, task) -> None:
        grave.queue.forget([JOB])
        grave.store.delete(keys.job(JOB))
        ship_log(store, task)

    monkeypatch.setattr(recovery, "ship_log", removed_meanwhile)
    grave.bury()

    assert [*grave.store.entries(keys.job(JOB))] == []
    assert not grave.paths.job(JOB).exists()


def test_a_job_whose_resource_alone_was_removed_keeps_its_result(grave, monkeypatch):
    grave.die()
    monkeypatch.setattr(recovery, "ship_log", lambda store, task: grave.queue.forget([JOB]))

    grave.bury()

    assert grave.outcome() is not None
    assert not grave.paths.job(JOB).exists()


def test_a_job_that_was_told_to_stop_is_not_started_again(grave):
    grave.die("claimed")
    grave.queue.ask_to_stop([JOB])

    grave.bury()

    assert grave.state == "ended"


def test_a_job_is_removed_with_the_links_that_its_volumes_made_elsewhere(tmp_path: Path):
    paths = Paths(tmp_path / "run")
    data = paths.files(JOB, 0).data
    data.mkdir(parents=True)
    taken, made = tmp_path / "elsewhere" / "volume", tmp_path / "elsewhere"
    made.mkdir()
    taken.symlink_to(data / "0")
    (data / mounted_data.LINKS_PAGE).write_text(json.dumps([str(taken), str(made)]) + "\n")
    folders.make(paths.data_cache / "links")

    recovery.remove_job(paths, JOB)

    assert not paths.job(JOB).exists()
    assert not made.exists()


@pytest.fixture
def family():
    """Start processes as a dead supervisor leaves them, and give them back with what ends them."""
    program = "import os, sys, time\nif sys.argv[1] == 'away': os.setsid()\nprint('x', flush=True)\ntime.sleep(60)"
    found = []

    def start(supervisor: str, how: str = "near") -> subprocess.Popen[bytes]:
        environment = {**os.environ, recovery.SUPERVISOR_VARIABLE: supervisor}
        process = subprocess.Popen([sys.executable, "-c", program, how], env=environment, stdout=subprocess.PIPE)
        process.stdout.read(1)
        found.append(process)
        return process

    yield start
    for process in found:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("how", ["near", "away"])
def test_what_a_dead_supervisor_left_running_is_killed_and_nobody_else(family, how):
    orphan, stranger = family("dead", how), family("alive", how)

    recovery.kill_marked("dead")

    assert orphan.wait(10) == -signal.SIGKILL
    assert stranger.poll() is None


def test_processes_are_found_by_ps_where_there_is_no_proc(family):
    orphan = family("dead-too")
    if subprocess.run(["ps", "-axEww"], capture_output=True, check=False).returncode:
        pytest.skip("this ps does not show environments the way macOS does")

    assert recovery._marked_by_ps(f"{recovery.SUPERVISOR_VARIABLE}=dead-too".encode()) == [orphan.pid]


def test_the_last_words_of_a_supervisor_are_its_error_and_not_our_advice_below_it():
    said = (
        "Traceback (most recent call last):\n"
        '  File "supervisor.py", line 1, in run\n'
        "kinetic.errors.StoreError: the store is full [store-full]\n"
        "why:   [Errno 28] No space left on device\n"
        "next:  free some space\n"
    )

    told = recovery._with_last_line("the job was lost", said)

    assert told == "the job was lost; its log ends with: kinetic.errors.StoreError: the store is full [store-full]"


def test_only_a_page_of_the_history_that_is_sealed_ends_a_job(grave):
    at, key = keys.history(JOB), documents.job_key(KEY, JOB, grave.store.url)
    page = {"job_id": JOB, "resource_removed": True}
    elsewhere = documents.seal_page(HISTORY, page, at, documents.job_key(KEY, JOB, "file:///another/store"))
    of_another = documents.seal_page(HISTORY, page, keys.history("cpu-other-1"), key)

    for forged in (documents.write({"schema": documents.SCHEMA, **page}), elsewhere, of_another, b"[" * 200_000, b""):
        grave.store.put(at, forged)
        assert not attempts.was_removed(grave.store, JOB, documents.temporary_key(grave.paths.key(JOB)))
    grave.store.put(at, documents.seal_page(HISTORY, page, at, key))

    assert attempts.was_removed(grave.store, JOB, documents.temporary_key(grave.paths.key(JOB)))
    assert not attempts.was_removed(grave.store, JOB, documents.temporary_key(grave.paths.job(JOB) / "no-key"))


@pytest.mark.parametrize("field", ["job_id", "order_sha256", "store_url", "umask", "environment", "hosts", "child"])
@pytest.mark.parametrize("value", [None, [], {"a": 1}, -1, "\x00", "gone"])
def test_a_launch_page_with_any_field_wrong_ends_its_job_in_words_and_nobody_else(grave, field, value):
    grave.die()
    path = grave.paths.launch(JOB)
    page = json.loads(path.read_bytes())
    path.write_text(json.dumps({**page, field: value} if value != "gone" else {k: page[k] for k in page if k != field}))

    grave.bury()

    assert grave.state == "ended"

"""Recovery: what becomes of the jobs and processes of a supervisor that is gone."""

from __future__ import annotations

import dataclasses
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


class DeadSupervisor:
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
        self.queue.add([(job, "", 0)], "earth", '{"arguments":["/bin/false"],"environment":{}}', Limits(9, ()))

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

    def recover(self) -> None:
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
def dead(tmp_path: Path) -> Iterator[DeadSupervisor]:
    made = DeadSupervisor(tmp_path)
    yield made
    made.queue.close()


def test_a_job_that_was_claimed_only_waits_again(dead):
    dead.die("claimed")

    dead.recover()

    assert dead.state == "queued"
    assert dead.outcome() is None
    assert dead.left == []


def test_a_job_whose_function_had_not_begun_waits_again_and_leaves_no_scratch(dead):
    dead.die("running", began=False)

    dead.recover()

    assert dead.state == "queued"
    assert dead.scratch == []


def test_a_job_that_ended_its_supervisor_three_times_before_it_began_is_lost(dead):
    for _ in range(3):
        dead.die("claimed")
        dead.recover()

    assert dead.state == "ended"
    assert dead.outcome().status == "failed"


def test_a_job_whose_function_may_have_begun_is_lost_with_a_plain_sentence_and_its_log(dead):
    dead.die()

    dead.recover()

    found = dead.outcome()
    assert (found.status, found.cause, found.witness) == ("failed", "lost", "observer")
    assert found.error["message"] == "the supervisor of this job was killed, and the job with it"
    assert found.error["log"] == "epoch 1\nepoch 2"
    assert dead.store.get(keys.log_segment(JOB, 0, 0, 0)) == b"epoch 1\nepoch 2\n"
    assert (dead.state, dead.scratch, dead.left) == ("ended", [], [])


def test_a_job_that_ran_when_the_machine_went_down_is_lost_even_without_the_sign_that_it_began(dead):
    dead.die("running", began=False)
    with dead.queue.change() as db:
        db.execute("UPDATE jobs SET started = 1000")

    dead.recover()

    assert dead.outcome().cause == "lost"


def test_a_value_that_was_complete_is_delivered(dead):
    dead.die()
    dead.complete()

    dead.recover()

    found = dead.outcome()
    assert found.status == "succeeded"
    assert dead.store.get(keys.result(JOB), length=found.body_length) == b"a pickle"
    assert dead.scratch == []


def test_a_value_behind_which_the_supervisor_had_begun_to_write_is_delivered(dead):
    dead.die()
    dead.complete()
    with dead.work.body.open("ab") as file:
        file.write(b"half a page")

    dead.recover()

    found = dead.outcome()
    assert found.status == "succeeded"
    assert dead.store.get(keys.result(JOB), length=found.body_length) == b"a pickle"


def test_a_value_that_is_shorter_than_promised_is_not_delivered(dead):
    dead.die()
    dead.complete()
    dead.work.body.write_bytes(b"a pi")

    dead.recover()

    assert dead.outcome().status == "failed"


def test_a_value_that_fits_on_the_disk_without_its_page_ends_as_a_failure_that_says_so(dead, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    dead.die()
    dead.complete()
    monkeypatch.setattr(recovery.attempts, "_with_body", full)

    dead.recover()

    found = dead.outcome()
    assert (found.status, found.cause, found.body_length) == ("failed", "disk-full", 0)
    assert "the value does not fit on the disk" in found.error["message"]
    assert dead.scratch == []


def test_a_verdict_that_is_there_stays_and_the_rest_is_finished(dead):
    dead.die()
    told = {path: path.read_bytes() for path in (dead.paths.launch(JOB), dead.paths.key(JOB), dead.work.began)}
    recovery.settle(dead.paths, dead.queue, dead.queue.jobs([JOB])[JOB])
    dead.paths.job(JOB).mkdir(exist_ok=True)
    for path, content in told.items():  # as if the supervisor had died between sealing and ending
        path.write_bytes(content)
    before = dead.store.get(keys.result(JOB))
    with dead.queue.change() as db:
        db.execute("UPDATE jobs SET state = 'running', supervisor = 'dead'")
    dead.complete()

    dead.recover()

    assert dead.store.get(keys.result(JOB)) == before
    assert (dead.state, dead.scratch) == ("ended", [])


def test_what_was_captured_for_a_job_is_gone_with_its_verdict(dead):
    dead.die()

    dead.recover()

    assert dead.state == "ended"
    assert not dead.paths.launch(JOB).exists()
    assert not dead.paths.key(JOB).exists()


def test_a_supervisor_that_lives_is_left_alone(dead):
    dead.die()
    hears, speaks = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = runtime_files.take_lock(dead.paths.lock("dead"))
        os.write(speaks, b"x")
        signal.pause()
        os._exit(int(held is None))
    os.read(hears, 1)

    dead.recover()
    alive = dead.state
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    dead.recover()

    assert (alive, dead.state) == ("running", "ended")


def test_a_supervisor_that_looks_after_the_queue_keeps_its_own_lock(dead):
    dead.die()
    lock = dead.paths.lock("dead")
    held = runtime_files.take_lock(lock)

    dead.recover()
    pid = os.fork()
    if pid == 0:
        os._exit(int(runtime_files.is_locked(lock)))
    _, status = os.waitpid(pid, 0)
    held.release(remove=True)

    assert dead.state == "running"
    assert os.waitstatus_to_exitcode(status) == 1, "another process could take it"


def test_a_supervisor_that_reaches_its_lock_by_another_path_does_not_settle_its_own_job(dead, monkeypatch, tmp_path):
    """The system gives a process a lock of its own a second time: of a home behind a link, the path is another one."""
    monkeypatch.setenv(recovery.SUPERVISOR_VARIABLE, "alive")
    dead.die(supervisor="alive")
    with dead.queue.change() as db:
        db.execute("UPDATE supervisors SET pid = ?", (os.getpid(),))
    (tmp_path / "link").symlink_to(dead.paths.lock("alive").parent)
    held = runtime_files.take_lock(tmp_path / "link" / dead.paths.lock("alive").name)
    monkeypatch.setattr(recovery, "kill_marked", pytest.fail)

    dead.recover()

    assert dead.state == "running"
    assert dead.outcome() is None
    held.release()


def test_what_a_dead_supervisor_left_running_has_ended_before_its_job_is_settled(dead, family, monkeypatch):
    dead.die()
    orphan = family("dead")
    settle, ended = recovery.settle, []
    monkeypatch.setattr(recovery, "settle", lambda *words: [ended.append(orphan.wait(10)), settle(*words)])

    dead.recover()

    assert ended == [-signal.SIGKILL]
    assert dead.state == "ended"


def with_a_retry(dead) -> None:
    task = dataclasses.replace(runtime_files.read_task(dead.paths, JOB), retries=1)
    runtime_files.write_tasks(dead.paths, [(task, documents.job_key(KEY, JOB, dead.store.url))])


def test_a_failure_that_its_supervisor_did_not_live_to_note_is_counted_once_and_tried_again(dead):
    with_a_retry(dead)
    dead.die()
    error = {"type": "ValueError", "message": "boom"}
    dead.work.word.write_text(json.dumps({"status": "failed", "cause": "exception", "error": error}))
    note = outcomes.AttemptNote(JOB, 0, "here", 1.0)
    key = documents.job_key(KEY, JOB, dead.store.url)
    dead.store.put(note.key, note.to_bytes(key))
    copies = dead.paths.job(JOB) / "data-0-0"
    copies.mkdir()

    dead.recover()

    assert (dead.state, dead.outcome()) == ("queued", None)
    assert attempts.count_failures(dead.store, JOB, 1, key) == 1
    said = dead.store.get(keys.log_segment(JOB, 0, 0, 0)).decode()
    assert said.endswith("kinetic: attempt 0 failed: ValueError: boom; trying again (retry 1 of 1)\n")
    assert not dead.work.began.exists(), "else the next attempt counts as begun before it is"
    assert not copies.exists()


def test_a_job_that_was_lost_is_not_tried_again_since_its_function_may_have_succeeded(dead):
    with_a_retry(dead)
    dead.die()

    dead.recover()

    assert (dead.state, dead.outcome().cause) == ("ended", "lost")


def test_a_job_whose_page_says_that_it_was_removed_leaves_no_row(dead):
    dead.die()
    at = keys.history(JOB)
    page = {"job_id": JOB, "resource_removed": True, "artifacts_removed": False}
    dead.store.put(at, documents.seal_page(HISTORY, page, at, documents.job_key(KEY, JOB, dead.store.url)))

    dead.recover()

    assert dead.queue.jobs([JOB]) == {}
    assert not dead.paths.job(JOB).exists()


def test_who_is_to_be_notified_of_a_job_is_notified_of_its_loss(dead, monkeypatch):
    told = []
    monkeypatch.setattr(recovery.notifier, "send", lambda runtime, job_id, ended: told.append((job_id, ended.status)))
    dead.die()

    dead.recover()

    assert told == [(JOB, "FAILED")]


def test_two_that_recover_at_once_settle_a_job_once(dead):
    dead.die()
    dead.complete(bytes(1 << 20))
    gate, start = os.pipe()
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            os.close(start)
            os.read(gate, 1)
            code = 1
            try:
                recovery.recover_dead_supervisors(dead.paths, dead.queue)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    os.close(start)
    os.close(gate)

    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    dead.recover()
    found = dead.outcome()
    body = dead.store.get(keys.result(JOB), length=found.body_length)
    outcomes.check_body(found, digests.of_bytes(body))
    assert found.status == "succeeded"
    assert (dead.scratch, dead.left) == ([], [])


def test_a_supervisor_whose_row_and_lock_have_vanished_is_buried_all_the_same(dead):
    dead.die()
    dead.paths.lock("dead").unlink()
    with dead.queue.change() as db:
        db.execute("DELETE FROM supervisors")

    dead.recover()

    assert dead.state == "ended"
    assert dead.left == []


def test_a_supervisor_that_is_starting_is_given_time(dead):
    with dead.queue.change() as db:
        db.execute("INSERT INTO supervisors VALUES ('young', 'earth', 'starting', 0, ?)", (time.time(),))

    dead.recover()

    assert [supervisor.supervisor for supervisor in dead.queue.supervisors()] == ["young"]


def test_a_supervisor_that_never_came_up_does_not_count_as_coming_until_a_clock_that_went_back_catches_up(dead):
    with dead.queue.change() as db:
        db.execute("INSERT INTO supervisors VALUES ('never', 'earth', 'starting', 0, ?)", (time.time() + 4e7,))

    dead.recover()

    assert dead.queue.supervisors() == []


def test_a_slow_start_is_given_time_as_long_as_its_process_lives(dead):
    process = subprocess.Popen(["sleep", "60"], env={recovery.SUPERVISOR_VARIABLE: "slow"})
    with dead.queue.change() as db:
        db.execute("INSERT INTO supervisors VALUES ('slow', 'earth', 'starting', 0, ?)", (time.time() - 10,))

    dead.recover()
    slow = dead.queue.supervisors()
    process.kill()
    process.wait()
    dead.recover()

    assert [supervisor.supervisor for supervisor in slow] == ["slow"]
    assert dead.queue.supervisors() == []


def test_jobs_whose_supervisors_never_come_up_end_with_the_last_words_of_one(dead):
    for number in range(3):
        with dead.queue.change() as db:
            db.execute(
                "INSERT INTO supervisors VALUES (?, 'earth', 'starting', 0, ?)", (f"k{number}", time.time() - 99)
            )
        dead.paths.supervisor_log(f"k{number}").write_text("Traceback …\nImportError: no module named x\n")
        assert dead.state == "queued"
        dead.recover()

    message = dead.outcome().error["message"]
    assert "does not start" in message
    assert "ImportError: no module named x" in message


@pytest.mark.parametrize("gone", ["launch", "key", "folder"])
def test_a_job_of_which_something_is_gone_ends_and_hurts_nobody_else(dead, gone):
    dead.die()
    if gone == "folder":
        shutil.rmtree(dead.paths.job(JOB))
    else:
        getattr(dead.paths, gone)(JOB).unlink()

    dead.recover()

    rows = dead.queue.jobs([JOB])
    assert not rows or rows[JOB].state == "ended"
    if gone == "key":
        assert "could not be written" in rows[JOB].verdict


def test_a_store_that_refuses_does_not_stop_the_burial_and_the_row_tells_why(dead, monkeypatch):
    dead.die()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(recovery.attempts, "seal_outcome", refuse)
    dead.recover()

    assert dead.state == "ended"
    assert "Permission denied" in dead.queue.jobs([JOB])[JOB].verdict
    assert dead.left == []


@pytest.mark.parametrize(
    ("error", "waits_for"),
    [
        (CredentialsError("gs://jobs does not let us in", why="403"), "finished; waiting for credentials: gs://jobs"),
        (StoreUnreachableError("gs://jobs did not answer"), "finished; waiting for its store: gs://jobs"),
    ],
    ids=["credentials", "an outage"],
)
def test_a_value_that_was_complete_waits_until_somebody_with_good_credentials_looks(
    dead, monkeypatch, error, waits_for: str
):
    dead.die()
    dead.complete()

    def refuse(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as refusing:
        refusing.setattr(recovery.attempts, "seal_outcome", refuse)
        for _ in range(3):  # whoever looks with bad ones changes nothing
            dead.recover()
            assert dead.state == "running"
            assert dead.queue.jobs([JOB])[JOB].verdict.startswith(waits_for)
    dead.recover()

    assert dead.outcome().status == "succeeded"
    assert dead.state == "ended"
    assert dead.scratch == []


def test_a_value_that_was_complete_waits_for_the_folder_of_its_store_and_is_not_written_where_that_was(dead, tmp_path):
    dead.die()
    dead.complete()
    dead.store.root.rename(tmp_path / "unmounted")
    dead.store.root.mkdir()  # the mount point

    dead.recover()

    assert list(dead.store.root.iterdir()) == []
    assert dead.state == "running"
    assert "is it mounted?" in dead.queue.jobs([JOB])[JOB].verdict

    dead.store.root.rmdir()
    (tmp_path / "unmounted").rename(dead.store.root)
    dead.recover()

    assert dead.outcome().status == "succeeded"
    assert dead.state == "ended"


def test_a_job_that_left_no_value_is_not_waited_for(dead, monkeypatch):
    dead.die()

    def refuse(*_: object, **__: object) -> None:
        raise CredentialsError("gs://jobs does not let us in")

    monkeypatch.setattr(recovery.attempts, "seal_outcome", refuse)
    dead.recover()

    assert dead.state == "ended"
    assert "its verdict could not be written" in dead.queue.jobs([JOB])[JOB].verdict


def test_a_launch_page_that_is_damaged_ends_its_job_with_a_reason(dead):
    dead.die()
    dead.paths.launch(JOB).write_bytes(b"{}")

    dead.recover()

    assert dead.state == "ended"
    assert "another version of kinetic" in dead.queue.jobs([JOB])[JOB].verdict


def test_a_job_that_somebody_removed_meanwhile_leaves_nothing(dead, monkeypatch):
    dead.die()
    ship_log = recovery.ship_log

    def removed_meanwhile(store, task) -> None:
        dead.queue.forget([JOB])
        dead.store.delete(keys.job(JOB))
        ship_log(store, task)

    monkeypatch.setattr(recovery, "ship_log", removed_meanwhile)
    dead.recover()

    assert [*dead.store.entries(keys.job(JOB))] == []
    assert not dead.paths.job(JOB).exists()


def test_a_job_whose_resource_alone_was_removed_keeps_its_result(dead, monkeypatch):
    dead.die()
    monkeypatch.setattr(recovery, "ship_log", lambda store, task: dead.queue.forget([JOB]))

    dead.recover()

    assert dead.outcome() is not None
    assert not dead.paths.job(JOB).exists()


def test_a_job_that_was_told_to_stop_is_not_started_again(dead):
    dead.die("claimed")
    dead.queue.ask_to_stop([JOB])

    dead.recover()

    assert dead.state == "ended"


def test_copies_of_data_that_the_supervisor_of_a_job_will_remove_are_left_to_it_which_leaves_nothing(dead):
    dead.die()
    dead.work.data.mkdir()
    (dead.work.data / "one of many").touch()
    (dead.paths.job(JOB) / "work-0-0").mkdir()
    task, lock = dead.work, runtime_files.take_abandoned_lock(dead.paths.lock("dead"))

    recovery.note_clearing(dead.paths, JOB, "dead")
    recovery.remove_job(dead.paths, JOB)
    left = sorted(path.name for path in dead.paths.job(JOB).iterdir())
    recovery.finish(dead.paths, dead.queue, dead.store, [task], "succeeded", measured=False)
    recovery.tidy(dead.paths, JOB, task, whole=True)
    lock.release()

    assert left == ["clearing", task.data.name]
    assert not dead.paths.job(JOB).exists()


def test_a_job_is_removed_whole_beside_its_supervisor_that_removes_the_same_files(dead, monkeypatch):
    dead.die()
    files = {dead.paths.job(JOB) / name for name in "abc"}
    dead.work.data.mkdir()
    for file in files:
        file.touch()
    unlink, lock = os.unlink, runtime_files.take_abandoned_lock(dead.paths.lock("dead"))

    def unlink_after_the_supervisor(file):
        unlink(file)
        unlink(file)

    recovery.note_clearing(dead.paths, JOB, "dead")
    monkeypatch.setattr(recovery.os, "unlink", unlink_after_the_supervisor)
    recovery.remove_job(dead.paths, JOB)
    monkeypatch.undo()
    lock.release()

    assert [file.name for file in files if file.exists()] == []


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


def test_only_a_page_of_the_history_that_is_sealed_ends_a_job(dead):
    at, key = keys.history(JOB), documents.job_key(KEY, JOB, dead.store.url)
    page = {"job_id": JOB, "resource_removed": True}
    elsewhere = documents.seal_page(HISTORY, page, at, documents.job_key(KEY, JOB, "file:///another/store"))
    of_another = documents.seal_page(HISTORY, page, keys.history("cpu-other-1"), key)

    for forged in (documents.write({"schema": documents.SCHEMA, **page}), elsewhere, of_another, b"[" * 200_000, b""):
        dead.store.put(at, forged)
        assert not attempts.was_removed(dead.store, JOB, documents.temporary_key(dead.paths.key(JOB)))
    dead.store.put(at, documents.seal_page(HISTORY, page, at, key))

    assert attempts.was_removed(dead.store, JOB, documents.temporary_key(dead.paths.key(JOB)))
    assert not attempts.was_removed(dead.store, JOB, documents.temporary_key(dead.paths.job(JOB) / "no-key"))


@pytest.mark.parametrize("field", ["job_id", "order_sha256", "store_url", "umask", "environment", "hosts", "child"])
@pytest.mark.parametrize("value", [None, [], {"a": 1}, -1, "\x00", "gone"])
def test_a_launch_page_with_any_field_wrong_ends_its_job_in_words_and_nobody_else(dead, field, value):
    dead.die()
    path = dead.paths.launch(JOB)
    page = json.loads(path.read_bytes())
    path.write_text(json.dumps({**page, field: value} if value != "gone" else {k: page[k] for k in page if k != field}))

    dead.recover()

    assert dead.state == "ended"

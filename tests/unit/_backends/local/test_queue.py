"""The queue: one order, whoever looks at it."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kinetic._backends.local import lock_holders, queue_connection, queue_database, recovery
from kinetic._backends.local.gpu_locks import GpuLocks
from kinetic._backends.local.limits import Limits
from kinetic._backends.local.queue import Queue
from kinetic._backends.local.supervisor import SupervisorProcess
from kinetic._output import terminal
from kinetic._runner import processes
from kinetic.errors import BackendUnavailableError

TEMPLATE = '{"arguments":["python"],"environment":{}}'
ONE = Limits(1, ())


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with closing(Queue(tmp_path / "queue.db")) as made:
        yield made


def add(queue: Queue, *names: str, template_id: str = "earth", gpus: int = 0, limits: Limits = ONE) -> None:
    queue.add([(name, "", gpus) for name in names], template_id, TEMPLATE, limits)


def state(queue: Queue, name: str) -> str:
    return queue.jobs([name])[name].state


def claimed(queue: Queue, supervisor: str, template_id: str = "earth") -> str | None:
    row = queue.claim(supervisor, template_id)
    return row.job_id if row is not None else None


def test_jobs_are_claimed_in_the_order_of_their_submission(queue):
    add(queue, "a", "b", limits=Limits(9, ()))
    add(queue, "c", limits=Limits(9, ()))

    assert [claimed(queue, "k") for _ in range(4)] == ["a", "b", "c", None]


def test_no_more_are_claimed_than_there_are_slots(queue):
    add(queue, "a", "b", "c", limits=Limits(2, ()))

    assert [claimed(queue, f"k{n}") for n in range(3)] == ["a", "b", None]
    queue.end("a", "succeeded")
    assert claimed(queue, "k0") == "c"


@pytest.mark.parametrize(
    ("change", "is_forced"),
    [
        (lambda queue: add(queue, "new"), True),
        (lambda queue: queue.claim("k", "earth"), False),
        (lambda queue: queue.register("k", "earth"), False),
        (lambda queue: queue.running("job", "k", 0), True),
        (lambda queue: queue.note("job", "finished; waits for its store"), False),
        (lambda queue: queue.end("job", "succeeded"), False),
        (lambda queue: queue.end("job", "its store takes nothing"), True),
        (lambda queue: queue.requeue("job", "k"), True),
        (lambda queue: queue.ask_to_stop(["job"]), True),
        (lambda queue: queue.forget(["job"]), True),
        (lambda queue: queue.note_successes("job", ["other"]), True),
        (lambda queue: queue.leave("k", "earth", at_once=True), False),
    ],
)
def test_what_only_the_queue_knows_after_a_restart_of_the_machine_is_forced_to_the_disk(queue, change, is_forced):
    add(queue, "job")
    queue.claim("k", "earth")
    for before in (True, False):
        with queue.change(forced=before):
            pass

        change(queue)

        [(synchronous,)] = queue.read("PRAGMA synchronous")
        assert synchronous == (2 if is_forced else 1), "FULL or NORMAL, of SQLite"


def test_a_job_that_was_ended_by_another_process_does_not_begin_and_is_not_put_back(queue):
    add(queue, "a")
    queue.claim("k", "earth")
    queue.end("a", "ended")

    assert not queue.running("a", "k", 0)
    queue.requeue("a", "k")
    assert state(queue, "a") == "ended"


def test_a_supervisor_stays_for_a_job_that_came_as_it_was_about_to_leave(queue):
    queue.register("k", "earth")
    add(queue, "other", template_id="sand")
    add(queue, "a")

    stays = not queue.leave("k", "earth", at_once=False)
    known = [row.supervisor for row in queue.supervisors()]
    queue.forget(["a"])

    assert (stays, known) == (True, ["k"])
    assert queue.leave("k", "earth", at_once=False)
    queue.register("k", "sand")
    assert queue.leave("k", "sand", at_once=True)
    assert queue.supervisors() == []


def test_of_a_job_that_is_forgotten_nothing_holds_for_one_of_the_same_name(queue):
    queue.add([("a", "", 0)], "earth", TEMPLATE, ONE, {"a": ["first"]})
    queue.lend_slot("a", 0)

    queue.forget(["a"])
    queue.add([("a", "", 0)], "earth", TEMPLATE, ONE, {"a": ["second"]})

    assert queue.waits_for("a") == ["second"]
    assert not queue.has_lent("a", 0)
    queue.ask_to_stop(["a"])
    assert queue.waits_for("a") == []


def test_a_job_that_follows_several_starts_once_the_last_of_them_has_succeeded(queue):
    queue.add([("a", "", 0)], "earth", TEMPLATE, ONE, {"a": ["first", "second"]})

    queue.note_successes("a", ["first"])
    after_the_first = state(queue, "a")
    queue.note_successes("a", ["second"])

    assert (after_the_first, state(queue, "a")) == ("waiting", "queued")


def test_a_process_that_learns_late_that_the_last_one_has_succeeded_starts_no_job_a_second_time(queue):
    queue.add([("a", "", 0)], "earth", TEMPLATE, ONE, {"a": ["b"]})
    queue.note_successes("a", ["b"])
    queue.claim("k", "earth")
    queue.running("a", "k", 0)

    queue.note_successes("a", ["b"])

    assert state(queue, "a") == "running"


def test_the_template_of_a_supervisor_that_waits_is_in_use_though_its_jobs_have_ended(queue):
    add(queue, "a")
    queue.claim("k", "earth")
    queue.end("a", "succeeded")

    assert queue.templates_in_use() == [TEMPLATE]
    queue.forget_supervisor("k")
    assert queue.templates_in_use() == []


def test_a_job_is_added_once(queue):
    add(queue, "a")
    queue.claim("k", "earth")
    add(queue, "a")

    assert [row.state for row in queue.rows()] == ["claimed"]


def test_a_supervisor_claims_jobs_of_its_own_template_and_overtakes_nobody(queue):
    add(queue, "sandy", template_id="sand")
    add(queue, "earthy", template_id="earth")

    assert claimed(queue, "k", "earth") is None
    assert claimed(queue, "s", "sand") == "sandy"


def test_what_waits_for_a_python_that_is_gone_holds_back_no_others_and_starts_when_it_is_back(queue, tmp_path):
    python = tmp_path / "python"
    for name, gpus in (("gone", 0), ("gone on a gpu", 1)):
        queue.add([(name, "", gpus)], "sand", f'{{"arguments":["{python}"]}}', Limits(1, ("0",)))
    add(queue, "here")
    add(queue, "here on a gpu", gpus=1, limits=Limits(1, ("0",)))

    assert queue.missing_python("sand") == str(python)
    assert {template for _, template in queue.plan("", 1)[1]} == {"earth"}
    assert [claimed(queue, f"e{n}") for n in range(3)] == ["here", "here on a gpu", None]
    queue.end("here", "succeeded")
    python.touch()
    assert "sand" in {template for _, template in queue.plan("", 1)[1]}
    assert queue.missing_python("sand") == ""


def test_devices_are_exclusive_and_a_small_job_does_not_overtake_a_large_one(queue):
    limits = Limits(1, ("0", "1"))
    add(queue, "small", gpus=1, limits=limits)
    add(queue, "large", gpus=2, limits=limits)
    add(queue, "late", gpus=1, limits=limits)

    first = queue.claim("k", "earth")
    assert (first.job_id, first.devices) == ("small", "0")
    assert queue.claim("k2", "earth") is None
    queue.end("small", "succeeded")
    second = queue.claim("k", "earth")
    assert (second.job_id, second.devices) == ("large", "0,1")


def test_one_supervisor_of_each_kind_waits_for_a_gpu_of_another_user_unless_its_python_is_gone(tmp_path):
    environ, one = {"KINETIC_GPU_LOCKS": str(tmp_path / "locks")}, Limits(1, ("0",))
    theirs = GpuLocks(environ["KINETIC_GPU_LOCKS"])
    assert theirs.take(["0"])
    with closing(Queue(tmp_path / "queue.db", environ)) as queue:
        queue.add([("gone", "", 1)], "sand", '{"arguments":["/no/python"]}', one)
        add(queue, "a", "b", gpus=1, limits=one)

        _, started = queue.plan("", 1)
        assert [template for _, template in started] == ["earth"]
        assert claimed(queue, started[0][0]) is None
        assert (queue.waits_for_others("earth"), queue.waits_for_others("sand")) == (True, False)
        assert queue.plan("", 1) == ([started[0][0]], [])
        assert list(queue.gpus_of_others(queue.jobs(["a"])["a"])) == ["0"]

        theirs.release()
        assert claimed(queue, started[0][0]) == "a"
        assert not queue.waits_for_others("earth")
        assert queue.gpus_of_others(queue.jobs(["b"])["b"]) == {}
        assert not theirs.take(["0"])
        queue.end("a", "succeeded")
        queue.free_gpus()
        assert theirs.take(["0"])


def test_what_waits_for_a_gpu_of_another_user_has_a_supervisor_also_beside_jobs_of_its_kind_that_start(tmp_path):
    environ, limits = {"KINETIC_GPU_LOCKS": str(tmp_path / "locks")}, Limits(2, ("0",))
    theirs = GpuLocks(environ["KINETIC_GPU_LOCKS"])
    assert theirs.take(["0"])
    with closing(Queue(tmp_path / "queue.db", environ)) as queue:
        add(queue, "on-gpu", gpus=1, limits=limits)
        _, [(first, _)] = queue.plan("", 2)
        assert claimed(queue, first) is None

        add(queue, "on-cpu", limits=limits)
        wake, start = queue.plan("", 2)

        assert wake == [first]
        assert len(start) == 1
        assert claimed(queue, first) == "on-cpu"
        assert queue.plan("", 2) == ([], [])
        theirs.release()
        assert claimed(queue, start[0][0]) == "on-gpu"


def test_a_lock_that_another_process_only_looks_at_without_end_holds_up_no_queue(tmp_path):
    environ, one = {"KINETIC_GPU_LOCKS": str(tmp_path / "locks")}, Limits(1, ("0",))
    assert GpuLocks(environ["KINETIC_GPU_LOCKS"]).are_elsewhere(["0"]) == set()
    (file,) = (tmp_path / "locks").iterdir()
    with closing(Queue(tmp_path / "queue.db", environ)) as queue, file.open() as stopped:
        fcntl.flock(stopped, fcntl.LOCK_SH)
        add(queue, "a", gpus=1, limits=one)

        assert claimed(queue, "one") is None
        assert queue.waits_for_others("earth")

        fcntl.flock(stopped, fcntl.LOCK_UN)
        assert claimed(queue, "one") == "a"


def test_a_gpu_that_is_named_in_two_ways_is_taken_once(tmp_path):
    locks = GpuLocks(str(tmp_path / "locks"))

    assert locks.take(["MIG/1", "MIG_1"])
    assert locks.take(["MIG/1"])


def test_a_supervisor_with_libraries_looks_each_minute_for_a_gpu_of_another_user(tmp_path):
    environ, one = {"KINETIC_GPU_LOCKS": str(tmp_path / "locks")}, Limits(1, ("0",))
    theirs = GpuLocks(environ["KINETIC_GPU_LOCKS"])
    assert theirs.take(["0"])
    process, waited = object.__new__(SupervisorProcess), list[float]()
    process.name, process.template_id = "one", "earth"
    process._preloading = cast("Any", SimpleNamespace(is_of_use=True))
    process._wait = waited.append
    with closing(Queue(tmp_path / "queue.db", environ)) as queue:
        process.queue = queue
        queue.register("one", "earth")
        process._waits_longer()
        assert len(waited) == 1

        add(queue, "a", gpus=1, limits=one)
        assert claimed(queue, "one") is None
        assert not process._waits_longer()
        assert len(waited) == 1


def test_jobs_on_gpus_do_not_take_slots(queue):
    add(queue, "gpu", gpus=1, limits=Limits(1, ("0",)))
    add(queue, "cpu")

    assert [claimed(queue, f"k{n}") for n in range(2)] == ["gpu", "cpu"]


def test_a_requeued_job_has_its_old_place_and_remembers_it(queue):
    add(queue, "a", "b", "c")
    queue.claim("k", "earth")

    queue.requeue("a", "k")

    row = queue.jobs(["a"])["a"]
    assert (row.state, row.supervisor, row.requeues, row.started) == ("queued", None, 1, None)
    assert claimed(queue, "k2") == "a"


def test_only_what_a_supervisor_holds_is_requeued(queue):
    add(queue, "a")
    queue.claim("k", "earth")

    queue.requeue("a", "another")
    assert state(queue, "a") == "claimed"
    queue.end("a", "succeeded")
    queue.requeue("a", "k")
    assert state(queue, "a") == "ended"


def test_a_job_that_was_taken_away_does_not_begin(queue):
    add(queue, "a", "b")
    queue.claim("k", "earth")
    queue.forget(["a"])

    assert not queue.running("a", "k", 0)
    assert not queue.end("a", "succeeded")


def test_a_job_that_was_stopped_between_claim_and_fork_does_not_begin(queue):
    add(queue, "a")
    queue.claim("k", "earth")

    row = queue.ask_to_stop(["a"])["a"]

    assert (row.state, row.stop) == ("claimed", 1)
    assert not queue.running("a", "k", 0)


def test_stopping_a_job_that_waits_takes_it_out(queue):
    add(queue, "a", "b")

    assert queue.ask_to_stop(["a"]) == {}
    assert claimed(queue, "k") == "b"


def test_a_failed_start_is_remembered_with_every_waiting_job_of_that_template_id(queue):
    add(queue, "a", "b")
    add(queue, "other", template_id="sand")
    queue.claim("k", "earth")

    found = queue.count_failed_start("earth")

    assert [(row.job_id, row.requeues) for row in found] == [("b", 1)]
    assert [row.requeues for row in queue.rows()] == [0, 1, 0]


def test_a_change_that_fails_changes_nothing_and_the_next_one_works(queue):
    add(queue, "a")

    def change(then: str) -> None:
        with queue.change() as db:
            db.execute("DELETE FROM jobs")
            db.execute(then)
            raise KeyError

    with pytest.raises(BackendUnavailableError):
        change("SELECT nonsense")
    with pytest.raises(KeyError):
        change("SELECT 1")
    with queue.change() as db:
        db.execute("UPDATE jobs SET gpus = 3")

    assert [row.gpus for row in queue.rows()] == [3]


def test_a_disk_that_is_full_is_an_error_of_ours_and_passes(queue):
    add(queue, "a")
    queue._db.execute("PRAGMA max_page_count = 1")
    pages = queue._db.execute("PRAGMA page_count").fetchone()[0]
    queue._db.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(BackendUnavailableError, match="queue of this machine") as raised:
        add(queue, *(f"job-{number:0200}" for number in range(2000)))
    queue._db.execute("PRAGMA max_page_count = 100000")
    add(queue, "b")

    assert "full" in str(raised.value)
    assert type(raised.value) is BackendUnavailableError  # no class of ours that users cannot name
    assert [row.job_id for row in queue.rows()] == ["a", "b"]


def test_many_processes_that_open_a_new_queue_at_once_all_succeed(tmp_path):
    for attempt in range(5):
        path = tmp_path / f"queue-{attempt}.db"
        gate, start = os.pipe()
        children = []
        for number in range(6):
            pid = os.fork()
            if pid == 0:
                os.close(start)
                os.read(gate, 1)
                code = 1
                try:
                    add(Queue(path), f"job-{number}")
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        os.close(start)  # go
        os.close(gate)

        assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 6
        with closing(Queue(path)) as queue:
            assert len(queue.rows()) == 6


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # of Python 3.12
@pytest.mark.parametrize("held", ["a transaction", "the look for dead supervisors", "a line of the terminal"])
def test_a_forked_child_does_not_wait_for_a_thread_that_only_its_parent_has(queue, held):
    holds = {
        "a transaction": queue.change,
        "the look for dead supervisors": lambda: recovery._one_at_a_time,
        "a line of the terminal": lambda: terminal._lock,
    }
    is_held, may_end = threading.Event(), threading.Event()

    def hold() -> None:
        with holds[held]():
            is_held.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        queue.rows()
        with recovery._one_at_a_time:
            pass
        terminal.clear()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    may_end.set()
    thread.join()

    assert status == 0


def test_a_connection_does_not_cross_a_fork(queue):
    add(queue, "a")
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            mine = queue._db
            add(queue, "b")
            code = 0 if queue._db is not mine else 2
        finally:
            os._exit(code)

    assert os.waitpid(pid, 0)[1] == 0
    assert [row.job_id for row in queue.rows()] == ["a", "b"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # of Python 3.12
def test_a_child_that_is_forked_during_a_change_of_another_thread_can_change_the_queue(queue):
    queue.close_at_forks()
    is_held = threading.Event()

    def change() -> None:
        with queue.change() as db:
            is_held.set()
            time.sleep(0.2)
            db.execute("UPDATE jobs SET requeues = 7")

    thread = threading.Thread(target=change)
    add(queue, "a")
    thread.start()
    is_held.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        try:
            add(queue, "b")
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    thread.join()

    assert status == 0
    assert [(row.job_id, row.requeues) for row in queue.rows()] == [("a", 7), ("b", 0)]


def test_what_a_forked_child_adds_stays_when_all_others_close_the_queue(queue, tmp_path):
    queue.close_at_forks()
    add(queue, "a")
    is_open, opened = os.pipe()
    is_closed, closed = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            add(queue, "b")
            os.write(opened, b"x")
            os.read(is_closed, 1)
            add(queue, "c")
        finally:
            os._exit(0)
    os.read(is_open, 1)
    queue.close()
    os.write(closed, b"x")
    os.waitpid(pid, 0)

    with closing(Queue(tmp_path / "queue.db")) as again:
        assert [row.job_id for row in again.rows()] == ["a", "b", "c"]


def test_the_queue_is_private_and_survives_its_process(queue, tmp_path):
    add(queue, "a")

    assert (tmp_path / "queue.db").stat().st_mode & 0o777 == 0o600
    with closing(Queue(tmp_path / "queue.db")) as again:
        assert [row.job_id for row in again.rows()] == ["a"]


def test_a_queue_of_a_newer_kinetic_is_refused(tmp_path):
    db = sqlite3.connect(tmp_path / "queue.db")
    db.execute("PRAGMA user_version = 99")
    db.close()

    for _ in range(2):  # the second one does not wait for a lock that the first one has kept
        with pytest.raises(BackendUnavailableError, match="newer kinetic"):
            Queue(tmp_path / "queue.db")


def test_a_file_that_is_no_queue_is_set_aside_and_kept(tmp_path):
    (tmp_path / "queue.db").write_bytes(b"x" * 5000)

    with closing(Queue(tmp_path / "queue.db")) as queue:
        add(queue, "a")
        assert state(queue, "a") == "queued"

    (kept,) = tmp_path.glob("queue.db.damaged-*")
    assert kept.read_bytes() == b"x" * 5000


@pytest.mark.parametrize("tables", ["jobs (job_id TEXT, kind TEXT)", "jobs (job_id TEXT, template_id TEXT)"])
def test_a_queue_with_the_tables_of_another_build_is_set_aside_and_kept(tmp_path, tables: str):
    with closing(sqlite3.connect(tmp_path / "queue.db")) as db:
        db.execute(f"CREATE TABLE {tables}")
        db.execute("PRAGMA user_version = 1")

    with closing(Queue(tmp_path / "queue.db")) as queue:
        add(queue, "a")
        assert state(queue, "a") == "queued"

    assert len([*tmp_path.glob("queue.db.damaged-*")]) == 1


def test_of_two_processes_that_meet_the_same_damage_the_second_one_keeps_what_the_first_one_has_made(queue, tmp_path):
    with closing(Queue(tmp_path / "queue.db")) as other:
        damage = sqlite3.DatabaseError("database disk image is malformed")
        damage.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        queue._repair_after(damage)
        add(queue, "new")
        other._repair_after(damage)

        assert [row.job_id for row in other.rows()] == ["new"]


def test_a_queue_that_is_damaged_under_an_open_connection_is_replaced_at_the_next_look(queue, tmp_path):
    add(queue, "a")
    with closing(sqlite3.connect(tmp_path / "queue.db")) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with closing(Queue(tmp_path / "queue.db")) as other:
        (tmp_path / "queue.db").write_bytes(b"x" * 50000)
        (tmp_path / "queue.db-wal").write_bytes(b"x" * 50000)

        add(other, "b")
        add(queue, "c")

        assert sorted(row.job_id for row in queue.rows()) == sorted(row.job_id for row in other.rows()) == ["b", "c"]


@pytest.mark.parametrize("wal", [True, False])
def test_what_is_left_beside_a_queue_that_is_gone_does_not_become_part_of_the_next_one(tmp_path, monkeypatch, wal):
    monkeypatch.setattr(queue_database, "_supports_wal", lambda _: wal)
    with closing(Queue(tmp_path / "queue.db")) as queue:
        add(queue, "a")
        beside = {path: path.read_bytes() for path in tmp_path.glob("queue.db-*")}
    (tmp_path / "queue.db").unlink()
    for path, data in beside.items():
        path.write_bytes(data)

    with closing(Queue(tmp_path / "queue.db")) as queue:
        assert queue.rows() == []
        add(queue, "b")


def stopped_inside_a_change(path: Path) -> int:
    """Start a process that is stopped while it holds the lock of a queue, and would then finish."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            with Queue(path).change() as db:
                db.execute("UPDATE jobs SET requeues = 7")
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(60)
            code = 0
        finally:
            os._exit(code)
    os.waitpid(pid, os.WUNTRACED)
    return pid


@pytest.mark.parametrize("wal", [True, False])
def test_a_process_that_is_stopped_inside_a_change_finishes_it_and_is_stopped_again(tmp_path, monkeypatch, wal):
    if not Path("/proc/locks").exists():
        pytest.skip("this system does not tell who holds a lock")
    monkeypatch.setattr(queue_database, "_supports_wal", lambda _: wal)
    with closing(Queue(tmp_path / "queue.db")) as queue:
        add(queue, "a")
    pid = stopped_inside_a_change(tmp_path / "queue.db")

    begun = time.monotonic()
    with closing(Queue(tmp_path / "queue.db")) as queue:
        add(queue, "b")
        rows = [(row.job_id, row.requeues) for row in queue.rows()]
    took = time.monotonic() - begun
    while (state := processes.state(pid)) == "R" and time.monotonic() < begun + 10:
        time.sleep(0.01)  # on a busy machine a signal takes a moment
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    assert rows == [("a", 7), ("b", 0)]
    assert took < 10
    assert state == "T"


def test_whoever_waits_for_the_queue_waits_as_long_as_for_a_store_and_says_for_whom(
    queue, tmp_path, monkeypatch, capfd
):
    now = [0.0]
    tries = []
    held = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr(lock_holders, "release_stopped_holder", lambda _: os.getpid())
    mine = sqlite3.connect(tmp_path / "queue.db", timeout=0, isolation_level=None)

    def attempt():
        tries.append(now[0])
        now[0] += 60.0
        if len(tries) == 40:
            held.execute("ROLLBACK")
        return mine.execute("BEGIN IMMEDIATE")

    queue_connection._patiently(tmp_path / "queue.db", attempt, clock=lambda: now[0])
    held.close()
    mine.close()

    assert len(tries) == 40
    assert capfd.readouterr().err.count(f"waiting for process {os.getpid()} (") == 1


def test_a_gpu_job_that_waits_holds_back_the_devices_it_may_use_and_no_others(queue):
    for name, gpus, devices in [("a", 1, "0"), ("b", 1, "0"), ("c", 1, "01"), ("d", 2, "12"), ("e", 1, "3")]:
        queue.add([(name, "", gpus)], "earth", TEMPLATE, Limits(1, tuple(devices)))

    started = [queue.claim(f"k{number}", "earth") for number in range(4)]

    assert [(row.job_id, row.devices) for row in started if row] == [("a", "0"), ("c", "1"), ("e", "3")]


def test_ctrl_c_while_a_change_waits_for_its_turn_leaves_the_queue_to_others(tmp_path: Path, monkeypatch) -> None:
    """Python handles a signal that came while SQLite waited once the transaction has begun."""
    with closing(queue_connection.QueueConnection(tmp_path / "queue.db")) as connection:
        begin = connection._begin

        def begin_and_be_interrupted(forced: bool) -> None:
            begin(forced)
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(connection, "_begin", begin_and_be_interrupted)
            with pytest.raises(KeyboardInterrupt), connection.change():
                pass

        with closing(sqlite3.connect(tmp_path / "queue.db", timeout=0, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
        with connection.change() as db:
            assert db.in_transaction

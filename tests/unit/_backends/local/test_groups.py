"""What the local backend knows of a batch: one question for all its jobs, ends that are told, secrets that are kept."""

from __future__ import annotations

import json
import os
import stat
import threading
import time

import pytest

from kinetic._backends.local import expired_files, runtime_files
from kinetic._backends.local.backend import LocalBackend
from kinetic._backends.local.limits import Limits
from kinetic._stores.files import FileStore
from kinetic._wire import keys
from kinetic.job_status import JobStatus

DAY, MONTH = 24 * 3600.0, 30 * 24 * 3600.0
TEMPLATE = ("earth", '{"arguments":["/bin/false"],"environment":{}}', Limits(2, ()))


@pytest.fixture
def backend(tmp_path):
    made = LocalBackend(tmp_path / "run", {"KINETIC_LOCAL_SLOTS": "2", "PATH": "/bin", "SECRET": "s"})
    made._advanced = time.monotonic() + 3600  # nobody carries these jobs out
    yield made
    made.queue.close()


def add(backend, *names, group="grp-00000001"):
    backend.queue.add([(name, group, 0) for name in names], *TEMPLATE)
    for name in names:
        backend.paths.job(name).mkdir()
        runtime_files.make_pipe(backend.paths.completion_pipe(name))


def statuses(backend, group="grp-00000001"):
    return {name: seen.status for name, seen in backend.observe_group(group).items()}


def claim(backend, supervisor="k"):
    return backend.queue.claim(supervisor, "earth").job_id


def test_living_jobs_of_one_batch_are_seen_and_no_others(backend):
    add(backend, "a", "b", "c")
    add(backend, "x", group="grp-00000002")
    add(backend, "alone", group="")
    claim(backend)
    backend.queue.running(claim(backend), "k", 0)
    backend.queue.end("a", "succeeded")

    assert statuses(backend) == {"b": JobStatus.RUNNING, "c": JobStatus.PENDING}
    assert statuses(backend, "grp-00000002") == {"x": JobStatus.PENDING}
    assert statuses(backend, "grp-00000003") == {}


@pytest.mark.parametrize("count", [10, 1000])
def test_looking_and_watching_ask_the_queue_as_often_for_a_thousand_as_for_ten(backend, count):
    backend.queue.add([(f"job-{number}", "grp-00000001", 0) for number in range(count)], *TEMPLATE)
    asked = []
    read = backend.queue.read
    backend.queue.read = lambda question, values=(): asked.append(question) or read(question, values)

    found = backend.observe_group("grp-00000001")
    backend.watch_group("grp-00000001", seconds=0)

    assert len(found) == count
    assert len(asked) == 3


def test_an_end_wakes_who_watches(backend):
    add(backend, "a", "b")
    heart = runtime_files.CompletionWriter(backend.paths.completion_pipe("a"))
    claim(backend)
    backend.watch_group("grp-00000001", seconds=60)  # only opens the pipes
    heart.running()

    begun = time.monotonic()
    threading.Timer(0.2, heart.stop).start()
    backend.watch_group("grp-00000001", seconds=60)

    assert time.monotonic() - begun < 30


def test_nothing_to_watch_returns_after_the_time(backend):
    add(backend, "a")
    backend.queue.end("a", "succeeded")

    backend.watch_group("grp-00000001", seconds=0.01)


def test_threads_that_watch_different_batches_do_not_take_each_others_pipes(backend):
    add(backend, "a")
    add(backend, "b", group="grp-00000002")
    hearts = {name: runtime_files.CompletionWriter(backend.paths.completion_pipe(name)) for name in "ab"}
    told = []

    def watch(group):
        for _ in range(2):  # the first opens, the second waits
            backend.watch_group(group, seconds=60)
        told.append(group)

    watchers = [threading.Thread(target=watch, args=(f"grp-0000000{number}",), daemon=True) for number in (1, 2)]
    for watcher in watchers:
        watcher.start()
    for _ in range(50):
        backend.watch_group("grp-00000001", seconds=0.001)
    for heart in hearts.values():
        heart.stop()
    for watcher in watchers:
        watcher.join(30)

    assert sorted(told) == ["grp-00000001", "grp-00000002"]


def test_whoever_stops_waiting_for_a_job_leaves_other_threads_their_pipe(backend):
    add(backend, "a")
    heart = runtime_files.CompletionWriter(backend.paths.completion_pipe("a"))
    opened, forgotten = threading.Event(), threading.Event()
    told = []

    def watch():
        backend.watch("a", seconds=0)
        opened.set()
        forgotten.wait(30)
        backend.watch("a", seconds=60)
        told.append("a")

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    opened.wait(30)
    backend.watch("a", seconds=0)
    backend.stop_watching("a")
    opened = len(os.listdir("/dev/fd"))
    forgotten.set()
    heart.stop()
    watcher.join(30)

    assert told == ["a"]
    assert len(os.listdir("/dev/fd")) < opened  # the watcher had kept its own


def test_pipes_are_closed_with_the_thread_that_watched(backend):
    add(backend, *(f"job-{number}" for number in range(4)))
    before = len(os.listdir("/dev/fd"))

    watcher = threading.Thread(target=backend.watch_group, args=("grp-00000001",), kwargs={"seconds": 0})
    watcher.start()
    watcher.join()

    assert len(os.listdir("/dev/fd")) == before


def test_queued_jobs_are_stopped_many_at_once_and_are_gone(backend):
    names = [f"job-{number}" for number in range(1200)]
    backend.queue.add([(name, "grp-00000001", 0) for name in names], *TEMPLATE)

    assert backend.stop(names, wait=0)
    assert backend.observe_group("grp-00000001") == {}
    assert backend.stop([], wait=0)


def test_a_running_job_is_asked_and_waited_for(backend):
    add(backend, "a", "b")
    claim(backend)

    assert not backend.stop(["a", "b"], wait=0.01)
    assert backend.queue.jobs(["a"])["a"].stop
    assert backend.queue.jobs(["b"]) == {}
    backend.queue.end("a", "ended")
    assert backend.stop(["a", "b"], wait=0)


def test_removing_forgets_rows_and_folders_of_many(backend):
    add(backend, *(f"job-{number}" for number in range(600)))

    backend.remove([*(f"job-{number}" for number in range(599)), "unknown"])

    assert [*statuses(backend)] == ["job-599"]
    assert [path.name for path in backend.paths.jobs.iterdir()] == ["job-599"]


def test_what_is_kept_is_for_its_owner_only_and_holds_no_more_of_the_environment_than_a_job_gets(backend):
    backend.paths.make()

    backend.keep("grp-00000001", {"captured": {"TOKEN": "t"}, "environ": backend.environ, "interpreter": "/py"}, list)

    path = backend.paths.group_secrets("grp-00000001")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = backend.kept("grp-00000001")
    assert (found["captured"], found["interpreter"]) == ({"TOKEN": "t"}, "/py")
    assert found["environ"] == {"PATH": "/bin", "KINETIC_LOCAL_SLOTS": "2"}
    assert "SECRET" not in json.loads(path.read_text())["environ"]


def test_what_was_not_kept_or_is_forgotten_is_none(backend):
    backend.paths.make()
    assert backend.kept("grp-00000001") is None
    backend.keep("grp-00000001", {"captured": {}, "environ": {}, "interpreter": ""}, list)

    backend.forget_kept("grp-00000001")
    backend.forget_kept("grp-00000001")

    assert backend.kept("grp-00000001") is None


# -------------------------------------------------------------------------------------------------------------- removal


@pytest.fixture
def store(tmp_path):
    made = FileStore(tmp_path / "store")
    made.scratch()
    return made


def sweep(backend, store, later):
    expired_files.sweep(backend.paths, backend.queue, store.scratch(), now=time.time() + later)


def test_a_batch_without_a_manifest_goes_after_a_day_and_one_with_a_manifest_stays(backend, store):
    store.put("_groups/grp-00000001/inputs/00000", b"x")
    store.put(keys.group_manifest("grp-00000002"), b"x")

    sweep(backend, store, DAY - 3600)
    young = [*store.folders("_groups/")]
    sweep(backend, store, DAY + 3600)

    assert young == ["grp-00000001", "grp-00000002"]
    assert [*store.folders("_groups/")] == ["grp-00000002"]


def test_half_of_a_submission_goes_after_a_day_and_what_else_the_user_keeps_beside_it_never(backend, store):
    job = "cpu-train-20261120-143000-1a2b3c4"
    theirs = ["notes/a.txt", "train-1/order.json", f"{job}-old/model.bin", "_groups/mine/inputs"]
    for key in (keys.order(job), *theirs):
        store.put(key, b"x")

    sweep(backend, store, DAY - 3600)
    young = store.size(keys.order(job))
    sweep(backend, store, 400 * DAY)

    assert (young, store.size(keys.order(job))) == (1, None)
    assert [store.get(key) for key in theirs] == [b"x"] * len(theirs)


def test_what_was_kept_goes_long_after_its_batch_and_never_before(backend, store):
    backend.paths.make()
    for group in ("grp-00000001", "grp-00000002"):
        backend.keep(group, {"captured": {}, "environ": {}, "interpreter": ""}, list)
    store.put(keys.group_manifest("grp-00000002"), b"x")

    sweep(backend, store, MONTH - DAY)
    young = backend.kept("grp-00000001")
    sweep(backend, store, MONTH + DAY)

    assert young is not None
    assert backend.kept("grp-00000001") is None
    assert backend.kept("grp-00000002") is not None


def test_the_lock_of_a_driver_goes_when_it_is_gone_and_never_while_it_lives(backend, store):
    backend.paths.make()
    backend.paths.groups.mkdir()
    dead, alive = (backend.paths.groups / f"grp-00000001.{epoch}.lock" for epoch in (0, 1))
    runtime_files.take_lock(dead).release()
    held = runtime_files.take_lock(alive)

    sweep(backend, store, DAY + 3600)

    assert (dead.exists(), alive.exists()) == (False, True)
    held.release(remove=True)

"""Many requests at once: how many, in which order, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from servers.distant import AtOnce

import kinetic
from kinetic._stores import parallel
from kinetic._stores.memory import MemoryStore
from kinetic.errors import KeyMissingError


@pytest.fixture
def store():
    return MemoryStore(os.urandom(4).hex())


def square(number):
    return lambda: number * number


@pytest.mark.parametrize("limit", [None, 1, 2, 16])
def test_every_task_is_carried_out_once(store, limit):
    results = list(parallel.in_parallel(store, (square(number) for number in range(500)), limit=limit))

    assert sorted(results) == [number * number for number in range(500)]


def test_no_tasks_give_no_results(store):
    assert list(parallel.in_parallel(store, [])) == []


def test_results_come_in_the_order_in_which_they_finish(store):
    second_is_read = threading.Event()

    results = parallel.in_parallel(store, [lambda: second_is_read.wait(10) and "slow", lambda: "quick"], limit=2)

    assert next(results) == "quick"
    second_is_read.set()
    assert list(results) == ["slow"]


def test_as_many_run_at_once_as_the_limit_says_and_no_more(store):
    meet, tasks = threading.Barrier(5), AtOnce()

    def task():
        with tasks:
            meet.wait(10)  # passes only while five run at once

    assert len(list(parallel.in_parallel(store, [task] * 50, limit=5))) == 50
    assert tasks.most == 5


def most_at_once(tasks, each):
    """Run tasks side by side, each of which runs others side by side; return how many of these ran at once at most."""
    requests = AtOnce()

    def request():
        with requests:
            time.sleep(0.01)

    def task():
        return len([*parallel.in_shares([request] * each, most=each)])

    assert [*parallel.in_shares([task] * tasks, most=tasks)] == [each] * tasks
    return requests.most


def test_tasks_that_run_side_by_side_share_the_requests_that_they_make_side_by_side():
    meet = threading.Barrier(9)

    def task():
        return [*parallel.in_shares([partial(meet.wait, 10)] * 3, most=3)]

    assert len([*parallel.in_shares([task] * 3, most=3)]) == 3  # all nine at once
    assert most_at_once(40, 40) <= 64


def test_tasks_share_them_as_well_where_no_thread_can_be_started_and_leave_the_caller_its_own(monkeypatch):
    with monkeypatch.context() as without:
        without.setattr(parallel.python_runtime, "start_thread", lambda *_: None)
        assert most_at_once(20, 3) == 1
    meet = threading.Barrier(16)
    assert len([*parallel.in_shares([partial(meet.wait, 10)] * 16, most=16)]) == 16


def test_what_the_reader_does_not_take_does_not_pile_up(store):
    drawn = 0

    def tasks():
        nonlocal drawn
        while True:
            drawn += 1
            yield lambda: None

    results = parallel.in_parallel(store, tasks(), limit=4)
    for _ in range(10):
        next(results)

    assert drawn <= 10 + 2 * 4
    results.close()


def begun_until_the_fourth_fails(store, count):
    """Begin tasks of which the fourth fails; return those that were begun."""
    begun = []

    def run(number):
        begun.append(number)
        if number == 3:
            raise KeyMissingError("gone")

    with pytest.raises(KeyMissingError, match="gone"):
        list(parallel.in_parallel(store, (partial(run, number) for number in range(count)), limit=4))
    return begun


def test_the_first_error_is_raised_and_starts_nothing_more(store):
    assert len(begun_until_the_fourth_fails(store, 10_000)) < 100


def test_an_error_waits_for_what_runs_so_that_nothing_goes_on_behind_the_caller(store):
    begun, ended = threading.Event(), threading.Event()

    def slow():
        begun.set()
        time.sleep(0.1)
        ended.set()

    def fails():
        begun.wait(10)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        list(parallel.in_parallel(store, [slow, fails], limit=2))

    assert ended.is_set()


def test_an_error_of_the_iterable_is_raised_after_what_runs(store):
    ended = []

    def tasks():
        yield lambda: ended.append(1)
        raise OSError("the folder is gone")

    with pytest.raises(OSError, match="the folder is gone"):
        list(parallel.in_parallel(store, tasks(), limit=4))

    assert ended in ([], [1])


def test_a_reader_that_stops_early_does_not_wait_for_what_runs(store):
    release = threading.Event()

    results = parallel.in_parallel(store, [lambda: "first", lambda: release.wait(60)], limit=2)
    assert next(results) == "first"
    results.close()  # would hang for a minute, and pytest's time-out is twenty seconds

    release.set()


def test_threads_end_with_the_work(store):
    before = {*threading.enumerate()}  # also those of other tests, in which a request hangs
    list(parallel.in_parallel(store, [square(1)] * 100, limit=8))

    for thread in {*threading.enumerate()} - before:
        thread.join(10)
        assert not thread.is_alive()


# ----------------------------------------------------------------------------------------------------- without threads


def test_where_no_thread_can_be_had_the_reader_carries_out_everything(store, no_more_threads):
    here = threading.get_ident()

    results = list(parallel.in_parallel(store, [threading.get_ident] * 50, limit=4))

    assert results == [here] * 50


def test_where_no_thread_can_be_had_the_first_error_is_raised_and_starts_nothing_more(store, no_more_threads):
    assert begun_until_the_fourth_fails(store, 100) == [0, 1, 2, 3]


def test_where_no_thread_can_be_had_an_error_of_the_iterable_is_raised(store, no_more_threads):
    def tasks():
        yield lambda: None
        raise OSError("the folder is gone")

    with pytest.raises(OSError, match="the folder is gone"):
        list(parallel.in_parallel(store, tasks(), limit=4))


def test_the_threads_that_could_be_had_do_the_work_of_those_that_could_not(store):
    def tasks():
        for number in range(50):
            if number == 2:
                threading.stack_size(1 << 62)  # no machine has room for one
            yield threading.get_ident

    try:
        results = list(parallel.in_parallel(store, tasks(), limit=4))
    finally:
        threading.stack_size(0)

    assert len(results) == 50
    assert threading.get_ident() not in results


def test_a_thread_that_outlives_the_main_one_can_do_many_things_at_once():
    code = """
import threading
from kinetic._stores import parallel
from kinetic._stores.memory import MemoryStore
def late():
    threading.main_thread().join()
    print(sorted(parallel.in_parallel(MemoryStore(), [lambda n=n: n for n in range(10)], limit=4)))
threading.Thread(target=late).start()
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])}

    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=15, check=False
    )

    assert (done.stdout, done.stderr) == (f"{list(range(10))}\n", "")


# --------------------------------------------------------------------------------------------------------------- Ctrl-C


def test_ctrl_c_leaves_at_once_though_requests_hang():
    code = """
import threading
from kinetic._stores import parallel
from kinetic._stores.memory import MemoryStore
def hang():
    print("hanging", flush=True)
    threading.Event().wait(60)
list(parallel.in_parallel(MemoryStore(), [hang] * 4, limit=4))
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(kinetic.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for _ in range(4):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)

    _, errors = process.communicate(timeout=15)

    assert "KeyboardInterrupt" in errors


def test_what_a_signal_handler_raises_leaves_at_once_though_a_request_hangs(store):
    release, ended = threading.Event(), []

    def hang():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        release.wait(5)
        ended.append(1)

    def handle(*_):
        raise TimeoutError("the caller's own limit")

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with pytest.raises(TimeoutError, match="the caller's own limit"):
            list(parallel.in_parallel(store, [hang], limit=2))
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert ended == []
    release.set()


def test_a_cloud_gets_more_lanes_than_a_disk(store):
    def at(url):
        other = MemoryStore()
        other.url = url
        return parallel.parallelism(other)

    assert at("gs://bucket") == at("s3://bucket/prefix") == 16
    assert 1 <= at("file:///somewhere") <= 8
    assert at("memory://x") == at("file:///somewhere")


def test_many_objects_go_up_and_come_down(store, tmp_path):
    contents = {f"data/{number:03}": os.urandom(number) for number in range(200)}
    paths = {key: tmp_path / key.replace("/", "-") for key in contents}

    assert all(parallel.in_parallel(store, (partial(store.put, *item) for item in contents.items())))
    assert len(list(parallel.in_parallel(store, (partial(store.fetch, *item) for item in paths.items())))) == 200

    assert {key: path.read_bytes() for key, path in paths.items()} == contents


def test_a_missing_key_among_many_is_the_error(store, tmp_path):
    store.put("there", b"x")

    with pytest.raises(KeyMissingError, match="missing"):
        list(parallel.in_parallel(store, [partial(store.fetch, key, tmp_path / key) for key in ("there", "missing")]))

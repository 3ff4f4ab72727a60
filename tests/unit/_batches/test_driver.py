"""How a batch is driven, waited for and collected, in this process: on a fake backend, nothing of it takes time."""

from __future__ import annotations

import math
import threading

import pytest
from servers import user_module

import kinetic
from kinetic import testing
from kinetic._batches import collection, control, driver, tracker
from kinetic._jobs import locate
from kinetic._stores import open_store
from kinetic._wire import keys, records
from kinetic.errors import (
    BackendUnavailableError,
    CapacityError,
    CredentialsError,
    JobTimeoutError,
    OptionError,
    OptionTypeError,
    StoreUnreachableError,
)

USER = """
    import kinetic

    begun = []

    @kinetic.run(accelerator="cpu")
    def act(number, fails=0):
        begun.append(number)
        if begun.count(number) <= fails:
            raise ValueError(f"number {number} at its attempt {begun.count(number)}")
        return 10 * number

    @kinetic.run(accelerator="cpu")
    def shown(*args, **kwargs):
        return [list(args), kwargs]
"""


@pytest.fixture
def backend(tmp_path):
    with testing.fake_backend(tmp_path) as found:
        yield found


@pytest.fixture
def user(tmp_path, monkeypatch, backend):
    return user_module.imported(tmp_path, USER, monkeypatch)


def plan(number, fails=0):
    return {"number": number, "fails": fails}


def wait_until_launched(backend, batch, count):
    while len(backend.jobs) < count:  # by the thread that drives the batch
        batch.status_counts()


def pages_of(launches):
    """What another process reads of a batch: its store, its id and its key."""
    store = open_store(launches[0].store_url)
    group = locate.believed(locate.read_group(store, launches[0].group))
    return store, group.group_id, locate.group_key(group)


def wait_for_driver(batch):
    for thread in threading.enumerate():
        if thread.name == f"kinetic-{batch.group_id}":
            thread.join()


def word(value):
    return value if isinstance(value, int) else type(value).__name__


# --------------------------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    ("mode", "given", "expected"),
    [
        ("auto", {"lr": 1, "wd": 2}, [[], {"lr": 1, "wd": 2}]),
        ("auto", [1, 2], [[1, 2], {}]),
        ("auto", (3, 4), [[3, 4], {}]),
        ("auto", 5, [[5], {}]),
        ("auto", {}, [[], {}]),
        ("auto", {"not-an-id": 1}, [[{"not-an-id": 1}], {}]),
        ("auto", {"class": 1}, [[{"class": 1}], {}]),
        ("auto", "text", [["text"], {}]),
        ("auto", {1: 2}, [[{1: 2}], {}]),
        ("single", {"lr": 1}, [[{"lr": 1}], {}]),
        ("single", [1, 2], [[[1, 2]], {}]),
        ("single", 5, [[5], {}]),
        ("args", [1, 2], [[1, 2], {}]),
        ("args", (3,), [[3], {}]),
        ("kwargs", {"lr": 1}, [[], {"lr": 1}]),
        ("kwargs", {"class": 2}, [[], {"class": 2}]),
        ("kwargs", {"not-an-id": 3}, [[], {"not-an-id": 3}]),
    ],
)
def test_an_input_becomes_arguments_as_its_mode_says(user, mode, given, expected):
    assert user.shown.run_async_map([given], input_mode=mode).results() == [expected]


# --------------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("most", [1, 3])
def test_never_more_jobs_are_open_than_allowed(user, backend, monkeypatch, most):
    open_jobs = []
    launch = backend.launch

    def counted(launches):
        launched = launch(launches)
        open_jobs.append(sum(not seen.status.is_final for seen in backend.find()))
        return launched

    monkeypatch.setattr(backend, "launch", counted)

    batch = user.act.run_async_map([plan(number) for number in range(8)], max_concurrent=most)

    assert batch.results() == [10 * number for number in range(8)]
    assert max(open_jobs) == most


def test_a_quota_that_ended_jobs_count_in_is_filled_again_and_again_until_all_have_run(user, backend, monkeypatch):
    most, tried = 2, []
    launch = backend.launch

    def within_the_quota(launches):
        tried.append(len(launches))
        for one in launches:  # as a cluster is asked: each may fail, and what is there already is success
            if one.order.job_id not in backend.jobs and len(backend.jobs) >= most:
                raise CapacityError("the quota of the namespace is used up", next="kinetic jobs cleanup --all")
            launch([one])
        return [one.order.job_id for one in launches]

    monkeypatch.setattr(backend, "launch", within_the_quota)

    batch = user.act.run_async_map([plan(number) for number in range(7)], max_concurrent=None)

    assert batch.results() == [10 * number for number in range(7)]
    assert tried[0] == 7


def test_a_quota_that_lets_other_jobs_pass_than_the_first_ones_is_filled_until_all_have_run(user, backend, monkeypatch):
    most = 2
    launch = backend.launch

    def side_by_side(launches):  # as a cluster is asked: which of them finds room is chance
        refused = False
        for one in reversed(launches):
            if one.order.job_id not in backend.jobs and len(backend.jobs) >= most:
                refused = True
            else:
                launch([one])
        if refused:
            error = CapacityError("the quota of the namespace is used up", next="kinetic jobs cleanup --all")
            error.launched = tuple(one.order.job_id for one in launches if one.order.job_id in backend.jobs)
            raise error
        return [one.order.job_id for one in launches]

    monkeypatch.setattr(backend, "launch", side_by_side)

    batch = user.act.run_async_map([plan(number) for number in range(7)], max_concurrent=None)

    assert batch.results() == [10 * number for number in range(7)]


def test_while_half_of_them_waits_in_the_queue_no_more_jobs_are_launched(user, backend, monkeypatch):
    together, open_jobs, free_at = [], [], [0.0]
    launch = backend.launch

    def launched_one_after_the_other(launches):  # a machine with one slot, and jobs that take a second
        together.append(len(launches))
        for each in launches:
            now = backend.clock.monotonic()
            backend.pending_seconds = max(0.0, free_at[0] - now)
            free_at[0] = now + backend.pending_seconds + 1.0
            launch([each])
        open_jobs.append(sum(not seen.status.is_final for seen in backend.find()))

    monkeypatch.setattr(backend, "launch", launched_one_after_the_other)
    backend.running_seconds = 1.0

    batch = user.act.run_async_map([plan(number) for number in range(160)], max_concurrent=64)

    assert batch.results() == [10 * number for number in range(160)]
    assert max(open_jobs) <= 64
    assert len(together) <= 16  # some 32 each time, as far as ends are seen at once; of one each, it would be 97


def test_handles_of_a_large_batch_keep_nothing_of_how_jobs_ended_and_the_history_has_it(user, monkeypatch):
    monkeypatch.setattr(collection, "_MANY", 2)
    batch = user.act.run_async_map([plan(number) for number in range(3)])

    for refused in (lambda: batch.results(cleanup="no"), lambda: batch.cleanup(k8s="x")):
        with pytest.raises(OptionTypeError, match="is neither True nor False"):
            refused()
    with pytest.raises(OptionTypeError, match="poll_interval must be a number of seconds"):
        kinetic.attach_batch(batch.group_id, poll_interval="x")
    values = batch.results(cleanup=False)
    kept = [job._ended for job in batch.jobs]
    assert {*batch.as_completed()} == {*batch.jobs}
    assert {batch: 1}[batch] == 1
    batch.results()

    assert values == [0, 10, 20]
    assert kept == [None, None, None]
    assert [job.history()["status"] for job in batch.jobs] == ["SUCCEEDED"] * 3
    assert all(job.history()["collected_at"] and job.history()["duration_seconds"] is not None for job in batch.jobs)


def test_an_input_is_tried_again_and_the_attempt_that_counts_is_delivered(user):
    inputs = [plan(0, fails=1), plan(1), plan(2, fails=2), plan(3, fails=9)]

    batch = user.act.run_async_map(inputs, retries=2, max_concurrent=2)
    values = batch.results(return_exceptions=True)

    assert [word(value) for value in values] == [0, 10, 20, "ValueError"]
    assert str(values[3]) == "number 3 at its attempt 3"
    assert [job.group_attempt for job in batch.jobs] == [1, 0, 2, 2]
    assert sorted(user.begun) == [0, 0, 1, 2, 2, 2, 3, 3, 3]


def test_a_child_whose_machine_is_lost_is_tried_again(user, backend):
    backend.running_seconds = math.inf
    batch = user.act.run_async_map([plan(7)], retries=1)
    wait_until_launched(backend, batch, 1)
    [first] = backend.jobs

    backend.running_seconds = 1.0
    backend.lose(first)

    assert batch.results() == [70]
    assert batch.jobs[0].job_id != first


def test_an_attempt_is_closed_and_its_processes_are_gone_before_the_next_one_is_launched(user, backend, monkeypatch):
    backend.running_seconds = math.inf
    launch, stop, remove = backend.launch, backend.stop, backend.remove
    stopped, removed, before_each = [], [], []

    def launched(launches):
        store, *_ = pages_of(launches)
        closed = [job_id for job_id in stopped if store.size(keys.result(job_id)) is not None]
        before_each.append((closed, [*stopped], [*removed]))
        return launch(launches)

    def stop_noted(names, *, wait):
        stopped.extend(names)
        return stop(names, wait=wait)

    def remove_noted(names, **more):
        removed.extend(names)
        remove(names, **more)

    for name, noted in (("launch", launched), ("stop", stop_noted), ("remove", remove_noted)):
        monkeypatch.setattr(backend, name, noted)
    batch = user.act.run_async_map([plan(7)], retries=1)
    wait_until_launched(backend, batch, 1)
    [first] = backend.jobs

    backend.running_seconds = 1.0
    backend.lose(first)
    wait_for_driver(batch)

    assert before_each == [([], [], []), ([first], [first], [first])]
    assert batch.results() == [70]


def test_what_could_not_be_launched_for_a_moment_is_launched_in_its_turn(user, backend, monkeypatch):
    launch, tried = backend.launch, []

    def away_at_first(launches):
        tried.append([each.order.job_id for each in launches])
        if len(tried) == 1:
            raise BackendUnavailableError("the queue does not answer")
        return launch(launches)

    monkeypatch.setattr(backend, "launch", away_at_first)

    batch = user.act.run_async_map([plan(number) for number in range(3)])

    assert batch.results() == [0, 10, 20]
    assert tried[0] == tried[1]


def left_by_a_driver_that_died(user, backend, monkeypatch, count=1, **options):
    def die(launches):
        raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "launch", die)
        batch = user.act.with_options(**options).run_async_map([plan(number) for number in range(count)])
        wait_for_driver(batch)
    assert backend.jobs == []
    return batch.group_id


def test_what_a_driver_had_submitted_and_not_launched_when_it_died_is_launched_by_the_next(user, backend, monkeypatch):
    group_id = left_by_a_driver_that_died(user, backend, monkeypatch, count=3)

    assert kinetic.attach_batch(group_id, resume=True).results(timeout=600) == [0, 10, 20]


def test_a_batch_is_not_driven_where_the_values_that_it_captured_are_not(user, backend, monkeypatch):
    monkeypatch.setenv("LEARNING_RATE", "0.1")
    group_id = left_by_a_driver_that_died(user, backend, monkeypatch, capture_env_vars=["LEARNING_RATE"])
    monkeypatch.setattr(backend, "kept", lambda group: None)

    with pytest.raises(CredentialsError, match="LEARNING_RATE never leave the machine") as caught:
        kinetic.attach_batch(group_id, resume=True)

    assert (caught.value.code, backend.jobs) == ("captured-elsewhere", [])


@pytest.mark.parametrize("theirs", ["pickler_version", "python_version"])
def test_a_batch_is_not_driven_by_what_its_jobs_could_not_open(user, backend, monkeypatch, theirs):
    group_id = left_by_a_driver_that_died(user, backend, monkeypatch)
    monkeypatch.setattr(
        driver.pickler if theirs == "pickler_version" else driver.python_runtime, theirs, lambda: "3.8.0"
    )

    with pytest.raises(OptionError, match="cannot be driven by this Python") as caught:
        kinetic.attach_batch(group_id, resume=True)

    assert f"kinetic batch resume {group_id}" in str(caught.value.next)
    assert (caught.value.code, backend.jobs) == ("python-mismatch", [])


def test_an_input_that_could_not_be_submitted_is_a_failure_that_stops_a_batch_which_fails_fast(user, backend):
    batch = user.act.run_async_map([plan(1), {"no_such_argument": 2}], fail_fast=True)
    wait_for_driver(batch)

    assert (backend.jobs, user.begun) == ([], [])
    assert word(next(iter(batch.results(return_exceptions=True)))) == "JobCancelledError"


def test_a_driver_that_is_done_lets_the_next_one_drive_at_once(user):
    batch = user.act.run_async_map([plan(1, fails=1)])
    batch.wait()
    wait_for_driver(batch)
    tracker = batch._get_tracker()

    holder = control.lease_holder(tracker.store, batch.group_id, tracker.key)

    assert (holder.lives, holder.is_here) == (False, True)
    assert not list(locate.runtime().glob("groups/*.lock"))


@pytest.mark.parametrize(
    ("fail_fast", "cancel", "expected", "submitted"),
    [
        (False, False, ["ValueError", 10, 20, 30], 4),
        (True, False, ["ValueError", 10, "JobCancelledError", "JobCancelledError"], 2),
        (True, True, ["ValueError", "JobCancelledError", "JobCancelledError", "JobCancelledError"], 2),
        (False, True, ["ValueError", 10, 20, 30], 4),
    ],
)
def test_what_a_failure_stops(user, backend, fail_fast, cancel, expected, submitted):
    backend.running_seconds = math.inf
    options = {"fail_fast": fail_fast, "cancel_running_on_fail": cancel}
    batch = user.act.run_async_map([plan(n, fails=9 * (n == 0)) for n in range(4)], max_concurrent=2, **options)
    wait_until_launched(backend, batch, 2)
    first, second = backend.jobs
    backend.start(first)
    backend.start(second)
    backend.running_seconds = 1.0  # of those that begin later

    backend.run(first)
    if fail_fast:
        while not batch._submission_complete.is_set():  # the driver has seen it, and did what it has to do
            batch.status_counts()
    if second in backend.jobs:
        backend.run(second)
    values = batch.results(return_exceptions=True)

    assert [word(value) for value in values] == expected
    assert [job is not None for job in batch.jobs] == [index < submitted for index in range(4)]


def test_failing_fast_counts_only_when_every_attempt_has_failed(user):
    inputs = [plan(0, fails=1), *[plan(number) for number in range(1, 5)]]

    found = user.act.run_async_map(inputs, retries=1, fail_fast=True, max_concurrent=1).results()

    assert found == [0, 10, 20, 30, 40]


# ----------------------------------------------------------------------------------------------------------- collecting


def test_jobs_are_yielded_in_the_order_of_their_ends(user, backend):
    backend.running_seconds = math.inf
    batch = user.act.run_async_map([plan(number) for number in range(3)], max_concurrent=None)
    first, second, third = backend.jobs

    found = []
    jobs = batch.as_completed()
    for job_id in (second, third, first):
        backend.run(job_id)
        found.append(next(jobs).group_index)

    assert found == [1, 2, 0]
    assert batch.results(ordered=False, cleanup=False) == [10, 20, 0]
    assert batch.results() == [0, 10, 20]


@pytest.mark.parametrize("ordered", [True, False], ids=["by input", "by end"])
def test_a_failure_raises_with_everything_that_worked_in_its_place(user, ordered):
    batch = user.act.run_async_map([plan(0), plan(1, fails=9), plan(2), plan(3, fails=9)], max_concurrent=None)

    with pytest.raises(kinetic.BatchError) as raised:
        batch.results(ordered=ordered)

    error = raised.value
    assert error.group_id == batch.group_id
    assert [job.group_index for job in error.failures] == [job.group_index for job in batch.failures()] == [1, 3]
    assert error.partial_results == [0, None, 20, None]
    text = "\n".join([str(error), *getattr(error, "__notes__", ())])
    assert "2 of 4 jobs failed" in text
    assert "ValueError: number 1 at its attempt 1" in text
    assert "kinetic jobs logs cpu-act-" in text
    assert "number 1" in batch.failures()[0].tail(n=20)
    assert "number 1 at its attempt 1" in repr(error.__cause__)
    assert batch.failures()[0].status().value == "FAILED"  # what failed is kept, so that it can be looked into


def test_exceptions_can_take_the_places_of_results(user):
    batch = user.act.run_async_map([plan(0), plan(1, fails=9), plan(2)])

    found = batch.results(return_exceptions=True)

    assert [word(value) for value in found] == [0, "ValueError", 20]
    assert len(batch.failures()) == 1


def test_cancelling_ends_what_runs_and_drops_the_rest(user, backend):
    backend.running_seconds = math.inf
    batch = user.act.run_async_map([plan(number) for number in range(4)], max_concurrent=2, retries=3)
    wait_until_launched(backend, batch, 2)

    batch.cancel()
    found = batch.results(return_exceptions=True)

    assert [word(value) for value in found] == ["JobCancelledError"] * 4
    assert backend.jobs == []
    assert user.begun == []


def test_a_batch_is_found_and_collected_by_its_id(user):
    group = user.act.run_async_map([plan(1), plan(2)]).group_id

    assert kinetic.attach_batch(group).results() == [10, 20]


def test_a_batch_of_which_all_has_succeeded_is_not_looked_at_twice_before_its_results_are_read(user, monkeypatch):
    batch = user.act.run_async_map([plan(1), plan(2)])
    batch.wait()
    again, looks, refresh = kinetic.attach_batch(batch.group_id), list[bool](), tracker.BatchTracker.refresh

    def counted(self, *, whole=False):
        looks.append(whole)
        refresh(self, whole=whole)

    monkeypatch.setattr(tracker.BatchTracker, "refresh", counted)

    assert again.results(cleanup=False) == [10, 20]
    assert looks
    assert not any(looks)


def test_a_batch_that_another_process_has_removed_ends_for_the_one_that_submits_it(user, backend, monkeypatch, capsys):
    is_ours = control.Lease.is_ours

    def is_ours_after_the_removal(lease):
        if backend.jobs:
            lease._store.delete(keys.group(lease._group_id))
        return is_ours(lease)

    monkeypatch.setattr(control.Lease, "is_ours", is_ours_after_the_removal)

    batch = user.act.run_async_map([plan(number) for number in range(4)], max_concurrent=1)
    batch.wait()

    assert batch.summary()["not submitted"] == 3
    assert "another process" not in capsys.readouterr().err


def test_a_driver_whose_batch_another_process_has_taken_over_launches_nothing_more(user, backend, monkeypatch, capsys):
    launch = backend.launch

    def taken_over(launches):
        store, group_id, key = pages_of(launches)
        store.put(keys.lease(group_id, 1), control._lease_page(group_id, 1, key))
        return launch(launches)

    monkeypatch.setattr(backend, "launch", taken_over)

    batch = user.act.run_async_map([plan(number) for number in range(4)], max_concurrent=1)
    wait_for_driver(batch)

    assert len(backend.jobs) == 1
    assert "is driven by another process" in capsys.readouterr().err


def test_what_is_launched_while_another_process_cancels_the_batch_is_cancelled_as_well(user, backend, monkeypatch):
    backend.running_seconds = math.inf
    launch = backend.launch

    def cancelled_meanwhile(launches):
        control.ControlLog(*pages_of(launches)).stop(records.STOPPED_BY_USER)
        return launch(launches)

    monkeypatch.setattr(backend, "launch", cancelled_meanwhile)

    batch = user.act.run_async_map([plan(number) for number in range(3)], max_concurrent=2)
    wait_for_driver(batch)

    assert backend.jobs == []
    assert [word(value) for value in batch.results(return_exceptions=True)] == ["JobCancelledError"] * 3


def test_cancelling_a_batch_that_another_process_has_removed_writes_nothing(user):
    batch = user.act.run_async_map([plan(0)])
    watching = kinetic.attach_batch(batch.group_id)
    batch.cleanup()

    watching.cancel()

    assert [*watching._get_tracker().store.entries(keys.group(batch.group_id))] == []


# -------------------------------------------------------------------------------------------------------------- outages


@pytest.fixture
def outage(monkeypatch, backend):
    """Return what lets no look at a batch succeed from the tenth second on, for five minutes of the fake clock."""
    observe, begins = tracker.BatchTracker._observe, [math.inf]

    def look(tracker, *, whole):
        if 0 <= backend.clock.monotonic() - begins[0] < 300:
            raise StoreUnreachableError("the store does not answer")
        observe(tracker, whole=whole)

    def begin():
        begins[0] = backend.clock.monotonic() + 10

    monkeypatch.setattr(tracker.BatchTracker, "_observe", look)
    return begin


def test_a_store_that_does_not_answer_for_minutes_ends_no_waiting_for_a_batch(user, backend, outage):
    backend.running_seconds = 60.0
    batch = user.act.run_async_map([plan(0), plan(1)], max_concurrent=None)
    outage()

    assert batch.results() == [0, 10]


@pytest.mark.parametrize(("seconds", "values"), [(20, [0, 10]), (1000, None)])
def test_a_cluster_that_is_away_at_the_first_look_at_a_batch_is_waited_for_as_long_as_by_a_submission(
    user, backend, monkeypatch, seconds, values
):
    batch = user.act.run_async_map([plan(0), plan(1)], max_concurrent=None)
    backend.clock.sleep(600)  # so that what was seen while it was submitted is not of now
    observe, begun = tracker.BatchTracker._observe, backend.clock.monotonic()

    def look(tracker, *, whole):
        if backend.clock.monotonic() - begun < seconds:
            raise BackendUnavailableError("the cluster does not respond")
        observe(tracker, whole=whole)

    monkeypatch.setattr(tracker.BatchTracker, "_observe", look)

    if values is not None:
        assert batch.results() == values
        return
    with pytest.raises(BackendUnavailableError):
        batch.results()
    assert 60 <= backend.clock.monotonic() - begun < 65


def test_a_store_that_does_not_answer_for_minutes_ends_no_submission(user, backend, outage):
    backend.running_seconds = 20.0
    outage()
    batch = user.act.run_async_map([plan(number) for number in range(4)], max_concurrent=1)

    assert batch._submission_complete.wait(10)
    assert batch.results() == [0, 10, 20, 30]


def test_values_that_were_removed_from_the_store_are_returned_though_what_was_kept_for_the_batch_cannot_be(
    user, backend, monkeypatch, capsys
):
    batch = user.act.run_async_map([plan(0), plan(1)], max_concurrent=None)

    def no_answer(group):
        raise BackendUnavailableError(f"the cluster does not delete the Secret of {group}")

    monkeypatch.setattr(backend, "forget_kept", no_answer)

    assert batch.results() == [0, 10]
    assert "was collected, but not all of it could be removed: the cluster does not delete" in capsys.readouterr().err


def test_what_is_stored_of_a_batch_is_removed_without_its_cluster_where_that_is_wanted(
    user, backend, monkeypatch, capsys
):
    batch = user.act.run_async_map([plan(0), plan(1)], max_concurrent=None)
    batch.wait()
    store = batch._get_tracker().store

    def no_answer(group):
        raise BackendUnavailableError("the cluster does not respond")

    monkeypatch.setattr(backend, "forget_kept", no_answer)

    with pytest.raises(BackendUnavailableError):
        batch.cleanup()
    assert store.size(keys.group_manifest(batch.group_id)) is not None
    batch.cleanup(k8s=False)
    assert store.size(keys.group_manifest(batch.group_id)) is None
    assert "stay in the cluster: the cluster does not respond" in capsys.readouterr().err


def test_a_value_that_the_store_does_not_give_for_a_moment_is_no_failure_of_its_job(user, monkeypatch):
    batch = user.act.run_async_map([plan(0), plan(1)], max_concurrent=None)
    take_value, tries = collection.job_handle.take_value, []

    def take(job, **more):
        tries.append(job)
        if len(tries) < 5:
            raise StoreUnreachableError("the store does not answer")
        return take_value(job, **more)

    monkeypatch.setattr(collection.job_handle, "take_value", take)

    assert batch.results() == [0, 10]


def test_a_caller_that_takes_longer_than_the_timeout_gets_what_has_ended_meanwhile(user, backend):
    batch = user.act.run_async_map([plan(1), plan(2)], max_concurrent=1)
    jobs = batch.as_completed(timeout=600)

    first = next(jobs)
    while batch.jobs[1] is None:  # noted by the thread that drives the batch
        batch.status_counts()
    backend.clock.sleep(10_000)  # what the caller does with the first one

    assert [first.result(), next(jobs).result()] == [10, 20]


def test_a_time_that_is_over_is_said_also_where_the_last_look_at_a_batch_has_no_answer(user, backend, outage):
    batch = user.act.run_async_map([plan(1), plan(2)], max_concurrent=1)
    jobs = batch.as_completed(timeout=60)

    next(jobs)
    wait_until_launched(backend, batch, 2)
    outage()
    backend.clock.sleep(100)  # what the caller does with the first one

    with pytest.raises(JobTimeoutError, match="has not ended within 60 s"):
        next(jobs)

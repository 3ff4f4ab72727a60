"""A batch whose first child compiles for the others: when they wait, and who starts them. On a fake backend."""

from __future__ import annotations

import contextlib
import math
import re
from types import SimpleNamespace

import pytest
from servers import user_module

import kinetic
from kinetic import testing
from kinetic._batches import driver
from kinetic._jobs import after, locate, status
from kinetic._stores import open_store
from kinetic._wire import cache_entries, documents, keys
from kinetic._wire import order as orders
from kinetic._wire.cache_entries import Measurement
from kinetic.errors import KineticError, StoreUnreachableError

USER = """
    import kinetic

    @kinetic.run(accelerator="tpu-v4-2x2x2")
    def train(rate):
        return 10 * rate
"""
OLD = "0" * 64  # the code of the newest job


@pytest.fixture
def backend(tmp_path):
    with testing.fake_backend(tmp_path) as found:
        found.running_seconds = math.inf
        yield found
        for name in found.jobs:  # else the threads that drive their batches would outlive the tests
            found.running_seconds = 0.0
            with contextlib.suppress(KineticError):
                kinetic.attach(name).cancel()


@pytest.fixture
def user(tmp_path, monkeypatch, backend):
    return user_module.imported(tmp_path, USER, monkeypatch)


@pytest.fixture
def place(user):
    """Where jobs of the function are: found out with one that is cancelled."""
    job = user.train.run_async(0)
    store = locate.store_of(job)
    page = locate.read_record(store, job.job_id)
    order = orders.read(store, keys.order(job.job_id), page["order_sha256"])
    job.cancel()
    root = locate.namespace_key(job.key_id)
    return SimpleNamespace(store=store, order=order, key=documents.cache_key(root, store.url))


@pytest.fixture
def measured(place):
    """Say how long compiling took in the newest job."""

    def write(compile_seconds=600.0, seconds=700.0, code=OLD, key=None):
        at = cache_entries.measurement_key(place.order)
        page = Measurement(code, compile_seconds, seconds).__dict__
        place.store.put(at, documents.seal_page(cache_entries.MEASUREMENT, page, at, key or place.key))

    return write


def held(backend, batch):
    seen = backend.observe_group(batch.group_id)
    return [job.group_index for job in batch.jobs if seen[job.job_id].waits_for_others]


def submit(user, count=4, **how):
    return user.train.run_async_map(list(range(count)), max_concurrent=None, **how)


def test_the_others_wait_for_the_first_child_where_compiling_was_the_larger_part(user, backend, measured, capsys):
    measured()

    batch = submit(user)
    first, second, *_ = batch.jobs
    waiting = held(backend, batch)
    why = backend.explain(second.job_id).what
    backend.start(first.job_id)
    backend.compile(first.job_id)
    waiting_then = held(backend, batch)
    backend.running_seconds = 1.0
    backend.finish(first.job_id, 0)

    assert waiting == [1, 2, 3]
    assert "compiling took 10 min 00 s of 11 min 40 s the last time" in capsys.readouterr().err
    assert f"waits until {first.job_id} has compiled the programs that both use" in why
    assert waiting_then == []
    assert batch.results() == [0, 10, 20, 30]


@pytest.mark.parametrize(
    "about",
    [
        {"compile_seconds": 300.0, "seconds": 601.0},  # the smaller part
        {"compile_seconds": 59.0, "seconds": 60.0},  # a pod takes as long to start
        {"code": "now"},  # the cache has what this code compiles to
        {"key": bytes(32)},  # not ours
        None,  # nothing is known
    ],
)
def test_nothing_waits_where_that_would_save_little_or_nothing_is_known(user, backend, place, measured, about):
    if about is not None:
        code = cache_entries.code_of(place.order) if about.get("code") else OLD
        measured(**{**about, "code": code})

    batch = submit(user)

    assert held(backend, batch) == []


def test_nothing_waits_where_the_cache_is_off_or_jobs_cannot_be_held(user, backend, measured, monkeypatch):
    measured()

    with monkeypatch.context() as patch:
        patch.setenv("KINETIC_COMPILE_CACHE", "off")
        off = submit(user)
    one_at_a_time = user.train.run_async_map([1, 2], max_concurrent=1)
    follows = user.train.run_async_map([user.train.run_async(0), 1], max_concurrent=None)
    monkeypatch.setattr(backend, "can_hold", lambda *_: False)
    without = submit(user)

    assert [held(backend, batch) for batch in (off, follows, without)] == [[], [], []]
    one_at_a_time.cancel()


def test_children_that_compiled_their_own_programs_do_not_wait_the_next_time(user, backend, place, measured):
    measured()
    place.store.put(cache_entries.differs_key(place.order), b"")

    batch = submit(user)

    assert held(backend, batch) == []


def test_the_first_child_is_the_first_that_could_be_submitted(user, backend, measured):
    measured()

    batch = user.train.run_async_map([(number for number in ()), 1, 2], input_mode="single", max_concurrent=None)

    seen = backend.observe_group(batch.group_id)
    waits = {job.group_index: seen[job.job_id].waits_for_others for job in batch.jobs if job is not None}
    assert waits == {1: False, 2: True}


@pytest.mark.parametrize("end", ["fails", "is lost", "is cancelled", "is cancelled alone", "is removed"])
def test_the_others_start_however_the_first_child_ends(user, backend, measured, end):
    measured()
    batch = submit(user)
    first = batch.jobs[0]
    backend.start(first.job_id)

    if end == "fails":
        backend.fail(first.job_id, ValueError("no"))
    elif end == "is lost":
        backend.lose(first.job_id)
    elif end == "is cancelled":
        first.cancel()
    elif end == "is cancelled alone":
        kinetic.attach(first.job_id).cancel()
    else:
        backend.remove([first.job_id])
    for _ in range(2):
        batch.status_counts()

    seen = backend.observe_group(batch.group_id)
    assert [seen[job.job_id].waits_for_others for job in batch.jobs[1:]] == [False] * 3


def test_a_look_at_one_child_alone_starts_it_once_the_first_is_gone(user, backend, measured):
    measured()
    batch = submit(user)
    first, second, third, _ = batch.jobs
    backend.start(first.job_id)
    kinetic.attach(second.job_id).status()
    before = held(backend, batch)

    backend.lose(first.job_id)
    backend.clock.sleep(60)
    kinetic.attach(third.job_id).status()

    assert before == [1, 2, 3]
    seen = backend.observe_group(batch.group_id)
    assert [seen[job.job_id].waits_for_others for job in (second, third)] == [False, False]


def test_a_look_at_many_children_that_wait_asks_about_the_first_one_once(user, backend, measured, monkeypatch):
    measured()
    batch = submit(user, 30)
    backend.start(batch.jobs[0].job_id)
    asked, read = [], locate.open_claimed
    monkeypatch.setattr(locate, "open_claimed", lambda *words: asked.append(words[2]) or read(*words))

    status.observe_many(batch.jobs)

    assert asked.count(keys.group_manifest(batch.group_id)) == 1


def test_that_the_others_may_start_does_not_close_what_follows_the_batch(user, backend, measured):
    measured()
    batch = submit(user)
    following = user.train.with_options(after=batch).run_async(1)
    locate.store_of(following).put(keys.group_compiled(batch.group_id), b"")

    has_started = after.settle(kinetic.attach(batch.jobs[1].job_id), status.has_ended)
    has_closed = after.settle(kinetic.attach(following.job_id), status.has_ended)

    assert has_started
    assert not has_closed
    assert following.status().value == "PENDING"


def test_children_that_are_launched_when_the_first_has_compiled_do_not_wait(user, backend, measured):
    measured()
    batch = user.train.run_async_map([0, 1, 2, 3], max_concurrent=2)
    while None in batch.jobs[:2]:  # until the thread that drives the batch has launched them
        batch.status_counts()
    first, second = batch.jobs[0].job_id, batch.jobs[1].job_id
    waiting = held_names(backend, batch)

    backend.start(first)
    backend.compile(first)
    backend.running_seconds = 1.0
    backend.finish(first, 0)

    assert waiting == [second]
    assert batch.results() == [0, 10, 20, 30]


def held_names(backend, batch):
    return [name for name, seen in backend.observe_group(batch.group_id).items() if seen.waits_for_others]


def test_the_first_child_may_compile_while_the_others_are_being_launched(user, backend, measured, monkeypatch):
    measured()
    launch = backend.launch

    def launch_and_compile(launches):
        names = launch(launches)
        if launches[0].programs_of:
            backend.start(launches[0].programs_of)
            batch_key = keys.group_compiled(launches[0].group)  # its pod looked before these were there
            open_store(launches[0].store_url).put(batch_key, b"")
        return names

    monkeypatch.setattr(backend, "launch", launch_and_compile)

    batch = submit(user)

    assert held_names(backend, batch) == []


def test_another_process_that_drives_the_batch_lets_the_same_children_wait(user, backend, measured, monkeypatch):
    measured()
    put = backend.launch

    def launch(launches):
        if launches[0].programs_of:
            raise StoreUnreachableError("the client dies here")
        return put(launches)

    with monkeypatch.context() as patch:
        patch.setattr(backend, "launch", launch)
        patch.setattr(driver, "_PATIENCE_SECONDS", 0.0)
        with pytest.raises(StoreUnreachableError) as raised:
            submit(user)
    group_id = re.search(r"grp-\w+", "".join(raised.value.__notes__))[0]

    batch = kinetic.attach_batch(group_id, resume=True)
    while len(held_names(backend, batch)) < 3:
        batch.status_counts()

    assert held(backend, batch) == [1, 2, 3]

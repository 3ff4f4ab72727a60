"""How a job is waited for: when it is looked at again, and what is told meanwhile, on a clock that takes no time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NoReturn

import pytest
from servers import user_module

import kinetic
from kinetic import testing
from kinetic._backends.fake import FakeClock
from kinetic._backends.protocol import Observation
from kinetic._batches import driver
from kinetic._jobs import after, locate, status, wait
from kinetic._jobs.status import Snapshot
from kinetic._stores.memory import MemoryStore
from kinetic._wire import keys
from kinetic._wire.outcomes import AttemptNote
from kinetic.errors import (
    BackendUnavailableError,
    JobError,
    JobTimeoutError,
    OptionError,
    OptionTypeError,
    PredecessorError,
    StoreUnreachableError,
)
from kinetic.job_status import JobStatus


@pytest.mark.parametrize("was_told", [True, False])
def test_news_count_whenever_they_come_and_silence_does_not(was_told) -> None:
    clock = FakeClock()

    def watch(_: str, *, seconds: float) -> bool:
        clock.sleep(seconds)  # to the very end of the pause
        return was_told

    place = SimpleNamespace(is_here=False, poll_seconds=30.0, watch=watch, clock=clock)

    found = wait.has_news(place, SimpleNamespace(job_id="job"), pause=0.01, looked=clock.monotonic())

    assert found is was_told


@pytest.mark.parametrize(
    ("url", "was_told", "seconds", "is_news"),
    [
        ("file:///home/store", False, 0.0, True),
        ("gs://bucket", False, 0.0, False),
        ("gs://bucket", True, 0.0, True),
        ("gs://bucket", False, 1.0, True),
    ],
)
def test_a_job_on_this_machine_is_looked_at_all_the_time_unless_its_store_is_far_away(
    monkeypatch, url, was_told, seconds, is_news
) -> None:
    clock = FakeClock()
    place = SimpleNamespace(is_here=True, poll_seconds=1.0, watch=lambda _, *, seconds: was_told, clock=clock)
    monkeypatch.setattr(locate, "store_of", lambda _: SimpleNamespace(url=url))
    looked = clock.monotonic()
    clock.sleep(seconds)

    assert wait.has_news(place, SimpleNamespace(job_id="job"), pause=0.1, looked=looked) is is_news


@pytest.mark.parametrize("follows", [wait.events, wait.follow_logs])
def test_a_job_on_a_cluster_that_waits_for_another_one_is_looked_at_every_few_seconds(
    user, monkeypatch, follows
) -> None:
    job = user.act.run_async(1)
    clock, looks = FakeClock(), []

    def watch(_: str, *, seconds: float) -> bool:
        clock.sleep(seconds)
        return False

    def look(_: object, **__: object) -> Snapshot:
        looks.append(clock.monotonic())
        if len(looks) < 3:
            return Snapshot(JobStatus.PENDING, None, Observation("a", JobStatus.PENDING, waits_for_others=True))
        return Snapshot(JobStatus.FAILED)

    place = locate.backend_of(job)
    for name, value in {"poll_seconds": 30.0, "log_poll_seconds": 0.1, "clock": clock, "watch": watch}.items():
        monkeypatch.setattr(place, name, value)
    monkeypatch.setattr(wait, "observe", look)

    for _ in follows(job):
        pass

    assert looks == pytest.approx([0, 5, 10], abs=0.5)


def test_the_log_of_a_warm_pods_task_is_looked_for_once_that_does_not_end_at_once(user, monkeypatch) -> None:
    job, clock, looked = user.act.run_async(1), FakeClock(), []

    def new_text(*, last: bool = False) -> Iterator[str]:
        looked.append((clock.monotonic(), last))
        return iter(())

    monkeypatch.setattr(locate.backend_of(job), "clock", clock)
    monkeypatch.setattr(wait, "make_follower", lambda *_, **__: SimpleNamespace(new_text=new_text))
    running = Snapshot(JobStatus.RUNNING, None, Observation("a", JobStatus.RUNNING, is_told=True))
    short, long = (wait._Display(job, print, None) for _ in range(2))

    short.show(running)
    clock.sleep(0.2)
    short.keep_up(running)
    short.show(Snapshot(JobStatus.SUCCEEDED))
    long.show(running)
    clock.sleep(0.2)
    long.keep_up(running)

    assert looked == [(pytest.approx(0.2), True), (pytest.approx(0.4), False)]


USER = """
    import kinetic

    begun = []

    @kinetic.run(accelerator="cpu")
    def act(number, fails=0):
        begun.append(number)
        if len(begun) <= fails:
            raise ValueError(f"no {number}")
        print("number", number)
        return 10 * number
"""


@pytest.fixture
def backend(tmp_path):
    with testing.fake_backend(tmp_path, testing.FakeBackend(pending_seconds=60, running_seconds=3600)) as found:
        yield found


@pytest.fixture
def user(tmp_path, monkeypatch, backend):
    return user_module.imported(tmp_path, USER, monkeypatch)


@pytest.mark.parametrize(("has_key", "found"), [(True, 1), (False, 9)])
def test_what_looks_like_a_later_attempt_is_followed_only_where_it_cannot_be_verified(
    monkeypatch, has_key, found
) -> None:
    job_id, store, clock = "cpu-a-20261123-103059-1234567", MemoryStore("a"), FakeClock()
    for number in (0, 1):
        store.put(keys.attempt(job_id, number), AttemptNote(job_id, number, "machine", 1.0).to_bytes(bytes(32)))
    store.put(keys.attempt(job_id, 9), b"{}")

    def key_to_read(_: object) -> bytes:
        if not has_key:
            raise locate.key_missing("it cannot be verified", "it is sealed with", "0123")
        return bytes(32)

    monkeypatch.setattr(locate, "backend_of", lambda _: SimpleNamespace(clock=clock))
    monkeypatch.setattr(locate, "store_of", lambda _: store)
    monkeypatch.setattr(locate, "key_to_read", key_to_read)
    attempt = wait.Attempt(SimpleNamespace(job_id=job_id))
    attempt.see(Snapshot(JobStatus.RUNNING, None, Observation("a", JobStatus.RUNNING, attempt=None, version="2")))
    clock.sleep(2.0)

    assert attempt() == found


def test_whoever_waits_is_told_of_each_status_once(user) -> None:
    told: list[JobStatus] = []

    job = user.act.run_async(1)
    value = job.result(on_status_change=told.append)

    assert value == 10
    assert told == [JobStatus.PENDING, JobStatus.RUNNING, JobStatus.SUCCEEDED]
    again: list[JobStatus] = []
    assert (job.result(on_status_change=again.append), again) == (10, [JobStatus.SUCCEEDED])


def test_a_timeout_ends_the_waiting_and_not_the_job(user, backend) -> None:
    job = user.act.run_async(1)

    with pytest.raises(JobTimeoutError, match="has not ended within 1800 s"):
        job.result(timeout=1800)
    waited = backend.clock.monotonic()

    assert waited == 1800
    assert job.status() is JobStatus.RUNNING
    assert job.result(timeout=3600) == 10


@pytest.mark.parametrize("waits", ["result", "events"])
def test_a_client_that_was_stopped_beyond_its_timeout_finds_the_job_that_ended_meanwhile(
    user, backend, monkeypatch, waits
) -> None:
    job = user.act.run_async(1)
    place = locate.backend_of(job)

    def stopped(_: str, *, seconds: float) -> bool:
        backend.clock.sleep(seconds + 10_000)  # as in the suspend of a laptop
        return False

    monkeypatch.setattr(place, "watch", stopped)

    if waits == "result":
        assert job.result(timeout=1800) == 10
    else:
        assert [event.status for event in wait.events(job, timeout=1800)][-1] is JobStatus.SUCCEEDED


@pytest.mark.parametrize("waits", ["result", "events"])
def test_a_time_that_is_over_is_said_also_where_the_last_look_has_no_answer(user, backend, monkeypatch, waits) -> None:
    job, limit = user.act.run_async(1), backend.clock.monotonic() + 60
    backend.running_seconds = 600.0

    def observe(of, **_):
        if backend.clock.monotonic() >= limit:  # the network of a laptop is not there yet
            raise StoreUnreachableError("the store does not answer")
        return status.observe(of)

    monkeypatch.setattr(wait, "observe", observe)

    with pytest.raises(JobTimeoutError, match="has not ended within 60 s"):
        job.result(timeout=60) if waits == "result" else list(wait.events(job, timeout=60))


def test_a_timeout_of_nothing_looks_once(user) -> None:
    with pytest.raises(JobTimeoutError, match="it is PENDING"):
        user.act.run_async(1).result(timeout=0)


def test_the_log_is_printed_while_somebody_waits(user, capsys) -> None:
    user.act.run_async(3).result(stream_logs=True)

    assert capsys.readouterr().out == "number 3\n"


def test_a_job_that_failed_is_tried_again_as_often_as_was_asked(user) -> None:
    assert user.act.with_options(retries=2).run_async(4, fails=2).result() == 40
    assert len(user.begun) == 3


def test_a_job_that_always_fails_raises_after_its_last_try(user) -> None:
    with pytest.raises(ValueError, match="no 4"):
        user.act.with_options(retries=1).run_async(4, fails=9).result()

    assert len(user.begun) == 2


def test_a_deadline_ends_a_job(user) -> None:
    with pytest.raises(JobError, match="deadline of 600 s") as raised:
        user.act.with_options(deadline=600).run_async(1).result()

    assert raised.value.code == "deadline"
    assert user.begun == []


def test_a_job_whose_machine_is_lost_has_failed_and_says_why(user, backend) -> None:
    job = user.act.run_async(1)
    backend.lose(job.job_id, "its node was shut down")

    with pytest.raises(JobError, match="its node was shut down"):
        job.result()


def test_what_follows_a_job_or_a_batch_that_was_lost_is_closed(user, backend) -> None:
    job, batch = user.act.run_async(1), user.act.run_async_map([1, 2], max_concurrent=None)
    following = [user.act.with_options(after=each).run_async(1) for each in (job, batch)]
    for each in (job, batch.jobs[1]):
        backend.lose(each.job_id, "its node was shut down")

    for each in (*following, user.act.run_async(job)):
        with pytest.raises(PredecessorError, match="its node was shut down"):
            each.result(timeout=100_000)


@pytest.mark.parametrize(("end", "words"), [("finish", (7,)), ("fail", (ValueError("no"),)), ("lose", ())])
def test_a_test_may_let_a_job_end_that_still_waits_for_another_one(user, backend, end, words) -> None:
    first = user.act.run_async(1)
    second = user.act.with_options(after=first).run_async(2)

    getattr(backend, end)(second.job_id, *words)

    assert first.result() == 10
    assert second.status() is (JobStatus.SUCCEEDED if end == "finish" else JobStatus.FAILED)


@pytest.mark.parametrize("end", ["succeeds", "fails", "is lost"])
def test_a_batch_whose_failed_input_is_tried_again_by_hand_can_be_followed(user, backend, end) -> None:
    batch = user.act.run_async_map([1, 2], max_concurrent=None)
    backend.fail(batch.jobs[1].job_id, ValueError("no"))
    batch.wait()
    batch.retry_failed()
    while batch.jobs[1].group_attempt != 1:  # the thread that drives it launches the next attempt
        batch.status_counts()
    following = user.act.run_async(batch)

    if end == "succeeds":
        assert following.result() == 10 * [10, 20]
        return
    again = batch.jobs[1].job_id
    backend.fail(again, ValueError("no")) if end == "fails" else backend.lose(again)
    with pytest.raises(PredecessorError):
        following.result(timeout=100_000)


def test_what_follows_a_batch_whose_driver_died_before_a_launch_waits_for_who_resumes_it(
    user, backend, monkeypatch
) -> None:
    def die(_: object) -> NoReturn:
        raise StoreUnreachableError("the client dies here")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "launch", die)
        patch.setattr(driver, "_PATIENCE_SECONDS", 0.0)
        with pytest.raises(StoreUnreachableError) as raised:
            user.act.run_async_map([1, 2], max_concurrent=None)
    group_id = re.search(r"grp-\w+", "".join(raised.value.__notes__))[0]
    following = user.act.with_options(after=kinetic.attach_batch(group_id)).run_async(3)
    monkeypatch.setattr(after, "_LAUNCH_SECONDS", -1.0)  # as an hour later

    was_closed = after.settle(kinetic.attach(following.job_id), status.has_ended)
    values = kinetic.attach_batch(group_id, resume=True).results(cleanup=False)

    assert (was_closed, values, following.result()) == (False, [10, 20], 30)


def test_events_have_no_attempt_of_a_job_that_was_closed_before_its_first_one(user, backend) -> None:
    job = user.act.run_async(1)
    following = user.act.run_async(job)
    backend.fail(job.job_id, ValueError("no"))

    assert [(event.status, event.attempt) for event in following.events()] == [(JobStatus.FAILED, None)]


def test_an_error_without_a_message_is_named_without_a_colon_to_what_follows_and_in_the_history(user, backend) -> None:
    job = user.act.run_async(1)
    following = user.act.run_async(job)
    backend.fail(job.job_id, AssertionError())

    with pytest.raises(PredecessorError) as closed:
        following.result()
    job.cleanup()

    assert (closed.value.why, job.history()["reason"]) == ("AssertionError", "AssertionError")


def test_a_cancelled_job_is_gone_and_nobody_calls_its_function(user, backend) -> None:
    job = user.act.run_async(1)

    job.cancel()

    assert job.status() is JobStatus.NOT_FOUND
    assert (backend.jobs, user.begun) == ([], [])


@pytest.mark.parametrize("is_here", [True, False])
def test_what_the_end_needs_is_read_ahead_only_where_a_look_follows_news_and_not_ten_times_a_second(
    user, backend, monkeypatch, is_here
) -> None:
    job = user.act.run_async(1)
    asked = []

    def observe(of, **ahead):
        asked.append(ahead)
        return status.observe(of)

    monkeypatch.setattr(wait, "observe", observe)
    monkeypatch.setattr(type(locate.backend_of(job)), "is_here", is_here)

    assert job.result() == 10
    assert asked[0] == {}, "it has just been submitted"
    assert [each == {} for each in asked[1:]] == [is_here] * len(asked[1:])
    assert len(asked) > 1


def test_a_store_that_does_not_answer_for_a_while_is_waited_for(user, backend, monkeypatch) -> None:
    job = user.act.run_async(1)
    seen = []

    def observe(of, **_):
        seen.append(backend.clock.monotonic())
        if 2 <= len(seen) <= 100:
            raise StoreUnreachableError("the store does not answer")
        return status.observe(of)

    monkeypatch.setattr(wait, "observe", observe)

    assert job.result() == 10
    assert len(seen) > 100


@pytest.mark.parametrize(
    "follow",
    [
        lambda job: [line for line in job.log_lines(follow=True) if line == "number 1"],
        lambda job: [event.status.value for event in job.events()][1:],
        lambda job: [data for _, data in wait.follow_logs(job)],
    ],
    ids=["lines", "events", "kinetic jobs logs --follow"],
)
def test_a_store_that_does_not_answer_for_a_while_ends_no_following(user, monkeypatch, follow) -> None:
    job = user.act.run_async(1)
    seen = []

    def observe(of, **_):
        seen.append(of)
        if 2 <= len(seen) <= 20:
            raise StoreUnreachableError("the store does not answer")
        return status.observe(of)

    monkeypatch.setattr(wait, "observe", observe)

    assert follow(job) in (["number 1"], ["RUNNING", "SUCCEEDED"], [b"number 1\n"])
    assert len(seen) > 20


def test_events_bear_that_the_store_does_not_say_which_attempt_runs(user, monkeypatch) -> None:
    job = user.act.run_async(1)
    looks = iter(
        [
            Snapshot(JobStatus.RUNNING, None, Observation("a", JobStatus.RUNNING, attempt=None)),
            Snapshot(JobStatus.SUCCEEDED),
        ]
    )

    def entries(*_: object) -> NoReturn:
        raise StoreUnreachableError("the store does not answer")

    monkeypatch.setattr(wait, "observe", lambda _, **__: next(looks))
    monkeypatch.setattr(type(locate.store_of(job)), "entries", entries)

    assert [(event.status.value, event.attempt) for event in job.events()] == [("RUNNING", None), ("SUCCEEDED", None)]


def test_a_cluster_that_cannot_be_watched_for_a_moment_ends_no_waiting(user, backend, monkeypatch) -> None:
    job = user.act.run_async(1)
    backend.running_seconds = 5.0
    watch, asked = backend.watch, []

    def watched(name, *, seconds):
        asked.append(name)
        if len(asked) <= 2:
            raise BackendUnavailableError("the cluster does not respond")
        return watch(name, seconds=seconds)

    monkeypatch.setattr(backend, "watch", watched)

    assert user.act.run_async(2).result() == 20
    assert (job.result(), len(asked) > 2) == (10, True)


def test_a_store_that_does_not_answer_for_ten_minutes_ends_the_waiting(user, backend, monkeypatch) -> None:
    job = user.act.run_async(1)
    seen = []

    def observe(of, **_):
        seen.append(backend.clock.monotonic())
        if len(seen) >= 2:
            raise StoreUnreachableError("the store does not answer")
        return status.observe(of)

    monkeypatch.setattr(wait, "observe", observe)

    with pytest.raises(StoreUnreachableError):
        job.result()
    assert 600 <= backend.clock.monotonic() - seen[1] < 605


@pytest.mark.parametrize(("looks", "value"), [(20, 10), (None, None)])
def test_a_cluster_that_is_away_at_the_first_look_for_a_result_is_waited_for_as_long_as_by_a_submission(
    user, backend, monkeypatch, looks, value
) -> None:
    job = user.act.run_async(1)
    seen = []

    def observe(of, **_):
        seen.append(backend.clock.monotonic())
        if looks is None or len(seen) < looks:
            raise BackendUnavailableError("the cluster does not respond")
        return status.observe(of)

    monkeypatch.setattr(wait, "observe", observe)

    if value is not None:
        assert job.result() == value
        return
    with pytest.raises(BackendUnavailableError):
        job.result()
    assert 60 <= backend.clock.monotonic() - seen[0] < 65


def test_a_job_is_attached_to_by_its_id_and_collected(user) -> None:
    job_id = user.act.run_async(5).job_id

    found = kinetic.attach(job_id)

    assert found.result() == 50
    assert found.status() is JobStatus.NOT_FOUND  # collected, and history


@pytest.mark.parametrize("word", [None, 3, "", "../x", "-"])
def test_what_cannot_be_an_id_is_named_as_it_was_given(word) -> None:
    with pytest.raises(OptionError, match=re.escape(f"{word!r} cannot be a job id")):
        kinetic.attach(word)


def test_a_job_that_could_not_be_launched_nor_removed_is_named_by_the_error(user, backend, monkeypatch) -> None:
    def away(*_: object, **__: object) -> None:
        raise BackendUnavailableError("the cluster does not respond")

    for name in ("launch", "stop"):
        monkeypatch.setattr(backend, name, away)

    with pytest.raises(BackendUnavailableError) as caught:
        user.act.run_async(1)

    (left,) = kinetic.list_jobs()
    assert f"kinetic jobs cleanup {left.job_id}" in caught.value.__notes__[0]


def test_of_two_waits_inside_each_other_one_tells_of_ctrl_c(capsys) -> None:
    job = SimpleNamespace(job_id="cpu-train-1", debug=True)

    with pytest.raises(KeyboardInterrupt), wait.detaching(job), wait.detaching(job):  # type: ignore[arg-type]
        raise KeyboardInterrupt

    told = capsys.readouterr().err
    assert [told.count(word) for word in ("detached:", "follow:", "debug:", "cancel:")] == [1, 1, 1, 1]


@pytest.mark.parametrize("written", ["10m", b"3", [1], "x", float("nan")])
def test_a_timeout_that_is_no_number_is_refused_with_what_to_write(written) -> None:
    with pytest.raises(OptionTypeError, match="timeout must be a number of seconds"):
        wait.seconds_to_wait(written)

    assert [wait.seconds_to_wait(right) for right in (None, 3, 0.5)] == [None, 3.0, 0.5]

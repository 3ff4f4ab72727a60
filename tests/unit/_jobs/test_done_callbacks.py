"""A job and a batch can be awaited, and call back once they have ended, as futures do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from servers import user_module
from waiting import until

from kinetic import testing
from kinetic._backends.fake import FakeClock
from kinetic._jobs import done_callbacks
from kinetic.errors import BatchError, CallableError, OptionTypeError, StoreUnreachableError
from kinetic.job_status import JobStatus

USER = """
    import kinetic

    class OwnError(Exception):
        pass

    @kinetic.run(accelerator="cpu")
    def act(n):
        if n == 0:
            raise OwnError("zero")
        if n < 0:
            raise StopIteration("negative")
        return n * 10
"""


@pytest.fixture
def backend(tmp_path) -> Iterator[testing.FakeBackend]:
    with testing.fake_backend(tmp_path, testing.FakeBackend(running_seconds=3600)) as found:
        yield found


@pytest.fixture
def user(tmp_path, monkeypatch, backend):
    return user_module.imported(tmp_path, USER, monkeypatch)


@pytest.fixture
def many(tmp_path, monkeypatch) -> Iterator[Any]:
    """Jobs that run at their own pace, with fewer threads than there are jobs."""
    monkeypatch.setattr(done_callbacks, "_MOST_THREADS", 2)
    with testing.fake_backend(tmp_path, testing.FakeBackend(pending_seconds=5, running_seconds=3600)):
        yield user_module.imported(tmp_path, USER, monkeypatch)


def told_once(register: Callable[[Callable[[Any], None]], None]) -> Any:
    """Return what a callback was given, once it was called."""
    found: list[Any] = []
    called = threading.Event()

    def keep(handle: Any) -> None:
        found.append(handle)
        called.set()

    register(keep)
    assert called.wait(30)
    (handle,) = found
    return handle


def test_an_awaited_job_returns_its_value_and_again_what_it_has(user) -> None:
    async def program() -> list[Any]:
        job = user.act.run_async(3)
        return [await job, await job, job.result()]

    assert asyncio.run(program()) == [30, 30, 30]


def test_an_awaited_job_raises_what_the_function_raised_and_no_frame_of_ours_is_shown(user) -> None:
    async def program() -> None:
        await user.act.run_async(0)

    with pytest.raises(user.OwnError, match="zero") as caught:
        asyncio.run(program())

    files = {entry.frame.code.path.name for entry in caught.traceback}
    assert not files & {"done_callbacks.py", "handle.py", "wait.py"}, files
    assert any("Remote traceback" in note for note in caught.value.__notes__)


def test_a_stop_iteration_of_a_job_is_the_cause_of_an_error_that_can_leave_a_coroutine(user) -> None:
    async def program() -> None:
        await user.act.run_async(-1)

    with pytest.raises(RuntimeError, match="raised StopIteration") as caught:
        asyncio.run(program())

    assert isinstance(caught.value.__cause__, StopIteration)


def test_an_awaited_batch_returns_its_values_in_order_or_raises_a_batch_error(user) -> None:
    async def program() -> tuple[list[Any], str]:
        values = await user.act.run_async_map([1, 2, 3])
        try:
            await user.act.run_async_map([1, 0])
        except BatchError as error:
            return values, str(error)
        return values, ""

    values, message = asyncio.run(program())

    assert values == [10, 20, 30]
    assert "1 of 2" in message


def test_more_jobs_than_threads_are_awaited_together(many) -> None:
    async def program() -> list[Any]:
        return await asyncio.gather(*[many.act.run_async(n) for n in range(1, 8)])

    assert asyncio.run(program()) == [10 * n for n in range(1, 8)]
    until(
        lambda: "kinetic-end" not in [each.name for each in threading.enumerate()], "the end of all threads that wait"
    )


def test_an_await_that_is_cancelled_leaves_the_job_and_its_result_alone(tmp_path, monkeypatch) -> None:
    backend = testing.FakeBackend(pending_seconds=math.inf)
    with testing.fake_backend(tmp_path, backend):
        user = user_module.imported(tmp_path, USER, monkeypatch)

        async def program() -> tuple[Any, JobStatus, Any]:
            job = user.act.run_async(2)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(job, 0.05)
            seen = job.status()
            backend.start(job.job_id)
            return job, seen, await job

        job, seen, value = asyncio.run(program())

    assert seen is JobStatus.PENDING
    assert (value, job.result()) == (20, 20)


def test_an_await_without_an_event_loop_of_asyncio_says_what_to_write(user) -> None:
    job = user.act.run_async(1)

    with pytest.raises(CallableError, match=r"(?s)cannot be awaited here.*trio\.to_thread\.run_sync\(job\.result\)"):
        job.__await__().send(None)  # as Trio does


def test_callbacks_get_the_handle_of_a_job_whatever_its_end_and_collect_nothing(user) -> None:
    good, bad = user.act.run_async(1), user.act.run_async(0)

    assert told_once(good.add_done_callback) is good
    assert told_once(bad.add_done_callback) is bad
    assert good.status() is JobStatus.SUCCEEDED  # and not NOT_FOUND, as after a collection
    assert bad.status() is JobStatus.FAILED


def test_a_thread_that_comes_while_another_one_removes_what_it_collected_gets_the_value_too(
    tmp_path, monkeypatch
) -> None:
    seen: list[Any] = []

    class Watched(testing.FakeBackend):
        def remove(self, names: Any, **more: Any) -> None:
            super().remove(names, **more)
            other = threading.Thread(target=lambda: seen.append(job.result()))
            other.start()
            other.join(30)

    with testing.fake_backend(tmp_path, Watched()):
        job = user_module.imported(tmp_path, USER, monkeypatch).act.run_async(3)

        assert job.result() == 30
    assert seen == [30]


def test_a_callback_of_a_job_whose_result_is_known_is_called_at_once_by_the_caller(user) -> None:
    job = user.act.run_async(1)
    job.result()
    threads: list[threading.Thread] = []

    job.add_done_callback(lambda _: threads.append(threading.current_thread()))

    assert threads == [threading.current_thread()]


def test_a_callback_of_a_batch_is_called_when_every_job_has_ended(user) -> None:
    batch = user.act.run_async_map([1, 0, 2])

    assert told_once(batch.add_done_callback) is batch
    assert batch.status_counts() == {"SUCCEEDED": 2, "FAILED": 1}


def test_what_a_callback_raises_is_logged_and_the_next_one_is_called(user, caplog) -> None:
    job = user.act.run_async(1)
    caplog.set_level(logging.ERROR)
    job.result()

    job.add_done_callback(lambda _: 1 / 0)

    assert told_once(job.add_done_callback) is job
    assert f"a done callback of {job.job_id} failed; the job is not affected" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_a_callback_that_is_no_function_is_refused(user) -> None:
    with pytest.raises(OptionTypeError, match="must be a function, got 3"):
        user.act.run_async(1).add_done_callback(3)


@pytest.mark.parametrize(
    ("looks", "error", "slept"),
    [
        pytest.param(["seen", "away", "away", "ended"], None, 2, id="back soon"),
        pytest.param(["seen", *["away"] * 700], "away", 600, id="away for too long"),
        pytest.param(["away"], "away", 0, id="never seen"),
    ],
)
def test_a_store_that_does_not_answer_is_asked_again_for_ten_minutes_once_the_job_was_seen(
    looks: list[str], error: str | None, slept: int
) -> None:
    clock, told, left = FakeClock(), list[BaseException | None](), iter(looks)

    def wait_for_it(check: Callable[[], object]) -> None:
        while (look := next(left)) == "seen":
            check()
        if look == "away":
            raise StoreUnreachableError("away")

    wait = done_callbacks.Wait(done_callbacks.End("job", wait_for_it), told.append, clock=clock)
    while not wait.take_turn(list):
        pass

    assert [getattr(each, "what", None) for each in told] == [error]
    assert clock.monotonic() == slept


@pytest.mark.parametrize("others", [True, False])
def test_a_thread_leaves_a_job_after_its_turn_where_others_wait_and_only_there(others: bool) -> None:
    clock, told = FakeClock(), list[BaseException | None]()

    def wait_for_it(check: Callable[[], object]) -> None:
        for _ in range(100):
            clock.sleep(1)
            check()

    wait = done_callbacks.Wait(done_callbacks.End("job", wait_for_it, 15.0), told.append, clock=clock)

    is_over = wait.take_turn(lambda: others)

    assert (is_over, told, clock.monotonic()) == ((False, [], 16) if others else (True, [None], 100))


def test_nobody_waits_any_longer_for_what_nobody_wants_to_know() -> None:
    told, left = list[BaseException | None](), [True, True, False, False]
    end = done_callbacks.End("job", lambda check: [check() for _ in range(10)])

    assert done_callbacks.Wait(end, told.append, lambda: left.pop(0), clock=FakeClock()).take_turn(list)
    assert told == []


def test_a_program_whose_loop_is_closed_meanwhile_gets_no_error_from_the_thread(tmp_path, monkeypatch, caplog) -> None:
    backend = testing.FakeBackend(pending_seconds=math.inf)
    with testing.fake_backend(tmp_path, backend):
        user = user_module.imported(tmp_path, USER, monkeypatch)
        loop = asyncio.new_event_loop()
        job = user.act.run_async(2)

        async def forever() -> None:
            await job

        task = loop.create_task(forever())
        loop.run_until_complete(asyncio.sleep(0))
        with contextlib.suppress(RuntimeError):
            loop.close()
        backend.start(job.job_id)

        assert told_once(job.add_done_callback) is job
        assert job.result() == 20
        del task
    assert "kinetic-end" not in caplog.text

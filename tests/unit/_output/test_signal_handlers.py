"""What handlers of real signals raise into a wait reaches the caller, and the handlers are the user's afterwards."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from kinetic._output import signal_handlers
from kinetic._output.signal_handlers import HandlerWatch
from kinetic._output.tracebacks import Detaching
from kinetic.errors import StoreUnreachableError

SIGNAL = signal.SIGUSR2


def too_slow(*_: object) -> None:
    raise TimeoutError("too slow")


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.signal(SIGNAL, too_slow)
    yield
    assert signal.getsignal(SIGNAL) is too_slow
    signal.signal(SIGNAL, before)


def pass_over() -> None:
    """Do what code does that reads a file which may be missing."""
    with contextlib.suppress(OSError):
        signal.raise_signal(SIGNAL)


def pass_over_and_check() -> None:
    pass_over()
    signal_handlers.check()


def test_what_code_passed_over_is_raised_at_the_next_check_and_once() -> None:
    with pytest.raises(TimeoutError, match="too slow"), Detaching(lambda: "told"):
        pass_over_and_check()

    signal_handlers.check()


def test_what_code_took_for_an_error_of_its_own_leaves_as_the_handler_raised_it() -> None:
    def fail() -> None:
        try:
            signal.raise_signal(SIGNAL)
        except OSError as error:
            raise StoreUnreachableError("the store refused", why=str(error)) from error

    told: list[str] = []

    with pytest.raises(TimeoutError, match="too slow") as caught, Detaching(lambda: told.append("keeps running") or ""):
        fail()

    assert told == ["keeps running"]
    assert caught.value.__cause__ is None


def test_what_reaches_the_caller_by_itself_is_told_once() -> None:
    told: list[str] = []

    with pytest.raises(TimeoutError), Detaching(lambda: told.append("keeps running") or ""):
        signal.raise_signal(SIGNAL)

    assert told == ["keeps running"]


@pytest.mark.parametrize(
    ("error", "said"), [(asyncio.CancelledError, ["keeps running"]), (concurrent.futures.CancelledError, [])]
)
def test_a_timeout_that_cancels_as_prefect_does_is_told_and_a_build_that_was_stopped_is_not(
    error: type[BaseException], said: list[str]
) -> None:
    told: list[str] = []

    with pytest.raises(error), Detaching(lambda: told.append("keeps running") or ""):
        raise error

    assert told == said


def test_a_wait_that_has_ended_meanwhile_has_its_value() -> None:
    with Detaching(lambda: "told"):
        pass_over()


def test_what_the_users_code_beside_a_wait_catches_is_its_own() -> None:
    def waits() -> Iterator[int]:
        with Detaching(lambda: "told"):
            yield 1
            signal_handlers.check()
            yield 2

    waiting = waits()
    found = [next(waiting)]
    pass_over()  # in the loop of somebody who collects a batch

    assert [*found, *waiting] == [1, 2]


def test_a_wait_inside_another_one_leaves_the_handler_to_that() -> None:
    def wait_inside() -> None:
        with Detaching(lambda: "inner"):
            pass_over()
        signal_handlers.check()

    with pytest.raises(TimeoutError), Detaching(lambda: "outer"):
        wait_inside()


def test_a_wait_in_the_loop_over_another_one_has_what_it_passed_over() -> None:
    def completions() -> Iterator[int]:
        with Detaching(lambda: "the batch"):
            yield from (1, 2)

    def result() -> None:
        with Detaching(lambda: "the job"):
            pass_over_and_check()

    waiting = completions()
    next(waiting)

    with pytest.raises(TimeoutError, match="too slow"):
        result()

    waiting.close()
    assert signal.getsignal(SIGNAL) is too_slow


def test_a_handler_that_somebody_kept_and_put_back_is_watched_in_the_next_wait() -> None:
    with Detaching(lambda: "told"):
        kept = signal.getsignal(SIGNAL)
    signal.signal(SIGNAL, kept)

    with pytest.raises(TimeoutError, match="too slow"), Detaching(lambda: "told"):
        pass_over_and_check()

    signal.signal(SIGNAL, too_slow)


def test_what_a_wait_left_that_was_interrupted_where_it_begins_or_ends_is_not_raised_into_the_next_one() -> None:
    def wait_that_is_interrupted() -> None:
        HandlerWatch(sys._getframe())
        pass_over()

    wait_that_is_interrupted()
    with Detaching(lambda: "told"):
        signal_handlers.check()


def test_a_handler_that_was_changed_during_a_wait_stays_and_one_that_was_kept_works() -> None:
    seen: list[int] = []

    watch = HandlerWatch(sys._getframe())
    noting = signal.getsignal(SIGNAL)
    signal.signal(SIGNAL, lambda number, _: seen.append(number))
    watch.end()
    signal.raise_signal(SIGNAL)
    assert seen == [SIGNAL]

    signal.signal(SIGNAL, noting)
    with pytest.raises(TimeoutError):
        signal.raise_signal(SIGNAL)
    assert watch.error is None
    signal.signal(SIGNAL, too_slow)


def test_where_python_lets_no_handler_be_set_a_wait_works_all_the_same(monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("signal only works in main thread of the main interpreter")

    with monkeypatch.context() as patched:
        patched.setattr(signal, "signal", refuse)
        with Detaching(lambda: "told"):
            signal_handlers.check()


def test_a_wait_of_another_thread_that_ends_while_one_begins_leaves_its_handlers_to_it(monkeypatch) -> None:
    set_handler = signal.signal
    before = set_handler(signal.SIGUSR1, too_slow)

    def wait_elsewhere() -> None:
        HandlerWatch(sys._getframe()).end()

    def set_beside_another(number: int, handler: object) -> object:
        was = set_handler(number, handler)
        thread = threading.Thread(target=wait_elsewhere)
        thread.start()
        thread.join()
        return was

    with monkeypatch.context() as patched:
        patched.setattr(signal, "signal", set_beside_another)
        watch = HandlerWatch(sys._getframe())
    watch.end()

    assert set_handler(signal.SIGUSR1, before) is too_slow


def test_other_threads_and_python_s_own_ctrl_c_are_left_alone() -> None:
    found: list[object] = []

    def wait() -> None:
        with Detaching(lambda: "told"):
            found.append(signal.getsignal(SIGNAL))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    with Detaching(lambda: "told"):
        found.append(signal.getsignal(signal.SIGINT))

    assert found == [too_slow, signal.getsignal(signal.SIGINT)]

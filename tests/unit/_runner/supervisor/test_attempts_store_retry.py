"""Patience with a store that is out of reach: how long, with which pauses, and what ends it."""

from __future__ import annotations

import pytest

from kinetic._runner.supervisor import attempts
from kinetic.errors import CredentialsError, StoreUnreachableError


class Outage:
    """A store that fails as often as it is told, a clock that only waiting moves, and what was waited and said."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.asked = 0
        self.now = 100.0
        self.pauses: list[float] = []
        self.said: list[Exception] = []
        self.no_use_after = float("inf")  # pauses

    def ask(self) -> str:
        self.asked += 1
        if self.failures:
            raise self.failures.pop(0)
        return "there"

    def wait(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        self.now += seconds
        return len(self.pauses) >= self.no_use_after

    def try_(self, passes=ConnectionError, **more: float) -> str:
        return attempts.keep_trying(
            self.ask, passes, wait=self.wait, say=self.said.append, clock=lambda: self.now, **more
        )


def test_what_works_at_once_is_neither_waited_for_nor_told():
    store = Outage()

    assert store.try_() == "there"
    assert (store.asked, store.pauses, store.said) == (1, [], [])


def test_it_is_tried_until_it_works_and_each_failure_is_told():
    failures = [ConnectionError(1), ConnectionError(2), ConnectionError(3)]
    store = Outage(*failures)

    assert store.try_() == "there"
    assert store.asked == 4
    assert store.said == failures


def test_any_of_several_exceptions_may_pass():
    store = Outage(ConnectionError(), KeyError())

    assert store.try_((ConnectionError, KeyError)) == "there"


def test_an_exception_that_does_not_pass_leaves_at_once():
    store = Outage(ConnectionError(), PermissionError("not with this key"))

    with pytest.raises(PermissionError, match="not with this key"):
        store.try_()

    assert store.asked == 2
    assert len(store.pauses) == 1


def test_the_pauses_double_and_stay_at_15_seconds():
    store = Outage(*[ConnectionError()] * 8)

    store.try_()

    assert store.pauses == [1, 2, 4, 8, 15, 15, 15, 15]


def test_after_its_seconds_the_last_failure_is_raised():
    failures = [ConnectionError(number) for number in range(100)]
    store = Outage(*failures)

    with pytest.raises(ConnectionError) as caught:
        store.try_(seconds=20)

    assert store.pauses == [1, 2, 4, 8, 15]  # 30 s; after 15 of them there were some left
    assert caught.value is failures[5]
    assert store.said == failures[:5]


def test_by_default_it_gives_up_after_an_hour():
    store = Outage(*[ConnectionError()] * 1000)

    with pytest.raises(ConnectionError):
        store.try_()

    assert 3600 < sum(store.pauses) <= 3600 + 15


def test_when_waiting_is_of_no_use_any_more_the_failure_is_raised_without_another_try():
    first, second = ConnectionError(1), ConnectionError(2)
    store = Outage(first, second)
    store.no_use_after = 2

    with pytest.raises(ConnectionError) as caught:
        store.try_()

    assert caught.value is second
    assert store.asked == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (CredentialsError("we are not let in", why="403\nas nobody"), "credentials: we are not let in: 403 as nobody"),
        (StoreUnreachableError("it did not answer"), "its store: it did not answer"),
        (OSError(5, "Input/output error"), "its store: [Errno 5] Input/output error"),
    ],
)
def test_a_finished_job_says_in_one_line_what_it_waits_for(error: Exception, said: str):
    assert attempts.waiting_message(error) == f"finished; waiting for {said}"

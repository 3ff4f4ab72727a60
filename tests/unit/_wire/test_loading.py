"""How modules of ours are loaded: with few searches for garbage, and in a process that is its user's."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Iterator

import pytest

from kinetic._wire import MANY_OBJECTS, loading


@pytest.fixture(autouse=True)
def _as_in_a_program() -> Iterator[None]:
    before = gc.get_threshold()
    gc.unfreeze()  # what the tests' own process has frozen; see conftest.py
    yield
    gc.set_threshold(*before)


def test_garbage_is_searched_for_less_often_while_modules_are_loaded_and_then_as_before() -> None:
    gc.set_threshold(700, 10, 5)

    with loading():
        inside = gc.get_threshold()
        with loading():
            pass
    after = gc.get_threshold()

    assert (inside, after) == ((MANY_OBJECTS, 10, 5), (700, 10, 5))


@pytest.mark.parametrize("threshold", [0, MANY_OBJECTS + 1])
def test_a_user_who_searches_more_rarely_or_never_is_left_alone(threshold: int) -> None:
    gc.set_threshold(threshold)

    with loading():
        inside = gc.get_threshold()[0]

    assert inside == gc.get_threshold()[0] == threshold


def test_what_the_user_sets_meanwhile_stays() -> None:
    gc.set_threshold(700)

    with loading():
        gc.set_threshold(50)

    assert gc.get_threshold()[0] == 50


def test_the_threshold_is_as_before_also_after_an_error() -> None:
    gc.set_threshold(700)

    with pytest.raises(KeyError), loading():
        {}["no"]

    assert gc.get_threshold()[0] == 700


def test_threads_that_load_at_the_same_time_leave_the_threshold_as_it_was() -> None:
    gc.set_threshold(700)
    first, second = loading(), loading()

    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)

    assert gc.get_threshold()[0] == 700


def is_old(made: object) -> bool:
    """Say whether an object is among those that are searched least often; one that is frozen is not."""
    return any(each is made for each in gc.get_objects(generation=2))


@pytest.fixture
def many_modules(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def load() -> None:
        for number in range(100):
            monkeypatch.setitem(sys.modules, f"loaded{number}", types.ModuleType(f"loaded{number}"))

    return load


def test_what_is_there_after_many_modules_is_old_so_that_the_next_search_passes_it_over(
    many_modules: Callable[[], None],
) -> None:
    gc.set_threshold(700)

    with loading():
        many_modules()
        made = [[number] for number in range(2000)]

    assert gc.get_count()[0] < 700
    assert is_old(made)


def test_a_programs_own_garbage_is_no_older_after_a_call_that_loads_nothing() -> None:
    gc.set_threshold(700)
    gc.collect()
    made = [[number] for number in range(3)]

    with loading():
        pass

    assert not is_old(made)


def test_what_a_program_has_frozen_stays_frozen(many_modules: Callable[[], None]) -> None:
    gc.set_threshold(700)
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with loading():
            many_modules()
        assert before - 100 < gc.get_freeze_count() <= before  # some of them may end meanwhile, of the test runner's
    finally:
        gc.unfreeze()

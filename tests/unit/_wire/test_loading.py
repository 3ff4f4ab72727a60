"""How modules of ours are loaded: with few searches for garbage, and in a process that is its user's."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

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


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # of Python 3.12
def test_a_forked_child_imports_what_a_thread_of_its_parent_was_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_inside, may_end = threading.Event(), threading.Event()
    monkeypatch.setattr(threading, "waits_inside", lambda: (is_inside.set(), may_end.wait()), raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "outer_of_fork.py").write_text("import inner_of_fork\n")
    (tmp_path / "inner_of_fork.py").write_text("import threading\nthreading.waits_inside()\n")
    thread = threading.Thread(target=import_module, args=["outer_of_fork"])
    thread.start()
    is_inside.wait()

    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        may_end.set()
        os._exit(0 if import_module("outer_of_fork").inner_of_fork is import_module("inner_of_fork") else 1)
    _, status = os.waitpid(pid, 0)
    may_end.set()
    thread.join()

    assert status == 0
    assert {"outer_of_fork", "inner_of_fork"} <= set(sys.modules)
    for name in ("outer_of_fork", "inner_of_fork"):
        monkeypatch.delitem(sys.modules, name)

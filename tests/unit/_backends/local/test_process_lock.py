"""Life is a held lock: real files, real forks."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic._backends.local import runtime_files


@pytest.fixture
def fork() -> Iterator[Callable[[Callable[[int, int], None]], int]]:
    """Return a function that runs another one in a child; the child is killed in the end."""
    children: list[int] = []

    def start(body: Callable[[int, int], None]) -> int:
        """Fork; return the end of a pipe on which the child speaks. The child hears the end of ours."""
        hears, speaks = os.pipe()
        ear, mouth = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(hears)
            os.close(mouth)
            try:
                body(speaks, ear)
            finally:
                os._exit(0)
        os.close(speaks)
        os.close(ear)
        children.append(pid)
        mouths.append(mouth)
        return hears

    mouths: list[int] = []
    start.children = children  # type: ignore[attr-defined]
    yield start
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    for mouth in mouths:
        os.close(mouth)


def hold(path: Path) -> Callable[[int, int], None]:
    """Take a lock, say so, and hold it until the parent lets go."""

    def body(speaks: int, ear: int) -> None:
        held = runtime_files.take_lock(path)
        os.write(speaks, b"y" if held is not None else b"n")
        os.read(ear, 1)

    return body


def test_a_lock_is_held_until_it_is_released(tmp_path):
    held = runtime_files.take_lock(tmp_path / "lock")

    assert held is not None
    assert runtime_files.is_locked(tmp_path / "lock")
    held.release()
    assert not runtime_files.is_locked(tmp_path / "lock")


def test_a_process_does_not_take_its_own_lock_twice(tmp_path):
    held = runtime_files.take_lock(tmp_path / "lock")

    assert runtime_files.take_lock(tmp_path / "lock") is None
    assert runtime_files.take_abandoned_lock(tmp_path / "lock") is None
    assert held is not None


def test_another_process_sees_the_lock_and_cannot_take_it(tmp_path, fork):
    held = runtime_files.take_lock(tmp_path / "lock")

    answer = fork(hold(tmp_path / "lock"))

    assert os.read(answer, 1) == b"n"
    assert runtime_files.is_locked(tmp_path / "lock")
    assert held is not None


def test_looking_at_a_lock_from_a_child_does_not_free_it(tmp_path, fork):
    held = runtime_files.take_lock(tmp_path / "lock")

    def look(speaks: int, ear: int) -> None:
        os.write(speaks, b"y" if runtime_files.is_locked(tmp_path / "lock") else b"n")

    assert os.read(fork(look), 1) == b"y"
    assert os.read(fork(look), 1) == b"y"
    assert held is not None


def test_the_death_of_its_holder_frees_a_lock_whatever_children_remain(tmp_path, fork):
    def hold_and_fork(speaks: int, ear: int) -> None:
        held = runtime_files.take_lock(tmp_path / "lock")
        child = os.fork()
        if child:
            os.write(speaks, b"%d\n" % child)
            os.read(ear, 1)
        signal.pause()
        assert held is not None

    answer = fork(hold_and_fork)
    grandchild = int(os.read(answer, 20))
    assert runtime_files.is_locked(tmp_path / "lock")
    pid = fork.children.pop()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    assert os.kill(grandchild, 0) is None
    taken = runtime_files.take_abandoned_lock(tmp_path / "lock")
    os.kill(grandchild, signal.SIGKILL)

    assert taken is not None


def test_nothing_can_be_taken_from_the_dead_where_nobody_lived(tmp_path):
    assert runtime_files.take_abandoned_lock(tmp_path / "lock") is None
    assert not runtime_files.is_locked(tmp_path / "lock")
    assert [*tmp_path.iterdir()] == []


def test_a_lock_that_is_released_with_its_file_can_be_taken_anew(tmp_path):
    held = runtime_files.take_lock(tmp_path / "lock")
    assert held is not None
    held.release(remove=True)

    assert not (tmp_path / "lock").exists()
    assert runtime_files.take_lock(tmp_path / "lock") is not None


def test_a_file_that_was_removed_between_opening_and_locking_is_not_a_lock(tmp_path, monkeypatch):
    path = tmp_path / "lock"
    lock, first = runtime_files._lock, []

    def removed_meanwhile(descriptor: int) -> bool:
        if not first:
            first.append(descriptor)
            path.unlink()
        return lock(descriptor)

    monkeypatch.setattr(runtime_files, "_lock", removed_meanwhile)
    held = runtime_files.take_lock(path)

    assert held is not None
    assert path.exists()
    assert os.path.samestat(os.fstat(held._descriptor), path.stat())


def test_threads_that_look_while_others_take_never_free_a_lock(tmp_path, fork):
    """One thread's closing of the file would free what another thread has just locked."""
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            for number in range(20):
                runtime_files.is_locked(tmp_path / f"lock{number}")

    lookers = [threading.Thread(target=look) for _ in range(2)]
    for each in lookers:
        each.start()
    taken = [runtime_files.take_lock(tmp_path / f"lock{number}") for number in range(20)]
    stop.set()
    for each in lookers:
        each.join()

    def count(speaks: int, ear: int) -> None:
        held = sum(runtime_files.is_locked(tmp_path / f"lock{number}") for number in range(20))
        os.write(speaks, b"%d\n" % held)

    # A looker may have had one in hand when it was asked for; what was given must still be held.
    given = sum(each is not None for each in taken)
    assert given >= 1
    assert int(os.read(fork(count), 10)) == given

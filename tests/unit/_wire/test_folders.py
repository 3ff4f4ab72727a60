"""Files for their owner only, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from unittest import mock

import pytest

from kinetic._stores.parallel import ThreadPool
from kinetic._wire import folders


def test_a_file_is_replaced_whole_and_the_folders_above_it_are_made(tmp_path: Path):
    path = tmp_path / "one" / "two" / "page"

    folders.write_whole(path, b"first")
    folders.write_whole(path, b"second")

    assert path.read_bytes() == b"second"
    assert os.listdir(path.parent) == ["page"]
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_that_cannot_take_its_place_leaves_nothing_beside_it(tmp_path: Path):
    (tmp_path / "page" / "in the way").mkdir(parents=True)

    with pytest.raises(OSError, match="page"):
        folders.write_whole(tmp_path / "page", b"data")

    assert os.listdir(tmp_path) == ["page"]


def test_below_a_file_nothing_is_written(tmp_path: Path):
    (tmp_path / "file").touch()

    with pytest.raises(OSError, match="file"):
        folders.write_whole(tmp_path / "file" / "page", b"data")


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is forced to the disk, in order."""
    names: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: names.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    return names


def test_the_name_of_a_folder_is_on_the_disk_before_what_goes_into_it(tmp_path: Path, forced) -> None:
    folders.make(tmp_path / "one" / "two")
    folders.make(tmp_path / "one" / "two")

    assert forced == [str(tmp_path), str(tmp_path / "one")]


def test_what_is_forced_later_is_forced_under_its_new_name_when_it_is_asked_for(tmp_path: Path, forced) -> None:
    with folders.forced_later():
        with open(tmp_path / "beside", "wb") as file:
            file.write(b"1")
            folders.sync_open(file.fileno())
        os.replace(tmp_path / "beside", tmp_path / "file")
        folders.sync(tmp_path)
        folders.sync(tmp_path)
        assert forced == []
        folders.force()
        assert sorted(forced) == [str(tmp_path), str(tmp_path / "file")]

    assert len(forced) == 2


def test_after_an_error_all_is_forced_and_no_descriptor_stays(tmp_path: Path, forced) -> None:
    before = os.listdir("/proc/self/fd")
    with contextlib.suppress(ValueError), folders.forced_later():
        folders.sync(tmp_path)
        raise ValueError("theirs")

    assert forced == [str(tmp_path)]
    assert os.listdir("/proc/self/fd") == before


def test_a_file_under_the_name_of_another_one_is_forced_as_well(tmp_path: Path, forced) -> None:
    with folders.forced_later():
        for name in ("first", "second"):
            (tmp_path / name).touch()
        folders.sync(tmp_path / "first")
        os.replace(tmp_path / "second", tmp_path / "first")
        folders.sync(tmp_path / "first")

    assert len(forced) == 2


def test_what_waits_for_the_disk_is_told_when_it_is_there_and_never_if_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    folders.when_forced(lambda: told.append("nothing waits"))
    with folders.forced_later():
        folders.sync(tmp_path)
        folders.when_forced(lambda: told.append("forced"))
        assert told == ["nothing waits"]
    assert told == ["nothing waits", "forced"]

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk")

    with contextlib.suppress(OSError), folders.forced_later():
        folders.sync(tmp_path)
        folders.when_forced(lambda: told.append("never"))
        monkeypatch.setattr(os, "fsync", fails)
    assert told == ["nothing waits", "forced"]


def test_more_files_than_descriptors_are_forced_at_once(tmp_path: Path, forced) -> None:
    with folders.forced_later():
        for number in range(100):
            (tmp_path / str(number)).touch()
            folders.sync(tmp_path / str(number))
        assert len(forced) == 36


def test_a_job_that_is_submitted_inside_another_submission_is_forced_before_it_is_accepted(
    tmp_path: Path, forced
) -> None:
    with folders.forced_later():
        folders.sync(tmp_path)
        with folders.forced_later():
            (tmp_path / "inner").touch()
            folders.sync(tmp_path / "inner")
            folders.force()
            assert len(forced) == 2


def test_helpers_begin_with_a_file_when_it_is_written_and_with_folders_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced: SimpleQueue[str] = SimpleQueue()
    monkeypatch.setattr(os, "fsync", lambda descriptor: forced.put(os.readlink(f"/proc/self/fd/{descriptor}")))
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    with folders.forced_later(ThreadPool(2)):
        (tmp_path / "file").touch()
        folders.sync(tmp_path / "file")
        folders.sync(tmp_path)
        assert forced.get(timeout=20) == str(tmp_path / "file")
        assert forced.empty()
        folders.force()
        assert forced.get(timeout=0) == str(tmp_path)

    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_what_a_helper_could_not_force_is_an_error_though_all_else_was_forced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def fails_for_files(descriptor: int) -> None:
        if not os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(os, "fsync", fails_for_files)
    with contextlib.suppress(OSError), folders.forced_later(ThreadPool(2)):
        (tmp_path / "file").touch()
        folders.sync(tmp_path / "file")
        folders.sync(tmp_path)
        folders.when_forced(lambda: told.append("never"))
        with pytest.raises(OSError, match="the disk"):
            folders.force()

    assert told == []


def test_more_files_than_descriptors_do_not_wait_for_helpers_that_are_late(tmp_path: Path, forced) -> None:
    class Late:
        def __init__(self) -> None:
            self.tasks: list[Callable[[], None]] = []

        @property
        def under_way(self) -> int:
            return len(self.tasks)

        def give(self, task: Callable[[], None]) -> None:
            self.tasks.append(task)

        def take(self) -> None:
            self.tasks.pop()()

        def close(self) -> None: ...

    with folders.forced_later(Late()):
        for number in range(100):
            (tmp_path / str(number)).touch()
            folders.sync(tmp_path / str(number))
        assert len(forced) == 36

    assert len(forced) == 100


def test_an_error_of_a_helper_is_raised_by_force_and_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "the disk")

    monkeypatch.setattr(os, "fsync", fails)
    before = len(os.listdir("/proc/self/fd"))
    with contextlib.suppress(OSError), folders.forced_later(ThreadPool(2)):
        for number in range(5):
            (tmp_path / str(number)).mkdir()
            (tmp_path / f"{number}.file").touch()
            folders.sync(tmp_path / str(number))
            folders.sync(tmp_path / f"{number}.file")
        folders.when_forced(lambda: told.append("never"))
        with pytest.raises(OSError, match="the disk"):
            folders.force()
        raise OSError("seen")

    assert told == []
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.fixture
def umask() -> Iterator[int]:
    before = os.umask(0o027)
    yield 0o027
    os.umask(before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_the_umask_is_read_without_another_one_for_a_moment(umask: int) -> None:
    with mock.patch("os.umask", side_effect=AssertionError):
        assert folders.read_umask() == umask


def test_where_no_file_tells_the_umask_threads_that_read_it_leave_it_as_it_was(umask: int, monkeypatch) -> None:
    inside, exchanged = [], os.umask

    def exchange(mask: int) -> int:
        inside.append(threading.get_ident())
        found = exchanged(mask)
        time.sleep(0.001)  # the others run
        return found

    monkeypatch.setattr(folders, "open", mock.Mock(side_effect=FileNotFoundError), raising=False)
    monkeypatch.setattr(os, "umask", exchange)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: folders.read_umask(), range(20))) == {umask}
    assert inside[::2] == inside[1::2]

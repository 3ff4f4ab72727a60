"""Which saves are changes of a project: real files, and the kernel's own reports of them."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinetic._blobs import file_tree
from kinetic._cli import file_watcher
from kinetic._cli.file_watcher import FileWatcher
from kinetic._project.root import Plan
from kinetic._runner import processes
from kinetic._wire import folders

needs_inotify = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
Watch = Callable[..., FileWatcher]


@pytest.fixture(params=[pytest.param("inotify", marks=needs_inotify), "stamps"])
def watch(request, project: Path) -> Iterator[Watch]:
    """Return what watches the project, in both ways."""
    made: list[FileWatcher] = []

    def start(**more) -> FileWatcher:
        libc = processes.load_libc() if request.param == "inotify" else None
        made.append(FileWatcher(Plan(project, "", "", ("",)), environ={}, libc=libc, **more))
        assert (made[-1].descriptor is not None) == (request.param == "inotify")
        return made[-1]

    yield start
    for each in made:
        each.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "package").mkdir(parents=True)
    (root / "train.py").write_text("one = 1\n")
    (root / "package" / "model.py").write_text("two = 2\n")
    return root


def changes(watcher: FileWatcher) -> list[str]:
    """Return what one save changed; all of it is reported at once."""
    found = watcher.changes() if watcher.has_news() else []
    assert not (watcher.has_news() and watcher.changes())
    return sorted(found)


def test_a_file_that_is_written_is_named(watch, project) -> None:
    watcher = watch()

    (project / "package" / "model.py").write_text("two = 3\n")

    assert changes(watcher) == ["package/model.py"]


def test_a_file_that_is_written_beside_and_renamed_over_is_one_change(watch, project) -> None:
    watcher = watch()

    (project / ".train.py.swp").write_text("vim's")
    (project / "4913").write_text("")
    (project / "beside.tmp").write_text("one = 2\n")
    (project / "train.py").rename(project / "train.py~")
    (project / "beside.tmp").rename(project / "train.py")

    assert changes(watcher) == ["train.py"]


def test_a_save_that_changes_no_content_is_no_change(watch, project) -> None:
    watcher = watch()

    (project / "train.py").write_text("one = 1\n")
    (project / "other.py").write_text("one = 1\n")
    (project / "other.py").rename(project / "train.py")

    assert changes(watcher) == []


def test_what_is_not_sent_is_no_change_and_no_news(watch, project) -> None:
    (project / ".kineticignore").write_text("*.log\n/runs/\n")
    (project / "runs").mkdir()
    (project / "__pycache__").mkdir()
    (project / "outputs").mkdir()
    watcher = watch(exclude=[project / "outputs"])

    (project / "train.log").write_text("step 1\n")
    (project / "runs" / "1.txt").write_text("step 1\n")
    (project / "__pycache__" / "train.cpython-311.pyc").write_text("")
    (project / "outputs" / "model.bin").write_text("")

    assert not watcher.has_news()


def test_new_lines_of_the_ignore_file_hold_from_then_on(watch, project) -> None:
    watcher = watch()
    (project / ".kineticignore").write_text("*.log\n")
    assert changes(watcher) == [".kineticignore"]

    (project / "train.log").write_text("step 1\n")

    assert changes(watcher) == []


def test_files_in_new_folders_are_seen_also_in_folders_that_are_made_at_once(watch, project) -> None:
    watcher = watch()
    (project / "deep" / "er").mkdir(parents=True)
    (project / "deep" / "er" / "one.py").write_text("1\n")
    assert changes(watcher) == ["deep/er/one.py"]

    (project / "deep" / "er" / "one.py").write_text("2\n")

    assert changes(watcher) == ["deep/er/one.py"]


def test_files_that_are_gone_and_folders_that_are_renamed_are_changes(watch, project) -> None:
    watcher = watch()
    (project / "train.py").unlink()
    (project / "package").rename(project / "renamed")
    assert changes(watcher) == ["package/model.py", "renamed/model.py", "train.py"]

    (project / "renamed" / "model.py").write_text("two = 3\n")

    assert changes(watcher) == ["renamed/model.py"]


def test_a_file_that_becomes_executable_is_a_change(watch, project) -> None:
    watcher = watch()

    (project / "train.py").chmod(0o755)

    assert changes(watcher) == ["train.py"]


def test_two_saves_of_one_size_within_the_second_of_a_file_system_are_two_changes(monkeypatch, watch, project) -> None:
    second = (int(time.time()) + 3600) * 1_000_000_000  # which does not pass meanwhile
    stamp = file_tree._STAMP
    monkeypatch.setattr(file_tree, "_STAMP", lambda size, _mtime, _ctime, *more: stamp(size, second, second, *more))
    monkeypatch.setattr(folders, "changed_ns", lambda _: second)
    watcher = watch()
    assert not watcher.has_news()

    (project / "train.py").write_text("one = 2\n")
    assert changes(watcher) == ["train.py"]

    (project / "train.py").write_text("one = 3\n")
    assert changes(watcher) == ["train.py"]
    assert not watcher.has_news()


@pytest.mark.parametrize(("later", "is_change"), [(0.005, True), (60, False)])
def test_what_was_saved_in_another_project_within_a_tick_of_the_clock_may_be_newer_than_the_run(
    project, tmp_path, later: float, is_change: bool
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "library.py").write_text("three = 3\n")
    watcher = FileWatcher(Plan(project, "", "", ("",)), environ={})

    is_news = watcher.watch_too({"other": str(other)}, (other / "library.py").stat().st_ctime + later)

    assert is_news is is_change
    assert watcher.changes() == (["other/library.py"] if is_change else [])


def test_a_burst_of_saves_is_one_change(project) -> None:
    at, saves = [0.0], iter(range(5))

    def sleep(seconds: float) -> None:
        at[0] += seconds
        if (number := next(saves, None)) is not None:  # one more file while it is waited for silence
            (project / f"{number}.py").write_text("")

    watcher = FileWatcher(Plan(project, "", "", ("",)), environ={}, clock=lambda: at[0], sleep=sleep)
    (project / "train.py").write_text("one = 2\n")

    assert changes(watcher) == ["0.py", "1.py", "2.py", "3.py", "4.py", "train.py"]
    assert at[0] == pytest.approx(6 * file_watcher.SETTLE_SECONDS)  # five, and the silence


def test_what_writes_all_the_time_does_not_hold_a_run_back_for_ever(project) -> None:
    at = [0.0]

    def sleep(seconds: float) -> None:
        at[0] += seconds
        (project / "train.py").write_text(f"one = {at[0]}\n")

    watcher = FileWatcher(Plan(project, "", "", ("",)), environ={}, clock=lambda: at[0], sleep=sleep)

    assert watcher.changes() == ["train.py"]
    assert at[0] == pytest.approx(2)


@needs_inotify
def test_the_kernel_wakes_the_watcher_and_is_not_asked_meanwhile(project) -> None:
    watcher = FileWatcher(Plan(project, "", "", ("",)), environ={}, libc=processes.load_libc())
    poller = select.poll()
    poller.register(watcher.descriptor, select.POLLIN)
    assert poller.poll(0) == []

    (project / "train.py").write_text("one = 2\n")

    assert poller.poll(0) == [(watcher.descriptor, select.POLLIN)]
    watcher.close()


class NoMoreWatches:
    """A libc whose kernel has given away all its watches."""

    def inotify_init1(self, flags: int) -> int:
        return os.open(os.devnull, os.O_RDONLY)

    def inotify_add_watch(self, descriptor: int, folder: bytes, mask: int) -> int:
        import ctypes
        import errno

        ctypes.set_errno(errno.ENOSPC)
        return -1


def test_without_a_watch_that_is_left_files_are_looked_at_and_a_line_says_so(project, capsys) -> None:
    watcher = FileWatcher(Plan(project, "", "", ("",)), environ={}, libc=NoMoreWatches())

    (project / "train.py").write_text("one = 2\n")

    assert watcher.descriptor is None
    assert changes(watcher) == ["train.py"]
    assert "fs.inotify.max_user_watches" in capsys.readouterr().err


@needs_inotify
def test_reports_that_the_kernel_dropped_lead_to_a_new_look(project) -> None:
    watcher = FileWatcher(Plan(project, "", "", ("",)), environ={}, libc=processes.load_libc())
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    for number in range(most // 3 + 1):  # made and gone again: three reports each, more than the queue holds
        os.close(os.open(project / f"{number}~", os.O_CREAT | os.O_WRONLY))
        os.unlink(project / f"{number}~")
    (project / "train.py").write_text("one = 2\n")  # its report is dropped

    assert changes(watcher) == ["train.py"]
    watcher.close()

"""The folder of a run of the tests: what dead runs left goes, and nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import scratch


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def ended() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_by(top: Path, pid: int, *, seconds_ago: float) -> Path:
    folder = top / f"kt-{pid}"
    (folder / "home").mkdir(parents=True)
    then = folder.stat().st_mtime - seconds_ago
    os.utime(folder, (then, then))
    return folder


def test_what_a_dead_run_left_long_ago_is_removed(top: Path) -> None:
    left = left_by(top, ended(), seconds_ago=2 * scratch.KEPT)
    mine = scratch.begin()
    assert not left.exists()
    assert os.environ["TMPDIR"] == str(mine)


def test_what_a_run_left_just_now_or_a_living_run_uses_stays(top: Path) -> None:
    recent, living = left_by(top, ended(), seconds_ago=60), left_by(top, os.getppid(), seconds_ago=2 * scratch.KEPT)
    scratch.begin()
    assert recent.exists()
    assert living.exists()


def test_a_folder_below_which_something_is_mounted_is_never_emptied(top: Path) -> None:
    assert scratch.is_mounted(Path("/proc"))
    assert not scratch.is_mounted(top)


def test_the_folder_of_a_failed_run_stays_and_that_of_a_passed_one_goes(top: Path) -> None:
    mine = scratch.begin()
    scratch.end(mine, passed=False)
    assert mine.exists()
    scratch.end(mine, passed=True)
    assert not mine.exists()


def test_a_run_works_in_memory_where_that_is_asked_for_and_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    monkeypatch.setattr("scratch.IN_MEMORY", tmp_path / "memory")
    monkeypatch.setattr("scratch.ENOUGH", 1)
    monkeypatch.setenv("KINETIC_TEST_IN_MEMORY", "1")
    monkeypatch.delenv("TMPDIR", raising=False)
    assert scratch.place() == tmp_path / "disk"  # there is no such folder

    (tmp_path / "memory").mkdir()
    assert scratch.place() == tmp_path / "memory"

    monkeypatch.setattr("scratch.ENOUGH", 10**18)
    assert scratch.place() == tmp_path / "disk"

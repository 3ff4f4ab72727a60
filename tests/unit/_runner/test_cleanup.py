"""What a task leaves is removed, and what cannot be is named: in a process of its own, which plays the container."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kinetic._runner import processes
from kinetic._runner.pod import cleanup

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")

_BEFORE = """
    import os, signal, subprocess, sys
    from pathlib import Path
    from kinetic._runner import processes
    from kinetic._runner.pod import cleanup

    folder = Path(sys.argv[1])
    cleanup._TEMPORARY = (str(folder),)
    os.environ["HOME"] = str(folder / "home")
    libc = processes.load_libc()
    processes.adopt_orphans(libc)
    cleaner = cleanup.Cleaner(folder / "ours", str(folder / "ours" / "runner"), libc, is_container=False)
    cleaner._folders = [str(folder), str(folder / "home")]
    cleaner._files = {each: cleaner._remember(each) for each in cleaner._folders}
"""


def cleaned(folder: Path, text: str, after: str = "") -> list[str]:
    """Remember a folder, do what the text does, clean, do what follows, and return what was printed."""
    for name in ("home", "ours"):
        (folder / name).mkdir()
    (folder / "there").write_text("before")
    script = textwrap.dedent(_BEFORE) + textwrap.dedent(text) + f"\nprint(cleaner.clean(()))\n{after}\n"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


def test_a_home_that_is_a_volume_and_what_other_pods_write_there_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, above = str(tmp_path), str(tmp_path.parent)
    monkeypatch.setenv("HOME", home)

    assert "/dev/shm" in processes.mounts_in_memory()
    assert home in cleanup._folders({"/", f"{home}/data"}, set())
    assert home not in cleanup._folders({"/", home}, set())
    assert home not in cleanup._folders({"/", above}, set())
    assert home in cleanup._folders({"/", above, home}, {home})


def test_new_files_and_folders_go_and_ours_stay(tmp_path: Path) -> None:
    found = cleaned(
        tmp_path,
        """
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep" / "er" / "file").write_text("left")
        (folder / "home" / ".token").write_text("left")
        (folder / "ours" / "runner").write_text("kept")
        """,
    )

    assert found == [""]
    assert sorted(os.listdir(tmp_path)) == ["home", "ours", "there"]
    assert os.listdir(tmp_path / "home") == []
    assert os.listdir(tmp_path / "ours") == ["runner"]


def test_nothing_is_removed_behind_a_link_that_took_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()

    (said,) = cleaned(
        tmp_path / "run",
        """
        data = folder.parent / "data"
        data.mkdir()
        (data / "of-everybody").write_text("kept")
        (folder / "home").rmdir()
        (folder / "home").symlink_to(data)
        """,
    )

    assert (tmp_path / "data" / "of-everybody").read_text() == "kept"
    assert said == f"it changed {tmp_path / 'run' / 'home'}, which was there before it"


def test_a_mount_is_found_by_the_name_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "mountinfo"
    page.write_text("31 23 8:1 / /tmp/\u6570\\040two rw - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr(processes, "_MOUNTS", str(page))

    assert processes.mounts() == [("31", "/tmp/\u6570 two")]
    assert processes.mounts_below(Path("/tmp")) == ["/tmp/\u6570 two"]
    assert processes.mounts_below(Path("/tmp/\u6570")) == []


@pytest.mark.parametrize("change", ['(folder / "there").write_text("after!")', '(folder / "there").unlink()'])
def test_a_file_that_was_there_and_was_changed_is_named(tmp_path: Path, change: str) -> None:
    (said,) = cleaned(tmp_path, change)

    assert said == f"it changed {tmp_path / 'there'}, which was there before it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as somebody else")
def test_processes_that_cannot_be_ended_and_may_hold_a_device_are_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)

    child, said = cleaned(
        tmp_path,
        """
        child = os.fork()
        if not child:
            os.open("/dev/zero", os.O_RDWR)
            signal.pause()
        print(child, flush=True)
        os.setresuid(65_534, 65_534, 0)  # as where a program of the image takes the rights of root
        cleanup._KILL_SECONDS = 0.2
        """,
        after="os.setresuid(0, 0, 0); os.kill(child, 9)",
    )

    assert said == f"1 of its processes cannot be ended: {child}"


def test_processes_that_left_their_session_are_ended(tmp_path: Path) -> None:
    found = cleaned(
        tmp_path,
        """
        inner = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
        subprocess.run([sys.executable, "-c", inner], check=True)
        print(len(processes.tree_of(os.getpid())) - 1)
        """,
    )

    assert found == ["1", ""]

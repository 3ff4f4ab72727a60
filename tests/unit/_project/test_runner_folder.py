"""The runner of this machine: made without compiling, and whole for every supervisor after a full disk."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kinetic._project import runner_bundle
from kinetic.errors import PackingError


@pytest.fixture
def place() -> str:
    """The folder that the modules are in."""
    return "installed"


@pytest.fixture
def installation(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two modules instead of all: one that was imported here before, and one that was not."""
    files = {f"kinetic/{name}.py": tmp_path / place / f"{name}.py" for name in ("known", "new")}
    for path in files.values():
        path.parent.mkdir(exist_ok=True)
        path.write_text("VALUE = 1\n")
    subprocess.run([sys.executable, "-m", "py_compile", files["kinetic/known.py"]], check=True)
    monkeypatch.setattr(runner_bundle, "_files", lambda: {name: str(path) for name, path in files.items()})
    return files


def test_bytecode_comes_from_the_installation_and_python_takes_it(installation, tmp_path: Path) -> None:
    made = runner_bundle.folder(tmp_path / "runners")

    assert [path.name for path in made.rglob("*.pyc")] == [f"known.{sys.implementation.cache_tag}.pyc"]
    words = [sys.executable, "-v", "-c", "import known"]
    told = subprocess.run(words, cwd=made / "kinetic", capture_output=True, text=True, check=True).stderr
    assert f"matches {made}/kinetic/known.py" in told


def test_bytecode_of_another_source_is_left_behind(installation, tmp_path: Path) -> None:
    installation["kinetic/known.py"].write_text("VALUE = 'another'\n")

    assert [*runner_bundle.folder(tmp_path / "runners").rglob("*.pyc")] == []


def test_an_edited_file_makes_another_runner_and_an_equal_one_does_not(installation, tmp_path: Path) -> None:
    first = runner_bundle.folder(tmp_path / "runners")
    again = runner_bundle.folder(tmp_path / "runners")
    runner_bundle._made.clear()
    fresh = runner_bundle.folder(tmp_path / "runners")
    runner_bundle._made.clear()
    os.utime(installation["kinetic/new.py"], (1, 1))
    edited = runner_bundle.folder(tmp_path / "runners")

    assert first == again == fresh != edited
    assert sorted(path.name for path in (tmp_path / "runners").iterdir()) == sorted([first.name, edited.name])


@pytest.mark.parametrize("place", ["site-packages"])
def test_of_an_installed_package_the_files_are_links_and_an_upgrade_changes_no_runner(installation, tmp_path) -> None:
    first = runner_bundle.folder(tmp_path / "runners")
    runner_bundle._made.clear()
    again = runner_bundle.folder(tmp_path / "runners")
    linked = sorted(path.name for path in first.rglob("*.py*") if path.stat().st_nlink == 2)
    (tmp_path / "new.py").write_text("VALUE = 2\n")
    (tmp_path / "new.py").replace(installation["kinetic/new.py"])
    runner_bundle._made.clear()
    upgraded = runner_bundle.folder(tmp_path / "runners")

    assert linked == [f"known.{sys.implementation.cache_tag}.pyc", "known.py", "new.py"]
    assert first == again != upgraded
    assert [(made / "kinetic/new.py").read_text() for made in (first, upgraded)] == ["VALUE = 1\n", "VALUE = 2\n"]


@pytest.mark.parametrize("place", ["installed", "site-packages"])
def test_another_environment_with_links_to_the_same_files_makes_no_other_runner(installation, tmp_path: Path) -> None:
    os.link(installation["kinetic/new.py"], tmp_path / "of-uv.py")
    first = runner_bundle.folder(tmp_path / "runners")
    runner_bundle._made.clear()
    os.link(installation["kinetic/new.py"], tmp_path / "of-another-environment.py")

    assert runner_bundle.folder(tmp_path / "runners") == first


def test_a_runner_that_cannot_be_written_leaves_nothing_and_says_what_to_do(installation, tmp_path: Path) -> None:
    installation["kinetic/gone.py"] = tmp_path / "installed" / "known.py"
    installation["kinetic/new.py"] = tmp_path / "a-folder"  # reading it fails, as writing to a full disk does
    (tmp_path / "a-folder").mkdir()

    with pytest.raises(PackingError, match="could not be written") as caught:
        runner_bundle.folder(tmp_path / "runners")

    assert "KINETIC_RUNTIME_DIR" in caught.value.next
    assert [*(tmp_path / "runners").iterdir()] == []


def test_bytecode_that_a_full_disk_cut_short_is_made_again(tmp_path: Path) -> None:
    made = runner_bundle.folder(tmp_path / "runners")
    module = made / "kinetic" / "_backends" / "local" / "supervisor.py"
    damaged = Path(importlib.util.cache_from_source(os.fspath(module)))
    about = module.stat()
    stamp = b"".join(int(number).to_bytes(4, "little") for number in (0, about.st_mtime, about.st_size))
    damaged.write_bytes(importlib.util.MAGIC_NUMBER + stamp + b"\xe3\x00")
    assert damaged.read_bytes()[18:] == b""

    for _ in range(2):  # it ends where a supervisor reads its arguments
        words = [sys.executable, "-B", str(made / "supervisor.py")]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stderr
        assert "EOFError" not in told

    assert damaged.read_bytes()[18:] != b""


def test_a_kinetic_inside_a_zip_file_says_that_jobs_need_its_folders(tmp_path: Path) -> None:
    source = Path(runner_bundle.__file__).parents[2]
    archive = shutil.make_archive(str(tmp_path / "app"), "zip", source, "kinetic")
    words = [sys.executable, "-c", "from kinetic._project import runner_bundle; runner_bundle.contents()"]

    told = subprocess.run(words, env={"PYTHONPATH": archive}, capture_output=True, text=True, check=False).stderr

    assert f"no job can be submitted from {archive} [packing]" in told


def test_a_program_of_pyinstaller_is_refused_and_not_started_again_as_if_it_were_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)  # as PyInstaller, cx_Freeze and py2app set it

    with pytest.raises(PackingError, match=f"no job can be submitted from {re.escape(sys.executable)}"):
        runner_bundle.folder(tmp_path / "runners")

"""What jobs fetch by themselves: pinned to the files that were tried, and found without running what lies around."""

from __future__ import annotations

import _imp
import asyncio
import os
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import pytest

from kinetic._jobs import submit
from kinetic._output import terminal as output
from kinetic._output import tracebacks
from kinetic._wire import python_runtime

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.mark.parametrize("name", ["uv", "debugpy"])
def test_what_is_fetched_is_what_the_suite_was_run_with(name):
    tested = [line for line in PROJECT["dependency-groups"]["test"] if str(line).startswith(f"{name}==")]

    assert tested == [f"{name}=={python_runtime.INSTALLER_VERSIONS[name]}"]
    assert re.fullmatch(rf"{name}==\S+(?: --hash=sha256:[0-9a-f]{{64}}){{10,}}\n", python_runtime.pinned(name))


def test_our_names_and_extras_are_those_of_the_project():
    extras = PROJECT["project"]["optional-dependencies"]

    assert PROJECT["project"]["name"] == python_runtime.NAME
    assert {name: extras[name][0] for name in python_runtime.EXTRAS_OF_JOBS} == python_runtime.EXTRAS_OF_JOBS


def test_uv_is_found_beside_this_python_and_never_in_the_folder_that_we_are_in(tmp_path, monkeypatch):
    (tmp_path / "uv.py").write_text("raise SystemExit('the project was run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    assert python_runtime.find_installer() == os.path.join(os.path.dirname(sys.executable), "uv")


def test_where_there_is_no_uv_none_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(python_runtime, "_candidates", lambda: iter([str(tmp_path / "uv")]))

    assert python_runtime.find_installer() is None


# ----------------------------------------------------------------------------------------------------- another kinetic


def installed(folder, name, entry_points=None):
    (folder / name).mkdir(parents=True)
    (folder / name / "METADATA").write_text("")
    if entry_points is not None:
        (folder / name / "entry_points.txt").write_text(entry_points)


@pytest.mark.parametrize("name", ["kinetic-9.1.dist-info", "Kinetic-9.1.dist-info", "kinetic-9.1-py3.11.egg-info"])
def test_another_package_of_our_import_name_is_named(tmp_path, name):
    installed(tmp_path / "site", name, "[console_scripts]\nkinetic = kinetic.shell:main\n")

    assert (
        python_runtime.foreign_distribution([str(tmp_path / "none"), str(tmp_path / "site")])
        == f"kinetic 9.1 in {tmp_path / 'site'}"
    )


def test_we_are_no_stranger_under_our_new_name_nor_under_our_old_one(tmp_path):
    installed(tmp_path, "kinetic_jobs-1.0.dist-info")
    installed(tmp_path, "kinetic_utils-1.0.dist-info")
    installed(tmp_path, "kinetic-0.1.0.dist-info", "[console_scripts]\nkinetic = kinetic._cli.main:main\n")

    assert python_runtime.foreign_distribution([str(tmp_path)]) == ""


def test_whoever_submits_from_an_environment_with_a_stranger_is_warned_once(tmp_path, monkeypatch):
    told = []
    installed(tmp_path / "site-packages", "kinetic-9.1.dist-info")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages")])
    monkeypatch.setattr(output, "warn", told.append)
    submit._warn_of_foreign_package.cache_clear()

    submit._warn_of_foreign_package()
    submit._warn_of_foreign_package()
    submit._warn_of_foreign_package.cache_clear()

    assert len(told) == 1
    assert f"kinetic 9.1 in {tmp_path / 'site-packages'}" in told[0]
    assert told[0].endswith("pip uninstall kinetic; pip install --force-reinstall kinetic-jobs")


def test_lines_and_constraints_are_written_for_the_owner_only_whatever_the_locale_is(tmp_path):
    write = (
        "import sys; from pathlib import Path; from kinetic._wire import python_runtime as runtime; "
        "print(runtime.write_requirements(['x @ https://h/\\xe4.whl', '-c y<2'], Path(sys.argv[1])))"
    )
    ascii_only = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    done = subprocess.run(
        [sys.executable, "-c", write, str(tmp_path)], env=ascii_only, capture_output=True, text=True, check=False
    )

    assert done.stdout.strip() == str(["-c", f"{tmp_path}/constraints.txt"]), done.stderr
    files = [tmp_path / "requirements.txt", tmp_path / "constraints.txt"]
    assert [file.read_text(encoding="utf-8") for file in files] == ["x @ https://h/ä.whl\n", "y<2\n"]
    assert [file.stat().st_mode & 0o777 for file in files] == [0o600, 0o600]


def test_settings_of_uv_are_written_beside_the_requirements_and_named(tmp_path):
    words = python_runtime.write_requirements(["x", f"{python_runtime.SETTING}tool.uv.index = []"], tmp_path)

    assert words == ["--project", str(tmp_path), "-r", f"{tmp_path}/pyproject.toml"]
    assert (tmp_path / "requirements.txt").read_text() == "x\n"
    assert (tmp_path / "pyproject.toml").read_text() == "tool.uv.index = []\n"


def test_the_address_of_constraints_in_the_variable_of_uv_stays_an_address(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_CONSTRAINT", "https://host.example/limits.txt own.txt")

    words = python_runtime.write_requirements(["x", "-c y<2"], tmp_path)

    assert words[1::2] == ["https://host.example/limits.txt", os.path.abspath("own.txt"), f"{tmp_path}/constraints.txt"]


@pytest.mark.parametrize("context", [tracebacks.Leaving, lambda: tracebacks.Detaching(str)])
def test_a_coroutine_that_is_collected_while_its_thread_imports_something_leaves_the_import_lock_taken(context) -> None:
    async def waits() -> None:
        with context():
            await asyncio.sleep(0)

    waiting = waits()
    waiting.send(None)
    _imp.acquire_lock()
    waiting.close()

    assert _imp.lock_held()
    _imp.release_lock()


def test_the_import_lock_that_ctrl_c_has_left_taken_is_given_back_and_that_of_another_thread_is_not() -> None:
    taken, over = threading.Event(), threading.Event()

    def imports() -> None:
        _imp.acquire_lock()
        taken.set()
        over.wait(30)
        _imp.release_lock()

    _imp.acquire_lock()
    _imp.acquire_lock()
    python_runtime.free_import_lock()
    is_free = not _imp.lock_held()
    other = threading.Thread(target=imports)
    other.start()
    taken.wait(30)
    python_runtime.free_import_lock()
    is_held = _imp.lock_held()
    over.set()
    other.join(30)

    assert (is_free, is_held, _imp.lock_held()) == (True, True, False)

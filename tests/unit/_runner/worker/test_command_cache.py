"""What a Python of a command does for the compile cache: nothing to others, and nothing that lasts when it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinetic._runner.worker import compilers
from kinetic._runner.worker.command_cache import CommandCache
from kinetic._wire.task import Task

SOURCE = Path(__file__).parents[4] / "src"


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CommandCache]:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "project"))
    for library in compilers.LIBRARIES.values():
        for name in (*library.folders, *(variable for variable, _ in library.settings)):
            monkeypatch.setenv(name, "")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/of/the/user")
    jax = tmp_path / "project" / "jax"
    jax.mkdir(parents=True)
    (jax / "__init__.py").write_text("print('jax is imported')\n")
    (jax / "monitoring.py").write_text(
        "listeners = []\nregister_event_listener = listeners.append\n"
        "def register_event_duration_secs_listener(_): ...\n"
    )
    made = CommandCache(task_in(tmp_path), lambda: None)
    yield made
    made.finish()


def task_in(folder: Path) -> Task:
    return Task("job-1", "0" * 64, "file:///store", "key-1", 0o022, None, {}, base=str(folder))


def run(code: str, *paths: Path, python: str = sys.executable) -> str:
    path = os.pathsep.join([os.environ["PYTHONPATH"], *map(str, paths)])
    environ = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run([python, "-c", code], check=False, capture_output=True, text=True, env=environ)
    assert done.stderr == ""
    return done.stdout


def test_a_module_of_that_name_that_is_there_already_is_executed_as_well(command: CommandCache, tmp_path: Path) -> None:
    other = tmp_path / "site"
    other.mkdir()
    (other / "sitecustomize.py").write_text("import sys\nsys.of_a_test = 'theirs'\n")

    assert run("import sys, jax; print(sys.of_a_test)", other, SOURCE) == "jax is imported\ntheirs\n"


def test_a_python_that_does_not_find_kinetic_or_outlives_its_job_imports_as_ever(
    command: CommandCache, tmp_path: Path
) -> None:
    without = run("import jax", python=sys._base_executable)  # type: ignore[attr-defined]
    (tmp_path / "data/compiled/command/events").unlink()

    assert without == run("import jax", SOURCE) == "jax is imported\n"


def test_a_library_whose_folder_the_user_chose_is_left_alone(command: CommandCache, tmp_path: Path) -> None:
    assert os.environ["TRITON_CACHE_DIR"] == "/of/the/user"
    assert os.environ["JAX_COMPILATION_CACHE_DIR"].startswith(str(tmp_path))
    assert not (tmp_path / "data/compiled/command/torch").exists()


def test_a_folder_that_cannot_be_filled_is_not_waited_for_whatever_a_command_wrote_into_the_pipe(
    command: CommandCache, tmp_path: Path
) -> None:
    (tmp_path / "data/compiled/command/events").write_bytes(b"\n \nbegin\ntook jax of the user\n\xff\n")
    waits = (
        "import jax.monitoring; [tell] = jax.monitoring.listeners;"
        "tell('/jax/compilation_cache/compile_requests_use_cache'); print('goes on')"
    )

    assert run(waits, SOURCE) == "jax is imported\ngoes on\n"


def test_another_attempt_makes_anew_what_the_first_one_has_left(command: CommandCache, tmp_path: Path) -> None:
    another = CommandCache(task_in(tmp_path), lambda: None)
    another.finish()

    assert run("import jax", SOURCE) == "jax is imported\n"

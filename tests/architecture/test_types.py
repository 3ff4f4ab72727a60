"""Type checkers understand the public API: mypy and pyright agree on tests/typing/api.py, and on what is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "typing" / "api.py"
BESIDE = Path(sys.executable).parent  # the tools of the environment that the suite runs in

pytestmark = pytest.mark.timeout(120)  # pyright fetches its program on its first run in an environment


def tool(name: str) -> str:
    found = shutil.which(name, path=str(BESIDE))
    if found is None:
        pytest.skip(f"{name} is not installed in {BESIDE}; it is in the group 'check' of pyproject.toml")
    return found


def check(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src"), "NO_COLOR": "1"}
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd, env=environment)


def mypy(program: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    settings = [
        "--config-file",
        str(ROOT / "pyproject.toml"),
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(cwd / "cache"),
    ]
    return check(tool("mypy"), *settings, str(program), cwd=cwd)


def pyright(program: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = tool("pyright")
    try:
        there = check(command, "--version", cwd=cwd)
    except OSError as error:
        pytest.skip(f"pyright does not start here: {error}")
    if there.returncode:
        pytest.skip(f"pyright does not start here: {(there.stderr or there.stdout).strip()[-300:]}")
    (cwd / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT / "src"}"]}}')
    return check(command, "--project", str(cwd), "--pythonpath", sys.executable, str(program), cwd=cwd)


CHECKERS = pytest.mark.parametrize("checker", [mypy, pyright])


@CHECKERS
def test_a_type_checker_sees_what_we_promise(checker, tmp_path: Path) -> None:
    shutil.copy(PROGRAM, tmp_path)

    done = checker(tmp_path / PROGRAM.name, tmp_path)

    assert done.returncode == 0, done.stdout + done.stderr


@CHECKERS
def test_a_type_checker_would_notice_if_a_wrong_call_became_right(checker, tmp_path: Path) -> None:
    program = tmp_path / "planted.py"
    program.write_text(PROGRAM.read_text() + "\ntrain(0.5)  # type: ignore[arg-type]\n")

    done = checker(program, tmp_path)

    assert done.returncode == 1
    assert f":{len(program.read_text().splitlines())}" in done.stdout


@CHECKERS
def test_a_type_checker_would_notice_if_the_signature_were_lost(checker, tmp_path: Path) -> None:
    program = tmp_path / "planted.py"
    program.write_text(PROGRAM.read_text() + "\nassert_type(train(0.5), dict[str, int])\n")

    done = checker(program, tmp_path)

    assert done.returncode == 1
    assert f":{len(program.read_text().splitlines())}" in done.stdout


def test_the_program_names_everything_that_is_public() -> None:
    import kinetic

    text = PROGRAM.read_text()
    unnamed = [name for name in kinetic.__all__ if name not in text]

    assert set(unnamed) <= {"__version__", "collections", "jobs"}, unnamed

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


def mypy(folder: Path) -> subprocess.CompletedProcess[str]:
    settings = ["--config-file", str(ROOT / "pyproject.toml"), "--strict", "--follow-imports=silent"]
    return check(tool("mypy"), *settings, "--cache-dir", str(folder / "cache"), *PLANTED, cwd=folder)


def pyright(folder: Path) -> subprocess.CompletedProcess[str]:
    command = tool("pyright")
    try:
        there = check(command, "--version", cwd=folder)
    except OSError as error:
        pytest.skip(f"pyright does not start here: {error}")
    if there.returncode:
        pytest.skip(f"pyright does not start here: {(there.stderr or there.stdout).strip()[-300:]}")
    (folder / "pyrightconfig.json").write_text(f'{{"extraPaths": ["{ROOT / "src"}"]}}')
    return check(command, "--project", str(folder), "--pythonpath", sys.executable, *PLANTED, cwd=folder)


# Our program as it is, and with a mistake behind its last line.
PLANTED = {
    "api.py": "",
    "wrong_call.py": "\ntrain(0.5)  # type: ignore[arg-type]\n",
    "lost_signature.py": "\nassert_type(train(0.5), dict[str, int])\n",
}


@pytest.fixture(scope="module", params=[mypy, pyright])
def errors(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return what a checker has against all three programs: it reads kinetic once for them."""
    folder = tmp_path_factory.mktemp("typing")
    for name, more in PLANTED.items():
        (folder / name).write_text(PROGRAM.read_text() + more)
    done = request.param(folder)
    assert done.returncode == 1, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if " error: " in line]


def test_a_type_checker_sees_what_we_promise(errors: list[str]) -> None:
    assert [line for line in errors if "wrong_call.py:" not in line and "lost_signature.py:" not in line] == []


@pytest.mark.parametrize("name", ["wrong_call.py", "lost_signature.py"])
def test_a_type_checker_would_notice_if_a_wrong_call_became_right_or_the_signature_were_lost(
    errors: list[str], name: str
) -> None:
    last = len((PROGRAM.read_text() + PLANTED[name]).splitlines())

    [error] = [line for line in errors if f"{name}:" in line]

    assert f"{name}:{last}" in error


def test_the_program_names_everything_that_is_public() -> None:
    import kinetic

    text = PROGRAM.read_text()
    unnamed = [name for name in kinetic.__all__ if name not in text]

    assert set(unnamed) <= {"__version__", "collections", "jobs"}, unnamed

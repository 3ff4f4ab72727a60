"""A home that others may write into is refused by every command; a store of that kind is named and used."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

KINETIC = [sys.executable, "-m", "kinetic"]
ADDS = """
import kinetic

@kinetic.run(accelerator="cpu")
def add(a, b):
    return a + b

if __name__ == "__main__":
    print(add(1, 2))
"""


def run(*words: str, as_user: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
    change = ["setpriv", f"--reuid={as_user}", f"--regid={as_user}", "--clear-groups"] if as_user else []
    source = str(Path(__file__).parents[3] / "src")
    return subprocess.run(
        [*change, *words],
        env={**os.environ, "PYTHONPATH": source, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def somebody(tmp_path: Path) -> int:
    """Another user who can run this Python, and reach this test's folder."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can be somebody else")
    for folder in (tmp_path, *(each for each in tmp_path.parents if each.name.startswith(("pytest-", "popen-")))):
        folder.chmod(0o755)
    if run(sys.executable, "-c", "import kinetic", as_user=12345).returncode:
        pytest.skip("another user cannot run this Python")
    return 12345


@pytest.mark.parametrize("variable", ["KINETIC_HOME", "KINETIC_RUNTIME_DIR"])
@pytest.mark.parametrize("words", [["jobs", "list"], ["disk"]], ids=" ".join)
def test_a_folder_that_every_user_may_write_into_is_refused(
    home: Path, tmp_path: Path, variable: str, words: list[str]
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    done = run(*KINETIC, *words, **{variable: str(tmp_path / "open")})

    assert done.returncode == 1
    assert f"{tmp_path / 'open'} cannot be trusted [not-private]" in done.stderr
    assert "its mode 0777 lets every user write into it" in done.stderr
    assert f"chmod go-w {tmp_path / 'open'}" in done.stderr
    assert os.listdir(tmp_path / "open") == []


def test_a_folder_that_is_meant_for_all_users_is_not_to_be_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)

    done = run(*KINETIC, "jobs", "list", KINETIC_HOME=str(tmp_path / "tmp"))

    assert f"next:  export KINETIC_HOME={tmp_path / 'tmp' / 'kinetic'}\n" in done.stderr
    assert "chmod" not in done.stderr


def test_a_home_of_another_user_is_refused(home: Path, tmp_path: Path, somebody: int) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o755)

    done = run(*KINETIC, "jobs", "list", as_user=somebody, KINETIC_HOME=str(mine), HOME=str(tmp_path / "nowhere"))

    assert done.returncode == 1
    assert f"it belongs to user {os.getuid()}, and you are user {somebody}" in done.stderr
    assert "set KINETIC_HOME to a folder of your own" in done.stderr


def test_a_home_that_another_user_has_prepared_for_us_is_refused(home: Path, tmp_path: Path, somebody: int) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, somebody, somebody)
    script = tmp_path / "script.py"
    script.write_text(ADDS)

    done = run(sys.executable, str(script), KINETIC_HOME=str(theirs))

    assert done.returncode == 1
    assert f"it belongs to user {somebody}, and you are user 0" in done.stderr
    assert os.listdir(theirs) == []


def test_a_store_that_others_may_write_into_is_named_and_used(project, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    script = project.write("script.py", ADDS)

    done = run(sys.executable, str(script), KINETIC_STORE=f"file://{tmp_path / 'shared'}")

    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
    said = f"others may write to the store file://{tmp_path / 'shared'}: its mode 0777 lets every user write into it"
    assert done.stderr.count(said) == 1

"""`kinetic doctor --try` at a terminal: it asks, says the price, and runs a job that writes to the store."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from servers import terminal

COMMAND = [sys.executable, "-m", "kinetic", "doctor", "--try", "cpu"]
QUESTION = "Run a job on cpu"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("KINETIC_", "GOOGLE_", "CLOUDSDK_"))
    }
    return kept | {"KINETIC_HOME": str(tmp_path / "home"), "KINETIC_BASE_PACKAGES": "0"}


def test_a_yes_runs_a_job_that_is_removed_afterwards(environ, tmp_path: Path) -> None:
    seen = terminal.run(COMMAND, cwd=tmp_path, env=environ, press=(QUESTION, b"y\n"))

    assert seen.code == 0, seen.screen
    assert "PASS  trial: a job on cpu ran on" in seen.screen
    assert [path.name for path in (tmp_path / "home" / "store").glob("hello-*")] == []


def test_a_no_runs_nothing(environ, tmp_path: Path) -> None:
    seen = terminal.run(COMMAND, cwd=tmp_path, env=environ, press=(QUESTION, b"n\n"))

    assert seen.code == 0, seen.screen
    assert "SKIP  trial: no job was run: you said no" in seen.screen


def test_ctrl_c_at_the_question_runs_nothing_and_is_130(environ, tmp_path: Path) -> None:
    seen = terminal.run(COMMAND, cwd=tmp_path, env=environ, press=(QUESTION, b"\x03"))

    assert seen.code == 130, seen.screen
    assert "PASS  trial" not in seen.screen

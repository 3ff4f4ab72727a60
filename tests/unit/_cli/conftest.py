"""The command line in this process, with a home of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kinetic._cli.main import cli

Kinetic = Callable[..., Result]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [*os.environ]:
        if name.startswith("KINETIC_") or name in {"GOOGLE_CLOUD_PROJECT", "NO_COLOR"}:
            monkeypatch.delenv(name)
    monkeypatch.setenv("KINETIC_PROFILE", "")  # so that what --profile sets is taken back after the test
    monkeypatch.setenv("KINETIC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def kinetic(home: Path) -> Kinetic:
    """Return a function that runs a command line and returns its exit code and what it printed."""

    def run(*words: str, **more: object) -> Result:
        return CliRunner().invoke(cli, list(words), prog_name="kinetic", **more)

    return run

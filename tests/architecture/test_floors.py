"""The floors and the owners of libraries hold, and the fence around them bites."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Where a forbidden line is planted, the line, and the contract that must notice it.
TRESPASSES = {
    "a word that knows a job": ("_wire", "from kinetic import _jobs", "Imports point down the floors"),
    "a maker that knows its neighbour": ("_project", "from kinetic import _data", "Imports point down the floors"),
    "a runner that reads settings": (
        "_runner",
        "from kinetic import _config",
        "The runner may import only",
    ),
    "a runner that opens the front door": ("_runner", "import kinetic", "Only the terminal comes in by"),
    "a word that needs a library": ("_wire", "import numpy", "The words that both sides share"),
    "a second owner of cloudpickle": ("_jobs", "import cloudpickle", "Only _project and _runner import cloudpickle"),
    "a second owner of click": ("_output", "import click", "Only _cli imports click"),
    "a second owner of google-auth": ("_backends", "import google.auth", "Only _google imports google-auth"),
    "a second owner of clusters": ("_google", "import yaml", "Only _backends.kube speaks to clusters"),
    "a room without a floor": ("_utils", "", "Imports point down the floors"),
}


def lint_imports(source: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()"]
    command += ["--no-logo", "--no-cache", "--config", str(ROOT / ".importlinter")]
    environment = os.environ | {"PYTHONPATH": str(source), "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=source.parent)


def test_every_import_keeps_to_the_floors_and_to_the_owners() -> None:
    done = lint_imports(ROOT / "src")

    assert done.returncode == 0, done.stdout + done.stderr


def module_of(trespass: str) -> str:
    return trespass.replace(" ", "_").replace("-", "_")


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return what is said of each broken contract once all trespasses are planted: reading all files takes seconds."""
    source = tmp_path_factory.mktemp("planted") / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    (source / "kinetic" / "__init__.py").touch()
    for name, (room, line, _) in TRESPASSES.items():
        (source / "kinetic" / room).mkdir(exist_ok=True)
        (source / "kinetic" / room / "__init__.py").touch()
        (source / "kinetic" / room / f"{module_of(name)}.py").write_text(f"{line}\n")
    done = lint_imports(source)
    _, *found = re.split(r"^(.+)\n-+\n", done.stdout.partition("Broken contracts")[2], flags=re.MULTILINE)
    assert found, done.stdout + done.stderr
    return dict(zip(found[::2], found[1::2], strict=True))


@pytest.mark.parametrize("name", TRESPASSES)
def test_a_trespass_is_noticed(said: dict[str, str], name: str) -> None:
    room, line, contract = TRESPASSES[name]

    [text] = [text for broken, text in said.items() if broken.startswith(contract)]

    assert (f"kinetic.{room}.{module_of(name)} -> " if line else f"- kinetic.{room}\n") in text

"""A module of a user's project, imported into the process of the test: for jobs on a fake backend."""

from __future__ import annotations

import importlib
import itertools
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

_numbers = itertools.count()


def imported(root: Path, text: str, monkeypatch: Any) -> ModuleType:
    """Write a project with one module, and import that.

    Args:
        root: Where the project's folder goes.
        text: The module; it may be indented.
        monkeypatch: Takes the folder off the path again.
    """
    project = root / "project"
    project.mkdir(exist_ok=True)
    (project / "pyproject.toml").write_text('[project]\nname = "theirs"\nversion = "1"\n')
    name = f"module_of_a_user_{next(_numbers)}"  # one that no other test has imported
    (project / f"{name}.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(str(project))
    return importlib.import_module(name)

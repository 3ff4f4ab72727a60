"""Processes that are killed at the named steps of ``kinetic._wire.failpoints``: at which, and on which home."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetic._wire import failpoints

# In the name of each test; KINETIC_KILL_SEED=<seed> draws the same points again.
SEED = int(
    os.environ.get("KINETIC_KILL_SEED") or int(os.environ.get("PYTEST_XDIST_TESTRUNUID", uuid.uuid4().hex)[:6], 16)
)


def armed(name: str, later: float, mark: Path) -> str:
    """Return the value of ``failpoints.VARIABLE`` that kills at a step, or some seconds later, and makes a file."""
    return f"{name}+{later:.6f}@{mark}" if later else f"{name}@{mark}"


class KillSite:
    """A home on which a process is killed, and the project of its jobs, which write what they do into a file."""

    def __init__(self, home: Path, project: Any, setenv: Callable[[str, str], None]) -> None:
        self.home, self.project, self._setenv = home, project, setenv
        self.notes = home.parent / "notes"

    def kill_at(self, name: str, later: float = 0.0) -> Path:
        """Arm a step for the processes that are started from now on; the file appears when it kills."""
        mark = self.home.parent / f"killed-{name.replace(':', '-')}"
        self._setenv(failpoints.VARIABLE, armed(name, later, mark))
        return mark

    def kill_nobody(self) -> None:
        self._setenv(failpoints.VARIABLE, "")

    def noted(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []

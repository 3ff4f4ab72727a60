"""uv, which resolves, locks and installs for us: where it is, how it is started, and what it said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from kinetic._wire import distribution
from kinetic.errors import ImageBuildError

_LAST = 60  # lines that are kept to explain a failure
_TOLD = 12  # lines of an explanation; the rest has been shown already
_INDENT = "\n       "  # below the first line of "why:   "

# What would send uv to another interpreter or folder than the one that we name.
_MISLEADING = frozenset(
    "CONDA_PREFIX PYTHONHOME UV_PREFIX UV_PROJECT_ENVIRONMENT UV_PYTHON UV_SYSTEM_PYTHON UV_TARGET UV_VENV_CLEAR "
    "UV_WORKING_DIR VIRTUAL_ENV".split()
)


class Ran(NamedTuple):
    """How a run of uv ended.

    Attributes:
        status: Its exit status.
        words: The last lines that it wrote.
    """

    status: int
    words: list[str]

    @property
    def reason(self) -> str:
        """The lines that tell why it failed, ready to stand behind ``why:``."""
        starts = [number for number, line in enumerate(self.words) if line.lstrip().startswith(("error", "×"))]
        lines = self.words[starts[0] :] if starts else self.words[-5:]
        told = [line for line in lines if line.strip()]
        if len(told) > _TOLD:
            told = [*told[:_TOLD], "…"]
        return _INDENT.join(told) or f"uv ended with status {self.status} and said nothing"


def command() -> list[str]:
    """Return how uv is started.

    Raises:
        ImageBuildError: There is no uv here.
    """
    found = distribution.find_installer()
    if found:
        return [found]
    raise ImageBuildError(
        "an isolated environment needs uv, and it is not installed",
        why=f"there is no uv on PATH, and none was installed for {sys.executable}",
        next="pip install uv",
    )


def run(words: Sequence[str], folder: Path, say: Callable[[str], None], *, overrides: str = "") -> Ran:
    """Run uv to its end, and pass on what it writes while it writes it.

    Args:
        words: What follows ``uv``.
        folder: Where it runs; it reads the settings of projects around this folder.
        say: Takes a line.
        overrides: A file in the folder that overrides requirements, or "".
    """
    last: deque[str] = deque(maxlen=_LAST)
    with subprocess.Popen(
        [*command(), *words],
        cwd=folder,
        env=distribution.overriding(_environment(), overrides) if overrides else _environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                last.append(line.rstrip())
                if last[-1]:
                    say(f"uv: {last[-1]}")
        except BaseException:  # the user pressed Ctrl-C: nobody is left to want the rest
            process.kill()
            raise
    return Ran(process.returncode, list(last))


def export(folder: Path, extras: Sequence[str]) -> list[str]:
    """Read the uv.lock of a project, as lines of a requirements file.

    ``uv export --frozen`` takes the lock as it stands, so it needs neither the network nor an interpreter, and the
    versions and the files are those that the project was tested with; ``uv pip compile`` would resolve anew. The
    hashes are checked where a line has some; the base packages have none, and need none.

    Args:
        folder: Where uv.lock and pyproject.toml lie.
        extras: Optional dependencies that are wanted as well.

    Raises:
        ImageBuildError: uv is missing, or cannot read the lock.
    """
    flags = "--frozen --offline --no-emit-project --no-default-groups --no-header --no-annotate".split()
    wanted = [word for extra in extras for word in ("--extra", extra)]
    done = subprocess.run(
        [*command(), "export", *flags, *wanted],
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise ImageBuildError(
            f"{folder / 'uv.lock'} cannot be read",
            why=Ran(done.returncode, done.stderr.splitlines()).reason,
            next=f"cd {folder} && uv lock",
        )
    return done.stdout.splitlines()


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    return kept | {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}

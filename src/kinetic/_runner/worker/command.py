"""A command as a job: the worker starts a program in the unpacked project, and its exit code is the result.

The program writes straight into the job's log, reads nothing, and leads a process group of its own. A request to end
the job (SIGTERM) is passed on to that group once; then this process ends by the same signal and reports nothing, so
the supervisor says why the job ended.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinetic._runner import processes
from kinetic.errors import CommandError

NOT_EXECUTABLE, NOT_FOUND, BY_SIGNAL = 126, 127, 128  # exit codes of shells; the last one plus the signal's number
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_.-]*)\}")
_LOOK_SECONDS = 0.05


def run(words: Sequence[str], links: Mapping[str, str], values: Mapping[str, str] | None = None) -> int:
    """Run a command to its end.

    Args:
        words: The program and its arguments; "python" is the job's own interpreter.
        links: Paths of data by the names, below the working folder, under which the command finds them.
        values: What replaces ``{name}`` in the words.

    Returns:
        0.

    Raises:
        CommandError: It could not be started, ended with another exit code, or was ended by a signal.
    """
    words = filled(words, values or {})
    environ = environment(os.environ, sys.path)
    program = find_program(words[0], environ)
    with _linked(links):
        status = _run([program, *words[1:]], words, environ)
    if status == 0:
        return 0
    shown = shlex.join(words)
    if status > 0:
        raise CommandError(f"{shown} ended with exit code {status}", exit_code=status)
    if status == -signal.SIGKILL and _is_worker():  # the supervisor knows whether memory was the reason
        os.kill(os.getpid(), signal.SIGKILL)
    name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
    raise CommandError(f"{shown} was ended by {name}", exit_code=BY_SIGNAL - status)


def filled(words: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the words with each ``{name}`` replaced by its value; other braces stay."""
    return [_PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), word) for word in words]


def placeholders(words: Sequence[str]) -> set[str]:
    """Return the names in braces."""
    return {name for word in words for name in _PLACEHOLDER.findall(word)}


def is_python(program: str) -> bool:
    """Return whether a program is the job's own interpreter."""
    return _PYTHON.fullmatch(program) is not None


def environment(environ: Mapping[str, str], path: Sequence[str]) -> dict[str, str]:
    """Return the variables of the command: those of the job, so that its programs and modules are found.

    The programs of the job's environment come first. Python finds the project's folders as the job itself does, and
    kinetic last. It writes each line at once, unless the user has another wish.
    """
    runner = str(Path(__file__).parents[3])
    ours = list(path[: list(path).index(runner)]) if runner in path else []
    paths = [os.path.abspath(each) for each in ours]
    above = environ.get("PYTHONPATH", "").split(os.pathsep)
    binaries = os.path.dirname(sys.executable)
    return {
        "PYTHONUNBUFFERED": "1",
        **environ,
        "PATH": os.pathsep.join([binaries, environ.get("PATH") or os.defpath]),
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, [*paths, *above, runner]))),
    }


def find_program(program: str, environ: Mapping[str, str]) -> str:
    """Return the path of a program: the job's own interpreter, a file below the working folder, or one on PATH."""
    if is_python(program):
        return sys.executable
    if os.sep in program:
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
        there = os.path.exists(program)
        raise CommandError(
            f"{program} cannot be started",
            why=f"it is not an executable file in {os.getcwd()}"
            if there
            else f"there is no such file in {os.getcwd()}",
            next=f"chmod +x {program}, and submit it again"
            if there
            else "kinetic package --dry-run lists what is sent",
            code="no-program",
            exit_code=NOT_EXECUTABLE if there else NOT_FOUND,
        )
    found = shutil.which(program, path=environ.get("PATH"))
    if found is None:
        raise CommandError(
            f"there is no program {program} where the job runs",
            why=f"it is in none of the folders of PATH: {environ.get('PATH')}",
            next="name a package that has it in the project's dependencies, or choose a container_image that has it",
            code="no-program",
            exit_code=NOT_FOUND,
        )
    return found


@contextlib.contextmanager
def _linked(links: Mapping[str, str]) -> Iterator[None]:
    """Make data appear below the working folder."""
    made: list[str] = []
    try:
        for name, path in links.items():
            if os.path.lexists(name):
                raise CommandError(
                    f"data cannot appear at {name}",
                    why="the project has something there",
                    next=f"choose another name: --data NAME={os.path.basename(path)}",
                    code="data-position",
                    exit_code=NOT_EXECUTABLE,
                )
            os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
            os.symlink(path, name)
            made.append(name)
        yield
    finally:
        for name in made:
            with contextlib.suppress(OSError):  # the command has replaced it
                os.unlink(name)


def _run(started: Sequence[str], words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Return how the command ended: its exit code, or a negative signal."""
    requests = _StopRequests()
    with requests:
        try:
            child = _start(started, environ)
        except OSError as error:
            raise CommandError(
                f"{words[0]} cannot be started",
                why=str(error.strerror or error),
                next=f"name what runs it: sh {words[0]}, or begin it with a line such as #!/bin/sh",
                code="no-program",
                exit_code=NOT_EXECUTABLE,
            ) from error
        requests.pass_on_to(child.pid)
        if child.stdout is not None:
            with io.TextIOWrapper(child.stdout, errors="replace") as printed:
                shutil.copyfileobj(printed, sys.stdout)
        status = child.wait()
        if requests.came:
            _wait_for_group(child.pid)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(1)  # the signal ends this process at once
    return status


def _start(words: Sequence[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    libc = processes.load_libc() if _is_worker() else None
    output = None
    try:
        sys.stdout.flush()
        sys.stdout.fileno()
    except (io.UnsupportedOperation, ValueError):  # a fake backend collects it
        output = subprocess.PIPE

    with warnings.catch_warnings(action="ignore"):  # of other threads: what runs between fork and exec takes no lock
        return subprocess.Popen(
            words,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            process_group=0,
            preexec_fn=functools.partial(processes.end_with_parent, libc) if libc else None,  # noqa: PLW1509 - as above
        )


class _StopRequests:
    """Requests to end this process while a command runs: they are passed on to it."""

    _NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self) -> None:
        self.came = False
        self._group = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if _is_worker():
            self._before = {number: signal.signal(number, self._note) for number in self._NUMBERS}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def pass_on_to(self, group: int) -> None:
        """Name the process group; it gets what came before it began."""
        self._group = group
        if self.came:
            self._send(signal.SIGTERM)

    def _note(self, number: int, _frame: object) -> None:
        self.came = True
        self._send(number)

    def _send(self, number: int) -> None:
        if self._group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, number)


def _is_worker() -> bool:
    """Return whether this is the main thread of a job's own process, and not that of a fake backend."""
    return "KINETIC_JOB_ID" in os.environ and threading.current_thread() is threading.main_thread()


def _wait_for_group(group: int) -> None:
    """Wait until nothing of a command is left that may still save its work; the supervisor limits the time."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        while True:
            os.killpg(group, 0)
            time.sleep(_LOOK_SECONDS)

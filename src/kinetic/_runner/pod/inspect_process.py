"""A visitor in the container of a job: a process of its own, which the client starts there through the cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from pathlib import Path
from typing import NoReturn

from kinetic._runner import processes
from kinetic._runner.pod import container
from kinetic._runner.worker import mount_namespace, stack_dump
from kinetic._wire import inspection
from kinetic._wire.task import Task
from kinetic.errors import RunnerError

_PACKAGES = "packages"  # see requiring.py


def main(words: list[str]) -> NoReturn:
    """Be a visitor in the container of a job: ``stacks``, or ``run TERM COMMAND...``; never returns."""
    try:
        if words[0] == "stacks":
            sys.stdout.write(stack_dump.ask(_find()))
            sys.stdout.flush()
            os._exit(0)
        _become(words[1], words[2:])
    except RunnerError as error:
        trouble = error
    except OSError as error:
        trouble = RunnerError("the job could not be looked into", why=str(error))
    if words[0] == "stacks":
        sys.stderr.write(": ".join(filter(None, (trouble.what, trouble.why))))
    else:
        sys.stderr.write(inspection.error_line(trouble).decode())
    sys.stderr.flush()
    os._exit(inspection.INSPECT_ERROR_EXIT)


def _find() -> Path:
    """Find the door of the worker of this container: the file that the very process has open that it names.

    Raises:
        RunnerError: There is none.
    """
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for path in _open_doors(pid):
            with contextlib.suppress(RunnerError):
                if stack_dump.read_header(path).pid == int(pid):  # not a child that was forked and has it, too
                    return path
    raise RunnerError(
        "no process of this container is a job's", why="it has not begun yet, or has ended", code="not-running"
    )


def _open_doors(pid: str) -> list[Path]:
    folder, found = f"/proc/{pid}/fd", []
    with contextlib.suppress(OSError):  # somebody else's process, or it has just ended
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                path = os.readlink(f"{folder}/{name}")
                if path.endswith(stack_dump.SUFFIX) and stat.S_ISREG(os.stat(path).st_mode):
                    found.append(Path(path))
    return found


def _become(term: str, command: list[str]) -> NoReturn:
    """Turn into a command, or a shell, that stands where the worker stands and has its variables."""
    door = stack_dump.read_header(_find())
    environ = _environment(door) | ({"TERM": term} if term else {})
    words = command or [mount_namespace.shell_of(environ)]
    folder = mount_namespace.folder_of(door.pid)
    try:
        mount_namespace.enter(door.pid, folder)
    except PermissionError as error:  # no right to step into its mounts: all but those is there
        os.chdir(folder or "/")
        if shutil.which(words[0], path=environ.get("PATH", os.defpath)):  # else it is not the command that speaks next
            sys.stderr.write(f"kinetic: data that is mounted for the job only is not seen here: {error}\n")
            sys.stderr.flush()
    try:
        os.execvpe(words[0], words, environ)  # noqa: S606 - no shell is the point
    except FileNotFoundError:
        why = f"looked in {environ.get('PATH', os.defpath)}"
        raise RunnerError(f"there is no {words[0]} in the job's image", why=why, code="no-command") from None
    except OSError as error:
        what = f"{words[0]} could not be started beside the job"
        raise RunnerError(what, why=str(error), code="no-command") from error


def _environment(door: stack_dump.StackDumpFile) -> dict[str, str]:
    """Return what the worker was started with: as its parent made it, who can be read in the parent's command line."""
    words = os.fsdecode(Path(f"/proc/{processes.parent_of(door.pid)}/cmdline").read_bytes()).split("\0")
    page = next((word for word in words[1:] if word.startswith(("{", "@"))), "")
    page = Path(page[1:]).read_text() if page.startswith("@") else page
    base = door.path.parent
    place = container.HostInPod(door.host, None, base, "")
    task = Task.from_page(page)
    captured = container.captured(container.settings_of(task))
    found = container.environment(task, place, door.attempt, os.environ, captured)
    if (base / _PACKAGES).is_dir():
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(base / _PACKAGES), found.get("PYTHONPATH"))))
    return found

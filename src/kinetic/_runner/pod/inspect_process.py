"""A process that inspects the job of its container; the client starts it there through the cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from kinetic._runner import processes
from kinetic._runner.pod import container
from kinetic._runner.worker import mount_namespace, process_setup
from kinetic._wire import inspection
from kinetic._wire.task import Task
from kinetic.errors import RunnerError

_PACKAGES = "packages"  # see install.py


def main(words: list[str]) -> NoReturn:
    """Carry out ``stacks``, or ``run TERM COMMAND...``, in the container of a job; never returns."""
    try:
        if words[0] == "stacks":
            sys.stdout.write(process_setup.ask(_find()))
            sys.stdout.flush()
            os._exit(0)
        _become(words[1], words[2:])
    except RunnerError as error:
        trouble = error
    except OSError as error:
        trouble = RunnerError("the job could not be inspected", why=str(error))
    if words[0] == "stacks":
        sys.stderr.write(": ".join(filter(None, (trouble.what, trouble.why))))
    else:
        sys.stderr.write(inspection.error_line(trouble).decode())
    sys.stderr.flush()
    os._exit(inspection.INSPECT_ERROR_EXIT)


def _find() -> Path:
    """Find the stack dump file of this container's worker: the process that it names has it open."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for path in _open_dump_files(pid):
            with contextlib.suppress(RunnerError):
                if process_setup.read_header(path).pid == int(pid):  # not a child that was forked and has it, too
                    return path
    raise RunnerError(
        "no process of this container is a job's", why="it has not begun yet, or has ended", code="not-running"
    )


def _open_dump_files(pid: str) -> Iterator[Path]:
    folder = f"/proc/{pid}/fd"
    with contextlib.suppress(OSError):  # another user's process, or it has just ended
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                path = os.readlink(f"{folder}/{name}")
                if path.endswith(process_setup.SUFFIX) and stat.S_ISREG(os.stat(path).st_mode):
                    yield Path(path)


def _become(term: str, command: list[str]) -> NoReturn:
    """Turn into a command, or a shell, in the worker's folder and mounts, with its variables."""
    worker = process_setup.read_header(_find())
    environ = _environment(worker) | ({"TERM": term} if term else {})
    words = command or [mount_namespace.shell_of(environ)]
    search = environ.get("PATH", os.defpath)
    folder = mount_namespace.folder_of(worker.pid)
    try:
        mount_namespace.enter(worker.pid, folder)
    except PermissionError as error:  # no right to enter its mounts: everything else is there
        os.chdir(folder or "/")
        if shutil.which(words[0], path=search):  # else the next output is not the command's
            sys.stderr.write(f"kinetic: data that is mounted for the job only is not visible here: {error}\n")
            sys.stderr.flush()
    try:
        os.execvpe(words[0], words, environ)  # noqa: S606 - without a shell on purpose
    except FileNotFoundError:
        why = f"looked in {search}"
        raise RunnerError(f"there is no {words[0]} in the job's image", why=why, code="no-command") from None
    except OSError as error:
        what = f"{words[0]} could not be started beside the job"
        raise RunnerError(what, why=str(error), code="no-command") from error


def _environment(worker: process_setup.StackDumpFile) -> dict[str, str]:
    """Return what the worker was started with: made again from the task in its parent's command line."""
    base = worker.path.parent
    page = f"@{base / 'task.json'}"  # of a warm pod, which has many
    if not (base / "task.json").exists():
        words = os.fsdecode(Path(f"/proc/{processes.parent_of(worker.pid)}/cmdline").read_bytes()).split("\0")
        page = next((word for word in words[1:] if word.startswith(("{", "@"))), "")
    task = Task.from_page(container.page_of(page))
    captured = container.captured(container.settings_of(task))
    place = container.HostInPod(worker.host, None, base, "")
    found = container.environment(task, place, worker.attempt, os.environ, captured)
    if (base / _PACKAGES).is_dir():
        found["PYTHONPATH"] = os.pathsep.join(filter(None, (str(base / _PACKAGES), found.get("PYTHONPATH"))))
    return found

"""The door of a worker: a file into which the stacks of all its threads are written whenever a signal asks for them.

The signal goes to a thread of ours: so a job answers also while its own threads hang in C code or in the kernel, and no
call of theirs is interrupted, as a signal would do to a plain sleep(). The first line of the door says whose it is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
from pathlib import Path
from typing import NamedTuple

from kinetic._runner import processes
from kinetic._wire.task import STACKS_SIGNAL, Task
from kinetic.errors import RunnerError

DOOR = ".stacks"  # behind the name of the log
_LINE = 512  # bytes, of the first line of a door


class Door(NamedTuple):
    """What the first line of a door says.

    Attributes:
        path: The door.
        pid: The worker.
        started: When that process began, in the kernel's own count; "" where the system does not tell.
        attempt: Which attempt it carries out.
        host: Which host it is.
        descriptor: Under which number the worker has the door open.
        thread: Which thread answers, as the kernel counts; 0 while it is nobody in particular.
    """

    path: Path
    pid: int
    started: str
    attempt: int
    host: int
    descriptor: int
    thread: int


# ---------------------------------------------------------------------------------------------------------- the worker


_opened: list[Door] = []  # one in a worker, none elsewhere


def open_door(task: Task) -> None:
    """Let this process, a worker, answer visitors; call it before anything of the user's runs.

    The handler is in place before the door says whose it is. A process that is started with exec has neither.
    """
    me = os.getpid()
    with contextlib.suppress(OSError):  # a full disk: a job without visitors is better than none
        descriptor = os.open(task.stacks, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True, chain=False)
        os.lseek(descriptor, _LINE, os.SEEK_SET)
        _opened[:] = [Door(task.stacks, me, processes.started_of(me), task.attempt, task.host, descriptor, thread=0)]
        _write(_opened[0])


def answer_in(thread: int) -> None:
    """Let a thread answer, one that spends its time waiting; call it before anything of the user's runs."""
    for door in _opened:
        with contextlib.suppress(OSError):
            _write(door._replace(thread=thread))


def _write(door: Door) -> None:
    page = {name: value for name, value in door._asdict().items() if name != "path"}
    os.pwrite(door.descriptor, json.dumps(page).encode().ljust(_LINE - 1) + b"\n", 0)


# --------------------------------------------------------------------------------------------------------- the visitor


def knock(path: Path) -> Door:
    """Read whose door it is, and make sure that this process is still there.

    Raises:
        RunnerError: It is not, or it has not begun yet.
    """
    try:
        with path.open("rb") as file:
            page = json.loads(file.readline(_LINE))
        door = Door(path, *(page[name] for name in Door._fields[1:]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunnerError("the job's process has not begun yet", why=f"{path}: {error}", code="not-running") from error
    if not is_alive(door):
        raise RunnerError("the job's process is gone", why=f"it was the process {door.pid}", code="not-running")
    return door


def is_alive(door: Door) -> bool:
    """Say whether the process is still there whose door it is."""
    if door.started:
        return processes.started_of(door.pid) == door.started and processes.state(door.pid) not in {"Z", "X"}
    try:
        os.kill(door.pid, 0)
    except ProcessLookupError:
        return False
    return True

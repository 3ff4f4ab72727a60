"""The door of a worker: a file into which the stacks of all its threads are written whenever a signal asks for them.

The signal goes to a thread of ours: so a job answers also while its own threads hang in C code or in the kernel, and no
call of theirs is interrupted, as a signal would do to a plain sleep(). The first line of the door says whose it is.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import itertools
import json
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from kinetic._runner import processes
from kinetic._runner.worker import function_call, process_setup
from kinetic._wire.task import STACKS_SIGNAL, Task
from kinetic.errors import RunnerError

SUFFIX = ".stacks"  # behind the name of the log
_LINE = 512  # bytes, of the first line of a door


class StackDumpFile(NamedTuple):
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


_opened: list[StackDumpFile] = []  # one in a worker, none elsewhere


def open_dump_file(task: Task) -> None:
    """Let this process, a worker, answer visitors; call it before anything of the user's runs.

    The handler is in place before the door says whose it is. A process that is started with exec has neither.
    """
    me = os.getpid()
    with contextlib.suppress(OSError):  # a full disk: a job without visitors is better than none
        descriptor = os.open(task.stacks, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True, chain=False)
        os.lseek(descriptor, _LINE, os.SEEK_SET)
        _opened[:] = [
            StackDumpFile(task.stacks, me, processes.started_of(me), task.attempt, task.host, descriptor, thread=0)
        ]
        _write(_opened[0])


def answer_in(thread: int) -> None:
    """Let a thread answer, one that spends its time waiting; call it before anything of the user's runs."""
    for door in _opened:
        with contextlib.suppress(OSError):
            _write(door._replace(thread=thread))


def _write(door: StackDumpFile) -> None:
    page = {name: value for name, value in door._asdict().items() if name != "path"}
    os.pwrite(door.descriptor, json.dumps(page).encode().ljust(_LINE - 1) + b"\n", 0)


# --------------------------------------------------------------------------------------------------------- the visitor


def read_header(path: Path) -> StackDumpFile:
    """Read whose door it is, and make sure that this process is still there.

    Raises:
        RunnerError: It is not, or it has not begun yet.
    """
    try:
        with path.open("rb") as file:
            page = json.loads(file.readline(_LINE))
        door = StackDumpFile(path, *(page[name] for name in StackDumpFile._fields[1:]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunnerError("the job's process has not begun yet", why=f"{path}: {error}", code="not-running") from error
    if not is_alive(door):
        raise RunnerError("the job's process is gone", why=f"it was the process {door.pid}", code="not-running")
    return door


def is_alive(door: StackDumpFile) -> bool:
    """Say whether the process is still there whose door it is."""
    if door.started:
        return processes.started_of(door.pid) == door.started and processes.state(door.pid) not in {"Z", "X"}
    try:
        os.kill(door.pid, 0)
    except ProcessLookupError:
        return False
    return True


_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.01
_QUIET_SECONDS = 0.3  # where the system does not tell whether an answer is complete


def ask(path: Path) -> str:
    """Ask a worker for the Python stacks of all its threads.

    Raises:
        RunnerError: It is gone, or it does not answer; nothing was done to it.
    """
    door = read_header(path)
    _check(door)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # of two visitors the second gets an answer of its own
        begin = file.seek(0, os.SEEK_END)
        busy = _busy(door.pid)
        try:
            _send_signal(door)
        except ProcessLookupError:
            raise _gone(door) from None
        limit = time.monotonic() + _ANSWER_SECONDS
        while not _has_answered(door, begin, busy):
            if not is_alive(door):
                raise _gone(door)
            if time.monotonic() > limit:
                raise _no_answer(door)
            time.sleep(_LOOK_SECONDS)
        file.seek(begin)
        return _tidy(file.read().decode(errors="replace"), path.parent)


def _send_signal(door: StackDumpFile) -> None:
    """Send the signal; Linux gives it to the thread that is named, if it is one of that process."""
    thread = door.thread if os.path.isdir(f"/proc/{door.pid}/task/{door.thread}") else door.pid
    try:
        os.kill(thread, STACKS_SIGNAL)
    except ProcessLookupError:  # it has just ended, or this system knows processes only
        os.kill(door.pid, STACKS_SIGNAL)


def _check(door: StackDumpFile) -> None:
    """Make sure that the signal does what it shall.

    Raises:
        RunnerError: The user's code has taken the signal, or closed the door.
    """
    status = processes.status(door.pid)
    if not status:
        return  # no /proc here
    if not _is_in(status.get("SigCgt", "0")):
        raise _cannot_ask(f"the job's code has changed what the signal {STACKS_SIGNAL} does")
    try:
        theirs = os.stat(f"/proc/{door.pid}/fd/{door.descriptor}")
        same = os.path.samestat(theirs, os.stat(door.path))
    except FileNotFoundError:
        same = False
    if not same:
        raise _cannot_ask(f"the job's code has closed the file for its stacks, descriptor {door.descriptor}")


def _has_answered(door: StackDumpFile, begin: int, busy: frozenset[str]) -> bool:
    """Say whether an answer is there and complete: while a thread writes it, the signal is blocked in that thread."""
    size = door.path.stat().st_size
    if size <= begin:
        return False
    if not processes.status(door.pid):
        time.sleep(_QUIET_SECONDS)
        return door.path.stat().st_size == size
    return not (_busy(door.pid) - busy)


def _busy(pid: int) -> frozenset[str]:
    """Return the threads in which the signal is blocked."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # names are all we need
    except OSError:
        return frozenset()
    return frozenset(task for task in tasks if _is_in(processes.status(pid, task).get("SigBlk", "0")))


def _is_in(mask: str) -> bool:
    return bool(int(mask, 16) >> (STACKS_SIGNAL - 1) & 1)


def _tidy(text: str, base: Path) -> str:
    """Leave out what is ours, and put the main thread first, which faulthandler writes last.

    A file of the project is named relative to its root: the client knows where that is, and this process does not.
    """
    text = re.sub(rf'(?m)^(  File "){re.escape(str(base))}/work[-0-9]*/', r"\1", text)
    threads = [thread.splitlines() for thread in text.strip().split("\n\n")]
    answerer, caller = (f"/{module.__name__.replace('.', '/')}.py" for module in (process_setup, function_call))
    theirs = [lines for lines in threads if not any(answerer in line for line in lines)]
    # From the caller of the function on, frames are ours.
    shown = ["\n".join(itertools.takewhile(lambda line: caller not in line, lines)) for lines in reversed(theirs)]
    return "".join(f"{thread.replace('Current thread', 'Thread')}\n\n" for thread in shown).rstrip("\n") + "\n"


def _gone(door: StackDumpFile) -> RunnerError:
    return RunnerError("the job's process ended", why=f"it was the process {door.pid}", code="not-running")


def _cannot_ask(why: str) -> RunnerError:
    return RunnerError("the job cannot be asked for its stacks", why=why, code="no-stacks")


def _no_answer(door: StackDumpFile) -> RunnerError:
    states = {"D": "it waits in the kernel, for a device or a file system", "T": "it is stopped", "t": "it is traced"}
    why = states.get(processes.state(door.pid), "it blocks the signal, or does not get to run")
    return RunnerError(f"the job did not answer within {_ANSWER_SECONDS:.0f} s", why=why, code="no-stacks")

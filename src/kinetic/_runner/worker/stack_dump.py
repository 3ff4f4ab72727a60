"""A file of each worker into which the stacks of all its threads are written whenever a signal asks for them.

The signal goes to a thread of ours: so a job answers also while its own threads hang in C code or in the kernel, and no
call of theirs is interrupted, as a signal would do to a plain sleep(). The first line of the file says whose it is.
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
from kinetic._wire.task import STACKS_SIGNAL, Task
from kinetic.errors import RunnerError

SUFFIX = ".stacks"  # behind the name of the log
_LINE = 512  # bytes, of the first line
_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.01
_QUIET_SECONDS = 0.3  # if the system does not tell whether an answer is complete
_ANSWERER = "/_runner/worker/process_setup.py"  # a thread of ours is in this file, and is left out
_CALLER = "/_runner/worker/function_call.py"  # from the caller of the user's function on, frames are ours


class StackDumpFile(NamedTuple):
    """What the first line of the file says."""

    path: Path  # the file
    pid: int  # the worker
    started: str  # when that process began, in the kernel's own count; "" if the system does not tell
    attempt: int
    host: int
    descriptor: int  # under which number the worker has the file open
    thread: int  # which thread answers, in the kernel's own count; 0 for none in particular


# ---------------------------------------------------------------------------------------------------------- the worker

_opened: list[StackDumpFile] = []  # one in a worker, none elsewhere


def open_dump_file(task: Task) -> None:
    """Let this process, a worker, answer; call it before anything of the user's runs.

    The handler is in place before the file says whose it is. A process that is started with exec has neither.
    """
    me = os.getpid()
    with contextlib.suppress(OSError):  # a full disk: a job that cannot be inspected is better than none
        descriptor = os.open(task.stacks, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True, chain=False)
        os.lseek(descriptor, _LINE, os.SEEK_SET)
        started = processes.started_of(me)
        _opened[:] = [StackDumpFile(task.stacks, me, started, task.attempt, task.host, descriptor, thread=0)]
        _write_header(_opened[0])


def answer_in(thread: int) -> None:
    """Let a thread answer that spends its time waiting; call it before anything of the user's runs."""
    for file in _opened:
        with contextlib.suppress(OSError):
            _write_header(file._replace(thread=thread))


def _write_header(file: StackDumpFile) -> None:
    page = {name: value for name, value in file._asdict().items() if name != "path"}
    os.pwrite(file.descriptor, json.dumps(page).encode().ljust(_LINE - 1) + b"\n", 0)


# ---------------------------------------------------------------------------------------------------------- the client


def read_header(path: Path) -> StackDumpFile:
    """Read whose file it is; raises RunnerError if that process is gone, or has not begun yet."""
    try:
        with path.open("rb") as file:
            page = json.loads(file.readline(_LINE))
        found = StackDumpFile(path, *(page[name] for name in StackDumpFile._fields[1:]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunnerError("the job's process has not begun yet", why=f"{path}: {error}", code="not-running") from error
    if not is_alive(found):
        raise RunnerError("the job's process is gone", why=f"it was the process {found.pid}", code="not-running")
    return found


def is_alive(file: StackDumpFile) -> bool:
    """Return whether the process is still there whose file it is."""
    if file.started:
        return processes.started_of(file.pid) == file.started and processes.state(file.pid) not in {"Z", "X"}
    try:
        os.kill(file.pid, 0)
    except ProcessLookupError:
        return False
    return True


def ask(path: Path) -> str:
    """Return the Python stacks of all threads of a worker.

    Raises RunnerError if it is gone or does not answer; nothing was done to it.
    """
    target = read_header(path)
    _check(target)
    ended = RunnerError("the job's process ended", why=f"it was the process {target.pid}", code="not-running")
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # of two clients the second gets an answer of its own
        begin = file.seek(0, os.SEEK_END)
        busy = _busy_threads(target.pid)
        try:
            _send_signal(target)
        except ProcessLookupError:
            raise ended from None
        limit = time.monotonic() + _ANSWER_SECONDS
        while not _has_answered(target, begin, busy):
            if not is_alive(target):
                raise ended
            if time.monotonic() > limit:
                raise _no_answer(target)
            time.sleep(_LOOK_SECONDS)
        file.seek(begin)
        return _tidy(file.read().decode(errors="replace"), path.parent)


def _send_signal(target: StackDumpFile) -> None:
    """Send the signal; Linux gives it to the named thread, if it is one of that process."""
    thread = target.thread if os.path.isdir(f"/proc/{target.pid}/task/{target.thread}") else target.pid
    try:
        os.kill(thread, STACKS_SIGNAL)
    except ProcessLookupError:  # it has just ended, or this system knows processes only
        os.kill(target.pid, STACKS_SIGNAL)


def _check(target: StackDumpFile) -> None:
    """Make sure that the signal has our handler, and that the worker has the file open."""
    status = processes.status(target.pid)
    if not status:
        return  # no /proc here
    why = ""
    if not _is_in(status.get("SigCgt", "0")):
        why = f"the job's code has changed what the signal {STACKS_SIGNAL} does"
    else:
        try:
            theirs = os.stat(f"/proc/{target.pid}/fd/{target.descriptor}")
            is_open = os.path.samestat(theirs, os.stat(target.path))
        except FileNotFoundError:
            is_open = False
        if not is_open:
            why = f"the job's code has closed the file for its stacks, descriptor {target.descriptor}"
    if why:
        raise RunnerError("the stacks of the job cannot be read", why=why, code="no-stacks")


def _has_answered(target: StackDumpFile, begin: int, busy: frozenset[str]) -> bool:
    """Return whether a complete answer is there: while a thread writes it, the signal is blocked in that thread."""
    size = target.path.stat().st_size
    if size <= begin:
        return False
    if not processes.status(target.pid):
        time.sleep(_QUIET_SECONDS)
        return target.path.stat().st_size == size
    return not (_busy_threads(target.pid) - busy)


def _busy_threads(pid: int) -> frozenset[str]:
    """Return the threads in which the signal is blocked."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
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
    theirs = [lines for lines in threads if not any(_ANSWERER in line for line in lines)]
    shown = ["\n".join(itertools.takewhile(lambda line: _CALLER not in line, lines)) for lines in reversed(theirs)]
    return "".join(f"{thread.replace('Current thread', 'Thread')}\n\n" for thread in shown).rstrip("\n") + "\n"


def _no_answer(target: StackDumpFile) -> RunnerError:
    states = {"D": "it waits in the kernel, for a device or a file system", "T": "it is stopped", "t": "it is traced"}
    why = states.get(processes.state(target.pid), "it blocks the signal, or does not get to run")
    return RunnerError(f"the job did not answer within {_ANSWER_SECONDS:.0f} s", why=why, code="no-stacks")

"""Asking a worker for the stacks of its threads while it runs. Nothing of it is stopped or changed.

A visitor asks at the worker's door, see ``doors.py``, only after it has made sure that this very process is alive,
still catches the signal, and still has the door open: otherwise the signal could end it, or the stacks could go into a
file of the user's.

In a pod a visitor is a process of its own, started in the container: see ``pod/visitor.py``.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import time
from pathlib import Path

from kinetic._runner import calling, doors, output, processes
from kinetic._runner.doors import Door
from kinetic._wire.task import STACKS_SIGNAL
from kinetic.errors import RunnerError

_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.01
_QUIET_SECONDS = 0.3  # where the system does not tell whether an answer is complete


def stacks(path: Path) -> str:
    """Ask a worker for the Python stacks of all its threads.

    Raises:
        RunnerError: It is gone, or it does not answer; nothing was done to it.
    """
    door = doors.knock(path)
    _check(door)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # of two visitors the second gets an answer of its own
        begin = file.seek(0, os.SEEK_END)
        busy = _busy(door.pid)
        try:
            _ring(door)
        except ProcessLookupError:
            raise _gone(door) from None
        limit = time.monotonic() + _ANSWER_SECONDS
        while not _has_answered(door, begin, busy):
            if not doors.is_alive(door):
                raise _gone(door)
            if time.monotonic() > limit:
                raise _silent(door)
            time.sleep(_LOOK_SECONDS)
        file.seek(begin)
        return _tidy(file.read().decode(errors="replace"), path.parent)


def _ring(door: Door) -> None:
    """Send the signal; Linux gives it to the thread that is named, if it is one of that process."""
    thread = door.thread if os.path.isdir(f"/proc/{door.pid}/task/{door.thread}") else door.pid
    try:
        os.kill(thread, STACKS_SIGNAL)
    except ProcessLookupError:  # it has just ended, or this system knows processes only
        os.kill(door.pid, STACKS_SIGNAL)


def _check(door: Door) -> None:
    """Make sure that the signal does what it shall.

    Raises:
        RunnerError: The user's code has taken the signal, or closed the door.
    """
    status = processes.status(door.pid)
    if not status:
        return  # no /proc here
    if not _is_in(status.get("SigCgt", "0")):
        raise _deaf(f"the job's code has changed what the signal {STACKS_SIGNAL} does")
    try:
        theirs = os.stat(f"/proc/{door.pid}/fd/{door.descriptor}")
        same = os.path.samestat(theirs, os.stat(door.path))
    except FileNotFoundError:
        same = False
    if not same:
        raise _deaf(f"the job's code has closed the file for its stacks, descriptor {door.descriptor}")


def _has_answered(door: Door, begin: int, busy: frozenset[str]) -> bool:
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
    answerer, caller = (f"/{module.__name__.replace('.', '/')}.py" for module in (output, calling))
    theirs = [lines for lines in threads if not any(answerer in line for line in lines)]
    # From the caller of the function on, frames are ours.
    shown = ["\n".join(itertools.takewhile(lambda line: caller not in line, lines)) for lines in reversed(theirs)]
    return "".join(f"{thread.replace('Current thread', 'Thread')}\n\n" for thread in shown).rstrip("\n") + "\n"


def _gone(door: Door) -> RunnerError:
    return RunnerError("the job's process ended", why=f"it was the process {door.pid}", code="not-running")


def _deaf(why: str) -> RunnerError:
    return RunnerError("the job cannot be asked for its stacks", why=why, code="no-stacks")


def _silent(door: Door) -> RunnerError:
    states = {"D": "it waits in the kernel, for a device or a file system", "T": "it is stopped", "t": "it is traced"}
    why = states.get(processes.state(door.pid), "it blocks the signal, or does not get to run")
    return RunnerError(f"the job did not answer within {_ANSWER_SECONDS:.0f} s", why=why, code="no-stacks")

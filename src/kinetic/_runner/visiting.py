"""Visiting a worker while it runs: its stacks, its folder, its variables. Nothing of it is stopped or changed.

Each worker keeps a file, the *door*, into which the stacks of all its threads are written whenever a signal asks for
them. The signal goes to a thread of ours: so a job answers also while its own threads hang in C code or in the kernel,
and no call of theirs is interrupted, as a signal would do to a plain sleep(). The first line of the door says whose it
is. A visitor asks only after it has made sure that this very process is alive, still catches the signal, and still has
the door open: otherwise the signal could end it, or the stacks could go into a file of the user's.

In a pod a visitor is a process of its own, started in the container: see ``pod/visitor.py``.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kinetic._runner.work import Work
from kinetic.errors import RunnerError

# Besides STACKS_SIGNAL, which writes into the log. Who ignores it by default on macOS, where it is Ctrl-T's, is safe.
ASK_SIGNAL: int = signal.SIGRTMAX - 4 if hasattr(signal, "SIGRTMAX") else getattr(signal, "SIGINFO", signal.SIGUSR2)
DOOR = ".stacks"  # behind the name of the log
_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.01
_QUIET_SECONDS = 0.3  # where the system does not tell whether an answer is complete
_LINE = 512  # bytes, of the first line of a door
_SHELLS = ("bash", "sh")
_KINDS = ("user", "mnt")
_CALLER = "/kinetic/_runner/calling.py"  # frames from here on are ours
_ANSWERER = "/kinetic/_runner/output.py"  # of the thread that answers


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


def open_door(task: Work) -> None:
    """Let this process, a worker, answer visitors; call it before anything of the user's runs.

    The handler is in place before the door says whose it is. A process that is started with exec has neither.
    """
    me = os.getpid()
    with contextlib.suppress(OSError):  # a full disk: a job without visitors is better than none
        descriptor = os.open(task.door, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        faulthandler.register(ASK_SIGNAL, file=descriptor, all_threads=True, chain=False)
        os.lseek(descriptor, _LINE, os.SEEK_SET)
        _opened[:] = [Door(task.door, me, started_of(me), task.attempt, task.host, descriptor, thread=0)]
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
    if not _is_alive(door):
        raise RunnerError("the job's process is gone", why=f"it was the process {door.pid}", code="not-running")
    return door


def stacks(path: Path) -> str:
    """Ask a worker for the Python stacks of all its threads.

    Raises:
        RunnerError: It is gone, or it does not answer; nothing was done to it.
    """
    door = knock(path)
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
            if not _is_alive(door):
                raise _gone(door)
            if time.monotonic() > limit:
                raise _silent(door)
            time.sleep(_LOOK_SECONDS)
        file.seek(begin)
        return _tidy(file.read().decode(errors="replace"))


def _ring(door: Door) -> None:
    """Send the signal; Linux gives it to the thread that is named, if it is one of that process."""
    thread = door.thread if os.path.isdir(f"/proc/{door.pid}/task/{door.thread}") else door.pid
    try:
        os.kill(thread, ASK_SIGNAL)
    except ProcessLookupError:  # it has just ended, or this system knows processes only
        os.kill(door.pid, ASK_SIGNAL)


def folder_of(pid: int) -> str:
    """Return the working directory of a process, "" where the system does not tell or it was removed."""
    try:
        found = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
    return "" if found.endswith(" (deleted)") else found


def enter(pid: int, folder: str) -> None:
    """Step to where a worker is: into its private mounts if it has some, and into a folder.

    Call it in a process with one thread, just before it becomes something else.
    """
    descriptors = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _other_spaces(pid)]
    for descriptor in descriptors:
        _set_space(descriptor)
        os.close(descriptor)
    os.chdir(folder or "/")


def has_own_mounts(pid: int) -> bool:
    """Say whether a worker has private mounts, which only ``enter`` leads to."""
    return bool(_other_spaces(pid))


def shell_of(environ: Mapping[str, str]) -> str:
    """Return a shell that is there.

    Raises:
        RunnerError: There is none.
    """
    import shutil  # 5 ms, which a worker need not spend: it only opens the door

    found = filter(None, (shutil.which(name, path=environ.get("PATH", os.defpath)) for name in _SHELLS))
    for path in found:
        return path
    raise RunnerError(
        "there is no shell in the job's image",
        why=f"looked for {' and '.join(_SHELLS)} in {environ.get('PATH', os.defpath)}",
        next="name a command that is there, behind --",
    )


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 where the system does not tell."""
    return int(_status(pid).get("PPid", "0"))


def started_of(pid: int) -> str:
    """Return when a process began, as the kernel counts; "" where it does not tell or the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _is_alive(door: Door) -> bool:
    if door.started:
        return started_of(door.pid) == door.started and _state(door.pid) not in {"Z", "X"}
    try:
        os.kill(door.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _state(pid: int) -> str:
    return _status(pid).get("State", "X")[:1]


def _status(pid: int, task: str = "") -> dict[str, str]:
    """Return what the kernel says of a process, or of one of its threads; nothing where it says nothing."""
    path = f"/proc/{pid}/task/{task}/status" if task else f"/proc/{pid}/status"
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _check(door: Door) -> None:
    """Make sure that the signal does what it shall.

    Raises:
        RunnerError: The user's code has taken the signal, or closed the door.
    """
    status = _status(door.pid)
    if not status:
        return  # no /proc here
    if not _is_in(status.get("SigCgt", "0")):
        raise _deaf(f"the job's code has changed what the signal {ASK_SIGNAL} does")
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
    if not _status(door.pid):
        time.sleep(_QUIET_SECONDS)
        return door.path.stat().st_size == size
    return not (_busy(door.pid) - busy)


def _busy(pid: int) -> frozenset[str]:
    """Return the threads in which the signal is blocked."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")  # names are all we need
    except OSError:
        return frozenset()
    return frozenset(task for task in tasks if _is_in(_status(pid, task).get("SigBlk", "0")))


def _is_in(mask: str) -> bool:
    return bool(int(mask, 16) >> (ASK_SIGNAL - 1) & 1)


def _tidy(text: str) -> str:
    """Leave out what is ours, and put the main thread first, which faulthandler writes last."""
    threads = [thread.splitlines() for thread in text.strip().split("\n\n")]
    theirs = [lines for lines in threads if not any(_ANSWERER in line for line in lines)]
    shown = ["\n".join(itertools.takewhile(lambda line: _CALLER not in line, lines)) for lines in reversed(theirs)]
    return "".join(f"{thread.replace('Current thread', 'Thread')}\n\n" for thread in shown).rstrip("\n") + "\n"


def _gone(door: Door) -> RunnerError:
    return RunnerError("the job's process ended", why=f"it was the process {door.pid}", code="not-running")


def _deaf(why: str) -> RunnerError:
    return RunnerError("the job cannot be asked for its stacks", why=why, code="no-stacks")


def _silent(door: Door) -> RunnerError:
    states = {"D": "it waits in the kernel, for a device or a file system", "T": "it is stopped", "t": "it is traced"}
    why = states.get(_state(door.pid), "it blocks the signal, or does not get to run")
    return RunnerError(f"the job did not answer within {_ANSWER_SECONDS:.0f} s", why=why, code="no-stacks")


def _other_spaces(pid: int) -> list[str]:
    return [kind for kind in _KINDS if _space(pid, kind) not in {"", _space(os.getpid(), kind)}]


def _space(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def _set_space(descriptor: int) -> None:
    if sys.version_info >= (3, 12):
        os.setns(descriptor)
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

"""Keeping: fork a worker, hear it out, end whatever it leaves behind, and judge.

The keeper stays small and single-threaded, so that forking it is safe and quick. It holds the job's key only after the
fork: user code never has it in memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetic._runner import judging, sealing, working
from kinetic._runner.interpreter import STACKS_SIGNAL
from kinetic._runner.work import Listener, Work

_GRACE_SECONDS = 5.0  # for atexit handlers after the result is complete, and between SIGTERM and SIGKILL
_STACKS_SECONDS = 0.5  # for writing the stacks before the deadline's kill
_LOOK_SECONDS = 60.0  # nothing is polled: a look this rare only guards against a lost wake-up
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


class Bell:
    """SIGCHLD as something that can be waited for."""

    def __init__(self) -> None:
        self.descriptor, self._write = os.pipe()
        for end in (self.descriptor, self._write):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)

    def quiet(self) -> None:
        """Take out what rang."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.descriptor, 4096):
                pass


@dataclass
class Watch:
    """One worker under watch. Its keeper is the only one who changes this.

    Attributes:
        task: What it does.
        pid: Its process, and its process group.
        listener: What it says.
        began: Monotonic time of the fork.
    """

    task: Work
    pid: int
    listener: Listener
    began: float
    status: int | None = None
    peak_bytes: int = 0
    done_at: float | None = None
    dumped_at: float | None = None
    term_at: float | None = None
    deadline_hit: bool = False
    stopped: bool = False
    closing: list[int] = field(default_factory=list)
    memory_kills: int = 0


def use_linux() -> Any:
    """Return libc where a process can ask to be told of its parent's death, else None."""
    if sys.platform != "linux" or os.environ.get("KINETIC_PORTABLE") == "1":
        return None
    import ctypes  # 5 ms; once in a keeper's life

    return ctypes.CDLL(None, use_errno=True)


def adopt_orphans(libc: Any, *, on: bool = True) -> None:
    """Become the parent of every descendant whose own parent ends, so that none escapes; or stop being that."""
    if libc is not None:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def start(task: Work, libc: Any, close: list[int]) -> Watch:
    """Fork a worker.

    Args:
        task: What it will do.
        libc: From ``use_linux``.
        close: Descriptors of the keeper that the worker must not hold.
    """
    sealing.reserve(task.reserve)
    ear, mouth = os.pipe()
    os.set_blocking(ear, False)
    keeper = os.getpid()
    life, alive = os.pipe() if libc is None else (-1, -1)
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        _die_with(keeper, libc, life, alive)
        for descriptor in (*close, ear):
            os.close(descriptor)
        working.work(task, mouth)
    os.close(mouth)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # whoever of the two comes first
    if life >= 0:
        os.close(life)
    closing = [ear] + ([alive] if alive >= 0 else [])
    return Watch(task, pid, Listener(ear), time.monotonic(), closing=closing, memory_kills=_memory_kills())


def _die_with(keeper: int, libc: Any, life: int, alive: int) -> None:
    """Arrange that this worker ends when its keeper does."""
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        import threading

        os.close(alive)
        threading.Thread(target=_end_at_eof, args=(life,), name="kinetic-life", daemon=True).start()
    if os.getppid() != keeper:
        os._exit(70)


def _end_at_eof(life: int) -> None:
    os.read(life, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def watch(watched: Watch, bell: Bell, *, wake: int = -1, stop: Callable[[], bool] = bool) -> judging.Ending:
    """Wait for the worker's end; obey its deadline and a wish to stop; leave no process of it behind.

    Args:
        watched: From ``start``.
        bell: Rings when a child ends.
        wake: A descriptor that becomes readable when ``stop`` should be asked.
        stop: Says whether somebody wants the job to end.
    """
    poll = select.poll()
    for descriptor in (bell.descriptor, watched.listener.descriptor, wake):
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
    hears = True
    while True:
        told = poll.poll(_patience(watched) * 1000)
        if not told and not watched.stopped:  # a look this rare guards against a wish that nobody told
            watched.stopped = stop()
        for descriptor, _ in told:
            if descriptor == watched.listener.descriptor:
                hears = watched.listener.hear()
                if not hears:
                    poll.unregister(descriptor)
            elif descriptor == wake:
                _drain(wake)
                watched.stopped = watched.stopped or stop()
            else:
                bell.quiet()
        _reap(watched)
        if watched.status is not None:
            break
        _act(watched)
    while hears and watched.listener.hear() and _more(watched.listener.descriptor):
        pass
    _end_the_rest(watched)
    for descriptor in watched.closing:
        os.close(descriptor)
    return _ending(watched)


def _patience(watched: Watch) -> float:
    """Return how many seconds until something must be done without anybody telling."""
    now = time.monotonic()
    times = [now + _LOOK_SECONDS]
    if watched.listener.report.done and watched.done_at is None:
        watched.done_at = now
    if watched.done_at is not None:
        times.append(watched.done_at + _GRACE_SECONDS)
    elif watched.dumped_at is not None:
        times.append(watched.dumped_at + _STACKS_SECONDS)
    elif watched.task.deadline is not None:
        times.append(watched.began + watched.task.deadline)
    if watched.stopped:
        times.append(now if watched.term_at is None else watched.term_at + _GRACE_SECONDS)
    return max(0.0, min(times) - now)


def _act(watched: Watch) -> None:
    """Do what time or somebody's wish demands."""
    now = time.monotonic()
    if watched.done_at is not None:
        if now >= watched.done_at + _GRACE_SECONDS:
            _signal(watched, signal.SIGKILL)
        return
    if watched.stopped and watched.term_at is None:
        watched.term_at = now
        _signal(watched, signal.SIGTERM)
    elif watched.term_at is not None and now >= watched.term_at + _GRACE_SECONDS:
        _signal(watched, signal.SIGKILL)
    if watched.task.deadline is None or watched.listener.report.done:
        return
    if watched.dumped_at is None and now >= watched.began + watched.task.deadline:
        watched.dumped_at, watched.deadline_hit = now, True
        with contextlib.suppress(ProcessLookupError):
            os.kill(watched.pid, STACKS_SIGNAL)
    elif watched.dumped_at is not None and now >= watched.dumped_at + _STACKS_SECONDS:
        _signal(watched, signal.SIGKILL)


def _reap(watched: Watch) -> None:
    """Collect every child that ended: the worker, and orphans that became ours."""
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == watched.pid:
            watched.status = status
            watched.peak_bytes = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _end_the_rest(watched: Watch) -> None:
    """Kill what is left of the worker's group, and whatever else of it became our child."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(watched.pid, signal.SIGKILL)
    limit = time.monotonic() + _GRACE_SECONDS
    while time.monotonic() < limit:
        _reap(watched)
        left = _children()
        if not left:
            return
        for child in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.002)  # the kernel is at it; orphans of orphans come up one generation at a time


def _children() -> list[int]:
    """Return this process's children; with orphans adopted, that is every descendant sooner or later."""
    try:
        pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return []
    if pid:
        return _children()
    me = os.getpid()
    try:
        return [int(word) for word in Path(f"/proc/{me}/task/{me}/children").read_text().split()]
    except OSError:
        return []


def _signal(watched: Watch, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(watched.pid, number)


def _ending(watched: Watch) -> judging.Ending:
    report = watched.listener.report
    return judging.Ending(
        status=watched.status,
        phase=report.phase,
        word=report.done,
        deadline=watched.deadline_hit,
        stopped=watched.stopped,
        peak_bytes=watched.peak_bytes,
        memory_kill=_memory_kills() > watched.memory_kills,
    )


def _memory_kills() -> int:
    """Return how many processes the kernel has killed for want of memory so far; 0 where it does not tell."""
    try:
        with open("/proc/vmstat", "rb", buffering=0) as file:
            _, _, rest = file.read(1 << 16).partition(b"\noom_kill ")
            return int(rest.split(None, 1)[0]) if rest else 0
    except (OSError, ValueError):
        return 0


def _more(descriptor: int) -> bool:
    return bool(select.select([descriptor], [], [], 0)[0])


def _drain(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(descriptor, 4096):
            pass


def load_ahead() -> None:
    """Import what every worker needs, so that a fork is a warm start; nothing that starts threads."""
    import random
    import shutil

    import cloudpickle

    _ = (random, shutil, cloudpickle)

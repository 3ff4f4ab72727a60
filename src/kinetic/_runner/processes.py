"""What the kernel tells about processes, and the memory limit of a job on this machine.

The kernel would enforce the limit of a control group, but only the owner of a delegated part of that tree can create
one; RLIMIT_AS counts addresses, of which JAX alone reserves many times what it uses. So the supervisor measures once a
second: resident memory first, which is cheap, and only if that is too much each process's proportional share, because
forked processes share most of their pages.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kinetic._wire import python_runtime

CHECK_SECONDS = 1.0
TOLERANCE = 0.1  # of the limit: a job that runs at its limit is not ended for an error of measurement

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
_NAME_BYTES = 15  # the kernel cuts a name there
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_MOUNTS = "/proc/self/mountinfo"
_DETACH = 2  # MNT_DETACH
# Words of commands: the trackers of multiprocessing and of joblib, and what PyTorch starts for tensors shared as files.
_TRACKERS = (b"resource_tracker", b"torch_shm_manager")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # how the kernel writes a space, a tab, a line's end or a backslash in a path
_ARGUMENTS = 45, 46  # of /proc/PID/stat behind the name: where the arguments begin and end in memory


def load_libc() -> Any:
    """Return libc on Linux, where a process can be notified of its parent's death, else None."""
    if sys.platform != "linux" or python_runtime.is_portable():
        return None
    import ctypes  # 5 ms; once in a supervisor's life

    return ctypes.CDLL(None, use_errno=True)


def write_lines_of_c() -> Callable[[], object]:
    """Let what C prints leave the process line by line, as on a terminal, and return what writes the rest of a line.

    Its buffer is lost with a process that ends by ``_exit``.
    """
    libc = load_libc()
    if libc is None:
        return int
    import ctypes

    stdout = ctypes.c_void_p.in_dll(libc, "stdout")
    libc.setvbuf(stdout, None, 1, 0)  # _IOLBF
    return functools.partial(libc.fflush, stdout)


def adopt_orphans(libc: Any, *, on: bool = True) -> None:
    """Become the parent of every descendant whose own parent ends, so that none escapes; or stop being that."""
    if libc is not None:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def end_with_parent(libc: Any) -> None:
    """Have the kernel kill this process when its parent ends."""
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def hide_memory(libc: Any, *, on: bool = True) -> None:
    """Let no process of the same user read this one's memory or open its files, nor that of what it forks; or end that.

    A process that may trace all others (CAP_SYS_PTRACE) can do so all the same.
    """
    if libc is not None:
        libc.prctl(_PR_SET_DUMPABLE, int(not on), 0, 0, 0)


def status(pid: int, task: str = "") -> dict[str, str]:
    """Return /proc/PID/status, of the process or of one of its threads; empty if the kernel does not tell."""
    lines = _read(f"/proc/{pid}/task/{task}/status" if task else f"/proc/{pid}/status").decode(errors="replace")
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines.splitlines())}


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if the kernel does not tell."""
    return int(status(pid).get("PPid", "0"))


def state(pid: int) -> str:
    """Return the letter of a process's state, e.g. "Z"; "X", dead, if the kernel does not tell."""
    return status(pid).get("State", "X")[:1]


def started_of(pid: int) -> str:
    """Return when a process began, in the kernel's own count; "" if the kernel does not tell or the process is gone."""
    words = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return words[19].decode() if len(words) > 19 else ""


def children_of(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:  # it ended
        pass
    return found


def tree_of(pid: int) -> list[int]:
    """Return a process and all its descendants that still have their parents."""
    found = [pid]
    for parent in found:  # grows while it is read
        found += children_of(parent)
    return found


def is_tracker(pid: int) -> bool:
    """Return whether a process removes the memory and semaphores that others share, once those have ended."""
    command = _read(f"/proc/{pid}/cmdline")
    return any(word in command for word in _TRACKERS)


def mounts() -> list[tuple[str, str]]:
    """Return the mounts that this process sees, in their order: their numbers and where they are; none elsewhere."""
    return [(words[0], _point(words)) for words in _mount_lines()]


def mounts_in_memory() -> set[str]:
    """Return where a file system is mounted that is in memory, and so of this container only."""
    return {_point(words) for words in _mount_lines() if words[words.index("-") + 1] == "tmpfs"}


def _mount_lines() -> Iterator[list[str]]:
    lines = _read(_MOUNTS, 1 << 24).decode(errors="surrogateescape").split("\n")
    return (line.split() for line in lines if line)


def _point(words: Sequence[str]) -> str:
    return _ESCAPED.sub(lambda code: chr(int(code[1], 8)), words[4])


def mounts_below(folder: Path) -> list[str]:
    """Return where something is mounted below a folder of ours, the innermost first, and touch none of it."""
    if folder.name.encode() not in _read(_MOUNTS, 1 << 24):  # as ever: then nothing is taken apart
        return []
    top = os.path.realpath(folder) + os.sep
    return [point for _, point in reversed(mounts()) if point.startswith(top)]


def detach_mounts(folder: Path) -> bool:
    """Take away what a job left mounted below a folder of its own; return whether nothing is there any more.

    What is mounted is not ours: where it stays, the folder must not be removed with all that is in it.
    """
    found = mounts_below(folder)
    libc = load_libc() if found else None
    if libc is not None:
        for point in found:
            libc.umount2(os.fsencode(point), _DETACH)
    return not found or not mounts_below(folder)


def memory_bytes() -> int:
    """Return how much memory is available to us: the limit of this container, else the machine's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _MEMORY_LIMITS:
        try:
            return min(machine, int(Path(path).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return machine


def can_measure_memory() -> bool:
    """Return whether this machine tells what a process holds; macOS has no /proc."""
    return sys.platform == "linux" and os.path.exists("/proc/self/statm")


def resident(pid: int) -> int:
    """Return the bytes that a process holds, with those that it shares; 0 when it is gone."""
    words = _read(f"/proc/{pid}/statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else 0


def proportional_share(pid: int) -> int:
    """Return the bytes that a process holds, those that it shares divided by the number of their holders."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return resident(pid)  # a kernel before 4.14, or a process that we may no longer inspect


class MemoryGuard:
    """Measures what the processes of one host of a job hold; ``share`` only if the sum of ``resident`` is too much."""

    def __init__(
        self,
        limit_bytes: int,
        processes: Callable[[], Sequence[int]],
        *,
        resident: Callable[[int], int] = resident,
        share: Callable[[int], int] = proportional_share,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = limit_bytes * (1 + TOLERANCE)
        self._processes, self._resident, self._share, self._clock = processes, resident, share, clock
        self.due = clock() + CHECK_SECONDS

    def exceeded(self) -> int:
        """Return how many bytes the processes hold if that is too much, else 0; measures once a second at most."""
        now = self._clock()
        if now < self.due:
            return 0
        self.due = now + CHECK_SECONDS
        pids = self._processes()
        if sum(map(self._resident, pids)) <= self._most:
            return 0
        held = sum(map(self._share, pids))
        return held if held > self._most else 0


class ProcessTitle:
    """What `ps` and `nvidia-smi` (arguments) and `top` (name) show of this process.

    On Linux both are written in place, as the library setproctitle does; elsewhere nothing happens. A fork has its own
    title, so each process sets and resets only its own.
    """

    def __init__(self, libc: Any) -> None:
        self._libc, self._start, self._was, self._name = libc, 0, b"", b""
        if libc is None:
            return
        try:
            words = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
            start, end = (int(words[at]) for at in _ARGUMENTS)
            self._was = Path("/proc/self/cmdline").read_bytes()
            self._name = Path("/proc/self/comm").read_bytes().strip()
        except (OSError, IndexError, ValueError):
            return
        if start and len(self._was) == end - start:  # else the arguments are elsewhere: do not touch
            self._start = start

    def set(self, name: str, more: str) -> None:
        """Show a name, and more text if there is room: what is longer than the original arguments is cut off."""
        self._write(f"kinetic: {name} {more}".encode(errors="replace"), name.encode(errors="replace"))

    def reset(self) -> None:
        """Show the original title."""
        self._write(self._was, self._name)

    def _write(self, arguments: bytes, name: bytes) -> None:
        if not self._start:
            return
        import ctypes  # loaded with libc

        room = len(self._was)
        # The last byte stays zero: of arguments that do not end so, the kernel shows what comes after them as well.
        ctypes.memmove(self._start, arguments[: room - 1].ljust(room, b"\0"), room)
        self._libc.prctl(_PR_SET_NAME, name[:_NAME_BYTES], 0, 0, 0)


def _read(path: str, most: int = 1 << 16) -> bytes:
    try:
        with open(path, "rb", buffering=0 if most == 1 << 16 else -1) as file:
            return file.read(most)
    except OSError:  # the process is gone
        return b""

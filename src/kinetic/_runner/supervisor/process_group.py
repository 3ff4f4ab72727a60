"""What the kernel says of processes, and what we ask of it for ours: orphans, memory, what `ps` and `top` show."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_NAME_BYTES = 15  # the kernel cuts a name there
_MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_ARGUMENTS = 45, 46  # of /proc/PID/stat behind the name: where the arguments begin and end in memory


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 where the system does not tell."""
    return int(status(pid).get("PPid", "0"))


def started_of(pid: int) -> str:
    """Return when a process began, as the kernel counts; "" where it does not tell or the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def state(pid: int) -> str:
    """Return the letter of how a process is, e.g. "Z"; "X", dead, where the kernel says nothing of it."""
    return status(pid).get("State", "X")[:1]


def status(pid: int, task: str = "") -> dict[str, str]:
    """Return what the kernel says of a process, or of one of its threads; nothing where it says nothing."""
    path = f"/proc/{pid}/task/{task}/status" if task else f"/proc/{pid}/status"
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


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


def memory_bytes() -> int:
    """Return how much memory there is for us: the limit of this container, else what the machine has."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _MEMORY_LIMITS:
        try:
            return min(machine, int(Path(path).read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return machine


class Title:
    """What this process is shown as: `ps` and `nvidia-smi` read its arguments, `top` its name.

    On Linux both are written in place, as the library setproctitle does; elsewhere nothing happens. A fork has a title
    of its own from then on, so whoever made it first may set and reset it.

    Args:
        libc: From ``use_linux``; None where there is none.
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
        if start and len(self._was) == end - start:  # else they lie elsewhere: hands off
            self._start = start

    def set(self, name: str, more: str) -> None:
        """Show a name, and behind it more where there is room: what is longer than the arguments were is cut off."""
        self._write(f"kinetic: {name} {more}".encode(errors="replace"), name.encode(errors="replace"))

    def reset(self) -> None:
        """Show what stood there when this was made."""
        self._write(self._was, self._name)

    def _write(self, arguments: bytes, name: bytes) -> None:
        if not self._start:
            return
        import ctypes  # whoever has a libc has loaded it

        room = len(self._was)
        # The last byte stays zero: of arguments that do not end so, the kernel shows what lies behind them as well.
        ctypes.memmove(self._start, arguments[: room - 1].ljust(room, b"\0"), room)
        self._libc.prctl(_PR_SET_NAME, name[:_NAME_BYTES], 0, 0, 0)

"""A memory limit on this machine: what the processes of a job hold, looked at once a second, and when it is too much.

The kernel would hold a control group to its limit, but only whoever owns a delegated part of that tree can make one;
RLIMIT_AS counts addresses, of which JAX alone reserves many times what it uses. So the supervisor looks: first at
resident memory, which is cheap, and only where that is too much at each process's share of it, because forked processes
hold most of their pages together.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence

LOOK_SECONDS = 1.0
TOLERANCE = 0.1  # of the limit: a job that runs at its limit is not ended for what a measurement adds

Reader = Callable[[int], int]


def tells_memory() -> bool:
    """Return whether this machine says what a process holds; macOS has no /proc."""
    return sys.platform == "linux" and os.path.exists("/proc/self/statm")


def tree_of(pid: int) -> list[int]:
    """Return a process and all its descendants that still have their parents."""
    found = [pid]
    for parent in found:  # grows while it is read
        found += children_of(parent)
    return found


def children_of(pid: int) -> list[int]:
    """Return the children of all threads of a process."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    except OSError:  # it ended
        pass
    return found


def resident(pid: int) -> int:
    """Return the bytes that a process holds, with those that it shares; 0 when it is gone."""
    words = _read(f"/proc/{pid}/statm").split()
    return int(words[1]) * os.sysconf("SC_PAGE_SIZE") if len(words) > 1 else 0


def proportional_share(pid: int) -> int:
    """Return the bytes that a process holds, those that it shares divided by the number of their holders."""
    for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
        if line.startswith(b"Pss:"):
            return int(line.split()[1]) * 1024
    return resident(pid)  # a kernel before 4.14, or a process that is not ours to look at any more


class Guard:
    """Watches what one host of a job holds.

    Args:
        limit_bytes: What it asked for.
        processes: Returns its processes.
        resident: Returns what a process holds, with what it shares.
        share: Returns its share; asked only where the sum of the former is too much.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        limit_bytes: int,
        processes: Callable[[], Sequence[int]],
        *,
        resident: Reader = resident,
        share: Reader = proportional_share,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = limit_bytes * (1 + TOLERANCE)
        self._processes, self._resident, self._share, self._clock = processes, resident, share, clock
        self.due = clock() + LOOK_SECONDS

    def exceeded(self) -> int:
        """Return how many bytes the processes hold if that is too much, else 0; looks once a second at most."""
        now = self._clock()
        if now < self.due:
            return 0
        self.due = now + LOOK_SECONDS
        pids = self._processes()
        if sum(map(self._resident, pids)) <= self._most:
            return 0
        held = sum(map(self._share, pids))
        return held if held > self._most else 0


def _read(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(1 << 16)
    except OSError:  # the process is gone
        return b""

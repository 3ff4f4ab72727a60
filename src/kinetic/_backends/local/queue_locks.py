"""Who holds the lock of the queue, and how a process that was stopped while it held it gives it back.

A transaction here takes a millisecond or two, so whoever wants the lock simply waits. But a process that is stopped in
the middle of one (Ctrl-Z, SIGSTOP, a scheduler) would keep the lock for as long as it is stopped, and with it every
job of this machine. The kernel tells who holds a record lock, so such a process is continued until it has given back
the lock, milliseconds later, and is then stopped again. One that a debugger stopped, or that runs in a container that
we cannot see into, is waited for. So is everybody where the kernel does not tell (macOS).
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from kinetic._runner import processes

_RELEASE_SECONDS = 1.0  # a thousand times what a transaction takes
_WAL_LOCKS = range(120, 123)  # bytes of the -shm file for writing, checkpointing and recovering; then come readers
# Source of the byte numbers: sqlite.org/walformat.html, "WAL Locks", read 2026-11-22.


def release_stopped_holder(path: Path) -> int:
    """Let a process that was stopped while it held the lock of a file finish with it, and stop it again.

    Args:
        path: A database of SQLite, or a lock file.

    Returns:
        A process that holds the lock still; 0 if there is none, or the system does not tell.
    """
    for pid in _holders(path):
        if processes.state(pid) != "T" or not _has_open(pid, path):
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)
            try:
                limit = time.monotonic() + _RELEASE_SECONDS
                while pid in _holders(path) and time.monotonic() < limit:
                    time.sleep(0.0005)
            finally:
                os.kill(pid, signal.SIGSTOP)
    return next((pid for pid in _holders(path)), 0)


def say(path: Path, pid: int) -> None:
    """Tell whoever waits for the lock whom it waits for."""
    from kinetic._output import warn  # a client has it; this is rare

    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:80]
    except OSError:
        command = "gone meanwhile"
    warn(f"waiting for process {pid} ({command}), which is changing {path}")


def _holders(path: Path) -> Iterator[int]:
    """Yield the other processes whose lock on a database or lock file keeps others from changing it."""
    shm = Path(f"{path}-shm")
    inodes = {number: name for name in (path, shm) if (number := _inode(name))}
    has_wal = shm in inodes.values()
    try:
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        words = line.split()  # "12: POSIX  ADVISORY  WRITE 4711 08:01:131 120 120"; one that waits has "->" in it
        if len(words) != 8 or words[1] != "POSIX":
            continue
        name = inodes.get(int(words[5].rpartition(":")[2]))
        blocks = int(words[6]) in _WAL_LOCKS if name == shm else words[3] == "WRITE" or not has_wal
        if name is not None and blocks and int(words[4]) not in {0, os.getpid()}:
            yield int(words[4])


def _inode(path: Path) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return 0


def _has_open(pid: int, path: Path) -> bool:
    """Say whether a process has this very file open: an inode's number alone may be that of another disk."""
    wanted = _inode(path)
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                about = os.stat(f"/proc/{pid}/fd/{name}")
                if about.st_ino == wanted and about.st_dev == os.stat(path).st_dev:
                    return True
    return False

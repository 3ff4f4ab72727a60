"""Which process holds the lock of the queue; one that was stopped in the middle of a change finishes it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from kinetic._runner import processes
from kinetic._wire import folders

_RELEASE_SECONDS = 1.0  # a thousand times what a transaction takes
_WAL_LOCKS = range(120, 123)  # bytes of the -shm file for writing, checkpointing and recovering; then come readers
# Source of the byte numbers: sqlite.org/walformat.html, "WAL Locks", read 2026-11-22.


def release_stopped_holder(path: Path) -> int:
    """Let a process that was stopped while it held the lock of a file finish with it, and stop it again.

    Args:
        path: A SQLite database, or a lock file.

    Returns:
        A process that still holds the lock; 0 if there is none, or the system does not tell.
    """
    for pid in _lock_holders(path):
        if processes.state(pid) != "T" or not _has_open(pid, path):
            continue
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGCONT)
            try:
                limit = time.monotonic() + _RELEASE_SECONDS
                while pid in _lock_holders(path) and time.monotonic() < limit:
                    time.sleep(0.0005)
            finally:
                os.kill(pid, signal.SIGSTOP)
    return next(_lock_holders(path), 0)


def report(path: Path, pid: int) -> None:
    """Tell the user for which process we wait."""
    from kinetic._output.terminal import warn  # a client has it; a supervisor has no terminal

    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:80]
    except OSError:
        command = "it has ended"
    warn(f"waiting for process {pid} ({command}), which is changing {path}")


def _lock_holders(path: Path) -> Iterator[int]:
    """Yield the other processes whose lock on a database or lock file keeps others from changing it."""
    shm = Path(f"{path}-shm")
    inodes = {folders.file_id(name)[1]: name for name in (path, shm) if name.exists()}
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


def _has_open(pid: int, path: Path) -> bool:
    """Return whether a process has this very file open: an inode's number alone may be that of another disk."""
    wanted = folders.file_id(path)
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            if folders.file_id(Path(f"/proc/{pid}/fd/{name}")) == wanted != (0, 0):
                return True
    return False

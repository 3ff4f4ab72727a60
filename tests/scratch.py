"""The folder in which one run of the tests keeps everything temporary, so that no run fills the disk for the next."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "kt-"  # short: the path of a socket has at most 107 characters
KEPT = 3600.0  # seconds: what a failed run left can be looked at, also after the next run
ENOUGH = 8 * 10**9  # bytes: the whole suite, with its environments and a built cluster, takes some 5 GB
IN_MEMORY = Path("/dev/shm")  # `make test` works there, as its units force thousands of files to the disk


def place() -> Path:
    """Return the folder for temporary files: in memory where that was asked for, can run programs and has the room."""
    if os.environ.get("KINETIC_TEST_IN_MEMORY") == "1" and "TMPDIR" not in os.environ:
        with contextlib.suppress(OSError, IndexError):
            there, memory = os.statvfs(IN_MEMORY), Path("/proc/meminfo").read_text().partition("MemAvailable:")[2]
            free = min(there.f_bavail * there.f_frsize, int(memory.split()[0]) * 1024)
            if not there.f_flag & os.ST_NOEXEC and free >= ENOUGH:
                return IN_MEMORY
    return Path(tempfile.gettempdir())


def begin() -> Path:
    """Remove what dead runs left, and make the folder of this one the place of all temporary files."""
    top = place()
    for left in top.glob(f"{PREFIX}*"):
        if is_left(left) and not is_mounted(left):
            shutil.rmtree(left, ignore_errors=True)
    folder = top / f"{PREFIX}{os.getpid()}"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)  # as /tmp: some tests run as another user
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return folder


def is_left(folder: Path) -> bool:
    """Tell whether the run of this folder has ended some time ago."""
    pid = folder.name.removeprefix(PREFIX)
    try:
        return pid.isdigit() and not Path("/proc", pid).exists() and time.time() - folder.stat().st_mtime > KEPT
    except OSError:
        return False


def is_mounted(folder: Path) -> bool:
    """Tell whether something is mounted below a folder: removing it would empty what is mounted."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return False
    return any(Path(line.split()[4]).is_relative_to(folder) for line in mounts.splitlines())


def end(folder: Path, *, passed: bool) -> None:
    """Remove the folder of a run that passed; that of another one stays for whoever looks why."""
    if passed and not is_mounted(folder):
        shutil.rmtree(folder, ignore_errors=True)


def too_little_room() -> str | None:
    """Say how much room is missing on the disk, or None where a run has enough."""
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free >= ENOUGH:
        return None
    return (
        f"only {free / 1e9:.1f} GB are free in {tempfile.gettempdir()}, and the suite takes up to {ENOUGH / 1e9:.0f}; "
        f"tests may fail with 'No space left on device'"
    )

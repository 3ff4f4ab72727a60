"""Shortage: whether a pod that is told to end is evicted because its machine runs out of memory or of disk.

To the cluster an eviction is a disruption like any other, so the job begins again, and would be evicted again for ever.
So the attempt that is cut short writes down what its machine was short of, and after three such attempts in a row the
next one fails the job. A kubelet evicts when 100 MiB of memory or 10 % of the disk are left, unless it was told
otherwise, and then gives a pod one second. Where a machine was short of something from the beginning, that is not why:
a cluster puts no pods there.
"""

from __future__ import annotations

import os
from pathlib import Path

from kinetic._stores.protocol import Store
from kinetic._wire import attempt as notes
from kinetic._wire.attempt import AttemptNote
from kinetic.errors import KineticError

MEMORY, DISK = "memory", "disk"
MOST = 3  # attempts in a row; as often as other failures of what is around a job are tried again
SHORT_OF = "short_of"  # in the details of a note
_MEMINFO = Path("/proc/meminfo")  # of the machine, also inside a container
_LITTLE_KIB = 512 << 10  # of memory: more than a kubelet's own threshold, since some was given back meanwhile
_LITTLE_DISK = 0.1


def of_this_machine(folder: Path, meminfo: Path = _MEMINFO) -> tuple[str, ...]:
    """Return what this machine is short of, of MEMORY and DISK.

    Args:
        folder: A folder of this container's own, which lies on the machine's disk.
        meminfo: Where the kernel tells of memory.
    """
    return (*((MEMORY,) if _is_full(meminfo) else ()), *((DISK,) if _has_no_room(folder) else ()))


def _is_full(meminfo: Path) -> bool:
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) < _LITTLE_KIB
    except (OSError, ValueError, KeyError):
        return False


def _has_no_room(folder: Path) -> bool:
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return disk.f_blocks > 0 and disk.f_bavail / disk.f_blocks < _LITTLE_DISK


def that_lasts(store: Store, note: AttemptNote, key: bytes) -> str:
    """Return what the machines of all of the last attempts before this one were short of, or "".

    Args:
        store: Where the job lies.
        note: Of this attempt.
        key: The job's key.
    """
    found = ""
    for attempt in range(note.attempt - 1, note.attempt - 1 - MOST, -1):
        said = _of(store, note.job_id, attempt, key) if attempt >= 0 else ""
        if not said:
            return ""
        found = found or said
    return found


def in_words(lacking: str) -> str:
    """Return why a job is given up."""
    how = f'resources = {{ {lacking} = "64Gi" }} under [tool.kinetic] in pyproject.toml asks for more'
    return f"{MOST} times in a row its machine ran out of {lacking}, and it was evicted; {how}"


def _of(store: Store, job_id: str, attempt: int, key: bytes) -> str:
    try:
        return str(notes.read(store, job_id, attempt, key).details.get(SHORT_OF) or "")
    except KineticError:  # not there, or not to be read now: then nobody knows
        return ""

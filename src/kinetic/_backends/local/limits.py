"""How much may run here at once: the cores this process may use, and the GPUs that are there.

A client reads this when it submits, and the queue keeps it with the job: whoever starts the job later goes by that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._backends.local.queue import Limits
from kinetic.errors import CapacityError, OptionError

if TYPE_CHECKING:
    from kinetic._hardware.placement import Placement


def limits(environ: Mapping[str, str]) -> Limits:
    """Return the slots and devices of this machine.

    KINETIC_LOCAL_SLOTS sets the number of "cpu" jobs; KINETIC_LOCAL_GPUS names the devices, e.g. "0,1" or "none".
    """
    return Limits(_slots(environ.get("KINETIC_LOCAL_SLOTS", "")), _gpus(environ.get("KINETIC_LOCAL_GPUS", "")))


def cores() -> int:
    """Return the cores that affinity and the control group's quota allow, at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return max(1, min(allowed, math.ceil(quota)) if quota else allowed)


def check_gpus(placement: Placement, there: Sequence[str], *, strict: bool) -> tuple[str, ...]:
    """Refuse GPUs that are not here, or say that the job runs on the CPU instead.

    Args:
        placement: The hardware.
        there: The GPUs of this machine.
        strict: Whether the user asked for this machine by name: then hardware that is absent is an error.

    Raises:
        CapacityError: There are too few.
    """
    wanted = placement.chips_per_host
    if wanted <= len(there):
        return ()
    if there or strict:
        raise CapacityError(
            f"{placement.name} needs {wanted} GPU(s), and this machine has {len(there)}",
            why="looked for /dev/nvidia*, or at KINETIC_LOCAL_GPUS if it is set",
            next='ask for fewer, or use accelerator="cpu"',
        )
    return (f"{placement.name} is not here: the job runs on the CPU",)


def _slots(setting: str) -> int:
    if not setting:
        return cores()
    if setting.isdigit() and int(setting) > 0:
        return int(setting)
    raise OptionError(
        f"KINETIC_LOCAL_SLOTS={setting!r} is not a number of jobs",
        why="it takes a whole number of at least 1",
        next="unset KINETIC_LOCAL_SLOTS",
    )


def _gpus(setting: str) -> tuple[str, ...]:
    if setting == "none":
        return ()
    if setting:
        return tuple(dict.fromkeys(word.strip() for word in setting.split(",") if word.strip()))
    devices = [name.removeprefix("nvidia") for name in os.listdir("/dev") if name.startswith("nvidia")]
    return tuple(sorted((name for name in devices if name.isdigit()), key=int))


def _quota() -> float | None:
    """Return the cores that the control group's quota amounts to, or None without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        folder = Path("/sys/fs/cgroup/cpu")
        quota_us = int((folder / "cpu.cfs_quota_us").read_text())
        return quota_us / int((folder / "cpu.cfs_period_us").read_text()) if quota_us > 0 else None
    except (OSError, ValueError):
        return None

"""How much may run on this machine, and how long: slots, GPUs, emulated slices, and what ends all jobs of a session.

A client reads this when it submits, and the queue stores it with the job.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._wire import NamedTuple, python_runtime
from kinetic.errors import CapacityError, OptionError

if TYPE_CHECKING:
    from kinetic._hardware.placement import Placement

_ORDER = "CUDA_DEVICE_ORDER"
PRELOAD = "KINETIC_LOCAL_PRELOAD"
_ON, _OFF = ("", "on", "1", "true", "yes"), ("off", "0", "false", "no")
_MOST = 1_000_000  # jobs or hosts at once: more than SQLite counts is an error of its own
_MAX_HOSTS = 8  # they take 10 s to start on two cores
_BYTES_PER_HOST = 400 << 20  # what a process with jax and a small model holds, measured
_NO_LIMIT = 1 << 60  # bytes; control groups of version 1 say so with a number
_counted: dict[str, int] = {}  # GPUs, by the folder of devices: asked for each of thousands of jobs


class Limits(NamedTuple):
    """How many "cpu" jobs may run at once, and which devices "gpu" jobs may use."""

    slots: int
    gpus: tuple[str, ...]


def read_limits(environ: Mapping[str, str]) -> Limits:
    """Return the slots and devices of this machine.

    KINETIC_LOCAL_SLOTS sets the number of "cpu" jobs; KINETIC_LOCAL_GPUS names the devices, e.g. "0,1" or "none".

    Raises:
        OptionError: One of the variables that are read for a job has no valid value.
    """
    if environ.get(PRELOAD, "").lower() not in (*_ON, *_OFF):
        raise OptionError(f"{PRELOAD}={environ[PRELOAD]!r} is neither on nor off", next=f"unset {PRELOAD}")
    return Limits(_count(environ, "KINETIC_LOCAL_SLOTS", "jobs") or cores(), read_gpus(environ))


def may_preload(environ: Mapping[str, str]) -> bool:
    """Return whether libraries may be imported before the jobs that need them begin."""
    return environ.get(PRELOAD, "").lower() not in _OFF


def read_gpus(environ: Mapping[str, str], devices: str = "/dev") -> tuple[str, ...]:
    """Return the GPUs that jobs may use, as CUDA_VISIBLE_DEVICES names them.

    Without KINETIC_LOCAL_GPUS these are the ones that are left to the client itself: Slurm and users of shared machines
    set CUDA_VISIBLE_DEVICES. Else all: CUDA counts from 0 what it can open, whatever numbers the device files have,
    which in a container are those of the machine.
    """
    setting = environ.get("KINETIC_LOCAL_GPUS", "")
    if setting == "none":
        return ()
    if setting:
        return _names(setting)
    count = count_gpus(devices)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not count:
        return tuple(map(str, range(count)))
    # CUDA ignores what comes after the first one that is not there, such as -1.
    is_there = lambda name: int(name) < count if name.isdecimal() else name.startswith(("GPU-", "MIG-"))  # noqa: E731
    return tuple(itertools.takewhile(is_there, _names(visible)))


def count_gpus(devices: str = "/dev") -> int:
    """Return how many GPUs there are, by their files, which the driver may make only when one is used first."""
    if not _counted.get(devices):
        _counted[devices] = len(numbers_of_gpus(devices))
    return _counted[devices]


def numbers_of_gpus(devices: str) -> list[int]:
    """Return the numbers of the GPUs' files, which in a container are those of the machine."""
    names = (name.removeprefix("nvidia") for name in os.listdir(devices) if name.startswith("nvidia"))
    return [int(name) for name in names if name.isdecimal()]


def variable_of_gpus(environ: Mapping[str, str]) -> str:
    """Return the variable that says which GPUs jobs may use, or "" if they may use all."""
    if environ.get("KINETIC_LOCAL_GPUS"):
        return "KINETIC_LOCAL_GPUS"
    return "CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in environ else ""  # an empty one hides them all


def order_of_gpus(environ: Mapping[str, str]) -> dict[str, str]:
    """Return by what CUDA counts GPUs of several models in jobs: as nvidia-smi, the driver and our locks do.

    Numbers that the client has for CUDA itself mean what they mean there: the fastest comes first.
    """
    usual = "FASTEST_FIRST" if variable_of_gpus(environ) == "CUDA_VISIBLE_DEVICES" else "PCI_BUS_ID"
    return {_ORDER: environ.get(_ORDER) or usual}


def _names(setting: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, map(str.strip, setting.split(",")))))


def cores() -> int:
    """Return the cores that affinity and the control group's quota allow, at least one."""
    allowed = python_runtime.allowed_cores()
    quota = _quota()
    return max(1, min(allowed, math.ceil(quota)) if quota else allowed)


def check(placement: Placement, environ: Mapping[str, str], gpus: tuple[str, ...], *, strict: bool) -> tuple[str, ...]:
    """Refuse what this machine cannot emulate; return sentences about what is emulated.

    ``strict``: the user asked for this machine by name, so missing hardware is an error.

    Raises:
        CapacityError: Too few GPUs, more hosts than KINETIC_LOCAL_MAX_HOSTS, or too little free memory for them.
    """
    name, hosts, chips = placement.name, placement.hosts, placement.chips_per_host
    limit = _count(environ, "KINETIC_LOCAL_MAX_HOSTS", "hosts") or _MAX_HOSTS
    if hosts > limit:
        raise CapacityError(
            f"{name} spans {hosts} hosts, and this machine emulates at most {limit}",
            why="each host is a process with its own interpreter and devices",
            next=f"use a smaller slice, or set KINETIC_LOCAL_MAX_HOSTS={hosts}",
        )
    free = free_bytes()
    if hosts > 1 and free is not None and free < hosts * _BYTES_PER_HOST:
        raise CapacityError(
            f"{name} spans {hosts} hosts, and there is not enough free memory for them",
            why=f"{free / 2**30:.1f} GiB are free, and each host needs about {_BYTES_PER_HOST / 2**30:.1f} GiB",
            next="use a smaller slice, or free some memory",
        )
    if placement.kind == "gpu" and placement.chips > len(gpus):
        variable = variable_of_gpus(environ)
        setting = f"{variable}={environ[variable]}" if variable else ""
        if gpus or strict:
            raise CapacityError(
                f"{name} needs {placement.chips} GPU(s), and this machine has {len(gpus)}",
                why=f"looked at {setting or '/dev/nvidia*'}",
                next=f'ask for fewer{f", change {variable}," if variable else ","} or use accelerator="cpu"',
            )
        runs = "the job runs" if hosts == 1 else f"{hosts} processes, joined by jax.distributed, run"
        return (f"this machine has no {name}: {runs} on the CPU{setting and f' ({setting})'}",)
    if placement.kind == "gpu" and hosts > 1:
        return (f"{name} is emulated: {hosts} processes with {chips} GPU(s) each, joined by jax.distributed",)
    if placement.kind == "tpu":
        devices = f"{chips} virtual CPU device{'s' if chips > 1 else ''}"
        many = f"{hosts} processes with {devices} each, joined by jax.distributed"
        many = f"{placement.slices} slices, together {many}" if placement.slices > 1 else many
        return (f"{name} is emulated: {many if hosts > 1 else f'{devices} for JAX'}",)
    return ()


def _count(environ: Mapping[str, str], name: str, what: str) -> int:
    """Return a variable that is a number of at least 1; 0 if it is not set."""
    setting = environ.get(name, "")
    if setting and not (setting.isdecimal() and 0 < int(setting) <= _MOST):
        raise OptionError(
            f"{name}={setting!r} is not a number of {what}",
            why=f"it takes a whole number from 1 to {_MOST}",
            next=f"unset {name}",
        )
    return int(setting or 0)


def _quota() -> float | None:
    """Return how many cores the control group's quota allows, or None without one."""
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


def free_bytes(root: Path = Path("/")) -> int | None:
    """Return the memory that is available without swapping, here and in the control groups that this process is in.

    None where the system does not tell.
    """
    found = []
    with contextlib.suppress(OSError, ValueError), open(root / "proc/meminfo") as file:
        found = [int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:")]
    with contextlib.suppress(OSError, ValueError), open(root / "proc/self/cgroup") as file:
        for _, kinds, path in (line.rstrip("\n").split(":", 2) for line in file):
            if not kinds or "memory" in kinds.split(","):
                found += _free_in_groups(root / "sys/fs/cgroup" / ("memory" if kinds else ""), path, old=bool(kinds))
    return min(found, default=None)


def _free_in_groups(top: Path, path: str, *, old: bool) -> Iterator[int]:
    """Yield what a control group and each above it leave; ``old``: they are of version 1. Files can be forgotten."""
    limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes") if old else ("memory.max", "memory.current")
    for folder in (Path(path), *Path(path).parents):  # in a container, only the top may be visible
        group = top / str(folder).strip("/")
        with contextlib.suppress(OSError, ValueError):  # not there, or "max"
            most = int((group / limit).read_text())
            if most < _NO_LIMIT:
                words = (group / "memory.stat").read_text().split()
                files = words[words.index("total_inactive_file" if old else "inactive_file") + 1]
                yield max(0, most - int((group / used).read_text()) + int(files))


_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_LOGIND_FOLDERS = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd")  # the first one wins
_YES = frozenset({"1", "yes", "y", "true", "t", "on"})


def ends_with(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Return what ends jobs here, e.g. "when this container stops"; "" in an ordinary shell, which they outlive."""
    if environ.get("SLURM_JOB_ID") and environ.get("SLURMD_NODENAME"):
        step = environ.get("SLURM_STEP_ID", "")
        return f"with {f'step {step} of ' if step else ''}Slurm job {environ['SLURM_JOB_ID']}"
    if _service(environ):
        return "with this systemd service"
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "with this pod"
    if any((root / name).exists() for name in _CONTAINER_FILES):
        return "when this container stops"
    if environ.get("XDG_SESSION_ID") and environ.get("USER") != "root" and _kills_user_processes(root):
        return "when you log out (KillUserProcesses=yes)"
    return ""


def session(environ: Mapping[str, str]) -> list[str]:
    """Return what names the job of Slurm, its step, or the run of a systemd service, that ends what is started here."""
    return [environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", ""), _service(environ)]


def _service(environ: Mapping[str, str]) -> str:
    """Return the id of this run of a systemd service, if this process or its parent is what that has started."""
    is_started = environ.get("SYSTEMD_EXEC_PID") in {str(os.getpid()), str(os.getppid())}
    return environ.get("INVOCATION_ID", "") if is_started else ""


def _kills_user_processes(root: Path) -> bool:
    """Return whether logind's files set it for all users; for some users only, or by default, is not known here."""
    folders = [root / folder for folder in _LOGIND_FOLDERS]
    main = [path for folder in folders if (path := folder / "logind.conf").exists()][:1]
    drop_ins: dict[str, Path] = {}  # of two with one name, that of the first folder counts
    for folder in reversed(folders):
        drop_ins.update((path.name, path) for path in folder.glob("logind.conf.d/*.conf"))
    found: dict[str, str] = {}
    for path in [*main, *(drop_ins[name] for name in sorted(drop_ins))]:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition("=")
            found[name.strip()] = value.strip().lower()
    if found.get("KillOnlyUsers") or found.get("KillExcludeUsers", "root") != "root":
        return False
    return found.get("KillUserProcesses", "") in _YES

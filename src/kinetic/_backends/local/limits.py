"""Slices of several hosts on one machine: one process for each host, with virtual CPU devices for its chips."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic.errors import CapacityError, OptionError

if TYPE_CHECKING:
    from kinetic._hardware.placement import Placement


_MAX_HOSTS = 8  # 10 s to start on two cores; twice as many would only measure patience
_BYTES_PER_HOST = 400 << 20  # what a process with jax and a small model holds, measured


def check_slice(placement: Placement, environ: Mapping[str, str]) -> None:
    """Refuse a slice that this machine should not even try to emulate.

    Raises:
        CapacityError: More hosts than KINETIC_LOCAL_MAX_HOSTS, or more than the free memory carries.
    """
    limit = _limit(environ.get("KINETIC_LOCAL_MAX_HOSTS", ""))
    if placement.hosts > limit:
        raise CapacityError(
            f"{placement.name} spans {placement.hosts} hosts, and this machine emulates at most {limit}",
            why="each host is a process with an interpreter and devices of its own",
            next=f"use a smaller slice, or set KINETIC_LOCAL_MAX_HOSTS={placement.hosts}",
        )
    free = _free_bytes()
    if placement.hosts > 1 and free is not None and free < placement.hosts * _BYTES_PER_HOST:
        raise CapacityError(
            f"{placement.name} spans {placement.hosts} hosts, and the free memory does not carry them",
            why=f"{free / 2**30:.1f} GiB are free, and each host needs about {_BYTES_PER_HOST / 2**30:.1f} GiB",
            next="use a smaller slice, or free some memory",
        )


def describe_slice(placement: Placement) -> str:
    """Say what stands for the hardware here."""
    devices = f"{placement.chips_per_host} virtual CPU device{'s' if placement.chips_per_host > 1 else ''}"
    if placement.hosts == 1:
        return f"{placement.name} is emulated: {devices} for JAX"
    return f"{placement.name} is emulated: {placement.hosts} processes with {devices} each, joined by jax.distributed"


def _limit(setting: str) -> int:
    if not setting:
        return _MAX_HOSTS
    if setting.isdigit() and int(setting) > 0:
        return int(setting)
    raise OptionError(
        f"KINETIC_LOCAL_MAX_HOSTS={setting!r} is not a number of hosts",
        why="it takes a whole number of at least 1",
        next="unset KINETIC_LOCAL_MAX_HOSTS",
    )


def _free_bytes() -> int | None:
    """Return the memory that can be had without swapping, or None where the system does not tell."""
    try:
        with open("/proc/meminfo") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))
    except (OSError, ValueError, StopIteration):
        return None


_CONTAINER_FILES = (".dockerenv", "run/.containerenv")
_LOGIND_FOLDERS = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd")  # the first one wins
_YES = frozenset({"1", "yes", "y", "true", "t", "on"})


def ends_with(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Return what jobs here end with, e.g. "when this container stops"; "" in an ordinary shell, which they outlive.

    Args:
        environ: The environment of the client.
        root: The root of the file system.
    """
    if environ.get("SLURM_JOB_ID") and environ.get("SLURMD_NODENAME"):
        step = environ.get("SLURM_STEP_ID", "")
        what = f"step {step} of Slurm job {environ['SLURM_JOB_ID']}" if step else f"Slurm job {environ['SLURM_JOB_ID']}"
        return f"with {what}"
    if environ.get("KUBERNETES_SERVICE_HOST"):
        return "with this pod"
    if any((root / name).exists() for name in _CONTAINER_FILES):
        return "when this container stops"
    if environ.get("XDG_SESSION_ID") and environ.get("USER") != "root" and _kills_user_processes(root):
        return "when you log out (KillUserProcesses=yes)"
    return ""


def _kills_user_processes(root: Path) -> bool:
    """Say whether logind's files order it for everybody; for some users only, or by default, is not known here."""
    found: dict[str, str] = {}
    for path in _logind_files(root):
        for line in _lines(path):
            name, _, value = line.partition("=")
            found[name.strip()] = value.strip().lower()
    if found.get("KillOnlyUsers") or found.get("KillExcludeUsers", "root") != "root":
        return False
    return found.get("KillUserProcesses", "") in _YES


def _logind_files(root: Path) -> Iterator[Path]:
    """Yield the main file, then its drop-ins by name; of two with one name, that of the first folder counts."""
    folders = [root / folder for folder in _LOGIND_FOLDERS]
    yield from [path for folder in folders if (path := folder / "logind.conf").exists()][:1]
    drop_ins: dict[str, Path] = {}
    for folder in reversed(folders):
        drop_ins.update((path.name, path) for path in folder.glob("logind.conf.d/*.conf"))
    for name in sorted(drop_ins):
        yield drop_ins[name]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []

"""What the kernel says of a process: its parent, when it began, how it is."""

from __future__ import annotations

from pathlib import Path


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

"""Stepping to where a worker is: its folder, its private mounts, and a shell there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from kinetic.errors import RunnerError

_SHELLS = ("bash", "sh")
_KINDS = ("user", "mnt")


def folder_of(pid: int) -> str:
    """Return the working directory of a process, "" where the system does not tell or it was removed."""
    try:
        found = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
    return "" if found.endswith(" (deleted)") else found


def enter(pid: int, folder: str) -> None:
    """Step to where a worker is: into its private mounts if it has some, and into a folder.

    Call it in a process with one thread, just before it becomes something else.
    """
    descriptors = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in _other_spaces(pid)]
    for descriptor in descriptors:
        _set_space(descriptor)
        os.close(descriptor)
    os.chdir(folder or "/")


def has_own_mounts(pid: int) -> bool:
    """Say whether a worker has private mounts, which only ``enter`` leads to."""
    return bool(_other_spaces(pid))


def shell_of(environ: Mapping[str, str]) -> str:
    """Return a shell that is there.

    Raises:
        RunnerError: There is none.
    """
    import shutil  # 5 ms; only for who names no command

    found = filter(None, (shutil.which(name, path=environ.get("PATH", os.defpath)) for name in _SHELLS))
    for path in found:
        return path
    raise RunnerError(
        "there is no shell in the job's image",
        why=f"looked for {' and '.join(_SHELLS)} in {environ.get('PATH', os.defpath)}",
        next="name a command that is there, behind --",
    )


def _other_spaces(pid: int) -> list[str]:
    return [kind for kind in _KINDS if _space(pid, kind) not in {"", _space(os.getpid(), kind)}]


def _space(pid: int, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


def _set_space(descriptor: int) -> None:
    if sys.version_info >= (3, 12):
        os.setns(descriptor)
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

"""What a task leaves in a warm pod, and its removal before the next one begins.

Processes, shared memory, mounts, and files in the folders where programs put what they do not name: temporary ones, and
the home. What the image had there is remembered; what is new is removed. What cannot be removed, or was changed and
cannot be brought back, is named, and the pod ends. Files elsewhere in the container are not looked at.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import sysconfig
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kinetic._runner import processes

_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue")  # noqa: S108 - of a container of our own
_KILL_SECONDS = 5.0
_PAUSE = 0.005
_MOST_FILES = 5_000  # in one of these folders, level by level; what lies deeper than so many is not looked at
_DETACH = 2  # MNT_DETACH
_ESCAPED = re.compile(r"\\([0-7]{3})")  # how the kernel writes a space, a tab, a line's end or a backslash in a path
_SYSTEM_V = {"shm": "shmctl", "sem": "semctl", "msg": "msgctl"}

Stamp = tuple[int, int, int, int]


class Cleaner:
    """Remembers what a container has before its first task, and brings that back.

    Args:
        own: Folders of ours, which are left alone.
        is_container: Whether all processes and folders of this system are the pod's own.
    """

    def __init__(self, own: Collection[Path], libc: Any, *, is_container: bool | None = None) -> None:
        self._own = {str(path) for path in own}
        self._libc = libc
        self._is_container = os.getpid() == 1 if is_container is None else is_container
        self._mounts = _mounts()
        self._points = {point for _, point in self._mounts}
        self._folders = list(_folders()) if self._is_container else []
        self._files = {folder: self._remember(folder) for folder in self._folders}
        self._packages = _package_stamp() if self._is_container else None
        self._system_v = {kind: _system_v(kind) for kind in _SYSTEM_V} if self._is_container else {}

    def clean(self, spared: Collection[int], *, installs: bool = False) -> str:
        """Remove what a task has left; return what could not be removed, or "".

        Args:
            spared: Processes that are ours.
            installs: Whether the task installed packages into the image's environment, as it was asked to.
        """
        why = self._end_processes(spared) or self._unmount() or self._remove_system_v() or self._remove_files()
        if why:
            return why
        if self._packages is not None and (now := _package_stamp()) != self._packages:
            if not installs:
                return f"it changed the packages of the image in {sysconfig.get_path('purelib')}"
            self._packages = now
        return ""

    # ---------------------------------------------------------------------------------------------------- processes

    def _end_processes(self, spared: Collection[int]) -> str:
        limit = time.monotonic() + _KILL_SECONDS
        while left := self._strange(spared):
            if time.monotonic() > limit:
                return f"{len(left)} of its processes cannot be ended: {', '.join(map(str, left[:5]))}"
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            _reap(left)
            time.sleep(_PAUSE)  # the kernel is at it
        return ""

    def _strange(self, spared: Collection[int]) -> list[int]:
        me = os.getpid()
        if self._is_container:
            found = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        else:
            strange = (child for child in processes.children_of(me) if child not in spared)
            found = [pid for child in strange for pid in processes.tree_of(child)]
        return [pid for pid in found if pid != me and pid not in spared]

    # ------------------------------------------------------------------------------------------------------- mounts

    def _unmount(self) -> str:
        for entry in reversed(_mounts()):
            if entry not in self._mounts:
                point = entry[1]
                if self._libc is None or self._libc.umount2(os.fsencode(point), _DETACH) != 0:
                    return f"its mount at {point} cannot be removed"
        return ""

    def _remove_system_v(self) -> str:
        for kind, before in self._system_v.items():
            for number in _system_v(kind) - before:
                remove = getattr(self._libc, _SYSTEM_V[kind], None)
                words = (number, 0, 0) if kind == "sem" else (number, 0, None)
                if remove is None or remove(*words) != 0:
                    return f"its shared memory {kind} {number} cannot be removed"
        return ""

    # -------------------------------------------------------------------------------------------------------- files

    def _remove_files(self) -> str:
        for before in self._files.values():
            now = self._read(before.folders)
            new = now.keys() - before.stamps.keys()
            for path in new:
                with contextlib.suppress(OSError):
                    _remove(path)
            left = self._read(before.folders) if new else now
            if strange := sorted(left.keys() - before.stamps.keys()):
                return f"its file {strange[0]} cannot be removed"
            changed = sorted(path for path, about in before.stamps.items() if left.get(path, ()) != about)
            if changed:
                return f"it changed {changed[0]}, which was there before it"
        return ""

    def _remember(self, root: str) -> _Remembered:
        """Read a folder, level by level, as far as it is not too large."""
        folders, stamps = [root], dict[str, Stamp | None]()
        for folder in folders:  # grows while it is read
            found = self._read([folder])
            if len(stamps) + len(found) > _MOST_FILES and folder != root:
                folders = folders[: folders.index(folder)]
                break
            stamps |= found
            folders += [path for path, stamp in found.items() if stamp is None]
        return _Remembered(folders, stamps)

    def _read(self, folders: Sequence[str]) -> dict[str, Stamp | None]:
        """Return what is directly in some folders, and what tells whether a file was changed; None for a folder."""
        found: dict[str, Stamp | None] = {}
        for folder in folders:
            if os.path.realpath(folder) != folder:  # a task put a link in its place: what is behind it is not ours
                continue
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.path in self._own or entry.path in self._points:
                        continue
                    with contextlib.suppress(OSError):
                        about = entry.stat(follow_symlinks=False)
                        is_folder = stat.S_ISDIR(about.st_mode)
                        stamp = about.st_ino, about.st_size, about.st_mtime_ns, about.st_mode
                        found[entry.path] = None if is_folder else stamp
        return found


class _Remembered(NamedTuple):
    folders: Sequence[str]  # that were read
    stamps: Mapping[str, Stamp | None]


def _folders() -> Iterator[str]:
    home = os.path.realpath(os.path.expanduser("~"))
    for folder in dict.fromkeys((*map(os.path.realpath, _TEMPORARY), home)):
        if os.path.isdir(folder) and folder not in {"/", "/usr", "/opt", "/home", "/root/.."}:
            yield folder


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        os.unlink(path)


def _mounts() -> list[tuple[str, str]]:
    """Return the mounts that this process sees: their numbers and where they are."""
    found: list[tuple[str, str]] = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
            words = line.split()
            found.append((words[0], _ESCAPED.sub(lambda code: chr(int(code[1], 8)), words[4])))
    return found


def _system_v(kind: str) -> set[int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
        return {int(line.split()[1]) for line in lines}
    return set()


def _package_stamp() -> tuple[tuple[str, int], ...]:
    """Return what changes when something is installed into the image's own environment."""
    found: list[tuple[str, int]] = []
    with contextlib.suppress(OSError), os.scandir(sysconfig.get_path("purelib")) as entries:
        found = [(each.name, 0 if each.is_dir() else each.stat().st_mtime_ns) for each in entries]
    return tuple(sorted(each for each in found if each[0] != "__pycache__"))


def _reap(pids: Collection[int]) -> None:
    """Collect those of them that became our children."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

"""What a task leaves in a warm pod, and its removal before the next one begins.

Processes, shared memory, mounts, and files in the folders where programs put what they do not name: temporary ones, the
home, and that of devices. What the image had there is remembered; what is new is removed. What cannot be removed, or
was changed and cannot be brought back, is named, and the pod ends. The same holds for what the next interpreter would
load: the code of kinetic, names of packages and programs, what the loader preloads; and for what our own processes hand
down to those that they fork: limits, priority, processors. Times are those of inodes, which no program can set. Files
elsewhere in the container are not looked at.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import sys
import sysconfig
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kinetic._runner import processes
from kinetic._wire import NamedTuple

_TEMPORARY = ("/tmp", "/var/tmp", "/dev", "/dev/shm", "/dev/mqueue")  # noqa: S108 - of a container of our own
_KILL_SECONDS = 5.0
_PAUSE = 0.005
_MOST_FILES = 5_000  # in one of these folders, level by level; what is deeper than so many is not looked at
_DETACH = 2  # MNT_DETACH
_LOADER = ("/etc/ld.so.preload", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/environment")
_SYSTEM_V = {"shm": "shmctl", "sem": "semctl", "msg": "msgctl"}

Stamp = tuple[int, int, int, int]


class Cleaner:
    """Remembers what a container has before its first task, and brings that back.

    Args:
        own: A folder of ours.
        code: A folder in it, with the code of kinetic.
        is_container: Whether all processes and folders of this system are the pod's own.
    """

    def __init__(self, own: Path, code: str, libc: Any, *, is_container: bool | None = None) -> None:
        self._own, self._code = str(own), code
        self._own_inode = _inode(self._own)
        self._code_stamps = _stamps_below(code)
        self._libc = libc
        self._inherited = _inherited(os.getpid())
        self._is_container = os.getpid() == 1 if is_container is None else is_container
        self._mounts = processes.mounts()
        self._points = {point for _, point in self._mounts}
        self._folders = list(_folders(self._points, processes.mounts_in_memory())) if self._is_container else []
        self._files = {folder: self._remember(folder) for folder in self._folders}
        self._path = list(_search_path(self._own, self._points, processes.mounts_in_memory()))
        self._loaded = _loaded(self._path) if self._is_container else {}
        self._system_v = {kind: _system_v(kind) for kind in _SYSTEM_V} if self._is_container else {}

    def clean(self, spared: Collection[int], *, kept: Collection[str] = (), installs: bool = False) -> str:
        """Remove what a task has left; return what could not be removed, or "".

        Args:
            spared: Processes that are ours.
            kept: Names in our folder that stay, besides that of the code.
            installs: Whether the task installed packages into the image's environment, as it was asked to.
        """
        return (
            self._end_processes(spared)
            or self._restore_inherited(spared)
            or self._unmount()
            or self._remove_system_v()
            or self._clean_own(kept)
            or self._remove_files()
            or self._check_loaded(installs=installs)
        )

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

    def _restore_inherited(self, spared: Collection[int]) -> str:
        """Give processes that are ours back what the next task inherits; return what cannot be given back."""
        for pid in (os.getpid(), *spared):
            for name, now in _inherited(pid).items():
                if now != self._inherited.get(name, now):
                    with contextlib.suppress(OSError, ValueError):
                        _HANDED_DOWN[name][1](pid, self._inherited[name])
                    if _inherited(pid).get(name, self._inherited[name]) != self._inherited[name]:
                        return f"it changed the {name} of process {pid}, which is not its own"
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
        for entry in reversed(processes.mounts()):
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

    def _clean_own(self, kept: Collection[str]) -> str:
        """Remove what was put into our folder, as a task of one's own making would be, and look after our code."""
        if _inode(self._own) != self._own_inode:
            return f"it replaced the folder {self._own}"
        stays = {*kept, os.path.relpath(self._code, self._own).partition(os.sep)[0]}
        if why := empty(self._own, stays):
            return why
        for folder, folders, _ in os.walk(self._code):
            if "__pycache__" in folders:  # written when a module is loaded for the first time, or by a task
                folders.remove("__pycache__")
                _remove(os.path.join(folder, "__pycache__"))
        if _stamps_below(self._code) != self._code_stamps:
            return f"it changed the code of kinetic in {self._code}"
        return ""

    def _check_loaded(self, *, installs: bool) -> str:
        """Return what a task changed of the image's programs and packages, unless it was asked to install some."""
        if not self._loaded:
            return ""
        now = _loaded(self._path)
        changed = sorted(path for path in now.keys() | self._loaded.keys() if now.get(path) != self._loaded.get(path))
        if changed and not installs:
            return f"it changed {changed[0]}, which the next job could load"
        self._loaded = now
        return ""

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
                    if entry.path == self._own or entry.path in self._points:
                        continue
                    with contextlib.suppress(OSError):
                        about = entry.stat(follow_symlinks=False)
                        is_folder = stat.S_ISDIR(about.st_mode)
                        stamp = about.st_ino, about.st_size, about.st_ctime_ns, about.st_mode
                        found[entry.path] = None if is_folder else stamp
        return found


class _Remembered(NamedTuple):
    folders: Sequence[str]  # that were read
    stamps: Mapping[str, Stamp | None]


def _folders(points: Collection[str], in_memory: Collection[str]) -> Iterator[str]:
    home = os.path.realpath(os.path.expanduser("~"))
    own = [] if _is_in_a_volume(home, points, in_memory) else [home]
    for folder in dict.fromkeys((*map(os.path.realpath, _TEMPORARY), *own)):
        if os.path.isdir(folder) and folder not in {"/", "/usr", "/opt", "/home", "/root/.."}:
            yield folder


def _is_in_a_volume(folder: str, points: Collection[str], in_memory: Collection[str]) -> bool:
    """Return whether a folder is in a volume of the cluster, where what is new may be of another pod."""
    inner = max((each for each in points if f"{folder}/".startswith(f"{each.rstrip('/')}/")), key=len, default="/")
    return inner != "/" and inner not in in_memory


def _search_path(own: str, points: Collection[str], in_memory: Collection[str]) -> Iterator[str]:
    """Yield the folders of the image in which modules and libraries are looked for, as PYTHONPATH and Debian say."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    for folder in map(os.path.realpath, filter(None, [*sys.path, *libraries])):
        if not f"{folder}/".startswith(f"{own}/") and not _is_in_a_volume(folder, points, in_memory):
            yield folder


def empty(folder: str | os.PathLike[str], stays: Collection[str] = ()) -> str:
    """Remove all that is in a folder but some names; return what cannot be removed, or ""."""
    if os.path.islink(folder) or not os.path.isdir(folder):  # what is behind a link is not ours
        return f"it replaced the folder {folder}"
    for name in set(os.listdir(folder)).difference(stays):
        with contextlib.suppress(OSError):
            _remove(os.path.join(folder, name))
    left = sorted(set(os.listdir(folder)).difference(stays))
    return f"its file {os.path.join(folder, left[0])} cannot be removed" if left else ""


def _remove(path: str) -> None:
    if not os.path.isdir(path) or os.path.islink(path):
        os.unlink(path)
        return
    shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):  # a folder without permissions
        os.chmod(path, 0o700)
        for folder, names, _ in os.walk(path):
            for name in names:
                if not os.path.islink(inner := os.path.join(folder, name)):
                    os.chmod(inner, 0o700)
        shutil.rmtree(path, ignore_errors=True)


def _system_v(kind: str) -> set[int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
        return {int(line.split()[1]) for line in lines}
    return set()


def _loaded(search_path: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Return what an interpreter or a program of the next task would find by its name, and what tells of a change."""
    found: dict[str, tuple[int, int]] = {}
    python = (sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib", "scripts"))
    folders = [*search_path, *python, *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    for folder in {os.path.realpath(each) for each in folders if each}:  # /bin is /usr/bin in most images
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for each in entries:
                if each.name != "__pycache__":
                    with contextlib.suppress(OSError):
                        about = each.stat(follow_symlinks=False)
                        is_folder = stat.S_ISDIR(about.st_mode)  # whose time changes when bytecode is written there
                        found[each.path] = about.st_ino, 0 if is_folder else about.st_ctime_ns
    for path in _LOADER:
        with contextlib.suppress(OSError):
            about = os.lstat(path)
            found[path] = about.st_ino, about.st_ctime_ns
    return found


def _stamps_below(root: str) -> list[tuple[str, int, int]]:
    """Return all files below a folder, with what changes whenever one of them does, but no bytecode of imports."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*files, *links):
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                about = os.lstat(path)
                found.append((path, about.st_ino, about.st_ctime_ns))
    return sorted(found)


def _inode(path: str) -> tuple[int, int, int]:
    about = os.lstat(path)
    return about.st_dev, about.st_ino, about.st_mode


def _limits(pid: int) -> dict[int, tuple[int, int]]:
    import resource  # not on every system

    numbers = (getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_"))
    return {number: resource.prlimit(pid, number) for number in numbers}


def _set_limits(pid: int, wanted: dict[int, tuple[int, int]]) -> None:
    import resource

    for number, both in wanted.items():
        resource.prlimit(pid, number, both)


def _in_proc(name: str, base: int) -> tuple[Callable[[int], int], Callable[[int, int], object]]:
    return (
        lambda pid: int(Path(f"/proc/{pid}/{name}").read_text(), base),
        lambda pid, wanted: Path(f"/proc/{pid}/{name}").write_text(hex(wanted) if base == 16 else str(wanted)),
    )


# What a forked process has of its parent, and what another process of the same user can change: how it is read and set.
# Its umask, folder, handlers and blocked signals only it itself can change, and each worker sets its own.
_HANDED_DOWN: Mapping[str, tuple[Callable[[int], Any], Callable[[int, Any], object]]] = {
    "limits": (_limits, _set_limits),
    "scheduling": (os.sched_getscheduler, lambda pid, policy: os.sched_setscheduler(pid, policy, os.sched_param(0))),
    "priority": (partial(os.getpriority, os.PRIO_PROCESS), partial(os.setpriority, os.PRIO_PROCESS)),
    "processors": (os.sched_getaffinity, os.sched_setaffinity),
    "memory score": _in_proc("oom_score_adj", 10),
    "core dumps": _in_proc("coredump_filter", 16),
}


def _inherited(pid: int) -> dict[str, Any]:
    """Return what a process hands down, by name; nothing of what it has lost, or of what the system does not tell."""
    found = {}
    for name, (read, _) in _HANDED_DOWN.items():
        with contextlib.suppress(OSError, ValueError):
            found[name] = read(pid)
    return found


def _reap(pids: Collection[int]) -> None:
    """Collect those of them that became our children."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

"""GPUs of this machine that other users' jobs have: a lock for each device, which its holder's end frees.

A queue knows its own jobs. That users, or two homes of one user, do not get the same GPU is what these locks are for: a
supervisor holds those of its job's devices until the job's processes have ended. A file that was opened to be written
is closed when it is freed, also by the end of a killed process; that is what a supervisor that waits for it is told of.
Files of a user may be removed at that user's last logout, whoever has locked them: a holder makes them anew.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kinetic._backends.local import limits
from kinetic._config.home import path_of
from kinetic.errors import OptionError

VARIABLE = "KINETIC_GPU_LOCKS"
_OFF, _ON = frozenset({"off", "0", "false", "no"}), frozenset({"on", "1", "true", "yes"})
_FOLDER = "/dev/shm/kinetic-gpus"  # noqa: S108 - of all users; gone after a restart, and nothing there goes by its age
_FOR_ALL, _FOLDER_FOR_ALL = 0o666, 0o1777
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # what another user has put there is not followed or waited for
_CLOSED_AFTER_WRITING = 0x8  # IN_CLOSE_WRITE of <sys/inotify.h>
_HOLDER = re.compile(r"^\d+: FLOCK +\w+ +WRITE (\d+) ([0-9a-f]+):([0-9a-f]+):(\d+) ", re.MULTILINE)  # of /proc/locks


def folder_of(environ: Mapping[str, str], devices: str = "/dev") -> str:
    """Return the folder of the locks, "" where a client's jobs take none.

    KINETIC_GPU_LOCKS names one, or is "on" or "off". Without it, only GPUs that are there are locked, and none in a job
    of Slurm, where GPU 0 is the first of those that this job got.
    """
    given = environ.get(VARIABLE, "")
    if given.lower() in _ON:
        return _FOLDER
    if given:
        return "" if given.lower() in _OFF else str(path_of(given, environ))
    return _FOLDER if limits.count_gpus(devices) and not environ.get("SLURM_JOB_ID") else ""


def check(environ: Mapping[str, str], gpus: Iterable[str]) -> None:
    """Refuse a folder that the user has named, if no locks of these GPUs can be made there.

    Raises:
        OptionError: Jobs would run on GPUs that jobs of other users have.
    """
    given, folder = environ.get(VARIABLE, ""), folder_of(environ)
    if not given or not folder or all(os.path.exists(os.path.join(folder, file_name(gpu))) for gpu in gpus):
        return
    try:
        _make_folder(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise OptionError(
            f"{VARIABLE}={given} is not a folder for the locks of GPUs",
            why=f"no files can be made in {folder}: {error.strerror}",
            next=f"name a folder in which all users may make files (chmod 1777), or {VARIABLE}=off",
        ) from error


class GpuLocks:
    """The locks that this process has, and those of others; without a folder, all GPUs are free."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}
        self.freed = self._watched = -1  # a descriptor to be read once a device may have become free; see ``watch``

    def take(self, devices: Iterable[str]) -> bool:
        """Take the locks of these devices and keep no others; False, and none, if another process has one of them."""
        self.release()
        by_file = {file_name(device): device for device in devices if self._folder}  # one may be named in two ways
        for device in by_file.values():
            descriptor = self._open(device, os.O_RDWR)
            if descriptor is None:
                continue
            if not _lock(descriptor, fcntl.LOCK_EX):
                os.close(descriptor)
                self.release()
                return False
            self._held[device] = descriptor
        return True

    def keep(self) -> None:
        """Lock the devices that this process has by the files that others see: logind removes some (RemoveIPC)."""
        for device, descriptor in [*self._held.items()]:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(self._path(device)), os.fstat(descriptor)):
                    continue
            new = self._open(device, os.O_RDWR)
            if new is not None:
                is_mine = _lock(new, fcntl.LOCK_EX)  # else another process has taken the device meanwhile
                self._held[device] = new if is_mine else descriptor
                os.close(descriptor if is_mine else new)

    def release(self) -> None:
        """Free what this process has, also where a child of it still has the file open."""
        while self._held:
            _, descriptor = self._held.popitem()
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def are_elsewhere(self, devices: Sequence[str]) -> set[str]:
        """Return which of the devices other processes have."""
        found = set()
        for device in devices if self._folder else ():
            descriptor = None if device in self._held else self._open(device, os.O_RDONLY)
            if descriptor is not None:
                if not _lock(descriptor, fcntl.LOCK_SH):
                    found.add(device)
                os.close(descriptor)
        return found

    def holder(self, device: str) -> str:
        """Return who has a device, as far as the kernel says: a process and its user."""
        with contextlib.suppress(OSError, KeyError, ValueError):
            file = os.stat(self._path(device))
            place = os.major(file.st_dev), os.minor(file.st_dev), file.st_ino
            for pid, major, minor, inode in _HOLDER.findall(Path("/proc/locks").read_text()):
                if (int(major, 16), int(minor, 16), int(inode)) == place:
                    return f"process {pid} of {_user(os.stat(f'/proc/{pid}').st_uid)}"
        return "another process"

    def watch(self, libc: Any) -> bool:
        """Have ``freed`` readable once a device may have become free; return whether that is new.

        It stays -1 where the kernel has none. A folder that was removed is watched again once it is there.
        """
        if libc is None or not self._folder:
            return False
        if self.freed < 0:
            self.freed = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        before = self._watched
        self._watched = libc.inotify_add_watch(self.freed, os.fsencode(self._folder), _CLOSED_AFTER_WRITING)
        return self._watched not in {-1, before}

    def _open(self, device: str, flags: int) -> int | None:
        """Open the file of a device, which any user may have made; None where that cannot be: it is not locked."""
        path = self._path(device)
        with contextlib.suppress(OSError):
            if not os.path.exists(path):
                _make(self._folder, path)
            descriptor = os.open(path, flags | _OPEN)
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
        return None

    def _path(self, device: str) -> str:
        return os.path.join(self._folder, file_name(device))


def _make(folder: str, path: str) -> None:
    """Make the file of a device, and the folder, for all users; another process may do so at the same time."""
    _make_folder(folder)
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, _FOR_ALL)
        os.fchmod(descriptor, _FOR_ALL)
        os.close(descriptor)


def _make_folder(folder: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
        os.chmod(folder, _FOLDER_FOR_ALL)  # whatever the umask says
    if not os.path.isdir(folder):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def _lock(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without such locks
        return True
    return True


def file_name(device: str, devices: str = "/dev", driver: str = "/proc/driver/nvidia/gpus") -> str:
    """Return the name of a device's file: of the one that CUDA counts or names so, where that is known.

    In a container, GPU 0 may be the third of the machine; and a GPU has an id, of which CUDA takes the beginning.
    """
    gpus = _known_gpus(tuple(sorted(limits.numbers_of_gpus(devices))), driver)
    if device.isdecimal() and int(device) < len(gpus):
        return f"nvidia{gpus[int(device)][0]}"
    found = [number for number, name in gpus if device.startswith("GPU-") and name.startswith(device)]
    return f"nvidia{found[0]}" if len(found) == 1 else re.sub(r"[^\w.-]", "_", device) or "_"


@functools.lru_cache(8)  # a queue asks for each device, and these files are the driver's
def _known_gpus(numbers: tuple[int, ...], driver: str) -> list[tuple[int, str]]:
    """Return the numbers of files and the ids of GPUs as CUDA counts them: by their place on the bus.

    Where the driver does not say all places, by their numbers, which some machines have in another order.
    """
    found = []
    for file in sorted(Path(driver).glob("*/information")):
        with contextlib.suppress(OSError, KeyError, ValueError):
            about = dict(re.findall(r"^([\w ]+):[ \t]*(.*?)[ \t]*$", file.read_text(), re.MULTILINE))
            found.append((int(about["Device Minor"]), about.get("GPU UUID", "")))
    found = [each for each in found if each[0] in numbers]
    return found if len(found) == len(numbers) else [(number, "") for number in numbers]


def _user(uid: int) -> str:
    import pwd  # only to name a user

    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"user {uid}"

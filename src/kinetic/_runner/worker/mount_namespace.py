"""Private mounts of a job: only this process and its children see them, and they are gone with them.

A helper process makes a private mount namespace and builds everything in it. The job enters only when all of it is
complete. So nothing is half-built when the kernel refuses something in the middle, as containers and some distributions
do: the job continues as if nothing had been tried.

A mount needs an existing folder. If there is none, none is made on the host. Instead the folder above is covered, in
the namespace only, by an empty file system of a few kilobytes with the missing folder in it, and with every entry of
the covered folder bound to its place. That file system itself is read-only: what a job tries to write directly into the
covered folder fails, and is not lost with the mount. Everything below its entries is the host's.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from kinetic._runner import processes
from kinetic._wire import NamedTuple, python_runtime
from kinetic.errors import RunnerError

_NEWNS, _NEWUSER = 0x00020000, 0x10000000
_RDONLY, _REMOUNT, _BIND, _MOVE, _REC = 1, 32, 4096, 8192, 16384
_UNBINDABLE, _PRIVATE = 1 << 17, 1 << 18
_DETACH = 2
_KEPT_FLAGS = 0x2 | 0x4 | 0x8 | 0x400 | 0x800  # nosuid, nodev, noexec, noatime, nodiratime: same bits in statvfs
_RELATIME_SEEN, _RELATIME = 0x1000, 1 << 21
_MOUNT_SETATTR = 442  # the same on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOST_ENTRIES = 2000  # of a folder that is covered: each becomes a mount
_CAPABILITY_VERSION = 0x20080522
_SHELLS = ("bash", "sh")
_KINDS = ("user", "mnt")


class Mount(NamedTuple):
    """Something to be seen at a path."""

    source: str  # it exists
    target: str  # an absolute path without links in it
    read_only: bool = False


class _RefusedError(Exception):
    """The kernel refuses; the text says what."""


def mount_privately(mounts: Sequence[Mount], staging: str) -> str:
    """Mount things for this process and its children only; return "", or why nothing is mounted.

    A target may be inside an earlier one; ``staging`` is an empty folder of the job's own.
    """
    if sys.platform != "linux" or python_runtime.is_portable():
        return "this system has no private mounts" if sys.platform != "linux" else "KINETIC_PORTABLE=1"
    from kinetic._runner.worker import process_setup  # a client that runs a command beside a job needs none of it

    try:
        libc = processes.load_libc()
        with process_setup.without_flusher():  # a process with threads cannot enter a namespace
            if not _is_single_threaded():
                return "threads run in this process already"
            return _enter_built_namespace(libc, mounts, staging)
    except OSError as error:
        return error.strerror or str(error)
    except AttributeError as error:  # a C library without one of the calls
        return str(error)


def above(path: str) -> str:
    """Return the deepest folder above a path that exists."""
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _is_single_threaded() -> bool:
    """Return whether this process has one thread; those that have just ended need a moment to be gone."""
    from kinetic._runner.supervisor import worker_process  # as above

    for _ in range(1 if worker_process.needs_own_interpreter() else 100):  # threads of such a library stay
        if len(os.listdir("/proc/self/task")) == 1:
            return True
        time.sleep(0.002)
    return False


def _enter_built_namespace(libc: Any, mounts: Sequence[Mount], staging: str) -> str:
    in_user_namespace = os.geteuid() != 0  # an ordinary user is root in a user namespace, for as long as it takes
    folder = os.getcwd()
    answers, answering = os.pipe()
    waiting, release = os.pipe()
    builder = os.fork()
    if builder == 0:
        os.close(answers)
        os.close(release)
        _build_and_wait(libc, mounts, staging, in_user_namespace, answering, waiting)
    os.close(answering)
    os.close(waiting)
    try:
        with open(answers, "rb", buffering=-1, closefd=False) as pipe:
            answer = pipe.read()
        if answer != b"+":
            return answer.decode(errors="replace") or "the process that builds the mounts was ended"
        for kind in ("user", "mnt") if in_user_namespace else ("mnt",):
            descriptor = os.open(f"/proc/{builder}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                _check(libc.setns(descriptor, 0), f"entering the {kind} namespace")
            finally:
                os.close(descriptor)
        os.chdir(folder)
        if in_user_namespace:
            _drop_capabilities(libc)
        return ""
    finally:
        os.close(answers)
        os.close(release)
        os.waitpid(builder, 0)


def _build_and_wait(
    libc: Any, mounts: Sequence[Mount], staging: str, in_user_namespace: bool, answering: int, waiting: int
) -> NoReturn:
    """Be the helper: build, answer, stay until the job has entered."""
    try:
        try:
            _build(libc, mounts, staging, in_user_namespace=in_user_namespace)
            answer = b"+"
        except Exception as error:  # noqa: BLE001 - nothing may reach the job's frames below this fork
            answer = str(getattr(error, "strerror", None) or error).encode(errors="replace") or b"it failed"
        os.write(answering, answer)
        os.close(answering)
        os.read(waiting, 1)
    finally:
        os._exit(0)


def _build(libc: Any, mounts: Sequence[Mount], staging: str, *, in_user_namespace: bool) -> None:
    uid, gid = os.geteuid(), os.getegid()
    before = os.readlink("/proc/self/ns/mnt")
    _check(libc.unshare(_NEWNS | (_NEWUSER if in_user_namespace else 0)), "a namespace of its own")
    if os.readlink("/proc/self/ns/mnt") == before:  # an emulated kernel that says yes and does nothing
        raise _RefusedError("namespaces are not supported here")
    if in_user_namespace:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii", buffering=-1) as page:
                page.write(text)
    root = os.stat("/")
    with open("/proc/self/ns/mnt", "rb") as namespace:
        _check(libc.setns(namespace.fileno(), 0), "entering the mnt namespace")  # as the job will
    if not os.path.samestat(os.stat("/"), root):  # the job would leave its chroot
        raise _RefusedError("the root folder is not that of the mount namespace, as in a chroot")
    _mount(libc, "", "/", _REC | _PRIVATE)
    _cover(libc, [each.target for each in mounts], staging)
    for source, target, read_only in mounts:
        if not os.path.lexists(target):  # inside a target that is mounted already: it is the job's own
            os.makedirs(target)
        _mount(libc, source, target, _BIND | _REC)
        if read_only:
            _protect(libc, target)


def _cover(libc: Any, targets: Sequence[str], staging: str) -> None:
    """Give every target that is missing a folder to mount at."""
    missing: dict[str, list[str]] = {}
    for target in sorted(targets):
        inside_another = any(target.startswith(f"{other}/") for other in targets)
        if not os.path.lexists(target) and not inside_another:
            missing.setdefault(above(target), []).append(target)
    for folder in sorted(missing, key=lambda path: path.count("/") if path != "/" else -1):
        _cover_folder(libc, folder, missing[folder], staging)


def _cover_folder(libc: Any, folder: str, targets: Sequence[str], staging: str) -> None:
    mode = stat.S_IMODE(os.stat(folder).st_mode)
    _mount(libc, "kinetic", staging, 0, kind="tmpfs", data=f"mode={mode:o},size=1m")
    _mount(libc, "", staging, _UNBINDABLE)  # it may be below the folder itself: binding that must not bind this
    entries = list(os.scandir(folder))
    if len(entries) > _MOST_ENTRIES:
        raise _RefusedError(f"{folder} has {len(entries)} entries, and each would be a mount")
    for entry in entries:
        _bind_entry(libc, entry, f"{staging}/{entry.name}")
    for target in targets:
        os.makedirs(f"{staging}{target.removeprefix(folder.rstrip('/'))}", exist_ok=True)
    _mount(libc, "", staging, _PRIVATE)
    _mount(libc, "", staging, _REMOUNT | _BIND | _RDONLY | _flags(staging))
    if folder != "/":
        _mount(libc, staging, folder, _MOVE)
        return
    os.chdir(staging)
    _check(libc.pivot_root(b".", b"."), "a new root")  # the old one covers it now
    _check(libc.umount2(b".", _DETACH), "leaving the old root")
    os.chdir("/")


def _bind_entry(libc: Any, entry: os.DirEntry[str], place: str) -> None:
    """Make an entry of a covered folder visible in what covers it."""
    if entry.is_symlink():
        os.symlink(os.readlink(entry.path), place)
        return
    if entry.is_dir():
        os.mkdir(place)
        if os.path.samefile(entry.path, os.path.dirname(place)):  # the cover itself
            return
    else:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        _mount(libc, entry.path, place, _BIND | _REC)
    except FileNotFoundError:  # gone meanwhile
        (os.rmdir if os.path.isdir(place) else os.unlink)(place)


def _protect(libc: Any, target: str) -> None:
    """Make a mount and everything mounted below it read-only."""
    import ctypes

    attributes = ctypes.create_string_buffer(struct.pack("=QQQQ", _RDONLY, 0, 0, 0), 32)
    if libc.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), _AT_RECURSIVE, attributes, 32) == 0:
        return
    paths = [path for _, path in processes.mounts()]
    for mounted in dict.fromkeys(paths):  # Linux before 5.12: each by itself
        if mounted == target or mounted.startswith(f"{target}/"):
            _mount(libc, "", mounted, _REMOUNT | _BIND | _RDONLY | _flags(mounted))


def _flags(path: str) -> int:
    """Return the flags of a mount that must be repeated when it is changed."""
    seen = os.statvfs(path).f_flag
    return (seen & _KEPT_FLAGS) | (_RELATIME if seen & _RELATIME_SEEN else 0)


def _mount(libc: Any, source: str, target: str, flags: int, *, kind: str = "", data: str = "") -> None:
    import ctypes

    done = libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(done, f"mounting at {target}")


def _drop_capabilities(libc: Any) -> None:
    """Give up the rights over our own files that come with a user namespace: modes must mean something again."""
    import ctypes

    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITY_VERSION, 0), 8)
    nothing = ctypes.create_string_buffer(24)
    _check(libc.capset(header, nothing), "giving up capabilities")


def _check(result: int, what: str) -> None:
    if result != 0:
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


# ------------------------------------------------------------------------------------------- beside a running worker


def folder_of(pid: int) -> str:
    """Return the working directory of a process, "" if the system does not tell or it was removed."""
    try:
        found = os.readlink(f"/proc/{pid}/cwd")
    except OSError:
        return ""
    return "" if found.endswith(" (deleted)") else found


def has_own_mounts(pid: int) -> bool:
    """Return whether a worker has private mounts, which only ``enter`` leads to."""
    return bool(_other_namespaces(pid))


def enter(pid: int, folder: str) -> None:
    """Enter a worker's private mounts, if it has some, and a folder.

    Call it in a process with one thread, just before exec.
    """
    paths = [f"/proc/{pid}/ns/{kind}" for kind in _other_namespaces(pid)]
    for descriptor in [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]:
        if sys.version_info >= (3, 12):
            os.setns(descriptor)
        else:
            import ctypes

            _check(ctypes.CDLL(None, use_errno=True).setns(descriptor, 0), "entering the job's namespace")
        os.close(descriptor)
    os.chdir(folder or "/")


def shell_of(environ: Mapping[str, str]) -> str:
    """Return a shell that exists; raises RunnerError if there is none."""
    import shutil  # 5 ms; only for a shell without a command

    path = environ.get("PATH", os.defpath)
    for name in _SHELLS:
        if found := shutil.which(name, path=path):
            return found
    raise RunnerError(
        "there is no shell in the job's image",
        why=f"looked for {' and '.join(_SHELLS)} in {path}",
        next="name an existing command after --",
    )


def _other_namespaces(pid: int) -> list[str]:
    """Return the kinds of namespaces in which a process is and we are not."""

    def namespace(process: int, kind: str) -> str:
        try:
            return os.readlink(f"/proc/{process}/ns/{kind}")
        except OSError:
            return ""

    return [kind for kind in _KINDS if namespace(pid, kind) not in {"", namespace(os.getpid(), kind)}]

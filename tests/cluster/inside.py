"""Become a container: runs as a program of its own, arranges namespaces and mounts, then becomes the command.

    python -I -S inside.py PLAN REPORT_FD

PLAN is a JSON file that containers.py writes. To REPORT_FD go JSON lines: {"pid": …} once the command runs, or
{"failed": …} if it cannot; then {"status": …}, as wait() gave it. Standard library only and few imports: it starts once
per container.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWPID = 0x00020000, 0x04000000, 0x08000000, 0x20000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
MNT_DETACH = 2
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}  # the number of the call, which the C library does not have
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
STAGED = "/.staged"

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        plan = json.load(file)
    report = int(sys.argv[2])
    die_with_parent()
    if plan["namespaces"]:
        check(libc.unshare(CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID), "unshare")
    heard, trouble = os.pipe()  # closed by exec: nothing to read means that the command runs
    pid = os.fork()
    if pid == 0:
        os.close(heard)
        os.close(report)
        become(plan, trouble)
    os.close(trouble)
    let_go_of_output()
    with os.fdopen(heard, encoding="utf-8") as words:
        failed = words.read()
    tell(report, {"failed": failed} if failed else {"pid": pid})
    tell(report, {"status": os.waitpid(pid, 0)[1]})


def tell(report: int, what: dict[str, object]) -> None:
    os.write(report, json.dumps(what).encode() + b"\n")


def let_go_of_output() -> None:
    """The container's output ends when the container does, not when we do."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)


def die_with_parent() -> None:
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def check(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def become(plan: dict, trouble: int) -> None:
    """Arrange everything and turn into the command; whatever goes wrong is written to ``trouble``."""
    try:
        die_with_parent()
        if plan["namespaces"]:
            arrange_mounts(plan)
            check(libc.sethostname(plan["hostname"].encode(), len(plan["hostname"].encode())), "sethostname")
        change_directory(plan)
        # Python ignores these; the command must meet them as the kernel hands them out.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # whoever started us may have held signals back
        os.set_inheritable(trouble, False)
        os.umask(0o022)
        if plan["user"] and plan["namespaces"]:
            open_to_everybody(plan["open"])
        if plan["drop"]:
            for capability in range(64):
                libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # those that this kernel does not know, fail
        if plan["no_new_privileges"]:
            check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
        if plan["group"] is not None or plan["groups"]:
            os.setgroups(plan["groups"])
        if plan["group"] is not None:
            os.setgid(plan["group"])
        if plan["user"] is not None:
            os.setuid(plan["user"])
        os.execvpe(plan["command"][0], plan["command"], plan["environment"])
    except FileNotFoundError:
        words = f'exec: "{plan["command"][0]}": executable file not found in $PATH'
    except BaseException as error:  # noqa: BLE001 - this process is about to end; its parent must hear why
        words = f"{type(error).__name__}: {error}"
    os.write(trouble, words.encode())
    os._exit(128)


def open_to_everybody(folders: list) -> None:
    """Let any user enter the folders of an image's Python; only this container sees that."""
    for folder in folders:
        mode = os.stat(folder).st_mode & 0o7777
        if mode & 0o055 != 0o055:
            os.chmod(folder, mode | 0o055)


def change_directory(plan: dict) -> None:
    if plan["namespaces"]:
        os.makedirs(plan["directory"], exist_ok=True)  # as container engines do
    os.chdir(plan["directory"] if plan["namespaces"] else plan["scratch"])


# ------------------------------------------------------------------------------------------------------------- mounts


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    arguments = (source.encode(), target.encode(), kind.encode(), flags, options.encode())
    check(libc.mount(*arguments), f"mount {source} on {target}")


def arrange_mounts(plan: dict) -> None:
    """Give this process a root of its own: this machine's, with everything it writes kept apart."""
    root = plan["root"]
    mount("none", "/", flags=MS_REC | MS_PRIVATE)
    mount("overlay", root, "overlay", options=f"lowerdir=/,upperdir={plan['upper']},workdir={plan['work']}")
    mount("proc", f"{root}/proc", "proc")
    mount("/sys", f"{root}/sys", flags=MS_BIND | MS_REC)
    arrange_devices(root)
    # Other people's temporary files are not in an image; the Python that stands in for one may live there, though.
    for hidden in plan["hidden"]:
        mount("tmpfs", root + hidden, "tmpfs", options="mode=1777")
    os.mkdir(root + STAGED)
    sources = [(path, path, True) for path in (*plan["copied"], *plan["shown"])]
    sources += [(each["source"], each["target"], each["writable"]) for each in plan["mounts"] if each["source"]]
    # First into a place whose path holds no links, then, seen from inside, to where links of the image lead.
    for number, (source, _, _) in enumerate(sources):
        target = f"{root}{STAGED}/{number}"
        if number < len(plan["copied"]):
            stage_copied(source, target, f"{plan['upper']}-{number}", f"{plan['work']}-{number}")
        else:
            stage(source, target)
    change_root(root)
    for each in plan["mounts"]:
        if not each["source"]:  # in memory, and of this container alone
            os.makedirs(each["target"], exist_ok=True)
            mount("tmpfs", each["target"], "tmpfs", MS_NOSUID | MS_NODEV, each["options"])
    # Outer folders first: a Python that stands in for an image's may be below a folder that a volume covers.
    for number, (_, target, writable) in sorted(enumerate(sources), key=lambda each: len(each[1][1])):
        put(f"{STAGED}/{number}", target, writable=writable)
    if plan["read_only"]:
        for path in {"/", *plan["hidden"], *plan["copied"]} - {each["target"] for each in plan["mounts"]}:
            protect(path)


def protect(target: str) -> None:
    mount("none", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def change_root(root: str) -> None:
    """Make a mounted folder the root of this whole namespace, as container engines do.

    With chroot alone, a process in the container that enters a mount namespace of its own would find itself outside.
    """
    os.chdir(root)
    if libc.syscall(PIVOT_ROOT[os.uname().machine], b".", b".") == 0:
        check(libc.umount2(b".", MNT_DETACH), "letting go of the old root")  # it lies above the new one
    else:
        os.chroot(".")  # a machine that runs from its initial file system cannot
    os.chdir("/")


def arrange_devices(root: str) -> None:
    """A /dev like a container engine's: a few devices, terminals, and 64 MB of shared memory."""
    mount("tmpfs", f"{root}/dev", "tmpfs", MS_NOSUID, "mode=755,size=65536k")
    for name in DEVICES:
        open(f"{root}/dev/{name}", "w").close()
        mount(f"/dev/{name}", f"{root}/dev/{name}", flags=MS_BIND)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(target, f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/shm")
    mount("shm", f"{root}/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=65536k")
    os.mkdir(f"{root}/dev/pts")
    mount("devpts", f"{root}/dev/pts", "devpts", options="newinstance,ptmxmode=0666")
    os.symlink("pts/ptmx", f"{root}/dev/ptmx")


def stage(source: str, target: str) -> None:
    prepare(source, target)
    mount(source, target, flags=MS_BIND | MS_REC)


def stage_copied(source: str, target: str, upper: str, work: str) -> None:
    """Show a folder of this machine; what is written there stays in the container, as all that an image has."""
    for folder in (target, upper, work):
        os.makedirs(folder)
    mount("overlay", target, "overlay", options=f"lowerdir={source},upperdir={upper},workdir={work}")


def prepare(source: str, target: str) -> None:
    """Make what the mount will cover: a folder or a file, like its source."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "a").close()


def put(staged: str, target: str, *, writable: bool) -> None:
    prepare(staged, target)
    mount(staged, target, flags=MS_BIND | MS_REC)
    if not writable:
        protect(target)
    libc.umount2(staged.encode(), MNT_DETACH)


main()

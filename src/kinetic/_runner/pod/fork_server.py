"""A process that forks the supervisors of tasks, and has imported before what the last tasks imported.

It imports under the variables that those tasks had, since libraries read them when they are imported; a task with other
variables is forked from a server that has imported nothing. After importing it forks once to see what that leaves:
OpenBLAS ends its threads before a fork, and jemalloc starts its own again after one. With any other thread, or with an
open device, it is of no use, and says so.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kinetic._runner.supervisor import supervise

CarryOut = Callable[[list[str], str, str], NoReturn]  # the arguments of a container, a folder, and that with our code

IMPORTS_FILE = "imports.json"  # in the folder of a task: what its worker had imported of installed packages
_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})
_DEVICES = ("/dev/nvidia", "/dev/accel", "/dev/vfio", "/dev/kfd", "/dev/dri")
_NEVER = ("kinetic", "obstore", "cloudpickle", "__main__", "antigravity")  # obstore starts threads
_PR_SET_PDEATHSIG = 1
_MOST_NAMES = 20_000
_imported: set[str] = set()  # packages that were imported here before the fork
_reports = -1  # in a supervisor: where its parents read that its task is decided


class ForkServer:
    """One such process, as its parent sees it.

    Attributes:
        pid: Its number.
        environment: A digest of the variables under which it imported; "" if it has imported nothing.
        is_ready: Whether it can fork.
        trouble: Why it is of no use, or "".
        supervisor: The number of the process that it forked; 0 for none.
        is_decided: Whether the task of that one has its verdict in the store, though its process still ends.
        code: How that one ended, as ``os.waitpid`` gives it; None while it runs.
        is_over: Whether the process has ended.
    """

    def __init__(
        self,
        carry_out: CarryOut,
        runner: str,
        libc: Any,
        environment: str = "",
        imports: Sequence[str] = (),
        variables: str = "",
        packages: str = "",
    ) -> None:
        self.environment, self.imports = environment, frozenset(imports)
        self.is_ready, self.trouble, self.is_over = False, "", False
        self.supervisor, self.is_decided = 0, False
        self.code: int | None = None
        self._rest = b""
        orders, self._orders = os.pipe()
        self.reports, reports = os.pipe()
        os.set_blocking(self.reports, False)
        parent = os.getpid()
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _become_child(parent, libc, orders, reports)
                _serve(carry_out, runner, libc, orders, reports, imports, variables, packages)
            finally:
                os._exit(70)
        os.close(orders)
        os.close(reports)

    def start(self, folder: Path) -> None:
        """Have it fork a supervisor for the task in a folder."""
        self.supervisor, self.is_decided, self.code = -1, False, None
        os.write(self._orders, f"{folder}\n".encode())

    def read(self) -> None:
        """Take in what it has reported."""
        try:
            data = os.read(self.reports, 1 << 16)
        except BlockingIOError:
            return
        self.is_over = not data
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            word, _, value = line.decode(errors="replace").partition(" ")
            if word == "ready":
                self.is_ready = True
            elif word == "useless":
                self.trouble = value
            elif word == "decided":
                self.is_decided = True
            elif word == "pid":
                self.supervisor = int(value)
            elif word == "code":
                self.supervisor, self.code = 0, int(value)

    def end(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for descriptor in (self._orders, self.reports):
            os.close(descriptor)


def _become_child(parent: int, libc: Any, *kept: int) -> None:
    """Drop what belongs to the first process; end when that does."""
    supervise.close_all_but(*kept)
    if libc is not None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(70)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until a supervisor says otherwise


def _serve(
    carry_out: CarryOut,
    runner: str,
    libc: Any,
    orders: int,
    reports: int,
    imports: Sequence[str],
    variables: str,
    packages: str,
) -> NoReturn:
    if imports:
        before = set(sys.modules)
        values = json.loads(Path(variables).read_bytes())
        os.unlink(variables)
        with _quiet():
            _import_all(imports, values, packages)
        _imported.update(name.partition(".")[0] for name in set(sys.modules) - before)
        if trouble := _why_unsafe():
            os.write(reports, f"useless {trouble}\n".encode())
            os._exit(0)
    gc.collect()
    gc.freeze()
    os.write(reports, b"ready\n")
    with os.fdopen(orders, "rb") as lines:
        for line in lines:
            folder = Path(os.fsdecode(line.rstrip(b"\n")))
            me, pid = os.getpid(), os.fork()
            if pid == 0:
                _become_child(me, libc, reports)
                global _reports  # noqa: PLW0603 - of this process
                _reports = reports
                carry_out([f"@{folder / 'task.json'}"], str(folder), runner)
            os.write(reports, f"pid {pid}\n".encode())
            _, status = os.waitpid(pid, 0)
            os.write(reports, f"code {status}\n".encode())
    os._exit(0)


def report_decided() -> None:
    """Report, in a supervisor, that its task has its verdict: who waits for it need not wait for what is left to do."""
    if _reports >= 0:
        with contextlib.suppress(OSError):
            os.write(_reports, b"decided\n")


@contextlib.contextmanager
def _quiet() -> Any:
    """Let what libraries print while they are imported go nowhere: it would be in no task's log."""
    nothing, kept = os.open(os.devnull, os.O_RDWR), [os.dup(1), os.dup(2)]
    for number in (1, 2):
        os.dup2(nothing, number)
    try:
        yield
    finally:
        for number, was in zip((1, 2), kept, strict=True):
            with contextlib.suppress(OSError, ValueError):
                (sys.stdout, sys.stderr)[number - 1].flush()
            os.dup2(was, number)
            os.close(was)
        os.close(nothing)


def _import_all(names: Sequence[str], variables: Mapping[str, str], packages: str) -> None:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    if packages:
        from kinetic._runner.pod import kept_packages  # as above

        kept_packages.use(Path(packages))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in names:
                with contextlib.suppress(BaseException):  # of a library that does not like it: it is imported later
                    if name not in sys.modules:
                        __import__(name)
    finally:
        os.environ.clear()
        os.environ.update(before)


def _why_unsafe() -> str:
    """Return why a fork of this process would not work, or ""; found by forking once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
        if pid == 0:
            os._exit(0)
    os.waitpid(pid, 0)
    threads = []
    for thread in os.listdir("/proc/self/task"):
        if int(thread) != os.getpid():
            with contextlib.suppress(OSError):
                threads.append(Path(f"/proc/self/task/{thread}/comm").read_text().strip())
    if left := sorted({name for name in threads if name not in _SAFE_THREADS}):
        return f"importing started threads: {', '.join(left)}"
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if (path := os.readlink(f"/proc/self/fd/{number}")).startswith(_DEVICES):
                return f"importing opened {path}"
    return ""


# ---------------------------------------------------------------------------------------------------- in the worker


def note_imports(path: Path, own: Sequence[str]) -> None:
    """Write down what this process has imported of installed packages; nothing of the folders in ``own``."""
    names = []
    for name, module in list(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
        if name.split(".")[0] in _NEVER or not isinstance(origin, str) or origin.startswith(tuple(own)):
            continue
        if "site-packages" in origin or "dist-packages" in origin:
            names.append(name)
    with contextlib.suppress(OSError):
        path.write_text(json.dumps(names[:_MOST_NAMES]))


def drop_shadowed(folders: Sequence[str]) -> None:
    """Forget packages that were imported before the fork, and of which a task's project has one of the same name."""
    shadowed = set()
    for folder in folders if _imported else ():
        with contextlib.suppress(OSError):
            shadowed |= _imported & {name.partition(".")[0] for name in os.listdir(folder)}
    if shadowed:
        for name in [name for name in sys.modules if name.partition(".")[0] in shadowed]:
            del sys.modules[name]
    numbers = sys.modules.get("numpy.random")
    if numbers is not None and _imported:
        numbers.seed()  # else each task would draw the same numbers


def noted_imports(folder: Path) -> list[str]:
    """Return what a task's worker wrote down, if anything: names of modules, whatever user code made of the file."""
    try:
        found = json.loads((folder / IMPORTS_FILE).read_bytes()[: 1 << 21])
    except (OSError, ValueError):
        return []
    names = [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
    return [name for name in names[:_MOST_NAMES] if all(part.isidentifier() for part in name.split("."))]

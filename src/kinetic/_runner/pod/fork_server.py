"""A process that forks the supervisors of tasks, and has imported before what the last tasks imported.

It imports under the variables that those tasks had, since libraries read them when they are imported; a task with other
variables is forked from a server that has imported nothing. A task that changes variables itself, before it imports one
of these libraries, begins again in an interpreter that has imported nothing: so they stay hidden until a task imports
them. After importing it forks once to see what that leaves: OpenBLAS ends its threads before a fork, and jemalloc
starts its own again after one. With any other thread, or with an open device, it is of no use, and says so.

While the pod is idle, the supervisor of the next task and its worker are forked already, and wait: forking a process
that has imported JAX takes longer than a short task. They know nothing of any task, and there are none while another
one runs or is cleaned up after.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import json
import os
import signal
import sys
import typing
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from kinetic._runner.supervisor import supervise
from kinetic._wire import NamedTuple, folders

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # as in ``import_hooks``

CarryOut = Callable[[list[str], str, str], NoReturn]  # the arguments of a container, a folder, and that with our code
GetReady = Callable[[], CarryOut]  # what a supervisor does before it knows its task, and then with it

IMPORTS_FILE = "imports.json"  # in the folder of a task: what its worker had imported of installed packages
_SAFE_THREADS = frozenset({"jemalloc_bg_thd"})
_DEVICES = ("/dev/nvidia", "/dev/accel", "/dev/vfio", "/dev/kfd", "/dev/dri")
_NEVER = ("kinetic", "obstore", "cloudpickle", "__main__", "antigravity")  # obstore starts threads
_PR_SET_PDEATHSIG = 1
_AHEAD = b"ahead"  # an order to fork what the next task needs; any other one is the folder of a task
_MOST_NAMES, _MOST_BYTES = 20_000, 2 << 20
_loaded: set[str] = set()  # all modules that were imported here before the fork
_reports = -1  # in a supervisor: where its parents read that its task is decided


class ForkServer:
    """One such process, as its parent sees it."""

    def __init__(
        self,
        get_ready: GetReady,
        runner: str,
        libc: Any,
        environment: str = "",
        imports: Sequence[str] = (),
        variables: str = "",
        packages: str = "",
    ) -> None:
        self.environment = environment  # a digest of the variables under which it imported; "" if it imported nothing
        self.imports = frozenset(imports)
        self.is_ready = False  # whether it can fork
        self.trouble = ""  # why it is of no use
        self.is_over = False  # whether it has ended
        self.supervisor = 0  # the number of the process that it forked; 0 for none
        self.is_decided = False  # whether the task of that one has its verdict in the store, though it still ends
        self.code: int | None = None  # how that one ended, as ``os.waitpid`` gives it; None while it runs
        self._rest = b""
        self._is_ahead = False  # whether it has forked what the next task needs
        orders, self._orders = os.pipe()
        self.reports, reports = os.pipe()
        os.set_blocking(self.reports, False)
        parent = os.getpid()
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _become_child(parent, libc, orders, reports)
                if imports:
                    _import_before(imports, variables, packages, reports)
                _serve(partial(_Waiting, get_ready, runner, libc, reports), orders, reports)
            finally:
                os._exit(70)
        os.close(orders)
        os.close(reports)

    def fork_ahead(self) -> None:
        """Have it fork what the next task needs, unless it has."""
        if not self._is_ahead and not self.is_over:
            self._is_ahead = True
            self._order(_AHEAD)

    def start(self, folder: Path) -> None:
        """Have it fork a supervisor for the task in a folder, or give the task to the one that it has forked."""
        self.supervisor, self.is_decided, self.code = -1, False, None
        self._is_ahead = False
        self._order(os.fsencode(folder))

    def _order(self, what: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has just ended, and is over as soon as that is read
            os.write(self._orders, what + b"\n")

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
        """Kill it, and wait for its end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        for descriptor in (self._orders, self.reports):
            os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


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


def _import_before(names: Sequence[str], variables: str, packages: str, reports: int) -> None:
    """Import what the next tasks need; end with a report if no task can be forked after that."""
    values = json.loads(Path(variables).read_bytes())
    os.unlink(variables)
    with _quiet():
        _import_all(names, values, packages)
        _empty_caches()
    if trouble := _why_unsafe():
        os.write(reports, f"useless {trouble}\n".encode())
        os._exit(0)


def _serve(fork: Callable[[], _Waiting], orders: int, reports: int) -> NoReturn:
    """Fork a supervisor for each task that is ordered, and report how it ended."""
    _loaded.update(sys.modules, *(group.modules for group in hidden.groups))
    gc.collect()
    gc.freeze()
    os.write(reports, b"ready\n")
    waiting: _Waiting | None = None
    with os.fdopen(orders, "rb") as lines:
        for line in lines:
            if waiting is None or waiting.has_ended():
                waiting = fork()
            if line.rstrip(b"\n") == _AHEAD:
                continue
            pid, waiting = waiting.begin(line), None
            os.write(reports, f"pid {pid}\n".encode())
            os.write(reports, f"code {_wait_for(pid)}\n".encode())
    os._exit(0)


def _wait_for(supervisor: int) -> int:
    """Return how a supervisor ended, as ``os.waitpid`` gives it; one that its job stops continues at once."""
    while os.WIFSTOPPED(status := os.waitpid(supervisor, os.WUNTRACED)[1]):
        os.kill(supervisor, signal.SIGCONT)
    return status


class _Waiting:
    """A supervisor that was forked, as its parent sees it, with a worker of its own: both wait for a task."""

    def __init__(self, get_ready: GetReady, runner: str, libc: Any, reports: int) -> None:
        task, self._task = os.pipe()
        me = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _become_child(me, libc, reports, task)
                _supervise(get_ready, runner, task, reports)
            finally:
                os._exit(70)
        os.close(task)

    def has_ended(self) -> bool:
        """Return whether it is gone, as after a lack of memory."""
        if os.waitpid(self._pid, os.WNOHANG)[0] == 0:
            return False
        os.close(self._task)
        return True

    def begin(self, folder: bytes) -> int:
        """Give it the folder of its task, and return its number."""
        with contextlib.suppress(BrokenPipeError):  # it has just ended, which its parent sees as of any supervisor
            os.write(self._task, folder)
        os.close(self._task)
        return self._pid


def _supervise(get_ready: GetReady, runner: str, task: int, reports: int) -> None:
    carry_out = get_ready()
    with os.fdopen(task, "rb") as lines:
        folder = os.fsdecode(lines.readline().rstrip(b"\n"))
    if folder:
        global _reports  # noqa: PLW0603 - of this process
        _reports = reports
        carry_out([f"@{folder}/task.json"], folder, runner)


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
        for name in names:  # filters of warnings that they add are the next task's, as if it had imported them
            if name not in sys.modules:
                there, variables = set(sys.modules), dict(os.environ)
                with contextlib.suppress(BaseException):  # of a library that does not like it: it is imported later
                    __import__(name)
                new = {name: sys.modules[name] for name in list(sys.modules) if name not in there}
                found = {name: module for name, module in new.items() if _may_be_hidden(name)}
                hidden.groups.append(_Group(found, _changes(variables)))
    finally:
        for group in hidden.groups:
            for name in group.modules:
                sys.modules.pop(name, None)
        os.environ.clear()
        os.environ.update(before)


def _may_be_hidden(name: str) -> bool:
    """Return whether a module is of a library: what is Python's own reads no variable that matters."""
    package = name.partition(".")[0]
    return package not in sys.stdlib_module_names and package != "kinetic"


def _changes(before: Mapping[str, str]) -> dict[str, str | None]:
    """Return which variables are others now; None: removed."""
    return {name: os.environ.get(name) for name, _ in before.items() ^ os.environ.items()}


def _empty_caches() -> None:
    """Empty what libraries empty when an interpreter ends: each task does that, and would copy all that is in there."""
    jax = hidden.module("jax")
    for clear in (*getattr(typing, "_cleanups", ()), getattr(jax, "clear_caches", int)):
        with contextlib.suppress(Exception):
            clear()


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


class _Group(NamedTuple):
    """What one import before the fork brought."""

    modules: dict[str, ModuleType]
    changed: dict[str, str | None]  # variables that it set, as jax does, or removed


class _HiddenModules(Loader):
    """Finds what was imported before the fork, and lets a task have it as soon as it imports it.

    What was imported before that comes along, and nothing else, since variables may change until that is imported.
    """

    def __init__(self) -> None:
        self.groups: list[_Group] = []  # in their order
        self.noted: list[str] = []  # what a task has imported itself before it got the last of them
        self._asked_for: dict[str, ModuleType] = {}  # and not imported yet, as by ``importlib.util.find_spec``
        self._variables: dict[str, str] | None = None  # of a task, as its function finds them
        self._begin_again: Callable[[str, str], object] = lambda *_: None
        self._shown: Callable[[], object] = lambda: None

    def module(self, name: str) -> ModuleType | None:
        return next((group.modules[name] for group in self.groups if name in group.modules), None)

    def install(self) -> None:
        """Begin to find them, in a worker."""
        if self.groups:
            sys.meta_path.insert(0, self)

    def watch(self, begin_again: Callable[[str, str], object], shown: Callable[[], object]) -> None:
        """Compare variables from now on; what comes next is the user's.

        Args:
            begin_again: Gets the names of changed variables and of a module whose import they may change; it returns
                only in a process in which nothing can begin again.
            shown: Called when there are modules that were not there.
        """
        if self.groups:
            sys.meta_path.remove(self)
            sys.meta_path.insert(0, self)  # before hooks for the same libraries, which would import them once more
            self._variables, self._begin_again, self._shown = dict(os.environ), begin_again, shown

    def accept(self, before: Mapping[str, str]) -> None:
        """Note that what has changed of the variables since they were these is our doing, and not the task's."""
        if self._variables is not None:
            self._variables = _applied(self._variables, _changes(before))

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        known = [number for number, group in enumerate(self.groups) if name in group.modules]
        if known:
            if self._variables is not None and (changed := _changes(self._variables)):
                self._begin_again(", ".join(sorted(changed)), name)
            self._show(known[0] + 1)
            self._asked_for[name] = sys.modules.pop(name)  # else the import would execute it again
        found = self._asked_for.get(name)
        if found is None:
            return None
        was = found.__spec__
        spec = copy.copy(was) if was is not None else ModuleSpec(name, None)
        spec.loader, spec.loader_state = self, (found, was)
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        found: ModuleType = spec.loader_state[0]
        return found

    def exec_module(self, module: ModuleType) -> None:
        self._asked_for.pop(module.__name__, None)
        if module.__spec__ is not None and module.__spec__.loader is self:
            module.__spec__ = module.__spec__.loader_state[1]

    def _show(self, many: int) -> None:
        self.noted += itertools.takewhile(lambda name: name not in _loaded, reversed(sys.modules))
        shown, self.groups = self.groups[:many], self.groups[many:]
        for group in shown:
            sys.modules.update(group.modules)
            os.environ.update(_applied({}, group.changed))
            for name in [name for name, value in group.changed.items() if value is None]:
                os.environ.pop(name, None)
        numbers = sys.modules.get("numpy.random")
        if numbers is not None and any("numpy.random" in group.modules for group in shown):
            numbers.seed()  # else each task would draw the same numbers
        self._shown()
        if self._variables is not None:
            self._variables = dict(os.environ)

    def drop(self, packages: set[str]) -> None:
        """Forget packages: they will be imported from somewhere else."""
        for group in self.groups:
            for name in [name for name in group.modules if name.partition(".")[0] in packages]:
                del group.modules[name]


hidden = _HiddenModules()


def _applied(variables: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in {**variables, **changes}.items() if value is not None}


def note_imports(path: Path, own: Sequence[str]) -> None:
    """Write down what this process has imported of installed packages; nothing of the folders in ``own``.

    A task that imported none writes nothing: to look at a module, or at its name, is to copy its memory, and JAX brings
    2,000. What was imported last comes last.
    """
    with contextlib.suppress(OSError, RuntimeError):  # a full disk; a thread that imports something at this moment
        new = itertools.takewhile(lambda name: name not in _loaded, reversed(sys.modules))
        if any(_is_installed(name, own) for name in (*new, *hidden.noted)):
            names = [name for name in list(sys.modules) if _is_installed(name, own)]
            path.write_text(json.dumps(names[:_MOST_NAMES]))


def _is_installed(name: str, own: Sequence[str]) -> bool:
    origin = getattr(getattr(sys.modules.get(name), "__spec__", None), "origin", None) or ""
    if name.partition(".")[0] in _NEVER or not isinstance(origin, str) or origin.startswith(tuple(own)):
        return False
    return "site-packages" in origin or "dist-packages" in origin


def drop_shadowed(folders: Sequence[str]) -> None:
    """Forget packages that were imported before the fork, and of which a task's project has one of the same name."""
    for folder in folders if hidden.groups else ():
        with contextlib.suppress(OSError):
            hidden.drop({name.partition(".")[0] for name in os.listdir(folder)})


def noted_imports(folder: Path) -> list[str]:
    """Return what a task's worker wrote down, if anything: names of modules, whatever user code made of the file."""
    try:
        found = json.loads(folders.read_file(folder, IMPORTS_FILE, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    names = [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
    return [name for name in names[:_MOST_NAMES] if all(part.isidentifier() for part in name.split("."))]

"""A process that forks the supervisors of tasks, and has imported before what the last tasks imported.

It imports under the variables that those tasks had; a task with other variables is forked from a server that has
imported nothing. See ``preloaded_modules``.

While the pod is idle, the supervisor of the next task and its worker are forked already, and wait: forking a process
that has imported JAX takes longer than a short task. They know nothing of any task, and there are none while another
one runs or is cleaned up after.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from kinetic._runner import processes
from kinetic._runner.pod.log_pump import say
from kinetic._runner.supervisor import worker_process
from kinetic._runner.worker import preloaded_modules, process_setup
from kinetic._runner.worker.preloaded_modules import Imports

CarryOut = Callable[[list[str], str, str], NoReturn]  # the arguments of a container, a folder, and that with our code
GetReady = Callable[[], CarryOut]  # what a supervisor does before it knows its task, and then with it

_IMPORT_SECONDS = 120.0
_AHEAD = b"ahead"  # an order to fork what the next task needs; any other one is the folder of a task
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
        self.spoiler = self.trouble = ""  # the package after whose import it is of no use, and why
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
            elif word == "spoiled":
                self.spoiler, _, self.trouble = value.partition(" ")
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


class ForkServers:
    """The fork server of a warm pod, and the one that follows it once it has imported what the last task had."""

    def __init__(self, get_ready: GetReady, runner: str, libc: Any) -> None:
        self._make = partial(ForkServer, get_ready, runner, libc)
        self.current = self._make()
        self._next: ForkServer | None = None  # which still imports
        self._variables = ""  # the file that it reads
        self._limit = 0.0
        self._useless: tuple[str, frozenset[str]] = ("", frozenset())  # what cannot be imported before a fork
        self._spoilers: set[str] = set()  # packages that are the reason for that, and that each task imports itself

    def __iter__(self) -> Iterator[ForkServer]:
        yield from filter(None, (self.current, self._next))

    @property
    def variables(self) -> str:
        """The name of a file that is still to be read, or ""."""
        return self._variables if self._next is not None else ""

    def renew(self) -> None:
        """Begin again with a fork server that has imported nothing, so it is soon ready."""
        self._replace(self._make())

    def start(self, folder: Path, environment: str) -> None:
        """Have one that fits a task's variables fork its supervisor."""
        if self.current.is_over or (self.current.environment and self.current.environment != environment):
            self.renew()
        self.current.start(folder)

    def prepare(self, imports: Sequence[str], environment: str, variables: Path, packages: str) -> None:
        """Begin to import what the last task imported, unless that is there."""
        known = self.current.imports if self.current.environment == environment else frozenset()
        imports = [name for name in imports if name.partition(".")[0] not in self._spoilers]
        wanted = list(dict.fromkeys([*imports, *sorted(known)]))
        is_useless = self._useless == (environment, frozenset(wanted))
        if imports and not is_useless and not known.issuperset(imports) and self._next is None:
            self._limit, self._variables = time.monotonic() + _IMPORT_SECONDS, variables.name
            self._next = self._make(environment, wanted, str(variables), packages)
        else:
            variables.unlink(missing_ok=True)

    def read(self, *, is_idle: bool) -> None:
        """Take in what they have reported; between two tasks, the next one follows as soon as it is ready."""
        self.current.read()
        if self.current.is_over and is_idle:
            self.renew()
        server = self._next
        if server is None:
            return
        server.read()
        is_late = time.monotonic() > self._limit
        if server.is_ready and is_idle:
            self._next = None
            self._replace(server)
        elif server.trouble or server.is_over or is_late:
            why = server.trouble or ("it took too long" if is_late else "the process that imports it ended")
            say(f"the next task imports {server.spoiler or 'its packages'} itself: {why}")
            self._spoilers.add(server.spoiler)
            self._next = None
            server.end()
            self._useless = (server.environment, server.imports)

    def _replace(self, server: ForkServer) -> None:
        was, self.current = self.current, server
        was.end()


def _become_child(parent: int, libc: Any, *kept: int) -> None:
    """Drop what belongs to the first process; end when that does."""
    worker_process.close_all_but(*kept)
    processes.end_with_parent(libc)
    if os.getppid() != parent:
        os._exit(70)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until a supervisor says otherwise


def _import_before(names: Sequence[str], variables: str, packages: str, reports: int) -> None:
    """Import what the next tasks need; end with a report if no task can be forked after that."""
    values = json.loads(Path(variables).read_bytes())
    os.unlink(variables)
    process_setup.make_streams()
    process_setup.begin_as_main()
    if spoiler := preloaded_modules.preload(Imports(tuple(names)), values, packages):
        os.write(reports, f"spoiled {spoiler.package} {spoiler.why}\n".encode())
        os._exit(0)


def _serve(fork: Callable[[], _Waiting], orders: int, reports: int) -> NoReturn:
    """Fork a supervisor for each task that is ordered, and report how it ended."""
    preloaded_modules.get_ready_to_fork()
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

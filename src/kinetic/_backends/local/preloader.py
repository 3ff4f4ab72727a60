"""A process that has imported what the jobs of a supervisor import, and forks their workers: that takes no seconds.

What it forks becomes a child of the supervisor, as every worker: the process between the two ends at once, and orphans
are adopted by the supervisor. So it exists on Linux only.
"""

from __future__ import annotations

import _socket
import contextlib
import gc
import os
import signal
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from kinetic._runner import processes
from kinetic._runner.supervisor import worker_monitor, worker_process
from kinetic._runner.worker import preloaded_modules, process_setup
from kinetic._runner.worker.preloaded_modules import Imports
from kinetic._wire import folders

_NUMBER_BYTES = 8
_SPOILED = "spoiled"
_DESCRIPTORS = 3  # that come with an order: what a worker receives, in a pipe and in a file, and its end of the report
_FORK_SECONDS = 5.0
_MOST_BYTES = 1 << 16


class Preloader:
    """One such process, as its supervisor sees it.

    Args:
        entry: Of its workers, see ``worker_process.EarlyWorker``.
        libc: Of ``processes.load_libc``.
        imports: What it imports.
        variables: All variables that a job has.
        left_out: Packages that it leaves to the jobs.

    Raises:
        OSError: No process can be started now.
    """

    def __init__(
        self,
        entry: Callable[[worker_process.Tasks, int], NoReturn],
        libc: Any,
        imports: Imports,
        variables: Mapping[str, str],
        left_out: frozenset[str],
    ) -> None:
        self.is_ready = False  # whether it can fork
        self.is_over = False  # whether it has ended: it was of no use, or it was killed
        self.changed: frozenset[str] = frozenset()  # variables that the imports have changed
        self.spoiler = ""  # the package that made it useless
        self.entry = entry
        self._ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        supervisor, title = os.getpid(), processes.ProcessTitle(libc)
        gc.freeze()  # as for a worker
        try:
            self._pid = os.fork()
        except OSError:
            self._ours.close()
            raise
        finally:
            if os.getpid() == supervisor:
                theirs.close()
        if self._pid == 0:
            try:
                os.setpgid(0, 0)
                worker_process.close_all_but(theirs.fileno())
                worker_process.die_with(supervisor, libc)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                title.set(worker_process.SPARE, "imports libraries for the next jobs")
                process_setup.make_streams()
                process_setup.begin_as_main()
                if _import(theirs, imports, variables, left_out):
                    _serve(theirs, lambda tasks, report: entry(_belonging_to(supervisor, libc, tasks), report))
                else:
                    _kill(processes.tree_of(os.getpid())[1:])
            finally:
                os._exit(0)
        worker_monitor.helpers.add(self._pid)
        self._ours.settimeout(0)

    @property
    def descriptor(self) -> int:
        """What becomes readable when it is ready, or has ended."""
        return self._ours.fileno()

    def look(self) -> None:
        """Take in what it has reported."""
        if not self.is_ready and not self.is_over:
            with contextlib.suppress(BlockingIOError):
                self._hear(self._receive())

    def _hear(self, said: bytes) -> None:
        word, *names = said.decode().split("\0")
        if word == _SPOILED:
            self.spoiler, self.is_over = names[0], True
        self.changed, self.is_ready = frozenset(names), not self.is_over

    def _receive(self) -> bytes:
        try:
            data: bytes = self._ours.recv(_MOST_BYTES)
        except ConnectionError:
            data = b""
        self.is_over = not data
        return data

    def fork(self, told: int, file: int) -> tuple[int, int]:
        """Have it fork a worker; return its number and our end of the report; raises OSError if it cannot."""
        read_end, write_end = os.pipe()
        try:
            os.set_blocking(read_end, False)
            self._ours.settimeout(_FORK_SECONDS)
            kept = array("i", [told, file, write_end])
            self._ours.sendmsg([b"fork"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, kept)])
            pid = int.from_bytes(self._receive())
            if not pid:
                raise ChildProcessError("the process that has imported libraries cannot fork")
        except OSError:
            self.is_over = True  # it is of no use, or what it would say next is not known
            os.close(read_end)
            raise
        finally:
            os.close(write_end)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # either of the two processes may be first
        return pid, read_end

    def end(self) -> None:
        """Kill it and what a library has started in it, and wait for its end; its workers live on."""
        self._ours.close()
        self.is_over = True
        if self._pid in worker_monitor.helpers:  # else it has ended, and the number may be another process's
            worker_monitor.helpers.discard(self._pid)
            _kill(processes.tree_of(self._pid))
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)


def _import(supervisor: Any, imports: Imports, variables: Mapping[str, str], left_out: frozenset[str]) -> bool:
    """Import all; return whether workers can be forked after that, or tell the supervisor and the log why not."""
    try:
        spoiler = preloaded_modules.preload(imports, variables, left_out=left_out)
    except Exception:  # noqa: BLE001 - of what a library has left in the interpreter
        import traceback  # 5 ms

        _say(f"jobs import {imports.names[0]} and others themselves\n{traceback.format_exc()}")
        return False
    if spoiler is not None:
        _say(f"jobs import {spoiler.package} themselves: {spoiler.why}")
        supervisor.send(f"{_SPOILED}\0{spoiler.package}".encode())
    return spoiler is None and bool(preloaded_modules.hidden.groups)


def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _belonging_to(supervisor: int, libc: Any, tasks: worker_process.Tasks) -> worker_process.Tasks:
    """Yield what a worker receives; by then it is a child of the supervisor, and from there on ends with it."""
    for task in tasks:
        worker_process.die_with(supervisor, libc)
        yield task


def _serve(supervisor: Any, entry: Callable[[worker_process.Tasks, int], NoReturn]) -> None:
    """Fork a worker for each order, until the supervisor has no more."""
    preloaded_modules.get_ready_to_fork()
    supervisor.send("\0".join(["ready", *preloaded_modules.variables_of_imports()]).encode())
    while True:
        data, with_it, *_ = supervisor.recvmsg(_NUMBER_BYTES, _socket.CMSG_SPACE(_DESCRIPTORS * array("i").itemsize))
        if not data:
            return
        kept = array("i", with_it[0][2])
        supervisor.send(_fork(entry, *kept).to_bytes(_NUMBER_BYTES))
        for descriptor in kept:
            os.close(descriptor)


def _fork(entry: Callable[[worker_process.Tasks, int], NoReturn], told: int, file: int, report: int) -> int:
    """Fork a worker that is no child of this process; return its number, 0 if it could not be forked."""
    read_end, write_end = os.pipe()
    between = -1
    with contextlib.suppress(OSError):
        between = os.fork()
    if between == 0:
        try:
            if worker := os.fork():
                os.write(write_end, worker.to_bytes(_NUMBER_BYTES))
            else:
                os.setpgid(0, 0)
                worker_process.close_all_but(told, file, report)
                entry(worker_process.hear_tasks(told, file), report)
        finally:
            os._exit(0)
    os.close(write_end)
    with folders.closing(read_end):
        if between > 0:
            os.waitpid(between, 0)  # from now on the worker is the supervisor's child
        return int.from_bytes(os.read(read_end, _NUMBER_BYTES))

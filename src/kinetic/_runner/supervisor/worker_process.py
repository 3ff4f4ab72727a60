"""The process of a worker: how it is forked or becomes an interpreter of its own, and how it is told its task."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import IO, Any, NoReturn

from kinetic._runner import processes
from kinetic._wire import fields, folders
from kinetic._wire.task import READERS, Task

Entry = Callable[[Task, int], NoReturn]  # what a worker does with its task and its end of the report
Tasks = Generator[Task, None, None]  # what a worker receives about one task, one after the other

# With them an interpreter measures itself from its start; what a worker measures is the job, see code_coverage.py.
OF_COVERAGE = frozenset({"COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"})
WORKER_SCRIPT = "worker.py"  # in the folder of the runner
SPARE = "kinetic-spare"  # what `top` shows of a worker that has no task yet: at most 15 bytes

_CLOUD_CLIENT = "kinetic._stores.obstore_client"  # starts threads with its first request, and none when imported
_GRPC = "grpc._cython.cygrpc"  # does not work in a fork; `opentelemetry-instrument` uses it in each Python that starts
_MOST_DESCRIPTORS = 4096  # where the system does not list them
_LENGTH_BYTES = 8  # of a task that a worker receives


def preload() -> None:
    """Import what every worker needs, so that a fork is a warm start; nothing that starts threads."""
    import random

    import cloudpickle

    _ = (random, cloudpickle)


def fork_worker(task: Task, entry: Entry, libc: Any, title: processes.ProcessTitle) -> tuple[int, ...]:
    """Fork a worker, which holds no descriptor of this process but its end of the report; return as ``_fork``."""

    def begin(report: int) -> NoReturn:
        if needs_own_interpreter() or task.own_interpreter:
            try:
                exec_worker(task, report)
            except BaseException:  # noqa: BLE001 - nothing may reach the supervisor's frames below this fork
                sys.excepthook(*sys.exc_info())
                os._exit(70)
        entry(task, report)

    return _fork((task.job_id, f"worker {task.folder}"), libc, title, begin)


class EarlyWorker:
    """A worker that is forked before its task is known, and gets ready meanwhile.

    In a pod before anything with threads is loaded; on a machine while its supervisor has nothing to do.

    Args:
        entry: Gets what the worker receives, and its end of the report: in a pod first the task as far as it is known,
            then the complete one. If that ends before, it is discarded.
        libc: Of ``processes.load_libc``.
        fork: Forks it in another process, see ``Preloader.fork``.
    """

    def __init__(
        self,
        entry: Callable[[Tasks, int], NoReturn],
        libc: Any,
        fork: Callable[[int, int], tuple[int, ...]] | None = None,
    ) -> None:
        file = self._file = _nameless_file()
        told, self._tell = os.pipe()
        kept, shown = (told, file.fileno()), (SPARE, "a worker that waits for its task")
        try:
            if fork is not None:
                self._forked = fork(*kept)
            else:
                title = processes.ProcessTitle(libc)
                self._forked = _fork(shown, libc, title, lambda report: entry(hear_tasks(*kept), report), *kept)
        except OSError:  # no process can be started now
            self._close()
            raise
        finally:
            os.close(told)

    @property
    def is_alive(self) -> bool:
        """Return whether it waits for its task."""
        try:
            return os.waitid(os.P_PID, self._forked[0], os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def tell(self, task: Task) -> None:
        """Tell it what is known of its task; raises BrokenPipeError if it has ended."""
        data = task_bytes(task)
        folders.write_all(self._file.fileno(), data)
        os.write(self._tell, len(data).to_bytes(_LENGTH_BYTES))

    def start(self, task: Task) -> tuple[int, ...]:
        """Have it carry out the complete task; return as ``fork_worker``."""
        self.tell(task)
        self._close()
        return self._forked

    def discard(self) -> None:
        """Have it end: there is nothing to do, or it is done in another way."""
        self._close()
        for descriptor in self._forked[1:]:
            os.close(descriptor)

    def end(self) -> None:
        """Discard it, and wait for its end."""
        self.discard()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._forked[0], signal.SIGKILL)
            os.waitpid(self._forked[0], 0)

    def _close(self) -> None:
        os.close(self._tell)
        self._file.close()


def hear_tasks(told: int, file: int) -> Tasks:
    """Yield what the parent tells of a task, in a worker that was forked before it was known."""
    at = 0
    try:
        while length := int.from_bytes(os.read(told, _LENGTH_BYTES)):
            yield task_from(os.pread(file, length, at))
            at += length
    finally:
        os.close(told)
        os.close(file)


def _fork(
    shown: tuple[str, str], libc: Any, title: processes.ProcessTitle, begin: Callable[[int], NoReturn], *kept: int
) -> tuple[int, ...]:
    """Fork a process for a worker; return its number, our end of the report, and what else to close at the end."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    supervisor = os.getpid()
    life, alive = os.pipe() if libc is None else (-1, -1)
    for stream in (sys.stdout, sys.stderr):  # else the worker has a copy of what is not written yet, and writes it, too
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    gc.freeze()  # no time; else the worker's first collection writes to, and so copies, all that was made here
    try:
        pid = os.fork()
    except OSError:
        for descriptor in filter(lambda each: each >= 0, (read_end, write_end, life, alive)):
            os.close(descriptor)
        raise
    if pid == 0:
        os.setpgid(0, 0)
        close_all_but(write_end, life, *kept)
        die_with(supervisor, libc, life)
        title.set(*shown)
        begin(write_end)
    os.close(write_end)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # either of the two processes may be first
    if life >= 0:
        os.close(life)
    return (pid, read_end, alive) if alive >= 0 else (pid, read_end)


def needs_own_interpreter() -> bool:
    """Return whether this process has used a store in the cloud or gRPC, and so threads that a forked child has not."""
    client = sys.modules.get(_CLOUD_CLIENT)
    return (client is not None and client.was_used()) or _GRPC in sys.modules


def exec_worker(task: Task, report: int) -> NoReturn:
    """Turn this process into a fresh interpreter that carries out the task; never returns."""
    # What this interpreter was started with, whatever user code has put into sys.argv.
    flags = itertools.takewhile(lambda word: word[:1] == "-" and word not in {"-c", "-m"}, sys.orig_argv[1:])
    with _nameless_file() as file:
        folders.write_all(file.fileno(), task_bytes(task))
        file.seek(0)
        for descriptor in (file.fileno(), report):
            os.set_inheritable(descriptor, True)
        words = [sys.executable, *flags, str(Path(task.runner) / WORKER_SCRIPT), str(file.fileno()), str(report)]
        environ = task.environment if task.own_interpreter else os.environ
        environ = {name: value for name, value in environ.items() if name not in OF_COVERAGE}  # it gets them later
        os.execve(words[0], words, environ)  # noqa: S606 - without a shell on purpose


def _nameless_file() -> IO[bytes]:
    """Open a file for a task and its environment: in memory where that exists, since /tmp may be full."""
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("kinetic-task"), "w+b", buffering=0)
    import tempfile  # 4 ms

    return tempfile.TemporaryFile(buffering=0)


def task_bytes(task: Task) -> bytes:
    """Return what a worker receives about its task."""
    return json.dumps(task.to_json()).encode("ascii")  # not all variables are UTF-8


def task_from(data: bytes) -> Task:
    """Read what a worker receives; raises IntegrityError if it is not a task."""
    return fields.build(Task, READERS, json.loads(data), "the task of this worker")


def close_all_but(*kept: int) -> None:
    """Close every descriptor above the standard ones: user code must not reach what belongs to its supervisor."""
    signal.set_wakeup_fd(-1)
    try:
        there = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:  # no /proc in this container
        there = list(range(_MOST_DESCRIPTORS))
    for descriptor in there:
        if descriptor > 2 and descriptor not in kept:
            with contextlib.suppress(OSError):  # the one that listed them is gone already
                os.close(descriptor)


def die_with(supervisor: int, libc: Any, life: int = -1) -> None:
    """Arrange that this process ends when its supervisor does; ``life``: see ``_fork``, where there is no libc."""

    def end_at_eof() -> None:
        os.read(life, 1)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    if libc is not None:
        processes.end_with_parent(libc)
    else:
        import threading

        threading.Thread(target=end_at_eof, name="kinetic-life", daemon=True).start()
    if os.getppid() != supervisor:
        os._exit(70)

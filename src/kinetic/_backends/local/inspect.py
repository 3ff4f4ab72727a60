"""Looking into a job that runs on this machine: a command beside it, the stacks of its processes, its debug server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from kinetic._backends.local import task_file
from kinetic._backends.local.queue import Row
from kinetic._backends.local.runtime_paths import Paths
from kinetic._backends.protocol import Stacks
from kinetic._runner.worker import mount_namespace, stack_dump
from kinetic.errors import RunnerError

_CONNECT_SECONDS = 10.0
_BLOCK = 1 << 16
_OF_THE_TERMINAL = ("TERM", "COLORTERM", "COLUMNS", "LINES")


def stacks(paths: Paths, row: Row | None, hosts: Sequence[int]) -> list[Stacks]:
    """Ask the processes of a job for their stacks; see the protocol."""
    return [_stacks_of(paths, row, host) for host in hosts]


def _stacks_of(paths: Paths, row: Row | None, host: int) -> Stacks:
    try:
        running = _must_run(row)
        return Stacks(host, stack_dump.ask(paths.files(running.job_id, running.attempt, host).stacks))
    except RunnerError as error:
        return Stacks(host, "", ": ".join(filter(None, (error.what, error.why))))


def run(paths: Paths, row: Row | None, command: Sequence[str], *, host: int, environ: Mapping[str, str]) -> int:
    """Run a command beside a job; see ``run_in`` of the protocol.

    Raises:
        RunnerError: The job does not run, or there is no such command.
    """
    running = _must_run(row)
    door = stack_dump.read_header(paths.files(running.job_id, running.attempt, host).stacks)
    variables = _environment(paths, running, host, environ)
    words = list(command) or [mount_namespace.shell_of(variables)]
    folder = mount_namespace.folder_of(door.pid) or str(paths.files(running.job_id, running.attempt, host).folder)
    try:
        process = _start(words, variables, door.pid, folder)
    except FileNotFoundError:
        raise RunnerError(
            f"there is no {words[0]} here", why=f"looked in {variables.get('PATH', os.defpath)}", code="no-command"
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise RunnerError(
            f"{words[0]} could not be started beside the job", why=str(error), code="no-command"
        ) from error
    with _leaving_signals_to(process):
        code = process.wait()
    return 128 - code if code < 0 else code


def _start(words: list[str], variables: Mapping[str, str], pid: int, folder: str) -> subprocess.Popen[bytes]:
    """Start a command in a folder as a worker sees it."""
    if not mount_namespace.has_own_mounts(pid):
        return subprocess.Popen(words, env=variables, cwd=folder)
    import ctypes  # noqa: F401 - in the forked child nothing should be imported any more

    enter = partial(mount_namespace.enter, pid, folder)
    return subprocess.Popen(words, env=variables, preexec_fn=enter)  # noqa: PLW1509 - namespaces leave no other way


def _must_run(row: Row | None) -> Row:
    if row is None or row.state != "running":
        raise RunnerError("the job does not run", code="not-running")
    return row


def _environment(paths: Paths, row: Row, host: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's variables: without its keeper's mark, by which what the job leaves behind is ended."""
    page = task_file.read_task(paths, row.job_id)
    if page is None:
        raise RunnerError("the job does not run any more", code="not-running")
    marks = {"KINETIC_ATTEMPT": str(row.attempt), "KINETIC_HOST_INDEX": str(host)}
    devices = {"CUDA_VISIBLE_DEVICES": row.devices} if row.devices else {}
    terminal = {name: environ[name] for name in _OF_THE_TERMINAL if name in environ}
    return {**page.environment, **marks, **devices, **terminal}


@contextlib.contextmanager
def _leaving_signals_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Let Ctrl-C and its like be for the command alone, which the terminal sends them to as well."""
    before = {}
    with contextlib.suppress(ValueError):  # on another thread than the main one they never come
        before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            process.kill()
            process.wait()


class SocketLink:
    """A connection within this machine."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, data: bytes) -> None:
        """Send bytes; see the protocol."""
        self._connection.sendall(data)

    def receive(self) -> bytes:
        """Return bytes; see the protocol."""
        try:
            return self._connection.recv(_BLOCK)
        except ConnectionError:
            return b""

    def finish(self) -> None:
        """Say that nothing more is sent; see the protocol."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def dial(port: int) -> Iterator[SocketLink]:
    """Open a connection to a port of this machine; see the protocol."""
    with socket.create_connection(("127.0.0.1", port), _CONNECT_SECONDS) as connection:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield SocketLink(connection)


class FileLog:
    """The spool of a job's output on this machine, by byte position."""

    is_complete = True

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def open(cls, path: Path) -> FileLog | None:
        """Open a log, or return None when there is none here."""
        try:
            return cls(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None

    def size(self) -> int:
        """Return how many bytes there are now."""
        return os.fstat(self._descriptor).st_size

    def read(self, start: int, length: int) -> bytes:
        """Return bytes from a position."""
        return os.pread(self._descriptor, length, start)

    def close(self) -> None:
        """Let go of the file."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)

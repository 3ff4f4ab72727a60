"""What looks into a running job of this machine: a command beside it, the stacks of its threads, its debug server."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence

from kinetic._backends.local import runtime_files
from kinetic._backends.local.queue import JobRow
from kinetic._backends.local.runtime_files import Paths
from kinetic._backends.protocol import DebugAddress, Stacks
from kinetic._runner.worker import mount_namespace, process_setup
from kinetic._wire.inspection import DebugPage
from kinetic.errors import IntegrityError, RunnerError

_BLOCK = 1 << 16
_CONNECT_SECONDS = 10.0
_OF_THE_TERMINAL = ("TERM", "COLORTERM", "COLUMNS", "LINES")


def debug_addresses(paths: Paths, row: JobRow | None, hosts: Sequence[int]) -> dict[int, DebugAddress]:
    """Return where the debug servers of a job listen, by host."""
    found: dict[int, DebugAddress] = {}
    if row is not None and row.state == "running":
        for host in hosts:
            with contextlib.suppress(OSError, IntegrityError):  # not there yet
                page = DebugPage.from_bytes(paths.files(row.job_id, row.attempt, host).debug_page.read_bytes())
                found[host] = DebugAddress(page.port, roots=page.roots, state=page.state, until=page.until)
    return found


def port_address(row: JobRow | None, port: int) -> DebugAddress | None:
    """Return where a port of a running job is: all its hosts have those of this machine."""
    return DebugAddress(port) if row is not None and row.state == "running" else None


@contextlib.contextmanager
def dial(address: DebugAddress) -> Iterator[SocketLink]:
    """Connect to a debug server, or another port."""
    with socket.create_connection(("127.0.0.1", address.port), _CONNECT_SECONDS) as connection:
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield SocketLink(connection)


def run(paths: Paths, row: JobRow | None, command: Sequence[str], host: int, environ: Mapping[str, str]) -> int:
    """Run a command beside a job, a shell for none, and return its exit code; ``environ``: of the client."""
    row = _running(row)
    files = paths.files(row.job_id, row.attempt, host)
    pid = process_setup.read_header(files.stacks).pid
    variables = _worker_environment(paths, row, host, environ)
    words = list(command) or [mount_namespace.shell_of(variables)]
    folder = mount_namespace.folder_of(pid) or str(files.folder)
    with contextlib.suppress(OSError):  # a full disk: the next job looks at each file all the same
        files.visited.touch()
    try:
        process = _start(words, variables, pid, folder)
    except FileNotFoundError:
        raise RunnerError(
            f"{words[0]} was not found on this machine",
            why=f"looked in {variables.get('PATH', os.defpath)}",
            code="no-command",
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise RunnerError(
            f"{words[0]} could not be started beside the job", why=str(error), code="no-command"
        ) from error
    with _ignore_signals_for(process):
        code = process.wait()
    return 128 - code if code < 0 else code


def stacks(paths: Paths, row: JobRow | None, host: int) -> Stacks:
    """Return what the threads of a job do now, or why that cannot be read."""
    try:
        row = _running(row)
        return Stacks(host, process_setup.ask(paths.files(row.job_id, row.attempt, host).stacks))
    except RunnerError as error:
        return Stacks(host, "", ": ".join(filter(None, (error.what, error.why))))


def _running(row: JobRow | None) -> JobRow:
    if row is None or row.state != "running":
        raise RunnerError("the job does not run", code="not-running")
    return row


def _worker_environment(paths: Paths, row: JobRow, host: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's variables, without its supervisor's mark, by which what the job leaves is ended."""
    task = runtime_files.read_task(paths, row.job_id)
    if task is None:
        raise RunnerError("the job does not run any more", code="not-running")
    marks = {"KINETIC_ATTEMPT": str(row.attempt), "KINETIC_HOST_INDEX": str(host)}
    devices = {"CUDA_VISIBLE_DEVICES": row.devices} if row.devices else {}
    terminal = {name: environ[name] for name in _OF_THE_TERMINAL if name in environ}
    return {**task.environment, **marks, **devices, **terminal}


def _start(words: list[str], variables: Mapping[str, str], pid: int, folder: str) -> subprocess.Popen[bytes]:
    """Start a command in a folder as a worker sees it."""
    if not mount_namespace.has_own_mounts(pid):
        return subprocess.Popen(words, env=variables, cwd=folder)
    import ctypes  # noqa: F401 - the forked child should import nothing

    enter = functools.partial(mount_namespace.enter, pid, folder)
    return subprocess.Popen(words, env=variables, preexec_fn=enter)  # noqa: PLW1509 - namespaces leave no other way


@contextlib.contextmanager
def _ignore_signals_for(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ignore Ctrl-C and the like, which the terminal sends to the command as well."""
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
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def receive(self) -> bytes:
        try:
            return self._connection.recv(_BLOCK)
        except ConnectionError:
            return b""

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

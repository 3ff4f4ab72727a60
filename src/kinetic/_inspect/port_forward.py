"""A local port that is forwarded to a job: to its debug server, or to any port on which its program listens.

The first is done by a process that outlives the one that started it. The port is taken before that process is started,
and inherited by it: connections are accepted from the first moment.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from kinetic._jobs import locate, logs, wait
from kinetic._output import terminal as output
from kinetic._wire import documents, folders, inspection, keys, python_runtime, records
from kinetic._wire.records import JobRecord
from kinetic.errors import BackendError, DebugError, IntegrityError, KeyMissingError, KineticError, OptionError
from kinetic.job_status import JobStatus

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, DebugAddress, Link


READY = b"ready\n"
_PACKAGES = str(Path(__file__).parents[2])
_SCRIPT = """
import json, sys
page = json.load(sys.stdin)
sys.path[:] = page["path"]
from kinetic._inspect import port_forward
port_forward.main(page)
"""
_BACKLOG = 16
_START_SECONDS = 60.0  # a machine under load may take long to start an interpreter
_END_SECONDS = 5.0
_HIGHEST_PORT = 65_535


def start(job: JobRecord, *, host: int, local_port: int) -> subprocess.Popen[bytes]:
    """Start a process that listens on 127.0.0.1 and forwards each connection to the job's debug server."""
    locate.key_to_attach(job)
    listener = _listen(local_port)
    with listener:
        folder = locate.runtime() / "forwarders"
        folders.make(folder)
        log = folder / f"{job.job_id}-{host}-{local_port}.log"
        ready, ready_writer = os.pipe()
        try:
            process = _start(job, host, listener.fileno(), ready_writer, log)
        finally:
            os.close(ready_writer)
        try:
            _wait_until_ready(process, ready, log)
        finally:
            os.close(ready)
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a forwarder that still runs, and with it the connections through it."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def forward(job: JobRecord, now: JobStatus, port: int, *, host: int, local_port: int | None) -> JobStatus:
    """Forward connections to a job until it has ended; return how it is then. See ``forwarded``."""
    if locate.backend_of(job).is_here and local_port in {None, port}:
        output.report(f"{job.job_id} is on this machine: connect to 127.0.0.1:{port}")
        return now

    def advice(free: int) -> str:
        return f"use a free one: kinetic jobs forward {job.job_id} {free}:{port}"

    with forwarded(job, port, host=host, local_port=local_port, advice=advice) as found:
        waits = "" if now is JobStatus.RUNNING else "; it has not begun yet"
        output.report(f"127.0.0.1:{found} leads to {_what(job, port, host)}, until that ends{waits}")
        return wait.wait(job).status


@contextlib.contextmanager
def forwarded(
    job: JobRecord, port: int, *, host: int, local_port: int | None, advice: Callable[[int], str]
) -> Iterator[int]:
    """Forward each connection to a local port, which is yielded, to one of a job.

    Args:
        job: It has not ended. It may wait for its start: then connections wait as well, for a while.
        port: On which a program of the job listens, where it runs.
        host: Of which host of a slice.
        local_port: On 127.0.0.1. By default the same number, or a free one where that is in use.
        advice: Says what to do where the local port cannot be used, with a free one.
    """
    _check_number(port)
    backend = locate.backend_of(job)
    if backend.is_here and local_port in {None, port}:
        yield port
        return

    def find() -> DebugAddress | None:
        if not backend.is_here and locate.store_of(job).size(keys.result(job.job_id)) is not None:
            return None  # its warm pod may have the next job, whose port this would be
        return backend.port_address(job.job_id, port, host=host)

    def report(text: str) -> None:
        output.report_once(f"{_what(job, port, host)}: {text}")

    listener = _listen_near(port, advice) if local_port is None else _listen(local_port, advice)
    forwarder = Forwarder(backend, listener, find, report)
    try:
        threading.Thread(target=forwarder.run, name="kinetic-forward", daemon=True).start()
        yield int(listener.getsockname()[1])
    finally:
        forwarder.close()


def _what(job: JobRecord, port: int, host: int) -> str:
    return f"port {port} of {job.job_id}" + f", host {host}" * bool(host)


def check_port(port: int) -> None:
    """Refuse a port of this machine that cannot be listened on."""
    _listen(port).close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listen_near(port: int, advice: Callable[[int], str]) -> socket.socket:
    """Listen on a port, or on a free one where that is in use, or only root may listen there."""
    try:
        return _listen(port, advice)
    except DebugError:
        return _listen(free_port(), advice)


def _of_the_debugger(free: int) -> str:
    return f"use a free one: {free}, as in --port {free} or debug_attach(local_port={free})"


def _listen(port: int, advice: Callable[[int], str] = _of_the_debugger) -> socket.socket:
    """Listen on a port of this machine; ``advice`` says what to do where that is not possible, with a free port."""
    _check_number(port)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended do not count
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        what, why = f"the local port {port} cannot be used", error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            what, why = f"the local port {port} is in use", "another process of this machine listens on 127.0.0.1 there"
        raise DebugError(what, why=why, next=advice(free_port()), code="port-taken") from error
    return listener


def _check_number(port: int) -> None:
    if not isinstance(port, int) or not 0 < port <= _HIGHEST_PORT:
        raise OptionError(
            f"{port!r} is not a valid port", why=f"ports are 1 to {_HIGHEST_PORT}", next=f"use {free_port()}"
        )


def _start(job: JobRecord, host: int, listener: int, ready: int, log: Path) -> subprocess.Popen[bytes]:
    page = {
        "path": list(dict.fromkeys([_PACKAGES, *(str(Path(entry or ".").resolve()) for entry in sys.path)])),
        "job": records.plain(job),
        "host": host,
        "listener": listener,
        "ready": ready,
        "log": str(log),
    }
    with log.open("wb") as output:
        log.chmod(0o600)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _SCRIPT],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(listener, ready),
            start_new_session=True,  # Ctrl-C in the caller's terminal is not meant for it
        )
    assert process.stdin is not None  # noqa: S101 - for mypy
    with contextlib.suppress(BrokenPipeError):  # it died at once: its log says why
        process.stdin.write(json.dumps(page).encode())
        process.stdin.close()
    return process


def _wait_until_ready(process: subprocess.Popen[bytes], ready: int, log: Path) -> None:
    poll = select.poll()  # select() takes no descriptor above 1023, which a client of many clusters has
    poll.register(ready, select.POLLIN)
    has_answer = bool(poll.poll(_START_SECONDS * 1000))
    if not has_answer or os.read(ready, len(READY)) != READY:  # written at once; b"" if the process has ended
        stop(process)
        raise BackendError(
            "the process that forwards the debugger's connection did not start",
            why=log.read_text(errors="replace").strip()[-1000:] or f"it ended with exit code {process.returncode}",
            next="kinetic config",
            code="no-forwarder",
        )


_CONCURRENT_READS = 8


def debug_addresses(job: JobRecord, hosts: Sequence[int]) -> dict[int, DebugAddress]:
    """Return where a job's debug servers are, and their states, by host; a host without one is left out."""
    found = locate.backend_of(job).debug_addresses(job.job_id, hosts=hosts)
    if all(each.state for each in found.values()):
        return found
    store = locate.store_of(job)  # a cluster knows the pods, and the pods wrote it into the store
    attempt = logs.latest_noted_attempt(store, job.job_id)
    job_key = locate.key_to_read(job)
    key = None if job_key is None else inspection.page_key(inspection.token(job_key))

    def read(host: int) -> DebugAddress | None:
        try:
            page = documents.open_page(inspection.DEBUG, store, keys.debug(job.job_id, attempt, host), key)
        except (KeyMissingError, IntegrityError):
            return None
        if page.is_from_older_pod(found[host].machine):
            return None
        return found[host]._replace(port=page.port, roots=page.roots, state=page.state, until=page.until)

    with ThreadPoolExecutor(_CONCURRENT_READS) as pool:
        addresses = zip(found, pool.map(read, found), strict=True)
        return {host: address for host, address in addresses if address is not None}


_BLOCK = 1 << 16
_PATIENCE_SECONDS = 20.0  # for a pod that is being replaced, or an API server that is away; an editor waits as long
_RETRY_SECONDS = 0.5
_RETRY_STATUS_SECONDS = 10.0


class Forwarder:
    """The listener of one local port, and where each connection to it leads.

    Args:
        backend: Where the job runs.
        listener: Of the local port.
        find: Returns the port of the job, or None while that is not there.
        report: Gets why a connection was closed.
        first: What is sent to the job before anything else.
    """

    def __init__(
        self,
        backend: Backend,
        listener: socket.socket,
        find: Callable[[], DebugAddress | None],
        report: Callable[[str], object],
        first: bytes = b"",
    ) -> None:
        self._backend, self._listener, self._find, self._report = backend, listener, find, report
        self._first = first
        self._is_closed = False

    def close(self) -> None:
        """Accept no more connections; those that are open stay until one side closes them."""
        self._is_closed = True
        with contextlib.suppress(OSError):  # wakes the thread that accepts, as closing alone does not on Linux
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def run(self) -> None:
        """Accept connections until ``close``."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._is_closed:
                    return
                self._report(f"no connection can be accepted: {error}")  # as where this process has too many files open
                time.sleep(_RETRY_SECONDS)
                continue
            if python_runtime.start_thread(partial(self._forward, connection), "kinetic-connection") is None:
                connection.close()
                self._report("a connection was closed: this process can start no more threads")

    def _forward(self, connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not inspection.is_own_peer(connection):
                self._report("a connection was refused: it may come from another user")
                return
            try:
                with contextlib.ExitStack() as stack:
                    link = self._reach(stack)
                    if self._first:
                        link.send(self._first)
                    _copy_both_ways(connection, link)
            except (KineticError, OSError) as error:
                self._report(f"a connection was closed: {error}")

    def _reach(self, stack: contextlib.ExitStack) -> Link:
        """Open a connection to the job; retry for a while if it is not there, and raise why."""
        limit = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                address = self._find()
                if address is not None:
                    return stack.enter_context(self._backend.dial(address))
                failure: Exception = KineticError("nothing of the job listens at the moment")
            except (KineticError, OSError) as error:
                failure = error
            if time.monotonic() > limit:
                raise failure
            time.sleep(_RETRY_SECONDS)


def _copy_both_ways(connection: socket.socket, link: Link) -> None:
    """Copy bytes in both directions until one side closes; then close both."""
    sending = threading.Thread(target=_send, args=(connection, link), daemon=True)
    sending.start()
    try:
        while data := link.receive():
            connection.sendall(data)
    finally:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # this also ends the other thread's waiting
        sending.join()


def _send(connection: socket.socket, link: Link) -> None:
    with contextlib.suppress(KineticError, OSError):  # the receiving thread gets it, too
        while data := connection.recv(_BLOCK):
            link.send(data)
    link.finish()


def _end_with(job: JobRecord, log: str) -> None:
    while True:
        try:
            wait.wait(job)
        except (KineticError, OSError, ValueError) as error:  # a cluster or a store is away: the job may be running
            _log(f"the status of the job is unknown: {error}")
            time.sleep(_RETRY_STATUS_SECONDS)
        else:
            _leave(log)


def _leave(log: str) -> NoReturn:
    with contextlib.suppress(OSError):
        os.unlink(log)
    os._exit(0)


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def main(page: dict[str, Any]) -> None:
    log = str(page["log"])
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    signal.signal(signal.SIGTERM, lambda *_: _leave(log))
    for descriptor in (page["listener"], page["ready"]):
        os.set_inheritable(descriptor, False)
    job = JobRecord(**records.known(page["job"]))
    host, token = int(page["host"]), inspection.token(locate.key_to_attach(job)).encode() + b"\n"
    forwarder = Forwarder(
        locate.backend_of(job),
        socket.socket(fileno=page["listener"]),
        lambda: debug_addresses(job, [host]).get(host),
        _log,
        token,
    )
    threading.Thread(target=_end_with, args=(job, log), daemon=True).start()
    os.write(page["ready"], READY)
    os.close(page["ready"])
    forwarder.run()

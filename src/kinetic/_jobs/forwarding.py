"""A local port that leads to the debug server of a job: a process of its own, which outlives whoever started it.

The port is taken here, before anything is started, and handed to that process: from the first moment on somebody
listens. What it does is in ``forwarder.py``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kinetic._jobs import places
from kinetic._wire import folders, handles
from kinetic.errors import BackendError, DebugError, OptionError

if TYPE_CHECKING:
    from kinetic._wire.handles import JobRecord

READY = b"ready\n"
_PACKAGES = str(Path(__file__).parents[2])
_START = """
import json, sys
page = json.load(sys.stdin)
sys.path[:] = page["path"]
from kinetic._jobs import forwarder
forwarder.main(page)
"""
_BACKLOG = 16
_START_SECONDS = 60.0  # a machine under load may take long to start an interpreter
_END_SECONDS = 5.0
_HIGHEST_PORT = 65_535


def start(job: JobRecord, *, host: int, local_port: int) -> subprocess.Popen[bytes]:
    """Start a process that listens on 127.0.0.1 and forwards each connection to the job's debug server.

    Returns when it listens. It ends when the job has ended for good, or on SIGTERM; see ``stop``.

    Args:
        job: The job.
        host: Which host of it, from 0.
        local_port: Where to listen.

    Raises:
        DebugError: Somebody listens there already; nothing was started.
        BackendError: The process did not come up.
        CredentialsError: The job's key, which its server asks for, is not on this machine.
    """
    places.key_to_attach(job)
    listener = _listen(local_port)
    with listener:
        log = _log(job.job_id, host, local_port)
        said, saying = os.pipe()
        try:
            process = _spawn(job, host, listener.fileno(), saying, log)
        finally:
            os.close(saying)
        try:
            _wait_until_ready(process, said, log)
        finally:
            os.close(said)
    return process


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a forwarder, and with it the connections through it; one that has ended already is none of our business."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def check_port(port: int) -> None:
    """Refuse a port of this machine that cannot be listened on.

    Raises:
        DebugError: Somebody listens there already; the message names a free one.
    """
    _listen(port).close()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listen(port: int) -> socket.socket:
    if not 0 < port <= _HIGHEST_PORT:
        raise OptionError(f"{port} is no port", why=f"ports are 1 to {_HIGHEST_PORT}", next=f"use {free_port()}")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that have ended do not count
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _not_free(port, error) from error
    return listener


def _not_free(port: int, error: OSError) -> DebugError:
    free = free_port()
    next_ = f"use a free one: {free}, as in --port {free} or debug_attach(local_port={free})"
    if error.errno == errno.EADDRINUSE:
        what, why = f"the local port {port} is taken", "another process of this machine listens on 127.0.0.1 there"
    else:
        what, why = f"the local port {port} cannot be used", error.strerror or str(error)
    return DebugError(what, why=why, next=next_, code="port-taken")


def _log(job_id: str, host: int, port: int) -> Path:
    folder = places.runtime() / "forwarders"
    folders.make(folder)
    return folder / f"{job_id}-{host}-{port}.log"


def _spawn(job: JobRecord, host: int, listener: int, saying: int, log: Path) -> subprocess.Popen[bytes]:
    page = {
        "path": list(dict.fromkeys([_PACKAGES, *(str(Path(entry or ".").resolve()) for entry in sys.path)])),
        "job": handles.plain(job),
        "host": host,
        "listener": listener,
        "ready": saying,
        "log": str(log),
    }
    with log.open("wb") as output:
        log.chmod(0o600)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=(listener, saying),
            start_new_session=True,  # Ctrl-C in the caller's terminal is not meant for it
        )
    assert process.stdin is not None  # noqa: S101 - for mypy
    with contextlib.suppress(BrokenPipeError):  # it died at once: its log says why
        process.stdin.write(json.dumps(page).encode())
        process.stdin.close()
    return process


def _wait_until_ready(process: subprocess.Popen[bytes], said: int, log: Path) -> None:
    limit = time.monotonic() + _START_SECONDS
    words = b""
    while not words.endswith(b"\n") and select.select([said], [], [], max(0.0, limit - time.monotonic()))[0]:
        data = os.read(said, 64)
        if not data:
            break
        words += data
    if words != READY:
        stop(process)
        raise BackendError(
            "the process that forwards the debugger's connection did not come up",
            why=log.read_text(errors="replace").strip()[-1000:] or f"it ended with exit code {process.returncode}",
            next="kinetic config",
            code="no-forwarder",
        )

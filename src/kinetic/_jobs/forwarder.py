"""Be a forwarder: hand connections to a local port on to the debug server of a job, wherever that is at the moment.

A connection that breaks on either side is closed on the other, so that an editor can attach again; the next one finds
the pod anew. Any user of this machine can connect to a local port, so only our own is let through, and the job's server
gets its token first. Nothing that goes wrong with one connection, and no cluster that is away for a while, ends the
process: the job's end does, and SIGTERM.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

from kinetic._jobs import addressing, places, waiting
from kinetic._jobs.forwarding import READY
from kinetic._wire import debug, handles, loopback
from kinetic._wire.handles import JobRecord
from kinetic.errors import KineticError

if TYPE_CHECKING:
    from kinetic._backends.protocol import Backend, Link

_BLOCK = 1 << 16
_PATIENCE_SECONDS = 20.0  # for a pod that is being replaced, or an API server that is away; an editor waits as long
_AGAIN_SECONDS = 0.5
_LOOK_AGAIN_SECONDS = 10.0


class Forwarder:
    """One job, one host, one local port.

    Args:
        job: The job.
        host: Which host.
        listener: Listens already.
    """

    def __init__(self, job: JobRecord, host: int, listener: socket.socket) -> None:
        self._job, self._host, self._listener = job, host, listener
        self._backend: Backend = places.backend_of(job)
        self._token = debug.token(places.key_to_attach(job)).encode() + b"\n"

    def run(self) -> NoReturn:
        """Take connections, for ever."""
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._forward, args=(connection,), daemon=True).start()

    def _forward(self, connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if not loopback.is_own_peer(connection):
                _say("a connection was refused: it is not known to come from this user")
                return
            try:
                with contextlib.ExitStack() as stack:
                    link = self._reach(stack)
                    link.send(self._token)
                    _hand_on(connection, link)
            except (KineticError, OSError) as error:
                _say(f"a connection was closed: {error}")

    def _reach(self, stack: contextlib.ExitStack) -> Link:
        """Open a connection to where the debug server is now; one that is about to be there is waited for.

        Raises:
            KineticError: It is not there.
            OSError: Nobody listens there.
        """
        limit = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                address = addressing.address_of(self._job, host=self._host)
                if address is not None:
                    return stack.enter_context(self._backend.dial(address))
                failure: Exception = KineticError("the job has no debug server at the moment")
            except (KineticError, OSError) as error:
                failure = error
            if time.monotonic() > limit:
                raise failure
            time.sleep(_AGAIN_SECONDS)


def _hand_on(connection: socket.socket, link: Link) -> None:
    """Hand bytes on in both directions until one side closes; then close both."""
    sending = threading.Thread(target=_send, args=(connection, link), daemon=True)
    sending.start()
    try:
        while data := link.receive():
            connection.sendall(data)
    finally:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)  # and with it the other thread's waiting
        sending.join()


def _send(connection: socket.socket, link: Link) -> None:
    with contextlib.suppress(KineticError, OSError):  # whoever receives learns of it, too
        while data := connection.recv(_BLOCK):
            link.send(data)
    link.finish()


def _end_with(job: JobRecord, log: str) -> None:
    """End this process when the job has ended for good."""
    while True:
        try:
            waiting.wait(job)
        except (KineticError, OSError, ValueError) as error:  # the cluster is away, or a store: the job may go on
            _say(f"it is not known how the job stands: {error}")
            time.sleep(_LOOK_AGAIN_SECONDS)
        else:
            _leave(log)


def _leave(log: str) -> NoReturn:
    with contextlib.suppress(OSError):
        os.unlink(log)
    os._exit(0)


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def main(page: dict[str, Any]) -> NoReturn:
    """Be a forwarder; everything it needs to know is in the page."""
    log = str(page["log"])
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    signal.signal(signal.SIGTERM, lambda *_: _leave(log))
    for descriptor in (page["listener"], page["ready"]):
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - Python's own signature
    job = JobRecord(**handles.known(page["job"]))
    forwarder = Forwarder(job, int(page["host"]), socket.socket(fileno=page["listener"]))
    threading.Thread(target=_end_with, args=(job, log), daemon=True).start()
    os.write(page["ready"], READY)
    os.close(page["ready"])
    forwarder.run()

"""A connection to a port of a pod, through the API server: no kubectl, and nothing that must be reachable from here.

The protocol v4.channel.k8s.io: each message begins with the number of a channel, 0 for what is forwarded and 1 for
complaints; the first message of each only repeats the port.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kinetic._backends.kube import channels
from kinetic.errors import BackendError

if TYPE_CHECKING:
    from httpx2.websockets import WebSocketSession

    from kinetic._backends.kube.client import Client

_PROTOCOL = "v4.channel.k8s.io"
_DATA, _COMPLAINT = 0, 1
_PIECE = 32_768  # bytes of one message; a server need not take longer ones


class Tunnel:
    """One connection, to be written and read like a socket."""

    def __init__(self, socket: WebSocketSession, where: str) -> None:
        self._socket = socket
        self._where = where
        self._begun = {_DATA: False, _COMPLAINT: False}

    def send(self, data: bytes) -> None:
        """Send bytes, however many."""
        for start in range(0, len(data), _PIECE):
            channels.send(self._socket, _DATA, data[start : start + _PIECE])

    def finish(self) -> None:
        """Say that nothing more is sent; the server answers by closing, too."""
        channels.finish(self._socket)

    def receive(self) -> bytes:
        """Return the next bytes that come, b"" when the other end has closed.

        Raises:
            BackendError: The pod does not listen there, or is gone.
        """
        while True:
            message = channels.receive(self._socket)
            if not message:
                return b""
            channel, data = message[0], message[1:]
            if not self._begun.get(channel, True):
                self._begun[channel] = True
                data = data[2:]
            if data and channel == _COMPLAINT:
                raise BackendError(f"{self._where} cannot be reached", why=data.decode(errors="replace").strip())
            if data:
                return data


@contextmanager
def connect(client: Client, pod: str, port: int) -> Iterator[Tunnel]:
    """Open a connection to a port of a pod; one for each, as with sockets.

    Raises:
        BackendError: There is no such pod.
        AccessDeniedError: We may not.
    """
    where = f"port {port} of the pod {pod}"
    with channels.connect(client, pod, "portforward", {"ports": port}, [_PROTOCOL], where) as socket:
        yield Tunnel(socket, where)

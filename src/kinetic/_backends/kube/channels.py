"""A WebSocket to a part of a pod, whose messages begin with the number of a channel; and what its refusals mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from kinetic._backends.kube.kinds import POD
from kinetic._backends.kube.transport import Reply
from kinetic.errors import BackendError

if TYPE_CHECKING:
    from httpx2.websockets import WebSocketSession

    from kinetic._backends.kube.client import Client


@contextmanager
def connect(
    client: Client,
    pod: str,
    part: str,
    query: Mapping[str, str | int | bool | list[str]],
    protocols: list[str],
    where: str,
) -> Iterator[WebSocketSession]:
    """Open a connection.

    Args:
        client: Of the cluster.
        pod: Its name.
        part: "exec" or "portforward".
        query: What is asked for.
        protocols: Those that we speak, the best first.
        where: What the connection leads to, in words.

    Raises:
        BackendError: There is no such pod, or nobody answers.
        AccessDeniedError: We may not.
    """
    import httpx2
    from httpx2.websockets import HTTPXWSException, WebSocketUpgradeError

    opened = client.transport.websocket(POD.path(client.namespace, pod, part), query=query, protocols=protocols)
    try:
        socket = opened.__enter__()
    except WebSocketUpgradeError as error:
        raise _refused(client, pod, part, where, error) from error
    except (httpx2.HTTPError, HTTPXWSException) as error:
        why = f"{type(error).__name__}: {error}"
        raise BackendError(f"{where} cannot be reached", why=why, next=f"kubectl get pod {pod}") from error
    try:
        yield socket
    finally:
        with suppress(httpx2.HTTPError, HTTPXWSException):  # it is being closed, one way or another
            opened.__exit__(None, None, None)


def _refused(client: Client, pod: str, part: str, where: str, error: object) -> Exception:
    response = error.response  # type: ignore[attr-defined]  # its class is not loaded where this is defined
    reply = Reply(response.status_code, response.content, repeated=False)
    if reply.status in {401, 403}:
        return client.refuse("create", POD._replace(plural=f"{POD.plural}/{part}"), pod, reply)
    said = client.refuse("get", POD, pod, reply)
    why = getattr(said, "why", None) or str(said)
    return BackendError(f"{where} cannot be reached", why=why, next=f"kubectl get pod {pod} -n {client.namespace}")


def send(socket: WebSocketSession, channel: int, data: bytes) -> None:
    """Send a message.

    Raises:
        BackendError: The connection is not there any more.
    """
    from httpx2.websockets import HTTPXWSException
    from wsproto.utilities import LocalProtocolError

    try:
        socket.send_bytes(bytes([channel]) + data)
    except (HTTPXWSException, LocalProtocolError, OSError) as error:
        raise BackendError("the connection to the pod broke", why=type(error).__name__) from error


def receive(socket: WebSocketSession) -> bytes:
    """Return the next message, with the number of its channel; b"" when the other end has closed, or is gone."""
    from httpx2.websockets import WebSocketDisconnect, WebSocketNetworkError

    try:
        return socket.receive_bytes()
    except (WebSocketDisconnect, WebSocketNetworkError):
        return b""


def finish(socket: WebSocketSession) -> None:
    """Say that nothing more is sent; whoever waits for a message gets the other end's farewell."""
    from httpx2.websockets import HTTPXWSException
    from wsproto.events import CloseConnection
    from wsproto.utilities import LocalProtocolError

    with suppress(HTTPXWSException, LocalProtocolError, OSError):
        socket.send(CloseConnection(code=1000))

"""WebSockets, the server's side: accepting one, and its messages as they come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import wsproto
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, Request, TextMessage
from wsproto.utilities import RemoteProtocolError

CHUNK = 1 << 16


class Socket:
    """One accepted WebSocket, whose messages begin with the number of a channel."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._machine = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
        self.subprotocol = ""

    async def accept(self, head: bytes, known: tuple[str, ...]) -> bool:
        """Answer a request for one of the subprotocols that we know, the best first; tell whether it was one."""
        try:
            self._machine.receive_data(head)
        except RemoteProtocolError:
            return False  # a request for SPDY, most likely
        request = next(event for event in self._machine.events() if isinstance(event, Request))
        wanted = [name for name in known if name in request.subprotocols]
        if not wanted:
            return False
        self.subprotocol = wanted[0]
        await self._put(self._machine.send(AcceptConnection(subprotocol=self.subprotocol)))
        return True

    async def _put(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def send(self, channel: int, data: bytes) -> None:
        await self._put(self._machine.send(BytesMessage(bytes([channel]) + data)))

    async def messages(self) -> AsyncIterator[tuple[int, bytes]]:
        """Yield channel and content of each message until the client has gone."""
        parts: list[bytes] = []
        while True:
            for event in self._machine.events():
                if isinstance(event, CloseConnection):
                    await self._put(self._machine.send(event.response()))
                    return
                if isinstance(event, Ping):
                    await self._put(self._machine.send(event.response()))
                if isinstance(event, BytesMessage | TextMessage):
                    data = event.data
                    parts.append(data.encode() if isinstance(data, str) else bytes(data))
                    if event.message_finished:
                        whole = b"".join(parts)
                        parts = []
                        if whole:
                            yield whole[0], whole[1:]
            data = await self._reader.read(CHUNK)
            if not data:
                return
            self._machine.receive_data(data)

    async def close(self) -> None:
        """Say that nothing more comes."""
        try:
            await self._put(self._machine.send(CloseConnection(code=1000)))
        except (OSError, wsproto.utilities.LocalProtocolError):
            return  # it has gone already

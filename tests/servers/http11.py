"""A small, quick HTTP/1.1 server for protocol doubles: standard library, one event loop, one function that answers.

Quick, because benchmarks compare clients against it and it shares their two cores: about 50 us for a small request.
"""

from __future__ import annotations

import asyncio
import threading
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

PIECE = 1 << 20  # written at a time: a gigabyte handed to the transport at once would be copied as a whole


class Request(NamedTuple):
    """What arrived.

    Attributes:
        method: In capitals.
        path: Still percent-encoded, so that "/" and "%2F" differ.
        query: Decoded; the last value of each name.
        headers: Names in small letters.
        body: Whole.
        pairs: Of the query, names that are repeated included.
    """

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    pairs: tuple[tuple[str, str], ...] = ()


class Answer(NamedTuple):
    """What goes back.

    Attributes:
        status: The code.
        body: Whole, or its beginning where it stays open.
        headers: Besides the length.
        length: Stands in for the body's where none is sent, as to HEAD; of a longer body than is sent, it is cut there.
        stays_open: Whether the body goes on, without another byte, until the server is closed.
        aborts: Whether the connection is reset instead of answering.
    """

    status: int
    body: bytes | memoryview = b""
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    length: int | None = None
    stays_open: bool = False
    aborts: bool = False


class Server:
    """Answers on a free port of 127.0.0.1, or another address, from a thread of its own, until it is closed."""

    def __init__(self, answer: Callable[[Request], Answer], port: int = 0, host: str = "127.0.0.1") -> None:
        self.delay_seconds = 0.0  # from a request to its answer, as of a network
        self._answer = answer
        self._loop = asyncio.new_event_loop()
        self._connections: set[_Connection] = set()
        self._server = self._loop.run_until_complete(
            self._loop.create_server(lambda: _Connection(answer, self._connections, self), host, port)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://{host}:{self.port}"
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"server on {self.port}", daemon=True)

    def start(self) -> Server:
        self._thread.start()
        return self

    def run(self) -> None:
        """Serve on the calling thread, for ever."""
        self._loop.run_forever()

    def close(self) -> None:
        """Close all connections."""
        asyncio.run_coroutine_threadsafe(self._let_go(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def hang_up(self) -> None:
        """End the answers that stay open."""
        self._loop.call_soon_threadsafe(self._hang_up)

    def _hang_up(self) -> None:
        for connection in list(self._connections):
            if connection.stays_open:
                connection.transport.close()

    async def _let_go(self) -> None:
        """Close everything, connections that are being taken this moment as well."""
        for socket in self._server.sockets:  # a server that is closed loses what is being taken, and never closes it
            self._loop.remove_reader(socket.fileno())
        await asyncio.sleep(0)  # whatever was heard of in this very moment is being taken now
        while (taking := asyncio.all_tasks() - {asyncio.current_task()}) or self._connections:
            for connection in list(self._connections):
                connection.transport.abort()
            await asyncio.gather(*taking, return_exceptions=True)
            await asyncio.sleep(0)
        self._server.close()


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, answer: Callable[[Request], Answer], connections: set[_Connection], server: Server) -> None:
        self._answer = answer
        self._server = server
        self._connections = connections
        self._head = bytearray()
        self._body: list[bytes] = []
        self._missing = -1  # bytes of a body that have not come yet; -1: no head yet
        self._request: tuple[str, str, dict[str, str]] | None = None
        self._paused = False
        self.stays_open = False
        self._out: memoryview | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)

    def data_received(self, data: bytes) -> None:
        while data:
            if self._missing < 0:
                data = self._read_head(data)
            else:
                self._body.append(data[: self._missing])
                data, self._missing = data[self._missing :], self._missing - len(self._body[-1])
            if self._missing == 0:
                self._respond()

    def _read_head(self, data: bytes) -> bytes:
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            return b""
        rest = bytes(self._head[end + 4 :])
        first, *lines = self._head[:end].decode("latin-1").split("\r\n")
        self._head.clear()
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        method, target, _ = first.split(" ", 2)
        self._request = (method, target, headers)
        if "chunked" in headers.get("transfer-encoding", ""):
            raise NotImplementedError("no client that is tested here sends chunked bodies")
        self._missing = int(headers.get("content-length") or 0)
        return rest

    def _respond(self) -> None:
        assert self._request is not None
        method, target, headers = self._request
        path, _, query = target.partition("?")
        pairs = tuple(urllib.parse.parse_qsl(query, keep_blank_values=True)) if query else ()
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body, self._missing, self._request = [], -1, None
        answer = self._answer(Request(method, path, dict(pairs), headers, body, pairs))
        if self._server.delay_seconds:
            asyncio.get_running_loop().call_later(self._server.delay_seconds, self._write, method, answer)
        else:
            self._write(method, answer)

    def _write(self, method: str, answer: Answer) -> None:
        if answer.aborts:
            self.transport.abort()
            return
        self.stays_open = answer.stays_open
        length = len(answer.body) if answer.length is None else answer.length
        ends = "Connection: close" if answer.stays_open else f"Content-Length: {length}"
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        head = f"HTTP/1.1 {answer.status} {_phrase(answer.status)}\r\n{ends}\r\n{extra}\r\n"
        if method == "HEAD" or not answer.body:
            self.transport.write(head.encode())
        elif len(answer.body) <= PIECE:
            self.transport.write(head.encode() + answer.body)
            if length > len(answer.body) and not answer.stays_open:
                self.transport.close()
        else:
            self.transport.write(head.encode())
            self._out = memoryview(answer.body)
            self._pump()

    def _pump(self) -> None:
        while self._out is not None and not self._paused:
            self.transport.write(self._out[:PIECE])
            self._out = self._out[PIECE:] if len(self._out) > PIECE else None

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Status"

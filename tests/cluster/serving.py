"""The part of a kubelet that the API server calls: logs, exec and port-forward."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import fcntl
import json
import os
import pty
import signal
import ssl
import struct
import termios
import urllib.parse
from typing import TYPE_CHECKING, Protocol

from cluster.logs import Log, Question
from cluster.sockets import CHUNK, Socket
from cluster.statuses import parse

if TYPE_CHECKING:
    from cluster.certificates import Pair
    from cluster.containers import Container

# stdin, stdout, stderr, the final status, the size of the terminal; 255 closes one of them, in version 5.
IN, OUT, ERR, STATUS, SIZE, CLOSE = 0, 1, 2, 3, 4, 255


class NoSuchError(Exception):
    """What was asked for is not there; the words are for the person who asked."""


class Pods(Protocol):
    """Whom we ask."""

    def log(self, namespace: str, pod: str, container: str, *, previous: bool) -> Log: ...
    def container(self, namespace: str, pod: str, container: str) -> Container: ...
    def address_of(self, namespace: str, pod: str) -> str: ...


class Server:
    """Serves one address for all nodes of an agent; only a client with a certificate of our authority is let in."""

    def __init__(self, pods: Pods) -> None:
        self._pods = pods
        self._tasks: set[asyncio.Task[None]] = set()
        self._about: dict[asyncio.Task[None], tuple[str, str]] = {}
        self._server: asyncio.Server | None = None

    async def start(self, sock: object, pair: Pair, authority: str) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        context.load_verify_locations(authority)
        context.verify_mode = ssl.CERT_REQUIRED
        self._server = await asyncio.start_server(self._accept, sock=sock, ssl=context)  # type: ignore[arg-type]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def cut(self, pods: set[tuple[str, str]]) -> None:
        """Cut the connections that are about these pods, by namespace and name: nobody is there any more."""
        for task, pod in self._about.items():
            if pod in pods:
                task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with contextlib.suppress(OSError, EOFError, ssl.SSLError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._tasks.discard(task)
            self._about.pop(task, None)
            if writer.transport.get_write_buffer_size():
                writer.close()
            else:
                writer.transport.abort()  # without waiting for a farewell that TLS would like

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request; connections are not used again, the server opens one for each."""
        head = await reader.readuntil(b"\r\n\r\n")
        target = head.split(b" ", 2)[1].decode()
        path = urllib.parse.urlsplit(target)
        query = urllib.parse.parse_qs(path.query, keep_blank_values=True)
        parts = [urllib.parse.unquote(part) for part in path.path.strip("/").split("/")]
        task = asyncio.current_task()
        if task is not None and len(parts) > 2:
            self._about[task] = (parts[1], parts[2])
        try:
            match parts:
                case ["containerLogs", namespace, pod, container]:
                    await self._logs(writer, self._log(namespace, pod, container, query), _question(query))
                case ["exec", namespace, pod, container]:
                    found = self._pods.container(namespace, pod, container)
                    await self._exec(Socket(reader, writer), head, found, query)
                case ["portForward", namespace, pod]:
                    await self._forward(Socket(reader, writer), head, self._pods.address_of(namespace, pod), query)
                case _:
                    raise NoSuchError(f"the test's node agent does not serve /{parts[0]}")
        except NoSuchError as error:
            body = str(error).encode()
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n")
            writer.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()

    def _log(self, namespace: str, pod: str, container: str, query: dict[str, list[str]]) -> Log:
        return self._pods.log(namespace, pod, container, previous=query.get("previous") == ["true"])

    async def _logs(self, writer: asyncio.StreamWriter, log: Log, question: Question) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n")
        async for text in log.read(question):
            if text:
                writer.write(b"%x\r\n%s\r\n" % (len(text), text))
                await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    # ------------------------------------------------------------------------------------------------------------ exec

    async def _exec(self, socket: Socket, head: bytes, container: Container, query: dict[str, list[str]]) -> None:
        if not await socket.accept(head, ("v5.channel.k8s.io", "v4.channel.k8s.io")):
            raise NoSuchError("the test's node agent speaks v5.channel.k8s.io and v4.channel.k8s.io only, not SPDY")
        if _asked(query, "tty"):
            await _exec_on_a_terminal(socket, container, query["command"])
            return
        pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *container.entering(query["command"]),
            stdin=pipe if _asked(query, "input", "stdin") else nothing,
            stdout=pipe if _asked(query, "output", "stdout") else nothing,
            stderr=pipe if _asked(query, "error", "stderr") else nothing,
            env=container.environment,
            start_new_session=True,
        )
        listening = asyncio.ensure_future(_feed(socket, process))
        try:
            streams = ((OUT, process.stdout), (ERR, process.stderr))
            await asyncio.gather(*(_hand_on(socket, channel, stream) for channel, stream in streams if stream))
            await socket.send(STATUS, json.dumps(_outcome(await process.wait())).encode())
            await socket.close()
        finally:
            listening.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()

    # ---------------------------------------------------------------------------------------------------- port-forward

    async def _forward(self, socket: Socket, head: bytes, address: str, query: dict[str, list[str]]) -> None:
        if not await socket.accept(head, ("v4.channel.k8s.io", "portforward.k8s.io")):
            raise NoSuchError("the test's node agent forwards ports over v4.channel.k8s.io only, not SPDY")
        ports = [int(port) for value in query.get("port", []) for port in value.split(",")]
        pairs: list[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None] = []
        for number, port in enumerate(ports):
            for channel in (2 * number, 2 * number + 1):
                await socket.send(channel, port.to_bytes(2, "little"))
            pairs.append(await self._dial(socket, 2 * number + 1, address, port))
        pumps = [
            asyncio.ensure_future(_hand_on(socket, 2 * number, pair[0])) for number, pair in enumerate(pairs) if pair
        ]
        listening, pumped = asyncio.ensure_future(_fill(socket, pairs)), asyncio.gather(*pumps)
        pumped.add_done_callback(lambda done: done.cancelled() or done.exception())  # else Python 3.12 complains
        try:
            await asyncio.wait({listening, pumped}, return_when=asyncio.FIRST_COMPLETED)
            await socket.close()
        finally:
            for task in (listening, *pumps):
                task.cancel()
            for pair in pairs:
                if pair:
                    pair[1].transport.abort()

    async def _dial(
        self, socket: Socket, channel: int, address: str, port: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        """Connect to a pod's port. Its loopback address is this machine's, so it comes after the pod's own."""
        for host in (address, "127.0.0.1"):
            with contextlib.suppress(OSError):
                return await asyncio.open_connection(host, port)
        await socket.send(channel, f"connect to port {port} of the pod: connection refused".encode())
        return None


def _asked(query: dict[str, list[str]], *names: str) -> bool:
    return any(query.get(name, ["0"])[0] in {"1", "true"} for name in names)


def _question(query: dict[str, list[str]]) -> Question:
    def number(name: str) -> int | None:
        return int(query[name][0]) if name in query else None

    since = parse(query["sinceTime"][0]) if "sinceTime" in query else None
    seconds = number("sinceSeconds")
    if seconds is not None:
        since = dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds)
    follow, timestamps = _asked(query, "follow"), _asked(query, "timestamps")
    return Question(follow, number("tailLines"), since, timestamps, number("limitBytes"))


async def _feed(socket: Socket, process: asyncio.subprocess.Process) -> None:
    """Hand the client's input to the process; end the process when the client has gone."""
    async for channel, data in socket.messages():
        if process.stdin is None:
            continue
        with contextlib.suppress(ConnectionError):  # it does not read any more
            if channel == IN:
                process.stdin.write(data)
                await process.stdin.drain()
            elif channel == CLOSE and data[:1] == bytes([IN]):
                process.stdin.close()
    if process.returncode is None:
        process.kill()


async def _exec_on_a_terminal(socket: Socket, container: Container, command: list[str]) -> None:
    """Run a command as the leader of a session, with a terminal of its own."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        try:
            process = await asyncio.create_subprocess_exec(
                *("setsid", "--ctty", *container.entering(command)),
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=container.environment,
            )
        finally:
            os.close(theirs)
        listening = asyncio.ensure_future(_type(socket, ours, process))
        try:
            shown = asyncio.StreamReader()
            await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(shown), screen)
            with contextlib.suppress(OSError):  # EIO: nobody has it open any more
                await _hand_on(socket, OUT, shown)
            await socket.send(STATUS, json.dumps(_outcome(await process.wait())).encode())
            await socket.close()
        finally:
            listening.cancel()
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _type(socket: Socket, terminal: int, process: asyncio.subprocess.Process) -> None:
    """Type what the client sends, give the terminal the size that it says, and hang up when it has gone."""
    async for channel, data in socket.messages():
        if channel == IN:
            os.write(terminal, data)
        elif channel == SIZE:
            size = json.loads(data)
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))
    if process.returncode is None:
        process.send_signal(signal.SIGHUP)


async def _hand_on(socket: Socket, channel: int, stream: asyncio.StreamReader) -> None:
    while data := await stream.read(CHUNK):
        await socket.send(channel, data)


async def _fill(socket: Socket, pairs: list[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]) -> None:
    async for channel, data in socket.messages():
        pair = pairs[channel // 2] if channel // 2 < len(pairs) else None
        if pair and channel % 2 == 0:
            pair[1].write(data)
            await pair[1].drain()


def _outcome(code: int) -> dict[str, object]:
    """Write an exit code as the API does."""
    head = {"metadata": {}, "apiVersion": "v1", "kind": "Status"}
    if code == 0:
        return {**head, "status": "Success"}
    number = 128 - code if code < 0 else code
    return {
        **head,
        "status": "Failure",
        "reason": "NonZeroExitCode",
        "message": f"command terminated with non-zero exit code: exit status {number}",
        "details": {"causes": [{"reason": "ExitCode", "message": str(number)}]},
    }

"""HTTP/1.1 to one server, over connections that stay open for the next request, and WebSockets.

Libraries that also serve asyncio take 100 ms to import, and Python's own has no WebSockets. What an API server sends is
read here: bodies with a length, in chunks or to the end, whole or as they come, and messages.

Any thread may end a connection that another one uses: it is shut down, which wakes that thread, and the thread closes
it. So no thread reads from a file number that belongs to somebody else by then.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import select
import socket
import ssl
import threading
import time
import urllib.parse
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kinetic._wire import python_runtime

_BLOCK = 1 << 16
_MOST_HEAD = 1 << 20  # bytes of a status line and its headers, and of a line in a body of chunks
_MOST_IDLE = 16
_IDLE_SECONDS = 60.0
_GZIP = 32 + zlib.MAX_WBITS  # of zlib: gzip or zlib, as the data says
_NO_BODY = frozenset({204, 304})


class TransportError(ConnectionError):
    """No answer came, or only a part of one."""


class ConnectError(TransportError):
    """There is no connection, so nothing was sent."""


class ClosedError(Exception):
    """All connections were closed by another thread before this request was sent: make new ones."""


class Timeouts(NamedTuple):
    """How long a request waits, in seconds: for its connection, and for each read and write."""

    connect: float
    read: float


# ----------------------------------------------------------------------------------------------------------- one answer


class _Connection:
    """One connection, and what was read from it beyond the answer before."""

    def __init__(self, used: socket.socket) -> None:
        self.socket = used
        self.rest = bytearray()
        self.since = time.monotonic()

    def fill(self) -> bool:
        """Read some more; return whether there was any."""
        data = self.socket.recv(_BLOCK)
        self.rest += data
        return bool(data)

    def take(self, count: int) -> bytes:
        """Take so many of the bytes that are here."""
        found = bytes(self.rest[:count])
        del self.rest[:count]
        return found

    def line(self) -> bytes:
        """Read a line, without its end."""
        while (end := self.rest.find(b"\n")) < 0:
            if len(self.rest) > _MOST_HEAD:
                raise TransportError("the server sent a line without an end")
            if not self.fill():
                cut = "in the middle of its answer" if self.rest else "without an answer"
                raise TransportError(f"the server closed the connection {cut}")
        return self.take(end + 1).rstrip(b"\r\n")

    def has_ended(self) -> bool:
        """Return whether an idle connection can be read: then it is its end, or nothing that was asked for."""
        return bool(self.rest) or _poll(self.socket, select.POLLIN, 0) or _pending(self.socket) > 0

    def abort(self) -> None:
        """Wake the thread that uses it, which closes it then."""
        with contextlib.suppress(OSError):  # the other end may be gone
            # SSLSocket's own forgets that it is encrypted, and what is sent after it goes out as it is.
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class Response:
    """An answer whose body is read by ``read``, or as it comes; ``close`` ends it.

    Attributes:
        status: Of HTTP.
        headers: Names in lower case.
    """

    def __init__(self, connection: _Connection, method: str, finish: Callable[[_Connection, bool], None]) -> None:
        self._connection, self._finish = connection, finish
        self._is_over = self._is_whole = False
        version, self.status = _status_of(connection.line())
        while 100 <= self.status < 200 and self.status != 101:
            _headers_of(connection)
            version, self.status = _status_of(connection.line())
        self.headers = _headers_of(connection)
        has_none = method == "HEAD" or self.status in _NO_BODY or self.status == 101
        self._is_chunked = not has_none and "chunked" in self.headers.get("transfer-encoding", "").lower()
        length = "0" if has_none else self.headers.get("content-length", "")
        if length and not (length.isascii() and length.isdecimal()):
            raise TransportError(f"the server sent the length {length[:40]!r}")
        self._length = int(length) if length and not self._is_chunked else None
        words = self.headers.get("connection", "").lower()
        self._stays = "close" not in words and (version >= b"HTTP/1.1" or "keep-alive" in words)

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes."""
        encoding = self.headers.get("content-encoding", "identity").lower()
        if encoding not in {"identity", "gzip", "deflate"}:
            raise TransportError(f"the server sent a body in the encoding {encoding[:40]!r}")
        unpack = None if encoding == "identity" else zlib.decompressobj(_GZIP)
        with _translated():
            for piece in self._chunks() if self._is_chunked else self._plain():
                if found := piece if unpack is None else unpack.decompress(piece):
                    yield found
            if unpack is not None and not unpack.eof and self._length != 0:
                raise TransportError("the server closed the connection in the middle of its answer")
            self._is_whole = True

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of the body as they come, without their ends."""
        held = b""
        for piece in self.pieces():
            *whole, held = (held + piece).split(b"\n")
            yield from whole
        if held:
            yield held

    def read(self) -> bytes:
        """Read all of the body."""
        try:
            return b"".join(self.pieces())
        finally:
            self.close()

    def abort(self) -> None:
        """End it, from any thread: who reads the body gets an error or its end."""
        self._connection.abort()

    def close(self) -> None:
        """End it; its connection serves the next request if all of the body was read."""
        if not self._is_over:
            self._is_over = True
            self._finish(self._connection, self._is_whole and self._stays and not self._connection.rest)

    def _plain(self) -> Iterator[bytes]:
        connection, left = self._connection, self._length
        while left is None or left:
            if not connection.rest and not connection.fill():
                if left is None:
                    self._stays = False
                    return
                raise TransportError("the server closed the connection in the middle of its answer")
            found = connection.take(len(connection.rest) if left is None else left)
            left = None if left is None else left - len(found)
            yield found

    def _chunks(self) -> Iterator[bytes]:
        connection = self._connection
        while True:
            written = connection.line().partition(b";")[0].strip()
            try:
                left = int(written, 16)
            except ValueError:
                left = -1
            if left < 0:
                raise TransportError(f"the server sent a chunk of the length {written[:40]!r}")
            if not left:
                _headers_of(connection)  # what may follow the last chunk
                return
            while left:
                if not connection.rest and not connection.fill():
                    raise TransportError("the server closed the connection in the middle of its answer")
                found = connection.take(left)
                left -= len(found)
                yield found
            if connection.line():
                raise TransportError("the server sent more than a chunk was to have")


def _status_of(line: bytes) -> tuple[bytes, int]:
    version, _, rest = line.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        raise TransportError(f"the server does not speak HTTP/1.1: {line[:60]!r}")
    return version, int(code)


def _headers_of(connection: _Connection) -> dict[str, str]:
    found: dict[str, str] = {}
    size = 0
    while line := connection.line():
        size += len(line)
        if size > _MOST_HEAD:
            raise TransportError("the server sent too many headers")
        name, _, value = line.decode("latin-1").partition(":")
        key, value = name.strip().lower(), value.strip()
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


@contextlib.contextmanager
def _translated(kind: type[TransportError] = TransportError) -> Iterator[None]:
    """Raise what the network, TLS or a body that is broken raises as ``kind``."""
    try:
        yield
    except TransportError:
        raise
    except TimeoutError as error:
        raise kind(str(error) or "timed out") from error
    except (OSError, zlib.error) as error:  # ssl.SSLError is one
        raise kind(str(error)) from error


def _poll(used: socket.socket, what: int, seconds: float) -> bool:
    """Wait until a socket can be read or written; select() takes no file number above 1023."""
    poll = select.poll()
    poll.register(used.fileno(), what)
    return bool(poll.poll(seconds * 1000))


def _pending(used: socket.socket) -> int:
    """Return how many bytes wait in TLS's own buffer."""
    return used.pending() if isinstance(used, ssl.SSLSocket) else 0


# ---------------------------------------------------------------------------------------------------------- connections


class ConnectionPool:
    """The connections to one server. Threads may share it.

    Args:
        server: Its address, with the path that all requests begin with.
        context: What TLS trusts and shows.
        server_name: That the server's certificate must have; "" for that of the address.
        proxy: The address of a proxy, "" for none.
        most: Connections at a time.
        options: Of each socket.
    """

    def __init__(
        self,
        server: str,
        context: ssl.SSLContext,
        *,
        server_name: str = "",
        proxy: str = "",
        most: int,
        options: list[tuple[int, int, int]],
    ) -> None:
        self._parts, self._proxy = urllib.parse.urlsplit(server), urllib.parse.urlsplit(proxy) if proxy else None
        self._context, self._server_name, self._options = context, server_name, options
        self._free = threading.BoundedSemaphore(most)
        self._lock = threading.Lock()
        self._idle: list[_Connection] = []
        self._used: set[_Connection] = set()
        self._is_closed = False

    def send(
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes | None = None, timeouts: Timeouts
    ) -> Response:
        """Send a request, and return the answer with its body unread; who gets it, closes it.

        Raises:
            ConnectError: There is no connection.
            TransportError: No answer came.
            ClosedError: Another thread has closed the pool.
        """
        sent = {"Host": self._parts.netloc.rpartition("@")[2], **headers}
        if body is not None or method in {"POST", "PUT", "PATCH"}:
            sent["Content-Length"] = str(len(body or b""))
        target = self._parts.path + path
        if self._proxy is not None and self._parts.scheme == "http":
            target = f"http://{sent['Host']}{target}"
            sent |= self._proxy_login()
        head = _head(method, target, sent)
        connection = self._connected(timeouts)
        try:
            with _translated():
                connection.socket.settimeout(timeouts.read)
                connection.socket.sendall(head + (body or b""))
                return Response(connection, method, self._finish)
        except BaseException:
            self._finish(connection, False)  # noqa: FBT003 - as Response calls it
            raise

    def close(self) -> None:
        """Close all connections: who waits for an answer gets an error, and the pool sends nothing more."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for each in self._used:
                each.abort()
        for each in idle:
            self._close(each)

    def _connected(self, timeouts: Timeouts) -> _Connection:
        if not self._free.acquire(timeout=timeouts.read):
            raise ConnectError("too many connections to the server are in use")
        try:
            connection = self._take_idle()
            if connection is None:
                with _translated(ConnectError):
                    connection = _Connection(self._connect(timeouts.connect))
            with self._lock:
                if not self._is_closed:
                    self._used.add(connection)
                    return connection
            self._close(connection)
            raise ClosedError
        except BaseException:
            self._free.release()
            raise

    def _take_idle(self) -> _Connection | None:
        while True:
            with self._lock:
                if self._is_closed:
                    raise ClosedError
                if not self._idle:
                    return None
                found = self._idle.pop()
            if time.monotonic() - found.since < _IDLE_SECONDS and not found.has_ended():
                return found
            self._close(found)

    def _finish(self, connection: _Connection, is_kept: bool) -> None:
        """Keep a connection for the next request, or close it."""
        with self._lock:
            if connection not in self._used:
                return
            self._used.discard(connection)
            connection.since = time.monotonic()
            is_kept = is_kept and not self._is_closed and len(self._idle) < _MOST_IDLE
            if is_kept:
                self._idle.append(connection)
        if not is_kept:
            self._close(connection)
        self._free.release()

    def _close(self, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            connection.socket.close()

    def _connect(self, seconds: float) -> socket.socket:
        parts = self._proxy or self._parts
        port = parts.port or (443 if parts.scheme == "https" else 80)
        used = socket.create_connection((parts.hostname or "", port), seconds)
        try:
            for option in (*self._options, (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)):
                used.setsockopt(*option)
            if self._proxy is not None and self._parts.scheme == "https":
                self._open_tunnel(used)
            if self._parts.scheme == "https":
                used = self._context.wrap_socket(used, server_hostname=self._server_name or self._parts.hostname)
        except BaseException:
            used.close()
            raise
        return used

    def _open_tunnel(self, used: socket.socket) -> None:
        """Have a proxy connect to the server; what follows is between the server and us."""
        host = self._parts.hostname or ""
        target = f"{f'[{host}]' if ':' in host else host}:{self._parts.port or 443}"
        used.sendall(_head("CONNECT", target, {"Host": target, **self._proxy_login()}))
        connection = _Connection(used)
        _, status = _status_of(connection.line())
        _headers_of(connection)
        if not 200 <= status < 300:
            raise ConnectError(f"the proxy {self._proxy.hostname if self._proxy else ''} answered with HTTP {status}")

    def _proxy_login(self) -> dict[str, str]:
        if self._proxy is None or self._proxy.username is None:
            return {}
        pair = f"{urllib.parse.unquote(self._proxy.username)}:{urllib.parse.unquote(self._proxy.password or '')}"
        return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}

    # ------------------------------------------------------------------------------------------------------ WebSockets

    def upgrade(
        self, path: str, *, headers: Mapping[str, str], protocols: list[str], most_bytes: int, timeouts: Timeouts
    ) -> WebSocket | Response:
        """Ask for a WebSocket; return it, or the answer of a server that refuses."""
        key = base64.b64encode(os.urandom(16)).decode()
        asked = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        asked |= {"Sec-WebSocket-Key": key}
        asked |= {"Sec-WebSocket-Protocol": ", ".join(protocols)} if protocols else {}
        answer = self.send("GET", path, headers={**headers, **asked}, timeouts=timeouts)
        if answer.status != 101:
            return answer
        expected = base64.b64encode(hashlib.sha1(key.encode() + _GUID, usedforsecurity=False).digest()).decode()
        if answer.headers.get("sec-websocket-accept") != expected:
            answer.close()
            raise TransportError("the server accepted a WebSocket that was not asked for")
        return WebSocket(answer, most_bytes)


def _head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if any("\r" in line or "\n" in line for line in lines):
        raise TransportError("a header of the request has a line break")
    return "\r\n".join([*lines, "", ""]).encode()


# ----------------------------------------------------------------------------------------------------------- WebSockets

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # of RFC 6455
_MORE, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_PING_SECONDS = 20.0  # load balancers drop a connection that is idle; the answers are not waited for
_WRITE_SECONDS, _CLOSE_SECONDS = 60.0, 1.0  # for a message, and for the last one
_SEND_PAUSE = 0.5  # between two looks whether the connection was closed
_NORMAL = (1000).to_bytes(2, "big")


class WebSocket:
    """A connection of messages, which one thread reads and any thread may write to and close.

    Its socket never blocks, so that reading and writing TLS take turns under one lock, and nothing waits with it.

    Attributes:
        subprotocol: That the server chose, "" for none.
    """

    def __init__(self, answer: Response, most_bytes: int) -> None:
        self.subprotocol = answer.headers.get("sec-websocket-protocol", "")
        self._answer, self._connection = answer, answer._connection  # noqa: SLF001 - taken over from it
        self._socket, self._most = self._connection.socket, most_bytes
        self._turn, self._write_turn = threading.Lock(), threading.Lock()
        self._users, self._users_lock, self._is_over = 0, threading.Lock(), threading.Event()
        self._has_finished = False
        self._socket.settimeout(0)
        python_runtime.start_thread(self._keep_alive, "kinetic-websocket")

    def send(self, data: bytes) -> None:
        """Send a message; raises TransportError if the connection is gone."""
        if self._has_finished:
            raise TransportError("the connection is being closed")
        self._write(_BINARY, data)

    def receive(self) -> bytes | None:
        """Return the next message; None when the other end has closed, or is gone."""
        parts: list[bytes] = []
        with contextlib.suppress(OSError), self._in_use():
            while True:
                is_last, kind, data = self._frame(self._most - sum(map(len, parts)))
                if kind == _CLOSE:
                    self.finish(data[:2])
                    return None
                if kind == _PING:
                    self._write(_PONG, data)
                elif kind in {_MORE, _TEXT, _BINARY}:
                    parts.append(data)
                    if is_last:
                        return b"".join(parts)
        return None

    def finish(self, reason: bytes = _NORMAL) -> None:
        """Report that nothing more is sent; the other end answers by closing, too."""
        if not self._has_finished:
            self._has_finished = True
            with contextlib.suppress(OSError):
                self._write(_CLOSE, reason, _CLOSE_SECONDS)

    def close(self) -> None:
        """Close it, from any thread: who reads it gets its end."""
        if self._is_over.is_set():
            return
        self.finish()
        with self._users_lock:
            self._is_over.set()
            is_used = self._users > 0
            self._connection.abort()
        if not is_used:
            self._answer.close()

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Hold the file open; whoever uses it last after its end closes it."""
        with self._users_lock:
            if self._is_over.is_set():
                raise TransportError("the connection was closed")
            self._users += 1
        try:
            yield
        finally:
            with self._users_lock:
                self._users -= 1
                is_last = self._is_over.is_set() and not self._users
            if is_last:
                self._answer.close()

    def _keep_alive(self) -> None:
        while not self._is_over.wait(_PING_SECONDS):
            try:
                self._write(_PING, b"")
            except OSError:
                return

    # ------------------------------------------------------------------------------------------------------- frames

    def _frame(self, most: int) -> tuple[bool, int, bytes]:
        first, second = self._take(2)
        length = second & 0x7F
        if length > 125:
            length = int.from_bytes(self._take(2 if length == 126 else 8), "big")
        mask = self._take(4) if second & 0x80 else b""
        if length > most:
            raise TransportError("a message is too long")
        data = self._take(length)
        return bool(first & 0x80), first & 0x0F, _masked(data, mask) if mask else data

    def _take(self, count: int) -> bytes:
        rest = self._connection.rest
        while len(rest) < count:
            with self._turn:
                wanted = select.POLLIN
                try:
                    if not self._connection.fill():
                        raise TransportError("the other end is gone")
                    continue
                except (BlockingIOError, ssl.SSLWantReadError):
                    pass
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
            _poll(self._socket, wanted, _PING_SECONDS)
        return self._connection.take(count)

    def _write(self, kind: int, data: bytes, seconds: float = _WRITE_SECONDS) -> None:
        size, mask = len(data), os.urandom(4)
        extended = b"" if size < 126 else size.to_bytes(2 if size < 1 << 16 else 8, "big")
        short = size if size < 126 else 126 if size < 1 << 16 else 127
        left = memoryview(bytes([0x80 | kind, 0x80 | short]) + extended + mask + _masked(data, mask))
        limit = time.monotonic() + seconds
        with self._in_use(), _translated():
            if not self._write_turn.acquire(timeout=seconds):
                raise TransportError("nothing can be sent: the other end does not read")
            try:
                while left:
                    left = left[self._send_some(left, limit) :]
            except BaseException:
                self._connection.abort()  # part of a message may have been sent: nothing can follow it
                raise
            finally:
                self._write_turn.release()

    def _send_some(self, data: memoryview, limit: float) -> int:
        while True:
            with self._turn:
                wanted = select.POLLOUT
                try:
                    return self._socket.send(data)
                except (BlockingIOError, ssl.SSLWantWriteError):
                    pass
                except ssl.SSLWantReadError:
                    wanted = select.POLLIN
            if time.monotonic() > limit or self._is_over.is_set():
                raise TransportError("nothing can be sent: the other end does not read")
            _poll(self._socket, wanted, _SEND_PAUSE)


def _masked(data: bytes, mask: bytes) -> bytes:
    """Combine each byte with one of four in turn: as two large numbers, which takes 1 ms for a megabyte."""
    size = len(data)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "big") ^ int.from_bytes(pattern, "big")).to_bytes(size, "big")

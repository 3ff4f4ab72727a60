"""HTTP/1.1 to one server, over connections that stay open for the next request, and WebSockets.

h11 and wsproto read and write what is sent; here is what they leave to others: sockets, TLS, proxies, and threads. The
clients on top of them also serve asyncio, and take 100 ms to import.

Any thread may end a connection that another one uses: it is shut down, which wakes that thread, and the thread closes
it. So no thread reads from a file number that belongs to somebody else by then.
"""

from __future__ import annotations

import _socket
import contextlib
import select
import socket
import ssl
import threading
import time
import urllib.parse
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kinetic._wire import NamedTuple, python_runtime

if TYPE_CHECKING:
    import h11
    from wsproto.events import Event

_BLOCK = 1 << 16
_MOST_HEAD = 1 << 20  # bytes of a status line and its headers
_MOST_IDLE = 16
_IDLE_SECONDS = 60.0
_SWITCHING = 101  # to a WebSocket
_GZIP = 32 + zlib.MAX_WBITS  # of zlib: gzip or zlib, as the data says


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
    """One connection: its socket, and h11's machine, which knows what may come next on it."""

    def __init__(self, used: socket.socket) -> None:
        import h11  # 10 ms; only for a cluster

        self.socket = used
        self.machine = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD)
        self.since = time.monotonic()

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> None:
        """Send a request."""
        import h11

        data = self.machine.send(h11.Request(method=method, target=target, headers=list(headers.items()))) or b""
        if body:
            data += self.machine.send(h11.Data(data=body)) or b""
        self.socket.sendall(data + (self.machine.send(h11.EndOfMessage()) or b""))

    def next_event(self) -> h11.Event | type[h11.NEED_DATA | h11.PAUSED]:
        """Return what the server sends next."""
        import h11

        while (event := self.machine.next_event()) is h11.NEED_DATA:
            if not (data := self.socket.recv(_BLOCK)) and self.machine.their_state is h11.SEND_RESPONSE:
                cut = "in the middle of its answer" if self.machine.trailing_data[0] else "without an answer"
                raise TransportError(f"the server closed the connection {cut}")
            self.machine.receive_data(data)
        return event

    def is_ready_again(self) -> bool:
        """Get ready for another request; return whether one can follow."""
        import h11

        if self.machine.trailing_data != (b"", False) or self.machine.their_state is not h11.DONE:
            return False
        self.machine.start_next_cycle()
        return True

    def has_ended(self) -> bool:
        """Return whether an idle connection can be read: then it is its end, or nothing that was asked for."""
        return _poll(self.socket, select.POLLIN, 0) or _pending(self.socket) > 0

    def abort(self) -> None:
        """Wake the thread that uses it, which closes it then."""
        with contextlib.suppress(OSError):  # the other end may be gone
            # SSLSocket's own forgets that it is encrypted, and what is sent after it goes out as it is.
            # eventlet's class has none: each of its sockets wraps one of Python's.
            shutdown = getattr(socket.socket, "shutdown", _socket.socket.shutdown)
            shutdown(getattr(self.socket, "fd", self.socket), socket.SHUT_RDWR)


class Response:
    """An answer whose body is read by ``read``, or as it comes; ``close`` ends it."""

    def __init__(self, connection: _Connection, finish: Callable[[_Connection, bool], None]) -> None:
        import h11

        self._connection, self._finish = connection, finish
        self._is_over = self._is_whole = False
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Response) or getattr(event, "status_code", 0) == _SWITCHING:
                break
        assert isinstance(event, h11.Response | h11.InformationalResponse)  # noqa: S101 - nothing else has a status
        self.status = event.status_code  # of HTTP
        self.headers: dict[str, str] = {}  # names in lower case
        for name, value in event.headers:
            key, text = name.decode("latin-1"), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it comes."""
        encoding = self.headers.get("content-encoding", "identity").lower()
        if encoding not in {"identity", "gzip", "deflate"}:
            raise TransportError(f"the server sent a body in the encoding {encoding[:40]!r}")
        unpack = None if encoding == "identity" else zlib.decompressobj(_GZIP)
        is_empty = True
        with _translated():
            for piece in self._parts():
                is_empty = False
                if found := piece if unpack is None else unpack.decompress(piece):
                    yield found
            if unpack is not None and not unpack.eof and not is_empty:
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
            self._finish(self._connection, self._is_whole)

    def _parts(self) -> Iterator[bytes]:
        import h11

        while isinstance(event := self._connection.next_event(), h11.Data):
            yield bytes(event.data)


@contextlib.contextmanager
def _translated(kind: type[TransportError] = TransportError) -> Iterator[None]:
    """Raise what the network, TLS or an answer that is broken raises as ``kind``."""
    import h11

    try:
        yield
    except TransportError:
        raise
    except TimeoutError as error:
        raise kind(str(error) or "timed out") from error
    except (OSError, zlib.error, h11.ProtocolError) as error:  # ssl.SSLError is one
        raise kind(str(error)) from error


def _name(host: str | None) -> str | bytes:
    """Return a host as Python wants it without its tables for names in other scripts, which take 8 ms to load."""
    host = host or ""
    return host.encode("ascii") if host.isascii() else host


def _wrapped(context: ssl.SSLContext, used: socket.socket, host: str | None) -> ssl.SSLSocket:
    """Return a socket within TLS; a context that replaces Python's, as gevent's, takes a host as text only."""
    name = _name(host) if type(context).__module__ == ssl.__name__ else host
    return context.wrap_socket(used, server_hostname=name)


def _poll(used: socket.socket, what: int, seconds: float) -> bool:
    """Wait until a socket can be read or written; select() takes no file number above 1023."""
    if not hasattr(select, "poll"):  # eventlet removes it; its select() lets others run, and takes any file number
        reads, writes = ((used,), ()) if what == select.POLLIN else ((), (used,))
        return any(select.select(reads, writes, (), seconds))
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
        self._parts, self._proxy = urllib.parse.urlsplit(server), proxy
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
        connection = self._connected(timeouts)
        if self._proxy and self._parts.scheme == "http":
            from kinetic._wire import proxies  # as in transport

            if not proxies.is_socks(self._proxy):
                target = f"http://{sent['Host']}{target}"
                sent |= proxies.login(self._proxy)
        try:
            with _translated():
                connection.socket.settimeout(timeouts.read)
                connection.send(method, target, sent, body)
                return Response(connection, self._finish)
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

    def _finish(self, connection: _Connection, is_whole: bool) -> None:
        """Keep a connection whose answer was read as a whole for the next request, or close it."""
        is_kept = is_whole and connection.is_ready_again()
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
        used = self._connect_to_proxy(seconds) if self._proxy else self._connect_directly(seconds)
        try:
            if self._parts.scheme == "https":
                used = _wrapped(self._context, used, self._server_name or self._parts.hostname)
        except BaseException:
            used.close()
            raise
        return used

    def _connect_directly(self, seconds: float) -> socket.socket:
        address: Any = (_name(self._parts.hostname), self._parts.port or (443 if self._parts.scheme == "https" else 80))
        used = socket.create_connection(address, seconds)
        for option in (*self._options, (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)):
            used.setsockopt(*option)
        return used

    def _connect_to_proxy(self, seconds: float) -> socket.socket:
        from kinetic._wire import proxies  # as in transport

        used = proxies.connect(self._proxy, seconds, self._options)
        try:
            if self._parts.scheme == "https" or proxies.is_socks(self._proxy):
                port = self._parts.port or (443 if self._parts.scheme == "https" else 80)
                proxies.open_tunnel(used, self._proxy, self._parts.hostname or "", port)
        except BaseException:
            used.close()
            raise
        return used

    # ------------------------------------------------------------------------------------------------------ WebSockets

    def upgrade(
        self, path: str, *, headers: Mapping[str, str], protocols: list[str], most_bytes: int, timeouts: Timeouts
    ) -> WebSocket | Response:
        """Ask for a WebSocket; return it, or the answer of a server that refuses."""
        from wsproto.utilities import generate_accept_token, generate_nonce  # 10 ms; only for WebSockets

        key = generate_nonce()
        asked = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        asked |= {"Sec-WebSocket-Key": key.decode()}
        asked |= {"Sec-WebSocket-Protocol": ", ".join(protocols)} if protocols else {}
        answer = self.send("GET", path, headers={**headers, **asked}, timeouts=timeouts)
        if answer.status != _SWITCHING:
            return answer
        if answer.headers.get("sec-websocket-accept", "").encode() != generate_accept_token(key):
            answer.close()
            raise TransportError("the server accepted a WebSocket that was not asked for")
        return WebSocket(answer, most_bytes)


# ----------------------------------------------------------------------------------------------------------- WebSockets

_PING_SECONDS = 20.0  # load balancers drop a connection that is idle; the answers are not waited for
_WRITE_SECONDS, _CLOSE_SECONDS = 60.0, 1.0  # for a message, and for the last one
_NORMAL = 1000  # the end, as planned
_SEND_PAUSE = 0.5  # between two looks whether the connection was closed


class WebSocket:
    """A connection of messages, which one thread reads and any thread may write to and close.

    Its socket never blocks, so that reading and writing TLS take turns under one lock, and nothing waits with it.
    """

    def __init__(self, answer: Response, most_bytes: int) -> None:
        from wsproto.connection import Connection, ConnectionType

        self.subprotocol = answer.headers.get("sec-websocket-protocol", "")  # that the server chose, "" for none
        self._answer, self._connection = answer, answer._connection  # noqa: SLF001 - taken over from it
        self._socket, self._most = self._connection.socket, most_bytes
        self._machine = Connection(ConnectionType.CLIENT, trailing_data=self._connection.machine.trailing_data[0])
        self._turn, self._write_turn = threading.Lock(), threading.Lock()
        self._users, self._users_lock, self._is_over = 0, threading.Lock(), threading.Event()
        self._has_finished = False
        self._socket.settimeout(0)
        python_runtime.start_thread(self._keep_alive, "kinetic-websocket")

    def send(self, data: bytes) -> None:
        """Send a message; raises TransportError if the connection is gone."""
        from wsproto.events import BytesMessage

        if self._has_finished:
            raise TransportError("the connection is being closed")
        self._write(BytesMessage(data))

    def receive(self) -> bytes | None:
        """Return the next message; None when the other end has closed, or is gone."""
        from wsproto.events import BytesMessage, CloseConnection, Ping, TextMessage
        from wsproto.utilities import ProtocolError

        message = bytearray()
        with contextlib.suppress(OSError, ProtocolError), self._in_use():
            while not isinstance(event := self._next_event(), CloseConnection):
                if isinstance(event, Ping):
                    self._write(event.response())
                elif isinstance(event, BytesMessage | TextMessage):
                    message += event.data if isinstance(event, BytesMessage) else event.data.encode()
                    if len(message) > self._most:
                        raise TransportError("a message is too long")
                    if event.message_finished:
                        return bytes(message)
            self.finish(event.response())
        return None

    def finish(self, reason: Event | None = None) -> None:
        """Report that nothing more is sent; the other end answers by closing, too."""
        from wsproto.events import CloseConnection

        if not self._has_finished:
            self._has_finished = True
            with contextlib.suppress(OSError):
                self._write(reason or CloseConnection(code=_NORMAL), _CLOSE_SECONDS)

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
        from wsproto.events import Ping

        while not self._is_over.wait(_PING_SECONDS):
            try:
                self._write(Ping())
            except OSError:
                return

    def _next_event(self) -> Event:
        while True:
            with self._turn:
                wanted = select.POLLIN
                if (event := next(self._machine.events(), None)) is not None:
                    return event
                try:
                    data = self._socket.recv(_BLOCK)
                    self._machine.receive_data(data or None)  # None: its end, which is an event as well
                    continue
                except (BlockingIOError, ssl.SSLWantReadError):
                    pass
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
            _poll(self._socket, wanted, _PING_SECONDS)

    def _write(self, event: Event, seconds: float = _WRITE_SECONDS) -> None:
        limit = time.monotonic() + seconds
        with self._in_use(), _translated():
            if not self._write_turn.acquire(timeout=seconds):
                raise TransportError("nothing can be sent: the other end does not read")
            try:
                left = memoryview(self._packed(event))
                while left:
                    left = left[self._send_some(left, limit) :]
            except BaseException:
                self._connection.abort()  # part of a message may have been sent: nothing can follow it
                raise
            finally:
                self._write_turn.release()

    def _packed(self, event: Event) -> bytes:
        from wsproto.utilities import LocalProtocolError

        with self._turn:
            try:
                return self._machine.send(event)
            except LocalProtocolError as error:
                raise TransportError("the connection is being closed") from error

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

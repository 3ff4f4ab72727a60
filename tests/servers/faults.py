"""A proxy for HTTP that injects faults: between any client and any server, so that both stay what they are."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONDITIONS = {"if-none-match", "if-match", "x-goog-if-generation-match"}
Answer = tuple[int, dict[str, str], bytes]  # status, headers, body
LARGE, MEETING_SECONDS = 1 << 20, 0.5
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Fault:
    """What goes wrong, where, and how often.

    Attributes:
        kind: "status" answers with ``status`` and does nothing; "drop" closes the connection before the request is
            passed on, "half" after half of its body was read; "lose" passes it on and closes the connection instead
            of answering; "cut" sends half of the answer's body, then resets the connection; "slow" sends the body in
            crumbs; "crowded" answers none of two large requests at the same time, as a slow line would both of them too
            late; "stale" answers a listing as it was answered before, as a cache would; "careless" takes the
            conditions out of the request, as a service would that does not know them.
        method: Of requests that it meets; a regular expression.
        target: Path and query of requests that it meets; a regular expression that is searched for.
        times: How often; then it is over.
        met: How often it has happened.
    """

    def __init__(
        self, kind: str, *, method: str = ".*", target: str = "", times: float = 1, status: int = 503, after: int = 0
    ) -> None:
        self.kind = kind
        self.status = status
        self.times = times
        self.met = 0
        self._after = after  # how many fitting requests pass unharmed first
        self._method = re.compile(method)
        self._target = re.compile(target)

    def is_about(self, method: str, target: str) -> bool:
        """Say whether a request is one that it meets, as long as it does."""
        return bool(self._method.fullmatch(method) and self._target.search(target))

    def meets(self, method: str, target: str) -> bool:
        if not self.is_about(method, target) or self.met >= self.times:
            return False
        if self._after > 0:
            self._after -= 1
            return False
        self.met += 1
        return True


class FaultyProxy:
    """Pass requests on to a server, except where a fault is due.

    Attributes:
        faults: The first that meets a request happens to it.
        requests: Method and target of everything that came.
    """

    def __init__(self, upstream: str, host: str = "127.0.0.1") -> None:
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        self._answers: dict[str, Answer] = {}
        self._alone: list[threading.Event] = []  # of large requests that have not met another one
        self.lock = threading.Lock()
        self.upstream = upstream.partition("://")[2]
        self._server = _Server((host, 0), _Handler)
        self._server.proxy = self
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self.close = self._server.serve()

    def remembered(self, target: str, answer: Answer, *, stale: bool) -> Answer:
        """Return the answer that a listing had before, if that is asked for, and keep this one for the next."""
        if "prefix=" not in target:
            return answer
        with self.lock:
            before, self._answers[target] = self._answers.get(target, answer), answer
        return before if stale else answer

    def meets_another(self) -> bool:
        """Say whether another large request comes while one waits for it here, or waits already."""
        mine = threading.Event()
        with self.lock:
            if self._alone:
                self._alone.pop().set()
                return True
            self._alone.append(mine)
        mine.wait(MEETING_SECONDS)
        with self.lock:
            if not mine.is_set():
                self._alone.remove(mine)
        return mine.is_set()

    def due(self, method: str, target: str) -> Fault | None:
        with self.lock:
            self.requests.append((method, target))
            return next((fault for fault in self.faults if fault.meets(method, target)), None)


class BrokenServer(ThreadingHTTPServer):
    """A server whose connections break on purpose, and can all be ended."""

    daemon_threads = False
    request_queue_size = 100

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._sockets: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._sockets.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._sockets.discard(request)
        super().shutdown_request(request)

    def serve(self) -> Callable[[], None]:
        """Serve on a thread, and return what ends that."""
        thread = threading.Thread(target=lambda: self.serve_forever(poll_interval=0.01), daemon=True)
        thread.start()

        def close() -> None:
            self.shutdown()
            thread.join()
            self.hang_up()
            self.server_close()

        return close

    def hang_up(self) -> None:
        """End the connections that clients keep open, so that their threads end."""
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: connections break here on purpose."""


class QuietHandler(BaseHTTPRequestHandler):
    """Keeps connections open, and logs nothing."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the base's name
        """Be quiet."""

    def reset(self) -> None:
        """End the connection the hard way: the client sees a reset, not an end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with contextlib.suppress(OSError):
            self.connection.close()


class _Server(BrokenServer):
    proxy: FaultyProxy


class _Handler(QuietHandler):
    server: _Server

    def pass_on(self) -> None:
        fault = self.server.proxy.due(self.command, self.path)
        kind = "" if fault is None else fault.kind
        length = int(self.headers.get("Content-Length") or 0)
        if kind == "drop":
            return self.reset()
        if kind == "half":
            self.rfile.read(length // 2)
            return self.reset()
        body = self.rfile.read(length)
        if len(body) < length:  # the client gave up: the server would wait for the rest
            return self.reset()
        if kind == "crowded" and length > LARGE and self.server.proxy.meets_another():
            self.connection.recv(1)  # until the client gives up
            return self.reset()
        if fault is not None and kind == "status":
            return self._answer(fault.status, {"Content-Type": "text/plain"}, b"injected")
        status, headers, data = self._upstream(body, without=CONDITIONS if kind == "careless" else set())
        status, headers, data = self.server.proxy.remembered(self.path, (status, headers, data), stale=kind == "stale")
        if kind == "lose":
            return self.reset()
        self._answer(status, headers, data, kind)
        return None

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = pass_on  # noqa: N815 - the base's names

    def _upstream(self, body: bytes, without: set[str]) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server.proxy.upstream)
        try:
            path = re.sub("&?ifGenerationMatch=[0-9]+", "", self.path) if without else self.path
            connection.putrequest(self.command, path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in without:
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            answer = connection.getresponse()
            data = answer.read()
            headers = dict(answer.getheaders())
            if self.command == "HEAD":
                headers["x-length"] = headers.get("Content-Length", headers.get("content-length", "0"))
            return answer.status, headers, data
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], data: bytes, kind: str = "") -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in HOP_BY_HOP | {"x-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", headers.get("x-length", str(len(data))))
        self.end_headers()
        if kind == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            return self.reset()
        if kind == "slow":
            for start in range(0, len(data), 4096):
                self.wfile.write(data[start : start + 4096])
                time.sleep(0.001)
            return None
        self.wfile.write(data)
        return None

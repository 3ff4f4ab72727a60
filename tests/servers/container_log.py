"""An API server that has one pod and serves its log as it grows, over plain HTTP: cut, ended and rotated by a test."""

from __future__ import annotations

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

CONTAINER = "kinetic-worker"


class ContainerLog:
    """What a container has printed so far.

    Attributes:
        url: Of the server.
        pod: The pod, as the server describes it.
        status: What requests for the log are answered with.
        asked: How often the log was asked for.
    """

    def __init__(self, name: str = "pod-a") -> None:
        running = {"name": CONTAINER, "state": {"running": {}}, "containerID": f"test://{name}"}
        about = {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2026-11-21T10:00:00Z"}
        self.pod: dict[str, Any] = {"metadata": about, "status": {"containerStatuses": [running]}}
        self.status, self.asked, self.open = 200, 0, 0
        self._data, self._cuts = b"", 0
        self._news = threading.Condition()
        self._server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"log": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.cut()
        self._thread.join()

    @property
    def is_running(self) -> bool:
        return "running" in self.pod["status"]["containerStatuses"][0]["state"]

    def write(self, data: bytes) -> None:
        """Print something."""
        with self._news:
            self._data += data
            self._news.notify_all()

    def replace(self, data: bytes) -> None:
        """Have another log from now on, as after a rotation."""
        with self._news:
            self._data = data
        self.cut()

    def cut(self) -> None:
        """Cut all connections that follow the log."""
        with self._news:
            self._cuts += 1
            self._news.notify_all()

    def end(self, code: int = 0) -> None:
        """End the container."""
        with self._news:
            self.pod["status"]["containerStatuses"][0]["state"] = {"terminated": {"exitCode": code}}
            self._news.notify_all()

    def stream(self, handler: _Handler, *, follow: bool) -> None:
        """Send the log, and what is added to it."""
        at, cuts = 0, self._cuts
        while True:
            with self._news:
                while len(self._data) <= at and follow and self.is_running and self._cuts == cuts:
                    self._news.wait()
                data, over = self._data[at:], not follow or not self.is_running
                if self._cuts > cuts:
                    raise ConnectionAbortedError
            for start in range(0, len(data), 1000):
                handler.chunk(data[start : start + 1000])
            at += len(data)
            if over:
                handler.chunk(b"")
                return


class _Server(ThreadingHTTPServer):
    daemon_threads = True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log: ContainerLog

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if not path.endswith("/log"):
            self._page(200, self.log.pod)
            return
        self.log.asked += 1
        if self.log.status != 200:
            self._page(self.log.status, {"kind": "Status", "message": "no", "code": self.log.status})
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.log.open += 1
        try:
            with contextlib.suppress(OSError):
                self.log.stream(self, follow="follow=true" in query)
                return
        finally:
            self.log.open -= 1
        self.close_connection = True

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _page(self, status: int, page: object) -> None:
        body = json.dumps(page).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

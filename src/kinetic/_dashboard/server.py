"""The server of the dashboard: which address answers what, streams of events, and its beginning and end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from importlib import resources
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from kinetic._dashboard import access, job_pages, log_pages, places, usage_pages
from kinetic._dashboard.batch_pages import BatchPages
from kinetic._dashboard.job_feed import JobFeed
from kinetic._jobs import cancellation
from kinetic._output import tracebacks
from kinetic._output.format import SCHEMA_VERSION
from kinetic._wire import python_runtime
from kinetic.errors import (
    BackendUnavailableError,
    CredentialsError,
    DataMissingError,
    JobNotFoundError,
    KineticError,
    OptionError,
    ResultMissingError,
    StoreUnreachableError,
    what_of,
)

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from kinetic._jobs.handle import JobHandle

DEFAULT_PORT = 8642  # of the first dashboard; further ones take any free port
_EXTRA = ("starlette", "uvicorn")
_API = "/api/v1"
_FIRST_LOOK_SECONDS = 2.0  # a page does not wait longer for a place that does not answer
_ALIVE_SECONDS = 15.0  # between two comments on a silent stream
_WAITING_EVENTS = 256  # of one stream; a page that reads more slowly loads anew
_CANCEL_SECONDS = 20.0
_END_SECONDS = 2
_STATUSES: tuple[tuple[type[KineticError], int], ...] = (
    (JobNotFoundError, 404),
    (DataMissingError, 404),
    (ResultMissingError, 404),
    (OptionError, 400),
    (CredentialsError, 409),
    (StoreUnreachableError, 503),
    (BackendUnavailableError, 503),
)
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Dashboard:
    """One dashboard: its socket is open when this returns, so its address is known.

    Without a port it listens on the usual one, or on a free one if that is taken.

    Raises:
        BackendUnavailableError: The extra ``dashboard`` is not installed.
        OptionError: The port is taken.
    """

    def __init__(self, port: int | None) -> None:
        _check_extra()
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self.token = access.new_token()
        self.feed = JobFeed(*places.find_places(os.environ))
        self.feed.version = secrets.randbits(40)  # a page of an earlier dashboard must not take its list for ours
        self._streams = _Streams()
        self._batches, self._logs = BatchPages(self.feed), log_pages.LogPages()
        self._usage = usage_pages.UsageFeed(self._is_final)

    @property
    def url(self) -> str:
        """The address to open; a user who has it sees and cancels jobs."""
        return f"http://{access.HOST}:{self.port}/?token={self.token}"

    def serve(self) -> None:
        """Serve until Ctrl-C or a SIGTERM."""
        import uvicorn

        streams = self._streams

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: Any) -> None:
                streams.end()  # or open pages would keep the server from ending
                super().handle_exit(sig, frame)

        config = uvicorn.Config(
            self.application(),
            http="h11",
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # a client would say itself who it is
            timeout_graceful_shutdown=_END_SECONDS,
        )
        self.feed.start()
        try:
            with contextlib.suppress(KeyboardInterrupt):
                Server(config).run(sockets=[self._socket])
        finally:
            self.feed.end()
            self._usage.end()
            self._socket.close()

    def application(self) -> access.Application:
        """Return what answers requests."""
        from starlette.applications import Starlette

        found: access.Application = Starlette(routes=[*self._routes()])
        return access.Guard(found, token=self.token, port=self.port)

    def _routes(self) -> Iterator[Route]:
        from starlette.routing import Route

        yield Route("/", functools.partial(_static, "index.html"))
        for name in sorted(path.name for path in _page_files()):
            yield Route(f"/{name}", functools.partial(_static, name))
        pages: dict[str, Callable[[Request], Response | dict[str, Any]]] = {
            "/jobs": self._jobs,
            "/jobs/{job_id}": lambda request: job_pages.job_page(self._job(request)),
            "/jobs/{job_id}/result": lambda request: job_pages.result_page(self._job(request)),
            "/jobs/{job_id}/files": lambda request: job_pages.files_page(self._job(request)),
            "/jobs/{job_id}/file": self._file,
            "/jobs/{job_id}/usage": self._job_usage,
            "/jobs/{job_id}/log": self._log,
            "/jobs/{job_id}/log/search": self._log_search,
            "/batches": lambda _: self._batches.list_page(),
            "/batches/{group_id}": lambda request: self._batches.batch_page(request.path_params["group_id"]),
            "/batches/{group_id}/values": lambda request: self._batches.values_page(request.path_params["group_id"]),
        }
        acts: dict[str, Callable[[Request], dict[str, Any]]] = {
            "/jobs/{job_id}/cancel": self._cancel,
            "/batches/{group_id}/cancel": lambda request: self._batches.cancel(request.path_params["group_id"]),
            "/batches/{group_id}/retry": lambda request: self._batches.retry_failed(request.path_params["group_id"]),
        }
        for path, page in pages.items():
            yield Route(f"{_API}{path}", _answering(page))
        for path, act in acts.items():
            yield Route(f"{_API}{path}", _answering(act), methods=["POST"])
        yield Route(f"{_API}/events", self._events)
        yield Route(f"{_API}/jobs/{{job_id}}/log/follow", self._log_follow)

    # --------------------------------------------------------------------------------------------------------- pages

    def _job(self, request: Request) -> JobHandle:
        return self.feed.handle(request.path_params["job_id"])

    def _is_final(self, job_id: str) -> bool:
        return any(known.is_final for place in self.feed.places if (known := place.jobs.get(job_id)) is not None)

    def _jobs(self, _: Request) -> Response:
        from starlette.responses import Response

        document = self.feed.document(wait_seconds=_FIRST_LOOK_SECONDS)
        return Response(document, media_type="application/json")

    def _file(self, request: Request) -> Response:
        from starlette.responses import Response

        data, file = job_pages.file_content(self._job(request), request.query_params.get("path", ""))
        kind = PurePosixPath(file.path).suffix.lower().removeprefix(".")
        headers = {"content-security-policy": access.FILE_POLICY, "x-file-size": str(file.size)}
        media = job_pages.IMAGES.get(kind, "text/plain; charset=utf-8")
        return Response(data, headers=headers, media_type=media)

    def _job_usage(self, request: Request) -> dict[str, Any]:
        job = self._job(request)
        is_final = self._is_final(job.job_id)
        page = usage_pages.usage_page(job, is_final=is_final)
        if not is_final:
            self._usage.show(request.query_params.get("stream", ""), job, page)
        return page

    def _cancel(self, request: Request) -> dict[str, Any]:
        job = self._job(request)
        cancelled = cancellation.cancel(job, wait=_CANCEL_SECONDS)
        for place in self.feed.places:
            place.notify()
        return {"cancelled": cancelled, "told": "" if cancelled else cancellation.why_not_cancelled(job)}

    # ---------------------------------------------------------------------------------------------------------- logs

    def _log(self, request: Request) -> Response:
        from starlette.responses import Response

        job, asked = self._job(request), request.query_params
        length = _number(asked, "length") or log_pages.MOST_BYTES
        part = self._logs.part(job, is_final=self._is_final(job.job_id), length=length, **_place_in_log(asked))
        headers = {
            "x-log-start": str(part.start),
            "x-log-size": str(part.size),
            "x-log-changed": str(int(part.is_changed)),
            "content-security-policy": access.FILE_POLICY,
        }
        return Response(part.data, headers=headers, media_type="text/plain; charset=utf-8")

    def _log_search(self, request: Request) -> dict[str, Any]:
        job, asked = self._job(request), request.query_params
        words, place = asked.get("words", ""), _place_in_log(asked)
        return self._logs.search(job, is_final=self._is_final(job.job_id), words=words, **place)

    async def _log_follow(self, request: Request) -> Response:
        stream = self._streams.open()

        def read() -> None:
            try:
                place = _place_in_log(request.query_params)
                events = log_pages.follow(self._job(request), is_over=stream.is_over, **place)
                with contextlib.closing(events):
                    for event in events:
                        if not stream.put(event):
                            return
            except Exception as error:  # noqa: BLE001 - the page says it
                stream.put({"problem": what_of(error)})
            finally:
                stream.finish()

        python_runtime.start_thread(read, "kinetic-log")
        return stream.response()

    # -------------------------------------------------------------------------------------------------------- events

    async def _events(self, _: Request) -> Response:
        stream = self._streams.open()
        self.feed.subscribe(stream.offer)  # before the version is read: what changes in between comes twice, or once
        name = self._usage.add(stream.offer)
        known = {"version": self.feed.version, "changed": [], "gone": [], **self.feed.state()}
        stream.offer({"first": True, "stream": name, **known})

        def forget() -> None:
            self.feed.unsubscribe(stream.offer)
            self._usage.remove(name)

        return stream.response(forget)


def _answering(page: Callable[[Request], Any]) -> Callable[[Request], Response]:
    """Return an endpoint that answers with a page or an error of ours, as JSON; it runs in a thread."""

    def answer(request: Request) -> Response:
        from starlette.responses import Response

        try:
            found = page(request)
        except KineticError as error:
            return _error(error)
        except Exception as error:
            if not (why := tracebacks.why_replaced()):
                raise
            return _error(KineticError(f"{type(error).__name__}: {error}", why=why, code="unexpected"))
        if isinstance(found, Response):
            return found
        text = json.dumps({"schema_version": SCHEMA_VERSION, **found}, separators=(",", ":"), allow_nan=False)
        return Response(text, media_type="application/json")

    return answer


def _error(error: KineticError) -> Response:
    from starlette.responses import JSONResponse

    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    parts = {"code": error.code, "what": error.what, "why": error.why, "next": error.next}
    return JSONResponse({"schema_version": SCHEMA_VERSION, "error": parts}, status)


def _place_in_log(asked: Mapping[str, str]) -> dict[str, Any]:
    return {
        "attempt": _number(asked, "attempt"),
        "host": _number(asked, "host") or 0,
        "start": _number(asked, "start") or 0,
    }


def _number(asked: Mapping[str, str], name: str) -> int | None:
    text = asked.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{name} must be a number, got {text[:40]!r}") from None


def _page_files() -> list[Any]:
    folder = resources.files("kinetic._dashboard") / "page"
    return [path for path in folder.iterdir() if PurePosixPath(path.name).suffix in _TYPES]


def _static(name: str, _: Request) -> Response:
    from starlette.responses import Response

    data = (resources.files("kinetic._dashboard") / "page" / name).read_bytes()
    return Response(data, media_type=f"{_TYPES[PurePosixPath(name).suffix]}; charset=utf-8")


class _Streams:
    """The open streams of events, so that all of them end with the server."""

    def __init__(self) -> None:
        self._open: set[_Stream] = set()
        self._ended = False

    def open(self) -> _Stream:
        stream = _Stream(self._open.discard)
        self._open.add(stream)
        if self._ended:
            stream.finish()
        return stream

    def end(self) -> None:
        self._ended = True
        for stream in [*self._open]:
            stream.finish()


class _Stream:
    """Events that threads put in and one page reads."""

    def __init__(self, forget: Callable[[_Stream], object]) -> None:
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(_WAITING_EVENTS)
        self._over = threading.Event()

    def is_over(self) -> bool:
        """Return whether no page reads any more."""
        return self._over.is_set()

    def offer(self, event: dict[str, Any]) -> None:
        """Put an event without waiting; a page that is too slow for it has to load everything again."""
        if not self._room.acquire(blocking=False):
            self.finish()  # the browser connects again
            return
        self._send(_text(event))

    def put(self, event: dict[str, Any]) -> bool:
        """Put an event, and wait for room; False once no page reads."""
        while not self._over.is_set():
            if self._room.acquire(timeout=0.5):
                self._send(_text(event))
                return True
        return False

    def finish(self) -> None:
        """End the stream after what was put."""
        self._send(None)

    def _send(self, data: bytes | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._queue.put_nowait, data)

    def response(self, at_end: Callable[[], object] = lambda: None) -> Response:
        """Return the answer that reads it."""
        from starlette.responses import StreamingResponse

        return StreamingResponse(self._read(at_end), media_type="text/event-stream")

    async def _read(self, at_end: Callable[[], object]) -> AsyncIterator[bytes]:
        try:
            yield b"retry: 1000\n\n"
            while True:
                try:
                    data = await asyncio.wait_for(self._queue.get(), _ALIVE_SECONDS)
                except TimeoutError:
                    yield b": alive\n\n"
                    continue
                if data is None:
                    return
                self._room.release()
                yield data
        finally:
            self._over.set()
            self._forget(self)
            at_end()


def _text(event: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(event, separators=(',', ':'))}\n\n".encode()


def _check_extra() -> None:
    from importlib.util import find_spec

    missing = [name for name in _EXTRA if find_spec(name) is None]
    if missing:
        raise BackendUnavailableError(
            "the dashboard is not installed",
            why=f"{' and '.join(missing)} cannot be imported by {sys.executable}",
            next='pip install "kinetic-jobs[dashboard]"',
            code="extra-missing",
        )


def _listening(port: int | None) -> socket.socket:
    """Return a socket that listens on the loopback interface only."""
    for wanted in (DEFAULT_PORT, 0) if port is None else (port,):
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind((access.HOST, wanted))
            found.listen(128)
        except OSError as error:
            found.close()
            if port is None and wanted:
                continue
            raise OptionError(
                f"the port {wanted} cannot be used: {error.strerror}",
                why="another program listens there, or you may not use it",
                next="kinetic dashboard     takes a free port",
                code="port-taken",
            ) from error
        return found
    raise AssertionError("a free port was refused")

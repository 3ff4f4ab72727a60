"""A proxy in front of the API server that counts requests and injects faults; streams pass through as they come.

`servers.faults.FaultyProxy` reads answers whole, which a watch never is; its `Fault` says here too what goes wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

import h11
from servers.faults import Fault

if TYPE_CHECKING:
    from cluster.certificates import Pair

CHUNK = 1 << 16
# How the API server calls these statuses; a client may decide by the reason.
REASONS = {401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 409: "Conflict", 410: "Expired",
           429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable", 504: "Timeout"}  # fmt: skip


class Seen(NamedTuple):
    """One request that came, and the status that went back (0: the connection was cut)."""

    method: str
    target: str
    status: int


class _CutError(Exception):
    """The connection is to end here, without another word."""


class StreamingProxy:
    """Passes requests on to the API server, except where a fault is due.

    The kinds of `Fault` that it knows: "status" (with Retry-After: 1 for 429 and 503), "missing" (as a server answers
    that never heard of a path), "drop", "lose" and "cut".

    Attributes:
        faults: The first that meets a request happens to it. Add and clear as you like.
        seen: Everything that was answered, in order.
        delay_seconds: How long each request is on its way to the server; in a tunnel, half of it in each direction.
        sent_bytes: Of all answers together.
        received_bytes: Of all requests together.
    """

    def __init__(self, upstream_port: int, authority: str, pair: Pair) -> None:
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.delay_seconds = 0.0
        self.sent_bytes = self.received_bytes = 0
        self._upstream_port = upstream_port
        self._trust = ssl.create_default_context(cafile=authority)
        self._serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._serving.load_cert_chain(pair.certificate, pair.key)
        self._loop = asyncio.new_event_loop()
        self._connections: set[asyncio.Task[None]] = set()
        self._server = self._loop.run_until_complete(
            asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._serving)
        )
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._loop.run_forever, name="api proxy", daemon=True)
        self._thread.start()

    def fail(self, kind: str = "status", *, method: str = ".*", target: str = "", times: float = 1, status: int = 503,
             after: int = 0) -> Fault:  # fmt: skip
        """Add a fault and return it, so that a test can ask how often it was met."""
        self.faults.append(fault := Fault(kind, method=method, target=target, times=times, status=status, after=after))
        return fault

    def hide(self, group: str) -> Fault:
        """Have the server not know a group of its API, e.g. "jobset.x-k8s.io"; `faults.clear()` shows it again."""
        return self.fail("missing", target=f"^/apis/{group}/", times=float("inf"), status=404)

    def calls(self, method: str = "", part: str = "") -> list[Seen]:
        """List the requests of a method whose path and query contain ``part``."""
        return [each for each in list(self.seen) if method in {"", each.method} and part in each.target]

    def cut_connections(self) -> None:
        """Cut everything that is open, as a laptop that went to sleep would find it."""

        def cut() -> None:
            for task in self._connections:
                task.cancel()

        self._loop.call_soon_threadsafe(cut)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        tasks = list(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        exchange = _Exchange(self, reader, writer)
        try:
            # Whoever goes away ends this; that is no news, and a cut connection is what some tests ask for.
            with contextlib.suppress(
                _CutError, OSError, EOFError, h11.ProtocolError, ssl.SSLError, asyncio.CancelledError
            ):
                await exchange.run(self._upstream_port, self._trust)
        finally:
            self._connections.discard(task)
            exchange.abort()


class _Exchange:
    """One connection of a client, and ours to the API server beside it."""

    def __init__(self, proxy: StreamingProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._near = (h11.Connection(h11.SERVER), reader, writer)
        self._far: tuple[h11.Connection, asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def abort(self) -> None:
        for side in (self._near, self._far):
            if side:
                side[2].transport.abort()

    async def _to_client(self, events: Iterable[h11.Event]) -> None:
        size = await _send(self._near, events)
        self._proxy.sent_bytes += size

    async def _to_server(self, events: Iterable[h11.Event]) -> None:
        assert self._far is not None
        size = await _send(self._far, events)
        self._proxy.received_bytes += size

    async def run(self, port: int, trust: ssl.SSLContext) -> None:
        while True:
            request = await self._next_request()
            if not isinstance(request, h11.Request):
                return
            method, target = request.method.decode(), request.target.decode()
            if self._proxy.delay_seconds:
                await asyncio.sleep(self._proxy.delay_seconds)
            fault = next((each for each in self._proxy.faults if each.meets(method, target)), None)
            if fault is not None and fault.kind in {"status", "missing"}:
                self._proxy.seen.append(Seen(method, target, status := fault.status))
                await self._refuse(status, known=fault.kind == "status")
            else:
                if self._far is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust)
                    self._far = (h11.Connection(h11.CLIENT), reader, writer)
                status = await self._pass_on(request, fault)
            if status == 101:
                await self._tunnel()
                return
            if self._near[0].our_state is h11.MUST_CLOSE or (self._far and self._far[0].our_state is h11.MUST_CLOSE):
                return
            for side in (self._near, self._far):
                if side:
                    side[0].start_next_cycle()

    async def _next_request(self) -> h11.Event | type[h11.PAUSED]:
        """Wait for the next request; if the server goes meanwhile, so do we, as the server itself would."""
        if self._far is None:
            return await _next_event(self._near)
        coming, leaving = asyncio.ensure_future(_next_event(self._near)), asyncio.ensure_future(_leaves(self._far))
        try:
            await asyncio.wait({coming, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                raise _CutError
            return coming.result()
        finally:
            for task in (coming, leaving):
                task.cancel()
            await asyncio.gather(coming, leaving, return_exceptions=True)

    async def _refuse(self, status: int, *, known: bool) -> None:
        async for _ in _events_until_end(self._near):
            pass
        words = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status}
        words |= {"message": f"injected by a test: {HTTPStatus(status).phrase}", "reason": REASONS.get(status, "")}
        body = json.dumps(words).encode() if known else b"404 page not found\n"
        kind = "application/json" if known else "text/plain; charset=utf-8"
        headers = [("Content-Type", kind), ("Content-Length", str(len(body)))]
        if status in {429, 503}:
            headers.append(("Retry-After", "1"))
        await self._to_client(
            [h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()]
        )

    async def _pass_on(self, request: h11.Request, fault: Fault | None) -> int:
        if fault is not None and fault.kind == "drop":
            self._proxy.seen.append(Seen(request.method.decode(), request.target.decode(), 0))
            raise _CutError
        assert self._far is not None
        await self._to_server([request])
        if any(name == b"upgrade" for name, _ in request.headers):
            await self._to_server([h11.EndOfMessage()])  # what follows belongs to the protocol that is asked for
        else:
            async for event in _events_until_end(self._near):
                await self._to_server([event])
        response = await _next_event(self._far)
        while isinstance(response, h11.InformationalResponse) and response.status_code != 101:
            response = await _next_event(self._far)
        assert isinstance(response, h11.Response | h11.InformationalResponse)
        lost = fault is not None and fault.kind == "lose"
        self._proxy.seen.append(
            Seen(request.method.decode(), request.target.decode(), 0 if lost else response.status_code)
        )
        if lost:
            raise _CutError
        if request.target.partition(b"?")[0] == b"/apis" and isinstance(response, h11.Response):
            await self._send_groups(response)
            return response.status_code
        await self._to_client([response])
        if isinstance(response, h11.Response):
            await self._relay(cut=fault is not None and fault.kind == "cut")
        return response.status_code

    async def _send_groups(self, response: h11.Response) -> None:
        """Hand on the list of the API's groups, without those that are hidden."""
        assert self._far is not None
        body = b"".join([bytes(each.data) async for each in _events_until_end(self._far) if isinstance(each, h11.Data)])
        if hidden := [each for each in self._proxy.faults if each.kind == "missing"]:
            page = json.loads(body)
            names = [group["name"] for group in page["groups"]]
            gone = {name for name in names if any(each.is_about("GET", f"/apis/{name}/") for each in hidden)}
            page["groups"] = [group for group in page["groups"] if group["name"] not in gone]
            body = json.dumps(page).encode()
        lengths = (b"content-length", b"transfer-encoding")
        headers = [(name, value) for name, value in response.headers if name not in lengths]
        headers.append((b"content-length", str(len(body)).encode()))
        whole = h11.Response(status_code=response.status_code, headers=headers)
        await self._to_client([whole, h11.Data(data=body), h11.EndOfMessage()])

    async def _relay(self, *, cut: bool) -> None:
        """Hand the answer's body on as it comes, for as long as the client listens."""
        assert self._far is not None
        leaving = asyncio.ensure_future(_leaves(self._near))
        events = _events_until_end(self._far)
        try:
            while True:
                coming = asyncio.ensure_future(anext(events, None))
                await asyncio.wait({coming, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if leaving.done():
                    coming.cancel()
                    raise _CutError
                if (event := coming.result()) is None:
                    return
                await self._to_client([event])
                if cut:
                    raise _CutError
        finally:
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)  # the next request is read by somebody else

    async def _tunnel(self) -> None:
        assert self._far is not None
        near, far = self._near, self._far
        far[2].write(near[0].trailing_data[0])
        near[2].write(far[0].trailing_data[0])
        ways = (near[1], far[2]), (far[1], near[2])
        pumps = [asyncio.ensure_future(_pump(*way, self._proxy.delay_seconds / 2)) for way in ways]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()


Side = tuple[h11.Connection, asyncio.StreamReader, asyncio.StreamWriter]


async def _next_event(side: Side) -> h11.Event | type[h11.PAUSED]:
    machine, reader, _ = side
    while True:
        event = machine.next_event()
        if event is not h11.NEED_DATA:
            return event  # type: ignore[return-value]
        machine.receive_data(await reader.read(CHUNK))


async def _events_until_end(side: Side):
    while True:
        event = await _next_event(side)
        if isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
            raise _CutError
        yield event
        if isinstance(event, h11.EndOfMessage):
            return


async def _leaves(side: Side) -> None:
    """Return when the other end has gone; what it may send before that is kept for the next request."""
    machine, reader, _ = side
    while data := await reader.read(CHUNK):
        machine.receive_data(data)


async def _send(side: Side, events: Iterable[h11.Event]) -> int:
    """Send events, and return how many bytes they are."""
    machine, _, writer = side
    size = 0
    for event in events:
        data = machine.send(event)
        if data:
            writer.write(data)
            size += len(data)
    await writer.drain()
    return size


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    """Hand on what comes, so much later; what follows does not wait for what is on its way."""
    loop = asyncio.get_running_loop()
    while data := await reader.read(CHUNK):
        if seconds:
            loop.call_later(seconds, writer.write, data)
        else:
            writer.write(data)
        await writer.drain()
    await asyncio.sleep(seconds)
    # The other side has heard everything. TLS has no half-closed connections, so this ends both directions.
    writer.close()

"""How the node agent speaks to the API server: without end, through restarts of the server and storms of refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx2
from cluster.access import STRATEGIC, Endpoint, RefusedError

# A server that is away comes back within seconds here; a kubelet waits longer.
PAUSE_SECONDS = 0.2
# Asked for again after this, so that a connection that died without a word is noticed.
WATCH_SECONDS = 240


class Change(NamedTuple):
    """What a watch tells.

    Attributes:
        kind: "ADDED", "MODIFIED" or "DELETED"; or "LISTED", with all there is, at first and where events were missed.
        objects: One, or all.
    """

    kind: str
    objects: list[dict[str, Any]]


class Calls:
    """The agent's client; of one event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._under_way: set[asyncio.Task[httpx2.Response]] = set()
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
        timeout = httpx2.Timeout(10, read=30)
        self._client = httpx2.AsyncClient(
            base_url=endpoint.url,
            verify=endpoint.trust(),
            headers=endpoint.headers(),
            limits=limits,
            timeout=timeout,
            trust_env=False,
        )

    async def call(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", **query: str
    ) -> Any:
        content = None if body is None else json.dumps(body).encode()
        asked = asyncio.ensure_future(
            self._client.request(method, path, content=content, params=query, headers={"Content-Type": kind})
        )
        self._under_way.add(asked)
        asked.add_done_callback(self._forget)
        answer = await asyncio.shield(asked)  # pods and nodes that vanish are cancelled, which would leave sockets open
        if answer.status_code >= 400:
            raise RefusedError(answer.status_code, answer.content)
        return answer.json() if answer.content else None

    async def insist(self, method: str, path: str, body: Any = None, **more: str) -> Any:
        """Call until there is an answer that will not change; the server may be away for as long as it likes.

        Raises:
            RefusedError: The server said no for a reason that lies in the request.
        """
        while True:
            try:
                return await self.call(method, path, body, **more)
            except httpx2.HTTPError:
                pass
            except RefusedError as refused:
                if refused.status not in {401, 408, 429} and refused.status < 500:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)

    async def patch_status(self, path: str, status: dict[str, Any]) -> Any:
        """Change parts of a status; conditions are merged by their type."""
        return await self.insist("PATCH", f"{path}/status", {"status": status}, kind=STRATEGIC)

    async def watch(self, path: str, **query: str) -> AsyncIterator[Change]:
        """Tell everything that happens to the objects of a path, for ever."""
        while True:
            listed = await self.insist("GET", path, **query)
            yield Change("LISTED", listed["items"])
            version = listed["metadata"]["resourceVersion"]
            while version:
                query_now = {**query, "watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
                query_now["timeoutSeconds"] = str(WATCH_SECONDS)
                try:
                    async for event in self._events(path, query_now):
                        if event["type"] == "ERROR":
                            version = ""  # 410: too much was missed; look at everything again
                            break
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            yield Change(event["type"], [event["object"]])
                except RefusedError as refused:
                    version = "" if refused.status == 410 else version
                    await asyncio.sleep(PAUSE_SECONDS)
                except httpx2.HTTPError:
                    version = ""  # the data of a server that was away may be those of a backup
                    await asyncio.sleep(PAUSE_SECONDS)

    async def _events(self, path: str, query: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
        timeout = httpx2.Timeout(10, read=WATCH_SECONDS + 30)
        async with self._client.stream("GET", path, params=query, timeout=timeout) as answer:
            if answer.status_code >= 400:
                raise RefusedError(answer.status_code, await answer.aread())
            async for line in answer.aiter_lines():
                yield json.loads(line)

    def _forget(self, asked: asyncio.Task[httpx2.Response]) -> None:
        self._under_way.discard(asked)
        if not asked.cancelled():
            asked.exception()  # whoever asked may be gone; then nobody else takes it

    async def close(self) -> None:
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._client.aclose()

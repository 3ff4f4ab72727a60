"""How tests speak to the API server when it is not the client under test that speaks: plain JSON over HTTPS."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import yaml

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


class Endpoint(NamedTuple):
    """A server, whom it is trusted by, and who asks."""

    url: str
    authority: Path
    token: str

    def trust(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority))

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def write_kubeconfig(self, path: Path) -> Path:
        """Write it the way every Kubernetes client reads it."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        context = {"cluster": "test", "user": "test", "namespace": "default"}
        text = yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "test", "user": {"token": self.token}}],
                "contexts": [{"name": "test", "context": context}],
            }
        )
        path.touch(mode=0o600)
        path.write_text(text)
        return path


class RefusedError(Exception):
    """The server said no.

    Attributes:
        status: Of HTTP.
        reason: As the server names it, e.g. "NotFound".
    """

    def __init__(self, status: int, body: bytes) -> None:
        try:
            said: Mapping[str, Any] = json.loads(body)
        except ValueError:
            said = {"message": body.decode(errors="replace")}
        super().__init__(f"{status}: {said.get('message')}")
        self.status = status
        self.reason = said.get("reason", "")


class Access:
    """A client for tests: paths in, JSON out."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._client = httpx2.Client(
            base_url=endpoint.url, verify=endpoint.trust(), headers=endpoint.headers(), timeout=30, trust_env=False
        )

    def call(self, method: str, path: str, body: Any = None, *, kind: str = "application/json", **query: str) -> Any:
        """Send one request, its body as JSON unless it is bytes; return what came back, parsed if it is JSON.

        Raises:
            RefusedError: The status is 400 or more.
        """
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        answer = self._client.request(method, path, content=content, params=query, headers={"Content-Type": kind})
        if answer.status_code >= 400:
            raise RefusedError(answer.status_code, answer.content)
        return answer.json() if answer.headers.get("content-type", "").startswith("application/json") else answer.text

    def get(self, path: str, **query: str) -> Any:
        return self.call("GET", path, **query)

    @contextmanager
    def stream(self, path: str, **query: str) -> Iterator[Iterator[str]]:
        """Open a watch, and yield its lines."""
        with self._client.stream("GET", path, params=query, timeout=None) as answer:
            yield answer.iter_lines()

    def create(self, path: str, body: Any, **query: str) -> Any:
        """Create an object; a field that the server does not know is an error, not a warning."""
        return self.call("POST", path, body, fieldValidation="Strict", **query)

    def merge(self, path: str, body: Any) -> Any:
        return self.call("PATCH", path, body, kind=MERGE)

    def delete(self, path: str, **query: str) -> Any:
        return self.call("DELETE", path, **query)

    def close(self) -> None:
        self._client.close()

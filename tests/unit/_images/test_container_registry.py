"""Names of images are read as Docker reads them."""

from __future__ import annotations

import io
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from servers.registry import anonymous

from kinetic._images import container_registry
from kinetic._images.container_registry import Login, Reference, Registry
from kinetic._wire import proxies
from kinetic._wire.http_client import HttpClient, Response
from kinetic.errors import ImageBuildError, ImageError


@pytest.mark.parametrize(
    ("text", "host", "name", "tag", "digest"),
    [
        ("python:3.12-slim", "docker.io", "library/python", "3.12-slim", ""),
        ("docker.io/python:3.12-slim", "docker.io", "library/python", "3.12-slim", ""),
        ("index.docker.io/team/image", "docker.io", "team/image", "latest", ""),
        ("registry-1.docker.io/team/image:1", "docker.io", "team/image", "1", ""),
        ("team/image", "docker.io", "team/image", "latest", ""),
        ("localhost:5000/a/b:c", "localhost:5000", "a/b", "c", ""),
        ("us-docker.pkg.dev/p/r/kinetic:env-1", "us-docker.pkg.dev", "p/r/kinetic", "env-1", ""),
        (f"r.io/a@sha256:{'0' * 64}", "r.io", "a", "", f"sha256:{'0' * 64}"),
    ],
)
def test_a_name_is_read_as_docker_reads_it(text: str, host: str, name: str, tag: str, digest: str) -> None:
    assert Reference.parse(text) == (host, name, tag, digest)


@pytest.mark.parametrize(
    "text", ["", "UPPER/case", "a b", "r.io/a:b:c", "r.io/a@sha256:12", "r.io/a:", "-x", "r.io//a"]
)
def test_what_is_not_a_name_is_refused(text: str) -> None:
    with pytest.raises(ImageError, match="not a valid image name"):
        Reference.parse(text)


def test_docker_hub_is_asked_where_it_answers_and_shown_its_own_login(monkeypatch: pytest.MonkeyPatch) -> None:
    # docker.io itself has no registry: Docker, containerd and crane ask registry-1.docker.io, too.
    asked: list[tuple[str, str]] = []

    def send(_: HttpClient, method: str, url: str, *, headers: dict[str, str], **_more: object) -> Response:
        asked.append((url, headers.get("Authorization", "")))
        if "Authorization" not in headers:
            return Response(401, {"www-authenticate": 'Basic realm="hub"'}, b"")
        return Response(200, {"docker-content-digest": "sha256:1"}, b"")

    monkeypatch.setattr(HttpClient, "send", send)
    place = Reference.parse("docker.io/team/image:1")

    with Registry(place.host, place.name, lambda *, again: Login("ann", "secret")) as registry:
        assert registry.find_manifest(place.tag) == "sha256:1"

    assert {url for url, _ in asked} == {"https://registry-1.docker.io/v2/team/image/manifests/1"}
    assert asked[-1][1].startswith("Basic ")


class Gitea(BaseHTTPRequestHandler):
    """Asks for a login in two ways, a header each, as the code of Gitea 1.27 does, for public packages."""

    def do_GET(self) -> None:
        if self.path.startswith("/v2/token"):
            self._answer(200, b'{"token": "of-a-guest"}')
        elif self.headers["Authorization"] == "Bearer of-a-guest":
            self._answer(200, b'{"config": {}}')
        else:
            place = f"http://{self.headers['Host']}/v2/token"
            bearer = f'Bearer realm="{place}",service="container_registry",scope="*"'
            self._answer(401, b"", bearer, 'Basic realm="Gitea Container Registry"')

    def _answer(self, status: int, body: bytes, *ways: str) -> None:
        self.send_response(status)
        for way in ways:
            self.send_header("WWW-Authenticate", way)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_registry_that_offers_two_ways_to_log_in_gives_a_token_to_a_guest() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Gitea) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with Registry(f"127.0.0.1:{server.server_port}", "team/image", anonymous) as registry:
            page, _ = registry.read_manifest("1")
        server.shutdown()

    assert page == {"config": {}}


@pytest.mark.parametrize(
    ("header", "kind", "fields"),
    [
        (
            'Bearer realm="https://h/t",service="r" , Basic realm="a, b"',
            "bearer",
            {"realm": "https://h/t", "service": "r"},
        ),
        ('BASIC realm="Sonatype Nexus"', "basic", {"realm": "Sonatype Nexus"}),
        ("Bearer realm=https://h/t,error=invalid_token", "bearer", {"realm": "https://h/t", "error": "invalid_token"}),
        ("Negotiate, Basic", "basic", {}),
        ("", "", {}),
    ],
)
def test_ways_to_log_in_are_told_apart(header: str, kind: str, fields: dict[str, str]) -> None:
    assert container_registry._read_challenge(header) == (kind, fields)


def test_a_proxy_that_demands_a_login_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def send(_: HttpClient, method: str, url: str, **_more: object) -> Response:
        asked.append(url)
        raise proxies.RefusedError("the proxy proxy.lan answered with HTTP 407")

    monkeypatch.setattr(HttpClient, "send", send)
    data = b"layer"
    with Registry("r.io", "team/image", anonymous, sleep=lambda _: None) as registry:
        for ask in (
            lambda: registry.find_manifest("1"),
            lambda: registry.put_blob("sha256:1", len(data), lambda: io.BytesIO(data)),
        ):
            with pytest.raises(ImageBuildError, match=r"proxy .* does not let us through") as caught:
                ask()
            assert "http://USER:PASSWORD@HOST:PORT" in caught.value.next

    assert len(asked) == 2

"""Names of images are read as Docker reads them."""

from __future__ import annotations

import pytest

from kinetic._images.container_registry import Login, Reference, Registry
from kinetic._wire.http_client import HttpClient, Response
from kinetic.errors import ImageError


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

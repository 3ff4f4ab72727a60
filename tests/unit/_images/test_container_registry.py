"""Names of images are read as Docker reads them."""

from __future__ import annotations

import pytest

from kinetic._images.container_registry import Reference
from kinetic.errors import ImageError


@pytest.mark.parametrize(
    ("text", "host", "name", "tag", "digest"),
    [
        ("python:3.12-slim", "registry-1.docker.io", "library/python", "3.12-slim", ""),
        ("team/image", "registry-1.docker.io", "team/image", "latest", ""),
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

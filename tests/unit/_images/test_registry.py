"""Blobs and manifests go to a real registry and come back, and what goes wrong on the way is said and loses nothing."""

from __future__ import annotations

import hashlib
import io
import json

import pytest
from servers.registry import anonymous

from kinetic._images.registry import MANIFEST, Reference, Registry
from kinetic.errors import ImageError, ImageUnavailableError

pytestmark = pytest.mark.timeout(180)  # the first test builds the registry


def digest_of(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def put(registry: Registry, data: bytes, **more: object) -> bool:
    return registry.put_blob(digest_of(data), len(data), lambda: io.BytesIO(data), **more)


def manifest(config: bytes, *layers: bytes) -> bytes:
    entry = lambda data, kind: {"mediaType": kind, "digest": digest_of(data), "size": len(data)}  # noqa: E731
    page = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": entry(config, "application/vnd.oci.image.config.v1+json"),
        "layers": [entry(layer, "application/vnd.oci.image.layer.v1.tar+gzip") for layer in layers],
    }
    return json.dumps(page).encode()


def test_a_blob_that_was_sent_is_there_and_comes_back(registry: Registry) -> None:
    data = b"layer" * 1_000_000
    sent: list[int] = []

    assert not registry.has_blob(digest_of(data))
    assert put(registry, data, report=sent.append)

    assert registry.has_blob(digest_of(data))
    assert sum(sent) == len(data)
    sink = io.BytesIO()
    registry.read_blob(digest_of(data), sink)
    assert sink.getvalue() == data


def test_a_blob_of_another_name_is_mounted_without_sending_it(registry: Registry, registry_address: str) -> None:
    put(registry, b"shared")
    with Registry(registry_address, "team/another", anonymous) as other:
        assert put(other, b"shared", mount_from=registry.name) is False
        assert other.has_blob(digest_of(b"shared"))


def test_a_mount_that_is_not_granted_becomes_an_upload(registry: Registry) -> None:
    assert put(registry, b"nobody has this", mount_from="team/nothing") is True


def test_bytes_that_are_not_those_of_the_digest_are_rejected(registry: Registry) -> None:
    with pytest.raises(ImageError, match="DIGEST_INVALID"):
        registry.put_blob(digest_of(b"right"), 5, lambda: io.BytesIO(b"wrong"))
    assert not registry.has_blob(digest_of(b"right"))


def test_a_tag_names_a_manifest_once_its_blobs_are_there(registry: Registry) -> None:
    page = manifest(b"{}", b"layer")
    with pytest.raises(ImageError, match="rejected PUT"):
        registry.put_manifest("v1", page)
    assert registry.find_manifest("v1") is None

    put(registry, b"{}")
    put(registry, b"layer")

    assert registry.put_manifest("v1", page) == digest_of(page)
    assert registry.find_manifest("v1") == digest_of(page)
    assert registry.read_manifest("v1") == (json.loads(page), digest_of(page))
    assert [*registry.tags()] == ["v1"]


def test_a_removed_manifest_is_gone_and_removing_it_twice_is_no_error(registry: Registry) -> None:
    put(registry, b"{}")
    digest = registry.put_manifest("old", manifest(b"{}"))

    assert registry.delete_manifest(digest)
    assert not registry.delete_manifest(digest)
    with pytest.raises(ImageUnavailableError, match="has no image old"):
        registry.read_manifest("old")


def test_a_repository_without_images_has_no_tags(registry: Registry) -> None:
    assert [*registry.tags()] == []


def test_an_unchanged_image_costs_one_request(registry: Registry) -> None:
    put(registry, b"{}")
    registry.put_manifest("env", manifest(b"{}"))
    before = registry.requests

    assert registry.find_manifest("env")

    assert registry.requests - before == 1


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

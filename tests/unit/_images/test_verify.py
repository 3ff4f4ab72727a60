"""An image is compared with the wheels that its lock names."""

from __future__ import annotations

import hashlib
import io
import json

import pytest

from kinetic._images import layers, verify
from kinetic._images.image import ImageBuilder
from kinetic._images.wheels import WheelCache
from kinetic.errors import ImageError

pytestmark = pytest.mark.timeout(180)  # the first test builds the registry


@pytest.fixture
def uri(registry, base, cache, wheel, lock_of):
    """Return the digest of an image of two wheels."""
    lock = lock_of(wheel("alpha"), wheel("beta"))
    return ImageBuilder(registry, cache).build(lock, base, registry).uri.partition("@")[2]


def test_whoever_has_an_image_can_verify_its_layers_of_wheels(registry, uri, tmp_path) -> None:
    found = verify.verify(registry, uri, WheelCache(tmp_path / "of another user", {}))

    assert {each.state for each in found if "alpha" in each.contents or "beta" in each.contents} == {"verified"}
    assert [each.contents for each in found][:2] == ["base image", "the environment"]
    assert found[-1].contents == "the lock"
    assert "different" not in {each.state for each in found}


def test_a_layer_that_was_exchanged_is_found(registry, uri, tmp_path) -> None:
    manifest, _ = registry.read_manifest(uri)
    config = json.loads(registry.small_blob(manifest["config"]["digest"]))
    sink = io.BytesIO()
    evil = layers.write_file(f"{layers.PREFIX}/lib/evil.py", b"evil", sink)
    registry.put_blob(evil.digest, evil.size_bytes, lambda: io.BytesIO(sink.getvalue()))
    manifest["layers"][2] |= {"digest": evil.digest, "size": evil.size_bytes}
    config["rootfs"]["diff_ids"][2] = evil.diff_id
    data = json.dumps(config).encode()
    manifest["config"] |= {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
    registry.put_blob(manifest["config"]["digest"], len(data), lambda: io.BytesIO(data))
    changed = registry.put_manifest("changed", json.dumps(manifest).encode())

    found = verify.verify(registry, changed, WheelCache(tmp_path / "of another user", {}))

    assert [each.layer for each in found if each.state == "different"] == [evil.digest]


def test_an_image_of_others_is_no_image_of_a_lock(registry, base, cache) -> None:
    with pytest.raises(ImageError, match="was not built from a lock"):
        verify.verify(registry, base.digest, cache)

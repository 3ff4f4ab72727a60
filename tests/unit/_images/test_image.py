"""Images of real wheels in a real registry: built, found again, changed by one package, unpacked and run."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from servers.registry import anonymous

from kinetic._images import image, layers
from kinetic._images.image import ImageBuilder
from kinetic._images.layers import Wheel
from kinetic._images.lock import Platform
from kinetic._images.registry import Registry
from kinetic._images.wheels import WheelCache
from kinetic.errors import AccessDeniedError, ImageBuildError

pytestmark = pytest.mark.timeout(180)  # the first test builds the registry
PYTHON = ".".join(platform.python_version_tuple()[:2])
PLATFORM = Platform(PYTHON, "x86_64", "2_36")


def unpacked(registry: Registry, uri: str, folder: Path) -> Path:
    """Unpack all layers of an image, one above the other, as a container runtime does."""
    page, _ = registry.read_manifest(uri.partition("@")[2])
    config = json.loads(registry.small_blob(page["config"]["digest"]))
    for entry, diff_id in zip(page["layers"], config["rootfs"]["diff_ids"], strict=True):
        done = subprocess.run(
            ["gzip", "-dc"], input=registry.small_blob(entry["digest"]), capture_output=True, check=True
        )
        assert f"sha256:{hashlib.sha256(done.stdout).hexdigest()}" == diff_id
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="tar")
    return folder


def test_an_image_has_its_base_its_wheels_their_programs_and_bytecode(
    registry, base, cache, wheel, tmp_path, lock_of
) -> None:
    lock = lock_of(wheel("alpha", **{"alpha/__init__.py": "def main():\n    print('alpha runs')\n", "alpha/x.txt": "x",
                                     "entry": "[console_scripts]\nalpha = alpha:main\n"}), wheel("beta"))  # fmt: skip

    built = ImageBuilder(registry, cache).build(lock, base, registry)

    root = unpacked(registry, built.uri, tmp_path / "root")
    packages = root / layers.PREFIX / "lib" / f"python{PYTHON}" / "site-packages"
    assert (root / "etc/base").read_text() == "base"
    assert (packages / "beta.py").read_text() == "VERSION = '1.0'\n"
    assert (packages / "__pycache__" / f"beta.{sys.implementation.cache_tag}.pyc").exists()
    assert (root / layers.PREFIX / "bin/alpha").stat().st_mode & 0o111
    assert json.loads((root / image.LOCK_FILE).read_text())["wheels"][0]["name"] == "alpha"
    code = f"""
import sys; sys.path.insert(0, {str(packages)!r})
import alpha, importlib.metadata
alpha.main()
print(alpha.__cached__, importlib.metadata.version("beta"))
"""
    found = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[0] == "alpha runs"
    assert found.stdout.splitlines()[1].endswith(f"alpha/__pycache__/__init__.{sys.implementation.cache_tag}.pyc 1.0")


def test_an_image_that_is_there_costs_one_request_and_no_wheel(registry, base, cache, wheel, lock_of) -> None:
    lock = lock_of(wheel("alpha"))
    first = ImageBuilder(registry, cache).build(lock, base, registry)
    before = registry.requests

    again = ImageBuilder(registry, WheelCache(cache.folder / "none", {})).build(lock, base, registry)

    assert again.uri == first.uri
    assert (again.sent_bytes, again.built_layers) == (0, 0)
    assert registry.requests - before == 1


def test_another_machine_builds_an_image_with_the_same_layers_of_wheels(
    registry, base, cache, wheel, tmp_path, lock_of
) -> None:
    lock = lock_of(wheel("alpha"), wheel("beta"))
    ImageBuilder(registry, cache).build(lock, base, registry)
    wheels = [part for part in image.parts_of(lock, base) if part.kind == "wheels"]
    digests = [registry.read_manifest(f"layer-{part.key}")[0]["layers"][0]["digest"] for part in wheels]

    with Registry(registry.host, f"{registry.name}-elsewhere", anonymous) as other:
        ImageBuilder(other, WheelCache(tmp_path / "elsewhere", {})).build(lock, base, registry)
        found = [other.read_manifest(f"layer-{part.key}")[0]["layers"][0]["digest"] for part in wheels]

    assert found == digests


def test_a_changed_package_sends_its_own_layers_and_fetches_its_own_wheel(
    registry, base, cache, wheel, lock_of
) -> None:
    names = [f"package{number}" for number in range(12)]
    large = wheel("large", **{"large.bin": bytes(range(256)) * 40_000, "large.py": ""})
    before = lock_of(large, *map(wheel, names))
    ImageBuilder(registry, cache).build(before, base, registry)
    after = lock_of(large, wheel("package0", "2.0"), *map(wheel, names[1:]))
    builder = ImageBuilder(registry, cache)

    kinds = sorted(part.kind for part in builder.missing(after, base))
    built = builder.build(after, base, registry)

    assert kinds == ["bytecode", "lock", "wheels"]
    assert built.built_layers == 3
    assert built.sent_bytes < 100_000


def test_a_build_that_was_killed_leaves_no_tag_and_the_next_one_sends_what_is_missing(
    registry, base, cache, wheel, monkeypatch, lock_of
) -> None:
    lock = lock_of(wheel("alpha"), wheel("beta"))
    builder = ImageBuilder(registry, cache)
    monkeypatch.setattr(builder, "_put_image", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        builder.build(lock, base, registry)

    assert builder.find(lock, base) is None
    monkeypatch.undo()
    built = builder.build(lock, base, registry)
    assert (built.sent_bytes, built.built_layers) == (0, 0)


def test_a_wheel_that_is_not_the_one_of_the_lock_is_refused(registry, base, cache, wheel, lock_of) -> None:
    good = wheel("alpha")
    other = wheel("beta")

    with pytest.raises(ImageBuildError, match="could not be fetched") as caught:
        ImageBuilder(registry, cache).build(
            lock_of(Wheel(*{**good.__dict__, "url": other.url}.values())), base, registry
        )

    assert "do not have the hash of the lock" in str(caught.value)


def test_a_wheel_behind_a_login_names_the_ways_to_log_in(cache, wheel, index) -> None:
    locked = wheel("alpha")
    index.login = ("ann", "secret")

    with pytest.raises(AccessDeniedError, match="wants a login"):
        cache.fetch([locked])

    netrc = cache.folder.parent / "netrc"
    netrc.write_text("machine 127.0.0.1 login ann password secret\n")
    WheelCache(cache.folder, {"NETRC": str(netrc)}).fetch([locked])
    assert cache.path_of(locked).exists()

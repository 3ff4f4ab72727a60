"""A real registry, where Go is there to build it."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import platform
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from servers import registry as registry_server
from servers.registry import anonymous
from servers.wheels import Index, made_wheel

from kinetic._images import base_image, image, layers
from kinetic._images.base_image import BaseImage
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock, Platform
from kinetic._images.registry import Registry
from kinetic._images.wheels import WheelCache

PYTHON = ".".join(platform.python_version_tuple()[:2])
_names = itertools.count()
C_LIBRARY = b"\x7fELF GNU C Library (Debian GLIBC 2.36-9+deb12u10) stable release version 2.36.\n"


@pytest.fixture(scope="session")
def registry_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    why = registry_server.build()
    if why:
        pytest.skip(why)
    with registry_server.started(tmp_path_factory.mktemp("registry")) as address:
        yield address


@pytest.fixture
def index() -> Iterator[Index]:
    found = Index()
    yield found
    found.close()


@pytest.fixture
def registry(registry_address: str) -> Iterator[Registry]:
    with Registry(registry_address, f"team/image-{next(_names)}", anonymous) as opened:
        yield opened


@pytest.fixture
def base(registry: Registry) -> BaseImage:
    """Return a base image in the registry: one layer with a file and a C library, and a configuration."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, data in (("etc/base", b"base"), ("usr/lib/libc.so.6", C_LIBRARY)):
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    packed = gzip.compress(plain.getvalue(), mtime=0)
    layer = f"sha256:{hashlib.sha256(packed).hexdigest()}"
    registry.put_blob(layer, len(packed), lambda: io.BytesIO(packed))
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/usr/bin", "LANG=C.UTF-8"], "Cmd": ["python3"]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain.getvalue()).hexdigest()}"]},
        }
    ).encode()
    digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
    registry.put_blob(digest, len(config), lambda: io.BytesIO(config))
    entry = {"mediaType": layers.MEDIA_TYPE, "digest": layer, "size": len(packed)}
    page = {
        "schemaVersion": 2,
        "mediaType": image.MANIFEST,
        "config": {"mediaType": image.CONFIG, "digest": digest, "size": len(config)},
        "layers": [entry],
    }
    registry.put_manifest("base", json.dumps(page).encode())
    return base_image.read(registry, "base", machine="x86_64", python=PYTHON, glibc="2_36")


@pytest.fixture
def cache(tmp_path: Path) -> WheelCache:
    return WheelCache(tmp_path / "wheels", {}, sleep=lambda _: None)


@pytest.fixture
def wheel(tmp_path: Path, index: Callable[[Path], str]) -> Callable[..., Wheel]:
    """Return a function that makes a wheel and serves it."""

    def make(name: str, version: str = "1.0", **files: bytes | str) -> Wheel:
        file = made_wheel(tmp_path / "index", name, version, files or {f"{name}.py": f"VERSION = {version!r}\n"})
        data = file.read_bytes()
        return Wheel(name, version, file.name, hashlib.sha256(data).hexdigest(), len(data), index(file))

    return make


@pytest.fixture
def lock_of() -> Callable[..., Lock]:
    """Return a function that makes a lock of wheels."""

    def make(*wheels: Wheel) -> Lock:
        return Lock(Platform(PYTHON, "x86_64", "2_36"), tuple(sorted(wheels)), (), "")

    return make

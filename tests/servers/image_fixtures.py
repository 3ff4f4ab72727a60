"""A real registry, where Go is there to build it."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import itertools
import json
import platform
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers import registry as registry_server
from servers.registry import anonymous
from servers.wheels import Index, made_wheel

from kinetic._images import base_image, image, layers
from kinetic._images.base_image import BaseImage
from kinetic._images.container_registry import Registry
from kinetic._images.layers import Wheel
from kinetic._images.lock import Lock, Platform
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
    config = {"Env": ["PATH=/usr/bin", "LANG=C.UTF-8"], "Cmd": ["python3"]}
    return put_base(registry, *base_layer(), config)


def base_layer() -> tuple[bytes, str]:
    """Return a layer with a file and a C library, and the digest of its uncompressed bytes."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name, data in (("etc/base", b"base"), ("usr/lib/libc.so.6", C_LIBRARY)):
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return gzip.compress(plain.getvalue(), mtime=0), f"sha256:{hashlib.sha256(plain.getvalue()).hexdigest()}"


def put_base(
    registry: Registry, layer: bytes, diff_id: str, config: dict[str, Any], *, machine: str = "x86_64"
) -> BaseImage:
    """Push an image of one layer under the tag "base"."""
    page = {
        "architecture": base_image.ARCHITECTURES[machine],
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [diff_id]},
    }
    entries = []
    for data, kind in ((json.dumps(page).encode(), image.CONFIG), (layer, layers.MEDIA_TYPE)):
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        registry.put_blob(digest, len(data), functools.partial(io.BytesIO, data))
        entries.append({"mediaType": kind, "digest": digest, "size": len(data)})
    manifest = {"schemaVersion": 2, "mediaType": image.MANIFEST, "config": entries[0], "layers": entries[1:]}
    registry.put_manifest("base", json.dumps(manifest).encode())
    return base_image.read(registry, "base", machine=machine, python=PYTHON, glibc="2_36")


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

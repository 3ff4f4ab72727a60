"""A real registry, where Go is there to build it, an index of wheels, an image to build on, and images of lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from servers.image_fixtures import PYTHON, base, cache, index, lock_of, registry, registry_address, wheel
from servers.wheels import Index, made_wheel

from kinetic._images import bundled
from kinetic._images.base_image import BaseImage
from kinetic._images.bundled import Bundled
from kinetic._images.container_registry import Registry
from kinetic._images.lock_store import LockRequest
from kinetic._stores.memory import MemoryStore

__all__ = ["base", "cache", "index", "lock_of", "registry", "registry_address", "wheel"]


@pytest.fixture
def publish(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that puts a wheel into the index; what every image needs is there."""
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.simple)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))

    def make(name: str, version: str = "1.0") -> None:
        index(made_wheel(tmp_path / "index", name, version, {f"{name}.py": f"VERSION = {version!r}\n"}))

    for name in bundled.POD_PACKAGES:
        make(name)
    return make


@pytest.fixture
def store(request: pytest.FixtureRequest) -> MemoryStore:
    return MemoryStore(request.node.name)


@pytest.fixture
def ensure(registry: Registry, base: BaseImage, publish, store: MemoryStore, tmp_path: Path) -> Callable[..., Bundled]:
    """Return a function that finds or builds the image of some lines, in a home of its own."""
    environ = {"KINETIC_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    place = f"{registry.host}/{registry.name}"

    request = LockRequest((), PYTHON, "x86_64", store, environ)
    place = f"{registry.host}/{registry.name}"

    def find_or_build(lines: Sequence[str], **more: Any) -> Bundled:
        asked = {field.name: more.pop(field.name) for field in fields(request) if field.name in more}
        how = {"repository": place, "base": f"{place}@{base.digest}", **more}
        return bundled.ensure(replace(request, lines=lines, **asked), **how)

    return find_or_build

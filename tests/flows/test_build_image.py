"""`kinetic build-image` on a terminal, against a real registry behind a slow line: its end, and Ctrl-C."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.image_fixtures import base, index, registry, registry_address
from servers.registry_proxy import RegistryProxy, Rules
from servers.wheels import made_wheel

from kinetic._version import __version__

__all__ = ["base", "index", "registry", "registry_address"]
pytestmark = pytest.mark.timeout(180)  # the first test builds the registry


@pytest.fixture
def line(
    home: Path, registry: Any, base: Any, index: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Put a slow line before the registry, and the packages of prebuilt images into an index of this test."""
    for name, size in (("jax", 300_000), ("keras", 30_000), ("obstore", 3000), ("uv", 3000)):
        index(made_wheel(tmp_path / "index", name, "1.0", {f"{name}.bin": os.urandom(size)}))
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.simple)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("KINETIC_BASE_IMAGE", f"{registry.host}/{registry.name}@{base.digest}")
    with RegistryProxy(registry.host, Rules(megabits=1.0)) as proxy:
        yield proxy


def test_ctrl_c_in_build_image_writes_no_tag_and_the_same_command_continues(
    line: Any, project: Any, registry: Any
) -> None:
    name = f"{registry.name}/base-cpu"
    words = ("-m", "kinetic", "build-image", "--repo", f"{line.address}/{registry.name}", "--category", "cpu", "--yes")

    seen = project.watch(*words, press=("building the image, ", b"\x03"), columns=150)
    with type(registry)(registry.host, name, registry.find_login) as target:
        tags = [*target.tags()]
        there = line.up
        line.forget()
        again = project.watch(*words, columns=150)
        written = {tag for tag in target.tags() if not tag.startswith("layer-")}

    assert seen.code == 130, seen.screen
    assert [text for text in seen.screen.splitlines() if text.strip()][-2:] == [
        f"kinetic: interrupted: {line.address}/{name} is not finished, and has no new tag",
        "kinetic: what was sent stays, and the same command continues from there",
    ]
    assert "Traceback" not in seen.screen
    assert tags
    assert all(tag.startswith("layer-") for tag in tags)
    assert again.code == 0, again.screen
    assert f"{line.address}/{name}:{__version__}" in again.screen
    assert {__version__} < {tag for tag in written if not tag.startswith("env-")}
    assert there > 50_000
    assert "kinetic: resolved" not in again.screen, "the lock was kept"

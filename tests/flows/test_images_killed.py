"""A push that is killed anywhere leaves no tag with a hole, and the next one sends only what is missing."""

from __future__ import annotations

import os
import pickle
import platform
import random
import signal
import subprocess
import sys

import pytest
from servers.image_fixtures import base, cache, index, lock_of, registry, registry_address, wheel
from servers.registry import anonymous
from servers.registry_proxy import RegistryProxy, Rules

from kinetic._images.container_registry import Registry
from kinetic._images.image import BuiltImage, ImageBuilder

__all__ = ["base", "cache", "index", "lock_of", "registry", "registry_address", "wheel"]

pytestmark = pytest.mark.timeout(900)
PYTHON = ".".join(platform.python_version_tuple()[:2])
SEED = 20261123
PUSH = """
import pickle, sys
from pathlib import Path
from kinetic._images.image import ImageBuilder
from kinetic._images.container_registry import Login, Registry
from kinetic._images.wheels import WheelCache
host, name, source, folder, lock, base = pickle.load(sys.stdin.buffer)
target, source = (Registry(host, each, lambda again: Login()) for each in (name, source))
ImageBuilder(target, WheelCache(Path(folder), {})).build(lock, base, source)
"""


@pytest.fixture
def push(registry, base, cache, wheel, lock_of, registry_address):
    """Return a function that pushes an image to a name in a process of its own, and kills it at the n-th event."""
    blob = random.Random(SEED).randbytes
    lock = lock_of(
        wheel("large", **{"large.bin": blob(4_100_000), "large.py": ""}),
        *(wheel(f"small{number}", **{f"small{number}.py": f"x = {number}\n", f"{number}.bin": blob(20_000)})
          for number in range(8)),
    )  # fmt: skip
    proxy = RegistryProxy(registry_address, Rules())

    def start(name: str, kill_at: int = 0) -> int:
        """Return how many events there were: requests, and pieces of what is sent."""
        events = 0

        def count() -> None:
            nonlocal events
            events += 1
            if events == kill_at:
                os.kill(process.pid, signal.SIGKILL)

        process = subprocess.Popen(
            [sys.executable, "-c", PUSH], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        proxy.on_piece = count
        words = proxy.address, name, registry.name, str(cache.folder), lock, base
        _, error = process.communicate(pickle.dumps(words))
        proxy.wait_until_idle()  # what is under way arrives or breaks off
        was_reached = 0 < kill_at <= events  # how many pieces there are differs by a few from push to push
        assert process.returncode == (-signal.SIGKILL if was_reached else 0), error.decode()
        return events

    start.lock, start.base, start.cache, start.source = lock, base, cache, registry
    yield start
    proxy.close()


def blobs_of(registry: Registry, reference: str) -> dict[str, int]:
    page, _ = registry.read_manifest(reference)
    return {entry["digest"]: entry["size"] for entry in [page["config"], *page["layers"]]}


@pytest.mark.parametrize("count", [15, pytest.param(50, marks=pytest.mark.nightly)])
def test_a_push_killed_at_any_place_leaves_no_hole_and_the_next_sends_what_is_missing(
    push, registry_address: str, count: int
) -> None:
    name = f"{push.source.name}/killed"
    events = push(f"{name}/whole")
    with Registry(registry_address, f"{name}/whole", anonymous) as whole:
        tag = next(each for each in whole.tags() if each.startswith("env-"))
        digest, blobs = whole.find_manifest(tag), blobs_of(whole, tag)
    places = random.Random(SEED).sample(range(1, events), count)
    partly = 0

    for place in sorted(places):
        push(f"{name}/{place}", kill_at=place)
        with (
            Registry(registry_address, f"{name}/{place}", anonymous) as registry,
            RegistryProxy(registry_address, Rules()) as counted,
            Registry(counted.address, registry.name, anonymous) as through,
        ):
            tags = list(registry.tags())
            holes = [(each, blob) for each in tags for blob in blobs_of(registry, each) if not registry.has_blob(blob)]
            assert not holes, f"killed at event {place}"
            there = {blob for blob in blobs if registry.has_blob(blob)}
            missing = sum(size for blob, size in blobs.items() if blob not in there)
            partly += 0 < len(there) < len(blobs)

            built: BuiltImage = ImageBuilder(through, push.cache).build(push.lock, push.base, push.source)

            assert built.uri.partition("@")[2] == digest
            assert missing - 5_000 <= built.sent_bytes <= missing  # the configuration of the image is sent besides
            assert missing <= counted.up <= missing + 30_000, "more than what is missing and the manifests"
            assert all(registry.has_blob(blob) for blob in blobs)

    assert partly > count / 4, "nearly all places were before the first blob or after the last"

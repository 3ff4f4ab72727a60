"""Whether an image is what its lock says: its layers of wheels are written once more from the wheels' public hashes."""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinetic._images import image, layers
from kinetic._images.base_image import BaseImage
from kinetic._images.container_registry import Registry
from kinetic._images.layers import Layer, Wheel
from kinetic._images.lock import Lock, Platform
from kinetic._images.wheels import WheelCache
from kinetic._wire import NamedTuple
from kinetic.errors import ImageError

_FROM_LOCK = frozenset({"environment", "wheels", "lock"})
_CONTENTS = {"base": "base image", "library": "bytecode of the base image", "lock": "the lock"}


class Finding(NamedTuple):
    """What was found of one layer."""

    layer: str  # its digest
    contents: str  # as shown, e.g. "numpy 2.4.6"
    state: str  # "verified"; "different"; "unverifiable": bytecode and the base are not made from public hashes


def read_lock(registry: Registry, reference: str) -> tuple[Lock, dict[str, Any], dict[str, Any]]:
    """Return the lock inside an image, the image's manifest and its configuration.

    Raises:
        ImageError: It is not an image of ours.
        ImageUnavailableError: There is none.
    """
    manifest, _ = registry.read_manifest(reference)
    config = json.loads(registry.small_blob(manifest["config"]["digest"])) if "config" in manifest else {}
    labels = config.get("config", {}).get("Labels") or {}
    if image.LOCK_LABEL not in labels or image.KINDS_LABEL not in labels:
        raise ImageError(
            f"{registry.host}/{registry.name} {reference} was not built from a lock",
            why="only images of kinetic's bundled mode contain one",
            next="list them: kinetic image list",
        )
    with tarfile.open(
        fileobj=io.BytesIO(registry.small_blob(manifest["layers"][-1]["digest"])), mode="r:gz"
    ) as archive:
        file = archive.extractfile(image.LOCK_FILE)
        page = json.loads(file.read() if file else b"{}")
    if page.get("format") != layers.FORMAT:
        raise ImageError(
            f"{registry.host}/{registry.name} {reference} was built by a kinetic that writes layers in another way",
            why=f"its layers have the format {page.get('format')}, and this release writes {layers.FORMAT}",
            next="submit a job of its project: the image is built again; or verify it with the release that built it",
        )
    machine, _, glibc = str(page["platform"]).partition("-manylinux_")
    platform = Platform(str(page["python"]), machine, glibc)
    return Lock(platform, tuple(Wheel(**wheel) for wheel in page["wheels"]), (), ""), manifest, config


def verify(
    registry: Registry, reference: str, cache: WheelCache, report: Callable[[Finding], object] = lambda _: None
) -> list[Finding]:
    """Compare each layer of an image with what its lock makes; the wheels are fetched from their index.

    Returns what was found of every layer, the lowest first. Only "different" says that something is wrong.
    """
    lock, manifest, config = read_lock(registry, reference)
    digests = [entry["digest"] for entry in manifest["layers"]]
    diff_ids = config["rootfs"]["diff_ids"]
    kinds = str(config["config"]["Labels"][image.KINDS_LABEL]).split()
    groups = layers.group_into_layers(lock.wheels, lock.platform.python)
    base = BaseImage.unknown(lock.platform)
    if (
        not len(digests) == len(diff_ids) == len(kinds)
        or [kind for kind in kinds if kind in _FROM_LOCK] != ["environment", *("wheels" for _ in groups), "lock"]
        or kinds[-1] != "lock"
    ):
        raise ImageError(
            f"{registry.host}/{registry.name} {reference} does not have the layers of its lock",
            why=f"its lock makes {len(groups)} layers of wheels; it says that it has: {' '.join(kinds)}",
            next="build the image again: kinetic build-image",
        )
    found, left = [], iter(groups)
    for kind, digest, diff_id in zip(kinds, digests, diff_ids, strict=True):
        if kind == "environment":
            found.append(_environment(digest, diff_id, base))
        elif kind == "wheels":
            found.append(_wheels(next(left), digest, diff_id, cache))
        else:
            state = "verified" if kind == "lock" else "unverifiable"
            found.append(Finding(digest, _CONTENTS.get(kind, kind), state))
        report(found[-1])
    return found


def _environment(digest: str, diff_id: str, base: BaseImage) -> Finding:
    written = layers.write_environment(base.python, base.python_folder, io.BytesIO())
    return _finding(digest, diff_id, written, "the environment")


def _wheels(layer: Layer, digest: str, diff_id: str, cache: WheelCache) -> Finding:
    cache.fetch(layer.wheels)
    with tempfile.TemporaryFile(dir=cache.folder if Path(cache.folder).is_dir() else None) as sink:
        written = layers.write_layer(layer, cache.path_of, sink)
    return _finding(digest, diff_id, written, ", ".join(f"{each.name} {each.version}" for each in layer.wheels))


def _finding(digest: str, diff_id: str, written: layers.WrittenLayer, contents: str) -> Finding:
    same = (written.digest, written.diff_id) == (digest, diff_id)
    return Finding(digest, contents, "verified" if same else "different")

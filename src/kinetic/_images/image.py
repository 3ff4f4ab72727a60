"""An image of a lock: base, environment, wheels from heavy to light, bytecode, the lock itself; nothing is run for it.

A layer has a key that is known before the layer exists. Under the tag ``layer-{key}`` the registry has a manifest of
one layer: its digest, its size, and the digest of its uncompressed bytes. So a layer that anybody has built is neither
fetched nor written nor sent again. The manifest of the image is put last: a tag is never incomplete.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple

from kinetic._images import base_image, bytecode, layers
from kinetic._images.base_image import BaseImage
from kinetic._images.layers import Layer, Wheel, WrittenLayer
from kinetic._images.lock import Lock
from kinetic._images.registry import MANIFEST, Registry
from kinetic._images.wheels import WheelCache
from kinetic.errors import ImageUnavailableError

CONFIG = "application/vnd.oci.image.config.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
DIFF_ID = "dev.kinetic.diff-id"  # annotation of the one layer of a layer's manifest
LOCK_FILE = f"{layers.PREFIX}/kinetic-lock.json"
BYTECODE_LAYERS = 8  # 28 MB of JAX and Keras become 3.5 MB each: what one changed package sends again
SIDE_BY_SIDE = 4  # requests, and layers that are written and sent
_ENVIRONMENT = (("VIRTUAL_ENV", f"/{layers.PREFIX}"), ("KERAS_BACKEND", "jax"), ("PYTHONDONTWRITEBYTECODE", "1"))


class Part(NamedTuple):
    """A layer above the base.

    Attributes:
        kind: "environment", "wheels", "bytecode" or "lock".
        key: Names it before it exists.
        wheels: From which it is written.
    """

    kind: str
    key: str
    wheels: tuple[Wheel, ...] = ()


class BuiltImage(NamedTuple):
    """An image that is in the registry.

    Attributes:
        uri: By digest, as a pod names it.
        tag: The tag that names the same.
        sent_bytes: How much was sent for it; 0 where it was there.
        built_layers: How many layers were written for it.
        seconds: How long it took.
        conflicts: Paths that several wheels bring with different contents, with the wheel that won.
    """

    uri: str
    tag: str
    sent_bytes: int
    built_layers: int
    seconds: float
    conflicts: tuple[tuple[str, str], ...] = ()


class Progress:
    """What a build reports; each method may be called by several threads. This one reports nothing."""

    def fetching(self, size_bytes: int) -> None:
        """Wheels of so many bytes are fetched next."""

    def fetched(self, size_bytes: int) -> None:
        """So many bytes of them have come."""

    def sending(self, size_bytes: int) -> None:
        """A layer of so many bytes is sent next."""

    def sent(self, size_bytes: int) -> None:
        """So many bytes have been sent; negative: of an attempt that failed."""


def tag_of(lock: Lock, base: BaseImage) -> str:
    """Return the tag of the image of a lock on a base: the same for everybody who builds the same."""
    page = [layers.FORMAT, lock.digest, base.digest]
    return f"env-{hashlib.sha256(json.dumps(page).encode()).hexdigest()[:32]}"


def parts_of(lock: Lock, base: BaseImage) -> list[Part]:
    """Return the layers above the base, in order."""
    python = lock.platform.python
    groups = layers.group_into_layers(lock.wheels, python)
    return [
        Part("environment", layers.key_of("environment", python, [base.python_folder])),
        *(Part("wheels", group.key, group.wheels) for group in groups),
        *(
            Part("bytecode", layers.key_of("bytecode", python, [each.sha256 for each in group]), group)
            for group in layers.spread(lock.wheels, BYTECODE_LAYERS)
        ),
        Part("lock", layers.key_of("lock", python, [lock.digest])),
    ]


class ImageBuilder:
    """Builds images in one repository of a registry, on whatever machine this runs.

    Args:
        registry: Where images go.
        cache: Where wheels are kept.
        progress: What is told meanwhile.
    """

    def __init__(self, registry: Registry, cache: WheelCache, progress: Progress | None = None) -> None:
        self.registry, self.cache = registry, cache
        self.progress = progress or Progress()

    def find(self, lock: Lock, base: BaseImage) -> BuiltImage | None:
        """Return the image of a lock if it is there: one request."""
        begun, tag = time.monotonic(), tag_of(lock, base)
        digest = self.registry.find_manifest(tag)
        return BuiltImage(self._uri(digest), tag, 0, 0, time.monotonic() - begun) if digest else None

    def missing(self, lock: Lock, base: BaseImage) -> list[Part]:
        """Return the layers that the registry lacks: a request for each, side by side, and no wheel is fetched."""
        parts = parts_of(lock, base)
        return [part for part, entry in zip(parts, self._known(parts), strict=True) if entry is None]

    def build(self, lock: Lock, base: BaseImage, base_source: Registry) -> BuiltImage:
        """Return the image of a lock; make what is missing of it.

        Args:
            lock: Which wheels.
            base: On which image.
            base_source: From where layers of the base are copied if this registry lacks them.

        Raises:
            ImageBuildError: A wheel cannot be fetched, or the registry refuses something.
            AccessDeniedError: This account may not write there.
        """
        begun = time.monotonic()
        if found := self.find(lock, base):
            return found
        parts = parts_of(lock, base)
        known = self._known(parts)
        absent = [part for part, entry in zip(parts, known, strict=True) if entry is None]
        wheels = {wheel.sha256: wheel for part in absent for wheel in part.wheels}
        lacking = self.cache.missing(wheels.values())
        self.progress.fetching(sum(wheel.size_bytes for wheel in lacking))
        self.cache.fetch(lacking, self.progress.fetched)
        compiled = {wheel.sha256 for part in absent if part.kind == "bytecode" for wheel in part.wheels}
        bytecode.compile_wheels(
            [self.cache.path_of(wheels[each]) for each in sorted(compiled)], f"/{_packages(lock.platform.python)}"
        )
        sent = base_image.copy(base, base_source, self.registry, self.progress.sent)
        conflicts: list[tuple[str, str]] = []
        with ThreadPoolExecutor(SIDE_BY_SIDE, "kinetic-layers") as pool:
            made = dict(
                zip(absent, pool.map(lambda part: self._make(part, lock, base, conflicts), absent), strict=True)
            )
        entries = [entry if entry is not None else made[part][0] for part, entry in zip(parts, known, strict=True)]
        sent += sum(size for _, size in made.values())
        tag = tag_of(lock, base)
        uri = self._uri(self._put_image(tag, lock, base, [entry for entry in entries if entry]))
        return BuiltImage(uri, tag, sent, len(absent), time.monotonic() - begun, tuple(sorted(conflicts)))

    # --------------------------------------------------------------------------------------------------------- layers

    def _known(self, parts: Sequence[Part]) -> list[dict[str, Any] | None]:
        """Return each layer's entry for a manifest; {} for one that is empty, None for one that is missing."""
        with ThreadPoolExecutor(SIDE_BY_SIDE, "kinetic-layers") as pool:
            return list(pool.map(self._entry, parts))

    def _entry(self, part: Part) -> dict[str, Any] | None:
        try:
            page, _ = self.registry.read_manifest(f"layer-{part.key}")
        except ImageUnavailableError:
            return None
        return dict(page["layers"][0]) if page["layers"] else {}

    def _make(
        self, part: Part, lock: Lock, base: BaseImage, conflicts: list[tuple[str, str]]
    ) -> tuple[dict[str, Any], int]:
        """Write a layer, send it, and put its manifest; return its entry and how many bytes were sent."""
        with tempfile.TemporaryDirectory(prefix="kinetic-layer-", dir=self._scratch()) as folder:
            file = Path(folder) / "layer"
            with file.open("wb") as sink:
                written = self._write(part, lock, base, sink)
            sent = 0
            entry: dict[str, Any] = {}
            if written is not None:
                conflicts.extend(written.conflicts)
                entry = {
                    "mediaType": layers.MEDIA_TYPE,
                    "digest": written.digest,
                    "size": written.size_bytes,
                    "annotations": {DIFF_ID: written.diff_id},
                }
                self.progress.sending(written.size_bytes)
                if self.registry.put_blob(
                    written.digest, written.size_bytes, lambda: file.open("rb"), report=self.progress.sent
                ):
                    sent = written.size_bytes
        config = self._put_bytes(b"{}", EMPTY)
        self.registry.put_manifest(f"layer-{part.key}", _manifest(config, [entry] if entry else []))
        return entry, sent

    def _write(self, part: Part, lock: Lock, base: BaseImage, sink: IO[bytes]) -> WrittenLayer | None:
        python = lock.platform.python
        if part.kind == "environment":
            return layers.write_environment(python, base.python_folder, sink)
        if part.kind == "lock":
            return layers.write_file(LOCK_FILE, lock_page(lock), sink)
        if part.kind == "wheels":
            return layers.write_layer(Layer(part.wheels, python), self.cache.path_of, sink)
        files = [bytecode.path_for(self.cache.path_of(wheel)) for wheel in part.wheels]
        return layers.write_zips(files, _packages(python), sink)

    def _scratch(self) -> str | None:
        """Return where layers are written: beside the wheels, which have room for as much."""
        return str(self.cache.folder) if os.path.isdir(self.cache.folder) else None

    # ---------------------------------------------------------------------------------------------------------- image

    def _put_image(self, tag: str, lock: Lock, base: BaseImage, entries: Sequence[dict[str, Any]]) -> str:
        """Put the image's configuration and, last of all, its manifest; return its digest."""
        diff_ids = [*base.diff_ids, *(entry["annotations"][DIFF_ID] for entry in entries)]
        config = {
            "architecture": base.architecture,
            "os": "linux",
            "config": _with_environment(base.config) | {"Labels": {"dev.kinetic.lock": lock.digest}},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
        written = self._put_bytes(_json(config), CONFIG)
        plain = [{name: entry[name] for name in ("mediaType", "digest", "size")} for entry in entries]
        return self.registry.put_manifest(tag, _manifest(written, [*base.layers, *plain]))

    def _put_bytes(self, data: bytes, media_type: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if not self.registry.has_blob(digest):
            self.registry.put_blob(digest, len(data), functools.partial(_reader, data))
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def _uri(self, digest: str) -> str:
        return f"{self.registry.host}/{self.registry.name}@{digest}"


def lock_page(lock: Lock) -> bytes:
    """Return what an image says of its own contents: enough to verify its layers."""
    wheels = [dict(zip(("name", "version", "filename", "sha256", "size_bytes", "url"), _fields(wheel), strict=True))
              for wheel in lock.wheels]  # fmt: skip
    return _json(
        {"format": layers.FORMAT, "python": lock.platform.python, "platform": lock.platform.tag, "wheels": wheels}
    )


def _fields(wheel: Wheel) -> Iterable[object]:
    return (wheel.name, wheel.version, wheel.filename, wheel.sha256, wheel.size_bytes, wheel.url)


def _packages(python: str) -> str:
    return f"{layers.PREFIX}/lib/python{python}/site-packages"


def _with_environment(config: dict[str, Any]) -> dict[str, Any]:
    """Return what containers get: as the base has it, and the environment first on the path."""
    given = dict(line.partition("=")[::2] for line in config.get("Env", ()))
    path = given.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    given |= {"PATH": f"/{layers.PREFIX}/bin:{path}", **dict(_ENVIRONMENT)}
    return {**config, "Env": [f"{name}={value}" for name, value in given.items()]}


def _manifest(config: dict[str, Any], entries: Sequence[dict[str, Any]]) -> bytes:
    return _json({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": list(entries)})


def _json(page: Any) -> bytes:
    return json.dumps(page, sort_keys=True, separators=(",", ":")).encode()


def _reader(data: bytes) -> IO[bytes]:
    return io.BytesIO(data)

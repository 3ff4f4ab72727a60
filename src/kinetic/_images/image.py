"""An image of a lock: base and its bytecode, environment, large wheels, their bytecode, small ones, theirs, the lock.

A layer has a key that is known before the layer exists. Under the tag ``layer-{key}`` the registry has a manifest of
one layer: its digest, its size, and the digest of its uncompressed bytes. So a layer that anybody has built is neither
fetched nor written nor sent again. The manifest of the image is put last: a tag is never incomplete.

Wheels are fetched, bytecode compiled, layers written, and what is written is sent, all side by side: the slowest of
them decides. Nothing that waits for wheels or a compiler keeps the line idle.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from pathlib import Path, PurePosixPath
from typing import IO, Any

from kinetic._images import base_image, bytecode, layers
from kinetic._images.base_image import BaseImage
from kinetic._images.container_registry import MANIFEST, Registry
from kinetic._images.image_choice import GPU_DRIVER
from kinetic._images.layers import Layer, Wheel, WrittenLayer
from kinetic._images.lock import Lock
from kinetic._images.wheels import WheelCache, disk_full
from kinetic._wire import NamedTuple, documents, folders
from kinetic.errors import ImageUnavailableError

CONFIG = "application/vnd.oci.image.config.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"
DIFF_ID = "dev.kinetic.diff-id"  # annotation of the one layer of a layer's manifest
LOCK_LABEL = "dev.kinetic.lock"  # of an image: the digest of its lock
KINDS_LABEL = "dev.kinetic.layers"  # and the kind of each layer, "base" or that of its part
LOCK_FILE = f"{layers.PREFIX}/kinetic-lock.json"
SIDE_BY_SIDE = 4  # requests, and layers that are written and sent
WAITING = 64  # layers that wait for their wheels, or are compiled: all of an image
_ENVIRONMENT = (("VIRTUAL_ENV", f"/{layers.PREFIX}"), ("KERAS_BACKEND", "jax"), ("PYTHONDONTWRITEBYTECODE", "1"))


class Part(NamedTuple):
    """A layer above the base."""

    kind: str  # "library" (bytecode of the base's own modules), "environment", "wheels", "bytecode" or "lock"
    key: str  # names it before it exists
    wheels: tuple[Wheel, ...] = ()  # from which it is written


class BuiltImage(NamedTuple):
    """An image that is in the registry."""

    uri: str  # by digest, as a pod names it
    tag: str  # the tag that names the same
    sent_bytes: int  # how much was sent for it, without what the registry had; 0 where the image was there
    built_layers: int  # how many layers were written for it
    seconds: float  # how long it took
    # paths that several wheels of this build bring with different contents, each with the one that won
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
    page = [layers.FORMAT, lock.digest, base.digest, GPU_DRIVER, *_ENVIRONMENT]
    return f"env-{hashlib.sha256(json.dumps(page).encode()).hexdigest()[:32]}"


def parts_of(lock: Lock, base: BaseImage) -> list[Part]:
    """Return the layers above the base, in order.

    A node unpacks a layer again when one below it changes, and has to fetch it again where it keeps no compressed ones,
    as on GKE. So bytecode of large wheels is below small wheels, which change more often.
    """
    python = lock.platform.python
    groups = layers.group_into_layers(lock.wheels, python)
    parts = [
        *(Part("wheels", group.key, group.wheels) for group in groups),
        *(
            Part("bytecode", layers.key_of("bytecode", python, [each.sha256 for each in group]), group)
            for group in layers.group_for_bytecode(lock.wheels)
        ),
    ]
    large = layers.large_wheels(lock.wheels)
    return [
        *([Part("library", layers.key_of("library", python, [base.python_version]))] if base.python_version else []),
        Part("environment", layers.key_of("environment", python, [base.python_folder])),
        *(part for part in parts if large.issuperset(part.wheels)),
        *(part for part in parts if not large.issuperset(part.wheels)),
        Part("lock", layers.key_of("lock", python, [lock.digest])),
    ]


class ImageBuilder:
    """Builds images in one repository of a registry, on whatever machine this runs."""

    def __init__(self, registry: Registry, cache: WheelCache, progress: Progress | None = None) -> None:
        self.registry, self.cache = registry, cache
        self.progress = progress or Progress()
        self._there: set[str] = set()  # small blobs that were seen in the registry

    def find(self, lock: Lock, base: BaseImage) -> BuiltImage | None:
        """Return the image of a lock if it is there: one request."""
        begun, tag = time.monotonic(), tag_of(lock, base)
        digest = self.registry.find_manifest(tag)
        return BuiltImage(self._uri(digest), tag, 0, 0, time.monotonic() - begun) if digest else None

    def missing(self, lock: Lock, base: BaseImage) -> list[Part]:
        """Return the layers that the registry lacks: a request for each, side by side, and no wheel is fetched."""
        parts = parts_of(lock, base)
        known = self._known(parts)
        return [part for part, entry in zip(parts, known, strict=True) if entry is None and _can_make(part, base)]

    def build(self, lock: Lock, base: BaseImage, base_source: Registry) -> BuiltImage:
        """Return the image of a lock; make what is missing of it.

        What is missing of the base is copied from ``base_source``.

        Raises:
            ImageBuildError: A wheel cannot be fetched, the disk is full, or the registry refuses something.
            AccessDeniedError: This account may not write there.
        """
        begun = time.monotonic()
        if found := self.find(lock, base):
            return found
        parts = parts_of(lock, base)
        known = dict(zip(parts, self._known(parts), strict=True))
        absent = [part for part in parts if known[part] is None and _can_make(part, base)]
        wheels = {wheel.sha256: wheel for part in absent for wheel in part.wheels}
        lacking = self.cache.missing(wheels.values())
        self.progress.fetching(sum(wheel.size_bytes for wheel in lacking))
        with _Pool(self.registry, base_source) as pool, self.cache.fetching(lacking, self.progress.fetched) as wait_for:
            work = _Build(self, lock, base, base_source, wait_for, pool)
            copied = [pool.submit(work.copy, layer) for layer in base.layers]
            made = {part: pool.submit(work.make, part) for part in absent}
            pool.wait_for([*copied, *made.values()])
            sent = sum(each.result() for each in copied) + sum(each.result().sent_bytes for each in made.values())
            known |= {part: each.result().entry for part, each in made.items()}
            conflicts = layers.conflicts(
                layer for each in made.values() if (layer := each.result().written) is not None
            )
        tag = tag_of(lock, base)
        uri = self._uri(self._put_image(tag, lock, base, known))
        return BuiltImage(uri, tag, sent, len(absent), time.monotonic() - begun, tuple(conflicts))

    def _known(self, parts: Sequence[Part]) -> list[dict[str, Any] | None]:
        """Return each layer's entry for a manifest; {} for one that is empty, None for one that is missing."""
        with ThreadPoolExecutor(SIDE_BY_SIDE, "kinetic-layers") as pool:
            return list(pool.map(self.entry_of, parts))

    def entry_of(self, part: Part) -> dict[str, Any] | None:
        """Return a layer's entry for a manifest; {} for one that is empty, None for one that is missing."""
        try:
            page, _ = self.registry.read_manifest(f"layer-{part.key}")
        except ImageUnavailableError:
            return None
        return dict(page["layers"][0]) if page["layers"] else {}

    def put_layer(self, part: Part, entry: dict[str, Any]) -> None:
        """Let everybody find a layer that is there."""
        config = self._put_bytes(b"{}", EMPTY)
        self.registry.put_manifest(f"layer-{part.key}", _manifest(config, [entry] if entry else []))

    def _put_image(self, tag: str, lock: Lock, base: BaseImage, known: Mapping[Part, dict[str, Any] | None]) -> str:
        """Put the image's configuration and, last of all, its manifest; return its digest."""
        there = {part: entry for part, entry in known.items() if entry}
        entries = there.values()
        diff_ids = [*base.diff_ids, *(entry["annotations"][DIFF_ID] for entry in entries)]
        kinds = " ".join([*("base" for _ in base.layers), *(part.kind for part in there)])
        config = {
            "architecture": base.architecture,
            "os": "linux",
            "config": _with_environment(base.config) | {"Labels": {LOCK_LABEL: lock.digest, KINDS_LABEL: kinds}},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
        written = self._put_bytes(documents.write_ascii(config), CONFIG)
        plain = [{name: entry[name] for name in ("mediaType", "digest", "size")} for entry in entries]
        return self.registry.put_manifest(tag, _manifest(written, [*base.layers, *plain]))

    def _put_bytes(self, data: bytes, media_type: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if digest not in self._there and not self.registry.has_blob(digest):
            self.registry.put_blob(digest, len(data), lambda: io.BytesIO(data))
        self._there.add(digest)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def _uri(self, digest: str) -> str:
        return f"{self.registry.host}/{self.registry.name}@{digest}"


class _Pool(ThreadPoolExecutor):
    """Threads for the layers of a build: most of them wait for wheels or the network. One that fails stops the rest.

    Ctrl-C does not wait for what they send: the registries are hung up.
    """

    def __init__(self, *registries: Registry) -> None:
        super().__init__(WAITING, "kinetic-layers")
        self.stopped = threading.Event()
        self._registries = registries

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stopped.set()
        if kind is not None and not issubclass(kind, Exception):
            for each in self._registries:
                each.hang_up()
        self.shutdown(cancel_futures=True)

    def wait_for(self, futures: Sequence[Future[Any]]) -> None:
        """Wait until all are done, or one has failed."""
        for each in as_completed(futures):
            each.result()


class _MadeLayer(NamedTuple):
    """A layer that was made and is in the registry; ``entry`` is {} where it is empty."""

    entry: dict[str, Any]
    sent_bytes: int = 0
    written: WrittenLayer | None = None


class _Build:
    """What the threads of one build share."""

    def __init__(
        self,
        builder: ImageBuilder,
        lock: Lock,
        base: BaseImage,
        base_source: Registry,
        wait_for: Callable[[Iterable[Wheel]], None],
        pool: _Pool,
    ) -> None:
        self._builder, self._registry, self._cache = builder, builder.registry, builder.cache
        self._lock, self._base, self._base_source = lock, base, base_source
        self._wait_for, self._pool = wait_for, pool
        self._room = threading.BoundedSemaphore(SIDE_BY_SIDE)  # for layers that are written or sent

    def copy(self, layer: Mapping[str, Any]) -> int:
        """Copy a layer of the base that the registry lacks; return how many bytes were sent."""
        if self._registry.has_blob(layer["digest"]):
            return 0
        with self._room, self._scratch() as folder:
            self._builder.progress.sending(layer["size"])
            return base_image.copy_layer(layer, self._base_source, self._registry, folder, self._sent)

    def make(self, part: Part) -> _MadeLayer:
        """Write a layer, send it, and put its manifest."""
        self._wait_for(part.wheels)
        self._compile(part)
        with self._room, self._scratch() as folder:
            file = folder / "layer"
            with file.open("wb") as sink:
                written = self._write(part, sink)
            # Bytecode of two clients may differ. Whose layer is there first, is used by both, and they make one image.
            if part.kind in {"library", "bytecode"} and (entry := self._builder.entry_of(part)) is not None:
                return _MadeLayer(entry)
            made = _MadeLayer({}) if written is None else self._send(file, written)
        self._builder.put_layer(part, made.entry)
        return made

    def _send(self, file: Path, written: WrittenLayer) -> _MadeLayer:
        entry = {
            "mediaType": layers.MEDIA_TYPE,
            "digest": written.digest,
            "size": written.size_bytes,
            "annotations": {DIFF_ID: written.diff_id},
        }
        sent = False
        if not self._registry.has_blob(written.digest):  # as of a build that was interrupted
            self._builder.progress.sending(written.size_bytes)
            sent = self._registry.put_blob(
                written.digest, written.size_bytes, lambda: file.open("rb"), report=self._sent
            )
        return _MadeLayer(entry, written.size_bytes * sent, written)

    def _sent(self, size_bytes: int) -> None:
        if self._pool.stopped.is_set() and size_bytes > 0:
            raise CancelledError
        self._builder.progress.sent(size_bytes)

    @contextlib.contextmanager
    def _scratch(self) -> Iterator[Path]:
        """Make a folder for a layer: beside the wheels, where there is room for as much."""
        with disk_full(self._cache.folder):
            folders.make(self._cache.folder)
            with tempfile.TemporaryDirectory(prefix="kinetic-layer-", dir=self._cache.folder) as name:
                yield Path(name)

    def _write(self, part: Part, sink: IO[bytes]) -> WrittenLayer | None:
        python = self._lock.platform.python
        if part.kind == "environment":
            return layers.write_environment(python, self._base.python_folder, sink)
        if part.kind == "lock":
            return layers.write_file(LOCK_FILE, lock_page(self._lock), sink)
        if part.kind == "wheels":
            return layers.write_layer(Layer(part.wheels, python), self._cache.path_of, sink)
        if part.kind == "library":
            return layers.write_zips([self._library(part)], self._library_folder.lstrip("/"), sink)
        wheels = [self._cache.path_of(wheel) for wheel in part.wheels]
        return layers.write_zips([*map(bytecode.path_for, wheels)], _packages(python), sink)

    def _compile(self, part: Part) -> None:
        """Compile what a layer of bytecode is written from; as many processes at once as this machine has cores."""
        if part.kind not in {"library", "bytecode"}:
            return
        with disk_full(self._cache.folder):
            folders.make(self._cache.folder)
            if part.kind == "library":
                bytecode.compile_standard_library(self._library(part), self._library_folder)
            else:
                wheels = map(self._cache.path_of, part.wheels)
                bytecode.compile_wheels(wheels, f"/{_packages(self._lock.platform.python)}")

    def _library(self, part: Part) -> Path:
        return self._cache.folder / f"{part.key}.zip"

    @property
    def _library_folder(self) -> str:
        return f"{PurePosixPath(self._base.python_folder).parent}/lib/python{self._lock.platform.python}"


def _can_make(part: Part, base: BaseImage) -> bool:
    """Return whether this client can make a layer: bytecode of the base's modules only with the very same Python."""
    here = platform.python_version() if sys.implementation.name == "cpython" else ""
    return part.kind != "library" or base.python_version == here


def lock_page(lock: Lock) -> bytes:
    """Return what an image says of its own contents: enough to verify its layers."""
    wheels = [dataclasses.asdict(wheel) for wheel in lock.wheels]
    about = {"format": layers.FORMAT, "python": lock.platform.python, "platform": lock.platform.tag}
    return documents.write_ascii(about | {"wheels": wheels})


def _packages(python: str) -> str:
    return f"{layers.PREFIX}/lib/python{python}/site-packages"


def _with_environment(config: dict[str, Any]) -> dict[str, Any]:
    """Return what containers get: as the base has it, the environment first on the path, and the driver of GPUs."""
    given = dict(line.partition("=")[::2] for line in config.get("Env", ()))
    path = given.get("PATH") or "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    libraries = [each for each in given.get("LD_LIBRARY_PATH", "").split(":") if each not in {"", GPU_DRIVER}]
    given |= {"PATH": f"/{layers.PREFIX}/bin:{path}", "LD_LIBRARY_PATH": ":".join([*libraries, GPU_DRIVER])}
    given |= dict(_ENVIRONMENT)
    return {**config, "Env": [f"{name}={value}" for name, value in given.items()]}


def _manifest(config: dict[str, Any], entries: Sequence[dict[str, Any]]) -> bytes:
    return documents.write_ascii({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": list(entries)})

"""Packages for jobs without an image of their own: the layers of an image as objects in the store, unpacked at start.

    store      data/layers/{sha256}         a layer, as a registry would have it
    store      data/layers/of-{key}         sealed, last: which layers a lock has; so they are all there
    store      data/layers/of-{layer key}   sealed: which bytes one layer has, for other locks with the same packages

For clusters whose registry users may not write to, and for up to half a gigabyte: what is larger is installed at start.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kinetic._config import home
from kinetic._images import bytecode, image, layers
from kinetic._images.base_image import BaseImage
from kinetic._images.image import Part
from kinetic._images.layers import Layer
from kinetic._images.lock import Lock
from kinetic._images.uplink import ASSUMED_RATE, MEASURED_BYTES, PATIENCE_SECONDS, Uplinks
from kinetic._images.wheels import WheelCache
from kinetic._output import terminal as output
from kinetic._output.format import count_text, duration_text, seconds_text, size_text
from kinetic._stores.protocol import Store, put_file
from kinetic._wire import NamedTuple, documents, fields, folders, keys
from kinetic.errors import ImageBuildError, IntegrityError, KeyMissingError

MOST_BYTES = 500_000_000  # of wheels: unpacking them takes longer than a pull from then on
USE_SECONDS = 24 * 3600.0  # how often a use is noted
_SIDE_BY_SIDE = 4


class StoredLayer(NamedTuple):
    """A layer in the store; one without bytes has nothing in it."""

    key: str
    sha256: str
    size: int


def _build_list(page: dict[str, Any], what: str) -> tuple[StoredLayer, ...]:
    try:
        return tuple(
            StoredLayer(str(each["key"]), fields.sha256(each["sha256"]), int(each["size"])) for each in page["layers"]
        )
    except (KeyError, TypeError, ValueError) as error:
        raise IntegrityError(f"{what} is damaged", why=f"{type(error).__name__}: {error}") from error


LIST = documents.PageKind("layers", "the list of layers", _build_list, 1 << 20)


def ensure(lock: Lock, store: Store, environ: Mapping[str, str]) -> tuple[StoredLayer, ...]:
    """Return the layers of a lock; write and send those that the store lacks.

    Raises:
        ImageBuildError: There is too much, sending it would take too long, or a wheel cannot be fetched.
    """
    size = sum(wheel.size_bytes for wheel in lock.wheels)
    if lock.to_build:
        raise _refused(f"there is only source code of {', '.join(lock.to_build)}")
    if size > MOST_BYTES:
        raise _refused(f"they have {size_text(size)}, and the store takes up to {size_text(MOST_BYTES)}")
    if found := _read(lock.digest, store, environ, here=True):
        return found
    begun = time.monotonic()
    cache = WheelCache(home.kinetic_home(environ) / "cache" / "wheels", environ)
    parts = [
        part for part in image.parts_of(lock, BaseImage.unknown(lock.platform)) if part.kind in {"wheels", "bytecode"}
    ]
    with ThreadPoolExecutor(_SIDE_BY_SIDE, "kinetic-layers") as pool:
        known = list(pool.map(lambda part: _read(part.key, store, environ), parts))
    absent = [part for part, found in zip(parts, known, strict=True) if found is None]
    uplinks = Uplinks(home.kinetic_home(environ) / "cache" / "images" / "uplink.json")
    to_send = sum(wheel.size_bytes for part in absent if part.kind == "wheels" for wheel in part.wheels)
    rate = uplinks.rate(store.url) or ASSUMED_RATE
    if to_send / rate > PATIENCE_SECONDS:
        raise _refused(f"to send {size_text(to_send)} from here would take {duration_text(to_send / rate)}")
    with output.phase("sending packages", summary=False):
        wheels = {wheel.sha256: wheel for part in absent for wheel in part.wheels}
        room = threading.BoundedSemaphore(_SIDE_BY_SIDE)
        with cache.fetching(wheels.values()) as wait_for, ThreadPoolExecutor(image.WAITING, "kinetic-layers") as pool:

            def make(part: Part) -> tuple[StoredLayer, ...]:
                wait_for(part.wheels)
                if part.kind == "bytecode":  # while others are sent
                    bytecode.compile_wheels(map(cache.path_of, part.wheels), f"/{_packages(lock)}")
                with room:
                    return _send(part, lock, cache, store, environ)

            made = dict(zip(absent, pool.map(make, absent), strict=True))
    found_all = [found if found is not None else made[part] for part, found in zip(parts, known, strict=True)]
    listed = tuple(layer for found in found_all for layer in found)
    _write(lock.digest, listed, store, environ)
    sent, seconds = sum(layer.size for found in made.values() for layer in found), time.monotonic() - begun
    if sent > MEASURED_BYTES:
        uplinks.note(store.url, sent / seconds)
    output.report(f"sent {count_text(len(lock.wheels), 'package')} to the store: {size_text(sent)} "
                  f"in {seconds_text(seconds)}; jobs unpack them when they start")  # fmt: skip
    return listed


def page_of(found: Sequence[StoredLayer]) -> bytes:
    """Return the list as a pod reads it; the task of the pod has its digest."""
    return documents.write({"layers": [layer._asdict() for layer in found]})


def _refused(why: str) -> ImageBuildError:
    return ImageBuildError("the packages do not go through the store", why=why)


def _packages(lock: Lock) -> str:
    return f"{layers.PREFIX}/lib/python{lock.platform.python}/site-packages"


def _send(
    part: Part, lock: Lock, cache: WheelCache, store: Store, environ: Mapping[str, str]
) -> tuple[StoredLayer, ...]:
    """Write a layer, send it, and note it under its key; () for one that is empty."""
    with tempfile.TemporaryDirectory(prefix="kinetic-layer-", dir=cache.folder) as name:
        file = Path(name) / "layer"
        with file.open("wb") as sink:
            if part.kind == "wheels":
                written = layers.write_layer(Layer(part.wheels, lock.platform.python), cache.path_of, sink)
            else:
                zips = [bytecode.path_for(cache.path_of(wheel)) for wheel in part.wheels]
                maybe = layers.write_zips(zips, _packages(lock), sink)
                if maybe is None:
                    _write(part.key, (), store, environ)
                    return ()
                written = maybe
        sha256 = written.digest.removeprefix("sha256:")
        put_file(store, keys.layer(sha256), file)
        found = (StoredLayer(keys.layer(sha256), sha256, written.size_bytes),)
    _write(part.key, found, store, environ)
    return found


def _read(name: str, store: Store, environ: Mapping[str, str], *, here: bool = False) -> tuple[StoredLayer, ...] | None:
    """Return the layers under a name, by our own seal; with ``here``, from this machine if it has looked today."""
    at, file = keys.layer_list(name), home.kinetic_home(environ) / "cache" / "images" / f"layers-{name}"
    _, key = home.own_key(home.ensure_home(environ))
    try:
        if here and file.exists() and not folders.is_due(file, time.time(), USE_SECONDS):
            return documents.verify(LIST, documents.read(file.read_bytes(), LIST.what), at, key)
        data = documents.fetch(store, at, LIST.most_bytes, LIST.what)
        found = documents.verify(LIST, documents.read(data, LIST.what), at, key)
    except (KeyMissingError, IntegrityError, OSError):
        return None
    if not all(store.touch(layer.key) for layer in found):  # it was removed since; a bucket may remove what is old
        return None
    store.touch(at)
    if here:
        folders.make(file.parent)
        folders.write_whole(file, data)
    return found


def _write(name: str, found: Sequence[StoredLayer], store: Store, environ: Mapping[str, str]) -> None:
    _, key = home.own_key(home.ensure_home(environ))
    at = keys.layer_list(name)
    page = {"layers": [layer._asdict() for layer in found]}
    store.put(at, documents.seal_page(LIST, page, at, key))

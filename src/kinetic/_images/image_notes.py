"""The images that were built for jobs: noted in the store with when they were last used, and removed when they are old.

Registries do not tell when an image was last used, and a rule by age would remove what a job still waits for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from kinetic._config import home
from kinetic._images.container_registry import Registry
from kinetic._stores.protocol import Store
from kinetic._wire import NamedTuple, dataclass, documents, fields, folders, keys
from kinetic.errors import ImageUnavailableError, IntegrityError, KeyMissingError

USE_SECONDS = 24 * 3600.0  # how often a use is noted
_LAYER = "layer-"


@dataclass(frozen=True)
class ImageNote:
    """What is known of an image."""

    uri: str  # by digest
    tag: str  # in the registry
    python: str  # X.Y
    machine: str  # "x86_64" or "aarch64"
    packages: int  # how many it has (count)
    size_bytes: int  # of its wheels; the base is not counted
    built_at: float  # Unix time
    lock: str  # where its lock is in the store


class Listed(NamedTuple):
    """An image and when a job last used it (Unix time)."""

    image: ImageNote
    used_at: float


_READERS = {
    **{name: fields.text() for name in ("uri", "tag", "python", "machine", "lock")},
    "packages": fields.integer(0, 100_000),
    "size_bytes": fields.integer(0, 1 << 50),
    "built_at": fields.number(0, 1e11),
}
NOTE = documents.PageKind("image", "the note of an image", fields.builder(ImageNote, _READERS), 1 << 14)


def note_use(found: ImageNote, store: Store, environ: Mapping[str, str]) -> None:
    """Note that a job uses an image: once a day in the store, otherwise nowhere."""
    at = keys.image(found.tag)
    mark = home.kinetic_home(environ) / "cache" / "images" / f"used-{found.tag}"
    if not folders.is_due(_made(mark), time.time(), USE_SECONDS):
        return
    if not store.touch(at):
        _, key = home.own_key(home.ensure_home(environ))
        store.put(at, documents.seal_page(NOTE, asdict(found), at, key))


def _made(mark: Path) -> Path:
    folders.make(mark.parent)
    return mark


def images(store: Store, environ: Mapping[str, str]) -> tuple[list[Listed], int]:
    """Return the images of this store, the last used first, and how many notes somebody else wrote."""
    _, key = home.own_key(home.ensure_home(environ))
    found, others = [], 0
    for entry in store.entries(keys.IMAGES):
        try:
            found.append(Listed(documents.open_page(NOTE, store, entry.key, key), entry.modified))
        except IntegrityError:
            others += 1
        except KeyMissingError:  # removed meanwhile
            continue
    return sorted(found, key=lambda each: -each.used_at), others


def find(name: str, store: Store, environ: Mapping[str, str]) -> ImageNote | None:
    """Return the image that a user names by its tag, the beginning of it, or its address."""
    listed, _ = images(store, environ)
    fitting = [each.image for each in listed if name in {each.image.uri, each.image.tag} or _begins(each.image, name)]
    return fitting[0] if len(fitting) == 1 else None


def _begins(image: ImageNote, name: str) -> bool:
    return len(name) >= 6 and image.tag.removeprefix("env-").startswith(name.removeprefix("env-"))


def remove(image: ImageNote, registry: Registry, store: Store) -> None:
    """Remove an image from the registry, and then its note. A job that waits for it has it built again."""
    registry.delete_manifest(image.uri.partition("@")[2])
    store.delete(keys.image(image.tag))


def remove_unused_layers(registry: Registry) -> int:
    """Remove the layers that no image of the repository has any more; return how many.

    Images of other users are looked at as well: an account that may remove layers sees all tags.
    """
    tags = [*registry.tags()]
    used: set[str] = set()
    for tag in tags:
        if not tag.startswith(_LAYER):
            used |= set(_digests(registry, tag))
    count = 0
    for tag in tags:
        if tag.startswith(_LAYER) and (digests := _digests(registry, tag)) and not used.intersection(digests):
            digest = registry.find_manifest(tag)
            if digest and registry.delete_manifest(digest):
                count += 1
    return count


def _digests(registry: Registry, tag: str) -> list[str]:
    try:
        page, _ = registry.read_manifest(tag)
    except ImageUnavailableError:  # removed meanwhile
        return []
    return [str(layer["digest"]) for layer in page.get("layers") or ()]

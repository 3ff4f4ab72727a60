"""What a store holds of a tree already: manifests that say exactly it, and files of one that says nearly it."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from kinetic._data import sending
from kinetic._data.hashing import Tree
from kinetic._stores.protocol import Store
from kinetic._stores.transfer import in_parallel
from kinetic._wire import keys
from kinetic._wire.manifests import File, Manifest
from kinetic.errors import IntegrityError, KeyMissingError

_LISTED = 8  # manifests of one content differ only in how it was packed; nobody needs more than a few of them
_MANY_PACKS = 16


class Found(NamedTuple):
    """A manifest of the store, and which of its blobs are gone."""

    sha256: str
    manifest: Manifest
    gone: frozenset[str]


def read(store: Store, content_hash: str, sha256: str) -> Manifest | None:
    """Return a manifest, or None when it is gone or damaged."""
    try:
        return Manifest.from_bytes(store.get(keys.data_manifest(content_hash, sha256)), sha256=sha256)
    except (KeyMissingError, IntegrityError):
        return None


def agreeing(tree: Tree, store: Store) -> Iterator[Found]:
    """Find manifests that say exactly this tree; old ones are made young, or are found wanting."""
    for entry in list(itertools.islice(store.entries(keys.data_manifests(tree.hash)), _LISTED)):
        sha256 = entry.key.rpartition("/")[2]
        manifest = read(store, tree.hash, sha256)
        if manifest and _says(manifest, tree):
            gone = _freshen(entry.key, manifest, store) if sending.is_old(entry) else frozenset()
            yield Found(sha256, manifest, gone)


def held(tree: Tree, before: Manifest, store: Store) -> dict[str, File]:
    """Return the files of a manifest that the tree holds too and whose blobs are all there, by their digests."""
    wanted = {tree.digest(number) for number in range(len(tree.files))}
    files = _gathered([file for file in before.files if file.digest in wanted and file.parts])
    sizes = before._replace(files=tuple(files)).blobs()
    there = _ask(store, sizes, lambda blob: sending.holds(store, blob, sizes[blob]))
    return {file.digest: file for file in files if there.issuperset(part.blob for part in file.parts)}


def _says(manifest: Manifest, tree: Tree) -> bool:
    said = [(file.path, file.executable, file.size, file.digest) for file in manifest.files]
    meant = [(file.relative, file.executable, file.size, tree.digest(number)) for number, file in enumerate(tree.files)]
    return manifest.is_dir == tree.is_dir and said == meant and sorted(manifest.folders) == sorted(tree.folders)


def _freshen(key: str, manifest: Manifest, store: Store) -> frozenset[str]:
    """Make the blobs young again, and then what promises them; return the blobs that are gone."""
    blobs = manifest.blobs()
    gone = frozenset(blobs) - _ask(store, blobs, lambda blob: store.touch(keys.data_blob(blob)))
    if not gone and not store.touch(key):
        store.put(key, manifest.to_bytes())
    return gone


def _gathered(files: Sequence[File]) -> Sequence[File]:
    """Leave out files of packs that are mostly waste by now, once there are so many packs that a job would feel it."""
    live = Counter[str]()
    for file in files:
        if file.packed:
            live[file.parts[0].blob] += file.size
    needed = -(-live.total() // sending.PACK_BYTES)
    if len(live) <= 2 * needed + _MANY_PACKS:
        return files
    return [file for file in files if not file.packed or live[file.parts[0].blob] >= sending.PACK_BYTES // 2]


def _ask(store: Store, blobs: Iterable[str], question: Callable[[str], bool]) -> set[str]:
    """Return the blobs for which the answer is yes."""

    def asked(blob: str) -> str | None:
        return blob if question(blob) else None

    return {blob for blob in in_parallel(store, (functools.partial(asked, blob) for blob in blobs)) if blob}

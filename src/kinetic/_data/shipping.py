"""Local data into a store, where a job finds it by its manifest; whatever the store holds already is not sent again.

    unchanged, and its manifest is young    one request, and no file is read
    the store has a manifest that agrees    it is used; an old one's blobs are made young first, and the manifest last
    edited                                  files of the manifest before are kept where they lie, the rest is sent
    anything else                           each blob is looked for, and sent if it is not there

A manifest is written last, so that its presence promises its blobs. See ``_wire/manifests.py``.
"""

from __future__ import annotations

import os
from pathlib import Path

from kinetic._data import data as data_
from kinetic._data import hashing, planting, remembering, reusing, sending, telling
from kinetic._data.data import Data
from kinetic._data.hashing import Tree
from kinetic._data.remembering import Sent
from kinetic._stores.protocol import Store
from kinetic._wire import digests, keys
from kinetic._wire.data import DataRef, Kind
from kinetic._wire.manifests import Manifest
from kinetic.errors import DataChangedError


def ship(data: Data, store: Store, *, cache: Path, is_here: bool = False) -> DataRef:
    """Bring local data to where a job can get it.

    Args:
        data: A local file or folder.
        store: Where to.
        cache: The folder of this machine in which kinetic remembers what it has seen; it need not be writable.
        is_here: Whether the job runs on this very machine.

    Returns:
        The reference for the order. For ``fuse=True`` and a job on this machine it leads to the very files, and nothing
        is sent; for ``fuse=True`` elsewhere, to plain objects that can be mounted.

    Raises:
        DataMissingError: The data is gone, or a link in it leads nowhere.
        DataChangedError: It was edited while it was sent, or since its content hash was asked for.
        DataError: Something in it cannot be read.
        StoreError: The store did not take it.
    """
    if data.fuse and is_here:
        if not os.path.exists(data.path):
            raise data_.missing(data)
        return _reference(data, "view", data.path, is_dir=data.is_dir)
    tree = hashing.look(data.path, cache / "data")
    check_frozen(data, tree.hash)
    telling.tell_left_out(repr(data), tree)
    if data.fuse:
        uri = planting.plant(tree, store)
        return _reference(data, "prefix" if tree.is_dir else "object", uri, is_dir=tree.is_dir, found=tree.hash)
    manifest = _promise(tree, store, cache / "data")
    return _reference(data, "shipped", store.url, is_dir=tree.is_dir, found=tree.hash, manifest=manifest)


def check_frozen(data: Data, found: str) -> None:
    """Refuse data that is not what its content hash has said already.

    Raises:
        DataChangedError: It is something else now.
    """
    frozen = data_.frozen_of(data)
    if frozen and found and frozen != found:
        raise DataChangedError(
            f"{data!r} changed after its content hash was computed",
            why=f"the hash was {frozen[:16]}…, the files give {found[:16]}… now",
            next=f"make a new one: {data!r}",
        )


def _reference(data: Data, kind: Kind, uri: str, *, is_dir: bool, found: str = "", manifest: str = "") -> DataRef:
    return DataRef(
        kind=kind,
        uri=uri,
        path=data_.raw_of(data),
        name=os.path.basename(data.path) or "data",  # "/" has no name
        is_dir=is_dir,
        hash=found,
        manifest=manifest,
        fuse=data.fuse,
    )


def _promise(tree: Tree, store: Store, cache: Path) -> str:
    """Return the SHA-256 of a manifest in the store that promises this tree; send what must be sent for it."""
    known = remembering.recall(cache, tree.root, store.url)
    if known and (known.hash, known.shape) == (tree.hash, tree.shape):
        entry = store.entry(keys.data_manifest(known.hash, known.manifest))
        if entry and entry.size == known.size and not sending.is_old(entry):
            return known.manifest
    sha256, page = _found_or_sent(tree, store, known)
    remembering.remember(cache, tree.root, store.url, Sent(tree.hash, tree.shape, sha256, len(page)))
    return sha256


def _found_or_sent(tree: Tree, store: Store, known: Sent | None) -> tuple[str, bytes]:
    broken = {}
    for sha256, manifest, gone in reusing.agreeing(tree, store):
        if not gone:
            return sha256, manifest.to_bytes()
        broken[sha256] = manifest
    before = next(iter(broken.values()), None)
    if before is None and known:
        before = reusing.read(store, known.hash, known.manifest)
    page = _send(tree, store, before)
    sha256 = digests.of_bytes(page)
    store.put(keys.data_manifest(tree.hash, sha256), page)
    for promise in broken.keys() - {sha256}:  # nobody shall trust what is promised there
        store.delete(keys.data_manifest(tree.hash, promise))
    return sha256, page


def _send(tree: Tree, store: Store, before: Manifest | None) -> bytes:
    """Send what is not there, and return the page that says where everything lies."""
    held = reusing.held(tree, before, store) if before else {}
    to_send = tree.bytes - sum(file.size for file in held.values())
    telling.warn_if_large(tree.root, to_send, is_copied_here=store.url.startswith("file://"))
    with telling.Telling("sending", tree.root, len(tree.files), tree.bytes) as told:
        files = sending.send(tree, held, store, told)
    return Manifest(tree.hash, tree.is_dir, files, tuple(tree.folders)).to_bytes()

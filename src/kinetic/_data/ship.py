"""Local data into a store, where a job finds it by its manifest; whatever the store has already is not sent again.

    unchanged, and its manifest is young    one request, and no file is read
    the store has a manifest that agrees    it is used; an old one's blobs are made young first, and the manifest last
    edited                                  files of the manifest before are kept where they are, the rest is sent
    anything else                           each blob is looked for, and sent if it is not there

A manifest is written last, so that its presence promises its blobs. See ``_wire/order.py``.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kinetic._blobs import fetch, file_tree, sender
from kinetic._blobs.file_tree import File, Selection, TransferProgress, Tree
from kinetic._config import target as settings
from kinetic._data import data as data_
from kinetic._data import remote_refs
from kinetic._data.data import Data
from kinetic._data.remote_refs import Opener
from kinetic._stores import open_store
from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Entry, Store, check_key
from kinetic._wire import NamedTuple, digests, folders, keys, order
from kinetic._wire.order import DataRef, Kind, Manifest, ManifestFile
from kinetic.errors import (
    DataChangedError,
    DataError,
    IntegrityError,
    KeyMissingError,
    OptionError,
)

_LISTED = 8  # manifests of one content differ only in how it was packed; a few of them are enough
_PIECE = 8 << 20


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
        DataMissingError: The data is gone, or contains a broken link.
        DataChangedError: It was edited while it was sent, or since its content hash was computed.
        DataError: Something in it cannot be read.
        StoreError: The store did not take it.
    """
    if data.fuse and is_here:
        if not os.path.exists(data.path):
            raise data_.missing(data)
        return _reference(data, "view", data.path, is_dir=data.is_dir)
    tree = file_tree.digest_tree(data.path, cache / "data")
    _check_frozen(data, tree.hash)
    file_tree.report_left_out(repr(data), tree)
    if data.fuse:
        uri = _upload_plain_objects(tree, store)
        return _reference(data, "prefix" if tree.is_dir else "object", uri, is_dir=tree.is_dir, found=tree.hash)
    manifest = _ensure_manifest(tree, store, cache)
    return _reference(data, "shipped", store.url, is_dir=tree.is_dir, found=tree.hash, manifest=manifest)


def _check_frozen(data: Data, found: str) -> None:
    """Reject data that is no longer what its content hash says."""
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


# ---------------------------------------------------------------------------------------------------------- manifests


class SentManifest(NamedTuple):
    """What went to one store last."""

    hash: str  # the content hash
    shape: str  # what else a manifest says of the tree
    manifest: str  # SHA-256 of the manifest
    size: int  # of the manifest, in bytes


def recall_sent(cache: Path, root: str, url: str) -> SentManifest | None:
    """Return what went from a root to a store last, if that is remembered."""
    page = file_tree.read_page(_sent_path(cache, root, url))
    try:
        if page["url"] == url:
            return SentManifest(str(page["hash"]), str(page["shape"]), str(page["manifest"]), int(page["size"]))
    except (KeyError, TypeError, ValueError):
        pass
    return None


def remember_sent(cache: Path, root: str, url: str, sent: SentManifest) -> None:
    """Write down what went from a root to a store."""
    file_tree.write_page(_sent_path(cache, root, url), {"url": url, **sent._asdict()})


def _sent_path(cache: Path, root: str, url: str) -> Path:
    return cache / "data" / f"{file_tree.name_of(root, url)}.sent"


def _ensure_manifest(tree: Tree, store: Store, cache: Path) -> str:
    """Return the SHA-256 of a manifest in the store that promises this tree; send what must be sent for it."""
    known = recall_sent(cache, tree.root, store.url)
    if known and (known.hash, known.shape) == (tree.hash, tree.shape):
        entry = store.entry(keys.data_manifest(known.hash, known.manifest))
        if entry and entry.size == known.size and not sender.is_old(entry):
            return known.manifest
    broken: dict[str, Manifest] = {}
    for sha256, candidate, gone in _agreeing_manifests(tree, store):
        if not gone:
            page = candidate.to_bytes()
            break
        broken[sha256] = candidate
    else:
        before = next(iter(broken.values()), None)
        if before is None and known:
            before = _read_manifest(store, known.hash, known.manifest)
        page = _send(tree, store, before, cache)
        sha256 = digests.of_bytes(page)
        store.put(keys.data_manifest(tree.hash, sha256), page)
        for promise in broken.keys() - {sha256}:  # a broken promise must not be trusted
            store.delete(keys.data_manifest(tree.hash, promise))
    remember_sent(cache, tree.root, store.url, SentManifest(tree.hash, tree.shape, sha256, len(page)))
    return sha256


def _send(tree: Tree, store: Store, before: Manifest | None, cache: Path) -> bytes:
    """Send what is not there, and return the manifest."""
    held, sparse = _files_held(tree, before, store) if before else ({}, set[str]())
    to_send = tree.bytes - sum(file.size for file in held.values())
    file_tree.warn_if_large(tree.root, to_send, is_copied_here=store.url.startswith("file://"))
    missing = {number: file for number, file in enumerate(tree.files) if tree.digest(number) not in held}
    with TransferProgress("sending", tree.root, len(tree.files), tree.bytes) as progress:
        progress.add(files=len(held), there=tree.bytes - to_send)
        sending = sender.Sender(store, cache, Selection(), progress=progress)
        sending.avoid(sparse)
        sent = sending.send(missing, tree.digest)
    files = []
    for number, file in enumerate(tree.files):
        digest = tree.digest(number)
        if number in sent:
            _, _, packed, parts, *_ = sent[number]
            files.append(ManifestFile(file.relative, file.executable, file.size, digest, packed, parts))
        else:
            files.append(held[digest]._replace(executable=file.executable))
    return Manifest(tree.hash, tree.is_dir, tuple(files), tuple(tree.folders)).to_bytes()


def _read_manifest(store: Store, content_hash: str, sha256: str) -> Manifest | None:
    """Return a manifest, or None when it is gone or damaged."""
    try:
        return Manifest.from_bytes(store.get(keys.data_manifest(content_hash, sha256)), sha256=sha256)
    except (KeyMissingError, IntegrityError):
        return None


def _agreeing_manifests(tree: Tree, store: Store) -> Iterator[tuple[str, Manifest, bool]]:
    """Yield the manifests of exactly this tree, and whether blobs of them are gone; old ones are made young."""
    expected = [(file.relative, file.executable, file.size, tree.digest(n)) for n, file in enumerate(tree.files)]
    for entry in list(itertools.islice(store.entries(keys.data_manifests(tree.hash)), _LISTED)):
        sha256 = entry.key.rpartition("/")[2]
        found = _read_manifest(store, tree.hash, sha256)
        if found is None or found.is_dir != tree.is_dir or sorted(found.folders) != sorted(tree.folders):
            continue
        if [file[:4] for file in found.files] == expected:
            yield sha256, found, sender.is_old(entry) and not _make_young(entry.key, found, store)


def _make_young(key: str, manifest: Manifest, store: Store) -> bool:
    """Make the blobs young, and then the manifest that promises them; return False if blobs are gone."""
    blobs = manifest.blobs()
    if len(_blobs_where(store, blobs, lambda blob: store.touch(keys.data_blob(blob)))) < len(blobs):
        return False
    if not store.touch(key):
        store.put(key, manifest.to_bytes())
    return True


def _files_held(tree: Tree, before: Manifest, store: Store) -> tuple[dict[str, ManifestFile], set[str]]:
    """Return the files of a manifest that the tree has too and whose blobs are there, by digest, and sparse packs."""
    wanted = {tree.digest(number) for number in range(len(tree.files))}
    files = [file for file in before.files if file.digest in wanted and file.parts]
    sparse = sender.sparse_packs(file.parts[0] for file in files if file.packed)
    files = [file for file in files if file.parts[0].blob not in sparse]
    sizes = before._replace(files=tuple(files)).blobs()

    def is_held(blob: str) -> bool:
        entry = store.entry(keys.data_blob(blob))
        large_enough = entry is not None and (entry.size >= sizes[blob] or blob.endswith(order.COMPRESSED))
        return entry is not None and large_enough and sender.make_young(store, entry)

    there = _blobs_where(store, sizes, is_held)
    return {file.digest: file for file in files if there.issuperset(part.blob for part in file.parts)}, sparse


def _blobs_where(store: Store, blobs: Iterable[str], question: Callable[[str], bool]) -> set[str]:
    """Return the blobs for which the answer is yes."""

    def ask(blob: str) -> str:
        return blob if question(blob) else ""

    return set(in_parallel(store, (functools.partial(ask, blob) for blob in blobs))) - {""}


def recheck(ref: DataRef, store: Store) -> int:
    """Read every blob that a reference relies on; remove those that are damaged, and the manifest that promises them.

    Data that a job has no manifest of (plain objects for a mount) loses its marker, so that sizes are compared anew.

    Returns:
        How many promises were broken; 0 when everything is as it should be, so that the fault is elsewhere.
    """
    if ref.kind != "shipped":
        return store.delete(keys.data_tree_marker(ref.hash)) if ref.hash else 0
    promise = keys.data_manifest(ref.hash, ref.manifest)
    manifest = _read_manifest(store, ref.hash, ref.manifest)
    if manifest is None:
        store.delete(promise)
        return 1
    broken = fetch.remove_damaged(store, manifest.blobs())
    if broken:
        store.delete(promise)
    return broken


# ------------------------------------------------------------------------------------------- plain objects, for mounts


def _upload_plain_objects(tree: Tree, store: Store) -> str:
    """Bring every file into the store under its own name, and return the address of the folder or the file."""
    prefix, marker = keys.data_tree(tree.hash), keys.data_tree_marker(tree.hash)
    entry = store.entry(marker)
    if entry is None or sender.is_old(entry):
        for file in tree.files:
            _check_object_name(prefix, file)
        there = {entry.key: entry for entry in store.entries(prefix)}
        file_tree.warn_if_large(tree.root, tree.bytes - sum(entry.size for entry in there.values()))
        with TransferProgress("sending", tree.root, len(tree.files), tree.bytes) as progress:
            tasks = (
                functools.partial(_upload_object, tree, number, store, there.get(prefix + file.relative), progress)
                for number, file in enumerate(tree.files)
            )
            for _ in in_parallel(store, tasks):
                pass
        store.put(marker, str(len(tree.files)).encode())
    address = f"{store.url.rstrip('/')}/{prefix}"
    return address if tree.is_dir else address + tree.files[0].relative


def _upload_object(tree: Tree, number: int, store: Store, entry: Entry | None, progress: TransferProgress) -> None:
    file = tree.files[number]
    if entry and entry.size == file.size and sender.make_young(store, entry):
        progress.add(files=1, there=file.size)
        return
    pieces = _verified_pieces(tree, number)
    store.put(keys.data_tree(tree.hash) + file.relative, b"".join(pieces) if file.size < sender.SMALL_BYTES else pieces)
    progress.add(files=1, done=file.size)


def _verified_pieces(tree: Tree, number: int) -> Iterator[bytes]:
    """Yield the bytes of a file; the last ones only if all of them are what was hashed."""
    file, selection = tree.files[number], Selection()
    found, last = order.file_digest(file.relative), b""
    try:
        with folders.closing(file_tree.open_regular(selection, file)) as descriptor:
            while piece := os.read(descriptor, _PIECE):
                found.update(piece)
                yield last
                last = piece
    except OSError as error:
        selection.lost(file, error)
    if found.hexdigest() != tree.digest(number):
        raise file_tree.changed_error(file, "its content is not what was hashed")
    yield last


def _check_object_name(prefix: str, file: File) -> None:
    try:
        check_key(prefix + file.relative)
    except OptionError as error:
        raise DataError(
            f"a file cannot be mounted, since no object of a bucket can have its name: {file.relative!r}",
            why=error.why,
            next="rename it, or leave out fuse=True",
        ) from error


# ------------------------------------------------------------------------------------------------ everything of a call


def ship_all(
    found: Sequence[Data],
    volumes: Mapping[str, Data],
    store: Store,
    *,
    cache: Path,
    is_here: bool = False,
    opener: Opener = open_store,
    awaited: Collection[str] = (),
) -> tuple[DataRef, ...]:
    """Bring everything that a job reads to where the job can get it; the same data is sent once.

    Args:
        found: The data among the arguments, in the order in which the arguments refer to it.
        volumes: Data by the path at which the job sees it.
        store: Where local data is sent.
        cache: The folder of this machine in which kinetic remembers what it has seen.
        is_here: Whether the job runs on this very machine, where it can use files without a copy.
        opener: Opens the store of a bucket.
        awaited: Output folders of the jobs that the new one follows.

    Returns:
        A reference for each argument, in order, and then one for each volume, with its mount path.
    """
    mounts = data_.check_volumes(volumes)
    writable = settings.read_variable("KINETIC_DATA_WRITABLE", os.environ) == "1"
    sent: dict[tuple[str, bool], DataRef] = {}
    references = []
    for data, mount in [*((data, "") for data in found), *((data, mount) for mount, data in mounts.items())]:
        which = data.path, data.fuse
        if which not in sent:
            if data.is_local:
                sent[which] = ship(data, store, cache=cache, is_here=is_here)
            else:
                sent[which] = remote_refs.refer_to(data, opener=opener, awaited=awaited)
        _check_frozen(data, sent[which].hash)
        path, trust = data_.raw_of(data), data.hf_trust_remote_code
        references.append(replace(sent[which], path=path, trust=trust, mount=mount, writable=writable))
    return tuple(references)

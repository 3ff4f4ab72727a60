"""Local data into a store, where a job finds it by its manifest; whatever the store holds already is not sent again.

    unchanged, and its manifest is young    one request, and no file is read
    the store has a manifest that agrees    it is used; an old one's blobs are made young first, and the manifest last
    edited                                  files of the manifest before are kept where they lie, the rest is sent
    anything else                           each blob is looked for, and sent if it is not there

A manifest is written last, so that its presence promises its blobs. See ``_wire/manifests.py``.
"""

from __future__ import annotations

import functools
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kinetic import _config as settings
from kinetic._blobs import file_tree, sender
from kinetic._blobs.file_tree import SentManifest, Tree
from kinetic._data import data as data_
from kinetic._data import remote_refs
from kinetic._data.data import Data
from kinetic._data.remote_refs import Opener
from kinetic._stores import open_store
from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Store
from kinetic._wire import digests, keys
from kinetic._wire.order import DataRef, Kind
from kinetic._wire.trees import Manifest
from kinetic.errors import DataChangedError, KeyMissingError, OptionError, OptionTypeError


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
    tree = file_tree.digest_tree(data.path, cache / "data")
    check_frozen(data, tree.hash)
    file_tree.report_left_out(repr(data), tree)
    if data.fuse:
        uri = sender.upload_plain_objects(tree, store)
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
    known = file_tree.recall_sent(cache, tree.root, store.url)
    if known and (known.hash, known.shape) == (tree.hash, tree.shape):
        entry = store.entry(keys.data_manifest(known.hash, known.manifest))
        if entry and entry.size == known.size and not sender.is_old(entry):
            return known.manifest
    sha256, page = _found_or_sent(tree, store, known)
    file_tree.remember_sent(cache, tree.root, store.url, SentManifest(tree.hash, tree.shape, sha256, len(page)))
    return sha256


def _found_or_sent(tree: Tree, store: Store, known: SentManifest | None) -> tuple[str, bytes]:
    broken = {}
    for sha256, candidate, gone in sender.agreeing_manifests(tree, store):
        if not gone:
            return sha256, candidate.to_bytes()
        broken[sha256] = candidate
    before = next(iter(broken.values()), None)
    if before is None and known:
        before = sender.read_manifest(store, known.hash, known.manifest)
    page = _send_manifest(tree, store, before)
    sha256 = digests.of_bytes(page)
    store.put(keys.data_manifest(tree.hash, sha256), page)
    for promise in broken.keys() - {sha256}:  # nobody shall trust what is promised there
        store.delete(keys.data_manifest(tree.hash, promise))
    return sha256, page


def _send_manifest(tree: Tree, store: Store, before: Manifest | None) -> bytes:
    """Send what is not there, and return the page that says where everything lies."""
    held = sender.files_held(tree, before, store) if before else {}
    to_send = tree.bytes - sum(file.size for file in held.values())
    file_tree.warn_if_large(tree.root, to_send, is_copied_here=store.url.startswith("file://"))
    with file_tree.TransferProgress("sending", tree.root, len(tree.files), tree.bytes) as told:
        files = sender.send_blobs(tree, held, store, told)
    return Manifest(tree.hash, tree.is_dir, files, tuple(tree.folders)).to_bytes()


_OURS = "/_kinetic"
_EXAMPLE = 'volumes={"/data": kinetic.Data("./set")}'


def ship_all(
    found: Sequence[Data],
    volumes: Mapping[str, Data],
    store: Store,
    *,
    cache: Path,
    is_here: bool = False,
    opener: Opener = open_store,
    environ: Mapping[str, str] = os.environ,
) -> tuple[DataRef, ...]:
    """Bring everything that a job reads to where the job can get it; see the room's door.

    The same data is sent once, however often it is referred to.
    """
    mounts = check_volumes(volumes)
    writable = settings.read_variable("KINETIC_DATA_WRITABLE", environ) == "1"
    sent: dict[tuple[str, bool], DataRef] = {}
    references = []
    for data, mount in [*((data, "") for data in found), *((data, mount) for mount, data in mounts.items())]:
        which = data.path, data.fuse
        if which not in sent:
            if data.is_local:
                sent[which] = ship(data, store, cache=cache, is_here=is_here)
            else:
                sent[which] = remote_refs.refer_to(data, opener=opener)
        check_frozen(data, sent[which].hash)
        path, trust = data_.raw_of(data), data.hf_trust_remote_code
        references.append(replace(sent[which], path=path, trust=trust, mount=mount, writable=writable))
    return tuple(references)


def check_volumes(volumes: Mapping[str, Data]) -> dict[str, Data]:
    """Return volumes by their paths, without slashes at the end.

    Raises:
        OptionTypeError: A path is no str, or what it leads to is no ``Data``.
        OptionError: A path is relative, is not normalised, is "/" or kinetic's own, or lies in another one.
    """
    found: dict[str, Data] = {}
    for path, data in volumes.items():
        if not isinstance(path, str) or not isinstance(data, Data):
            raise OptionTypeError(f"volumes={{{path!r}: {data!r}}} is not a path and a Data", next=_EXAMPLE)
        mount = path.rstrip("/")
        if why := _problem(path, mount, found):
            raise OptionError(f"a volume cannot be mounted at {path!r}", why=why, next=_EXAMPLE)
        found[mount] = data
    return found


def _problem(path: str, mount: str, others: Mapping[str, Data]) -> str | None:
    if not path.startswith("/"):
        return "the path is not absolute"
    if not mount:
        return "that is the root of everything"
    plain = "/" + posixpath.normpath(mount).lstrip("/").replace("\0", "")
    if plain != mount:
        return f"the path is not in its plain form, {plain!r}"
    if mount == _OURS or mount.startswith(f"{_OURS}/"):
        return f"what lies below {_OURS}/ is kinetic's own"
    for other in others:
        if f"{mount}/".startswith(f"{other}/") or other.startswith(f"{mount}/"):
            return f"another volume is mounted at {other!r}" + (", and one cannot lie in the other" * (other != mount))
    return None


_LANES = 4  # each holds a chunk in memory


def recheck(ref: DataRef, store: Store) -> int:
    """Read every blob that a reference relies on; remove those that are damaged, and the manifest that promises them.

    What is removed is of no use to anybody: a blob is damaged when its bytes are not those that it is named after.
    Data that a job has no manifest of (plain objects for a mount) loses its marker, so that sizes are compared anew.

    Args:
        ref: Shipped data, from the order of the job that failed.
        store: The store at ``ref.uri``.

    Returns:
        How many promises were broken; 0 when everything is as it should be, so that the fault lies elsewhere.
    """
    if ref.kind != "shipped":
        return store.delete(keys.data_tree_marker(ref.hash)) if ref.hash else 0
    promise = keys.data_manifest(ref.hash, ref.manifest)
    manifest = sender.read_manifest(store, ref.hash, ref.manifest)
    if manifest is None:
        store.delete(promise)
        return 1
    tasks = (functools.partial(_is_broken, store, blob, size) for blob, size in manifest.blobs().items())
    broken = sum(in_parallel(store, tasks, limit=_LANES))
    if broken:
        store.delete(promise)
    return broken


def _is_broken(store: Store, blob: str, size: int) -> bool:
    key = keys.data_blob(blob)
    try:
        data = store.get(key)
    except KeyMissingError:
        return True
    if len(data) >= size and digests.of_bytes(data) == blob:
        return False
    store.delete(key)
    return True

"""Fetch the order and its artifacts, and rebuild the project: everything is verified before it is used."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinetic._stores.protocol import Store
from kinetic._wire import digests, distribution, folders, keys, trees
from kinetic._wire import order as orders
from kinetic._wire.order import Artifact, Child, Order
from kinetic.errors import IntegrityError, RunnerError, StoreError

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_WHOLE = 4 << 20  # a blob up to this size is verified before its file is made
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

Stamp = tuple[int, int, int]  # size, time of the last change in nanoseconds, inode


def fetch_order(
    store: Store, job_id: str, sha256: str, *, key: str = "", child: Mapping[str, Any] | None = None
) -> Order:
    """Fetch and verify the order; raise RunnerError if another Python made its pickles.

    ``key`` and ``child``: for a child of a batch, where the shared order is, and what the launch adds to it.
    """
    found = orders.read(store, key or keys.order(job_id), sha256)
    if child is not None:
        found = found.of_child(Child.from_json(dict(child)))
    why = distribution.version_mismatch(found.fingerprint.get("python", distribution.python_version()))
    if why:
        raise RunnerError(
            "this job cannot be opened by this Python",
            why=why,
            next="submit with the Python version of the job's environment, or change container_image",
            code="python-mismatch",
        )
    return found


def fetch_payload(store: Store, order_: Order) -> tuple[bytes, bytes]:
    """Return the verified pickles of the function and of the arguments."""
    function = fetch_artifact(store, order_.function, "the function")
    return function, fetch_artifact(store, order_.arguments, "the arguments")


def fetch_artifact(store: Store, artifact: Artifact, what: str) -> bytes:
    """Return the verified bytes of an artifact, of which ``what`` is the name in errors."""
    if artifact.inline or not artifact.key:
        return artifact.unwrap(what)
    data = store.get(artifact.key, start=artifact.start, length=artifact.size)
    artifact.verify(digests.of_bytes(data), what)
    return data


def open_payload(
    function: bytes, arguments: bytes, *, moved: Callable[[bytes], Any] | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Unpickle what was verified; ``moved`` replaces ``pickle.loads`` for a debugger, see ``debug_server``."""
    opened = moved or pickle.loads  # their digests are in the order
    called = opened(function)
    args, kwargs = opened(arguments)
    return called, args, kwargs


@dataclass(frozen=True)
class Unpacked:
    """A tree in a folder."""

    tree: str  # the digest of its top node
    files: int
    bytes: int
    stamps: Mapping[str, Stamp] = field(repr=False)  # for each path below the folder


def unpack(store: Store, tree: str, packs: Sequence[str], into: Path) -> Unpacked:
    """Write a tree, by the digest of its top node, into a new or empty folder; every blob is verified first."""
    with ExitStack() as closing:
        try:
            blobs = _Blobs(_open_packs(store, packs, into, closing))
            into.mkdir(parents=True, exist_ok=True)
            stamps = dict(_write_folders(blobs, tree, os.fspath(into)))
        except OSError as error:
            if error.errno in _FULL:
                raise StoreError(
                    "the disk that holds the job's workspace is full",
                    why=str(error),
                    next="free some space there, or ship less: kinetic package --dry-run lists what is sent",
                    code="workspace-full",
                ) from error
            what = f"the project cannot be written into {str(into)!r}"
            raise StoreError(what, why=str(error), code="workspace") from error
    return Unpacked(tree, len(stamps), sum(stamp[0] for stamp in stamps.values()), stamps)


def written_since(into: Path, unpacked: Unpacked) -> list[str]:
    """Name the files below a folder that are new or changed since it was unpacked, sorted; bytecode does not count."""
    found = []
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            entries = list(os.scandir(f"{into}/{folder}"))
        except OSError:  # gone, or closed to us: nothing to name in it
            continue
        for entry in entries:
            relative = folder + entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name != "__pycache__":
                    pending.append(f"{relative}/")
            elif _differs(entry, unpacked.stamps.get(relative)):
                found.append(relative)
    return sorted(found)


def _differs(entry: os.DirEntry[str], stamp: Stamp | None) -> bool:
    if stamp is None:
        return True
    try:
        return _stamp(entry.stat(follow_symlinks=False)) != stamp
    except FileNotFoundError:
        return False


def _stamp(about: os.stat_result) -> Stamp:
    return about.st_size, about.st_mtime_ns, about.st_ino


class _Blobs:
    """Everything that some packs hold."""

    def __init__(self, packs: Sequence[trees.Pack]) -> None:
        self._where = {digest: (pack, blob) for pack in packs for digest, blob in pack.blobs.items()}

    def find(self, digest: str, what: str) -> tuple[trees.Pack, trees.Blob]:
        found = self._where.get(bytes.fromhex(digest))
        if found is None:
            raise IntegrityError(
                f"the project is incomplete: {what} is missing",
                why=f"none of the job's packs holds {digest}",
                next="submit the job again: what is missing is sent anew",
            )
        return found


def _open_packs(store: Store, packs: Sequence[str], into: Path, closing: ExitStack) -> list[trees.Pack]:
    opened = []
    for pack in packs:
        key = trees.pack_key(pack)
        descriptor = store.local.open(key) if store.local is not None else _fetched(store, key, into)
        opened.append(trees.Pack(descriptor, pack))
        closing.callback(opened[-1].close)
    return opened


def _fetched(store: Store, key: str, into: Path) -> int:
    """Fetch an object beside the folder, and return a descriptor of it; its name is gone at once."""
    import tempfile  # 4 ms, and not needed if packs can be opened directly

    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".packs-", dir=into.parent) as scratch:
        target = Path(scratch, "pack")
        store.fetch(key, target)
        return os.open(target, os.O_RDONLY | os.O_CLOEXEC)


def _write_folders(blobs: _Blobs, tree: str, into: str) -> Iterator[tuple[str, Stamp]]:
    pending = [("", tree)]
    for folder, digest in pending:  # grows while it is read: a folder is made before its content
        what = f"the folder {folder or '.'!r}"
        pack, blob = blobs.find(digest, what)
        for entry in trees.read_node(pack.read(blob, what), folder):
            relative = folder + entry.name
            if entry.kind == "d":
                os.mkdir(f"{into}/{relative}", 0o755)
                pending.append((f"{relative}/", entry.digest))
            else:
                yield relative, _write_file(blobs, entry, relative, f"{into}/{relative}")


def _write_file(blobs: _Blobs, entry: trees.Entry, relative: str, path: str) -> Stamp:
    pack, blob = blobs.find(entry.digest, relative)
    if blob.raw != entry.size:
        raise IntegrityError(f"{relative!r} has the wrong size", why=f"{blob.raw} bytes instead of {entry.size}")
    data = pack.read(blob, relative) if blob.raw <= _WHOLE else None
    descriptor = os.open(path, _NEW, 0o755 if entry.kind == "x" else 0o644)
    try:
        if data is None:
            pack.copy(blob, lambda piece: folders.write_all(descriptor, piece), relative)
        elif data:
            folders.write_all(descriptor, data)
        return _stamp(os.fstat(descriptor))
    finally:
        os.close(descriptor)

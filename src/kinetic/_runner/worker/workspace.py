"""Fetch the order and its artifacts, and rebuild the project: everything is verified before it is used."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

from kinetic._blobs import fetch as blobs
from kinetic._stores.parallel import in_parallel
from kinetic._stores.protocol import Store
from kinetic._wire import dataclass, digests, keys, python_runtime
from kinetic._wire import order as orders
from kinetic._wire.order import Artifact, Child, Manifest, Order
from kinetic._wire.task import Task
from kinetic.errors import KineticError, RunnerError, StoreError

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
    why = python_runtime.version_mismatch(found.fingerprint.get("python", python_runtime.python_version()))
    if why:
        raise RunnerError(
            "this job cannot be opened by this Python",
            why=why,
            next="submit with the Python version of the job's environment, or change container_image",
            code="python-mismatch",
        )
    return found


class Fetched(NamedTuple):
    """What comes before the project's files, all of it verified."""

    order: Order
    function: bytes
    arguments: bytes
    last_pack: bytes  # of the project, with its manifest; empty where there is none


def fetch(store: Store, task: Task) -> Fetched:
    """Fetch the order, and then at the same time what it names: the pickles, and the pack with the manifest."""
    found = fetch_order(store, task.job_id, task.order_sha256, key=task.order_key, child=task.child)

    def last_pack() -> tuple[str, bytes]:
        with contextlib.suppress(KineticError):  # ``unpack`` reads it again, and its phase has the error
            return "last_pack", blobs.read_blob(store, found.packs[-1], "the project") if found.manifest else b""
        return "last_pack", b""

    parts: list[Callable[[], tuple[str, bytes]]] = [
        lambda: ("function", fetch_artifact(store, found.function, "the function")),
        lambda: ("arguments", fetch_artifact(store, found.arguments, "the arguments")),
        last_pack,
    ]
    return Fetched(found, **dict(in_parallel(store, parts, limit=1 if store.local else None)))


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
    """A project in a folder.

    Attributes:
        tree: The digest of its paths, modes and contents.
        files: How many files.
        bytes: Their size.
        stamps: For each path below the folder: size, time of the last change in nanoseconds, inode.
    """

    tree: str
    files: int
    bytes: int
    stamps: Mapping[str, Stamp] = field(repr=False)


def unpack(store: Store, page: Artifact, packs: Sequence[str], into: Path, last: bytes = b"") -> Unpacked:
    """Write a project into a new or empty folder; everything is verified first.

    Args:
        store: Where its blobs are.
        page: Where its manifest is, from the Order.
        packs: The blobs that contain the project, from the Order; the manifest is in the last one.
        into: The folder; it is made if it does not exist.
        last: The last blob, verified; read if it is empty.

    Raises:
        IntegrityError: A blob or the manifest is not what was promised.
        KeyMissingError: A blob is not in the store.
        StoreError: The folder cannot be written; "workspace-full" when its disk is full.
    """
    last = last or blobs.read_blob(store, packs[-1], "the project")
    manifest = Manifest.from_bytes(last[page.start : page.start + page.size], sha256=page.sha256, blobs=packs)
    destination = blobs.Destination(
        lambda file: f"{into}/{file.path}", lambda file: 0o755 if file.executable else 0o644, None
    )
    try:
        into.mkdir(parents=True, exist_ok=True)
        for folder in sorted({*map(os.path.dirname, (file.path for file in manifest.files)), *manifest.folders} - {""}):
            os.makedirs(into / folder, 0o755, exist_ok=True)
        blobs.fetch_files(store, manifest.files, destination, {packs[-1]: last})
        stamps = {file.path: _stamp(os.lstat(f"{into}/{file.path}")) for file in manifest.files}
    except OSError as error:
        if isinstance(error, KineticError):
            raise
        full = error.errno in blobs.DISK_FULL
        raise StoreError(
            "the disk of the job's workspace is full" if full else f"the project cannot be written into {str(into)!r}",
            why=str(error),
            next="free some space there, or send less: kinetic package --dry-run lists what is sent" if full else None,
            code="workspace-full" if full else "workspace",
        ) from error
    return Unpacked(manifest.hash, len(stamps), sum(stamp[0] for stamp in stamps.values()), stamps)


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

"""The working folder of a job: a project is unpacked into it, or it is taken over from another child of the batch.

A folder is taken over only if it is as it would be unpacked. That is found by its bytes at first, and from then on by
its *state*: size, times, inode and mode of each file. The system alone sets the time of a change (ctime), so a file
that was written to has another state, whatever its writer did. Two changes within one tick of the clock have one time,
so a state counts only once all of its files are older than that.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from hashlib import sha256
from pathlib import Path
from struct import Struct

from kinetic._blobs import fetch as blobs
from kinetic._runner import processes
from kinetic._stores.protocol import Store
from kinetic._wire import NamedTuple, dataclass, folders
from kinetic._wire.order import Artifact, Manifest
from kinetic.errors import KineticError, StoreError

Stamp = tuple[int, int, int]  # size, time of the last change in nanoseconds, inode
_MOST_READ = 32 << 20  # bytes; twice a pack
_STATE = Struct(">qqqQI").pack


@dataclass(frozen=True)
class Unpacked:
    """A project in a folder.

    Attributes:
        tree: The digest of its paths, modes and contents.
        files: How many files.
        bytes: Their size.
        stamps: For each path below the folder: size, time of the last change in nanoseconds, inode.
        state: By which the next child of the batch knows the folder, if that is as it is now; "" where it cannot.
    """

    tree: str
    files: int
    bytes: int
    stamps: Mapping[str, Stamp] = field(repr=False)
    state: str = ""


class Left(NamedTuple):
    """A folder that another child of the batch left, for the next one."""

    folder: str
    state: str = ""  # in which its bytes were those of the project, as a worker found; "" where that is not known


def unpack(
    store: Store,
    page: Artifact,
    packs: Sequence[str],
    into: Path,
    last: bytes = b"",
    *,
    manifest: Manifest | None = None,
    left: Left | None = None,
) -> Unpacked:
    """Write a project into a new or empty folder; everything is verified first.

    Args:
        store: Where its blobs are.
        page: Where its manifest is, from the Order.
        packs: The blobs that contain the project, from the Order; the manifest is in the last one.
        into: The folder; it is made if it does not exist.
        last: The last blob, verified; read if it is empty.
        manifest: What the page says, verified; read if it is None.
        left: A folder that may hold the same project, with bytecode; it is taken instead if it does.

    Raises:
        IntegrityError: A blob or the manifest is not what was promised.
        KeyMissingError: A blob is not in the store.
        StoreError: The folder cannot be written; "workspace-full" when its disk is full.
    """
    read = {packs[-1]: last} if last else {}

    def blob(name: str) -> bytes:
        return read[name] if name in read else blobs.read_blob(store, name, "the project")

    if manifest is None:
        read[packs[-1]] = blob(packs[-1])
        manifest = read_manifest(read[packs[-1]], page, packs)
    try:
        if left is not None and (found := _take_over(left, into, manifest, blob)) is not None:
            return found
        into.mkdir(parents=True, exist_ok=True)
        for folder in sorted(_folders_of(manifest)):
            os.makedirs(into / folder, 0o755, exist_ok=True)
        destination = blobs.Destination(
            lambda file: f"{into}/{file.path}", lambda file: 0o755 if file.executable else 0o644, None
        )
        blobs.fetch_files(store, manifest.files, destination, read)
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
    return _unpacked(manifest, stamps)


def read_manifest(last: bytes, page: Artifact, packs: Sequence[str]) -> Manifest:
    """Return the verified manifest of a project, which is in its last blob."""
    return Manifest.from_bytes(last[page.start : page.start + page.size], sha256=page.sha256, blobs=packs)


def _unpacked(manifest: Manifest, stamps: dict[str, Stamp], state: str = "") -> Unpacked:
    return Unpacked(manifest.hash, len(stamps), sum(stamp[0] for stamp in stamps.values()), stamps, state)


def _folders_of(manifest: Manifest) -> set[str]:
    found = set(manifest.folders)
    for file in manifest.files:
        folder = os.path.dirname(file.path)
        while folder and folder not in found:
            found.add(folder)
            folder = os.path.dirname(folder)
    return found


# ----------------------------------------------------------------------------------------------------------- taken over


def _take_over(left: Left, into: Path, manifest: Manifest, blob: Callable[[str], bytes]) -> Unpacked | None:
    """Rename a folder with a project, if every name, mode and byte in it is as it would be unpacked; else remove it.

    There may be bytecode besides: Python uses it only for a source of the same time and size.
    """
    try:
        os.rename(left.folder, into)
    except OSError:  # no job has left one
        return None
    try:
        looked = time.time_ns()
        found = _files_in(into, manifest)
        if found is not None:
            state = _state_of(found)
            if state == left.state or _has_contents(into, manifest, blob):
                stamps = {file.path: _stamp(about) for file, about in zip(manifest.files, found, strict=True)}
                is_old = state == left.state or all(
                    folders.is_settled(folders.changed_ns(about), looked) for about in found
                )
                return _unpacked(manifest, stamps, state if is_old else "")
    except (OSError, KineticError):  # something in it cannot be read, or a blob; who unpacks says so
        pass
    folders.remove(into.parent, into.name)
    return None


def _files_in(into: Path, manifest: Manifest) -> list[os.stat_result] | None:
    """Return what the system says of each file of a project; None if its folder has more, less, or other modes."""
    mask = folders.read_umask()
    inside, count, pending = _folders_of(manifest), 0, [""]
    wanted = {file.path: 0o755 & ~mask if file.executable else 0o644 & ~mask for file in manifest.files}
    found: dict[str, os.stat_result] = {}
    while pending:
        folder = pending.pop()
        is_bytecode = folder.endswith("__pycache__/")
        for entry in os.scandir(f"{into}/{folder}"):
            path = folder + entry.name
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode) and (path in inside or entry.name == "__pycache__"):
                count += path in inside
                pending.append(f"{path}/")
            elif not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
                return None
            elif path in wanted:
                if stat.S_IMODE(about.st_mode) != wanted[path]:
                    return None
                found[path] = about
            elif not is_bytecode or not path.endswith(".pyc"):
                return None
    if count != len(inside) or len(found) != len(wanted):
        return None
    return [found[file.path] for file in manifest.files]


def _state_of(found: Sequence[os.stat_result]) -> str:
    return sha256(
        b"".join(
            _STATE(about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino, about.st_mode) for about in found
        )
    ).hexdigest()


def _has_contents(into: Path, manifest: Manifest, blob: Callable[[str], bytes]) -> bool:
    """Return whether each file has the bytes that the blobs of a project have, of which one at a time is read.

    A project with larger blobs is unpacked each time: what is read here counts as memory of the job.
    """
    if max(manifest.blobs().values(), default=0) > _MOST_READ:
        return False
    at: dict[str, list[tuple[str, int, int, int]]] = {}
    for file in manifest.files:
        before = 0
        for part in file.parts:
            length = file.size if file.packed else part.length
            at.setdefault(part.blob, []).append((f"{into}/{file.path}", before, part.offset, length))
            before += length
        if os.lstat(f"{into}/{file.path}").st_size != file.size:
            return False
    for name, places in at.items():
        data = memoryview(blob(name))
        for path, start, offset, length in places:
            if _bytes_of(path, start, length) != data[offset : offset + length]:
                return False
    return True


def _bytes_of(path: str, start: int, length: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        return file.read(length)


# -------------------------------------------------------------------------------------------------- what a job has left


def written_since(into: Path, unpacked: Unpacked | None) -> list[str]:
    """Name the files below a folder that are new or changed since it was unpacked, sorted; bytecode does not count.

    What is mounted there is not looked at: it was not written into this folder, and its server may not answer any more.
    """
    found, mounted = [], None
    stamps = unpacked.stamps if unpacked is not None else {}
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
                if mounted is None:
                    mounted = {os.path.relpath(point, os.path.realpath(into)) for point in processes.mounts_below(into)}
                if entry.name != "__pycache__" and relative not in mounted:
                    pending.append(f"{relative}/")
            elif _differs(entry, stamps.get(relative)):
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

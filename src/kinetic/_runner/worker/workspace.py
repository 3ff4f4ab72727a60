"""The working folder of a job: a project is unpacked into it, or it is the one of the job before, brought up to date.

What is in a file of such a folder is known by its *state*: size, times, inode and mode. The system alone sets the time
of a change (ctime), so a file that was written to has another state, whatever its writer did. Two changes within one
tick of the clock have one time, so a file that is younger than that is compared with its bytes in the store.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from struct import Struct

from kinetic._blobs import fetch as blobs
from kinetic._runner import processes
from kinetic._stores.protocol import Store
from kinetic._wire import NamedTuple, folders
from kinetic._wire.order import Artifact, Manifest, ManifestFile
from kinetic._wire.task import Task
from kinetic.errors import KineticError, StoreError

Stamp = tuple[int, int, int]  # size, time of the last change in nanoseconds, inode
_BYTECODE = "__pycache__"
_COMPILED = (".pyc", ".nbi", ".nbc")  # of Python; of Numba, for functions with cache=True
_MOST_READ = 32 << 20  # bytes; twice a pack
_MOST_YOUNG = 64  # files; where there are more, all are compared
_STATE = Struct(">qqqQI").pack
_Found = dict[str, os.stat_result]  # by path below a working folder; the name of a folder ends with a slash


class Left(NamedTuple):
    """What a worker found in its working folder before any code of the user's ran; the next job takes it over."""

    manifest: tuple[str, int, int]  # of the project: digest, length, where in its blob
    packs: tuple[str, ...]  # of the project
    state: str = ""  # of its files and folders; "" where each must be compared
    young: tuple[str, ...] = ()  # files that must be compared, whatever the state

    @classmethod
    def of(cls, task: Task) -> Left | None:
        """Read what became of it on its way through the supervisor."""
        if (page := task.left) is None:
            return None
        digest, size, start = page["manifest"]
        return cls((digest, size, start), tuple(page["packs"]), page["state"], tuple(page["young"]))

    def is_of(self, page: Artifact, packs: Sequence[str]) -> bool:
        """Return whether this is the project that an Order names."""
        return self.manifest == (page.sha256, page.size, page.start) and self.packs == tuple(packs)


class Unpacked(NamedTuple):
    """A project in a folder."""

    stamps: Mapping[str, Stamp]  # for each path below the folder
    left: Left


def unpack(
    store: Store,
    page: Artifact,
    packs: Sequence[str],
    into: Path,
    last: bytes = b"",
    *,
    folder: str = "",
    left: Left | None = None,
) -> Unpacked:
    """Write a project into a new or empty folder; everything is verified first.

    Args:
        store: Where its blobs are.
        page: Where its manifest is, from the Order.
        packs: The blobs that contain the project, from the Order; the manifest is in the last one.
        into: The folder; it is made if it does not exist.
        last: The last blob, verified; read if it is empty.
        folder: The working folder of another job, of which nothing else is made anew than what differs.
        left: What that job found in it; None if there is no such folder.

    Raises:
        IntegrityError: A blob or the manifest is not what was promised.
        KeyMissingError: A blob is not in the store.
        StoreError: The folder cannot be written; "workspace-full" when its disk is full.
    """
    project = _Project(store, page, packs, last)
    try:
        if left is not None and (taken := _take_over(folder, left, into, project)) is not None:
            return taken
        manifest = project.manifest()
        project.write(manifest, manifest.files, into)
        return project.unpacked(_look(into) or {}, time.time_ns())
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


def read_manifest(last: bytes, page: Artifact, packs: Sequence[str]) -> Manifest:
    """Return the verified manifest of a project, which is in its last blob."""
    return Manifest.from_bytes(last[page.start : page.start + page.size], sha256=page.sha256, blobs=packs)


class _Project:
    """A project in a store."""

    def __init__(self, store: Store, page: Artifact, packs: Sequence[str], last: bytes = b"") -> None:
        self.store, self.page, self.packs = store, page, packs
        self._read = {packs[-1]: last} if last else {}

    def manifest(self) -> Manifest:
        last = self.packs[-1]
        self._read[last] = self.blob(last)
        return read_manifest(self._read[last], self.page, self.packs)

    def blob(self, name: str) -> bytes:
        return self._read[name] if name in self._read else blobs.read_blob(self.store, name, "the project")

    def write(self, manifest: Manifest, files: Sequence[ManifestFile], into: Path) -> None:
        """Write some of its files, and make all its folders."""
        into.mkdir(parents=True, exist_ok=True)
        for folder in sorted(_folders_of(manifest)):
            os.makedirs(into / folder, 0o755, exist_ok=True)
        destination = blobs.Destination(
            lambda file: f"{into}/{file.path}", lambda file: 0o755 if file.executable else 0o644, None
        )
        blobs.fetch_files(self.store, files, destination, self._read)

    def unpacked(self, found: _Found, looked: int) -> Unpacked:
        """Return what a folder holds whose files are those of this project, as they were looked at at this time."""
        young = [
            path
            for path, about in found.items()
            if not path.endswith("/") and not folders.is_settled(folders.changed_ns(about), looked)
        ]
        left = Left((self.page.sha256, self.page.size, self.page.start), tuple(self.packs))
        if len(young) <= _MOST_YOUNG and "".join(young).isascii():
            left = left._replace(state=_state_of(found, young), young=tuple(young))
        return Unpacked(_stamps(found), left)


def _stamps(found: _Found) -> dict[str, Stamp]:
    return {path: _stamp(about) for path, about in found.items() if not path.endswith("/")}


def _folders_of(manifest: Manifest) -> set[str]:
    found = set(manifest.folders)
    for file in manifest.files:
        folder = os.path.dirname(file.path)
        while folder and folder not in found:
            found.add(folder)
            folder = os.path.dirname(folder)
    return found


# ----------------------------------------------------------------------------------------------------------- taken over


def _take_over(folder: str, left: Left, into: Path, project: _Project) -> Unpacked | None:
    """Rename the folder of another job and bring it up to date; None, and no folder, where that cannot be done.

    What cannot be used stays beside it, and is removed with the job.
    There may be bytecode besides, of the files that are there.
    """
    if set(left.packs).isdisjoint(project.packs):
        return None  # nothing in it is ours
    try:
        os.rename(folder, into)
    except OSError:  # it is gone
        return None
    try:
        found = _bring_up_to_date(into, left, project)
    except (OSError, KineticError):  # something in it cannot be read, or a blob; who unpacks says so
        found = None
    if found is None:
        os.rename(into, f"{into}-unused")
    return found


def _bring_up_to_date(into: Path, left: Left, project: _Project) -> Unpacked | None:
    """Write what is missing or not known to be right, and remove what is not the project's."""
    looked = time.time_ns()
    compiled: list[str] = []
    found = _look(into, compiled)
    if found is None or os.lstat(into).st_mode & stat.S_IRWXU != stat.S_IRWXU:
        return None
    is_known, is_same = left.state == _state_of(found, left.young), left.is_of(project.page, project.packs)
    if is_known and is_same and not left.young:
        _remove_compiled(into, compiled, found, changed=False)
        return Unpacked(_stamps(found), left)
    manifest = project.manifest()
    right: set[str] = set()
    if is_known:
        before = manifest
        if not is_same:
            digest, size, start = left.manifest
            before = _Project(project.store, Artifact(digest, size, start=start), left.packs).manifest()
        right = {file.path for file in {*before.files}.intersection(manifest.files)}.difference(left.young)
    mask = folders.read_umask()
    candidates = [file for file in manifest.files if file.path not in right and _could_be(file, found, mask)]
    right.update(_compared(into, candidates, project))
    inside = {f"{folder}/" for folder in _folders_of(manifest) if os.path.basename(folder) != _BYTECODE}
    if any(stat.S_IMODE(found[folder].st_mode) != 0o755 & ~mask for folder in found.keys() & inside):
        return None
    wrong = sorted(found.keys() - right - inside, reverse=True)  # what is in a folder comes before the folder
    missing = [file for file in manifest.files if file.path not in right]
    for path in wrong:
        _remove(into, path)
        del found[path]
    changed = any(path.endswith(".py") for path in (*wrong, *(file.path for file in missing)))
    _remove_compiled(into, compiled, found, changed=changed)
    project.write(manifest, missing, into)
    for path in (*(file.path for file in manifest.files), *inside):
        if path not in found:
            found[path] = os.lstat(f"{into}/{path}")
    return project.unpacked(found, looked)


def _look(top: Path, compiled: list[str] | None = None) -> _Found | None:
    """Return what the system says of all but bytecode; None if there are links, pipes and the like.

    ``compiled`` gets the paths of that.
    """
    found: _Found = {}
    pending = [""]
    while pending:
        folder = pending.pop()
        is_bytecode = folder.endswith(f"{_BYTECODE}/")
        for entry in list(os.scandir(f"{top}/{folder}")):  # which closes it
            path = folder + entry.name
            about = entry.stat(follow_symlinks=False)
            if stat.S_ISDIR(about.st_mode):
                pending.append(f"{path}/")
                if entry.name != _BYTECODE:
                    found[f"{path}/"] = about
            elif not stat.S_ISREG(about.st_mode) or about.st_nlink != 1:
                return None
            elif not is_bytecode or not path.endswith(_COMPILED):
                found[path] = about
            elif compiled is not None:
                compiled.append(path)
    return found


def _remove_compiled(into: Path, compiled: Sequence[str], found: _Found, *, changed: bool) -> None:
    """Remove what was compiled of a source that is gone: this job may write another with the size and second of that.

    And what Numba keeps of functions, once a source has ``changed``: it does not know what else a function calls.
    """
    for path in compiled:
        folder, _, name = path.rpartition(f"{_BYTECODE}/")
        is_orphan = f"{folder}{name.partition('.')[0]}.py" not in found
        if is_orphan or (changed and not name.endswith(".pyc")):
            with contextlib.suppress(FileNotFoundError):  # gone with its source
                os.unlink(into / path)


def _state_of(found: _Found, young: Collection[str]) -> str:
    """Return one digest of the states of all files that are not young; of a folder, names and mode count."""
    left_out = set(young)

    def states() -> Iterator[bytes]:
        yield b"%o" % folders.read_umask()  # files that are made anew would follow it
        for path in sorted(found.keys() - left_out):
            about, of_folder = found[path], path.endswith("/")
            times = (0, 0, 0) if of_folder else (about.st_size, about.st_mtime_ns, about.st_ctime_ns)
            yield os.fsencode(path)
            yield _STATE(*times, about.st_ino, about.st_mode)

    return sha256(b"\0".join(states())).hexdigest()


def _could_be(file: ManifestFile, found: _Found, mask: int) -> bool:
    about = found.get(file.path)
    wanted = (0o755 if file.executable else 0o644) & ~mask
    return about is not None and about.st_size == file.size and stat.S_IMODE(about.st_mode) == wanted


def _compared(into: Path, files: Sequence[ManifestFile], project: _Project) -> set[str]:
    """Return which of these files have the bytes that the blobs of their project have, of which one at a time is read.

    Files of larger blobs are made anew each time: what is read here counts as memory of the job.
    """
    at: dict[str, list[tuple[str, int, int, int]]] = {}
    for file in files:
        before = 0
        for part in file.parts:
            length = file.size if file.packed else part.length
            at.setdefault(part.blob, []).append((file.path, before, part.offset, length))
            before += length
    others: set[str] = set()
    for name, places in at.items():
        is_large = max(offset + length for _, _, offset, length in places) > _MOST_READ
        data = memoryview(b"" if is_large else project.blob(name))
        for path, start, offset, length in places:
            if is_large or _bytes_of(f"{into}/{path}", start, length) != data[offset : offset + length]:
                others.add(path)
    return {file.path for file in files} - others


def _bytes_of(path: str, start: int, length: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        file.seek(start)
        return file.read(length)


def _remove(into: Path, path: str) -> None:
    """Remove a file with its bytecode, or a folder."""
    if path.endswith("/"):
        folders.remove(into, path)
        return
    os.unlink(into / path)
    folder, name = os.path.split(path)
    if name.endswith(".py") and os.path.isdir(bytecode := into / folder / _BYTECODE):
        for each in os.listdir(bytecode):
            if each.startswith(name[:-2]):
                os.unlink(bytecode / each)


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

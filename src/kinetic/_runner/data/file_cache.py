"""What this machine keeps of data, so that the next job need not fetch it, and a job's own copy of it.

{runtime}/data/files/{aa}/{digest}[x]     one file, read-only; x when it is executable
{runtime}/data/pages/{manifest}           a manifest; its age is the time since it was last used
{runtime}/data/seen/{manifest}            the stamps of its files when they were last known to be right
{runtime}/data/parts/                     what is being fetched, and other temporary files
{runtime}/data/locks/{name}               a POSIX lock while a manifest's files are fetched: it dies with its holder
{runtime}/data/pinned/{name}              which manifest describes a data set of Hugging Face that cannot change

A file is trusted as long as size, time of change (ctime, which no program can set) and inode are those that were noted
when it was verified, in this same boot: a power cut may lose bytes that were not yet on the disk. Otherwise it is read
and verified again. Hard links change the ctime, when they are made and when they are removed. So both happen under the
lock of the manifest, and what was right before is noted anew. A process that dies between link and note, or a manifest
that shares a file with another, does no harm: the file is read again.

If a job needs a real copy anyway, and the store is on the same disk, the copy is made from the store directly. The
store's own files are never linked, because a job that owns them could change their mode, and then their bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from kinetic._blobs import fetch as blobs
from kinetic._runner.data.transfer import Transfer, say
from kinetic._stores import Store, open_store
from kinetic._stores.parallel import in_parallel
from kinetic._wire import NamedTuple, folders, keys, python_runtime
from kinetic._wire.order import DataRef, Manifest, ManifestFile, file_digest
from kinetic.errors import DataMissingError, IntegrityError, KeyMissingError

Way = Literal["reflink", "link", "copy"]

LINKED_PAGE = "linked"  # in a job's folder: the manifests to whose files it has links
_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20
_DAY = 86_400


class Stamp(NamedTuple):
    """By what a change of a file is noticed."""

    size: int
    mtime: int
    ctime: int
    inode: int


class Cache:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = folder / "parts"
        for name in ("files", "pages", "seen", "parts", "locks", "pinned"):
            folders.make(folder / name)

    def path(self, file: ManifestFile) -> str:
        return f"{self.folder}/files/{file.digest[:2]}/{file.digest}{'x' * file.executable}"

    def keep_page(self, sha256: str, data: bytes) -> None:
        self._write("pages", sha256, data)

    def manifest(self, sha256: str) -> Manifest | None:
        """Return a manifest that is kept and intact, or None; note that it was used."""
        path = self.folder / "pages" / sha256
        with contextlib.suppress(OSError, IntegrityError):
            os.utime(path)
            return Manifest.from_bytes(path.read_bytes(), sha256=sha256)
        return None

    def pinned(self, name: str) -> str:
        """Return the manifest of a data set that cannot change, or ""."""
        with contextlib.suppress(OSError):
            return (self.folder / "pinned" / name).read_text()
        return ""

    def pin(self, name: str, sha256: str) -> None:
        self._write("pinned", name, sha256.encode())

    def seen(self, sha256: str) -> dict[str, Stamp]:
        """Return the noted stamps of a manifest's files, by their digest; nothing after a restart."""
        try:
            page = json.loads((self.folder / "seen" / sha256).read_bytes())
            if page["boot"] != _boot():
                return {}
            return {digest: Stamp(*map(int, stamp)) for digest, stamp in page["stamps"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def note(self, sha256: str, files: Sequence[ManifestFile], stamps: dict[str, Stamp]) -> None:
        known = {file.digest: stamps[file.digest] for file in files if file.digest in stamps}
        self._write("seen", sha256, json.dumps({"boot": _boot(), "stamps": known}).encode())

    def _write(self, kind: str, name: str, data: bytes) -> None:
        part = self.parts / f"{kind}-{os.getpid():x}-{os.urandom(4).hex()}"
        try:
            with open(part, "xb", buffering=0, opener=folders.opener) as file:
                folders.write_all(file.fileno(), data)
            part.replace(self.folder / kind / name)
        finally:
            part.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, name: str, *, patient: bool = True) -> Iterator[bool]:
        with hold_lock(self.folder / "locks" / name, patient=patient) as held:
            yield held


@contextlib.contextmanager
def hold_lock(path: Path, *, patient: bool = True) -> Iterator[bool]:
    """Hold the lock of a file, which is released when its holder ends, however it ends."""
    with folders.closing(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as descriptor:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            if not patient:
                yield False
                return
            say("waiting for another job on this machine that fetches the same data")
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        yield True


def stamp_of(path: str) -> Stamp | None:
    """Return the stamp of a kept file, or None if there is no plain file."""
    try:
        about = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(about.st_mode):
        return None
    return Stamp(about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino)


def mode_of(file: ManifestFile) -> int:
    """Return the mode of a kept file: a hard link to it must protect it from the job that has the link."""
    return 0o555 if file.executable else 0o444


def verify_kept(path: str, file: ManifestFile) -> Stamp | None:
    """Read a file that may have changed; return its stamp if it is right after all, else None."""
    wanted = mode_of(file)
    with contextlib.suppress(FileNotFoundError):
        about = os.lstat(path)
        if stat.S_ISREG(about.st_mode) and stat.S_IMODE(about.st_mode) != wanted:
            os.chmod(path, wanted)
    before = stamp_of(path)
    if before is None or before.size != file.size:
        return None
    digest = file_digest(file.path)
    with open(path, "rb", buffering=0) as stream:
        while piece := stream.read(_CHUNK):
            digest.update(piece)
    return before if digest.hexdigest() == file.digest else None


def _boot() -> str:
    """Return the id of this boot of the machine; "" if the system does not tell."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def sweep(folder: Path, *, now: float | None = None, days: float = 30) -> None:
    """Remove what no job has used for so many days, and what a killed job was fetching."""
    if not (folder / "pages").is_dir():
        return
    kept = Cache(folder)
    now = time.time() if now is None else now
    gone = [name for name in os.listdir(folder / "pages") if folders.age(folder / "pages" / name, now) > days * _DAY]
    for name in gone:
        with kept.lock(name, patient=False) as held:
            if held:  # no job is filling it
                for kind in ("pages", "seen", "locks"):
                    (folder / kind / name).unlink(missing_ok=True)
    for part in kept.parts.iterdir():
        if folders.age(part, now) > _DAY:
            _remove(part)
    if gone:
        _drop_unnamed(kept, now)


def _drop_unnamed(kept: Cache, now: float) -> None:
    """Remove files that no manifest names; not young ones, which a job may be about to use."""
    named = set()
    for page in (kept.folder / "pages").iterdir():
        with contextlib.suppress(OSError, IntegrityError):
            manifest = Manifest.from_bytes(page.read_bytes(), sha256=page.name)
            named |= {kept.path(file) for file in manifest.files}
    for folder in (kept.folder / "files").iterdir():
        for path in folder.iterdir():
            if str(path) not in named and folders.age(path, now) > _DAY:
                path.unlink(missing_ok=True)
    for pin in (kept.folder / "pinned").iterdir():
        if not (kept.folder / "pages" / pin.read_text()).exists():
            pin.unlink(missing_ok=True)


def _remove(path: Path) -> None:
    import shutil  # 3 ms; once an hour at most

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


# ----------------------------------------------------------------------------------------------------- a job's own copy


def choose_way(kept: Path, own: Path, *, writable: bool) -> Way:
    """Return how files of a folder that several jobs share become copies in a job's own folder, by trying."""
    if _can_reflink(kept, own):
        return "reflink"
    if writable or os.geteuid() == 0 or kept.stat().st_dev != own.stat().st_dev:
        return "copy"
    return "link"


def copy_file(source: str, target: str, *, way: Way, executable: bool) -> None:
    """Make a job's own copy of a file; if the chosen way does not work for this one file, it is copied."""
    if way == "link":
        with contextlib.suppress(OSError):  # too many names already, or a file system without
            os.link(source, target)
            return
    with (
        folders.closing(os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)) as reading,
        folders.closing(os.open(target, _NEW, 0o777 if executable else 0o666)) as writing,
    ):
        if not (way == "reflink" and _reflink(reading, writing)):
            _copy(reading, writing, os.fstat(reading).st_size)


def copy_tree(source: Path, target: Path, *, way: Way) -> None:
    """Make a job's own copy of everything in a folder, or of one file."""
    pending = [("", source.is_dir())]
    for inside, is_dir in pending:  # grows while it is read
        here, there = f"{source}{inside}", f"{target}{inside}"
        if not is_dir:
            copy_file(here, there, way=way, executable=bool(os.stat(here).st_mode & 0o100))
            continue
        os.makedirs(there, exist_ok=True)
        with os.scandir(here) as entries:
            pending += [(f"{inside}/{entry.name}", entry.is_dir(follow_symlinks=False)) for entry in entries]


def _copy(reading: int, writing: int, size: int) -> None:
    if blobs.copy_range(reading, writing, size, at=0):
        return
    done = 0
    while piece := os.pread(reading, _CHUNK, done):
        folders.write_at(writing, piece, done)
        done += len(piece)


def _reflink(reading: int, writing: int) -> bool:
    try:
        fcntl.ioctl(writing, _FICLONE, reading)
    except OSError as error:
        if error.errno in blobs.DISK_FULL:
            raise
        return False
    return True


def _can_reflink(kept: Path, own: Path) -> bool:
    if sys.platform != "linux" or python_runtime.is_portable():
        return False
    name = f".reflink-{os.getpid():x}-{os.urandom(4).hex()}"
    try:
        with contextlib.ExitStack() as closing:
            ends = []
            for path in (kept / name, own / name):
                closing.callback(path.unlink, missing_ok=True)
                ends.append(closing.enter_context(open(path, "xb", buffering=0, opener=folders.opener)))
            ends[0].write(bytes(4096))
            return _reflink(ends[0].fileno(), ends[1].fileno())
    except OSError:
        return False


# ------------------------------------------------------------------------------------------------- what the client sent


def fetch_shipped(ref: DataRef, path: Path, cache: Cache, home: Path) -> None:
    """Fetch shipped data to a path in ``home``, the job's folder for data; the folder above it exists."""
    store = open_store(ref.uri)
    manifest = _manifest(store, ref, cache)
    way = choose_way(cache.parts, home, writable=ref.writable)
    if way == "copy" and _is_on_same_disk(store, home):
        _copy_from_store(ref.path, store, manifest, path, home)
    else:
        fetch = functools.partial(_fetch, ref.path, store, destination=destination_of(cache))
        copy_kept(cache, manifest, ref.manifest, path, home, way, fetch)


def copy_kept(
    cache: Cache,
    manifest: Manifest,
    name: str,
    path: Path,
    home: Path,
    way: Way,
    fetch: Callable[[list[ManifestFile]], object],
) -> None:
    """Give a job its copy of what a manifest, with the digest ``name``, describes.

    First make sure that all of it is kept and right: ``fetch`` gets the files that are missing into the cache.
    """

    def give_all() -> None:
        for file in manifest.files:
            target = _place_of(manifest, file, path)
            copy_file(cache.path(file), target, way=way, executable=file.executable)

    with cache.lock(name):
        stamps = _right_ones(cache, manifest, name)
        missing = [file for file in manifest.files if file.digest not in stamps]
        if missing:
            fetch(missing)
            stamps |= {file.digest: stamp for file in missing if (stamp := stamp_of(cache.path(file)))}
        cache.note(name, manifest.files, stamps)
        _make_folders(manifest, path)
        if way == "link":
            with open(home / LINKED_PAGE, "a", encoding="ascii") as page:  # first: what removes them must know
                page.write(f"{name}\n")
            give_all()
            cache.note(name, manifest.files, {**stamps, **relinked(cache, manifest, stamps)})
    if way != "link":  # outside of the lock: others may copy at the same time
        give_all()


def relinked(cache: Cache, manifest: Manifest, before: dict[str, Stamp]) -> dict[str, Stamp]:
    """Return the stamps of files that differ from before in their ctime at most, as a new or removed link makes it."""
    now = {file.digest: stamp_of(cache.path(file)) for file in manifest.files if file.digest in before}
    same = {digest: stamp for digest, stamp in now.items() if stamp is not None}
    return {
        digest: stamp for digest, stamp in same.items() if stamp._replace(ctime=before[digest].ctime) == before[digest]
    }


def _make_folders(manifest: Manifest, path: Path) -> None:
    if manifest.is_dir:
        above = {os.path.dirname(file.path) for file in manifest.files}
        for folder in sorted({"", *above, *manifest.folders}):
            os.makedirs(path / folder, exist_ok=True)


def _place_of(manifest: Manifest, file: ManifestFile, path: Path) -> str:
    return f"{path}/{file.path}" if manifest.is_dir else str(path)


def _right_ones(cache: Cache, manifest: Manifest, name: str) -> dict[str, Stamp]:
    """Return the stamps of the files that are there and right; those with another stamp than noted are read."""
    known = cache.seen(name)
    right: dict[str, Stamp] = {}
    doubtful: list[ManifestFile] = []
    for file in manifest.files:
        stamp = stamp_of(cache.path(file))
        if stamp is not None and stamp == known.get(file.digest):
            right[file.digest] = stamp
        elif stamp is not None:
            doubtful.append(file)

    def verified(file: ManifestFile) -> tuple[ManifestFile, Stamp | None]:
        return file, verify_kept(cache.path(file), file)

    reading = (functools.partial(verified, file) for file in doubtful)
    for file, stamp in in_parallel(open_store(f"file://{cache.folder}"), reading):
        if stamp is not None:
            right[file.digest] = stamp
    return right


def _fetch(what: str, store: Store, files: Sequence[ManifestFile], destination: blobs.Destination) -> None:
    transfer = Transfer(what, sum(file.size for file in files))
    try:
        blobs.fetch_files(store, files, destination, received=transfer.received)
    except KeyMissingError as error:
        raise DataMissingError(
            "data of this job is not in the store anymore",
            why=error.why or str(error.what),
            next="submit the job again: missing files are sent again",
        ) from error
    transfer.end()


def destination_of(cache: Cache) -> blobs.Destination:

    def path(file: ManifestFile) -> str:
        found = cache.path(file)
        os.makedirs(os.path.dirname(found), mode=0o700, exist_ok=True)
        return found

    return blobs.Destination(path, mode_of, cache.parts)


def _copy_from_store(what: str, store: Store, manifest: Manifest, path: Path, home: Path) -> None:
    parts = home / ".parts"
    parts.mkdir(mode=0o700, exist_ok=True)
    _make_folders(manifest, path)
    mask = folders.read_umask()
    destination = blobs.Destination(
        lambda file: _place_of(manifest, file, path),
        lambda file: (0o777 if file.executable else 0o666) & ~mask,
        parts,
    )
    _fetch(what, store, manifest.files, destination)


def _is_on_same_disk(store: Store, home: Path) -> bool:
    try:
        return store.local is not None and store.local.root.stat().st_dev == home.stat().st_dev
    except OSError:
        return False


def _manifest(store: Store, ref: DataRef, cache: Cache) -> Manifest:
    kept = cache.manifest(ref.manifest)
    if kept is not None:
        return kept
    try:
        data = store.get(keys.data_manifest(ref.hash, ref.manifest))
    except KeyMissingError as error:
        raise DataMissingError(
            f"the data {ref.path!r} is not in the store anymore",
            why=str(error.why or error.what),
            next="submit the job again: it is sent again",
        ) from error
    manifest = Manifest.from_bytes(data, sha256=ref.manifest)
    if manifest.hash != ref.hash or manifest.is_dir != ref.is_dir or (not ref.is_dir and len(manifest.files) != 1):
        raise IntegrityError(f"the manifest of {ref.path!r} describes other data", why="hash or kind differ")
    cache.keep_page(ref.manifest, data)
    return manifest

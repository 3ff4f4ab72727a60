"""What this machine keeps of data, so that the next job need not fetch it: verified files, by their digest.

{runtime}/data/files/{aa}/{digest}[x]     one file, read-only; x when it is executable
{runtime}/data/pages/{manifest}           a manifest; its age is the time since it was last used
{runtime}/data/seen/{manifest}            how its files looked when they were last known to be right
{runtime}/data/parts/                     what is being fetched, and small change
{runtime}/data/locks/{name}               held by whoever fills, by a POSIX lock, so that it dies with its holder
{runtime}/data/pinned/{name}              which manifest describes a data set of Hugging Face that cannot change

A file is trusted as long as size, time of change (ctime, which no program can set) and inode are those that were noted
when it was verified, in this same boot: a power cut may lose bytes that were not yet on the disk. Otherwise it is read
and verified again. Hard links change the ctime, when they are made and when they go. So both happen under the lock of
the manifest, and what was right before is noted anew. Who dies between link and note has done no harm: the next one
reads the file again, that is all. Two manifests that share a file do not know of each other's links; the same holds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, NoReturn

from kinetic._wire import folders
from kinetic._wire.trees import Manifest, ManifestFile, file_digest
from kinetic.errors import DataError, IntegrityError, KineticError, StoreError

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def say(line: str) -> None:
    """Write one line into the log of the job."""
    sys.stderr.write(f"kinetic: {line}\n")


def is_portable() -> bool:
    """Say whether to do without what only some systems can do; the variable is among the job's own."""
    return os.environ.get("KINETIC_PORTABLE") == "1"


def rewritten(function: str, path: str) -> str:
    """Return the same call with an argument in place of a volume."""
    return f"{function or 'train'}(..., data=kinetic.Data({path!r}))"


class translated_disk_errors:  # noqa: N801 - reads as a statement
    """Translate the file system's errors; leave nothing of theirs to the reader at night."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, StoreError) and error.code == "store-full":  # the store's word for any full disk
            _full(self._what, error)
        if not isinstance(error, OSError) or isinstance(error, KineticError):
            return
        if error.errno in DISK_FULL:
            _full(self._what, error)
        raise DataError(
            f"{self._what} could not be written on this machine",
            why=str(error),
            next="look at the permissions of the folder that is named",
        ) from error


def _full(what: str, error: BaseException) -> NoReturn:
    raise StoreError(
        f"the disk that holds running jobs is full: there is no room for {what}",
        why=str(getattr(error, "why", None) or error),
        next="free some space there, or point KINETIC_RUNTIME_DIR at a larger disk",
        code="workspace-full",
    ) from error


_CHUNK = 1 << 20


class Stamp(NamedTuple):
    """How a file looked when it was last known to be right."""

    size: int
    mtime: int
    ctime: int
    inode: int


class Cache:
    """The data that one machine keeps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = folder / "parts"
        for name in ("files", "pages", "seen", "parts", "locks", "pinned"):
            folders.make(folder / name)

    def path(self, file: ManifestFile) -> str:
        """Return where a file is kept."""
        return f"{self.folder}/files/{file.digest[:2]}/{file.digest}{'x' * file.executable}"

    def page(self, sha256: str) -> bytes | None:
        """Return the bytes of a manifest that is kept, or None; it is young again."""
        path = self.folder / "pages" / sha256
        try:
            os.utime(path)
            return path.read_bytes()
        except OSError:
            return None

    def keep_page(self, sha256: str, data: bytes) -> None:
        """Keep a manifest."""
        self._write("pages", sha256, data)

    def manifest(self, sha256: str) -> Manifest | None:
        """Return a manifest that is kept and whole, or None."""
        data = self.page(sha256)
        try:
            return Manifest.from_bytes(data, sha256=sha256) if data is not None else None
        except IntegrityError:
            return None

    def pinned(self, name: str) -> str:
        """Return the manifest of a data set that cannot change, or ""."""
        with contextlib.suppress(OSError):
            return (self.folder / "pinned" / name).read_text()
        return ""

    def pin(self, name: str, sha256: str) -> None:
        """Note the manifest of a data set that cannot change."""
        self._write("pinned", name, sha256.encode())

    def seen(self, sha256: str) -> dict[str, Stamp]:
        """Return what was noted about the files of a manifest, by their digest; nothing after a restart."""
        try:
            page = json.loads((self.folder / "seen" / sha256).read_bytes())
            if page["boot"] != _boot():
                return {}
            return {digest: Stamp(*map(int, stamp)) for digest, stamp in page["stamps"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def note(self, sha256: str, files: Sequence[ManifestFile], stamps: dict[str, Stamp]) -> None:
        """Note how the files of a manifest look."""
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
        """Hold a lock; yield False when somebody else holds it and we are not patient."""
        with hold_lock(self.folder / "locks" / name, patient=patient) as held:
            yield held


@contextlib.contextmanager
def hold_lock(path: Path, *, patient: bool = True) -> Iterator[bool]:
    """Hold the lock of a file, which falls free when its holder is gone, however that went."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            if not patient:
                yield False
                return
            say("waiting for another job on this machine that fetches the same data")
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        yield True
    finally:
        os.close(descriptor)


def stamp_of(path: str) -> Stamp | None:
    """Return how a kept file looks, or None when there is no plain file."""
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
    """Read a file that may have changed; return how it looks when it is right after all, else None."""
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
    """Name this boot of the machine; "" where it does not tell."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def sweep(folder: Path, *, now: float | None = None, days: float = 30) -> None:
    """Remove what no job has used for a month, and what a killed job was fetching.

    Args:
        folder: The cache.
        now: Unix time; the current time by default.
        days: For how long data is kept that nobody uses.
    """
    if not (folder / "pages").is_dir():
        return
    kept = Cache(folder)
    now = time.time() if now is None else now
    gone = [name for name in os.listdir(folder / "pages") if _age(folder / "pages" / name, now) > days * 86_400]
    for name in gone:
        with kept.lock(name, patient=False) as held:
            if held:  # nobody is filling it
                for kind in ("pages", "seen", "locks"):
                    (folder / kind / name).unlink(missing_ok=True)
    for part in kept.parts.iterdir():
        if _age(part, now) > 86_400:
            _remove(part)
    if gone:
        _drop_unnamed(kept, now)


def _drop_unnamed(kept: Cache, now: float) -> None:
    """Remove files that no manifest names; not young ones, which somebody may be about to use."""
    named = set()
    for page in (kept.folder / "pages").iterdir():
        with contextlib.suppress(OSError, IntegrityError):
            manifest = Manifest.from_bytes(page.read_bytes(), sha256=page.name)
            named |= {kept.path(file) for file in manifest.files}
    for folder in (kept.folder / "files").iterdir():
        for path in folder.iterdir():
            if str(path) not in named and _age(path, now) > 86_400:
                path.unlink(missing_ok=True)
    for pin in (kept.folder / "pinned").iterdir():
        if not (kept.folder / "pages" / pin.read_text()).exists():
            pin.unlink(missing_ok=True)


def _age(path: Path, now: float) -> float:
    with contextlib.suppress(OSError):
        return now - path.lstat().st_mtime
    return 0.0


def _remove(path: Path) -> None:
    import shutil  # 3 ms; once an hour at most

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)

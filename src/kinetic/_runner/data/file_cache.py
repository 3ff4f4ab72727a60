"""What this machine keeps of data, so that the next job need not fetch it: verified files, by their digest.

{runtime}/data/files/{aa}/{digest}[x]     one file, read-only; x when it is executable
{runtime}/data/pages/{manifest}           a manifest; its age is the time since it was last used
{runtime}/data/seen/{manifest}            the stamps of its files when they were last known to be right
{runtime}/data/parts/                     what is being fetched, and other temporary files
{runtime}/data/locks/{name}               a POSIX lock while a manifest's files are fetched: it dies with its holder
{runtime}/data/pinned/{name}              which manifest describes a data set of Hugging Face that cannot change

A file is trusted as long as size, time of change (ctime, which no program can set) and inode are those that were noted
when it was verified, in this same boot: a power cut may lose bytes that were not yet on the disk. Otherwise it is read
and verified again. Hard links change the ctime, when they are made and when they are removed. So both happen under the
lock of the manifest, and what was right before is noted anew. A process that dies between link and note does no harm:
the next one reads the file again. The same holds for two manifests that share a file: neither knows of the other's
links.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kinetic._wire import folders
from kinetic._wire.order import Manifest, ManifestFile, file_digest
from kinetic.errors import IntegrityError

_CHUNK = 1 << 20
_DAY = 86_400


def say(line: str) -> None:
    """Write one line into the log of the job."""
    sys.stderr.write(f"kinetic: {line}\n")


class Stamp(NamedTuple):
    """By what a change of a file is noticed."""

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

    def keep_page(self, sha256: str, data: bytes) -> None:
        """Keep a manifest."""
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
        """Note the manifest of a data set that cannot change."""
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
        """Note the stamps of a manifest's files."""
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
        """Hold a lock; yield False if another process holds it and we are not patient."""
        with hold_lock(self.folder / "locks" / name, patient=patient) as held:
            yield held


@contextlib.contextmanager
def hold_lock(path: Path, *, patient: bool = True) -> Iterator[bool]:
    """Hold the lock of a file, which is released when its holder ends, however it ends."""
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
    gone = [name for name in os.listdir(folder / "pages") if _age(folder / "pages" / name, now) > days * _DAY]
    for name in gone:
        with kept.lock(name, patient=False) as held:
            if held:  # no job is filling it
                for kind in ("pages", "seen", "locks"):
                    (folder / kind / name).unlink(missing_ok=True)
    for part in kept.parts.iterdir():
        if _age(part, now) > _DAY:
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
            if str(path) not in named and _age(path, now) > _DAY:
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

"""A store in a folder of a local or shared file system: durable, conditional, whole or not at all.

An object is the file of its key; objects that are being written are in ``.tmp/`` of the same file system and are linked
or renamed into place, after their bytes were forced to the disk.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from kinetic._stores.protocol import HIDDEN, SCRATCH, Entry, Source, check_key, check_prefix, is_hidden
from kinetic._wire import folders
from kinetic.errors import KeyMissingError, OptionError, StoreError, StoreUnreachableError

_CHUNK = 1 << 20  # 1 MiB: large enough that the loop costs nothing, small enough for any machine
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_MOST_KNOWN = 1000  # jobs and batches whose folders are remembered; one more forced write for what is forgotten
_FEW = 8  # forced writes that are not worth threads
_forced_roots: set[str] = set()  # of the stores whose own names this process forced to the disk
_forced_objects: set[tuple[str, float]] = set()  # paths and times of those of other processes that this one forced
_AWAY = {errno.ENODEV, errno.ENOTCONN, errno.ESTALE}  # what a file system answers that is not mounted, or not served
_ATTEMPTS = 100  # at putting a file into a folder that others keep deleting


@functools.lru_cache(maxsize=16)  # a store is opened for each thing that is done with a job
def _path_and_url(folder: str) -> tuple[Path, str, str]:
    mount = os.path.realpath(folder)
    while not os.path.ismount(mount):
        mount = os.path.dirname(mount)
    return Path(folder), f"file://{folder}", mount


class FileStore:
    """Keep objects as files below one folder.

    Nothing is listed, read, written or deleted through a link below it; see ``_wire/folders``.
    """

    def __init__(self, root: Path | str) -> None:
        folder = os.path.abspath(root)  # resolve() would follow links
        self.root, self.url, self._mount = _path_and_url(folder)
        # Folders whose own names this process forced to the disk, by the first part of their paths; "" is the root.
        self._known_folders: dict[str, set[str]] = {"": {""}} if folder in _forced_roots else {}

    @property
    def local(self) -> FileStore:
        """This store: it can do what only a folder can."""
        return self

    def put(self, key: str, source: Source, *, if_absent: bool = False) -> bool:
        with _translated_errors(self.root, key, writing=True):
            check_key(key)  # before anything is written
            if isinstance(source, bytes) and not source:  # nothing to force but its name
                created = self._place("", key, if_absent=True)
                if created or if_absent:
                    self._sync_folders(key)
                    return created
            scratch = self._write_beside(source)
            kept = False
            try:
                kept = self._place(scratch, key, if_absent=if_absent)
            finally:
                if if_absent or not kept:  # else it was renamed
                    with contextlib.suppress(OSError):
                        os.unlink(scratch)  # hot path
            if not kept:  # its writer may not have forced it yet
                self._force_bytes(key)
            self._sync_folders(key)
            return kept

    def force(self, entry: Entry) -> None:
        """Force an object to the disk that another process may have written a moment ago."""
        if (f"{self.root}/{entry.key}", entry.modified) in _forced_objects:
            return
        with _translated_errors(self.root, entry.key, writing=True):
            self._force_bytes(entry.key)
            self._sync_folders(entry.key)
        self.note_forced(entry)

    def note_forced(self, entry: Entry) -> None:
        if len(_forced_objects) > _MOST_KNOWN:
            _forced_objects.clear()
        folders.when_forced(partial(_forced_objects.add, (f"{self.root}/{entry.key}", entry.modified)))

    def _force_bytes(self, key: str) -> None:
        deleted = contextlib.suppress(FileNotFoundError)  # meanwhile
        with deleted, folders.closing(folders.open_file(self.root, key)) as descriptor:
            folders.sync_open(descriptor)

    def put_many(self, objects: Sequence[tuple[str, bytes]], *, if_absent: bool = False) -> list[str]:
        """Force all bytes first, then name them in order, then force each folder once; on threads where they are many.

        The disk takes the forced writes of several threads together: of 64, in a third of the time and less.
        """
        scratches: list[str] = [""] * len(objects)
        left: list[str] = []

        def write(number: int) -> None:
            if objects[number][1]:
                scratches[number] = self._write_beside(objects[number][1])

        with _translated_errors(self.root, objects[-1][0] if objects else "", writing=True):
            for key, _ in objects:
                check_key(key)
            try:
                _at_once(self, [partial(write, number) for number in range(len(objects))])
                for number, (key, data) in enumerate(objects):
                    if if_absent or not data:
                        is_placed = self._place(scratches[number], key, if_absent=True)
                        if not is_placed and not self.put(key, data, if_absent=if_absent):  # forces what is there
                            left.append(key)
                    else:
                        self._place(scratches[number], key, if_absent=False)
                        scratches[number] = ""
            finally:
                for scratch in filter(None, scratches):
                    with contextlib.suppress(OSError):
                        os.unlink(scratch)
            self._sync_folders(*[key for key, _ in objects])
        return left

    def put_hint(self, key: str, data: bytes = b"") -> bool:
        with _translated_errors(self.root, key, writing=True):
            check_key(key)
            scratch = self._write_beside(data, forced=False) if data else ""
            try:
                return self._place(scratch, key, if_absent=True)
            finally:
                if scratch:
                    with contextlib.suppress(OSError):
                        os.unlink(scratch)  # hot path

    def adopt(self, key: str, path: os.PathLike[str], *, if_absent: bool = False) -> bool:
        with _translated_errors(self.root, key, writing=True):
            try:
                check_key(key)
                folders.sync(path)
                written = self._place(os.fspath(path), key, if_absent=if_absent)
                self._sync_folders(key)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                written = self.put(key, Path(path), if_absent=if_absent)
            with contextlib.suppress(FileNotFoundError):  # renamed
                os.unlink(path)
            return written

    def scratch(self) -> Path:
        folder = self.root / SCRATCH
        with _translated_errors(self.root, SCRATCH, writing=True):
            if not folder.is_dir():
                self._make_root()
            with folders.opened(self.root, SCRATCH, make=folders.PRIVATE_FOLDER):  # refused where it is a link
                pass
        return folder

    def reserve(self, size: int) -> int:
        with _translated_errors(self.root, SCRATCH, writing=True):
            path, descriptor = self._create_scratch_file()
            try:
                os.unlink(path)  # hot path
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(descriptor, 0, size)
                else:
                    folders.write_all(descriptor, bytes(size))
            except BaseException:
                os.close(descriptor)
                raise
            return descriptor

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        with _translated_errors(self.root, key), open(self.open(key), "rb", buffering=0) as file:  # no text layer
            wanted = max(0, os.fstat(file.fileno()).st_size - start) if length is None else length
            return folders.read_range(file.fileno(), start, wanted)

    def open(self, key: str) -> int:
        with _translated_errors(self.root, key):
            check_key(key)
            return folders.open_file(self.root, key)

    def fetch(self, key: str, to: os.PathLike[str], received: Callable[[int], object] | None = None) -> None:
        target = Path(to)
        beside = target.with_name(f".{target.name}.{os.getpid():x}-{os.urandom(4).hex()}.part")
        with _translated_errors(self.root, key):
            try:
                with beside.open("wb") as target_file, open(self.open(key), "rb", buffering=0) as file:
                    while data := file.read(_CHUNK):
                        folders.write_all(target_file.fileno(), data)
                        if received is not None:
                            received(len(data))
                beside.replace(target)
            finally:
                beside.unlink(missing_ok=True)

    def size(self, key: str) -> int | None:
        found = self.entry(key)
        return None if found is None else found.size

    def entry(self, key: str) -> Entry | None:
        with _translated_errors(self.root, key):
            check_key(key)
            try:
                about = folders.lstat(self.root, key)
            except (FileNotFoundError, NotADirectoryError):
                self._check_mount()
                return None
            return Entry(key, about.st_size, about.st_mtime) if stat.S_ISREG(about.st_mode) else None

    def touch(self, key: str) -> bool:
        if self.entry(key) is None:
            return False
        with _translated_errors(self.root, key, writing=True):
            try:
                with folders.opened_parent(self.root, key) as folder:
                    os.utime(folders.name_of(key), dir_fd=folder, follow_symlinks=False)
            except (FileNotFoundError, NotADirectoryError):  # deleted between the two
                return False
        return True

    def entries(self, prefix: str, *, after: str = "", known: Callable[[str], bool] | None = None) -> Iterator[Entry]:
        check_prefix(prefix)
        return self._entries_below(prefix, after, known)

    def folders(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        with _translated_errors(self.root, prefix), contextlib.suppress(FileNotFoundError):
            if not prefix and not self.root.is_dir() and os.path.lexists(self.root):
                raise StoreUnreachableError(
                    "the store cannot be read", why=f"{self.root} is not a folder", next="move it out of the way"
                )
            with folders.opened(self.root, prefix) as folder, os.scandir(folder) as items:
                found = [item.name for item in items if item.is_dir(follow_symlinks=False)]
            yield from sorted(name for name in found if prefix or name not in HIDDEN)

    def delete(self, prefix: str) -> int:
        with _translated_errors(self.root, prefix):
            if prefix.endswith("/"):
                check_prefix(prefix)
                count = folders.remove(self.root, prefix)
                self._known_folders.pop(prefix.partition("/")[0], None)
            else:
                count = self._delete_one(prefix)
            if count:
                self._remove_empty_folders(prefix)
            return count

    def sweep(self, *, older_than_seconds: float = 86400.0) -> int:  # noqa: ARG002 - of the protocol
        """Delete nothing: half-written files of a folder belong to the local backend."""
        return 0

    def _entries_below(self, prefix: str, after: str, known: Callable[[str], bool] | None) -> Iterator[Entry]:
        with _translated_errors(self.root, prefix):
            for key, about in folders.walk(self.root, prefix, after, known):
                if stat.S_ISREG(about.st_mode) and (prefix or not is_hidden(key)):
                    yield Entry(key, about.st_size, about.st_mtime)

    def _delete_one(self, key: str) -> int:
        check_key(key)
        name = folders.name_of(key)
        try:
            with folders.opened_parent(self.root, key) as folder:
                try:
                    os.unlink(name, dir_fd=folder)
                except (IsADirectoryError, PermissionError):  # Linux says the first of a folder, macOS the second
                    if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                        raise
                    return 0
        except (FileNotFoundError, NotADirectoryError):
            return 0
        return 1

    def _remove_empty_folders(self, key: str) -> None:
        """Remove folders above a deleted key that are empty now: a listing must not name them."""
        folder = key.rstrip("/").rpartition("/")[0]
        while folder:
            try:
                with folders.opened_parent(self.root, folder) as above:
                    os.rmdir(folders.name_of(folder), dir_fd=above)
            except OSError:  # not empty, or gone already
                return
            self._known_folders.pop(key.partition("/")[0], None)
            folder = folder.rpartition("/")[0]

    def _write_beside(self, source: Source, *, forced: bool = True) -> str:
        """Write the bytes into a scratch file, forced to the disk."""
        path, descriptor = self._create_scratch_file()
        try:
            _write_all(descriptor, source)
            if forced:
                folders.sync_open(descriptor)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(path)  # hot path
            raise
        finally:
            os.close(descriptor)
        return path

    def _create_scratch_file(self) -> tuple[str, int]:
        path = f"{self.root}/{SCRATCH}/{os.getpid():x}-{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with folders.opened(self.root, SCRATCH) as folder:
                return path, os.open(folders.name_of(path), flags, 0o600, dir_fd=folder)
        except FileNotFoundError:
            self.scratch()
            return path, os.open(path, flags, 0o600)

    def _place(self, scratch: str, key: str, *, if_absent: bool) -> bool:
        """Put a complete scratch file, or an empty one for "", under its key; ``_sync_folders`` makes that durable.

        Its folder is made where it is missing, and again while others delete it.
        """
        inside, _, name = key.rpartition("/")
        make, left = None, _ATTEMPTS
        while True:
            try:
                with folders.opened(self.root, inside, make=make) as at:  # refused where a link leads out
                    return self._into_place(scratch, name, at, if_absent=if_absent)
            except FileNotFoundError:
                left -= 1
                if left < 0:
                    raise
            self._check_mount()
            if make is not None or not inside:  # then it is the root that is missing
                self._make_root()
                _forced_roots.discard(str(self.root))
                self._known_folders.pop("", None)
            make = folders.PRIVATE_FOLDER
            self._known_folders.pop(key.partition("/")[0], None)

    def _make_root(self) -> None:
        self._check_mount()
        folders.make(self.root)

    def _check_mount(self) -> None:
        """Refuse to make what is missing because the file system is away, and to say that it is missing.

        It would be hidden once that is back; and of a batch that is missing, jobs are ended.
        """
        if not os.path.ismount(self._mount):
            raise OSError(errno.ENODEV, "Not mounted any more", self._mount)

    def _into_place(self, scratch: str, name: str, at: int, *, if_absent: bool) -> bool:
        """Give a file its name in an open folder, which cannot be replaced by a link any more: rename replaces."""
        if not if_absent:
            os.replace(scratch, name, dst_dir_fd=at)  # hot path
            return True
        if scratch:
            return folders.name_once(scratch, name, at, self.scratch)
        try:
            os.close(os.open(name, _CREATE, folders.PRIVATE_FILE, dir_fd=at))
        except FileExistsError:
            return False
        return True

    def _sync_folders(self, *keys: str) -> None:
        """Force the names of objects to the disk, and those of the folders above: they must outlive a power cut, too.

        After the file is in its place, not before: while an empty folder waits for the disk, others may remove it.
        A folder that was there already may have been made a moment ago by a process that has not synced it yet.
        """
        pending: dict[str, None] = {}
        named: list[str] = []
        if len(self._known_folders) > _MOST_KNOWN:
            self._known_folders.clear()
        for key in keys:
            inside = key.rpartition("/")[0]
            pending[f"{self.root}/{inside}"] = None
            while inside not in self._known_folders.get(inside.partition("/")[0], ()):
                named.append(inside)
                if not inside:
                    pending[f"{self.root.parent}"] = None
                    break
                inside = inside.rpartition("/")[0]
                pending[f"{self.root}/{inside}"] = None
        with contextlib.suppress(FileNotFoundError):  # deleted again already, by another process
            _at_once(self, [partial(folders.sync, folder) for folder in pending])
            if named:
                folders.when_forced(partial(self._know, named))

    def _know(self, inside: Sequence[str]) -> None:
        for folder in inside:
            self._known_folders.setdefault(folder.partition("/")[0], set()).add(folder)
            if not folder:
                _forced_roots.add(str(self.root))


def _at_once(store: FileStore, tasks: Sequence[Callable[[], None]]) -> None:
    """Run what waits for the disk: a few on this thread, many on several."""
    if len(tasks) < _FEW:
        for task in tasks:
            task()
        return
    from kinetic._stores import parallel  # only for many objects

    for _ in parallel.in_parallel(store, tasks, limit=parallel.MAX_FILE_PARALLELISM):
        pass


def _write_all(descriptor: int, source: Source) -> None:
    if isinstance(source, bytes | bytearray | memoryview):
        folders.write_all(descriptor, source)
    elif isinstance(source, os.PathLike):
        with open(source, "rb", buffering=0) as file:  # no text layer
            while chunk := file.read(_CHUNK):
                folders.write_all(descriptor, chunk)
    else:
        for chunk in source:
            folders.write_all(descriptor, chunk)


class _translated_errors:  # noqa: N801 - reads as a statement; a class because contextlib's generators cost 2 us a call
    """Translate the file system's errors into ours."""

    def __init__(self, root: Path, key: str, *, writing: bool = False) -> None:
        self.root, self.key = root, key
        self.writing = writing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError) or isinstance(error, StoreError | OptionError) or error.errno == errno.EXDEV:
            return
        absent = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
        if absent and not self.writing:
            raise KeyMissingError(f"nothing is stored under {self.key!r}", why=str(error)) from error
        if error.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StoreError(
                "the disk that holds the store is full",
                why=f"writing {self.key!r}: {error}",
                next="free some space there, or point KINETIC_HOME at a larger disk",
                code="store-full",
            ) from error
        why, step = str(error), "check the folder's owner and permissions, or set KINETIC_HOME to another folder"
        if error.errno in _AWAY:
            step = "mount its file system again"
        if isinstance(error, PermissionError):
            owner = self._owner_of(SCRATCH if error.filename == SCRATCH else self.key)
            why = f"{why}: {owner}" if owner else why
            step = "name a folder of your own in KINETIC_STORE, or a bucket, which users can share" if owner else step
        raise StoreUnreachableError(f"the store refused {self.key!r}", why=why, next=step) from error

    def _owner_of(self, key: str) -> str:
        """Return whose the innermost existing part of a key's path is; "" for this user's own."""
        path, about = str(self.root), None
        with contextlib.suppress(OSError):
            about = os.stat(path)
            for part in key.split("/"):
                about = os.lstat(f"{path}/{part}")
                path = f"{path}/{part}"
        if about is None or about.st_uid == os.geteuid():
            return ""
        return f"{path} belongs to user {about.st_uid}, and you are user {os.geteuid()}"

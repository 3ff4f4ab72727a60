"""From the references of an order to paths in the job: first every path exists, then it is filled.

Data in a bucket is one object, or everything under a prefix.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from kinetic._blobs import fetch as blobs
from kinetic._runner.data import file_cache, mounted_data
from kinetic._runner.data.file_cache import Cache, hold_lock
from kinetic._runner.data.mounted_data import JobFolders, MountPoint
from kinetic._runner.data.transfer import Transfer
from kinetic._stores import Entry, Store, open_store
from kinetic._stores.parallel import in_parallel
from kinetic._wire import NamedTuple, digests, folders
from kinetic._wire.order import DataRef, is_output_page
from kinetic._wire.task import BUCKETS_FOLDER
from kinetic.errors import DataChangedError, DataError, DataMissingError, KeyMissingError, KineticError, StoreError

_NO_NAME = frozenset({"", ".", ".."})


def provide(refs: Sequence[DataRef], here: JobFolders) -> list[str]:
    """Bring everything that a job reads to this machine; return a path for each reference, in order.

    Equal references share one copy. Each volume appears at its mount path, to this process and its children only if
    the kernel supports that; so this must run before the job has threads.
    """
    return fill(place(refs, here), here)


def place(refs: Sequence[DataRef], here: JobFolders) -> list[MountPoint]:
    """Do the first half of ``provide``: every path exists, and nothing is in it."""
    with _translated_disk_errors():
        folders.make(here.folder)
        folders.make(here.cache)
        mounts = _mount_points(as_mounted(refs), here.folder)
        mounted_data.place_mounts(mounts, here)
    return mounts


def as_mounted(refs: Sequence[DataRef], folder: str = BUCKETS_FOLDER) -> list[DataRef]:
    """Turn data that the cluster has mounted for this pod, below ``folder``, into views: it is shown, not copied."""
    found = []
    for number, ref in enumerate(refs):
        here = os.path.join(folder, str(number))
        if ref.fuse and ref.kind in {"object", "prefix"} and os.path.isdir(here):
            ref = replace(ref, kind="view", uri=here if ref.is_dir else os.path.join(here, ref.name))  # noqa: PLW2901
        found.append(ref)
    return found


def fill(mounts: Sequence[MountPoint], here: JobFolders) -> list[str]:
    """Do the second half of ``provide``; return the path of each reference."""
    with _translated_disk_errors():
        kept = Cache(here.cache)
        for path in dict.fromkeys(each.path for each in mounts):
            same = [each for each in mounts if each.path == path]
            if not all(each.is_elsewhere for each in same):
                _fill(same[0], kept, here)
        mounted_data.share_links()
    return [each.shown for each in mounts]


def _mount_points(refs: Sequence[DataRef], folder: Path) -> list[MountPoint]:
    """Give each reference its path; equal ones have the same."""
    first: dict[DataRef, Path] = {}
    found = []
    for number, ref in enumerate(refs):
        same = replace(ref, mount="", path="")
        name = ref.name if ref.name not in _NO_NAME and "/" not in ref.name else "data"
        path = first.setdefault(same, folder / str(number) / name)
        found.append(MountPoint(ref, path.parent, path))
    return found


def _fill(mount: MountPoint, kept: Cache, here: JobFolders) -> None:
    ref = mount.ref
    if ref.kind == "view":  # the user's own files: mounting them was all
        return
    if ref.kind == "shipped":
        file_cache.fetch_shipped(ref, mount.path, kept, here.folder)
        return

    def fetch(path: Path) -> None:
        if ref.kind == "object":
            _fetch_object(ref, path)
        elif ref.kind == "prefix":
            _fetch_prefix(ref, path)
        else:
            from kinetic._runner.data import hugging_face  # 5 ms, subprocess among them

            hugging_face.fetch_data_set(ref, path, kept, here)

    if here.shared is None:
        fetch(mount.path)
    else:
        _fetch_once_for_all_hosts(fetch, mount, here.shared, here.folder)


def _fetch_once_for_all_hosts(fetch: Callable[[Path], object], mount: MountPoint, shared: Path, folder: Path) -> None:
    """Fetch what cannot be kept for other jobs once for the hosts of a slice, and give this host a copy of its own."""
    folders.make(shared)
    name = digests.of_bytes(repr(replace(mount.ref, mount="", path="")).encode())
    with hold_lock(shared / f"{name}.lock"):
        if not (shared / name).exists():
            part = shared / f"{name}-{os.getpid():x}"
            (part / mount.path.name if mount.ref.is_dir else part).mkdir(parents=True)
            fetch(part / mount.path.name)
            for inside, _, names in os.walk(part):  # read-only: hosts may get links to the files
                for each in names:
                    with contextlib.suppress(FileNotFoundError):
                        path = os.path.join(inside, each)
                        os.chmod(path, stat.S_IMODE(os.lstat(path).st_mode) & 0o555)
            part.replace(shared / name)
    way = file_cache.choose_way(shared, folder, writable=mount.ref.writable)
    file_cache.copy_tree(shared / name / mount.path.name, mount.path, way=way)


@contextlib.contextmanager
def _translated_disk_errors() -> Iterator[None]:
    try:
        yield
    except (StoreError, OSError) as error:
        is_full = error.code == "store-full" if isinstance(error, KineticError) else error.errno in blobs.DISK_FULL
        if is_full:
            raise StoreError(
                "the disk that holds running jobs is full: there is no room for the data of this job",
                why=str(getattr(error, "why", None) or error),
                next="free some space there, or point KINETIC_RUNTIME_DIR at a larger disk",
                code="workspace-full",
            ) from error
        if isinstance(error, KineticError):
            raise
        raise DataError(
            "the data of this job could not be written on this machine",
            why=str(error),
            next="check the permissions of the folder that is named",
        ) from error


# ------------------------------------------------------------------------------------------------------------- buckets


class Address(NamedTuple):
    """A place in a bucket: the store to open, and a key or prefix in it."""

    store: str
    key: str


def split_address(uri: str, *, is_dir: bool) -> Address:
    """Take an address apart.

    ``gs://bucket/a/b`` is the key ``a/b`` of ``gs://bucket``; as a folder, the prefix ``a/b/``. The root of a bucket
    is the empty prefix. An address without a bucket, as ``file:///folder/name``, is a key of its folder.
    """
    scheme, _, rest = uri.partition("://")
    if rest.startswith("/"):
        above, _, key = rest.rstrip("/").rpartition("/")
        return Address(f"{scheme}://{rest.rstrip('/') or '/'}", "") if is_dir else Address(f"{scheme}://{above}", key)
    bucket, _, key = rest.partition("/")
    if is_dir and key and not key.endswith("/"):
        key += "/"
    return Address(f"{scheme}://{bucket}", key)


def _fetch_object(ref: DataRef, path: Path) -> None:
    address = split_address(ref.uri, is_dir=False)
    store = open_store(address.store)
    entry = store.entry(address.key)
    if entry is None:
        hint = "check the spelling, and that it is in this bucket"
        if next(iter(store.entries(f"{address.key}/")), None) is not None:
            folder = ref.path.rstrip("/") + "/"
            hint = f"there are objects below it: for all of them, end it with a slash: kinetic.Data({folder!r})"
        raise DataMissingError(f"there is no object {ref.uri}", next=hint)
    transfer = Transfer(ref.uri, entry.size)
    _fetch_entry(store, entry, path, ref, transfer)
    transfer.end()


def _fetch_prefix(ref: DataRef, path: Path) -> None:
    """Fetch everything under a prefix into a folder; a misspelt prefix must not look like an empty folder."""
    address = split_address(ref.uri, is_dir=True)
    store = open_store(address.store)
    found, transfer = 0, Transfer(ref.uri)

    def tasks() -> Iterator[Callable[[], object]]:
        nonlocal found
        for entry in store.entries(address.key):
            if is_output_page(entry.key):
                continue
            found += 1
            target = path / _relative_path(entry.key.removeprefix(address.key), ref)
            if entry.key.endswith("/") or entry.key == address.key:
                _make_folder(target, ref)
            else:
                _make_folder(target.parent, ref)
                yield functools.partial(_fetch_entry, store, entry, target, ref, transfer)

    for _ in in_parallel(store, tasks()):
        pass
    if not found:
        raise DataMissingError(
            f"there is nothing under {ref.uri}",
            why="a prefix exists only as long as there is an object below it",
            next="check the spelling; a single object has no '/' at its end",
        )
    transfer.end()


def _fetch_entry(store: Store, entry: Entry, target: Path, ref: DataRef, transfer: Transfer) -> None:
    try:
        store.fetch(entry.key, target, transfer.received)
        got = target.stat().st_size
    except KeyMissingError as error:
        raise DataChangedError(f"{entry.key!r} was deleted while {ref.uri} was being fetched") from error
    except Exception as error:
        if target.is_dir():
            raise _file_and_folder(ref, entry.key) from error
        raise
    if got != entry.size:
        raise DataChangedError(
            f"{entry.key!r} changed while {ref.uri} was being fetched",
            why=f"{got} bytes came, the listing said {entry.size}",
            next="submit the job again when nothing writes there",
        )


def _make_folder(folder: Path, ref: DataRef) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise _file_and_folder(ref, folder.name) from error


def _file_and_folder(ref: DataRef, name: str) -> DataError:
    return DataError(
        f"{ref.uri} cannot become a folder",
        why=f"{name!r} is an object, and there are other objects below it",
        next="rename one of them",
    )


def _relative_path(key: str, ref: DataRef) -> str:
    """Return the path of a key below its prefix; refuse one that would lead elsewhere."""
    inside = key.removesuffix("/")
    if (inside and not _NO_NAME.isdisjoint(inside.split("/"))) or "\0" in inside:
        raise DataError(
            f"{ref.uri} cannot become a folder",
            why=f"the key {key!r} is not a path inside it",
            next="rename that object, or use a longer prefix without it",
        )
    return inside

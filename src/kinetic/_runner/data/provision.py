"""From the references of an order to paths in the job: placed first, then filled."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from kinetic._runner.data import download_data, file_cache, mounted_data, shipped_data
from kinetic._runner.data.file_cache import Cache, hold_lock
from kinetic._runner.data.mounted_data import MountPoint
from kinetic._stores import Entry, Store, open_store
from kinetic._stores.parallel import in_parallel
from kinetic._wire import digests, folders
from kinetic._wire.order import DataRef
from kinetic._wire.task import BUCKETS_FOLDER
from kinetic.errors import DataChangedError, DataError, DataMissingError, KeyMissingError

_NO_NAME = frozenset({"", ".", ".."})


class Address(NamedTuple):
    """A place in a bucket: the store to open, and a key or prefix in it."""

    store: str
    key: str


def split_address(uri: str, *, is_dir: bool) -> Address:
    """Take an address apart.

    ``gs://bucket/a/b`` is the key ``a/b`` of ``gs://bucket``; as a folder, the prefix ``a/b/``. The root of a bucket
    is the empty prefix. An address without a bucket, as ``file:///folder/name``, is a key of the folder it lies in.
    """
    scheme, _, rest = uri.partition("://")
    if rest.startswith("/"):
        above, _, key = rest.rstrip("/").rpartition("/")
        return Address(f"{scheme}://{rest.rstrip('/') or '/'}", "") if is_dir else Address(f"{scheme}://{above}", key)
    bucket, _, key = rest.partition("/")
    if is_dir and key and not key.endswith("/"):
        key += "/"
    return Address(f"{scheme}://{bucket}", key)


def fetch_object(ref: DataRef, path: Path) -> None:
    """Fetch one object into a file.

    Raises:
        DataMissingError: There is no such object.
        DataChangedError: It was replaced while it was being fetched.
    """
    address = split_address(ref.uri, is_dir=False)
    store = open_store(address.store)
    entry = store.entry(address.key)
    if entry is None:
        raise DataMissingError(f"there is no object {ref.uri}", next=_folder_hint(store, ref, address))
    _fetch_entry(store, entry, path, ref)


def fetch_prefix(ref: DataRef, path: Path) -> None:
    """Fetch everything under a prefix into a folder, which exists.

    Raises:
        DataMissingError: Nothing lies there: a misspelt prefix must not look like an empty folder.
        DataError: A key cannot be a path inside the folder.
    """
    address = split_address(ref.uri, is_dir=True)
    store = open_store(address.store)
    found = 0

    def tasks() -> Iterator[Callable[[], object]]:
        nonlocal found
        for entry in store.entries(address.key):
            found += 1
            target = path / _inside(entry.key.removeprefix(address.key), ref)
            if entry.key.endswith("/") or entry.key == address.key:
                _make_folder(target, ref)
            else:
                _make_folder(target.parent, ref)
                yield functools.partial(_fetch_entry, store, entry, target, ref)

    for _ in in_parallel(store, tasks()):
        pass
    if not found:
        raise DataMissingError(
            f"nothing lies under {ref.uri}",
            why="a prefix exists only as long as an object lies below it",
            next="look at the spelling; a single object has no '/' at its end",
        )


def _fetch_entry(store: Store, entry: Entry, target: Path, ref: DataRef) -> None:
    try:
        store.fetch(entry.key, target)
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
            next="submit the job again when nobody writes there",
        )


def _make_folder(folder: Path, ref: DataRef) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise _file_and_folder(ref, folder.name) from error


def _file_and_folder(ref: DataRef, name: str) -> DataError:
    return DataError(
        f"{ref.uri} cannot become a folder",
        why=f"{name!r} is an object, and other objects lie below it",
        next="rename one of them",
    )


def _inside(relative: str, ref: DataRef) -> str:
    """Return the path of a key below its prefix; refuse one that would lead elsewhere."""
    inside = relative.removesuffix("/")
    if (inside and not _NO_NAME.isdisjoint(inside.split("/"))) or "\0" in inside:
        raise DataError(
            f"{ref.uri} cannot become a folder",
            why=f"the key {relative!r} is no path inside it",
            next="rename that object, or name a longer prefix without it",
        )
    return inside


def _folder_hint(store: Store, ref: DataRef, address: Address) -> str:
    if next(iter(store.entries(f"{address.key}/")), None) is not None:
        return (
            f"objects lie below it: for all of them, end it with a slash: kinetic.Data({ref.path.rstrip('/') + '/'!r})"
        )
    return "look at the spelling, and that it is in this bucket"


def provide(
    refs: Sequence[DataRef],
    *,
    folder: Path,
    cache: Path,
    environ: Mapping[str, str],
    shared: Path | None = None,
    workspace: Path | None = None,
    function: str = "",
) -> list[str]:
    """Bring everything that a job reads to this machine, and say where it lies.

    Equal references share one copy. Each volume appears at its mount path, to this process and its children only
    where the kernel can do that; so this must run before the job has threads.

    Args:
        refs: From the order.
        folder: A new folder of this job's own, on the disk of the cache, which goes when the job is over.
        cache: What this machine keeps.
        environ: The job's environment.
        shared: A folder that the hosts of an emulated slice have in common; None for one host.
        workspace: The user's project, which libraries that load data must not see.
        function: The name of the user's function, for messages.

    Returns:
        A path for each reference, in order: of the file, or of the folder.

    Raises:
        DataError: Something does not exist, or cannot be where it shall be.
        IntegrityError: Bytes are not what was promised.
        StoreError: The disk is full, or a store is out of reach.
    """
    spots = place(refs, folder=folder, cache=cache, environ=environ, workspace=workspace, function=function)
    return fill(spots, folder=folder, cache=cache, shared=shared, workspace=workspace)


def place(
    refs: Sequence[DataRef],
    *,
    folder: Path,
    cache: Path,
    environ: Mapping[str, str],
    workspace: Path | None = None,
    function: str = "",
) -> list[MountPoint]:
    """Do the first half of ``provide``: everything stands at its path, and nothing is in it."""
    with file_cache.translated_disk_errors("the data of this job"):
        folders.make(folder)
        folders.make(cache)
        spots = _spots(as_mounted(refs), folder)
        mounted_data.place_mounts(
            spots, folder=folder, cache=cache, environ=environ, workspace=workspace or Path.cwd(), function=function
        )
    return spots


def as_mounted(refs: Sequence[DataRef], folder: str = BUCKETS_FOLDER) -> list[DataRef]:
    """Say of data that the cluster has mounted for this pod where that is: it is shown, not copied.

    Args:
        refs: From the order.
        folder: Below which the cluster mounts buckets, each under the number of its reference.
    """
    found = []
    for number, ref in enumerate(refs):
        here = os.path.join(folder, str(number))
        if ref.fuse and ref.kind in {"object", "prefix"} and os.path.isdir(here):
            ref = replace(ref, kind="view", uri=here if ref.is_dir else os.path.join(here, ref.name))  # noqa: PLW2901
        found.append(ref)
    return found


def fill(
    spots: Sequence[MountPoint], *, folder: Path, cache: Path, shared: Path | None = None, workspace: Path | None = None
) -> list[str]:
    """Do the second half of ``provide``; return the path of each reference."""
    with file_cache.translated_disk_errors("the data of this job"):
        kept = Cache(cache)
        for path in dict.fromkeys(spot.path for spot in spots):
            same = [spot for spot in spots if spot.path == path]
            if not all(spot.is_elsewhere for spot in same):
                _fill(same[0], kept, folder, shared, workspace)
        mounted_data.share_links()
    return [spot.shown for spot in spots]


def _spots(refs: Sequence[DataRef], folder: Path) -> list[MountPoint]:
    """Give each reference its place; equal ones have the same."""
    first: dict[DataRef, Path] = {}
    spots = []
    for number, ref in enumerate(refs):
        same = replace(ref, mount="", path="")
        name = ref.name if ref.name not in {"", ".", ".."} and "/" not in ref.name else "data"
        path = first.setdefault(same, folder / str(number) / name)
        spots.append(MountPoint(ref, path.parent, path))
    return spots


def _fill(spot: MountPoint, kept: Cache, folder: Path, shared: Path | None, workspace: Path | None) -> None:
    ref = spot.ref
    if ref.kind == "view":  # the user's own files: placing it was all
        return
    if ref.kind == "shipped":
        shipped_data.fetch_shipped(ref, spot.path, kept, folder)
        return
    fetch: Callable[[Path], object]
    if ref.kind == "object":
        fetch = functools.partial(fetch_object, ref)
    elif ref.kind == "prefix":
        fetch = functools.partial(fetch_prefix, ref)
    else:
        fetch = functools.partial(_load, ref, kept, folder, workspace)
    if shared is None:
        fetch(spot.path)
    else:
        _once_for_all_hosts(fetch, spot, shared, folder)


def _load(ref: DataRef, kept: Cache, folder: Path, workspace: Path | None, path: Path) -> None:
    from kinetic._runner.data import hugging_face  # 5 ms, subprocess among them

    hugging_face.fetch_data_set(ref, path, kept, folder, workspace)


def _once_for_all_hosts(fetch: Callable[[Path], object], spot: MountPoint, shared: Path, folder: Path) -> None:
    """Fetch what cannot be kept for other jobs once for the hosts of a slice, and give this host a copy of its own."""
    folders.make(shared)
    name = digests.of_bytes(repr(replace(spot.ref, mount="", path="")).encode())
    with hold_lock(shared / f"{name}.lock"):
        if not (shared / name).exists():
            part = shared / f"{name}-{os.getpid():x}"
            (part / spot.path.name if spot.ref.is_dir else part).mkdir(parents=True)
            fetch(part / spot.path.name)
            _protect(part)
            part.replace(shared / name)
    way = download_data.choose_way(shared, folder, writable=spot.ref.writable)
    download_data.copy_tree(shared / name / spot.path.name, spot.path, way=way)


def _protect(top: Path) -> None:
    """Make the files of a tree read-only: hosts may get links to them."""
    for folder, _, names in os.walk(top):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                path = os.path.join(folder, name)
                os.chmod(path, stat.S_IMODE(os.lstat(path).st_mode) & 0o555)

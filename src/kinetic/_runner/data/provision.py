"""From the references of an order to paths in the job: placed first, then filled."""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kinetic._runner.data import bucket_data, download_data, job_messages, mount_links, mounted_data, shipped_data
from kinetic._runner.data.file_cache import Cache, hold_lock
from kinetic._runner.data.mounted_data import MountPoint
from kinetic._wire import digests, folders
from kinetic._wire.order import DataRef
from kinetic._wire.task import BUCKETS_FOLDER


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
    with job_messages.translated_disk_errors("the data of this job"):
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
    with job_messages.translated_disk_errors("the data of this job"):
        kept = Cache(cache)
        for path in dict.fromkeys(spot.path for spot in spots):
            same = [spot for spot in spots if spot.path == path]
            if not all(spot.is_elsewhere for spot in same):
                _fill(same[0], kept, folder, shared, workspace)
        mount_links.ready()
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
        shipped_data.bring_shipped(ref, spot.path, kept, folder)
        return
    fetch: Callable[[Path], object]
    if ref.kind == "object":
        fetch = functools.partial(bucket_data.bring_object, ref)
    elif ref.kind == "prefix":
        fetch = functools.partial(bucket_data.bring_prefix, ref)
    else:
        fetch = functools.partial(_load, ref, kept, folder, workspace)
    if shared is None:
        fetch(spot.path)
    else:
        _once_for_all_hosts(fetch, spot, shared, folder)


def _load(ref: DataRef, kept: Cache, folder: Path, workspace: Path | None, path: Path) -> None:
    from kinetic._runner.data import hugging_face  # 5 ms, subprocess among them

    hugging_face.bring(ref, path, kept, folder, workspace)


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

"""Data that the client shipped: a manifest and blobs in the store, kept on this machine, copied for this job.

If a job needs a real copy anyway, and the store is on the same disk, the copy is made from the store directly: keeping
it as well would only write everything twice. The store's own files are never linked, because a job that owns them could
change their mode, and then their bytes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from kinetic._blobs import fetch as blobs
from kinetic._runner.data import download_data, mounted_data
from kinetic._runner.data.file_cache import Cache, Stamp, mode_of, stamp_of, verify_kept
from kinetic._stores import Store, open_store
from kinetic._stores.parallel import in_parallel
from kinetic._wire import keys
from kinetic._wire.order import DataRef, Manifest, ManifestFile
from kinetic.errors import DataMissingError, IntegrityError, KeyMissingError

LINKED_PAGE = "linked"  # in a job's folder: the manifests to whose files it has links


def fetch_shipped(ref: DataRef, path: Path, cache: Cache, home: Path) -> None:
    """Fetch shipped data to a path in ``home``, the job's folder for data; the folder above it exists."""
    store = open_store(ref.uri)
    manifest = _manifest(store, ref, cache)
    way = download_data.choose_way(cache.parts, home, writable=ref.writable)
    if way == "copy" and _is_on_same_disk(store, home):
        _copy_from_store(store, manifest, path, home)
    else:
        fetch = functools.partial(_fetch, store, destination=destination_of(cache))
        copy_kept(cache, manifest, ref.manifest, path, home, way, fetch)


def copy_kept(
    cache: Cache,
    manifest: Manifest,
    name: str,
    path: Path,
    home: Path,
    way: download_data.Way,
    fetch: Callable[[list[ManifestFile]], object],
) -> None:
    """Give a job its copy of what a manifest, with the digest ``name``, describes.

    First make sure that all of it is kept and right: ``fetch`` gets the files that are missing into the cache.
    """

    def give_all() -> None:
        for file in manifest.files:
            target = _place_of(manifest, file, path)
            download_data.copy_file(cache.path(file), target, way=way, executable=file.executable)

    with cache.lock(name):
        stamps = _right_ones(cache, manifest, name)
        missing = [file for file in manifest.files if file.digest not in stamps]
        if missing:
            fetch(missing)
            stamps |= {file.digest: stamp for file in missing if (stamp := stamp_of(cache.path(file)))}
        cache.note(name, manifest.files, stamps)
        _make_folders(manifest, path)
        if way == "link":
            with open(home / LINKED_PAGE, "a", encoding="ascii") as page:  # first: whoever removes them must know
                page.write(f"{name}\n")
            give_all()
            cache.note(name, manifest.files, {**stamps, **_relinked(cache, manifest, stamps)})
    if way != "link":  # outside of the lock: others may copy at the same time
        give_all()


def _relinked(cache: Cache, manifest: Manifest, before: dict[str, Stamp]) -> dict[str, Stamp]:
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
    """Return the path of a file of a tree in the job; a single file is the path itself."""
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


def _fetch(store: Store, files: Sequence[ManifestFile], destination: blobs.Destination) -> None:
    try:
        blobs.fetch_files(store, files, destination)
    except KeyMissingError as error:
        raise DataMissingError(
            "data of this job is not in the store anymore",
            why=error.why or str(error.what),
            next="submit the job again: missing files are sent again",
        ) from error


def destination_of(cache: Cache) -> blobs.Destination:
    """Return where the cache keeps its files."""

    def path(file: ManifestFile) -> str:
        found = cache.path(file)
        os.makedirs(os.path.dirname(found), mode=0o700, exist_ok=True)
        return found

    return blobs.Destination(path, mode_of, cache.parts)


def _copy_from_store(store: Store, manifest: Manifest, path: Path, home: Path) -> None:
    """Write a job's copy from the store's own blobs."""
    parts = home / ".parts"
    parts.mkdir(mode=0o700, exist_ok=True)
    _make_folders(manifest, path)
    mask = os.umask(0)
    os.umask(mask)
    destination = blobs.Destination(
        lambda file: _place_of(manifest, file, path),
        lambda file: (0o777 if file.executable else 0o666) & ~mask,
        parts,
    )
    _fetch(store, manifest.files, destination)


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
            next="submit the job again: it is sent anew",
        ) from error
    manifest = Manifest.from_bytes(data, sha256=ref.manifest)
    if manifest.hash != ref.hash or manifest.is_dir != ref.is_dir or (not ref.is_dir and len(manifest.files) != 1):
        raise IntegrityError(f"the manifest of {ref.path!r} describes other data", why="hash or kind differ")
    cache.keep_page(ref.manifest, data)
    return manifest


def release(folder: Path, cache: Path) -> None:
    """Remove a job's folder for data, and its links; never fails: what stays is swept.

    Removing a hard link changes the ctime of the kept file. So that it need not be read again for that, the stamps of
    files that were right before are noted anew.
    """
    with contextlib.suppress(OSError):
        if not folder.is_dir():
            return
        mounted_data.remove_links(folder, cache)
        with contextlib.ExitStack() as locked:
            before = []
            for name in _linked(folder):
                kept = Cache(cache)
                if locked.enter_context(kept.lock(name, patient=False)) and (manifest := kept.manifest(name)):
                    known = kept.seen(name)
                    now = {file.digest: stamp_of(kept.path(file)) for file in manifest.files}
                    right = {digest: stamp for digest, stamp in known.items() if now.get(digest) == stamp}
                    before.append((kept, name, manifest, right))
            shutil.rmtree(folder, ignore_errors=True)
            for kept, name, manifest, right in before:
                kept.note(name, manifest.files, _relinked(kept, manifest, right))
    shutil.rmtree(folder, ignore_errors=True)


def _linked(folder: Path) -> list[str]:
    try:
        return sorted(set((folder / LINKED_PAGE).read_text().split()))
    except OSError:
        return []

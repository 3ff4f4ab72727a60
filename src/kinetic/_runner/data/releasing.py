"""Taking a job's data away when the job is over, by whoever kept the job, or by whoever finds that nobody did."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import NamedTuple

from kinetic._runner.data import links, shipped
from kinetic._runner.data.cache import Cache, Stamp, stamp_of
from kinetic._wire.manifests import Manifest


def release(folder: Path, cache: Path) -> None:
    """Remove a job's folder for data, and its links; never fails: what stays is swept.

    Removing a hard link changes the ctime of the kept file. So that nobody has to read it again for that, files that
    were right before are noted anew.
    """
    with contextlib.suppress(OSError):
        if not folder.is_dir():
            return
        links.remove(folder, cache)
        with contextlib.ExitStack() as locked:
            names = _linked(folder)
            kept = Cache(cache) if names else None
            free = [name for name in names if kept and locked.enter_context(kept.lock(name, patient=False))]
            before = [_right_ones(kept, name) for name in free if kept]
            shutil.rmtree(folder, ignore_errors=True)
            for seen in filter(None, before):
                _note(seen)
    shutil.rmtree(folder, ignore_errors=True)


class _Seen(NamedTuple):
    """Files of a manifest that looked as they were noted, before the links went."""

    cache: Cache
    name: str
    manifest: Manifest
    stamps: dict[str, Stamp]


def _linked(folder: Path) -> list[str]:
    try:
        return sorted(set((folder / shipped.LINKED).read_text().split()))
    except OSError:
        return []


def _right_ones(cache: Cache, name: str) -> _Seen | None:
    manifest, known = cache.manifest(name), cache.seen(name)
    if manifest is None:
        return None
    now = {file.digest: stamp_of(cache.path(file)) for file in manifest.files if file.digest in known}
    right = {digest: stamp for digest, stamp in now.items() if stamp is not None and stamp == known[digest]}
    return _Seen(cache, name, manifest, right)


def _note(seen: _Seen) -> None:
    stamps = {}
    for file in seen.manifest.files:
        before, now = seen.stamps.get(file.digest), stamp_of(seen.cache.path(file))
        if before is not None and now is not None and now._replace(ctime=before.ctime) == before:
            stamps[file.digest] = now
    seen.cache.note(seen.name, seen.manifest.files, stamps)

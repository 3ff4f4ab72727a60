"""What the last ship knew: digests of unchanged files, and which packs of which store hold what.

One page and one file of digests for each project, and beside them the index of each pack, under the digest that is its
name. The digests are read only where something changed: the page says how the project looked when it last went to a
store.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kinetic._blobs import cache as caches
from kinetic._blobs.scan import Scan
from kinetic._wire import folders, trees

_UNUSED_SECONDS = 90 * 24 * 3600


@dataclass
class StoreMemory:
    """What one store holds of a project: the packs with their sizes, and the tree that went there last.

    Attributes:
        packs: Their sizes by their ids.
        tree: The digest of the tree's top node, or "".
        tree_packs: The packs that hold it.
        looks: How the project looked, if every stamp could be trusted, else "".
        files: How many files the tree holds.
        bytes: What they hold.
    """

    packs: dict[str, int] = field(default_factory=dict)
    tree: str = ""
    tree_packs: tuple[str, ...] = ()
    looks: str = ""
    files: int = 0
    bytes: int = 0


class Memory:
    """The memory of one project in one cache folder.

    Args:
        cache: The folder.
        root: The project's.
        stamps: Those of all files that are there now.
    """

    def __init__(self, cache: str, root: str, stamps: Sequence[str]) -> None:
        self._folder = cache
        self._path = f"{cache}/{caches.name_of(root)}"
        self._root = root
        self._stamps = stamps
        self._learned: dict[str, bytes] = {}
        self._learned_bytes = 0
        self._stores = self._load()

    def store(self, url: str) -> StoreMemory:
        """Return what is known of a store."""
        about = self._stores.get(url)
        return StoreMemory() if about is None else StoreMemory(**{**about, "tree_packs": tuple(about["tree_packs"])})

    @functools.cached_property
    def digests(self) -> dict[str, bytes]:
        """The digests of files by their stamps."""
        return self._file.each()

    @functools.cached_property
    def _file(self) -> caches.Digests:
        return caches.Digests(f"{self._path}.stamps", self._root, self._stamps)

    def learn(self, stamp: str, size: int, digest: bytes) -> None:
        """Remember the digest of a file that was settled when it was read."""
        self._learned[stamp] = digest
        self._learned_bytes += size

    def trusts_all(self) -> bool:
        """Return whether every digest behind a stamp is known, so that equal stamps mean equal content."""
        return all(stamp in self._learned or stamp in self.digests for stamp in self._stamps)

    def is_worth_keeping(self) -> bool:
        """Return whether reading again what was learned would cost more than writing it down."""
        return len(self._learned) > 200 or self._learned_bytes > 4 << 20

    def write(self, url: str, about: StoreMemory, indexes: Mapping[str, bytes]) -> None:
        """Write the page, and the index of each new pack; a cache that cannot be written is no error."""
        before = self._stores.get(url, {}).get("packs", {})
        self._stores[url] = asdict(about)
        with contextlib.suppress(OSError):
            for pack, index in indexes.items():
                folders.write_whole(f"{self._folder}/packs/{pack}", index)
        caches.write_page(f"{self._path}.json", {"root": self._root, "stores": self._stores})
        with contextlib.suppress(OSError):
            self._sweep(set(before) - {pack for store in self._stores.values() for pack in store["packs"]})

    def write_digests(self) -> None:
        """Write down the digests of files that are there now; others are forgotten."""
        known = {
            stamp: digest for stamp in self._stamps if (digest := self._learned.get(stamp, self.digests.get(stamp)))
        }
        self._file.write([*known], [*known.values()])

    def index(self, pack: str) -> list[trees.Blob] | None:
        """Return what a pack holds, or None when its index is not here or is damaged."""
        try:
            with open(f"{self._folder}/packs/{pack}", "rb") as file:
                data = file.read()
        except OSError:
            return None
        return trees.read_index(data) if hashlib.sha256(data).hexdigest() == pack else None

    def _sweep(self, packs: Iterable[str]) -> None:
        """Remove the indexes of packs that are not used any more, and pages of projects that nobody ships."""
        for pack in packs:
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/packs/{pack}")
        oldest = time.time() - _UNUSED_SECONDS
        for folder in (self._folder, f"{self._folder}/packs"):
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime < oldest:
                        os.unlink(entry.path)

    def _load(self) -> dict[str, dict[str, Any]]:
        page = caches.read_page(f"{self._path}.json")
        try:
            stores: dict[str, dict[str, Any]] = page["stores"]
            if page["root"] == self._root and all(map(_is_sound, stores.values())):
                return stores
        except (KeyError, TypeError, AttributeError):
            pass
        return {}


def _is_sound(about: dict[str, Any]) -> bool:
    kinds = {"packs": dict, "tree": str, "tree_packs": list, "looks": str, "files": int, "bytes": int}
    return about.keys() == kinds.keys() and all(isinstance(about[name], kind) for name, kind in kinds.items())


def looks_of(found: Scan) -> str:
    """Return the digest of every folder's path and every file's path and stamp.

    Where it is what it was when a tree was sent, neither the digests of all files nor the tree have to be computed.
    """
    lines = []
    for folder in found.folders:
        lines.append(folder.relative)
        lines += [f"{file.relative}\t{file.stamp}" for file in folder.files]
    return hashlib.sha256(os.fsencode("\0".join(lines))).hexdigest()

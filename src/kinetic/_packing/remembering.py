"""What the last ship knew: digests of unchanged files, and which packs of which store hold what.

A cache and nothing more: whatever is missing, foreign or damaged in it is found out again. One page per project,
and beside it the index of each pack, under the digest that is its name.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kinetic._wire import folders, trees

VERSION = 1
# A file that changed this shortly before it was read may change again without another time stamp. Linux stamps every
# 1 to 10 ms; a time in whole seconds shows a file system that stamps every second, or every other one.
_RACY_NS = 20_000_000
_RACY_COARSE_NS = 2_000_000_000
_UNUSED_SECONDS = 90 * 24 * 3600


@dataclass
class StoreMemory:
    """What one store holds of a project: the packs with their sizes, and the tree that went there last."""

    packs: dict[str, int] = field(default_factory=dict)
    tree: str = ""
    tree_packs: tuple[str, ...] = ()


class Memory:
    """The memory of one project in one cache folder; it is read at once and written when asked."""

    def __init__(self, cache: str, root: str) -> None:
        name = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
        self._folder = cache
        self._path = f"{cache}/{name}.json"
        self._root = root
        self._learned: dict[str, str] = {}
        self._learned_bytes = 0
        page = self._load()
        self.digests: dict[str, str] = page.get("digests", {})
        self._stores: dict[str, dict[str, Any]] = page.get("stores", {})

    def store(self, url: str) -> StoreMemory:
        """Return what is known of a store."""
        about = self._stores.get(url, {})
        return StoreMemory(dict(about.get("packs", {})), about.get("tree", ""), tuple(about.get("tree_packs", ())))

    def learn(self, stamp: str, changed: int, read_at: int, size: int, digest: str) -> None:
        """Remember the digest of a file, unless it changed too shortly before it was read (both in nanoseconds)."""
        coarse = changed % 1_000_000_000 == 0
        if changed < read_at - (_RACY_COARSE_NS if coarse else _RACY_NS):
            self._learned[stamp] = digest
            self._learned_bytes += size

    def trusts(self, stamp: str) -> bool:
        """Say whether the digest behind a stamp is known, so that an equal stamp means equal content."""
        return stamp in self._learned or stamp in self.digests

    def is_worth_keeping(self) -> bool:
        """Say whether reading again what was learned would cost more than writing it down."""
        return len(self._learned) > 200 or self._learned_bytes > 4 << 20

    def write(self, url: str, about: StoreMemory, stamps: Iterable[str], indexes: Mapping[str, bytes]) -> None:
        """Write everything down; a cache that cannot be written is no error.

        Args:
            url: The store that was shipped to.
            about: What is known of it now.
            stamps: The files that are there now; others are forgotten.
            indexes: The index of each new pack.
        """
        before = self._stores.get(url, {}).get("packs", {})
        digests = {stamp: digest for stamp in stamps if (digest := self._learned.get(stamp) or self.digests.get(stamp))}
        self._stores[url] = {"packs": about.packs, "tree": about.tree, "tree_packs": about.tree_packs}
        page = {"kinetic-cache": VERSION, "root": self._root, "stores": self._stores, "digests": digests}
        with contextlib.suppress(OSError):
            for pack, index in indexes.items():
                folders.write_whole(f"{self._folder}/packs/{pack}", index)
            folders.write_whole(self._path, json.dumps(page, separators=(",", ":")).encode())
            self._sweep(set(before) - {pack for store in self._stores.values() for pack in store["packs"]})

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
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime < oldest:
                        os.unlink(entry.path)

    def _load(self) -> dict[str, Any]:
        try:
            with open(self._path, "rb") as file:
                page = json.loads(file.read())
            if page["kinetic-cache"] == VERSION and page["root"] == self._root and _is_sound(page):
                return dict(page)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        return {}


def _is_sound(page: dict[str, Any]) -> bool:
    digests, stores = page["digests"], page["stores"]
    if not (isinstance(digests, dict) and isinstance(stores, dict)):
        return False
    return set(map(len, digests.values())) <= {64} and all(
        isinstance(about["packs"], dict) and isinstance(about["tree"], str) and isinstance(about["tree_packs"], list)
        for about in stores.values()
    )

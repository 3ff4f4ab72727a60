"""A glance: one digest over the stamps of all files tells that nothing changed, before anything larger is read.

The full memory of a project of 10,000 files is a megabyte of JSON, and its tree takes as many entries to compute. Both
can be left alone when every path, time stamp and mode is what it was when the tree was last sent to this store.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from kinetic._blobs.scan import Scan
from kinetic._wire import folders, trees

_VERSION = 1


class Seen(NamedTuple):
    """What a glance recognised: the tree, its packs, and how much it holds."""

    tree: str
    packs: tuple[str, ...]
    files: int
    bytes: int


class Glance:
    """What one project looked like when it last went to one store."""

    def __init__(self, cache: str, root: str, url: str, walked: Scan) -> None:
        name = hashlib.sha256(os.fsencode(f"{root}\0{url}")).hexdigest()[:32]
        self._path = f"{cache}/{name}.glance"
        self._walked = walked
        self._looks = ""

    def recognise(self, there: Mapping[str, int]) -> Seen | None:
        """Return the tree if nothing changed and its packs lie in the store; ``there`` holds keys and sizes."""
        try:
            with open(self._path, "rb") as file:
                page = json.loads(file.read())
            sizes = dict(page["sizes"])
            known = page["version"] == _VERSION and all(
                there.get(trees.pack_key(pack)) == size for pack, size in sizes.items()
            )
            if known and page["looks"] == self.looks():
                return Seen(str(page["tree"]), tuple(sizes), int(page["files"]), int(page["bytes"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def remember(self, seen: Seen, sizes: Mapping[str, int]) -> None:
        """Write down how the project looks now; only for a project none of whose stamps is too fresh to trust."""
        page = {
            "version": _VERSION,
            "looks": self.looks(),
            "tree": seen.tree,
            "sizes": {pack: sizes[pack] for pack in seen.packs},
            "files": seen.files,
            "bytes": seen.bytes,
        }
        with contextlib.suppress(OSError):
            folders.write_whole(self._path, json.dumps(page, separators=(",", ":")).encode())

    def looks(self) -> str:
        """Return the digest of every folder's and file's path, stamp and mode."""
        if not self._looks:
            lines = []
            for folder in self._walked.folders:
                lines.append(folder.relative)
                lines += [f"{file.relative}\t{file.stamp}\t{file.executable:d}" for file in folder.files]
            self._looks = hashlib.sha256(os.fsencode("\0".join(lines))).hexdigest()
        return self._looks

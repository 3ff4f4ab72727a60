"""What this machine remembers of data: digests of unchanged files, and what it sent where.

A cache and nothing more: whatever is missing, foreign or damaged in it is found out again, and a folder that cannot be
written only costs time. Two pages for each root:

    {root}.stamps       one line of JSON, then path and stamp of every file, then their digests, 32 bytes each
    {root, store}.sent  JSON: the manifest that promises the data in that store
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from kinetic._blobs.scan import File
from kinetic._data.walking import Walked
from kinetic._wire import folders

VERSION = 1
_BETWEEN = "\0\0"  # neither a path nor a stamp is empty or holds a NUL


class Stamps:
    """The digests of one root's files, by their stamps: an equal stamp means equal content."""

    def __init__(self, cache: Path | None, walked: Walked) -> None:
        self._path = None if cache is None else f"{cache}/{_name(walked.root)}.stamps"
        self._root = os.fsencode(walked.root).hex()
        self.records = [record_of(file) for file in walked.files]
        self._looks, self._digests = self._load()

    def whole(self) -> bytes | None:
        """Return the digests of all files one after the other if nothing changed, else None."""
        return self._digests if self._looks and self._looks == _joined(self.records) else None

    def each(self) -> dict[str, bytes]:
        """Return the digest that is known for each path and stamp."""
        records = os.fsdecode(self._looks).split(_BETWEEN) if self._looks else []
        return {record: self._digests[32 * i : 32 * i + 32] for i, record in enumerate(records)}

    def write(self, records: Sequence[str], digests: Sequence[bytes]) -> None:
        """Remember files that can be trusted, and forget all others."""
        looks, joined = _joined(records), b"".join(digests)
        if self._path is None or (looks, joined) == (self._looks, self._digests):
            return
        head = {
            "kinetic-data": VERSION,
            "root": self._root,
            "looks": len(looks),
            "sha256": hashlib.sha256(looks + joined).hexdigest(),
        }
        _write(self._path, json.dumps(head).encode() + b"\n" + looks + joined)

    def _load(self) -> tuple[bytes, bytes]:
        try:
            with open(self._path or os.devnull, "rb") as file:
                head, body = json.loads(file.readline()), file.read()
            sound = head["kinetic-data"] == VERSION and head["root"] == self._root
            if sound and hashlib.sha256(body).hexdigest() == head["sha256"]:
                looks, digests = body[: head["looks"]], body[head["looks"] :]
                if len(digests) == 32 * (looks.count(_BETWEEN.encode()) + 1):
                    return looks, digests
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        return b"", b""


class Sent(NamedTuple):
    """What went to one store last.

    Attributes:
        hash: The content hash.
        shape: What else a manifest says of the tree; see ``hashing.Tree``.
        manifest: SHA-256 of the manifest.
        size: Of the manifest, in bytes.
    """

    hash: str
    shape: str
    manifest: str
    size: int


def recall(cache: Path, root: str, url: str) -> Sent | None:
    """Return what went from a root to a store last, if that is remembered."""
    try:
        page = json.loads(_sent_path(cache, root, url).read_bytes())
        if page["kinetic-data"] == VERSION and page["url"] == url:
            return Sent(str(page["hash"]), str(page["shape"]), str(page["manifest"]), int(page["size"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def remember(cache: Path, root: str, url: str, sent: Sent) -> None:
    """Write down what went from a root to a store."""
    page = {"kinetic-data": VERSION, "url": url, **sent._asdict()}
    _write(_sent_path(cache, root, url), json.dumps(page).encode())


def _write(path: str | Path, data: bytes) -> None:
    """Write a page; a cache that cannot be written is no error."""
    with contextlib.suppress(OSError):
        folders.write_whole(path, data)


def _joined(records: Sequence[str]) -> bytes:
    return os.fsencode(_BETWEEN.join(records))


def record_of(file: File) -> str:
    """Return the word under which a file's digest is remembered."""
    return f"{file.relative}\0{file.stamp}"


def _sent_path(cache: Path, root: str, url: str) -> Path:
    return cache / f"{_name(root, url)}.sent"


def _name(*parts: str) -> str:
    return hashlib.sha256(os.fsencode("\0".join(parts))).hexdigest()[:32]

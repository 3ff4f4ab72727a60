"""What this machine remembers of data: the digests of its unchanged files, and the manifest in a store."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from kinetic._blobs import cache as caches
from kinetic._blobs.scan import File
from kinetic._data.walking import Walked


def digests_of(cache: Path | None, walked: Walked) -> caches.Digests:
    """Return what is known of the files of a root."""
    path = None if cache is None else f"{cache}/{caches.name_of(walked.root)}.stamps"
    return caches.Digests(path, walked.root, [record_of(file) for file in walked.files])


def record_of(file: File) -> str:
    """Return the word under which a file's digest, which covers its path, is remembered."""
    return f"{file.relative}\0{file.stamp}"


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
    page = caches.read_page(_sent_path(cache, root, url))
    try:
        if page["url"] == url:
            return Sent(str(page["hash"]), str(page["shape"]), str(page["manifest"]), int(page["size"]))
    except (KeyError, TypeError, ValueError):
        pass
    return None


def remember(cache: Path, root: str, url: str, sent: Sent) -> None:
    """Write down what went from a root to a store."""
    caches.write_page(_sent_path(cache, root, url), {"url": url, **sent._asdict()})


def _sent_path(cache: Path, root: str, url: str) -> Path:
    return cache / f"{caches.name_of(root, url)}.sent"

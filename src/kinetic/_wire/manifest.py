"""The manifest of shipped data: every file of a tree, its digest, and the blobs of a store that hold its bytes.

A *blob* is an object named by the SHA-256 of its bytes. Small files lie together in one blob, a *pack*; a large file is
cut into blobs of its own, *chunks*. The manifest is written last, so its presence promises that every blob is there:
it is the marker of the cache. An order carries the manifest's SHA-256, the manifest carries the rest.

A file's digest is the documented one: SHA-256 of its relative path, one NUL byte, and its bytes. Files of a pack are
verified against it; a chunk is verified against its own name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import NamedTuple

from kinetic._wire import digests, documents
from kinetic.errors import IntegrityError

VERSION = 1
MOST_BYTES = 4 << 30  # of the page
_HEX = frozenset("0123456789abcdef")


class Part(NamedTuple):
    """Where some bytes of a file lie: in which blob, from where, how many."""

    blob: str
    offset: int
    length: int


class ManifestFile(NamedTuple):
    """One file of a tree.

    Attributes:
        path: Relative to the top, with forward slashes; the bare name when the data is a single file.
        executable: Whether its owner may execute it.
        size: Bytes.
        digest: SHA-256 of path, NUL and bytes, in hexadecimal.
        packed: True when it lies in one pack; False when its parts are chunks, in order.
        parts: Where its bytes lie; none when it is empty.
    """

    path: str
    executable: bool
    size: int
    digest: str
    packed: bool
    parts: tuple[Part, ...]


class Manifest(NamedTuple):
    """A tree of files, or a single file.

    Attributes:
        hash: The documented content hash.
        is_dir: Whether it is a folder.
        files: In the order in which the content hash visits them.
        folders: Folders in which nothing lies; the others follow from the files.
    """

    hash: str
    is_dir: bool
    files: tuple[ManifestFile, ...]
    folders: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """Write the page: equal manifests are equal bytes."""
        blobs = list(dict.fromkeys(part.blob for file in self.files for part in file.parts))
        number = {blob: index for index, blob in enumerate(blobs)}
        files = [
            [
                file.path,
                int(file.executable),
                file.size,
                file.digest,
                int(file.packed),
                [[number[part.blob], part.offset, part.length] for part in file.parts],
            ]
            for file in self.files
        ]
        page = {
            "data": VERSION,
            "hash": self.hash,
            "is_dir": self.is_dir,
            "blobs": blobs,
            "files": files,
            "folders": sorted(self.folders),
        }
        return json.dumps(page, sort_keys=True, separators=(",", ":")).encode()  # ASCII: names need not be UTF-8

    @classmethod
    def from_bytes(cls, data: bytes, *, sha256: str) -> Manifest:
        """Read the page that the order promised.

        Raises:
            IntegrityError: It is another page, damaged, of another version, or names a path outside its own tree.
        """
        found = digests.of_bytes(data)
        if found != sha256:
            raise IntegrityError(
                "the manifest of the data is not what was submitted; it was not used",
                why=f"its SHA-256 is {found[:16]}…, the order says {sha256[:16]}…",
                next="submit again: what is damaged is sent anew",
            )
        try:
            return _read(documents.parse(data, "the manifest of the data", most_bytes=MOST_BYTES, any_name=True))
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise IntegrityError(
                "the manifest of the data is damaged", why=f"{type(error).__name__}: {error}"
            ) from error

    def blobs(self) -> dict[str, int]:
        """Return every blob that the manifest needs, with how many bytes of it are needed at least."""
        needed: dict[str, int] = {}
        for file in self.files:
            for part in file.parts:
                needed[part.blob] = max(needed.get(part.blob, 0), part.offset + part.length)
        return needed


def file_digest(path: str) -> hashlib._Hash:
    """Begin the documented digest of a file: feed it the file's bytes."""
    return hashlib.sha256(os.fsencode(path) + b"\0")


def content_hash(file_digests: Iterable[bytes], *, is_dir: bool) -> str:
    """Return the documented content hash.

    Args:
        file_digests: Raw digests of the files: depth first, names sorted, a folder's files before its folders.
        is_dir: Whether they are the files of a folder, or one single file.
    """
    whole = hashlib.sha256(b"dir:" if is_dir else b"file:")
    for digest in file_digests:
        whole.update(digest)
    return whole.hexdigest()


def _read(page: dict[str, object]) -> Manifest:
    if type(page["data"]) is not int or page["data"] != VERSION:
        raise ValueError(f"its version is {page['data']!r}; this kinetic reads {VERSION}")
    blobs = [_hex(blob) for blob in page["blobs"]]  # type: ignore[attr-defined] # a TypeError is what we want
    files = [
        ManifestFile(
            _inside(path),
            bool(executable),
            int(size),
            _hex(digest),
            bool(packed),
            tuple(Part(blobs[number], int(offset), int(length)) for number, offset, length in parts),
        )
        for path, executable, size, digest, packed, parts in page["files"]  # type: ignore[attr-defined]
    ]
    for file in files:
        if sum(part.length for part in file.parts) != file.size or any(min(part[1:]) < 0 for part in file.parts):
            raise ValueError(f"{file.path!r} has parts that do not make up its size")
    folders = tuple(_inside(path) for path in page["folders"])  # type: ignore[attr-defined]
    return Manifest(_hex(page["hash"]), bool(page["is_dir"]), tuple(files), folders)


def _inside(path: object) -> str:
    if not isinstance(path, str) or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
        raise ValueError(f"{path!r} is no path inside a tree")
    return path


def _hex(text: object) -> str:
    if not isinstance(text, str) or len(text) != 64 or not _HEX.issuperset(text):
        raise ValueError(f"{text!r} is no digest")
    return text
